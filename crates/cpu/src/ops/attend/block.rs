//! One block of keys for several query heads at once: what is loaded and widened once serves all of them.
//!
//! How many go together changes no bit: a score is one head's own chain over d, a weighted value one head's own chain over the keys
//! that it sees.
#![allow(clippy::needless_range_loop, reason = "register tiles are indexed side by side")]

use mlxcel_compute::order::KEY_BLOCK;

use crate::lanes::{Lanes, exp};

/// Groups of sixteen keys in a block.
const GROUPS: usize = KEY_BLOCK / 16;

/// Element type of the pages.
pub trait Element: Copy {
    /// Sixteen of them.
    fn load<L: Lanes>(v: &[Self; 16]) -> L;
    /// One.
    fn one(self) -> f32;
}

impl Element for f32 {
    #[inline(always)]
    fn load<L: Lanes>(v: &[f32; 16]) -> L {
        L::load(v)
    }

    #[inline(always)]
    fn one(self) -> f32 {
        self
    }
}

impl Element for u16 {
    #[inline(always)]
    fn load<L: Lanes>(v: &[u16; 16]) -> L {
        const { assert!(cfg!(target_endian = "little"), "pages hold bf16 as little-endian bytes") };
        // SAFETY: sixteen halves are thirty-two bytes, which may stand at any address. (Copied one by one, they cost more than
        // all the arithmetic on them.)
        L::load_bf16(unsafe { &*std::ptr::from_ref(v).cast::<[u8; 32]>() })
    }

    #[inline(always)]
    fn one(self) -> f32 {
        f32::from_bits(u32::from(self) << 16)
    }
}

/// A query head, and the keys of the block that it sees (at least one).
#[derive(Clone, Copy)]
pub struct Query<'a> {
    /// The head's values.
    pub q: &'a [f32],
    /// First key.
    pub from: usize,
    /// The one after the last key.
    pub to: usize,
}

/// A partial result: maximum and sum; the weighted values lie beside it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Partial {
    /// Largest score.
    pub max: f32,
    /// Sum of the weights.
    pub sum: f32,
}

/// What no key has been folded into.
pub const NOTHING: Partial = Partial { max: f32::NEG_INFINITY, sum: 0.0 };

