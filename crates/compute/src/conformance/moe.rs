//! `moe`: which experts a row takes, in which order they are summed, and that neighbours' choices do not matter.

use super::linear::{Loaded, gated_error, terms};
use super::rng::Rng;
use super::rows::{Case, Input, Rows};
use super::weights::Shape;
use super::{Options, Report, Violation, filled, stale};
use crate::reference::Reference;
use crate::{Activation, Backend, DType, Experts, QuantFormat, WeightFormat};

/// Sizes of one case.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    experts: usize,
    top_k: usize,
    hidden: usize,
    width: usize,
}

/// `moe` over formats, expert counts and both activations; a third of the router rows are full of ties.
///
/// # Errors
/// The first violation found.
pub fn check_moe<B: Backend>(b: &B, options: &Options) -> Result<Report, Violation> {
    let affine = WeightFormat::Quant(QuantFormat::Affine { bits: 4, group: 32 }, DType::Bf16);
    let formats = [WeightFormat::Float(DType::F32), affine, WeightFormat::Quant(QuantFormat::Mxfp4, DType::U8)];
    let sizes = [
        Sizes { experts: 4, top_k: 1, hidden: 64, width: 32 },
        Sizes { experts: 8, top_k: 2, hidden: 96, width: 64 },
        Sizes { experts: 16, top_k: 4, hidden: 64, width: 96 },
        Sizes { experts: 5, top_k: 3, hidden: 32, width: 32 },
        Sizes { experts: 4, top_k: 4, hidden: 64, width: 64 },
    ];
    let mut report = Report::default();
    for seed in &options.seeds {
        for format in formats {
            for (turn, sizes) in sizes.iter().enumerate().take(if options.quick { 3 } else { 5 }) {
                let act = [Activation::GeluTanh, Activation::Silu][turn % 2];
                check_one(b, options, *seed, format, *sizes, act, &mut report)?;
            }
        }
    }
    Ok(report)
}

/// The three stacks of a case, loaded, and the factors.
struct Layer<B: Backend> {
    gate: Loaded<B>,
    up: Loaded<B>,
    down: Loaded<B>,
    scale: Vec<f32>,
}

fn check_one<B: Backend>(
    b: &B,
    options: &Options,
    seed: u64,
    format: WeightFormat,
    sizes: Sizes,
    act: Activation,
    report: &mut Report,
) -> Result<(), Violation> {
    let label = format!("{format:?} {act:?} {sizes:?}");
    let mut rng = Rng::for_case(seed, &label);
    let Sizes { experts, top_k, hidden, width } = sizes;
    let inner = Shape { experts, outputs: width, inputs: hidden };
    let layer = Layer {
        gate: Loaded::random(b, "moe", &mut rng, format, inner)?,
        up: Loaded::random(b, "moe", &mut rng, format, inner)?,
        down: Loaded::random(b, "moe", &mut rng, format, Shape { experts, outputs: hidden, inputs: width })?,
        scale: (0..experts).map(|_| 0.5 + rng.unit()).collect(),
    };
    let vector = b.load_vector(&layer.scale);
    let on_backend = Experts::<B> {
        gate: &layer.gate.weight,
        up: &layer.up.weight,
        down: &layer.down.weight,
        scale: &vector,
        top_k,
        activation: act,
    };
    let on_reference = Experts::<Reference> {
        gate: &layer.gate.dense,
        up: &layer.up.dense,
        down: &layer.down.dense,
        scale: &layer.scale,
        top_k,
        activation: act,
    };
    // Two kinds of router rows in turn would need two populations: all ties, and none.
    for router in [Input::Coarse(experts), Input::Values(experts)] {
        let case = Case {
            op: "moe",
            label: format!("{label} router {router:?}"),
            inputs: &[router, Input::Values(hidden)],
            outputs: hidden,
            run: &|rows| moe(b, &on_backend, sizes, rows),
            want: &|rows| moe(&Reference, &on_reference, sizes, rows),
            bound: &|rows, _| errors(&layer, sizes, act, options, rows),
        };
        case.check(options, seed, report)?;
    }
    Ok(())
}

fn moe<B: Backend>(b: &B, experts: &Experts<'_, B>, sizes: Sizes, rows: &Rows) -> Vec<f32> {
    let router = filled(b, rows.n, sizes.experts, &rows.inputs[0]);
    let x = filled(b, rows.n, sizes.hidden, &rows.inputs[1]);
    let mut out = stale(b, rows.n, sizes.hidden);
    b.moe(&router, &x, experts, &mut out);
    b.read(&out)
}

/// The largest error of each output: every matrix product errs by its tolerance, and the errors of the first two pass
/// through the third. Worked out expert by expert with the reference's own products, weighted as the router says.
fn errors<B: Backend>(layer: &Layer<B>, sizes: Sizes, act: Activation, options: &Options, rows: &Rows) -> Vec<f64> {
    let tolerance = options.matmul(layer.gate.format);
    let mut out = vec![0.0; rows.n * sizes.hidden];
    for r in 0..rows.n {
        let x = &rows.inputs[1][r * sizes.hidden..][..sizes.hidden];
        let x_terms = terms(layer.gate.format, x, sizes.hidden);
        for (expert, share) in shares(&rows.inputs[0][r * sizes.experts..][..sizes.experts], sizes.top_k) {
            let factor = share * f64::from(layer.scale[expert]);
            let (g, gs) = (layer.gate.product(expert, x), layer.gate.magnitude(expert, &x_terms));
            let (u, us) = (layer.up.product(expert, x), layer.up.magnitude(expert, &x_terms));
            let slack =
                |i: usize| gated_error(act, (g[i], tolerance * gs[i]), (u[i], tolerance * us[i]), options.elementwise);
            let h: Vec<f32> = (0..sizes.width).map(|i| (g[i].abs() * u[i].abs()) as f32).collect(); // >= |act(g) u|
            let h_terms = terms(layer.down.format, &h, sizes.width);
            let slack: Vec<f32> = (0..sizes.width)
                .map(|i| (slack(i) + (tolerance + options.elementwise) * f64::from(h_terms[i])) as f32)
                .collect();
            let through = layer.down.magnitude(expert, &slack);
            out[r * sizes.hidden..][..sizes.hidden].iter_mut().zip(through).for_each(|(o, t)| *o += factor * t + 1e-30);
        }
    }
    out
}

/// Experts and renormalised shares of a router row, best first, ties to the lower index.
fn shares(router: &[f32], top_k: usize) -> Vec<(usize, f64)> {
    let mut order: Vec<usize> = (0..router.len()).collect();
    order.sort_by(|a, b| router[*b].total_cmp(&router[*a]).then(a.cmp(b)));
    order.truncate(top_k);
    let best = f64::from(router[order[0]]);
    let weights: Vec<f64> = order.iter().map(|e| (f64::from(router[*e]) - best).exp()).collect();
    let sum: f64 = weights.iter().sum();
    order.into_iter().zip(weights).map(|(e, w)| (e, w / sum)).collect()
}
