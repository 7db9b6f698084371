//! Every kernel compiles for every architecture that is promised, so that a syntax error never reaches a device. Needs NVRTC, and no
//! GPU; without NVRTC it is skipped, unless MLXCEL_NEED_NVRTC=1 makes that a failure.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use mlxcel_cuda::CudaError;
use mlxcel_cuda::module::{LINEAR, Source, Unit, all_units, nvrtc_version};

/// Hopper with its own instructions, Ampere, and both kinds of Blackwell.
const ARCHITECTURES: [&str; 4] = ["sm_90a", "sm_80", "sm_100", "sm_121"];

/// Every unit for the first architecture. For the others, of the forty forms of the linear one for each kind and width of its codes:
/// groups and scales change a few lines, and all of it four times takes minutes. Which one differs from architecture to architecture.
fn jobs() -> Vec<(Unit, &'static str)> {
    let value = |unit: &Unit, name| unit.defines.iter().find(|(n, _)| *n == name).map(|(_, value)| *value);
    let mut forms: BTreeMap<_, Vec<Unit>> = BTreeMap::new();
    let (linear, others): (Vec<Unit>, Vec<Unit>) = all_units().into_iter().partition(|unit| unit.source == LINEAR);
    for unit in &linear {
        forms.entry((value(unit, "KIND"), value(unit, "BITS"))).or_default().push(unit.clone());
    }
    assert!(forms.len() >= 9, "six widths of affine codes, E2M1, E4M3 and bf16 expected");
    let mut jobs = Vec::new();
    for (a, arch) in ARCHITECTURES.into_iter().enumerate() {
        let some = forms.values().enumerate().map(|(i, own)| own[(a + i) % own.len()].clone());
        let chosen = if a == 0 { linear.clone() } else { some.collect() };
        jobs.extend(others.iter().cloned().chain(chosen).map(|unit| (unit, arch)));
    }
    jobs
}

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
    let jobs = jobs();
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
