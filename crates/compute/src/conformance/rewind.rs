//! The situations in which a recurrent sequence must give the same bits: every chunking, mixture and slot, rows taken back,
//! states copied, slots used again.

use super::recurrent::Subject;
use super::rng::Rng;
use super::states::{Feed, Outputs, Tape};
use super::{Options, Report, Violation, bits, first_difference};
use crate::Backend;

/// Rows that can be taken back, where it does not matter.
const RECORD: usize = 8;

/// Runs every situation.
pub(super) fn check<B: Backend>(s: &Subject<'_, B>, options: &Options, report: &mut Report) -> Result<(), Violation> {
    let mut rng = Rng::for_case(s.seed, &format!("rewind {}", s.label));
    check_widths(s, options, report)?;
    check_chunkings(s, options, &mut rng, report)?;
    check_mixtures(s, options, &mut rng, report)?;
    check_take_backs(s, options, &mut rng, report)?;
    check_refusals(s, &mut rng, report)?;
    check_copies(s, &mut rng, report)?;
    check_reuse(s, &mut rng, report)?;
    check_declared(s, report)
}

/// One span of a step.
struct Step {
    feed: Feed,
    /// The first rows are those of a sequence, from one of its rows on: sequence, row, number.
    right: Option<(usize, usize, usize)>,
}

/// Slots under test.
struct Bench<'a, 'b, B: Backend> {
    s: &'a Subject<'b, B>,
    state: B::State,
    report: &'a mut Report,
}

impl<'a, 'b, B: Backend> Bench<'a, 'b, B> {
    fn new(s: &'a Subject<'b, B>, slots: usize, record: usize, report: &'a mut Report) -> Result<Self, Violation> {
        let state = s.net.state(slots, record)?;
        let bench = Bench { s, state, report };
        for slot in 0..slots {
            bench.position(slot, None, "in new slots")?;
        }
        Ok(bench)
    }

    /// Rows `start..start + len` of a sequence for a slot that stands there.
    fn right(&self, slot: usize, sequence: usize, start: usize, len: usize) -> Step {
        let rows = self.s.sequences[sequence].tape.slice(start, len);
        Step { feed: Feed { slot, start, rows }, right: Some((sequence, start, len)) }
    }

    /// The same, then `wrong` others.
    fn partly(&self, slot: usize, sequence: usize, start: usize, len: usize, wrong: usize, rng: &mut Rng) -> Step {
        let mut step = self.right(slot, sequence, start, len);
        step.feed.rows.append(&Tape::garbage(rng, &self.s.net.layout, wrong));
        step
    }

    /// Rows that belong to none.
    fn wrong(&self, slot: usize, start: usize, len: usize, rng: &mut Rng) -> Step {
        Step { feed: Feed { slot, start, rows: Tape::garbage(rng, &self.s.net.layout, len) }, right: None }
    }

