//! Scaled rotary frequencies: from metadata or from the table of factors that stands in for Llama 3's parameters.

use std::f64::consts::PI;

use serde_json::{Value, json};

use super::error::GgufError;
use super::header::{GgufTensor, Metadata};
use super::names::Architecture;

/// Agreement asked of a recomputed factor. The table holds singles computed from singles: a few units in the last
/// place of 24 bits, enlarged where wavelengths are subtracted.
const TOLERANCE: f64 = 1e-4;

/// `rope_scaling` as the metadata states it; `None` where frequencies are not scaled.
pub(crate) fn from_metadata(architecture: Architecture, metadata: &Metadata) -> Result<Option<Value>, GgufError> {
    let key = |rest: &str| architecture.key(&format!("rope.{rest}"));
    let positive = |rest: &str| match metadata.float(&key(rest))? {
        Some(number) if number <= 0.0 => Err(metadata.error(&key(rest), "a positive number")),
        other => Ok(other),
    };
    for rest in ["scaling.attn_factor", "scaling.yarn_attn_factor", "scaling.alpha", "scaling.yarn_log_multiplier"] {
        // Each multiplies attention or frequencies in a way that config.json cannot say; 1 and 0 are the defaults.
        if metadata.float(&key(rest))?.is_some_and(|number| number != 1.0 && number != 0.0) {
            return Err(GgufError::Unsupported { what: format!("metadata {}", key(rest)) });
        }
    }
    let factor = positive("scaling.factor")?;
    let kind = match metadata.text(&key("scaling.type"))? {
        Some(kind) => kind,
        // Files of 2023 have one number.
        None => match positive("scale_linear")? {
            Some(factor) if factor != 1.0 => return Ok(Some(json!({"rope_type": "linear", "factor": factor}))),
            _ => "none",
        },
    };
    let required = || factor.ok_or_else(|| metadata.error(&key("scaling.factor"), "a positive number"));
    match kind {
        "none" => Ok(None),
        "linear" => Ok(Some(json!({"rope_type": "linear", "factor": required()?}))),
        "yarn" => {
            let mut scaling = json!({"rope_type": "yarn", "factor": required()?});
            if let Some(positions) = metadata.integer(&key("scaling.original_context_length"), 1, 1 << 24)? {
                scaling["original_max_position_embeddings"] = positions.into();
            }
            for (rest, name) in [("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")] {
                if let Some(beta) = positive(&format!("scaling.{rest}"))? {
                    scaling[name] = beta.into();
                }
            }
            Ok(Some(scaling))
        }
        _ => Err(metadata.error(&key("scaling.type"), "none, linear or yarn")),
    }
}

/// Parameters of Llama 3's scaling.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Llama3 {
    pub(crate) factor: f64,
    pub(crate) low_freq_factor: f64,
    pub(crate) high_freq_factor: f64,
    pub(crate) original_max_position_embeddings: f64,
}

impl Llama3 {
    /// What the inverse frequency of a wavelength is divided by (transformers' `_compute_llama3_parameters`): 1 for
    /// wavelengths short against the original context, `factor` for long ones, and in between a harmonic mixture.
    pub(crate) fn divisor(&self, wavelength: f64) -> f64 {
        let turns = self.original_max_position_embeddings / wavelength;
        if turns > self.high_freq_factor {
            1.0
        } else if turns < self.low_freq_factor {
            self.factor
        } else {
            let smooth = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor);
            1.0 / ((1.0 - smooth) / self.factor + smooth)
        }
    }

    fn explains(&self, wavelengths: &[f64], factors: &[f32]) -> bool {
        wavelengths.iter().zip(factors).all(|(wavelength, factor)| {
            let factor = f64::from(*factor);
            (self.divisor(*wavelength) - factor).abs() <= TOLERANCE * factor.abs()
        })
    }

    pub(crate) fn to_json(self) -> Value {
        json!({
            "rope_type": "llama3",
            "factor": self.factor,
            "low_freq_factor": self.low_freq_factor,
            "high_freq_factor": self.high_freq_factor,
            "original_max_position_embeddings": self.original_max_position_embeddings as u64,
        })
    }
}

/// Wavelengths in positions of a head's rotations.
pub(crate) fn wavelengths(theta: f64, head_dim: usize) -> Vec<f64> {
    (0..head_dim / 2).map(|i| 2.0 * PI * theta.powf(2.0 * i as f64 / head_dim as f64)).collect()
}

/// Name of the tensor that holds a table of divisors, one for each rotation of a head.
pub(crate) const TABLE: &str = "rope_freqs.weight";

/// Fails unless a table has an element for each rotation; to be asked before a tensor of any size is read as one.
pub(crate) fn check_table(tensor: &GgufTensor, head_dim: usize) -> Result<(), GgufError> {
    // The header's checks leave no product of dimensions that overflows.
    check_length(tensor.rows() * tensor.width(), head_dim)
}

