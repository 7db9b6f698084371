//! Mixture of experts: routing, the experts' products pair by pair, their sum.

use mlxcel_compute::Activation;

use crate::args;
use crate::buffer::{CudaBuffer, CudaVector};
use crate::context::{Context, Shape};
use crate::error::CudaError;
use crate::module::{Function, MOE, Unit};
use crate::ops::fuse::activate_mul;
use crate::ops::linear::{CudaWeight, Pairs};
use crate::ops::rows::RowKernels;

/// Pairs of a row and a rank in one launch; grids are limited to 65,535 in y.
const MOST_PAIRS: usize = 32_768;

/// The kernels of `moe.cu`.
pub struct MoeKernels {
    route: Function,
    combine: Function,
}

impl MoeKernels {
    /// Finds them.
    ///
    /// # Errors
    /// When they cannot be compiled or loaded.
    pub fn new(ctx: &Context) -> Result<Self, CudaError> {
        let unit = Unit::new(MOE, &[]);
        Ok(MoeKernels { route: ctx.function(&unit, "route", 0)?, combine: ctx.function(&unit, "combine", 0)? })
    }
}

/// The operands of a layer's experts.
pub struct Layer<'a> {
    /// Gate matrices.
    pub gate: &'a CudaWeight,
    /// Up matrices.
    pub up: &'a CudaWeight,
    /// Down matrices.
    pub down: &'a CudaWeight,
    /// Factor of each expert.
    pub scale: &'a CudaVector,
    /// Experts of a row.
    pub top_k: usize,
    /// Between gate and up.
    pub activation: Activation,
}

/// `out` `[rows, hidden]` from `router` `[rows, experts]` and `x` `[rows, hidden]`.
pub fn apply(
    ctx: &Context,
    kernels: (&MoeKernels, &RowKernels),
    router: &CudaBuffer,
    x: &CudaBuffer,
    layer: &Layer<'_>,
    out: &CudaBuffer,
) {
    let step = MOST_PAIRS / layer.top_k;
    for first in (0..x.rows).step_by(step) {
        let rows = (x.rows - first).min(step);
        let at = |buffer: &CudaBuffer| buffer.address() + (first * buffer.width * 4) as u64;
        let pairs = rows * layer.top_k;
        let (chosen, factors) = (ctx.block(pairs * 4), ctx.block(pairs * 4));
        ctx.launch(
            kernels.0.route,
            Shape { grid: [rows, 1, 1], block: 32, shared: router.width * 8 },
            &args![at(router), layer.scale.address(), chosen.address(), factors.address(), router.width, layer.top_k],
        );
        let width = layer.gate.outputs;
        let (gate, up) = (ctx.block(pairs * width * 4), ctx.block(pairs * width * 4));
        let mut input = Pairs::new(ctx, kernels.1, chosen.address(), pairs, layer.top_k, at(x));
        input.linear(layer.gate, gate.address());
        input.linear(layer.up, up.address());
        let (g, u) = (gate.address(), up.address());
        activate_mul(ctx, kernels.1, g, layer.activation, u, 0, (pairs, width), width);
        let hidden = layer.down.outputs;
        let down = ctx.block(pairs * hidden * 4);
        Pairs::new(ctx, kernels.1, chosen.address(), pairs, 1, g).linear(layer.down, down.address());
        ctx.launch(
            kernels.0.combine,
            Shape::each(rows * hidden),
            &args![down.address(), factors.address(), at(out), hidden, layer.top_k, (rows * hidden) as u64],
        );
    }
}
