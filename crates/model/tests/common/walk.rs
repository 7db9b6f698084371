//! Walks: a sequence fed in many ways, every row's logits compared in bytes with those of feeding it token by token.

use super::{Rng, Walker};

/// What a walk ends with: the first difference, in words, if there is one.
pub type Outcome = Result<(), String>;

/// Tokens of a sequence and the logits of each position, fed one at a time: what every other walk must reproduce.
pub struct Tape {
    pub tokens: Vec<u32>,
    logits: Vec<f32>, // [positions, vocab]
    vocab: usize,
}

impl Tape {
    /// Feeds `tokens` one by one to a fresh sequence.
    pub fn record(walker: &mut Walker, sequence: usize, tokens: Vec<u32>) -> Self {
        let vocab = walker.model.info().vocab_size;
        let mut logits = Vec::with_capacity(tokens.len() * vocab);
        for (at, token) in tokens.iter().enumerate() {
            logits.extend(walker.step(&[(sequence, at, &[*token])]).remove(0));
        }
        Tape { tokens, logits, vocab }
    }

    /// Number of positions.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Compares rows of positions `start..` in bytes.
    pub fn same(&self, start: usize, rows: &[f32], how: impl Fn() -> String) -> Outcome {
        let want = &self.logits[start * self.vocab..][..rows.len()];
        let different = rows.iter().zip(want).position(|(a, b)| a.to_bits() != b.to_bits());
        different.map_or(Ok(()), |i| {
            Err(format!(
                "{}: logit {} of position {} is {:e} ({:08x}), fed token by token it is {:e} ({:08x})",
                how(),
                i % self.vocab,
                start + i / self.vocab,
                rows[i],
                rows[i].to_bits(),
                want[i],
                want[i].to_bits()
            ))
        })
    }
}

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
