//! Chat requests as clients send them, and every refusal.

mod common;

use common::{accepted, refused, round_trip, with};
use mlxcel_protocol::openai::responses::ResponsesRequest;
use mlxcel_protocol::openai::{
    ChatRequest, Content, ContentPart, ReasoningEffort, ResponseFormat, Role, StreamOptions, ToolChoice,
};
use mlxcel_protocol::{Speculative, limits, parameters};
use serde_json::{Value, json};

fn hello() -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}]})
}

fn weather() -> Value {
    json!({"type": "function", "function": {
        "name": "get_weather", "description": "Weather now",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    }})
}

#[test]
fn a_minimal_request() {
    let request: ChatRequest = round_trip(&hello());
    assert_eq!(request.model.as_deref(), Some("m"));
    assert_eq!(request.messages[0].role, Role::User);
    assert_eq!(request.messages[0].content, Some(Content::Text("Hi".into())));
    assert!(!request.stream && request.max_tokens.is_none() && request.sampling == Default::default());
}

#[test]
fn everything_at_once() {
    let body = json!({
        "model": "m", "stream": true, "stream_options": {"include_usage": true, "include_obfuscation": false},
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "developer", "content": [{"type": "text", "text": "Be kind."}]},
            {"role": "user", "name": "Ann", "content": [{"type": "text", "text": "Look"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"}}]},
            {"role": "assistant", "content": null, "refusal": null, "annotations": [], "audio": null,
             "function_call": null, "reasoning_content": "hm",
             "tool_calls": [{"id": "call_1", "type": "function", "index": 0,
                             "function": {"name": "get_weather", "arguments": "{\"city\":\"Oslo\"}"}}]},
            {"role": "tool", "tool_call_id": "call_1", "content": "rain"}
        ],
        "tools": [weather()], "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
        "parallel_tool_calls": false, "response_format": {"type": "json_schema",
            "json_schema": {"name": "s", "schema": {"type": "object"}, "strict": true}},
        "max_completion_tokens": 9, "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.05,
        "repeat_penalty": 1.1, "presence_penalty": -2, "frequency_penalty": 2, "logit_bias": {"50256": -100, "1": 1.5},
        "seed": 42, "n": 2, "stop": ["\n\n", "END"], "stop_token_ids": [7], "logprobs": true, "top_logprobs": 5,
        "reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": false}, "ignore_eos": true,
        "speculative": {"block_size": 4}, "cache_prompt": false, "timings_per_token": true,
        "skip_special_tokens": false, "thinking_budget_tokens": 100,
        "user": "u", "store": true, "metadata": {"a": "b"}, "service_tier": "auto", "prediction": {"type": "content"},
        "modalities": ["text"], "verbosity": "medium", "mirostat": 0, "typical_p": 1.0
    });
    let request: ChatRequest = round_trip(&body);
    assert_eq!(request.stream_options, Some(StreamOptions { include_usage: true }));
    assert_eq!(request.messages.iter().map(|m| m.role).collect::<Vec<_>>(), {
        [Role::System, Role::Developer, Role::User, Role::Assistant, Role::Tool]
    });
    assert_eq!(request.messages[3].tool_calls[0].function.value(), json!({"city": "Oslo"}));
    assert_eq!(request.messages[3].reasoning_content.as_deref(), Some("hm"));
    assert_eq!(request.messages[3].content, None);
    assert_eq!(request.tool_choice, Some(ToolChoice::Function("get_weather".into())));
    assert!(
        matches!(&request.response_format, Some(ResponseFormat::JsonSchema { json_schema }) if json_schema.strict == Some(true))
    );
    assert_eq!(request.max_tokens, Some(9));
    assert_eq!(request.reasoning_effort, Some(ReasoningEffort::Low));
    let s = &request.sampling;
    assert_eq!((s.temperature, s.top_p, s.top_k, s.min_p), (Some(0.5), Some(0.9), Some(40), Some(0.05)));
    assert_eq!((s.repetition_penalty, s.presence_penalty, s.frequency_penalty), (Some(1.1), Some(-2.0), Some(2.0)));
    assert_eq!((&s.logit_bias[..], s.seed), (&[(50256, -100.0), (1, 1.5)][..], Some(42)));
    assert_eq!((&s.stop[..], &s.stop_token_ids[..]), (&["\n\n".to_owned(), "END".to_owned()][..], &[7][..]));
    assert_eq!((s.speculative, s.cache_prompt), (Some(Speculative::Block(4)), Some(false)));
    assert!(s.ignore_eos && s.timings_per_token);
    assert_eq!(request.require_text().unwrap_err().param.as_deref(), Some("messages[2].content[1]"));
}

