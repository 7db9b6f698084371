//! Which markers a model uses.

/// How a model sets its thoughts apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ReasoningFormat {
    /// It has none: everything is content.
    #[default]
    None,
    /// Qwen 3 and later: `<think>…</think>`.
    Think,
    /// Gemma 4: `<|channel>thought\n…<channel|>`.
    Channel,
}

/// How a model writes calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ToolFormat {
    /// It has none: everything is content.
    #[default]
    None,
    /// `<tool_call>…</tool_call>` around Qwen 3.5's `<function=NAME>…</function>` or Hermes' `{"name": …}`: the first
    /// character inside tells them apart, so that a fine-tune which mixes them is understood.
    Tagged,
    /// Gemma 4: `<|tool_call>call:NAME{…}<tool_call|>`.
    Gemma4,
}

/// The formats of one model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ParserKind {
    /// Its thoughts.
    pub reasoning: ReasoningFormat,
    /// Its calls.
    pub tools: ToolFormat,
}

impl ParserKind {
    /// A model without thoughts or calls.
    pub const PLAIN: Self = Self { reasoning: ReasoningFormat::None, tools: ToolFormat::None };
    /// Gemma 4.
    pub const GEMMA4: Self = Self { reasoning: ReasoningFormat::Channel, tools: ToolFormat::Gemma4 };
    /// Qwen 3, 3.5, 3.6, 3.8.
    pub const QWEN: Self = Self { reasoning: ReasoningFormat::Think, tools: ToolFormat::Tagged };
    /// Qwen 2.5 and fine-tunes in Hermes' style: calls, no thoughts.
    pub const HERMES: Self = Self { reasoning: ReasoningFormat::None, tools: ToolFormat::Tagged };

    /// The formats that a chat template prints; where it is silent about one, those whose marker is a token of the
    /// vocabulary (`has_token`).
    pub fn detect(template: Option<&str>, has_token: impl Fn(&str) -> bool) -> Self {
        let prints = |marker: &str| template.is_some_and(|source| source.contains(marker));
        let reasoning = if prints("<|channel>") {
            ReasoningFormat::Channel
        } else if prints("<think>") || prints("</think>") {
            ReasoningFormat::Think
        } else if has_token("<|channel>") && has_token("<channel|>") {
            // Both: another family writes `<|channel|>`, and some have only one of these by chance.
            ReasoningFormat::Channel
        } else if has_token("<think>") {
            ReasoningFormat::Think
        } else {
            ReasoningFormat::None
        };
        let tools = if prints("<|tool_call>") {
            ToolFormat::Gemma4
        } else if prints("<tool_call>") {
            ToolFormat::Tagged
        } else if has_token("<|tool_call>") && has_token("<tool_call|>") {
            ToolFormat::Gemma4
        } else if has_token("<tool_call>") {
            ToolFormat::Tagged
        } else {
            ToolFormat::None
        };
        Self { reasoning, tools }
    }

    /// Whether a rendered prompt ends inside a block of thoughts, so that the answer starts there: the value of
    /// [`ParserOptions::thinking_open`](super::ParserOptions::thinking_open).
    pub fn thinking_open(&self, prompt: &str) -> bool {
        self.reasoning.opener().is_some_and(|opener| prompt.trim_end().ends_with(opener))
    }
}

impl ReasoningFormat {
    /// The marker before thoughts.
    pub fn opener(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Think => Some("<think>"),
            Self::Channel => Some("<|channel>thought"),
        }
    }

    /// The marker behind thoughts.
    pub fn closer(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Think => Some("</think>"),
            Self::Channel => Some("<channel|>"),
        }
    }
}

impl ToolFormat {
    /// The marker before a call.
    pub(super) fn opener(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Tagged => Some("<tool_call>"),
            Self::Gemma4 => Some("<|tool_call>"),
        }
    }

    /// The marker behind a call.
    pub fn closer(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Tagged => "</tool_call>",
            Self::Gemma4 => "<tool_call|>",
        }
    }
}
