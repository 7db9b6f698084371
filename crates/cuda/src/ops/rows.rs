//! Norms and elementwise operations.

use crate::args;
use crate::buffer::CudaBuffer;
use crate::context::{Context, Shape};
use crate::error::CudaError;
use crate::module::{Function, ROWS, Unit};

/// Widest row of the kernel that joins norms: it holds the row in shared memory.
pub const WIDEST_NORM: usize = 24_576;

/// Widest row whose largest value one block of threads looks for. A vocabulary takes it 18 us, in stretches 3.
const LONG: usize = 16_384;
/// Values of a stretch of a longer row.
const STRETCH: usize = 4096;
/// Bytes of the kernels' `Best`.
const BEST: usize = 12;

/// The kernels of `rows.cu`.
pub struct RowKernels {
    pub(crate) rms_norm: Function,
    pub(crate) norms: Function,
    pub(crate) heads: Function,
    pub(crate) prepare: Function,
    pub(crate) gate_prepare: Function,
    pub(crate) prepare_wide: Function,
    pub(crate) gate_prepare_wide: Function,
    pub(crate) add: Function,
    pub(crate) add_gated: Function,
    pub(crate) add_vector: Function,
    pub(crate) scale: Function,
    pub(crate) softcap: Function,
    pub(crate) activate_mul: Function,
    pub(crate) columns: Function,
    pub(crate) copy: Function,
    pub(crate) gather: Function,
    pub(crate) join: Function,
    pub(crate) put_rows: Function,
    pub(crate) rope_angles: Function,
    pub(crate) rope: Function,
    argmax: Function,
    argmax_parts: Function,
    argmax_of_parts: Function,
}

impl RowKernels {
    /// Finds them.
    ///
    /// # Errors
    /// When they cannot be compiled or loaded.
    pub fn new(ctx: &Context) -> Result<Self, CudaError> {
        let unit = Unit::new(ROWS, &[]);
        let get = |name| ctx.function(&unit, name, 0);
        Ok(RowKernels {
            rms_norm: get("rms_norm")?,
            norms: ctx.function(&unit, "norms", 4 * WIDEST_NORM)?,
            heads: get("heads")?,
            prepare: get("prepare")?,
            gate_prepare: get("gate_prepare")?,
            prepare_wide: get("prepare_wide")?,
            gate_prepare_wide: get("gate_prepare_wide")?,
            add: get("add")?,
            add_gated: get("add_gated")?,
            add_vector: get("add_vector")?,
            scale: get("scale")?,
            softcap: get("softcap")?,
            activate_mul: get("activate_mul")?,
            columns: get("columns")?,
            copy: get("copy")?,
            gather: get("gather")?,
            join: get("join")?,
            put_rows: get("put_rows")?,
            rope_angles: get("rope_angles")?,
            rope: get("rope")?,
            argmax: get("argmax")?,
            argmax_parts: get("argmax_parts")?,
            argmax_of_parts: get("argmax_of_parts")?,
        })
    }

    /// The place of each row's largest value, at `out` as a `u32` or at `numbers` as a number; the other is 0.
    pub fn argmax(&self, ctx: &Context, x: &CudaBuffer, out: u64, numbers: u64) {
        if x.width <= LONG {
            ctx.launch(self.argmax, Shape::new(x.rows, 1, 1024), &args![x.address(), out, x.width, numbers]);
            return;
        }
        let count = x.width.div_ceil(STRETCH);
        let parts = ctx.block(x.rows * count * BEST);
        let shape = Shape::new(count, x.rows, 256);
        ctx.launch(self.argmax_parts, shape, &args![x.address(), parts.address(), x.width, STRETCH]);
        ctx.launch(self.argmax_of_parts, Shape::new(x.rows, 1, 32), &args![parts.address(), out, count, numbers]);
    }
}

/// Threads that norm `width` values: a function of the width alone, since it decides the order of the sum.
pub fn norm_threads(width: usize) -> usize {
    match width {
        0..=128 => 32,
        129..=1024 => 128,
        _ => 512,
    }
}
