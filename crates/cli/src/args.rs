//! What can be typed.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::Resettable;
use clap::{Arg, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use mlxcel_checkpoint::convert::Mixed;
use mlxcel_checkpoint::quantization::{AFFINE_BITS, AFFINE_GROUPS};
use mlxcel_compute::format::DType;
use mlxcel_cpu::Precision;
use mlxcel_engine::speculate::MAX_BLOCK;

use crate::backend::{BackendArg, Wish};
use crate::serve::args::ServeArgs;
use crate::synth::SynthArgs;

/// Runs MLX-format language models on this machine.
#[derive(Debug, Parser)]
#[command(
    name = "mlxcel",
    version,
    propagate_version = true,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Answer one prompt and exit
    Generate(GenerateArgs),
    /// Chat in the terminal
    Run(RunArgs),
    /// Show what a checkpoint is: architecture, quantisation, memory
    Inspect(InspectArgs),
    /// Measure the perplexity of a text file
    Perplexity(PerplexityArgs),
    /// Check that blocks of drafts get the bytes of single steps, and name the operation where they do not
    Probe(ProbeArgs),
    /// Serve a model over HTTP (OpenAI's and llama-server's APIs)
    Serve(Box<ServeArgs>),
    /// Convert a float checkpoint or a GGUF file to MLX's layout, quantised or not
    Convert(ConvertArgs),
    /// Write a random-weight checkpoint of a published model's shape, and its drafter's, to measure speed with
    Synth(SynthArgs),
    /// Fetch a model from the hub into the model store
    #[cfg(feature = "hub")]
    Pull(PullArgs),
    /// List the models in the store and in the Hugging Face cache
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Remove a model from the store
    Rm(RmArgs),
}

const GENERATE_EXAMPLES: &str = "\
Examples:
  mlxcel generate -p \"Tell me a story about a brave rabbit.\"
  mlxcel generate -m models/gemma-4-tiny-it-4bit -p \"Count to ten.\" --temp 0 -n 64
  mlxcel generate --raw -p \"Once upon a time\" --seed 7 --json
  mlxcel generate -p \"Count to ten.\" --draft-block-size 4       (drafts of 3 tokens; the answer is the same)
  mlxcel generate -p \"Count to ten.\" --model-draft none         (without drafts)";

const VARIABLES: &str = "\
Variables (1, true, yes, on, or 0, false, no, off):
  MLXCEL_MTP_ADAPTIVE        measure and adapt the block width; 0 = the drafter's own [default: 1]
  MLXCEL_ENABLE_MTP_B1       drafts for a sequence that runs alone: 1 = always, at the drafter's own width, 0 = never
  MLXCEL_MTP_ALLOW_INEXACT   1 = draft even where that may change answers; said everywhere [default: 0]";

const RUN_EXAMPLES: &str = "\
Examples:
  mlxcel run
  mlxcel run -m models/gemma-4-tiny-it-4bit --system \"Answer in one sentence.\" --temp 0.7

Inside: /reset forgets the conversation, /help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves.";

const INSPECT_EXAMPLES: &str = "\
Examples:
  mlxcel inspect
  mlxcel inspect -m models/gemma-4-tiny-it-4bit --json";

const PERPLEXITY_EXAMPLES: &str = "\
Examples:
  mlxcel perplexity README.md
  mlxcel perplexity README.md --compare      (int8 against f32 activations, same text)";

const PROBE_EXAMPLES: &str = "\
Examples:
  mlxcel probe
  mlxcel probe -m models/qwen3.5-tiny-4bit --widths 2,3,4 --batch 1,8 --draws 8
  mlxcel probe --json

Exit status: 0 exact, 3 inexact, 1 error, 2 bad arguments. What is found is kept for the next start of the model.";

const CONVERT_EXAMPLES: &str = "\
Examples:
  mlxcel convert Qwen3-0.6B --bits 4
  mlxcel convert Qwen3-0.6B -o qwen-mixed --bits 4 --mixed sensitive --mixed '*lm_head=8:32'
  mlxcel convert gemma-4-E2B-it -o gemma-bf16 --dtype bf16
  mlxcel convert SmolLM2-135M.gguf -o smollm2-4bit --bits 4 --group-size 32";

#[cfg(feature = "hub")]
const PULL_EXAMPLES: &str = "\
Examples:
  mlxcel pull mlx-community/gemma-3-1b-it-4bit
  mlxcel pull mlx-community/gemma-3-1b-it-4bit --verify    (mend what is damaged)
  mlxcel pull OWNER/NAME-GGUF --include '*Q8_0.gguf'
  HF_TOKEN=... mlxcel pull google/gemma-3-1b-it --revision main

