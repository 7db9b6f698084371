//! The official Python clients: what they send is taken, and what they are sent they can read.
//!
//! `clients/bodies.json` is what they send (`clients/capture.py` makes it); `clients/answers.json` is one of each answer
//! and event (made here), which `clients/check.py` has them read.

mod common;

use common::{accepted, refused};
use mlxcel_protocol::anthropic::{
    self, AnswerBlock, BlockDelta, CountTokensRequest, MessageAnswer, MessageDelta, MessagesRequest, StopReason,
    StreamEvent, TokenCount,
};
use mlxcel_protocol::openai::responses::{
    Event, IncompleteDetails, OutputContent, OutputItem, ReasoningText, Response, ResponseEvent, ResponsesRequest,
    Status,
};
use mlxcel_protocol::openai::{
    AssistantMessage, ChatAnswer, ChatChoice, ChatChunk, ChatRequest, ChunkChoice, CompletionAnswer, CompletionChoice,
    CompletionLogprobs, CompletionRequest, Delta, FinishReason, FunctionDelta, Logprobs, Model, ModelList, Timings,
    TokenLogprob, ToolCall, ToolCallDelta, TopLogprob, Usage,
};
use mlxcel_protocol::{ApiError, ErrorKind};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

fn bodies() -> Vec<(String, String, Value)> {
    let list: Vec<Value> = serde_json::from_str(include_str!("clients/bodies.json")).expect("JSON");
    let text = |entry: &Value, name: &str| entry[name].as_str().expect("a string").to_owned();
    list.iter().map(|entry| (text(entry, "call"), text(entry, "path"), entry["body"].clone())).collect()
}

#[test]
fn what_the_clients_send_is_taken() {
    let bodies = bodies();
    assert!(bodies.len() >= 25);
    for (call, path, body) in &bodies {
        match path.as_str() {
            "/v1/chat/completions" => {
                let request: ChatRequest = common::round_trip(body);
                assert_eq!(request.require_text().is_err(), call.ends_with("image"), "{call}");
                assert_eq!(request.stream, call.contains("stream"), "{call}");
                assert_eq!(
                    request.response_format.is_some(),
                    call.contains("json") || call.contains("parse"),
                    "{call}"
                );
                assert_eq!(request.tools.is_empty(), !call.contains("tool"), "{call}");
            }
            "/v1/completions" => {
                common::round_trip::<CompletionRequest>(body);
            }
            "/v1/responses" => {
                let request: ResponsesRequest = common::round_trip(body);
                common::round_trip::<ChatRequest>(&serde_json::to_value(request.to_chat()).expect("JSON"));
            }
            "/v1/messages" => {
                let request: MessagesRequest = common::round_trip(body);
                assert_eq!(request.require_text().is_err(), call.ends_with("image"), "{call}");
                common::round_trip::<ChatRequest>(&serde_json::to_value(request.to_chat()).expect("JSON"));
            }
            "/v1/messages/count_tokens" => {
                common::round_trip::<CountTokensRequest>(body);
            }
            _ => panic!("{path}"),
        }
    }
}

#[test]
fn one_field_too_many_is_noticed_in_each() {
    for (_, path, mut body) in bodies() {
        body["surprise"] = json!(1);
        let error = match path.as_str() {
            "/v1/chat/completions" => refused::<ChatRequest>(&body),
            "/v1/completions" => refused::<CompletionRequest>(&body),
            "/v1/responses" => refused::<ResponsesRequest>(&body),
            "/v1/messages" => refused::<MessagesRequest>(&body),
            _ => refused::<CountTokensRequest>(&body),
        };
        assert_eq!(error.param.as_deref(), Some("surprise"));
    }
}

fn usage() -> Usage {
    let mut usage = Usage::new(20, 8);
    usage.prompt_tokens_details.cached_tokens = 16;
    usage.completion_tokens_details.reasoning_tokens = 2;
    usage.completion_tokens_details.accepted_prediction_tokens = 4;
    usage.completion_tokens_details.rejected_prediction_tokens = 1;
    usage
}

fn timings() -> Timings {
    Timings { cache_n: 16, draft_n: 5, draft_n_accepted: 4, draft_rounds: 2, ..Timings::new(4, 2.0, 8, 7.0) }
}

