//! What can be typed after `mlxcel serve` or `mlxcel-server`, in llama-server's spelling where it has the flag.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::{BoolishValueParser, Resettable};
use clap::{Arg, ArgAction, Args, Command, CommandFactory, FromArgMatches, Parser, ValueEnum};
use mlxcel_engine::speculate::MAX_BLOCK;

use crate::args::{DraftArgs, DraftKindArg, ModelArgs, SamplingArgs, spelled_out};

const EXAMPLES: &str = "\
Examples:
  mlxcel serve                                        the embedded demo at http://127.0.0.1:8080
  mlxcel serve -m MODEL -md DRAFTER -np 8 -c 8192
  mlxcel serve -m MODEL --host 0.0.0.0 --api-key-file keys.txt

  curl http://127.0.0.1:8080/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Tell me a story.\"}]}'

Every flag has a variable, MLXCEL_ and its name (MLXCEL_CTX_SIZE); llama-server's variables (LLAMA_ARG_CTX_SIZE) are read
where that one is not set. docs/server.md goes through all routes.";

/// `mlxcel-server`.
#[derive(Debug, Parser)]
#[command(name = "mlxcel-server", version, about = "Serves a model over OpenAI's and llama-server's HTTP APIs")]
pub struct Cli {
    /// The flags.
    #[command(flatten)]
    pub serve: ServeArgs,
}

/// How the server is set up.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ServeArgs {
    /// Which model, on what.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS", env = "MLXCEL_HOST", default_value = "127.0.0.1")]
    pub host: String,
    /// Port; 0 = any that is free
    #[arg(long, value_name = "PORT", env = "MLXCEL_PORT", default_value_t = 8080)]
    pub port: u16,
    /// Names that the model is asked for by, separated by commas [default: the directory's]
    #[arg(short, long, value_name = "NAMES", env = "MLXCEL_ALIAS", value_delimiter = ',')]
    pub alias: Vec<String>,
    /// Keys, separated by commas, of which clients must give one
    #[arg(long, value_name = "KEYS", env = "MLXCEL_API_KEY", hide_env_values = true, value_delimiter = ',')]
    pub api_key: Vec<String>,
    /// A file with a key a line
    #[arg(long, value_name = "FILE", env = "MLXCEL_API_KEY_FILE")]
    pub api_key_file: Option<PathBuf>,
    /// Requests at once
    #[arg(long, value_name = "N", env = "MLXCEL_PARALLEL", default_value_t = 4,
        value_parser = clap::value_parser!(u16).range(1..=256))]
    pub parallel: u16,
    /// Requests that may wait for a slot; more are answered 503
    #[arg(long, value_name = "N", env = "MLXCEL_MAX_QUEUE_DEPTH", default_value_t = 64)]
    pub max_queue_depth: usize,
    /// Most positions of prompt and answer [default: 8192, at most the model's limit]
    #[arg(short, long, value_name = "N", env = "MLXCEL_CTX_SIZE")]
    pub ctx_size: Option<usize>,
    /// Most tokens of an answer where a request says nothing; -1 = all the room
    #[arg(short = 'n', long, visible_alias = "n-predict", value_name = "N", env = "MLXCEL_PREDICT", default_value_t = -1,
        allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-1..))]
    pub predict: i64,
    /// Most memory for prompts that may come again, in MiB; 0 keeps only what finished requests leave in their slots
    #[arg(long, value_name = "MIB", env = "MLXCEL_CACHE_RAM", default_value_t = 1024)]
    pub cache_ram: u32,
    /// Use this chat template (Jinja) instead of the checkpoint's
    #[arg(long, value_name = "FILE", env = "MLXCEL_CHAT_TEMPLATE_FILE")]
    pub chat_template_file: Option<PathBuf>,
    /// Accepted and not needed: chat templates are always Jinja
    #[arg(long, env = "MLXCEL_JINJA", value_parser = BoolishValueParser::new())]
    pub jinja: bool,
    /// Whether the chat template is asked to think where a request says nothing (auto = as the template likes)
    #[arg(long, value_name = "WHEN", env = "MLXCEL_REASONING", default_value = "auto")]
    pub reasoning: ThinkArg,
    /// Whether thoughts are set apart as reasoning_content (auto) or left in the content (none)
    #[arg(long, value_name = "FORMAT", env = "MLXCEL_REASONING_FORMAT", default_value = "auto")]
    pub reasoning_format: ReasoningArg,
    /// Answer /metrics (the default)
    #[arg(long, env = "MLXCEL_METRICS", overrides_with = "no_metrics", default_value = "true", value_parser = BoolishValueParser::new())]
    pub metrics: bool,
    /// Do not answer /metrics
    #[arg(long, env = "MLXCEL_NO_METRICS", value_parser = BoolishValueParser::new())]
    pub no_metrics: bool,
    /// Answer /slots (the default)
    #[arg(long, env = "MLXCEL_SLOTS", overrides_with = "no_slots", default_value = "true", value_parser = BoolishValueParser::new())]
    pub slots: bool,
    /// Do not answer /slots
    #[arg(long, env = "MLXCEL_NO_SLOTS", value_parser = BoolishValueParser::new())]
    pub no_slots: bool,
    /// Seconds that a client may take to send a request's body, or may take nothing of its answer (also -to)
    #[arg(long, value_name = "SECONDS", env = "MLXCEL_TIMEOUT", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=86400))]
    pub timeout: u32,
    /// Seconds that a connection may be open without the whole head of a request
    #[arg(long, visible_alias = "timeout-header", value_name = "SECONDS", env = "MLXCEL_TIMEOUT_IDLE", default_value_t = 30,
        value_parser = clap::value_parser!(u32).range(1..=86400))]
    pub timeout_idle: u32,
    /// Connections that may be open; more are answered 503
    #[arg(long, value_name = "N", env = "MLXCEL_MAX_CONNECTIONS", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_connections: u32,
    /// Largest request body, in MiB
    #[arg(long, value_name = "MIB", env = "MLXCEL_MAX_BODY", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub max_body: u32,
    /// Seconds that streams may go on after Ctrl-C or SIGTERM
    #[arg(long, value_name = "SECONDS", env = "MLXCEL_GRACE", default_value_t = 10)]
    pub grace: u32,
    /// Write the log to a file, too
    #[arg(long, value_name = "FILE", env = "MLXCEL_LOG_FILE")]
    pub log_file: Option<PathBuf>,
    /// A line of the log for every request (the default)
    #[arg(long, env = "MLXCEL_LOG_REQUESTS", overrides_with = "no_log_requests", default_value = "true", value_parser = BoolishValueParser::new())]
    pub log_requests: bool,
    /// No line of the log for a request
    #[arg(long, env = "MLXCEL_NO_LOG_REQUESTS", value_parser = BoolishValueParser::new())]
    pub no_log_requests: bool,
    /// OpenTelemetry collector that gets a span a request, by OTLP over HTTP; needs the cargo feature otel
    #[arg(long, value_name = "URL", env = "MLXCEL_OTLP_ENDPOINT")]
    pub otlp_endpoint: Option<String>,
    /// Drafting.
    #[command(flatten)]
    pub draft: DraftArgs,
    /// How to draft, in llama-server's words; --draft-kind is ours
    #[arg(
        long,
        value_name = "TYPE",
        env = "MLXCEL_SPEC_TYPE",
        conflicts_with = "draft_kind",
        help_heading = "Speculation"
    )]
    pub spec_type: Option<SpecTypeArg>,
    /// Most drafted tokens of a round, one less than --draft-block-size
    #[arg(long, value_name = "N", env = "MLXCEL_SPEC_DRAFT_N_MAX", visible_alias = "draft-max", conflicts_with = "draft_block_size",
        value_parser = parse_drafts, help_heading = "Speculation")]
    pub spec_draft_n_max: Option<usize>,
    /// Sampling where a request says nothing.
    #[command(flatten)]
    pub sampling: SamplingArgs,
}

