//! Parameters of every generating route: how tokens are chosen, when to stop, how wide to draft.

use std::collections::HashSet;

use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use crate::decode::{Decode, Node, Object, Result, describe};
use crate::limits::{self, Limit};

/// What a request says about sampling; `None` = the server's default.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Sampling {
    /// 0 is greedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f32>,
    /// Above 0, at most 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f32>,
    /// 0 keeps all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_k: Option<u32>,
    /// 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_p: Option<f32>,
    /// Above 0; also read as `repeat_penalty`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repetition_penalty: Option<f32>,
    /// -2 to 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub presence_penalty: Option<f32>,
    /// -2 to 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frequency_penalty: Option<f32>,
    /// (token id, bias); a map from id to bias on the wire, where llama-server's list of pairs is read too.
    #[serde(serialize_with = "as_map", skip_serializing_if = "Vec::is_empty")]
    pub logit_bias: Vec<(u32, f32)>,
    /// `None` = a random one; so is -1 on the wire, as llama-server has it. Other negative seeds are their 64 bits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Strings that end the answer, and are cut off; one string or a list on the wire.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<String>,
    /// Tokens that end the answer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stop_token_ids: Vec<u32>,
    /// Go on past the model's own stop tokens.
    #[serde(skip_serializing_if = "is_false")]
    pub ignore_eos: bool,
    /// Whether special tokens are left out of the text; yes unless said otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skip_special_tokens: Option<bool>,
    /// Block width of this request. It changes the speed, never the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speculative: Option<Speculative>,
    /// `false`: compute the whole prompt, whatever is cached. It changes the time to the first token, never the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_prompt: Option<bool>,
    /// Timings in every chunk of a stream, not only in the last.
    #[serde(skip_serializing_if = "is_false")]
    pub timings_per_token: bool,
}

/// `serde` leaves out what is false.
pub(crate) fn is_false(flag: &bool) -> bool {
    !flag
}

/// What a request says about speculation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speculative {
    /// As the server does it: `true`, "on", "auto" or `{}`.
    Auto,
    /// Plain decoding: `false` or "off".
    Off,
    /// Blocks of K positions, 1 pending and K-1 drafted: `{"block_size": K}`.
    Block(u32),
}

impl Serialize for Speculative {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match self {
            Speculative::Auto => serializer.serialize_bool(true),
            Speculative::Off => serializer.serialize_bool(false),
            Speculative::Block(k) => Map::from_iter([("block_size".to_owned(), Value::from(*k))]).serialize(serializer),
        }
    }
}

impl Decode for Speculative {
    fn decode(node: Node<'_>) -> Result<Self> {
        let expected = "{\"block_size\": K}, true, false, \"auto\", \"on\" or \"off\"";
        match node.value.as_str() {
            Some("auto" | "on") => return Ok(Speculative::Auto),
            Some("off") => return Ok(Speculative::Off),
            _ => {}
        }
        match node.value.as_bool() {
            Some(true) => return Ok(Speculative::Auto),
            Some(false) => return Ok(Speculative::Off),
            None => {}
        }
        let mut object = node.object(expected)?;
        let block = object.whole(&limits::BLOCK_SIZE)?;
        object.finish(&[])?;
        Ok(block.map_or(Speculative::Auto, Speculative::Block))
    }
}

/// What differs between the routes that take sampling parameters.
pub(crate) struct Dialect {
    pub(crate) temperature: &'static Limit,
    /// `stop` or `stop_sequences`.
    pub(crate) stop: &'static Limit,
}

pub(crate) const OPENAI: Dialect = Dialect { temperature: &limits::TEMPERATURE, stop: &limits::STOP };
pub(crate) const ANTHROPIC: Dialect =
    Dialect { temperature: &limits::ANTHROPIC_TEMPERATURE, stop: &limits::STOP_SEQUENCES };

