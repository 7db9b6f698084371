//! What a checkpoint is loaded as, told from its config.json alone.

use mlxcel_checkpoint::llama::LlamaFamily;
use mlxcel_checkpoint::{Checkpoint, Gemma4Family, qwen3_5};
use serde_json::Value;
use std::path::Path;

use super::Kind;

/// A variant of a target. `Vlm` ones bring a vision tower beside the text stack, which stays unused here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Variant {
    /// Gemma 4, the text stack alone.
    Gemma4,
    /// Gemma 4 with a vision tower (E2B, E4B, 26B-A4B, 31B).
    Gemma4Vlm,
    /// Gemma 4 Unified (12B), which has no towers.
    Gemma4Unified,
    /// Qwen 3.5, 3.6 or 3.8, dense.
    Qwen35,
    /// The same as a mixture of experts.
    Qwen35Moe,
    /// Qwen 3.5 with a vision tower, dense.
    Qwen35Vlm,
    /// The same as a mixture of experts.
    Qwen35MoeVlm,
    /// Llama, Mistral, Qwen 2 or 3: no head is made for them here, so they draft with a small model or by prompt lookup.
    Llama,
}

impl Variant {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Gemma4,
        Self::Gemma4Vlm,
        Self::Gemma4Unified,
        Self::Qwen35,
        Self::Qwen35Moe,
        Self::Qwen35Vlm,
        Self::Qwen35MoeVlm,
        Self::Llama,
    ];

    /// Name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gemma4 => "Gemma4",
            Self::Gemma4Vlm => "Gemma4VLM",
            Self::Gemma4Unified => "Gemma4Unified",
            Self::Qwen35 => "Qwen35",
            Self::Qwen35Moe => "Qwen35Moe",
            Self::Qwen35Vlm => "Qwen35VLM",
            Self::Qwen35MoeVlm => "Qwen35MoeVLM",
            Self::Llama => "Llama",
        }
    }

    /// Whether there are drafters of a kind for it.
    pub const fn takes(self, kind: Kind) -> bool {
        match kind {
            Kind::None | Kind::Classic | Kind::Ngram => true,
            Kind::Mtp | Kind::Dflash => !matches!(self, Self::Llama),
        }
    }

    /// The variant that a config.json describes; `None` for other architectures, and for drafters.
    pub fn of_config(config: &Value) -> Option<Self> {
        let model_type = config.get("model_type")?.as_str()?;
        // An export of the text stack may keep the key with null.
        let has_vision = config.get("vision_config").is_some_and(Value::is_object);
        if let Some(family) = Gemma4Family::ALL.into_iter().find(|family| family.model_type() == model_type) {
            return Some(match family {
                Gemma4Family::Unified | Gemma4Family::UnifiedText => Self::Gemma4Unified,
                Gemma4Family::Gemma4 | Gemma4Family::Gemma4Text if has_vision => Self::Gemma4Vlm,
                Gemma4Family::Gemma4 | Gemma4Family::Gemma4Text => Self::Gemma4,
            });
        }
        if qwen3_5::MODEL_TYPES.contains(&model_type) {
            return Some(match (model_type.contains("_moe"), has_vision) {
                (false, false) => Self::Qwen35,
                (false, true) => Self::Qwen35Vlm,
                (true, false) => Self::Qwen35Moe,
                (true, true) => Self::Qwen35MoeVlm,
            });
        }
        LlamaFamily::ALL.iter().any(|family| family.model_type() == model_type).then_some(Self::Llama)
    }

    /// The variant of an opened target, once it is known to take drafters of a kind. Reads config.json only, so that it can be asked
    /// before any drafter is opened.
    ///
    /// # Errors
    /// [`TargetError`].
    pub fn of_target(target: &Checkpoint, kind: Kind) -> Result<Self, TargetError> {
        Self::of_target_config(target.dir(), target.config(), kind)
    }

    fn of_target_config(dir: &Path, config: &Value, kind: Kind) -> Result<Self, TargetError> {
        match Self::of_config(config) {
            Some(variant) if variant.takes(kind) => Ok(variant),
            variant => Err(TargetError {
                target: dir.display().to_string(),
                loaded: match variant {
                    Some(variant) => format!("{} ({})", variant.name(), described(config)),
                    None => described(config),
                },
                kind,
                supported: Self::ALL
                    .into_iter()
                    .filter(|v| v.takes(kind))
                    .map(Self::name)
                    .collect::<Vec<_>>()
                    .join(", "),
            }),
        }
    }
}

