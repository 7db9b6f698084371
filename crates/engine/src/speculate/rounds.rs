//! Drafting for the sequences of a step: who asks, how many tokens, chosen how.

use std::collections::VecDeque;
use std::time::Instant;

use mlxcel_model::drafters::{Ask, Candidate, Choose, Drafter, DrafterInfo, HiddenRows, Kept};

use super::acceptance::Acceptance;
use super::width::{Costs, Others, Policy, Seat, Width, plan};
use super::{MAX_BLOCK, Rounds, Speculation};
use crate::engine::caught;
use crate::grammar::guide::DraftGuide;
use crate::scheduler::Planned;
use crate::sequence::Sequence;

/// Tokens a drafter offers for each draft of a sampled or penalised request. The target's choice is rarely beyond them, and
/// choosing among few costs little.
const CANDIDATES: usize = 64;

/// Sequences whose widths are chosen together: the time that takes grows with the square.
const TOGETHER: usize = 16;

/// Plain steps whose times are kept.
const PLAIN_STEPS: usize = 63;

/// Part of a plain step that a round costs beside what is measured of it (demo pairs on one thread, where widths measured as even with
/// plain decoding ran at 0.95 to 0.98 of it).
const UNSEEN: f64 = 0.04;

/// Errors after which a drafter is given up.
const ERRORS: usize = 3;

/// The drafter of an engine, and what was learned of it.
pub struct Speculator {
    drafter: Box<dyn Drafter>,
    options: Speculation,
    costs: Costs,
    acceptance: Acceptance,
    /// Plain steps still to be measured before drafting begins.
    calibrate: usize,
    totals: Rounds,
    /// Seconds of the last plain steps of one sequence.
    plain: VecDeque<f64>,
    /// Whether margins of drafts are kept, and those of the last proposals, by index of the running sequence.
    keep_margins: bool,
    margins: Vec<Vec<f32>>,
    errors: usize,
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
        let (totals, plain) = (Rounds::default(), VecDeque::new());
        Speculator {
            drafter,
            options,
            costs,
            acceptance,
            calibrate,
            totals,
            plain,
            keep_margins: false,
            margins: Vec::new(),
            errors: 0,
            failure: None,
        }
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

    /// Seconds of a plain step of one sequence: the median of the last ones; `None` before the first.
    pub fn plain_step(&self) -> Option<f64> {
        let mut seconds: Vec<f64> = self.plain.iter().copied().collect();
        seconds.sort_by(f64::total_cmp);
        seconds.get(seconds.len() / 2).copied()
    }

    /// Whether to keep by how much each draft was the drafter's favourite.
    pub(crate) fn keep_margins(&mut self, keep: bool) {
        self.keep_margins = keep;
    }

    /// Margins of the drafts that the running sequence of an index was last proposed.
    pub(crate) fn take_margins(&mut self, index: usize) -> Vec<f32> {
        self.margins.get_mut(index).map(std::mem::take).unwrap_or_default()
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
        let most = self.options.most.min(MAX_BLOCK);
        let policy = match asked.or(self.options.block_size) {
            _ if self.failure.is_some() || most < 2 => return None,
            Some(0 | 1) => return None,
            Some(k) => Policy::Pinned(k.min(most)),
            None if self.options.adaptive => Policy::Adaptive { start: self.own_width(), most },
            None => Policy::Pinned(self.own_width()),
        };
        Some(Width::new(policy))
    }

    fn own_width(&self) -> usize {
        self.info().block_size.clamp(2, self.options.most.clamp(2, MAX_BLOCK))
    }

    /// A slot has a new owner, which goes on from its first `len` positions.
    pub fn hand_on(&mut self, slot: usize, len: usize) {
        self.drafter.take_back(slot, len);
    }

