//! The sweep: pairing by pairing, all arms of a prompt in turn, rows as soon as they are complete.
//!
//! A model is loaded once for a pairing. Plain decoding and every block width then take turns on each prompt, there and back again
//! (A B C C B A), so that a slow moment of the machine hits all of them, and each speedup is a ratio within one turn. Whatever
//! goes wrong becomes the status of the rows it concerns; the others go on.

mod arm;

use std::path::PathBuf;
use std::sync::{Arc, PoisonError};

use mlxcel_engine::sample::SamplingParams;
use mlxcel_engine::speculate::MAX_BLOCK;

use crate::catalogue::Kind;
use crate::host::{Draft, Host, Loaded, Place, Probed, Wanted};
use crate::measure::{self, Ask, Run};
use crate::prompts::Prompt;
use crate::row::{Row, Status};
use crate::simulate::{self, Answers, Simulation};
use crate::trace::Trace;
use arm::Arm;

/// A pairing to be measured, with what was found of it on disk.
#[derive(Clone, Debug)]
pub struct Item {
    /// Name in reports.
    pub name: String,
    /// How it drafts.
    pub kind: Kind,
    /// Directory of the target, or why there is none.
    pub target: Result<PathBuf, Status>,
    /// Directory of the drafter for the kinds that have one, or why there is none.
    pub drafter: Option<Result<PathBuf, Status>>,
}

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The pairings, in order.
    pub items: Vec<Item>,
    /// Block widths; `None` = adaptive. Plain decoding is always measured.
    pub ks: Vec<Option<usize>>,
    /// Sequences at once.
    pub batches: Vec<usize>,
    /// What is asked.
    pub prompts: Vec<Prompt>,
    /// Tokens of each answer.
    pub max_tokens: usize,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Whether answers go on past stop tokens.
    pub ignore_eos: bool,
    /// Measured runs of each arm, at least 1.
    pub repeat: usize,
    /// Runs of each arm before those.
    pub warmup: usize,
    /// Probability with which drafts are right that a script puts in place of the pairings' own.
    pub simulate: Option<f64>,
    /// Whether rounds are traced, in a run of their own.
    pub trace: bool,
}

/// What a sweep came to.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// All rows, in order.
    pub rows: Vec<Row>,
    /// The traces, if they were wanted.
    pub traces: Vec<Trace>,
    /// Whether the user ended it.
    pub interrupted: bool,
}

impl Outcome {
    /// 0: every row was measured or its files are absent, and at least one was measured; 1: some could not be measured for another
    /// reason; 2: nothing was measured; 3: an output differed from plain decoding's; 130: the user ended it.
    pub fn exit_code(&self) -> u8 {
        let measured = |row: &Row| row.status == Status::Ok;
        if self.rows.iter().any(|row| row.output_identical == Some(false)) {
            3
        } else if self.interrupted {
            130
        } else if !self.rows.iter().any(measured) {
            2
        } else {
            u8::from(!self.rows.iter().all(|row| measured(row) || matches!(row.status, Status::Absent(_))))
        }
    }
}

/// Measures everything that a plan asks for. `sink` gets rows as they are complete; when it fails (a full disk), the sweep ends with
/// its error.
///
/// # Errors
/// The sink's.
pub fn run<E>(plan: &Plan, host: &mut dyn Host, mut sink: impl FnMut(&[Row]) -> Result<(), E>) -> Result<Outcome, E> {
    let mut outcome = Outcome::default();
    for (number, item) in plan.items.iter().enumerate() {
        if outcome.interrupted {
            break;
        }
        let mut sweep =
            Sweep { plan, item, place: host.place(), host: &mut *host, traces: Vec::new(), interrupted: false };
        sweep.host.say(&format!("[bench] {} ({} of {})", item.name, number + 1, plan.items.len()));
        let mut rows = Vec::new();
        let mut keep = |new: Vec<Row>| {
            let result = sink(&new);
            rows.extend(new);
            result
        };
        match sweep.load() {
            Ok((mut loaded, answers)) => sweep.prompts(&mut loaded, &answers, &mut keep)?,
            Err(status) => {
                sweep.host.say(&format!("[bench] {}: {}", item.name, status.text()));
                keep(vec![sweep.row(
                    "",
                    plan.batches.first().copied().unwrap_or(1),
                    plan.ks.first().copied().flatten(),
                    status,
                )])?;
            }
        }
        outcome.traces.append(&mut sweep.traces);
        outcome.interrupted |= sweep.interrupted;
        outcome.rows.append(&mut rows);
    }
    Ok(outcome)
}

/// One pairing being measured.
struct Sweep<'a> {
    plan: &'a Plan,
    item: &'a Item,
    place: Place,
    host: &'a mut dyn Host,
    traces: Vec<Trace>,
    interrupted: bool,
}

