//! Tools offered to the model, and which of them it must or may call.

use std::collections::HashSet;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use crate::decode::{Decode, Node, Object, Result, describe};
use crate::error::ApiError;
use crate::limits;

/// A function the model may call.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tool {
    /// Always `function`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The function.
    pub function: Function,
}

/// What the model is told of a function.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Function {
    /// Its name: letters, digits, `_`, `-`, `.`.
    pub name: String,
    /// What it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// JSON schema of its arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Map<String, Value>>,
    /// Whether the arguments must fit the schema.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
}

/// Whether tools are called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// As the model likes.
    #[default]
    Auto,
    /// Not at all.
    None,
    /// At least one.
    Required,
    /// This one.
    Function(String),
    /// Of these, as the model likes or at least one.
    Allowed {
        /// Whether one must be called.
        required: bool,
        /// Their names.
        names: Vec<String>,
    },
}

impl Serialize for ToolChoice {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match self {
            ToolChoice::Auto => serializer.serialize_str("auto"),
            ToolChoice::None => serializer.serialize_str("none"),
            ToolChoice::Required => serializer.serialize_str("required"),
            ToolChoice::Function(name) => {
                let mut map = serializer.serialize_map(Some(2))?;
                map.serialize_entry("type", "function")?;
                map.serialize_entry("function", &json!({ "name": name }))?;
                map.end()
            }
            ToolChoice::Allowed { required, names } => {
                let tool = |name: &String| json!({ "type": "function", "function": { "name": name } });
                let tools: Vec<Value> = names.iter().map(tool).collect();
                let mut map = serializer.serialize_map(Some(2))?;
                map.serialize_entry("type", "allowed_tools")?;
                map.serialize_entry("allowed_tools", &json!({ "mode": allowed_mode(*required), "tools": tools }))?;
                map.end()
            }
        }
    }
}

/// The word for whether allowed tools must be called.
pub(crate) fn allowed_mode(required: bool) -> &'static str {
    if required { "required" } else { "auto" }
}

impl Tool {
    /// A tool of a function.
    pub fn new(function: Function) -> Self {
        Tool { kind: "function".into(), function }
    }
}

impl Function {
    /// Takes the fields of a function; `schema` is the name of its arguments' schema.
    pub(crate) fn take(object: &mut Object<'_>, schema: &str) -> Result<Self> {
        let node = object.need("name", "a string")?;
        let path = node.path.to_string();
        let name = node.bounded_text(&limits::TOOL_NAME)?;
        if !name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c)) {
            let found = describe(&Value::String(name));
            return Err(ApiError::parameter(path, format_args!("expected letters, digits, _, - and ., found {found}")));
        }
        Ok(Function {
            name,
            description: object.optional("description")?,
            parameters: object.optional(schema)?,
            strict: object.optional("strict")?,
        })
    }
}

impl Decode for Tool {
    fn decode(node: Node<'_>) -> Result<Self> {
        let mut object = node.object("a tool (an object with type and function)")?;
        object.need("type", "\"function\"")?.word(&[("function", ())])?;
        let mut inner = object.need("function", "an object with a name")?.object("an object with a name")?;
        let function = Function::take(&mut inner, "parameters")?;
        inner.finish(&[])?;
        object.ignore(&["cache_control"]);
        object.finish(&[])?;
        Ok(Tool::new(function))
    }
}

impl Decode for ToolChoice {
    fn decode(node: Node<'_>) -> Result<Self> {
        if node.value.is_string() {
            let words = [("auto", 0), ("none", 1), ("required", 2)];
            return Ok(match node.word(&words)? {
                0 => ToolChoice::Auto,
                1 => ToolChoice::None,
                _ => ToolChoice::Required,
            });
        }
        let mut object = node.object("\"auto\", \"none\", \"required\" or an object that names a function")?;
        let kinds = [("function", false), ("allowed_tools", true)];
        let choice = match object.need("type", "\"function\"")?.word(&kinds)? {
            false => ToolChoice::Function(function_name(&mut object)?),
            // The Responses dialect has mode and tools beside the type.
            true if object.has("mode") || object.has("tools") => allowed(&mut object)?,
            true => {
                let expected = "an object with mode and tools";
                let mut inner = object.need("allowed_tools", expected)?.object(expected)?;
                let choice = allowed(&mut inner)?;
                inner.finish(&[])?;
                choice
            }
        };
        object.finish(&[])?;
        Ok(choice)
    }
}

/// Takes the name of a function, from `function` or, as the Responses dialect has it, beside the type.
fn function_name(object: &mut Object<'_>) -> Result<String> {
    let Some(node) = object.take("function") else { return object.need("name", "the name of a tool")?.text() };
    let mut inner = node.object("an object with a name")?;
    let name = inner.need("name", "the name of a tool")?.text()?;
    inner.finish(&[])?;
    Ok(name)
}

/// Takes `mode` and `tools` of allowed tools.
fn allowed(object: &mut Object<'_>) -> Result<ToolChoice> {
    let required = object.need("mode", "\"auto\" or \"required\"")?.word(&[("auto", false), ("required", true)])?;
    let names = object.need("tools", "an array of at least one tool")?.list(&limits::ALLOWED_TOOLS, |node| {
        let mut tool = node.object("a tool (an object with type and name)")?;
        tool.need("type", "\"function\"")?.word(&[("function", ())])?;
        let name = function_name(&mut tool)?;
        tool.finish(&[])?;
        Ok(name)
    })?;
    Ok(ToolChoice::Allowed { required, names })
}

/// Tools have names of their own, and a choice that forces a call has a tool to call.
pub(crate) fn check_choice(object: &Object<'_>, tools: &[Tool], choice: Option<&ToolChoice>) -> Result<()> {
    let mut names = HashSet::new();
    for (i, tool) in tools.iter().enumerate() {
        if !names.insert(tool.function.name.as_str()) {
            let found = describe(&Value::String(tool.function.name.clone()));
            let message = format!("expected tools with different names, found {found} again in tools[{i}]");
            return Err(object.error("tools", message));
        }
    }
    let unknown = |name: &&String| !names.contains(name.as_str());
    let missing = match choice {
        Some(ToolChoice::Required) if tools.is_empty() => "at least one tool in tools, found none".to_owned(),
        Some(ToolChoice::Function(name)) if unknown(&name) => of_tools(name),
        Some(ToolChoice::Allowed { names, .. }) => match names.iter().find(unknown) {
            Some(name) => of_tools(name),
            None => return Ok(()),
        },
        _ => return Ok(()),
    };
    Err(object.error("tool_choice", format_args!("expected {missing}")).with_code("conflicting_parameters"))
}

fn of_tools(name: &str) -> String {
    format!("the name of one of the tools, found {}", describe(&Value::String(name.into())))
}
