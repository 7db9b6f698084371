//! The body of a request: any bytes give a request or a 400 that names a parameter, on every route.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mlxcel_protocol::anthropic::{CountTokensRequest, MessagesRequest};
use mlxcel_protocol::native::{ApplyTemplateRequest, DetokenizeRequest, TokenizeRequest};
use mlxcel_protocol::openai::responses::ResponsesRequest;
use mlxcel_protocol::openai::{ChatRequest, CompletionRequest};
use mlxcel_protocol::{ApiError, Request};

fn check<T: Request>(body: &[u8], chat: impl Fn(T)) {
    match T::from_bytes(body) {
        Ok(request) => chat(request),
        Err(ApiError { message, .. }) => assert!(message.contains("expected ")),
    }
}

fuzz_target!(|body: &[u8]| {
    check::<ChatRequest>(body, |_| ());
    check::<CompletionRequest>(body, |_| ());
    check::<ResponsesRequest>(body, |request| drop(request.to_chat()));
    check::<MessagesRequest>(body, |request| drop(request.to_chat()));
    check::<CountTokensRequest>(body, |request| drop(request.to_chat()));
    check::<TokenizeRequest>(body, |_| ());
    check::<DetokenizeRequest>(body, |_| ());
    check::<ApplyTemplateRequest>(body, |_| ());
});