/// Scores, softmax parts and weighted values (`out`, `[queries, dim]`) of one block (keys `[dim, KEY_BLOCK]`, values
/// `[KEY_BLOCK, dim]`) for all queries.
#[inline(always)]
pub fn attend<L: Lanes, T: Element>(
    block: &[T],
    queries: &[Query<'_>],
    scale: f32,
    parts: &mut [Partial],
    out: &mut [f32],
) {
    let Some(first) = queries.first() else { return };
    let dim = first.q.len();
    let mut i = 0;
    while i < queries.len() {
        let (rest, parts, out) = (&queries[i..], &mut parts[i..], &mut out[i * dim..]);
        // As many as the registers hold: sums, keys and one value of a query.
        i += match rest.len() {
            1 => several::<L, T, 1>(block, rest, scale, parts, out),
            2 => several::<L, T, 2>(block, rest, scale, parts, out),
            3 | 5 if L::ROWS >= 8 => several::<L, T, 3>(block, rest, scale, parts, out),
            4 if L::ROWS >= 8 => several::<L, T, 4>(block, rest, scale, parts, out),
            _ if L::ROWS >= 8 => several::<L, T, 6>(block, rest, scale, parts, out),
            _ => several::<L, T, 2>(block, rest, scale, parts, out),
        };
    }
}

/// The first Q queries; returns Q.
#[inline(always)]
fn several<L: Lanes, T: Element, const Q: usize>(
    block: &[T],
    queries: &[Query<'_>],
    scale: f32,
    parts: &mut [Partial],
    out: &mut [f32],
) -> usize {
    let queries: &[Query<'_>; Q] = queries.first_chunk().expect("as many queries as were counted");
    let dim = queries[0].q.len();
    let (keys, values) = block.split_at(dim * KEY_BLOCK);
    let mut scores = [[0.0f32; KEY_BLOCK]; Q];
    if L::ROWS >= 8 || Q == 1 {
        products::<L, T, Q, 4>(keys, queries, 0, &mut scores);
    } else {
        products::<L, T, Q, 2>(keys, queries, 0, &mut scores);
        products::<L, T, Q, 2>(keys, queries, 2, &mut scores);
    }
    for i in 0..Q {
        parts[i] = weights::<L>(&mut scores[i], queries[i].from, queries[i].to, scale);
    }
    weigh::<L, T, Q>(&scores, values, queries, out);
    Q
}

/// `out[i][j] = sum over d of q_i[d] * key_j[d]`, fused chains in order of d, for G groups of keys from `first`. Lanes are keys; keys
/// that a query does not see are computed as well, and dropped later.
#[inline(always)]
fn products<L: Lanes, T: Element, const Q: usize, const G: usize>(
    keys: &[T],
    queries: &[Query<'_>; Q],
    first: usize,
    out: &mut [[f32; KEY_BLOCK]; Q],
) {
    let dim = queries[0].q.len();
    let mut q: [&[f32]; Q] = [&[]; Q];
    for i in 0..Q {
        q[i] = &queries[i].q[..dim];
    }
    let mut acc = [[L::splat(0.0); G]; Q];
    for (d, keys) in keys.as_chunks::<KEY_BLOCK>().0.iter().enumerate().take(dim) {
        let (groups, _) = keys.as_chunks::<16>();
        let mut k = [L::splat(0.0); G];
        for g in 0..G {
            k[g] = T::load(&groups[first + g]);
        }
        for i in 0..Q {
            let q = L::splat(q[i][d]);
            for g in 0..G {
                acc[i][g] = q.fma(k[g], acc[i][g]);
            }
        }
    }
    for i in 0..Q {
        let (groups, _) = out[i].as_chunks_mut::<16>();
        for g in 0..G {
            acc[i][g].store(&mut groups[first + g]);
        }
    }
}

/// Turns products into weights `exp(product * scale - max)`, zeros where the query does not see.
#[inline(always)]
fn weights<L: Lanes>(scores: &mut [f32; KEY_BLOCK], from: usize, to: usize, scale: f32) -> Partial {
    let (groups, _) = scores.as_chunks_mut::<16>();
    let whole = from == 0 && to == KEY_BLOCK;
    let mut scaled = [L::splat(0.0); GROUPS];
    let mut largest = L::splat(f32::NEG_INFINITY);
    for g in 0..GROUPS {
        let s = L::load(&groups[g]).mul(L::splat(scale));
        scaled[g] = if whole { s } else { s.within(inside(from, g), inside(to, g), f32::NEG_INFINITY) };
        largest = largest.max(scaled[g]);
    }
    // The largest is the same in any order.
    let max = largest.largest();
    let mut total = L::splat(0.0);
    for g in 0..GROUPS {
        let p = exp(scaled[g].sub(L::splat(max)));
        let p = if whole { p } else { p.within(inside(from, g), inside(to, g), 0.0) };
        p.store(&mut groups[g]);
        total = total.add(p);
    }
    Partial { max, sum: total.sum() }
}

/// A place in the block as one in its group `g`, 0 to 16.
#[inline(always)]
fn inside(place: usize, g: usize) -> usize {
    place.saturating_sub(16 * g).min(16)
}

/// `out[i][d] = sum over the keys j that query i sees of p_i[j] * v[j][d]`, fused chains in order of j.
#[inline(always)]
fn weigh<L: Lanes, T: Element, const Q: usize>(
    p: &[[f32; KEY_BLOCK]; Q],
    values: &[T],
    queries: &[Query<'_>; Q],
    out: &mut [f32],
) {
    let dim = queries[0].q.len();
    let whole = dim / 16;
    let mut c = 0;
    while c < whole {
        // Several chains at once: one alone waits for its own multiply-add. Their number is a constant, or they lie in memory.
        let most = if L::ROWS >= 8 || Q == 1 { 4 } else { 2 };
        c += match (whole - c).min(most) {
            1 => chains::<L, T, Q, 1>(p, values, queries, c, out),
            2 => chains::<L, T, Q, 2>(p, values, queries, c, out),
            3 => chains::<L, T, Q, 3>(p, values, queries, c, out),
            _ => chains::<L, T, Q, 4>(p, values, queries, c, out),
        };
    }
    for d in 16 * whole..dim {
        for i in 0..Q {
            let mut sum = 0.0f32;
            for j in queries[i].from..queries[i].to {
                sum = p[i][j].mul_add(values[j * dim + d].one(), sum);
            }
            out[i * dim + d] = sum;
        }
    }
}

/// Columns `16 c..16 (c + N)` of [`weigh`]; returns `N`.
#[inline(always)]
fn chains<L: Lanes, T: Element, const Q: usize, const N: usize>(
    p: &[[f32; KEY_BLOCK]; Q],
    values: &[T],
    queries: &[Query<'_>; Q],
    c: usize,
    out: &mut [f32],
) -> usize {
    let dim = queries[0].q.len();
    // Keys that some query sees, and those that all see.
    let (mut low, mut high, mut first, mut last) = (KEY_BLOCK, 0, 0, KEY_BLOCK);
    for query in queries {
        (low, high) = (low.min(query.from), high.max(query.to));
        (first, last) = (first.max(query.from), last.min(query.to));
    }
    let high = high.min(KEY_BLOCK);
    let mut acc = [[L::splat(0.0); N]; Q];
    for j in low..high {
        let (row, _) = values[j * dim + 16 * c..][..16 * N].as_chunks::<16>();
        let mut v = [L::splat(0.0); N];
        for n in 0..N {
            v[n] = T::load(&row[n]);
        }
        let all = first <= j && j < last;
        for i in 0..Q {
            if all || (queries[i].from <= j && j < queries[i].to) {
                let p = L::splat(p[i][j]);
                for n in 0..N {
                    acc[i][n] = p.fma(v[n], acc[i][n]);
                }
            }
        }
    }
    for i in 0..Q {
        let (columns, _) = out[i * dim + 16 * c..][..16 * N].as_chunks_mut::<16>();
        for n in 0..N {
            acc[i][n].store(&mut columns[n]);
        }
    }
    N
}

/// Folds the next block into what came before.
#[inline(always)]
pub fn merge<L: Lanes>(old: Partial, sums: &mut [f32], new: Partial, fresh: &[f32]) -> Partial {
    if old == NOTHING {
        sums.copy_from_slice(fresh);
        return new;
    }
    let max = if old.max > new.max { old.max } else { new.max };
    let (keep, take) = (mlxcel_compute::order::exp(old.max - max), mlxcel_compute::order::exp(new.max - max));
    let (keep_lanes, take_lanes) = (L::splat(keep), L::splat(take));
    let (whole, rest) = sums.as_chunks_mut::<16>();
    for (i, s) in whole.iter_mut().enumerate() {
        let fresh = L::load(fresh[16 * i..].first_chunk().expect("sixteen values"));
        L::load(s).fma(keep_lanes, fresh.mul(take_lanes)).store(s);
    }
    let at = fresh.len() - rest.len();
    for (s, f) in rest.iter_mut().zip(&fresh[at..]) {
        *s = s.mul_add(keep, f * take);
    }
    Partial { max, sum: old.sum.mul_add(keep, new.sum * take) }
}