fn logprobs() -> Logprobs {
    let top = |token: &str, logprob| TopLogprob { token: token.into(), logprob, bytes: Some(token.as_bytes().into()) };
    let token = TokenLogprob {
        token: "Hi".into(),
        logprob: -0.1,
        bytes: Some(b"Hi".into()),
        top_logprobs: vec![top("Hi", -0.1), top("Ho", f32::NEG_INFINITY)],
    };
    Logprobs { content: vec![token], refusal: None }
}

fn chat() -> ChatAnswer {
    let message = AssistantMessage {
        role: "assistant".into(),
        content: Some("Hi".into()),
        refusal: None,
        reasoning_content: Some("Hm.".into()),
        tool_calls: vec![ToolCall::new("call_1", "get_weather", "{\"city\":\"Oslo\"}")],
    };
    ChatAnswer {
        id: "chatcmpl-1".into(),
        object: "chat.completion".into(),
        created: 1,
        model: "m".into(),
        choices: vec![ChatChoice {
            index: 0,
            message,
            logprobs: Some(logprobs()),
            finish_reason: FinishReason::ToolCalls,
        }],
        usage: usage(),
        system_fingerprint: Some("fp_1".into()),
        timings: Some(timings()),
    }
}

fn chunk(delta: Delta, finish_reason: Option<FinishReason>) -> ChatChunk {
    ChatChunk {
        id: "chatcmpl-1".into(),
        object: "chat.completion.chunk".into(),
        created: 1,
        model: "m".into(),
        choices: vec![ChunkChoice { index: 0, delta, logprobs: None, finish_reason }],
        system_fingerprint: None,
        usage: None,
        timings: None,
    }
}

fn chunks() -> Vec<ChatChunk> {
    let call = |id: Option<&str>, name: Option<&str>, arguments: &str| ToolCallDelta {
        index: 0,
        id: id.map(Into::into),
        kind: id.map(|_| "function".into()),
        function: FunctionDelta { name: name.map(Into::into), arguments: Some(arguments.into()) },
    };
    vec![
        chunk(Delta { role: Some("assistant".into()), content: Some(String::new()), ..Delta::default() }, None),
        chunk(Delta { reasoning_content: Some("Hm.".into()), ..Delta::default() }, None),
        chunk(Delta { content: Some("Hi".into()), ..Delta::default() }, None),
        chunk(Delta { tool_calls: vec![call(Some("call_1"), Some("get_weather"), "")], ..Delta::default() }, None),
        chunk(Delta { tool_calls: vec![call(None, None, "{}")], ..Delta::default() }, None),
        chunk(Delta::default(), Some(FinishReason::ToolCalls)),
        ChatChunk {
            choices: Vec::new(),
            usage: Some(usage()),
            timings: Some(timings()),
            ..chunk(Delta::default(), None)
        },
    ]
}

fn completion() -> CompletionAnswer {
    let logprobs = CompletionLogprobs {
        tokens: vec!["On".into(), "ce".into()],
        token_logprobs: vec![Some(-0.25), Some(-0.5)],
        top_logprobs: vec![Some(vec![("On".into(), -0.25)]), Some(vec![("ce".into(), -0.5), (" a".into(), -1.5)])],
        text_offset: vec![0, 2],
    };
    let choice = CompletionChoice {
        index: 0,
        text: "Once".into(),
        logprobs: Some(logprobs),
        finish_reason: Some(FinishReason::Length),
    };
    CompletionAnswer {
        id: "cmpl-1".into(),
        object: "text_completion".into(),
        created: 1,
        model: "m".into(),
        choices: vec![choice],
        system_fingerprint: None,
        usage: Some(usage()),
        timings: Some(timings()),
    }
}

