//! A backend that breaks one promise on purpose.
//!
//! It exists to show that the conformance suite and the exactness probe can fail: a check that no fault trips checks
//! nothing. Each [`Fault`] is a mistake that a real kernel could make.

use std::collections::HashMap;

use crate::backend::{Activation, Attend, Backend, ComputeError, Experts, KvGroup, KvSlot};
use crate::{Batch, HostWeight, Wanted};

/// A verb with an output, for the faults that any of them can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// [`Backend::embed`].
    Embed,
    /// [`Backend::gather`].
    Gather,
    /// [`Backend::rms_norm`].
    RmsNorm,
    /// [`Backend::add_rms_norm`].
    AddRmsNorm,
    /// [`Backend::add`].
    Add,
    /// [`Backend::scale`].
    Scale,
    /// [`Backend::linear`].
    Linear,
    /// [`Backend::gated`].
    Gated,
    /// [`Backend::activate_mul`].
    ActivateMul,
    /// [`Backend::softcap`].
    Softcap,
    /// [`Backend::rope`].
    Rope,
    /// [`Backend::rope_angles`].
    RopeAngles,
    /// [`Backend::attend`].
    Attend,
    /// [`Backend::moe`].
    Moe,
}

impl Verb {
    /// All of them.
    pub const ALL: [Verb; 14] = [
        Verb::Embed,
        Verb::Gather,
        Verb::RmsNorm,
        Verb::AddRmsNorm,
        Verb::Add,
        Verb::Scale,
        Verb::Linear,
        Verb::Gated,
        Verb::ActivateMul,
        Verb::Softcap,
        Verb::Rope,
        Verb::RopeAngles,
        Verb::Attend,
        Verb::Moe,
    ];

    /// The method's name.
    pub const fn name(self) -> &'static str {
        match self {
            Verb::Embed => "embed",
            Verb::Gather => "gather",
            Verb::RmsNorm => "rms_norm",
            Verb::AddRmsNorm => "add_rms_norm",
            Verb::Add => "add",
            Verb::Scale => "scale",
            Verb::Linear => "linear",
            Verb::Gated => "gated",
            Verb::ActivateMul => "activate_mul",
            Verb::Softcap => "softcap",
            Verb::Rope => "rope",
            Verb::RopeAngles => "rope_angles",
            Verb::Attend => "attend",
            Verb::Moe => "moe",
        }
    }
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// `linear` on two rows or more is off by the last bit of one value: another kernel for blocks.
    WideLinear,
    /// `linear` on four rows or more rounds its sums elsewhere (inputs a third, outputs threefold): accurate, not equal.
    WidthDependentSum,
    /// `rms_norm` takes each row's first value from the row before: a wrong stride.
    NeighbourNorm,
    /// In spans of two rows or more, `attend` does not see the row's own key: attending before the append is done.
    StaleKeys,
    /// In spans of more than eight rows, `attend` rounds scores otherwise: a prefill kernel.
    ChunkAttention,
    /// `kv_append` leaves a trace of the row that was there before, unless that was NaN: a rollback that is not whole.
    Residue,
    /// `moe` on two rows or more adds a row's experts from the last rank to the first: grouped by expert.
    MoeOrder,
    /// `moe` on two rows or more breaks ties to the higher index: an unstable sort.
    MoeTies,
    /// The last bit of one value is off on two rows or more.
    LastBit(Verb),
    /// Everything is 1 % off, at every width: no bits comparison can see it.
    Inaccurate(Verb),
    /// Zero times the next row is added: harmless until that row holds NaN.
    Leak(Verb),
    /// The last of five rows or more is not written (or not worked on, in place).
    Unwritten(Verb),
}

