"""Sizes of target and drafter, and their config.json."""

import dataclasses
import sys

SLIDING, FULL = "sliding_attention", "full_attention"
PAD, EOS, BOS, TURN, END_OF_TURN, NEWLINE = 0, 1, 2, 105, 106, 107  # fixed ids of the tokenizer
SLIDING_THETA, FULL_THETA, FULL_ROTATED = 1e4, 1e6, 0.25


@dataclasses.dataclass
class Config:
    """The target's sizes, and with `draft_` the drafter's; the head sizes and KV heads are those of both."""

    vocab_size: int = 16384
    hidden_size: int = 384
    intermediate_size: int = 896
    heads: int = 6
    head_dim: int = 64
    full_head_dim: int = 128
    kv_heads: int = 2
    full_kv_heads: int = 1
    window: int = 256
    layer_types: tuple = (SLIDING, SLIDING, SLIDING, SLIDING, FULL) * 2
    eps: float = 1e-6
    logit_cap: float = 30.0
    draft_hidden_size: int = 128
    draft_intermediate_size: int = 640
    draft_heads: int = 4
    draft_layer_types: tuple = (SLIDING, SLIDING, SLIDING, FULL)

    def __post_init__(self):
        self.layer_types, self.draft_layer_types = tuple(self.layer_types), tuple(self.draft_layer_types)


SHAPES = {
    "demo": Config(),
    "toy": Config(vocab_size=1536, hidden_size=128, intermediate_size=256, heads=4, head_dim=32, full_head_dim=64, kv_heads=2,
                  window=48, layer_types=(SLIDING, SLIDING, FULL), draft_hidden_size=64, draft_intermediate_size=128, draft_heads=2,
                  draft_layer_types=(SLIDING, FULL)),
}


def is_matrix(name, parameter):
    """Which tensors are stored in 4 bits: all matrices, the embedding included."""
    return parameter.dim() == 2


def _text_config(c, drafter):
    layer_types = c.draft_layer_types if drafter else c.layer_types
    return {
        "attention_bias": False, "attention_dropout": 0.0, "attention_k_eq_v": True, "bos_token_id": BOS, "dtype": "bfloat16",
        "enable_moe_block": False, "eos_token_id": EOS, "final_logit_softcapping": None if drafter else c.logit_cap,
        "global_head_dim": c.full_head_dim, "head_dim": c.head_dim, "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": c.draft_hidden_size if drafter else c.hidden_size, "hidden_size_per_layer_input": 0,
        "initializer_range": 0.02, "intermediate_size": c.draft_intermediate_size if drafter else c.intermediate_size,
        "layer_types": list(layer_types), "max_position_embeddings": 2048, "model_type": "gemma4_text",
        "moe_intermediate_size": None, "num_attention_heads": c.draft_heads if drafter else c.heads, "num_experts": None,
        "num_global_key_value_heads": c.full_kv_heads, "num_hidden_layers": len(layer_types), "num_key_value_heads": c.kv_heads,
        "num_kv_shared_layers": len(layer_types) if drafter else 0, "pad_token_id": PAD, "rms_norm_eps": c.eps,
        "rope_parameters": {FULL: {"partial_rotary_factor": FULL_ROTATED, "rope_theta": FULL_THETA, "rope_type": "proportional"},
                            SLIDING: {"rope_theta": SLIDING_THETA, "rope_type": "default"}},
        "sliding_window": c.window, "tie_word_embeddings": True, "top_k_experts": None, "use_bidirectional_attention": None,
        "use_cache": True, "use_double_wide_mlp": False, "vocab_size": c.vocab_size, "vocab_size_per_layer_input": 0,
    }


def target_config(c):
    """config.json of the target, in the form of the public checkpoints (a text model in the multimodal wrapper)."""
    return {"architectures": ["Gemma4ForConditionalGeneration"], "audio_config": None, "bos_token_id": BOS, "dtype": "bfloat16",
            "eos_token_id": [EOS, END_OF_TURN], "initializer_range": 0.02, "model_type": "gemma4", "pad_token_id": PAD,
            "text_config": _text_config(c, False), "tie_word_embeddings": True, "transformers_version": "5.24.0",
            "vision_config": None, "vocab_size": c.vocab_size}


def drafter_config(c):
    """config.json of the drafter."""
    return {"architectures": ["Gemma4AssistantForCausalLM"], "backbone_hidden_size": c.hidden_size, "block_size": 4,
            "centroid_intermediate_top_k": 32, "dtype": "bfloat16", "model_type": "gemma4_assistant", "num_centroids": 2048,
            "text_config": _text_config(c, True), "tie_word_embeddings": True, "transformers_version": "5.24.0",
            "use_ordered_embeddings": False}


def target_generation_config():
    """generation_config.json of the target."""
    return {"bos_token_id": BOS, "do_sample": True, "eos_token_id": [EOS, END_OF_TURN], "pad_token_id": PAD, "temperature": 0.7,
            "top_k": 64, "top_p": 0.95, "transformers_version": "5.24.0"}


def drafter_generation_config():
    """generation_config.json of the drafter."""
    return {"bos_token_id": BOS, "eos_token_id": [EOS, END_OF_TURN], "pad_token_id": PAD, "num_assistant_tokens": 3,
            "num_assistant_tokens_schedule": "constant", "transformers_version": "5.24.0"}


def read_config(target, drafter):
    """The sizes back out of two config.json (as dicts)."""
    t, d = target["text_config"], drafter["text_config"]
    if target.get("model_type") != "gemma4" or drafter.get("model_type") != "gemma4_assistant":
        sys.exit("config.json: model_type gemma4 expected of the target and gemma4_assistant of the drafter, found "
                 f"{target.get('model_type')} and {drafter.get('model_type')}: check the order of the folders")
    return Config(
        vocab_size=t["vocab_size"], hidden_size=t["hidden_size"], intermediate_size=t["intermediate_size"],
        heads=t["num_attention_heads"], head_dim=t["head_dim"], full_head_dim=t["global_head_dim"], kv_heads=t["num_key_value_heads"],
        full_kv_heads=t["num_global_key_value_heads"], window=t["sliding_window"], layer_types=t["layer_types"],
        logit_cap=t["final_logit_softcapping"], draft_hidden_size=d["hidden_size"], draft_intermediate_size=d["intermediate_size"],
        draft_heads=d["num_attention_heads"], draft_layer_types=d["layer_types"])
