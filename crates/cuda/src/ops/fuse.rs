//! Operations that take the launch before them further, instead of launching on their own.
//!
//! A decoder's step is short kernels between long ones, and each costs microseconds whatever it does. Operations are queued
//! before they run, so one that finds what it reads as the output of the launch before it can add its work there: a norm to
//! the sum before it, the storing for tensor cores to either, rotation and pages to the norms of the heads. What is added
//! computes what a launch of its own would, with the same bits (`tests/fusion.rs` compares); outputs are still written.
//!
//! An output is added only if it lies apart from every operand of the launch it is added to.

use mlxcel_compute::Activation;

use crate::args;
use crate::context::{Context, Operation, Shape};
use crate::memory::Block;
use crate::module::Function;
use crate::ops::linear::activation;
use crate::ops::rows::{RowKernels, WIDEST_NORM, norm_threads};

/// Tags of launches that can be taken further.
mod tag {
    pub const NORM: u32 = 1;
    pub const NORMS: u32 = 2;
    pub const GATE: u32 = 3;
    pub const HEADS: u32 = 4;
    pub const FOLD: u32 = 5;
    pub const ATTEND: u32 = 6;
}

/// Widest head of the kernel that joins what is done to heads.
const WIDEST_HEAD: usize = 512;
/// Jobs of that kernel.
const JOBS: usize = 3;
const NORM: u64 = 1;
const ROTATE: u64 = 2;
const KEYS: u64 = 4;
const VALUES: u64 = 8;

/// Inputs of a superblock.
pub const SUPER: usize = 256;
/// Values of the sums of eight rows for each superblock: groups of 32, 64 and 128.
const SUMS: usize = 14;

/// Rows as the tensor cores read them: rounded to bf16, with the sums of their groups (`common.cuh`, `store_prepared`).
pub struct Prepared {
    /// The rows.
    pub x: Block,
    /// The sums.
    pub sums: Block,
    /// Blocks of `8 << size` rows.
    pub blocks: usize,
    /// Rows of a block: 8, 16, 32 or 64.
    pub size: usize,
}

fn apart(address: u64, args: &[u64]) -> bool {
    !args.contains(&address)
}

/// Stores `x` `[rows, inputs]` for the tensor cores, in blocks of `8 << size` rows.
pub fn prepare(ctx: &Context, k: &RowKernels, x: u64, inputs: usize, rows: usize, size: usize) -> Prepared {
    let (supers, tiles) = (inputs.div_ceil(SUPER), 1usize << size);
    let blocks = rows.div_ceil(8 * tiles);
    let used = used_last(ctx);
    let prepared = Prepared {
        x: ctx.block_apart(blocks * tiles * supers * SUPER * 8 * 2, &used),
        sums: ctx.block_apart(blocks * tiles * supers * SUMS * 8 * 4, &used),
        blocks,
        size,
    };
    let (to, sums) = (prepared.x.address(), prepared.sums.address());
    let mut op = ctx.operation(0);
    if !join_prepare(&mut op, k, x, inputs, rows, tiles, to, sums) {
        let shape = prepare_shape(rows, inputs);
        op.launch(k.prepare, shape, &args![x, to, sums, inputs, tiles]);
    }
    prepared
}

#[allow(clippy::too_many_arguments, reason = "what is read, what is written, and their sizes")]
fn join_prepare(
    op: &mut Operation<'_>,
    k: &RowKernels,
    x: u64,
    inputs: usize,
    rows: usize,
    tiles: usize,
    to: u64,
    sums: u64,
) -> bool {
    let (width, nt) = (inputs as u64, tiles as u64);
    let Some(last) = op.last() else { return false };
    let (tag, grid) = (last.tag(), last.grid());
    let a = last.args();
    // What is stored has room for `rows` rows, so the launch must be over as many: callers also go through long inputs in parts.
    match tag {
        tag::NORMS if a[7] == x && a[8] == 0 && a[10] == width && grid[0] == rows => {
            (a[8], a[9], a[11]) = (to, sums, nt);
            true
        }
        tag::NORM if a[2] == x && a[3] == width && grid[0] == rows && inputs <= WIDEST_NORM => {
            let (from, weight, eps) = (a[0], a[1], a[4]);
            let args = [from, 0, 0, 0, 0, weight, eps, x, to, sums, width, nt];
            op.replace_last(tag::NORMS, k.norms, norms_shape(rows, inputs), &args);
            true
        }
        // The gate covers whole rows of both.
        tag::GATE if a[0] == x && a[3] == 0 && a[4] == width && a[5] == width && a[6] == rows as u64 * width => {
            let (kind, y) = (a[1], a[2]);
            let shape = prepare_shape(rows, inputs);
            op.replace_last(0, k.gate_prepare, shape, &[x, kind, y, to, sums, width, nt]);
            true
        }
        // Nothing else writes what lies beyond the heads in the last superblock, so there must be nothing.
        tag::FOLD if a[3] == x && a[7] == 0 && inputs.is_multiple_of(SUPER) => {
            (a[7], a[8], a[9]) = (to, sums, nt);
            true
        }
        tag::ATTEND if a[9] == x && a[15] == 0 && inputs.is_multiple_of(SUPER) => {
            (a[15], a[16], a[17]) = (to, sums, nt);
            true
        }
        _ => false,
    }
}

