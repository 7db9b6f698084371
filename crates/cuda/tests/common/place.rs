//! Where whole models run: on the first GPU, or on the processor to try the tests themselves (`MLXCEL_WALK_BACKEND=cpu`).
//!
//! `MLXCEL_GPU_QUICK=1` cuts the tests to what a slow, emulated device gets through in minutes.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Instant;

use mlxcel_compute::Backend;
use mlxcel_compute::fault::{Fault, Faulty};
use mlxcel_cpu::{CpuBackend, Precision};
use mlxcel_cuda::CudaBackend;

use crate::common::device;

/// A device.
pub enum Place {
    Gpu(Arc<CudaBackend>),
    Cpu,
}

/// What can be loaded on any backend.
pub trait Load {
    type Loaded;
    fn on<B: Backend>(self, backend: Arc<B>) -> Self::Loaded;
}

impl Place {
    /// The place of this process's tests, opened once; `None`, having said why, where there is no GPU.
    pub fn find() -> Option<&'static Place> {
        static PLACE: OnceLock<Option<Place>> = OnceLock::new();
        let open = || match std::env::var("MLXCEL_WALK_BACKEND").as_deref() {
            Ok("cpu") => Some(Place::Cpu),
            Ok(other) => panic!("MLXCEL_WALK_BACKEND={other}: cpu expected, or nothing for the GPU"),
            Err(_) => device().map(|backend| Place::Gpu(Arc::new(backend))),
        };
        PLACE.get_or_init(open).as_ref()
    }

    /// Loads something here.
    pub fn load<L: Load>(&self, what: L) -> L::Loaded {
        match self {
            Place::Gpu(backend) => what.on(Arc::clone(backend)),
            Place::Cpu => what.on(Arc::new(processor())),
        }
    }

    /// Loads something on a device of this kind that breaks a promise.
    pub fn load_faulty<L: Load>(&self, what: L, fault: Fault) -> L::Loaded {
        match self {
            Place::Gpu(_) => what.on(Arc::new(Faulty::new(device().expect("it was there before"), fault))),
            Place::Cpu => what.on(Arc::new(Faulty::new(processor(), fault))),
        }
    }

    /// The GPU must have computed everything that it was given.
    pub fn is_well(&self) {
        if let Place::Gpu(backend) = self {
            assert_eq!(backend.context().failure(), None);
        }
    }
}

fn processor() -> CpuBackend {
    CpuBackend::new(Precision::Int8, 2)
}

/// The tests of a file take turns: they share a device, and their times are to mean something.
pub fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(|e| e.into_inner())
}

/// Whether a part of the tests will do.
pub fn is_quick() -> bool {
    std::env::var_os("MLXCEL_GPU_QUICK").is_some_and(|v| v != "0")
}

/// Runs a part and says how long it took.
pub fn timed<T>(name: &str, part: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let result = part();
    println!("{name}: {:.1} s", began.elapsed().as_secs_f64());
    result
}
