//! The row law as properties: widths, orders, chunkings and seeds drawn at random, and shrunk when one fails.

use mlxcel_compute::conformance::rng::Rng;
use mlxcel_compute::conformance::weights::{Shape, random_weight};
use mlxcel_compute::conformance::{
    Options, all_formats, check_add_rms_norm, check_attend, check_gated, check_moe, check_recurrent, check_rms_norm,
    check_rope,
};
use mlxcel_compute::fault::{Fault, Faulty};
use mlxcel_compute::reference::Reference;
use mlxcel_compute::{Attend, Backend, Batch, DeltaGates, DeltaShape, KvGroup, KvShape, KvSlot, StateLayout, Wanted};
use proptest::prelude::*;

const INPUTS: usize = 128;

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

fn normal(rng: &mut Rng, n: usize) -> Vec<f32> {
    (0..n).map(|_| rng.normal()).collect()
}

fn linear<B: Backend>(b: &B, weight: &B::Weight, outputs: usize, rows: &[&[f32]]) -> Vec<f32> {
    let mut x = b.buffer(rows.len(), INPUTS);
    b.write(&mut x, &rows.concat());
    let mut out = b.buffer(rows.len(), outputs);
    b.linear(&x, &[weight], &mut [&mut out]);
    b.read(&out)
}

/// `linear` of the chosen rows together against each alone.
fn linear_is_rowwise<B: Backend>(b: &B, seed: u64, format: usize, outputs: usize, chosen: &[usize]) -> bool {
    let mut rng = Rng::new(seed);
    let shape = Shape { experts: 1, outputs, inputs: INPUTS };
    let formats = all_formats();
    let weight = random_weight(&mut rng, formats[format % formats.len()], shape, (seed % 4) as usize);
    let weight = b.load_weight(weight).expect("a supported format");
    let rows: Vec<Vec<f32>> = (0..32).map(|_| normal(&mut rng, INPUTS)).collect();
    let chosen: Vec<&[f32]> = chosen.iter().map(|r| rows[*r].as_slice()).collect();
    let alone: Vec<f32> = chosen.iter().flat_map(|row| linear(b, &weight, outputs, &[row])).collect();
    bits(&linear(b, &weight, outputs, &chosen)) == bits(&alone)
}

/// Outputs of one sequence fed in the given chunks, its pages in the given order.
fn attend<B: Backend>(b: &B, seed: u64, window: Option<usize>, chunks: &[usize], pages: &[u32]) -> Vec<f32> {
    const WIDTH: usize = 32; // two query heads of 16, one K/V head
    let len: usize = chunks.iter().sum();
    let mut rng = Rng::new(seed);
    let (q, k, v) =
        (normal(&mut rng, len * WIDTH), normal(&mut rng, len * WIDTH / 2), normal(&mut rng, len * WIDTH / 2));
    let group = KvGroup { window, layers: vec![KvShape { kv_heads: 1, head_dim: 16 }] };
    let slot = KvSlot { group: 0, layer: 0 };
    let mut kv = b.kv_new(&[group], &[pages.len()]).expect("little memory");
    let mut all = Vec::new();
    let mut start = 0;
    for chunk in chunks {
        let mut batch = Batch::new();
        batch.push(0, start, &vec![0; *chunk], &[pages], Wanted::All);
        let load = |values: &[f32], width: usize| {
            let mut buffer = b.buffer(*chunk, width);
            b.write(&mut buffer, &values[start * width..][..chunk * width]);
            buffer
        };
        b.kv_append(&mut kv, slot, &batch, &load(&k, WIDTH / 2), &load(&v, WIDTH / 2));
        let mut out = b.buffer(*chunk, WIDTH);
        b.attend(&kv, slot, &batch, &load(&q, WIDTH), Attend { heads: 2, scale: 0.25, window }, &mut out);
        all.extend(b.read(&out));
        start += chunk;
    }
    all
}

fn attend_ignores_chunks<B: Backend>(b: &B, seed: u64, window: Option<usize>, chunks: &[usize]) -> bool {
    let len: usize = chunks.iter().sum();
    let straight: Vec<u32> = (0..len.div_ceil(b.page_len()) as u32).collect();
    let mut mixed = straight.clone();
    Rng::new(seed).shuffle(&mut mixed);
    bits(&attend(b, seed, window, &vec![1; len], &straight)) == bits(&attend(b, seed, window, chunks, &mixed))
}

/// Most rows of a block that can be taken back.
const RECORD: usize = 6;

