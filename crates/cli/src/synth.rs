//! `mlxcel synth`: a random-weight checkpoint of a published model's shape, to measure speed with.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Args;
use mlxcel_checkpoint::CheckpointError;
use mlxcel_checkpoint::synth::{Directory, Made, Options, Shape, synth};
use serde_json::{Value, json};

use crate::args::{parse_bits, parse_group};
use crate::convert::{Bar, quoted};
use crate::interrupt;
use crate::locate::Environment;
use crate::units::bytes;

const SYNTH_EXAMPLES: &str = "\
Examples:
  mlxcel synth --shape gemma-4-1b /tmp/gemma-4-1b
  speculative_bench --target /tmp/gemma-4-1b --simulate-acceptance 0.7
  mlxcel synth --shape gemma-4-31b --layers 6 /tmp/gemma-4-31b-cut      (a tenth of its depth, and so of its size)
  mlxcel synth --shape qwen3.5-0.8b --bits 8 --group-size 32 out --force";

/// `mlxcel synth`.
#[derive(Args, Clone, Debug)]
#[command(after_help = format!("{}\n\n{SYNTH_EXAMPLES}", shapes()))]
pub struct SynthArgs {
    /// Directory to make; the drafter's is called DIR-assistant or DIR-mtp
    #[arg(value_name = "DIR")]
    pub target: PathBuf,
    /// Whose sizes (below)
    #[arg(long, value_name = "SHAPE", value_parser = parse_shape)]
    pub shape: Shape,
    /// Bits of a code: 2, 3, 4, 5, 6 or 8
    #[arg(long, value_name = "BITS", default_value_t = 4, value_parser = parse_bits)]
    pub bits: u8,
    /// Values that share a scale and a bias: 32, 64 or 128
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = parse_group)]
    pub group_size: u16,
    /// Only so many layers; config.json says so under mlxcel_synth [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub layers: Option<u16>,
    /// Replace checkpoints at DIR and at the drafter's, once the new ones are complete
    #[arg(long)]
    pub force: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Say nothing on standard error, and without --json nothing at all
    #[arg(short, long)]
    pub quiet: bool,
}

/// The shape of a name.
///
/// # Errors
/// The names there are.
pub fn parse_shape(name: &str) -> Result<Shape, String> {
    let names = || Shape::ALL.map(|shape| shape.name).join(", ");
    Shape::named(name).ok_or_else(|| format!("one of {} expected", names()))
}

/// The shapes, for `--help`.
pub fn shapes() -> String {
    let lines = Shape::ALL.map(|shape| format!("\n  {:<16} {}", shape.name, shape.about));
    format!("Shapes:{}", lines.concat())
}

/// Runs the verb.
///
/// # Errors
/// What is wrong with the target, in words; nothing is left of the output then.
pub fn run(args: &SynthArgs, environment: &Environment) -> Result<ExitCode> {
    interrupt::listen_converting();
    let started = Instant::now();
    let tokenizer = environment.model(Some(args.shape.demo().as_ref()));
    let tokenizer = tokenizer.context("the tokenizer comes from an embedded demo checkpoint")?;
    let options = Options {
        bits: args.bits,
        group: args.group_size,
        layers: args.layers.map(usize::from),
        force: args.force,
        ..Options::default()
    };
    let bar = Bar::new(args.quiet);
    let outcome = synth(&args.shape, &tokenizer, &args.target, &options, &mut |progress| {
        interrupt::making(Some(progress.dir));
        bar.show(progress);
        !interrupt::taken()
    });
    interrupt::making(None);
    bar.clear();
    let made = match outcome {
        Err(error @ CheckpointError::Interrupted { .. }) => {
            eprintln!("error: {error}");
            return Ok(ExitCode::from(130));
        }
        other => other?,
    };
    let seconds = started.elapsed().as_secs_f64();
    if !args.quiet {
        for note in &made.notes {
            eprintln!("note: {note}");
        }
    }
    // A reader that went away is no error.
    let mut out = std::io::stdout();
    if args.json {
        let _ = writeln!(out, "{:#}", to_json(args, &made, seconds));
    } else if !args.quiet {
        let _ = write!(out, "{}", to_text(args, &made, seconds));
    }
    Ok(ExitCode::SUCCESS)
}

fn to_text(args: &SynthArgs, made: &Made, seconds: f64) -> String {
    let line = |directory: &Directory| {
        let files = if directory.files == 1 { "1 file".into() } else { format!("{} files", directory.files) };
        let millions = directory.parameters as f64 / 1e6;
        let path = directory.path.display();
        format!("{path}: {} of tensors in {files}, {millions:.1} M parameters\n", bytes(directory.bytes))
    };
    let (layers, all) = made.layers;
    let cut = if layers < all { format!(", cut to {layers} of {all} layers") } else { String::new() };
    let drafter = made.drafter.as_ref().map(line).unwrap_or_default();
    let simulate = if made.drafter.is_some() { " --simulate-acceptance 0.7" } else { " --kind ngram" };
    format!(
        "{}{drafter}Shape of {}{cut}, random weights; {seconds:.1} s\nTry: speculative_bench --target {}{simulate}\n",
        line(&made.model),
        args.shape.name,
        quoted(&args.target),
    )
}

fn to_json(args: &SynthArgs, made: &Made, seconds: f64) -> Value {
    let directory = |directory: &Directory| {
        json!({
            "path": directory.path.display().to_string(),
            "files": directory.files,
            "parameters": directory.parameters,
            "bytes": directory.bytes,
        })
    };
    json!({
        "shape": args.shape.name,
        "bits": args.bits,
        "group_size": args.group_size,
        "layers": made.layers.0,
        "layers_of_shape": made.layers.1,
        "model": directory(&made.model),
        "drafter": made.drafter.as_ref().map(directory),
        "seconds": seconds,
        "notes": made.notes,
    })
}
