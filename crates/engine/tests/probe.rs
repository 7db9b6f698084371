//! The exactness probe: an honest backend passes it on every shape of model, and each way of breaking the row law that blocks or
//! batches could show is found and named.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mlxcel_checkpoint::Checkpoint;
use mlxcel_compute::Backend;
use mlxcel_compute::fault::{Fault, Faulty, Verb};
use mlxcel_cpu::{CpuBackend, Precision};
use mlxcel_engine::EngineError;
use mlxcel_engine::speculate::probe::{Probe, Report, Verdict, What};
use mlxcel_model::{Model, registry};

fn model_on<B: Backend>(dir: &Path, backend: B) -> Box<dyn Model> {
    let checkpoint = Checkpoint::open(dir).unwrap_or_else(|e| panic!("{e}"));
    registry::load(&checkpoint, Arc::new(backend)).unwrap_or_else(|e| panic!("{e}"))
}

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name)
}

fn demo(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models").join(name)
}

#[test]
fn explore() {
    let probe = Probe { widths: vec![2, 4, 9, 16], batches: vec![1, 3], draws: 2, seed: 1, budget: None };
    for name in ["gemma4/dense", "gemma4/e2b", "gemma4/moe", "qwen3_5/dense", "qwen3_5/moe"] {
        for fault in Fault::all() {
            let backend = Faulty::new(CpuBackend::new(Precision::F32, 1), fault);
            let t = Instant::now();
            match probe.run(&mut *model_on(&golden(name), backend), &mut |_| ()) {
                Ok(report) => {
                    let mut sites = std::collections::BTreeSet::new();
                    for o in &report.outcomes { if let Some(f) = &o.first { sites.insert(format!("{}x{}:{:?}", o.width, o.batch, f.site.map(|s| s.to_string()))); } }
                    println!("{name} {fault:?} {:?}: {:?}", t.elapsed(), sites);
                }
                Err(e) => println!("{name} {fault:?}: ERR {e}"),
            }
        }
    }
}
