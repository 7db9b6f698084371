"""One run of a side, as {"prefill": tok/s, "decode": {context: tok/s}, "verify": {K: seconds}, ...}."""

import statistics

from common import BLOCK_CONTEXT, CONTEXTS, POSITIONS, PROMPT, TOKENS, WIDTHS, BenchError, output_of, parse_json

# Passes of a width in a run: three of each.
REPEAT = 3


def median_seconds(timed, what):
    seconds = timed["seconds"]
    if not seconds or not all(isinstance(s, (int, float)) and s > 0 for s in seconds):
        raise BenchError(f"{what}: seconds above 0 expected, found {seconds}")
    return statistics.median(seconds)


def by_width(rows, name):
    """{K: median seconds}, of rows as both programs write them."""
    found = {row["rows"]: median_seconds(row, f"{name}, {row['rows']} rows") for row in rows}
    if sorted(found) != WIDTHS or any(row["context"] != BLOCK_CONTEXT for row in rows):
        raise BenchError(f"{name}: blocks of {WIDTHS} rows behind {BLOCK_CONTEXT} positions expected, found "
                         f"{[(row['context'], row['rows']) for row in rows]}")
    return found


def parse_ours(parts):
    """A run of ours, of two outputs of `speculative_bench cost`: rates, and blocks."""
    rates, blocks = parts
    if rates["prefill"]["rows"] != PROMPT or [(d["context"], d["rows"]) for d in rates["decode"]] != [(c, TOKENS) for c in CONTEXTS]:
        raise BenchError(f"speculative_bench cost: a prompt of {PROMPT} and {TOKENS} steps behind {CONTEXTS} expected, found others")
    return {
        "prefill": PROMPT / median_seconds(rates["prefill"], "prefill"),
        "decode": {d["context"]: TOKENS / median_seconds(d, "decode") for d in rates["decode"]},
        "verify": by_width(blocks["verify"], "speculative_bench cost"),
        "about": {key: rates[key] for key in ("backend", "version", "commit", "device", "weight_bytes", "kv_bytes")},
    }


def parse_bench(tests, threads):
    """{(prompt, generated, depth): tok/s} of llama-bench's JSON."""
    found = {}
    for test in tests:
        if test["n_threads"] != threads:
            raise BenchError(f"llama-bench: {threads} threads expected, found {test['n_threads']}")
        samples = test["samples_ts"]
        if not samples or not all(s > 0 for s in samples):
            raise BenchError(f"llama-bench: rates above 0 expected, found {samples}")
        found[test["n_prompt"], test["n_gen"], test["n_depth"]] = statistics.median(samples)
    return found


def parse_theirs(prefill, decode, blocks, threads):
    """A run of theirs, of two outputs of llama-bench and one of peer_cost."""
    rates = parse_bench(prefill + decode, threads)
    wanted = {(PROMPT, 0, 0), *((0, TOKENS, context) for context in CONTEXTS)}
    if set(rates) != wanted:
        raise BenchError(f"llama-bench: tests (prompt, generated, depth) {sorted(wanted)} expected, found {sorted(rates)}")
    if blocks["threads"] != threads:
        raise BenchError(f"peer_cost: {threads} threads expected, found {blocks['threads']}")
    first = decode[0]
    return {
        "prefill": rates[PROMPT, 0, 0],
        "decode": {context: rates[0, TOKENS, context] for context in CONTEXTS},
        "verify": by_width(blocks["verify"], "peer_cost"),
        "about": {**{key: first[key] for key in ("flash_attn", "type_k", "type_v", "backends")},
                  "model": blocks["model"], "weight_bytes": blocks["model_bytes"]},
    }


def ours(bench, model, threads):
    """Measures ours once."""
    command = [bench, "cost", "--target", model, "--threads", str(threads), "--json"]
    rates = output_of([*command, "--prompt", str(PROMPT), "--contexts", ",".join(map(str, CONTEXTS)), "--tokens", str(TOKENS),
                       "--widths", "1", "--repeat", "1"])
    blocks = output_of([*command, "--prompt", "0", "--contexts", str(BLOCK_CONTEXT), "--tokens", "1",
                        "--block-context", str(BLOCK_CONTEXT), "--widths", ",".join(map(str, WIDTHS)), "--repeat", str(REPEAT)])
    return parse_ours([parse_json(text, "speculative_bench cost") for text in (rates, blocks)])


def theirs(peer, model, threads):
    """Measures theirs once."""
    command = [peer.program("llama-bench"), "-m", model, "-t", str(threads), "-r", "1", "-o", "json"]
    prefill = output_of([*command, "-p", str(PROMPT), "-n", "0"])
    decode = output_of([*command, "-p", "0", "-n", str(TOKENS), "-d", ",".join(map(str, CONTEXTS))])
    blocks = output_of([peer.cost, model, str(threads), str(BLOCK_CONTEXT), str(REPEAT), str(POSITIONS), *map(str, WIDTHS)])
    return parse_theirs(parse_json(prefill, "llama-bench"), parse_json(decode, "llama-bench"), parse_json(blocks, "peer_cost"), threads)


def in_turns(count, first, second):
    """[(A, B), ...]: both sides `count` times in the order A B B A A B B A."""
    pairs = []
    for turn in range(count):
        if turn % 2 == 0:
            a, b = first(), second()
        else:
            b, a = second(), first()
        pairs.append((a, b))
    return pairs
