//! Any text as a chat template: an error or a rendering within its budget, never a panic or an endless loop.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mlxcel_text::{ChatTemplate, RenderRequest, SpecialTokens};
use serde_json::json;

fuzz_target!(|source: &str| {
    let Ok(template) = ChatTemplate::from_source("fuzz", source, SpecialTokens::default()) else { return };
    let messages = [json!({"role": "user", "content": "Hello"}), json!({"role": "assistant", "content": "Hi"})];
    let request = RenderRequest { messages: &messages, add_generation_prompt: true, ..RenderRequest::default() };
    let _ = template.render(&request);
});
