//! Drafting for the sequences of a step: who asks, how many tokens, chosen how.

use std::time::Instant;

use mlxcel_model::drafters::{Ask, Candidate, Choose, Drafter, DrafterInfo, HiddenRows, Kept};

use super::acceptance::Acceptance;
use super::width::{Costs, Others, Policy, Seat, Width, plan};
use super::{MAX_BLOCK, Rounds, Speculation};
use crate::scheduler::Planned;
use crate::sequence::Sequence;

/// Tokens a drafter offers for each draft of a sampled or penalised request. The target's choice is rarely beyond them, and
/// choosing among few costs little.
const CANDIDATES: usize = 64;

/// The drafter of an engine, and what was learned of it.
pub struct Speculator {
    drafter: Box<dyn Drafter>,
    options: Speculation,
    costs: Costs,
    acceptance: Acceptance,
    /// Plain steps still to be measured before drafting begins.
    calibrate: usize,
    totals: Rounds,
    /// Why it was given up, and whether that was said.
    failure: Option<(String, bool)>,
}

/// Drafts of one step, by index of the running sequence; empty = a plain step.
pub type Drafts = Vec<Vec<u32>>;

impl Speculator {
    /// Takes over a drafter whose cache has been reserved.
    pub fn new(drafter: Box<dyn Drafter>, options: Speculation) -> Self {
        let calibrate = options.calibrate;
        let (costs, acceptance) = (Costs::new(), Acceptance::new());
        Speculator { drafter, options, costs, acceptance, calibrate, totals: Rounds::default(), failure: None }
    }

    /// What drafts.
    pub fn info(&self) -> &DrafterInfo {
        self.drafter.info()
    }

    /// Which hidden states it reads.
    pub fn hidden_rows(&self) -> HiddenRows {
        self.drafter.hidden_rows()
    }

    /// Counts over all requests.
    pub fn totals(&self) -> Rounds {
        self.totals
    }

    /// Seconds of a plain step of one sequence, as measured.
    pub fn plain_step(&self) -> Option<f64> {
        self.costs.step_cost(1)
    }

    /// What was measured.
    pub fn costs(&self) -> &Costs {
        &self.costs
    }

    /// Acceptance by depth over all requests.
    pub fn acceptance(&self) -> &Acceptance {
        &self.acceptance
    }

    /// The controller of a new sequence; `asked` is the request's own block width. `None` = it never drafts.
    pub fn width(&self, asked: Option<usize>) -> Option<Width> {
        let policy = match asked.or(self.options.block_size) {
            _ if self.failure.is_some() => return None,
            Some(0 | 1) => return None,
            Some(k) => Policy::Pinned(k.min(MAX_BLOCK)),
            None if self.options.adaptive => Policy::Adaptive { start: self.own_width(), most: MAX_BLOCK },
            None => Policy::Pinned(self.own_width()),
        };
        Some(Width::new(policy))
    }

    fn own_width(&self) -> usize {
        self.info().block_size.clamp(2, MAX_BLOCK)
    }

    /// A slot has a new owner, which goes on from its first `len` positions.
    pub fn hand_on(&mut self, slot: usize, len: usize) {
        self.drafter.take_back(slot, len);
    }

    /// Drafts for the sequences of a step that decode. `most[i]` is the widest block sequence `i` may have; 1 for those that do
    /// not decode.
    pub fn draft(&mut self, running: &mut [Sequence], most: &[usize], assigned: usize, budget: usize) -> Drafts {
        let mut drafts: Drafts = vec![Vec::new(); running.len()];
        if self.failure.is_some() {
            return drafts;
        }
        let decoding = running.iter().filter(|s| s.is_decoding()).count();
        if self.calibrate > 0 {
            self.calibrate -= usize::from(decoding > 0 && decoding == running.len());
            return drafts;
        }
        let alone = if decoding == 1 { self.options.alone } else { None };
        // Rows beside those that every sequence has anyway.
        let mut spare = budget.saturating_sub(decoding);
        let mut who = Vec::new();
        let mut seats = Vec::new();
        for (i, sequence) in running.iter_mut().enumerate() {
            if let (true, Some(width)) = (sequence.is_decoding(), sequence.width.as_mut()) {
                who.push(i);
                seats.push(Seat { width, most: most[i].min(1 + spare) });
            }
        }
        let others = decoding - seats.len();
        let widths = match alone {
            Some(drafts) => vec![if drafts { self.own_width() } else { 1 }; seats.len()],
            None => plan(&mut seats, &self.costs, &self.acceptance, Others { rows: others, sequences: others }),
        };
        let mut chosen = Vec::new();
        for (i, k) in who.into_iter().zip(widths) {
            let k = k.min(most[i]).min(1 + spare).max(1);
            spare -= k - 1;
            let settled = running[i].width.as_ref().map_or(1, Width::settled);
            running[i].set_idle(match alone {
                Some(drafts) => !drafts,
                None => settled == 1 && k == 1,
            });
            if k > 1 {
                chosen.push((i, k - 1));
            }
        }
        if chosen.is_empty() {
            return drafts;
        }
        let asks: Vec<Ask<'_>> =
            chosen.iter().map(|(i, count)| running[*i].ask(*count, self.candidates(&running[*i]))).collect();
        let mut chooser = Chooser {
            sequences: chosen.iter().map(|(i, _)| &running[*i]).collect(),
            drafted: vec![Vec::new(); chosen.len()],
            assigned,
            options: &self.options,
        };
        let started = Instant::now();
        let proposed = self.drafter.propose(&asks, &mut chooser);
        let depth = chosen.iter().map(|(_, count)| *count).max().unwrap_or(0);
        match proposed {
            Ok(proposed) => {
                self.costs.draft(chosen.len(), depth, started.elapsed().as_secs_f64());
                for ((i, count), mut tokens) in chosen.into_iter().zip(proposed) {
                    // Whatever a drafter returns, no row may stand for a token that is none.
                    let valid = tokens.iter().take_while(|t| (**t as usize) < assigned).count();
                    tokens.truncate(valid.min(count));
                    drafts[i] = tokens;
                }
            }
            Err(error) => self.fail(error.to_string()),
        }
        drafts
    }

