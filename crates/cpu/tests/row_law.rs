//! The row-law suite on every precision, instruction set and thread count this machine has.

use mlxcel_compute::conformance::{OPS, Options, check_all};
use mlxcel_compute::fault::{Fault, Faulty};
use mlxcel_cpu::{CpuBackend, Isa, Precision};

#[test]
fn every_operation_keeps_the_row_law() {
    for precision in [Precision::F32, Precision::Int8] {
        for isa in Isa::available() {
            for threads in [1, 2] {
                let backend = CpuBackend::with_isa(precision, threads, isa);
                let name = mlxcel_compute::Backend::describe(&backend);
                let report = check_all(&backend, &Options::quick()).unwrap_or_else(|v| panic!("{name}: {v}"));
                for op in OPS {
                    let count = report.count(op);
                    assert!(count.bits > 0, "{name}: {op} was not compared");
                }
                println!("{name}: {report}");
            }
        }
    }
}

#[test]
fn a_faulty_cpu_is_caught() {
    for fault in [
        Fault::WideLinear,
        Fault::WidthDependentSum,
        Fault::StaleKeys,
        Fault::ChunkAttention,
        Fault::ChunkedDelta,
        Fault::TakeBackWindow,
    ] {
        let backend = Faulty::new(CpuBackend::new(Precision::Int8, 2), fault);
        let violation = check_all(&backend, &Options::quick()).expect_err("the fault must be seen");
        println!("{fault:?}: {violation}");
    }
}
