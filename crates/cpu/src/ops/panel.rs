//! Quantised matrices as the int8 kernels read them: panels of sixteen outputs side by side, so that a lane is an output
//! and a group costs one conversion and one scale for all of them.
//!
//! A panel is a run of groups, each `[codes, scales, biases]`:
//! - codes in blocks of 8 values of each output, four bytes a lane. Up to 4 bits ([`Code::Nibbles`], [`Code::E2m1`]) a
//!   block is 64 bytes: byte `4 o + j` has value `j` in its low nibble and value `4 + j` in its high one. Wider codes are
//!   bytes, and a block 128 of them: byte `4 o + j` has value `j`, byte `64 + 4 o + j` value `4 + j`;
//! - sixteen scales, then sixteen biases, in the type of the file. E2M1 formats keep half the scale as bf16 (which holds
//!   every E8M0 and E4M3 value exactly) and no bias: it is -12 times that ([`crate::ops::scales`]).
//!
//! Outputs beyond the last are zeros. The copy is made once, at the first product with a matrix: a table that is only
//! read by rows never has one.

use mlxcel_compute::dequant::{e2m1, e4m3, e8m0};
use mlxcel_compute::{DType, HostWeight, QuantFormat, WeightFormat};

use crate::buffer::Shared;
use crate::memory::{Memory, Slabs};
use crate::ops::decode::float_at;
use crate::pool::Pool;

/// Outputs of a panel.
pub const OUTPUTS: usize = 16;

/// Values of each output in a block.
pub const VALUES: usize = 8;

/// Bytes from which a matrix' stored form is let go of while its copy is made.
const LARGE: usize = 4 << 20;

/// How codes lie in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// Affine codes of up to 4 bits.
    Nibbles,
    /// E2M1 codes.
    E2m1,
    /// Affine codes of 5 or 6 bits.
    Narrow,
    /// Affine codes of 8 bits.
    Wide,
}

impl Code {
    /// Bytes of a block.
    const fn block_bytes(self) -> usize {
        match self {
            Code::Nibbles | Code::E2m1 => 64,
            Code::Narrow | Code::Wide => 128,
        }
    }
}

/// How a weight is laid out, which follows from its format alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PanelFormat {
    /// Form of the codes.
    pub code: Code,
    /// Type of scales and biases; for E2M1 the bf16 of half the scale, without a bias.
    pub scales: DType,
    /// Values that share a scale.
    pub group: usize,
}

impl PanelFormat {
    /// The layout of a weight that has an integer form; nothing for floats and mxfp8, whose E4M3 elements have none.
    pub fn of(format: WeightFormat) -> Option<Self> {
        let WeightFormat::Quant(quant, scales) = format else { return None };
        let (code, scales) = match quant {
            QuantFormat::Affine { bits: 2..=4, .. } => (Code::Nibbles, scales),
            QuantFormat::Affine { bits: 8, .. } => (Code::Wide, scales),
            QuantFormat::Affine { .. } => (Code::Narrow, scales),
            QuantFormat::Mxfp4 | QuantFormat::Nvfp4 => (Code::E2m1, DType::Bf16),
            QuantFormat::Mxfp8 => return None,
        };
        Some(PanelFormat { code, scales, group: quant.group() })
    }

    /// Bytes of a group of sixteen outputs.
    fn group_bytes(self) -> usize {
        let kinds = if self.code == Code::E2m1 { 1 } else { 2 };
        self.group / VALUES * self.code.block_bytes() + kinds * OUTPUTS * self.scales.size()
    }
}

/// The panels of a weight, matrix after matrix.
pub struct Panels {
    format: PanelFormat,
    groups: usize,
    /// Panels of one matrix.
    count: usize,
    panel_bytes: usize,
    memory: Memory,
}

/// The panels of one matrix.
#[derive(Clone, Copy)]
pub struct Matrix<'a> {
    /// All bytes.
    pub data: &'a [u8],
    /// Bytes of one panel.
    pub panel_bytes: usize,
    /// Groups of a row.
    pub groups: usize,
    /// Values of a group.
    pub group: usize,
}