fn items(status: Status) -> Vec<OutputItem> {
    vec![
        OutputItem::Reasoning {
            id: "rs_1".into(),
            status,
            summary: Vec::new(),
            content: vec![ReasoningText { text: "Hm.".into() }],
        },
        OutputItem::Message {
            id: "msg_1".into(),
            status,
            role: "assistant".into(),
            content: vec![OutputContent::OutputText {
                text: "Hi".into(),
                annotations: Vec::new(),
                logprobs: logprobs().content,
            }],
        },
        OutputItem::FunctionCall {
            id: "fc_1".into(),
            status,
            call_id: "call_1".into(),
            name: "get_weather".into(),
            arguments: "{}".into(),
        },
    ]
}

fn response() -> Response {
    let request = json!({"input": "Hi", "instructions": "Be brief.", "max_output_tokens": 8, "temperature": 0.5,
        "tools": [{"type": "function", "name": "get_weather", "parameters": {"type": "object"}, "strict": true}],
        "tool_choice": {"type": "function", "name": "get_weather"}, "reasoning": {"effort": "low"},
        "text": {"format": {"type": "json_schema", "name": "w", "schema": {"type": "object"}}}, "metadata": {"a": "b"}});
    let begun = Response::begin("resp_1", 1, "m", &accepted::<ResponsesRequest>(&request));
    assert_eq!(begun.tool_choice, request["tool_choice"]);
    assert_eq!(begun.tools[0], request["tools"][0]);
    assert_eq!(begun.text, request["text"]);
    Response {
        status: Status::Incomplete,
        incomplete_details: Some(IncompleteDetails { reason: "max_output_tokens".into() }),
        output: items(Status::Completed),
        usage: Some(usage().into()),
        timings: Some(timings()),
        ..begun
    }
}

fn response_events() -> Vec<ResponseEvent> {
    let id = |id: &str| id.to_owned();
    let text = || OutputContent::text("Hi");
    let mut begun = response();
    begun.output.clear();
    let mut failed = begun.clone();
    let error = ApiError::new(ErrorKind::Internal, "the model failed");
    (failed.status, failed.error) = (Status::Failed, Some((&error).into()));
    let boxed = || Box::new(begun.clone());
    let list = vec![
        Event::Created { response: boxed() },
        Event::InProgress { response: boxed() },
        Event::OutputItemAdded { output_index: 0, item: items(Status::InProgress).remove(0) },
        Event::ReasoningTextDelta { item_id: id("rs_1"), output_index: 0, content_index: 0, delta: "Hm.".into() },
        Event::ReasoningTextDone { item_id: id("rs_1"), output_index: 0, content_index: 0, text: "Hm.".into() },
        Event::ContentPartAdded { item_id: id("msg_1"), output_index: 1, content_index: 0, part: text() },
        Event::OutputTextDelta {
            item_id: id("msg_1"),
            output_index: 1,
            content_index: 0,
            delta: "Hi".into(),
            logprobs: logprobs().content,
        },
        Event::OutputTextDone {
            item_id: id("msg_1"),
            output_index: 1,
            content_index: 0,
            text: "Hi".into(),
            logprobs: Vec::new(),
        },
        Event::ContentPartDone { item_id: id("msg_1"), output_index: 1, content_index: 0, part: text() },
        Event::OutputItemDone { output_index: 1, item: items(Status::Completed).remove(1) },
        Event::FunctionCallArgumentsDelta { item_id: id("fc_1"), output_index: 2, delta: "{}".into() },
        Event::FunctionCallArgumentsDone {
            item_id: id("fc_1"),
            output_index: 2,
            name: id("get_weather"),
            arguments: "{}".into(),
        },
        Event::Completed { response: boxed() },
        Event::Incomplete { response: Box::new(response()) },
        Event::Failed { response: Box::new(failed) },
        Event::from(&error),
    ];
    list.into_iter().zip(0..).map(|(event, sequence_number)| ResponseEvent { event, sequence_number }).collect()
}

fn message() -> MessageAnswer {
    MessageAnswer {
        id: "msg_1".into(),
        kind: "message".into(),
        role: "assistant".into(),
        model: "m".into(),
        content: vec![
            AnswerBlock::Thinking { thinking: "Hm.".into(), signature: String::new() },
            AnswerBlock::Text { text: "Hi".into() },
            AnswerBlock::ToolUse { id: "toolu_1".into(), name: "get_weather".into(), input: Default::default() },
        ],
        stop_reason: Some(StopReason::new(FinishReason::ToolCalls, false)),
        stop_sequence: None,
        usage: usage().into(),
        timings: Some(timings()),
    }
}