impl Sweep<'_> {
    fn load(&mut self) -> Result<(Loaded, Answers), Status> {
        let target = self.item.target.clone()?;
        let answers = Answers::default();
        let simulate = self.plan.simulate.map(|probability| Simulation { answers: Arc::clone(&answers), probability });
        let draft = match (self.item.kind, self.drafter()) {
            (Kind::None, _) => Draft::None,
            (Kind::Mtp | Kind::Classic, Some(path)) => {
                Draft::Checkpoint { path: path.clone()?, kind: self.item.kind.draft_kind() }
            }
            // A script needs no drafter; what a lookup costs is next to nothing.
            _ if simulate.is_some() => Draft::None,
            (Kind::Ngram, _) => Draft::Ngram,
            (Kind::Dflash, _) => {
                return Err(Status::Skipped("deferred: this version has no dflash drafter yet".into()));
            }
            (Kind::Mtp | Kind::Classic, None) => return Err(Status::Absent("no drafter was given (--draft)".into())),
        };
        if let Some(simulation) = &simulate {
            let words = simulate::words(simulation.probability, self.drafter_name().as_deref());
            self.host.say(&format!("[bench] {}: {words}", self.item.name));
        }
        let widest = self.plan.ks.iter().map(|k| k.unwrap_or(MAX_BLOCK)).filter(|k| *k <= MAX_BLOCK).max();
        let wanted = Wanted {
            target: &target,
            draft,
            simulate,
            widest: widest.unwrap_or(1),
            parallel: self.plan.batches.iter().copied().max().unwrap_or(1),
            prompts: &self.plan.prompts,
            room: self.plan.max_tokens + MAX_BLOCK,
        };
        Ok((self.host.load(wanted)?, answers))
    }

    /// The drafter whose forward runs, with a script over it or without.
    fn drafter(&self) -> Option<&Result<PathBuf, Status>> {
        let runs = self.plan.simulate.is_none() || matches!(self.item.kind, Kind::Mtp | Kind::Classic);
        self.item.drafter.as_ref().filter(|_| runs)
    }

    fn drafter_name(&self) -> Option<String> {
        let path = self.drafter()?.as_ref().ok()?;
        Some(path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned()))
    }

    fn prompts<E>(
        &mut self,
        loaded: &mut Loaded,
        answers: &Answers,
        keep: &mut dyn FnMut(Vec<Row>) -> Result<(), E>,
    ) -> Result<(), E> {
        for (prompt, tokens) in self.plan.prompts.iter().zip(std::mem::take(&mut loaded.prompts)) {
            for batch in &self.plan.batches {
                if self.host.is_interrupted() {
                    self.interrupted = true;
                    return Ok(());
                }
                let rows = match &tokens {
                    Ok(tokens) => self.group(loaded, answers, &prompt.name, tokens, *batch),
                    Err(why) => vec![self.row(&prompt.name, *batch, Some(1), Status::Failed(why.clone()))],
                };
                keep(rows)?;
                if self.interrupted {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// All arms of one prompt and batch.
    fn group(&mut self, loaded: &mut Loaded, answers: &Answers, name: &str, prompt: &[u32], batch: usize) -> Vec<Row> {
        let mut arms = vec![Arm::new(Some(1), Status::Ok)];
        let drafts = self.item.kind != Kind::None || self.plan.simulate.is_some();
        if drafts {
            arms.extend(self.plan.ks.iter().map(|k| Arm::new(*k, may_draft(*k, &loaded.probed))));
        }
        let ask = |k, trace| Ask {
            prompt,
            k,
            batch,
            sampling: &self.plan.sampling,
            max_tokens: self.plan.max_tokens,
            ignore_eos: self.plan.ignore_eos,
            trace,
        };
        if self.plan.simulate.is_some() {
            // What a scripted drafter is to be right about.
            match measure::run(&mut loaded.engine, &ask(Some(1), false)) {
                Ok(run) => {
                    let whole = run.said.iter().map(|said| [prompt, &said.tokens].concat()).collect();
                    *answers.lock().unwrap_or_else(PoisonError::into_inner) = whole;
                }
                Err(why) => arms.iter_mut().for_each(|arm| arm.status = Status::Failed(why.clone())),
            }
        }
        for turn in 0..self.plan.warmup + self.plan.repeat {
            let warm = turn >= self.plan.warmup;
            // There and back again.
            let order: Vec<usize> =
                if turn % 2 == 0 { (0..arms.len()).collect() } else { (0..arms.len()).rev().collect() };
            for i in order {
                if arms[i].status != Status::Ok {
                    continue;
                }
                if self.host.is_interrupted() {
                    self.interrupted = true;
                    arms.iter_mut().filter(|arm| arm.runs.is_empty()).for_each(|arm| arm.interrupt());
                    return self.rows(&arms, loaded, name, prompt, batch);
                }
                match measure::run(&mut loaded.engine, &ask(arms[i].k, false)) {
                    Ok(run) if warm => arms[i].runs.push(run),
                    Ok(_) => {}
                    Err(why) => arms[i].status = Status::Failed(why),
                }
            }
        }
        if self.plan.trace {
            for arm in arms.iter().filter(|arm| arm.status == Status::Ok && arm.k != Some(1)) {
                if let Ok(run) = measure::run(&mut loaded.engine, &ask(arm.k, true)) {
                    self.trace(&run, arm, loaded, name, prompt, batch);
                }
            }
        }
        self.rows(&arms, loaded, name, prompt, batch)
    }

    fn trace(&mut self, run: &Run, arm: &Arm, loaded: &Loaded, name: &str, prompt: &[u32], batch: usize) {
        let sampling = &self.plan.sampling;
        let traces = run.rounds.iter().enumerate().map(|(sequence, rounds)| Trace {
            pairing: self.item.name.clone(),
            kind: self.kind().into(),
            k: arm.k,
            batch,
            sequence,
            prompt: name.into(),
            prompt_ids: prompt.to_vec(),
            checkpoint: loaded.checkpoint.clone(),
            sampling: (sampling.temperature, sampling.seed.wrapping_add(sequence as u64)),
            backend: loaded.engine.model().backend(),
            rounds: rounds.iter().map(Into::into).collect(),
        });
        let traces: Vec<Trace> = traces.collect();
        self.traces.extend(traces);
    }

    fn rows(&mut self, arms: &[Arm], loaded: &Loaded, name: &str, prompt: &[u32], batch: usize) -> Vec<Row> {
        let mut rows = Vec::with_capacity(arms.len());
        for arm in arms {
            let mut row = self.row(name, batch, arm.k, arm.status.clone());
            row.prompt_tokens = Some(prompt.len());
            row.backend = loaded.engine.model().backend();
            row.probe = match &loaded.probed {
                _ if arm.k == Some(1) => None,
                Probed::Unasked => None,
                Probed::Exact => Some("exact".into()),
                Probed::Inexact(why) | Probed::Declined(why) => Some(format!("inexact: {why}")),
            };
            arm.fill(&mut row, &arms[0]);
            self.announce(&row);
            rows.push(row);
        }
        rows
    }

    fn announce(&mut self, row: &Row) {
        let k = row.k.map_or("adaptive".into(), |k| format!("K={k}"));
        let what = format!("[bench/{}] Done: {} {k} B={} {}", row.kind, row.pairing, row.batch, row.prompt);
        let number = |x: Option<f64>, digits: usize| x.map_or("-".to_string(), |x| format!("{x:.digits$}"));
        let rate = row.tokens_per_second.map(|s| s.median);
        let speedup = row.speedup.map(|s| s.median);
        let line = match &row.status {
            Status::Ok if row.k == Some(1) => format!("{what}: {} tok/s", number(rate, 1)),
            Status::Ok => format!(
                "{what}: {} tok/s, speedup {}, acceptance_rate {}{}",
                number(rate, 1),
                number(speedup, 2),
                number(row.acceptance_rate, 3),
                if row.output_identical == Some(false) { ", OUTPUT DIFFERS" } else { "" }
            ),
            status => format!("{what}: {}", status.text()),
        };
        self.host.say(&line);
    }

    fn kind(&self) -> &'static str {
        if self.plan.simulate.is_some() { "simulated" } else { self.item.kind.name() }
    }

    /// A row with nothing measured.
    fn row(&self, prompt: &str, batch: usize, k: Option<usize>, status: Status) -> Row {
        let path = |path: &Result<PathBuf, Status>| path.as_ref().map(|p| p.display().to_string()).unwrap_or_default();
        let simulated = self.plan.simulate.is_some();
        Row {
            pairing: self.item.name.clone(),
            target: path(&self.item.target),
            drafter: self.drafter().filter(|_| k != Some(1)).map(path),
            kind: if k == Some(1) { "none" } else { self.kind() }.into(),
            batch,
            k,
            prompt: prompt.into(),
            repeat: self.plan.repeat,
            simulated: simulated && k != Some(1),
            simulated_acceptance: self.plan.simulate.filter(|_| k != Some(1)),
            temperature: self.plan.sampling.temperature,
            top_p: self.plan.sampling.top_p,
            seed: self.plan.sampling.seed,
            device: self.place.device.clone(),
            threads: self.place.threads,
            status,
            ..Row::unmeasured()
        }
    }
}

/// Whether a block width may be measured.
fn may_draft(k: Option<usize>, probed: &Probed) -> Status {
    match (k, probed) {
        (Some(k @ (0 | 1)), _) => {
            Status::Skipped(format!("K is {k}; at least 2 expected (K = 1 is plain decoding, which has a row)"))
        }
        (Some(k), _) if k > MAX_BLOCK => Status::Skipped(format!("K is {k}; at most {MAX_BLOCK} expected")),
        (_, Probed::Declined(why)) => Status::Skipped(why.clone()),
        _ => Status::Ok,
    }
}
