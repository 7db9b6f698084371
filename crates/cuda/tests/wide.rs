//! The wide kernel, and those for few rows that copy in bulk, give the bits of the narrow one. Needs a GPU that has them; without one
//! it says so and checks nothing, unless MLXCEL_NEED_GPU is set.

mod common;

use mlxcel_compute::conformance::rng::Rng;
use mlxcel_compute::conformance::weights::{Shape, random_weight};
use mlxcel_compute::{Backend, DType, QuantFormat, WeightFormat};
use mlxcel_cuda::CudaBackend;

/// Outputs and inputs: one slice, several, a superblock that is not full, outputs that fill no tile of 128 or of 16.
const SHAPES: [(usize, usize); 6] = [(128, 256), (100, 512), (640, 1408), (336, 5376), (1, 2048), (20, 2560)];
/// Shapes that only few rows are multiplied with: more of x than shared memory holds, for more groups of tiles than an emulated device has clusters;
/// more tiles than a warp leaves sums for before it looks whether they were added.
const FEW: [(usize, usize); 2] = [(650, 26_880), (2600, 512)];
const ROWS: [usize; 13] = [1, 3, 7, 8, 9, 16, 64, 100, 127, 128, 129, 300, 1100];

/// Whether only some formats and rows are compared, for an emulated device.
fn quick() -> bool {
    std::env::var_os("MLXCEL_GPU_QUICK").is_some()
}

fn device() -> Option<CudaBackend> {
    let backend = common::device()?;
    if backend.context().device.capability == 90 {
        return Some(backend);
    }
    println!("skipped: {} has none of these kernels", backend.describe());
    None
}

fn formats() -> Vec<WeightFormat> {
    let affine = |bits, group, scales| WeightFormat::Quant(QuantFormat::Affine { bits, group }, scales);
    let other = |format| WeightFormat::Quant(format, DType::U8);
    let mut all = vec![affine(4, 64, DType::Bf16)];
    all.extend([(4, 32), (8, 64), (5, 64), (6, 128), (2, 64), (8, 32)].map(|(b, g)| affine(b, g, DType::Bf16)));
    all.extend([affine(3, 128, DType::F16), affine(8, 32, DType::F32), affine(4, 64, DType::F16)]);
    all.extend([QuantFormat::Mxfp4, QuantFormat::Nvfp4, QuantFormat::Mxfp8].map(other));
    all.push(WeightFormat::Float(DType::Bf16));
    if quick() {
        println!("six of {} formats, rows up to 129", all.len());
        all = [0, 3, 7, 10, 12, 13].map(|i| all[i]).to_vec();
    }
    all
}

/// The bits of `x @ w^T` for several matrices, all NaN being one.
fn product(b: &CudaBackend, x: &[f32], rows: usize, weights: &[&<CudaBackend as Backend>::Weight]) -> Vec<Vec<u32>> {
    let mut input = b.buffer(rows, x.len() / rows);
    b.write(&mut input, x);
    let mut outs: Vec<_> = weights.iter().map(|w| b.buffer(rows, w.outputs)).collect();
    for out in &mut outs {
        // What is not written shows.
        b.write(out, &vec![-77.25; out.len()]);
    }
    b.linear(&input, weights, &mut outs.iter_mut().collect::<Vec<_>>());
    let bits = |v: &f32| if v.is_nan() { f32::NAN.to_bits() } else { v.to_bits() };
    outs.iter().map(|o| b.read(o).iter().map(bits).collect()).collect()
}

/// The bits of the narrow kernel, then those of the one that is taken for so many rows.
fn both(b: &CudaBackend, x: &[f32], rows: usize, weights: &[&<CudaBackend as Backend>::Weight]) -> [Vec<Vec<u32>>; 2] {
    [false, true].map(|on| {
        b.context().use_wide(on);
        b.context().use_split(on);
        product(b, x, rows, weights)
    })
}

/// How many values differ, and the first that does.
fn difference(what: &str, inputs: usize, [narrow, wide]: [&[u32]; 2], outputs: usize) -> Option<String> {
    let differing: Vec<usize> = (0..narrow.len()).filter(|i| narrow[*i] != wide[*i]).collect();
    let first = *differing.first()?;
    let places = |f: fn(usize, usize) -> usize| -> Vec<usize> {
        let all: std::collections::BTreeSet<usize> = differing.iter().map(|i| f(*i, outputs)).collect();
        all.into_iter().take(12).collect()
    };
    let value = |bits: &[u32]| f32::from_bits(bits[first]);
    Some(format!(
        "{what}: {} of {} differ; first output {} of {outputs}, row {}, {} superblocks in 8 slices: narrow {:e}, wide {:e}; outputs {:?}, \
         rows {:?}",
        differing.len(),
        narrow.len(),
        first % outputs,
        first / outputs,
        inputs.div_ceil(256),
        value(narrow),
        value(wide),
        places(|i, n| i % n),
        places(|i, n| i / n),
    ))
}

