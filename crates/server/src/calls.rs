//! Which functions a model may call, and which it has to.

use mlxcel_engine::grammar::Grammar;
use mlxcel_protocol::ApiError;
use mlxcel_protocol::openai::{ChatRequest, Tool, ToolChoice};
use mlxcel_text::parse::{CallGrammar, CallStyle, Callee, ToolFormat, call_grammar};
use serde_json::Value;

use crate::facts::Facts;

/// What a request says of calls.
pub struct Calls<'a> {
    /// Functions that the model is told of.
    pub offered: Vec<&'a Tool>,
    /// Functions of which it has to call one; none = it need not call any.
    forced: Vec<&'a Tool>,
    /// Whether an answer may call more than one.
    several: bool,
}

impl<'a> Calls<'a> {
    /// Of a request.
    pub fn of(request: &'a ChatRequest) -> Self {
        let all: Vec<&Tool> = request.tools.iter().collect();
        let several = request.parallel_tool_calls != Some(false);
        let of = |names: &[String]| all.iter().copied().filter(|tool| names.contains(&tool.function.name)).collect();
        let (offered, forced): (Vec<&Tool>, Vec<&Tool>) = match &request.tool_choice {
            // What must not be called need not be offered.
            Some(ToolChoice::None) => (Vec::new(), Vec::new()),
            Some(ToolChoice::Auto) | None => (all, Vec::new()),
            Some(ToolChoice::Required) => (all.clone(), all),
            Some(ToolChoice::Function(name)) => {
                let one = of(std::slice::from_ref(name));
                return Calls { offered: all, forced: one, several: false };
            }
            Some(ToolChoice::Allowed { required, names }) => {
                let allowed: Vec<&Tool> = of(names);
                (allowed.clone(), if *required { allowed } else { Vec::new() })
            }
        };
        Calls { offered, forced, several }
    }

    /// The grammar of an answer that has to call a function, and the field that asked for it; `None` if it need not.
    ///
    /// # Errors
    /// 400 for a model without a form of calls, for schemas that cannot be written in it, and for a second grammar.
    pub fn grammar(&self, facts: &Facts, request: &ChatRequest) -> Result<Option<(&'static str, Grammar)>, ApiError> {
        if self.forced.is_empty() {
            return Ok(None);
        }
        let refuse = |message: &str| ApiError::parameter("tool_choice", message);
        let source = facts.template.as_ref().map(|template| template.source()).unwrap_or_default();
        let Some(style) = CallStyle::of(facts.parser.tools, &source) else {
            let message = "expected auto or none, found a choice that forces a call: this model has no form of calls";
            return Err(refuse(message).with_code("unsupported_parameter"));
        };
        if request.grammar.is_some() {
            let message =
                "expected auto or none beside a grammar, found a choice that forces a call; send one of the two";
            return Err(refuse(message).with_code("conflicting_parameters"));
        }
        let parameters: Vec<Option<Value>> =
            self.forced.iter().map(|tool| tool.function.parameters.clone().map(Value::Object)).collect();
        let functions: Vec<Callee<'_>> = self
            .forced
            .iter()
            .zip(&parameters)
            .map(|(tool, parameters)| Callee { name: &tool.function.name, parameters: parameters.as_ref() })
            .collect();
        let special = |marker: &str| facts.tokenizer.token_to_id(marker).filter(|id| facts.tokenizer.is_special(*id));
        let CallGrammar { lark, schemas } =
            call_grammar(style, &functions, self.several, special).map_err(|why| ApiError::parameter("tools", why))?;
        Ok(Some(("tools", Grammar::Calls { lark, schemas })))
    }

    /// The text that ends an answer after its first call, where it may have one at most and the grammar does not see to that.
    pub fn stop(&self, facts: &Facts) -> Option<String> {
        let ends = !self.several && self.forced.is_empty() && !self.offered.is_empty();
        (ends && facts.parser.tools != ToolFormat::None).then(|| facts.parser.tools.closer().into())
    }
}
