//! Items: what a conversation and an answer are made of.

use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use super::object::Status;
use crate::decode::{Decode, Node, Object, Result, one_of};
use crate::limits;
use crate::openai::content::{Content, ContentPart};
use crate::openai::message::{Message, Role, ToolCall};

/// What an item of the input says: text, or parts.
pub type InputContent = Content;

/// An item of the input.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum InputItem {
    /// A message.
    Message {
        /// Who speaks; never a tool.
        role: Role,
        /// What is said.
        content: InputContent,
    },
    /// A call the model made.
    FunctionCall {
        /// Names the call.
        call_id: String,
        /// The function.
        name: String,
        /// The text of a JSON object.
        arguments: String,
    },
    /// What a call gave.
    FunctionCallOutput {
        /// Which call.
        call_id: String,
        /// Its result.
        output: InputContent,
    },
    /// Reasoning of the model.
    Reasoning {
        /// Its text; empty if the client kept only a form that this server cannot read.
        #[serde(rename = "content", serialize_with = "as_parts")]
        text: String,
    },
}

impl Decode for InputItem {
    fn decode(node: Node<'_>) -> Result<Self> {
        let mut object = node.object("an input item (an object)")?;
        let kinds = one_of(["message", "function_call", "function_call_output", "reasoning"].into_iter());
        let kind = match object.optional::<String>("type")? {
            Some(kind) => kind,
            None if object.has("role") => "message".into(),
            None => return Err(object.error("type", format_args!("expected {kinds}, found no such field"))),
        };
        // What clients keep of an answer's items and send back.
        object.ignore(&["id", "status", "phase", "created_by"]);
        let item = match kind.as_str() {
            "message" => {
                let roles = [
                    ("user", Role::User),
                    ("assistant", Role::Assistant),
                    ("system", Role::System),
                    ("developer", Role::Developer),
                ];
                let role = object.need("role", "a role")?.word(&roles)?;
                let content = Content::decode(object.need("content", "a string or an array of content parts")?)?;
                InputItem::Message { role, content }
            }
            "function_call" => InputItem::FunctionCall {
                call_id: object.need("call_id", "a string")?.text()?,
                name: object.need("name", "a string")?.bounded_text(&limits::TOOL_NAME)?,
                arguments: object.need("arguments", "a string with a JSON object")?.text()?,
            },
            "function_call_output" => InputItem::FunctionCallOutput {
                call_id: object.need("call_id", "a string")?.text()?,
                output: Content::decode(object.need("output", "a string or an array of content parts")?)?,
            },
            "reasoning" => InputItem::Reasoning { text: reasoning_text(&mut object)? },
            _ => {
                let kind: String = kind.chars().take(64).collect();
                let message = format!("expected {kinds}, found {kind:?}; this server keeps no items and runs no tools");
                return Err(object.error("type", message).with_code("unsupported_content"));
            }
        };
        object.finish(&[])?;
        Ok(item)
    }
}

fn as_parts<S: Serializer>(text: &str, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    let part = Some(ReasoningText { text: text.to_owned() }).filter(|part| !part.text.is_empty());
    serializer.collect_seq(part)
}

/// The text of a reasoning item: its content, else its summary.
fn reasoning_text(object: &mut Object<'_>) -> Result<String> {
    object.ignore(&["encrypted_content"]);
    let part = |node: Node<'_>| {
        let mut object = node.object("an object with a text")?;
        object.need("type", "a type")?.word(&[("summary_text", ()), ("reasoning_text", ())])?;
        let text = object.need("text", "a string")?.text()?;
        object.finish(&[])?;
        Ok(text)
    };
    let mut texts = |name| -> Result<Vec<String>> {
        Ok(object.take(name).map(|node| node.list(&limits::PARTS, part)).transpose()?.unwrap_or_default())
    };
    let (content, summary) = (texts("content")?, texts("summary")?);
    Ok(if content.is_empty() { summary.join("\n") } else { content.join("") })
}