impl Fault {
    /// The verb whose promise is broken.
    pub const fn verb(self) -> Verb {
        match self {
            Fault::WideLinear | Fault::WidthDependentSum => Verb::Linear,
            Fault::NeighbourNorm => Verb::RmsNorm,
            Fault::StaleKeys | Fault::ChunkAttention | Fault::Residue => Verb::Attend,
            Fault::MoeOrder | Fault::MoeTies => Verb::Moe,
            Fault::LastBit(verb) | Fault::Inaccurate(verb) | Fault::Leak(verb) | Fault::Unwritten(verb) => verb,
        }
    }

    /// Every fault that shows in some output.
    pub fn all() -> Vec<Fault> {
        let mut all = vec![
            Fault::WideLinear,
            Fault::WidthDependentSum,
            Fault::NeighbourNorm,
            Fault::StaleKeys,
            Fault::ChunkAttention,
            Fault::Residue,
            Fault::MoeOrder,
            Fault::MoeTies,
        ];
        for verb in Verb::ALL {
            all.extend([Fault::LastBit(verb), Fault::Inaccurate(verb), Fault::Unwritten(verb)]);
            // Table rows and angles are finite, so there is nothing that could leak.
            if !matches!(verb, Verb::Embed | Verb::RopeAngles) {
                all.push(Fault::Leak(verb));
            }
        }
        all
    }
}

/// A backend with one [`Fault`]; everything else is passed on.
#[derive(Clone, Copy, Debug)]
pub struct Faulty<B> {
    inner: B,
    fault: Fault,
}

/// A buffer that knows its shape.
pub struct Shaped<T> {
    inner: T,
    rows: usize,
    width: usize,
}

/// Pages, with a copy of what was stored where ([`Fault::Residue`] only).
pub struct Traced<T> {
    inner: T,
    stored: HashMap<(usize, usize, u32, usize), Vec<f32>>, // (group, layer, page, offset) -> K
}

impl<B: Backend> Faulty<B> {
    /// Wraps a backend.
    pub fn new(inner: B, fault: Fault) -> Self {
        Faulty { inner, fault }
    }

    /// A copy of a buffer with other values.
    fn changed(&self, x: &Shaped<B::Buffer>, change: impl FnOnce(&mut [f32])) -> Shaped<B::Buffer> {
        let mut values = self.inner.read(&x.inner);
        change(&mut values);
        let mut copy = self.buffer(x.rows, x.width);
        self.inner.write(&mut copy.inner, &values);
        copy
    }

    /// Whether a verb's former output is needed to spoil the next.
    fn former(&self, verb: Verb, out: &Shaped<B::Buffer>) -> Option<Vec<f32>> {
        (self.fault == Fault::Unwritten(verb) && out.rows >= 5).then(|| self.inner.read(&out.inner))
    }

    /// Applies the faults that any verb can have to its output.
    fn spoil(&self, verb: Verb, out: &mut Shaped<B::Buffer>, former: Option<Vec<f32>>) {
        let (rows, width) = (out.rows, out.width);
        if self.fault.verb() != verb || rows == 0 || width == 0 {
            return;
        }
        let last = (rows - 1) * width;
        let mut values = self.inner.read(&out.inner);
        match self.fault {
            Fault::LastBit(_) | Fault::WideLinear if rows >= 2 => {
                values[last] = f32::from_bits(values[last].to_bits() ^ 1);
            }
            Fault::Inaccurate(_) => values.iter_mut().for_each(|v| *v *= 1.01),
            Fault::Leak(_) if rows >= 2 => {
                for r in 0..rows {
                    values[r * width] += 0.0 * values[(r + 1) % rows * width];
                }
            }
            Fault::Unwritten(_) => match former {
                Some(former) => values[last..].copy_from_slice(&former[last..]),
                None => return,
            },
            _ => return,
        }
        self.inner.write(&mut out.inner, &values);
    }

    /// The batch as [`Fault::StaleKeys`] has it: long spans one position early.
    fn stale(&self, batch: &Batch, group: usize) -> Batch {
        let mut early = Batch::new();
        for span in batch.spans() {
            let tables: Vec<&[u32]> = (0..=group).map(|g| batch.table(span.first_row, g)).collect();
            let start = if span.len >= 2 { span.start.saturating_sub(1) } else { span.start };
            let tokens = &batch.tokens()[span.first_row..][..span.len];
            early.push(span.sequence, start, tokens, &tables, Wanted::None);
        }
        early
    }

