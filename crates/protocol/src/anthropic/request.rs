//! The request, and the chat request it comes to.

use serde::Serialize;
use serde_json::{Map, Value};

use super::block::{Block, Blocks, ImageSource, Place, blocks};
use super::tool::{Choice, Tool};
use crate::decode::{Decode, Node, Object, Result};
use crate::error::ApiError;
use crate::limits;
use crate::openai::{
    self, ChatRequest, Content, ContentPart, ImageUrl, MediaAt, Message, ReasoningEffort, ResponseFormat, Role,
    StreamOptions, ToolCall, ToolChoice, check_choice,
};
use crate::parameters;
use crate::sampling::{self, Sampling, is_false};

/// A conversation to be continued.
#[derive(Clone, Debug, PartialEq)]
pub struct MessagesRequest {
    /// The conversation and the tools.
    pub prompt: CountTokensRequest,
    /// Most tokens to generate.
    pub max_tokens: u64,
    /// Whether the answer comes as a stream of [`StreamEvent`](super::StreamEvent)s.
    pub stream: bool,
    /// How tokens are chosen; `stop` holds `stop_sequences`.
    pub sampling: Sampling,
}

/// What becomes the prompt: the body of `count_tokens`, and most of a request.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CountTokensRequest {
    /// Which model; `None` = the one being served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// What the operator says first; text only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<Blocks>,
    /// The conversation, at least one message.
    pub messages: Vec<InputMessage>,
    /// Functions the model may call.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Tool>,
    /// Whether it must.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_choice: Option<Choice>,
    /// Whether and how much to think.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking: Option<Thinking>,
    /// What the text must look like, and how much to think.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_config: Option<OutputConfig>,
    /// Variables of the chat template.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub chat_template_kwargs: Map<String, Value>,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct InputMessage {
    /// Who speaks.
    pub role: Speaker,
    /// What is said.
    pub content: Blocks,
}

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Speaker {
    /// The person, or the results of tools.
    User,
    /// The model.
    Assistant,
    /// The operator, in the middle of the conversation.
    System,
}

/// Whether to think.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Thinking {
    /// Yes.
    Enabled {
        /// With at most so many tokens, fewer than `max_tokens`.
        budget_tokens: u64,
    },
    /// As the model likes.
    Adaptive,
    /// No.
    Disabled,
}

/// How the answer shall be.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct OutputConfig {
    /// What the text must look like.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<OutputFormat>,
    /// How much to think.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effort: Option<ReasoningEffort>,
}

/// What the text must look like: JSON of a schema.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename = "json_schema")]
pub struct OutputFormat {
    /// The schema.
    pub schema: Map<String, Value>,
}

/// The prompt's fields beside the others; written by hand since two flattened structs and `stop_sequences` differ from
/// how they are held.
impl Serialize for MessagesRequest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Wire<'a> {
            #[serde(flatten)]
            prompt: &'a CountTokensRequest,
            max_tokens: u64,
            #[serde(skip_serializing_if = "is_false")]
            stream: bool,
            #[serde(skip_serializing_if = "<[String]>::is_empty")]
            stop_sequences: &'a [String],
            #[serde(flatten)]
            sampling: Sampling,
        }
        Wire {
            prompt: &self.prompt,
            max_tokens: self.max_tokens,
            stream: self.stream,
            stop_sequences: &self.sampling.stop,
            sampling: Sampling { stop: Vec::new(), ..self.sampling.clone() },
        }
        .serialize(serializer)
    }
}

impl Decode for InputMessage {
    fn decode(node: Node<'_>) -> Result<Self> {
        let mut object = node.object("a message (an object with role and content)")?;
        let roles = [("user", Speaker::User), ("assistant", Speaker::Assistant), ("system", Speaker::System)];
        let role = object.need("role", "a role")?.word(&roles)?;
        let place = match role {
            Speaker::User => Place::User,
            Speaker::Assistant => Place::Assistant,
            Speaker::System => Place::System,
        };
        let content = blocks(object.need("content", "a string or an array of content blocks")?, place)?;
        // What clients keep of an answer and send back with it.
        object.ignore(&["id", "type", "model", "stop_reason", "stop_sequence", "usage"]);
        object.finish(&[])?;
        Ok(InputMessage { role, content })
    }
}

impl Decode for Thinking {
    fn decode(node: Node<'_>) -> Result<Self> {
        let mut object = node.object("an object with a type")?;
        let kinds = [("enabled", 0), ("adaptive", 1), ("disabled", 2)];
        let kind = object.need("type", "a type")?.word(&kinds)?;
        // Whether thinking is shown; it always is.
        object.ignore(&["display"]);
        let thinking = match kind {
            0 => Thinking::Enabled {
                budget_tokens: object.need("budget_tokens", "an integer")?.whole(&limits::BUDGET_TOKENS)?,
            },
            1 => Thinking::Adaptive,
            _ => Thinking::Disabled,
        };
        object.finish(&[])?;
        Ok(thinking)
    }
}

