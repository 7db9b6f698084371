//! `POST /v1/completions`: text continued, without a template.

use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use super::answer::{FinishReason, finite};
use super::chat::{StreamOptions, max_tokens};
use super::usage::{Timings, Usage};
use crate::decode::{Decode, Node, Object, Result};
use crate::limits;
use crate::parameters;
use crate::sampling::{self, Sampling, is_false};

/// Texts to be continued.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CompletionRequest {
    /// Which model; `None` = the one being served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// What to continue.
    pub prompt: Prompt,
    /// Most tokens to generate for each answer; `None` = the server's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// How many answers for each prompt; `None` = 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n: Option<u32>,
    /// Whether answers begin with their prompt.
    #[serde(skip_serializing_if = "is_false")]
    pub echo: bool,
    /// `Some(k)`: tokens come with their log-probabilities and those of `k` alternatives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<u32>,
    /// Whether answers come as a stream of [`CompletionAnswer`]s.
    #[serde(skip_serializing_if = "is_false")]
    pub stream: bool,
    /// What a stream holds besides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_options: Option<StreamOptions>,
    /// A grammar the text must follow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grammar: Option<String>,
    /// How tokens are chosen.
    #[serde(flatten)]
    pub sampling: Sampling,
}

/// One prompt or several: a string, a list of token ids, or a list of strings or of lists of ids.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Prompt {
    /// One.
    One(PromptItem),
    /// Several, at least one.
    Many(Vec<PromptItem>),
}

/// A prompt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum PromptItem {
    /// Text; it may be empty.
    Text(String),
    /// Token ids, at least one.
    Tokens(Vec<u32>),
}

impl Prompt {
    /// The prompts in order.
    pub fn items(&self) -> &[PromptItem] {
        match self {
            Prompt::One(item) => std::slice::from_ref(item),
            Prompt::Many(items) => items,
        }
    }
}

impl Decode for Prompt {
    fn decode(node: Node<'_>) -> Result<Self> {
        let expected = "a string, an array of strings, an array of token ids or an array of arrays of token ids";
        match &node.value {
            Value::String(_) => PromptItem::decode(node).map(Prompt::One),
            Value::Array(items) => match items.first() {
                Some(Value::Number(_)) => PromptItem::decode(node).map(Prompt::One),
                _ => node.list(&limits::PROMPTS, PromptItem::decode).map(Prompt::Many),
            },
            _ => Err(node.wrong(expected)),
        }
    }
}

impl Decode for PromptItem {
    fn decode(node: Node<'_>) -> Result<Self> {
        match node.value {
            Value::String(text) => Ok(PromptItem::Text(text)),
            Value::Array(_) => {
                node.list(&limits::PROMPT_TOKENS, |node| node.whole(&limits::TOKEN)).map(PromptItem::Tokens)
            }
            _ => Err(node.wrong("a string or an array of token ids")),
        }
    }
}

impl Decode for CompletionRequest {
    fn decode(node: Node<'_>) -> Result<Self> {
        let mut object = node.object("a JSON object with a prompt")?;
        let prompt = Prompt::decode(object.need("prompt", "a string or an array")?)?;
        let n = object.whole(&limits::N)?;
        check_best_of(&mut object, n.unwrap_or(1))?;
        let stream = object.flag("stream")?;
        let request = CompletionRequest {
            model: object.optional("model")?,
            prompt,
            max_tokens: max_tokens(&mut object)?,
            n,
            echo: object.flag("echo")?,
            logprobs: object.whole(&limits::COMPLETION_LOGPROBS)?,
            stream,
            stream_options: StreamOptions::take(&mut object, stream)?,
            grammar: object.optional("grammar")?.filter(|grammar: &String| !grammar.is_empty()),
            sampling: Sampling::take(&mut object, &sampling::OPENAI)?,
        };
        object.finish(&[parameters::COMMON, parameters::COMPLETION])?;
        Ok(request)
    }
}

/// `best_of` answers are ranked and `n` kept: nothing to rank where the two are equal, and no support where not.
fn check_best_of(object: &mut Object<'_>, n: u32) -> Result<()> {
    match object.whole::<u32>(&limits::BEST_OF)? {
        Some(best) if best != n => {
            let message = format!("expected no such field, or the {n} of n, found {best}; answers are not ranked");
            Err(object.error("best_of", message).with_code("unsupported_parameter"))
        }
        _ => Ok(()),
    }
}

/// Answers, whole; or a piece of one, in a stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CompletionAnswer {
    /// `cmpl-...`; the same in all pieces.
    pub id: String,
    /// Always `text_completion`.
    pub object: String,
    /// Seconds since 1970.
    pub created: u64,
    /// The model that answered.
    pub model: String,
    /// The answers: those of the first prompt, then those of the second.
    pub choices: Vec<CompletionChoice>,
    /// Build and checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_fingerprint: Option<String>,
    /// What they cost; in a stream in the last piece, if asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// How long it took; for one answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timings: Option<Timings>,
}

/// One answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CompletionChoice {
    /// Which.
    pub index: u32,
    /// The text, or what is new of it.
    pub text: String,
    /// If asked for.
    pub logprobs: Option<CompletionLogprobs>,
    /// Why it ended; null in a stream until it does.
    pub finish_reason: Option<FinishReason>,
}

/// Tokens and their log-probabilities.
type Alternatives = Vec<(String, f32)>;

/// Log-probabilities in the older form: parallel lists, one entry a token.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CompletionLogprobs {
    /// The tokens' text.
    pub tokens: Vec<String>,
    /// Their log-probabilities; null for the first token of an echoed prompt.
    #[serde(serialize_with = "logprobs")]
    pub token_logprobs: Vec<Option<f32>>,
    /// The likeliest tokens in each place, likeliest first; a map on the wire.
    #[serde(with = "alternatives")]
    pub top_logprobs: Vec<Option<Alternatives>>,
    /// Where each token begins, in characters.
    pub text_offset: Vec<u64>,
}

fn logprobs<S: Serializer>(values: &[Option<f32>], serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_seq(values.iter().map(|value| value.map(finite)))
}

/// Lists of (token, log-probability) as maps that keep their order.
mod alternatives {
    use super::*;

    struct Place<'a>(&'a [(String, f32)]);

    impl Serialize for Place<'_> {
        fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
            let mut map = serializer.serialize_map(None)?;
            for (i, (token, logprob)) in self.0.iter().enumerate() {
                // Two tokens can have one text; a map has room for the likelier.
                if self.0[..i].iter().all(|(earlier, _)| earlier != token) {
                    map.serialize_entry(token, &finite(*logprob))?;
                }
            }
            map.end()
        }
    }

    pub(super) fn serialize<S: Serializer>(
        places: &[Option<Alternatives>],
        serializer: S,
    ) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_seq(places.iter().map(|place| place.as_deref().map(Place)))
    }

    pub(super) fn deserialize<'de, D: serde::Deserializer<'de>>(
        deserializer: D,
    ) -> std::result::Result<Vec<Option<Alternatives>>, D::Error> {
        let places = Vec::<Option<serde_json::Map<String, Value>>>::deserialize(deserializer)?;
        let number = |value: Value| {
            value.as_f64().map(|x| x as f32).ok_or_else(|| serde::de::Error::custom("expected a log-probability"))
        };
        let place = |map: serde_json::Map<String, Value>| {
            map.into_iter().map(|(token, value)| Ok((token, number(value)?))).collect()
        };
        places.into_iter().map(|map| map.map(place).transpose()).collect()
    }
}
