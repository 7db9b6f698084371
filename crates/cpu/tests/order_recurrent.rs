//! Recurrent layers and gates of the CPU backend against the scalar specification in `mlxcel_compute::order`, in bits, on every
//! instruction set.

use mlxcel_compute::conformance::rng::Rng;
use mlxcel_compute::{Activation, Backend, Batch, DeltaGates, DeltaShape, StateLayout, Wanted, order};
use mlxcel_cpu::{CpuBackend, CpuBuffer, Isa, Precision};

fn backends() -> Vec<CpuBackend> {
    Isa::available().into_iter().map(|isa| CpuBackend::with_isa(Precision::Int8, 2, isa)).collect()
}

fn filled(b: &CpuBackend, rows: usize, values: &[f32]) -> CpuBuffer {
    let mut buffer = b.buffer(rows, values.len() / rows);
    b.write(&mut buffer, values);
    buffer
}

fn normals(rng: &mut Rng, n: usize) -> Vec<f32> {
    (0..n).map(|_| rng.normal()).collect()
}

#[track_caller]
fn same(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert_eq!(g.to_bits(), w.to_bits(), "{what}: value {i} is {g:e}, the specification says {w:e}");
    }
}

/// A layer's rows and parameters.
struct Case {
    shape: DeltaShape,
    rows: usize,
    x: Vec<f32>,
    a: Vec<f32>,
    b: Vec<f32>,
    taps: Vec<f32>,
    rate: Vec<f32>,
    dt_bias: Vec<f32>,
}

impl Case {
    fn random(shape: DeltaShape, rows: usize) -> Self {
        let mut rng = Rng::for_case(1, &format!("{shape:?}"));
        let heads = shape.value_heads;
        Case {
            shape,
            rows,
            x: normals(&mut rng, rows * shape.channels()),
            a: normals(&mut rng, rows * heads),
            b: normals(&mut rng, rows * heads),
            taps: normals(&mut rng, shape.taps * shape.channels()),
            rate: (0..heads).map(|_| 0.05 + 2.0 * rng.unit()).collect(),
            dt_bias: normals(&mut rng, heads),
        }
    }

    /// Convolution outputs, then outputs of the rule, then windows and matrices, by the scalar orders.
    fn specified(&self) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
        let DeltaShape { key_heads, value_heads, key_dim, value_dim, taps } = self.shape;
        let (channels, keys) = (self.shape.channels(), self.shape.key_width());
        let padded = [vec![0.0; (taps - 1) * channels], self.x.clone()].concat();
        let mut conv = Vec::new();
        for r in 0..self.rows {
            for c in 0..channels {
                let rows: Vec<f32> = (0..taps).map(|j| padded[(r + j) * channels + c]).collect();
                let weights: Vec<f32> = (0..taps).map(|j| self.taps[j * channels + c]).collect();
                conv.push(order::conv(&rows, &weights));
            }
        }
        let mut matrices = vec![0.0f32; self.shape.state_values()]; // [head][key_dim][value_dim]
        let mut out = vec![0.0; self.rows * self.shape.value_width()];
        for r in 0..self.rows {
            let row = &conv[r * channels..][..channels];
            for h in 0..value_heads {
                let k_head = h / (value_heads / key_heads);
                let q = order::l2_norm(&row[k_head * key_dim..][..key_dim], 1.0 / (key_dim as f32).sqrt());
                let k = order::l2_norm(&row[keys + k_head * key_dim..][..key_dim], 1.0);
                let decay = order::decay(self.a[r * value_heads + h], self.rate[h], self.dt_bias[h]);
                let beta = order::beta(self.b[r * value_heads + h]);
                for c in 0..value_dim {
                    let at = |i: usize| (h * key_dim + i) * value_dim + c;
                    let mut column: Vec<f32> = (0..key_dim).map(|i| matrices[at(i)]).collect();
                    let v = row[2 * keys + h * value_dim + c];
                    out[(r * value_heads + h) * value_dim + c] =
                        order::delta_column(&mut column, &q, &k, v, decay, beta);
                    column.into_iter().enumerate().for_each(|(i, s)| matrices[at(i)] = s);
                }
            }
        }
        let window = padded[self.rows * channels..].to_vec();
        (conv, out, [window, matrices].concat())
    }

    fn run(&self, b: &CpuBackend) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
        let layout = StateLayout { layers: vec![self.shape] };
        let mut state = b.state_new(&layout, 1, 16).expect("memory");
        let mut batch = Batch::new();
        batch.push(0, 0, &vec![0; self.rows], &[], Wanted::None);
        b.state_begin(&mut state, &batch);
        let mut conv = b.buffer(self.rows, self.shape.channels());
        let taps = b.load_vector(&self.taps);
        b.causal_conv(&mut state, 0, &filled(b, self.rows, &self.x), &taps, &mut conv);
        let mut out = b.buffer(self.rows, self.shape.value_width());
        let gates = DeltaGates { rate: &b.load_vector(&self.rate), dt_bias: &b.load_vector(&self.dt_bias) };
        let (raw_a, raw_b) = (filled(b, self.rows, &self.a), filled(b, self.rows, &self.b));
        b.gated_delta(&mut state, 0, &conv, &raw_a, &raw_b, &gates, &mut out);
        (b.read(&conv), b.read(&out), b.state_read(&b.state_save(&state, 0)))
    }
}