/// What becomes of thoughts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReasoningArg {
    /// Set apart
    #[value(alias = "deepseek")]
    Auto,
    /// Left in the content
    None,
}

/// Whether a model thinks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ThinkArg {
    /// It does
    On,
    /// It does not
    Off,
    /// As its template likes
    Auto,
}

/// Kinds of drafters in llama-server's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SpecTypeArg {
    /// No drafts
    None,
    /// A small model with the same vocabulary
    DraftSimple,
    /// A head trained on the model's hidden states
    DraftMtp,
    /// Prompt lookup
    #[value(alias = "ngram-mod", alias = "ngram-cache", alias = "ngram-map-k")]
    NgramSimple,
}

fn parse_drafts(text: &str) -> Result<usize, String> {
    let most = MAX_BLOCK - 1;
    text.parse().ok().filter(|n| *n <= most).ok_or_else(|| format!("0 to {most} expected"))
}

/// Variables of flags that other verbs have, too, and read no variable for.
const SHARED: [(&str, &str); 11] = [
    ("threads", "MLXCEL_THREADS"),
    ("cpu_precision", "MLXCEL_CPU_PRECISION"),
    ("temperature", "MLXCEL_TEMP"),
    ("top_k", "MLXCEL_TOP_K"),
    ("top_p", "MLXCEL_TOP_P"),
    ("min_p", "MLXCEL_MIN_P"),
    ("repeat_penalty", "MLXCEL_REPEAT_PENALTY"),
    ("presence_penalty", "MLXCEL_PRESENCE_PENALTY"),
    ("frequency_penalty", "MLXCEL_FREQUENCY_PENALTY"),
    ("logit_bias", "MLXCEL_LOGIT_BIAS"),
    ("seed", "MLXCEL_SEED"),
];