/// Stores `x` `[rows, inputs]` for the wide kernel with the gate that yields it, if that was queued last; `shape` is that of storing alone.
pub fn gate_prepare_wide(
    op: &mut Operation<'_>,
    k: &RowKernels,
    (x, inputs, rows): (u64, usize, usize),
    (to, sums): (u64, u64),
    shape: Shape,
) -> bool {
    let Some(last) = op.last() else { return false };
    let (tag, width) = (last.tag(), inputs as u64);
    let a = last.args();
    // The gate covers whole rows of both, and all of them.
    let whole = a[0] == x && tag == tag::GATE && a[3] == 0 && a[4] == width && a[5] == width;
    if !whole || a[6] != rows as u64 * width {
        return false;
    }
    let (kind, y) = (a[1], a[2]);
    op.replace_last(0, k.gate_prepare_wide, shape, &[x, kind, y, to, sums, width, rows as u64]);
    true
}

/// Operands of the launch queued last, where something may be added to it: what is added must lie apart from them.
pub fn used_last(ctx: &Context) -> Vec<u64> {
    ctx.operation(0).last().map_or_else(Vec::new, |l| l.args().to_vec())
}

/// Of the kernel that stores rows: 1,024 inputs a block, four a thread.
fn prepare_shape(rows: usize, inputs: usize) -> Shape {
    Shape::new(inputs.next_multiple_of(SUPER).div_ceil(1024), rows, 256)
}

fn norms_shape(rows: usize, width: usize) -> Shape {
    let shared = width.next_multiple_of(SUPER) * 4;
    Shape { grid: [rows, 1, 1], block: norm_threads(width), shared }
}

/// `residual = (residual + rms_norm(y, weight, eps)) * scale`, `[rows, width]`.
#[allow(clippy::too_many_arguments, reason = "the operands of the operation")]
pub fn add_rms_norm(
    ctx: &Context,
    k: &RowKernels,
    residual: u64,
    y: u64,
    weight: u64,
    (rows, width): (usize, usize),
    eps: f32,
    scale: f32,
) {
    let args = args![residual, y, weight, eps, scale, 0u64, 0u64, 0u64, 0u64, 0u64, width, 1u32];
    ctx.operation(0).launch_as(tag::NORMS, k.norms, norms_shape(rows, width), &args);
}

/// RMS norm of each `width` values of `x` `[rows, row_width]`.
#[allow(clippy::too_many_arguments, reason = "the operands of the operation")]
pub fn rms_norm(
    ctx: &Context,
    k: &RowKernels,
    x: u64,
    (rows, row_width): (usize, usize),
    width: usize,
    weight: u64,
    eps: f32,
    out: u64,
) {
    let mut op = ctx.operation(0);
    if row_width != width && width <= WIDEST_HEAD {
        let job = Job { x, out, weight, pages: 0, heads: row_width / width, what: NORM };
        heads(&mut op, k, job, rows, width, Some(eps), None);
        return;
    }
    if let Some(last) = op.last()
        && last.tag() == tag::NORMS
    {
        let a = last.args();
        if a[0] == x && a[7] == 0 && a[10] == width as u64 && apart(out, a) {
            (a[5], a[6], a[7]) = (weight, u64::from(eps.to_bits()), out);
            return;
        }
    }
    let shape = Shape::new(rows * row_width / width, 1, norm_threads(width));
    op.launch_as(tag::NORM, k.rms_norm, shape, &args![x, weight, out, width, eps]);
}