    fn candidates(&self, sequence: &Sequence) -> usize {
        if sequence.takes_the_largest() || self.options.coupling == super::Coupling::Greedy { 1 } else { CANDIDATES }
    }

    /// Notes what became of a round's drafts.
    pub fn record(&mut self, sequence: &mut Sequence, proposed: usize, accepted: usize, emitted: usize) {
        let Some(width) = &mut sequence.width else { return };
        width.round(1 + proposed, proposed, accepted);
        if proposed > 0 {
            self.acceptance.record(proposed, accepted);
        }
        self.totals.add(proposed, accepted, emitted);
        sequence.rounds.add(proposed, accepted, emitted);
    }

    /// Notes how long a step took that only decoded.
    pub fn measured(&mut self, rows: usize, seconds: f64) {
        self.costs.step(rows, seconds);
    }

    /// Lets the drafter see rows that were kept.
    pub fn observe(&mut self, kept: &[Kept<'_>]) {
        if self.failure.is_some() || kept.is_empty() {
            return;
        }
        if let Err(error) = self.drafter.observe(kept) {
            self.fail(error.to_string());
        }
    }

    /// Forgets what a sequence that stopped drafting would have to be caught up on.
    pub fn idle(&mut self, slot: usize) {
        if self.hidden_rows() == HiddenRows::All {
            self.drafter.take_back(slot, 0);
        }
    }

    /// Why drafting was given up.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_ref().map(|f| f.0.as_str())
    }

    /// The same, the first time it is asked.
    pub fn take_failure(&mut self) -> Option<String> {
        let (why, said) = self.failure.as_mut()?;
        (!std::mem::replace(said, true)).then(|| why.clone())
    }

    fn fail(&mut self, why: String) {
        self.failure.get_or_insert((why, false));
    }
}

/// Hidden rows of one span, for [`Speculator::observe`]. `wanted` is the index of its first wanted row, `first` of its first row.
pub fn kept<'a>(
    rows: HiddenRows,
    sequence: &'a Sequence,
    slot: usize,
    planned: Planned,
    kept: usize,
    wanted: usize,
    first: usize,
) -> Kept<'a> {
    // Of a span without drafts only the last row was wanted.
    let skipped = if rows == HiddenRows::Wanted && planned.drafts == 0 { kept - 1 } else { 0 };
    let start = planned.start + skipped;
    let len = kept - skipped;
    let at = if rows == HiddenRows::Wanted { wanted } else { first };
    Kept { slot, start, rows: at..at + len, next: &sequence.history.tokens()[start + 1..start + 1 + len] }
}

/// Chooses drafts as the requests themselves would choose tokens.
struct Chooser<'a> {
    sequences: Vec<&'a Sequence>,
    drafted: Vec<Vec<u32>>,
    assigned: usize,
    options: &'a Speculation,
}

impl Choose for Chooser<'_> {
    fn choose(&mut self, ask: usize, _: usize, candidates: &[Candidate]) -> Option<u32> {
        let drafted = &mut self.drafted[ask];
        let sequence = self.sequences[ask];
        // Nothing follows a token that ends the answer.
        if drafted.last().is_some_and(|t| sequence.ends_with(*t)) {
            return None;
        }
        let token = sequence.draft(candidates, drafted, self.options.coupling)?;
        if token as usize >= self.assigned {
            return None;
        }
        drafted.push(token);
        Some(token)
    }
}
