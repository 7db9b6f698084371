//! `GET /v1/models` and `GET /v1/models/{id}`.

use serde::{Deserialize, Serialize};

/// The models being served.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelList {
    /// Always `list`.
    pub object: String,
    /// The models.
    pub data: Vec<Model>,
}

/// A model being served.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Model {
    /// The name to ask for it by.
    pub id: String,
    /// Always `model`.
    pub object: String,
    /// Seconds since 1970: when it was loaded.
    pub created: u64,
    /// Always `mlxcel`.
    pub owned_by: String,
    /// In numbers, as llama-server has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meta: Option<ModelMeta>,
}

/// A model in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelMeta {
    /// Rows of the vocabulary.
    pub n_vocab: u64,
    /// Positions of the context being served.
    pub n_ctx: u64,
    /// Positions the model was made for.
    pub n_ctx_train: u64,
    /// Width of the residual stream.
    pub n_embd: u64,
    /// Parameters.
    pub n_params: u64,
    /// Bytes of the weights.
    pub size: u64,
}

impl ModelList {
    /// A list of `models`.
    pub fn new(models: Vec<Model>) -> Self {
        ModelList { object: "list".into(), data: models }
    }
}

impl Model {
    /// A model loaded at `created`.
    pub fn new(id: impl Into<String>, created: u64, meta: Option<ModelMeta>) -> Self {
        Model { id: id.into(), object: "model".into(), created, owned_by: "mlxcel".into(), meta }
    }
}
