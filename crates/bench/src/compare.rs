//! Two hosts side by side: where acceptance differs, is it the host or the prompt?
//!
//! Rows of the same pairing, prompt, batch and K stand beside each other. Where both files are traces, their rounds are walked
//! together: equal prompts whose rounds part (other drafts, other tokens, or only other bits) say that the hosts compute
//! differently; equal rounds, or different prompts, say that nothing of the kind explains a gap.

use serde::Serialize;

use crate::report::json::Report;
use crate::row::Row;
use crate::trace::{Trace, TraceRound};

/// Why two rows may differ.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "cause", rename_all = "snake_case")]
pub enum Cause {
    /// The hosts compute differently.
    Host {
        /// The first rounds that differ.
        parting: Parting,
    },
    /// The prompts differ, so that nothing can be said about the hosts.
    Prompt,
    /// The checkpoints differ, or how tokens were chosen.
    Pairing {
        /// What differs.
        what: String,
    },
    /// Every round is the same to the last bit: what differs between rows of this pairing is the prompts' and the pairing's own.
    Same {
        /// Rounds compared.
        rounds: usize,
    },
    /// One of the files has no trace of this row.
    Unknown,
}

/// Where two hosts part.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Parting {
    /// Number of the first round (from 0) whose drafts, tokens or counts differ; `None` when only bits do, so that acceptance is
    /// the same all the way.
    pub round: Option<usize>,
    /// Its position.
    pub position: Option<usize>,
    /// What differs there: `drafts`, `tokens`, or `width`.
    pub what: Option<&'static str>,
    /// The target's smallest top-2 margin among the rows of that round, on either host: a near-tie is small.
    pub margin: Option<f32>,
    /// The drafter's margin at the first draft that differs, where it was told.
    pub draft_margin: Option<f32>,
    /// Number and position of the first round in which logits or hidden states differ by their bits.
    pub bits: Option<(usize, usize)>,
}

/// One line of the comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    /// The pairing.
    pub pairing: String,
    /// Block width; `None` = adaptive.
    pub k: Option<usize>,
    /// Sequences at once.
    pub batch: usize,
    /// Prompt of the first file, and of the second where it is another one.
    pub prompts: (String, Option<String>),
    /// acceptance_rate of both.
    pub acceptance: (Option<f64>, Option<f64>),
    /// Tokens a second of both, medians.
    pub tokens_per_second: (Option<f64>, Option<f64>),
    /// Speedup of both, medians.
    pub speedup: (Option<f64>, Option<f64>),
    /// Backend of both.
    pub backends: (String, String),
    /// Why.
    #[serde(flatten)]
    pub cause: Cause,
}

/// Compares two reports or traces. Rows of the same prompt stand together; prompts that only one file has are put beside each
/// other in order. Plain rows take no part: nothing is accepted in them.
pub fn compare(a: &Report, b: &Report) -> Vec<Line> {
    let speculative = |row: &&Row| row.k != Some(1) && row.kind != "none";
    let mut rest: Vec<&Row> = b.rows.iter().filter(speculative).collect();
    let mut lines = Vec::new();
    let mut left = Vec::new();
    let place = |row: &Row| (row.pairing.clone(), row.kind.clone(), row.k, row.batch);
    for row in a.rows.iter().filter(speculative) {
        match rest.iter().position(|other| place(other) == place(row) && other.prompt == row.prompt) {
            Some(i) => lines.push(line(a, row, b, rest.remove(i))),
            None => left.push(row),
        }
    }
    for row in left {
        if let Some(i) = rest.iter().position(|other| place(other) == place(row)) {
            lines.push(line(a, row, b, rest.remove(i)));
        }
    }
    lines
}

fn line(a: &Report, one: &Row, b: &Report, other: &Row) -> Line {
    let median = |row: &Row, what: fn(&Row) -> Option<crate::row::Spread>| what(row).map(|spread| spread.median);
    Line {
        pairing: one.pairing.clone(),
        k: one.k,
        batch: one.batch,
        prompts: (one.prompt.clone(), (one.prompt != other.prompt).then(|| other.prompt.clone())),
        acceptance: (one.acceptance_rate, other.acceptance_rate),
        tokens_per_second: (median(one, |r| r.tokens_per_second), median(other, |r| r.tokens_per_second)),
        speedup: (median(one, |r| r.speedup), median(other, |r| r.speedup)),
        backends: (one.backend.clone(), other.backend.clone()),
        cause: cause(&traces(a, one), &traces(b, other)),
    }
}

fn traces<'a>(file: &'a Report, row: &Row) -> Vec<&'a Trace> {
    let of = |t: &&Trace| {
        (&t.pairing, &t.kind, t.k, t.batch, &t.prompt) == (&row.pairing, &row.kind, row.k, row.batch, &row.prompt)
    };
    let mut found: Vec<&Trace> = file.traces.iter().filter(of).collect();
    found.sort_by_key(|trace| trace.sequence);
    found
}

