//! What the runner asks of the program around it: the crate that names a backend opens checkpoints, everything else is here.

use std::path::{Path, PathBuf};

use mlxcel_engine::Engine;
use mlxcel_model::drafters::DraftKind;

use crate::prompts::Prompt;
use crate::row::Status;
use crate::simulate::Simulation;

/// What is to draft.
pub enum Draft {
    /// Nothing.
    None,
    /// Prompt lookup.
    Ngram,
    /// A checkpoint; without a kind, the one that its files say.
    Checkpoint {
        /// Its directory.
        path: PathBuf,
        /// How it is to draft.
        kind: Option<DraftKind>,
    },
}

/// What is to be loaded.
pub struct Wanted<'a> {
    /// Directory of the target.
    pub target: &'a Path,
    /// What drafts for it.
    pub draft: Draft,
    /// The script that is put over what drafts ([`Simulation::over`]), or that drafts where nothing does.
    pub simulate: Option<Simulation>,
    /// Widest block that will be asked for; 1 = no drafts.
    pub widest: usize,
    /// Sequences at once.
    pub parallel: usize,
    /// Prompts to encode, in the target's own chat template unless they are raw.
    pub prompts: &'a [Prompt],
    /// Positions that each prompt needs beside its own.
    pub room: usize,
}

/// Whether blocks are exact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probed {
    /// There is nothing to ask: no drafter.
    Unasked,
    /// They are.
    Exact,
    /// They are not, for this reason, and the operator wants them all the same.
    Inexact(String),
    /// They are not (or could not be checked, or there is no memory), for this reason: there are no drafts.
    Declined(String),
}

/// A target with its drafter, ready to be measured.
pub struct Loaded {
    /// Runs both, without reuse of earlier answers.
    pub engine: Engine,
    /// What the probe said.
    pub probed: Probed,
    /// Tokens of each prompt, in order; or why it cannot be asked.
    pub prompts: Vec<Result<Vec<u32>, String>>,
    /// Hash of the files that decide the answer, so that results of two machines can be told to be of the same checkpoint.
    pub checkpoint: String,
}

/// The machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The processor or accelerator.
    pub device: String,
    /// Threads of the backend; 0 where that says nothing.
    pub threads: usize,
}

/// The program around the runner.
pub trait Host {
    /// The machine.
    fn place(&self) -> Place;

    /// Loads a target and then its drafter: nothing of a drafter is read for a target that cannot be run.
    ///
    /// # Errors
    /// The status of the rows that cannot be measured.
    fn load(&mut self, wanted: Wanted<'_>) -> Result<Loaded, Status>;

    /// Says how far the work is.
    fn say(&mut self, line: &str);

    /// Whether the user wants it to end.
    fn is_interrupted(&mut self) -> bool;
}