impl Decode for OutputFormat {
    fn decode(node: Node<'_>) -> Result<Self> {
        let mut object = node.object("an object with type and schema")?;
        object.need("type", "\"json_schema\"")?.word(&[("json_schema", ())])?;
        let schema = openai::checked_schema(object.need("schema", "a JSON schema")?)?;
        object.ignore(&["name"]);
        object.finish(&[])?;
        Ok(OutputFormat { schema })
    }
}

impl Decode for OutputConfig {
    fn decode(node: Node<'_>) -> Result<Self> {
        let mut object = node.object("an object with a format")?;
        let config = OutputConfig { format: object.optional("format")?, effort: object.optional("effort")? };
        object.finish(&[])?;
        Ok(config)
    }
}

impl CountTokensRequest {
    fn take(object: &mut Object<'_>) -> Result<Self> {
        let messages = object
            .need("messages", "an array of at least one message")?
            .list(&limits::MESSAGES, InputMessage::decode)?;
        let tools: Vec<Tool> = object.list(&limits::TOOLS)?;
        let tool_choice: Option<Choice> = object.optional("tool_choice")?;
        let prompt = CountTokensRequest {
            model: object.optional("model")?,
            system: object.take("system").map(|node| blocks(node, Place::System)).transpose()?,
            messages,
            tools,
            tool_choice,
            thinking: object.optional("thinking")?,
            output_config: take_output_config(object)?,
            chat_template_kwargs: object.optional("chat_template_kwargs")?.unwrap_or_default(),
        };
        check_choice(object, &prompt.chat_tools(), prompt.chat_choice().as_ref())?;
        if let Some(InputMessage { role: Speaker::Assistant, content }) = prompt.messages.last()
            && content.last_text().is_some_and(|text| text.ends_with(char::is_whitespace))
        {
            let last = prompt.messages.len() - 1;
            let message = "expected text that does not end with white space in a last message that is to be continued, found such an end";
            return Err(ApiError::parameter(format!("messages[{last}].content"), message));
        }
        Ok(prompt)
    }

    /// Refuses images, for a model that only reads.
    ///
    /// # Errors
    /// A 400 that names the first image.
    pub fn require_text(&self) -> std::result::Result<(), ApiError> {
        let image =
            |(i, message): (usize, &InputMessage)| message.content.first_image(&format!("messages[{i}].content"));
        self.messages.iter().enumerate().find_map(image).map_or(Ok(()), |at| Err(MediaAt(at).refuse()))
    }

    fn chat_tools(&self) -> Vec<openai::Tool> {
        let function = |tool: &Tool| openai::Function {
            name: tool.name.clone(),
            description: tool.description.clone(),
            parameters: Some(tool.input_schema.clone()),
            strict: tool.strict,
        };
        self.tools.iter().map(|tool| openai::Tool::new(function(tool))).collect()
    }

    fn chat_choice(&self) -> Option<ToolChoice> {
        self.tool_choice.as_ref().map(|choice| match choice {
            Choice::Auto { .. } => ToolChoice::Auto,
            Choice::Any { .. } => ToolChoice::Required,
            Choice::Tool { name, .. } => ToolChoice::Function(name.clone()),
            Choice::None => ToolChoice::None,
        })
    }

    /// The same as a chat request, without parameters of generating.
    pub fn to_chat(&self) -> ChatRequest {
        let mut messages = Vec::new();
        if let Some(system) = &self.system {
            messages.push(Message::of(Role::System, content(system)));
        }
        for message in &self.messages {
            push(&mut messages, message);
        }
        let config = self.output_config.clone().unwrap_or_default();
        let mut kwargs = self.chat_template_kwargs.clone();
        if let Some(thinking) = self.thinking
            && !kwargs.contains_key("enable_thinking")
        {
            kwargs.insert("enable_thinking".into(), Value::Bool(thinking != Thinking::Disabled));
        }
        ChatRequest {
            model: self.model.clone(),
            messages,
            tools: self.chat_tools(),
            tool_choice: self.chat_choice(),
            parallel_tool_calls: self.tool_choice.as_ref().map(|choice| !choice.one_at_most()),
            response_format: config.format.map(|format| ResponseFormat::schema(format.schema)),
            reasoning_effort: config.effort,
            thinking_budget_tokens: match self.thinking {
                Some(Thinking::Enabled { budget_tokens }) => Some(budget_tokens),
                _ => None,
            },
            chat_template_kwargs: kwargs,
            ..ChatRequest::default()
        }
    }
}

/// `output_config`, or the older `output_format` beside it.
fn take_output_config(object: &mut Object<'_>) -> Result<Option<OutputConfig>> {
    let config: Option<OutputConfig> = object.optional("output_config")?;
    let Some(format) = object.optional::<OutputFormat>("output_format")? else { return Ok(config) };
    let config = config.unwrap_or_default();
    if config.format.is_some() {
        let message =
            "expected no second description of the text, found output_config.format as well; send one of the two";
        return Err(object.error("output_format", message).with_code("conflicting_parameters"));
    }
    Ok(Some(OutputConfig { format: Some(format), ..config }))
}

