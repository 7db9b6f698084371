//! Tapes: what a sequence fed token by token gives, row by row; as numbers, or as hashes where a vocabulary's rows are long.

use super::Walker;

/// What a walk ends with: the first difference, in words, if there is one.
pub type Outcome = Result<(), String>;

/// Longest rows that a tape keeps as they are: an embedded model's. Hundreds of rows of a mebibyte are kept as hashes.
const LONG: usize = 1 << 16;

/// Tokens of a sequence and the logits of each position, fed one at a time: what every other walk must reproduce.
pub struct Tape {
    pub tokens: Vec<u32>,
    rows: Rows,
    vocab: usize,
}

enum Rows {
    /// `[positions, vocab]`
    Values(Vec<f32>),
    /// One a position.
    Hashes(Vec<u64>),
}

impl Tape {
    /// Feeds `tokens` one by one to a fresh sequence.
    pub fn record(walker: &mut Walker, sequence: usize, tokens: Vec<u32>) -> Self {
        let vocab = walker.model.info().vocab_size;
        let mut rows = if vocab > LONG { Rows::Hashes(Vec::new()) } else { Rows::Values(Vec::new()) };
        for (at, token) in tokens.iter().enumerate() {
            let row = walker.step(&[(sequence, at, &[*token])]).remove(0);
            match &mut rows {
                Rows::Values(values) => values.extend(row),
                Rows::Hashes(hashes) => hashes.push(hash(&row)),
            }
        }
        Tape { tokens, rows, vocab }
    }

    /// The same as hashes alone.
    pub fn hashed(&self) -> Self {
        let hashes = match &self.rows {
            Rows::Values(values) => values.chunks_exact(self.vocab).map(hash).collect(),
            Rows::Hashes(hashes) => hashes.clone(),
        };
        Tape { tokens: self.tokens.clone(), rows: Rows::Hashes(hashes), vocab: self.vocab }
    }

    /// Number of positions.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Compares rows of positions `start..` in bytes.
    pub fn same(&self, start: usize, rows: &[f32], how: impl Fn() -> String) -> Outcome {
        match &self.rows {
            Rows::Values(values) => self.same_values(values, start, rows, how),
            Rows::Hashes(hashes) => {
                let found = rows.chunks_exact(self.vocab).map(hash);
                let different = found.zip(&hashes[start..]).position(|(a, b)| a != *b);
                different.map_or(Ok(()), |row| {
                    Err(format!("{}: the logits of position {} are not those fed token by token", how(), start + row))
                })
            }
        }
    }

    fn same_values(&self, values: &[f32], start: usize, rows: &[f32], how: impl Fn() -> String) -> Outcome {
        let want = &values[start * self.vocab..][..rows.len()];
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

/// A hash of a row's bits. Every step is one to one in what it takes in, so that no single difference is lost; four chains, to
/// be about as fast as memory.
fn hash(row: &[f32]) -> u64 {
    let step = |h: u64, v: u64| (h ^ v).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    let (parts, rest) = row.as_chunks::<4>();
    let mut lanes = [1u64, 2, 3, 4];
    for part in parts {
        for (lane, value) in lanes.iter_mut().zip(part) {
            *lane = step(*lane, u64::from(value.to_bits()));
        }
    }
    let ends = rest.iter().map(|v| u64::from(v.to_bits()));
    lanes.into_iter().chain(ends).fold(row.len() as u64, step)
}
