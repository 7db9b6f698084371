//! The CPU backend: SIMD lanes with run-time dispatch, a spinning thread pool, quantised linears that read packed
//! weights as they lie in the file.
//!
//! Every instruction set, thread count and batch gives the same bits: see `mlxcel_compute::order` and docs/NUMERICS.md.

pub mod arch;
mod backend;
pub mod bandwidth;
mod buffer;
mod kv;
pub mod lanes;
mod ops;
pub mod pool;
pub mod state;

pub use arch::Isa;
pub use backend::{CpuBackend, CpuWeight, Precision};
pub use buffer::CpuBuffer;
pub use kv::CpuKv;
