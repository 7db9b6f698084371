//! Matrices on the device, and what multiplies with them (`linear.cu`, `dense.cu`).

use mlxcel_compute::{Activation, ComputeError, DType, HostWeight, QuantFormat, WeightFormat};

use crate::args;
use crate::buffer::CudaBuffer;
use crate::context::{Context, Shape};
use crate::error::CudaError;
use crate::memory::{Block, Held};
use crate::module::{DENSE, Function, LINEAR, Unit, linear_defines};
use crate::ops::fuse::{Prepared, SUPER, prepare};
use crate::ops::rows::RowKernels;
use crate::ops::split::{self, SPLIT_TO, Split};
use crate::ops::wide::{self, Part, WIDE_FROM, with_parts};

/// Outputs of a tile.
pub(super) const TILE: usize = 16;
/// Most matrices of one launch.
pub(super) const TOGETHER: usize = 3;

/// How a matrix is stored on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Tiles for the tensor cores.
    Tiles {
        narrow: [Function; 4], // for blocks of 8, 16, 32, 64 rows
        split: Option<Split>,  // for up to 8 rows and for many, on devices that have them
        wide: Option<Function>,
    },
    /// Row by row, f32 or f16.
    Rows { linear: Function },
}

/// A matrix or a stack of matrices.
pub struct CudaWeight {
    held: Held,
    form: Form,
    pairs: Function,
    embed: Function,
    row_dots: Function,
    /// Rows of one matrix.
    pub outputs: usize,
    /// Columns.
    pub inputs: usize,
}

/// The unit that multiplies a format.
pub fn unit(format: WeightFormat) -> Unit {
    match linear_defines(format) {
        Some(defines) => Unit::new(LINEAR, &defines),
        None => Unit::new(DENSE, &[("HALF", i64::from(format == WeightFormat::Float(DType::F16)))]),
    }
}

/// Bytes of a superblock of a tile.
pub(super) fn super_bytes(format: WeightFormat) -> usize {
    match format {
        WeightFormat::Float(_) => TILE * SUPER * 2,
        WeightFormat::Quant(quant, scales) => {
            let pair = match (quant.has_biases(), scales) {
                (true, DType::Bf16) => 4,
                (true, _) => 8,
                (false, _) => 2,
            };
            TILE * SUPER * quant.bits() / 8 + TILE * (SUPER / quant.group()) * pair
        }
    }
}

/// Bytes a weight will take on the device.
pub fn device_bytes(weight: &HostWeight) -> usize {
    match linear_defines(weight.format) {
        Some(_) => {
            let tiles = weight.experts * weight.outputs.div_ceil(TILE);
            tiles * weight.inputs.div_ceil(SUPER) * super_bytes(weight.format)
        }
        None => weight.experts * weight.outputs * weight.row_bytes(),
    }
}

fn refused(weight: &HostWeight, reason: impl ToString) -> ComputeError {
    ComputeError::Weight { name: weight.name.clone(), reason: reason.to_string() }
}

/// What the kernel that stores matrices calls the type of their scales.
fn scale_type(format: WeightFormat) -> u32 {
    match format {
        WeightFormat::Quant(QuantFormat::Mxfp4 | QuantFormat::Mxfp8, _) => 3,
        WeightFormat::Quant(QuantFormat::Nvfp4, _) => 4,
        WeightFormat::Quant(_, DType::Bf16) => 1,
        WeightFormat::Quant(_, DType::F16) => 2,
        _ => 0,
    }
}

/// A part of a stack that is brought over at once: rows of one matrix, or all rows of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    expert: usize,
    experts: usize,
    row: usize,
    rows: usize,
}

/// Bytes of a piece, about: what the device needs beside the weights while they are loaded.
const PIECE: usize = 64 << 20;

