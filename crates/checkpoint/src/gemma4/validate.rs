//! Checks between fields: what each says alone is fine, together they may not be a model.

use super::text::Gemma4TextConfig;
use crate::error::Result;
use crate::fields::Fields;

impl Gemma4TextConfig {
    /// Fails on the first field that contradicts another or is out of its range.
    pub(super) fn validate(&self, fields: &Fields<'_>) -> Result<()> {
        self.validate_ranges(fields)?;
        self.validate_sharing(fields)?;
        self.validate_heads(fields)?;
        self.validate_moe(fields)?;
        self.validate_products(fields)
    }

    /// [`Self::validate`] for a drafter, all of whose layers read the target's K/V: how many heads those have is not its own to say.
    pub(super) fn validate_drafter(&self, fields: &Fields<'_>) -> Result<()> {
        self.validate_ranges(fields)?;
        self.validate_head_dims(fields)?;
        self.validate_products(fields)
    }

    fn validate_ranges(&self, fields: &Fields<'_>) -> Result<()> {
        let sizes = [
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_attention_heads", self.num_attention_heads),
            ("num_key_value_heads", self.num_key_value_heads),
            ("num_global_key_value_heads", self.num_global_key_value_heads.unwrap_or(1)),
            ("head_dim", self.head_dim),
            ("global_head_dim", self.global_head_dim),
            ("sliding_window", self.sliding_window),
        ];
        if let Some((key, _)) = sizes.iter().find(|(_, size)| *size == 0) {
            return Err(fields.error(key, "at least 1"));
        }
        if self.max_position_embeddings < 2 {
            return Err(fields.error("max_position_embeddings", "at least 2"));
        }
        if !(self.rms_norm_eps > 0.0 && self.rms_norm_eps < 1.0) {
            return Err(fields.error("rms_norm_eps", "above 0 and below 1"));
        }
        if self.final_logit_softcapping.is_some_and(|cap| cap <= 0.0) {
            return Err(fields.error("final_logit_softcapping", "null or a number above 0"));
        }
        if self.hidden_size_per_layer_input > 0 {
            // Every token looks its per-layer input up by its own id, media slots by the padding id.
            if self.vocab_size_per_layer_input < self.vocab_size {
                let found = self.vocab_size_per_layer_input.to_string();
                let expected = format!("at least vocab_size ({})", self.vocab_size);
                return Err(fields.error_found("vocab_size_per_layer_input", expected, found));
            }
            if self.pad_token_id as usize >= self.vocab_size {
                return Err(fields.error("pad_token_id", format!("below vocab_size ({})", self.vocab_size)));
            }
        }
        Ok(())
    }

    fn validate_sharing(&self, fields: &Fields<'_>) -> Result<()> {
        if self.num_kv_shared_layers >= self.num_hidden_layers {
            let expected = format!(
                "below num_hidden_layers ({}): some layer must make the K/V that others share",
                self.num_hidden_layers
            );
            return Err(fields.error("num_kv_shared_layers", expected));
        }
        for layer in self.first_shared_layer()..self.num_hidden_layers {
            let kind = self.layer_types[layer].name();
            if self.find_kv_source(layer).is_none() {
                let expected =
                    format!("low enough that a {kind} layer is below the sharing ones (layer {layer} needs one)");
                return Err(fields.error("num_kv_shared_layers", expected));
            }
        }
        Ok(())
    }

    fn validate_head_dims(&self, fields: &Fields<'_>) -> Result<()> {
        if let Some((layer, _)) = self.per_layer_config.iter().find(|(layer, _)| **layer >= self.num_hidden_layers) {
            let expected = format!("indices below num_hidden_layers ({})", self.num_hidden_layers);
            return Err(fields.error_found("per_layer_config", expected, format!("layer {layer}")));
        }
        for layer in 0..self.num_hidden_layers {
            let dim = self.head_dim(layer);
            // Rotation pairs the two halves of a head.
            if dim == 0 || dim % 2 == 1 {
                let found = format!("{dim} (layer {layer})");
                return Err(fields.error_found(&self.name_of(layer, "head_dim"), "an even number above 0", found));
            }
        }
        Ok(())
    }

