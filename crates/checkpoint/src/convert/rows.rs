//! From rows of a source to bytes of the output.

use std::ops::Range;
use std::panic::resume_unwind;

use half::{bf16, f16};
use mlxcel_compute::format::DType;

use super::plan::{Form, Unit};
use super::source::Source;
use crate::error::{CheckpointError, Result};
use crate::quantize::quantize_affine;

/// Bytes of some rows: of the one tensor, or of codes, scales and biases.
pub(crate) type Encoded = [Vec<u8>; 3];

/// Fewer values than this are not worth a thread.
const VALUES_A_THREAD: usize = 1 << 15;

/// Reads, converts and encodes rows of a unit on up to `threads` threads. The result does not depend on their number.
pub(crate) fn encode(source: &dyn Source, unit: &Unit, rows: Range<usize>, threads: usize) -> Result<Vec<Encoded>> {
    spread(unit.width, rows, threads, &|rows| encode_rows(source, unit, rows))
}

/// Makes rows of `width` values on up to `threads` threads, each with a share of them.
pub(crate) fn spread(
    width: usize,
    rows: Range<usize>,
    threads: usize,
    make: &(dyn Fn(Range<usize>) -> Result<Encoded> + Sync),
) -> Result<Vec<Encoded>> {
    let workers = threads.min(rows.len() * width / VALUES_A_THREAD).clamp(1, rows.len().max(1));
    let share = |worker: usize| {
        let at = |worker: usize| rows.start + rows.len() * worker / workers;
        at(worker)..at(worker + 1)
    };
    if workers == 1 {
        return Ok(vec![make(rows)?]);
    }
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..workers).map(|worker| scope.spawn(move || make(share(worker)))).collect();
        let first = make(share(0));
        let rest = others.into_iter().map(|other| other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        std::iter::once(first).chain(rest).collect()
    })
}

fn encode_rows(source: &dyn Source, unit: &Unit, rows: Range<usize>) -> Result<Encoded> {
    let mut values = Vec::with_capacity(rows.len() * unit.width);
    let mut start = 0;
    for part in &unit.fill.parts {
        let end = start + part.rows.len();
        let (from, to) = (rows.start.max(start), rows.end.min(end));
        if from < to && unit.width > 0 {
            let wanted = part.rows.start + (from - start)..part.rows.start + (to - start);
            let before = values.len();
            source.read_rows(part.tensor, wanted.clone(), &mut values)?;
            let name = || &source.tensors()[part.tensor];
            if values.len() - before != wanted.len() * unit.width {
                let problem = format!("tensor {}: rows {wanted:?} gave {} values", name().name, values.len() - before);
                return Err(CheckpointError::Convert { path: name().file.clone(), problem });
            }
            if unit.fill.adds_one {
                values[before..].iter_mut().for_each(|value| *value += 1.0);
            }
            check(unit, &values[before..]).map_err(|(at, problem)| CheckpointError::Convert {
                path: name().file.clone(),
                problem: format!(
                    "tensor {}: row {}, column {}: {problem}",
                    name().name,
                    wanted.start + at / unit.width,
                    at % unit.width
                ),
            })?;
        }
        start = end;
    }
    Ok(match unit.fill.form {
        Form::Float(dtype) => [floats(&values, dtype), Vec::new(), Vec::new()],
        Form::Affine { bits, group, dtype } => {
            // MLX quantises what the matrix is in the type it is given in.
            match dtype {
                DType::Bf16 => values.iter_mut().for_each(|value| *value = bf16::from_f32(*value).to_f32()),
                DType::F16 => values.iter_mut().for_each(|value| *value = f16::from_f32(*value).to_f32()),
                _ => {}
            }
            let coded = quantize_affine(&values, unit.width, bits, group);
            // The span of a group may overflow though its values do not.
            if let Some(at) = coded.scales.iter().position(|scale| !scale.is_finite()) {
                let row = rows.start + at * usize::from(group) / unit.width;
                let problem = format!("tensor {}: row {row}: values too large to quantise", unit.tensors[0].name);
                return Err(CheckpointError::Convert { path: source.path().into(), problem });
            }
            let mut words = Vec::with_capacity(coded.words.len() * 4);
            coded.words.iter().for_each(|word| words.extend_from_slice(&word.to_le_bytes()));
            [words, floats(&coded.scales, dtype), floats(&coded.biases, dtype)]
        }
    })
}

/// Finds the first value that the output cannot hold.
fn check(unit: &Unit, values: &[f32]) -> Result<(), (usize, String)> {
    let (dtype, coded) = match unit.fill.form {
        Form::Float(dtype) => (dtype, false),
        Form::Affine { dtype, .. } => (dtype, true),
    };
    // The largest magnitude that does not round to infinity.
    let largest = match dtype {
        DType::F16 => f32::from_bits(0x477f_efff),
        DType::Bf16 => f32::from_bits(0x7f7f_7fff),
        _ => f32::MAX,
    };
    let bad = |value: &f32| if value.is_finite() { value.abs() > largest } else { coded };
    let Some(at) = values.iter().position(bad) else { return Ok(()) };
    let value = values[at];
    Err(if value.is_finite() {
        (at, format!("{value} does not fit {dtype}; choose another --dtype"))
    } else {
        (at, format!("{value} cannot be quantised; the source is damaged"))
    })
}

/// Little-endian floats of a type, rounded to nearest even.
fn floats(values: &[f32], dtype: DType) -> Vec<u8> {
    let mut out = Vec::with_capacity(values.len() * dtype.size());
    match dtype {
        DType::Bf16 => values.iter().for_each(|value| out.extend_from_slice(&bf16::from_f32(*value).to_le_bytes())),
        DType::F16 => values.iter().for_each(|value| out.extend_from_slice(&f16::from_f32(*value).to_le_bytes())),
        _ => values.iter().for_each(|value| out.extend_from_slice(&value.to_le_bytes())),
    }
    out
}
