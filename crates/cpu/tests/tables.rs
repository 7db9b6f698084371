//! Rows of tables: `row_dots` has the bits of looking rows up and multiplying them one by one, for every format and any number of
//! threads, and looking up gives the same bits once a table has been multiplied and lies in memory in another form.

use mlxcel_compute::conformance::all_formats;
use mlxcel_compute::conformance::rng::Rng;
use mlxcel_compute::conformance::weights::{Shape, random_weight};
use mlxcel_compute::{Backend, order};
use mlxcel_cpu::{CpuBackend, Precision};

const ROWS: usize = 300;

/// Dot products that differ from a row's own, for all formats; `shift` asks for other rows than are compared.
fn differing(shift: u32) -> (usize, usize) {
    let mut rng = Rng::new(5);
    let (mut compared, mut differ) = (0, 0);
    for format in all_formats() {
        // Beyond the size from which threads share the work, and below it.
        for (inputs, count) in [(384, 200), (128, 7)] {
            let w = random_weight(&mut rng, format, Shape { experts: 1, outputs: ROWS, inputs }, 1);
            let y: Vec<f32> = (0..inputs).map(|_| rng.normal()).collect();
            let ids: Vec<u32> = (0..count).map(|i| (i * 7 % ROWS) as u32).collect();
            for threads in [1, 3] {
                let b = CpuBackend::new(Precision::Int8, threads);
                let table = b.load_weight(w.clone()).expect("a supported format");
                let mut rows = b.buffer(count, inputs);
                b.embed(&table, &ids, 1.0, &mut rows);
                let asked: Vec<u32> = ids.iter().map(|id| (id + shift) % ROWS as u32).collect();
                let found = b.row_dots(&table, &asked, &y);
                assert_eq!(found.len(), count);
                let rows = b.read(&rows);
                let want = rows.chunks_exact(inputs).map(|row| order::dot(row, &y));
                differ += want.zip(found).filter(|(want, found)| want.to_bits() != found.to_bits()).count();
                compared += count;
            }
        }
    }
    (compared, differ)
}

#[test]
fn rows_have_the_bits_of_one_by_one() {
    let (compared, differ) = differing(0);
    assert!(compared > 4_000, "{compared} dot products");
    assert_eq!(differ, 0, "of {compared}");
    assert!(differing(1).1 > compared / 2, "other rows must be seen");
}

#[test]
fn no_rows_give_nothing() {
    let mut rng = Rng::new(6);
    let b = CpuBackend::new(Precision::F32, 2);
    let w = random_weight(&mut rng, all_formats()[0], Shape { experts: 1, outputs: 4, inputs: 128 }, 1);
    let table = b.load_weight(w).expect("a supported format");
    assert!(b.row_dots(&table, &[], &[0.5; 128]).is_empty());
}

/// Rows of a table before and after a product with it that differ in a bit; `shift` looks up others the second time.
fn changed_by_a_product(shift: u32) -> (usize, usize) {
    let mut rng = Rng::new(7);
    let (mut compared, mut differ) = (0, 0);
    for format in all_formats() {
        for (outputs, inputs) in [(21, 128), (48, 384)] {
            let w = random_weight(&mut rng, format, Shape { experts: 1, outputs, inputs }, 1);
            let b = CpuBackend::new(Precision::Int8, 2);
            let table = b.load_weight(w).expect("a supported format");
            let look_up = |shift: u32| -> Vec<u32> {
                let ids: Vec<u32> = (0..outputs as u32).map(|id| (id + shift) % outputs as u32).collect();
                let mut rows = b.buffer(outputs, inputs);
                b.embed(&table, &ids, 12.7, &mut rows);
                b.read(&rows).iter().map(|v| v.to_bits()).collect()
            };
            let before = look_up(0);
            let x = b.buffer(1, inputs);
            let mut out = b.buffer(1, outputs);
            b.linear(&x, &[&table], &mut [&mut out]);
            differ += before.iter().zip(look_up(shift)).filter(|(a, b)| **a != *b).count();
            compared += before.len();
        }
    }
    (compared, differ)
}

#[test]
fn a_product_changes_no_row() {
    let (compared, differ) = changed_by_a_product(0);
    assert!(compared > 200_000, "{compared} values");
    assert_eq!(differ, 0, "of {compared}");
    assert!(changed_by_a_product(1).1 > compared / 2, "other rows must be seen");
}