An interrupted pull goes on where it stopped. docs/models.md lists the environment variables.";

const LIST_EXAMPLES: &str = "\
Examples:
  mlxcel list
  mlxcel list --json";

const RM_EXAMPLES: &str = "\
Examples:
  mlxcel rm mlx-community/gemma-3-1b-it-4bit
  mlxcel rm gemma-3-1b-it-4bit -y
  mlxcel rm --partial -y                     (what unfinished pulls left)";

/// Which model, on what.
#[derive(Args, Clone, Debug)]
pub struct ModelArgs {
    /// Checkpoint directory, a pulled model (OWNER/NAME or NAME), or the name of one under models/ [default: the embedded demo]
    #[arg(short, long, value_name = "PATH", env = "MLXCEL_MODEL", hide_env_values = true)]
    pub model: Option<PathBuf>,
    /// Where to compute: auto (a CUDA device that can be used, else the processor), cpu or cuda
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
}

impl ModelArgs {
    /// The backend that is wished for.
    pub fn wish(&self) -> Wish {
        let (backend, device, threads) = (self.backend, self.device, self.threads);
        Wish { backend, device, threads, precision: self.cpu_precision.into() }
    }
}

/// Precision by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PrecisionArg {
    /// Activations and KV pages in f32
    F32,
    /// int8 activations per row and group, KV pages in bf16
    Int8,
}

impl From<PrecisionArg> for Precision {
    fn from(arg: PrecisionArg) -> Precision {
        match arg {
            PrecisionArg::F32 => Precision::F32,
            PrecisionArg::Int8 => Precision::Int8,
        }
    }
}

/// How tokens are chosen. What is not given comes from the checkpoint's generation_config.json.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Temperature; 0 = greedy
    #[arg(long = "temp", alias = "temperature", value_name = "T", allow_negative_numbers = true)]
    pub temperature: Option<f32>,
    /// Keep the K most likely tokens; 0 = all
    #[arg(long, value_name = "K")]
    pub top_k: Option<usize>,
    /// Keep the most likely tokens with this much probability in all; 1 = all
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub top_p: Option<f32>,
    /// Keep tokens at least this likely relative to the best; 0 = all
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub min_p: Option<f32>,
    /// Penalty on tokens already in prompt or answer; 1 = none
    #[arg(long, alias = "repetition-penalty", value_name = "X", allow_negative_numbers = true)]
    pub repeat_penalty: Option<f32>,
    /// Penalty on tokens already in the answer, once
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub presence_penalty: Option<f32>,
    /// Penalty on tokens already in the answer, per occurrence
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub frequency_penalty: Option<f32>,
    /// Add to a token's logit: ID+BIAS or ID-BIAS (repeatable)
    #[arg(long, value_name = "ID±BIAS", value_parser = parse_bias)]
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the sampling noise [default: random, printed]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
}

/// Where an answer ends and how long a context may be.
#[derive(Args, Clone, Debug)]
pub struct LimitArgs {
    /// Most tokens to generate; -1 = until the context is full
    #[arg(short = 'n', long = "max-tokens", aliases = ["predict", "n-predict"], value_name = "N",
        default_value_t = 512, allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-1..))]
    pub max_tokens: i64,
    /// Most positions of prompt and answer [default: generate: what is needed; run: 8192; at most the model's limit]
    #[arg(short, long, value_name = "N")]
    pub ctx_size: Option<usize>,
    /// End the answer before this text (repeatable)
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// Do not end at the model's stop tokens
    #[arg(long)]
    pub ignore_eos: bool,
}

impl LimitArgs {
    /// The bound on generated tokens, if there is one.
    pub fn max_tokens(&self) -> Option<usize> {
        usize::try_from(self.max_tokens).ok()
    }
}

/// Drafting ahead: it changes how fast an answer comes, never the answer.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Speculation")]
pub struct DraftArgs {
    /// Drafter: a checkpoint directory, a pulled model, a name under models/, or none (also -md) [default: NAME-assistant* or
    /// NAME-mtp* beside the model, or the head inside it]
    #[arg(
        long,
        visible_alias = "draft-model",
        value_name = "PATH",
        env = "MLXCEL_MODEL_DRAFT",
        hide_env_values = true
    )]
    pub model_draft: Option<PathBuf>,
    /// How to draft [default: as the drafter's config.json says]
    #[arg(long, value_name = "KIND", env = "MLXCEL_DRAFT_KIND", hide_env_values = true)]
    pub draft_kind: Option<DraftKindArg>,
    /// Positions verified in a round, 1 to 16; 1 = no drafts [default: measured and adapted]
    #[arg(long, value_name = "K", env = "MLXCEL_DRAFT_BLOCK_SIZE", hide_env_values = true,
        value_parser = parse_block_size)]
    pub draft_block_size: Option<usize>,
}

