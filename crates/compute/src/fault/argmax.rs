//! `argmax` that breaks ties or overlooks damage.

use super::faulty::{Faulty, Shaped};
use crate::Backend;

impl<B: Backend> Faulty<B> {
    /// The highest index among the values equal to the right ones.
    pub(super) fn argmax_late(&self, x: &Shaped<B::Buffer>, right: &[Option<u32>]) -> Vec<Option<u32>> {
        let values = self.inner.read(&x.inner);
        let last = |(row, best): (&[f32], &Option<u32>)| {
            let max = row[(*best)? as usize];
            row.iter().rposition(|v| *v == max).map(|i| i as u32)
        };
        values.chunks_exact(x.width).zip(right).map(last).collect()
    }

    /// Comparisons only: a NaN is never larger, and neither is -inf.
    pub(super) fn argmax_blind(&self, x: &Shaped<B::Buffer>) -> Vec<Option<u32>> {
        let values = self.inner.read(&x.inner);
        let blind = |row: &[f32]| {
            let mut best = (0, f32::NEG_INFINITY);
            for (i, v) in (0..).zip(row) {
                best = if *v > best.1 { (i, *v) } else { best };
            }
            Some(best.0)
        };
        values.chunks_exact(x.width).map(blind).collect()
    }
}
