//! The quantised linear: packed-weight bandwidth at width 1 and what a block of K rows costs.
//!
//! `cargo bench -p mlxcel-cpu --bench linear` prints divan's table of times, then a paired comparison: all widths of a
//! size are timed in turn, several rounds, so that a slow moment of the machine hits them alike; medians and the range of
//! the rounds. With `MLXCEL_BENCH_WRITE=DIR` the comparison is also written to `DIR/linear.md` and `DIR/linear.json`.

use std::fmt::Write as _;
use std::time::Instant;

use bytes::Bytes;
use divan::Bencher;
use divan::counter::BytesCount;
use mlxcel_compute::{Backend, DType, HostWeight, QuantFormat, Source, WeightFormat};
use mlxcel_cpu::{CpuBackend, CpuBuffer, CpuWeight, Precision, bandwidth};

/// Outputs x inputs: a square in cache, a small one of a 135M model, one far beyond the cache.
const SIZES: [(usize, usize); 3] = [(4096, 4096), (576, 1536), (65536, 2048)];
const WIDTHS: [usize; 7] = [1, 2, 3, 4, 5, 8, 16];
const ROUNDS: usize = 9;
/// Bytes read to measure the bandwidth: far beyond any cache.
const READ: usize = 512 << 20;

/// 4-bit affine, groups of 64, bf16 scales: the common MLX checkpoint.
fn weight(backend: &CpuBackend, outputs: usize, inputs: usize) -> (CpuWeight, usize) {
    let bytes = |len: usize, salt: usize| (0..len).map(|i| ((i * 31 + salt) ^ (i >> 7)) as u8).collect::<Bytes>();
    let bf16 = |len: usize, v: f32| -> Bytes {
        std::iter::repeat_n(((v.to_bits() >> 16) as u16).to_le_bytes(), len).flatten().collect()
    };
    let groups = outputs * inputs / 64;
    let host = HostWeight {
        name: "bench".into(),
        experts: 1,
        outputs,
        inputs,
        stride: outputs,
        format: WeightFormat::Quant(QuantFormat::Affine { bits: 4, group: 64 }, DType::Bf16),
        data: bytes(outputs * inputs / 2, 7),
        scales: bf16(groups, 0.01),
        biases: bf16(groups, -0.07),
        source: Source::default(),
    };
    let size = host.byte_len();
    (backend.load_weight(host).expect("a supported format"), size)
}

fn input(backend: &CpuBackend, rows: usize, inputs: usize) -> CpuBuffer {
    let mut x = backend.buffer(rows, inputs);
    let values: Vec<f32> = (0..rows * inputs).map(|i| ((i * 37 % 255) as f32 - 127.0) / 64.0).collect();
    backend.write(&mut x, &values);
    x
}

#[divan::bench(args = [1, 4, 16], consts = [0, 1, 2], sample_count = 20)]
fn linear_two_threads<const SIZE: usize>(bencher: Bencher<'_, '_>, rows: usize) {
    let backend = CpuBackend::new(Precision::Int8, 2);
    let (outputs, inputs) = SIZES[SIZE];
    let (weight, size) = weight(&backend, outputs, inputs);
    let x = input(&backend, rows, inputs);
    let mut out = backend.buffer(rows, outputs);
    bencher.counter(BytesCount::new(size)).bench_local(|| backend.linear(&x, &[&weight], &mut [&mut out]));
}

struct Row {
    size: (usize, usize),
    threads: usize,
    bandwidth: f64,
    bytes: usize,
    /// Seconds a call by width: median, fastest, slowest round.
    times: Vec<(f64, f64, f64)>,
}

fn measure(outputs: usize, inputs: usize, threads: usize) -> Row {
    let backend = CpuBackend::new(Precision::Int8, threads);
    let bandwidth = bandwidth::read_bandwidth(backend.pool(), READ, 5);
    let (weight, bytes) = weight(&backend, outputs, inputs);
    let mut buffers: Vec<_> =
        WIDTHS.iter().map(|k| (input(&backend, *k, inputs), backend.buffer(*k, outputs))).collect();
    let mut samples = vec![Vec::new(); WIDTHS.len()];
    for round in 0..=ROUNDS {
        for (i, (x, out)) in buffers.iter_mut().enumerate() {
            let start = Instant::now();
            let mut calls = 0;
            while start.elapsed().as_secs_f64() < 0.03 || calls < 2 {
                backend.linear(x, &[&weight], &mut [out]);
                calls += 1;
            }
            // The first round warms up.
            if round > 0 {
                samples[i].push(start.elapsed().as_secs_f64() / f64::from(calls));
            }
        }
    }
    let times = samples
        .into_iter()
        .map(|mut s| {
            s.sort_by(f64::total_cmp);
            (s[s.len() / 2], s[0], s[s.len() - 1])
        })
        .collect();
    Row { size: (outputs, inputs), threads, bandwidth, bytes, times }
}

