//! The way of an answer: through its thoughts, where there are any, and through its grammar.

use llguidance::Matcher;

use super::Constraint;
use super::guide::{Next, plain};
use super::thoughts::Place;
use crate::sample::TokenSet;

/// A place in the thoughts and the grammar of one answer.
pub(super) struct Walk {
    constraint: Constraint,
    matcher: Matcher,
    stops: Vec<u32>,
    step: Step,
}

/// What a token changes of it, the matcher apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    place: Place,
    /// Tokens so far.
    fed: usize,
    /// Of those, the matcher's.
    matched: usize,
}

impl Walk {
    /// At the start of an answer that the tokens of `stops` end.
    pub(super) fn new(constraint: Constraint, stops: Vec<u32>) -> Self {
        let matcher = constraint.matcher();
        let place = constraint.1.as_ref().map_or(Place::Text, |thoughts| thoughts.start());
        Walk { constraint, matcher, stops, step: Step { place, fed: 0, matched: 0 } }
    }

    pub(super) fn constraint(&self) -> &Constraint {
        &self.constraint
    }

    /// The same place; nothing is shared, not even caches.
    pub(super) fn fork(&self) -> Self {
        let (constraint, matcher) = (self.constraint.clone(), self.matcher.deep_clone());
        Walk { constraint, matcher, stops: self.stops.clone(), step: self.step }
    }

    pub(super) fn step(&self) -> Step {
        self.step
    }

    /// Goes back by tokens before which it stood at these places.
    pub(super) fn undo(&mut self, steps: &[Step]) -> Result<(), String> {
        let Some(first) = steps.first() else { return Ok(()) };
        let tokens = self.step.matched - first.matched;
        self.step = *first;
        if tokens == 0 { Ok(()) } else { self.matcher.rollback(tokens).map_err(|e| plain(&e.to_string())) }
    }

    /// Moves on by a token that does not end the answer.
    pub(super) fn push(&mut self, token: u32) -> Result<(), String> {
        let place = match &self.constraint.1 {
            Some(thoughts) => thoughts.after(self.step.place, token)?,
            None => Place::Text,
        };
        if place == Place::Text {
            let own = if self.step.fed == 0 { self.constraint.0.lead.stand_in(token) } else { token };
            self.matcher.consume_token(own).map_err(|e| plain(&e.to_string()))?;
            self.step.matched += 1;
        }
        self.step = Step { place, fed: self.step.fed + 1, ..self.step };
        Ok(())
    }

    /// The tokens that may follow, stop tokens included; `None` where nothing may.
    pub(super) fn next(&mut self) -> Result<Option<TokenSet>, String> {
        if let Some(thoughts) = &self.constraint.1
            && let Some(allowed) = thoughts.allowed(self.step.place, &self.stops)
        {
            return Ok(Some(allowed));
        }
        let next = match self.step.matched {
            0 => Some(self.constraint.0.first.clone()),
            _ => Next::ask(&mut self.matcher, self.constraint.end())?,
        };
        let Some(Next { mut allowed, may_end }) = next else { return Ok(None) };
        if self.step.fed == 0 {
            self.constraint.0.lead.first(&mut allowed);
        }
        if may_end {
            self.stops.iter().for_each(|token| allowed.insert(*token));
        }
        if let Some(thoughts) = &self.constraint.1 {
            thoughts.beside(self.step.place, &mut allowed);
        }
        Ok(Some(allowed))
    }
}