    /// Drafts for the sequences of a step that decode. `most[i]` is the widest block sequence `i` may have. Tokens are below
    /// `assigned`; rows of all blocks together stay near `budget`.
    pub fn draft(&mut self, running: &mut [Sequence], most: &[usize], assigned: usize, budget: usize) -> Drafts {
        let mut drafts: Drafts = vec![Vec::new(); running.len()];
        self.margins.clear();
        let decoding = running.iter().filter(|s| s.is_decoding()).count();
        if self.failure.is_some() || decoding == 0 {
            return drafts;
        }
        if self.calibrate > 0 {
            self.calibrate -= 1;
            return drafts;
        }
        // Choosing counts as drafting: without drafts it would be for nothing.
        let started = Instant::now();
        let chosen = self.choose_widths(running, most, decoding, budget);
        // A drafter that has to catch up takes longer than a proposal does.
        let steady = chosen.iter().all(|(i, _)| running[*i].is_drafting());
        for (i, sequence) in running.iter_mut().enumerate().filter(|(_, s)| s.is_decoding()) {
            sequence.set_drafting(chosen.iter().any(|c| c.0 == i));
        }
        if chosen.is_empty() {
            return drafts;
        }
        let guides = chosen.iter().map(|(i, _)| running[*i].start_drafting()).collect();
        let asks: Vec<Ask<'_>> =
            chosen.iter().map(|(i, count)| running[*i].ask(*count, self.candidates(&running[*i]))).collect();
        let mut chooser = Chooser {
            sequences: chosen.iter().map(|(i, _)| &running[*i]).collect(),
            drafted: vec![Vec::new(); chosen.len()],
            margins: vec![Vec::new(); chosen.len()],
            guides,
            assigned,
            options: &self.options,
        };
        let proposed = self.drafter.propose(&asks, &mut chooser);
        let seconds = started.elapsed().as_secs_f64();
        let (margins, guides) = (chooser.margins, chooser.guides);
        for ((i, _), guide) in chosen.iter().zip(guides) {
            running[*i].end_drafting(guide);
        }
        match proposed {
            Ok(proposed) => {
                let depth = proposed.iter().map(Vec::len).max().unwrap_or(0);
                if steady && depth > 0 {
                    self.costs.draft(chosen.len(), depth, seconds + self.unseen());
                } else {
                    let usual = self.costs.draft_cost(chosen.len(), depth.max(1)).unwrap_or(seconds);
                    let each = (seconds - usual).max(0.0) / chosen.len() as f64;
                    for (i, _) in &chosen {
                        if let Some(width) = &mut running[*i].width {
                            width.charge(each);
                        }
                    }
                }
                if self.keep_margins {
                    self.margins = vec![Vec::new(); drafts.len()];
                    chosen.iter().zip(margins).for_each(|((i, _), own)| self.margins[*i] = own);
                }
                for ((i, count), mut tokens) in chosen.into_iter().zip(proposed) {
                    // Whatever a drafter returns, no row may stand for a token that is none.
                    let valid = tokens.iter().take_while(|t| (**t as usize) < assigned).count();
                    tokens.truncate(valid.min(count));
                    drafts[i] = tokens;
                }
            }
            Err(error) => self.fail(&error.to_string()),
        }
        drafts
    }

    /// Which sequences draft in this step, and how many tokens.
    fn choose_widths(
        &mut self,
        running: &mut [Sequence],
        most: &[usize],
        decoding: usize,
        budget: usize,
    ) -> Vec<(usize, usize)> {
        // Rows beside those that every sequence has anyway.
        let mut spare = budget.saturating_sub(decoding);
        let alone = if decoding == 1 { self.options.alone } else { None };
        let own_width = self.own_width();
        let mut who = Vec::new();
        let mut seats = Vec::new();
        for (i, sequence) in running.iter_mut().enumerate() {
            if let (true, Some(width)) = (sequence.is_decoding(), sequence.width.as_mut()) {
                who.push(i);
                seats.push(Seat { width, most: most[i].min(1 + spare) });
            }
        }
        // What the operator says of sequences that run alone is about those that name no width.
        let forced = alone.filter(|_| seats.iter().all(|s| !s.width.is_pinned()));
        let mut widths = Vec::with_capacity(seats.len());
        for group in seats.chunks_mut(TOGETHER) {
            let others = decoding - group.len();
            widths.extend(match forced {
                Some(drafts) => vec![if drafts { own_width } else { 1 }; group.len()],
                None => plan(group, &self.costs, &self.acceptance, Others { rows: others, sequences: others }),
            });
        }
        let mut chosen = Vec::new();
        for (i, k) in who.into_iter().zip(widths) {
            let k = k.min(most[i]).min(1 + spare).max(1);
            spare -= k - 1;
            if k > 1 {
                chosen.push((i, k - 1));
            }
        }
        chosen
    }

