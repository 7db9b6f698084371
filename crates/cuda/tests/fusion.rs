//! Operations that join a launch compute what launches of their own would: a decoder layer both ways, bit for bit.

mod common;

use mlxcel_compute::conformance::rng::Rng;
use mlxcel_compute::conformance::weights::{Shape, random_weight};
use mlxcel_compute::{
    Activation, Attend, Backend, Batch, DType, KvGroup, KvShape, KvSlot, QuantFormat, Wanted, WeightFormat,
};
use mlxcel_cuda::CudaBackend;

use common::device;

const HIDDEN: usize = 512;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const DIM: usize = 128;
const INNER: usize = 768;

fn weight(b: &CudaBackend, rng: &mut Rng, outputs: usize, inputs: usize) -> <CudaBackend as Backend>::Weight {
    let format = WeightFormat::Quant(QuantFormat::Affine { bits: 4, group: 64 }, DType::Bf16);
    let host = random_weight(rng, format, Shape { experts: 1, outputs, inputs }, 0);
    b.load_weight(host).expect("a format with a kernel")
}

fn values(rng: &mut Rng, n: usize) -> Vec<f32> {
    (0..n).map(|_| rng.normal()).collect()
}

/// One layer of a sandwich-normed decoder over `rows` rows; everything it leaves behind.
fn layer(b: &CudaBackend, rows: usize, eps: f32, same_eps: bool) -> Vec<Vec<f32>> {
    let mut rng = Rng::new(7);
    let (q_width, kv_width) = (HEADS * DIM, KV_HEADS * DIM);
    let [wq, wk, wv] = [q_width, kv_width, kv_width].map(|o| weight(b, &mut rng, o, HIDDEN));
    let wo = weight(b, &mut rng, HIDDEN, q_width);
    let [gate, up] = [INNER, INNER].map(|o| weight(b, &mut rng, o, HIDDEN));
    let down = weight(b, &mut rng, HIDDEN, INNER);
    let norms: Vec<_> = (0..4).map(|_| b.load_vector(&values(&mut rng, HIDDEN))).collect();
    let head_norms: Vec<_> = (0..2).map(|_| b.load_vector(&values(&mut rng, DIM))).collect();
    let frequencies = b.load_vector(&(0..48).map(|i| 0.9f32.powi(i)).collect::<Vec<_>>());
    let group = KvGroup { window: None, layers: vec![KvShape { kv_heads: KV_HEADS, head_dim: DIM }] };
    let mut kv = b.kv_new(&[group], &[8]).expect("memory for a few pages");
    let mut batch = Batch::new();
    batch.push(0, 0, &vec![0; rows], &[&[3, 1, 5, 0]], Wanted::All);
    let slot = KvSlot { group: 0, layer: 0 };

    let mut x = b.buffer(rows, HIDDEN);
    b.write(&mut x, &values(&mut rng, rows * HIDDEN));
    let angles = b.rope_angles(batch.positions(), 1, &[], &frequencies);
    let mut normed = b.buffer(rows, HIDDEN);
    b.rms_norm(&x, HIDDEN, Some(&norms[0]), eps, &mut normed);
    let [mut q, mut k, mut v] = [q_width, kv_width, kv_width].map(|w| b.buffer(rows, w));
    b.linear(&normed, &[&wq, &wk, &wv], &mut [&mut q, &mut k, &mut v]);
    let mut normed_v = b.buffer(rows, kv_width);
    b.rms_norm(&v, DIM, None, eps, &mut normed_v);
    drop(v);
    let mut normed_k = b.buffer(rows, kv_width);
    b.rms_norm(&k, DIM, Some(&head_norms[0]), if same_eps { eps } else { 2.0 * eps }, &mut normed_k);
    drop(k);
    b.rope(&mut normed_k, DIM, &angles);
    b.kv_append(&mut kv, slot, &batch, &normed_k, &normed_v);
    let mut normed_q = b.buffer(rows, q_width);
    b.rms_norm(&q, DIM, Some(&head_norms[1]), eps, &mut normed_q);
    drop(q);
    b.rope(&mut normed_q, DIM, &angles);
    let mut mixed = b.buffer(rows, q_width);
    let spec = Attend { heads: HEADS, scale: 0.1, window: None };
    b.attend(&kv, slot, &batch, &normed_q, spec, &mut mixed);
    let mut out = b.buffer(rows, HIDDEN);
    b.linear(&mixed, &[&wo], &mut [&mut out]);
    b.add_rms_norm(&mut x, &out, &norms[1], eps, 0.7);
    b.rms_norm(&x, HIDDEN, Some(&norms[2]), eps, &mut normed);
    let mut inner = b.buffer(rows, INNER);
    b.gated(&normed, &gate, &up, Activation::GeluTanh, &mut inner);
    b.linear(&inner, &[&down], &mut [&mut out]);
    b.add_rms_norm(&mut x, &out, &norms[3], eps, 1.0);
    [&x, &normed, &normed_k, &normed_v, &normed_q, &mixed, &inner, &out].map(|buffer| b.read(buffer)).to_vec()
}

