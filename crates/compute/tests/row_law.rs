//! The suite passes on the reference, and fails on every fault with the verb's name.

use std::time::Instant;

use mlxcel_compute::conformance::{OPS, Options, check_all};
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

/// Every fault of some verbs; the split lets the test threads share the work.
fn assert_caught(faults: impl Iterator<Item = Fault>) {
    for fault in faults {
        match check_all(&Faulty::new(Reference, fault), &Options::quick()) {
            Ok(report) => panic!("{fault:?} was not noticed:\n{report}"),
            Err(violation) => {
                println!("{fault:?}: {violation}");
                assert_eq!(violation.op, fault.verb().name(), "{fault:?}: {violation}");
                assert!(violation.to_string().starts_with(fault.verb().name()));
            }
        }
    }
}

#[test]
fn faults_of_attention_are_caught() {
    assert_caught(Fault::all().into_iter().filter(|f| f.verb() == Verb::Attend));
}

#[test]
fn faults_of_products_are_caught() {
    let products = [Verb::Linear, Verb::Gated, Verb::Moe];
    assert_caught(Fault::all().into_iter().filter(|f| products.contains(&f.verb())));
}

#[test]
fn faults_of_other_verbs_are_caught() {
    let others = [Verb::Linear, Verb::Gated, Verb::Moe, Verb::Attend];
    assert_caught(Fault::all().into_iter().filter(|f| !others.contains(&f.verb())));
}

#[test]
fn every_verb_has_a_check() {
    assert!(Verb::ALL.iter().all(|verb| OPS.contains(&verb.name())));
}
