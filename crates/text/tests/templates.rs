//! Chat templates against Python's Jinja2, set up as transformers sets it up.
//!
//! `tests/templates/expected.json` is written by `make_expected.py` from the templates, conversations and expressions
//! beside it. Where Jinja2 fails we must fail too; the words of the error are ours.

use std::fs;
use std::path::{Path, PathBuf};

use mlxcel_text::{ChatTemplate, RenderRequest, SpecialTokens, TextError};
use serde_json::{Map, Value, json};

fn here() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/templates")
}

fn text(name: &str) -> String {
    fs::read_to_string(here().join(name)).unwrap()
}

fn data(name: &str) -> Value {
    serde_json::from_str(&text(name)).unwrap()
}

fn specials() -> SpecialTokens {
    let mut tokens = SpecialTokens::default();
    tokens.set("bos_token", "<bos>");
    tokens.set("eos_token", "<eos>");
    tokens.set("pad_token", "<pad>");
    tokens
}

fn render(source: &str, request: &RenderRequest<'_>) -> Result<String, TextError> {
    ChatTemplate::from_source("test.jinja", source, specials())?.render(request)
}

fn agrees(got: &Result<String, TextError>, expected: &Value) -> bool {
    match got {
        Ok(text) => expected.get("text").and_then(Value::as_str) == Some(text),
        Err(TextError::TemplateRejected { message, .. }) => {
            expected.get("rejected").and_then(Value::as_str) == Some(message)
        }
        Err(_) => expected.get("error").is_some(),
    }
}

