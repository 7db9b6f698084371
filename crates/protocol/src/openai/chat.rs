//! `POST /v1/chat/completions`: the request.

use serde::Serialize;
use serde_json::{Map, Value};

use super::content::{Content, MediaAt};
use super::format::{ResponseFormat, checked_schema};
use super::message::Message;
use super::tool::{Tool, ToolChoice, check_choice};
use crate::decode::{Decode, Node, Object, Result};
use crate::error::ApiError;
use crate::limits;
use crate::parameters;
use crate::sampling::{self, Sampling, agree, is_false};

/// A conversation to be continued.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ChatRequest {
    /// Which model; `None` = the one being served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The conversation, at least one message.
    pub messages: Vec<Message>,
    /// Functions the model may call.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Tool>,
    /// Whether it must; `None` = as it likes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_choice: Option<ToolChoice>,
    /// Whether one answer may call several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parallel_tool_calls: Option<bool>,
    /// What the text must look like; also read from llama-server's `json_schema`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_format: Option<ResponseFormat>,
    /// A grammar the text must follow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grammar: Option<String>,
    /// Whether the answer comes as a stream of [`ChatChunk`](super::ChatChunk)s.
    #[serde(skip_serializing_if = "is_false")]
    pub stream: bool,
    /// What a stream holds besides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_options: Option<StreamOptions>,
    /// Most tokens to generate; `None` = all the room. Also read as `max_completion_tokens` and `n_predict`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// How many answers; `None` = 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n: Option<u32>,
    /// Whether tokens come with their log-probabilities.
    #[serde(skip_serializing_if = "is_false")]
    pub logprobs: bool,
    /// How many alternatives they come with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_logprobs: Option<u32>,
    /// How much to think.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_effort: Option<ReasoningEffort>,
    /// Most tokens to think with; `None` = no limit of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking_budget_tokens: Option<u64>,
    /// Variables of the chat template.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub chat_template_kwargs: Map<String, Value>,
    /// How tokens are chosen.
    #[serde(flatten)]
    pub sampling: Sampling,
}

/// What a stream holds besides the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StreamOptions {
    /// A last chunk with the usage.
    pub include_usage: bool,
}

/// How much to think.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ReasoningEffort {
    /// Not at all.
    None,
    /// As little as possible.
    Minimal,
    /// Little.
    Low,
    /// As usual.
    Medium,
    /// Much.
    High,
    /// Very much.
    Xhigh,
    /// As much as can be.
    Max,
}

impl ReasoningEffort {
    /// All of them, from none to most.
    pub const ALL: [ReasoningEffort; 7] = [
        ReasoningEffort::None,
        ReasoningEffort::Minimal,
        ReasoningEffort::Low,
        ReasoningEffort::Medium,
        ReasoningEffort::High,
        ReasoningEffort::Xhigh,
        ReasoningEffort::Max,
    ];

    /// The effort of a word on the wire.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|effort| effort.name() == name)
    }

    /// The word on the wire.
    pub fn name(self) -> &'static str {
        match self {
            ReasoningEffort::None => "none",
            ReasoningEffort::Minimal => "minimal",
            ReasoningEffort::Low => "low",
            ReasoningEffort::Medium => "medium",
            ReasoningEffort::High => "high",
            ReasoningEffort::Xhigh => "xhigh",
            ReasoningEffort::Max => "max",
        }
    }
}

impl Decode for ReasoningEffort {
    fn decode(node: Node<'_>) -> Result<Self> {
        node.word(&ReasoningEffort::ALL.map(|effort| (effort.name(), effort)))
    }
}

impl StreamOptions {
    /// Takes `stream_options`, which only streams have.
    pub(crate) fn take(object: &mut Object<'_>, stream: bool) -> Result<Option<Self>> {
        let Some(node) = object.take("stream_options") else { return Ok(None) };
        let mut inner = node.object("an object with include_usage")?;
        let include_usage = inner.flag("include_usage")?;
        // Padding against guessing at the length of tokens from outside: adds nothing on a machine of one's own.
        inner.ignore(&["include_obfuscation"]);
        inner.finish(&[&[parameters::Parameter {
            name: "continuous_usage_stats",
            rule: parameters::Rule::Only(&["false"], "usage comes once, at the end"),
        }]])?;
        if !stream {
            let message = "expected only with \"stream\": true, found in a request without";
            return Err(object.error("stream_options", message).with_code("conflicting_parameters"));
        }
        Ok(Some(StreamOptions { include_usage }))
    }
}

