//! Prompts from chat messages: a checkpoint's Jinja template, rendered as `transformers` renders it.
//!
//! A template is code that the owner of the checkpoint chose; a request never brings one. Fuel stops loops, recursion
//! and growing strings. Two ways to exhaust memory or stack remain in the engine (doubling a list with `+` forty times,
//! nesting lists ten thousand deep), so a server should keep it at that.

mod json;
mod methods;
mod python;
mod scan;
mod time;

use std::path::Path;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Rest, Serde};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior, Value};

use crate::config::{SpecialTokens, TokenizerConfig, kind, read_optional_object, read_optional_text};
use crate::error::TextError;

/// Steps one render may take, each worth about an instruction or 64 bytes of text. A conversation of a million tokens
/// needs well under a tenth; a template that never ends is stopped within a second.
const FUEL: u64 = 10_000_000;

/// What one prompt is made of.
#[derive(Debug, Clone, Default)]
pub struct RenderRequest<'a> {
    /// The conversation, as the template wants it: objects with `role`, `content` and so on.
    pub messages: &'a [serde_json::Value],
    /// The tools offered, an array; `None` and an empty array both mean none.
    pub tools: Option<&'a serde_json::Value>,
    /// Whether the prompt ends with the opening of the model's turn.
    pub add_generation_prompt: bool,
    /// Further variables of the template, such as `enable_thinking`.
    pub extra: serde_json::Map<String, serde_json::Value>,
}

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    env: Environment<'static>,
    main: String,
    /// The template for requests that offer tools, where the checkpoint has one apart.
    with_tools: Option<String>,
    specials: SpecialTokens,
    warnings: Vec<String>,
}

/// The error behind `raise_exception`, found again in the chain of an engine error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Rejection(String);

impl ChatTemplate {
    /// Finds the template of a checkpoint: `chat_template.jinja`, else `chat_template.json`, else the `chat_template`
    /// field of `tokenizer_config.json`. `None` where there is none of them, as for base models.
    pub fn load(dir: &Path) -> Result<Option<Self>, TextError> {
        let config = TokenizerConfig::load(dir)?;
        let specials = config.specials();

        let path = dir.join("chat_template.jinja");
        if let Some(source) = read_optional_text(&path)? {
            let mut this = Self::from_source(path.display().to_string(), &source, specials)?;
            let path = dir.join("additional_chat_templates").join("tool_use.jinja");
            if let Some(source) = read_optional_text(&path)? {
                this.add_tool_use(path.display().to_string(), &source)?;
            }
            return Ok(Some(this));
        }

        let path = dir.join("chat_template.json");
        if let Some(fields) = read_optional_object(&path)? {
            return Self::from_field(&path, fields.get("chat_template"), specials);
        }
        Self::from_field(&config.path, config.get("chat_template"), specials)
    }

    /// Compiles a template given by the user. `name` is what messages call it: usually its path.
    pub fn from_source(name: impl Into<String>, source: &str, specials: SpecialTokens) -> Result<Self, TextError> {
        let mut this = Self { env: environment(), main: name.into(), with_tools: None, specials, warnings: Vec::new() };
        this.add(this.main.clone(), source)?;
        Ok(this)
    }

    /// A `chat_template` field: one source, or a list of named ones of which `default` and `tool_use` matter.
    fn from_field(
        path: &Path,
        field: Option<&serde_json::Value>,
        specials: SpecialTokens,
    ) -> Result<Option<Self>, TextError> {
        let bad = |found: &str| TextError::BadField {
            path: path.to_path_buf(),
            field: "chat_template".to_owned(),
            expected: "a string, or a list of objects with strings `name` and `template`, one named \"default\"",
            found: found.to_owned(),
            fix: "Copy the file again, or give a template with --chat-template-file",
        };
        let name = |part: &str| format!("{} (chat_template{part})", path.display());
        match field {
            None | Some(serde_json::Value::Null) => Ok(None),
            Some(serde_json::Value::String(source)) => Self::from_source(name(""), source, specials).map(Some),
            Some(serde_json::Value::Array(list)) => {
                let mut default = None;
                let mut tool_use = None;
                for entry in list {
                    let text = |key| entry.get(key).and_then(serde_json::Value::as_str);
                    match (text("name"), text("template")) {
                        (Some("default"), Some(source)) => default = Some(source),
                        (Some("tool_use"), Some(source)) => tool_use = Some(source),
                        (Some(_), Some(_)) => {}
                        _ => return Err(bad("an entry without them")),
                    }
                }
                let source = default.ok_or_else(|| bad("no entry named \"default\""))?;
                let mut this = Self::from_source(name(" \"default\""), source, specials)?;
                if let Some(source) = tool_use {
                    this.add_tool_use(name(" \"tool_use\""), source)?;
                }
                Ok(Some(this))
            }
            Some(other) => Err(bad(kind(other))),
        }
    }