#[test]
fn conversations_render_as_in_jinja2() {
    let (file, expected) = (data("cases.json"), data("expected.json"));
    let cases = file["cases"].as_array().unwrap();
    assert!(cases.len() > 300);
    let mut faults = Vec::new();
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let template = case["template"].as_str().unwrap();
        let path = if template.contains('/') {
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(template)
        } else {
            here().join(template)
        };
        let conversation = &file["conversations"][case["conversation"].as_str().unwrap()];
        let request = RenderRequest {
            messages: conversation.as_array().unwrap(),
            tools: case.get("tools").map(|_| &file["tools"]),
            add_generation_prompt: case.get("add_generation_prompt") == Some(&json!(true)),
            extra: case.get("extra").and_then(Value::as_object).cloned().unwrap_or_default(),
        };
        let got = render(&fs::read_to_string(path).unwrap(), &request);
        let expected = &expected["cases"][name];
        if !agrees(&got, expected) {
            faults.push(format!("{name}\n  got {got:?}\n  not {expected}"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

fn expression(source: &str) -> Result<String, TextError> {
    let context = data("expressions_context.json");
    let request = RenderRequest { extra: context.as_object().unwrap().clone(), ..RenderRequest::default() };
    render(source, &request)
}

fn sources(name: &str) -> Vec<String> {
    let text = text(name);
    let text = text.strip_suffix('\n').unwrap_or(&text);
    text.split("\n----\n").map(str::to_owned).collect()
}

#[test]
fn expressions_print_as_in_jinja2() {
    let expected = data("expected.json");
    let sources = sources("expressions.txt");
    assert!(sources.len() > 120);
    let mut faults = Vec::new();
    for source in sources {
        let got = expression(&source);
        let expected = &expected["expressions"][&source];
        if !agrees(&got, expected) {
            faults.push(format!("{source}\n  got {got:?}\n  not {expected}"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The corners where we knowingly differ, each rare in chat templates: a list that stays true, and the proof that the
/// comparison above can fail.
#[test]
fn known_differences_still_differ() {
    let expected = data("expected.json");
    for source in sources("differs.txt") {
        let got = expression(&source);
        let expected = &expected["expressions"][&source];
        assert!(!expected.is_null() && !agrees(&got, expected), "{source} agrees now: {got:?}");
    }
}

#[test]
fn the_demo_checkpoint_has_a_template() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/gemma-4-tiny-it-4bit");
    let template = ChatTemplate::load(&dir).unwrap().unwrap();
    assert!(template.name().ends_with("chat_template.jinja"));
    assert_eq!(template.warnings(), [""; 0]);
    let prompt = template
        .render(&RenderRequest {
            messages: &[json!({"role": "user", "content": " Hi "})],
            add_generation_prompt: true,
            ..RenderRequest::default()
        })
        .unwrap();
    assert_eq!(prompt, "<bos><|turn>user\nHi<turn|>\n<|turn>model\n");
}

#[test]
fn sources_are_taken_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let tools = json!([{"type": "function"}]);
    let none = json!([]);
    let shown = |tools| {
        let template = ChatTemplate::load(dir.path()).unwrap()?;
        let request = RenderRequest { tools, ..RenderRequest::default() };
        Some(template.render(&request).unwrap())
    };
    assert_eq!(shown(None), None);

    write("tokenizer_config.json", r#"{"chat_template": null}"#);
    assert_eq!(shown(None), None);

    write("tokenizer_config.json", r#"{"bos_token": {"content": "<s>"}, "chat_template": "config {{ bos_token }}"}"#);
    assert_eq!(shown(None).unwrap(), "config <s>");

    write(
        "tokenizer_config.json",
        r#"{"chat_template": [{"name": "tool_use", "template": "T{{ tools | length }}"}, {"name": "rag", "template": "R"},
            {"name": "default", "template": "D{{ tools is none }}"}]}"#,
    );
    assert_eq!(shown(None).unwrap(), "DTrue");
    assert_eq!(shown(Some(&none)).unwrap(), "DTrue");
    assert_eq!(shown(Some(&tools)).unwrap(), "T1");

    write("chat_template.json", r#"{"chat_template": "json"}"#);
    assert_eq!(shown(Some(&tools)).unwrap(), "json");

    write("chat_template.jinja", "jinja\n");
    assert_eq!(shown(Some(&tools)).unwrap(), "jinja");

    write("additional_chat_templates/tool_use.jinja", "more");
    assert_eq!(shown(Some(&tools)).unwrap(), "more");
    assert_eq!(shown(None).unwrap(), "jinja");
}

#[test]
fn broken_sources_name_file_and_field() {
    for (config, word) in [
        (r#"{"chat_template": 5}"#, "a number"),
        (r#"{"chat_template": {"default": "x"}}"#, "an object"),
        (r#"{"chat_template": [{"name": "x", "template": "y"}]}"#, "default"),
        (r#"{"chat_template": ["x"]}"#, "an entry"),
        (r#"{"chat_template": "{% if %}"}"#, "line 1"),
        ("[]", "an array"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("tokenizer_config.json"), config).unwrap();
        let error = ChatTemplate::load(dir.path()).unwrap_err().to_string();
        assert!(error.contains("tokenizer_config.json") && error.contains(word), "{error}");
    }
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("chat_template.jinja"), [b'a', 0xFF]).unwrap();
    let error = ChatTemplate::load(dir.path()).unwrap_err().to_string();
    assert!(error.contains("chat_template.jinja") && error.contains("UTF-8"), "{error}");
}

#[test]
fn faults_name_template_line_and_name() {
    let plain = RenderRequest::default();
    let error = |source: &str| render(source, &plain).unwrap_err();

    for (source, words) in [
        ("a\n{{ x | frob }}", ["test.jinja", "line 2", "frob"]),
        ("a\n\n{{ 1 is frob }}", ["test.jinja", "line 3", "frob"]),
        ("{{ frob(1) }}", ["test.jinja", "line 1", "frob"]),
        ("{{ 'x'.frob() }}", ["test.jinja", "line 1", "frob"]),
        ("{{ frob.a.b }}", ["test.jinja", "line 1", "frob"]),
        ("{% include 'frob' %}", ["test.jinja", "line 1", "frob"]),
        ("\n{{ strftime_now('%Q') }}", ["test.jinja", "line 2", "%Q"]),
    ] {
        let e = error(source);
        assert!(e.is_request_fault());
        let e = e.to_string();
        assert!(words.iter().all(|w| e.contains(w)), "{source}: {e}");
    }

    let syntax = error("ok\n{% for %}");
    assert!(matches!(syntax, TextError::TemplateSyntax { line: 2, .. }), "{syntax}");

    let no = error("{% macro m(x) %}\n{{ raise_exception('No ' ~ x) }}{% endmacro %}{{ m('cats') }}");
    let TextError::TemplateRejected { message, .. } = &no else {
        panic!("{no}");
    };
    assert_eq!(message, "No cats");

    let warned = ChatTemplate::from_source("t.jinja", "a\n{% if x %}{{ x | frob }}{% endif %}", specials()).unwrap();
    assert_eq!(warned.warnings().len(), 1);
    assert!(warned.warnings()[0].contains("t.jinja, line 2") && warned.warnings()[0].contains("`frob`"));
    assert_eq!(warned.render(&plain).unwrap(), "a\n");
}

#[test]
fn the_conversation_is_not_replaced_by_extra_variables() {
    let mut extra = Map::new();
    extra.insert("messages".into(), json!(["x"]));
    extra.insert("bos_token".into(), json!("B"));
    let request = RenderRequest { extra, ..RenderRequest::default() };
    assert_eq!(render("{{ messages | length }}{{ bos_token }}", &request).unwrap(), "0B");
}

#[test]
fn hostile_templates_are_stopped() {
    let plain = RenderRequest::default();
    for source in [
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
        "{% set ns = namespace(x='aaaaaaaaaa') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{{ 'x' * 99999999999 }}",
        "{{ 'x'.ljust(99999999999) }}",
        "{{ range(99999999999) | list }}",
        "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
        "{% set ns = namespace(x=[]) %}{% for i in range(300) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x | tojson }}",
        "{{ {'a': [1]} | tojson(indent='x' * 1000000) }}{{ '(' * 200 }}{{ 1 / 0 }}",
    ] {
        assert!(render(source, &plain).is_err(), "{source}");
    }
    let deep = format!("{{{{ {}1{} }}}}", "(".repeat(100_000), ")".repeat(100_000));
    assert!(render(&deep, &plain).is_err());
    // Still in order afterwards.
    assert_eq!(render("{{ 1 + 1 }}", &plain).unwrap(), "2");
}

#[test]
fn a_long_conversation_stays_within_the_budget() {
    let file = data("cases.json");
    let message = |i: usize| {
        let role = if i.is_multiple_of(2) { "user" } else { "assistant" };
        json!({"role": role, "content": "word ".repeat(200)})
    };
    let messages: Vec<Value> = (0..2_000).map(message).collect();
    for template in ["chatml.jinja", "think_tools.jinja", "turns_tools.jinja", "headers.jinja", "inst.jinja"] {
        let request = RenderRequest {
            messages: &messages,
            tools: Some(&file["tools"]),
            add_generation_prompt: true,
            extra: Map::new(),
        };
        let prompt = render(&text(template), &request).unwrap();
        assert!(prompt.len() > 1_900_000, "{template}");
    }
}