fn pieces(weight: &HostWeight) -> Vec<Piece> {
    let (row_bytes, outputs) = (weight.row_bytes().max(1), weight.outputs);
    if outputs * row_bytes > PIECE {
        let step = (PIECE / row_bytes / TILE).max(1) * TILE;
        let rows = |expert| {
            (0..outputs).step_by(step).map(move |row| Piece { expert, experts: 1, row, rows: step.min(outputs - row) })
        };
        return (0..weight.experts).flat_map(rows).collect();
    }
    // The grid is limited to 65,535 in y, where the tiles go.
    let step = (PIECE / (weight.stride * row_bytes)).clamp(1, (65_535 / outputs.div_ceil(TILE)).max(1));
    let whole = |expert| Piece { expert, experts: step.min(weight.experts - expert), row: 0, rows: outputs };
    (0..weight.experts).step_by(step).map(whole).collect()
}

/// Brings a piece over and stores it in its place.
fn store_piece(ctx: &Context, weight: &HostWeight, repack: Function, piece: Piece, to: u64) -> Result<(), CudaError> {
    let from = piece.expert * weight.stride + piece.row;
    let end = (piece.expert + piece.experts - 1) * weight.stride + piece.row + piece.rows;
    let bring = |bytes: &[u8], row_bytes: usize| -> Result<Block, CudaError> {
        let part = if bytes.is_empty() { bytes } else { &bytes[from * row_bytes..end * row_bytes] };
        let block = ctx.block(part.len());
        if let Some(failure) = ctx.failure() {
            return Err(failure.clone());
        }
        if !part.is_empty() {
            ctx.write(block.address(), part)?;
        }
        Ok(block)
    };
    let data = bring(&weight.data, weight.row_bytes())?;
    let (scales, biases) =
        (bring(&weight.scales, weight.scale_row_bytes())?, bring(&weight.biases, weight.scale_row_bytes())?);
    if linear_defines(weight.format).is_some() {
        let (tiles, supers) = (piece.rows.div_ceil(TILE), weight.inputs.div_ceil(SUPER));
        let skip = piece.expert * weight.outputs.div_ceil(TILE) + piece.row / TILE;
        ctx.launch(
            repack,
            Shape::new(supers, piece.experts * tiles, 256),
            &args![
                data.address(),
                scales.address(),
                biases.address(),
                to + (skip * supers * super_bytes(weight.format)) as u64,
                piece.rows,
                weight.inputs,
                weight.stride,
                tiles,
                scale_type(weight.format)
            ],
        );
    } else {
        let (row_bytes, rows) = (weight.row_bytes(), piece.experts * piece.rows);
        let to = to + ((piece.expert * weight.outputs + piece.row) * row_bytes) as u64;
        ctx.launch(
            repack,
            Shape::each(rows * row_bytes),
            &args![data.address(), to, row_bytes as u64, piece.rows, weight.stride, (rows * row_bytes) as u64],
        );
    }
    Ok(())
}

impl CudaWeight {
    /// Stores a matrix on the device; its host bytes are done with.
    ///
    /// # Errors
    /// Byte ranges that do not fit the shape; a device without room; kernels that cannot be had.
    pub fn load(ctx: &Context, weight: &HostWeight) -> Result<Self, ComputeError> {
        let rows = weight.rows();
        let scales = rows * weight.scale_row_bytes();
        for (found, expected, what) in [
            (weight.data.len(), rows * weight.row_bytes(), "bytes"),
            (weight.scales.len(), scales, "bytes of scales"),
            (weight.biases.len(), if weight.biases.is_empty() { 0 } else { scales }, "bytes of biases"),
        ] {
            if found != expected {
                return Err(refused(weight, format!("{expected} {what} expected, {found} found")));
            }
        }
        Ok(Self::store(ctx, weight)?)
    }