impl Panels {
    /// Lays out every matrix of a weight whose byte ranges were checked.
    pub fn new(pool: &Pool, slabs: &Slabs, weight: &HostWeight, format: PanelFormat) -> Self {
        let groups = weight.inputs / format.group;
        let count = weight.outputs.div_ceil(OUTPUTS);
        let panel_bytes = groups * format.group_bytes();
        let total = weight.experts * count;
        let mut memory = slabs.take(total * panel_bytes);
        let shared = Shared::new(memory.bytes_mut());
        let lay_out = match weight.format {
            WeightFormat::Quant(QuantFormat::Affine { bits: 2, .. }, _) => lay_out::<2>,
            WeightFormat::Quant(QuantFormat::Affine { bits: 3, .. }, _) => lay_out::<3>,
            WeightFormat::Quant(QuantFormat::Affine { bits: 5, .. }, _) => lay_out::<5>,
            WeightFormat::Quant(QuantFormat::Affine { bits: 6, .. }, _) => lay_out::<6>,
            WeightFormat::Quant(QuantFormat::Affine { bits: 8, .. }, _) => lay_out::<8>,
            _ => lay_out::<4>,
        };
        let step = total.div_ceil(pool.threads() * 16).max(1);
        // Else the file's bytes of a large matrix and their copy are in memory together.
        let at_once = total * panel_bytes <= LARGE;
        pool.run(total.div_ceil(step), &|chunk| {
            // Stored rows that this chunk has read.
            let (mut first_row, mut end_row) = (usize::MAX, 0);
            for i in chunk * step..((chunk + 1) * step).min(total) {
                // SAFETY: each panel belongs to one chunk.
                let out = unsafe { shared.part(i * panel_bytes, panel_bytes) };
                let from = i % count * OUTPUTS;
                let first = i / count * weight.stride + from;
                let rows = first..first + OUTPUTS.min(weight.outputs - from);
                lay_out(weight, format, rows.clone(), out);
                (first_row, end_row) = (first_row.min(rows.start), end_row.max(rows.end));
            }
            if !at_once {
                weight.rows_unused(first_row..end_row);
            }
        });
        Panels { format, groups, count, panel_bytes, memory }
    }

    /// The layout.
    pub fn format(&self) -> PanelFormat {
        self.format
    }

    /// Row `o` of the first matrix as f32, bit-equal to what its stored form gives ([`crate::ops::decode::decode_row`]).
    pub fn row(&self, o: usize, out: &mut [f32]) {
        let PanelFormat { code, scales, group } = self.format;
        let (block_bytes, size, o_in) = (code.block_bytes(), scales.size(), o % OUTPUTS);
        let panel = &self.matrix(0).data[o / OUTPUTS * self.panel_bytes..][..self.panel_bytes];
        let groups = panel.chunks_exact(self.format.group_bytes()).zip(out.chunks_exact_mut(group));
        for (bytes, out) in groups {
            let (blocks, rest) = bytes.split_at(group / VALUES * block_bytes);
            let (scale, bias) = rest.split_at(OUTPUTS * size);
            let (scale, bias) =
                (float_at(scales, scale, o_in), if bias.is_empty() { 0.0 } else { float_at(scales, bias, o_in) });
            for (block, out) in blocks.chunks_exact(block_bytes).zip(out.chunks_exact_mut(VALUES)) {
                for (j, out) in out.iter_mut().enumerate() {
                    let byte = block[(j / 4) * (block_bytes - 64) + 4 * o_in + j % 4];
                    let code_of = if block_bytes == 64 { byte >> (j / 4 * 4) & 15 } else { byte };
                    // The scale of E2M1 is kept by half.
                    *out = if code == Code::E2m1 {
                        e2m1(code_of) * (2.0 * scale)
                    } else {
                        f32::from(code_of) * scale + bias
                    };
                }
            }
        }
    }

    /// Matrix `expert` of the stack.
    pub fn matrix(&self, expert: usize) -> Matrix<'_> {
        let size = self.count * self.panel_bytes;
        let data = &self.memory.bytes()[expert * size..][..size];
        Matrix { data, panel_bytes: self.panel_bytes, groups: self.groups, group: self.format.group }
    }
}

/// Eight codes, which fill exactly BITS bytes: the first and the last four, a byte each.
fn eight<const BITS: usize>(bytes: &[u8; BITS]) -> [u32; 2] {
    let mut word = [0; 8];
    word[..BITS].copy_from_slice(bytes);
    let word = u64::from_le_bytes(word);
    let mut fours = [0; 2];
    for i in 0..VALUES {
        let code = (word >> (i * BITS)) as u32 & ((1 << BITS) - 1);
        fours[i / 4] |= code << (8 * (i % 4));
    }
    fours
}

