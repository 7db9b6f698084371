//! Rotary frequencies (gemma4.md §2.4; [`RopeScaling`] for the Llama family).

use std::f64::consts::TAU;

use mlxcel_checkpoint::gemma4::{Rope, RopeType};
use mlxcel_checkpoint::llama::{self, RopeScaling};

/// `head_dim / 2` frequencies; pairs that do not rotate have frequency 0.
pub fn frequencies(rope: &Rope, head_dim: usize) -> Vec<f32> {
    let half = head_dim / 2;
    let rotated = match rope.rope_type {
        RopeType::Default => half,
        // The exponent divides by the whole head: not the usual "first quarter of the dims".
        RopeType::Proportional => (rope.partial_rotary_factor * half as f64) as usize,
    };
    (0..half)
        .map(|i| {
            let f = rope.rope_theta.powf(-2.0 * i as f64 / head_dim as f64) / rope.factor;
            if i < rotated { f as f32 } else { 0.0 }
        })
        .collect()
}

/// `rotary_dim / 2` frequencies of a head whose first `rotary_dim` values rotate (qwen3_5.md §2.2).
pub fn partial(theta: f64, rotary_dim: usize) -> Vec<f32> {
    (0..rotary_dim / 2).map(|i| theta.powf(-2.0 * i as f64 / rotary_dim as f64) as f32).collect()
}

/// Axis (0 temporal, 1 vertical, 2 horizontal) of each of `count` frequencies: interleaved t, h, w, t, h, w, ... until a section is
/// used up, or one section after the other; the rest is temporal. Empty without sections: one axis.
pub fn axes(section: Option<[usize; 3]>, interleaved: bool, count: usize) -> Vec<u8> {
    let Some([t, h, w]) = section else { return Vec::new() };
    let axis = |i: usize| match interleaved {
        true if i % 3 == 1 && i < 3 * h => 1,
        true if i % 3 == 2 && i < 3 * w => 2,
        false if (t..t + h).contains(&i) => 1,
        false if (t + h..t + h + w).contains(&i) => 2,
        _ => 0,
    };
    (0..count).map(axis).collect()
}

/// `head_dim / 2` frequencies of the Llama family, scaled as [`RopeScaling`] says.
pub fn llama_frequencies(rope: &llama::Rope, head_dim: usize) -> Vec<f32> {
    let scale = |f: f64| match rope.scaling {
        RopeScaling::None => f,
        RopeScaling::Linear { factor } => f / factor,
        RopeScaling::Llama3 {
            factor,
            low_freq_factor: low,
            high_freq_factor: high,
            original_max_position_embeddings,
        } => {
            let turns = original_max_position_embeddings as f64 * f / TAU; // over the first training's context
            // 1 for frequencies that stay, 0 for those that are slowed down in full.
            let stay = ((turns - low) / (high - low)).clamp(0.0, 1.0);
            (1.0 - stay) * f / factor + stay * f
        }
    };
    (0..head_dim / 2).map(|i| scale(rope.theta.powf(-2.0 * i as f64 / head_dim as f64)) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Llama 3.1's own numbers, against the three cases of the definition.
    #[test]
    fn llama3_scaling_follows_its_three_cases() {
        let (factor, low, high, length) = (8.0, 1.0, 4.0, 8192u64);
        let scaling = RopeScaling::Llama3 {
            factor,
            low_freq_factor: low,
            high_freq_factor: high,
            original_max_position_embeddings: length,
        };
        let scaled = llama_frequencies(&llama::Rope { theta: 500_000.0, scaling }, 128);
        let mut seen = [0; 3];
        for (i, found) in scaled.iter().enumerate() {
            let f = 500_000f64.powf(-2.0 * i as f64 / 128.0);
            let (wave, length) = (TAU / f, length as f64);
            let (case, want) = if wave < length / high {
                (0, f)
            } else if wave > length / low {
                (1, f / factor)
            } else {
                let s = (length / wave - low) / (high - low);
                (2, (1.0 - s) * f / factor + s * f)
            };
            seen[case] += 1;
            assert!((f64::from(*found) - want).abs() <= 1e-7 * want, "frequency {i}: {found:e}, expected {want:e}");
        }
        assert_eq!(seen, [29, 29, 6], "frequencies that stay, slow down, blend");
    }

    #[test]
    fn linear_scaling_divides_every_frequency() {
        let of = |scaling| llama_frequencies(&llama::Rope { theta: 10_000.0, scaling }, 32);
        let (plain, scaled) = (of(RopeScaling::None), of(RopeScaling::Linear { factor: 4.0 }));
        assert_eq!((plain.len(), plain[0]), (16, 1.0));
        plain.iter().zip(&scaled).for_each(|(f, s)| assert_eq!(*s, f / 4.0));
    }
}
