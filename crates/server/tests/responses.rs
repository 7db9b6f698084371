//! `/v1/responses`: the same answers as chat's, as one object and as events in the documented order.

mod common;

use common::{Server, Setup};
use serde_json::{Value, json};

const PATH: &str = "/v1/responses";

fn body(extra: Value) -> Value {
    let mut body = json!({ "input": "What is speculative decoding?", "temperature": 0, "max_output_tokens": 40 });
    if let Value::Object(extra) = extra {
        body.as_object_mut().expect("an object").extend(extra);
    }
    body
}

/// Names of the events, neighbours that are equal as one.
fn order(events: &[Value]) -> Vec<&str> {
    let mut names: Vec<&str> = events.iter().filter_map(|event| event["type"].as_str()).collect();
    names.dedup();
    names
}

const EXPECTED: [&str; 9] = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.incomplete",
];

/// Everything but names and times.
fn essence(response: &Value) -> Value {
    let item = |item: &Value| json!([item["type"], item["status"], item["role"], item["content"]]);
    let items: Vec<Value> = response["output"].as_array().into_iter().flatten().map(item).collect();
    json!([items, response["status"], response["incomplete_details"], response["usage"]["output_tokens"]])
}

#[test]
fn responses_say_what_chat_says() {
    let server = Server::start(Setup::default());
    let chat = json!({
        "messages": [{ "role": "user", "content": "What is speculative decoding?" }],
        "temperature": 0, "max_tokens": 40, "logprobs": true, "top_logprobs": 2,
    });
    let (_, chat) = server.post("/v1/chat/completions", &chat);
    let asked = json!({ "include": ["message.output_text.logprobs"], "top_logprobs": 2, "metadata": { "a": "b" } });
    for speculative in [json!("off"), json!({ "block_size": 4 })] {
        let mut asked = body(asked.clone());
        asked["speculative"] = speculative;
        let (status, answer) = server.post(PATH, &asked);
        assert_eq!(status, 200, "{answer}");
        let content = &answer["output"][0]["content"][0];
        assert_eq!(content["text"], chat["choices"][0]["message"]["content"]);
        assert_eq!(content["logprobs"], chat["choices"][0]["logprobs"]["content"]);
        assert_eq!((&answer["object"], &answer["metadata"]["a"]), (&json!("response"), &json!("b")));
        assert_eq!((&answer["temperature"], &answer["store"]), (&json!(0.0), &json!(false)));
        let usage = &answer["usage"];
        assert_eq!(usage["input_tokens"], chat["usage"]["prompt_tokens"]);
        assert_eq!((&usage["output_tokens"], &answer["status"]), (&json!(40), &json!("incomplete")));
        assert_eq!(answer["incomplete_details"]["reason"], "max_output_tokens");
    }
}

#[test]
fn streams_hold_the_whole_answer_in_order() {
    let server = Server::start(Setup::default());
    let asked = json!({ "include": ["message.output_text.logprobs"] });
    let (_, whole) = server.post(PATH, &body(asked.clone()));
    let mut streamed = body(asked);
    streamed["stream"] = json!(true);
    let (status, text) = server.call("POST", PATH, "", streamed.to_string().as_bytes());
    assert!(status == 200 && text.starts_with("event: response.created\ndata: {"), "{text}");
    assert!(!text.contains("[DONE]"), "events have names here, and the last says that it is the last");
    let events = server.events(PATH, &streamed);
    assert_eq!(order(&events), EXPECTED);
    let numbers: Vec<u64> = events.iter().filter_map(|event| event["sequence_number"].as_u64()).collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<u64>>());
    let deltas = events.iter().filter(|event| event["type"] == "response.output_text.delta");
    let pieces: String = deltas.clone().filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(json!(pieces), whole["output"][0]["content"][0]["text"]);
    assert!(deltas.count() > 5);
    let last = &events.last().expect("events")["response"];
    assert_eq!(essence(last), essence(&whole));
    let first = &events[0]["response"];
    assert_eq!((&first["status"], &first["output"], &first["id"]), (&json!("in_progress"), &json!([]), &last["id"]));
    let done = events.iter().find(|event| event["type"] == "response.output_item.done").expect("an item");
    assert_eq!(done["item"], last["output"][0]);
}

