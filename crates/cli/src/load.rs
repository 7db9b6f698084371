//! From arguments to an engine: checkpoint, backend, tokenizer, template, defaults.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use mlxcel_checkpoint::{Checkpoint, GenerationDefaults};
use mlxcel_compute::{Backend, ComputeError};
use mlxcel_engine::sample::SamplingParams;
use mlxcel_model::drafters::Ngram;
use mlxcel_model::registry::{self, Pair};
use mlxcel_model::{Model, ModelError};
use mlxcel_text::parse::{Answer, Parser, ParserKind, ParserOptions};
use mlxcel_text::{ChatTemplate, RenderRequest, SpecialTokens, Tokenizer};
use serde_json::{Map, Value, json};

use crate::args::{DraftArgs, ModelArgs, SamplingArgs};
use crate::backend::Chosen;
use crate::draft::{Notice, Notify, Source};
use crate::locate::Environment;

/// An opened checkpoint.
pub struct Opened {
    /// Its directory.
    pub path: PathBuf,
    /// Its files.
    pub checkpoint: Checkpoint,
}

/// A model, and what drafts for it.
pub struct Loaded {
    /// Both.
    pub pair: Pair,
    /// Whether the drafter was asked for, or merely found.
    pub asked: bool,
}

/// Finds and opens the checkpoint.
///
/// # Errors
/// Where it looked, or what is wrong with the files.
pub fn open(args: &ModelArgs, environment: &Environment) -> Result<Opened> {
    let path = environment.model(args.model.as_deref())?;
    let checkpoint = Checkpoint::open(&path)?;
    Ok(Opened { path, checkpoint })
}

impl Opened {
    /// Builds the model.
    ///
    /// # Errors
    /// What the registry and the family's loader find wrong.
    pub fn model(&self, backend: &Chosen) -> Result<Box<dyn Model>> {
        let model = self.assemble(Source::None, backend, &mut |_| {})?.pair.model;
        self.warn(&*model);
        Ok(model)
    }

    /// Builds the model and the drafter that belongs to it, on the backend that is wished for.
    ///
    /// # Errors
    /// As [`Opened::model`]; a backend that cannot be had; a drafter that was asked for and does not fit, or cannot be loaded.
    pub fn pair(
        &self,
        args: &ModelArgs,
        draft: &DraftArgs,
        environment: &Environment,
        notify: &mut Notify<'_>,
    ) -> Result<Loaded> {
        let backend = args.wish().open(environment, notify)?;
        self.pair_on(&backend, draft, environment, notify)
    }

    /// [`Opened::pair`] on a backend that was chosen.
    ///
    /// # Errors
    /// As [`Opened::pair`].
    pub fn pair_on(
        &self,
        backend: &Chosen,
        draft: &DraftArgs,
        environment: &Environment,
        notify: &mut Notify<'_>,
    ) -> Result<Loaded> {
        let source = crate::draft::find(draft, &self.checkpoint, environment, notify)?;
        let loaded = self.assemble(source, backend, notify)?;
        self.warn(&*loaded.pair.model);
        Ok(loaded)
    }

    /// Builds the model and what was found to draft for it, on a backend.
    ///
    /// # Errors
    /// A model, or a drafter that was asked for, that cannot be loaded.
    pub fn assemble(&self, source: Source, backend: &Chosen, notify: &mut Notify<'_>) -> Result<Loaded> {
        match backend {
            Chosen::Cpu(backend) => self.assemble_on(source, Arc::clone(backend), notify),
            Chosen::Faulty(backend) => self.assemble_on(source, Arc::clone(backend), notify),
            Chosen::Cuda(backend) => {
                let loaded = self.assemble_on(source, Arc::clone(backend), notify);
                loaded.map_err(|error| match is_the_devices(&error) {
                    true => error.context("the model cannot be loaded onto the GPU (--backend cpu uses the processor)"),
                    false => error,
                })
            }
        }
    }

