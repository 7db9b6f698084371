//! What the tests on a GPU share.

use mlxcel_cuda::{CudaBackend, CudaOptions};

/// The first device. Where there is none it says so, unless MLXCEL_NEED_GPU is set: then that is a failure.
pub fn device() -> Option<CudaBackend> {
    let cache = Some(std::env::temp_dir().join("mlxcel-kernels"));
    match CudaBackend::open(&CudaOptions { device: 0, cache }) {
        Ok(backend) => Some(backend),
        Err(error) => {
            assert!(std::env::var_os("MLXCEL_NEED_GPU").is_none(), "{error}");
            println!("skipped: {error}");
            None
        }
    }
}