    /// `moe` with the ranks of every row added backwards, one call a rank.
    fn moe_backwards(
        &self,
        router: &Shaped<B::Buffer>,
        x: &B::Buffer,
        experts: &Experts<'_, B>,
        out: &mut Shaped<B::Buffer>,
    ) {
        let logits = self.inner.read(&router.inner);
        let ranked: Vec<(Vec<usize>, Vec<f32>)> =
            logits.chunks_exact(router.width).map(|row| rank(row, experts.top_k)).collect();
        let mut sums = vec![0.0f32; out.rows * out.width];
        for k in (0..experts.top_k).rev() {
            let only = self.changed(router, |values| {
                for (row, (order, _)) in values.chunks_exact_mut(router.width).zip(&ranked) {
                    row.fill(-1e4);
                    row[order[k]] = 0.0;
                }
            });
            let single = Experts { top_k: 1, ..*experts };
            self.inner.moe(&only.inner, x, &single, &mut out.inner);
            let rows = self.inner.read(&out.inner);
            for ((sum, row), (_, shares)) in
                sums.chunks_exact_mut(out.width).zip(rows.chunks_exact(out.width)).zip(&ranked)
            {
                sum.iter_mut().zip(row).for_each(|(s, v)| *s += shares[k] * v);
            }
        }
        self.inner.write(&mut out.inner, &sums);
    }
}

/// The experts of a router row, best first, with their shares.
fn rank(row: &[f32], top_k: usize) -> (Vec<usize>, Vec<f32>) {
    let mut order: Vec<usize> = (0..row.len()).collect();
    order.sort_by(|a, b| row[*b].total_cmp(&row[*a]).then(a.cmp(b)));
    order.truncate(top_k);
    let shares: Vec<f32> = order.iter().map(|e| (row[*e] - row[order[0]]).exp()).collect();
    let sum: f32 = shares.iter().sum();
    (order, shares.into_iter().map(|s| s / sum).collect())
}

impl<B: Backend> Backend for Faulty<B> {
    type Buffer = Shaped<B::Buffer>;
    type Weight = B::Weight;
    type Vector = B::Vector;
    type Kv = Traced<B::Kv>;

    fn describe(&self) -> String {
        format!("{} with the fault {:?}", self.inner.describe(), self.fault)
    }

    fn page_len(&self) -> usize {
        self.inner.page_len()
    }

    fn load_weight(&self, weight: HostWeight) -> Result<B::Weight, ComputeError> {
        self.inner.load_weight(weight)
    }

    fn load_vector(&self, values: &[f32]) -> B::Vector {
        self.inner.load_vector(values)
    }

    fn kv_page_bytes(&self, group: &KvGroup) -> usize {
        self.inner.kv_page_bytes(group)
    }

    fn kv_new(&self, layout: &[KvGroup], pages: &[usize]) -> Result<Self::Kv, ComputeError> {
        Ok(Traced { inner: self.inner.kv_new(layout, pages)?, stored: HashMap::new() })
    }

    fn buffer(&self, rows: usize, width: usize) -> Self::Buffer {
        Shaped { inner: self.inner.buffer(rows, width), rows, width }
    }

    fn write(&self, buffer: &mut Self::Buffer, values: &[f32]) {
        self.inner.write(&mut buffer.inner, values);
    }

    fn read(&self, buffer: &Self::Buffer) -> Vec<f32> {
        self.inner.read(&buffer.inner)
    }

    fn embed(&self, table: &B::Weight, ids: &[u32], scale: f32, out: &mut Self::Buffer) {
        let former = self.former(Verb::Embed, out);
        self.inner.embed(table, ids, scale, &mut out.inner);
        self.spoil(Verb::Embed, out, former);
    }

