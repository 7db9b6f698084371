//! Forced calls, and constraints behind thoughts, on scripted models and drafters: every answer that comes to its end is a whole call
//! as the parser reads it, and is the same at any width with any drafts.

mod common;

use common::drafts::{Known, Plan};
use common::scripted::{Row, SMALL, Scripted, hash_row};
use common::{Answer, Driver, alone, tokenizer};
use mlxcel_engine::grammar::{Constraint, Fault, Grammar, GrammarFactory};
use mlxcel_engine::sample::SamplingParams;
use mlxcel_engine::{Engine, EngineOptions, FinishReason, Request, Speculation};
use mlxcel_model::Model;
use mlxcel_text::parse::{
    self, CallGrammar, CallStyle, Callee, Parser, ParserKind, ParserOptions, ReasoningFormat, ToolFormat, call_grammar,
};
use serde_json::{Value, json};

const STYLES: [CallStyle; 3] = [CallStyle::Gemma4, CallStyle::Function, CallStyle::Hermes];

fn kind(style: CallStyle) -> ParserKind {
    let tools = if style == CallStyle::Gemma4 { ToolFormat::Gemma4 } else { ToolFormat::Tagged };
    ParserKind { reasoning: ReasoningFormat::Channel, tools }
}

fn weather() -> Value {
    json!({
        "type": "object",
        "properties": {
            "unit": { "enum": ["C", "F"] },
            "city": { "type": "string", "minLength": 1, "maxLength": 4 },
            "days": { "type": "integer", "minimum": 1, "maximum": 9 },
            "near": { "type": "array", "items": { "$ref": "#/$defs/place" }, "maxItems": 1 },
            "wind": { "type": "boolean" },
        },
        "required": ["unit", "city", "wind"],
        "$defs": { "place": { "type": "object", "properties": { "name": { "const": "x" } }, "required": ["name"] } },
    })
}

fn tools() -> Vec<Value> {
    let function = json!({ "name": "weather", "parameters": weather() });
    let none = json!({ "name": "now" });
    vec![json!({ "type": "function", "function": function }), json!({ "type": "function", "function": none })]
}

fn factory() -> GrammarFactory {
    GrammarFactory::new(&tokenizer()).unwrap_or_else(|e| panic!("{e}"))
}

