//! Where an answer stands in its grammar.

use llguidance::Matcher;
use mlxcel_model::drafters::Candidate;

use super::walk::{Step, Walk};
use super::{Constraint, Fault};
use crate::sample::TokenSet;

/// Times that a draft guide which failed is made anew, for one request.
const REBUILDS: usize = 4;

/// What may come next.
#[derive(Clone, Debug)]
pub(super) struct Next {
    /// Tokens that go on, the request's stop tokens apart.
    pub(super) allowed: TokenSet,
    /// Whether the text may end here.
    pub(super) may_end: bool,
}

impl Next {
    /// Asks a matcher; `end` is the id by which it allows an end. `None` where nothing but the end may follow.
    pub(super) fn ask(matcher: &mut Matcher, end: u32) -> Result<Option<Next>, String> {
        if matcher.is_stopped() {
            return match matcher.get_error() {
                Some(why) => Err(plain(&why)),
                None => Ok(None),
            };
        }
        let mask = matcher.compute_mask().map_err(|e| match plain(&e.to_string()).as_str() {
            "NoExtensionBias" => "no token of this model goes on from here".into(),
            why => why.to_owned(),
        })?;
        let mut allowed = TokenSet::from_words(mask.as_slice());
        let may_end = allowed.contains(end);
        allowed.remove(end);
        Ok((!allowed.is_empty()).then_some(Next { allowed, may_end }))
    }
}

/// A message of the library without what it appends for its developers.
pub(super) fn plain(message: &str) -> String {
    let message = message.split("\n<").next().unwrap_or_default();
    if message.contains("oneOf constraints are not supported") {
        return "oneOf: alternatives that exclude each other by type, const or enum expected, found some that may overlap; use anyOf"
            .into();
    }
    match message.trim().strip_prefix("panic: ") {
        Some(why) => format!("the grammar compiler gave up ({})", why.trim()),
        None => message.trim().to_owned(),
    }
}

/// A request's way through its grammar. It moves with the tokens that are chosen, and with nothing else.
pub struct Guide {
    walk: Walk,
    state: State,
    draft: Option<Box<DraftGuide>>,
    rebuilds: usize,
}

enum State {
    /// These tokens may follow, stop tokens included.
    Open(TokenSet),
    /// Nothing may.
    Complete,
    Failed(String),
}

impl State {
    fn of(walk: &mut Walk) -> State {
        match walk.next() {
            Ok(Some(allowed)) => State::Open(allowed),
            Ok(None) => State::Complete,
            Err(why) => State::Failed(why),
        }
    }
}

impl Guide {
    /// At the start of an answer that the tokens of `stops` end.
    pub fn new(constraint: Constraint, stops: impl IntoIterator<Item = u32>) -> Self {
        let mut walk = Walk::new(constraint, stops.into_iter().collect());
        let state = State::of(&mut walk);
        Guide { walk, state, draft: None, rebuilds: 0 }
    }

    fn has(&self, fault: Fault) -> bool {
        self.walk.constraint().0.fault == Some(fault)
    }

    /// The tokens to choose from; `None` = any.
    ///
    /// # Errors
    /// What the grammar engine said when the last token moved it.
    pub fn allowed(&self) -> Result<Option<&TokenSet>, String> {
        match &self.state {
            _ if self.has(Fault::NotApplied) => Ok(None),
            State::Open(set) => Ok(Some(set)),
            State::Complete => Err("the grammar allows nothing more".into()),
            State::Failed(why) => Err(why.clone()),
        }
    }

    /// Whether nothing may follow.
    pub fn is_complete(&self) -> bool {
        matches!(self.state, State::Complete)
    }

    /// Moves on by a chosen token that does not end the answer. What goes wrong is said when the next token is to be chosen.
    pub fn advance(&mut self, token: u32) {
        if self.has(Fault::NotApplied) {
            return;
        }
        self.state = match self.walk.push(token) {
            Ok(()) => State::of(&mut self.walk),
            Err(why) => State::Failed(why),
        };
    }

    /// The guide for drafts after `answer`, the tokens chosen so far; `None` where there is none, and drafts go unguided.
    pub fn start_drafting(&mut self, answer: &[u32]) -> Option<Box<DraftGuide>> {
        if self.has(Fault::UnguidedDrafts) {
            return None;
        }
        if let Some(mut draft) = self.draft.take()
            && draft.follow(answer).is_some()
        {
            return Some(draft);
        }
        if self.rebuilds == REBUILDS || matches!(self.state, State::Failed(_)) {
            return None;
        }
        self.rebuilds += 1;
        Some(Box::new(DraftGuide {
            walk: self.walk.fork(),
            fed: answer.to_vec(),
            steps: Vec::new(),
            answer: answer.len(),
            failed: false,
        }))
    }

    /// Takes the guide for drafts back.
    pub fn end_drafting(&mut self, draft: Option<Box<DraftGuide>>) {
        if let (true, Some(draft)) = (self.has(Fault::MovedByDrafts), &draft) {
            draft.fed[draft.answer..].iter().for_each(|token| self.advance(*token));
        }
        self.draft = draft;
    }
}

/// A guide for drafts: it runs ahead with them and is taken back.
pub struct DraftGuide {
    walk: Walk,
    /// Tokens that moved it: the answer's, then drafts.
    fed: Vec<u32>,
    /// Where it stood before each of the last of them; it cannot go back further.
    steps: Vec<Step>,
    /// How many of `fed` are the answer's.
    answer: usize,
    failed: bool,
}

impl DraftGuide {
    /// Goes to the end of `answer` by the shortest way; `None` if it cannot any more.
    fn follow(&mut self, answer: &[u32]) -> Option<()> {
        let same = self.fed.iter().zip(answer).take_while(|(a, b)| a == b).count();
        let back = self.fed.len() - same;
        if self.failed || back > self.steps.len() {
            return None;
        }
        let undone = self.steps.split_off(self.steps.len() - back);
        self.walk.undo(&undone).ok()?;
        self.fed.truncate(same);
        answer[same..].iter().for_each(|token| self.push(*token));
        self.answer = answer.len();
        (!self.failed).then_some(())
    }

    /// Moves on by a draft.
    pub fn push(&mut self, token: u32) {
        self.steps.push(self.walk.step());
        self.failed |= self.walk.push(token).is_err();
        self.fed.push(token);
    }

    /// The candidates that the grammar allows here, in their order. Where it allows a single token, that one, whoever thinks of it.
    pub fn narrow(&mut self, candidates: &[Candidate]) -> Vec<Candidate> {
        if self.failed {
            return Vec::new();
        }
        let allowed = match self.walk.next() {
            Ok(Some(allowed)) => allowed,
            Ok(None) => return Vec::new(),
            Err(_) => {
                self.failed = true;
                return Vec::new();
            }
        };
        let kept: Vec<Candidate> = candidates.iter().copied().filter(|c| allowed.contains(c.token)).collect();
        if kept.is_empty() && allowed.len() == 1 {
            return allowed.iter().map(|token| Candidate { token, logit: 0.0 }).collect();
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_for_the_client() {
        assert_eq!(plain("Unknown type 7\n<non-verbose/>"), "Unknown type 7");
        assert_eq!(
            plain("panic: not a char boundary\n<backtrace>\n 0: x\n</backtrace>"),
            "the grammar compiler gave up (not a char boundary)"
        );
    }
}