fn check_length(elements: usize, head_dim: usize) -> Result<(), GgufError> {
    if elements == head_dim / 2 {
        return Ok(());
    }
    Err(unexplained(&format!("of {elements} elements (heads have {} rotations)", head_dim / 2)))
}

fn unexplained(why: &str) -> GgufError {
    GgufError::Unsupported { what: format!("tensor {TABLE} {why}") }
}

/// The parameters behind a table of divisors (`rope_freqs.weight`); `None` inside where it divides by 1 throughout, and
/// an error where Llama 3's rule does not explain it.
///
/// The rule has four parameters but the table shows three: scaling the two frequency factors and the context together
/// changes nothing. `low_freq_factor` is 1 in every published model, so it is 1 here.
pub(crate) fn llama3_from_table(theta: f64, head_dim: usize, factors: &[f32]) -> Result<Option<Llama3>, GgufError> {
    check_length(factors.len(), head_dim)?;
    if factors.iter().all(|factor| *factor == 1.0) {
        return Ok(None);
    }
    let wavelengths = wavelengths(theta, head_dim);
    let longest = f64::from(factors.iter().copied().fold(0.0, f32::max));
    let published = Llama3 {
        factor: longest,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 8192.0,
    };
    let found = [Some(published), fit(longest, &wavelengths, factors)].into_iter().flatten();
    let mut found = found.filter(|parameters| parameters.explains(&wavelengths, factors));
    found.next().map(Some).ok_or_else(|| {
        unexplained("with factors that no llama3 rope_scaling gives; convert the original checkpoint instead")
    })
}

/// In between, `smooth` is a line in 1 / wavelength: (original / wavelength - low) / (high - low). Two points give it.
fn fit(factor: f64, wavelengths: &[f64], factors: &[f32]) -> Option<Llama3> {
    let mut between = wavelengths
        .iter()
        .zip(factors)
        .map(|(wavelength, divisor)| (1.0 / wavelength, f64::from(*divisor)))
        .filter(|(_, divisor)| *divisor > 1.0 + TOLERANCE && *divisor < factor * (1.0 - TOLERANCE))
        .map(|(x, divisor)| (x, (1.0 / divisor - 1.0 / factor) / (1.0 - 1.0 / factor)));
    let first = between.next()?;
    let last = between.next_back()?;
    let slope = (first.1 - last.1) / (first.0 - last.0);
    let intercept = first.1 - slope * first.0;
    // intercept = -low / (high - low), slope = original / (high - low), low = 1.
    let width = -1.0 / intercept;
    let rounded = |number: f64| (number * 16.0).round() / 16.0;
    let parameters = Llama3 {
        factor,
        low_freq_factor: 1.0,
        high_freq_factor: rounded(1.0 + width),
        original_max_position_embeddings: (slope * width).round(),
    };
    let sane = parameters.high_freq_factor > 1.0 && (1.0..1e9).contains(&parameters.original_max_position_embeddings);
    sane.then_some(parameters)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(parameters: &Llama3, theta: f64, head_dim: usize) -> Vec<f32> {
        wavelengths(theta, head_dim).into_iter().map(|wavelength| parameters.divisor(wavelength) as f32).collect()
    }

    #[test]
    fn parameters_come_back_from_their_table() {
        for (theta, head_dim, factor, high, original) in [
            (500_000.0, 128, 8.0, 4.0, 8192.0),
            (500_000.0, 64, 32.0, 4.0, 8192.0),
            (500_000.0, 128, 8.0, 4.0, 4096.0),
            (1_000_000.0, 128, 16.0, 8.0, 32768.0),
            (10_000.0, 128, 4.0, 2.5, 2048.0),
        ] {
            let parameters = Llama3 {
                factor,
                low_freq_factor: 1.0,
                high_freq_factor: high,
                original_max_position_embeddings: original,
            };
            let factors = table(&parameters, theta, head_dim);
            assert_eq!(llama3_from_table(theta, head_dim, &factors).unwrap(), Some(parameters), "{theta} {head_dim}");
        }
    }

    #[test]
    fn a_table_of_another_rule_is_refused() {
        let parameters = Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 8192.0,
        };
        let good = table(&parameters, 500_000.0, 128);
        for (place, by) in [(0, 1.01), (29, 1.01), (35, 0.999), (63, 0.9)] {
            let mut factors = good.clone();
            factors[place] *= by;
            let error = llama3_from_table(500_000.0, 128, &factors).unwrap_err().to_string();
            assert!(error.contains("rope_freqs.weight"), "{error}");
        }
        assert!(llama3_from_table(500_000.0, 64, &good).unwrap_err().to_string().contains("64 elements"));
        // Another base makes other wavelengths.
        assert!(llama3_from_table(400_000.0, 128, &good).is_err());
        for odd in [f32::NAN, f32::INFINITY, 0.0, -1.0] {
            let mut factors = good.clone();
            factors[40] = odd;
            assert!(llama3_from_table(500_000.0, 128, &factors).is_err(), "{odd}");
        }
        assert_eq!(llama3_from_table(500_000.0, 128, &[1.0; 64]).unwrap(), None);
    }
}
