//! Stop strings in streamed text.
//!
//! Text arrives in pieces cut anywhere; what is sent on must never contain a stop string, nor the beginning of one that
//! a later piece completes. One Knuth-Morris-Pratt automaton per stop string says, after every byte, how much of that
//! string the text so far ends with: the longest of these is exactly what has to be held back.
//!
//! **Which match counts:** the one that is complete first, byte by byte; of several completed by the same byte, the
//! longest. So the place where generation stops never depends on text still to come, nor on how the text was cut. Of
//! "ab" and "abc", "ab" matches; of "abcd" and "bc" in "xabcd", "bc" matches and "xa" is sent.

use std::sync::Arc;

use thiserror::Error;

/// A list of stop strings that cannot be used.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum StopError {
    /// An empty string would stop everywhere.
    #[error("stop[{index}]: expected a string of at least one character, found \"\"")]
    Empty {
        /// Its place in the list.
        index: usize,
    },
}

/// What one piece of text led to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopResult {
    /// Text that may be sent now.
    pub emit: String,
    /// The stop string that was found, by its place in the list: the answer ends before it.
    pub matched: Option<usize>,
}

/// Finds stop strings in text that arrives in pieces, and holds back what may turn out to be one.
///
/// A clone is a snapshot: carrying on from it is the same as never having seen what came after.
#[derive(Clone, Debug)]
pub struct StopStrings {
    stops: Arc<[Stop]>,
    /// For each stop string, how many of its bytes the text so far ends with.
    progress: Vec<usize>,
    /// The end of the text, not sent yet: as long as the largest `progress`.
    held: String,
    matched: Option<usize>,
}

impl StopStrings {
    /// A matcher at the start of a text. No stop strings at all is fine: everything passes.
    ///
    /// # Errors
    /// [`StopError::Empty`] for an empty stop string.
    pub fn new(stops: Vec<String>) -> Result<Self, StopError> {
        if let Some(index) = stops.iter().position(String::is_empty) {
            return Err(StopError::Empty { index });
        }
        let progress = vec![0; stops.len()];
        let stops = stops.into_iter().map(|s| Stop::new(s.into_bytes())).collect();
        Ok(StopStrings { stops, progress, held: String::new(), matched: None })
    }

    /// Takes the next piece of text. After a match nothing more is emitted, and the match is reported again.
    pub fn push(&mut self, piece: &str) -> StopResult {
        if self.matched.is_some() {
            return StopResult { emit: String::new(), matched: self.matched };
        }
        let before = self.held.len();
        self.held.push_str(piece);
        for (i, &byte) in piece.as_bytes().iter().enumerate() {
            if let Some(index) = self.advance(byte) {
                // A stop string is whole characters, so its start is a character boundary of the text.
                self.held.truncate(before + i + 1 - self.stops[index].bytes.len());
                self.matched = Some(index);
                return StopResult { emit: std::mem::take(&mut self.held), matched: self.matched };
            }
        }
        let hold = self.progress.iter().copied().max().unwrap_or(0);
        let tail = self.held.split_off(self.held.len() - hold);
        StopResult { emit: std::mem::replace(&mut self.held, tail), matched: None }
    }

    /// Releases the held text, when the answer has ended without a match. Empty after a match.
    pub fn finish(&mut self) -> String {
        self.progress.fill(0);
        std::mem::take(&mut self.held)
    }

    /// The text held back at the moment.
    pub fn held(&self) -> &str {
        &self.held
    }

    /// Moves every automaton by one byte; the longest stop string completed by it, the first listed among equal ones.
    fn advance(&mut self, byte: u8) -> Option<usize> {
        let mut found: Option<usize> = None;
        for (index, (stop, progress)) in self.stops.iter().zip(&mut self.progress).enumerate() {
            *progress = stop.next(*progress, byte);
            let len = stop.bytes.len();
            if *progress == len && found.is_none_or(|f| self.stops[f].bytes.len() < len) {
                found = Some(index);
            }
        }
        found
    }
}

/// One stop string with its failure table.
#[derive(Debug)]
struct Stop {
    bytes: Vec<u8>,
    /// `border[n]`: length of the longest proper prefix of the first `n` bytes that is also their suffix.
    border: Vec<usize>,
}

impl Stop {
    fn new(bytes: Vec<u8>) -> Self {
        let mut stop = Stop { border: vec![0; 2], bytes };
        for i in 1..stop.bytes.len() {
            // Only borders of shorter prefixes are needed, and they are there already.
            let border = stop.next(stop.border[i], stop.bytes[i]);
            stop.border.push(border);
        }
        stop
    }

