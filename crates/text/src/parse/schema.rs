//! What type a parameter has: Qwen 3.5 writes `5` for a number and for the string of that digit alike.

use std::collections::HashMap;

use serde_json::Value;

use super::call::quote;
use super::values::compact_json;

/// How many schemas are looked at for one parameter: its own, alternatives, what references lead to. A request brings the
/// schemas, so their references may form circles; a parameter that needs more may be anything.
const MAX_STEPS: usize = 64;

/// The JSON types a value may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kinds(u8);

impl Kinds {
    const NONE: Self = Self(0);
    pub const STRING: Self = Self(1);
    const NUMBER: Self = Self(2);
    const BOOLEAN: Self = Self(4);
    const NULL: Self = Self(8);
    const LIST: Self = Self(16);
    const OBJECT: Self = Self(32);
    /// No schema, or one that does not tell.
    pub const ANY: Self = Self(63);

    fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    fn named(name: &str) -> Self {
        match name {
            "string" => Self::STRING,
            "number" | "integer" => Self::NUMBER,
            "boolean" => Self::BOOLEAN,
            "null" => Self::NULL,
            "array" => Self::LIST,
            "object" => Self::OBJECT,
            _ => Self::ANY,
        }
    }

    fn of_value(value: &Value) -> Self {
        match value {
            Value::Null => Self::NULL,
            Value::Bool(_) => Self::BOOLEAN,
            Value::Number(_) => Self::NUMBER,
            Value::String(_) => Self::STRING,
            Value::Array(_) => Self::LIST,
            Value::Object(_) => Self::OBJECT,
        }
    }

    /// The type of a JSON text, by its first character.
    fn of_json(text: &str) -> Self {
        match text.as_bytes().first() {
            Some(b'"') => Self::STRING,
            Some(b'{') => Self::OBJECT,
            Some(b'[') => Self::LIST,
            Some(b't' | b'f') => Self::BOOLEAN,
            Some(b'n') => Self::NULL,
            _ => Self::NUMBER,
        }
    }

    /// The types that a schema allows; `root` is where its references point into.
    pub fn of(schema: &Value, root: &Value) -> Self {
        Self::of_schema(schema, root, &mut MAX_STEPS.clone())
    }

    /// Whether a string is among the types.
    pub fn allows_strings(self) -> bool {
        self.has(Self::STRING)
    }

    /// The types that a schema allows, in so many steps.
    fn of_schema(schema: &Value, root: &Value, steps: &mut usize) -> Self {
        if *steps == 0 {
            return Self::ANY;
        }
        *steps -= 1;
        let list = |word: &str| schema.get(word).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let mut kinds = match schema.get("type") {
            Some(Value::String(name)) => Self::named(name),
            Some(Value::Array(_)) => any_of(list("type"), |name| name.as_str().map_or(Self::ANY, Self::named)),
            _ => Self::ANY,
        };
        kinds = kinds.and(any_of(list("enum"), Self::of_value));
        if let Some(value) = schema.get("const") {
            kinds = kinds.and(Self::of_value(value));
        }
        for word in ["anyOf", "oneOf"] {
            kinds = kinds.and(any_of(list(word), |sub| Self::of_schema(sub, root, steps)));
        }
        for sub in list("allOf").iter().take(MAX_STEPS) {
            kinds = kinds.and(Self::of_schema(sub, root, steps));
        }
        if let Some(path) = schema.get("$ref").and_then(Value::as_str) {
            let target = path.strip_prefix('#').and_then(|pointer| root.pointer(pointer));
            kinds = kinds.and(target.map_or(Self::ANY, |target| Self::of_schema(target, root, steps)));
        }
        match schema.get("nullable") {
            Some(Value::Bool(true)) => kinds.or(Self::NULL),
            // It allows nothing: then it tells nothing.
            _ if kinds == Self::NONE => Self::ANY,
            _ => kinds,
        }
    }

    /// Appends a parameter's raw text as JSON of one of these types. What fits none is written as what it looks like,
    /// so that whoever checks arguments against the schema sees what the model meant.
    pub fn write(self, raw: &str, out: &mut String) {
        let text = raw.trim();
        let json = match compact_json(text) {
            // Python's spellings, where the type leaves no doubt.
            None if !self.has(Self::STRING) => match text {
                "True" | "TRUE" => Some("true".to_owned()),
                "False" | "FALSE" => Some("false".to_owned()),
                "None" => Some("null".to_owned()),
                _ => None,
            },
            json => json,
        };
        match json {
            // Where a string may stand raw, quotation marks belong to it; without a schema they more likely mark one.
            Some(json) if Self::of_json(&json) == Self::STRING && self.has(Self::STRING) && self != Self::ANY => {
                quote(raw, out);
            }
            Some(json) if self.has(Self::of_json(&json)) || !self.has(Self::STRING) => out.push_str(&json),
            _ => quote(raw, out),
        }
    }
}

/// The types of a list of alternatives; anything where there are none, or too many to look at.
fn any_of(list: &[Value], kinds: impl FnMut(&Value) -> Kinds) -> Kinds {
    if list.is_empty() || list.len() > MAX_STEPS {
        return Kinds::ANY;
    }
    list.iter().map(kinds).fold(Kinds::NONE, Kinds::or)
}

/// The parameters' types of all tools offered.
#[derive(Debug, Clone, Default)]
pub(super) struct Tools {
    parameters: HashMap<String, HashMap<String, Kinds>>,
}

impl Tools {
    /// Reads tools as OpenAI's chat API writes them (`{"type": "function", "function": {"name", "parameters"}}`), its
    /// responses API (without the inner object) or Anthropic's (`input_schema`). Other entries are passed over.
    pub fn new(tools: &[Value]) -> Self {
        let mut parameters = HashMap::new();
        for tool in tools {
            let function = tool.get("function").unwrap_or(tool);
            let Some(name) = function.get("name").and_then(Value::as_str) else { continue };
            let schema = function.get("parameters").or_else(|| function.get("input_schema"));
            let Some(schema) = schema else { continue };
            let Some(properties) = schema.get("properties").and_then(Value::as_object) else { continue };
            let kinds = |sub| Kinds::of(sub, schema);
            let kinds = properties.iter().map(|(key, sub)| (key.clone(), kinds(sub)));
            parameters.insert(name.to_owned(), kinds.collect());
        }
        Self { parameters }
    }

    /// The types of one parameter; anything for one that no schema describes.
    pub fn kinds(&self, function: &str, parameter: &str) -> Kinds {
        self.parameters.get(function).and_then(|keys| keys.get(parameter)).copied().unwrap_or(Kinds::ANY)
    }
}