    fn validate_heads(&self, fields: &Fields<'_>) -> Result<()> {
        self.validate_head_dims(fields)?;
        for layer in 0..self.num_hidden_layers {
            let (dim, kv_heads) = (self.head_dim(layer), self.kv_heads(layer));
            if kv_heads == 0 || !self.num_attention_heads.is_multiple_of(kv_heads) {
                let expected = format!("a divisor of num_attention_heads ({})", self.num_attention_heads);
                let found = format!("{kv_heads} (layer {layer})");
                return Err(fields.error_found(&self.name_of(layer, "num_key_value_heads"), expected, found));
            }
            let source = self.kv_source(layer);
            if (dim, kv_heads) != (self.head_dim(source), self.kv_heads(source)) {
                let expected = format!("layer {layer} as layer {source}, whose K/V it shares");
                return Err(fields.error_found("per_layer_config", expected, "other head sizes"));
            }
        }
        Ok(())
    }

    /// The key that decides a head size of a layer.
    fn name_of(&self, layer: usize, key: &str) -> String {
        let own = self.per_layer_config.get(&layer).is_some_and(|own| match key {
            "head_dim" => own.head_dim.is_some(),
            _ => own.num_key_value_heads.is_some(),
        });
        match key {
            _ if own => format!("per_layer_config.{layer}.{key}"),
            "head_dim" if !self.is_sliding(layer) => "global_head_dim".into(),
            "num_key_value_heads" if self.k_eq_v(layer) && self.num_global_key_value_heads.is_some() => {
                "num_global_key_value_heads".into()
            }
            _ => key.into(),
        }
    }

    fn validate_moe(&self, fields: &Fields<'_>) -> Result<()> {
        if !self.enable_moe_block {
            return Ok(());
        }
        let sizes = [
            ("num_experts", self.num_experts),
            ("top_k_experts", self.top_k_experts),
            ("moe_intermediate_size", self.moe_intermediate_size),
        ];
        if let Some((key, _)) = sizes.iter().find(|(_, size)| size.unwrap_or(0) == 0) {
            return Err(fields.error(key, "at least 1 (enable_moe_block is true)"));
        }
        let experts = self.num_experts.unwrap_or(0);
        if self.top_k_experts.unwrap_or(0) > experts {
            return Err(fields.error("top_k_experts", format!("at most num_experts ({experts})")));
        }
        Ok(())
    }

    fn validate_products(&self, fields: &Fields<'_>) -> Result<()> {
        let check = |what: &str, factors: &[usize]| fields.check_elements(what, factors);
        let hidden = self.hidden_size;
        check("vocab_size * hidden_size", &[self.vocab_size, hidden])?;
        check("2 * intermediate_size * hidden_size", &[2, self.intermediate_size, hidden])?;
        for layer in 0..self.num_hidden_layers {
            check(
                "num_attention_heads * head_dim * hidden_size",
                &[self.num_attention_heads, self.head_dim(layer), hidden],
            )?;
        }
        let per_layer = [self.num_hidden_layers, self.hidden_size_per_layer_input];
        check(
            "vocab_size_per_layer_input * num_hidden_layers * hidden_size_per_layer_input",
            &[self.vocab_size_per_layer_input, per_layer[0], per_layer[1]],
        )?;
        check("num_hidden_layers * hidden_size_per_layer_input * hidden_size", &[per_layer[0], per_layer[1], hidden])?;
        if let Some(moe) = self.moe() {
            let what = "num_experts * 2 * moe_intermediate_size * hidden_size";
            check(what, &[moe.num_experts, 2, moe.moe_intermediate_size, hidden])?;
        }
        Ok(())
    }
}