    fn store(ctx: &Context, weight: &HostWeight) -> Result<Self, CudaError> {
        let unit = unit(weight.format);
        let get = |name| ctx.function(&unit, name, 0);
        let held = ctx.held(device_bytes(weight), &weight.name)?;
        let form = match linear_defines(weight.format) {
            Some(_) => Form::Tiles {
                narrow: [get("narrow_1")?, get("narrow_2")?, get("narrow_4")?, get("narrow_8")?],
                split: split::kernels(ctx, &unit, weight.format)?,
                wide: wide::function(ctx, &unit)?,
            },
            None => Form::Rows { linear: get("linear")? },
        };
        let repack = get("repack")?;
        for piece in pieces(weight) {
            store_piece(ctx, weight, repack, piece, held.address())?;
        }
        ctx.flush()?;
        weight.unused();
        Ok(CudaWeight {
            held,
            form,
            pairs: get("linear_pairs")?,
            embed: get("embed")?,
            row_dots: get("row_dots")?,
            outputs: weight.outputs,
            inputs: weight.inputs,
        })
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> usize {
        self.held.bytes()
    }

    /// `out[r] = table[ids[r]] * scale`.
    pub fn embed(&self, ctx: &Context, ids: &[u32], scale: f32, out: &CudaBuffer) {
        let mut op = ctx.operation(size_of_val(ids));
        let ids_at = op.feed(ids);
        op.launch(
            self.embed,
            Shape::new(ids.len(), self.inputs.div_ceil(256), 256),
            &args![self.held.address(), ids_at, out.address(), scale, self.inputs, self.outputs, 0usize],
        );
    }

    /// Rows of the table whose ids lie at `numbers` as numbers, one for each row of `out`.
    pub fn embed_at(&self, ctx: &Context, numbers: u64, scale: f32, out: &CudaBuffer) {
        ctx.launch(
            self.embed,
            Shape::new(out.rows, self.inputs.div_ceil(256), 256),
            &args![self.held.address(), 0usize, out.address(), scale, self.inputs, self.outputs, numbers],
        );
    }

    /// Rows `ids` times one vector.
    pub fn row_dots(&self, ctx: &Context, ids: &[u32], y: &[f32]) -> Vec<f32> {
        let out = ctx.block(size_of_val(ids));
        let mut op = ctx.operation(size_of_val(ids) + size_of_val(y));
        let (ids_at, y_at) = (op.feed(ids), op.feed(y));
        op.launch(
            self.row_dots,
            Shape::new(ids.len().div_ceil(8), 1, 256),
            &args![self.held.address(), ids_at, y_at, out.address(), self.inputs, 0usize, ids.len()],
        );
        drop(op);
        let mut values = vec![0.0; ids.len()];
        ctx.read(out.address(), &mut values);
        values
    }
}

/// Which size of blocks rows go in. Any would give the same bits.
fn block_size(rows: usize) -> usize {
    match rows {
        0..=8 => 0,
        9..=16 => 1,
        17..=32 => 2,
        _ => 3,
    }
}

/// `outs[i] = x @ weights[i]^T`, `x` `[rows, inputs]`.
pub fn linear(ctx: &Context, k: &RowKernels, x: &CudaBuffer, weights: &[&CudaWeight], outs: &[u64]) {
    let mut prepared: Option<Prepared> = None;
    let mut wide_prepared: Option<wide::Prepared> = None;
    let mut at = 0;
    while at < weights.len() {
        let first = weights[at];
        // Matrices of one format that follow each other share a launch.
        let same = weights[at..].iter().take(TOGETHER).take_while(|w| w.form == first.form).count();
        let parts: Vec<Part> = (at..at + same)
            .map(|i| Part { w: weights[i].held.address(), y: outs[i], outputs: weights[i].outputs })
            .collect();
        match first.form {
            Form::Rows { linear } => {
                for p in &parts {
                    let shape = Shape::new(p.outputs.div_ceil(8), x.rows.div_ceil(8), 256);
                    ctx.launch(linear, shape, &args![p.w, x.address(), p.y, p.outputs, first.inputs, x.rows]);
                }
            }
            Form::Tiles { wide: Some(wide), .. } if ctx.wide() && x.rows >= WIDE_FROM => {
                let input =
                    wide_prepared.get_or_insert_with(|| wide::prepare(ctx, k, x.address(), first.inputs, x.rows));
                wide::multiply(ctx, wide, input, &parts);
            }
            Form::Tiles { narrow, split, .. } => {
                let input = prepared
                    .get_or_insert_with(|| prepare(ctx, k, x.address(), first.inputs, x.rows, block_size(x.rows)));
                let few = split.filter(|_| ctx.split() && x.rows <= SPLIT_TO);
                if !few.is_some_and(|few| split::multiply(ctx, few, input, x.rows, first.inputs, &parts)) {
                    multiply(ctx, narrow[input.size], input, x.rows, first.inputs, &parts);
                }
            }
        }
        at += same;
    }
}

/// Up to three matrices of one format times the same rows, by the narrow kernel.
fn multiply(ctx: &Context, kernel: Function, x: &Prepared, rows: usize, inputs: usize, parts: &[Part]) {
    let tiles: usize = parts.iter().map(|p| p.outputs.div_ceil(TILE)).sum();
    let args = with_parts(parts, args![x.x.address(), x.sums.address(), inputs.div_ceil(SUPER), rows]);
    ctx.launch(kernel, Shape::new(tiles, x.blocks, 256), &args);
}

/// What the kernels call an activation.
pub fn activation(act: Activation) -> u32 {
    match act {
        Activation::GeluTanh => 0,
        Activation::Silu => 1,
        Activation::Sigmoid => 2,
    }
}

/// Matrices of stacks, one for each pair of a row and a rank: `y[pair] = x[pair / share] @ weight[experts[pair]]^T`.
pub struct Pairs<'a> {
    ctx: &'a Context,
    kernels: &'a RowKernels,
    experts: u64,
    count: usize,
    share: usize,
    x: u64,
    rows: usize,
    prepared: Option<Prepared>,
}