impl Decode for CountTokensRequest {
    fn decode(node: Node<'_>) -> Result<Self> {
        let mut object = node.object("a JSON object with messages")?;
        let prompt = CountTokensRequest::take(&mut object)?;
        object.finish(&[parameters::COMMON, parameters::MESSAGES])?;
        Ok(prompt)
    }
}

impl Decode for MessagesRequest {
    fn decode(node: Node<'_>) -> Result<Self> {
        let mut object = node.object("a JSON object with messages")?;
        let request = MessagesRequest {
            prompt: CountTokensRequest::take(&mut object)?,
            max_tokens: object.need("max_tokens", "an integer of at least 1")?.whole(&limits::MAX_TOKENS)?,
            stream: object.flag("stream")?,
            sampling: Sampling::take(&mut object, &sampling::ANTHROPIC)?,
        };
        if let Some(Thinking::Enabled { budget_tokens }) = request.prompt.thinking
            && budget_tokens >= request.max_tokens
        {
            let message = format!("expected less than the max_tokens of {}, found {budget_tokens}", request.max_tokens);
            return Err(ApiError::parameter("thinking.budget_tokens", message).with_code("conflicting_parameters"));
        }
        object.finish(&[parameters::COMMON, parameters::MESSAGES])?;
        Ok(request)
    }
}

impl MessagesRequest {
    /// Refuses images, for a model that only reads.
    ///
    /// # Errors
    /// A 400 that names the first image.
    pub fn require_text(&self) -> std::result::Result<(), ApiError> {
        self.prompt.require_text()
    }

    /// The same as a chat request. Its `stream_options` ask for the usage, which this dialect always gives.
    pub fn to_chat(&self) -> ChatRequest {
        ChatRequest {
            stream: self.stream,
            stream_options: self.stream.then_some(StreamOptions { include_usage: true }),
            max_tokens: Some(self.max_tokens),
            sampling: self.sampling.clone(),
            ..self.prompt.to_chat()
        }
    }
}

/// Text and images as chat content; whatever is no content is left out.
fn content(blocks: &Blocks) -> Content {
    match blocks {
        Blocks::Text(text) => Content::Text(text.clone()),
        Blocks::List(blocks) => Content::Parts(blocks.iter().filter_map(part).collect()),
    }
}

fn part(block: &Block) -> Option<ContentPart> {
    match block {
        Block::Text { text } => Some(ContentPart::Text { text: text.clone() }),
        Block::Image { source } => {
            let url = match source {
                ImageSource::Base64 { media_type, data } => format!("data:{media_type};base64,{data}"),
                ImageSource::Url { url } => url.clone(),
            };
            Some(ContentPart::ImageUrl { image_url: ImageUrl { url, detail: None } })
        }
        _ => None,
    }
}

/// A message as chat messages: results of tools are messages of their own there, and come first.
fn push(messages: &mut Vec<Message>, message: &InputMessage) {
    let list = match &message.content {
        Blocks::Text(text) => {
            let role = match message.role {
                Speaker::User => Role::User,
                Speaker::Assistant => Role::Assistant,
                Speaker::System => Role::System,
            };
            return messages.push(Message::text(role, text.clone()));
        }
        Blocks::List(list) => list,
    };
    let parts: Vec<ContentPart> = list.iter().filter_map(part).collect();
    if message.role == Speaker::System {
        return messages.push(Message::of(Role::System, Content::Parts(parts)));
    }
    if message.role == Speaker::Assistant {
        let mut said = Message::empty(Role::Assistant);
        let thoughts: String = list
            .iter()
            .filter_map(|block| match block {
                Block::Thinking { thinking, .. } => Some(thinking.as_str()),
                _ => None,
            })
            .collect();
        said.reasoning_content = Some(thoughts).filter(|thoughts| !thoughts.is_empty());
        for block in list {
            if let Block::ToolUse { id, name, input } = block {
                said.tool_calls.push(ToolCall::new(id, name, Value::Object(input.clone()).to_string()));
            }
        }
        if !parts.is_empty() || (said.tool_calls.is_empty() && said.reasoning_content.is_none()) {
            said.content = Some(Content::Parts(parts));
        }
        return messages.push(said);
    }
    let mut results = false;
    for block in list {
        if let Block::ToolResult { tool_use_id, content: result, .. } = block {
            let mut message = Message::of(Role::Tool, content(result));
            message.tool_call_id = Some(tool_use_id.clone());
            messages.push(message);
            results = true;
        }
    }
    if !parts.is_empty() || !results {
        messages.push(Message::of(Role::User, Content::Parts(parts)));
    }
}