/// llama-server's variables, by ours; older names after newer ones.
const LLAMA: [(&str, &str); 31] = [
    ("MLXCEL_CACHE_RAM", "LLAMA_ARG_CACHE_RAM"),
    ("MLXCEL_MODEL", "LLAMA_ARG_MODEL"),
    ("MLXCEL_HOST", "LLAMA_ARG_HOST"),
    ("MLXCEL_PORT", "LLAMA_ARG_PORT"),
    ("MLXCEL_ALIAS", "LLAMA_ARG_ALIAS"),
    ("MLXCEL_API_KEY", "LLAMA_API_KEY"),
    ("MLXCEL_API_KEY_FILE", "LLAMA_ARG_API_KEY_FILE"),
    ("MLXCEL_PARALLEL", "LLAMA_ARG_N_PARALLEL"),
    ("MLXCEL_CTX_SIZE", "LLAMA_ARG_CTX_SIZE"),
    ("MLXCEL_PREDICT", "LLAMA_ARG_N_PREDICT"),
    ("MLXCEL_CHAT_TEMPLATE_FILE", "LLAMA_ARG_CHAT_TEMPLATE_FILE"),
    ("MLXCEL_JINJA", "LLAMA_ARG_JINJA"),
    ("MLXCEL_REASONING", "LLAMA_ARG_REASONING"),
    ("MLXCEL_REASONING_FORMAT", "LLAMA_ARG_THINK"),
    ("MLXCEL_METRICS", "LLAMA_ARG_ENDPOINT_METRICS"),
    ("MLXCEL_SLOTS", "LLAMA_ARG_ENDPOINT_SLOTS"),
    ("MLXCEL_NO_SLOTS", "LLAMA_ARG_NO_ENDPOINT_SLOTS"),
    ("MLXCEL_TIMEOUT", "LLAMA_ARG_TIMEOUT"),
    ("MLXCEL_LOG_FILE", "LLAMA_ARG_LOG_FILE"),
    ("MLXCEL_LOG_FILE", "LLAMA_LOG_FILE"),
    ("MLXCEL_MODEL_DRAFT", "LLAMA_ARG_MODEL_DRAFT"),
    ("MLXCEL_SPEC_TYPE", "LLAMA_ARG_SPEC_TYPE"),
    ("MLXCEL_SPEC_DRAFT_N_MAX", "LLAMA_ARG_DRAFT_MAX"),
    ("MLXCEL_THREADS", "LLAMA_ARG_THREADS"),
    ("MLXCEL_TEMP", "LLAMA_ARG_TEMPERATURE"),
    ("MLXCEL_TOP_K", "LLAMA_ARG_TOP_K"),
    ("MLXCEL_TOP_P", "LLAMA_ARG_TOP_P"),
    ("MLXCEL_MIN_P", "LLAMA_ARG_MIN_P"),
    ("MLXCEL_REPEAT_PENALTY", "LLAMA_ARG_REPEAT_PENALTY"),
    ("MLXCEL_PRESENCE_PENALTY", "LLAMA_ARG_PRESENCE_PENALTY"),
    ("MLXCEL_FREQUENCY_PENALTY", "LLAMA_ARG_FREQUENCY_PENALTY"),
];

/// A flag with its variable, where the flag is one that other verbs share.
fn named(arg: Arg) -> Arg {
    match SHARED.iter().find(|(id, _)| arg.get_id().as_str() == *id) {
        Some((_, variable)) => arg.env(*variable),
        None => arg,
    }
}

/// A flag that reads the variable which is set: ours, else llama-server's.
pub fn variable(arg: Arg) -> Arg {
    let arg = named(arg);
    let set = |name: &str| std::env::var_os(name).is_some();
    let Some(own) = arg.get_env().and_then(|name| name.to_str()).map(str::to_string) else { return arg };
    if set(&own) {
        return arg;
    }
    match LLAMA.iter().find(|(name, theirs)| *name == own && set(theirs)) {
        Some((_, theirs)) => arg.env(*theirs),
        // Help shows what is set, and nothing else.
        None => arg.env(Resettable::Reset),
    }
}

