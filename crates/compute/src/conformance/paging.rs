//! The situations in which a cached sequence must give the same bits: every chunking, rollback, mixture and paging.

use super::attend::Subject;
use super::cache::{Cache, Part, Tape};
use super::rng::Rng;
use super::{Options, Report, Violation};
use crate::Backend;

/// Runs every situation.
pub(super) fn check<B: Backend>(s: &Subject<'_, B>, options: &Options, report: &mut Report) -> Result<(), Violation> {
    let mut rng = Rng::for_case(s.seed, &format!("paging {}", s.label));
    check_chunkings(s, options, &mut rng, report)?;
    check_cuts(s, options, &mut rng, report)?;
    check_rollbacks(s, options, &mut rng, report)?;
    check_later_keys(s, options, &mut rng, report)?;
    for _ in 0..if options.quick { 1 } else { 2 } {
        check_mixtures(s, &mut rng, report)?;
    }
    Ok(())
}

/// One long span, then random chunkings of the longest sequence.
fn check_chunkings<B: Backend>(
    s: &Subject<'_, B>,
    options: &Options,
    rng: &mut Rng,
    report: &mut Report,
) -> Result<(), Violation> {
    let len = s.len(0);
    let mut cache = Cache::new(s.b, s.layer, len, rng)?;
    let rounds = if options.quick { 3 } else { 6 };
    for round in 0..rounds {
        let mut chunks = Vec::new();
        let mut at = 0;
        while at < len {
            let chunk = match round {
                0 => len,
                _ if rng.one_in(3) => 1 + rng.below(len),
                _ => 1 + rng.below(17),
            };
            let chunk = chunk.min(len - at);
            chunks.push(chunk);
            let got = cache.step(&[s.part(0, at, chunk)]);
            s.same(0, at, &got, || format!("in spans of {chunks:?}"), report)?;
            at += chunk;
        }
        cache.release(0, rng);
    }
    Ok(())
}

/// A short sequence in two spans, cut at every point.
fn check_cuts<B: Backend>(
    s: &Subject<'_, B>,
    options: &Options,
    rng: &mut Rng,
    report: &mut Report,
) -> Result<(), Violation> {
    // Past the first key block and past the page edges of any likely page length.
    let mut cuts: Vec<(usize, usize)> =
        if options.quick { (1..24).map(|cut| (cut, 24)).collect() } else { (1..70).map(|cut| (cut, 70)).collect() };
    cuts.extend([(63, 131), (64, 131), (65, 131), (127, 131), (128, 131), (129, 131)]);
    let mut cache = Cache::new(s.b, s.layer, 131, rng)?;
    for (cut, end) in cuts {
        for (start, len) in [(0, cut), (cut, end - cut)] {
            let got = cache.step(&[s.part(0, start, len)]);
            s.same(0, start, &got, || format!("{end} positions cut at {cut}"), report)?;
        }
        cache.release(0, rng);
    }
    Ok(())
}

/// Blocks of every width from several positions, after other rows were written there and taken back.
fn check_rollbacks<B: Backend>(
    s: &Subject<'_, B>,
    options: &Options,
    rng: &mut Rng,
    report: &mut Report,
) -> Result<(), Violation> {
    const WIDEST: usize = 17;
    let len = s.len(0);
    let (positions, widths): (&[usize], Vec<usize>) = if options.quick {
        (&[0, 15, 60, 127], vec![1, 2, 3, 5, 8, 16, 17])
    } else {
        (&[0, 1, 15, 31, 55, 63, 64, 100, 127, 192, 250], (1..=WIDEST).collect())
    };
    let mut cache = Cache::new(s.b, s.layer, len, rng)?;
    let mut built = 0;
    for &at in positions.iter().filter(|at| **at + WIDEST <= len) {
        if at > built {
            cache.append_only(s.part(0, built, at - built));
            built = at;
        }
        for &width in &widths {
            // The rejected block: other rows, or NaN, and longer than the one that follows.
            if rng.one_in(2) {
                cache.spoil(0, at, WIDEST);
            } else {
                let draft: Tape = shifted(s.draft(rng, WIDEST), at, s.layer.q_width(), s.layer.kv_width());
                cache.step(&[Part { sequence: 0, start: at, len: WIDEST, tape: &draft }]);
            }
            let got = cache.step(&[s.part(0, at, width)]);
            s.same(0, at, &got, || format!("a block of {width} at {at} after one was taken back"), report)?;
            // What the block left is what the next single row builds on.
            if width < WIDEST {
                let got = cache.step(&[s.part(0, at + width, 1)]);
                s.same(0, at + width, &got, || format!("one row after a block of {width} at {at}"), report)?;
            }
        }
        cache.append_only(s.part(0, at, WIDEST));
        built = built.max(at + WIDEST);
    }
    Ok(())
}