/// A kind of drafter by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DraftKindArg {
    /// A head trained on the model's hidden states
    Mtp,
    /// A small model with the same vocabulary
    Classic,
    /// Prompt lookup: no checkpoint needed
    Ngram,
    /// No drafts
    None,
}

fn parse_block_size(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|k| (1..=MAX_BLOCK).contains(k)).ok_or_else(|| format!("1 to {MAX_BLOCK} expected"))
}

/// A flag that does not read its variable when that is set to nothing.
pub(crate) fn unless_empty(arg: Arg) -> Arg {
    let empty = arg.get_env().and_then(std::env::var_os).is_some_and(|value| value.is_empty());
    if empty { arg.env(Resettable::Reset) } else { arg }
}

/// Reads what was typed; variables that are set to nothing count as unset. Ends the process where it cannot be read, or when help
/// was asked for.
pub fn parse(args: impl Iterator<Item = OsString>) -> Cli {
    let command = Cli::command().mut_subcommands(|verb| match verb.get_name() {
        "serve" => verb.mut_args(crate::serve::args::variable),
        _ => verb.mut_args(unless_empty),
    });
    let mut command = command;
    let matches = command.clone().get_matches_from(spelled_out(args));
    if matches.subcommand_name() == Some("serve")
        && let Some(serve) = command.find_subcommand("serve")
        && let Some(message) = crate::serve::args::empty_variable(serve.get_arguments())
    {
        command.error(clap::error::ErrorKind::InvalidValue, message).exit();
    }
    Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

/// The arguments with `-md`, `-np`, `-to` and `-rea`, which users of other engines type, as their long names.
pub(crate) fn spelled_out(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut rest = false;
    args.map(|arg| {
        // What follows -- is nobody's flag.
        rest |= arg == "--";
        match arg.to_str() {
            _ if rest => arg,
            Some("-md") => "--model-draft".into(),
            Some("-np") => "--parallel".into(),
            Some("-to") => "--timeout".into(),
            Some("-rea") => "--reasoning".into(),
            Some(text) => text.strip_prefix("-md=").map_or(arg.clone(), |path| format!("--model-draft={path}").into()),
            None => arg,
        }
    })
    .collect()
}

/// `mlxcel generate`.
#[derive(Args, Clone, Debug)]
#[command(after_help = format!("{GENERATE_EXAMPLES}\n\n{VARIABLES}"))]
pub struct GenerateArgs {
    /// Which model, on what.
    #[command(flatten)]
    pub model: ModelArgs,
    /// The prompt
    #[arg(short, long, value_name = "TEXT", required_unless_present = "file")]
    pub prompt: Option<String>,
    /// Read the prompt from a file (- for standard input)
    #[arg(short, long, value_name = "FILE", conflicts_with = "prompt")]
    pub file: Option<PathBuf>,
    /// System message
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    pub system: Option<String>,
    /// Continue the prompt as it is, without the chat template
    #[arg(long)]
    pub raw: bool,
    /// Use this chat template (Jinja) instead of the checkpoint's
    #[arg(long, value_name = "FILE", conflicts_with = "raw")]
    pub chat_template_file: Option<PathBuf>,
    /// Variables of the chat template, as a JSON object: '{"enable_thinking": true}'
    #[arg(long, value_name = "JSON", value_parser = parse_object, conflicts_with = "raw")]
    pub chat_template_kwargs: Option<serde_json::Map<String, serde_json::Value>>,
    /// Limits.
    #[command(flatten)]
    pub limits: LimitArgs,
    /// Print one JSON object instead of the streamed text
    #[arg(long)]
    pub json: bool,
    /// With --json: log-probabilities of the N most likely tokens at each position
    #[arg(long, value_name = "N", requires = "json")]
    pub logprobs: Option<usize>,
    /// Say nothing on standard error but errors, and that drafts are INEXACT where they were allowed to be
    #[arg(short, long)]
    pub quiet: bool,
    /// Drafting.
    #[command(flatten)]
    pub draft: DraftArgs,
    /// Sampling.
    #[command(flatten)]
    pub sampling: SamplingArgs,
}

impl GenerateArgs {
    /// Variables for the chat template.
    pub fn template_variables(&self) -> serde_json::Map<String, serde_json::Value> {
        self.chat_template_kwargs.clone().unwrap_or_default()
    }
}

/// `mlxcel run`.
#[derive(Args, Clone, Debug)]
#[command(after_help = format!("{RUN_EXAMPLES}\n\n{VARIABLES}"))]
pub struct RunArgs {
    /// Which model, on what.
    #[command(flatten)]
    pub model: ModelArgs,
    /// System message
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Use this chat template (Jinja) instead of the checkpoint's
    #[arg(long, value_name = "FILE")]
    pub chat_template_file: Option<PathBuf>,
    /// Variables of the chat template, as a JSON object: '{"enable_thinking": true}'
    #[arg(long, value_name = "JSON", value_parser = parse_object)]
    pub chat_template_kwargs: Option<serde_json::Map<String, serde_json::Value>>,
    /// Limits.
    #[command(flatten)]
    pub limits: LimitArgs,
    /// Drafting.
    #[command(flatten)]
    pub draft: DraftArgs,
    /// Sampling.
    #[command(flatten)]
    pub sampling: SamplingArgs,
}

impl RunArgs {
    /// Variables for the chat template.
    pub fn template_variables(&self) -> serde_json::Map<String, serde_json::Value> {
        self.chat_template_kwargs.clone().unwrap_or_default()
    }
}

/// `mlxcel inspect`.
#[derive(Args, Clone, Debug)]
#[command(after_help = INSPECT_EXAMPLES)]
pub struct InspectArgs {
    /// Which model, on what.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `mlxcel perplexity`.
#[derive(Args, Clone, Debug)]
#[command(after_help = PERPLEXITY_EXAMPLES)]
pub struct PerplexityArgs {
    /// UTF-8 text
    #[arg(value_name = "FILE")]
    pub text: PathBuf,
    /// Which model, on what.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Positions of a window; each starts afresh [default: 512, or the model's limit]
    #[arg(short, long, value_name = "N")]
    pub ctx_size: Option<usize>,
    /// Measure both precisions and print the ratio
    #[arg(long)]
    pub compare: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `mlxcel probe`.
#[derive(Args, Clone, Debug)]
#[command(after_help = PROBE_EXAMPLES)]
pub struct ProbeArgs {
    /// Which model, on what.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Drafter.
    #[command(flatten)]
    pub draft: DraftArgs,
    /// Positions verified in a round, 2 to 16 each [default: 2 to 16; with --draft-block-size K: 2 to K]
    #[arg(long, value_name = "K,..", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(2..=16))]
    pub widths: Vec<u16>,
    /// Sequences in a batch, 1 to 64 each
    #[arg(long, value_name = "B,..", value_delimiter = ',', default_value = "1,4",
        value_parser = clap::value_parser!(u16).range(1..=64))]
    pub batch: Vec<u16>,
    /// How often, with other tokens and lengths, short and past the sliding window
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..))]
    pub draws: u16,
    /// Seed of tokens and lengths
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Say nothing on standard error, and without --json nothing at all
    #[arg(short, long)]
    pub quiet: bool,
}

