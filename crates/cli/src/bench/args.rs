//! What can be typed after `speculative_bench`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use mlxcel_bench::catalogue::Kind;

use crate::args::{PrecisionArg, unless_empty};
use crate::backend::{BackendArg, Wish};

const COST_EXAMPLES: &str = "\
Examples:
  speculative_bench cost --target MODEL --threads 1                a table
  speculative_bench cost --target MODEL --batches 1,8,32           steps of many sequences at once
  speculative_bench cost --target MODEL --contexts 128,2048 --widths 1,4 --json";

const EXAMPLES: &str = "\
Examples:
  speculative_bench --sweep                                     the catalogue, or what of it is on this disk
  speculative_bench --list                                      what the catalogue holds, and where it was looked for
  speculative_bench --target MODEL --draft DRAFTER --k-values 2,3,4,adaptive
  speculative_bench --target MODEL --kind ngram --prompts mine.jsonl --temperature 0.8 --seed 1
  speculative_bench --target MODEL --simulate-acceptance 0.8    what its drafter would give, were it right so often
  speculative_bench --target MODEL --kind none --simulate-acceptance 0.8    the same at no cost of drafting
  speculative_bench --sweep --csv rows.csv --json rows.json --markdown rows.md --plot rows.svg
  speculative_bench compare a.json b.json                       two hosts (files of --json or --trace)
  speculative_bench cost --target MODEL --threads 1             prompts, single steps and whole blocks, without drafts

docs/benchmarks.md explains every column.

Exit status: 0 measured (or skipped for absent files), 1 some rows could not be measured, 2 nothing measured or bad arguments,
3 an output differed from plain decoding's, 130 interrupted.";

/// Measures speculative decoding against plain decoding: speed, acceptance, and whether the output is the same.
#[derive(Debug, Parser)]
#[command(name = "speculative_bench", version, after_help = EXAMPLES, args_conflicts_with_subcommands = true, arg_required_else_help = true)]
pub struct Cli {
    /// A verb, or nothing for a measurement.
    #[command(subcommand)]
    pub verb: Option<Verb>,
    /// The measurement.
    #[command(flatten)]
    pub sweep: SweepArgs,
}

/// Verbs beside measuring.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Put two reports side by side, and say for each row whether a gap comes from the host or from the prompt
    Compare(CompareArgs),
    /// Time the target's forward passes alone: a prompt, single steps behind a context, blocks of K rows
    Cost(CostArgs),
}

/// `speculative_bench cost`.
#[derive(Args, Debug)]
#[command(after_help = COST_EXAMPLES)]
pub struct CostArgs {
    /// Target: a directory, used as given, or a name
    #[arg(long, value_name = "PATH")]
    pub target: PathBuf,
    /// Tokens of the prompt that is timed; 0 = none
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub prompt: u32,
    /// Positions before the single steps that are timed
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "128", alias = "context")]
    pub contexts: Vec<u32>,
    /// Sequences of those steps at once, each behind positions of its own: 1 to 256 (a list measures each, in turns)
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1")]
    pub batches: Vec<u32>,
    /// Single steps of a run, of each sequence
    #[arg(short = 'n', long, value_name = "N", default_value_t = 64)]
    pub tokens: u32,
    /// Rows of the blocks that are timed, with the logits of every row
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2,3,4,5,6,7,8,16")]
    pub widths: Vec<u32>,
    /// Positions before a block
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub block_context: u32,
    /// Runs of each measurement (a block is timed three times in each, all widths in turns)
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub repeat: u32,
    /// Where to compute
    #[arg(long, value_name = "NAME", env = "MLXCEL_BACKEND", hide_env_values = true, default_value = "auto")]
    pub backend: BackendArg,
    /// CUDA device by number [default: 0]
    #[arg(long, value_name = "N", env = "MLXCEL_DEVICE", hide_env_values = true)]
    pub device: Option<usize>,
    /// Worker threads of the processor, this one included [default: one per core]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// How activations enter quantised matrices on the processor: int8 (fast) or f32 (for parity checks)
    #[arg(long, value_name = "PRECISION", default_value = "int8")]
    pub cpu_precision: PrecisionArg,
    /// Print all runs as JSON: seconds, in order
    #[arg(long)]
    pub json: bool,
}

/// `speculative_bench compare`.
#[derive(Args, Debug)]
pub struct CompareArgs {
    /// A file that --json or --trace wrote
    pub a: PathBuf,
    /// Another one
    pub b: PathBuf,
    /// Print the comparison as JSON
    #[arg(long)]
    pub json: bool,
}

