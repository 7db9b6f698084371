//! One measurement.

use serde::{Deserialize, Serialize};

use crate::machine;

/// What became of a row.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", content = "why", rename_all = "snake_case")]
pub enum Status {
    /// Measured.
    #[default]
    Ok,
    /// Not measured because a file is not there; says which.
    Absent(String),
    /// Not measured for another reason (a pair that does not fit, K out of range, no memory, a failing probe); says why.
    Skipped(String),
    /// The measurement broke off; says why.
    Failed(String),
}

impl Status {
    /// `ok`, or `absent: ...`, `skipped: ...`, `failed: ...`.
    pub fn text(&self) -> String {
        match self {
            Status::Ok => "ok".into(),
            Status::Absent(why) => format!("absent: {why}"),
            Status::Skipped(why) => format!("skipped: {why}"),
            Status::Failed(why) => format!("failed: {why}"),
        }
    }
}

/// Median, lowest and highest of several runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The lowest.
    pub min: f64,
    /// The highest.
    pub max: f64,
}

/// One pairing at one block width, batch and prompt. Figures that were not measured are `None`; K = 1 is the plain arm, which has a
/// row of its own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Name of the pairing.
    pub pairing: String,
    /// Directory of the target, as it was given or found.
    pub target: String,
    /// Directory of the drafter, also where its tokens were replaced by a script's; `None` for kinds without a checkpoint.
    pub drafter: Option<String>,
    /// `none`, `mtp`, `dflash`, `classic`, `ngram` or `simulated`.
    pub kind: String,
    /// Sequences that ran at once.
    pub batch: usize,
    /// Block width asked for; `None` = adaptive.
    pub k: Option<usize>,
    /// Narrowest and widest block that was verified (1 = a plain step).
    pub k_effective: Option<(usize, usize)>,
    /// Name of the prompt.
    pub prompt: String,
    /// Tokens of the prompt.
    pub prompt_tokens: Option<usize>,
    /// Tokens generated in one run, all sequences together.
    pub generated_tokens: Option<usize>,
    /// Runs measured.
    pub repeat: usize,
    /// Generated tokens a second, prefill excluded, all sequences together.
    pub tokens_per_second: Option<Spread>,
    /// Tokens a second over those of the plain runs beside it in the same invocation.
    pub speedup: Option<Spread>,
    /// Rounds with a draft, over all measured runs; those in which an answer ended are not counted, since not all of their drafts
    /// were judged.
    pub rounds: Option<usize>,
    /// Tokens drafted in them.
    pub proposed: Option<usize>,
    /// Of those, accepted.
    pub accepted: Option<usize>,
    /// accepted / proposed.
    pub acceptance_rate: Option<f64>,
    /// accepted / rounds, the bonus token not counted.
    pub mean_accepted_len: Option<f64>,
    /// emitted / rounds, the bonus token counted.
    pub tokens_per_round: Option<f64>,
    /// How often draft d (from the first) was accepted, given that all before it were.
    pub depth_acceptance: Vec<f64>,
    /// Milliseconds of a plain step (median).
    pub ms_plain_step: Option<f64>,
    /// Milliseconds a round: proposing.
    pub ms_draft: Option<f64>,
    /// Milliseconds a round: the target's forward over the block.
    pub ms_verify: Option<f64>,
    /// Milliseconds a round: everything else (sampling, taking back, showing the drafter what was kept).
    pub ms_rest: Option<f64>,
    /// Time of a round over that of a plain step.
    pub round_cost: Option<f64>,
    /// Whether tokens and text were those of plain decoding, in every run and sequence.
    pub output_identical: Option<bool>,
    /// Whether blocks of this width are exact on this machine: `exact`, `inexact: ...`, or `None` when it was not asked.
    pub probe: Option<String>,
    /// Whether drafts came from a script: acceptance is then an assumption. What they cost is real where there is a drafter.
    pub simulated: bool,
    /// How often the script is right; `None` where there is none.
    #[serde(default)]
    pub simulated_acceptance: Option<f64>,
    /// Sampling temperature; 0 = greedy.
    pub temperature: f32,
    /// Probability mass of the tokens that may be sampled; 1 = all.
    pub top_p: f32,
    /// Seed of the first sequence.
    pub seed: u64,
    /// Backend, as it names itself.
    pub backend: String,
    /// The processor or accelerator.
    pub device: String,
    /// Threads of the backend; 0 where that says nothing.
    pub threads: usize,
    /// Version of this program.
    pub version: String,
    /// Commit it was built from, if known.
    pub commit: Option<String>,
    /// Day of the measurement, UTC, `YYYY-MM-DD`.
    pub date: String,
    /// What became of it.
    pub status: Status,
}

impl Row {
    /// A row of this build, today, in which nothing was measured yet.
    pub fn unmeasured() -> Self {
        Row {
            version: machine::VERSION.into(),
            commit: machine::COMMIT.map(Into::into),
            date: machine::date(std::time::SystemTime::now()),
            ..Row::default()
        }
    }
}
