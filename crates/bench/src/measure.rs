//! One run of one arm: what it generated, how long that took, and what became of its rounds.

use mlxcel_engine::sample::SamplingParams;
use mlxcel_engine::speculate::MAX_BLOCK;
use mlxcel_engine::{Engine, Event, Recording, Request, RequestId, RoundRecord};

/// What a run asks for.
#[derive(Clone, Debug)]
pub struct Ask<'a> {
    /// Tokens of the prompt.
    pub prompt: &'a [u32],
    /// Block width; 1 = plain, `None` = adaptive.
    pub k: Option<usize>,
    /// Sequences at once; sequence `i` samples with the seed plus `i`.
    pub batch: usize,
    /// How tokens are chosen.
    pub sampling: &'a SamplingParams,
    /// Tokens of each answer. A round may overshoot, since all of a run's rounds are to have the same width.
    pub max_tokens: usize,
    /// Whether answers go on past the model's stop tokens.
    pub ignore_eos: bool,
    /// Whether rows are recorded, which takes time.
    pub trace: bool,
}

/// What one sequence said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// The text that each of them made certain.
    pub pieces: Vec<String>,
    /// Why it ended, if it ended by itself.
    pub reason: Option<&'static str>,
}

impl Said {
    /// Whether two arms said the same, as far as both were asked to speak: tokens, text, and how it ended.
    pub fn agrees(&self, other: &Said) -> bool {
        let (short, long) = if self.tokens.len() <= other.tokens.len() { (self, other) } else { (other, self) };
        let both = short.tokens.len();
        let ends_alike = if both == long.tokens.len() { short.reason == long.reason } else { short.reason.is_none() };
        ends_alike && short.tokens == long.tokens[..both] && short.pieces == long.pieces[..both]
    }
}

/// What a run came to. Times and counts are of the steps in which every sequence was past its prompt.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// What each sequence said.
    pub said: Vec<Said>,
    /// Tokens of those steps.
    pub tokens: usize,
    /// Seconds of those steps.
    pub seconds: f64,
    /// Steps with at least one draft, and their seconds: proposing, the target's forward, in all.
    pub drafting: Steps,
    /// Steps without one.
    pub plain: Steps,
    /// The rounds of each sequence, in order, those of the prompt's steps too.
    pub rounds: Vec<Vec<RoundRecord>>,
}

/// Sums over steps.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Steps {
    /// How many.
    pub count: usize,
    /// Seconds of proposing.
    pub draft: f64,
    /// Seconds of the target's forward pass.
    pub forward: f64,
    /// Seconds in all.
    pub total: f64,
}

impl Steps {
    fn add(&mut self, draft: f64, forward: f64, total: f64) {
        self.count += 1;
        self.draft += draft;
        self.forward += forward;
        self.total += total;
    }

    /// The same, of two runs.
    pub fn and(self, other: Steps) -> Steps {
        Steps {
            count: self.count + other.count,
            draft: self.draft + other.draft,
            forward: self.forward + other.forward,
            total: self.total + other.total,
        }
    }

    /// Milliseconds a step: proposing, forward, everything else. `None` without a step.
    pub fn each(&self) -> Option<(f64, f64, f64)> {
        let each = |seconds: f64| 1e3 * seconds / self.count as f64;
        (self.count > 0).then(|| (each(self.draft), each(self.forward), each(self.total - self.draft - self.forward)))
    }
}

/// Runs one arm once.
///
/// # Errors
/// What the engine refuses, or an answer that broke off, in words.
pub fn run(engine: &mut Engine, ask: &Ask<'_>) -> Result<Run, String> {
    engine.set_recording(if ask.trace { Recording::Rows } else { Recording::Rounds });
    let result = drive(engine, ask);
    engine.set_recording(Recording::Off);
    result
}

