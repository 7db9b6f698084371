//! Rotary frequencies (gemma4.md §2.4).

use mlxcel_checkpoint::gemma4::{Rope, RopeType};

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
