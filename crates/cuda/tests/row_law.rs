//! The row-law suite on a GPU. Where there is none it says so and checks nothing, unless MLXCEL_NEED_GPU is set.

mod common;

use mlxcel_compute::conformance::{self, OPS, Options, Report, Violation};
use mlxcel_compute::fault::{Fault, Faulty};
use mlxcel_cuda::CudaBackend;

use common::device;

/// What a backend of bf16 inputs and bf16 pages may differ by.
fn options() -> Options {
    let full = std::env::var_os("MLXCEL_GPU_FULL").is_some();
    Options { bf16_matmul: 2.5e-3, quick: !full, ..Options::full() }
}

type Check = fn(&CudaBackend, &Options) -> Result<Report, Violation>;

#[test]
fn every_operation_keeps_the_row_law() {
    let Some(backend) = device() else { return };
    let checks: [(&str, Check); 19] = [
        ("argmax", conformance::check_argmax),
        ("ahead", conformance::check_ahead),
        ("gather", conformance::check_gather),
        ("add", conformance::check_add),
        ("add_gated", conformance::check_add_gated),
        ("add_vector", conformance::check_add_vector),
        ("columns", conformance::check_columns),
        ("scale", conformance::check_scale),
        ("softcap", conformance::check_softcap),
        ("activate_mul", conformance::check_activate_mul),
        ("rms_norm", conformance::check_rms_norm),
        ("add_rms_norm", conformance::check_add_rms_norm),
        ("rope", conformance::check_rope),
        ("embed", conformance::check_embed),
        ("linear", conformance::check_linear),
        ("gated", conformance::check_gated),
        ("moe", conformance::check_moe),
        ("attend", conformance::check_attend),
        ("recurrent", conformance::check_recurrent),
    ];
    let (mut report, mut broken) = (Report::default(), Vec::new());
    for (name, check) in checks {
        let began = std::time::Instant::now();
        // All of them, so that one run on a device tells everything.
        match check(&backend, &options()) {
            Ok(part) => report.merge(part),
            Err(violation) => broken.push(violation.to_string()),
        }
        println!("{name}: {:.1} s", began.elapsed().as_secs_f64());
    }
    println!("{report}");
    println!("{:?}", backend.context().sent());
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    for op in OPS {
        assert!(report.count(op).bits > 0, "{op} was not compared");
    }
    assert_eq!(backend.context().failure(), None);
}

#[test]
fn graphs_change_nothing() {
    let Some(backend) = device() else { return };
    backend.context().use_graphs(false);
    for check in [conformance::check_gated, conformance::check_attend] as [Check; 2] {
        check(&backend, &Options { quick: true, ..options() }).unwrap_or_else(|v| panic!("{v}"));
    }
    assert_eq!(backend.context().sent().graphs, 0);
}

type FaultyCheck = fn(&Faulty<CudaBackend>, &Options) -> Result<Report, Violation>;

/// Each by the check of its own operation: the whole suite would come to the same after minutes.
#[test]
fn a_faulty_gpu_is_caught() {
    let faults: [(Fault, FaultyCheck); 6] = [
        (Fault::WideLinear, conformance::check_linear),
        (Fault::WidthDependentSum, conformance::check_linear),
        (Fault::StaleKeys, conformance::check_attend),
        (Fault::ChunkAttention, conformance::check_attend),
        (Fault::ChunkedDelta, conformance::check_recurrent),
        (Fault::TakeBackWindow, conformance::check_recurrent),
    ];
    for (fault, check) in faults {
        let Some(backend) = device() else { return };
        let options = Options { quick: true, ..options() };
        let violation = check(&Faulty::new(backend, fault), &options).expect_err("the fault must be seen");
        println!("{fault:?}: {violation}");
    }
}
