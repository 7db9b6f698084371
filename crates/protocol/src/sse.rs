//! Server-sent events as text. JSON has no line breaks of its own, so an event is one `data:` line.

use serde::Serialize;

/// The end of an OpenAI chat or completion stream.
pub const DONE: &str = "data: [DONE]\n\n";

/// A comment that clients skip: it keeps proxies from closing a stream that is silent during a long prompt.
pub const KEEP_ALIVE: &str = ":\n\n";

/// An event without a name, as in OpenAI's chat and completion streams.
///
/// # Errors
/// If `data` cannot be written as JSON: a map whose keys are no strings.
pub fn data(data: &impl Serialize) -> Result<String, serde_json::Error> {
    Ok(format!("data: {}\n\n", serde_json::to_string(data)?))
}

/// A named event, as in Anthropic's and the Responses streams.
///
/// # Errors
/// As [`data`].
pub fn event(name: &str, data: &impl Serialize) -> Result<String, serde_json::Error> {
    Ok(format!("event: {name}\ndata: {}\n\n", serde_json::to_string(data)?))
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_event_is_one_line_whatever_the_text() {
        let text = "a\nb\r\n\ndata: x\u{2028}";
        let event = super::event("message_stop", &text).unwrap();
        assert_eq!(event, "event: message_stop\ndata: \"a\\nb\\r\\n\\ndata: x\u{2028}\"\n\n");
        assert_eq!(super::data(&1).unwrap(), "data: 1\n\n");
    }
}
