//! Times matrices of 4 bits, group 64, at several numbers of rows: the median over launches, which take turns at enough matrices that
//! the cache holds none of them. What is timed includes storing the rows for the tensor cores.
//!
//! ```sh
//! cargo run --release -p mlxcel-cuda --example linear_speed -- [--narrow] [--json FILE] [OUTPUTSxINPUTS ...] [--rows N,N,...]
//! ```

use std::fmt::Write;
use std::time::Instant;

use mlxcel_compute::conformance::rng::Rng;
use mlxcel_compute::{Backend, DType, HostWeight, QuantFormat, Source, WeightFormat};
use mlxcel_cuda::{CudaBackend, CudaOptions};

const SHAPES: [(usize, usize); 4] = [(43_008, 5376), (5376, 21_504), (16_384, 5376), (5376, 8192)];
const ROWS: [usize; 10] = [1, 4, 8, 16, 32, 64, 128, 512, 2048, 4096];
/// Bytes of matrices to go through before one comes again: several times what a cache holds.
const THROUGH: usize = 512 << 20;
/// Times that the median is taken of.
const SAMPLES: usize = 9;
/// Time one sample should take, at least.
const SAMPLE_SECONDS: f64 = 0.01;

struct Options {
    narrow: bool,
    json: Option<String>,
    shapes: Vec<(usize, usize)>,
    rows: Vec<usize>,
}

fn options() -> Result<Options, Box<dyn std::error::Error>> {
    let mut options = Options { narrow: false, json: None, shapes: Vec::new(), rows: ROWS.to_vec() };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--narrow" => options.narrow = true,
            "--json" => options.json = Some(arguments.next().ok_or("a file expected after --json")?),
            "--rows" => {
                let list = arguments.next().ok_or("numbers expected after --rows")?;
                options.rows = list.split(',').map(str::parse).collect::<Result<_, _>>()?;
            }
            shape => {
                let (outputs, inputs) = shape.split_once('x').ok_or("OUTPUTSxINPUTS expected")?;
                options.shapes.push((outputs.parse()?, inputs.parse()?));
            }
        }
    }
    if options.shapes.is_empty() {
        options.shapes = SHAPES.to_vec();
    }
    Ok(options)
}

/// Random codes; scales and biases that give values of either sign.
fn matrix(rng: &mut Rng, outputs: usize, inputs: usize) -> HostWeight {
    let groups = outputs * inputs / 64;
    let mut bytes = |n: usize| -> Vec<u8> { (0..n / 8).flat_map(|_| rng.bits().to_le_bytes()).collect() };
    let data = bytes(outputs * inputs / 2);
    // 0x3c.. are bf16 values of about 0.01, 0xbd.. of about -0.06.
    let of_sign = |high: u8| -> Vec<u8> { (0..groups).flat_map(|i| [(i * 37 % 128) as u8, high]).collect() };
    HostWeight {
        name: format!("{outputs}x{inputs}"),
        experts: 1,
        outputs,
        inputs,
        stride: outputs,
        format: WeightFormat::Quant(QuantFormat::Affine { bits: 4, group: 64 }, DType::Bf16),
        data: data.into(),
        scales: of_sign(0x3c).into(),
        biases: of_sign(0xbd).into(),
        source: Source::default(),
    }
}

/// Seconds of one product: the median of the samples, and the fastest.
fn time(
    b: &CudaBackend,
    weights: &[<CudaBackend as Backend>::Weight],
    rows: usize,
) -> Result<[f64; 2], mlxcel_cuda::CudaError> {
    let (outputs, inputs) = (weights[0].outputs, weights[0].inputs);
    let mut rng = Rng::new(rows as u64);
    let mut x = b.buffer(rows, inputs);
    b.write(&mut x, &(0..rows * inputs).map(|_| rng.unit() - 0.5).collect::<Vec<_>>());
    let mut out = b.buffer(rows, outputs);
    let mut run = |times: usize| -> Result<f64, mlxcel_cuda::CudaError> {
        b.context().synchronize()?;
        let began = Instant::now();
        for i in 0..times {
            b.linear(&x, &[&weights[i % weights.len()]], &mut [&mut out]);
        }
        b.context().synchronize()?;
        Ok(began.elapsed().as_secs_f64() / times as f64)
    };
    run(weights.len())?;
    let once = run(weights.len())?;
    // Whole turns, so that each sample does the same work; the second of the same launches is a graph.
    let turns = (SAMPLE_SECONDS / once / weights.len() as f64).ceil().clamp(1.0, 1e4) as usize;
    let times = (turns * weights.len()).min(1500);
    run(times)?;
    run(times)?;
    let mut samples = (0..SAMPLES).map(|_| run(times)).collect::<Result<Vec<_>, _>>()?;
    samples.sort_by(f64::total_cmp);
    Ok([samples[SAMPLES / 2], samples[0]])
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = options()?;
    let cache = Some(std::env::temp_dir().join("mlxcel-kernels"));
    let b = CudaBackend::open(&CudaOptions { device: 0, cache })?;
    b.context().use_wide(!options.narrow);
    println!("{}{}", b.describe(), if options.narrow { ", narrow kernels only" } else { "" });
    println!("{:>14} {:>6} {:>11} {:>11} {:>9} {:>7}", "shape", "rows", "median us", "fastest us", "TFLOP/s", "TB/s");
    let mut json = String::new();
    for (outputs, inputs) in &options.shapes {
        let (outputs, inputs) = (*outputs, *inputs);
        let mut rng = Rng::new(7);
        let host = matrix(&mut rng, outputs, inputs);
        let bytes = host.data.len() + host.scales.len() + host.biases.len();
        let count = THROUGH.div_ceil(bytes).max(2);
        let weights = (0..count).map(|_| b.load_weight(host.clone())).collect::<Result<Vec<_>, _>>()?;
        for rows in &options.rows {
            let [median, fastest] = time(&b, &weights, *rows)?;
            let tflops = 2.0 * (outputs * inputs * rows) as f64 / median / 1e12;
            let tbytes = bytes as f64 / median / 1e12;
            let shape = format!("{outputs}x{inputs}");
            println!(
                "{shape:>14} {rows:>6} {:>11.1} {:>11.1} {tflops:>9.1} {tbytes:>7.3}",
                median * 1e6,
                fastest * 1e6
            );
            let comma = if json.is_empty() { "" } else { ",\n" };
            write!(
                json,
                "{comma}  {{\"outputs\": {outputs}, \"inputs\": {inputs}, \"rows\": {rows}, \"matrices\": {count}, \"median_us\": {:.3}, \
                 \"fastest_us\": {:.3}, \"tflops\": {tflops:.2}, \"tbytes_per_s\": {tbytes:.4}}}",
                median * 1e6,
                fastest * 1e6
            )?;
        }
    }
    if let Some(file) = options.json {
        let narrow = options.narrow;
        std::fs::write(
            file,
            format!("{{\"device\": \"{}\", \"narrow\": {narrow}, \"times\": [\n{json}\n]}}\n", b.describe()),
        )?;
    }
    Ok(())
}
