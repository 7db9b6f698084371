//! Operations on single rows: norms, rotations, elementwise maps. Sums are order::dot over a row with itself.

use mlxcel_compute::Activation;

use crate::arch::Kernel;
use crate::lanes::{Lanes, activate, tanh};

/// Applies `f` to sixteen values at a time; the last ones padded with zeros.
macro_rules! map16 {
    ($x:expr, $f:expr) => {{
        let (whole, rest) = $x.as_chunks_mut::<16>();
        for (i, v) in whole.iter_mut().enumerate() {
            $f(16 * i, L::load(v)).store(v);
        }
        if !rest.is_empty() {
            let at = 16 * whole.len();
            let mut lanes = [0.0; 16];
            $f(at, L::load_partial(rest)).store(&mut lanes);
            rest.copy_from_slice(&lanes[..rest.len()]);
        }
    }};
}

/// Sixteen values from `at`, the missing ones zero.
#[inline(always)]
pub fn sixteen<L: Lanes>(v: &[f32], at: usize) -> L {
    match v[at..].first_chunk() {
        Some(all) => L::load(all),
        None => L::load_partial(&v[at..]),
    }
}

/// `1 / sqrt(mean(x^2) + eps)`.
#[inline(always)]
fn inverse_rms<L: Lanes>(x: &[f32], eps: f32) -> f32 {
    let mut acc = L::splat(0.0);
    for at in (0..x.len()).step_by(16) {
        let v = sixteen::<L>(x, at);
        acc = v.fma(v, acc);
    }
    mlxcel_compute::order::inverse_rms(acc.sum(), x.len(), eps)
}

/// RMS norm of one head or row into another buffer.
pub struct RmsNorm<'a> {
    /// Input.
    pub x: &'a [f32],
    /// Weight, `None` = ones.
    pub weight: Option<&'a [f32]>,
    /// Added to the mean square.
    pub eps: f32,
    /// Output.
    pub out: &'a mut [f32],
}

impl Kernel for RmsNorm<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let factor = L::splat(inverse_rms::<L>(self.x, self.eps));
        self.out.copy_from_slice(self.x);
        map16!(self.out, |at, v: L| {
            let v = v.mul(factor);
            match self.weight {
                Some(w) => v.mul(sixteen(w, at)),
                None => v,
            }
        });
    }
}

/// `residual = (residual + rms_norm(y) * weight) * scale` of one row.
pub struct AddRmsNorm<'a> {
    /// Residual, in place.
    pub residual: &'a mut [f32],
    /// What is normed and added.
    pub y: &'a [f32],
    /// Norm weight.
    pub weight: &'a [f32],
    /// Added to the mean square.
    pub eps: f32,
    /// Factor on the sum.
    pub scale: f32,
}

impl Kernel for AddRmsNorm<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let factor = L::splat(inverse_rms::<L>(self.y, self.eps));
        let scale = L::splat(self.scale);
        map16!(self.residual, |at, x: L| {
            let normed = sixteen::<L>(self.y, at).mul(factor).mul(sixteen(self.weight, at));
            x.add(normed).mul(scale)
        });
    }
}

/// `x = (x + y) * scale`.
pub struct Add<'a> {
    /// In place.
    pub x: &'a mut [f32],
    /// Added.
    pub y: &'a [f32],
    /// Factor on the sum.
    pub scale: f32,
}

impl Kernel for Add<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let scale = L::splat(self.scale);
        map16!(self.x, |at, x: L| x.add(sixteen(self.y, at)).mul(scale));
    }
}

/// `x = x + sigmoid(gate) * y` of one row.
pub struct AddGated<'a> {
    /// In place.
    pub x: &'a mut [f32],
    /// Added.
    pub y: &'a [f32],
    /// The gate before its sigmoid.
    pub gate: f32,
}

impl Kernel for AddGated<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let factor = L::splat(mlxcel_compute::order::sigmoid(self.gate));
        map16!(self.x, |at, x: L| factor.fma(sixteen(self.y, at), x));
    }
}

/// `x = x * scale * weight` of one row.
pub struct Scale<'a> {
    /// In place.
    pub x: &'a mut [f32],
    /// Per-value factor, `None` = ones.
    pub weight: Option<&'a [f32]>,
    /// Common factor.
    pub scale: f32,
}

impl Kernel for Scale<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let scale = L::splat(self.scale);
        map16!(self.x, |at, x: L| {
            let x = x.mul(scale);
            match self.weight {
                Some(w) => x.mul(sixteen(w, at)),
                None => x,
            }
        });
    }
}

/// `x = activation(x) * y` of one row.
pub struct ActivateMul<'a> {
    /// In place.
    pub x: &'a mut [f32],
    /// Which function.
    pub activation: Activation,
    /// Factors.
    pub y: &'a [f32],
}

impl Kernel for ActivateMul<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        map16!(self.x, |at, x: L| activate(self.activation, x).mul(sixteen(self.y, at)));
    }
}

/// `x = cap * tanh(x / cap)`; NaN where `x` is infinite, so that the cap does not hide damage.
pub struct Softcap<'a> {
    /// In place.
    pub x: &'a mut [f32],
    /// The bound.
    pub cap: f32,
}

impl Kernel for Softcap<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let cap = L::splat(self.cap);
        map16!(self.x, |_, x: L| x.fma(L::splat(0.0), tanh(x.div(cap)).mul(cap)));
    }
}

/// Rotates the heads of one row: `(a, b) -> (a cos - b sin, b cos + a sin)` with `b` as many values further as there are
/// angles.
pub struct Rope<'a> {
    /// Heads of the row, in place.
    pub x: &'a mut [f32],
    /// Values of a head.
    pub head_dim: usize,
    /// Cosines, at most `head_dim / 2`.
    pub cos: &'a [f32],
    /// Sines.
    pub sin: &'a [f32],
}

impl Kernel for Rope<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self) {
        let half = self.cos.len();
        for head in self.x.chunks_exact_mut(self.head_dim) {
            let (first, second) = head[..2 * half].split_at_mut(half);
            for at in (0..half).step_by(16) {
                let (a, b) = (sixteen::<L>(first, at), sixteen::<L>(second, at));
                let (cos, sin) = (sixteen::<L>(self.cos, at), sixteen::<L>(self.sin, at));
                let turned_a = b.mul(sin).mul(L::splat(-1.0));
                put(first, at, a.fma(cos, turned_a));
                put(second, at, a.fma(sin, b.mul(cos)));
            }
        }
    }
}

/// Stores the lanes that exist from `at`.
#[inline(always)]
pub fn put<L: Lanes>(out: &mut [f32], at: usize, v: L) {
    let rest = &mut out[at..];
    match rest.first_chunk_mut() {
        Some(all) => v.store(all),
        None => {
            let mut lanes = [0.0; 16];
            v.store(&mut lanes);
            rest.copy_from_slice(&lanes[..rest.len()]);
        }
    }
}