#[test]
fn null_is_the_same_as_leaving_out() {
    let mut body = hello();
    for limit in limits::ALL {
        if limit.name != "messages" && limit.name != "name" && limit.name != "content" && limit.name != "token id" {
            body[limit.name] = Value::Null;
        }
    }
    for table in [parameters::COMMON, parameters::CHAT] {
        for parameter in table {
            body[parameter.name] = Value::Null;
        }
    }
    for name in ["tools", "tool_choice", "response_format", "stream", "stream_options", "speculative", "grammar"] {
        body[name] = Value::Null;
    }
    assert_eq!(accepted::<ChatRequest>(&body), accepted::<ChatRequest>(&hello()));
}

#[test]
fn empty_content_is_content_and_none_is_none() {
    let say = |message: Value| json!({"messages": [message]});
    round_trip::<ChatRequest>(&say(json!({"role": "user", "content": ""})));
    round_trip::<ChatRequest>(&say(json!({"role": "user", "content": []})));
    for (body, param) in [
        (json!({"messages": []}), "messages"),
        (json!({"messages": null}), "messages"),
        (json!({}), "messages"),
        (json!({"messages": {"role": "user"}}), "messages"),
        (json!({"messages": "Hi"}), "messages"),
        (json!({"messages": ["Hi"]}), "messages[0]"),
        (json!({"messages": [null]}), "messages[0]"),
        (say(json!({"content": "x"})), "messages[0].role"),
        (say(json!({"role": "robot", "content": "x"})), "messages[0].role"),
        (say(json!({"role": "user"})), "messages[0].content"),
        (say(json!({"role": "user", "content": null})), "messages[0].content"),
        (say(json!({"role": "assistant", "content": null})), "messages[0].content"),
        (say(json!({"role": "user", "content": 5})), "messages[0].content"),
        (say(json!({"role": "user", "content": {"type": "text"}})), "messages[0].content"),
        (say(json!({"role": "user", "content": ["x"]})), "messages[0].content[0]"),
        (say(json!({"role": "user", "content": [{"text": "x"}]})), "messages[0].content[0].type"),
        (say(json!({"role": "user", "content": [{"type": "text"}]})), "messages[0].content[0].text"),
        (say(json!({"role": "user", "content": [{"type": "text", "text": 1}]})), "messages[0].content[0].text"),
        (say(json!({"role": "user", "content": [{"type": "text", "text": "", "x": 1}]})), "messages[0].content[0].x"),
        (
            say(json!({"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]})),
            "messages[0].content[0].type",
        ),
        (say(json!({"role": "user", "content": [{"type": "file", "file": {}}]})), "messages[0].content[0].type"),
        (say(json!({"role": "user", "content": [{"type": "image_url"}]})), "messages[0].content[0].image_url"),
        (
            say(json!({"role": "user", "content": [{"type": "image_url", "image_url": {}}]})),
            "messages[0].content[0].image_url.url",
        ),
        (
            say(json!({"role": "user", "content": "x", "tool_calls": [{"id": "a", "function": {"name": "f"}}]})),
            "messages[0].tool_calls",
        ),
        (say(json!({"role": "user", "content": "x", "reasoning_content": "y"})), "messages[0].reasoning_content"),
        (say(json!({"role": "user", "content": "x", "tool_call_id": "y"})), "messages[0].tool_call_id"),
        (say(json!({"role": "user", "content": "x", "mood": "y"})), "messages[0].mood"),
        (
            say(json!({"role": "assistant", "content": "x", "function_call": {"name": "f"}})),
            "messages[0].function_call",
        ),
        (say(json!({"role": "assistant", "content": "x", "audio": {"id": "f"}})), "messages[0].audio"),
        (
            say(json!({"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]})),
            "messages[0].tool_calls[0].id",
        ),
        (
            say(json!({"role": "assistant", "tool_calls": [{"id": "c", "type": "custom"}]})),
            "messages[0].tool_calls[0].type",
        ),
        (say(json!({"role": "assistant", "tool_calls": [{"id": "c"}]})), "messages[0].tool_calls[0].function"),
        (
            say(json!({"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": 1}}]})),
            "messages[0].tool_calls[0].function.arguments",
        ),
        (json!([]), ""),
        (json!("x"), ""),
        (json!(null), ""),
    ] {
        assert_eq!(refused::<ChatRequest>(&body).param.unwrap_or_default(), param, "{body}");
    }
}

#[test]
fn most_tokens() {
    let ask = |value: Value| with(&hello(), "max_tokens", value);
    for (value, most) in [
        (json!(1), 1),
        (json!(11977), 11977),
        (json!(2.0), 2),
        (json!(1u64 << 31), 1 << 31),
        (json!(1u64 << 63), 1 << 63),
        (json!(u64::MAX), u64::MAX),
        (json!(1e30), u64::MAX),
    ] {
        assert_eq!(accepted::<ChatRequest>(&ask(value)).max_tokens, Some(most));
    }
    for value in [json!(-1), json!(0), json!(1.5), json!(-1e30), json!("5"), json!([5]), json!({}), json!(true)] {
        let error = refused::<ChatRequest>(&ask(value));
        assert_eq!(error.param.as_deref(), Some("max_tokens"));
        assert!(error.message.contains("expected an integer of at least 1"), "{error}");
    }
    // llama-server's spelling has its own way to say that there is no limit.
    assert_eq!(accepted::<ChatRequest>(&with(&hello(), "n_predict", json!(-1))).max_tokens, None);
    assert_eq!(accepted::<ChatRequest>(&with(&hello(), "n_predict", json!(3))).max_tokens, Some(3));
    assert_eq!(refused::<ChatRequest>(&with(&hello(), "n_predict", json!(0))).param.as_deref(), Some("n_predict"));
    assert_eq!(refused::<ChatRequest>(&with(&hello(), "n_predict", json!(-2))).param.as_deref(), Some("n_predict"));
}

#[test]
fn numbers_outside_their_range_are_named() {
    for (field, value, message) in [
        ("temperature", json!(-0.1), "temperature: expected a number from 0 to 2, found -0.1"),
        ("temperature", json!(2.1), "temperature: expected a number from 0 to 2, found 2.1"),
        ("temperature", json!("hot"), "temperature: expected a number from 0 to 2, found the string \"hot\""),
        (
            "top_p",
            json!(0),
            "top_p: expected a number above 0, at most 1, found 0; use temperature 0 for the most likely token alone",
        ),
        (
            "top_p",
            json!(1e-60),
            "top_p: expected a number above 0, at most 1, found 1e-60; use temperature 0 for the most likely token alone",
        ),
        ("top_k", json!(-2), "top_k: expected an integer from -1 to 4294967295, found -2; 0 and -1 keep all tokens"),
        ("min_p", json!(1.01), "min_p: expected a number from 0 to 1, found 1.01"),
        (
            "repetition_penalty",
            json!(0),
            "repetition_penalty: expected a number above 0, at most 10, found 0; 1 is off",
        ),
        ("repeat_penalty", json!(false), "repeat_penalty: expected a number above 0, at most 10, found false"),
        ("presence_penalty", json!(2.5), "presence_penalty: expected a number from -2 to 2, found 2.5; 0 is off"),
        ("frequency_penalty", json!(-3), "frequency_penalty: expected a number from -2 to 2, found -3; 0 is off"),
        ("n", json!(0), "n: expected an integer from 1 to 16, found 0; send several requests for more answers"),
        ("n", json!(17), "n: expected an integer from 1 to 16, found 17; send several requests for more answers"),
        ("top_logprobs", json!(21), "top_logprobs: expected an integer from 0 to 20, found 21"),
        ("seed", json!(1.5), "seed: expected an integer from -9223372036854775808 to 18446744073709551615, found 1.5"),
        (
            "stop",
            json!([""]),
            "stop[0]: expected a string of 1 to 1024 bytes, found an empty string; leave it out for no stop string",
        ),
        (
            "stop",
            json!(""),
            "stop: expected a string of 1 to 1024 bytes, found an empty string; leave it out for no stop string",
        ),
        ("stop", json!(["a", 1]), "stop[1]: expected a string of 1 to 1024 bytes, found 1"),
        ("stop", json!({}), "stop: expected a string or an array of strings, found an empty object"),
        ("stop_token_ids", json!([-1]), "stop_token_ids[0]: expected an integer from 0 to 4294967295, found -1"),
        ("logit_bias", json!({"5": 101}), "logit_bias.5: expected a number from -100 to 100, found 101"),
        (
            "logit_bias",
            json!({"the": 1}),
            "logit_bias.the: expected a token id as the field's name, found the string \"the\"",
        ),
        ("logit_bias", json!([[1]]), "logit_bias[0]: expected a pair [token id, bias], found an array of 1"),
        ("logit_bias", json!([[1, 2], [1, 3]]), "logit_bias[1]: expected each token id once, found 1 again"),
        ("logit_bias", json!({"7": 1, "07": 2}), "logit_bias.07: expected each token id once, found 7 again"),
        ("logit_bias", json!(1), "logit_bias: expected an object from token ids to biases, found 1"),
        (
            "speculative",
            json!({"block_size": 0}),
            "speculative.block_size: expected an integer from 1 to 16, found 0; 1 decodes without drafts",
        ),
        (
            "speculative",
            json!({"block_size": 17}),
            "speculative.block_size: expected an integer from 1 to 16, found 17; 1 decodes without drafts",
        ),
        (
            "speculative",
            json!({"width": 1}),
            "speculative.width: expected a known parameter, found one that this server does not know (1)",
        ),
        (
            "speculative",
            json!("fast"),
            "speculative: expected {\"block_size\": K}, true, false, \"auto\", \"on\" or \"off\", found the string \"fast\"",
        ),
        (
            "reasoning_effort",
            json!("huge"),
            "reasoning_effort: expected \"none\", \"minimal\", \"low\", \"medium\", \"high\", \"xhigh\" or \"max\", found the string \"huge\"",
        ),
        ("stream", json!("yes"), "stream: expected true or false, found the string \"yes\""),
        ("model", json!(5), "model: expected a string, found 5"),
        ("grammar", json!({}), "grammar: expected a string, found an empty object"),
        ("chat_template_kwargs", json!([]), "chat_template_kwargs: expected an object, found an empty array"),
    ] {
        let error = refused::<ChatRequest>(&with(&with(&hello(), "logprobs", json!(true)), field, value));
        assert_eq!(error.message, message);
    }
    let many = refused::<ChatRequest>(&with(&hello(), "stop", json!(vec!["x"; 17])));
    assert_eq!(many.message, "stop: expected at most 16 items, found 17 items");
}

#[test]
fn edges_are_accepted() {
    for (field, value) in [
        ("temperature", json!(0)),
        ("temperature", json!(2)),
        ("top_p", json!(1)),
        ("top_k", json!(-1)),
        ("seed", json!(u64::MAX)),
        ("seed", json!(i64::MIN)),
        ("stop", json!([])),
        ("logit_bias", json!({})),
        ("logit_bias", json!([[5, false], [6, 1]])),
        ("speculative", json!({"block_size": 16})),
        ("tools", json!([])),
        ("tool_choice", json!("none")),
        ("n", json!(16)),
    ] {
        round_trip::<ChatRequest>(&with(&hello(), field, value));
    }
    let seed = |value: Value| accepted::<ChatRequest>(&with(&hello(), "seed", value)).sampling.seed;
    assert_eq!((seed(json!(-1)), seed(json!(0)), seed(json!(-2))), (None, Some(0), Some(u64::MAX - 1)));
    let bias = accepted::<ChatRequest>(&with(&hello(), "logit_bias", json!([[5, false]]))).sampling.logit_bias;
    assert_eq!(bias, [(5, -100.0)]);
}

#[test]
fn speculation_in_all_spellings() {
    for (value, meaning) in [
        (json!(false), Speculative::Off),
        (json!("off"), Speculative::Off),
        (json!(true), Speculative::Auto),
        (json!("on"), Speculative::Auto),
        (json!("auto"), Speculative::Auto),
        (json!({}), Speculative::Auto),
        (json!({"block_size": null}), Speculative::Auto),
        (json!({"block_size": 1}), Speculative::Block(1)),
    ] {
        let request: ChatRequest = round_trip(&with(&hello(), "speculative", value));
        assert_eq!(request.sampling.speculative, Some(meaning));
    }
}

#[test]
fn parameters_that_contradict_each_other() {
    let body = |fields: Value| {
        let mut body = hello();
        for (name, value) in fields.as_object().expect("an object") {
            body[name] = value.clone();
        }
        body
    };
    for (fields, param) in [
        (json!({"max_tokens": 1, "max_completion_tokens": 2}), "max_completion_tokens"),
        (json!({"max_tokens": 1, "n_predict": 2}), "n_predict"),
        (json!({"repetition_penalty": 1.1, "repeat_penalty": 1.2}), "repeat_penalty"),
        (json!({"top_logprobs": 2}), "top_logprobs"),
        (json!({"stream_options": {"include_usage": true}}), "stream_options"),
        (json!({"grammar": "start: /a/", "response_format": {"type": "json_object"}}), "grammar"),
        (json!({"json_schema": {}, "response_format": {"type": "json_object"}}), "json_schema"),
        (json!({"json_schema": {}, "grammar": "start: /a/"}), "grammar"),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"tool_choice": {"type": "function", "function": {"name": "f"}}, "tools": [weather()]}), "tool_choice"),
        (json!({"tool_choice": allowed("required", "f"), "tools": [weather()]}), "tool_choice"),
    ] {
        let error = refused::<ChatRequest>(&body(fields));
        assert_eq!((error.param.as_deref(), error.code), (Some(param), Some("conflicting_parameters")), "{error}");
    }
    // The same value twice, or a description that describes nothing, is no contradiction.
    for fields in [
        json!({"max_tokens": 1, "max_completion_tokens": 1, "n_predict": 1}),
        json!({"repetition_penalty": 1.1, "repeat_penalty": 1.1}),
        json!({"grammar": "start: /a/", "response_format": {"type": "text"}}),
        json!({"grammar": "", "json_schema": {"type": "object"}}),
        json!({"top_logprobs": 0}),
    ] {
        round_trip::<ChatRequest>(&body(fields));
    }
}