impl<'a> Pairs<'a> {
    /// `x` `[rows, inputs]` for `count` pairs, `share` of which follow each other for one row.
    pub fn new(ctx: &'a Context, kernels: &'a RowKernels, experts: u64, count: usize, share: usize, x: u64) -> Self {
        Pairs { ctx, kernels, experts, count, share, x, rows: count / share, prepared: None }
    }

    /// The products of one stack, `[count, outputs]`.
    pub fn linear(&mut self, weight: &CudaWeight, y: u64) {
        let Pairs { ctx, kernels, experts, count, share, x, rows, .. } = *self;
        match weight.form {
            Form::Rows { .. } => ctx.launch(
                weight.pairs,
                Shape::new(weight.outputs.div_ceil(8), count, 256),
                &args![weight.held.address(), experts, x, y, weight.outputs, weight.inputs, share],
            ),
            Form::Tiles { .. } => {
                let input = self.prepared.get_or_insert_with(|| prepare(ctx, kernels, x, weight.inputs, rows, 0));
                let supers = weight.inputs.div_ceil(SUPER);
                ctx.launch(
                    weight.pairs,
                    Shape::new(weight.outputs.div_ceil(TILE), count, 256),
                    &args![
                        weight.held.address(),
                        experts,
                        y,
                        weight.outputs,
                        input.x.address(),
                        input.sums.address(),
                        supers,
                        share
                    ],
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_a_stack_once() {
        for (experts, outputs, stride, inputs) in
            [(1, 262_144, 262_144, 5376), (128, 704, 1408, 2816), (3, 40_000, 40_000, 8192)]
        {
            let weight = HostWeight {
                name: "w".into(),
                experts,
                outputs,
                inputs,
                stride,
                format: WeightFormat::Float(DType::Bf16),
                data: Vec::new().into(),
                scales: Vec::new().into(),
                biases: Vec::new().into(),
                source: mlxcel_compute::Source::default(),
            };
            let mut seen = vec![0u8; experts * outputs];
            for p in pieces(&weight) {
                assert!(p.rows == outputs || (p.experts == 1 && p.row.is_multiple_of(TILE)), "{p:?}");
                assert!(p.experts * p.rows.div_ceil(TILE) <= 65_535, "{p:?}");
                for e in p.expert..p.expert + p.experts {
                    seen[e * outputs + p.row..][..p.rows].iter_mut().for_each(|s| *s += 1);
                }
            }
            assert!(seen.iter().all(|s| *s == 1), "{experts} matrices of {outputs}");
        }
    }

    #[test]
    fn four_bits_take_what_the_file_takes() {
        let format = WeightFormat::Quant(QuantFormat::Affine { bits: 4, group: 64 }, DType::Bf16);
        // 4 bits a value, and 4 bytes for each 64.
        assert_eq!(super_bytes(format), TILE * (SUPER / 2 + SUPER / 64 * 4));
        assert_eq!(super_bytes(WeightFormat::Quant(QuantFormat::Nvfp4, DType::U8)), 2048 + 512);
    }
}
