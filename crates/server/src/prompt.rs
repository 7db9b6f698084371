//! From a conversation to the tokens of a prompt.

use mlxcel_protocol::ApiError;
use mlxcel_protocol::openai::{ChatRequest, Content, Message, ReasoningEffort, Role, Tool};
use mlxcel_text::RenderRequest;
use mlxcel_text::parse::{Parser, ParserOptions, ReasoningFormat};
use serde_json::{Map, Value, json};

use crate::calls::Calls;
use crate::facts::Facts;

/// A conversation, rendered.
pub struct Rendered {
    /// Its text.
    pub text: String,
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Whether it ends inside a block of thoughts.
    pub thinking: bool,
}

/// A message as templates want it: arguments of calls as objects, texts as strings.
fn for_template(message: &Message) -> Value {
    let role = match message.role {
        // Templates know the older word.
        Role::Developer | Role::System => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
    };
    let content = message.content.as_ref().map(|content| content.text("\n"));
    let mut out = json!({ "role": role, "content": content.unwrap_or_default() });
    if let Some(reasoning) = &message.reasoning_content {
        out["reasoning_content"] = json!(reasoning);
    }
    if let Some(name) = &message.name {
        out["name"] = json!(name);
    }
    if !message.tool_calls.is_empty() {
        let call = |call: &mlxcel_protocol::openai::ToolCall| {
            let function = json!({ "name": call.function.name, "arguments": call.function.value() });
            json!({ "id": call.id, "type": "function", "function": function })
        };
        out["tool_calls"] = message.tool_calls.iter().map(call).collect();
    }
    if let Some(id) = &message.tool_call_id {
        out["tool_call_id"] = json!(id);
    }
    out
}

/// Renders a conversation in the model's chat template.
///
/// # Errors
/// A model without a template; a conversation that the template refuses.
pub fn render(
    facts: &Facts,
    messages: &[Message],
    tools: &[&Tool],
    extra: &Map<String, Value>,
    open: bool,
) -> Result<Rendered, ApiError> {
    encoded(facts, text(facts, messages, tools, extra, open)?)
}

fn text(
    facts: &Facts,
    messages: &[Message],
    tools: &[&Tool],
    extra: &Map<String, Value>,
    open: bool,
) -> Result<String, ApiError> {
    let Some(template) = &facts.template else {
        let message =
            "the model has no chat template; use /v1/completions, or start the server with --chat-template-file";
        return Err(ApiError::parameter("messages", message));
    };
    let messages: Vec<Value> = messages.iter().map(for_template).collect();
    let tools = json!(tools);
    let mut extra = extra.clone();
    if let Some(on) = facts.reasoning {
        extra.entry("enable_thinking").or_insert(json!(on));
    }
    let request = RenderRequest {
        messages: &messages,
        tools: tools.as_array().is_some_and(|tools| !tools.is_empty()).then_some(&tools),
        add_generation_prompt: open,
        extra,
    };
    template.render(&request).map_err(|e| ApiError::parameter("messages", e))
}

fn encoded(facts: &Facts, text: String) -> Result<Rendered, ApiError> {
    let tokens = facts.tokenizer.encode_templated(&text).map_err(|e| ApiError::parameter("messages", e))?;
    let thinking = facts.parser.thinking_open(&text);
    Ok(Rendered { text, tokens, thinking })
}

/// Stands behind a text that is to be continued, so that its end is found in the rendered conversation.
const END: &str = "\u{fdd0}end\u{fdd1}";

/// Renders a conversation up to the end of its last message, which is the assistant's and is to be continued.
///
/// # Errors
/// As [`render`]; a message that cannot be continued.
pub fn render_unfinished(
    facts: &Facts,
    messages: &[Message],
    tools: &[&Tool],
    extra: &Map<String, Value>,
) -> Result<Rendered, ApiError> {
    let last = messages.len().saturating_sub(1);
    let refuse = |field: &str, message: &str| ApiError::parameter(format!("messages[{last}]{field}"), message);
    if last > 0 && messages[last - 1].role == Role::Assistant {
        return Err(refuse(".role", "expected at most one message of the assistant at the end, found two"));
    }
    if !messages[last].tool_calls.is_empty() {
        return Err(refuse(".tool_calls", "expected the results of these calls behind them, found the end"));
    }
    if extra.get("enable_thinking") == Some(&Value::Bool(true)) {
        let message = "expected the user's message last where thinking is on, found the assistant's: an answer that has begun has no \
                       thoughts before it; turn thinking off to have it continued";
        return Err(refuse(".role", message).with_code("conflicting_parameters"));
    }
    let mut messages = messages.to_vec();
    let said = messages[last].content.as_ref().map(|content| content.text("\n")).unwrap_or_default();
    messages[last].content = Some(Content::Text(said + END));
    let mut text = text(facts, &messages, tools, extra, false)?;
    let Some(end) = text.rfind(END) else {
        return Err(refuse(
            ".content",
            "expected a chat template that prints the assistant's text, found one that does not",
        ));
    };
    text.truncate(end);
    encoded(facts, text)
}

/// What a chat request comes to.
pub struct Prompt {
    /// The conversation.
    pub rendered: Rendered,
    /// The parser of its answers.
    pub parser: Parser,
    /// Whether the model may begin thoughts by itself.
    pub may_think: bool,
}

/// The prompt of a chat request, and the parser of its answers.
///
/// # Errors
/// As [`render`] and [`render_unfinished`].
pub fn chat(facts: &Facts, request: &ChatRequest, calls: &Calls<'_>) -> Result<Prompt, ApiError> {
    request.require_text()?;
    let tools = &calls.offered;
    let mut extra = request.chat_template_kwargs.clone();
    if let Some(effort) = request.reasoning_effort {
        extra.entry("enable_thinking").or_insert(json!(effort != ReasoningEffort::None));
        extra.entry("reasoning_effort").or_insert(json!(effort.name()));
    }
    let unfinished = request.messages.last().is_some_and(|message| message.role == Role::Assistant);
    let rendered = match unfinished {
        true => render_unfinished(facts, &request.messages, tools, &extra)?,
        false => render(facts, &request.messages, tools, &extra, true)?,
    };
    let offered: Vec<Value> = tools.iter().map(|tool| json!(tool)).collect();
    let options = ParserOptions {
        tools: &offered,
        thinking_open: rendered.thinking,
        parse_tools: !tools.is_empty(),
        parse_reasoning: facts.split_reasoning,
        ..ParserOptions::default()
    };
    let parser = Parser::new(facts.parser, options);
    let may_think = !unfinished && may_think(facts, &rendered, extra.get("enable_thinking"));
    Ok(Prompt { rendered, parser, may_think })
}

/// Whether a model may begin thoughts by itself: where that is its habit, unless the request or the prompt says otherwise.
fn may_think(facts: &Facts, rendered: &Rendered, enabled: Option<&Value>) -> bool {
    let over = facts.parser.reasoning.closer().is_some_and(|closer| rendered.text.trim_end().ends_with(closer));
    let asked = enabled.and_then(Value::as_bool);
    match facts.parser.reasoning {
        ReasoningFormat::None => false,
        ReasoningFormat::Think => !over && asked != Some(false),
        // Gemma thinks when it is told to.
        ReasoningFormat::Channel => !over && asked == Some(true),
    }
}