fn bits(all: &[Vec<f32>]) -> Vec<Vec<u32>> {
    all.iter().map(|v| v.iter().map(|v| v.to_bits()).collect()).collect()
}

#[test]
fn joined_launches_give_the_same_bits() {
    let Some(b) = device() else { return };
    for rows in [1, 3, 8, 16, 33, 100] {
        for same_eps in [true, false] {
            let kernels = || b.context().sent().kernels;
            b.context().use_fusion(false);
            let before = kernels();
            let apart = layer(&b, rows, 1e-6, same_eps);
            let many = kernels() - before;
            b.context().use_fusion(true);
            let before = kernels();
            let joined = layer(&b, rows, 1e-6, same_eps);
            let few = kernels() - before;
            // Each of seven matrices is stored by one launch as well. Beyond 32 rows attention does not fold, and the wide kernel's
            // rows are stored by launches of their own.
            let fewer = if rows <= 32 { 8 } else { 3 };
            println!("{rows} rows: {} launches, {} joined", many - 7, few - 7);
            assert!(few + fewer <= many, "{rows} rows: {many} launches, {few} joined");
            assert!(apart.iter().flatten().all(|v| v.is_finite()));
            for (i, (a, j)) in bits(&apart).iter().zip(bits(&joined)).enumerate() {
                assert!(*a == j, "{rows} rows: buffer {i} differs");
            }
        }
    }
    // The comparison sees a difference where there is one.
    assert!(bits(&layer(&b, 3, 1e-6, true)) != bits(&layer(&b, 3, 1e-4, true)));
    assert_eq!(b.context().failure(), None);
}

/// Attention of three sequences whose last `rows` rows stand behind 2,400, 290 and 3 keys, then a matrix. Ten key blocks are more than are asked for at once.
fn behind_many_keys(b: &CudaBackend, dim: usize, rows: usize, window: Option<usize>) -> Vec<Vec<f32>> {
    const STARTS: [usize; 3] = [2400, 290, 3];
    let mut rng = Rng::new(11);
    let (q_width, kv_width) = (HEADS * dim, KV_HEADS * dim);
    let wo = weight(b, &mut rng, HIDDEN, q_width);
    let group = KvGroup { window, layers: vec![KvShape { kv_heads: KV_HEADS, head_dim: dim }] };
    let mut kv = b.kv_new(&[group], &[160]).expect("memory for a few pages");
    let slot = KvSlot { group: 0, layer: 0 };
    let tables: Vec<Vec<u32>> = (0..3).map(|s| (0..40).map(|p| 4 * p + s).collect()).collect();
    let mut last = Batch::new();
    for (s, start) in STARTS.iter().enumerate() {
        let mut batch = Batch::new();
        batch.push(s, 0, &vec![0; start + rows], &[&tables[s]], Wanted::All);
        let [k, v] = [(); 2].map(|()| {
            let mut buffer = b.buffer(batch.rows(), kv_width);
            b.write(&mut buffer, &values(&mut rng, batch.rows() * kv_width));
            buffer
        });
        b.kv_append(&mut kv, slot, &batch, &k, &v);
        last.push(s, *start, &vec![0; rows], &[&tables[s]], Wanted::All);
    }
    // One after the other in the same memory: what is folded too early, or what is left behind, is of other queries.
    let mut ask = || {
        let mut q = b.buffer(last.rows(), q_width);
        b.write(&mut q, &values(&mut rng, last.rows() * q_width));
        let (mut mixed, mut out) = (b.buffer(last.rows(), q_width), b.buffer(last.rows(), HIDDEN));
        b.attend(&kv, slot, &last, &q, Attend { heads: HEADS, scale: 0.3, window }, &mut mixed);
        b.linear(&mixed, &[&wo], &mut [&mut out]);
        [&mixed, &out].map(|buffer| b.read(buffer))
    };
    [ask(), ask(), ask()].concat()
}

#[test]
fn whoever_folds_gives_the_same_bits() {
    let Some(b) = device() else { return };
    for dim in [64, 128, 256, 512] {
        for (rows, window) in [(1, None), (1, Some(300)), (4, None), (7, Some(1000))] {
            let both = [false, true].map(|joins| {
                b.context().use_fusion(joins);
                let before = b.context().sent().kernels;
                (bits(&behind_many_keys(&b, dim, rows, window)), b.context().sent().kernels - before)
            });
            assert_eq!(both[1].0, both[0].0, "{dim}, {rows} rows, window {window:?}");
            // Few values, that is.
            if rows * HEADS / KV_HEADS * dim <= 512 {
                assert!(both[1].1 + 3 <= both[0].1, "attention folds by itself");
            }
        }
    }
    let one = |window| bits(&behind_many_keys(&b, 64, 1, window));
    assert_ne!(one(Some(300)), one(Some(301)), "the comparison sees one key");
    assert_eq!(b.context().failure(), None);
}