/// Takes the most tokens to generate, in whichever spelling it is.
pub(crate) fn max_tokens(object: &mut Object<'_>) -> Result<Option<u64>> {
    let old = object.whole(&limits::MAX_TOKENS)?;
    let new = object.whole(&limits::MAX_COMPLETION_TOKENS)?;
    let most = agree(object, ("max_tokens", old), ("max_completion_tokens", new))?;
    let predict = object.whole::<i128>(&limits::N_PREDICT)?;
    if predict == Some(0) {
        return Err(object.error("n_predict", "expected -1 or an integer of at least 1, found 0"));
    }
    let predict = predict.and_then(|n| u64::try_from(n).ok());
    agree(object, ("max_tokens", most), ("n_predict", predict))
}

/// Takes what the text must look like: one of `response_format`, `grammar` and `json_schema`.
fn take_format(object: &mut Object<'_>) -> Result<(Option<ResponseFormat>, Option<String>)> {
    let format: Option<ResponseFormat> = object.optional("response_format")?;
    let schema = object.take("json_schema").map(checked_schema).transpose()?;
    let grammar: Option<String> = object.optional("grammar")?.filter(|grammar: &String| !grammar.is_empty());
    let formatted = format.as_ref().is_some_and(|format| *format != ResponseFormat::Text);
    let given = [("response_format", formatted), ("json_schema", schema.is_some()), ("grammar", grammar.is_some())];
    let mut given = given.iter().filter(|(_, there)| *there).map(|(name, _)| *name);
    if let (Some(first), Some(second)) = (given.next(), given.next()) {
        let message = format!("expected no second description of the text, found {first} as well; send one of the two");
        return Err(object.error(second, message).with_code("conflicting_parameters"));
    }
    Ok((schema.map(ResponseFormat::schema).or(format), grammar))
}

impl Decode for ChatRequest {
    fn decode(node: Node<'_>) -> Result<Self> {
        let mut object = node.object("a JSON object with messages")?;
        let messages =
            object.need("messages", "an array of at least one message")?.list(&limits::MESSAGES, Message::decode)?;
        let tools: Vec<Tool> = object.list(&limits::TOOLS)?;
        let tool_choice = object.optional("tool_choice")?;
        check_choice(&object, &tools, tool_choice.as_ref())?;
        let (response_format, grammar) = take_format(&mut object)?;
        let stream = object.flag("stream")?;
        let logprobs = object.flag("logprobs")?;
        let top_logprobs = object.whole(&limits::TOP_LOGPROBS)?;
        if top_logprobs.is_some_and(|n: u32| n > 0) && !logprobs {
            let message = "expected only with \"logprobs\": true, found in a request without";
            return Err(object.error("top_logprobs", message).with_code("conflicting_parameters"));
        }
        let request = ChatRequest {
            model: object.optional("model")?,
            messages,
            tools,
            tool_choice,
            parallel_tool_calls: object.optional("parallel_tool_calls")?,
            response_format,
            grammar,
            stream,
            stream_options: StreamOptions::take(&mut object, stream)?,
            max_tokens: max_tokens(&mut object)?,
            n: object.whole(&limits::N)?,
            logprobs,
            top_logprobs,
            reasoning_effort: object.optional("reasoning_effort")?,
            thinking_budget_tokens: object
                .whole(&limits::Limit { name: "thinking_budget_tokens", ..limits::BUDGET_TOKENS })?,
            chat_template_kwargs: object.optional("chat_template_kwargs")?.unwrap_or_default(),
            sampling: Sampling::take(&mut object, &sampling::OPENAI)?,
        };
        object.finish(&[parameters::COMMON, parameters::CHAT])?;
        Ok(request)
    }
}

impl ChatRequest {
    /// Refuses images, for a model that only reads.
    ///
    /// # Errors
    /// A 400 that names the first part that is no text.
    pub fn require_text(&self) -> std::result::Result<(), ApiError> {
        require_text(&self.messages)
    }
}

/// Refuses the first part of a message that is no text.
pub(crate) fn require_text(messages: &[Message]) -> Result<()> {
    for (i, message) in messages.iter().enumerate() {
        if let Some(j) = message.content.as_ref().and_then(Content::first_media) {
            return Err(MediaAt(format!("messages[{i}].content[{j}]")).refuse());
        }
    }
    Ok(())
}
