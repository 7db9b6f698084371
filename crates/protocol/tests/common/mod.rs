//! Shared by the suites of this crate.
#![allow(dead_code)]

use mlxcel_protocol::{ApiError, Request};
use serde::Serialize;
use serde_json::Value;

/// Decodes a body that must be accepted.
pub fn accepted<T: Request>(body: &Value) -> T {
    T::from_bytes(body.to_string().as_bytes()).unwrap_or_else(|e| panic!("{e}\n{body}"))
}

/// Decodes a body that must be refused, and checks what every refusal promises.
pub fn refused<T: Request>(body: &Value) -> ApiError {
    let Err(error) = T::from_bytes(body.to_string().as_bytes()) else { panic!("accepted: {body}") };
    assert_eq!(error.status(), 400, "{error}");
    assert!(error.code.is_some(), "{error}");
    let place = error.param.as_deref().unwrap_or("request body");
    assert!(error.message.starts_with(&format!("{place}: ")), "{error}");
    assert!(error.message.contains("expected "), "{error}");
    assert!(error.message.contains("found "), "{error}");
    error
}

/// What was decoded, written and decoded again, is the same.
pub fn round_trip<T: Request + Serialize + PartialEq + std::fmt::Debug>(body: &Value) -> T {
    let first: T = accepted(body);
    let again: T = accepted(&serde_json::to_value(&first).expect("requests are JSON"));
    assert_eq!(first, again);
    first
}

/// `body` with `field` set to `value`.
pub fn with(body: &Value, field: &str, value: Value) -> Value {
    let mut body = body.clone();
    body[field] = value;
    body
}