    fn assemble_on<B: Backend>(&self, source: Source, backend: Arc<B>, notify: &mut Notify<'_>) -> Result<Loaded> {
        let alone = |backend| registry::load(&self.checkpoint, backend);
        let mut asked = true;
        let pair = match source {
            Source::None => Pair { model: alone(backend)?, drafter: None },
            Source::Ngram => Pair { model: alone(backend)?, drafter: Some(Box::new(Ngram::new())) },
            Source::Checkpoint { checkpoint, kind, asked: by_name } => {
                asked = by_name;
                match registry::load_as(&self.checkpoint, &checkpoint, kind, Arc::clone(&backend)) {
                    Ok(pair) => pair,
                    Err(error) if asked => return Err(error.into()),
                    Err(error) => {
                        // The fault is the drafter's if the model loads without it.
                        let model = alone(backend)?;
                        let path = checkpoint.dir().display();
                        notify(Notice::Warning(&format!(
                            "the drafter {path} was found and cannot be loaded, answers come without drafts \
                             (--model-draft none: no drafts wanted): {error}"
                        )));
                        Pair { model, drafter: None }
                    }
                }
            }
        };
        Ok(Loaded { pair, asked })
    }

    fn warn(&self, model: &dyn Model) {
        for warning in &model.info().warnings {
            eprintln!("warning: {}: {warning}", self.path.join("config.json").display());
        }
    }

    /// Loads the tokenizer and checks it against the model.
    ///
    /// # Errors
    /// Missing or broken files, or more tokens than the model has rows.
    pub fn tokenizer(&self, model: &dyn Model) -> Result<Arc<Tokenizer>> {
        let tokenizer = Tokenizer::load(&self.path)?;
        let rows = model.info().vocab_size;
        // Padding rows are common; missing rows would make ids out of range.
        if tokenizer.vocab_size() > rows {
            bail!(
                "{}: at most {rows} tokens expected (vocab_size of config.json), found {}; \
                 the tokenizer belongs to another model",
                self.path.join("tokenizer.json").display(),
                tokenizer.vocab_size()
            );
        }
        Ok(Arc::new(tokenizer))
    }

    /// The chat template: the file given, or the checkpoint's.
    ///
    /// # Errors
    /// Broken templates; a checkpoint without one.
    pub fn template(&self, file: Option<&Path>) -> Result<ChatTemplate> {
        let template = match file {
            Some(file) => {
                let source = std::fs::read_to_string(file).with_context(|| format!("{}", file.display()))?;
                Some(ChatTemplate::from_source(file.display().to_string(), &source, SpecialTokens::load(&self.path)?)?)
            }
            None => ChatTemplate::load(&self.path)?,
        };
        let Some(template) = template else {
            bail!(
                "{}: no chat template found (chat_template.jinja, chat_template.json, or chat_template in \
                 tokenizer_config.json); give one with --chat-template-file, or continue plain text with --raw",
                self.path.display()
            )
        };
        for warning in template.warnings() {
            eprintln!("warning: {}: {warning}", template.name());
        }
        Ok(template)
    }

