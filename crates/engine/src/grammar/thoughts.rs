//! Thoughts before the text that a grammar is about: any text up to the marker that ends them.

use std::fmt;
use std::sync::Arc;

use mlxcel_text::Tokenizer;

use crate::sample::TokenSet;

/// Newlines behind the marker that belong to it: templates print up to two.
const NEWLINES: usize = 2;

/// What comes before the text of a constraint ([`Constraint::after`](super::Constraint::after)).
#[derive(Clone)]
pub struct Thoughts {
    /// Whether the prompt ends within them.
    open: bool,
    /// Tokens by which an answer may begin them; none = it may not.
    opener: Vec<u32>,
    marker: Arc<Marker>,
}

/// The text that ends thoughts, and what a vocabulary makes of it.
pub(super) struct Marker {
    text: Vec<u8>,
    tokenizer: Arc<Tokenizer>,
    all: TokenSet,
    /// For each length of the marker's beginning that the thoughts end with: tokens that complete it and say something behind it,
    /// which the grammar could not look at.
    beyond: Vec<Vec<u32>>,
    /// Tokens of nothing but newlines, and how many.
    newlines: Vec<(u32, usize)>,
}

/// Where an answer with thoughts stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Before the first token: thoughts or text.
    Start,
    /// So many tokens of the opener were said.
    Opener(usize),
    /// Within thoughts, which end with so many bytes of the marker.
    Within(usize),
    /// Behind them: so many newlines may still come before the text.
    Behind(usize),
    /// In the text.
    Text,
}

impl Thoughts {
    pub(super) fn new(open: bool, opener: Vec<u32>, marker: Arc<Marker>) -> Self {
        Thoughts { open, opener, marker }
    }

    /// The same, without the opener if the text may begin with it, too.
    pub(super) fn before(mut self, first: &TokenSet) -> Self {
        if self.opener.first().is_some_and(|token| first.contains(*token)) {
            self.opener.clear();
        }
        self
    }

    pub(super) fn start(&self) -> Place {
        match (self.open, self.opener.is_empty()) {
            (true, _) => Place::Within(0),
            (false, false) => Place::Start,
            (false, true) => Place::Text,
        }
    }

    /// The place after a token, `Text` where it is the text's.
    pub(super) fn after(&self, place: Place, token: u32) -> Result<Place, String> {
        Ok(match place {
            Place::Start if token == self.opener[0] => self.opened(1),
            Place::Start | Place::Text => Place::Text,
            Place::Opener(said) if self.opener[said] == token => self.opened(said + 1),
            Place::Opener(_) => return Err("thoughts begin with their marker".into()),
            Place::Within(seen) => match self.marker.follow(seen, &bytes(&self.marker.tokenizer, token)) {
                (seen, None) => Place::Within(seen),
                (_, Some(rest)) => match rest.iter().all(|byte| *byte == b'\n') && rest.len() <= NEWLINES {
                    true => Place::Behind(NEWLINES - rest.len()),
                    false => return Err("text within the token that ends thoughts".into()),
                },
            },
            Place::Behind(left) => match self.marker.newlines.iter().find(|(id, n)| *id == token && *n <= left) {
                Some((_, n)) => Place::Behind(left - n),
                None => Place::Text,
            },
        })
    }

    fn opened(&self, said: usize) -> Place {
        if said == self.opener.len() { Place::Within(0) } else { Place::Opener(said) }
    }

    /// The tokens that may follow at a place where no text may; `None` where it may. Thoughts end with their marker, not with the answer.
    pub(super) fn allowed(&self, place: Place, stops: &[u32]) -> Option<TokenSet> {
        match place {
            Place::Opener(said) => {
                let mut allowed = TokenSet::empty(self.marker.tokenizer.vocab_size());
                allowed.insert(self.opener[said]);
                Some(allowed)
            }
            Place::Within(seen) => {
                let mut allowed = self.marker.all.clone();
                stops.iter().chain(&self.marker.beyond[seen]).for_each(|token| allowed.remove(*token));
                Some(allowed)
            }
            Place::Start | Place::Behind(_) | Place::Text => None,
        }
    }

    /// Adds the tokens that may stand in the text's place.
    pub(super) fn beside(&self, place: Place, allowed: &mut TokenSet) {
        match place {
            Place::Start => allowed.insert(self.opener[0]),
            Place::Behind(left) => {
                self.marker.newlines.iter().filter(|(_, n)| *n <= left).for_each(|(id, _)| allowed.insert(*id));
            }
            Place::Opener(_) | Place::Within(_) | Place::Text => {}
        }
    }
}

impl fmt::Debug for Thoughts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let marker = String::from_utf8_lossy(&self.marker.text);
        f.debug_struct("Thoughts")
            .field("open", &self.open)
            .field("opener", &self.opener)
            .field("marker", &marker)
            .finish()
    }
}

/// What a token adds to a text with special tokens.
fn bytes(tokenizer: &Tokenizer, token: u32) -> Vec<u8> {
    match tokenizer.is_special(token) {
        true => tokenizer.id_to_token(token).unwrap_or_default().into_bytes(),
        false => tokenizer.token_bytes(token),
    }
}

impl Marker {
    /// Looks through a vocabulary for what ends thoughts with this text, which is not empty.
    pub(super) fn new(text: &str, tokenizer: &Arc<Tokenizer>) -> Self {
        let vocab = tokenizer.vocab_size();
        let mut marker = Marker {
            text: text.as_bytes().to_vec(),
            tokenizer: Arc::clone(tokenizer),
            all: TokenSet::empty(vocab),
            beyond: vec![Vec::new(); text.len()],
            newlines: Vec::new(),
        };
        let last = marker.text.last().copied();
        for token in 0..vocab as u32 {
            if tokenizer.id_to_token(token).is_none() {
                continue;
            }
            marker.all.insert(token);
            let word = bytes(tokenizer, token);
            if !word.is_empty() && word.iter().all(|byte| *byte == b'\n') {
                marker.newlines.push((token, word.len()));
            }
            if !word.iter().any(|byte| Some(*byte) == last) {
                continue;
            }
            for seen in 0..marker.text.len() {
                let rest = marker.follow(seen, &word).1;
                if rest.is_some_and(|rest| rest.len() > NEWLINES || rest.iter().any(|byte| *byte != b'\n')) {
                    marker.beyond[seen].push(token);
                }
            }
        }
        marker
    }

    /// How many bytes of the marker a text ends with after more of it; what comes behind the marker once it is whole.
    fn follow<'a>(&self, mut seen: usize, more: &'a [u8]) -> (usize, Option<&'a [u8]>) {
        for (i, byte) in more.iter().enumerate() {
            while seen > 0 && self.text[seen] != *byte {
                seen = self.shorter(seen);
            }
            seen += usize::from(self.text[seen] == *byte);
            if seen == self.text.len() {
                return (0, Some(&more[i + 1..]));
            }
        }
        (seen, None)
    }

    /// The longest beginning of the marker that its first `seen` bytes end with, shorter than they are.
    fn shorter(&self, seen: usize) -> usize {
        (1..seen).rev().find(|n| self.text[..seen].ends_with(&self.text[..*n])).unwrap_or(0)
    }
}