/// `x = activation(x) * y[:, column..]`, `x` `[rows, width]`, `y` `[rows, y_width]`.
#[allow(clippy::too_many_arguments, reason = "two matrices, and which part of the second")]
pub fn activate_mul(
    ctx: &Context,
    k: &RowKernels,
    x: u64,
    act: Activation,
    y: u64,
    column: usize,
    (rows, width): (usize, usize),
    y_width: usize,
) {
    let values = rows * width;
    let args = args![x, activation(act), y, column, width, y_width, values as u64];
    ctx.operation(0).launch_as(tag::GATE, k.activate_mul, Shape::each(values), &args);
}

/// Attention; `folds` says that its launch yields the result. The last three arguments, for storing that, are added here.
pub fn attend(
    op: &mut Operation<'_>,
    function: Function,
    shape: Shape,
    args: &[u64; 15],
    folds: bool,
    head_dim: usize,
) {
    let all = [args.as_slice(), &[0, 0, 1]].concat();
    let open = folds && head_dim.is_multiple_of(128);
    op.launch_as(if open { tag::ATTEND } else { 0 }, function, shape, &all);
}

/// Folds partial results of attention. The last three arguments, for storing what comes out, are added here. `head_dim` decides
/// whether that can be done: a head must be a whole number of groups of 128.
pub fn fold(op: &mut Operation<'_>, function: Function, shape: Shape, args: &[u64; 7], head_dim: usize) {
    let all = [args.as_slice(), &[0, 0, 1]].concat();
    op.launch_as(if head_dim.is_multiple_of(128) { tag::FOLD } else { 0 }, function, shape, &all);
}

/// Something done to each head of a matrix.
#[derive(Clone, Copy)]
struct Job {
    x: u64,
    out: u64,
    weight: u64,
    pages: u64,
    heads: usize,
    what: u64,
}

/// Where the arguments of the kernel lie.
const X: usize = 0;
const OUT: usize = 3;
const WEIGHT: usize = 6;
const PAGES: usize = 9;
const HEADS: usize = 12;
const WHAT: usize = 15;
const ANGLES: usize = 16;
const SLOTS: usize = 17;
const DIM: usize = 18;
const COUNT: usize = 19;
const EPS: usize = 20;
const FLAGS: usize = 21;

/// Adds a job to the launch before, or begins one. Jobs run at the same time: none may read what another writes. They share an
/// epsilon and angles, as far as they have any.
fn heads(
    op: &mut Operation<'_>,
    k: &RowKernels,
    job: Job,
    rows: usize,
    dim: usize,
    eps: Option<f32>,
    angles: Option<(u64, usize)>,
) {
    let eps = eps.map(|e| u64::from(e.to_bits()));
    if let Some(last) = op.last()
        && last.tag() == tag::HEADS
        && last.grid()[0] == rows
    {
        let y = last.grid()[1];
        let a = last.args();
        let free = (0..JOBS).find(|j| a[HEADS + j] == 0);
        let normed = (0..JOBS).any(|j| a[WHAT] >> (4 * j) & NORM != 0);
        let turned = angles.is_none_or(|(at, count)| a[ANGLES] == 0 || (a[ANGLES], a[COUNT]) == (at, count as u64));
        let fits = a[DIM] == dim as u64 && eps.is_none_or(|e| !normed || a[EPS] == e) && turned;
        if let Some(j) = free
            && fits
            && apart(job.x, &a[OUT..OUT + JOBS])
            && (job.out == job.x || apart(job.out, a))
        {
            put(a, j, job);
            a[EPS] = eps.unwrap_or(a[EPS]);
            (a[ANGLES], a[COUNT]) = angles.map_or((a[ANGLES], a[COUNT]), |(at, count)| (at, count as u64));
            last.set_grid_y(y + job.heads);
            return;
        }
    }
    let mut args = [0u64; FLAGS + 1];
    put(&mut args, 0, job);
    (args[DIM], args[EPS]) = (dim as u64, eps.unwrap_or(0));
    (args[ANGLES], args[COUNT]) = angles.map_or((0, 0), |(at, count)| (at, count as u64));
    let shape = Shape::new(rows, job.heads, norm_threads(dim));
    op.launch_as(tag::HEADS, k.heads, shape, &args);
}

