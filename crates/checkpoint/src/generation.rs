//! `generation_config.json`: sampling defaults and the tokens that end an answer.

use serde_json::Value;

use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::fields::Fields;

/// Ids that end generation, merged from every file that names some: `config.json` alone often lists only one of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopIds {
    ids: Vec<u32>,
}

impl StopIds {
    /// Merges `eos_token_id` of `config.json` (top level and `text_config`) and of `generation_config.json`.
    pub fn from_checkpoint(checkpoint: &Checkpoint) -> Result<Self> {
        let file = checkpoint.config_file();
        let config = Fields::root(&file, checkpoint.config())?;
        let mut ids = Self::default();
        ids.merge(config.ids("eos_token_id")?);
        if let Some(text) = config.object("text_config")? {
            ids.merge(text.ids("eos_token_id")?);
        }
        ids.merge(GenerationDefaults::from_checkpoint(checkpoint)?.eos_token_ids);
        Ok(ids)
    }

    /// Adds ids that are not there yet.
    pub fn merge(&mut self, more: impl IntoIterator<Item = u32>) {
        for id in more {
            if let Err(place) = self.ids.binary_search(&id) {
                self.ids.insert(place, id);
            }
        }
    }

    /// True when the id ends generation.
    pub fn contains(&self, id: u32) -> bool {
        self.ids.binary_search(&id).is_ok()
    }

    /// The ids, ascending.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }
}

/// What `generation_config.json` recommends; a field that is absent there is `None` here.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationDefaults {
    /// Sampling (true) or greedy decoding.
    pub do_sample: Option<bool>,
    /// Divisor of the logits.
    pub temperature: Option<f32>,
    /// Candidates kept by rank.
    pub top_k: Option<u32>,
    /// Candidates kept by summed probability.
    pub top_p: Option<f32>,
    /// Candidates kept by probability relative to the best.
    pub min_p: Option<f32>,
    /// Divisor of the logits of tokens already present.
    pub repetition_penalty: Option<f32>,
    /// Longest answer in tokens.
    pub max_new_tokens: Option<u64>,
    /// First token of a prompt.
    pub bos_token_id: Option<u32>,
    /// Padding.
    pub pad_token_id: Option<u32>,
    /// Tokens that end generation.
    pub eos_token_ids: Vec<u32>,
    /// Tokens never to be produced.
    pub suppress_tokens: Vec<u32>,
}

impl GenerationDefaults {
    /// Reads the file of a checkpoint; all defaults are absent when there is none.
    pub fn from_checkpoint(checkpoint: &Checkpoint) -> Result<Self> {
        match checkpoint.generation_config() {
            Some(value) => Self::parse(&checkpoint.dir().join("generation_config.json"), value),
            None => Ok(Self::default()),
        }
    }

    /// Reads the JSON of `file`.
    pub fn parse(file: &std::path::Path, value: &Value) -> Result<Self> {
        let fields = Fields::root(file, value)?;
        let float =
            |key: &str, high: f64| Ok::<_, crate::CheckpointError>(fields.float_in(key, 0.0, high)?.map(|v| v as f32));
        let top_k = fields.count("top_k")?;
        Ok(Self {
            do_sample: fields.boolean("do_sample")?,
            temperature: float("temperature", 1000.0)?,
            // A rank beyond 32 bits keeps everything just the same.
            top_k: top_k.map(|k| u32::try_from(k).unwrap_or(u32::MAX)),
            top_p: float("top_p", 1.0)?,
            min_p: float("min_p", 1.0)?,
            repetition_penalty: float("repetition_penalty", 1000.0)?,
            max_new_tokens: fields.count("max_new_tokens")?,
            bos_token_id: fields.ids("bos_token_id")?.first().copied(),
            pad_token_id: fields.ids("pad_token_id")?.first().copied(),
            eos_token_ids: fields.ids("eos_token_id")?,
            suppress_tokens: fields.ids("suppress_tokens")?,
        })
    }
}
