//! Sets of characters.

/// Ranges of code points, ascending, apart, none empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Set(Vec<(u32, u32)>);

const LAST: u32 = 0x10_FFFF;

impl Set {
    pub(super) fn of(mut ranges: Vec<(u32, u32)>) -> Self {
        ranges.sort_unstable();
        let mut out: Vec<(u32, u32)> = Vec::new();
        for (low, high) in ranges {
            match out.last_mut() {
                Some(last) if low <= last.1.saturating_add(1) => last.1 = last.1.max(high),
                _ => out.push((low, high)),
            }
        }
        Set(out)
    }

    /// Every character that is not in it.
    pub(super) fn negated(&self) -> Self {
        let (mut out, mut next) = (Vec::new(), 0);
        for (low, high) in &self.0 {
            if *low > next {
                out.push((next, low - 1));
            }
            next = high + 1;
        }
        if next <= LAST {
            out.push((next, LAST));
        }
        Set(out)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn meets(&self, other: &Set) -> bool {
        self.0.iter().any(|a| other.0.iter().any(|b| a.0 <= b.1 && b.0 <= a.1))
    }

    /// Adds another; whether that made a difference.
    pub(super) fn add(&mut self, other: &Set) -> bool {
        if other.0.iter().all(|b| self.0.iter().any(|a| a.0 <= b.0 && b.1 <= a.1)) {
            return false;
        }
        *self = Set::of([&self.0[..], &other.0].concat());
        true
    }

    /// As a class of a regular expression. Code points that are no characters are left out.
    pub(super) fn regex(&self) -> String {
        let surrogates = (0xD800, 0xDFFF);
        let parts = self.0.iter().flat_map(|(low, high)| {
            let below = (*low, (*high).min(surrogates.0 - 1));
            let above = ((*low).max(surrogates.1 + 1), *high);
            [below, above].into_iter().filter(|(low, high)| low <= high)
        });
        let text: Vec<String> = parts
            .map(|(low, high)| match low == high {
                true => format!("\\x{{{low:X}}}"),
                false => format!("\\x{{{low:X}}}-\\x{{{high:X}}}"),
            })
            .collect();
        if matches!(self.0[..], [(low, high)] if low == high) { text.concat() } else { format!("[{}]", text.concat()) }
    }

    /// Bytes of [`Set::regex`], at most.
    pub(super) fn length(&self) -> usize {
        2 + 22 * self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_ranges() {
        let set = Set::of(vec![(97, 99), (48, 57), (100, 100), (98, 120)]);
        assert_eq!(set, Set(vec![(48, 57), (97, 120)]));
        assert_eq!(set.negated(), Set(vec![(0, 47), (58, 96), (121, LAST)]));
        assert_eq!(set.negated().negated(), set);
        assert!(set.meets(&Set::of(vec![(57, 60)])) && !set.meets(&set.negated()));
        let mut more = set.clone();
        assert!(!more.add(&Set::of(vec![(50, 52)])) && more.add(&Set::of(vec![(52, 58)])));
        assert_eq!(Set::of(vec![(0xD000, 0xE000)]).regex(), r"[\x{D000}-\x{D7FF}\x{E000}]");
        assert_eq!(Set::of(vec![(47, 47)]).regex(), r"\x{2F}");
        assert!(Set::of(vec![(0, LAST)]).negated().is_empty());
    }
}