fn message_events() -> Vec<StreamEvent> {
    let start = MessageAnswer { content: Vec::new(), stop_reason: None, timings: None, ..message() };
    let delta = |delta| StreamEvent::ContentBlockDelta { index: 0, delta };
    vec![
        StreamEvent::MessageStart { message: Box::new(start) },
        StreamEvent::Ping,
        StreamEvent::ContentBlockStart { index: 0, content_block: AnswerBlock::Text { text: String::new() } },
        delta(BlockDelta::TextDelta { text: "Hi".into() }),
        delta(BlockDelta::ThinkingDelta { thinking: "Hm.".into() }),
        delta(BlockDelta::SignatureDelta { signature: String::new() }),
        delta(BlockDelta::InputJsonDelta { partial_json: "{}".into() }),
        StreamEvent::ContentBlockStop { index: 0 },
        StreamEvent::MessageDelta {
            delta: MessageDelta { stop_reason: Some(StopReason::StopSequence), stop_sequence: Some("END".into()) },
            usage: anthropic::Usage::from(usage()),
            timings: None,
        },
        StreamEvent::MessageStop,
        StreamEvent::from(&ApiError::new(ErrorKind::Overloaded, "the queue is full")),
    ]
}

/// The value as JSON, which must read back as the same.
fn written<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(value: &T) -> Value {
    let json = serde_json::to_value(value).expect("JSON");
    let text = serde_json::to_string(value).expect("JSON");
    let again: T = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert_eq!(serde_json::to_value(&again).expect("JSON"), json);
    json
}

#[test]
fn what_the_clients_are_sent() {
    let events: Vec<Value> = response_events()
        .iter()
        .map(|event| {
            let json = written(event);
            assert_eq!(json["type"], event.event.name());
            json
        })
        .collect();
    let messages: Vec<Value> = message_events()
        .iter()
        .map(|event| {
            let json = written(event);
            assert_eq!(json["type"], event.name());
            json
        })
        .collect();
    let answers = json!({
        "chat": written(&chat()),
        "chunks": chunks().iter().map(written).collect::<Vec<_>>(),
        "completion": written(&completion()),
        "response": written(&response()),
        "response_events": events,
        "models": written(&ModelList::new(vec![Model::new("m", 1, None)])),
        "message": written(&message()),
        "message_events": messages,
        "count": written(&TokenCount { input_tokens: 20 }),
        "openai_error": written(&ApiError::parameter("n", "m").openai()),
        "anthropic_error": written(&ApiError::parameter("n", "m").anthropic(Some("req_1"))),
    });
    let text = serde_json::to_string_pretty(&answers).expect("JSON") + "\n";
    if text != include_str!("clients/answers.json") {
        let made = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("answers.json");
        std::fs::write(&made, text).expect("the build folder can be written to");
        panic!("answers changed: compare {}, copy it to tests/clients, and run tests/clients/check.py", made.display());
    }
}

#[test]
fn streams_end_once() {
    assert_eq!(message_events().iter().filter(|event| event.is_last()).count(), 2);
    assert_eq!(response_events().iter().filter(|event| event.event.is_last()).count(), 4);
}

#[test]
fn a_probability_of_zero_is_a_number() {
    let json = serde_json::to_string(&logprobs()).expect("JSON");
    assert!(json.contains("\"logprob\":-9999.0") && json.contains("\"logprob\":-0.1,"), "{json}");
    // The first token of an echoed prompt has none.
    let first =
        CompletionLogprobs { token_logprobs: vec![None], top_logprobs: vec![None], ..CompletionLogprobs::default() };
    assert!(serde_json::to_string(&first).expect("JSON").contains("[null],\"top_logprobs\":[null]"));
    let twice = CompletionLogprobs {
        top_logprobs: vec![Some(vec![("a".into(), -1.0), ("a".into(), f32::NEG_INFINITY)])],
        ..CompletionLogprobs::default()
    };
    assert!(serde_json::to_string(&twice).expect("JSON").contains("[{\"a\":-1.0}]"));
}