fn grammar(style: CallStyle, functions: &[Callee<'_>], several: bool) -> Grammar {
    let tokenizer = tokenizer();
    let special = |marker: &str| tokenizer.token_to_id(marker).filter(|id| tokenizer.is_special(*id));
    let CallGrammar { lark, schemas } =
        call_grammar(style, functions, several, special).unwrap_or_else(|e| panic!("{e}"));
    Grammar::Calls { lark, schemas }
}

fn forced(style: CallStyle, several: bool) -> Constraint {
    let schema = weather();
    let functions = [Callee { name: "weather", parameters: Some(&schema) }, Callee { name: "now", parameters: None }];
    factory().compile(&grammar(style, &functions, several)).unwrap_or_else(|e| panic!("{e}"))
}

fn read(style: CallStyle, text: &str, thinking: bool) -> parse::Answer {
    let tools = tools();
    let options = ParserOptions { tools: &tools, thinking_open: thinking, ..ParserOptions::default() };
    let mut parser = Parser::new(kind(style), options);
    let mut deltas = parser.push(text);
    deltas.extend(parser.finish());
    parse::Answer::collect(deltas)
}

/// What is wrong with an answer that had to be calls.
fn fault(style: CallStyle, answer: &Answer, thinking: bool) -> Option<String> {
    if answer.reason == FinishReason::Length {
        return None;
    }
    let read = read(style, &answer.text, thinking);
    let whole = |call: &parse::ToolCall| {
        let arguments: Value = serde_json::from_str(&call.arguments).unwrap_or_default();
        match call.name.as_str() {
            "now" => arguments == json!({}),
            "weather" => {
                let city = arguments["city"].as_str().map(|city| city.chars().count());
                let days = arguments.get("days").is_none_or(|days| days.as_u64().is_some_and(|n| (1..10).contains(&n)));
                let unit = arguments["unit"] == "C" || arguments["unit"] == "F";
                let near =
                    arguments.get("near").is_none_or(|near| *near == json!([]) || *near == json!([{ "name": "x" }]));
                city.is_some_and(|n| (1..5).contains(&n)) && days && unit && near && arguments["wind"].is_boolean()
            }
            _ => false,
        }
    };
    let sound = read.content.is_empty() && !read.tool_calls.is_empty() && read.tool_calls.iter().all(whole);
    (!sound).then(|| format!("{:?} is read as {read:?}", answer.text))
}

fn model(recurrent: bool) -> Box<dyn Model> {
    let script = |seen: &[u32]| Row::Logits(hash_row(seen));
    if recurrent { Scripted::recurrent(SMALL, script) } else { Scripted::model(SMALL, script) }
}

fn id(token: &str) -> u32 {
    tokenizer().token_to_id(token).unwrap_or_else(|| panic!("no token {token}"))
}

struct Case {
    style: CallStyle,
    /// Whether the prompt opened thoughts.
    open: bool,
    request: Request,
}

/// All styles, with thoughts open, begun by the model, and none.
fn cases() -> Vec<Case> {
    let factory = factory();
    // Spelled in bytes: the small vocabulary has no words.
    let bytes = b"thought\n".iter().map(|byte| id(&format!("<0x{byte:02X}>")));
    let opener: Vec<u32> = [id("<|channel>")].into_iter().chain(bytes).collect();
    let mut cases = Vec::new();
    for (i, style) in (0_u32..).zip(STYLES) {
        for (j, thoughts) in [None, Some(true), Some(false)].into_iter().enumerate() {
            for seed in 0..3 {
                let own = forced(style, seed == 0);
                let constraint = match thoughts {
                    None => own,
                    Some(open) => {
                        own.after(factory.thoughts(open, if open { Vec::new() } else { opener.clone() }, "<channel|>"))
                    }
                };
                // Thoughts of random tokens end soon, and begin often.
                let logit_bias = vec![(id("<channel|>"), 3.0), (id("<|channel>"), 3.0)];
                let sampling = SamplingParams {
                    temperature: [0.0, 0.7, 1.2][seed as usize],
                    seed,
                    logit_bias,
                    logprobs: Some(1),
                    ..SamplingParams::default()
                };
                let prompt = vec![2, 420 + i, 430 + j as u32, 440 + seed as u32];
                let request = Request {
                    prompt,
                    sampling,
                    max_tokens: Some(160),
                    show_special: true,
                    constraint: Some(constraint),
                    ..Request::default()
                };
                cases.push(Case { style, open: thoughts == Some(true), request });
            }
        }
    }
    cases
}

fn fast(truths: Vec<Vec<u32>>, plan: Plan, k: usize, b: usize, recurrent: bool) -> Driver {
    let speculation = Speculation { block_size: Some(k), calibrate: 0, ..Speculation::default() };
    let options = EngineOptions { parallel: b, reuse: false, context: Some(512), ..EngineOptions::default() };
    let drafter = Known::boxed(truths, plan, SMALL);
    let engine = Engine::with_drafter(model(recurrent), tokenizer(), options, drafter, speculation);
    Driver::with(engine.unwrap_or_else(|e| panic!("{e}")))
}

fn truths(cases: &[Case], want: &[Answer]) -> Vec<Vec<u32>> {
    cases.iter().zip(want).map(|(case, answer)| [case.request.prompt.clone(), answer.tokens.clone()].concat()).collect()
}

#[test]
fn calls_are_whole_and_the_same_with_any_drafts() {
    let cases = cases();
    for recurrent in [false, true] {
        let want: Vec<Answer> = cases.iter().map(|case| alone(model(recurrent), case.request.clone())).collect();
        for (case, answer) in cases.iter().zip(&want) {
            assert_eq!(fault(case.style, answer, case.open), None);
        }
        let whole = want.iter().filter(|answer| answer.reason != FinishReason::Length).count();
        let thought = want.iter().filter(|answer| answer.text.contains("<channel|>")).count();
        println!("{whole} of {} calls are whole, {thought} behind thoughts", want.len());
        assert!(whole * 2 > want.len() && thought > want.len() / 4, "{whole} whole, {thought} with thoughts");
        let truths = truths(&cases, &want);
        for (plan, k, b) in [
            (Plan::Oracle, 2, 1),
            (Plan::Oracle, 8, 4),
            (Plan::Oracle, 16, 4),
            (Plan::Wrong, 4, 4),
            (Plan::RightThenWrong(2), 8, 1),
            (Plan::Wild(1), 4, 4),
            (Plan::FailAfter(9), 4, 4),
        ] {
            let mut driver = fast(truths.clone(), plan.clone(), k, b, recurrent);
            let ids: Vec<_> = cases.iter().map(|case| driver.submit(case.request.clone())).collect();
            driver.run();
            for (i, id) in ids.iter().enumerate() {
                assert_eq!(driver.done[id].answer, want[i], "{plan:?}, K={k}, B={b}, {:?}", cases[i].style);
            }
            let totals = driver.engine.speculator().expect("a drafter").totals();
            if matches!(plan, Plan::Oracle) {
                assert_eq!(totals.acceptance_rate(), Some(1.0), "an oracle is always right");
            }
        }
    }
}

/// The twin: constraints that are not applied, and guides that follow drafts, are seen.
#[test]
fn faults_are_seen() {
    let cases = cases();
    let want: Vec<Answer> = cases.iter().map(|case| alone(model(false), case.request.clone())).collect();
    for found in [Fault::NotApplied, Fault::MovedByDrafts] {
        let mut driver = fast(truths(&cases, &want), Plan::RightThenWrong(2), 4, 1, false);
        let (mut broken, mut differ) = (0, 0);
        for (case, want) in cases.iter().zip(&want) {
            let constraint = case.request.constraint.as_ref().map(|own| own.with_fault(found));
            let answer = driver.ask(Request { constraint, ..case.request.clone() }).answer;
            broken += usize::from(fault(case.style, &answer, case.open).is_some());
            differ += usize::from(answer != *want);
        }
        println!("{found:?}: {broken} broken, {differ} differ");
        assert!(differ > cases.len() / 2, "{found:?}: {differ} differ");
        assert!(found != Fault::NotApplied || broken > 0, "{found:?}: {broken} broken");
    }
}

/// How far a text gets, in characters, said token by token as the tokenizer cuts it, and whether it may end there.
fn reach(constraint: &Constraint, text: &str) -> (usize, usize) {
    let tokens = tokenizer().encode_plain(text).unwrap_or_else(|e| panic!("{e}"));
    (constraint.allows(&tokens), tokens.len())
}

#[test]
fn the_templates_calls_are_in_the_grammar() {
    let cases: [(CallStyle, &[&str], &[&str]); 3] = [
        (
            CallStyle::Gemma4,
            &[
                "<|tool_call>call:weather{city:<|\"|>Ulm<|\"|>,unit:<|\"|>C<|\"|>,wind:true}<tool_call|>",
                "<|tool_call>call:weather{city:<|\"|>Ulm<|\"|>,days:3,near:[{name:<|\"|>x<|\"|>}],unit:<|\"|>F<|\"|>,wind:false}<tool_call|>",
                "<|tool_call>call:now{}<tool_call|><|tool_call>call:now{}<tool_call|>",
            ],
            &[
                "<|tool_call>call:weather{city:<|\"|>Ulm<|\"|>,wind:true}<tool_call|>",
                "<|tool_call>call:weather{city:<|\"|>Zurich<|\"|>,unit:<|\"|>C<|\"|>,wind:true}<tool_call|>",
                "<|tool_call>call:other{}<tool_call|>",
                "I'd say <|tool_call>call:now{}<tool_call|>",
            ],
        ),
        (
            CallStyle::Function,
            &[
                "<tool_call>\n<function=weather>\n<parameter=unit>\nC\n</parameter>\n<parameter=city>\na<b\n</parameter>\n<parameter=wind>\ntrue\n</parameter>\n</function>\n</tool_call>",
                "<tool_call>\n<function=weather>\n<parameter=unit>\nF\n</parameter>\n<parameter=city>\n\n\n</parameter>\n<parameter=days>\n9\n</parameter>\n<parameter=near>\n[{\"name\": \"x\"}]\n</parameter>\n<parameter=wind>\nfalse\n</parameter>\n</function>\n</tool_call>",
                "<tool_call>\n<function=now>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
            ],
            &[
                "<tool_call>\n<function=weather>\n<parameter=unit>\nK\n</parameter>\n",
                "<tool_call>\n<function=weather>\n<parameter=city>\nUlm\n</parameter>\n",
                "<tool_call>\n<function=weather>\n<parameter=unit>\nF\n</parameter>\n<parameter=city>\nZurich\n</parameter>\n",
                "<tool_call>\n<function=weather>\n</function>\n</tool_call>",
            ],
        ),
        (
            CallStyle::Hermes,
            &[
                "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"unit\": \"C\", \"city\": \"Ulm\", \"wind\": true}}\n</tool_call>",
                "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>",
            ],
            &[
                "<tool_call>\n{\"name\": \"weather\", \"arguments\": {}}\n</tool_call>",
                "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\": 1}}\n</tool_call>",
            ],
        ),
    ];
    for (style, inside, outside) in cases {
        let constraint = forced(style, true);
        for text in inside {
            let (reached, all) = reach(&constraint, text);
            assert_eq!(reached, all, "{text}");
            let calls = read(style, text, false).tool_calls;
            assert!(
                !calls.is_empty() && calls.iter().all(|call| call.name == "weather" || call.name == "now"),
                "{text}"
            );
        }
        for text in outside {
            let (reached, all) = reach(&constraint, text);
            assert!(reached < all, "{style:?} takes {text}");
        }
        // One call, and no second.
        let one = forced(style, false);
        let twice = inside.last().expect("a text");
        let (reached, all) = reach(&one, twice);
        assert_eq!(reached < all, style != CallStyle::Hermes, "{twice}");
    }
}

#[test]
fn schemas_of_every_kind_have_a_grammar_in_every_style() {
    let schemas = [
        json!({}),
        json!({ "type": "object" }),
        json!({ "type": "object", "properties": {} }),
        json!({ "type": "object", "additionalProperties": { "type": "integer" } }),
        json!({ "type": "object", "properties": { "q": {} }, "required": ["q", "unnamed"] }),
        json!({ "type": "object", "properties": { "q": { "type": ["string", "null"] }, "n": { "type": "number" } } }),
        json!({ "properties": { "q": { "anyOf": [{ "type": "string" }, { "type": "array", "items": { "type": "string" } }] } } }),
        json!({ "anyOf": [{ "properties": { "a": { "const": 1 } } }, { "properties": { "b": { "enum": [true, null, "", {"k": [1]}] } } }] }),
        json!({ "$ref": "#/$defs/tree", "$defs": { "tree": { "type": "object", "properties": { "next": { "$ref": "#/$defs/tree" } } } } }),
        json!({ "type": "object", "properties": { "t": { "type": "string", "minLength": 2, "pattern": "^a", "format": "uri" },
                "l": { "type": "array", "minItems": 2, "maxItems": 3, "uniqueItems": true, "items": { "type": "boolean" } },
                "o": { "type": "object", "additionalProperties": { "type": "string" } }, "a b\"é": { "type": "integer", "multipleOf": 5 } } }),
        json!({ "allOf": [{ "properties": { "a": { "type": "null" } }, "required": ["a"] }, { "properties": { "b": { "allOf": [{ "type": "string" }] } } }] }),
    ];
    let factory = factory();
    for style in STYLES {
        for schema in &schemas {
            let grammar = grammar(style, &[Callee { name: "f", parameters: Some(schema) }], true);
            factory.compile(&grammar).unwrap_or_else(|e| panic!("{style:?}, {schema}: {e}\n{grammar:?}"));
        }
    }
    let bad = json!({ "properties": { "a>b": {} }, "required": ["a>b"] });
    let refused = call_grammar(CallStyle::Function, &[Callee { name: "f", parameters: Some(&bad) }], true, |_| None);
    assert!(refused.is_err_and(|why| why.starts_with("parameters of f:") && why.contains("a>b")));
    let lost = json!({ "properties": { "a": { "$ref": "#/$defs/none" } } });
    let refused = call_grammar(CallStyle::Gemma4, &[Callee { name: "f", parameters: Some(&lost) }], true, |_| None);
    assert!(refused.is_err_and(|why| why.contains("$ref")));
}

/// The marker may be a token, or spelled, and newlines behind it are no text; thoughts do not end the answer.
#[test]
fn the_text_begins_behind_the_marker() {
    let factory = factory();
    let text = factory.compile(&Grammar::Lark("start: \"yes\" | \"no\"\n".into())).unwrap_or_else(|e| panic!("{e}"));
    let thoughts = |open, opener: &str, marker: &str| {
        let opener = tokenizer().encode_plain(opener).unwrap_or_else(|e| panic!("{e}"));
        text.after(factory.thoughts(open, opener, marker))
    };
    let open = thoughts(true, "", "<channel|>");
    for inside in ["Hm.<channel|>yes", "<channel|>\n\nno", "a <channel b <channel|>\nyes", "</think> < <channel|>no"] {
        assert_eq!(reach(&open, inside).0, reach(&open, inside).1, "{inside}");
    }
    for outside in ["yes<channel|>\n\n\nyes", "Hm.<channel|>perhaps", "Hm.<channel|> yes", "<channel|><channel|>yes"] {
        assert!(reach(&open, outside).0 < reach(&open, outside).1, "{outside}");
    }
    let spelled = thoughts(true, "", "</think>");
    for inside in ["Hm.\n</think>\n\nyes", "<</think></think>no"] {
        let (reached, all) = reach(&spelled, inside);
        assert_eq!(reached == all, !inside.contains("></think>"), "{inside}");
    }
    let begun = thoughts(false, "<|channel>thought\n", "<channel|>");
    for (inside, taken) in [
        ("<|channel>thought\nHm.<channel|>yes", true),
        ("no", true),
        ("<|channel>other\n", false),
        ("Hm.<channel|>yes", false),
    ] {
        let (reached, all) = reach(&begun, inside);
        assert_eq!(reached == all, taken, "{inside}");
    }
    // A stop token does not end thoughts, and an answer that is cut within them is cut.
    let mut row = vec![0.0; SMALL];
    row[1] = 60.0;
    row[id("a") as usize] = 50.0;
    let likes_to_stop = Scripted::model(SMALL, move |_| Row::Logits(row.clone()));
    let request = Request { prompt: vec![2, 440], max_tokens: Some(5), constraint: Some(open), ..Request::default() };
    let answer = alone(likes_to_stop, request);
    assert_eq!((answer.text.as_str(), answer.reason), ("aaaaa", FinishReason::Length));
}
