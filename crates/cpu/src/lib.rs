//! The CPU backend: SIMD lanes with run-time dispatch, a spinning thread pool, quantised linears over
//! weights laid out for them in memory.
//!
//! Every instruction set, thread count and batch gives the same bits: see `mlxcel_compute::order` and docs/NUMERICS.md.

pub mod arch;
mod backend;
pub mod bandwidth;
mod buffer;
mod kv;
pub mod lanes;
mod memory;
mod ops;
pub mod pool;
pub mod state;

pub use arch::Isa;
pub use backend::{CpuBackend, CpuWeight, Precision};
pub use buffer::CpuBuffer;
pub use kv::CpuKv;
