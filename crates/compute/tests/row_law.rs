//! The suite passes on the reference, and fails on every fault with the verb's name.

use std::time::Instant;

use mlxcel_compute::conformance::{
    OPS, Options, Report, Violation, check_activate_mul, check_add, check_add_gated, check_add_rms_norm,
    check_add_vector, check_ahead, check_all, check_argmax, check_attend, check_columns, check_embed, check_gated,
    check_gather, check_linear, check_moe, check_recurrent, check_rms_norm, check_rope, check_scale, check_softcap,
};
use mlxcel_compute::fault::{Fault, Faulty, Verb};
use mlxcel_compute::reference::Reference;

#[test]
fn reference_keeps_the_row_law() {
    let begun = Instant::now();
    let report = check_all(&Reference, &Options::full()).unwrap_or_else(|v| panic!("{v}"));
    println!("{report}{:.1?}", begun.elapsed());
    for op in OPS {
        let count = report.count(op);
        assert!(count.bounds > 10_000 && count.bits > 50_000, "{op}: {count:?}");
    }
}

#[test]
fn quick_covers_every_op() {
    let begun = Instant::now();
    let report = check_all(&Reference, &Options::quick()).unwrap_or_else(|v| panic!("{v}"));
    println!("{report}{:.1?}", begun.elapsed());
    assert!(report.counts().map(|(op, _)| op).eq({
        let mut ops = OPS;
        ops.sort_unstable();
        ops
    }));
    for op in OPS {
        let count = report.count(op);
        assert!(count.bounds > 1_000 && count.bits > 10_000, "{op}: {count:?}");
    }
}

type Check = fn(&Faulty<Reference>, &Options) -> Result<Report, Violation>;

/// Every fault of some verbs, with the checks that speak of these verbs.
fn assert_caught(checks: &[Check], ours: impl Fn(Verb) -> bool) {
    for fault in Fault::all().into_iter().filter(|fault| ours(fault.verb())) {
        let faulty = Faulty::new(Reference, fault);
        match checks.iter().try_for_each(|check| check(&faulty, &Options::quick()).map(drop)) {
            Ok(()) => panic!("{fault:?} was not noticed"),
            Err(violation) => {
                println!("{fault:?}: {violation}");
                assert_eq!(violation.op, fault.verb().name(), "{fault:?}: {violation}");
                assert!(violation.to_string().starts_with(fault.verb().name()));
            }
        }
    }
}

const PRODUCTS: [Verb; 4] = [Verb::Linear, Verb::Gated, Verb::Moe, Verb::Embed];
const RECURRENT: [Verb; 3] = [Verb::CausalConv, Verb::GatedDelta, Verb::State];

#[test]
fn faults_of_attention_are_caught() {
    assert_caught(&[check_attend], |verb| verb == Verb::Attend);
}

#[test]
fn faults_of_products_are_caught() {
    assert_caught(&[check_embed, check_moe, check_gated, check_linear], |verb| PRODUCTS.contains(&verb));
}

#[test]
fn faults_of_recurrent_layers_are_caught() {
    assert_caught(&[check_recurrent], |verb| RECURRENT.contains(&verb));
}

#[test]
fn faults_of_other_verbs_are_caught() {
    let checks: [Check; 13] = [
        check_argmax,
        check_ahead,
        check_gather,
        check_columns,
        check_add,
        check_add_gated,
        check_add_vector,
        check_scale,
        check_softcap,
        check_activate_mul,
        check_rms_norm,
        check_add_rms_norm,
        check_rope,
    ];
    let others = |verb| verb != Verb::Attend && !PRODUCTS.contains(&verb) && !RECURRENT.contains(&verb);
    assert_caught(&checks, others);
}

/// A fault among all the checks.
#[test]
fn the_whole_suite_catches_a_fault() {
    for fault in [Fault::LastBit(Verb::Gather), Fault::ChunkedDelta, Fault::WideLinear] {
        let violation = check_all(&Faulty::new(Reference, fault), &Options::quick()).expect_err("a fault");
        assert_eq!(violation.op, fault.verb().name(), "{violation}");
    }
}

#[test]
fn every_verb_has_a_check() {
    assert!(Verb::ALL.iter().all(|verb| OPS.contains(&verb.name())));
}