#[test]
fn tools_and_formats_that_are_none() {
    let tool = |function: Value| with(&hello(), "tools", json!([{"type": "function", "function": function}]));
    let format = |format: Value| with(&hello(), "response_format", format);
    for (body, param) in [
        (with(&hello(), "tools", json!({})), "tools"),
        (with(&hello(), "tools", json!([{"type": "web_search"}])), "tools[0].type"),
        (with(&hello(), "tools", json!([{"function": {"name": "f"}}])), "tools[0].type"),
        (with(&hello(), "tools", json!([weather(), weather()])), "tools"),
        (tool(json!({})), "tools[0].function.name"),
        (tool(json!({"name": ""})), "tools[0].function.name"),
        (tool(json!({"name": "a b"})), "tools[0].function.name"),
        (tool(json!({"name": "f", "parameters": "{}"})), "tools[0].function.parameters"),
        (tool(json!({"name": "f", "strict": 1})), "tools[0].function.strict"),
        (tool(json!({"name": "f", "extra": 1})), "tools[0].function.extra"),
        (with(&hello(), "tool_choice", json!("any")), "tool_choice"),
        (with(&hello(), "tool_choice", json!({"type": "custom"})), "tool_choice.type"),
        (with(&hello(), "tool_choice", json!({"type": "allowed_tools"})), "tool_choice.allowed_tools"),
        (
            with(&hello(), "tool_choice", json!({"type": "allowed_tools", "mode": "any", "tools": []})),
            "tool_choice.mode",
        ),
        (
            with(&hello(), "tool_choice", json!({"type": "allowed_tools", "mode": "auto", "tools": []})),
            "tool_choice.tools",
        ),
        (with(&hello(), "tool_choice", json!({"type": "function"})), "tool_choice.name"),
        (format(json!("json")), "response_format"),
        (format(json!({})), "response_format.type"),
        (format(json!({"type": "xml"})), "response_format.type"),
        (format(json!({"type": "json_schema"})), "response_format.json_schema"),
        (format(json!({"type": "json_schema", "json_schema": {"name": "x"}})), "response_format.json_schema.schema"),
        (format(json!({"type": "json_schema", "json_schema": {"schema": []}})), "response_format.json_schema.schema"),
        (
            format(json!({"type": "json_schema", "json_schema": {"schema": {"type": 7}}})),
            "response_format.json_schema.schema.type",
        ),
        (format(json!({"type": "json_object", "schema": {"type": 7}})), "response_format.schema.type"),
        (with(&hello(), "json_schema", json!({"type": 7})), "json_schema.type"),
    ] {
        assert_eq!(refused::<ChatRequest>(&body).param.as_deref(), Some(param), "{body}");
    }
}

