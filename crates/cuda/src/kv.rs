//! K/V pages of all caching layers, bf16, keys and values apart, and a flag for each value row (`kernels/attend.cu` says how
//! they lie).

use mlxcel_compute::{ComputeError, KvGroup, KvShape};

use crate::context::Context;
use crate::memory::Held;
use crate::ops::attend::{AttendKernels, TURNS};

/// Positions of a page.
pub const PAGE_LEN: usize = 64;

/// One layer's pages.
pub struct LayerPages {
    pub(crate) shape: KvShape,
    pub(crate) keys: u64,
    pub(crate) values: u64,
    pub(crate) flags: u64,
    pub(crate) kernels: AttendKernels,
}

/// The pages of all layers.
pub struct CudaKv {
    pub(crate) groups: Vec<Vec<LayerPages>>,
    turns: Held, // zeros between launches: how many blocks of threads are done with a tile (attend.cu)
    _memory: Vec<Held>,
}

/// Bytes of one page of one layer's keys, or of its values.
fn half_page(shape: &KvShape) -> usize {
    shape.kv_heads * shape.head_dim * PAGE_LEN * 2
}

/// Bytes of one page of one layer's flags.
fn flag_page(shape: &KvShape) -> usize {
    shape.kv_heads * PAGE_LEN * 4
}

/// Bytes of one page of a group, all its layers.
pub fn page_bytes(group: &KvGroup) -> usize {
    group.layers.iter().map(|l| 2 * half_page(l) + flag_page(l)).sum()
}

impl CudaKv {
    /// Reserves `pages[g]` pages for each group.
    ///
    /// # Errors
    /// A device without room; a head width no kernel takes.
    pub fn new(ctx: &Context, layout: &[KvGroup], pages: &[usize]) -> Result<Self, ComputeError> {
        let mut memory = Vec::new();
        let mut groups = Vec::new();
        for (group, pages) in layout.iter().zip(pages) {
            let held = ctx.held(pages * page_bytes(group), "the KV cache")?;
            // What was never written must be finite: a weight of zero does not silence NaN.
            ctx.zero(held.address(), held.bytes())?;
            let mut at = held.address();
            let mut layers = Vec::new();
            for shape in &group.layers {
                let bytes = (pages * half_page(shape)) as u64;
                let kernels = AttendKernels::new(ctx, shape.head_dim)?;
                let (keys, values, flags) = (at, at + bytes, at + 2 * bytes);
                layers.push(LayerPages { shape: *shape, keys, values, flags, kernels });
                at = flags + (pages * flag_page(shape)) as u64;
            }
            memory.push(held);
            groups.push(layers);
        }
        let turns = ctx.held(TURNS * size_of::<u32>(), "the KV cache")?;
        ctx.zero(turns.address(), turns.bytes())?;
        Ok(CudaKv { groups, turns, _memory: memory })
    }

    /// Device address of the zeros that attention counts in.
    pub(crate) fn turns(&self) -> u64 {
        self.turns.address()
    }
}
