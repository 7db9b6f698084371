//! The other routes: completions, responses, messages, llama-server's.

mod common;

use common::{accepted, refused, round_trip, with};
use mlxcel_protocol::anthropic::{CountTokensRequest, MessagesRequest, StopReason};
use mlxcel_protocol::native::{
    ApplyTemplateRequest, DetokenizeRequest, Health, Piece, TokenizeRequest, TokenizedToken,
};
use mlxcel_protocol::openai::responses::{InputItem, OutputContent, OutputItem, ResponsesRequest, Status};
use mlxcel_protocol::openai::{
    ChatRequest, CompletionRequest, Content, FinishReason, Message, PromptItem, ReasoningEffort, ResponseFormat, Role,
    ToolChoice, Usage,
};
use mlxcel_protocol::{Request, parameters};
use serde_json::{Value, json};

fn prompts(prompt: Value) -> Vec<PromptItem> {
    round_trip::<CompletionRequest>(&json!({"prompt": prompt})).prompt.items().to_vec()
}

#[test]
fn prompts_in_all_four_forms() {
    let text = |text: &str| PromptItem::Text(text.into());
    assert_eq!(prompts(json!("a")), [text("a")]);
    assert_eq!(prompts(json!("")), [text("")]);
    assert_eq!(prompts(json!([""])), [text("")]);
    assert_eq!(prompts(json!(["a", "b"])), [text("a"), text("b")]);
    assert_eq!(prompts(json!([1, 2])), [PromptItem::Tokens(vec![1, 2])]);
    assert_eq!(prompts(json!([[1], [2, 3]])), [PromptItem::Tokens(vec![1]), PromptItem::Tokens(vec![2, 3])]);
}

#[test]
fn completions_refused() {
    for (body, param) in [
        (json!({}), "prompt"),
        (json!({"prompt": null}), "prompt"),
        (json!({"prompt": 5}), "prompt"),
        (json!({"prompt": {}}), "prompt"),
        (json!({"prompt": []}), "prompt"),
        (json!({"prompt": [[]]}), "prompt[0]"),
        (json!({"prompt": [null]}), "prompt[0]"),
        (json!({"prompt": [1, "a"]}), "prompt[1]"),
        (json!({"prompt": ["a", 1]}), "prompt[1]"),
        (json!({"prompt": [1, -1]}), "prompt[1]"),
        (json!({"prompt": [1, 1.5]}), "prompt[1]"),
        (json!({"prompt": [[1, 4294967296u64]]}), "prompt[0][1]"),
        (json!({"prompt": vec!["a"; 129]}), "prompt"),
        (json!({"prompt": "a", "suffix": "b"}), "suffix"),
        (json!({"prompt": "a", "best_of": 2}), "best_of"),
        (json!({"prompt": "a", "best_of": 2, "n": 3}), "best_of"),
        (json!({"prompt": "a", "logprobs": 21}), "logprobs"),
        (json!({"prompt": "a", "logprobs": true}), "logprobs"),
        (json!({"prompt": "a", "echo": 1}), "echo"),
        (json!({"prompt": "a", "messages": []}), "messages"),
        (json!({"prompt": "a", "stream_options": {}}), "stream_options"),
        (json!({"prompt": "a", "stream": true, "stream_options": {"x": 1}}), "stream_options.x"),
    ] {
        assert_eq!(refused::<CompletionRequest>(&body).param.as_deref(), Some(param), "{body}");
    }
    let request: CompletionRequest =
        round_trip(&json!({"prompt": "a", "best_of": 2, "n": 2, "suffix": "", "logprobs": 0}));
    assert_eq!((request.n, request.logprobs), (Some(2), Some(0)));
}

