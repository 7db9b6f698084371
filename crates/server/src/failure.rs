//! Errors as the two dialects write them.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use mlxcel_engine::RequestError;
use mlxcel_protocol::anthropic::StreamEvent;
use mlxcel_protocol::{ApiError, ErrorKind, sse as wire};

use crate::worker::Refusal;

/// Whose errors a route writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// OpenAI's, and llama-server's.
    OpenAi,
    /// Anthropic's.
    Anthropic,
}

/// Seconds after which a client may try again.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");

impl Dialect {
    /// A response that says what went wrong.
    pub fn response(self, error: &ApiError) -> Response {
        let status = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = match self {
            Dialect::OpenAi => serde_json::to_string(&error.openai()),
            Dialect::Anthropic => serde_json::to_string(&error.anthropic(None)),
        };
        // Strings alone: nothing in them that JSON could not hold.
        let mut response = (status, body.unwrap_or_default()).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, RETRY_AFTER);
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }

    /// The event that ends a stream with an error.
    pub fn event(self, error: &ApiError) -> String {
        // Strings alone: nothing in them that JSON could not hold.
        match self {
            Dialect::OpenAi => wire::data(&error.openai()).unwrap_or_default() + wire::DONE,
            Dialect::Anthropic => {
                let event = StreamEvent::from(error);
                wire::event(event.name(), &event).unwrap_or_default()
            }
        }
    }
}

/// What the client is told of a request that was not taken; `prompt` is the field that holds it.
pub fn refused(refusal: &Refusal, prompt: &str) -> ApiError {
    match refusal {
        Refusal::Request(error) => invalid(error, prompt),
        Refusal::Full { .. } => ApiError::new(ErrorKind::Overloaded, refusal.to_string()),
        Refusal::Loading | Refusal::Dead(_) => ApiError::new(ErrorKind::Unavailable, refusal.to_string()),
    }
}

fn invalid(error: &RequestError, prompt: &str) -> ApiError {
    let of = |param: &str| {
        // The message begins with the engine's name of the parameter; the client's goes there.
        let text = error.to_string();
        let rest = text.split_once(": ").map_or(text.as_str(), |(_, rest)| rest).to_string();
        ApiError::parameter(param, rest)
    };
    match error {
        RequestError::ContextLength { found, context, .. } => ApiError::context_length(prompt, *found, *context),
        RequestError::EmptyPrompt | RequestError::Token { .. } | RequestError::Media { .. } => of(prompt),
        RequestError::NoTokens => of("max_tokens"),
        RequestError::BlockSize { .. } => of("speculative.block_size"),
        RequestError::Stop(_) => of("stop"),
        RequestError::Constraint => ApiError::new(ErrorKind::Internal, error.to_string()),
        RequestError::DeviceLost(why) => ApiError::new(ErrorKind::Unavailable, why.clone()),
        RequestError::Sampling(error) => {
            let text = error.to_string();
            // The message begins with the parameter, and sometimes with what of it.
            let (param, rest) = text.split_once([' ', ':']).unwrap_or(("sampling", &text));
            ApiError::parameter(param, rest.trim_start())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engines_words_get_the_clients_names() {
        let error = refused(&Refusal::Request(RequestError::EmptyPrompt), "messages");
        assert_eq!((error.status(), error.param.as_deref()), (400, Some("messages")));
        assert!(error.message.starts_with("messages: at least one token expected"), "{}", error.message);
        let long = RequestError::ContextLength { found: 300, context: 256, model: 512 };
        let error = refused(&Refusal::Request(long), "prompt");
        assert_eq!((error.code, error.param.as_deref()), (Some("context_length_exceeded"), Some("prompt")));
        assert_eq!(refused(&Refusal::Full { waiting: 3 }, "prompt").status(), 503);
        assert_eq!(refused(&Refusal::Dead("x".into()), "prompt").status(), 503);
        assert_eq!(refused(&Refusal::Request(RequestError::DeviceLost("x".into())), "prompt").status(), 503);
    }

    #[test]
    fn a_full_server_says_when_to_come_back() {
        let response = Dialect::OpenAi.response(&refused(&Refusal::Full { waiting: 3 }, "prompt"));
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.headers()[header::RETRY_AFTER], "1");
        let unauthorized = Dialect::Anthropic.response(&ApiError::new(ErrorKind::Authentication, "no"));
        assert_eq!(unauthorized.headers()[header::WWW_AUTHENTICATE], "Bearer");
    }
}