    /// One step; compares the outputs of all right rows, and some states of slots that have seen no others (the next rows
    /// would show the rest).
    fn run(&mut self, steps: &[Step], how: &str) -> Result<(), Violation> {
        let feeds: Vec<&Feed> = steps.iter().map(|step| &step.feed).collect();
        let got = self.s.net.forward(&mut self.state, &feeds, None);
        let mut first = 0;
        for step in steps {
            if let Some((sequence, row, n)) = step.right {
                self.same_outputs(&got, first, (sequence, row, n), how)?;
            }
            first += step.feed.rows.len();
        }
        for Step { feed: Feed { slot, start, rows }, right } in steps.iter().filter(|step| step.feed.rows.len() > 0) {
            self.position(*slot, Some(start + rows.len()), how)?;
            match right {
                Some((sequence, row, n)) if *n == rows.len() => {
                    let end = row + n;
                    if end.is_multiple_of(4) || end == self.s.len(*sequence) {
                        self.same_state(*slot, *sequence, end, how)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Takes back rows of a sequence that are on record.
    fn take_back(&mut self, slot: usize, sequence: usize, len: usize, how: &str) -> Result<(), Violation> {
        let how = format!("{how}, taken back to {len}");
        if !self.s.net.b.state_take_back(&mut self.state, slot, len) {
            return Err(self.s.violation("state", &format!("{how}: refused, although the rows are on record")));
        }
        self.position(slot, Some(len), &how)?;
        self.same_state(slot, sequence, len, &how)
    }

    /// Asks for rows that need not be on record; the slot stands at `len` rows of the sequence. Either they are taken back,
    /// or nothing changes. Returns which.
    fn try_take_back(&mut self, slot: usize, (sequence, len): (usize, usize), to: usize) -> Result<bool, Violation> {
        let taken = self.s.net.b.state_take_back(&mut self.state, slot, to);
        let how = format!("after {} at {len} to go back to {to}", if taken { "agreeing" } else { "refusing" });
        let stands = if taken { to } else { len };
        self.position(slot, Some(stands), &how)?;
        self.same_state(slot, sequence, stands, &how)?;
        Ok(taken)
    }

    fn refuses(&mut self, slot: usize, to: usize, how: &str) -> Result<(), Violation> {
        if self.s.net.b.state_take_back(&mut self.state, slot, to) {
            return Err(self.s.violation("state", &format!("{how}: took back to {to}, which it cannot know")));
        }
        Ok(())
    }

    fn position(&self, slot: usize, want: Option<usize>, how: &str) -> Result<(), Violation> {
        let got = self.s.net.b.state_position(&self.state, slot);
        if got != want {
            let what = format!("{how}: slot {slot} says it stands at {got:?} instead of {want:?}");
            return Err(self.s.violation("state", &what));
        }
        Ok(())
    }

    /// A slot's state is the one after `len` rows of a sequence. At 0 there is nothing to compare: a start reads no state.
    fn same_state(&mut self, slot: usize, sequence: usize, len: usize, how: &str) -> Result<(), Violation> {
        if len > 0 {
            let got = self.s.net.read(&self.state, slot);
            same_state(self.s, &got, &self.s.sequences[sequence].states[len - 1], how, self.report)?;
        }
        Ok(())
    }

    fn same_outputs(
        &mut self,
        got: &Outputs,
        first: usize,
        (sequence, row, n): (usize, usize, usize),
        how: &str,
    ) -> Result<(), Violation> {
        let want = &self.s.sequences[sequence].outputs;
        let how = format!("{how}, sequence {sequence}");
        same_outputs(self.s, (got, first), (want, row), n, &how, self.report)
    }
}

/// Compares `n` rows with what they are when fed row by row.
pub(super) fn same_outputs<B: Backend>(
    s: &Subject<'_, B>,
    (got, first): (&Outputs, usize),
    (want, row): (&Outputs, usize),
    n: usize,
    how: &str,
    report: &mut Report,
) -> Result<(), Violation> {
    for (layer, shape) in s.net.layout.layers.iter().enumerate() {
        for (op, width, got, want) in [
            ("causal_conv", shape.channels(), &got.conv[layer], &want.conv[layer]),
            ("gated_delta", shape.value_width(), &got.delta[layer], &want.delta[layer]),
        ] {
            let (got, want) = (&got[first * width..][..n * width], &want[row * width..][..n * width]);
            if let Some(i) = first_difference(want, got) {
                let what = format!(
                    "{how}: layer {layer}, value {} of row {} is {:e} ({:08x}), fed row by row it is {:e} ({:08x})",
                    i % width,
                    row + i / width,
                    got[i],
                    bits(got[i]),
                    want[i],
                    bits(want[i])
                );
                return Err(s.violation(op, &what));
            }
            report.entry(op).bits += got.len() as u64;
        }
    }
    Ok(())
}

/// Compares a state with the one of rows fed one by one.
pub(super) fn same_state<B: Backend>(
    s: &Subject<'_, B>,
    got: &[f32],
    want: &[f32],
    how: &str,
    report: &mut Report,
) -> Result<(), Violation> {
    if got.len() != want.len() {
        return Err(s.violation("state", &format!("{how}: {} values read instead of {}", got.len(), want.len())));
    }
    if let Some(i) = first_difference(want, got) {
        let mut place = i;
        let mut layer = 0;
        for (l, shape) in s.net.layout.layers.iter().enumerate() {
            let values = shape.window_values() + shape.state_values();
            layer = l;
            if place < values {
                break;
            }
            place -= values;
        }
        let window = s.net.layout.layers[layer].window_values();
        let part =
            if place < window { format!("window value {place}") } else { format!("matrix value {}", place - window) };
        let what = format!(
            "{how}: layer {layer}, {part} of the state is {:e} ({:08x}), fed row by row it is {:e} ({:08x})",
            got[i],
            bits(got[i]),
            want[i],
            bits(want[i])
        );
        return Err(s.violation("state", &what));
    }
    report.entry("state").bits += got.len() as u64;
    Ok(())
}

/// A long sequence in spans of one width after another, each from the start of the same slot.
fn check_widths<B: Backend>(s: &Subject<'_, B>, options: &Options, report: &mut Report) -> Result<(), Violation> {
    let len = s.len(0);
    for record in [RECORD, 0, len] {
        let mut bench = Bench::new(s, 2, record, report)?;
        let few = record != RECORD || s.is_large() && options.quick;
        for width in std::iter::once(1).chain(options.widths()).filter(|w| !few || w % 8 == 1) {
            let mut at = 0;
            while at < len {
                let step = bench.right(1, 0, at, width.min(len - at));
                bench.run(&[step], &format!("spans of {width}, record {record}"))?;
                at += width;
            }
        }
    }
    Ok(())
}

/// How often to try something random.
fn rounds<B: Backend>(s: &Subject<'_, B>, options: &Options) -> usize {
    match (s.is_large(), options.quick) {
        (true, true) => 1,
        (true, false) | (false, true) => 2,
        (false, false) => 5,
    }
}

/// Every sequence in random spans.
fn check_chunkings<B: Backend>(
    s: &Subject<'_, B>,
    options: &Options,
    rng: &mut Rng,
    report: &mut Report,
) -> Result<(), Violation> {
    let mut bench = Bench::new(s, 1, RECORD, report)?;
    for _ in 0..rounds(s, options) {
        for sequence in 0..s.sequences.len() {
            let mut chunks = Vec::new();
            let mut at = 0;
            while at < s.len(sequence) {
                let chunk = if rng.one_in(4) { 1 + rng.below(s.len(sequence)) } else { 1 + rng.below(17) };
                let chunk = chunk.min(s.len(sequence) - at);
                chunks.push(chunk);
                let step = bench.right(0, sequence, at, chunk);
                bench.run(&[step], &format!("spans of {chunks:?}"))?;
                at += chunk;
            }
        }
    }
    Ok(())
}

/// All sequences at once in random slots, order and spans, some of which end in rows that are taken back, beside a sequence
/// of garbage and spans of no rows; then once more in other slots, which hold what was left there.
fn check_mixtures<B: Backend>(
    s: &Subject<'_, B>,
    options: &Options,
    rng: &mut Rng,
    report: &mut Report,
) -> Result<(), Violation> {
    let n = s.sequences.len();
    let slots = n + 3;
    let mut bench = Bench::new(s, slots, RECORD, report)?;
    for _ in 0..2.max(rounds(s, options)) {
        let slot = rng.sample(slots, n + 1); // the stranger's is the last
        let mut done = vec![0; n];
        let mut stranger = 0;
        while (0..n).any(|i| done[i] < s.len(i)) {
            let mut steps = Vec::new();
            for (i, done) in done.iter_mut().enumerate() {
                let want = if rng.one_in(8) { 30 + rng.below(40) } else { rng.below(18) };
                let len = want.min(s.len(i) - *done);
                let wrong = if rng.one_in(4) { 1 + rng.below(RECORD) } else { 0 };
                if len > 0 {
                    steps.push(bench.partly(slot[i], i, *done, len, wrong, rng));
                    *done += len;
                }
            }
            if steps.is_empty() {
                continue;
            }
            let rows = rng.below(18);
            let start = if rng.one_in(3) { 0 } else { stranger };
            steps.push(bench.wrong(slot[n], start, rows, rng));
            stranger = if rows > 0 { start + rows } else { stranger };
            rng.shuffle(&mut steps);
            let spans: Vec<_> =
                steps.iter().map(|s| (s.feed.slot, s.feed.start, s.feed.rows.len(), s.right.map(|r| r.0))).collect();
            let how = format!("mixed (slot, start, rows, sequence) {spans:?}");
            bench.run(&steps, &how)?;
            for step in &steps {
                if let Some((sequence, row, n)) = step.right.filter(|right| right.2 < step.feed.rows.len()) {
                    bench.take_back(step.feed.slot, sequence, row + n, &how)?;
                }
            }
        }
    }
    Ok(())
}

/// Spans of right rows and wrong ones, the wrong ones taken back, then perhaps some of the right ones too, and on with the
/// right ones: every count up to the record, on spans shorter and longer than it, from the start and from the middle.
fn check_take_backs<B: Backend>(
    s: &Subject<'_, B>,
    options: &Options,
    rng: &mut Rng,
    report: &mut Report,
) -> Result<(), Violation> {
    let (records, spans, starts): (&[usize], &[usize], &[usize]) = match (s.is_large(), options.quick) {
        (true, true) => (&[RECORD], &[8, 9], &[3]),
        (true, false) | (false, true) => (&[1, RECORD], &[1, 2, 7, 8, 9, 20], &[0, 3, 15]),
        (false, false) => (&[1, 2, RECORD, 17], &[1, 2, 3, 7, 8, 9, 16, 17, 18, 33], &[0, 1, 2, 3, 30]),
    };
    for record in records {
        let mut bench = Bench::new(s, 3, *record, report)?;
        for (span, at) in spans.iter().flat_map(|span| starts.iter().map(move |at| (*span, *at))) {
            for back in 0..=span.min(*record) {
                let slot = rng.below(3);
                let how = format!("record {record}, {span} rows at {at}, {back} of them wrong");
                if at > 0 {
                    let step = bench.right(slot, 0, 0, at);
                    bench.run(&[step], &how)?;
                }
                let step = bench.partly(slot, 0, at, span - back, back, rng);
                bench.run(&[step], &how)?;
                let mut stands = at + span - back;
                bench.take_back(slot, 0, stands, &how)?;
                let least = at + span.saturating_sub(*record);
                while stands > least && rng.one_in(2) {
                    stands = least + rng.below(stands - least);
                    bench.take_back(slot, 0, stands, &format!("{how}, and again"))?;
                }
                // A block on top of what was taken back, then plain rows.
                let right = rng.below(4);
                let step = bench.partly(slot, 0, stands, right, 1, rng);
                bench.run(&[step], &how)?;
                stands += right;
                bench.take_back(slot, 0, stands, &format!("{how}, then one more"))?;
                for len in [1, 1 + rng.below(5)] {
                    let step = bench.right(slot, 0, stands, len);
                    bench.run(&[step], &format!("{how}, then taken back to {stands}"))?;
                    stands += len;
                }
            }
        }
    }
    Ok(())
}

/// Rows that are not on record: nothing changes, and those that are can still be taken back.
fn check_refusals<B: Backend>(s: &Subject<'_, B>, rng: &mut Rng, report: &mut Report) -> Result<(), Violation> {
    let (first, second, record) = (7, 13, 4);
    let end = first + second;
    let mut bench = Bench::new(s, 2, record, report)?;
    bench.refuses(1, 0, "in an unused slot")?;
    bench.refuses(1, 3, "in an unused slot")?;
    bench.position(1, None, "after a refusal in an unused slot")?;
    for to in [end - record - 1, first + 1, first, first - 1, 1, end + 1, end + 100] {
        for len in [first, second] {
            let step = bench.right(0, 0, if len == first { 0 } else { first }, len);
            bench.run(&[step], "before a refusal")?;
        }
        if to > end {
            bench.refuses(0, to, &format!("at {end}"))?;
            bench.position(0, Some(end), "after a refusal")?;
            bench.same_state(0, 0, end, "after a refusal")?;
        } else if bench.try_take_back(0, (0, end), to)? {
            continue;
        }
        let stands = end - rng.below(record + 1);
        bench.take_back(0, 0, stands, &format!("after refusing to go back to {to}"))?;
        // Now there is less on record, or nothing.
        let to = stands - record - 1;
        if !bench.try_take_back(0, (0, stands), to)? {
            let step = bench.right(0, 0, stands, 3);
            bench.run(&[step], "after two refusals")?;
        }
    }
    Ok(())
}

/// States copied into used and unused slots, and on from there, together with the slot they came from.
fn check_copies<B: Backend>(s: &Subject<'_, B>, rng: &mut Rng, report: &mut Report) -> Result<(), Violation> {
    let b = s.net.b;
    let at = 20;
    let mut bench = Bench::new(s, 4, RECORD, report)?;
    let steps = [bench.right(0, 0, 0, at), bench.right(1, 1, 0, 13), bench.wrong(2, 0, 5, rng)];
    bench.run(&steps, "before a copy")?;
    let copy = b.state_save(&bench.state, 0);
    let step = bench.partly(0, 0, at, 4, 3, rng);
    bench.run(&[step], "after a copy")?;
    bench.take_back(0, 0, at + 4, "after a copy")?;
    let later = b.state_save(&bench.state, 0);
    same_state(s, &b.state_read(&copy), &s.sequences[0].states[at - 1], "a copy after its slot went on", bench.report)?;
    // A slot of another sequence, of garbage, never used, and the one it came from.
    for slot in [1, 2, 3, 0] {
        let how = format!("copied into slot {slot}");
        b.state_restore(&mut bench.state, slot, &copy);
        bench.position(slot, Some(at), &how)?;
        bench.same_state(slot, 0, at, &how)?;
        bench.refuses(slot, at - 1, &how)?;
        bench.refuses(slot, at + 1, &how)?;
        bench.position(slot, Some(at), &format!("{how}, after refusing"))?;
        bench.same_state(slot, 0, at, &format!("{how}, after refusing"))?;
    }
    let steps = [bench.partly(3, 0, at, 2, 4, rng), bench.right(0, 0, at, 9), bench.right(2, 0, at, 1)];
    bench.run(&steps, "copied into several slots")?;
    bench.take_back(3, 0, at + 2, "copied into slot 3")?;
    bench.take_back(0, 0, at + 3, "copied back into slot 0")?;
    bench.take_back(3, 0, at, "copied into slot 3, and again")?;
    b.state_restore(&mut bench.state, 1, &later);
    b.state_restore(&mut bench.state, 0, &later);
    let steps = [bench.right(3, 0, at, 7), bench.right(1, 0, at + 4, 2), bench.right(0, 0, at + 4, 1)];
    bench.run(&steps, "a copy made after taking back")?;
    same_state(s, &b.state_read(&later), &s.sequences[0].states[at + 3], "a copy made after taking back", bench.report)
}

/// Slots that hold something, used from the start again without a word.
fn check_reuse<B: Backend>(s: &Subject<'_, B>, rng: &mut Rng, report: &mut Report) -> Result<(), Violation> {
    let mut bench = Bench::new(s, 2, RECORD, report)?;
    for (round, rows) in [1, 2, RECORD, 12].into_iter().enumerate() {
        // Until a garbage of each kind has been there.
        for _ in 0..4 {
            let step = bench.wrong(1, 0, rows, rng);
            bench.run(&[step], "garbage")?;
            let how = format!("after {rows} rows of garbage in its slot");
            if rng.one_in(2) {
                bench.take_back(1, 1, 0, &how)?;
            }
            let (mut at, sequence) = (0, [1, 2, 0][round % 3]);
            for len in [[1, 3, 9], [9, 1, 1], [2, 2, 2]][rng.below(3)] {
                let step = bench.right(1, sequence, at, len);
                bench.run(&[step], &how)?;
                at += len;
            }
        }
    }
    Ok(())
}

/// States declared to be at another position, or none.
fn check_declared<B: Backend>(s: &Subject<'_, B>, report: &mut Report) -> Result<(), Violation> {
    let b = s.net.b;
    let mut bench = Bench::new(s, 2, RECORD, report)?;
    let step = bench.right(1, 0, 0, 10);
    bench.run(&[step], "before it was declared")?;
    for (declared, from) in [(4, 10), (100, 13)] {
        let how = format!("{from} rows declared to be {declared}");
        b.state_declare(&mut bench.state, 1, Some(declared));
        bench.position(1, Some(declared), &how)?;
        bench.same_state(1, 0, from, &how)?;
        let mut step = bench.right(1, 0, from, 3);
        step.feed.start = declared;
        bench.run(&[step], &how)?;
    }
    b.state_declare(&mut bench.state, 1, None);
    bench.position(1, None, "declared to be none")?;
    bench.refuses(1, 0, "declared to be none")?;
    bench.refuses(1, 101, "declared to be none")?;
    let step = bench.right(1, 1, 0, 5);
    bench.run(&[step], "after it was declared to be none")
}
