"""Sizes of target and head, and their config.json."""

import dataclasses

MARKERS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<think>", "</think>")


@dataclasses.dataclass
class Config:
    """Sizes. Every `interval`-th layer has full attention, the others are Gated DeltaNet; the head is one full-attention layer."""

    vocab_size: int = 16384
    hidden_size: int = 384
    intermediate_size: int = 1024
    layers: int = 8
    interval: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 128
    rotary_dims: int = 32
    theta: float = 1e6
    key_heads: int = 4
    value_heads: int = 8
    key_dim: int = 64
    value_dim: int = 64
    conv_width: int = 4
    eps: float = 1e-6
    chunk: int = 64

    @property
    def keys_size(self):
        return self.key_heads * self.key_dim

    @property
    def values_size(self):
        return self.value_heads * self.value_dim

    def is_linear(self, layer):
        return (layer + 1) % self.interval != 0


SHAPES = {
    "demo": Config(),
    "toy": Config(vocab_size=1024, hidden_size=128, intermediate_size=128, layers=4, heads=2, kv_heads=1, head_dim=64, rotary_dims=32,
                  key_heads=1, value_heads=2),
}
KEEP_FLOAT32 = ("A_log",)


def is_matrix(name, parameter):
    """Which tensors are stored in 4 bits: all matrices but the two small ones that steer the delta rule."""
    return parameter.dim() == 2 and not name.endswith(("in_proj_a.weight", "in_proj_b.weight"))


def text_config(c, end_of_text):
    """The `text_config` of both folders; `end_of_text` is the id of that token."""
    rotated = c.rotary_dims / c.head_dim
    pairs = c.rotary_dims // 2
    section = [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3]
    return dict(
        model_type="qwen3_5_text", vocab_size=c.vocab_size, hidden_size=c.hidden_size, intermediate_size=c.intermediate_size,
        num_hidden_layers=c.layers, num_attention_heads=c.heads, num_key_value_heads=c.kv_heads, head_dim=c.head_dim,
        hidden_act="silu", max_position_embeddings=4096, initializer_range=0.02, rms_norm_eps=c.eps, use_cache=True,
        attention_bias=False, attention_dropout=0.0, attn_output_gate=True, output_gate_type="swish", tie_word_embeddings=True,
        full_attention_interval=c.interval,
        layer_types=["linear_attention" if c.is_linear(i) else "full_attention" for i in range(c.layers)],
        linear_conv_kernel_dim=c.conv_width, linear_key_head_dim=c.key_dim, linear_value_head_dim=c.value_dim,
        linear_num_key_heads=c.key_heads, linear_num_value_heads=c.value_heads, mamba_ssm_dtype="float32",
        mtp_num_hidden_layers=1, mtp_use_dedicated_embeddings=False, partial_rotary_factor=rotated,
        rope_parameters=dict(rope_type="default", rope_theta=c.theta, partial_rotary_factor=rotated, mrope_section=section,
                             mrope_interleaved=True),
        bos_token_id=None, eos_token_id=end_of_text, pad_token_id=end_of_text, dtype="bfloat16")


def target_config(c, end_of_text):
    """config.json of the target."""
    return dict(architectures=["Qwen3_5ForCausalLM"], model_type="qwen3_5", language_model_only=True,
                text_config=text_config(c, end_of_text), tie_word_embeddings=True, eos_token_id=end_of_text, dtype="bfloat16",
                transformers_version="5.24.0")


def head_config(c, end_of_text):
    """config.json of the multi-token-prediction head as a folder of its own."""
    return dict(model_type="qwen3_5_mtp", block_size=4, text_config=text_config(c, end_of_text), tie_word_embeddings=True,
                dtype="bfloat16")


def generation_config(end_of_turn, end_of_text):
    """generation_config.json of the target."""
    return dict(do_sample=True, eos_token_id=[end_of_turn, end_of_text], pad_token_id=end_of_text, temperature=0.6, top_k=20,
                top_p=0.95)