#[test]
fn whichever_kernel_gives_the_same_bits() {
    let Some(b) = device() else { return };
    let (mut faults, mut compared) = (Vec::new(), 0);
    for format in formats() {
        let mut rng = Rng::for_case(3, &format.to_string());
        for (outputs, inputs) in SHAPES.into_iter().chain(FEW) {
            let host = random_weight(&mut rng, format, Shape { experts: 1, outputs, inputs }, 0);
            let weight = b.load_weight(host).expect("a format with a kernel");
            for rows in ROWS.into_iter().filter(|rows| !quick() || [1, 8, 9, 64, 129].contains(rows)) {
                if FEW.contains(&(outputs, inputs)) && rows > 8 {
                    continue;
                }
                let x: Vec<f32> = (0..rows * inputs).map(|_| rng.normal()).collect();
                let [narrow, wide] = both(&b, &x, rows, &[&weight]);
                compared += narrow[0].len();
                let what = format!("{format} {outputs} x {inputs}, {rows} rows");
                faults.extend(difference(&what, inputs, [&narrow[0], &wide[0]], outputs));
                if b.context().failure().is_some() {
                    faults.push(format!("{what}: {:?}", b.context().failure()));
                    break;
                }
            }
        }
    }
    println!("{compared} values compared");
    assert!(faults.is_empty(), "{} cases:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn matrices_share_a_launch() {
    let Some(b) = device() else { return };
    let format = WeightFormat::Quant(QuantFormat::Affine { bits: 4, group: 64 }, DType::Bf16);
    let (mut rng, inputs) = (Rng::new(5), 1536);
    let weights: Vec<_> = [520, 1, 128, 72]
        .map(|outputs| random_weight(&mut rng, format, Shape { experts: 1, outputs, inputs }, 0))
        .into_iter()
        .map(|w| b.load_weight(w).expect("a format with a kernel"))
        .collect();
    let weights: Vec<_> = weights.iter().collect();
    for rows in [4, 65, 1200] {
        let mut x: Vec<f32> = (0..rows * inputs).map(|_| rng.normal()).collect();
        // One row of each kind of damage: it stays in its row.
        (x[7], x[3 * inputs + 9], x[(rows - 1) * inputs]) = (f32::NAN, f32::INFINITY, -0.0);
        let [narrow, wide] = both(&b, &x, rows, &weights);
        for (i, w) in weights.iter().enumerate() {
            let found = difference(&format!("matrix {i}, {rows} rows"), inputs, [&narrow[i], &wide[i]], w.outputs);
            assert!(found.is_none(), "{}", found.unwrap_or_default());
            assert!(narrow[i][w.outputs..3 * w.outputs].iter().all(|v| f32::from_bits(*v).is_finite()));
        }
    }
    // The comparison sees a difference where there is one.
    let x = vec![1.0; 64 * inputs];
    let [narrow, mut wide] = both(&b, &x, 64, &weights[..1]);
    wide[0][130] ^= 1;
    assert!(difference("twin", inputs, [&narrow[0], &wide[0]], 520).is_some());
    assert_eq!(b.context().failure(), None);
}

/// Norms whose rows are stored by a block of threads each, and products that begin before those have ended, again and again: what a processor keeps of a
/// launch before must not come into a product. Real shapes showed it in one pass of fifty on an H200 (docs/SPEED.md, "Rings of weights").
#[test]
fn products_that_follow_each_other_read_nothing_old() {
    let Some(b) = device() else { return };
    let (width, steps, turns) = if quick() { (512, 6, 2) } else { (2048, 40, 50) };
    let format = WeightFormat::Quant(QuantFormat::Affine { bits: 4, group: 64 }, DType::Bf16);
    let mut rng = Rng::new(11);
    let shape = |outputs, inputs| Shape { experts: 1, outputs, inputs };
    let mut load = |outputs, inputs| {
        let host = random_weight(&mut rng, format, shape(outputs, inputs), 0);
        b.load_weight(host).expect("a format with a kernel")
    };
    let (up, down) = (load(8 * width, width), load(width, 8 * width));
    let norm = b.load_vector(&(0..width).map(|_| rng.normal()).collect::<Vec<_>>());
    for rows in [2, 5, 8] {
        let x: Vec<f32> = (0..rows * width).map(|_| rng.normal()).collect();
        let chain = |on: bool| {
            b.context().use_split(on);
            let [mut residual, mut normed, mut out] = [(); 3].map(|()| b.buffer(rows, width));
            let mut inner = b.buffer(rows, 8 * width);
            b.write(&mut residual, &x);
            for _ in 0..steps {
                b.rms_norm(&residual, width, Some(&norm), 1e-6, &mut normed);
                b.linear(&normed, &[&up], &mut [&mut inner]);
                b.linear(&inner, &[&down], &mut [&mut out]);
                b.add_rms_norm(&mut residual, &out, &norm, 1e-6, 0.5);
            }
            b.read(&residual).iter().map(|v| v.to_bits()).collect::<Vec<_>>()
        };
        let right = chain(false);
        for turn in 0..turns {
            let found = difference(&format!("{rows} rows, turn {turn}"), width, [&right, &chain(true)], width);
            assert!(found.is_none(), "{}", found.unwrap_or_default());
        }
    }
    assert_eq!(b.context().failure(), None);
}
