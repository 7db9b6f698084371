"""float32 references from the EXPORTED files.  golden.py TARGET_DIR MTP_DIR [--tokens 128] [--quick]
Uses our own reference forward (`Ref` of tests/golden/qwen3_5/make_qwen3_5_goldens.py)."""
import sys, os, json, time, importlib.util
os.environ["HF_HUB_OFFLINE"] = "1"
import numpy as np, torch
spec = importlib.util.spec_from_file_location("mk", os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../tests/golden/qwen3_5/make_qwen3_5_goldens.py"))
mk = importlib.util.module_from_spec(spec); spec.loader.exec_module(mk)
import mlx.core as mx
from safetensors.torch import save_file
torch.set_grad_enabled(False); torch.set_num_threads(2)
TD, MD = sys.argv[1:3]; N = 128 if "--quick" not in sys.argv else 32
def unpack(d, prefix_from, prefix_to, plain_norm=".linear_attn.norm.weight"):
    """MLX file -> HF-layout float32 tensors (dequantised exactly: scale*q + bias in float32)"""
    t = mx.load(os.path.join(d, "model.safetensors")); out = {}
    for n, a in t.items():
        if n.endswith((".scales", ".biases")): continue
        base = n[:-7] if n.endswith(".weight") else n
        if base + ".scales" in t:
            p = np.array(a).astype(np.uint32); q = np.stack([(p >> np.uint32(4 * k)) & np.uint32(15) for k in range(8)], -1).reshape(p.shape[0], -1).astype(np.float32)
            s, b = (np.repeat(np.array(t[base + x].astype(mx.float32)), 64, 1) for x in (".scales", ".biases"))
            w = torch.from_numpy(q * s + b)
        else:
            w = torch.from_numpy(np.array(a.astype(mx.float32)))
            if n.endswith("conv1d.weight"): w = w.permute(0, 2, 1).contiguous()
            elif w.ndim == 1 and not n.endswith((plain_norm, "A_log", "dt_bias")): w = w - 1.0      # Ref wants zero-centred norms
        assert n.startswith(prefix_from); out[prefix_to + n[len(prefix_from):]] = w
    return out
cfg = json.load(open(TD + "/config.json")); tc = cfg["text_config"]
W = unpack(TD, "language_model.", ""); W.update(unpack(MD, "", "mtp."))
R = mk.Ref(W, tc, "model.", "lm_head.weight")
from tokenizers import Tokenizer
tk = Tokenizer.from_file(TD + "/tokenizer.json")
enc = lambda s: tk.encode(s, add_special_tokens=False).ids
EOS = {tk.token_to_id("<|im_end|>"), tk.token_to_id("<|endoftext|>")}
chat = lambda q: "<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n" % q
GOLD = json.load(open(os.environ["GOLD_PROMPTS"])) if "GOLD_PROMPTS" in os.environ else dict(
    prose="Once upon a time, there was a little boy named Sam. Sam lived on an island.",
    code=chat("Write a Rust function to check whether a number is prime."),
    enumeration=chat("Count from 1 to 40."),
    explain=chat("What is a Gated DeltaNet?"))
SPEC = json.load(open(os.environ["SPEC_PROMPTS"])) if "SPEC_PROMPTS" in os.environ else dict(
    story=chat("Write a short story about a fox named Leo."), code="use std::collections::HashMap;\n\n/// Counts the words of a text.\npub fn count_words(text: &str) -> HashMap<String, usize> {\n",
    prose="It was a bright cold morning, and the old man walked slowly along the road to the village.", list=chat("Give me a numbered list of six animals."), docs="# Reading files\n\nTo read a file in Python, use the built-in function")
def greedy(p, n):
    cache = R.new_cache(); h, _ = R.run(torch.tensor(p), cache); lg = [R.logits(h[-1])]; ids = [int(lg[0].argmax())]
    while len(ids) < n:
        h, _ = R.run(torch.tensor([ids[-1]]), cache); lg.append(R.logits(h[-1])); ids.append(int(lg[-1].argmax()))
    return ids, torch.stack(lg)
def spec_loop(p, K, n):
    """block width K: one certain token + K-1 drafts; exact head-cache policy"""
    cache, st = R.new_cache(), {}
    h, _ = R.run(torch.tensor(p), cache); b = int(R.logits(h[-1]).argmax()); out = [b]
    m = R.mtp(torch.tensor(p[1:] + [b]), h, st, torch.arange(len(p)))[-1:]; pos = len(p)      # pos: position of the certain token b
    prop = acc = rounds = 0; hist = [0] * K; first = None; lens = []
    while len(out) < n:
        d0 = int(R.logits(m[-1]).argmax()); dr = [d0]; hd = m; kv = {k: v for k, v in st.items()}
        for i in range(K - 2):
            hd = R.mtp(torch.tensor([dr[-1]]), hd, kv, torch.tensor([pos + i])); dr.append(int(R.logits(hd[-1]).argmax()))
        if first is None: first = dr[:]
        before = mk.clone_cache(cache)
        v, _ = R.run(torch.tensor([b] + dr), cache); top = R.logits(v).argmax(-1).tolist(); a = 0
        while a < K - 1 and dr[a] == top[a]: a += 1
        cache = mk.rollback(before, cache, a + 1, K)
        new = dr[:a] + [top[a]]; out += new; b = top[a]; rounds += 1; prop += K - 1; acc += a; hist[a] += 1; lens.append(a + 1)
        m = R.mtp(torch.tensor(new), v[:a + 1], st, torch.arange(pos, pos + a + 1))[-1:]; pos += a + 1
    return out[:n], dict(rounds=rounds, proposed=prop, accepted=acc, tokens_per_round=round(sum(lens) / rounds, 4), accepted_histogram=hist, first_drafts=first)
def main():
    t0 = time.time(); G, J = {}, dict(note="float32 CPU reference from the dequantised exported weights (scale*q+bias in float32). Greedy. EOS tokens do not stop the loops: counts and ids run to the full length.", vocab=tc["vocab_size"], eos_token_ids=sorted(EOS), prompts={}, speculative=dict(policy="exact head cache; K = verify rows = 1 certain token + K-1 drafts", tokens_per_prompt=N, by_K={}))
    for k, s in GOLD.items():
        p = enc(s); ids, lg = greedy(p, 64); top = lg.topk(2, -1).values; mar = (top[:, 0] - top[:, 1])
        G[k + ".prompt_ids"], G[k + ".continuation_ids"], G[k + ".logits"] = torch.tensor(p), torch.tensor(ids), lg[:8].contiguous()
        J["prompts"][k] = dict(text=s, prompt_ids=p, continuation_ids=ids, continuation_text=tk.decode(ids, skip_special_tokens=False), min_top2_margin=round(mar.min().item(), 4), min_top2_margin_at=int(mar.argmin()), margins_below_0_1=int((mar < .1).sum()))
        print(k, repr(J["prompts"][k]["continuation_text"]), J["prompts"][k]["min_top2_margin"], round(time.time() - t0), "s", flush=True)
    base = {}
    for k, s in SPEC.items(): base[k] = greedy(enc(s), N)[0]; print("SPEC", k, repr(tk.decode(base[k], skip_special_tokens=False)[:300]), flush=True)
    J["speculative"]["prompts"] = {k: dict(text=s, prompt_ids=enc(s), greedy_ids=base[k], greedy_text=tk.decode(base[k], skip_special_tokens=False)) for k, s in SPEC.items()}
    for K in (2, 3, 4, 8):
        per = {}; P = A = Rn = 0
        for k, s in SPEC.items():
            out, r = spec_loop(enc(s), K, N); r["lossless"] = out == base[k]; per[k] = r; P += r["proposed"]; A += r["accepted"]; Rn += r["rounds"]
        J["speculative"]["by_K"][str(K)] = dict(proposed=P, accepted=A, acceptance=round(A / P, 4), rounds=Rn, mean_accepted_length=round(A / Rn + 1, 4), all_lossless=all(r["lossless"] for r in per.values()), per_prompt=per)
        x = J["speculative"]["by_K"][str(K)]; print("K", K, {q: x[q] for q in x if q != "per_prompt"}, {k: r["tokens_per_round"] for k, r in per.items()}, round(time.time() - t0), "s", flush=True)
    if "--nowrite" not in sys.argv:
        save_file({k: v.contiguous() for k, v in G.items()}, TD + "/golden.safetensors"); json.dump(J, open(TD + "/golden.json", "w"), indent=1)
if __name__ == "__main__": main()
