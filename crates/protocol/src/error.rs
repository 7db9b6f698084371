//! Why a request is not answered, in every dialect.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What kind of failure it is; decides the status and the name each dialect has for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The body or a parameter is wrong: the client's fault, and no retry helps.
    InvalidRequest,
    /// No API key, or a wrong one.
    Authentication,
    /// The key is right and the thing is not for it, or is switched off.
    Permission,
    /// No such model, route or slot.
    NotFound,
    /// The route exists and not for this method.
    MethodNotAllowed,
    /// The body came too slowly.
    Timeout,
    /// The body is larger than the server takes.
    TooLarge,
    /// The body is not said to be JSON.
    UnsupportedMediaType,
    /// The queue is full: a retry helps.
    Overloaded,
    /// The model is being loaded, or the server is going away.
    Unavailable,
    /// The server's own fault.
    Internal,
}

/// Every kind, for tests and tables.
pub(crate) const KINDS: [ErrorKind; 11] = [
    ErrorKind::InvalidRequest,
    ErrorKind::Authentication,
    ErrorKind::Permission,
    ErrorKind::NotFound,
    ErrorKind::MethodNotAllowed,
    ErrorKind::Timeout,
    ErrorKind::TooLarge,
    ErrorKind::UnsupportedMediaType,
    ErrorKind::Overloaded,
    ErrorKind::Unavailable,
    ErrorKind::Internal,
];

impl ErrorKind {
    /// All kinds.
    pub fn all() -> &'static [ErrorKind] {
        &KINDS
    }

    /// The HTTP status.
    pub fn status(self) -> u16 {
        match self {
            ErrorKind::InvalidRequest => 400,
            ErrorKind::Authentication => 401,
            ErrorKind::Permission => 403,
            ErrorKind::NotFound => 404,
            ErrorKind::MethodNotAllowed => 405,
            ErrorKind::Timeout => 408,
            ErrorKind::TooLarge => 413,
            ErrorKind::UnsupportedMediaType => 415,
            ErrorKind::Overloaded | ErrorKind::Unavailable => 503,
            ErrorKind::Internal => 500,
        }
    }

    /// `error.type` in OpenAI's and llama-server's bodies.
    pub fn openai(self) -> &'static str {
        match self {
            ErrorKind::InvalidRequest
            | ErrorKind::MethodNotAllowed
            | ErrorKind::Timeout
            | ErrorKind::TooLarge
            | ErrorKind::UnsupportedMediaType => "invalid_request_error",
            ErrorKind::Authentication => "authentication_error",
            ErrorKind::Permission => "permission_error",
            ErrorKind::NotFound => "not_found_error",
            ErrorKind::Overloaded => "overloaded_error",
            ErrorKind::Unavailable => "unavailable_error",
            ErrorKind::Internal => "server_error",
        }
    }

    /// `error.type` in Anthropic's bodies.
    pub fn anthropic(self) -> &'static str {
        match self {
            ErrorKind::InvalidRequest | ErrorKind::MethodNotAllowed | ErrorKind::UnsupportedMediaType => {
                "invalid_request_error"
            }
            ErrorKind::Authentication => "authentication_error",
            ErrorKind::Permission => "permission_error",
            ErrorKind::NotFound => "not_found_error",
            ErrorKind::Timeout => "timeout_error",
            ErrorKind::TooLarge => "request_too_large",
            ErrorKind::Overloaded | ErrorKind::Unavailable => "overloaded_error",
            ErrorKind::Internal => "api_error",
        }
    }
}

/// A refusal or a failure. The message alone is enough to act on: it names the parameter, since Anthropic's form has no
/// other place for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// What kind of failure.
    pub kind: ErrorKind,
    /// For the person who reads it.
    pub message: String,
    /// Path of the parameter at fault, such as `messages[0].content[1].text`; `None` where the body as a whole is.
    pub param: Option<String>,
    /// A word for programs, such as `context_length_exceeded`.
    pub code: Option<&'static str>,
}