#[test]
fn convolution_and_rule_are_the_scalar_ones() {
    for (key_heads, value_heads, key_dim, value_dim, taps, rows) in [
        (2, 4, 32, 16, 4, 40),
        (1, 3, 128, 128, 4, 20),
        (2, 2, 7, 24, 2, 18),
        (1, 2, 64, 40, 3, 1),
        (3, 3, 16, 1, 4, 17),
    ] {
        let case = Case::random(DeltaShape { key_heads, value_heads, key_dim, value_dim, taps }, rows);
        let (conv, out, state) = case.specified();
        for b in backends() {
            let name = format!("{}, {:?}", b.describe(), case.shape);
            let got = case.run(&b);
            same(&got.0, &conv, &format!("{name}: convolution"));
            same(&got.1, &out, &format!("{name}: rule"));
            same(&got.2, &state, &format!("{name}: state"));
        }
    }
}

#[test]
fn gates_are_the_scalar_ones() {
    let mut rng = Rng::for_case(1, "gates");
    let (rows, width) = (3, 41);
    let x = normals(&mut rng, rows * width);
    let y = normals(&mut rng, rows * width);
    let gate = normals(&mut rng, rows);
    for b in backends() {
        let name = b.describe();
        let mut sigmoid = filled(&b, rows, &x);
        b.activate_mul(&mut sigmoid, Activation::Sigmoid, &filled(&b, rows, &y), 0);
        let want: Vec<f32> = x.iter().zip(&y).map(|(x, y)| order::sigmoid(*x) * y).collect();
        same(&b.read(&sigmoid), &want, &format!("{name}: sigmoid"));
        let mut sum = filled(&b, rows, &x);
        b.add_gated(&mut sum, &filled(&b, rows, &y), &filled(&b, rows, &gate));
        let factor = |i: usize| order::sigmoid(gate[i / width]);
        let want: Vec<f32> = (0..x.len()).map(|i| factor(i).mul_add(y[i], x[i])).collect();
        same(&b.read(&sum), &want, &format!("{name}: add_gated"));
    }
}

/// The twin: another order of the same sum is another number.
#[test]
#[should_panic(expected = "the specification says")]
fn another_order_is_seen() {
    let shape = DeltaShape { key_heads: 1, value_heads: 1, key_dim: 32, value_dim: 16, taps: 4 };
    let mut case = Case::random(shape, 12);
    let want = case.specified().1;
    // Keys and queries in another order of their values: the same sums, other chains.
    let turn = |values: &mut [f32]| values.chunks_exact_mut(32).take(2).for_each(|head| head.rotate_left(5));
    case.x.chunks_exact_mut(shape.channels()).for_each(turn);
    case.taps.chunks_exact_mut(shape.channels()).for_each(turn);
    same(&case.specified().1, &want, "turned");
}
