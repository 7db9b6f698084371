//! Compiles grammars for a tokenizer.

use std::collections::HashMap;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory, panic_utils};
use mlxcel_text::Tokenizer;
use serde_json::{Value, json};

use super::guide::{Next, plain};
use super::lead::Lead;
use super::places::Places;
use super::thoughts::{Marker, Thoughts};
use super::{Compiled, Constraint, Grammar, GrammarError, gbnf, limits, schema};

/// Name of the token by which a matcher allows an end. It stands for no token of the model, whose stop tokens are the request's
/// matter; with a space in it, no grammar can name it.
const END: &str = "<end of answer>";

/// Whitespace between the tokens of JSON: enough to indent deeply, and never an answer of its own.
const WHITESPACE: &str = r"[\x20\x0A\x0D\x09]{1,64}";

/// Compiles grammars for one tokenizer. It is made once; compiling takes milliseconds, in the caller's time.
pub struct GrammarFactory {
    tokenizer: Arc<Tokenizer>,
    parsers: Arc<ParserFactory>,
    lead: Arc<Lead>,
    /// By their text.
    markers: Mutex<HashMap<String, Arc<Marker>>>,
}

impl GrammarFactory {
    /// Takes in the bytes of every token.
    ///
    /// # Errors
    /// [`GrammarError::Tokenizer`].
    pub fn new(tokenizer: &Arc<Tokenizer>) -> Result<Self, GrammarError> {
        let vocab = tokenizer.vocab_size() as u32;
        let words: Vec<Vec<u8>> = (0..vocab).map(|id| word(tokenizer, id)).collect();
        let lead = Arc::new(Lead::new(tokenizer, &words));
        let parsers = panic_utils::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let words = [words, vec![special(END)]].concat();
            let trie = TokTrie::from(&TokRxInfo::new(vocab + 1, vocab), &words);
            let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
            let slices = SlicedBiasComputer::general_slices();
            let mut parsers = ParserFactory::new(&env, InferenceCapabilities::default(), &slices)?;
            parsers.quiet();
            *parsers.limits_mut() = limits::parser();
            Ok(parsers)
        }));
        let parsers = parsers.map_err(|e| GrammarError::Tokenizer(plain(&e.to_string())))?;
        let (tokenizer, parsers, markers) = (Arc::clone(tokenizer), Arc::new(parsers), Mutex::default());
        Ok(GrammarFactory { tokenizer, parsers, lead, markers })
    }

    /// Compiles a grammar, within limits of size and time.
    ///
    /// # Errors
    /// [`GrammarError`] names what is wrong with it.
    pub fn compile(&self, grammar: &Grammar) -> Result<Constraint, GrammarError> {
        let what = grammar.name();
        let (start, first) =
            run(what, Arc::clone(&self.parsers), source(grammar)?, self.tokenizer.vocab_size() as u32)?;
        let compiled = Arc::new(Compiled {
            grammar: grammar.clone(),
            tokenizer: Arc::clone(&self.tokenizer),
            lead: Arc::clone(&self.lead),
            start: Mutex::new(start),
            first,
            fault: None,
        });
        Ok(Constraint(compiled, None))
    }

    /// Thoughts that the text `marker` ends. `open` says that the prompt ends within them; if not, an answer may begin them with the
    /// tokens of `opener`, if there are any.
    pub fn thoughts(&self, open: bool, opener: Vec<u32>, marker: &str) -> Thoughts {
        let mut known = self.markers.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Arc::new(Marker::new(marker, &self.tokenizer));
        Thoughts::new(open, opener, Arc::clone(known.entry(marker.into()).or_insert_with(new)))
    }
}

impl Constraint {
    /// The id by which a matcher allows an end: one more than the last token's.
    pub(super) fn end(&self) -> u32 {
        self.0.tokenizer.vocab_size() as u32
    }
}

/// A special token's entry, which no text can be mistaken for.
fn special(name: &str) -> Vec<u8> {
    [&[TokTrie::SPECIAL_TOKEN_MARKER], name.as_bytes()].concat()
}

/// What a grammar sees of a token: its bytes in the middle of a text. Nothing for ids without a token.
fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    if tokenizer.is_special(id) {
        return tokenizer.id_to_token(id).map(|name| special(&name)).unwrap_or_default();
    }
    let bytes = tokenizer.token_bytes(id);
    // No text has this byte, and here it marks special tokens.
    if bytes.first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER) { Vec::new() } else { bytes }
}