/// What is measured.
#[derive(Args, Debug)]
pub struct SweepArgs {
    /// Measure every pairing of the catalogue that is on disk; the embedded ones where no other is
    #[arg(long, conflicts_with_all = ["target", "draft", "kind"])]
    pub sweep: bool,
    /// With --sweep: also a row for each pairing that is not on disk
    #[arg(long, requires = "sweep")]
    pub all: bool,
    /// Show the catalogue and what of it is on disk
    #[arg(long)]
    pub list: bool,
    /// Target: a directory, used as given, or a name
    #[arg(long, value_name = "PATH")]
    pub target: Option<PathBuf>,
    /// Drafter: a directory, used as given, or a name [default: the one beside or inside the target]
    #[arg(long, value_name = "PATH", requires = "target")]
    pub draft: Option<PathBuf>,
    /// none, mtp, dflash, classic or ngram [default: as the drafter's config.json says]
    #[arg(long, value_name = "KIND", requires = "target")]
    pub kind: Option<Kind>,
    /// Directory where names are looked for first
    #[arg(long, value_name = "DIR")]
    pub models_dir: Option<PathBuf>,
    /// One block width: positions verified in a round, drafts + 1
    #[arg(long, value_name = "K", conflicts_with = "k_values", value_parser = parse_k)]
    pub block_size: Option<Width>,
    /// Block widths to measure, `adaptive` among them
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "2,4,8", value_parser = parse_k)]
    pub k_values: Vec<Width>,
    /// Tokens of each answer
    #[arg(short = 'n', long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
    pub max_tokens: u32,
    /// Sequences at once (a list measures each)
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub batch: Vec<u16>,
    /// One prompt [default: the built-in ones]
    #[arg(long, value_name = "TEXT", conflicts_with = "prompts")]
    pub prompt: Option<String>,
    /// A file of prompts: JSON lines with name, text, raw; or plain text with a prompt a line
    #[arg(long, value_name = "FILE")]
    pub prompts: Option<PathBuf>,
    /// Continue prompts as they are, without the chat template
    #[arg(long)]
    pub raw: bool,
    /// Let answers go on past the model's stop tokens
    #[arg(long)]
    pub ignore_eos: bool,
    /// Sampling temperature; 0 = greedy
    #[arg(long, alias = "temp", value_name = "T", default_value_t = 0.0, allow_negative_numbers = true)]
    pub temperature: f32,
    /// Keep the most likely tokens with this much probability in all; 1 = all
    #[arg(long, value_name = "P", default_value_t = 1.0, allow_negative_numbers = true)]
    pub top_p: f32,
    /// Seed of the sampling noise; sequence i of a batch has the seed plus i
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Measured runs of each arm
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,
    /// Runs of each arm before those, not measured
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub warmup: u32,
    /// Replace drafts by those of a script that is right with this probability; the drafter's forward runs all the same, if one was
    /// given or found (--kind none: without one). Reports say so
    #[arg(long, value_name = "P", value_parser = parse_probability)]
    pub simulate_acceptance: Option<f64>,
    /// Where to compute
    #[arg(long, value_name = "NAME", env = "MLXCEL_BACKEND", hide_env_values = true, default_value = "auto")]
    pub backend: SweepBackendArg,
    /// CUDA device by number [default: 0]
    #[arg(long, value_name = "N", env = "MLXCEL_DEVICE", hide_env_values = true)]
    pub device: Option<usize>,
    /// Worker threads of the processor, this one included [default: one per core]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// How activations enter quantised matrices on the processor: int8 (fast) or f32 (for parity checks)
    #[arg(long, value_name = "PRECISION", default_value = "int8")]
    pub cpu_precision: PrecisionArg,
    /// Write rows as CSV, each as soon as it is measured
    #[arg(long, value_name = "FILE", help_heading = "Reports")]
    pub csv: Option<PathBuf>,
    /// Write rows as JSON
    #[arg(long, value_name = "FILE", help_heading = "Reports")]
    pub json: Option<PathBuf>,
    /// Write a table for people
    #[arg(long, value_name = "FILE", help_heading = "Reports")]
    pub markdown: Option<PathBuf>,
    /// Write a plot of speedup and acceptance over K
    #[arg(long, value_name = "FILE.svg", help_heading = "Reports")]
    pub plot: Option<PathBuf>,
    /// Write rows and every round: drafts, accepted, margins, hashes of rows (one more run of each arm)
    #[arg(long, value_name = "FILE", help_heading = "Reports")]
    pub trace: Option<PathBuf>,
    /// Say nothing but errors on standard error
    #[arg(short, long, help_heading = "Reports")]
    pub quiet: bool,
}