#[test]
fn answers_that_end_by_themselves_are_completed() {
    let server = Server::start(Setup::default());
    let asked = body(json!({ "max_output_tokens": 300, "stream": true, "instructions": "Be brief." }));
    let events = server.events(PATH, &asked);
    assert_eq!(order(&events).last(), Some(&"response.completed"));
    let last = &events.last().expect("events")["response"];
    assert_eq!((&last["status"], &last["output"][0]["status"]), (&json!("completed"), &json!("completed")));
    assert!(last["completed_at"].as_u64() >= last["created_at"].as_u64(), "{last}");
    assert_eq!((&last["incomplete_details"], &last["instructions"]), (&Value::Null, &json!("Be brief.")));
    // What was said goes back in, with another question.
    let mut input = last["output"].as_array().expect("items").clone();
    input.insert(0, json!({ "role": "user", "content": "What is speculative decoding?" }));
    input.push(json!({ "role": "user", "content": [{ "type": "input_text", "text": "And why?" }] }));
    let (status, next) = server.post(PATH, &body(json!({ "input": input, "max_output_tokens": 8 })));
    assert_eq!(status, 200, "{next}");
    assert!(next["usage"]["input_tokens"].as_u64() > last["usage"]["input_tokens"].as_u64(), "{next}");
}

#[test]
fn thoughts_and_calls_are_items_of_their_own() {
    let (target, drafter) = ("qwen3.5-tiny-4bit", Some("qwen3.5-tiny-mtp-4bit"));
    let server = Server::start(Setup { target, drafter, ..Setup::default() });
    let parameters = json!({ "type": "object", "properties": { "city": { "type": "string" } } });
    let tool = json!({ "type": "function", "name": "weather", "description": "w", "parameters": parameters });
    let asked = |extra: Value| {
        let mut body =
            body(json!({ "input": "What is the weather in Paris?", "max_output_tokens": 120, "stream": true }));
        body.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
        body
    };
    let events = server.events(PATH, &asked(json!({ "tools": [tool] })));
    let expected = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ];
    assert_eq!(order(&events), expected);
    let call = &events.last().expect("events")["response"]["output"][0];
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().expect("text")).expect("JSON");
    assert!(call["type"] == "function_call" && arguments["city"].is_string(), "{call}");
    // The call and its result go back in.
    let result = json!({ "type": "function_call_output", "call_id": call["call_id"], "output": "sunny" });
    let input = json!([{ "role": "user", "content": "What is the weather in Paris?" }, call, result]);
    let (status, next) = server.post(PATH, &body(json!({ "input": input, "tools": [tool], "max_output_tokens": 8 })));
    assert_eq!(status, 200, "{next}");
    let events = server.events(PATH, &asked(json!({ "reasoning": { "effort": "high" } })));
    let kinds = |name: &str| -> Vec<&Value> {
        events.iter().filter(|event| event["type"] == name).map(|event| &event["item"]["type"]).collect()
    };
    assert_eq!(kinds("response.output_item.added"), [&json!("reasoning"), &json!("message")]);
    assert_eq!(kinds("response.output_item.done"), [&json!("reasoning"), &json!("message")]);
    let response = &events.last().expect("events")["response"];
    let deltas = events.iter().filter(|event| event["type"] == "response.reasoning_text.delta");
    let thought: String = deltas.filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(response["output"][0]["content"][0]["text"], json!(thought));
    let tokens = &response["usage"]["output_tokens_details"]["reasoning_tokens"];
    assert!(tokens.as_u64() > Some(0), "{response}");
}

#[test]
fn errors_name_this_dialects_fields() {
    let server = Server::start(Setup { context: 256, ..Setup::default() });
    for (extra, status, param) in [
        (json!({ "input": [] }), 400, "input"),
        (json!({ "input": "long ".repeat(400) }), 400, "input"),
        (json!({ "model": "other" }), 404, "model"),
        (
            json!({ "text": { "format": { "type": "json_schema", "name": "x", "schema": { "$ref": "#/nowhere" } } } }),
            400,
            "text.format",
        ),
        (json!({ "previous_response_id": "resp_1" }), 400, "previous_response_id"),
        (json!({ "max_output_tokens": -1 }), 400, "max_output_tokens"),
    ] {
        let (found, error) = server.post(PATH, &body(extra));
        assert_eq!((found, error["error"]["param"].as_str()), (status, Some(param)), "{error}");
    }
}

/// The twin: events in another order, or one too few, would be seen.
#[test]
fn a_wrong_order_is_seen() {
    let server = Server::start(Setup::default());
    let mut events = server.events(PATH, &body(json!({ "stream": true })));
    assert_eq!(order(&events), EXPECTED);
    events.swap(2, 3);
    assert_ne!(order(&events), EXPECTED);
    events.swap(2, 3);
    events.pop();
    assert_ne!(order(&events), EXPECTED);
}
