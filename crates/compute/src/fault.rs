//! A backend that breaks one promise on purpose.
//!
//! It exists to show that the conformance suite and the exactness probe can fail: a check that no fault trips checks
//! nothing. Each [`Fault`] is a mistake that a real kernel could make.

mod argmax;
mod faulty;
mod moe;
mod state;

pub use faulty::{Faulty, Shaped, Traced};
pub use state::{Copied, Tracked};

/// A verb with an output, for the faults that any of them can have; and the verbs that move states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// [`argmax`](crate::Backend::argmax), whose output is no buffer.
    Argmax,
    /// [`argmax_into`](crate::Backend::argmax_into).
    ArgmaxInto,
    /// [`embed_at`](crate::Backend::embed_at).
    EmbedAt,
    /// [`join`](crate::Backend::join).
    Join,
    /// [`embed`](crate::Backend::embed).
    Embed,
    /// [`gather`](crate::Backend::gather).
    Gather,
    /// [`rms_norm`](crate::Backend::rms_norm).
    RmsNorm,
    /// [`add_rms_norm`](crate::Backend::add_rms_norm).
    AddRmsNorm,
    /// [`add`](crate::Backend::add).
    Add,
    /// [`add_gated`](crate::Backend::add_gated).
    AddGated,
    /// [`add_vector`](crate::Backend::add_vector).
    AddVector,
    /// [`columns`](crate::Backend::columns).
    Columns,
    /// [`scale`](crate::Backend::scale).
    Scale,
    /// [`linear`](crate::Backend::linear).
    Linear,
    /// [`gated`](crate::Backend::gated).
    Gated,
    /// [`activate_mul`](crate::Backend::activate_mul).
    ActivateMul,
    /// [`softcap`](crate::Backend::softcap).
    Softcap,
    /// [`rope`](crate::Backend::rope).
    Rope,
    /// [`rope_angles`](crate::Backend::rope_angles).
    RopeAngles,
    /// [`attend`](crate::Backend::attend).
    Attend,
    /// [`moe`](crate::Backend::moe).
    Moe,
    /// [`causal_conv`](crate::Backend::causal_conv).
    CausalConv,
    /// [`gated_delta`](crate::Backend::gated_delta).
    GatedDelta,
    /// [`state_take_back`](crate::Backend::state_take_back), [`state_restore`](crate::Backend::state_restore) and the other
    /// verbs that move states without an output.
    State,
}

impl Verb {
    /// All of them.
    pub const ALL: [Verb; 24] = [
        Verb::Argmax,
        Verb::ArgmaxInto,
        Verb::EmbedAt,
        Verb::Join,
        Verb::Embed,
        Verb::Gather,
        Verb::RmsNorm,
        Verb::AddRmsNorm,
        Verb::Add,
        Verb::AddGated,
        Verb::AddVector,
        Verb::Columns,
        Verb::Scale,
        Verb::Linear,
        Verb::Gated,
        Verb::ActivateMul,
        Verb::Softcap,
        Verb::Rope,
        Verb::RopeAngles,
        Verb::Attend,
        Verb::Moe,
        Verb::CausalConv,
        Verb::GatedDelta,
        Verb::State,
    ];