/// `model_type` and `architectures`, for messages.
fn described(config: &Value) -> String {
    let model_type = match config.get("model_type") {
        Some(Value::String(name)) => format!("model_type {name:?}"),
        Some(other) => format!("model_type {other}"),
        None => "no model_type".into(),
    };
    match config.pointer("/architectures/0").and_then(Value::as_str) {
        Some(architecture) => format!("{model_type}, architecture {architecture:?}"),
        None => model_type,
    }
}

/// A target that there are no drafters of a kind for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{target}: a target for kind {} is expected to be one of {supported}; config.json says {loaded}. Give another --target, \
     or another --kind",
    kind.name()
)]
pub struct TargetError {
    /// Directory of the target.
    pub target: String,
    /// What it is: the variant, `model_type` and architecture.
    pub loaded: String,
    /// The kind asked for.
    pub kind: Kind,
    /// The variants that take such drafters.
    pub supported: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn variant(config: Value) -> Option<&'static str> {
        Variant::of_config(&config).map(Variant::name)
    }

    #[test]
    fn every_variant_is_told_from_its_config() {
        let vision = json!({"depth": 1});
        for (model_type, with_vision, expected) in [
            ("gemma4_text", false, "Gemma4"),
            ("gemma4", false, "Gemma4"),
            ("gemma4", true, "Gemma4VLM"),
            ("gemma4_unified", true, "Gemma4Unified"),
            ("gemma4_unified_text", false, "Gemma4Unified"),
            ("qwen3_5", false, "Qwen35"),
            ("qwen3_5_text", false, "Qwen35"),
            ("qwen3_5", true, "Qwen35VLM"),
            ("qwen3_5_moe", false, "Qwen35Moe"),
            ("qwen3_5_moe_text", false, "Qwen35Moe"),
            ("qwen3_5_moe", true, "Qwen35MoeVLM"),
            ("llama", false, "Llama"),
        ] {
            let vision = if with_vision { vision.clone() } else { Value::Null };
            assert_eq!(
                variant(json!({"model_type": model_type, "vision_config": vision})),
                Some(expected),
                "{model_type}"
            );
        }
        for other in [
            json!({"model_type": "mamba2"}),
            json!({"model_type": "gemma4_assistant"}),
            json!({}),
            json!({"model_type": 7}),
        ] {
            assert_eq!(variant(other.clone()), None, "{other}");
        }
    }

    #[test]
    fn every_model_type_of_the_registry_has_a_variant() {
        for family in mlxcel_model::registry::families::<mlxcel_compute::reference::Reference>() {
            for model_type in family.model_types {
                assert!(variant(json!({"model_type": model_type})).is_some(), "{model_type}");
            }
            for drafter in family.drafter_types {
                assert_eq!(variant(json!({"model_type": drafter})), None, "{drafter} is no target");
            }
        }
    }

    #[test]
    fn an_unsupported_target_is_refused_by_name() {
        let dir = Path::new("/models/some-target");
        let error =
            |config: Value, kind| Variant::of_target_config(dir, &config, kind).expect_err("refused").to_string();
        let text = error(json!({"model_type": "mamba2", "architectures": ["Mamba2ForCausalLM"]}), Kind::Ngram);
        for part in ["/models/some-target", "\"mamba2\"", "Mamba2ForCausalLM", "Gemma4VLM", "Qwen35MoeVLM", "Llama"] {
            assert!(text.contains(part), "{text:?} lacks {part}");
        }
        // Loaded, but nothing reads its hidden states: the variant is named, and not offered.
        let text = error(json!({"model_type": "llama"}), Kind::Mtp);
        for part in ["/models/some-target", "Llama (model_type \"llama\")", "one of Gemma4, Gemma4VLM", "kind mtp"] {
            assert!(text.contains(part), "{text:?} lacks {part}");
        }
        assert!(!text.contains("MoeVLM, Llama"), "{text}");
        let config = json!({"model_type": "llama"});
        assert_eq!(Variant::of_target_config(dir, &config, Kind::Classic), Ok(Variant::Llama));
        assert!(error(json!({}), Kind::None).contains("no model_type"));
    }
}