impl Sampling {
    /// Takes the sampling fields out of a request.
    pub(crate) fn take(object: &mut Object<'_>, dialect: &Dialect) -> Result<Self> {
        let repetition = object.real(&limits::REPETITION_PENALTY)?;
        let repeat = object.real(&Limit { name: "repeat_penalty", ..limits::REPETITION_PENALTY })?;
        let repetition_penalty = agree(object, ("repetition_penalty", repetition), ("repeat_penalty", repeat))?;
        Ok(Sampling {
            temperature: object.real(dialect.temperature)?,
            top_p: object.real(&limits::TOP_P)?,
            top_k: object.whole::<i64>(&limits::TOP_K)?.map(|k| u32::try_from(k).unwrap_or(0)),
            min_p: object.real(&limits::MIN_P)?,
            repetition_penalty,
            presence_penalty: object.real(&limits::PRESENCE_PENALTY)?,
            frequency_penalty: object.real(&limits::FREQUENCY_PENALTY)?,
            logit_bias: object.take("logit_bias").map(logit_bias).transpose()?.unwrap_or_default(),
            seed: object.whole::<i128>(&limits::SEED)?.filter(|seed| *seed != -1).map(|seed| seed as u64),
            stop: object.take(dialect.stop.name).map(|node| stop(node, dialect.stop)).transpose()?.unwrap_or_default(),
            stop_token_ids: object
                .take("stop_token_ids")
                .map(|node| node.list(&limits::STOP_TOKENS, |node| node.whole(&limits::TOKEN)))
                .transpose()?
                .unwrap_or_default(),
            ignore_eos: object.flag("ignore_eos")?,
            skip_special_tokens: object.optional("skip_special_tokens")?,
            speculative: object.optional("speculative")?,
            cache_prompt: object.optional("cache_prompt")?,
            timings_per_token: object.flag("timings_per_token")?,
        })
    }
}

/// Two spellings of one parameter: either, or both with one value.
pub(crate) fn agree<T: PartialEq + std::fmt::Display>(
    object: &Object<'_>,
    (first, a): (&str, Option<T>),
    (second, b): (&str, Option<T>),
) -> Result<Option<T>> {
    match (a, b) {
        (Some(a), Some(b)) if a != b => {
            let message = format!("expected no other value than the {a} of {first}, found {b}; send one of the two");
            Err(object.error(second, message).with_code("conflicting_parameters"))
        }
        (a, b) => Ok(a.or(b)),
    }
}

/// One string, or a list of them.
fn stop(node: Node<'_>, limit: &Limit) -> Result<Vec<String>> {
    match node.value {
        Value::String(_) => node.bounded_text(&limits::STOP_STRING).map(|text| vec![text]),
        Value::Array(_) => node.list(limit, |node| node.bounded_text(&limits::STOP_STRING)),
        _ => Err(node.wrong("a string or an array of strings")),
    }
}

/// `{"50256": -100}`, or llama-server's `[[50256, -100], [198, false]]`, where `false` forbids the token.
fn logit_bias(node: Node<'_>) -> Result<Vec<(u32, f32)>> {
    let mut seen = HashSet::new();
    let mut once = |node: &Node<'_>, token: u32| match seen.insert(token) {
        true => Ok(token),
        false => Err(node.path.error(format_args!("expected each token id once, found {token} again"))),
    };
    if node.value.is_array() {
        return node.list(&limits::LOGIT_BIASES, |node| {
            let wrong = node.wrong("a pair [token id, bias]");
            let Value::Array(pair) = node.value else { return Err(wrong) };
            let Ok([token, bias]) = <[Value; 2]>::try_from(pair) else { return Err(wrong) };
            let token = Node { value: token, path: node.path }.whole(&limits::TOKEN)?;
            let bias = if bias == Value::Bool(false) { Value::from(-100) } else { bias };
            let bias = Node { value: bias, path: node.path };
            Ok((once(&bias, token)?, bias.real(&limits::LOGIT_BIAS)?))
        });
    }
    let mut object = node.object("an object from token ids to biases")?;
    let names = object.names();
    if names.len() > 1024 {
        return Err(object.path.error(format_args!("expected {}, found {}", limits::LOGIT_BIASES.range, names.len())));
    }
    let mut biases = Vec::with_capacity(names.len());
    for name in &names {
        let Ok(token) = name.parse::<u32>() else {
            let found = describe(&Value::String(name.clone()));
            return Err(object.error(name, format_args!("expected a token id as the field's name, found {found}")));
        };
        if let Some(node) = object.take(name) {
            biases.push((once(&node, token)?, node.real(&limits::LOGIT_BIAS)?));
        }
    }
    Ok(biases)
}

fn as_map<S: Serializer>(biases: &[(u32, f32)], serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_map(biases.iter().copied())
}