impl ApiError {
    /// An error without a parameter.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        ApiError { kind, message: message.into(), param: None, code: None }
    }

    /// A 400 about `param`: "`param`: `message`".
    pub fn parameter(param: impl Into<String>, message: impl fmt::Display) -> Self {
        let param = param.into();
        let message = if param.is_empty() { format!("request body: {message}") } else { format!("{param}: {message}") };
        ApiError {
            kind: ErrorKind::InvalidRequest,
            message,
            param: (!param.is_empty()).then_some(param),
            code: Some("invalid_value"),
        }
    }

    /// A 404 for a model name the server does not serve. `served` are those it does.
    pub fn model_not_found(name: &str, served: &[&str]) -> Self {
        let message = format!("model: expected one of {}, found {name:?}", served.join(", "));
        ApiError { kind: ErrorKind::NotFound, message, param: Some("model".into()), code: Some("model_not_found") }
    }

    /// The 400 for a prompt that leaves no room: `found` tokens where the context holds `context`.
    pub fn context_length(param: &str, found: usize, context: usize) -> Self {
        let message = format!(
            "at most {} tokens expected (the context holds {context}, and one must be left for the answer), found {found}; \
             shorten the prompt or start the server with a larger --ctx-size",
            context.saturating_sub(1)
        );
        ApiError::parameter(param, message).with_code("context_length_exceeded")
    }

    /// The same error with another code.
    pub fn with_code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    /// The HTTP status.
    pub fn status(&self) -> u16 {
        self.kind.status()
    }

    /// The body in OpenAI's and llama-server's dialects.
    pub fn openai(&self) -> OpenAiErrorBody {
        OpenAiErrorBody {
            error: OpenAiError {
                message: self.message.clone(),
                kind: self.kind.openai().into(),
                param: self.param.clone(),
                code: self.code.map(Into::into),
            },
        }
    }

    /// The body in Anthropic's dialect; also the data of its `error` stream event.
    pub fn anthropic(&self, request_id: Option<&str>) -> AnthropicErrorBody {
        AnthropicErrorBody {
            kind: "error".into(),
            error: AnthropicError { kind: self.kind.anthropic().into(), message: self.message.clone() },
            request_id: request_id.map(Into::into),
        }
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ApiError {}

/// `{"error": {...}}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenAiErrorBody {
    /// The error.
    pub error: OpenAiError,
}

/// OpenAI's error object; absent parts are `null`, as there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenAiError {
    /// For people.
    pub message: String,
    /// The kind.
    #[serde(rename = "type")]
    pub kind: String,
    /// The parameter's path.
    pub param: Option<String>,
    /// For programs.
    pub code: Option<String>,
}

/// `{"type": "error", "error": {...}}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnthropicErrorBody {
    /// Always `error`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The error.
    pub error: AnthropicError,
    /// The request's id, if one was given to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}

/// Anthropic's error object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnthropicError {
    /// The kind.
    #[serde(rename = "type")]
    pub kind: String,
    /// For people.
    pub message: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_dialects_carry_the_parameter() {
        let error = ApiError::parameter("top_p", "expected above 0, at most 1, found 0");
        assert_eq!(error.status(), 400);
        assert_eq!(
            serde_json::to_string(&error.openai()).unwrap(),
            r#"{"error":{"message":"top_p: expected above 0, at most 1, found 0","type":"invalid_request_error","param":"top_p","code":"invalid_value"}}"#
        );
        assert_eq!(
            serde_json::to_string(&error.anthropic(Some("req_1"))).unwrap(),
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"top_p: expected above 0, at most 1, found 0"},"request_id":"req_1"}"#
        );
    }

    #[test]
    fn absent_parts_are_null_for_openai() {
        let body = ApiError::new(ErrorKind::Internal, "m").openai();
        assert_eq!(
            serde_json::to_string(&body).unwrap(),
            r#"{"error":{"message":"m","type":"server_error","param":null,"code":null}}"#
        );
    }

    #[test]
    fn the_clients_fault_is_4xx_and_ours_5xx() {
        for &kind in ErrorKind::all() {
            let ours = matches!(kind, ErrorKind::Overloaded | ErrorKind::Unavailable | ErrorKind::Internal);
            assert_eq!(kind.status() >= 500, ours, "{kind:?}");
            assert_eq!(kind.status() == 404, kind == ErrorKind::NotFound);
            assert!(kind.openai().ends_with("_error"));
        }
    }

    #[test]
    fn a_long_prompt_has_its_code() {
        let error = ApiError::context_length("messages", 36000, 32768);
        assert_eq!(error.code, Some("context_length_exceeded"));
        assert!(error.message.starts_with("messages: at most 32767 tokens expected"), "{error}");
        assert!(error.message.contains("found 36000"));
        assert_eq!(ApiError::model_not_found("x", &["a", "b"]).message, "model: expected one of a, b, found \"x\"");
    }
}
