//! Hashes of rows of numbers, by their bits.

/// 64 bits that differ wherever one value's bits differ, and wherever more do but for one time in 2^64: states can be too large
/// to keep one for each step.
pub(crate) fn digest(values: &[f32]) -> u64 {
    values.iter().fold(values.len() as u64, |hash, value| {
        // Each step is one-to-one in the hash: exclusive or, an odd factor, a shift.
        let hash = (hash ^ u64::from(value.to_bits())).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^ hash >> 32
    })
}

#[cfg(test)]
mod tests {
    use super::digest;

    #[test]
    fn digests_see_bits() {
        let values: Vec<f32> = (0..1000).map(|i| i as f32 * 0.37 - 50.0).collect();
        let whole = digest(&values);
        for i in 0..values.len() {
            let mut other = values.clone();
            other[i] = f32::from_bits(other[i].to_bits() ^ 1 << (i % 32));
            assert_ne!(digest(&other), whole, "value {i}");
        }
        let mut swapped = values.clone();
        swapped.swap(3, 4);
        assert_ne!(digest(&swapped), whole);
        assert_ne!(digest(&[0.0]), digest(&[-0.0]));
        assert_ne!(digest(&[0.0]), digest(&[0.0, 0.0]));
    }
}