impl ProbeArgs {
    /// The block widths to compare.
    pub fn widths(&self) -> Vec<usize> {
        match (&self.widths[..], self.draft.draft_block_size) {
            ([], widest) => (2..=widest.unwrap_or(MAX_BLOCK).max(2)).collect(),
            (widths, _) => widths.iter().map(|k| usize::from(*k)).collect(),
        }
    }
}

/// `mlxcel convert`.
#[derive(Args, Clone, Debug)]
#[command(after_help = CONVERT_EXAMPLES)]
pub struct ConvertArgs {
    /// Directory of safetensors as transformers writes it (f32, f16, bf16), or a .gguf file
    #[arg(value_name = "SRC")]
    pub source: PathBuf,
    /// Directory to make [default: SRC's name with -mlx-4bit or -mlx, in the working directory]
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Quantise to 2, 3, 4, 5, 6 or 8 bits [default: no quantisation]
    #[arg(long, value_name = "BITS", value_parser = parse_bits)]
    pub bits: Option<u8>,
    /// Values that share a scale and a bias: 32, 64 or 128
    #[arg(long, value_name = "N", default_value_t = 64, requires = "bits", value_parser = parse_group)]
    pub group_size: u16,
    /// Other bits for some modules: PATTERN=BITS, PATTERN=BITS:GROUP, PATTERN=none (* in PATTERN is any text), or
    /// sensitive, the preset that gives more bits to embedding, output matrix and some layers; repeatable, the last
    /// match decides
    #[arg(long, value_name = "RULE", requires = "bits", value_parser = Mixed::parse)]
    pub mixed: Vec<Mixed>,
    /// Type of what is not quantised, scales and biases included [default: as stored]
    #[arg(long, value_name = "TYPE")]
    pub dtype: Option<FloatArg>,
    /// Replace the checkpoint at DIR, once the new one is complete
    #[arg(long)]
    pub force: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Say nothing on standard error, and without --json nothing at all
    #[arg(short, long)]
    pub quiet: bool,
}