fn drive(engine: &mut Engine, ask: &Ask<'_>) -> Result<Run, String> {
    let room = engine.context() - ask.prompt.len().min(engine.context());
    let mut ids: Vec<RequestId> = Vec::with_capacity(ask.batch);
    let mut out = Run::default();
    for i in 0..ask.batch {
        let sampling = SamplingParams { seed: ask.sampling.seed.wrapping_add(i as u64), ..ask.sampling.clone() };
        let request = Request {
            prompt: ask.prompt.to_vec(),
            sampling,
            // Blocks are cut where the answer must end; beyond its end they are whole.
            max_tokens: Some((ask.max_tokens + MAX_BLOCK).min(room.max(1))),
            ignore_eos: ask.ignore_eos,
            show_special: true,
            block_size: ask.k,
            ..Request::default()
        };
        ids.push(engine.submit(request).map_err(|e| e.to_string())?);
    }
    out.said = vec![Said::default(); ask.batch];
    out.rounds = vec![Vec::new(); ask.batch];
    let mut failure = None;
    while !engine.is_idle() {
        let events = engine.step();
        let mut tokens = 0;
        for event in events {
            match event {
                Event::Token(token) => {
                    let Some(said) = place(&ids, token.id).map(|i| &mut out.said[i]) else { continue };
                    said.tokens.push(token.token);
                    said.pieces.push(token.text);
                    tokens += 1;
                }
                Event::Finished(end) => {
                    let Some(said) = place(&ids, end.id).map(|i| &mut out.said[i]) else { continue };
                    if let Some(why) = end.reason.failure() {
                        failure.get_or_insert(why.to_string());
                    }
                    said.reason = Some(end.reason.name());
                }
            }
        }
        let step = engine.last_step();
        if step.only_decodes && tokens > 0 {
            out.tokens += tokens;
            out.seconds += step.total;
            let drafted = step.rounds.iter().any(|round| !round.proposed.is_empty());
            let steps = if drafted { &mut out.drafting } else { &mut out.plain };
            steps.add(step.draft, step.forward, step.total);
        }
        for round in &step.rounds {
            if let Some(i) = place(&ids, round.id) {
                out.rounds[i].push(round.clone());
            }
        }
        for (i, id) in ids.iter().enumerate() {
            if out.said[i].tokens.len() >= ask.max_tokens && out.said[i].reason.is_none() {
                // Enough was said: it goes on being `None`, which is no end of its own.
                engine.cancel(*id);
            }
        }
        // A cancelled answer is not waited for.
        if let Some(why) = &failure {
            ids.iter().for_each(|id| drop(engine.cancel(*id)));
            return Err(why.clone());
        }
    }
    Ok(out)
}

fn place(ids: &[RequestId], id: RequestId) -> Option<usize> {
    ids.iter().position(|i| *i == id)
}

/// What became of the drafts of one arm.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Drafts {
    /// Rounds with a draft whose drafts were all judged: those in which an answer ended are left out.
    pub rounds: usize,
    /// Tokens proposed in them.
    pub proposed: usize,
    /// Of those, accepted.
    pub accepted: usize,
    /// Tokens emitted in them.
    pub emitted: usize,
    /// Narrowest and widest block of all steps.
    pub widths: Option<(usize, usize)>,
    /// For each depth: drafts tried (all before them were right), and right.
    pub depths: Vec<(usize, usize)>,
}

impl Drafts {
    /// Counts a round.
    pub fn add(&mut self, round: &RoundRecord) {
        let width = 1 + round.proposed.len();
        if round.ended {
            // What follows the end was not judged, and the block may have been cut there.
            return;
        }
        self.widths = Some(self.widths.map_or((width, width), |(low, high)| (low.min(width), high.max(width))));
        if round.proposed.is_empty() {
            return;
        }
        self.rounds += 1;
        self.proposed += round.proposed.len();
        self.accepted += round.accepted;
        self.emitted += round.emitted;
        self.depths.resize(self.depths.len().max(round.proposed.len()), (0, 0));
        for depth in 0..round.proposed.len().min(round.accepted + 1) {
            self.depths[depth].0 += 1;
            self.depths[depth].1 += usize::from(depth < round.accepted);
        }
    }

