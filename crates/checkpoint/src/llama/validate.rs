//! Checks between fields: what each says alone is fine, together they may not be a model.

use super::LlamaConfig;
use crate::error::Result;
use crate::fields::Fields;

impl LlamaConfig {
    /// Fails on the first field that contradicts another or is out of its range.
    pub(super) fn validate(&self, fields: &Fields<'_>) -> Result<()> {
        let sizes = [
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_attention_heads", self.num_attention_heads),
            ("num_key_value_heads", self.num_key_value_heads),
        ];
        if let Some((key, _)) = sizes.iter().find(|(_, size)| *size == 0) {
            return Err(fields.error(key, "at least 1"));
        }
        let (heads, kv_heads, dim) = (self.num_attention_heads, self.num_key_value_heads, self.head_dim);
        if !heads.is_multiple_of(kv_heads) {
            return Err(fields.error("num_key_value_heads", format!("a divisor of num_attention_heads ({heads})")));
        }
        // Rotation pairs the two halves of a head.
        if dim == 0 || dim % 2 == 1 {
            return Err(fields.error_found("head_dim", "an even number above 0", dim.to_string()));
        }
        if self.max_position_embeddings < 2 {
            return Err(fields.error("max_position_embeddings", "at least 2"));
        }
        if !(self.rms_norm_eps > 0.0 && self.rms_norm_eps < 1.0) {
            return Err(fields.error("rms_norm_eps", "above 0 and below 1"));
        }
        let hidden = self.hidden_size;
        fields.check_elements("vocab_size * hidden_size", &[self.vocab_size, hidden])?;
        fields.check_elements("2 * intermediate_size * hidden_size", &[2, self.intermediate_size, hidden])?;
        fields.check_elements("num_attention_heads * head_dim * hidden_size", &[heads, dim, hidden])
    }
}