/// Backends by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SweepBackendArg {
    /// A CUDA device that can be used, else the processor
    Auto,
    /// The processor
    Cpu,
    /// A CUDA device
    Cuda,
    /// The processor with a fault: matrix products of two rows or more are off by a bit. To see probe and compare fail
    CpuFaulty,
}

/// A block width; `None` = adaptive.
pub type Width = WidthArg;

/// A block width as typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WidthArg(pub Option<usize>);

fn parse_k(text: &str) -> Result<WidthArg, String> {
    if text == "adaptive" {
        return Ok(WidthArg(None));
    }
    // Widths that cannot be measured get a row that says so.
    text.parse()
        .map(|k| WidthArg(Some(k)))
        .map_err(|_| format!("a number (2 to 16) or adaptive expected, found {text:?}"))
}

fn parse_probability(text: &str) -> Result<f64, String> {
    let found = text.parse::<f64>().ok().filter(|p| (0.0..=1.0).contains(p));
    found.ok_or_else(|| format!("a probability between 0 and 1 expected, found {text:?}"))
}

impl CostArgs {
    /// The backend that is wished for.
    pub fn wish(&self) -> Wish {
        let (backend, device, threads) = (self.backend, self.device, self.threads);
        Wish { backend, device, threads, precision: self.cpu_precision.into() }
    }
}

impl SweepArgs {
    /// The backend that is wished for; `None` = the processor with a fault.
    pub fn wish(&self) -> Option<Wish> {
        let backend = match self.backend {
            SweepBackendArg::Auto => BackendArg::Auto,
            SweepBackendArg::Cpu => BackendArg::Cpu,
            SweepBackendArg::Cuda => BackendArg::Cuda,
            SweepBackendArg::CpuFaulty => return None,
        };
        Some(Wish { backend, device: self.device, threads: self.threads, precision: self.cpu_precision.into() })
    }

    /// The block widths.
    pub fn widths(&self) -> Vec<Option<usize>> {
        match self.block_size {
            Some(WidthArg(k)) => vec![k],
            None => self.k_values.iter().map(|k| k.0).collect(),
        }
    }
}

/// Reads the command line; ends the process for help and errors.
pub fn parse(args: impl Iterator<Item = OsString>) -> Cli {
    // Variables that are set to nothing count as unset.
    let command = Cli::command().mut_args(unless_empty).mut_subcommands(|verb| verb.mut_args(unless_empty));
    Cli::from_arg_matches(&command.get_matches_from(args)).unwrap_or_else(|error| error.exit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sweep(args: &[&str]) -> SweepArgs {
        Cli::try_parse_from([&["speculative_bench"], args].concat()).expect("valid").sweep
    }

    #[test]
    fn the_command_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn widths_are_numbers_or_adaptive() {
        assert_eq!(sweep(&["--sweep"]).widths(), [Some(2), Some(4), Some(8)]);
        assert_eq!(sweep(&["--sweep", "--k-values", "3,adaptive,1"]).widths(), [Some(3), None, Some(1)]);
        assert_eq!(sweep(&["--sweep", "--block-size", "5"]).widths(), [Some(5)]);
        for args in [&["--sweep", "--k-values", "two"][..], &["--sweep", "--block-size", "2", "--k-values", "3"]] {
            assert!(Cli::try_parse_from([&["speculative_bench"], args].concat()).is_err(), "{args:?}");
        }
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        for args in [
            &["--sweep", "--target", "x"][..],
            &["--draft", "x"],
            &["--sweep", "--prompt", "a", "--prompts", "b"],
            &["--sweep", "--simulate-acceptance", "1.5"],
            &["--sweep", "--repeat", "0"],
            &["compare", "a"],
            &["--sweep", "compare", "a", "b"],
        ] {
            assert!(Cli::try_parse_from([&["speculative_bench"], args].concat()).is_err(), "{args:?}");
        }
        assert!(matches!(
            Cli::try_parse_from(["speculative_bench", "compare", "a", "b", "--json"]).expect("valid").verb,
            Some(Verb::Compare(CompareArgs { json: true, .. }))
        ));
    }
}
