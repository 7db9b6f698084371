//! From values to pixels.

/// Values `from..=to` on the pixels `start..=end`; either may run backwards.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    from: f64,
    to: f64,
    start: f64,
    end: f64,
}

impl Scale {
    /// A scale; a range without width has all values in the middle.
    pub fn new(values: (f64, f64), pixels: (f64, f64)) -> Self {
        Self { from: values.0, to: values.1, start: pixels.0, end: pixels.1 }
    }

    /// The pixel of a value.
    pub fn at(&self, value: f64) -> f64 {
        let width = self.to - self.from;
        let share = if width == 0.0 { 0.5 } else { (value - self.from) / width };
        self.start + share * (self.end - self.start)
    }
}

/// Round values at even distances that hold all of `low..=high`: 4 to 8 of them.
pub fn ticks(low: f64, high: f64) -> Vec<f64> {
    let span = (high - low).max(1e-9);
    let magnitude = 10f64.powf((span / 5.0).log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|s| s * magnitude).into_iter().find(|step| span / step <= 6.0);
    let step = step.unwrap_or(10.0 * magnitude);
    let (first, last) = ((low / step + 1e-9).floor() as i64, (high / step - 1e-9).ceil() as i64);
    (first..=last).map(|n| n as f64 * step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_find_their_pixels() {
        let scale = Scale::new((0.0, 2.0), (100.0, 0.0));
        assert_eq!((scale.at(0.0), scale.at(0.5), scale.at(2.0)), (100.0, 75.0, 0.0));
        assert_eq!(Scale::new((4.0, 4.0), (0.0, 10.0)).at(4.0), 5.0);
    }

    #[test]
    fn ticks_hold_the_range_and_are_few() {
        for (low, high) in [(0.8, 1.4), (0.0, 3.1), (0.93, 0.99), (0.5, 1.0), (0.0, 17.0), (0.7, 2.95), (1.0, 1.0)] {
            let ticks = ticks(low, high);
            assert!(ticks[0] <= low + 1e-6 && *ticks.last().expect("some") >= high - 1e-6, "{low} {high} {ticks:?}");
            assert!(ticks.len() <= 9, "{low} {high} {ticks:?}");
        }
        assert_eq!(ticks(0.0, 3.0), [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0]);
    }
}