/// One panel from the stored rows `rows`, at most sixteen, of BITS bits a code. `out` holds zeros.
fn lay_out<const BITS: usize>(weight: &HostWeight, format: PanelFormat, rows: std::ops::Range<usize>, out: &mut [u8]) {
    let WeightFormat::Quant(quant, _) = weight.format else { unreachable!("panels are of quantised weights") };
    let (row_bytes, scale_bytes) = (weight.row_bytes(), weight.scale_row_bytes());
    let (group_bytes, block_bytes) = (format.group_bytes(), format.code.block_bytes());
    let code_bytes = format.group / VALUES * block_bytes;
    let shift = format.group.trailing_zeros();
    for (o, row) in rows.enumerate() {
        let codes = &weight.data[row * row_bytes..][..row_bytes];
        for (block, bytes) in codes.as_chunks::<BITS>().0.iter().enumerate() {
            // Groups are powers of two: a division for every eight codes would take most of the time.
            let k = block * VALUES;
            let at = (k >> shift) * group_bytes + (k & (format.group - 1)) / VALUES * block_bytes + 4 * o;
            let [first, last] = eight(bytes);
            if block_bytes == 64 {
                out[at..at + 4].copy_from_slice(&(first | last << 4).to_le_bytes());
            } else {
                out[at..at + 4].copy_from_slice(&first.to_le_bytes());
                out[at + 64..at + 68].copy_from_slice(&last.to_le_bytes());
            }
        }
        let scales = &weight.scales[row * scale_bytes..][..scale_bytes];
        let biases = if weight.biases.is_empty() { &[] } else { &weight.biases[row * scale_bytes..][..scale_bytes] };
        for (g, group) in out.chunks_exact_mut(group_bytes).enumerate() {
            let (scale_out, bias_out) = group[code_bytes..].split_at_mut(OUTPUTS * format.scales.size());
            if format.code == Code::E2m1 {
                let scale = if quant == QuantFormat::Mxfp4 { e8m0(scales[g]) } else { e4m3(scales[g]) };
                // Exact, so the upper half of the bits is all there is (a NaN stays one).
                let upper = ((0.5 * scale).to_bits() >> 16) as u16;
                scale_out[2 * o..2 * o + 2].copy_from_slice(&upper.to_le_bytes());
            } else {
                let size = format.scales.size();
                scale_out[size * o..][..size].copy_from_slice(&scales[size * g..][..size]);
                if !biases.is_empty() {
                    bias_out[size * o..][..size].copy_from_slice(&biases[size * g..][..size]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{PanelFormat, Panels};
    use crate::memory::{LINE, Slabs};
    use crate::pool::Pool;
    use mlxcel_compute::conformance::all_formats;
    use mlxcel_compute::conformance::rng::Rng;
    use mlxcel_compute::conformance::weights::{Shape, random_weight};
    use mlxcel_compute::dequant::code;
    use mlxcel_compute::{HostWeight, WeightFormat};

    /// Value `k` of output `o`, read back from the panels.
    fn stored(panels: &Panels, expert: usize, o: usize, k: usize) -> u8 {
        let (matrix, format) = (panels.matrix(expert), panels.format());
        let panel = &matrix.data[o / 16 * matrix.panel_bytes..][..matrix.panel_bytes];
        let group = &panel[k / format.group * format.group_bytes()..];
        let (bytes, k) = (format.code.block_bytes(), k % format.group);
        let block = &group[k / 8 * bytes..][..bytes];
        let (at, half) = (4 * (o % 16) + k % 4, k % 8 / 4);
        if bytes == 128 { block[64 * half + at] } else { block[at] >> (4 * half) & 15 }
    }

    fn differing(panels: &Panels, w: &HostWeight) -> usize {
        let bits = if let WeightFormat::Quant(format, _) = w.format { format.bits() } else { 0 };
        let rows = (0..w.experts).flat_map(|e| (0..w.outputs).map(move |o| (e, o)));
        rows.flat_map(|(e, o)| (0..w.inputs).map(move |k| (e, o, k)))
            .filter(|(e, o, k)| {
                let row = &w.data[(e * w.stride + o) * w.row_bytes()..][..w.row_bytes()];
                stored(panels, *e, *o, *k) != code(row, bits, *k)
            })
            .count()
    }

    #[test]
    fn every_code_is_found_where_the_layout_says() {
        let mut rng = Rng::new(1);
        let (pool, slabs) = (Pool::new(2), Slabs::default());
        let mut checked = 0;
        for format in all_formats() {
            let Some(layout) = PanelFormat::of(format) else { continue };
            for (experts, outputs, groups) in [(1, 1, 1), (1, 16, 2), (3, 21, 3), (2, 40, 1)] {
                let shape = Shape { experts, outputs, inputs: groups * layout.group };
                let mut w = random_weight(&mut rng, format, shape, 1);
                // Every second matrix of a stack, as gate and up lie in one tensor.
                if experts == 3 {
                    (w.experts, w.stride) = (2, 2 * w.stride);
                }
                let panels = Panels::new(&pool, &slabs, &w, layout);
                assert_eq!(panels.matrix(0).data.as_ptr().align_offset(LINE), 0);
                assert_eq!(differing(&panels, &w), 0, "{format} {shape:?}");
                checked += 1;
                // The twin: one bit of one code elsewhere.
                let mut data = w.data.to_vec();
                data[rng.below(w.row_bytes())] ^= 1 << rng.below(8);
                w.data = data.into();
                assert_eq!(differing(&panels, &w), 1, "{format} {shape:?}, a flipped bit");
            }
        }
        assert!(checked > 40, "{checked} weights");
    }
}
