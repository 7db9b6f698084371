//! What can go wrong with a device, in words that say what to do.

use cudarc::driver::DriverError;
use mlxcel_compute::ComputeError;

/// Oldest driver interface that has everything used here: 12.0.
pub const OLDEST_DRIVER: i32 = 12_000;

/// Why there is no CUDA backend, or why it stopped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// The driver's library is not on this machine.
    #[error("no CUDA driver found (libcuda.so.1 expected where the loader looks); install NVIDIA's driver")]
    NoDriver,
    /// The driver answers, and shows no device.
    #[error("the CUDA driver shows no device; is one there, and visible to this process (CUDA_VISIBLE_DEVICES)?")]
    NoDevice,
    /// A device number that does not exist.
    #[error("CUDA device {wanted}: 0 to {last} expected", last = count - 1)]
    NoSuchDevice {
        /// What was asked for.
        wanted: usize,
        /// How many there are.
        count: usize,
    },
    /// A driver older than [`OLDEST_DRIVER`].
    #[error("the CUDA driver is too old: version {}.{} or newer expected, {}.{} found; update NVIDIA's driver",
        OLDEST_DRIVER / 1000, OLDEST_DRIVER % 1000 / 10, found / 1000, found % 1000 / 10)]
    DriverTooOld {
        /// Version as the driver gives it, 1000 * major + 10 * minor.
        found: i32,
    },
    /// A device without bf16 matrix instructions.
    #[error("{name} has compute capability {}.{}, 8.0 or newer expected", found / 10, found % 10)]
    DeviceTooOld {
        /// Name of the device.
        name: String,
        /// 10 * major + minor.
        found: i32,
    },
    /// The run-time compiler's library is not on this machine, and a kernel is not in the cache.
    #[error(
        "NVRTC, the compiler of CUDA kernels, was not found (libnvrtc.so.13 or .12 expected where the loader looks); \
         install the CUDA toolkit, or the PyPI package nvidia-cuda-nvrtc and put its lib folder into LD_LIBRARY_PATH"
    )]
    NoNvrtc,
    /// A kernel did not compile: a bug here, or a compiler too old.
    #[error("kernel {kernel} did not compile for {arch}: {log}")]
    Compile {
        /// File name of the kernel.
        kernel: String,
        /// Architecture it was compiled for.
        arch: String,
        /// What the compiler said.
        log: String,
    },
    /// Memory of the device ran out.
    #[error(
        "the GPU's memory is full: {needed} bytes needed for {what}, {free} of {total} bytes free; lower --ctx-size or \
         --parallel, take a checkpoint of fewer bits, or free the GPU of other programs"
    )]
    Memory {
        /// What for.
        what: String,
        /// Bytes asked for.
        needed: usize,
        /// Bytes free when it was refused.
        free: usize,
        /// Bytes of the device.
        total: usize,
    },
    /// Any other call that failed; after a fault of the device itself every later one fails the same way.
    #[error("the GPU failed in {call}: {reason}")]
    Call {
        /// The driver's function.
        call: &'static str,
        /// The driver's own words.
        reason: String,
    },
}

impl CudaError {
    /// A failed call.
    pub(crate) fn call(call: &'static str, error: DriverError) -> Self {
        let text =
            |s: Result<&std::ffi::CStr, DriverError>| s.map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
        CudaError::Call { call, reason: format!("{}: {}", text(error.error_name()), text(error.error_string())) }
    }
}

impl From<CudaError> for ComputeError {
    fn from(error: CudaError) -> Self {
        ComputeError::Device { reason: error.to_string() }
    }
}