#[test]
fn a_response_as_chat() {
    let body = json!({"instructions": "Be brief.", "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
        {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "short"}], "encrypted_content": null,
         "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "2", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "rain"},
        {"type": "function_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "sun"}]},
        {"type": "function_call", "call_id": "3", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "3", "output": ""}
    ], "text": {"format": {"type": "json_object"}}, "reasoning": {"effort": "max"}, "max_output_tokens": 7, "stream": true,
        "include": ["message.output_text.logprobs"], "tools": [{"type": "function", "name": "f"}], "tool_choice": "required"});
    let chat = round_trip::<ResponsesRequest>(&body).to_chat();
    let roles: Vec<Role> = chat.messages.iter().map(|message| message.role).collect();
    use Role::{Assistant, System, Tool, User};
    assert_eq!(roles, [System, User, Assistant, Tool, Tool, Assistant, Tool]);
    let said = &chat.messages[2];
    assert_eq!(said.reasoning_content.as_deref(), Some("Hm."));
    assert_eq!(said.content.as_ref().map(|content| content.text("")), Some("Let me see.".into()));
    assert_eq!(said.tool_calls.iter().map(|call| call.id.as_str()).collect::<Vec<_>>(), ["1", "2"]);
    assert_eq!(chat.messages[4].tool_call_id.as_deref(), Some("2"));
    assert_eq!(chat.messages[5].content, None);
    assert_eq!(chat.response_format, Some(ResponseFormat::JsonObject));
    assert_eq!((chat.reasoning_effort, chat.max_tokens), (Some(ReasoningEffort::Max), Some(7)));
    assert!(chat.stream && chat.logprobs && chat.tool_choice == Some(ToolChoice::Required));
    // What comes out is a chat request like any other.
    round_trip::<ChatRequest>(&serde_json::to_value(&chat).expect("JSON"));
}

#[test]
fn an_answer_sent_back_is_the_conversation() {
    let answer = [
        OutputItem::Message {
            id: "m".into(),
            status: Status::Completed,
            role: "assistant".into(),
            content: vec![OutputContent::text("Hi")],
        },
        OutputItem::FunctionCall {
            id: "f".into(),
            status: Status::Completed,
            call_id: "c".into(),
            name: "f".into(),
            arguments: "{}".into(),
        },
        OutputItem::Reasoning { id: "r".into(), status: Status::Completed, summary: vec![], content: vec![] },
    ];
    let sent: Vec<Value> = answer.iter().map(|item| serde_json::to_value(item).expect("JSON")).collect();
    let request: ResponsesRequest = accepted(&json!({"input": sent}));
    let expected: Vec<InputItem> = answer.iter().map(OutputItem::to_input).collect();
    assert_eq!(request.input, mlxcel_protocol::openai::responses::Input::Items(expected));
    // Reasoning that cannot be read is no message.
    assert_eq!(request.to_chat().messages.len(), 1);
}

