//! Text that may be the beginning of a marker.

/// A marker, and how many newlines before it belong to it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Marker {
    /// Begins with `<`.
    pub text: &'static str,
    /// At most so many newlines.
    pub newlines: usize,
}

enum Match {
    No,
    Beginning,
    Whole,
}

impl Marker {
    fn matches(&self, held: &str) -> Match {
        let rest = held.trim_start_matches('\n');
        if held.len() - rest.len() > self.newlines || !self.text.starts_with(rest) {
            Match::No
        } else if rest.len() == self.text.len() {
            Match::Whole
        } else {
            Match::Beginning
        }
    }
}

/// What is held back: the beginning of one of the markers looked for, never more.
#[derive(Debug, Clone, Default)]
pub(super) struct Hold {
    held: String,
}

impl Hold {
    /// Takes a character, appends to `out` the text that is certainly no part of a marker, and says which marker is
    /// complete. The markers may differ from call to call.
    pub fn push(&mut self, c: char, markers: &[Marker], out: &mut String) -> Option<usize> {
        self.held.push(c);
        let mut start = 0;
        while start < self.held.len() {
            let rest = &self.held[start..];
            let mut beginning = false;
            for (index, marker) in markers.iter().enumerate() {
                match marker.matches(rest) {
                    Match::Whole => {
                        self.flush(start, out);
                        return Some(index);
                    }
                    Match::Beginning => beginning = true,
                    Match::No => {}
                }
            }
            if beginning {
                break;
            }
            start += rest.chars().next().map_or(1, char::len_utf8);
        }
        self.flush(start, out);
        None
    }

    fn flush(&mut self, upto: usize, out: &mut String) {
        out.push_str(&self.held[..upto]);
        self.held.drain(..upto);
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Gives up what is held: a complete marker, or at the end of the text whatever there is.
    pub fn take(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}