    /// The name in reports: the method's, or `state`.
    pub const fn name(self) -> &'static str {
        match self {
            Verb::Argmax => "argmax",
            Verb::ArgmaxInto => "argmax_into",
            Verb::EmbedAt => "embed_at",
            Verb::Join => "join",
            Verb::Embed => "embed",
            Verb::Gather => "gather",
            Verb::RmsNorm => "rms_norm",
            Verb::AddRmsNorm => "add_rms_norm",
            Verb::Add => "add",
            Verb::AddGated => "add_gated",
            Verb::AddVector => "add_vector",
            Verb::Columns => "columns",
            Verb::Scale => "scale",
            Verb::Linear => "linear",
            Verb::Gated => "gated",
            Verb::ActivateMul => "activate_mul",
            Verb::Softcap => "softcap",
            Verb::Rope => "rope",
            Verb::RopeAngles => "rope_angles",
            Verb::Attend => "attend",
            Verb::Moe => "moe",
            Verb::CausalConv => "causal_conv",
            Verb::GatedDelta => "gated_delta",
            Verb::State => "state",
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
    /// `argmax` on two rows or more gives the highest index among equals: threads that finish in any order.
    ArgmaxTies,
    /// `argmax` does not see what is not larger than all others: -inf, and NaN.
    ArgmaxBlind,
    /// `rope_angles` takes every position from the first axis.
    AxisIgnored,
    /// In spans of 16 rows or more, `gated_delta` rounds otherwise: the chunked form.
    ChunkedDelta,
    /// `gated_delta` gives zeros where a result is not finite: a damaged state goes unseen.
    HiddenDamage,
    /// On two rows or more, neighbouring recurrent layers of one shape use each other's states.
    LayersSwapped,
    /// A sequence that starts in a used slot finds the rows of the one before in its convolution windows.
    WindowResidue,
    /// A sequence that starts in a used slot finds the matrices of the one before.
    MatrixResidue,
    /// `state_take_back` keeps one row too many.
    TakeBackShort,
    /// `state_take_back` takes the matrices back, the convolution windows not.
    TakeBackWindow,
    /// `state_take_back` agrees to what is not on record, and only moves the count.
    TakeBackAnything,
    /// A `state_take_back` that is refused leaves the slot without a state.
    RefusalForgets,
    /// `state_restore` restores the matrices, the convolution windows stay those of the slot.
    RestoreWindow,
    /// `state_declare` leaves the count as it was.
    DeclareIgnored,
    /// The last bit of one value is off on two rows or more.
    LastBit(Verb),
    /// Everything is 1 % off, at every width: no bits comparison can see it.
    Inaccurate(Verb),
    /// Zero times the next row is added: harmless until that row holds NaN.
    Leak(Verb),
    /// The last of five rows or more is not written (or not worked on, in place).
    Unwritten(Verb),
    /// After so many reads the device is gone: everything read is NaN, and [`failure`](crate::Backend::failure) says why.
    DeviceLost(usize),
}

impl Fault {
    /// The verb whose promise is broken, where the suite sees it.
    pub const fn verb(self) -> Verb {
        match self {
            Fault::WideLinear | Fault::WidthDependentSum => Verb::Linear,
            Fault::NeighbourNorm => Verb::RmsNorm,
            Fault::StaleKeys | Fault::ChunkAttention | Fault::Residue => Verb::Attend,
            Fault::MoeOrder | Fault::MoeTies => Verb::Moe,
            Fault::ArgmaxTies | Fault::ArgmaxBlind => Verb::Argmax,
            Fault::AxisIgnored => Verb::RopeAngles,
            Fault::ChunkedDelta | Fault::HiddenDamage | Fault::MatrixResidue => Verb::GatedDelta,
            Fault::WindowResidue => Verb::CausalConv,
            Fault::LayersSwapped
            | Fault::TakeBackShort
            | Fault::TakeBackWindow
            | Fault::TakeBackAnything
            | Fault::RefusalForgets
            | Fault::RestoreWindow
            | Fault::DeclareIgnored => Verb::State,
            // No promise about rows: it is said.
            Fault::DeviceLost(_) => Verb::State,
            Fault::LastBit(verb) | Fault::Inaccurate(verb) | Fault::Leak(verb) | Fault::Unwritten(verb) => verb,
        }
    }

    /// Every fault that shows in some output and is not said.
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
            Fault::ArgmaxTies,
            Fault::ArgmaxBlind,
            Fault::AxisIgnored,
            Fault::ChunkedDelta,
            Fault::HiddenDamage,
            Fault::LayersSwapped,
            Fault::WindowResidue,
            Fault::MatrixResidue,
            Fault::TakeBackShort,
            Fault::TakeBackWindow,
            Fault::TakeBackAnything,
            Fault::RefusalForgets,
            Fault::RestoreWindow,
            Fault::DeclareIgnored,
        ];
        // States have no output of their own to spoil, indices no bits.
        for verb in Verb::ALL.into_iter().filter(|verb| !matches!(verb, Verb::State | Verb::Argmax)) {
            all.extend([Fault::LastBit(verb), Fault::Inaccurate(verb), Fault::Unwritten(verb)]);
            // Table rows and angles are finite, so there is nothing that could leak.
            if !matches!(verb, Verb::Embed | Verb::RopeAngles) {
                all.push(Fault::Leak(verb));
            }
        }
        all
    }
}
