//! What an operation means: number formats, ragged batches, the [`Backend`] trait with each operation's row-law promise,
//! the reduction orders, a slow f64 reference, a fault-injecting backend and the conformance suite.
//!
//! This crate has no kernels. `mlxcel-cpu` implements [`Backend`]; models are generic over it.
#![forbid(unsafe_code)]

pub mod backend;
pub mod batch;
pub mod conformance;
pub mod dequant;
pub mod fault;
pub mod format;
pub mod order;
pub mod recurrent;
pub mod reference;

pub use backend::{Activation, Attend, Backend, ComputeError, DeltaGates, Experts, KvGroup, KvShape, KvSlot};
pub use batch::{Batch, NO_PAGE, Span, Wanted};
pub use format::{DType, HostWeight, Pages, QuantFormat, Source, WeightFormat};
pub use recurrent::{DeltaShape, StateLayout};