#[test]
fn fields_that_nobody_knows_are_refused_by_name() {
    let error = refused::<ChatRequest>(&with(&hello(), "max_token", json!(5)));
    assert_eq!((error.param.as_deref(), error.code), (Some("max_token"), Some("unknown_parameter")));
    for field in ["functions", "audio", "samplers", "enable_thinking", "web_search_options", "prompt", "guided_regex"] {
        let error = refused::<ChatRequest>(&with(&hello(), field, json!("x")));
        assert_eq!((error.param.as_deref(), error.code), (Some(field), Some("unsupported_parameter")));
    }
    for (field, value) in [("mirostat", json!(2)), ("typical_p", json!(0.9)), ("modalities", json!(["text", "audio"]))]
    {
        let error = refused::<ChatRequest>(&with(&hello(), field, value));
        assert_eq!((error.param.as_deref(), error.code), (Some(field), Some("unsupported_parameter")));
    }
    // A name from outside is shown shortened and without control characters.
    let long = "x\n\u{1b}[31m".repeat(1000);
    let error = refused::<ChatRequest>(&with(&hello(), &long, json!(1)));
    assert!(error.message.len() < 300 && !error.message.contains(['\n', '\u{1b}']), "{error}");
}

#[test]
fn every_rule_of_the_tables_holds() {
    for parameter in parameters::COMMON.iter().chain(parameters::CHAT) {
        let odd = with(&hello(), parameter.name, json!("no such value"));
        match parameter.rule {
            parameters::Rule::Harmless => {
                assert_eq!(accepted::<ChatRequest>(&odd), accepted::<ChatRequest>(&hello()), "{}", parameter.name);
            }
            parameters::Rule::Refused(why) => assert!(refused::<ChatRequest>(&odd).message.contains(why)),
            parameters::Rule::Only(values, why) => {
                assert!(refused::<ChatRequest>(&odd).message.contains(why));
                for value in values {
                    let body = with(&hello(), parameter.name, serde_json::from_str(value).expect("JSON"));
                    assert_eq!(accepted::<ChatRequest>(&body), accepted::<ChatRequest>(&hello()), "{}", parameter.name);
                }
            }
        }
    }
}

