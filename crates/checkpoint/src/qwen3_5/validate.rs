//! Checks between fields: what each says alone is fine, together they may not be a model.

use super::text::Qwen3_5TextConfig;
use crate::error::Result;
use crate::fields::{Fields, MAX_LAYERS};

impl Qwen3_5TextConfig {
    /// Fails on the first field that contradicts another or is out of its range.
    pub(super) fn validate(&self, fields: &Fields<'_>) -> Result<()> {
        self.validate_ranges(fields)?;
        self.validate_heads(fields)?;
        self.validate_moe(fields)?;
        self.validate_products(fields)
    }

    fn validate_ranges(&self, fields: &Fields<'_>) -> Result<()> {
        let sizes = [
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("intermediate_size", if self.moe.is_some() { 1 } else { self.intermediate_size }),
            ("num_attention_heads", self.num_attention_heads),
            ("num_key_value_heads", self.num_key_value_heads),
            ("head_dim", self.head_dim),
            ("linear_num_key_heads", self.linear_num_key_heads),
            ("linear_num_value_heads", self.linear_num_value_heads),
            ("linear_key_head_dim", self.linear_key_head_dim),
            ("linear_value_head_dim", self.linear_value_head_dim),
        ];
        if let Some((key, _)) = sizes.iter().find(|(_, size)| *size == 0) {
            return Err(fields.error(key, "at least 1"));
        }
        if self.linear_conv_kernel_dim < 2 {
            return Err(fields.error("linear_conv_kernel_dim", "at least 2"));
        }
        if self.mtp_num_hidden_layers > MAX_LAYERS {
            return Err(fields.error("mtp_num_hidden_layers", format!("at most {MAX_LAYERS}")));
        }
        if self.max_position_embeddings < 2 {
            return Err(fields.error("max_position_embeddings", "at least 2"));
        }
        if !(self.rms_norm_eps > 0.0 && self.rms_norm_eps < 1.0) {
            return Err(fields.error("rms_norm_eps", "above 0 and below 1"));
        }
        Ok(())
    }

    fn validate_heads(&self, fields: &Fields<'_>) -> Result<()> {
        let (heads, kv_heads) = (self.num_attention_heads, self.num_key_value_heads);
        if !heads.is_multiple_of(kv_heads) {
            let expected = format!("a divisor of num_attention_heads ({heads})");
            return Err(fields.error_found("num_key_value_heads", expected, kv_heads.to_string()));
        }
        let (key_heads, value_heads) = (self.linear_num_key_heads, self.linear_num_value_heads);
        if !value_heads.is_multiple_of(key_heads) {
            let expected = format!("a multiple of linear_num_key_heads ({key_heads})");
            return Err(fields.error_found("linear_num_value_heads", expected, value_heads.to_string()));
        }
        Ok(())
    }

    fn validate_moe(&self, fields: &Fields<'_>) -> Result<()> {
        let Some(moe) = &self.moe else { return Ok(()) };
        let sizes = [
            ("num_experts", moe.num_experts),
            ("num_experts_per_tok", moe.num_experts_per_tok),
            ("moe_intermediate_size", moe.moe_intermediate_size),
            ("shared_expert_intermediate_size", moe.shared_expert_intermediate_size),
        ];
        if let Some((key, _)) = sizes.iter().find(|(_, size)| *size == 0) {
            return Err(fields.error(key, "at least 1"));
        }
        if moe.num_experts_per_tok > moe.num_experts {
            let expected = format!("at most num_experts ({})", moe.num_experts);
            return Err(fields.error_found("num_experts_per_tok", expected, moe.num_experts_per_tok.to_string()));
        }
        Ok(())
    }

    fn validate_products(&self, fields: &Fields<'_>) -> Result<()> {
        let check = |what: &str, factors: &[usize]| fields.check_elements(what, factors);
        let hidden = self.hidden_size;
        let (key_heads, key_dim) = (self.linear_num_key_heads, self.linear_key_head_dim);
        let (value_heads, value_dim) = (self.linear_num_value_heads, self.linear_value_head_dim);
        check("vocab_size * hidden_size", &[self.vocab_size, hidden])?;
        check("2 * intermediate_size * hidden_size", &[2, self.intermediate_size, hidden])?;
        check(
            "2 * num_attention_heads * head_dim * hidden_size",
            &[2, self.num_attention_heads, self.head_dim, hidden],
        )?;
        check("2 * linear_num_key_heads * linear_key_head_dim * hidden_size", &[2, key_heads, key_dim, hidden])?;
        check("linear_num_value_heads * linear_value_head_dim * hidden_size", &[value_heads, value_dim, hidden])?;
        let taps = self.linear_conv_kernel_dim;
        check(
            "2 * linear_num_key_heads * linear_key_head_dim * linear_conv_kernel_dim",
            &[2, key_heads, key_dim, taps],
        )?;
        check(
            "linear_num_value_heads * linear_value_head_dim * linear_conv_kernel_dim",
            &[value_heads, value_dim, taps],
        )?;
        check(
            "linear_num_value_heads * linear_key_head_dim * linear_value_head_dim",
            &[value_heads, key_dim, value_dim],
        )?;
        if let Some(moe) = &self.moe {
            let what = "num_experts * 2 * moe_intermediate_size * hidden_size";
            check(what, &[moe.num_experts, 2, moe.moe_intermediate_size, hidden])?;
            let shared = moe.shared_expert_intermediate_size;
            check("2 * shared_expert_intermediate_size * hidden_size", &[2, shared, hidden])?;
        }
        Ok(())
    }
}