/// The conversation as chat messages: calls and reasoning become parts of the assistant's message they belong to.
pub(crate) fn messages(items: &[InputItem]) -> Vec<Message> {
    let mut messages: Vec<Message> = Vec::new();
    // Whether the last message is an assistant's that can still take calls.
    let mut open = false;
    for item in items {
        match item {
            InputItem::Message { role: Role::Assistant, content } => {
                match messages.last_mut() {
                    // Reasoning came first.
                    Some(last) if open && last.content.is_none() && last.tool_calls.is_empty() => {
                        last.content = Some(content.clone());
                    }
                    _ => messages.push(Message::of(Role::Assistant, content.clone())),
                }
                open = true;
            }
            InputItem::Message { role, content } => {
                messages.push(Message::of(*role, content.clone()));
                open = false;
            }
            InputItem::Reasoning { text } if text.is_empty() => {}
            InputItem::Reasoning { text } => {
                let mut message = Message::empty(Role::Assistant);
                message.reasoning_content = Some(text.clone());
                messages.push(message);
                open = true;
            }
            InputItem::FunctionCall { call_id, name, arguments } => {
                if !open {
                    messages.push(Message::empty(Role::Assistant));
                    open = true;
                }
                if let Some(last) = messages.last_mut() {
                    last.tool_calls.push(ToolCall::new(call_id, name, arguments));
                }
            }
            InputItem::FunctionCallOutput { call_id, output } => {
                let mut message = Message::of(Role::Tool, output.clone());
                message.tool_call_id = Some(call_id.clone());
                messages.push(message);
                open = false;
            }
        }
    }
    messages
}

/// Index of the first item, and of its part, that is no text.
pub(crate) fn first_media(items: &[InputItem]) -> Option<String> {
    items.iter().enumerate().find_map(|(i, item)| match item {
        InputItem::Message { content, .. } => content.first_media().map(|j| format!("input[{i}].content[{j}]")),
        InputItem::FunctionCallOutput { output, .. } => output.first_media().map(|j| format!("input[{i}].output[{j}]")),
        _ => None,
    })
}

/// An item of the answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum OutputItem {
    /// What the model said.
    Message {
        /// `msg_...`.
        id: String,
        /// How far it is.
        status: Status,
        /// Always `assistant`.
        role: String,
        /// One part: the text.
        content: Vec<OutputContent>,
    },
    /// A tool the model called.
    FunctionCall {
        /// `fc_...`.
        id: String,
        /// How far it is.
        status: Status,
        /// Names the call; the output refers to it.
        call_id: String,
        /// The function.
        name: String,
        /// The text of a JSON object.
        arguments: String,
    },
    /// What the model thought.
    Reasoning {
        /// `rs_...`.
        id: String,
        /// How far it is.
        status: Status,
        /// Always empty: the reasoning itself is given.
        summary: Vec<SummaryText>,
        /// The reasoning.
        content: Vec<ReasoningText>,
    },
}

/// A part of a message of the answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum OutputContent {
    /// Text.
    OutputText {
        /// The text.
        text: String,
        /// Always empty.
        annotations: Vec<Value>,
        /// One for each token, if asked for.
        #[serde(default)]
        logprobs: Vec<crate::openai::TokenLogprob>,
    },
}

/// A part of the reasoning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "reasoning_text")]
pub struct ReasoningText {
    /// The text.
    pub text: String,
}

/// A part of a summary of the reasoning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "summary_text")]
pub struct SummaryText {
    /// The text.
    pub text: String,
}

impl OutputContent {
    /// A part of text alone.
    pub fn text(text: impl Into<String>) -> Self {
        OutputContent::OutputText { text: text.into(), annotations: Vec::new(), logprobs: Vec::new() }
    }
}

impl OutputItem {
    /// The item as a client sends it back in its next request.
    pub fn to_input(&self) -> InputItem {
        match self {
            OutputItem::Message { content, .. } => {
                let part =
                    |OutputContent::OutputText { text, .. }: &OutputContent| ContentPart::Text { text: text.clone() };
                InputItem::Message {
                    role: Role::Assistant,
                    content: Content::Parts(content.iter().map(part).collect()),
                }
            }
            OutputItem::FunctionCall { call_id, name, arguments, .. } => {
                InputItem::FunctionCall { call_id: call_id.clone(), name: name.clone(), arguments: arguments.clone() }
            }
            OutputItem::Reasoning { content, .. } => {
                InputItem::Reasoning { text: content.iter().map(|part| part.text.as_str()).collect() }
            }
        }
    }
}