#[test]
fn responses_refused() {
    let item = |item: Value| json!({"input": [item]});
    let also = |field: &str, value: Value| with(&json!({"input": "Hi"}), field, value);
    for (body, param) in [
        (json!({}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": {}}), "input"),
        (item(json!({})), "input[0].type"),
        (item(json!({"type": "web_search_call"})), "input[0].type"),
        (item(json!({"type": "item_reference", "id": "x"})), "input[0].type"),
        (item(json!({"role": "tool", "content": "x"})), "input[0].role"),
        (item(json!({"role": "user"})), "input[0].content"),
        (item(json!({"role": "user", "content": [{"type": "input_file"}]})), "input[0].content[0].type"),
        (
            item(json!({"role": "user", "content": [{"type": "input_image", "file_id": "f"}]})),
            "input[0].content[0].file_id",
        ),
        (item(json!({"type": "function_call", "name": "f", "arguments": "{}"})), "input[0].call_id"),
        (item(json!({"type": "function_call_output", "call_id": "c"})), "input[0].output"),
        (item(json!({"type": "reasoning", "content": [{"type": "text", "text": ""}]})), "input[0].content[0].type"),
        (also("previous_response_id", json!("resp_1")), "previous_response_id"),
        (also("conversation", json!("c")), "conversation"),
        (also("prompt", json!({"id": "p"})), "prompt"),
        (also("background", json!(true)), "background"),
        (also("truncation", json!("auto")), "truncation"),
        (also("tools", json!([{"type": "web_search"}])), "tools[0].type"),
        (also("tools", json!([{"type": "function"}])), "tools[0].name"),
        (also("tool_choice", json!({"type": "function", "name": "f"})), "tool_choice"),
        (also("text", json!({"format": {"type": "grammar"}})), "text.format.type"),
        (also("text", json!({"format": {"type": "json_schema", "schema": {"type": 7}}})), "text.format.schema.type"),
        (also("text", json!({"verbosity": "low"})), "text.verbosity"),
        (also("reasoning", json!({"effort": "some"})), "reasoning.effort"),
        (also("reasoning", json!({"mode": "pro"})), "reasoning.mode"),
        (also("include", json!(["file_search_call.results"])), "include[0]"),
        (also("max_output_tokens", json!(0)), "max_output_tokens"),
        (also("max_tokens", json!(5)), "max_tokens"),
        (also("metadata", Value::Object((0..65).map(|i| (i.to_string(), json!(""))).collect())), "metadata"),
    ] {
        assert_eq!(refused::<ResponsesRequest>(&body).param.as_deref(), Some(param), "{body}");
    }
    let image: ResponsesRequest = round_trip_image();
    assert_eq!(image.require_text().unwrap_err().param.as_deref(), Some("input[0].content[1]"));
}

fn round_trip_image() -> ResponsesRequest {
    accepted(&json!({"input": [{"role": "user", "content": [
        {"type": "input_text", "text": "What?"},
        {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"}]}]}))
}

fn hello() -> Value {
    json!({"model": "m", "max_tokens": 64, "messages": [{"role": "user", "content": "Hi"}]})
}

#[test]
fn messages_as_chat() {
    let body = json!({"model": "m", "max_tokens": 4096, "system": [{"type": "text", "text": "Be brief."}], "messages": [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "s"}, {"type": "redacted_thinking", "data": "x"},
            {"type": "text", "text": "Let me see."},
            {"type": "tool_use", "id": "1", "name": "f", "input": {"city": "Oslo"}},
            {"type": "tool_use", "id": "2", "name": "g", "input": {}}]},
        {"role": "user", "content": [
            {"type": "text", "text": "Well?"},
            {"type": "tool_result", "tool_use_id": "1", "content": "rain"},
            {"type": "tool_result", "tool_use_id": "2", "is_error": true}]},
        {"role": "system", "content": "Hurry."},
        {"role": "user", "content": []}
    ], "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}, {"type": "custom", "name": "g", "input_schema": {}}],
        "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": true},
        "thinking": {"type": "enabled", "budget_tokens": 2048}, "stop_sequences": ["END"], "temperature": 1, "top_k": 5,
        "output_config": {"effort": "high"}, "stream": true, "speculative": {"block_size": 3}});
    let request: MessagesRequest = round_trip(&body);
    let chat = request.to_chat();
    let roles: Vec<Role> = chat.messages.iter().map(|message| message.role).collect();
    use Role::{Assistant, System, Tool, User};
    assert_eq!(roles, [System, User, Assistant, Tool, Tool, User, System, User]);
    let said = &chat.messages[2];
    assert_eq!(said.reasoning_content.as_deref(), Some("Hm."));
    assert_eq!(said.tool_calls[0].function.value(), json!({"city": "Oslo"}));
    assert_eq!(chat.messages[3].content, Some(Content::Text("rain".into())));
    assert_eq!(chat.messages[5].content.as_ref().map(|content| content.text("")), Some("Well?".into()));
    assert_eq!(chat.tool_choice, Some(ToolChoice::Function("f".into())));
    assert_eq!(chat.parallel_tool_calls, Some(false));
    assert_eq!(chat.chat_template_kwargs["enable_thinking"], true);
    assert_eq!((chat.thinking_budget_tokens, chat.max_tokens), (Some(2048), Some(4096)));
    assert_eq!((&chat.sampling.stop[..], chat.sampling.top_k), (&["END".to_owned()][..], Some(5)));
    assert_eq!(chat.reasoning_effort, Some(ReasoningEffort::High));
    round_trip::<ChatRequest>(&serde_json::to_value(&chat).expect("JSON"));

    let off = accepted::<MessagesRequest>(&with(&hello(), "thinking", json!({"type": "disabled"}))).to_chat();
    assert_eq!(off.chat_template_kwargs["enable_thinking"], false);
    assert!(accepted::<MessagesRequest>(&hello()).to_chat().chat_template_kwargs.is_empty());
}

#[test]
fn messages_refused() {
    let user = |content: Value| with(&hello(), "messages", json!([{"role": "user", "content": content}]));
    let also = |field: &str, value: Value| with(&hello(), field, value);
    let mut without = hello();
    without.as_object_mut().expect("an object").remove("max_tokens");
    for (body, param) in [
        (without, "max_tokens"),
        (also("max_tokens", json!(0)), "max_tokens"),
        (also("messages", json!([])), "messages"),
        (also("messages", json!([{"role": "tool", "content": "x"}])), "messages[0].role"),
        (also("messages", json!([{"role": "user"}])), "messages[0].content"),
        (also("messages", json!([{"role": "assistant", "content": "The answer is "}])), "messages[0].content"),
        (user(json!(null)), "messages[0].content"),
        (user(json!([{"type": "document", "source": {}}])), "messages[0].content[0].type"),
        (user(json!([{"type": "tool_use", "id": "1", "name": "f", "input": {}}])), "messages[0].content[0].type"),
        (user(json!([{"type": "tool_result"}])), "messages[0].content[0].tool_use_id"),
        (
            user(json!([{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "document"}]}])),
            "messages[0].content[0].content[0].type",
        ),
        (user(json!([{"type": "image", "source": {"type": "file"}}])), "messages[0].content[0].source.type"),
        (
            user(json!([{"type": "image", "source": {"type": "base64", "media_type": "image/tiff", "data": ""}}])),
            "messages[0].content[0].source.media_type",
        ),
        (user(json!([{"type": "text", "text": "x", "y": 1}])), "messages[0].content[0].y"),
        (also("system", json!([{"type": "image"}])), "system[0].type"),
        (also("system", json!(5)), "system"),
        (also("temperature", json!(1.5)), "temperature"),
        (also("tools", json!([{"type": "web_search_20250305", "name": "web_search"}])), "tools[0].type"),
        (also("tools", json!([{"name": "f"}])), "tools[0].input_schema"),
        (also("tools", json!([{"name": "f", "input_schema": "{}"}])), "tools[0].input_schema"),
        (also("tool_choice", json!({"type": "any"})), "tool_choice"),
        (also("tool_choice", json!({"type": "tool", "name": "f"})), "tool_choice"),
        (also("tool_choice", json!("auto")), "tool_choice"),
        (also("thinking", json!({"type": "enabled"})), "thinking.budget_tokens"),
        (also("thinking", json!({"type": "enabled", "budget_tokens": 64})), "thinking.budget_tokens"),
        (also("thinking", json!(true)), "thinking"),
        (also("stop_sequences", json!("END")), "stop_sequences"),
        (also("stop_sequences", json!([""])), "stop_sequences[0]"),
        (also("stop", json!(["END"])), "stop"),
        (
            also("output_config", json!({"format": {"type": "json_schema", "schema": {"type": 7}}})),
            "output_config.format.schema.type",
        ),
        (also("mcp_servers", json!([{}])), "mcp_servers"),
        (also("container", json!("c")), "container"),
        (also("n", json!(2)), "n"),
    ] {
        if param == "stop_sequences" {
            // One string is the same as a list of one, as everywhere.
            accepted::<MessagesRequest>(&body);
            continue;
        }
        assert_eq!(refused::<MessagesRequest>(&body).param.as_deref(), Some(param), "{body}");
    }
    let both = with(
        &also("output_format", json!({"type": "json_schema", "schema": {}})),
        "output_config",
        json!({"format": {"type": "json_schema", "schema": {}}}),
    );
    assert_eq!(refused::<MessagesRequest>(&both).param.as_deref(), Some("output_format"));
    let image = user(json!([{"type": "tool_result", "tool_use_id": "1", "content": [
        {"type": "text", "text": ""}, {"type": "image", "source": {"type": "url", "url": "u"}}]}]));
    let error = accepted::<MessagesRequest>(&image).require_text().unwrap_err();
    assert_eq!(error.param.as_deref(), Some("messages[0].content[0].content[1]"));
}

#[test]
fn counting_takes_a_prompt_and_no_more() {
    let mut body = hello();
    assert_eq!(refused::<CountTokensRequest>(&body).param.as_deref(), Some("max_tokens"));
    body.as_object_mut().expect("an object").remove("max_tokens");
    let request: CountTokensRequest = round_trip(&body);
    assert_eq!(request.to_chat().messages, [Message::text(Role::User, "Hi")]);
}

#[test]
fn usage_in_the_other_dialects() {
    let mut usage = Usage::new(20, 8);
    usage.prompt_tokens_details.cached_tokens = 16;
    let theirs = mlxcel_protocol::anthropic::Usage::from(usage);
    assert_eq!((theirs.input_tokens, theirs.cache_read_input_tokens, theirs.output_tokens), (4, 16, 8));
    assert_eq!(StopReason::new(FinishReason::Stop, true), StopReason::StopSequence);
    assert_eq!(StopReason::new(FinishReason::Stop, false), StopReason::EndTurn);
    assert_eq!(StopReason::new(FinishReason::Length, true), StopReason::MaxTokens);
}

#[test]
fn the_servers_own_routes() {
    let request: TokenizeRequest = round_trip(&json!({"content": "", "with_pieces": true}));
    assert!(request.parse_special && !request.add_special && request.with_pieces);
    assert_eq!(accepted::<TokenizeRequest>(&json!({"prompt": "x", "model": "m"})).content, "x");
    assert_eq!(round_trip::<DetokenizeRequest>(&json!({"tokens": []})).tokens, [0u32; 0]);
    let request: ApplyTemplateRequest = round_trip(&json!({"messages": [{"role": "user", "content": "Hi"}]}));
    assert!(request.add_generation_prompt && request.require_text().is_ok());
    for (error, param) in [
        (refused::<TokenizeRequest>(&json!({})), "content"),
        (refused::<TokenizeRequest>(&json!({"content": ["a"]})), "content"),
        (refused::<TokenizeRequest>(&json!({"content": "a", "prompt": "b"})), "prompt"),
        (refused::<TokenizeRequest>(&json!({"content": "a", "add_special": 1})), "add_special"),
        (refused::<DetokenizeRequest>(&json!({"tokens": 5})), "tokens"),
        (refused::<DetokenizeRequest>(&json!({"tokens": ["a"]})), "tokens[0]"),
        (refused::<DetokenizeRequest>(&json!({"tokens": [1, -1]})), "tokens[1]"),
        (refused::<ApplyTemplateRequest>(&json!({"messages": []})), "messages"),
    ] {
        assert_eq!(error.param.as_deref(), Some(param));
    }
    let tokens = [
        TokenizedToken::Id(5),
        TokenizedToken::Piece { id: 6, piece: Piece::from(b"hi".to_vec()) },
        TokenizedToken::Piece { id: 7, piece: Piece::from(vec![0xf0, 0x9f]) },
    ];
    let text = serde_json::to_string(&tokens).expect("JSON");
    assert_eq!(text, r#"[5,{"id":6,"piece":"hi"},{"id":7,"piece":[240,159]}]"#);
    assert_eq!(serde_json::from_str::<Vec<TokenizedToken>>(&text).expect("tokens"), tokens);
    assert_eq!(serde_json::to_string(&Health::ok()).expect("JSON"), r#"{"status":"ok"}"#);
}

#[test]
fn every_rule_of_every_table_holds() {
    fn check<T: Request + PartialEq + std::fmt::Debug>(seed: &Value, tables: &[&[parameters::Parameter]]) {
        for parameter in tables.iter().flat_map(|table| table.iter()) {
            let odd = with(seed, parameter.name, json!("no such value"));
            // Some routes act on a field that others only tolerate.
            if parameter.name == "metadata" {
                continue;
            }
            match parameter.rule {
                parameters::Rule::Harmless => assert_eq!(accepted::<T>(&odd), accepted::<T>(seed)),
                parameters::Rule::Refused(why) => assert!(refused::<T>(&odd).message.contains(why)),
                parameters::Rule::Only(values, why) => {
                    assert!(refused::<T>(&odd).message.contains(why));
                    for value in values {
                        let body = with(seed, parameter.name, serde_json::from_str(value).expect("JSON"));
                        assert_eq!(accepted::<T>(&body), accepted::<T>(seed), "{}", parameter.name);
                    }
                }
            }
        }
    }
    check::<CompletionRequest>(&json!({"prompt": "a"}), &[parameters::COMMON, parameters::COMPLETION]);
    check::<ResponsesRequest>(&json!({"input": "a"}), &[parameters::COMMON, parameters::RESPONSES]);
    check::<MessagesRequest>(&hello(), &[parameters::COMMON, parameters::MESSAGES]);
}
