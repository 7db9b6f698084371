//! Answers of each family, one by one: what is thought, said and called.

#[path = "support/answers.rs"]
mod answers;

use answers::{cut, parse, tools};
use mlxcel_text::parse::{
    Answer, Delta, MAX_DEPTH, MAX_NAME, ParserKind, ParserOptions, ReasoningFormat, ToolFormat, merge,
};

const GEMMA: ParserKind = ParserKind::GEMMA4;
const QWEN: ParserKind = ParserKind::QWEN;

/// An answer on one line: `thought | said | name(arguments) name(arguments)`.
fn show(answer: &Answer) -> String {
    let calls: Vec<String> =
        answer.tool_calls.iter().map(|call| format!("{}({})", call.name, call.arguments)).collect();
    format!("{} | {} | {}", answer.reasoning, answer.content, calls.join(" "))
}

fn read_with(kind: ParserKind, options: ParserOptions<'_>, text: &str) -> String {
    let whole = merge(parse(kind, options, &[text]));
    for size in [1, 2, 3, 8] {
        assert_eq!(merge(parse(kind, options, &cut(text, &[size]))), whole, "{text:?} in pieces of {size}");
    }
    show(&Answer::collect(whole))
}

fn read(kind: ParserKind, text: &str) -> String {
    let tools = tools();
    read_with(kind, ParserOptions { tools: &tools, ..ParserOptions::default() }, text)
}

fn function(body: &str) -> String {
    format!("<tool_call>\n<function=f>\n{body}</function>\n</tool_call>")
}

fn parameter(key: &str, value: &str) -> String {
    read(QWEN, &function(&format!("<parameter={key}>\n{value}\n</parameter>\n")))
}

#[test]
fn text_passes_through() {
    for kind in answers::KINDS {
        for text in ["", "Hello.", "\n\n\nHi\n\n\n", "a < b <think", "1 <tool 2 </tool_call> 3", "😀 <| <channel", "<"]
        {
            assert_eq!(read(kind, text), format!(" | {text} | "), "{kind:?}");
        }
    }
    let call = function("");
    assert_eq!(read(ParserKind::PLAIN, &call), format!(" | {call} | "));
    assert_eq!(read(ParserKind::HERMES, "<think>a</think>b"), " | <think>a</think>b | ");
}

#[test]
fn thoughts() {
    assert_eq!(read(GEMMA, "<|channel>thought\nHm.\n<channel|>Yes."), "Hm. | Yes. | ");
    assert_eq!(read(GEMMA, "<|channel>thought\n<channel|>Yes."), " | Yes. | ");
    assert_eq!(read(GEMMA, "A<|channel>thought\nB<channel|>C<|channel>thought\nD"), "BD | AC | ");
    assert_eq!(read(GEMMA, "<|channel>final\nA<channel|>"), " | <|channel>final\nA<channel|> | ");
    assert_eq!(read(QWEN, "<think>\nHm.\n</think>\n\nYes."), "Hm. | Yes. | ");
    assert_eq!(read(QWEN, "\n <think>\n\n</think>\n\n\nYes."), " | \n \nYes. | ");
    assert_eq!(read(QWEN, "Say <think> and </think>."), " | Say <think> and </think>. | ");
    assert_eq!(read(QWEN, "<think>a</think>b<think>c</think>"), "a | b<think>c</think> | ");
    assert_eq!(read(QWEN, "<think>\nnever ends\n</thin"), "never ends\n</thin |  | ");
    // A call inside thoughts is a thought: it may be a plan, and the call itself follows.
    let call = function("");
    assert_eq!(read(QWEN, &format!("<think>{call}</think>{call}")), format!("{call} |  | f({{}})"));
}