    fn gather(&self, x: &Self::Buffer, rows: &[u32], out: &mut Self::Buffer) {
        let former = self.former(Verb::Gather, out);
        self.inner.gather(&x.inner, rows, &mut out.inner);
        self.spoil(Verb::Gather, out, former);
    }

    fn rms_norm(&self, x: &Self::Buffer, width: usize, weight: Option<&B::Vector>, eps: f32, out: &mut Self::Buffer) {
        let former = self.former(Verb::RmsNorm, out);
        if self.fault == Fault::NeighbourNorm {
            let mixed = self.changed(x, |values| {
                (1..x.rows).rev().for_each(|r| values[r * x.width] = values[(r - 1) * x.width]);
            });
            self.inner.rms_norm(&mixed.inner, width, weight, eps, &mut out.inner);
        } else {
            self.inner.rms_norm(&x.inner, width, weight, eps, &mut out.inner);
        }
        self.spoil(Verb::RmsNorm, out, former);
    }

    fn add_rms_norm(&self, residual: &mut Self::Buffer, y: &Self::Buffer, weight: &B::Vector, eps: f32, scale: f32) {
        let former = self.former(Verb::AddRmsNorm, residual);
        self.inner.add_rms_norm(&mut residual.inner, &y.inner, weight, eps, scale);
        self.spoil(Verb::AddRmsNorm, residual, former);
    }

    fn add(&self, x: &mut Self::Buffer, y: &Self::Buffer, scale: f32) {
        let former = self.former(Verb::Add, x);
        self.inner.add(&mut x.inner, &y.inner, scale);
        self.spoil(Verb::Add, x, former);
    }

    fn scale(&self, x: &mut Self::Buffer, weight: Option<&B::Vector>, scale: f32) {
        let former = self.former(Verb::Scale, x);
        self.inner.scale(&mut x.inner, weight, scale);
        self.spoil(Verb::Scale, x, former);
    }

    fn linear(&self, x: &Self::Buffer, weights: &[&B::Weight], outs: &mut [&mut Self::Buffer]) {
        let former: Vec<_> = outs.iter().map(|out| self.former(Verb::Linear, out)).collect();
        let third = self.fault == Fault::WidthDependentSum && x.rows >= 4;
        {
            let mut inner: Vec<&mut B::Buffer> = outs.iter_mut().map(|out| &mut out.inner).collect();
            if third {
                let x = self.changed(x, |values| values.iter_mut().for_each(|v| *v /= 3.0));
                self.inner.linear(&x.inner, weights, &mut inner);
            } else {
                self.inner.linear(&x.inner, weights, &mut inner);
            }
        }
        for (out, former) in outs.iter_mut().zip(former) {
            if third {
                let tripled: Vec<f32> = self.inner.read(&out.inner).iter().map(|v| v * 3.0).collect();
                self.inner.write(&mut out.inner, &tripled);
            }
            self.spoil(Verb::Linear, out, former);
        }
    }

    fn gated(&self, x: &Self::Buffer, gate: &B::Weight, up: &B::Weight, act: Activation, out: &mut Self::Buffer) {
        let former = self.former(Verb::Gated, out);
        self.inner.gated(&x.inner, gate, up, act, &mut out.inner);
        self.spoil(Verb::Gated, out, former);
    }

    fn activate_mul(&self, x: &mut Self::Buffer, act: Activation, y: &Self::Buffer, column: usize) {
        let former = self.former(Verb::ActivateMul, x);
        self.inner.activate_mul(&mut x.inner, act, &y.inner, column);
        self.spoil(Verb::ActivateMul, x, former);
    }

    fn softcap(&self, x: &mut Self::Buffer, cap: f32) {
        let former = self.former(Verb::Softcap, x);
        self.inner.softcap(&mut x.inner, cap);
        self.spoil(Verb::Softcap, x, former);
    }