/// With many blocks of threads another kernel attends than with few: rows have the same bits alone and among thirty-two of their kind.
#[test]
fn alone_and_among_many_have_the_same_bits() {
    let Some(b) = device() else { return };
    const KEYS: usize = 1100;
    const SEQUENCES: usize = 32;
    let room = 2 * b.context().device.processors;
    let blocks = KV_HEADS * KEYS.div_ceil(256);
    assert!(blocks <= room && SEQUENCES * blocks > room, "few and many blocks of threads for this device");
    for dim in [64, 80, 128, 256, 512] {
        let mut rng = Rng::new(12);
        let group = KvGroup { window: None, layers: vec![KvShape { kv_heads: KV_HEADS, head_dim: dim }] };
        let mut kv = b.kv_new(&[group], &[20]).expect("memory for a few pages");
        let slot = KvSlot { group: 0, layer: 0 };
        let table: Vec<u32> = (0..20).map(|p| 7 * p % 20).collect();
        let mut batch = Batch::new();
        batch.push(0, 0, &[0; KEYS], &[&table], Wanted::All);
        let [k, v] = [(); 2].map(|()| {
            let mut buffer = b.buffer(KEYS, KV_HEADS * dim);
            b.write(&mut buffer, &values(&mut rng, KEYS * KV_HEADS * dim));
            buffer
        });
        b.kv_append(&mut kv, slot, &batch, &k, &v);
        // All of them see the same pages: only their queries differ.
        let queries = values(&mut rng, SEQUENCES * HEADS * dim);
        let mut ask = |sequences: std::ops::Range<usize>| {
            batch.clear();
            sequences.clone().for_each(|s| batch.push(s, KEYS - 1, &[0], &[&table], Wanted::All));
            let [mut q, mut out] = [(); 2].map(|()| b.buffer(batch.rows(), HEADS * dim));
            b.write(&mut q, &queries[sequences.start * HEADS * dim..sequences.end * HEADS * dim]);
            b.attend(&kv, slot, &batch, &q, Attend { heads: HEADS, scale: 0.3, window: None }, &mut out);
            b.read(&out)
        };
        let many = ask(0..SEQUENCES);
        let alone: Vec<f32> = (0..SEQUENCES).flat_map(|s| ask(s..s + 1)).collect();
        assert_eq!(bits(&[many]), bits(&[alone]), "{dim}");
    }
    assert_eq!(b.context().failure(), None);
}

/// What other passes took meanwhile, wherever it lies, changes no address of a pass that ran before.
#[test]
fn a_pass_finds_its_graph_again() {
    let Some(b) = device() else { return };
    // Each of these is an allocation of its own; the emulated device puts the next below the one before.
    let pass = |buffers: usize| {
        let before = b.context().sent().graphs;
        let mut all: Vec<_> = (0..buffers).map(|_| b.buffer(80, 4096)).collect();
        for _ in 0..4 {
            all.iter_mut().for_each(|x| b.softcap(x, 30.0));
        }
        b.read_rows(&all[0], 0..1);
        b.context().sent().graphs - before
    };
    // What a pass held until it was read is there for the next but one: passes take turns with two sets of addresses.
    let first: Vec<u64> = (0..6).map(|_| pass(2)).collect();
    assert_eq!((first[0], &first[4..]), (0, &[1, 1][..]), "once is no pattern: {first:?}");
    assert_eq!(pass(6), 0);
    assert_eq!([pass(2), pass(2)], [1, 1], "as before");
    assert_eq!(b.context().failure(), None);
}

#[test]
fn a_pass_begins_while_host_data_still_comes() {
    let Some(b) = device() else { return };
    let table = weight(&b, &mut Rng::new(3), 200, 256);
    let ids = |i: usize| [(7 * i % 200) as u32, (11 * i % 200) as u32, (i % 200) as u32];
    // Every operation brings its own ids; the first 32 go off before the others are noted down.
    let pass = |count: usize, waits: bool| -> Vec<Vec<f32>> {
        let before = b.context().sent().kernels;
        let mut outs: Vec<_> = (0..count).map(|_| b.buffer(3, 256)).collect();
        let mut values: Vec<Vec<f32>> = Vec::new();
        for (i, out) in outs.iter_mut().enumerate() {
            b.embed(&table, &ids(i), 1.0, out);
            if waits {
                values.push(b.read(out));
            }
        }
        let gone = b.context().sent().kernels - before;
        assert_eq!(gone, if waits { count as u64 } else { 32 }, "{count} launches");
        if waits { values } else { outs.iter().map(|out| b.read(out)).collect() }
    };
    let right = pass(90, true);
    for turn in 0..4 {
        assert_eq!(pass(90, false), right, "turn {turn}");
    }
    assert!(right.windows(2).all(|pair| pair[0] != pair[1]), "ids that differ give rows that differ");
    assert_eq!(b.context().failure(), None);
}