    /// Sampling parameters: what was typed, else generation_config.json, else greedy.
    ///
    /// # Errors
    /// A broken generation_config.json; a parameter out of range.
    pub fn sampling(&self, args: &SamplingArgs, logprobs: Option<usize>, vocab: usize) -> Result<SamplingParams> {
        let file = GenerationDefaults::from_checkpoint(&self.checkpoint)?;
        let greedy = SamplingParams::default();
        // Without do_sample the file's temperature is not in force.
        let sample = file.do_sample.unwrap_or(file.temperature.is_some());
        let from_file = sample.then(|| file.temperature.unwrap_or(1.0));
        let temperature = args.temperature.or(from_file).unwrap_or(greedy.temperature);
        let mut logit_bias = args.logit_bias.clone();
        // Some files suppress ids of other sizes of the family: those beyond the vocabulary cannot occur anyway.
        let suppressed = file.suppress_tokens.iter().filter(|id| (**id as usize) < vocab);
        logit_bias.extend(suppressed.map(|id| (*id, -100.0)));
        let params = SamplingParams {
            temperature,
            top_k: args.top_k.or(file.top_k.map(|k| k as usize)).unwrap_or(greedy.top_k),
            top_p: args.top_p.or(file.top_p).unwrap_or(greedy.top_p),
            min_p: args.min_p.or(file.min_p).unwrap_or(greedy.min_p),
            repetition_penalty: args.repeat_penalty.or(file.repetition_penalty).unwrap_or(greedy.repetition_penalty),
            presence_penalty: args.presence_penalty.unwrap_or(greedy.presence_penalty),
            frequency_penalty: args.frequency_penalty.unwrap_or(greedy.frequency_penalty),
            logit_bias,
            seed: args.seed.unwrap_or_else(random_seed),
            logprobs,
        };
        params.validate(vocab).context("sampling (flags, and generation_config.json for what they leave open)")?;
        Ok(params)
    }
}

/// Whether an error comes from the device, and not from the files.
fn is_the_devices(error: &anyhow::Error) -> bool {
    let found = error.chain().find_map(|cause| cause.downcast_ref::<ModelError>());
    matches!(found, Some(ModelError::Device { .. } | ModelError::Compute(ComputeError::Device { .. })))
}

/// A seed nobody chose; it is printed, so that the answer can be had again. Below 2^53, so that JSON readers keep it.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::hash::RandomState::new().build_hasher().finish() >> 11
}

/// One chat message.
pub fn message(role: &str, content: &str) -> Value {
    json!({ "role": role, "content": content })
}

/// The model's own turn, for the history. Templates of thinking models want what was thought apart from what was said; `thinking`
/// says that the prompt opened the block of thoughts.
pub fn said(text: &str, thinking: bool) -> Value {
    let options = ParserOptions { thinking_open: thinking, parse_tools: false, ..ParserOptions::default() };
    let mut parser = Parser::new(ParserKind::QWEN, options);
    let mut deltas = parser.push(text);
    deltas.extend(parser.finish());
    let Answer { reasoning, content, .. } = Answer::collect(deltas);
    if reasoning.is_empty() {
        return message("assistant", &content);
    }
    json!({ "role": "assistant", "reasoning_content": reasoning, "content": content })
}

/// A rendered conversation.
pub struct Prompt {
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Whether it ends inside a block of thoughts.
    pub thinking: bool,
}

/// Renders a conversation and encodes it; `extra` are further variables of the template.
///
/// # Errors
/// What the template refuses.
pub fn encode_chat(
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    messages: &[Value],
    extra: &Map<String, Value>,
) -> Result<Prompt> {
    let extra = extra.clone();
    let request = RenderRequest { messages, add_generation_prompt: true, extra, ..RenderRequest::default() };
    let text = template.render(&request)?;
    let thinking = ParserKind::QWEN.thinking_open(&text);
    Ok(Prompt { tokens: tokenizer.encode_templated(&text)?, thinking })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thoughts_and_answers_are_told_apart() {
        assert_eq!(said("Yes.", false), message("assistant", "Yes."));
        let both = json!({ "role": "assistant", "reasoning_content": "Is it?", "content": "Yes." });
        // The prompt may have opened the block, or the model.
        assert_eq!(said("Is it?\n</think>\n\nYes.", true), both);
        assert_eq!(said("<think>\nIs it?\n</think>\n\nYes.", false), both);
        let stopped = json!({ "role": "assistant", "reasoning_content": "Is it", "content": "" });
        assert_eq!(said("Is it", true), stopped);
        assert_eq!(said("<think>\nIs it", false), stopped);
        // A model that does not think may speak about the mark.
        assert_eq!(said("The </think> tag ends it.", false), message("assistant", "The </think> tag ends it."));
    }
}