    /// accepted / proposed.
    pub fn acceptance_rate(&self) -> Option<f64> {
        (self.proposed > 0).then(|| self.accepted as f64 / self.proposed as f64)
    }

    /// accepted / rounds.
    pub fn mean_accepted_len(&self) -> Option<f64> {
        (self.rounds > 0).then(|| self.accepted as f64 / self.rounds as f64)
    }

    /// emitted / rounds.
    pub fn tokens_per_round(&self) -> Option<f64> {
        (self.rounds > 0).then(|| self.emitted as f64 / self.rounds as f64)
    }

    /// How often the draft of each depth was right where it was tried.
    pub fn by_depth(&self) -> Vec<f64> {
        self.depths.iter().filter(|d| d.0 > 0).map(|(tried, right)| *right as f64 / *tried as f64).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(tokens: &[u32], reason: Option<&'static str>) -> Said {
        let pieces = tokens.iter().map(|t| format!("<{t}>")).collect();
        Said { tokens: tokens.to_vec(), pieces, reason }
    }

    #[test]
    fn answers_agree_as_far_as_both_go() {
        let long = said(&[1, 2, 3, 4], None);
        assert!(long.agrees(&said(&[1, 2, 3], None)) && said(&[1, 2, 3], None).agrees(&long));
        let ended = said(&[1, 2, 3], Some("stop"));
        assert!(ended.agrees(&ended));
        for other in [
            said(&[1, 2, 3, 4], None),
            said(&[1, 2, 3], None),
            said(&[1, 2, 3], Some("length")),
            said(&[1, 2], None),
            said(&[1, 9, 3], Some("stop")),
        ] {
            let cut = other.reason.is_none() && other.tokens.len() < 3;
            assert_eq!(ended.agrees(&other), cut, "{other:?}");
            assert_eq!(other.agrees(&ended), cut, "{other:?}");
        }
        let mut text = ended.clone();
        text.pieces[1] = "<7>".into();
        assert!(!ended.agrees(&text));
    }

    fn round(proposed: usize, accepted: usize, ended: bool) -> RoundRecord {
        let emitted = accepted + usize::from(!ended);
        RoundRecord { proposed: vec![7; proposed], accepted, emitted, ended, ..RoundRecord::default() }
    }

    #[test]
    fn drafts_are_counted_by_depth() {
        let mut drafts = Drafts::default();
        assert_eq!((drafts.acceptance_rate(), drafts.mean_accepted_len(), drafts.widths), (None, None, None));
        for round in [round(3, 3, false), round(3, 1, false), round(3, 0, false), round(2, 2, true)] {
            drafts.add(&round);
        }
        assert_eq!((drafts.rounds, drafts.proposed, drafts.accepted, drafts.emitted), (3, 9, 4, 7));
        assert_eq!(drafts.widths, Some((4, 4)));
        assert_eq!(drafts.by_depth(), [2.0 / 3.0, 0.5, 1.0]);
        // Of a constant width, this always holds.
        assert_eq!(drafts.mean_accepted_len(), drafts.acceptance_rate().map(|rate| rate * 3.0));
        // A plain step makes the width another one; the relation is then another as well.
        drafts.add(&round(1, 0, false));
        drafts.add(&round(0, 0, false));
        assert_eq!(drafts.widths, Some((1, 4)));
        assert_ne!(drafts.mean_accepted_len(), drafts.acceptance_rate().map(|rate| rate * 3.0));
    }

    #[test]
    fn steps_are_split_up() {
        assert_eq!(Steps::default().each(), None);
        let mut steps = Steps::default();
        steps.add(0.001, 0.002, 0.004);
        let (draft, forward, rest) = steps.and(steps).each().expect("steps");
        assert!((draft - 1.0).abs() < 1e-9 && (forward - 2.0).abs() < 1e-9 && (rest - 1.0).abs() < 1e-9);
    }
}