/// A float type by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FloatArg {
    /// bfloat16
    Bf16,
    /// IEEE binary16
    F16,
    /// IEEE binary32
    F32,
}

impl From<FloatArg> for DType {
    fn from(arg: FloatArg) -> DType {
        match arg {
            FloatArg::Bf16 => DType::Bf16,
            FloatArg::F16 => DType::F16,
            FloatArg::F32 => DType::F32,
        }
    }
}

pub(crate) fn parse_bits(text: &str) -> Result<u8, String> {
    text.parse().ok().filter(|bits| AFFINE_BITS.contains(bits)).ok_or_else(|| "2, 3, 4, 5, 6 or 8 expected".into())
}

pub(crate) fn parse_group(text: &str) -> Result<u16, String> {
    text.parse().ok().filter(|group| AFFINE_GROUPS.contains(group)).ok_or_else(|| "32, 64 or 128 expected".into())
}

/// A JSON object.
fn parse_object(text: &str) -> Result<serde_json::Map<String, serde_json::Value>, String> {
    serde_json::from_str(text).map_err(|e| format!("a JSON object expected, as in {{\"enable_thinking\": true}}: {e}"))
}

/// `mlxcel pull`.
#[cfg(feature = "hub")]
#[derive(Args, Clone, Debug)]
#[command(after_help = PULL_EXAMPLES)]
pub struct PullArgs {
    /// The model's repository on the hub
    #[arg(value_name = "OWNER/NAME")]
    pub model: String,
    /// Branch, tag or commit
    #[arg(long, value_name = "REVISION", default_value = "main")]
    pub revision: String,
    /// Fetch these files in place of the *.safetensors, besides configuration and tokenizer (repeatable)
    #[arg(long, value_name = "GLOB")]
    pub include: Vec<mlxcel_checkpoint::hub::select::Pattern>,
    /// Do not fetch these files (repeatable)
    #[arg(long, value_name = "GLOB")]
    pub exclude: Vec<mlxcel_checkpoint::hub::select::Pattern>,
    /// Read the files of a model that is up to date too, and fetch again what is damaged
    #[arg(long)]
    pub verify: bool,
    /// Send nothing; only say whether the model is here [HF_HUB_OFFLINE=1 does the same]
    #[arg(long)]
    pub offline: bool,
    /// Access token; other users of this machine may see it, HF_TOKEN they do not
    #[arg(long, value_name = "TOKEN", value_parser = crate::pull::parse_token)]
    pub token: Option<mlxcel_checkpoint::hub::Token>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Say nothing but errors
    #[arg(short, long)]
    pub quiet: bool,
}

/// `mlxcel list`.
#[derive(Args, Clone, Debug)]
#[command(after_help = LIST_EXAMPLES)]
pub struct ListArgs {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `mlxcel rm`.
#[derive(Args, Clone, Debug)]
#[command(after_help = RM_EXAMPLES)]
pub struct RmArgs {
    /// OWNER/NAME, or NAME where only one owner has it
    #[arg(value_name = "NAME", required_unless_present = "partial")]
    pub model: Option<String>,
    /// Remove only what unfinished pulls left: of this model, or of all
    #[arg(long)]
    pub partial: bool,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
}

/// `123+4.5`, `123-4.5`, or `123:4.5`.
fn parse_bias(text: &str) -> Result<(u32, f32), String> {
    let expected = || format!("ID+BIAS or ID-BIAS expected, as in 106-100, found {text:?}");
    let at = text.find(['+', '-', ':']).ok_or_else(expected)?;
    let id = text[..at].parse().map_err(|_| expected())?;
    let bias: f32 = text[at..].trim_start_matches(['+', ':']).parse().map_err(|_| expected())?;
    if bias.is_finite() { Ok((id, bias)) } else { Err(expected()) }
}

#[cfg(test)]
mod tests;