/// A tape whose first row is at position `at`.
fn shifted(mut tape: Tape, at: usize, q_width: usize, kv_width: usize) -> Tape {
    tape.q.splice(0..0, vec![0.0; at * q_width]);
    tape.k.splice(0..0, vec![0.0; at * kv_width]);
    tape.v.splice(0..0, vec![0.0; at * kv_width]);
    tape
}

/// Rows attend from the middle of a full cache, as layers that share another's K/V and later steps do: keys past a
/// row's position are there and must not be seen.
fn check_later_keys<B: Backend>(
    s: &Subject<'_, B>,
    options: &Options,
    rng: &mut Rng,
    report: &mut Report,
) -> Result<(), Violation> {
    let len = s.len(0);
    let mut cache = Cache::new(s.b, s.layer, len, rng)?;
    cache.append_only(s.part(0, 0, len));
    let widths: Vec<usize> = if options.quick { vec![1, 2, 4, 9, 17, 40] } else { (1..=17).chain([33, 64]).collect() };
    for width in widths {
        let at = rng.below(len - width);
        let got = cache.attend_only(s.part(0, at, width));
        s.same(0, at, &got, || format!("{width} rows at {at} of a full cache"), report)?;
    }
    Ok(())
}

/// All sequences at once, in random order and spans of 0..=17 rows or many, beside one of NaN; pages that left the
/// window are dropped, filled with NaN and used again.
fn check_mixtures<B: Backend>(s: &Subject<'_, B>, rng: &mut Rng, report: &mut Report) -> Result<(), Violation> {
    const NAN_ROWS: usize = 40;
    let n = s.sequences();
    let stranger = n;
    let positions: usize = (0..n).map(|i| s.len(i).next_multiple_of(s.b.page_len())).sum();
    let mut cache = Cache::new(s.b, s.layer, positions + NAN_ROWS + s.b.page_len(), rng)?;
    let nan = |width: usize| vec![f32::NAN; NAN_ROWS * width];
    let nan = Tape { q: nan(s.layer.q_width()), k: nan(s.layer.kv_width()), v: nan(s.layer.kv_width()) };
    let mut done = vec![0; n];
    while (0..n).any(|i| done[i] < s.len(i)) {
        let mut parts = Vec::new();
        for (i, done) in done.iter().enumerate() {
            let want = if rng.one_in(6) { 40 + rng.below(40) } else { rng.below(18) };
            let len = want.min(s.len(i) - done);
            if len > 0 {
                parts.push(s.part(i, *done, len));
            }
        }
        if rng.one_in(2) {
            let start = rng.below(NAN_ROWS - 17);
            parts.push(Part { sequence: stranger, start, len: 1 + rng.below(17), tape: &nan });
        }
        rng.shuffle(&mut parts);
        let got = cache.step(&parts);
        let mut row = 0;
        for part in &parts {
            let rows = &got[row * s.layer.q_width()..][..part.len * s.layer.q_width()];
            row += part.len;
            if part.sequence == stranger {
                continue;
            }
            let spans = || parts.iter().map(|p| (p.sequence, p.start, p.len)).collect::<Vec<_>>();
            s.same(part.sequence, part.start, rows, || format!("mixed (sequence, start, rows) {:?}", spans()), report)?;
            done[part.sequence] = part.start + part.len;
            if let Some(window) = s.layer.spec.window {
                cache.drop_before(part.sequence, (done[part.sequence] + 1).saturating_sub(window));
            }
        }
    }
    Ok(())
}
