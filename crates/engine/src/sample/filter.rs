//! Top-k, top-p and the Gumbel-max choice, without sorting the vocabulary.
//!
//! "Best first" always means larger logit first, and the lower token id among equals, so every set here is determined
//! by the row alone and not by how it was searched for.

use std::cmp::Ordering;

use super::math::{self, Mass};
use super::noise::{self, GUMBEL_MAX, RowNoise};

/// A token still in play.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Candidate {
    pub(crate) logit: f32,
    pub(crate) token: u32,
}

/// Best first. Logits are finite; 0 and -0 are equal, as they are for the arithmetic that follows.
pub(crate) fn best_first(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal).then(a.token.cmp(&b.token))
}

/// The row's tokens with their ids.
pub(crate) fn candidates(row: &[f32]) -> impl Iterator<Item = Candidate> {
    row.iter().zip(0_u32..).map(|(&logit, token)| Candidate { logit, token })
}

/// Index and value of the largest logit, the lowest index among equals. The row is not empty.
pub(crate) fn argmax(row: &[f32]) -> Candidate {
    // Lanes, and the index in a second pass, let the loop vectorise; a maximum is the same in any order.
    let (chunks, rest) = row.as_chunks::<16>();
    let greater = |m: f32, x: f32| if x > m { x } else { m };
    let mut lanes = [f32::NEG_INFINITY; 16];
    for chunk in chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane = greater(*lane, x);
        }
    }
    let max = lanes.iter().chain(rest).copied().fold(f32::NEG_INFINITY, greater);
    candidates(row).find(|c| c.logit == max).unwrap_or(Candidate { logit: max, token: 0 })
}

/// Leaves in `kept` the best `k >= 1` of the row, or all if there are fewer, in no particular order.
///
/// Ids come in ascending order, so a token equal to the k-th best seen so far can never displace it: comparing with
/// that one value rejects nearly the whole vocabulary.
pub(crate) fn top_k(row: &[f32], k: usize, kept: &mut Vec<Candidate>) {
    kept.clear();
    let full = k.saturating_mul(2).max(64);
    let mut floor = f32::NEG_INFINITY;
    for candidate in candidates(row) {
        if candidate.logit <= floor {
            continue;
        }
        kept.push(candidate);
        if kept.len() == full {
            kept.select_nth_unstable_by(k - 1, best_first);
            kept.truncate(k);
            floor = kept[k - 1].logit;
        }
    }
    if kept.len() > k {
        kept.select_nth_unstable_by(k - 1, best_first);
        kept.truncate(k);
    }
}

/// A row's logits on the scale of the noise: `d = (logit - max) / T`, 0 for the best token and negative for others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    best: Candidate,
    max: f64,
    inverse_temperature: f64,
}

impl Scale {
    /// `best` is the row's [`argmax`]; `temperature` is above 0.
    pub(crate) fn new(best: Candidate, temperature: f32) -> Self {
        Scale { best, max: f64::from(best.logit), inverse_temperature: 1.0 / f64::from(temperature) }
    }

    #[inline]
    pub(crate) fn d(self, logit: f32) -> f64 {
        (f64::from(logit) - self.max) * self.inverse_temperature
    }
}

/// The whole row's nucleus, left in `kept` in no particular order: the shortest best-first prefix with at least `top_p`
/// of the mass.
pub(crate) fn top_p_of_row(row: &[f32], scale: Scale, mass: Mass, top_p: f32, kept: &mut Vec<Candidate>) {
    let total = mass_of_row(row, scale, mass);
    let target = target(total, top_p);
    // Tokens lighter than (total - target) / n weigh less than total - target together, so those at least as heavy
    // reach the target: the prefix lies among them. 2 units and 1e-9 are more than the rounding of `exp` and `ln`.
    let light = ((total - target) / row.len() as u64).saturating_sub(2);
    let floor = if light == 0 { f64::NEG_INFINITY } else { math::ln(light as f64 / mass.scale()) - 1e-9 };
    kept.clear();
    kept.extend(candidates(row).filter(|c| scale.d(c.logit) >= floor));
    cut_at_mass(kept, scale, mass, target);
}

/// One token's mass, in units.
pub(crate) fn weight(logit: f32, scale: Scale, mass: Mass) -> u64 {
    let [units] = mass.of([scale.d(logit)]);
    units
}

fn mass_of_row(row: &[f32], scale: Scale, mass: Mass) -> u64 {
    let (chunks, rest) = row.as_chunks::<8>();
    let mut lanes = [0; 8];
    for chunk in chunks {
        for (lane, m) in lanes.iter_mut().zip(mass.of(chunk.map(|logit| scale.d(logit)))) {
            *lane += m;
        }
    }
    lanes.iter().sum::<u64>() + rest.iter().map(|&logit| weight(logit, scale, mass)).sum::<u64>()
}

/// The nucleus of `kept` itself: its masses are renormalised to 1 first.
pub(crate) fn top_p_of_kept(kept: &mut Vec<Candidate>, scale: Scale, mass: Mass, top_p: f32) {
    let total = kept.iter().map(|c| weight(c.logit, scale, mass)).sum();
    cut_at_mass(kept, scale, mass, target(total, top_p));
}

/// `top_p` of `total`, rounded up; at least 1 unit, so that at least one token is kept.
fn target(total: u64, top_p: f32) -> u64 {
    ((f64::from(top_p) * total as f64).ceil() as u64).clamp(1, total)
}

/// Shortens `kept` to its shortest best-first prefix of at least `target` units, by halving the range where the prefix
/// may end: linear in the number of candidates, and exact because masses are integers.
fn cut_at_mass(kept: &mut Vec<Candidate>, scale: Scale, mass: Mass, target: u64) {
    let weight = |c: &Candidate| weight(c.logit, scale, mass);
    let (mut start, mut end, mut missing) = (0, kept.len(), target);
    // Invariant: kept[..start] are the best `start`, `missing` units short of the target, and kept[..end] reach it.
    while end - start > 32 {
        let half = (end - start) / 2;
        kept[start..end].select_nth_unstable_by(half, best_first);
        let upper: u64 = kept[start..start + half].iter().map(weight).sum();
        if upper >= missing {
            end = start + half;
        } else {
            missing -= upper;
            start += half;
        }
    }
    kept[start..end].sort_unstable_by(best_first);
    let mut sum = 0;
    let last = kept[start..end].iter().position(|c| {
        sum += weight(c);
        sum >= missing
    });
    kept.truncate(last.map_or(end, |i| start + i + 1));
}

/// The token with the largest `d + noise` among `items` with `d >= min_d`, the lowest id among equals; also how many
/// noise values had to be worked out. `items` must hold the row's best token.
///
/// Two exact upper bounds of the noise spare nearly all logarithms: one for any token, one from a token's hash.
pub(crate) fn gumbel_max(
    items: impl Iterator<Item = Candidate>,
    scale: Scale,
    min_d: f64,
    row_noise: RowNoise,
) -> (u32, usize) {
    let mut token = scale.best.token;
    let mut best = row_noise.gumbel(token);
    let mut evaluated = 1;
    for item in items {
        let d = scale.d(item.logit);
        // Rounded addition is monotone, so these comparisons are exact; equal scores go on to the tie rule.
        if d < min_d || d + GUMBEL_MAX < best {
            continue;
        }
        let bits = row_noise.bits(item.token);
        if d + noise::upper_bound(bits) < best {
            continue;
        }
        evaluated += 1;
        let score = d + noise::from_bits(bits);
        if score > best || (score == best && item.token < token) {
            (best, token) = (score, item.token);
        }
    }
    (token, evaluated)
}