/// What tells two rows' traces apart; one trace a sequence.
fn cause(a: &[&Trace], b: &[&Trace]) -> Cause {
    if a.is_empty() || b.is_empty() || a.len() != b.len() {
        return Cause::Unknown;
    }
    let mut rounds = 0;
    let mut only_bits = None;
    for (a, b) in a.iter().zip(b) {
        if a.prompt_ids != b.prompt_ids {
            return Cause::Prompt;
        }
        for (what, differs) in [("checkpoint", a.checkpoint != b.checkpoint), ("sampling", a.sampling != b.sampling)] {
            if differs {
                return Cause::Pairing { what: what.into() };
            }
        }
        match parting(&a.rounds, &b.rounds) {
            Some(parting) if parting.round.is_some() => return Cause::Host { parting },
            Some(parting) => drop(only_bits.get_or_insert(parting)),
            None => rounds += a.rounds.len(),
        }
    }
    match only_bits {
        Some(parting) => Cause::Host { parting },
        None => Cause::Same { rounds },
    }
}

/// The first rounds that differ, if any do.
fn parting(a: &[TraceRound], b: &[TraceRound]) -> Option<Parting> {
    let mut bits = None;
    for (number, (one, other)) in a.iter().zip(b).enumerate() {
        if bits.is_none() && (one.logits != other.logits || one.hidden != other.hidden) {
            bits = Some((number, one.position));
        }
        let what = if one.proposed != other.proposed {
            let same = one.proposed.iter().zip(&other.proposed).take_while(|(a, b)| a == b).count();
            let cut = same == one.proposed.len().min(other.proposed.len());
            Some(if cut { "width" } else { "drafts" })
        } else if one.tokens != other.tokens || one.accepted != other.accepted {
            Some("tokens")
        } else {
            None
        };
        if what.is_none() {
            continue;
        }
        let smallest = |a: Option<f32>, b: &Option<f32>| match (a, *b) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let draft = one.proposed.iter().zip(&other.proposed).position(|(a, b)| a != b);
        let draft_margin = draft.and_then(|d| {
            smallest(one.draft_margins.get(d).copied().flatten(), &other.draft_margins.get(d).copied().flatten())
        });
        return Some(Parting {
            round: Some(number),
            position: Some(one.position),
            what,
            margin: one.margins.iter().chain(&other.margins).fold(None, smallest),
            draft_margin,
            bits,
        });
    }
    if a.len() != b.len() {
        let number = a.len().min(b.len());
        let position = a.get(number).or(b.get(number)).map(|round| round.position);
        return Some(Parting {
            round: Some(number),
            position,
            what: Some("tokens"),
            margin: None,
            draft_margin: None,
            bits,
        });
    }
    let only = |bits| Parting { round: None, position: None, what: None, margin: None, draft_margin: None, bits };
    bits.map(|bits| only(Some(bits)))
}

impl Line {
    /// The verdict in words.
    pub fn verdict(&self) -> String {
        match &self.cause {
            Cause::Host { parting } => {
                let bits = parting.bits.map_or(String::new(), |(round, position)| {
                    format!("; logits or hidden states first differ in round {round} (position {position})")
                });
                match (parting.round, parting.position, parting.what) {
                    (Some(round), position, Some(what)) => {
                        let at = position.map_or(String::new(), |p| format!(" (position {p})"));
                        let margin =
                            |name: &str, m: Option<f32>| m.map_or(String::new(), |m| format!(", {name} {m:.3e}"));
                        format!(
                            "host: round {round}{at} has other {what}{}{}{bits}",
                            margin("the target's smallest top-2 margin there", parting.margin),
                            margin("the drafter's", parting.draft_margin)
                        )
                    }
                    _ => format!(
                        "host: the same drafts and tokens from other bits{bits}; that explains no gap in acceptance"
                    ),
                }
            }
            Cause::Prompt => "prompt: the prompts differ, and with them what can be accepted".into(),
            Cause::Pairing { what } => format!("pairing: the {what} differs"),
            Cause::Same { rounds } => {
                format!("prompt/pairing: {rounds} rounds equal to the last bit; the hosts explain no gap")
            }
            Cause::Unknown => "unknown: no traces of this row in both files (run with --trace)".into(),
        }
    }
}

/// The comparison for people: a block a row, figures of both files beside each other.
pub fn text(lines: &[Line], a: &str, b: &str) -> String {
    let mut out = format!("A  {a}\nB  {b}\n");
    let number = |x: Option<f64>, digits: usize| x.map_or("-".to_string(), |x| format!("{x:.digits$}"));
    let pair = |(a, b): (Option<f64>, Option<f64>), digits| format!("{} / {}", number(a, digits), number(b, digits));
    for line in lines {
        let k = line.k.map_or("adaptive".into(), |k| format!("K={k}"));
        let (prompt, other) = &line.prompts;
        let prompts = other.as_ref().map_or(prompt.clone(), |other| format!("{prompt} / {other}"));
        out += &format!("\n{}  {k}  B={}  {prompts}\n", line.pairing, line.batch);
        if line.backends.0 != line.backends.1 {
            out += &format!("  backends         {} / {}\n", line.backends.0, line.backends.1);
        }
        out += &format!("  acceptance_rate  {}\n", pair(line.acceptance, 3));
        out += &format!("  tokens/s         {}\n", pair(line.tokens_per_second, 1));
        out += &format!("  speedup          {}\n", pair(line.speedup, 2));
        out += &format!("  {}\n", line.verdict());
    }
    if lines.is_empty() {
        out += "\nno row of one has its like (pairing, kind, K, batch) in the other\n";
    }
    out
}

#[cfg(test)]
mod tests;