fn put(args: &mut [u64], j: usize, job: Job) {
    (args[X + j], args[OUT + j], args[WEIGHT + j]) = (job.x, job.out, job.weight);
    (args[PAGES + j], args[HEADS + j]) = (job.pages, job.heads as u64);
    args[WHAT] |= job.what << (4 * j);
}

/// The job of the launch before that writes `out`, as long as nothing was done to it that comes after `what`.
fn job_of(args: &[u64], out: u64, dim: usize, what: u64) -> Option<usize> {
    let open = |j: usize| (args[WHAT] >> (4 * j) & 15) < what;
    (0..JOBS).find(|j| args[DIM] == dim as u64 && args[HEADS + j] != 0 && args[OUT + j] == out && open(*j))
}

/// Rotates heads of `x` `[rows, width]` in place; `count` pairs of each head, `angles` `[rows, 2 * count]`.
pub fn rope(
    ctx: &Context,
    k: &RowKernels,
    x: u64,
    (rows, width): (usize, usize),
    head_dim: usize,
    angles: u64,
    count: usize,
) {
    let mut op = ctx.operation(0);
    if let Some(last) = op.last()
        && last.tag() == tag::HEADS
    {
        let a = last.args();
        let same = a[ANGLES] == 0 || (a[ANGLES] == angles && a[COUNT] == count as u64);
        if same
            && apart(angles, &a[OUT..OUT + JOBS])
            && let Some(j) = job_of(a, x, head_dim, ROTATE)
        {
            (a[ANGLES], a[COUNT]) = (angles, count as u64);
            a[WHAT] |= ROTATE << (4 * j);
            return;
        }
    }
    if head_dim <= WIDEST_HEAD {
        let job = Job { x, out: x, weight: 0, pages: 0, heads: width / head_dim, what: ROTATE };
        heads(&mut op, k, job, rows, head_dim, None, Some((angles, count)));
        return;
    }
    let pairs = rows * (width / head_dim) * count;
    op.launch(k.rope, Shape::each(pairs), &args![x, angles, head_dim, count, width, pairs as u64]);
}

/// Where K and V of a layer go: pages of keys, of values, and the flags of damaged values.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    /// Keys.
    pub keys: u64,
    /// Values.
    pub values: u64,
    /// Flags.
    pub flags: u64,
    /// page * 64 + place of each row.
    pub slots: u64,
}

/// Puts K and V `[rows, kv_heads * head_dim]` into pages by the launch before. False, and nothing done, where that cannot be.
pub fn append(
    op: &mut Operation<'_>,
    [key, value]: [u64; 2],
    places: Places,
    rows: usize,
    (kv_heads, dim): (usize, usize),
) -> bool {
    let Some(last) = op.last() else { return false };
    if last.tag() != tag::HEADS || last.grid()[0] != rows {
        return false;
    }
    let y = last.grid()[1];
    let a = last.args();
    let found = [job_of(a, key, dim, KEYS), job_of(a, value, dim, KEYS)];
    let missing = found.iter().filter(|f| f.is_none()).count();
    let free = (0..JOBS).filter(|j| a[HEADS + j] == 0).count();
    // Both or none; one matrix as both would need two jobs on it.
    if a[SLOTS] != 0 || a[DIM] != dim as u64 || missing > free || missing == 2 || key == value {
        return false;
    }
    // What has no job yet must not be the output of one.
    for (source, found) in [key, value].iter().zip(found) {
        if found.is_none() && !apart(*source, &a[OUT..OUT + JOBS]) {
            return false;
        }
    }
    let mut added = 0;
    let parts = [(key, places.keys, KEYS), (value, places.values, VALUES)];
    for ((source, pages, what), found) in parts.into_iter().zip(found) {
        let j = found.or_else(|| (0..JOBS).find(|j| a[HEADS + j] == 0));
        let Some(j) = j else { break }; // counted above
        if found.is_none() {
            put(a, j, Job { x: source, out: source, weight: 0, pages, heads: kv_heads, what: 0 });
            added += kv_heads;
        }
        a[PAGES + j] = pages;
        a[WHAT] |= what << (4 * j);
    }
    (a[SLOTS], a[FLAGS]) = (places.slots, places.flags);
    last.set_grid_y(y + added);
    true
}
