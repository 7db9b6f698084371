"""SmolLM2's GGUF file as a checkpoint in transformers' layout, in float32.

Written against the `gguf` package and llama.cpp's naming, and independent of mlxcel's own importer: the two check each other.
"""

import json
import os

import gguf
import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

BLOCK = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
CONTROL = 3  # token type of the special tokens


def metadata(reader):
    return {key: field.contents() for key, field in reader.fields.items()}


def hf_name(name):
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`."""
    stem = name.removesuffix(".weight")
    if stem in TOP:
        return f"{TOP[stem]}.weight"
    _, layer, part = stem.split(".")
    return f"model.layers.{layer}.{BLOCK[part]}.weight"


def unpermute(weight, heads):
    """Rows of q or k as rotary embedding by halves wants them.

    llama.cpp rotates neighbours (2i, 2i + 1), transformers and MLX rotate (i, i + d/2): GGUF files hold each head's rows
    interleaved, (d/2, 2), where the original has (2, d/2).
    """
    rows, width = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, width).swapaxes(1, 2).reshape(rows, width)


def weights(reader, meta):
    """{name: float32 array}."""
    heads = {"attn_q": meta["llama.attention.head_count"], "attn_k": meta["llama.attention.head_count_kv"]}
    out = {}
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        values = values.reshape([int(n) for n in reversed(tensor.shape)])
        part = tensor.name.split(".")[-2]
        if part in heads:
            values = unpermute(values, heads[part])
        out[hf_name(tensor.name)] = np.ascontiguousarray(values)
    return out


def config(meta):
    """config.json. `rms_norm_eps` is the shortest decimal of the stored float32."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": meta["llama.embedding_length"],
        "intermediate_size": meta["llama.feed_forward_length"],
        "num_hidden_layers": meta["llama.block_count"],
        "num_attention_heads": meta["llama.attention.head_count"],
        "num_key_value_heads": meta["llama.attention.head_count_kv"],
        "head_dim": meta["llama.rope.dimension_count"],
        "hidden_act": "silu",
        "rms_norm_eps": float(str(np.float32(meta["llama.attention.layer_norm_rms_epsilon"]))),
        "rope_theta": float(meta["llama.rope.freq_base"]),
        "rope_scaling": None,
        "max_position_embeddings": meta["llama.context_length"],
        "vocab_size": meta["llama.vocab_size"],
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
        "pad_token_id": meta["tokenizer.ggml.padding_token_id"],
        "torch_dtype": "float32",
    }


def tokenizer(meta):
    """SmolLM2's tokenizer: byte-level BPE in which each digit stands alone."""
    assert (meta["tokenizer.ggml.model"], meta["tokenizer.ggml.pre"]) == ("gpt2", "smollm"), "another tokenizer"
    tokens = meta["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in meta["tokenizer.ggml.merges"]]
    out = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    out.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ])  # fmt: skip
    out.decoder = decoders.ByteLevel()
    kinds = zip(tokens, meta["tokenizer.ggml.token_type"])
    out.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, kind in kinds if kind == CONTROL])
    return out


def tokenizer_config(meta):
    tokens = meta["tokenizer.ggml.tokens"]
    named = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{f"{short}_token": tokens[meta[f"tokenizer.ggml.{long}_token_id"]] for short, long in named.items()},
        "add_bos_token": meta["tokenizer.ggml.add_bos_token"],
        "add_prefix_space": meta["tokenizer.ggml.add_space_prefix"],
        "clean_up_tokenization_spaces": False,
        "model_max_length": meta["llama.context_length"],
        "chat_template": meta["tokenizer.chat_template"],
    }


def write(path, out):
    """Writes the checkpoint of the GGUF file `path` into the directory `out`."""
    reader = gguf.GGUFReader(path)
    meta = metadata(reader)
    os.makedirs(out, exist_ok=True)
    for name, content in (("config.json", config(meta)), ("tokenizer_config.json", tokenizer_config(meta))):
        with open(os.path.join(out, name), "w", encoding="utf-8") as f:
            json.dump(content, f, indent=2, ensure_ascii=False)
            f.write("\n")
    tokenizer(meta).save(os.path.join(out, "tokenizer.json"))
    save_file(weights(reader, meta), os.path.join(out, "model.safetensors"), metadata={"format": "pt"})
