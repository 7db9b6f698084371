//! What a request may ask of the sampler, and the errors of asking or answering wrongly.

use std::fmt::Display;
use std::ops::RangeInclusive;

use thiserror::Error;

/// The most alternatives per token that `logprobs` may ask for.
pub const MAX_LOGPROBS: usize = 20;

/// How the next token is chosen from a row of logits. The default is greedy, with every filter and penalty off.
///
/// The order in which the parts apply is written at the head of [`crate::sample`].
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Logits are divided by it; 0 is greedy. Finite, 0 or more.
    pub temperature: f32,
    /// Keep this many of the largest logits; 0 keeps all.
    pub top_k: usize,
    /// Keep the smallest set of most likely tokens with at least this mass; 1 keeps all. Above 0, at most 1.
    pub top_p: f32,
    /// Drop tokens less likely than this fraction of the most likely one; 0 keeps all. 0 to 1.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of every token in prompt or answer; 1 is off. Finite, above 0.
    pub repetition_penalty: f32,
    /// Taken off the logit of every token generated so far. -2 to 2.
    pub presence_penalty: f32,
    /// Taken off a token's logit once for each time it was generated so far. -2 to 2.
    pub frequency_penalty: f32,
    /// (token id, amount added to its logit), amounts -100 to 100; entries for one token add up.
    pub logit_bias: Vec<(u32, f32)>,
    /// Names the noise: the same seed, logits and position give the same token.
    pub seed: u64,
    /// `Some(n)`: report the chosen token's log-probability and those of the `n` most likely tokens. At most 20.
    pub logprobs: Option<usize>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        SamplingParams {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
            logprobs: None,
        }
    }
}

impl SamplingParams {
    /// Checks every parameter against its range, for a model with `vocab` tokens.
    ///
    /// # Errors
    /// [`SampleError::OutOfRange`] for the first parameter, in field order, that is not in its range.
    pub fn validate(&self, vocab: usize) -> Result<(), SampleError> {
        // Token ids are u32.
        check("vocabulary size", vocab, (1..=1 << 32).contains(&vocab), "1 to 4294967296")?;
        let t = self.temperature;
        check("temperature", t, t.is_finite() && t >= 0.0, "a finite number, 0 or more")?;
        check("top_p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "above 0, at most 1")?;
        check_range("min_p", self.min_p, 0.0..=1.0)?;
        let r = self.repetition_penalty;
        check("repetition_penalty", r, r.is_finite() && r > 0.0, "a finite number above 0")?;
        check_range("presence_penalty", self.presence_penalty, -2.0..=2.0)?;
        check_range("frequency_penalty", self.frequency_penalty, -2.0..=2.0)?;
        for &(token, bias) in &self.logit_bias {
            let known = usize::try_from(token).is_ok_and(|t| t < vocab);
            check("logit_bias token", token, known, format_args!("a token id below {vocab}"))?;
            check_range("logit_bias", bias, -100.0..=100.0)?;
        }
        if let Some(n) = self.logprobs {
            check("logprobs", n, n <= MAX_LOGPROBS, format_args!("0 to {MAX_LOGPROBS}"))?;
        }
        Ok(())
    }
}

fn check_range(parameter: &'static str, found: f32, range: RangeInclusive<f32>) -> Result<(), SampleError> {
    let expected = format_args!("{} to {}", range.start(), range.end()).to_string();
    check(parameter, found, range.contains(&found), expected)
}

fn check(parameter: &'static str, found: impl Display, ok: bool, expected: impl Display) -> Result<(), SampleError> {
    if ok {
        return Ok(());
    }
    Err(SampleError::OutOfRange { parameter, expected: expected.to_string(), found: found.to_string() })
}

/// Why a token could not be chosen.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum SampleError {
    /// A request parameter outside its range: the client's mistake.
    #[error("{parameter}: expected {expected}, found {found}")]
    OutOfRange {
        /// The parameter's name, as in [`SamplingParams`].
        parameter: &'static str,
        /// The range, in words.
        expected: String,
        /// The value given.
        found: String,
    },
    /// The model produced a NaN or an infinity: the request must fail, for any choice would be an invention.
    #[error("logits at position {position}: expected finite numbers, found {value} for token {token}")]
    NonFinite {
        /// Index in the sequence of the token that was to be chosen.
        position: usize,
        /// The lowest token id with such a logit.
        token: u32,
        /// That logit.
        value: f32,
    },
    /// A row of logits that is not the model's vocabulary.
    #[error("logits at position {position}: expected {expected} values, found {found}")]
    RowLength {
        /// Index in the sequence of the token that was to be chosen.
        position: usize,
        /// The vocabulary size.
        expected: usize,
        /// The length of the row.
        found: usize,
    },
    /// A constraint that leaves no token of the model's vocabulary.
    #[error("the constraint allows no token of this model's vocabulary at position {position}")]
    NothingAllowed {
        /// Index in the sequence of the token that was to be chosen.
        position: usize,
    },
    /// A constraint that failed; what it said.
    #[error("the constraint failed at position {position}: {why}")]
    Constraint {
        /// Index in the sequence of the token that was to be chosen.
        position: usize,
        /// What the grammar engine said.
        why: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl Fn(&mut SamplingParams)) -> String {
        let mut params = SamplingParams::default();
        change(&mut params);
        params.validate(10).expect_err("accepted").to_string()
    }