    /// What a round costs that is measured neither with its step nor with its drafts: two models take turns in the caches, and several
    /// tokens come at once.
    fn unseen(&self) -> f64 {
        UNSEEN * self.costs.step_cost(1).unwrap_or(0.0)
    }

    fn candidates(&self, sequence: &Sequence) -> usize {
        match sequence.takes_the_largest() || self.options.coupling == super::Coupling::Greedy {
            // The second says by how much the first is the drafter's favourite.
            true => 1 + usize::from(self.keep_margins),
            false => CANDIDATES,
        }
    }

    /// Notes what became of a round's drafts; those after the end of an answer were not judged.
    pub fn record(&mut self, sequence: &mut Sequence, proposed: usize, judged: usize, accepted: usize, emitted: usize) {
        let Some(width) = &mut sequence.width else { return };
        width.round(1 + proposed, judged, accepted);
        if judged > 0 {
            self.acceptance.record(judged, accepted);
        }
        self.totals.add(proposed, accepted, emitted);
        sequence.rounds.add(proposed, accepted, emitted);
    }

    /// Notes how long a step took that only decoded.
    pub fn measured(&mut self, rows: usize, seconds: f64) {
        self.costs.step(rows, seconds);
        if rows == 1 {
            if self.plain.len() == PLAIN_STEPS {
                self.plain.pop_front();
            }
            self.plain.push_back(seconds);
        }
    }

    /// Lets the drafter see rows that were kept.
    pub fn observe(&mut self, kept: &[Kept<'_>]) {
        if self.failure.is_some() || kept.is_empty() {
            return;
        }
        if let Err(error) = self.drafter.observe(kept) {
            self.fail(&error.to_string());
        }
    }

    /// Forgets what a sequence that has not drafted for long would have to be caught up on.
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

    /// One error may be a single sequence's; a drafter that goes on failing is given up.
    pub(crate) fn fail(&mut self, why: &str) {
        self.errors += 1;
        if self.errors >= ERRORS {
            self.failure.get_or_insert((why.into(), false));
        }
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
    margins: Vec<Vec<f32>>,
    /// What keeps drafts within the requests' grammars.
    guides: Vec<Option<Box<DraftGuide>>>,
    assigned: usize,
    options: &'a Speculation,
}

impl Choose for Chooser<'_> {
    fn choose(&mut self, ask: usize, _: usize, candidates: &[Candidate]) -> Option<u32> {
        // What panics here is the request's own sampling or grammar, not the drafter.
        caught(|| self.choose_own(ask, candidates)).ok().flatten()
    }

    fn takes_the_first(&self) -> bool {
        // A grammar may want another one.
        self.guides.iter().all(Option::is_none)
    }
}

impl Chooser<'_> {
    fn choose_own(&mut self, ask: usize, candidates: &[Candidate]) -> Option<u32> {
        let drafted = &mut self.drafted[ask];
        let sequence = self.sequences[ask];
        // Nothing follows a token that ends the answer.
        if drafted.last().is_some_and(|t| sequence.ends_with(*t)) {
            return None;
        }
        let within = self.guides[ask].as_mut().map(|guide| guide.narrow(candidates));
        let candidates = within.as_deref().unwrap_or(candidates);
        let token = sequence.draft(candidates, drafted, self.options.coupling)?;
        if token as usize >= self.assigned {
            return None;
        }
        drafted.push(token);
        if let Some(guide) = self.guides[ask].as_mut().filter(|_| !sequence.ends_with(token)) {
            guide.push(token);
        }
        if let [first, second, ..] = candidates {
            self.margins[ask].push(first.logit - second.logit);
        }
        Some(token)
    }
}
