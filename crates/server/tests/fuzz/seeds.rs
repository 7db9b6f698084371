//! Valid bodies, to be mutated.

use serde_json::{Value, json};

/// Chats.
pub const CHAT: &str = "/v1/chat/completions";

/// A valid body for each route; those that generate ask for a few tokens.
pub fn seeds() -> Vec<(&'static str, Value)> {
    let call = json!({ "id": "c", "type": "function", "function": { "name": "f", "arguments": "{\"a\": 1}" } });
    let messages = json!([
        { "role": "system", "content": "Be brief." },
        { "role": "user", "content": [{ "type": "text", "text": "Hi" }] },
        { "role": "assistant", "content": null, "tool_calls": [call] },
        { "role": "tool", "tool_call_id": "c", "content": "1" },
    ]);
    let function = json!({ "name": "f", "description": "d", "parameters": { "type": "object" } });
    let tools = json!([{ "type": "function", "function": function }]);
    let chat = json!({
        "model": "alias", "messages": messages, "tools": tools, "tool_choice": "auto", "stream": true,
        "stream_options": { "include_usage": true }, "max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "top_k": 5,
        "min_p": 0.1, "seed": 1, "n": 2, "stop": ["zzz"], "logprobs": true, "top_logprobs": 2, "logit_bias": { "1": 1 },
        "presence_penalty": 0.1, "frequency_penalty": 0.1, "repetition_penalty": 1.1, "speculative": { "block_size": 4 },
        "chat_template_kwargs": { "a": 1 }, "reasoning_effort": "low", "user": "u",
    });
    let whole = json!({ "messages": [{ "role": "user", "content": "Hi" }], "max_tokens": 3, "temperature": 0 });
    let completion =
        json!({ "prompt": ["Once", "upon a"], "max_tokens": 3, "logprobs": 2, "stop": "x", "seed": 3, "stream": true });
    let tokens = json!({ "prompt": [[1, 2, 3]], "max_tokens": 2, "echo": true, "n": 2, "temperature": 1 });
    let responses = json!({
        "input": [
            { "role": "user", "content": [{ "type": "input_text", "text": "Hi" }] },
            { "type": "function_call", "call_id": "c", "name": "f", "arguments": "{}" },
            { "type": "function_call_output", "call_id": "c", "output": "1" },
        ],
        "instructions": "i", "max_output_tokens": 3, "include": ["message.output_text.logprobs"], "metadata": { "a": "b" },
        "stream": true, "tools": [{ "type": "function", "name": "f", "parameters": {} }], "temperature": 0,
    });
    let conversation = json!([
        { "role": "user", "content": "Hi" },
        { "role": "assistant", "content": [{ "type": "tool_use", "id": "c", "name": "f", "input": { "a": 1 } }] },
        { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "c", "content": "1" }] },
    ]);
    let offered = json!([{ "name": "f", "input_schema": { "type": "object" } }]);
    let message = json!({
        "model": "alias", "max_tokens": 3, "system": [{ "type": "text", "text": "s" }], "messages": conversation,
        "tools": offered, "stop_sequences": ["zzz"], "temperature": 1, "top_k": 3, "stream": true,
    });
    let template = json!({ "messages": messages, "tools": tools, "add_generation_prompt": true });
    let mut all = constrained();
    all.extend([
        (CHAT, chat),
        (CHAT, whole),
        ("/v1/completions", completion),
        ("/v1/completions", tokens),
        ("/v1/responses", responses),
        ("/v1/messages", message),
        ("/v1/messages/count_tokens", json!({ "messages": conversation, "system": "s", "tools": offered })),
        ("/tokenize", json!({ "content": "Hello", "add_special": true, "parse_special": false, "with_pieces": true })),
        ("/detokenize", json!({ "tokens": [1, 2, 300] })),
        ("/apply-template", template),
    ]);
    all
}

/// Bodies whose answers have a form, or are to be thought about.
fn constrained() -> Vec<(&'static str, Value)> {
    let messages = json!([{ "role": "user", "content": "Hi" }]);
    let properties = json!({
        "name": { "type": "string", "maxLength": 8, "pattern": "^[a-z]+$" }, "age": { "type": "integer", "minimum": 0, "maximum": 9 },
        "tags": { "type": "array", "items": { "enum": ["a", "b", null, 1] }, "minItems": 1, "maxItems": 2 },
        "next": { "anyOf": [{ "$ref": "#/$defs/n" }, { "type": "null" }] },
    });
    let defs = json!({ "n": { "type": "object", "properties": { "n": { "$ref": "#/$defs/n" } } } });
    let schema = json!({ "type": "object", "properties": properties, "required": ["name"], "additionalProperties": false, "$defs": defs });
    let own = json!({ "type": "json_schema", "json_schema": { "name": "s", "strict": true, "schema": schema } });
    let object = json!({
        "messages": messages, "response_format": { "type": "json_object" }, "max_tokens": 3, "temperature": 0,
        "reasoning_effort": "high", "logit_bias": { "300": 2.5, "433": -100 }, "n": 2, "speculative": { "block_size": 8 },
    });
    let gbnf = "root ::= item{1,3} \"end\"?\nitem ::= [a-z]+ \"-\" (\"x\" | \"y\" item)* # a list\n";
    let lark = "start: (WORD | \"b\")+ tail?\ntail: /[0-9]{1,3}/ \".\"\nWORD: /[a-z]+/\n";
    let tool = json!({ "type": "function", "name": "f", "description": "d", "parameters": schema, "strict": false });
    let format = json!({ "format": { "type": "json_schema", "name": "s", "schema": schema } });
    let responses = json!({
        "input": "Hi", "max_output_tokens": 3, "tools": [tool], "tool_choice": "auto", "text": format, "reasoning": { "effort": "low" },
        "temperature": 0, "speculative": { "block_size": 2 },
    });
    let offered = json!([{ "name": "f", "description": "d", "input_schema": schema }]);
    let message = json!({
        "messages": messages, "max_tokens": 3, "tools": offered, "tool_choice": { "type": "auto" },
        "thinking": { "type": "enabled", "budget_tokens": 2 }, "stream": true,
    });
    vec![
        (CHAT, object),
        (
            CHAT,
            json!({ "messages": messages, "response_format": own, "max_tokens": 3, "stream": true, "speculative": "off" }),
        ),
        (
            CHAT,
            json!({ "messages": messages, "grammar": gbnf, "max_tokens": 3, "speculative": { "block_size": 4 }, "seed": 1 }),
        ),
        (
            "/v1/completions",
            json!({ "prompt": "Hi", "grammar": lark, "max_tokens": 3, "logit_bias": { "5": -1 }, "n": 2 }),
        ),
        (
            "/v1/completions",
            json!({ "prompt": "Hi", "grammar": gbnf, "max_tokens": 3, "temperature": 0, "stream": true }),
        ),
        ("/v1/responses", responses),
        ("/v1/messages", message),
    ]
}