#[test]
fn a_prompt_may_have_opened_the_block() {
    let open = ParserOptions { thinking_open: true, ..ParserOptions::default() };
    assert_eq!(read_with(QWEN, open, "Hm.\n</think>\n\nYes."), "Hm. | Yes. | ");
    assert_eq!(read_with(QWEN, open, "\n</think>\n\nYes."), " | Yes. | ");
    assert_eq!(read_with(QWEN, open, "Hm."), "Hm. |  | ");
    assert_eq!(read_with(GEMMA, open, "Hm.<channel|>Yes."), "Hm. | Yes. | ");
    assert_eq!(read_with(ParserKind::PLAIN, open, "Hm.</think>"), " | Hm.</think> | ");
    assert!(QWEN.thinking_open("<|im_start|>assistant\n<think>\n"));
    assert!(!QWEN.thinking_open("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
    assert!(!QWEN.thinking_open("Say <think> twice"));
    assert!(GEMMA.thinking_open("<|turn>model\n<|channel>thought\n"));
    assert!(!GEMMA.thinking_open("<|turn>model\n<|channel>thought\n<channel|>"));
    assert!(!ParserKind::PLAIN.thinking_open("<think>\n"));
}

#[test]
fn thoughts_and_calls_may_be_left_where_they_are() {
    let text = format!("<think>\nHm. {0}\n</think>\n\nYes.\n\n{0}", function(""));
    let off = ParserOptions { parse_reasoning: false, ..ParserOptions::default() };
    assert_eq!(read_with(QWEN, off, &text), format!(" | <think>\nHm. {}\n</think>\n\nYes. | f({{}})", function("")));
    let off = ParserOptions { parse_tools: false, ..ParserOptions::default() };
    assert_eq!(read_with(QWEN, off, &text), format!("Hm. {0} | Yes.\n\n{0} | ", function("")));
    let off = ParserOptions { parse_tools: false, parse_reasoning: false, ..ParserOptions::default() };
    assert_eq!(read_with(QWEN, off, &text), format!(" | {text} | "));
}

#[test]
fn calls_of_gemma_4() {
    let call = |body: &str| read(GEMMA, &format!("<|tool_call>call:{body}<tool_call|>"));
    assert_eq!(call("now{}"), " |  | now({})");
    assert_eq!(
        call(
            "f{s:<|\"|>a \"b\" \\ }],{:\n<|tool_call> <|\"|>,n:-1.50e3,b:true,z:null,o:{p:{q:[1,[],{}]}},l:[<|\"|><|\"|>]}"
        ),
        " |  | f({\"s\":\"a \\\"b\\\" \\\\ }],{:\\n<|tool_call> \",\"n\":-1.50e3,\"b\":true,\"z\":null,\
         \"o\":{\"p\":{\"q\":[1,[],{}]}},\"l\":[\"\"]})"
    );
    // Forgiven: white space, quoted keys, JSON strings, bare words, numbers that JSON does not have.
    assert_eq!(
        call("f{ a : 1 , \"b\": \"x\\n\", <|\"|>c<|\"|>:celsius, d: NaN }"),
        " |  | f({\"a\":1,\"b\":\"x\\n\",\"c\":\"celsius\",\"d\":\"NaN\"})"
    );
    assert_eq!(
        call("f{t:12:30 o'clock,u:https://x.y/?z=1,n:1e999}"),
        " |  | f({\"t\":\"12:30 o'clock\",\"u\":\"https://x.y/?z=1\",\"n\":\"1e999\"})"
    );
    // Marks that are almost one.
    assert_eq!(call("f{s:<|\"|><|\"<|<<|\"|\"<|\"|>}"), " |  | f({\"s\":\"<|\\\"<|<<|\\\"|\\\"\"})");
    for broken in
        ["f", "{}", "f{a}", "f{a:}", "f{a:1,}", "f{,}", "f{a:1]", "f{a:[1}", "f{:1}", "f{a:1", "f{a:<|\"|>x}", "f f{}"]
    {
        let text = format!("<|tool_call>call:{broken}<tool_call|>");
        assert_eq!(call(broken), format!(" | {text} | "), "{broken}");
    }
    assert_eq!(read(GEMMA, "<|tool_call>f{}<tool_call|>"), " | <|tool_call>f{}<tool_call|> | ");
}

#[test]
fn calls_of_qwen_3_5() {
    assert_eq!(read(QWEN, &function("")), " |  | f({})");
    assert_eq!(
        read(QWEN, "<tool_call><function=new><parameter=a>1</parameter></function></tool_call>"),
        " |  | new({\"a\":1})"
    );
    let two = "<parameter=s>\none\ntwo\n</parameter>\n<parameter=n>\n2\n</parameter>\n";
    assert_eq!(read(QWEN, &function(two)), " |  | f({\"s\":\"one\\ntwo\",\"n\":2})");
    // Exactly one newline on either side belongs to the tags.
    assert_eq!(parameter("s", "\n\n a \n\n"), " |  | f({\"s\":\"\\n\\n a \\n\\n\"})");
    assert_eq!(parameter("s", ""), " |  | f({\"s\":\"\"})");
    assert_eq!(read(QWEN, &function("<parameter=s>\n</parameter>")), " |  | f({\"s\":\"\"})");
    assert_eq!(
        parameter("s", "</parameter <parameter=n> </function>\n</tool_call>"),
        " |  | f({\"s\":\"</parameter <parameter=n> </function>\\n</tool_call>\"})"
    );
    for broken in [
        "<tool_call>\n<function=>\n</function>\n</tool_call>",
        "<tool_call>\n<function=f>\nx</function>\n</tool_call>",
        "<tool_call>\n<function=f>\n<parameter=>\n1\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=f>\n<parameter=s>\n1\n</function>\n</tool_call>",
        "<tool_call>\n<function=f>\n<parameter=s>\n1\n</parameter>\n</tool_call>",
        "<tool_call>\n<parameter=s>\n1\n</parameter>\n</tool_call>",
    ] {
        assert_eq!(read(QWEN, broken), format!(" | {broken} | "));
    }
}

#[test]
fn schemas_type_the_values_of_qwen_3_5() {
    let cases = [
        ("s", "5", "\"5\""),
        ("s", "{\"a\": 1}", "\"{\\\"a\\\": 1}\""),
        ("s", "\"q\"", "\"\\\"q\\\"\""),
        ("n", "1.50", "1.50"),
        ("n", "12345678901234567890123", "12345678901234567890123"),
        ("n", "many", "\"many\""),
        ("n", "1e999", "\"1e999\""),
        ("i", " 7 ", "7"),
        ("b", "True", "true"),
        ("b", "false", "false"),
        ("z", "None", "null"),
        ("l", "[1, \"a b\", {}]", "[1,\"a b\",{}]"),
        ("o", "{\n  \"a\": [1]\n}", "{\"a\":[1]}"),
        ("o", "{broken", "\"{broken\""),
        ("sn", "null", "null"),
        ("sn", "5", "\"5\""),
        ("sn", "\"q\"", "\"\\\"q\\\"\""),
        ("si", "5", "5"),
        ("si", "true", "\"true\""),
        ("e", "1", "\"1\""),
        ("r", "5", "\"5\""),
        ("loop", "5", "5"),
        ("any", "5", "5"),
        ("any", "five", "\"five\""),
        ("any", "\"five\"", "\"five\""),
        ("any", "True", "\"True\""),
        ("unknown", "[1]", "[1]"),
        ("unknown", "a, b", "\"a, b\""),
        ("unknown", "1,", "\"1,\""),
        ("unknown", "1 2", "\"1 2\""),
    ];
    for (key, raw, json) in cases {
        assert_eq!(parameter(key, raw), format!(" |  | f({{\"{key}\":{json}}})"), "{key} {raw}");
        for name in ["g", "h"] {
            let text = format!(
                "<tool_call>\n<function={name}>\n<parameter={key}>\n{raw}\n</parameter>\n</function>\n</tool_call>"
            );
            assert_eq!(read(QWEN, &text), format!(" |  | {name}({{\"{key}\":{json}}})"), "{key} {raw}");
        }
    }
    // Without schemas the same digit is a number.
    assert_eq!(
        read_with(QWEN, ParserOptions::default(), &function("<parameter=s>\n5\n</parameter>\n")),
        " |  | f({\"s\":5})"
    );
}

#[test]
fn calls_as_json() {
    let call = |body: &str| read(QWEN, &format!("<tool_call>\n{body}\n</tool_call>"));
    assert_eq!(
        call(r#"{"name": "f", "arguments": {"a": [1, {"b": "\u00e9\ud83d\ude00\n"}], "c": 1e5}}"#),
        r#" |  | f({"a":[1,{"b":"\u00e9\ud83d\ude00\n"}],"c":1e5})"#
    );
    assert_eq!(call(r#"{"arguments": {"a": 1}, "name": "f"}"#), r#" |  | f({"a":1})"#);
    assert_eq!(call(r#"{"name": "f", "parameters": {"a": 1}, "more": [1, 2], "n": 3}"#), r#" |  | f({"a":1})"#);
    assert_eq!(call(r#"{"n": 3, "name": "f"}"#), " |  | f({})");
    assert_eq!(call(r#"{"name": "f", "arguments": null}"#), " |  | f({})");
    assert_eq!(call(r#"{"name": "f", "arguments": "{\"a\": 1}"}"#), r#" |  | f({"a":1})"#);
    assert_eq!(call("{\"name\": \"f\", \"arguments\": {\"a\": \"x\ny\"}}"), r#" |  | f({"a":"x\ny"})"#);
    assert_eq!(call(r#"{"name": "f", "arguments": {"a": "</tool_call>"}}"#), r#" |  | f({"a":"</tool_call>"})"#);
    for broken in [
        "{}",
        "[]",
        "glob",
        r#"{"name": "f", "arguments": {"a": 1,}}"#,
        r#"{"name": "f", "arguments": {"a": 01}}"#,
        r#"{"name": "f", "arguments": {"a": 1e999}}"#,
        r#"{"name": "f", "arguments": {'a': 1}}"#,
        r#"{"name": "f", "arguments": {"a": tru}}"#,
        r#"{"name": "f", "arguments": {"a": "\x"}}"#,
        r#"{"name": "f", "arguments": {"a": "\ud83d"}}"#,
        r#"{"name": "f", "arguments": {"a": "\ude00"}}"#,
        r#"{"name": "f", "arguments": {"a" 1}}"#,
        r#"{"name": "f", "arguments": [1]}"#,
        r#"{"name": "f", "arguments": "no object"}"#,
        r#"{"name": "f", "arguments": {}, "arguments": {}}"#,
        r#"{"name": "f", "arguments": {"a": 1}"#,
        r#"{"name": "", "arguments": {}}"#,
        r#"{"name": "a b", "arguments": {}}"#,
        r#"{"name": 1, "arguments": {}}"#,
        r#"{"arguments": {}}"#,
    ] {
        assert_eq!(call(broken), format!(" | <tool_call>\n{broken}\n</tool_call> | "), "{broken}");
    }
    let text = r#"<tool_call>{"id": "c1", "name": "f", "arguments": {}}</tool_call>"#;
    let answer = Answer::collect(parse(QWEN, ParserOptions::default(), &[text]));
    assert_eq!(answer.tool_calls[0].id.as_deref(), Some("c1"));
}

/// XML in the style of another family, and a call in the middle of nowhere: the server lives, and the user sees it.
#[test]
fn calls_of_other_families_are_text() {
    let text = "<tool_call>glob\n<arg_key>pattern</arg_key>\n<arg_value>*.rs</arg_value>\n</tool_call>";
    assert_eq!(read(QWEN, text), format!(" | {text} | "));
    let text = "<function=f>\n</function>";
    assert_eq!(read(QWEN, text), format!(" | {text} | "));
}

/// One delta that closes call 0 and opens call 1 must not cost call 0 its arguments.
#[test]
fn two_calls_meet_in_one_delta() {
    let gemma = ["<|tool_call>call:f{a:1", "}<tool_call|><|tool_call>call:g{b:", "2}<tool_call|>"];
    let qwen = [
        "<tool_call>\n<function=f>\n<parameter=a>\n1",
        "\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=g>\n<parameter=b>\n2\n",
        "</parameter>\n</function>\n</tool_call>",
    ];
    let json = [
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1",
        "}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {\"b\": ",
        "2}}\n</tool_call>",
    ];
    for (kind, pieces) in [(GEMMA, gemma), (QWEN, qwen), (QWEN, json)] {
        for stream_arguments in [false, true] {
            let options = ParserOptions { stream_arguments, ..ParserOptions::default() };
            let calls = Answer::collect(parse(kind, options, &pieces));
            assert_eq!(show(&calls), " |  | f({\"a\":1}) g({\"b\":2})");
            let text = pieces.concat();
            assert_eq!(read_with(kind, options, &text), " |  | f({\"a\":1}) g({\"b\":2})");
        }
    }
}

#[test]
fn text_around_calls() {
    let f = function("");
    assert_eq!(read(QWEN, &format!("I look.\n\n{f}\n{f}")), " | I look. | f({}) f({})");
    assert_eq!(read(QWEN, &format!("{f} so\n\n\n{f}\n\n\nend")), " |  so\n\nend | f({}) f({})");
    assert_eq!(read(QWEN, "<tool_call>{\"name\": \"f\"}}</tool_call>"), " | }</tool_call> | f({})");
    assert_eq!(read(QWEN, "<tool_call>{\"name\": \"f\"}\n</tool"), " |  | f({})");
    assert_eq!(read(QWEN, "<tool_call>{\"name\": \"f\"}<tool_call>{\"name\": \"g\"}"), " |  | f({}) g({})");
    assert_eq!(read(GEMMA, "A<|tool_call>call:f{}<tool_call|>B"), " | AB | f({})");
    // What spoils a call may begin the next one.
    assert_eq!(read(QWEN, &format!("<tool_call>\n{f}")), " | <tool_call>\n | f({})");
    assert_eq!(read(QWEN, &format!("<tool_call>{{\"name\": {f}")), " | <tool_call>{\"name\":  | f({})");
    assert_eq!(
        read(GEMMA, "<|tool_call>call:f{a:<|tool_call>call:g{}<tool_call|>"),
        " | <|tool_call>call:f{a: | g({})"
    );
}

#[test]
fn a_streamed_call_comes_in_pieces_and_may_break() {
    let tools = tools();
    let options = ParserOptions { tools: &tools, stream_arguments: true, ..ParserOptions::default() };
    let pieces = ["<tool_call>\n<function=f>\n<para", "meter=s>\nab", "c\nd", "</function>"];
    let start = Delta::ToolCallStart { index: 0, id: None, name: "f".to_owned() };
    let more = |text: &str| Delta::ToolCallArguments { index: 0, json_fragment: text.to_owned() };
    let broken = Delta::ToolCallBroken { index: 0, text: pieces.concat() };
    assert_eq!(
        parse(QWEN, options, &pieces),
        [start, more("{"), more("\"s\":\"ab"), more("c\\nd"), more("</function>"), broken]
    );
    // Held back, it is nothing but text, and a call that follows is the first.
    let held = ParserOptions { tools: &tools, ..ParserOptions::default() };
    assert_eq!(parse(QWEN, held, &pieces), [Delta::Content(pieces.concat())]);
    let text = "<tool_call>{\"name\": \"f\", \"arguments\": {]<tool_call>{\"name\": \"g\"}</tool_call>";
    let ends = |options| {
        let mut deltas = parse(QWEN, options, &[text]);
        deltas.retain(|delta| matches!(delta, Delta::ToolCallEnd { .. }));
        deltas
    };
    assert_eq!(ends(held), [Delta::ToolCallEnd { index: 0 }]);
    assert_eq!(ends(options), [Delta::ToolCallEnd { index: 1 }]);
}

#[test]
fn depth_and_names_are_bounded() {
    let deep = |n: usize| format!("<|tool_call>call:f{{a:{}{}}}<tool_call|>", "[".repeat(n), "]".repeat(n));
    assert!(read(GEMMA, &deep(MAX_DEPTH - 1)).ends_with("]})"));
    assert_eq!(read(GEMMA, &deep(MAX_DEPTH)), format!(" | {} | ", deep(MAX_DEPTH)));
    let json = |n: usize| {
        format!(
            "<tool_call>{{\"name\":\"f\",\"arguments\":{}{}}}",
            "{\"a\":".repeat(n),
            "1".to_owned() + &"}".repeat(n)
        )
    };
    assert!(read(QWEN, &json(MAX_DEPTH)).ends_with("}})"));
    assert!(read(QWEN, &json(MAX_DEPTH + 1)).ends_with(" | "));
    // Deeper than a stack could bear, in each place that nests.
    let abyss = 200_000;
    assert!(read_once(GEMMA, &deep(abyss)).ends_with(" | "));
    assert!(read_once(QWEN, &json(abyss)).ends_with(" | "));
    let raw = function(&format!("<parameter=l>\n{}\n</parameter>", "[".repeat(abyss)));
    assert!(read_once(QWEN, &raw).contains("f({\"l\":\"[[["));
    for (name, fits) in [(MAX_NAME, true), (MAX_NAME + 1, false)] {
        let name = "n".repeat(name);
        let texts = [
            (GEMMA, format!("<|tool_call>call:{name}{{}}")),
            (QWEN, format!("<tool_call><function={name}></function>")),
            (QWEN, format!("<tool_call>{{\"name\":\"{name}\"}}")),
            (QWEN, format!("<tool_call><function=f><parameter={name}>1</parameter></function>")),
        ];
        for (kind, text) in texts {
            assert_eq!(read(kind, &text).ends_with(')'), fits, "{text}");
        }
    }
}

fn read_once(kind: ParserKind, text: &str) -> String {
    let tools = tools();
    show(&Answer::collect(parse(kind, ParserOptions { tools: &tools, ..ParserOptions::default() }, &[text])))
}

#[test]
fn formats_are_found_in_templates_and_vocabularies() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let of = |file: &str, tokens: &[&str]| {
        let source = std::fs::read_to_string(root.join(file)).unwrap();
        ParserKind::detect(Some(&source), |token| tokens.contains(&token))
    };
    assert_eq!(of("tests/templates/turns_tools.jinja", &[]), GEMMA);
    assert_eq!(of("tests/templates/think_tools.jinja", &[]), QWEN);
    assert_eq!(of("../../models/qwen3.5-tiny-4bit/chat_template.jinja", &[]), QWEN);
    assert_eq!(of("tests/templates/headers.jinja", &[]), ParserKind::PLAIN);
    let gemma = mlxcel_text::Tokenizer::load(&root.join("../../models/gemma-4-tiny-it-4bit")).unwrap();
    let source = std::fs::read_to_string(root.join("../../models/gemma-4-tiny-it-4bit/chat_template.jinja")).unwrap();
    assert_eq!(ParserKind::detect(Some(&source), |token| gemma.token_to_id(token).is_some()), GEMMA);
    assert_eq!(ParserKind::detect(None, |token| ["<tool_call>", "</tool_call>"].contains(&token)), ParserKind::HERMES);
    assert_eq!(ParserKind::detect(None, |token| token == "<think>").reasoning, ReasoningFormat::Think);
    assert_eq!(ParserKind::detect(None, |token| token == "<|channel>").reasoning, ReasoningFormat::None);
    // The template knows better than the vocabulary.
    assert_eq!(ParserKind::detect(Some("<tool_call>"), |token| token.contains("tool_call|")).tools, ToolFormat::Tagged);
    assert_eq!(ParserKind::detect(None, |_| false), ParserKind::PLAIN);
}
