//! What a message says: text, or parts.

use serde::Serialize;
use serde_json::Value;

use crate::decode::{Decode, Node, Object, Result, one_of};
use crate::error::ApiError;
use crate::limits;

/// The content of a message.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Content {
    /// A string; it may be empty.
    Text(String),
    /// A list of parts; it may be empty.
    Parts(Vec<ContentPart>),
}

/// A part of a message.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ContentPart {
    /// Text; also read from the spellings `input_text` and `output_text`.
    Text {
        /// The text.
        text: String,
    },
    /// A refusal the model gave earlier.
    Refusal {
        /// Its text.
        refusal: String,
    },
    /// An image, for models that see.
    ImageUrl {
        /// Where it is.
        image_url: ImageUrl,
    },
}

/// An image by its address; nearly always a `data:` URL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ImageUrl {
    /// The address.
    pub url: String,
    /// `low`, `high` or `auto`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

impl Content {
    /// The text of all parts, with `between` between them; images have none.
    pub fn text(&self, between: &str) -> String {
        match self {
            Content::Text(text) => text.clone(),
            Content::Parts(parts) => {
                let texts: Vec<&str> = parts.iter().filter_map(ContentPart::text).collect();
                texts.join(between)
            }
        }
    }

    /// Index of the first part that is no text.
    pub(crate) fn first_media(&self) -> Option<usize> {
        match self {
            Content::Text(_) => None,
            Content::Parts(parts) => parts.iter().position(|part| part.text().is_none()),
        }
    }
}

impl ContentPart {
    /// The part's text, `None` for an image.
    pub fn text(&self) -> Option<&str> {
        match self {
            ContentPart::Text { text } | ContentPart::Refusal { refusal: text } => Some(text),
            ContentPart::ImageUrl { .. } => None,
        }
    }
}

/// Where a request shows something that is no text.
pub(crate) struct MediaAt(pub(crate) String);

impl MediaAt {
    /// The refusal of a model that only reads.
    pub(crate) fn refuse(self) -> ApiError {
        ApiError::parameter(self.0, "expected text, found an image; the model being served reads text only")
            .with_code("unsupported_content")
    }
}

impl Decode for Content {
    fn decode(node: Node<'_>) -> Result<Self> {
        match node.value {
            Value::String(text) => Ok(Content::Text(text)),
            Value::Array(_) => node.list(&limits::PARTS, ContentPart::decode).map(Content::Parts),
            _ => Err(node.wrong("a string or an array of content parts")),
        }
    }
}

impl Decode for ContentPart {
    fn decode(node: Node<'_>) -> Result<Self> {
        let mut object = node.object("a content part (an object with a type)")?;
        let kinds = one_of(["text", "image_url", "refusal"].into_iter());
        let kind = object.kind(&kinds)?;
        object.ignore(&["cache_control", "annotations", "logprobs"]);
        let part = match kind.as_str() {
            "text" | "input_text" | "output_text" => {
                ContentPart::Text { text: object.need("text", "a string")?.text()? }
            }
            "refusal" => ContentPart::Refusal { refusal: object.need("refusal", "a string")?.text()? },
            "image_url" => {
                ContentPart::ImageUrl { image_url: ImageUrl::decode(object.need("image_url", "an object")?)? }
            }
            "input_image" => ContentPart::ImageUrl { image_url: ImageUrl::input_image(&mut object)? },
            _ => return Err(unsupported(&object, &kind, &kinds)),
        };
        object.finish(&[])?;
        Ok(part)
    }
}

/// The refusal of a part whose type is another one.
fn unsupported(object: &Object<'_>, kind: &str, kinds: &str) -> ApiError {
    let why = match kind {
        "input_audio" | "audio" => "; no model of this server hears: send text",
        "video" | "video_url" => "; no model of this server takes video: send text",
        "file" | "input_file" => "; send the text of the file",
        _ => "",
    };
    let kind: String = kind.chars().take(64).collect();
    object.error("type", format_args!("expected {kinds}, found {kind:?}{why}")).with_code("unsupported_content")
}

impl ImageUrl {
    /// The part's form in the Responses dialect: the address is the field itself.
    fn input_image(object: &mut Object<'_>) -> Result<Self> {
        if object.has("file_id") {
            return Err(
                object.error("file_id", "expected image_url with a data: URL, found a file; files are not kept")
            );
        }
        object.ignore(&["file_id"]);
        let url = object.need("image_url", "a string with a data: URL")?.text()?;
        Ok(ImageUrl { url, detail: object.take("detail").map(detail).transpose()? })
    }
}

impl Decode for ImageUrl {
    fn decode(node: Node<'_>) -> Result<Self> {
        if let Value::String(url) = node.value {
            return Ok(ImageUrl { url, detail: None });
        }
        let mut object = node.object("an object with a url")?;
        let url = object.need("url", "a string")?.text()?;
        let detail = object.take("detail").map(detail).transpose()?;
        object.finish(&[])?;
        Ok(ImageUrl { url, detail })
    }
}

fn detail(node: Node<'_>) -> Result<String> {
    node.word(&[("auto", "auto"), ("low", "low"), ("high", "high"), ("original", "original")]).map(Into::into)
}