#[test]
fn content_as_text() {
    let parts =
        Content::Parts(vec![ContentPart::Text { text: "a".into() }, ContentPart::Refusal { refusal: "b".into() }]);
    assert_eq!(parts.text("\n"), "a\nb");
    assert_eq!(Content::Text("x".into()).text("\n"), "x");
}

fn allowed(mode: &str, name: &str) -> Value {
    let tool = json!({"type": "function", "function": {"name": name}});
    json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [tool]}})
}

#[test]
fn some_of_the_tools_may_be_allowed() {
    for (mode, required) in [("auto", false), ("required", true)] {
        let body = with(&with(&hello(), "tools", json!([weather()])), "tool_choice", allowed(mode, "get_weather"));
        let request: ChatRequest = round_trip(&body);
        assert_eq!(request.tool_choice, Some(ToolChoice::Allowed { required, names: vec!["get_weather".into()] }));
        assert_eq!(serde_json::to_value(&request).expect("JSON")["tool_choice"], body["tool_choice"]);
        let tool = json!({"type": "function", "name": "get_weather"});
        let body = json!({"input": "Hi", "tools": [tool], "tool_choice": {"type": "allowed_tools", "mode": mode, "tools": [tool]}});
        let request: ResponsesRequest = round_trip(&body);
        assert_eq!(
            request.to_chat().tool_choice,
            Some(ToolChoice::Allowed { required, names: vec!["get_weather".into()] })
        );
        assert_eq!(serde_json::to_value(&request).expect("JSON")["tool_choice"], body["tool_choice"]);
    }
}