    fn add_tool_use(&mut self, name: String, source: &str) -> Result<(), TextError> {
        self.add(name.clone(), source)?;
        self.with_tools = Some(name);
        Ok(())
    }

    fn add(&mut self, name: String, source: &str) -> Result<(), TextError> {
        let source = scan::prepare(source);
        for (line, what) in scan::unknown_names(&source, &self.env) {
            self.warnings.push(format!(
                "chat template {name}, line {line}: no {what} is known here; messages that reach this line will be \
                 refused"
            ));
        }
        self.env.add_template_owned(name.clone(), source).map_err(|e| TextError::TemplateSyntax {
            line: e.line().unwrap_or(0),
            message: describe(&e),
            name,
        })
    }

    /// Where the template came from.
    pub fn name(&self) -> &str {
        &self.main
    }

    /// Its source, as it is compiled: without blocks that only training needs.
    pub fn source(&self) -> String {
        self.env.get_template(&self.main).map(|template| template.source().to_string()).unwrap_or_default()
    }

    /// What a careful owner wants to know at start-up: names of filters and tests that this engine does not have, each
    /// with its line. Only messages that reach such a line fail.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Renders a prompt. Its special tokens are text: encode it with `Tokenizer::encode_templated`.
    pub fn render(&self, request: &RenderRequest<'_>) -> Result<String, TextError> {
        let name = match (&self.with_tools, request.tools) {
            (Some(name), Some(tools)) if tools.as_array().is_none_or(|t| !t.is_empty()) => name,
            _ => &self.main,
        };
        let tools = request.tools.filter(|t| t.as_array().is_none_or(|t| !t.is_empty()));
        // Later pairs win: a request may replace a special token, never the conversation.
        let mut context: Vec<(String, Value)> = Vec::new();
        for (key, text) in self.specials.iter() {
            context.push((key.to_owned(), Value::from(text)));
        }
        // Defined and none, as transformers has it: templates ask `is defined` and `is none` both.
        context.push(("documents".to_owned(), Value::from(())));
        for (key, value) in &request.extra {
            context.push((key.clone(), Value::from(Serde(value))));
        }
        context.push(("messages".to_owned(), Value::from(Serde(request.messages))));
        context.push(("tools".to_owned(), Value::from(Serde(tools))));
        context.push(("add_generation_prompt".to_owned(), Value::from(request.add_generation_prompt)));

        self.env
            .get_template(name)
            .and_then(|t| t.render(Value::from_pairs(context)))
            .map_err(|e| render_error(name, &e))
    }
}

/// An engine set up as transformers sets up Jinja2.
fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    let mut syntax = SyntaxConfig::builder();
    syntax.trim_blocks(true).lstrip_blocks(true);
    if let Ok(syntax) = syntax.build() {
        env.set_syntax(syntax);
    }
    // Debug information makes an error say which variable was undefined.
    env.set_debug(true);
    env.set_fuel(Some(FUEL));
    env.set_undefined_behavior(UndefinedBehavior::Lenient);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_unknown_method_callback(methods::call);
    python::install(&mut env);
    env.add_filter("tojson", json::tojson);
    env.add_filter("fromjson", json::fromjson);
    env.add_function("strftime_now", time::strftime_now);
    env.add_function("raise_exception", raise_exception);
    env
}

fn raise_exception(args: Rest<Value>) -> Result<Value, Error> {
    let message = args.first().map(ToString::to_string).unwrap_or_default();
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Rejection(message)))
}

fn render_error(template: &str, error: &Error) -> TextError {
    let name = error.name().unwrap_or(template).to_owned();
    let line = error.line().unwrap_or(0);
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(e) = cause {
        if let Some(Rejection(message)) = e.downcast_ref() {
            return TextError::TemplateRejected { name, line, message: message.clone() };
        }
        if let Some(e) = e.downcast_ref::<Error>()
            && e.kind() == ErrorKind::OutOfFuel
        {
            return TextError::TemplateBudget { name, line, fuel: FUEL };
        }
        cause = e.source();
    }
    TextError::TemplateRender { name, line, message: describe(error) }
}

fn describe(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}
