//! Walks: a sequence fed in many ways, every row's logits compared in bytes with those of feeding it token by token.

use super::{Rng, Walker};

pub use super::tape::{Outcome, Tape};

/// The whole tape as sequence 0, in spans of the lengths that `next` gives.
pub fn spans(walker: &mut Walker, tape: &Tape, how: &str, mut next: impl FnMut() -> usize) -> Outcome {
    let mut at = 0;
    while at < tape.len() {
        let len = next().min(tape.len() - at);
        let rows = walker.step(&[(0, at, &tape.tokens[at..at + len])]).remove(0);
        tape.same(at, &rows, || format!("{how}, span of {len}"))?;
        at += len;
    }
    Ok(())
}

/// The whole tape in spans of `width`.
pub fn width(walker: &mut Walker, tape: &Tape, width: usize) -> Outcome {
    spans(walker, tape, &format!("width {width}"), || width)
}

/// The whole tape in spans of random lengths, most of them up to 16, some of a hundred.
pub fn mixed(walker: &mut Walker, tape: &Tape, seed: u64) -> Outcome {
    let mut rng = Rng(seed);
    spans(walker, tape, &format!("random widths, seed {seed}"), || match rng.below(12) {
        0 => 64 + rng.below(64),
        _ => 1 + rng.below(16),
    })
}

/// Sequence `i` follows tape `i`, all in the same batches: each step takes most of the sequences, in any order, each
/// with a span of its own length.
pub fn together(walker: &mut Walker, tapes: &[&Tape], seed: u64) -> Outcome {
    let mut rng = Rng(seed);
    let mut at = vec![0; tapes.len()];
    while (0..tapes.len()).any(|s| at[s] < tapes[s].len()) {
        let mut chosen: Vec<(usize, usize, usize)> = Vec::new(); // sequence, start, length
        for (s, tape) in tapes.iter().enumerate().filter(|(s, tape)| at[*s] < tape.len()) {
            let len = if rng.below(10) == 0 { 17 + rng.below(60) } else { 1 + rng.below(16) };
            if rng.below(6) > 0 {
                chosen.insert(rng.below(chosen.len() + 1), (s, at[s], len.min(tape.len() - at[s])));
            }
        }
        let parts: Vec<(usize, usize, &[u32])> =
            chosen.iter().map(|(s, start, len)| (*s, *start, &tapes[*s].tokens[*start..start + len])).collect();
        if parts.is_empty() {
            continue;
        }
        for ((s, start, len), rows) in chosen.iter().zip(walker.step(&parts)) {
            tapes[*s].same(*start, &rows, || {
                format!("{} sequences, sequence {s}, span of {len} among {chosen:?}", tapes.len())
            })?;
            at[*s] = start + len;
        }
    }
    Ok(())
}

/// Sequence `i` follows tape `i` as under speculation: every block is up to 16 tokens of which some first ones are right
/// and up to 15 or 16 are wrong, and the next block begins after the right ones, or at times a few positions before. What
/// the wrong ones left in the cache must never show. The walker needs 16 positions more than the tapes.
pub fn taking_back(walker: &mut Walker, tapes: &[&Tape], seed: u64) -> Outcome {
    let mut rng = Rng(seed);
    let vocab = walker.model.info().vocab_size;
    let mut at = vec![0; tapes.len()];
    // A recurrent model can be taken back to where the last block began, another one anywhere.
    let mut floor = vec![0; tapes.len()];
    while (0..tapes.len()).any(|s| at[s] < tapes[s].len()) {
        let mut blocks: Vec<(usize, usize, usize, Vec<u32>)> = Vec::new(); // sequence, start, right ones, tokens
        for (s, tape) in tapes.iter().enumerate().filter(|(s, tape)| at[*s] < tape.len()) {
            let back = if rng.below(4) == 0 { rng.below(4).min(at[s] - floor[s]) } else { 0 };
            let start = at[s] - back;
            let block = 1 + rng.below(16);
            let right = rng.below(block + 1).min(tape.len() - start);
            let mut tokens = tape.tokens[start..start + right].to_vec();
            let wrong = |i: usize, rng: &mut Rng| {
                let right = tape.tokens.get(start + i).copied().unwrap_or(0) as usize;
                ((right + 1 + rng.below(vocab - 1)) % vocab) as u32
            };
            (right..block).for_each(|i| tokens.push(wrong(i, &mut rng)));
            blocks.push((s, start, right, tokens));
        }
        let parts: Vec<(usize, usize, &[u32])> =
            blocks.iter().map(|(s, start, _, tokens)| (*s, *start, tokens.as_slice())).collect();
        for ((s, start, right, tokens), rows) in blocks.iter().zip(walker.step(&parts)) {
            tapes[*s].same(*start, &rows[..right * vocab], || {
                format!("taking back, sequence {s}, {right} right of a block of {}", tokens.len())
            })?;
            at[*s] = start + right;
            if walker.model.is_recurrent() {
                floor[*s] = *start;
            }
        }
    }
    Ok(())
}

/// The tape from a warm cache: sequence 0 follows it to the end of a page, sequence 1 goes on from its pages and from a copy of its
/// recurrent state, and so does sequence 0, both in the same batches in spans of their own. At the first page, the last, and one
/// between.
pub fn resumed(walker: &mut Walker, tape: &Tape, seed: u64) -> Outcome {
    let mut rng = Rng(seed);
    let (page, last) = (walker.model.page_len(), (tape.len() - 1) / walker.model.page_len());
    assert!(last > 0, "a tape of more than a page");
    let mut borders = vec![1, 1 + rng.below(last), last];
    borders.dedup();
    for border in borders.into_iter().map(|pages| pages * page) {
        let mut at = [0, border];
        while at[0] < border {
            side_by_side(walker, tape, &mut at, &[0], border, &mut rng)?;
        }
        let own = walker.lend(0, 1, border);
        let mut outcome = Ok(());
        while outcome.is_ok() && at.iter().any(|at| *at < tape.len()) {
            let who: Vec<usize> = [1, 0].into_iter().filter(|s| at[*s] < tape.len()).collect();
            outcome = side_by_side(walker, tape, &mut at, &who, tape.len(), &mut rng);
        }
        walker.give_back(1, own);
        outcome.map_err(|e| format!("{border} positions from a warm cache, {e}"))?;
    }
    Ok(())
}

/// One step of sequences that follow the same tape, each with a span of up to 16 from where it is.
fn side_by_side(
    walker: &mut Walker,
    tape: &Tape,
    at: &mut [usize],
    who: &[usize],
    end: usize,
    rng: &mut Rng,
) -> Outcome {
    let lens: Vec<usize> = who.iter().map(|s| (1 + rng.below(16)).min(end - at[*s])).collect();
    let parts: Vec<(usize, usize, &[u32])> =
        who.iter().zip(&lens).map(|(s, len)| (*s, at[*s], &tape.tokens[at[*s]..at[*s] + len])).collect();
    for ((s, len), rows) in who.iter().zip(lens).zip(walker.step(&parts)) {
        tape.same(at[*s], &rows, || format!("sequence {s}, span of {len}"))?;
        at[*s] += len;
    }
    Ok(())
}
