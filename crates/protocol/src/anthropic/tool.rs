//! Tools and the choice among them.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::decode::{Decode, Node, Result};
use crate::openai::Function;
use crate::sampling::is_false;

/// A function the model may call.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tool {
    /// Its name: letters, digits, `_`, `-`, `.`.
    pub name: String,
    /// What it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// JSON schema of its arguments.
    pub input_schema: Map<String, Value>,
    /// Whether the arguments must fit the schema.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
}

/// Whether tools are called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Choice {
    /// As the model likes.
    Auto {
        /// At most one call an answer.
        #[serde(skip_serializing_if = "is_false")]
        disable_parallel_tool_use: bool,
    },
    /// At least one.
    Any {
        /// At most one call an answer.
        #[serde(skip_serializing_if = "is_false")]
        disable_parallel_tool_use: bool,
    },
    /// This one.
    Tool {
        /// Its name.
        name: String,
        /// At most one call an answer.
        #[serde(skip_serializing_if = "is_false")]
        disable_parallel_tool_use: bool,
    },
    /// Not at all.
    None,
}

impl Choice {
    /// Whether an answer may call at most one tool.
    pub fn one_at_most(&self) -> bool {
        match self {
            Choice::Auto { disable_parallel_tool_use }
            | Choice::Any { disable_parallel_tool_use }
            | Choice::Tool { disable_parallel_tool_use, .. } => *disable_parallel_tool_use,
            Choice::None => false,
        }
    }
}

impl Decode for Tool {
    fn decode(node: Node<'_>) -> Result<Self> {
        let mut object = node.object("a tool (an object with name and input_schema)")?;
        if let Some(kind) = object.optional::<String>("type")?
            && kind != "custom"
        {
            let kind: String = kind.chars().take(64).collect();
            let message =
                format!("expected \"custom\" or no such field, found {kind:?}; this server runs no tools itself");
            return Err(object.error("type", message).with_code("unsupported_parameter"));
        }
        if !object.has("input_schema") {
            return Err(object.error("input_schema", "expected a JSON schema, found no such field"));
        }
        let function = Function::take(&mut object, "input_schema")?;
        // Hints to the hosted model on when tools are loaded and how calls look.
        object.ignore(&[
            "cache_control",
            "eager_input_streaming",
            "defer_loading",
            "allowed_callers",
            "input_examples",
        ]);
        object.finish(&[])?;
        Ok(Tool {
            name: function.name,
            description: function.description,
            input_schema: function.parameters.unwrap_or_default(),
            strict: function.strict,
        })
    }
}

impl Decode for Choice {
    fn decode(node: Node<'_>) -> Result<Self> {
        let mut object = node.object("an object with a type")?;
        let kinds = [("auto", 0), ("any", 1), ("tool", 2), ("none", 3)];
        let kind = object.need("type", "a type")?.word(&kinds)?;
        let disable_parallel_tool_use = object.flag("disable_parallel_tool_use")?;
        let choice = match kind {
            0 => Choice::Auto { disable_parallel_tool_use },
            1 => Choice::Any { disable_parallel_tool_use },
            2 => {
                let name = object.need("name", "the name of a tool")?.text()?;
                Choice::Tool { name, disable_parallel_tool_use }
            }
            _ => Choice::None,
        };
        object.finish(&[])?;
        Ok(choice)
    }
}
