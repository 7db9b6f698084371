//! What a number or a length in a request may be, as data.

use std::fmt;

/// The range of one parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    /// The parameter, as it is spelt in the body.
    pub name: &'static str,
    /// Its range.
    pub range: Range,
    /// What else a person should know when the value is outside, or "".
    pub hint: &'static str,
}

/// A range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Range {
    /// A number from `least` to `most`.
    Real {
        /// The smallest.
        least: f64,
        /// The largest.
        most: f64,
    },
    /// A number above `above` and at most `most`.
    Above {
        /// Below the smallest.
        above: f64,
        /// The largest.
        most: f64,
    },
    /// An integer from `least` to `most`.
    Whole {
        /// The smallest.
        least: i128,
        /// The largest.
        most: i128,
    },
    /// An integer of at least `least`; larger than u64 is taken for the largest u64, since some other limit ends it.
    AtLeast {
        /// The smallest.
        least: i128,
    },
    /// A list of `least` to `most` items.
    Items {
        /// The shortest.
        least: usize,
        /// The longest.
        most: usize,
    },
    /// A string of `least` to `most` bytes.
    Bytes {
        /// The shortest.
        least: usize,
        /// The longest.
        most: usize,
    },
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Range::Real { least, most } => write!(f, "a number from {least} to {most}"),
            Range::Above { above, most } => write!(f, "a number above {above}, at most {most}"),
            Range::Whole { least, most } => write!(f, "an integer from {least} to {most}"),
            Range::AtLeast { least } => write!(f, "an integer of at least {least}"),
            Range::Items { least: 0, most } => write!(f, "at most {most} items"),
            Range::Items { least, most } => write!(f, "{least} to {most} items"),
            Range::Bytes { least: 0, most } => write!(f, "a string of at most {most} bytes"),
            Range::Bytes { least, most } => write!(f, "a string of {least} to {most} bytes"),
        }
    }
}