fn main() {
    divan::main();
    // divan lists or filters when asked to; the comparison belongs to a plain run.
    if std::env::args().skip(1).any(|a| a != "--bench") {
        return;
    }
    let machine = machine();
    let mut rows = Vec::new();
    for (outputs, inputs) in SIZES {
        for threads in [1, 2] {
            rows.push(measure(outputs, inputs, threads));
            eprint!(".");
        }
    }
    eprintln!();
    let table = markdown(&rows, &machine);
    print!("{table}");
    if let Some(dir) = std::env::var_os("MLXCEL_BENCH_WRITE") {
        let dir = std::path::PathBuf::from(dir);
        let written = std::fs::create_dir_all(&dir)
            .and_then(|()| std::fs::write(dir.join("linear.md"), &table))
            .and_then(|()| std::fs::write(dir.join("linear.json"), json(&rows, &machine)));
        match written {
            Ok(()) => eprintln!("written to {}", dir.display()),
            Err(e) => eprintln!("{}: {e}", dir.display()),
        }
    }
}

fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|l| l.strip_prefix("model name")?.split_once(": ").map(|(_, m)| m.to_string()));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let isa = mlxcel_cpu::Isa::best().name();
    format!("{}, {cores} cores, {isa}", model.unwrap_or_else(|| std::env::consts::ARCH.into()))
}

fn markdown(rows: &[Row], machine: &str) -> String {
    let mut out = format!(
        "# Quantised linear on the CPU\n\nWritten by `MLXCEL_BENCH_WRITE=docs/benchmark_results cargo bench -p mlxcel-cpu --bench linear`; \
         version {}, {machine}.\n4-bit affine weights, groups of 64, bf16 scales; int8 activations, quantisation of the \
         rows included. Medians of {ROUNDS} rounds in which\nall widths take turns; in brackets the fastest and slowest round \
         of width 1. Read bandwidth is the best of 5 passes over {} MB in the same process.\nA share above 100 % means that the weights lie in the cache.\n\n\
         | outputs x inputs | threads | read GB/s | width 1: us | packed GB/s | share of read |",
        env!("CARGO_PKG_VERSION"),
        READ >> 20
    );
    for k in &WIDTHS[1..] {
        let _ = write!(out, " t({k})/t(1) |");
    }
    out.push_str("\n|---|---|---|---|---|---|");
    out.push_str(&"---|".repeat(WIDTHS.len() - 1));
    out.push('\n');
    for r in rows {
        let (t1, fast, slow) = r.times[0];
        let rate = r.bytes as f64 / t1 / 1e9;
        let _ = write!(
            out,
            "| {}x{} | {} | {:.1} | {:.1} ({:.1}–{:.1}) | {rate:.1} | {:.0} % |",
            r.size.0,
            r.size.1,
            r.threads,
            r.bandwidth,
            t1 * 1e6,
            fast * 1e6,
            slow * 1e6,
            rate / r.bandwidth * 100.0
        );
        for (t, _, _) in &r.times[1..] {
            let _ = write!(out, " {:.2} |", t / t1);
        }
        out.push('\n');
    }
    out
}

fn json(rows: &[Row], machine: &str) -> String {
    let mut out =
        format!("{{\n  \"machine\": {machine:?},\n  \"version\": {:?},\n  \"rows\": [\n", env!("CARGO_PKG_VERSION"));
    for (i, r) in rows.iter().enumerate() {
        let times: Vec<String> = WIDTHS
            .iter()
            .zip(&r.times)
            .map(|(k, (t, fast, slow))| {
                format!("{{\"width\": {k}, \"median_s\": {t:e}, \"min_s\": {fast:e}, \"max_s\": {slow:e}}}")
            })
            .collect();
        let _ = writeln!(
            out,
            "    {{\"outputs\": {}, \"inputs\": {}, \"threads\": {}, \"read_gb_s\": {:.3}, \"packed_bytes\": {}, \"times\": [{}]}}{}",
            r.size.0,
            r.size.1,
            r.threads,
            r.bandwidth,
            r.bytes,
            times.join(", "),
            if i + 1 < rows.len() { "," } else { "" }
        );
    }
    out.push_str("  ]\n}\n");
    out
}
