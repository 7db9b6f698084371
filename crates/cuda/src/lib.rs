//! The CUDA backend: every operation of [`mlxcel_compute::Backend`] on an NVIDIA GPU, by the row law.
//!
//! Libraries (driver, run-time compiler) are looked for at run time, so that one binary runs with and without a GPU. Kernels
//! are CUDA C++ in `kernels/`, compiled at first use for the device at hand and kept on disk ([`module`]). Operations queue
//! launches ([`queue`]); results are computed when something is read.

pub mod backend;
pub mod buffer;
pub mod context;
pub mod device;
pub mod error;
pub mod kv;
pub mod memory;
pub mod module;
pub mod ops;
pub mod queue;
pub mod state;
pub mod timeline;

pub use backend::{CudaBackend, CudaOptions};
pub use error::CudaError;
