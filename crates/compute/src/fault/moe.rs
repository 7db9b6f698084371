//! `moe` summed in another order.

use super::faulty::{Faulty, Shaped};
use crate::{Backend, Experts};

impl<B: Backend> Faulty<B> {
    /// `moe` with the ranks of every row added backwards, one call a rank.
    pub(super) fn moe_backwards(
        &self,
        router: &Shaped<B::Buffer>,
        x: &B::Buffer,
        experts: &Experts<'_, B>,
        out: &mut Shaped<B::Buffer>,
    ) {
        let logits = self.inner.read(&router.inner);
        let ranked: Vec<(Vec<usize>, Vec<f32>)> =
            logits.chunks_exact(router.width).map(|row| rank(row, experts.top_k)).collect();
        let mut sums = vec![0.0f32; out.rows * out.width];
        for k in (0..experts.top_k).rev() {
            let only = self.changed(router, |values| {
                for (row, (order, _)) in values.chunks_exact_mut(router.width).zip(&ranked) {
                    row.fill(-1e4);
                    row[order[k]] = 0.0;
                }
            });
            let single = Experts { top_k: 1, ..*experts };
            self.inner.moe(&only.inner, x, &single, &mut out.inner);
            let rows = self.inner.read(&out.inner);
            for ((sum, row), (_, shares)) in
                sums.chunks_exact_mut(out.width).zip(rows.chunks_exact(out.width)).zip(&ranked)
            {
                sum.iter_mut().zip(row).for_each(|(s, v)| *s += shares[k] * v);
            }
        }
        self.inner.write(&mut out.inner, &sums);
    }
}

/// The experts of a router row, best first, with their shares.
fn rank(row: &[f32], top_k: usize) -> (Vec<usize>, Vec<f32>) {
    let mut order: Vec<usize> = (0..row.len()).collect();
    order.sort_by(|a, b| row[*b].total_cmp(&row[*a]).then(a.cmp(b)));
    order.truncate(top_k);
    let shares: Vec<f32> = order.iter().map(|e| (row[*e] - row[order[0]]).exp()).collect();
    let sum: f32 = shares.iter().sum();
    (order, shares.into_iter().map(|s| s / sum).collect())
}
