//! The request, and the chat request it comes to.

use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value, json};

use super::item::{self, InputItem};
use crate::decode::{Decode, Node, Object, Result, one_of};
use crate::error::ApiError;
use crate::limits;
use crate::openai::{
    ChatRequest, Content, Function, JsonSchema, MediaAt, Message, ReasoningEffort, ResponseFormat, Role, StreamOptions,
    Tool, ToolChoice, allowed_mode, check_choice,
};
use crate::parameters;
use crate::sampling::{self, Sampling, is_false};

/// A conversation to be continued.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ResponsesRequest {
    /// Which model; `None` = the one being served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The conversation.
    pub input: Input,
    /// What the operator says first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// Functions the model may call.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<ResponsesTool>,
    /// Whether it must.
    #[serde(serialize_with = "choice", skip_serializing_if = "Option::is_none")]
    pub tool_choice: Option<ToolChoice>,
    /// Whether one answer may call several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parallel_tool_calls: Option<bool>,
    /// What the text must look like.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<TextConfig>,
    /// How much to think.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<Reasoning>,
    /// Whether the answer comes as a stream of [`ResponseEvent`](super::ResponseEvent)s.
    #[serde(skip_serializing_if = "is_false")]
    pub stream: bool,
    /// Most tokens to generate; `None` = all the room.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_output_tokens: Option<u64>,
    /// What the answer holds besides: `message.output_text.logprobs` is acted on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub include: Vec<String>,
    /// How many alternatives each token comes with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_logprobs: Option<u32>,
    /// Given back in the answer.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
    /// Variables of the chat template.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub chat_template_kwargs: Map<String, Value>,
    /// How tokens are chosen.
    #[serde(flatten)]
    pub sampling: Sampling,
}

/// The conversation: a question, or items.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Input {
    /// What the user says.
    Text(String),
    /// At least one item.
    Items(Vec<InputItem>),
}

/// A function the model may call; its fields lie beside the type.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ResponsesTool {
    /// Always `function`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The function.
    #[serde(flatten)]
    pub function: Function,
}

/// How the text looks.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TextConfig {
    /// Its form.
    pub format: TextFormat,
}

/// The form of the text; a schema's fields lie beside the type.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum TextFormat {
    /// Any text.
    #[default]
    Text,
    /// A JSON object.
    JsonObject,
    /// JSON of a schema.
    JsonSchema(JsonSchema),
}

/// How much to think.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reasoning {
    /// In a word: see [`ReasoningEffort`].
    pub effort: Option<String>,
    /// Always null: reasoning is given as it is.
    #[serde(default)]
    pub summary: Option<String>,
}

/// A choice in this dialect: the function's name lies beside the type.
pub(super) fn choice<S: Serializer>(
    choice: &Option<ToolChoice>,
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    match choice {
        Some(ToolChoice::Function(name)) => {
            let mut map = serializer.serialize_map(Some(2))?;
            map.serialize_entry("type", "function")?;
            map.serialize_entry("name", name)?;
            map.end()
        }
        Some(ToolChoice::Allowed { required, names }) => {
            let tool = |name: &String| json!({ "type": "function", "name": name });
            let mut map = serializer.serialize_map(Some(3))?;
            map.serialize_entry("type", "allowed_tools")?;
            map.serialize_entry("mode", allowed_mode(*required))?;
            map.serialize_entry("tools", &names.iter().map(tool).collect::<Vec<Value>>())?;
            map.end()
        }
        other => other.serialize(serializer),
    }
}

impl Decode for Input {
    fn decode(node: Node<'_>) -> Result<Self> {
        match node.value {
            Value::String(text) => Ok(Input::Text(text)),
            Value::Array(_) => node.list(&limits::INPUT, InputItem::decode).map(Input::Items),
            _ => Err(node.wrong("a string or an array of input items")),
        }
    }
}

impl Decode for ResponsesTool {
    fn decode(node: Node<'_>) -> Result<Self> {
        let mut object = node.object("a tool (an object with type and name)")?;
        let kind = object.kind("\"function\"")?;
        if kind != "function" {
            let kind: String = kind.chars().take(64).collect();
            let message = format!("expected \"function\", found {kind:?}; this server runs no tools itself");
            return Err(object.error("type", message).with_code("unsupported_parameter"));
        }
        let function = Function::take(&mut object, "parameters")?;
        object.finish(&[])?;
        Ok(ResponsesTool { kind, function })
    }
}

impl Decode for TextConfig {
    fn decode(node: Node<'_>) -> Result<Self> {
        let mut object = node.object("an object with a format")?;
        let format = object.optional("format")?.unwrap_or_default();
        object.finish(&[parameters::TEXT])?;
        Ok(TextConfig { format })
    }
}

impl Decode for TextFormat {
    fn decode(node: Node<'_>) -> Result<Self> {
        let kinds = one_of(["text", "json_object", "json_schema"].into_iter());
        let mut object = node.object("an object with a type")?;
        let kind = object.kind(&kinds)?;
        let format = match kind.as_str() {
            "text" => TextFormat::Text,
            "json_object" => TextFormat::JsonObject,
            "json_schema" => TextFormat::JsonSchema(JsonSchema::take(&mut object)?),
            _ => {
                let kind: String = kind.chars().take(64).collect();
                return Err(object.error("type", format_args!("expected {kinds}, found {kind:?}")));
            }
        };
        object.finish(&[])?;
        Ok(format)
    }
}

