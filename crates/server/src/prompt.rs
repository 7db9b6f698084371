//! From a conversation to the tokens of a prompt.

use mlxcel_protocol::ApiError;
use mlxcel_protocol::openai::{ChatRequest, Message, ReasoningEffort, Role, Tool, ToolChoice};
use mlxcel_text::RenderRequest;
use mlxcel_text::parse::{Parser, ParserOptions};
use serde_json::{Map, Value, json};

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
    tools: &[Tool],
    extra: &Map<String, Value>,
    open: bool,
) -> Result<Rendered, ApiError> {
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
    let text = template.render(&request).map_err(|e| ApiError::parameter("messages", e))?;
    let tokens = facts.tokenizer.encode_templated(&text).map_err(|e| ApiError::parameter("messages", e))?;
    let thinking = facts.parser.thinking_open(&text);
    Ok(Rendered { text, tokens, thinking })
}

/// The prompt of a chat request, and the parser of its answers.
///
/// # Errors
/// As [`render`]; what this version does not do.
pub fn chat(facts: &Facts, request: &ChatRequest) -> Result<(Rendered, Parser), ApiError> {
    request.require_text()?;
    let tools: &[Tool] = match request.tool_choice {
        // What must not be called need not be offered.
        Some(ToolChoice::None) => &[],
        Some(ToolChoice::Required | ToolChoice::Function(_)) => {
            let message = "expected auto or none: this version cannot force a call";
            return Err(ApiError::parameter("tool_choice", message).with_code("unsupported_parameter"));
        }
        Some(ToolChoice::Auto) | None => &request.tools,
    };
    let mut extra = request.chat_template_kwargs.clone();
    if let Some(effort) = request.reasoning_effort {
        extra.entry("enable_thinking").or_insert(json!(effort != ReasoningEffort::None));
        extra.entry("reasoning_effort").or_insert(json!(effort.name()));
    }
    let rendered = render(facts, &request.messages, tools, &extra, true)?;
    let offered: Vec<Value> = tools.iter().map(|tool| json!(tool)).collect();
    let options = ParserOptions {
        tools: &offered,
        thinking_open: rendered.thinking,
        parse_tools: !tools.is_empty(),
        parse_reasoning: facts.split_reasoning,
        ..ParserOptions::default()
    };
    let parser = Parser::new(facts.parser, options);
    Ok((rendered, parser))
}
