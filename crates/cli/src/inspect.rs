//! `mlxcel inspect`: what a checkpoint is and what it needs.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Result;
use mlxcel_engine::EngineOptions;
use mlxcel_engine::cache::pages::pages_needed;
use mlxcel_model::Model;
use serde_json::{Value, json};

use crate::args::InspectArgs;
use crate::backend::{BackendArg, Chosen};
use crate::load::open;
use crate::locate::Environment;
use crate::units::{bytes, thousands};

/// Memory a cache needs: what grows with every token, and what window layers hold at most.
struct KvNeed {
    per_token: u64,
    windows: u64,
    window_tokens: usize,
    /// Recurrent state of one sequence, and of a snapshot.
    state: (u64, u64),
}

/// Runs the verb.
///
/// # Errors
/// A checkpoint that cannot be loaded.
pub fn run(args: &InspectArgs, environment: &Environment) -> Result<ExitCode> {
    let opened = open(&args.model, environment)?;
    // Nothing is computed: a device is filled only for who asks for it.
    let backend = match args.model.backend {
        BackendArg::Cuda => args.model.wish().open(environment, &mut |_| {})?,
        BackendArg::Auto | BackendArg::Cpu => Chosen::cpu(args.model.threads, args.model.cpu_precision.into()),
    };
    let model = opened.model(&backend)?;
    let kv = kv_need(&*model);
    let memory = available_memory();
    // A reader that went away (head, a pager) is no error.
    let mut out = std::io::stdout();
    if args.json {
        let _ = writeln!(out, "{:#}", to_json(&*model, &kv, memory));
    } else {
        let _ = write!(out, "{}", to_text(&*model, &kv, memory));
    }
    Ok(ExitCode::SUCCESS)
}

fn kv_need(model: &dyn Model) -> KvNeed {
    let (slot, snapshot) = if model.is_recurrent() { model.state_bytes() } else { (0, 0) };
    let mut need = KvNeed { per_token: 0, windows: 0, window_tokens: 0, state: (slot as u64, snapshot as u64) };
    let (limit, step) = (model.info().context_length, model.step_rows());
    let pages = pages_needed(model.kv_layout(), model.page_len(), 1, limit, step);
    for (g, group) in model.kv_layout().iter().enumerate() {
        let page = model.kv_page_bytes(g) as u64;
        match group.window {
            None => need.per_token += page / model.page_len() as u64,
            Some(window) => {
                need.window_tokens = window;
                need.windows += page * pages[g] as u64;
            }
        }
    }
    need
}

/// Bytes of recurrent state that `mlxcel run` may take: a slot, and the snapshots.
fn state_need(kv: &KvNeed) -> u64 {
    let snapshots = (EngineOptions::default().state_cache as u64).checked_div(kv.state.1).unwrap_or(0);
    kv.state.0 + snapshots * kv.state.1
}

/// Bytes that could be used now; `None` where the system does not say.
fn available_memory() -> Option<u64> {
    let mut system = sysinfo::System::new().ok()?;
    system.refresh_memory();
    Some(system.available_memory()).filter(|bytes| *bytes > 0)
}

/// Longest context of one sequence, up to the model's own limit, that fits beside the weights.
fn longest_context(model: &dyn Model, kv: &KvNeed, memory: Option<u64>) -> Option<u64> {
    let limit = model.info().context_length as u64;
    let left = memory?.checked_sub(model.info().weight_bytes())?.checked_sub(kv.windows + state_need(kv))?;
    Some(left.checked_div(kv.per_token).map_or(limit, |n| n.min(limit)))
}

fn to_text(model: &dyn Model, kv: &KvNeed, memory: Option<u64>) -> String {
    let info = model.info();
    let mut out = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(out, "{name:<14} {value}");
    };
    line("model", info.path.display().to_string());
    line("architecture", format!("{} ({})", info.architecture, info.model_type));
    line("layers", format!("{} of width {}", info.layers, info.hidden_size));
    line("parameters", thousands(info.parameters()));
    line("weights", format!("{} ({:.2} bits a parameter)", bytes(info.weight_bytes()), bits(model)));
    line("vocabulary", thousands(info.vocab_size as u64));
    line("context", format!("{} tokens", thousands(info.context_length as u64)));
    line("stop tokens", info.stop_ids.iter().map(u32::to_string).collect::<Vec<_>>().join(", "));
    if !info.media.is_empty() {
        line("left alone", format!("{} input (this version takes text only)", info.media.join(" and ")));
    }
    line("backend", model.backend());
    line("KV cache", format!("{} a token in full layers", bytes(kv.per_token)));
    if kv.windows > 0 {
        line("", format!("{} at most for windows of {} tokens", bytes(kv.windows), thousands(kv.window_tokens as u64)));
    }
    if kv.state.0 > 0 {
        line(
            "state",
            format!(
                "{} a sequence, whatever its length; {} a snapshot, up to {} of them",
                bytes(kv.state.0),
                bytes(kv.state.1),
                bytes(EngineOptions::default().state_cache as u64)
            ),
        );
    }
    line("memory", memory.map_or("unknown on this system".into(), |m| format!("{} available", bytes(m))));
    line(
        "",
        match longest_context(model, kv, memory) {
            _ if memory.is_none() => format!("the weights need {}", bytes(info.weight_bytes())),
            Some(n) if n as usize >= info.context_length => "holds the weights and the whole context".into(),
            Some(n) if n >= 1 => format!("holds the weights and a context of {} tokens (-c {n})", thousands(n)),
            _ => {
                let least = bytes(info.weight_bytes() + kv.windows + state_need(kv));
                format!("does NOT hold the weights and what any context needs ({least})")
            }
        },
    );
    let width = info.modules.iter().map(|m| m.pattern.len()).max().unwrap_or(6);
    let _ = writeln!(out, "\n{:<width$}  {:>5}  {:<22}  {:<20}  {:>10}", "module", "count", "format", "shape", "bytes");
    for m in &info.modules {
        let _ = writeln!(
            out,
            "{:<width$}  {:>5}  {:<22}  {:<20}  {:>10}",
            m.pattern,
            m.count,
            m.format,
            m.shape,
            bytes(m.bytes)
        );
    }
    out
}

fn bits(model: &dyn Model) -> f64 {
    model.info().weight_bytes() as f64 * 8.0 / model.info().parameters().max(1) as f64
}

fn to_json(model: &dyn Model, kv: &KvNeed, memory: Option<u64>) -> Value {
    let info = model.info();
    json!({
        "path": info.path.display().to_string(),
        "architecture": info.architecture,
        "model_type": info.model_type,
        "layers": info.layers,
        "hidden_size": info.hidden_size,
        "vocab_size": info.vocab_size,
        "context_length": info.context_length,
        "parameters": info.parameters(),
        "weight_bytes": info.weight_bytes(),
        "bits_per_parameter": bits(model),
        "stop_ids": info.stop_ids,
        "media_left_alone": info.media,
        "backend": model.backend(),
        "kv": {
            "bytes_per_token": kv.per_token,
            "window_bytes": kv.windows,
            "window_tokens": kv.window_tokens,
        },
        "state": {
            "bytes_per_sequence": kv.state.0,
            "snapshot_bytes": kv.state.1,
        },
        "memory": {
            "available_bytes": memory,
            "longest_context_that_fits": longest_context(model, kv, memory),
        },
        "modules": info.modules.iter().map(|m| json!({
            "pattern": m.pattern,
            "count": m.count,
            "format": m.format,
            "shape": m.shape,
            "parameters": m.parameters,
            "bytes": m.bytes,
        })).collect::<Vec<_>>(),
    })
}