    /// The longest prefix that the text ends with after one more `byte`, when it ended with `progress < len` before.
    fn next(&self, mut progress: usize, byte: u8) -> usize {
        while progress > 0 && self.bytes[progress] != byte {
            progress = self.border[progress];
        }
        progress + usize::from(self.bytes[progress] == byte)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matcher(stops: &[&str]) -> StopStrings {
        StopStrings::new(stops.iter().map(ToString::to_string).collect()).unwrap()
    }

    /// All the text that comes out, and the match.
    fn stream(mut m: StopStrings, pieces: &[&str]) -> (String, Option<usize>) {
        let (mut text, mut matched) = (String::new(), None);
        for piece in pieces {
            let result = m.push(piece);
            text += &result.emit;
            matched = result.matched;
        }
        (text + &m.finish(), matched)
    }

    /// The definition: the shortest beginning of the text that ends with a stop string, cut before the longest such.
    fn naive(stops: &[String], text: &str) -> (String, Option<usize>) {
        for (end, _) in text.char_indices().map(|(i, c)| (i + c.len_utf8(), c)) {
            let head = &text[..end];
            let mut best: Option<usize> = None;
            for (i, stop) in stops.iter().enumerate() {
                if head.ends_with(stop.as_str()) && best.is_none_or(|b| stops[b].len() < stop.len()) {
                    best = Some(i);
                }
            }
            if let Some(i) = best {
                return (head[..end - stops[i].len()].to_string(), best);
            }
        }
        (text.to_string(), None)
    }

    #[test]
    fn holds_back_only_what_may_be_a_stop_string() {
        let mut m = matcher(&["STOP"]);
        let mut emit = |piece| m.push(piece).emit;
        assert_eq!(emit("a S"), "a ");
        assert_eq!(emit("T"), "");
        assert_eq!(emit("A"), "STA");
        assert_eq!(emit("SSTO"), "S");
        assert_eq!(m.held(), "STO");
        assert_eq!(m.push("P tail"), StopResult { emit: String::new(), matched: Some(0) });
        assert_eq!(m.push("more"), StopResult { emit: String::new(), matched: Some(0) });
        assert_eq!(m.finish(), "");
    }

    #[test]
    fn self_similar_stop_strings() {
        assert_eq!(stream(matcher(&["aab"]), &["a", "a", "a", "b"]), ("a".into(), Some(0)));
        assert_eq!(stream(matcher(&["abab", "zz"]), &["aba", "cab", "abab"]), ("abac".into(), Some(0)));
        assert_eq!(stream(matcher(&["aaa"]), &["aa", "b", "aa"]), ("aabaa".into(), None));
        assert_eq!(stream(matcher(&["\n\n"]), &["x\n", "\ny"]), ("x".into(), Some(0)));
    }

    #[test]
    fn the_first_to_be_complete_counts_then_the_longest() {
        assert_eq!(stream(matcher(&["abc", "ab"]), &["xabc"]), ("x".into(), Some(1)));
        assert_eq!(stream(matcher(&["abcd", "bc"]), &["xabcd"]), ("xa".into(), Some(1)));
        assert_eq!(stream(matcher(&["c", "bc", "bc"]), &["abc"]), ("a".into(), Some(1)));
    }

    #[test]
    fn many_pieces_and_wide_characters() {
        let text = "hi😀👩‍👩‍👧 你好 end";
        let pieces: Vec<String> = text.chars().map(String::from).collect();
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        assert_eq!(stream(matcher(&["👧 你好"]), &pieces), ("hi😀👩‍👩‍".into(), Some(0)));
        // 😁 shares its first bytes with 😀: nothing may be cut inside a character.
        assert_eq!(stream(matcher(&["😀😁"]), &["😀", "😀", "x"]), ("😀😀x".into(), None));
    }

    #[test]
    fn no_stop_strings_pass_everything_and_empty_ones_are_refused() {
        assert_eq!(matcher(&[]).push("abc"), StopResult { emit: "abc".into(), matched: None });
        let error = StopStrings::new(vec!["a".into(), String::new()]).unwrap_err();
        assert_eq!(error.to_string(), "stop[1]: expected a string of at least one character, found \"\"");
    }

    #[test]
    fn finish_starts_afresh() {
        let mut m = matcher(&["ab"]);
        assert_eq!(m.push("a").emit + &m.finish(), "a");
        assert_eq!(m.push("b").emit, "b");
    }

    fn alphabet(len: std::ops::Range<usize>) -> impl Strategy<Value = String> {
        prop::collection::vec(prop::sample::select(vec!["a", "b", "é", "😀", "😁"]), len).prop_map(|c| c.concat())
    }

    /// Whether streaming in `pieces` gives what the definition gives for the whole text.
    fn faithful(stops: &[String], pieces: &[String], run: impl Fn(&[&str]) -> (String, Option<usize>)) -> bool {
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        run(&pieces) == naive(stops, &pieces.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        #[test]
        fn any_cutting_gives_the_same_text(
            stops in prop::collection::vec(alphabet(1..5), 0..4),
            pieces in prop::collection::vec(alphabet(0..5), 0..16),
        ) {
            let m = StopStrings::new(stops.clone()).unwrap();
            prop_assert!(faithful(&stops, &pieces, |p| stream(m.clone(), p)));
        }

        /// Held text is a beginning of a stop string, and no longer than it must be; a snapshot carries on alike.
        #[test]
        fn held_text_and_snapshots(
            stops in prop::collection::vec(alphabet(1..5), 1..4),
            pieces in prop::collection::vec(alphabet(0..4), 1..12),
            tail in alphabet(0..6),
        ) {
            let mut m = StopStrings::new(stops.clone()).unwrap();
            let mut text = String::new();
            for piece in &pieces {
                text += piece;
                if m.push(piece).matched.is_some() {
                    break;
                }
                let starts = text.char_indices().map(|(i, _)| &text[i..]);
                let longest = starts.clone().find(|t| stops.iter().any(|s| s.starts_with(t))).unwrap_or("");
                prop_assert_eq!(m.held(), longest);
                let snapshot = m.clone();
                let (mut a, mut b) = (m.clone(), snapshot);
                a.push("aab");
                prop_assert_eq!(m.clone().push(&tail), b.push(&tail));
            }
        }
    }

    #[test]
    fn the_cutting_test_can_fail() {
        // A matcher that looks at each piece alone, as engines do that test only the newest token's text.
        let stops = vec!["ab".to_string()];
        let piecewise = |pieces: &[&str]| {
            let mut text = String::new();
            for piece in pieces {
                if let Some(at) = piece.find("ab") {
                    return (text + &piece[..at], Some(0));
                }
                text += piece;
            }
            (text, None)
        };
        assert!(faithful(&stops, &["xab".into()], piecewise));
        assert!(!faithful(&stops, &["xa".into(), "b".into()], piecewise));
    }
}
