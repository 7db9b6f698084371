//! One GPU: its context, its stream, what it is.

use std::sync::{Arc, OnceLock};

use cudarc::driver::{result, sys};

use crate::error::{CudaError, OLDEST_DRIVER};

/// An opened device. Calls go to one stream, in order.
pub struct Device {
    device: sys::CUdevice,
    context: sys::CUcontext,
    pub(crate) stream: sys::CUstream,
    /// Name as the driver gives it.
    pub name: String,
    /// Compute capability, 10 * major + minor.
    pub capability: i32,
    /// Streaming multiprocessors.
    pub processors: usize,
    /// Bytes of shared memory a block may ask for.
    pub shared_limit: usize,
    failure: OnceLock<CudaError>,
}

// SAFETY: the driver's handles may be used from any thread that makes the context current, which every use does first; the
// driver locks what it shares.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

fn check<T>(call: &'static str, result: Result<T, cudarc::driver::DriverError>) -> Result<T, CudaError> {
    result.map_err(|e| CudaError::call(call, e))
}

/// The driver, if there is one that is new enough.
///
/// # Errors
/// [`CudaError::NoDriver`], [`CudaError::NoDevice`], [`CudaError::DriverTooOld`].
pub fn count() -> Result<usize, CudaError> {
    // SAFETY: opens a library by its well-known name; its initialisers are the driver's.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaError::NoDriver);
    }
    let mut found = 0;
    // SAFETY: the library is there, and this function is in every version of it.
    check("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&raw mut found) }.result())?;
    if found < OLDEST_DRIVER {
        return Err(CudaError::DriverTooOld { found });
    }
    match result::init() {
        Err(e) if e.0 == sys::CUresult::CUDA_ERROR_NO_DEVICE => return Err(CudaError::NoDevice),
        other => check("cuInit", other)?,
    }
    match check("cuDeviceGetCount", result::device::get_count())? {
        0 => Err(CudaError::NoDevice),
        n => Ok(n as usize),
    }
}

impl Device {
    /// Opens a device by number.
    ///
    /// # Errors
    /// What is missing: driver, device, a new enough one of either.
    pub fn open(ordinal: usize) -> Result<Arc<Self>, CudaError> {
        use sys::CUdevice_attribute as Attribute;
        let count = count()?;
        if ordinal >= count {
            return Err(CudaError::NoSuchDevice { wanted: ordinal, count });
        }
        let device = check("cuDeviceGet", result::device::get(ordinal as i32))?;
        let name = check("cuDeviceGetName", result::device::get_name(device))?;
        // SAFETY: the device was just handed out.
        let get = |a| check("cuDeviceGetAttribute", unsafe { result::device::get_attribute(device, a) });
        let major = get(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let capability = 10 * major + get(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        if capability < 80 {
            return Err(CudaError::DeviceTooOld { name, found: capability });
        }
        let processors = get(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as usize;
        let shared_limit = get(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as usize;
        // SAFETY: the device exists; the context is released when this is dropped.
        let context = check("cuDevicePrimaryCtxRetain", unsafe { result::primary_ctx::retain(device) })?;
        // SAFETY: the context was just made.
        check("cuCtxSetCurrent", unsafe { result::ctx::set_current(context) })?;
        let stream = check("cuStreamCreate", result::stream::create(result::stream::StreamKind::NonBlocking))?;
        let failure = OnceLock::new();
        Ok(Arc::new(Device { device, context, stream, name, capability, processors, shared_limit, failure }))
    }

    /// Makes the context the calling thread's.
    ///
    /// # Errors
    /// The driver's.
    pub fn bind(&self) -> Result<(), CudaError> {
        // SAFETY: the context lives as long as this.
        check("cuCtxSetCurrent", unsafe { result::ctx::set_current(self.context) })
    }

    /// Waits for everything that was launched.
    ///
    /// # Errors
    /// The first fault among it.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: the stream lives as long as this.
        check("cuStreamSynchronize", unsafe { result::stream::synchronize(self.stream) })
    }

    /// Free and total bytes of its memory.
    ///
    /// # Errors
    /// The driver's.
    pub fn memory(&self) -> Result<(usize, usize), CudaError> {
        self.bind()?;
        check("cuMemGetInfo", result::mem_get_info())
    }

    /// Memory of the device; whoever asks gives it back once.
    ///
    /// # Errors
    /// When there is no such room left, with what for and how much is free.
    pub(crate) fn allocate(&self, bytes: usize, what: &str) -> Result<u64, CudaError> {
        self.bind()?;
        // SAFETY: the context is current.
        match unsafe { result::malloc_sync(bytes) } {
            Err(e) if e.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                let (free, total) = result::mem_get_info().unwrap_or_default();
                Err(CudaError::Memory { what: what.to_owned(), needed: bytes, free, total })
            }
            other => check("cuMemAlloc", other),
        }
    }

    /// The architecture as the compiler spells it: with the instructions of this very chip where they are used.
    pub fn arch(&self) -> String {
        format!("sm_{}{}", self.capability, if self.capability == 90 { "a" } else { "" })
    }

    /// Notes that the device cannot be trusted any more; the first reason stays.
    pub fn fail(&self, error: CudaError) {
        let _ = self.failure.set(error);
    }

    /// Why the device cannot be trusted any more.
    pub fn failure(&self) -> Option<&CudaError> {
        self.failure.get()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.bind().is_ok() {
            // SAFETY: nothing else holds the stream; errors have nobody to go to.
            let _ = unsafe { result::stream::destroy(self.stream) };
        }
        // SAFETY: retained once in `open`.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}
