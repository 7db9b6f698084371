//! Messages of a conversation, as clients send them and as answers bring them.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::content::Content;
use crate::decode::{Decode, Node, Result};
use crate::limits;

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The operator.
    System,
    /// The operator, in the spelling of newer models.
    Developer,
    /// The person.
    User,
    /// The model.
    Assistant,
    /// The result of a tool.
    Tool,
}

/// A message of a request.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said; only an assistant's may be missing, when it called tools or was cut off while reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<Content>,
    /// The reasoning that came before the content, if the client sends it back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Which of several speakers; which tool, for a result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Tools the assistant called.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// Which call this is the result of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Names the call; results refer to it.
    pub id: String,
    /// Always `function`.
    #[serde(rename = "type")]
    pub kind: String,
    /// What was called.
    pub function: FunctionCall,
}

/// A function and its arguments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionCall {
    /// The function.
    pub name: String,
    /// Its arguments: the text of a JSON object, or what the model wrote instead of one.
    pub arguments: String,
}

/// The message of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AssistantMessage {
    /// Always `assistant`.
    pub role: String,
    /// The text; null if tools were called without any.
    pub content: Option<String>,
    /// Always null: models served here refuse in their content.
    #[serde(default)]
    pub refusal: Option<String>,
    /// The reasoning before the text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Tools called.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
}

impl Message {
    /// A message of text alone.
    pub fn text(role: Role, text: impl Into<String>) -> Self {
        Message::of(role, Content::Text(text.into()))
    }

    /// A message of content alone.
    pub fn of(role: Role, content: Content) -> Self {
        Message { role, content: Some(content), ..Message::empty(role) }
    }

    /// A message that says nothing yet.
    pub(crate) fn empty(role: Role) -> Self {
        Message { role, content: None, reasoning_content: None, name: None, tool_calls: Vec::new(), tool_call_id: None }
    }
}

impl ToolCall {
    /// A call of `name`.
    pub fn new(id: impl Into<String>, name: impl Into<String>, arguments: impl Into<String>) -> Self {
        let function = FunctionCall { name: name.into(), arguments: arguments.into() };
        ToolCall { id: id.into(), kind: "function".into(), function }
    }
}

impl FunctionCall {
    /// The arguments as JSON; text that is none stays a string.
    pub fn value(&self) -> Value {
        serde_json::from_str(&self.arguments).unwrap_or_else(|_| Value::String(self.arguments.clone()))
    }
}

impl Decode for Message {
    fn decode(node: Node<'_>) -> Result<Self> {
        let mut object = node.object("a message (an object with role and content)")?;
        let roles = [
            ("system", Role::System),
            ("developer", Role::Developer),
            ("user", Role::User),
            ("assistant", Role::Assistant),
            ("tool", Role::Tool),
        ];
        let role = object.need("role", "a role")?.word(&roles)?;
        let content = object.optional("content")?;
        let tool_calls: Vec<ToolCall> = object.list(&limits::TOOL_CALLS)?;
        let reasoning = object.optional("reasoning_content")?;
        let reasoning_content = match object.optional("reasoning")? {
            Some(text) => reasoning.or(Some(text)),
            None => reasoning,
        };
        let refusal: Option<String> = object.optional("refusal")?;
        let message = Message {
            role,
            content: content.or(refusal.map(Content::Text)),
            reasoning_content,
            name: object.optional("name")?,
            tool_calls,
            tool_call_id: object.optional("tool_call_id")?,
        };
        if role != Role::Assistant {
            for (name, there) in [
                ("tool_calls", !message.tool_calls.is_empty()),
                ("reasoning_content", message.reasoning_content.is_some()),
            ] {
                if there {
                    return Err(object.error(name, "expected only in messages of the assistant, found in another's"));
                }
            }
        }
        if message.tool_call_id.is_some() && role != Role::Tool {
            return Err(object.error("tool_call_id", "expected only in messages of tools, found in another's"));
        }
        let silent = message.content.is_none();
        if silent && (role != Role::Assistant || (message.tool_calls.is_empty() && message.reasoning_content.is_none()))
        {
            let message = "expected a string or an array of content parts, found nothing";
            return Err(object.error("content", message).with_code("missing_required_parameter"));
        }
        // What clients keep of an answer and send back with it.
        object.ignore(&["id", "annotations", "cache_control", "reasoning_details"]);
        if object.has("function_call") {
            return Err(object.error("function_call", "expected tool_calls, found the older function_call"));
        }
        if object.has("audio") {
            return Err(object.error("audio", "expected text, found audio; no model of this server hears"));
        }
        object.finish(&[])?;
        Ok(message)
    }
}

impl Decode for ToolCall {
    fn decode(node: Node<'_>) -> Result<Self> {
        let mut object = node.object("a tool call (an object with id and function)")?;
        if let Some(kind) = object.take("type") {
            kind.word(&[("function", ())])?;
        }
        let id = object.need("id", "a string")?.text()?;
        let mut function = object.need("function", "an object with name and arguments")?.object("an object")?;
        let name = function.need("name", "a string")?.bounded_text(&limits::TOOL_NAME)?;
        let arguments = match function.take("arguments") {
            // Some clients send back the object they parsed.
            Some(Node { value: Value::Object(object), .. }) => Value::Object(object).to_string(),
            Some(node) => match node.value {
                Value::String(text) => text,
                _ => return Err(node.wrong("a string with a JSON object")),
            },
            None => "{}".into(),
        };
        function.finish(&[])?;
        object.ignore(&["index"]);
        object.finish(&[])?;
        Ok(ToolCall::new(id, name, arguments))
    }
}