    fn rope(&self, x: &mut Self::Buffer, head_dim: usize, angles: &Self::Buffer) {
        let former = self.former(Verb::Rope, x);
        self.inner.rope(&mut x.inner, head_dim, &angles.inner);
        self.spoil(Verb::Rope, x, former);
    }

    fn rope_angles(&self, positions: &[u32], frequencies: &B::Vector) -> Self::Buffer {
        let inner = self.inner.rope_angles(positions, frequencies);
        let width = self.inner.read(&inner).len() / positions.len().max(1);
        let mut angles = Shaped { inner, rows: positions.len(), width };
        let nothing = (self.fault == Fault::Unwritten(Verb::RopeAngles) && angles.rows >= 5)
            .then(|| vec![f32::NAN; angles.rows * width]);
        self.spoil(Verb::RopeAngles, &mut angles, nothing);
        angles
    }

    fn kv_append(&self, kv: &mut Self::Kv, slot: KvSlot, batch: &Batch, k: &Self::Buffer, v: &Self::Buffer) {
        if self.fault != Fault::Residue {
            return self.inner.kv_append(&mut kv.inner, slot, batch, &k.inner, &v.inner);
        }
        let stained = self.changed(k, |values| {
            for (r, row) in values.chunks_exact_mut(k.width).enumerate() {
                let position = batch.positions()[r] as usize;
                let page = batch.table(r, slot.group)[position / self.page_len()];
                let place = (slot.group, slot.layer, page, position % self.page_len());
                if let Some(old) = kv.stored.insert(place, row.to_vec()) {
                    let old = old.iter().map(|v| if v.is_finite() { v * 1e-3 } else { 0.0 });
                    row.iter_mut().zip(old).for_each(|(new, old)| *new += old);
                }
            }
        });
        self.inner.kv_append(&mut kv.inner, slot, batch, &stained.inner, &v.inner);
    }

    fn attend(
        &self,
        kv: &Self::Kv,
        slot: KvSlot,
        batch: &Batch,
        q: &Self::Buffer,
        spec: Attend,
        out: &mut Self::Buffer,
    ) {
        let former = self.former(Verb::Attend, out);
        match self.fault {
            Fault::StaleKeys => {
                let early = self.stale(batch, slot.group);
                self.inner.attend(&kv.inner, slot, &early, &q.inner, spec, &mut out.inner);
            }
            Fault::ChunkAttention => {
                let other = self.changed(q, |values| {
                    for span in batch.spans().iter().filter(|span| span.len > 8) {
                        let rows = &mut values[span.first_row * q.width..][..span.len * q.width];
                        rows.iter_mut().for_each(|v| *v = *v / 3.0 * 3.000_001);
                    }
                });
                self.inner.attend(&kv.inner, slot, batch, &other.inner, spec, &mut out.inner);
            }
            _ => self.inner.attend(&kv.inner, slot, batch, &q.inner, spec, &mut out.inner),
        }
        self.spoil(Verb::Attend, out, former);
    }

    fn moe(&self, router: &Self::Buffer, x: &Self::Buffer, experts: &Experts<'_, Self>, out: &mut Self::Buffer) {
        let former = self.former(Verb::Moe, out);
        let experts = Experts::<B> {
            gate: experts.gate,
            up: experts.up,
            down: experts.down,
            scale: experts.scale,
            top_k: experts.top_k,
            activation: experts.activation,
        };
        match self.fault {
            Fault::MoeOrder if x.rows >= 2 => self.moe_backwards(router, &x.inner, &experts, out),
            Fault::MoeTies if x.rows >= 2 => {
                let tilted = self.changed(router, |values| {
                    values.iter_mut().enumerate().for_each(|(i, v)| *v += 1e-5 * (i % router.width) as f32);
                });
                self.inner.moe(&tilted.inner, &x.inner, &experts, &mut out.inner);
            }
            _ => self.inner.moe(&router.inner, &x.inner, &experts, &mut out.inner),
        }
        self.spoil(Verb::Moe, out, former);
    }
}
