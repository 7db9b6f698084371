//! The default tolerances admit what they are meant to: a plain f32 backend with int8 activations for quantised
//! matrices and bf16 pages, written with plain sums and the functions of `order`.

mod plain;

use mlxcel_compute::conformance::{
    Options, Report, Violation, check_add, check_all, check_attend, check_gated, check_linear, check_recurrent,
    check_scale, check_softcap,
};
use plain::Plain;

#[test]
fn f32_with_int8_activations_and_bf16_pages_passes() {
    let options = Options { seeds: vec![2, 3], ..Options::quick() };
    let report = check_all(&Plain, &options).unwrap_or_else(|v| panic!("{v}"));
    println!("{report}");
}

/// No tolerance is so wide that nothing could exceed it.
#[test]
fn tolerances_can_be_too_narrow() {
    type Check = fn(&Plain, &Options) -> Result<Report, Violation>;
    let quick = Options::quick;
    let narrow: [(Options, &[Check]); 5] = [
        (Options { quant_matmul: 1e-4, ..quick() }, &[check_gated, check_linear]),
        (Options { kv_pages: 1e-5, ..quick() }, &[check_attend]),
        (Options { elementwise: 1e-9, ..quick() }, &[check_add, check_scale, check_softcap, check_recurrent]),
        (Options { recurrent: 1e-8, ..quick() }, &[check_recurrent]),
        (Options { float_matmul: 1e-9, ..quick() }, &[check_gated, check_linear]),
    ];
    for (options, checks) in narrow {
        for check in checks {
            let violation = check(&Plain, &options).expect_err("f32 sums round");
            assert!(violation.what.contains("the reference has"), "{violation}");
        }
    }
}
