"""MODEL_CARD.md of both folders.  card.py TARGET_DIR MTP_DIR TARGET_INFO.json MTP_INFO.json MANIFEST.json"""
import sys, os, json
TD, MD, ti, mi, mf = sys.argv[1:6]
I, M, C, J = json.load(open(ti)), json.load(open(mi)), json.load(open(mf)), json.load(open(TD + "/golden.json"))
used = [s for s in C["sources"] if s["name"] != "chitchat" and s["clean_bytes"]]
src = "| source | package | licence | MB |\n| --- | --- | --- | --- |\n" + "\n".join("| %s (%s) | %s, %s | %s | %.1f |" % (s["name"], s["domain"], s["package"], s["version"], s["licence"], s["clean_bytes"] / 1e6) for s in used)
src += "\n| tool chats | tools_synth.py | own work | made on the fly |\n| demo questions, enumerations | demo_qa.py | own work | 2.5 |"
b, f = I["before_qat"], I["final_4bit"]
tab = "| held-out text | bf16 before 4-bit training | same, rounded to 4 bits | final 4-bit |\n| --- | --- | --- | --- |\n" + "\n".join("| %s | %.3f | %.3f | %.3f |" % (k, b["bf16"][k], b["rounded_to_4bit"][k], f[k]) for k in f)
acc = "| K (verify rows) | proposed | accepted | acceptance | tokens per target forward |\n| --- | --- | --- | --- | --- |\n" + "\n".join("| %s | %d | %d | %.3f | %.2f |" % (k, v["proposed"], v["accepted"], v["acceptance"], v["mean_accepted_length"]) for k, v in J["speculative"]["by_K"].items())
lic = """The weights are our own work and carry the licence of the project that ships them. Training text is public domain, permissively licensed or our own; WordNet text was used under the WordNet 3.0 licence (Copyright 2006 by Princeton University), documentation under PSF-2.0, PostgreSQL, BSD, MIT and Apache-2.0 terms. Exact versions of crates, wheels and npm packages: `tools/train/corpus/{crates,pypi,npm}.tsv`. No weights, tokenizers or texts of any published model were used; only the architecture is that of Qwen 3.5. Not made or endorsed by the Qwen team."""
card = f"""# qwen3.5-tiny-4bit

A tiny language model with the Qwen 3.5 text architecture (6 Gated DeltaNet + 2 gated full-attention layers), trained from scratch so that an inference engine can ship a real checkpoint for demonstrations and tests. MLX layout, affine 4 bits, group 64.

**What to expect.** {I['params']/1e6:.1f} M parameters and {I['tokens']/1e6:.0f} M training tokens: this is a demo. It follows the chat format, ends its turns, writes simple children's stories, short lists, counting, small JSON, canned code and tool calls of the kinds it saw. It knows almost nothing, calculates unreliably, invents facts and definitions, drifts in long texts and loops under greedy decoding of open prose. Greedy story openings often fall into the same few plots ("wanted to make a tree house"); sampling at 0.6 to 0.8 varies them. English only. Do not use it for anything that matters.

| | |
| --- | --- |
| hidden 384, 8 layers, MLP 1024 | attention: 4 query / 2 kv heads x 128, rotary on 32 dims, output gate |
| delta-net: 4 key / 8 value heads x 64, conv 4 | tied embedding, vocabulary 16384 (own byte-level BPE, Qwen split rule, NFC) |
| trained at 1024 tokens | longer contexts are untested |

**Recipe** (tools/train/qwen3_5). One H200, {I['seconds']/60:.1f} minutes, {I['steps']} steps of {I['batch']} x {I['T']} tokens, bf16 with float32 masters; Muon (lr {I['lr_muon']}) for matrices, Adam for the rest; constant rate, then linear decay from {I['decay_from']:.0%} of the time; from {I['qat_from']:.0%} on every step ran with the 4-bit values of all quantised matrices (straight-through). `in_proj_a`, `in_proj_b`, conv1d, norms, `dt_bias` stay bf16 and `A_log` float32. Chat rows carry no, an empty or a one-sentence `<think>` block.

Cross-entropy per token (nats, own tokenizer):

{tab}

**Speculative decoding** with `qwen3.5-tiny-mtp-4bit`, greedy, float32 reference loop, 5 prompts x {J['speculative']['tokens_per_prompt']} tokens (golden.json):

{acc}

`golden.safetensors` / `golden.json`: prompts, 64 greedy ids and float32 logits from the dequantised weights (scale*q+bias in float32). Checked with mlx-lm 0.32.2 on CPU: float32 scales and activations give the same 64 ids for all four prompts and logits within 3e-5; bf16 (the stored type) gives the same 64 ids for code, enumeration and explain, leaves the prose path after 14 ids (top-2 margin below 0.1) and differs by up to 1.3 in single logits. Test float32 paths against the logits, bf16 paths against the ids of the wide-margin prompts. The mlx-vlm 0.7.10 `qwen3_5_mtp` drafter (float32 activations) gives the same seven first drafts for all five prompts.

## Data and licences

{src}

{lic}
"""
open(TD + "/MODEL_CARD.md", "w").write(card)
open(MD + "/MODEL_CARD.md", "w").write(f"""# qwen3.5-tiny-mtp-4bit

The multi-token-prediction head (one gated full-attention layer, {M['params']/1e6:.2f} M parameters) of `qwen3.5-tiny-4bit` as a stand-alone drafter in the mlx-vlm `qwen3_5_mtp` layout, affine 4 bits, group 64. It uses the target's embedding and LM head and is useless without that target.

**Recipe.** Trained for {M['seconds']:.0f} seconds ({M['steps']} steps of {M['batch']} x {M['N']} tokens) on one H200 on the frozen 4-bit target: {M['J']} draft steps unrolled as at inference (own KV rows, fed-back hidden after the final norm, position of the hidden), half cross-entropy on the target's argmax and half KL to its distribution, 83 % of the rows on text that the target itself wrote ({M['generated_tokens']/1e6:.1f} M tokens with prompts, greedy), 17 % on the corpus; straight-through 4 bits in the last 40 %.

Held-out greedy continuations, share of positions with the first 1..{M['J']} drafts all right: bf16 {M['held_bf16']['chain']}, 4-bit {M['held_4bit']['chain']}.

Reference loop (5 prompts x {J['speculative']['tokens_per_prompt']} tokens, greedy, exact head cache; K counts the certain token):

{acc}

Acceptance is high partly because a tiny model writes predictable text; do not compare with real models.

Data and licences: see the card of the target.

{lic}
""")
