//! `row_dots` has the bits of looking rows up and multiplying them one by one, for every format and any number of threads.

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
