//! The row-law suite: one set of checks that every backend runs from its own tests (DESIGN §1, §4).
//!
//! Each verb is checked two ways. **Bounds**: against [`Reference`](crate::reference::Reference) (f64) on the same
//! inputs, within the tolerance [`Options`] gives its class. **Bits**: against itself, since the row law says that a
//! row computed alone is the row computed in any company: at every width 2..=17 and some larger, in any order, beside
//! rows full of NaN and huge values, and (attention, recurrent layers) however the sequence was cut into spans, mixed with
//! others, rolled back, or moved to other pages and slots.
//!
//! ```
//! use mlxcel_compute::conformance::{Options, check_add};
//! use mlxcel_compute::reference::Reference;
//!
//! let report = check_add(&Reference, &Options::quick())?;
//! assert!(report.count("add").bits > 0);
//! # Ok::<(), mlxcel_compute::conformance::Violation>(())
//! ```
//!
//! Bits are compared as `f32::to_bits`, so `0.0` and `-0.0` differ; any NaN equals any other, because neither IEEE 754
//! nor Rust fixes which operand's payload survives. Output buffers are filled with NaN before each call, so a value a
//! verb forgets to write is seen.

mod ahead;
mod argmax;
mod attend;
mod cache;
mod elementwise;
mod linear;
mod moe;
mod paging;
mod recurrent;
mod rewind;
pub mod rng;
mod rope;
mod rows;
mod states;
mod walk;
pub mod weights;

use std::collections::BTreeMap;
use std::fmt;

pub use ahead::check_ahead;
pub use argmax::check_argmax;
pub use attend::check_attend;
pub use elementwise::{
    check_activate_mul, check_add, check_add_gated, check_add_rms_norm, check_add_vector, check_columns, check_gather,
    check_rms_norm, check_scale, check_softcap,
};
pub use linear::{check_embed, check_gated, check_linear};
pub use moe::check_moe;
pub use recurrent::check_recurrent;
pub use rope::check_rope;

use crate::{Backend, DType, WeightFormat};

/// A broken promise: which verb, and in which situation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{op}: {what}")]
pub struct Violation {
    /// The [`Backend`] verb.
    pub op: String,
    /// The case (shape, format), the situation (width, row, chunking) and the two values that disagree.
    pub what: String,
}

impl Violation {
    fn new(op: &str, what: String) -> Self {
        Violation { op: op.to_owned(), what }
    }
}

/// How much to check, and how near the reference the results must be.
///
/// Tolerances concern bounds only; bits have none.
#[derive(Clone, Debug)]
pub struct Options {
    /// Relative to `sum |x| |w|`: matrices of f32 and f16.
    pub float_matmul: f64,
    /// The same of bf16, whose other operand a backend may round to bf16 as well: at most 1/512.
    pub bf16_matmul: f64,
    /// Relative to `max |x| * sum |w|`: quantised matrices. Rounding activations to int8 costs at most 1/254, whatever
    /// the group that shares a scale.
    pub quant_matmul: f64,
    /// Relative to the magnitude of a result and of its terms: norms, activations, rotations.
    pub elementwise: f64,
    /// Relative error of an attention score (to `|q| |k|`) and of an output (to the largest `|v|`), where K and V are
    /// bf16 values, so that both kinds of page hold them exactly.
    pub attention: f64,
    /// The same where K and V are arbitrary f32 and pages may round them.
    pub kv_pages: f64,
    /// Relative error of a value of a recurrent state, to the longest its column was so far.
    pub recurrent: f64,
    /// Each seed draws all cases afresh.
    pub seeds: Vec<u64>,
    /// Fewer shapes and widths: seconds instead of tens of seconds.
    pub quick: bool,
}

impl Options {
    /// Everything, with tolerances for a backend that rounds activations of quantised matrices to int8 and pages to
    /// bf16.
    pub fn full() -> Self {
        Options {
            float_matmul: 1e-5,
            bf16_matmul: 1e-5,
            quant_matmul: 5e-3,
            elementwise: 1e-5,
            attention: 1e-5,
            kv_pages: 1e-2,
            recurrent: 1e-5,
            seeds: vec![1],
            quick: false,
        }
    }

    /// The same promises on fewer shapes.
    pub fn quick() -> Self {
        Options { quick: true, ..Self::full() }
    }

    /// Tolerance of a matrix product with weights of a format.
    pub fn matmul(&self, format: WeightFormat) -> f64 {
        match format {
            WeightFormat::Float(DType::Bf16) => self.bf16_matmul,
            WeightFormat::Float(_) => self.float_matmul,
            WeightFormat::Quant(..) => self.quant_matmul,
        }
    }

    /// Rows drawn for a case: enough for the largest width.
    fn rows(&self) -> usize {
        if self.quick { 34 } else { 130 }
    }