/// A grammar as the compiler takes it, its size checked.
fn source(grammar: &Grammar) -> Result<TopLevelGrammar, GrammarError> {
    let what = grammar.name();
    match grammar {
        Grammar::JsonObject => Ok(json_schema(&json!({ "type": "object" }))),
        Grammar::JsonSchema(schema) => {
            schema::check(schema)?;
            Ok(json_schema(schema))
        }
        Grammar::Lark(text) => {
            limits::check_text(what, text, true)?;
            // What is looked at in a schema would not be looked at there.
            if text.contains("%json") {
                let why = "rules of Lark alone expected, found %json; send a schema as response_format".into();
                return Err(GrammarError::Refused { what, why });
            }
            Ok(TopLevelGrammar::from_lark(text.clone()))
        }
        Grammar::Gbnf(text) => {
            limits::check_text(what, text, false)?;
            Ok(TopLevelGrammar::from_lark(gbnf::to_lark(text)?))
        }
        Grammar::Regex(text) => {
            limits::check_text(what, text, false)?;
            Ok(TopLevelGrammar::from_regex(text))
        }
        Grammar::Calls { lark, schemas } => {
            limits::check_calls(what, lark)?;
            let part = |i, schema| {
                schema::check(schema)?;
                Ok(GrammarWithLexer {
                    name: Some(format!("json{i}")),
                    ..GrammarWithLexer::from_json_schema(spaced(schema, true))
                })
            };
            let mut top = TopLevelGrammar::from_lark(lark.clone());
            for (i, schema) in schemas.iter().enumerate() {
                top.grammars.push(part(i, schema)?);
            }
            Ok(top)
        }
    }
}

fn json_schema(schema: &Value) -> TopLevelGrammar {
    TopLevelGrammar::from_json_schema(spaced(schema, false))
}

/// A schema with what the compiler is to know beside; a lenient one passes over keywords that it cannot enforce.
fn spaced(schema: &Value, lenient: bool) -> Value {
    let mut schema = match schema {
        Value::Bool(true) => json!({}),
        Value::Bool(false) => json!({ "not": {} }),
        schema => schema.clone(),
    };
    schema["x-guidance"] = match lenient {
        true => json!({ "whitespace_pattern": WHITESPACE, "lenient": true }),
        false => json!({ "whitespace_pattern": WHITESPACE }),
    };
    schema
}

static PLACES: Places = Places::new(limits::COMPILERS);

/// Compiles on a thread with a stack of its own; one that takes too long is left to come to its end, which the limits of size bound.
fn run(
    what: &'static str,
    parsers: Arc<ParserFactory>,
    source: TopLevelGrammar,
    end: u32,
) -> Result<(Matcher, Next), GrammarError> {
    let (sender, receiver) = sync_channel(1);
    let refused = move |why: String| GrammarError::Refused { what, why };
    let seconds = limits::TIME.as_secs();
    let place = PLACES.take(limits::TIME).ok_or(GrammarError::Busy { what, seconds })?;
    let work = move || {
        let _place = place;
        let parser = parsers.create_parser(source).map_err(|e| refused(plain(&format!("{e:#}"))));
        let compiled = parser.and_then(|parser| {
            let mut matcher = Matcher::new(Ok(parser));
            match Next::ask(&mut matcher, end) {
                Ok(Some(next)) => Ok((matcher, next)),
                Ok(None) => Err(GrammarError::Empty { what }),
                Err(why) if why.starts_with("no token") => Err(GrammarError::NoToken { what }),
                Err(why) => Err(refused(why)),
            }
        });
        // Nobody waits any more for what took too long.
        let _ = sender.send(compiled);
    };
    thread::Builder::new()
        .name("grammar".into())
        .stack_size(limits::STACK)
        .spawn(work)
        .map_err(|e| refused(format!("no thread to compile it on ({e}); try again later")))?;
    match receiver.recv_timeout(limits::TIME) {
        Ok(compiled) => compiled,
        Err(RecvTimeoutError::Timeout) => Err(GrammarError::Slow { what, seconds }),
        Err(RecvTimeoutError::Disconnected) => Err(refused("the grammar compiler gave up".into())),
    }
}
