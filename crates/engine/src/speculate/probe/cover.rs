//! What a probe looked at: an exact verdict is good for that, and for nothing else.

use mlxcel_model::drafters::HiddenRows;
use serde_json::{Value, json};

use super::Probe;

/// Widths, batches and draws that were compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cover {
    widths: Vec<usize>,
    batches: Vec<usize>,
    draws: usize,
    hidden: HiddenRows,
}

impl Cover {
    pub(super) fn new(widths: Vec<usize>, batches: Vec<usize>, draws: usize, hidden: HiddenRows) -> Self {
        let sorted = |mut list: Vec<usize>| {
            list.sort_unstable();
            list.dedup();
            list
        };
        Cover { widths: sorted(widths), batches: sorted(batches), draws, hidden }
    }

    /// Whether another probe would compare nothing that this one did not. What lies between two widths (or two batches) that
    /// are exact counts as looked at.
    pub fn covers(&self, probe: &Probe) -> bool {
        probe.widths.iter().all(|width| between(&self.widths, *width))
            && probe.batches.iter().all(|batch| between(&self.batches, *batch))
            && self.draws >= probe.draws
            && self.hidden == probe.hidden
    }

    /// Whether blocks of a width in a batch were looked at, as often as `draws`.
    pub fn holds(&self, width: usize, batch: usize, draws: usize) -> bool {
        // Single steps together and the mixed batch belong to every batch of several.
        let width = width.max(self.widths.first().copied().unwrap_or(width));
        between(&self.widths, width) && between(&self.batches, batch) && self.draws >= draws
    }

    /// As it is kept on disk.
    pub fn to_json(&self) -> Value {
        json!({ "widths": self.widths, "batches": self.batches, "draws": self.draws, "hidden": name(self.hidden) })
    }

    /// What [`Cover::to_json`] gave; `None` for anything else.
    pub fn from_json(value: &Value) -> Option<Cover> {
        let number = |value: &Value| usize::try_from(value.as_u64()?).ok();
        let list = |value: &Value| value.as_array()?.iter().map(number).collect::<Option<Vec<usize>>>();
        let hidden = [HiddenRows::None, HiddenRows::Wanted, HiddenRows::All];
        let hidden = hidden.into_iter().find(|rows| value["hidden"].as_str() == Some(name(*rows)))?;
        Some(Cover::new(list(&value["widths"])?, list(&value["batches"])?, number(&value["draws"])?, hidden))
    }
}

/// Whether a number is in a sorted list, or between two of it.
fn between(list: &[usize], number: usize) -> bool {
    list.first().is_some_and(|first| *first <= number) && list.last().is_some_and(|last| number <= *last)
}

const fn name(rows: HiddenRows) -> &'static str {
    match rows {
        HiddenRows::None => "none",
        HiddenRows::Wanted => "wanted",
        HiddenRows::All => "all",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_are_good_for_what_was_looked_at() {
        let cover = Cover::new(vec![16, 2, 8, 8], vec![1, 4], 1, HiddenRows::Wanted);
        let wants = |widths: &[usize], batches: &[usize], draws| Probe {
            widths: widths.to_vec(),
            batches: batches.to_vec(),
            draws,
            hidden: HiddenRows::Wanted,
            ..Probe::startup(2, 1)
        };
        for probe in [wants(&[2, 16], &[1, 4], 1), wants(&[5, 9], &[3], 1), wants(&[8], &[1], 1)] {
            assert!(cover.covers(&probe), "{probe:?}");
            assert!(!cover.covers(&Probe { hidden: HiddenRows::All, ..probe }));
        }
        let few = Cover::new(vec![4, 8], vec![2], 1, HiddenRows::Wanted);
        for (cover, probe) in [
            (&cover, wants(&[2], &[5], 1)),
            (&cover, wants(&[2], &[1], 2)),
            (&few, wants(&[2, 4], &[2], 1)),
            (&few, wants(&[9], &[2], 1)),
            (&few, wants(&[4], &[1, 2], 1)),
            (&Cover::new(vec![], vec![], 9, HiddenRows::Wanted), wants(&[2], &[1], 1)),
        ] {
            assert!(!cover.covers(&probe), "{cover:?} {probe:?}");
        }
        assert!(few.holds(8, 2, 1) && few.holds(1, 2, 1) && !few.holds(9, 2, 1) && !few.holds(8, 1, 1));
        assert!(!few.holds(8, 2, 2));
    }

    #[test]
    fn covers_are_read_as_they_were_written() {
        for hidden in [HiddenRows::None, HiddenRows::Wanted, HiddenRows::All] {
            let cover = Cover::new(vec![2, 3], vec![1, 8], 4, hidden);
            assert_eq!(Cover::from_json(&cover.to_json()), Some(cover.clone()));
            for field in ["widths", "batches", "draws", "hidden"] {
                let mut value = cover.to_json();
                value[field] = json!("-1");
                assert_eq!(Cover::from_json(&value), None, "{field}");
            }
        }
    }
}