    /// Widths a case is run at besides 1.
    fn widths(&self) -> Vec<usize> {
        let large: &[usize] = if self.quick { &[33] } else { &[33, 64, 130] };
        (2..=17).chain(large.iter().copied()).collect()
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::full()
    }
}

/// Values compared for one verb.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Values compared with the reference.
    pub bounds: u64,
    /// Values compared bit for bit with the same row in another situation.
    pub bits: u64,
}

/// What a run compared; a suite that compared nothing has not passed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    counts: BTreeMap<String, Count>,
}

impl Report {
    /// Values compared for a verb.
    pub fn count(&self, op: &str) -> Count {
        self.counts.get(op).copied().unwrap_or_default()
    }

    /// Verbs with their counts, by name.
    pub fn counts(&self) -> impl Iterator<Item = (&str, Count)> {
        self.counts.iter().map(|(op, count)| (op.as_str(), *count))
    }

    /// Adds another report's counts.
    pub fn merge(&mut self, other: Report) {
        for (op, count) in other.counts {
            let sum = self.counts.entry(op).or_default();
            sum.bounds += count.bounds;
            sum.bits += count.bits;
        }
    }

    fn entry(&mut self, op: &str) -> &mut Count {
        self.counts.entry(op.to_owned()).or_default()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (op, count) in self.counts() {
            writeln!(f, "{op:<14} {:>12} within bounds {:>12} equal in bits", count.bounds, count.bits)?;
        }
        Ok(())
    }
}

/// Verbs that [`check_all`] reports on; `state` stands for those that move recurrent states.
pub const OPS: [&str; 24] = [
    "argmax",
    "argmax_into",
    "embed_at",
    "join",
    "linear",
    "gated",
    "embed",
    "gather",
    "rms_norm",
    "add_rms_norm",
    "add",
    "add_gated",
    "add_vector",
    "columns",
    "scale",
    "activate_mul",
    "softcap",
    "rope",
    "rope_angles",
    "attend",
    "moe",
    "causal_conv",
    "gated_delta",
    "state",
];

/// Runs every check.
///
/// # Errors
/// The first violation found.
pub fn check_all<B: Backend>(b: &B, options: &Options) -> Result<Report, Violation> {
    if let Some(width) = b.max_exact_width() {
        let what = format!("the backend itself promises the row law only up to width {width}");
        return Err(Violation { op: "max_exact_width".into(), what });
    }
    let checks = [
        check_argmax,
        check_ahead,
        check_gather,
        check_add,
        check_add_gated,
        check_add_vector,
        check_columns,
        check_scale,
        check_softcap,
        check_activate_mul,
        check_rms_norm,
        check_add_rms_norm,
        check_rope,
        check_embed,
        check_recurrent,
        check_moe,
        check_gated,
        check_attend,
        check_linear,
    ];
    let mut report = Report::default();
    for check in checks {
        report.merge(check(b, options)?);
    }
    Ok(report)
}

/// Every format a matrix can be stored in.
pub fn all_formats() -> Vec<WeightFormat> {
    use crate::QuantFormat::{Affine, Mxfp4, Mxfp8, Nvfp4};
    const FLOATS: [DType; 3] = [DType::F32, DType::Bf16, DType::F16];
    let mut formats: Vec<WeightFormat> = FLOATS.iter().map(|d| WeightFormat::Float(*d)).collect();
    for bits in [2, 3, 4, 5, 6, 8] {
        for group in [32, 64, 128] {
            formats.extend(FLOATS.iter().map(|d| WeightFormat::Quant(Affine { bits, group }, *d)));
        }
    }
    formats.extend([Mxfp4, Mxfp8, Nvfp4].map(|format| WeightFormat::Quant(format, DType::U8)));
    formats
}

/// A buffer whose former contents would show: NaN everywhere.
fn stale<B: Backend>(b: &B, rows: usize, width: usize) -> B::Buffer {
    filled(b, rows, width, &vec![f32::NAN; rows * width])
}

/// A buffer holding `values`.
fn filled<B: Backend>(b: &B, rows: usize, width: usize, values: &[f32]) -> B::Buffer {
    let mut buffer = b.buffer(rows, width);
    b.write(&mut buffer, values);
    buffer
}

/// Bits as the suite compares them: all NaN are one.
fn bits(value: f32) -> u32 {
    if value.is_nan() { f32::NAN.to_bits() } else { value.to_bits() }
}

/// Index of the first value that differs in bits.
fn first_difference(a: &[f32], b: &[f32]) -> Option<usize> {
    debug_assert_eq!(a.len(), b.len(), "rows of one width");
    a.iter().zip(b).position(|(a, b)| bits(*a) != bits(*b))
}
