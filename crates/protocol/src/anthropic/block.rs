//! Blocks: what a message is made of.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::decode::{Decode, Node, Result, one_of};
use crate::limits;

/// The content of a message, a tool's result or the system prompt: a string, or blocks.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Blocks {
    /// One text; it may be empty.
    Text(String),
    /// A list of blocks; it may be empty.
    List(Vec<Block>),
}

/// A block of a request.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Block {
    /// Text.
    Text {
        /// The text.
        text: String,
    },
    /// An image, for models that see.
    Image {
        /// Where it is.
        source: ImageSource,
    },
    /// A call the assistant made.
    ToolUse {
        /// Names the call.
        id: String,
        /// The tool.
        name: String,
        /// Its arguments.
        input: Map<String, Value>,
    },
    /// What a call gave, in a message of the user.
    ToolResult {
        /// Which call.
        tool_use_id: String,
        /// The result; texts and images only.
        content: Blocks,
        /// Whether the tool failed.
        is_error: bool,
    },
    /// What the assistant thought.
    Thinking {
        /// The text.
        thinking: String,
        /// As it was given; this server signs nothing and checks nothing.
        signature: String,
    },
    /// What another server's assistant thought, in a form that only that server can read.
    RedactedThinking {
        /// The form.
        data: String,
    },
}

/// Where an image is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ImageSource {
    /// In the request.
    Base64 {
        /// `image/png` and so on.
        media_type: String,
        /// The file in base64; not decoded here.
        data: String,
    },
    /// Somewhere else.
    Url {
        /// The address.
        url: String,
    },
}

impl Blocks {
    /// The text at its end; `None` for another block there.
    pub(crate) fn last_text(&self) -> Option<&str> {
        match self {
            Blocks::Text(text) => Some(text),
            Blocks::List(blocks) => match blocks.last()? {
                Block::Text { text } => Some(text),
                _ => None,
            },
        }
    }

    /// Path of the first image below `path`.
    pub(crate) fn first_image(&self, path: &str) -> Option<String> {
        let Blocks::List(blocks) = self else { return None };
        blocks.iter().enumerate().find_map(|(i, block)| match block {
            Block::Image { .. } => Some(format!("{path}[{i}]")),
            Block::ToolResult { content, .. } => content.first_image(&format!("{path}[{i}].content")),
            _ => None,
        })
    }
}

/// Which blocks a place takes.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    System,
    User,
    Assistant,
    Result,
}

impl Place {
    fn kinds(self) -> &'static [&'static str] {
        match self {
            Place::System => &["text"],
            Place::User => &["text", "image", "tool_result"],
            Place::Assistant => &["text", "tool_use", "thinking", "redacted_thinking"],
            Place::Result => &["text", "image"],
        }
    }
}

/// Decodes the content that lies in `place`.
pub(crate) fn blocks(node: Node<'_>, place: Place) -> Result<Blocks> {
    match node.value {
        Value::String(text) => Ok(Blocks::Text(text)),
        Value::Array(_) => node.list(&limits::PARTS, |node| block(node, place)).map(Blocks::List),
        _ => Err(node.wrong("a string or an array of content blocks")),
    }
}

fn block(node: Node<'_>, place: Place) -> Result<Block> {
    let mut object = node.object("a content block (an object with a type)")?;
    let kinds = one_of(place.kinds().iter().copied());
    let kind = object.kind(&kinds)?;
    if !place.kinds().contains(&kind.as_str()) {
        let why = match kind.as_str() {
            "document" | "search_result" => "; send its text as a text block",
            "tool_use" => "; only the assistant calls tools",
            "tool_result" => "; only the user brings results of tools",
            "thinking" | "redacted_thinking" => "; only the assistant thinks",
            "server_tool_use" | "web_search_tool_result" => "; this server runs no tools itself",
            _ => "",
        };
        let kind: String = kind.chars().take(64).collect();
        let message = format!("expected {kinds}, found {kind:?}{why}");
        return Err(object.error("type", message).with_code("unsupported_content"));
    }
    object.ignore(&["cache_control", "citations", "caller", "toolset_name"]);
    let block = match kind.as_str() {
        "text" => Block::Text { text: object.need("text", "a string")?.text()? },
        "image" => Block::Image { source: ImageSource::decode(object.need("source", "an object")?)? },
        "tool_use" => Block::ToolUse {
            id: object.need("id", "a string")?.text()?,
            name: object.need("name", "a string")?.bounded_text(&limits::TOOL_NAME)?,
            input: Map::decode(object.need("input", "an object")?)?,
        },
        "tool_result" => Block::ToolResult {
            tool_use_id: object.need("tool_use_id", "a string")?.text()?,
            content: match object.take("content") {
                Some(node) => blocks(node, Place::Result)?,
                None => Blocks::Text(String::new()),
            },
            is_error: object.flag("is_error")?,
        },
        "thinking" => Block::Thinking {
            thinking: object.need("thinking", "a string")?.text()?,
            signature: object.optional("signature")?.unwrap_or_default(),
        },
        _ => Block::RedactedThinking { data: object.need("data", "a string")?.text()? },
    };
    object.finish(&[])?;
    Ok(block)
}

impl Decode for ImageSource {
    fn decode(node: Node<'_>) -> Result<Self> {
        let mut object = node.object("an object with a type")?;
        let base64 = object.need("type", "\"base64\" or \"url\"")?.word(&[("base64", true), ("url", false)])?;
        let source = if base64 {
            let types = ["image/png", "image/jpeg", "image/webp", "image/gif"].map(|name| (name, name));
            ImageSource::Base64 {
                media_type: object.need("media_type", "a type of images")?.word(&types)?.into(),
                data: object.need("data", "a string in base64")?.text()?,
            }
        } else {
            ImageSource::Url { url: object.need("url", "a string")?.text()? }
        };
        object.finish(&[])?;
        Ok(source)
    }
}