macro_rules! limits {
    ($($constant:ident = $name:literal, $range:expr, $hint:literal;)*) => {
        $(#[doc = concat!("`", $name, "`.")] pub const $constant: Limit = Limit { name: $name, range: $range, hint: $hint };)*
        /// Every limit.
        pub const ALL: &[Limit] = &[$($constant),*];
    };
}

/// The largest seed: they are 64 bits.
const U64: i128 = u64::MAX as i128;
/// The smallest seed; negative ones are taken for the 64 bits they are made of.
const I64: i128 = i64::MIN as i128;
/// Token ids are u32.
const U32: i128 = u32::MAX as i128;

limits! {
    TEMPERATURE = "temperature", Range::Real { least: 0.0, most: 2.0 }, "";
    ANTHROPIC_TEMPERATURE = "temperature", Range::Real { least: 0.0, most: 1.0 }, "";
    TOP_P = "top_p", Range::Above { above: 0.0, most: 1.0 }, "use temperature 0 for the most likely token alone";
    TOP_K = "top_k", Range::Whole { least: -1, most: U32 }, "0 and -1 keep all tokens";
    MIN_P = "min_p", Range::Real { least: 0.0, most: 1.0 }, "";
    REPETITION_PENALTY = "repetition_penalty", Range::Above { above: 0.0, most: 10.0 }, "1 is off";
    PRESENCE_PENALTY = "presence_penalty", Range::Real { least: -2.0, most: 2.0 }, "0 is off";
    FREQUENCY_PENALTY = "frequency_penalty", Range::Real { least: -2.0, most: 2.0 }, "0 is off";
    LOGIT_BIAS = "logit_bias", Range::Real { least: -100.0, most: 100.0 }, "";
    LOGIT_BIASES = "logit_bias", Range::Items { least: 0, most: 1024 }, "";
    SEED = "seed", Range::Whole { least: I64, most: U64 }, "";
    MAX_TOKENS = "max_tokens", Range::AtLeast { least: 1 }, "leave it out for all the room the context has";
    MAX_COMPLETION_TOKENS = "max_completion_tokens", Range::AtLeast { least: 1 }, "leave it out for all the room the context has";
    MAX_OUTPUT_TOKENS = "max_output_tokens", Range::AtLeast { least: 1 }, "leave it out for all the room the context has";
    N_PREDICT = "n_predict", Range::AtLeast { least: -1 }, "-1 is all the room the context has";
    N = "n", Range::Whole { least: 1, most: 16 }, "send several requests for more answers";
    BEST_OF = "best_of", Range::Whole { least: 1, most: 16 }, "";
    TOP_LOGPROBS = "top_logprobs", Range::Whole { least: 0, most: 20 }, "";
    COMPLETION_LOGPROBS = "logprobs", Range::Whole { least: 0, most: 20 }, "";
    BLOCK_SIZE = "block_size", Range::Whole { least: 1, most: 16 }, "1 decodes without drafts";
    BUDGET_TOKENS = "budget_tokens", Range::AtLeast { least: 1 }, "";
    TOKEN = "token id", Range::Whole { least: 0, most: U32 }, "";
    STOP = "stop", Range::Items { least: 0, most: 16 }, "";
    STOP_SEQUENCES = "stop_sequences", Range::Items { least: 0, most: 16 }, "";
    STOP_STRING = "stop", Range::Bytes { least: 1, most: 1024 }, "leave it out for no stop string";
    STOP_TOKENS = "stop_token_ids", Range::Items { least: 0, most: 128 }, "";
    MESSAGES = "messages", Range::Items { least: 1, most: 100_000 }, "";
    PARTS = "content", Range::Items { least: 0, most: 100_000 }, "";
    INPUT = "input", Range::Items { least: 1, most: 100_000 }, "";
    PROMPTS = "prompt", Range::Items { least: 1, most: 128 }, "";
    PROMPT_TOKENS = "prompt", Range::Items { least: 1, most: 10_000_000 }, "";
    TOKENS = "tokens", Range::Items { least: 0, most: 10_000_000 }, "";
    TOOLS = "tools", Range::Items { least: 0, most: 512 }, "";
    ALLOWED_TOOLS = "tools", Range::Items { least: 1, most: 512 }, "";
    TOOL_CALLS = "tool_calls", Range::Items { least: 0, most: 512 }, "";
    TOOL_NAME = "name", Range::Bytes { least: 1, most: 128 }, "";
    INCLUDE = "include", Range::Items { least: 0, most: 16 }, "";
    METADATA = "metadata", Range::Items { least: 0, most: 64 }, "";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_range_is_one_and_says_so() {
        for limit in ALL {
            let ordered = match limit.range {
                Range::Real { least, most } => least < most,
                Range::Above { above, most } => above < most,
                Range::Whole { least, most } => least < most,
                Range::AtLeast { least } => least <= 1,
                Range::Items { least, most } | Range::Bytes { least, most } => least < most,
            };
            assert!(ordered, "{}", limit.name);
            assert!(!limit.name.is_empty() && limit.range.to_string().contains(char::is_numeric));
        }
    }

    #[test]
    fn words() {
        assert_eq!(TEMPERATURE.range.to_string(), "a number from 0 to 2");
        assert_eq!(TOP_P.range.to_string(), "a number above 0, at most 1");
        assert_eq!(N.range.to_string(), "an integer from 1 to 16");
        assert_eq!(MAX_TOKENS.range.to_string(), "an integer of at least 1");
        assert_eq!(STOP.range.to_string(), "at most 16 items");
        assert_eq!(MESSAGES.range.to_string(), "1 to 100000 items");
        assert_eq!(STOP_STRING.range.to_string(), "a string of 1 to 1024 bytes");
        assert_eq!(Range::Bytes { least: 0, most: 9 }.to_string(), "a string of at most 9 bytes");
    }
}