    #[test]
    fn default_is_valid_and_greedy() {
        assert_eq!(SamplingParams::default().validate(1), Ok(()));
        assert_eq!(SamplingParams::default().temperature, 0.0);
    }

    #[test]
    fn edges_are_accepted() {
        let params = SamplingParams {
            temperature: f32::MAX,
            top_k: usize::MAX,
            top_p: f32::MIN_POSITIVE,
            min_p: 1.0,
            repetition_penalty: f32::MIN_POSITIVE,
            presence_penalty: -2.0,
            frequency_penalty: 2.0,
            logit_bias: vec![(9, -100.0), (9, 100.0)],
            seed: u64::MAX,
            logprobs: Some(20),
        };
        assert_eq!(params.validate(10), Ok(()));
    }

    #[test]
    fn every_parameter_is_named_with_its_range_and_value() {
        assert_eq!(refused(|p| p.temperature = -0.5), "temperature: expected a finite number, 0 or more, found -0.5");
        assert_eq!(refused(|p| p.top_p = 0.0), "top_p: expected above 0, at most 1, found 0");
        assert_eq!(refused(|p| p.top_p = 1.5), "top_p: expected above 0, at most 1, found 1.5");
        assert_eq!(refused(|p| p.min_p = 1.5), "min_p: expected 0 to 1, found 1.5");
        assert_eq!(
            refused(|p| p.repetition_penalty = 0.0),
            "repetition_penalty: expected a finite number above 0, found 0"
        );
        assert_eq!(refused(|p| p.presence_penalty = 2.5), "presence_penalty: expected -2 to 2, found 2.5");
        assert_eq!(refused(|p| p.frequency_penalty = -2.5), "frequency_penalty: expected -2 to 2, found -2.5");
        assert_eq!(
            refused(|p| p.logit_bias = vec![(10, 1.0)]),
            "logit_bias token: expected a token id below 10, found 10"
        );
        assert_eq!(refused(|p| p.logit_bias = vec![(1, 101.0)]), "logit_bias: expected -100 to 100, found 101");
        assert_eq!(refused(|p| p.logprobs = Some(21)), "logprobs: expected 0 to 20, found 21");
    }

    #[test]
    fn nan_and_infinity_are_refused_everywhere() {
        type Set = fn(&mut SamplingParams, f32);
        let fields: [(&str, Set); 7] = [
            ("temperature", |p, x| p.temperature = x),
            ("top_p", |p, x| p.top_p = x),
            ("min_p", |p, x| p.min_p = x),
            ("repetition_penalty", |p, x| p.repetition_penalty = x),
            ("presence_penalty", |p, x| p.presence_penalty = x),
            ("frequency_penalty", |p, x| p.frequency_penalty = x),
            ("logit_bias", |p, x| p.logit_bias = vec![(0, x)]),
        ];
        for (name, set) in fields {
            for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let message = refused(|p| set(p, value));
                assert!(message.starts_with(name) && message.ends_with(&format!("found {value}")), "{message}");
            }
        }
    }

    #[test]
    fn an_empty_vocabulary_is_refused() {
        let error = SamplingParams::default().validate(0).expect_err("accepted");
        assert_eq!(error.to_string(), "vocabulary size: expected 1 to 4294967296, found 0");
    }
}
