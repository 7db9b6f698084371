//! Every kernel compiles for every architecture that is promised, so that a syntax error never reaches a device. Needs NVRTC, and no
//! GPU; without NVRTC it is skipped, unless MLXCEL_NEED_NVRTC=1 makes that a failure.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use mlxcel_cuda::CudaError;
use mlxcel_cuda::module::{Source, Unit, all_units, nvrtc_version};

/// Ampere, Hopper with its own instructions, and both kinds of Blackwell.
const ARCHITECTURES: [&str; 4] = ["sm_80", "sm_90a", "sm_100", "sm_121"];

/// Whether there is a compiler; says so when there is none.
fn has_compiler() -> bool {
    match nvrtc_version() {
        Ok(_) => true,
        Err(error) => {
            assert!(std::env::var("MLXCEL_NEED_NVRTC").is_err(), "MLXCEL_NEED_NVRTC is set: {error}");
            println!("skipped: {error}");
            false
        }
    }
}

#[test]
fn every_kernel_compiles_for_every_architecture() {
    if !has_compiler() {
        return;
    }
    let jobs: Vec<(Unit, &str)> =
        ARCHITECTURES.iter().flat_map(|arch| all_units().into_iter().map(|unit| (unit, *arch))).collect();
    let (next, faults) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some((unit, arch)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            match unit.compile(arch) {
                Ok(code) => assert!(code.starts_with(b"\x7fELF"), "{unit:?} for {arch}: machine code expected"),
                Err(error) => faults.lock().unwrap().push(format!("{:?}: {error}", unit.defines)),
            }
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..cores).for_each(|_| drop(scope.spawn(work))));
    let faults = faults.into_inner().unwrap();
    assert!(faults.is_empty(), "{} of {} do not compile; the first:\n{}", faults.len(), jobs.len(), faults[0]);
}

/// The twin: what is wrong is seen, and said in the compiler's words with the place.
#[test]
fn a_kernel_that_is_wrong_does_not_compile() {
    if !has_compiler() {
        return;
    }
    let source = Source::new("broken.cu", "EXPORT broken(float *x) {\n    x[0] = 1.f\n}\n");
    let arch = ARCHITECTURES[0];
    match Unit::new(source, &[]).compile(arch) {
        Err(CudaError::Compile { kernel, arch: found, log }) => {
            assert_eq!((&*kernel, &*found), ("broken.cu", arch));
            assert!(log.contains("broken.cu(") && log.contains("expected a \";\""), "{log}");
        }
        other => panic!("an error of the compiler expected, found {:?}", other.map(|code| code.len())),
    }
    // A definition that is missing is an error, too, not a zero.
    let source = Source::new("defined.cu", "constexpr int WIDTH = KEY_DIM;\n");
    assert!(Unit::new(source, &[]).compile(arch).is_err());
    assert!(Unit::new(source, &[("KEY_DIM", 64)]).compile(arch).is_ok());
}
