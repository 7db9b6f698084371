//! The number of threads changes no bit, also where attention is cut into blocks because there are more threads than heads.

use mlxcel_compute::conformance::rng::Rng;
use mlxcel_compute::{Attend, Backend, Batch, KvGroup, KvShape, KvSlot, Wanted};
use mlxcel_cpu::{CpuBackend, CpuBuffer, Precision};

const SLOT: KvSlot = KvSlot { group: 0, layer: 0 };

fn normals(rng: &mut Rng, n: usize) -> Vec<f32> {
    (0..n).map(|_| rng.normal()).collect()
}

fn filled(b: &CpuBackend, rows: usize, values: &[f32]) -> CpuBuffer {
    let mut buffer = b.buffer(rows, values.len() / rows);
    b.write(&mut buffer, values);
    buffer
}

/// Two sequences of these lengths, and rows at the end of each.
struct Case {
    heads: usize,
    shape: KvShape,
    window: Option<usize>,
    lens: [usize; 2],
    rows: [usize; 2],
}

/// Attention of the last rows to everything before them.
fn attention(b: &CpuBackend, case: &Case, k: &[f32], v: &[f32], q: &[f32]) -> Vec<u32> {
    let pages: Vec<Vec<u32>> = {
        let count = case.lens.map(|len| len.div_ceil(64) as u32);
        vec![(0..count[0]).rev().collect(), (count[0]..count[0] + count[1]).collect()]
    };
    let layout = [KvGroup { window: case.window, layers: vec![case.shape] }];
    let mut kv = b.kv_new(&layout, &[pages.iter().map(Vec::len).sum()]).expect("pages");
    let mut all = Batch::new();
    for (slot, pages) in pages.iter().enumerate() {
        all.push(slot, 0, &vec![0; case.lens[slot]], &[pages], Wanted::None);
    }
    let total = case.lens.iter().sum();
    b.kv_append(&mut kv, SLOT, &all, &filled(b, total, k), &filled(b, total, v));
    let mut last = Batch::new();
    for (slot, pages) in pages.iter().enumerate() {
        let rows = case.rows[slot];
        last.push(slot, case.lens[slot] - rows, &vec![0; rows], &[pages], Wanted::None);
    }
    let rows = case.rows.iter().sum();
    let mut out = b.buffer(rows, case.heads * case.shape.head_dim);
    let spec = Attend { heads: case.heads, scale: 0.17, window: case.window };
    b.attend(&kv, SLOT, &last, &filled(b, rows, q), spec, &mut out);
    b.read(&out).iter().map(|v| v.to_bits()).collect()
}

/// Cases in which two, three or five threads give other bits than one; `damage` changes a value of theirs.
fn differing(damage: bool) -> (usize, usize) {
    let mut rng = Rng::new(11);
    let (mut cases, mut differ) = (0, 0);
    for (heads, kv_heads, head_dim) in [(1, 1, 64), (6, 1, 128), (9, 3, 64), (8, 2, 40)] {
        for window in [None, Some(300), Some(512)] {
            for (lens, rows) in [([1500, 1], [1, 1]), ([1024, 700], [5, 2]), ([65, 2000], [3, 11])] {
                let case = Case { heads, shape: KvShape { kv_heads, head_dim }, window, lens, rows };
                let positions: usize = lens.iter().sum();
                let [k, v] = [0, 1].map(|_| normals(&mut rng, positions * kv_heads * head_dim));
                let mut q = normals(&mut rng, rows.iter().sum::<usize>() * heads * head_dim);
                for precision in [Precision::F32, Precision::Int8] {
                    let want = attention(&CpuBackend::new(precision, 1), &case, &k, &v, &q);
                    q[0] += if damage { 1.0 } else { 0.0 };
                    for threads in [2, 3, 5] {
                        cases += 1;
                        let found = attention(&CpuBackend::new(precision, threads), &case, &k, &v, &q);
                        differ += usize::from(found != want);
                    }
                }
            }
        }
    }
    (differ, cases)
}

#[test]
fn threads_change_no_bit_of_attention() {
    let (differ, cases) = differing(false);
    assert_eq!(differ, 0, "of {cases}");
}

#[test]
fn a_difference_is_seen() {
    let (differ, cases) = differing(true);
    assert_eq!(differ, cases);
}
