//! What the text of an answer must look like.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::decode::{Decode, Node, Object, Result, one_of};
use crate::schema;

/// The form of an answer's text.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ResponseFormat {
    /// Any text.
    #[default]
    Text,
    /// A JSON object.
    JsonObject,
    /// JSON of a schema.
    JsonSchema {
        /// The schema and its name.
        json_schema: JsonSchema,
    },
}

/// A named JSON schema.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct JsonSchema {
    /// Names it; nothing depends on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Says what it is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The schema.
    pub schema: Map<String, Value>,
    /// Accepted and not needed: the schema is always kept to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
}

impl JsonSchema {
    /// Takes `schema` and its company out of an object.
    pub(crate) fn take(object: &mut Object<'_>) -> Result<Self> {
        let name = object.optional("name")?;
        let description = object.optional("description")?;
        let strict = object.optional("strict")?;
        let schema = checked_schema(object.need("schema", "a JSON schema")?)?;
        Ok(JsonSchema { name, description, schema, strict })
    }
}

/// A schema that has the shape of one.
pub(crate) fn checked_schema(node: Node<'_>) -> Result<Map<String, Value>> {
    let path = node.path;
    match node.value {
        Value::Object(schema) => schema::check(&schema, &path).map(|()| schema),
        _ => Err(node.wrong("a JSON schema (an object)")),
    }
}

impl Decode for ResponseFormat {
    fn decode(node: Node<'_>) -> Result<Self> {
        let kinds = one_of(["text", "json_object", "json_schema"].into_iter());
        let mut object = node.object("an object with a type")?;
        let kind = object.kind(&kinds)?;
        let format = match kind.as_str() {
            "text" => ResponseFormat::Text,
            // llama-server reads a schema here as well.
            "json_object" => match object.take("schema") {
                Some(schema) => ResponseFormat::schema(checked_schema(schema)?),
                None => ResponseFormat::JsonObject,
            },
            "json_schema" => {
                let mut inner =
                    object.need("json_schema", "an object with a schema")?.object("an object with a schema")?;
                let json_schema = JsonSchema::take(&mut inner)?;
                inner.finish(&[])?;
                ResponseFormat::JsonSchema { json_schema }
            }
            _ => {
                let kind: String = kind.chars().take(64).collect();
                return Err(object.error("type", format_args!("expected {kinds}, found {kind:?}")));
            }
        };
        object.finish(&[])?;
        Ok(format)
    }
}

impl ResponseFormat {
    /// The format of a schema without a name.
    pub fn schema(schema: Map<String, Value>) -> Self {
        ResponseFormat::JsonSchema { json_schema: JsonSchema { schema, ..JsonSchema::default() } }
    }
}