/// What is wrong with the variables before their values are read: one that is set to nothing says neither yes nor no, and the flag's
/// default may not be what was meant.
pub fn empty_variable<'a>(args: impl Iterator<Item = &'a Arg>) -> Option<String> {
    let empty = |arg: &&Arg| arg.get_env().and_then(std::env::var_os).is_some_and(|value| value.is_empty());
    let arg = args.into_iter().find(empty)?;
    let name = arg.get_env()?.to_string_lossy().into_owned();
    let wanted = match (arg.get_action(), arg.get_long()) {
        (ArgAction::SetTrue, _) => "true or false".to_string(),
        (_, Some(long)) => format!("a value for --{long}"),
        _ => "a value".to_string(),
    };
    Some(format!("{name}: {wanted} expected, found nothing; give it one, or unset it"))
}

/// Reads the command line of `mlxcel-server`; ends the process for help and errors.
pub fn parse(args: impl Iterator<Item = OsString>) -> Cli {
    let mut command: Command = Cli::command().mut_args(variable);
    let matches = command.clone().get_matches_from(spelled_out(args));
    if let Some(message) = empty_variable(command.get_arguments()) {
        command.error(clap::error::ErrorKind::InvalidValue, message).exit();
    }
    Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

impl ServeArgs {
    /// The drafting flags, llama-server's spelling put into ours.
    pub fn drafts(&self) -> DraftArgs {
        let mut draft = self.draft.clone();
        if let Some(kind) = self.spec_type {
            draft.draft_kind = Some(match kind {
                SpecTypeArg::None => DraftKindArg::None,
                SpecTypeArg::DraftSimple => DraftKindArg::Classic,
                SpecTypeArg::DraftMtp => DraftKindArg::Mtp,
                SpecTypeArg::NgramSimple => DraftKindArg::Ngram,
            });
        }
        if let Some(n) = self.spec_draft_n_max {
            draft.draft_block_size = Some(n + 1);
        }
        draft
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &[&str]) -> ServeArgs {
        Cli::try_parse_from([&["mlxcel-server"], args].concat()).expect("valid").serve
    }

    #[test]
    fn the_command_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn both_spellings_mean_the_same() {
        let theirs = parsed(&["--spec-type", "draft-mtp", "--spec-draft-n-max", "3"]).drafts();
        let ours = parsed(&["--draft-kind", "mtp", "--draft-block-size", "4"]).drafts();
        assert_eq!((theirs.draft_kind, theirs.draft_block_size), (ours.draft_kind, ours.draft_block_size));
        assert_eq!(parsed(&["--spec-draft-n-max", "0"]).drafts().draft_block_size, Some(1));
        for args in [
            &["--spec-type", "eagle"][..],
            &["--spec-draft-n-max", "16"],
            &["--spec-draft-n-max", "3", "--draft-block-size", "4"],
            &["--parallel", "0"],
            &["--no-such-flag"],
            &["--port", "70000"],
        ] {
            assert!(Cli::try_parse_from([&["mlxcel-server"], args].concat()).is_err(), "{args:?}");
        }
    }

    #[test]
    fn every_flag_has_a_variable() {
        let command = Cli::command().mut_args(named);
        let mut names = Vec::new();
        for arg in command.get_arguments().filter(|arg| !matches!(arg.get_id().as_str(), "help" | "version")) {
            let long = arg.get_long().unwrap_or_else(|| panic!("{} has no long name", arg.get_id()));
            let wanted = format!("MLXCEL_{}", long.to_uppercase().replace('-', "_"));
            assert_eq!(arg.get_env().and_then(|name| name.to_str()), Some(&*wanted), "--{long}");
            names.push(wanted);
        }
        assert!(names.len() > 40, "{names:?}");
        let twice: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(twice.len(), names.len(), "two flags share a variable");
        for (id, _) in SHARED {
            assert!(command.get_arguments().any(|arg| arg.get_id() == id), "{id} is no flag");
        }
    }

    /// The twin: without the table of shared flags, some have none.
    #[test]
    fn a_flag_without_a_variable_is_seen() {
        let command = Cli::command();
        let bare = command.get_arguments().filter(|arg| arg.get_env().is_none()).count();
        assert_eq!(bare, SHARED.len(), "help and version are added later");
    }

    #[test]
    fn the_last_of_two_opposites_counts() {
        assert!(parsed(&[]).metrics && parsed(&[]).slots && parsed(&[]).log_requests);
        let both = parsed(&["--no-metrics", "--metrics"]);
        assert!(both.metrics && !both.no_metrics);
        assert!(parsed(&["--metrics", "--no-metrics"]).no_metrics);
    }

    #[test]
    fn every_llama_variable_stands_for_a_flag() {
        let command = Cli::command().mut_args(named);
        let names: Vec<&str> = command.get_arguments().filter_map(|a| a.get_env()?.to_str()).collect();
        for (ours, _) in LLAMA {
            assert!(names.contains(&ours), "{ours} is no flag's variable");
        }
    }
}
