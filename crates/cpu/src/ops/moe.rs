//! Mixture of experts: routing per row, expert linears over grouped rows, sums in rank order.

use mlxcel_compute::Activation;

use crate::buffer::{CpuBuffer, Shared};
use crate::ops::linear::{Input, Job, run};
use crate::{CpuBackend, CpuWeight};

/// Experts of one row, best first, with their factors.
pub type Route = Vec<(usize, f32)>;

/// The three matrices of the experts.
pub struct Weights<'a> {
    /// Gate `[experts, width, hidden]`.
    pub gate: &'a CpuWeight,
    /// Up.
    pub up: &'a CpuWeight,
    /// Down `[experts, hidden, width]`.
    pub down: &'a CpuWeight,
}

/// `out[r] = sum over ranks of factor * expert(x[r])`.
pub fn apply(
    backend: &CpuBackend,
    routes: &[Route],
    x: &CpuBuffer,
    weights: &Weights<'_>,
    activation: Activation,
    out: &mut CpuBuffer,
) {
    let (gate, up, down) = (weights.gate, weights.up, weights.down);
    // Rows grouped by expert: each expert's weights are read once.
    let mut by_expert: Vec<Vec<(usize, usize)>> = vec![Vec::new(); gate.host.experts]; // (row, rank)
    for (row, route) in routes.iter().enumerate() {
        for (rank, (expert, _)) in route.iter().enumerate() {
            by_expert[*expert].push((row, rank));
        }
    }
    let order: Vec<(usize, usize)> = by_expert.iter().flatten().copied().collect();
    let mut grouped = CpuBuffer::new(&backend.arena, order.len(), x.width());
    for (i, (row, _)) in order.iter().enumerate() {
        grouped.data_mut()[i * x.width()..][..x.width()].copy_from_slice(x.row(*row));
    }
    let mut inner = CpuBuffer::new(&backend.arena, order.len(), gate.host.outputs);
    let mut results = CpuBuffer::new(&backend.arena, order.len(), down.host.outputs);
    let spans: Vec<(usize, usize, usize)> = by_expert
        .iter()
        .enumerate()
        .scan(0, |at, (expert, rows)| {
            *at += rows.len();
            Some((expert, *at - rows.len(), rows.len()))
        })
        .filter(|(_, _, rows)| *rows > 0)
        .collect();
    let (pool, isa) = (&backend.pool, backend.isa);
    {
        let input = Input::new(pool, isa, grouped.data(), x.width(), &[gate, up]);
        let shared = Shared::new(inner.data_mut());
        let jobs: Vec<Job<'_>> = spans
            .iter()
            .map(|(expert, row, rows)| Job {
                weight: gate,
                up: Some((up, activation)),
                expert: *expert,
                input: &input,
                row: *row,
                rows: *rows,
                out: &shared,
            })
            .collect();
        run(pool, isa, &jobs);
    }
    {
        let input = Input::new(pool, isa, inner.data(), gate.host.outputs, &[down]);
        let shared = Shared::new(results.data_mut());
        let jobs: Vec<Job<'_>> = spans
            .iter()
            .map(|(expert, row, rows)| Job {
                weight: down,
                up: None,
                expert: *expert,
                input: &input,
                row: *row,
                rows: *rows,
                out: &shared,
            })
            .collect();
        run(pool, isa, &jobs);
    }
    let mut place = vec![vec![0; 0]; routes.len()];
    for (p, route) in place.iter_mut().zip(routes) {
        p.resize(route.len(), 0);
    }
    for (i, (row, rank)) in order.iter().enumerate() {
        place[*row][*rank] = i;
    }
    let width = down.host.outputs;
    for (row, route) in routes.iter().enumerate() {
        let target = &mut out.data_mut()[row * width..][..width];
        target.fill(0.0);
        for (rank, (_, factor)) in route.iter().enumerate() {
            let y = &results.row(place[row][rank]);
            target.iter_mut().zip(*y).for_each(|(t, y)| *t = factor.mul_add(*y, *t));
        }
    }
}