impl Decode for Reasoning {
    fn decode(node: Node<'_>) -> Result<Self> {
        let mut object = node.object("an object with an effort")?;
        let effort: Option<ReasoningEffort> = object.optional("effort")?;
        object.finish(&[parameters::REASONING])?;
        Ok(Reasoning { effort: effort.map(|effort| effort.name().into()), summary: None })
    }
}

const LOGPROBS: &str = "message.output_text.logprobs";

/// What the answer may hold besides.
fn include(object: &mut Object<'_>) -> Result<Vec<String>> {
    let Some(node) = object.take("include") else { return Ok(Vec::new()) };
    let words = [(LOGPROBS, LOGPROBS), ("reasoning.encrypted_content", "reasoning.encrypted_content")];
    node.list(&limits::INCLUDE, |node| node.word(&words).map(Into::into))
}

impl Decode for ResponsesRequest {
    fn decode(node: Node<'_>) -> Result<Self> {
        let mut object = node.object("a JSON object with an input")?;
        let input = Input::decode(object.need("input", "a string or an array of input items")?)?;
        let tools: Vec<ResponsesTool> = object.list(&limits::TOOLS)?;
        let tool_choice = object.optional("tool_choice")?;
        let chat_tools: Vec<Tool> = tools.iter().map(|tool| Tool::new(tool.function.clone())).collect();
        check_choice(&object, &chat_tools, tool_choice.as_ref())?;
        let stream = object.flag("stream")?;
        StreamOptions::take(&mut object, stream)?;
        let metadata: Map<String, Value> = object.optional("metadata")?.unwrap_or_default();
        if metadata.len() > 64 {
            let message = format!("expected {}, found {}", limits::METADATA.range, metadata.len());
            return Err(object.error("metadata", message));
        }
        let request = ResponsesRequest {
            model: object.optional("model")?,
            input,
            instructions: object.optional("instructions")?,
            tools,
            tool_choice,
            parallel_tool_calls: object.optional("parallel_tool_calls")?,
            text: object.optional("text")?,
            reasoning: object.optional("reasoning")?,
            stream,
            max_output_tokens: object.whole(&limits::MAX_OUTPUT_TOKENS)?,
            include: include(&mut object)?,
            top_logprobs: object.whole(&limits::TOP_LOGPROBS)?,
            metadata,
            chat_template_kwargs: object.optional("chat_template_kwargs")?.unwrap_or_default(),
            sampling: Sampling::take(&mut object, &sampling::OPENAI)?,
        };
        object.finish(&[parameters::COMMON, parameters::RESPONSES])?;
        Ok(request)
    }
}

impl ResponsesRequest {
    /// Refuses images, for a model that only reads.
    ///
    /// # Errors
    /// A 400 that names the first part that is no text.
    pub fn require_text(&self) -> std::result::Result<(), ApiError> {
        match &self.input {
            Input::Items(items) => item::first_media(items).map_or(Ok(()), |at| Err(MediaAt(at).refuse())),
            Input::Text(_) => Ok(()),
        }
    }

    /// Whether tokens come with their log-probabilities.
    pub fn logprobs(&self) -> bool {
        self.top_logprobs.is_some_and(|n| n > 0) || self.include.iter().any(|what| what == LOGPROBS)
    }

    /// The same as a chat request. Its `stream` is the request's, its `stream_options` ask for the usage, which this
    /// dialect always gives.
    pub fn to_chat(&self) -> ChatRequest {
        let mut messages: Vec<Message> =
            self.instructions.iter().map(|text| Message::text(Role::System, text.clone())).collect();
        match &self.input {
            Input::Text(text) => messages.push(Message::of(Role::User, Content::Text(text.clone()))),
            Input::Items(items) => messages.extend(item::messages(items)),
        }
        let effort = self.reasoning.as_ref().and_then(|reasoning| reasoning.effort.clone());
        ChatRequest {
            model: self.model.clone(),
            messages,
            tools: self.tools.iter().map(|tool| Tool::new(tool.function.clone())).collect(),
            tool_choice: self.tool_choice.clone(),
            parallel_tool_calls: self.parallel_tool_calls,
            response_format: self.text.as_ref().map(|text| text.format.to_chat()),
            grammar: None,
            stream: self.stream,
            stream_options: self.stream.then_some(StreamOptions { include_usage: true }),
            max_tokens: self.max_output_tokens,
            n: None,
            logprobs: self.logprobs(),
            top_logprobs: self.top_logprobs,
            reasoning_effort: effort.and_then(|effort| ReasoningEffort::named(&effort)),
            thinking_budget_tokens: None,
            chat_template_kwargs: self.chat_template_kwargs.clone(),
            sampling: self.sampling.clone(),
        }
    }
}

impl TextFormat {
    /// The same in chat's form.
    pub fn to_chat(&self) -> ResponseFormat {
        match self {
            TextFormat::Text => ResponseFormat::Text,
            TextFormat::JsonObject => ResponseFormat::JsonObject,
            TextFormat::JsonSchema(schema) => ResponseFormat::JsonSchema { json_schema: schema.clone() },
        }
    }
}
