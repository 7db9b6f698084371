//! What an answer cost.

use serde::{Deserialize, Serialize};

/// Tokens of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Tokens generated, over all answers.
    pub completion_tokens: u64,
    /// Their sum.
    pub total_tokens: u64,
    /// Of the prompt.
    #[serde(default)]
    pub prompt_tokens_details: PromptTokensDetails,
    /// Of the answers.
    #[serde(default)]
    pub completion_tokens_details: CompletionTokensDetails,
}

/// Parts of the prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptTokensDetails {
    /// Tokens taken from the prefix cache.
    #[serde(default)]
    pub cached_tokens: u64,
}

/// Parts of the answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompletionTokensDetails {
    /// Tokens of reasoning; at most `completion_tokens`.
    #[serde(default)]
    pub reasoning_tokens: u64,
    /// Drafted tokens that became part of an answer.
    #[serde(default)]
    pub accepted_prediction_tokens: u64,
    /// Drafted tokens that did not.
    #[serde(default)]
    pub rejected_prediction_tokens: u64,
}

impl Usage {
    /// The usage of `prompt` and `completion` tokens, whose sum cannot overflow.
    pub fn new(prompt: u64, completion: u64) -> Self {
        Usage {
            prompt_tokens: prompt,
            completion_tokens: completion,
            total_tokens: prompt.saturating_add(completion),
            ..Usage::default()
        }
    }
}

/// How long an answer took, in llama-server's spelling, and what its drafts came to.
///
/// acceptance_rate = `draft_n_accepted` / `draft_n`; mean_accepted_len = `draft_n_accepted` / `draft_rounds`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timings {
    /// Prompt tokens taken from the prefix cache.
    #[serde(default)]
    pub cache_n: u64,
    /// Prompt tokens computed.
    pub prompt_n: u64,
    /// Milliseconds from the first prompt row to the first token.
    pub prompt_ms: f64,
    /// Prompt tokens computed a second.
    pub prompt_per_second: f64,
    /// Tokens generated.
    pub predicted_n: u64,
    /// Milliseconds from the first token to the last; the prompt's time is not in it.
    pub predicted_ms: f64,
    /// Tokens a second in that time: `predicted_n` - 1 of them, since the first token is the prompt's. 0 if there is one.
    pub predicted_per_second: f64,
    /// Tokens drafted.
    #[serde(default)]
    pub draft_n: u64,
    /// Of those, accepted.
    #[serde(default)]
    pub draft_n_accepted: u64,
    /// Rounds with at least one draft.
    #[serde(default)]
    pub draft_rounds: u64,
    /// Rounds whose draft at a depth was accepted; the first depth is 1. Nothing behind the deepest that was.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub draft_accepted_by_depth: Vec<u64>,
    /// The width of blocks that the request settled at, the certain token counted; left out where there were no drafts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draft_block_size: Option<u32>,
}

impl Timings {
    /// Timings of `prompt_n` tokens in `prompt_ms` and `predicted_n` in `predicted_ms`; rates that cannot be told are 0.
    pub fn new(prompt_n: u64, prompt_ms: f64, predicted_n: u64, predicted_ms: f64) -> Self {
        let rate = |n: u64, ms: f64| if n > 0 && ms > 0.0 { n as f64 * 1e3 / ms } else { 0.0 };
        Timings {
            prompt_n,
            prompt_ms,
            prompt_per_second: rate(prompt_n, prompt_ms),
            predicted_n,
            predicted_ms,
            predicted_per_second: rate(predicted_n.saturating_sub(1), predicted_ms),
            ..Timings::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_of_decoding_does_not_see_the_prompt() {
        let long = Timings::new(4096, 2000.0, 64, 630.0);
        let short = Timings::new(16, 10.0, 64, 630.0);
        assert_eq!(long.predicted_per_second, 100.0);
        assert_eq!(long.predicted_per_second, short.predicted_per_second);
        assert_eq!(long.prompt_per_second, 2048.0);
    }

    #[test]
    fn rates_are_numbers_whatever_the_clock_says() {
        for t in [Timings::new(0, 0.0, 0, 0.0), Timings::new(5, 0.0, 1, 0.0), Timings::new(5, 1.0, 1, 0.0)] {
            assert!(t.prompt_per_second.is_finite() && t.predicted_per_second == 0.0);
            assert!(!serde_json::to_string(&t).unwrap().contains("null"));
        }
    }

    #[test]
    fn sums_do_not_overflow() {
        assert_eq!(Usage::new(3, 4).total_tokens, 7);
        assert_eq!(Usage::new(u64::MAX, 1).total_tokens, u64::MAX);
    }
}
