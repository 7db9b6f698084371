//! The rotary embedding's fields, in the older spelling (`rope_theta` beside `rope_scaling`) and the newer one
//! (everything in `rope_parameters`).

use crate::error::{CheckpointError, Result};
use crate::fields::Fields;

/// How the frequencies are changed for contexts longer than the first training's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All frequencies are divided by `factor`.
    Linear {
        /// At least 1.
        factor: f64,
    },
    /// Llama 3's: with L = `original_max_position_embeddings` and a frequency's wave length w = 2π / frequency, those of
    /// w < L / `high_freq_factor` stay, those of w > L / `low_freq_factor` are divided by `factor`, and between the two
    /// s = (L / w − low) / (high − low) blends: (1 − s) · frequency / `factor` + s · frequency.
    Llama3 {
        /// At least 1.
        factor: f64,
        /// Above 0 and below `high_freq_factor`.
        low_freq_factor: f64,
        /// Above `low_freq_factor`.
        high_freq_factor: f64,
        /// In tokens, at least 1.
        original_max_position_embeddings: u64,
    },
}

/// Rotary embedding of all layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f64,
    /// Change of the frequencies.
    pub scaling: RopeScaling,
}

impl Rope {
    /// Reads both spellings; where both say something about the scaling, they must agree.
    pub(super) fn read(fields: &Fields<'_>) -> Result<Self> {
        let newer = fields.object("rope_parameters")?;
        let older = fields.object("rope_scaling")?;
        let scaling = match (&newer, &older) {
            (None, None) => RopeScaling::None,
            (Some(block), None) | (None, Some(block)) => read_scaling(block)?,
            (Some(newer), Some(older)) => {
                let scaling = read_scaling(newer)?;
                if read_scaling(older)? != scaling {
                    return Err(fields.error("rope_scaling", "the same scaling as rope_parameters, or absent"));
                }
                scaling
            }
        };
        // The innermost theta wins. Files from before the key existed were all trained with 10000.
        let places = [newer.as_ref(), older.as_ref(), Some(fields)];
        let mut theta = 10_000.0;
        for place in places.into_iter().flatten() {
            if let Some(found) = place.float("rope_theta")? {
                if found <= 0.0 {
                    return Err(place.error("rope_theta", "a number above 0"));
                }
                theta = found;
                break;
            }
        }
        for place in places.into_iter().flatten() {
            if place.float("partial_rotary_factor")?.is_some_and(|share| share != 1.0) {
                return Err(place.error("partial_rotary_factor", "1 (heads that rotate in part are not supported)"));
            }
        }
        Ok(Self { theta, scaling })
    }
}

fn read_scaling(block: &Fields<'_>) -> Result<RopeScaling> {
    let key = if block.raw("rope_type").is_some() { "rope_type" } else { "type" };
    let number = |key: &str, low: f64| {
        let expected = || block.error(key, format!("a number of at least {low}"));
        block.float(key)?.filter(|value| *value >= low).ok_or_else(expected)
    };
    match block.text(key)? {
        None if block.raw("factor").is_some() => Err(block.error("rope_type", "linear or llama3 (factor is given)")),
        None | Some("default") => Ok(RopeScaling::None),
        Some("linear") => Ok(RopeScaling::Linear { factor: number("factor", 1.0)? }),
        Some("llama3") => read_llama3(block, number("factor", 1.0)?),
        Some("yarn" | "dynamic" | "longrope" | "su" | "ntk") => {
            Err(block.error(key, "default, linear or llama3 (this scaling is not supported)"))
        }
        Some(_) => Err(block.error(key, "default, linear or llama3")),
    }
}

fn read_llama3(block: &Fields<'_>, factor: f64) -> Result<RopeScaling> {
    let above_zero = |key: &str| {
        let expected = || block.error(key, "a number above 0");
        block.float(key)?.filter(|value| *value > 0.0).ok_or_else(expected)
    };
    let low_freq_factor = above_zero("low_freq_factor")?;
    let high_freq_factor = above_zero("high_freq_factor")?;
    // Equal ones would divide by zero in the blend.
    if high_freq_factor <= low_freq_factor {
        return Err(block.error("high_freq_factor", format!("above low_freq_factor ({low_freq_factor})")));
    }
    const ORIGINAL: &str = "original_max_position_embeddings";
    let original_max_position_embeddings = block
        .count(ORIGINAL)?
        .filter(|positions| *positions > 0)
        .ok_or_else(|| block.error(ORIGINAL, "an integer of at least 1"))?;
    Ok::<_, CheckpointError>(RopeScaling::Llama3 {
        factor,
        low_freq_factor,
        high_freq_factor,
        original_max_position_embeddings,
    })
}