/// Outputs of a recurrent layer for one sequence, and the state it leaves. Each block is so many of its rows, and so many
/// others that are taken back.
fn recur<B: Backend>(b: &B, seed: u64, shape: DeltaShape, blocks: &[(usize, usize)]) -> Vec<f32> {
    let (mut right, mut wrong) = (Rng::new(seed), Rng::new(!seed));
    let mut vector = |n: usize| b.load_vector(&normal(&mut right, n).iter().map(|v| v.abs()).collect::<Vec<_>>());
    let weight = vector(shape.taps * shape.channels());
    let (rate, dt_bias) = (vector(shape.value_heads), vector(shape.value_heads));
    let mut state = b.state_new(&StateLayout { layers: vec![shape] }, 3, RECORD).expect("little memory");
    let slot = (seed % 3) as usize;
    let widths = [shape.channels(), shape.value_heads, shape.value_heads];
    let (mut all, mut start) = (Vec::new(), 0);
    for (keep, drop) in blocks {
        let rows = keep + drop;
        let mut inputs = widths.map(|_| Vec::new());
        for row in 0..rows {
            let rng = if row < *keep { &mut right } else { &mut wrong };
            inputs.iter_mut().zip(widths).for_each(|(input, width)| input.extend(normal(rng, width)));
        }
        let mut batch = Batch::new();
        batch.push(slot, start, &vec![0; rows], &[], Wanted::None);
        b.state_begin(&mut state, &batch);
        let [x, a, beta] = [0, 1, 2].map(|i| {
            let mut buffer = b.buffer(rows, widths[i]);
            b.write(&mut buffer, &inputs[i]);
            buffer
        });
        let (mut qkv, mut out) = (b.buffer(rows, widths[0]), b.buffer(rows, shape.value_width()));
        b.causal_conv(&mut state, 0, &x, &weight, &mut qkv);
        b.gated_delta(&mut state, 0, &qkv, &a, &beta, &DeltaGates { rate: &rate, dt_bias: &dt_bias }, &mut out);
        all.extend_from_slice(&b.read(&out)[..keep * shape.value_width()]);
        start += keep;
        assert!(*drop == 0 || b.state_take_back(&mut state, slot, start), "{drop} of {rows} rows are on record");
    }
    if start > 0 {
        all.extend(b.state_read(&b.state_save(&state, slot)));
    }
    all
}

fn recurrence_ignores_blocks<B: Backend>(b: &B, seed: u64, shape: DeltaShape, blocks: &[(usize, usize)]) -> bool {
    let rows = blocks.iter().map(|(keep, _)| keep).sum();
    bits(&recur(b, seed, shape, &vec![(1, 0); rows])) == bits(&recur(b, seed, shape, blocks))
}

fn delta_shapes() -> impl Strategy<Value = DeltaShape> {
    (1usize..3, 1usize..4, 1usize..20, 1usize..40, 2usize..5).prop_map(
        |(key_heads, share, key_dim, value_dim, taps)| DeltaShape {
            key_heads,
            value_heads: key_heads * share,
            key_dim,
            value_dim,
            taps,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn linear_rows_do_not_know_their_company(
        seed in any::<u64>(),
        format in 0usize..60,
        outputs in 1usize..40,
        chosen in prop::collection::vec(0usize..32, 1..32),
    ) {
        prop_assert!(linear_is_rowwise(&Reference, seed, format, outputs, &chosen));
    }

    #[test]
    fn attention_does_not_know_the_chunks(
        seed in any::<u64>(),
        window in prop::option::of(1usize..90),
        chunks in prop::collection::vec(1usize..20, 1..16),
    ) {
        prop_assert!(attend_ignores_chunks(&Reference, seed, window, &chunks));
    }

    #[test]
    fn recurrence_does_not_know_the_blocks(
        seed in any::<u64>(),
        shape in delta_shapes(),
        blocks in prop::collection::vec((0usize..20, 0..=RECORD), 1..12),
    ) {
        prop_assert!(recurrence_ignores_blocks(&Reference, seed, shape, &blocks));
    }

    #[test]
    fn wide_rows_are_caught(seed in any::<u64>(), chosen in prop::collection::vec(0usize..32, 2..32)) {
        prop_assert!(!linear_is_rowwise(&Faulty::new(Reference, Fault::WideLinear), seed, 5, 7, &chosen));
    }

    #[test]
    fn long_chunks_are_caught(seed in any::<u64>(), chunks in prop::collection::vec(9usize..20, 2..8)) {
        let faulty = Faulty::new(Reference, Fault::ChunkAttention);
        prop_assert!(!attend_ignores_chunks(&faulty, seed, None, &chunks));
    }

    #[test]
    fn a_row_not_taken_back_is_caught(
        seed in any::<u64>(),
        shape in delta_shapes(),
        blocks in prop::collection::vec((1usize..9, 1..=RECORD), 1..8),
    ) {
        let faulty = Faulty::new(Reference, Fault::TakeBackShort);
        prop_assert!(!recurrence_ignores_blocks(&faulty, seed, shape, &blocks));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4, failure_persistence: None, ..ProptestConfig::default() })]

    /// No seed of the suite fails a backend that keeps the law: its cases and tolerances are sound, not tuned.
    #[test]
    fn the_suite_passes_with_any_seed(seed in any::<u64>()) {
        let options = Options { seeds: vec![seed], ..Options::quick() };
        for check in
            [check_attend, check_gated, check_moe, check_rms_norm, check_add_rms_norm, check_rope, check_recurrent]
        {
            let report = check(&Reference, &options).map_err(|v| TestCaseError::fail(v.to_string()))?;
            prop_assert!(report.counts().all(|(_, count)| count.bounds > 0 && count.bits > 0));
        }
    }
}
