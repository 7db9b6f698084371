import assert from "node:assert/strict";
import { test } from "node:test";

import { compare, comparedBodies } from "../compare.js";
import { compareTexts, depths, figures, Meter, percent, show } from "../stats.js";

test("figures of a request", () => {
  // 25 rounds of 3 drafts, 50 accepted, then 24 plain steps: 1 + 25 + 50 + 24 tokens.
  const f = figures({ predicted_n: 100, predicted_per_second: 80, draft_n: 75, draft_n_accepted: 50, draft_rounds: 25, draft_accepted_by_depth: [25, 15, 10, 0, 0] });
  assert.equal(f.acceptance, 50 / 75);
  assert.equal(f.meanAccepted, 2);
  assert.equal(f.tokensPerRound, 3);
  assert.equal(f.width, 1 + 75 / 49);
  assert.deepEqual(f.depths, [1, 0.6, 0.4]);
  const plain = figures({ predicted_n: 100, predicted_per_second: 50 });
  assert.deepEqual([plain.acceptance, plain.meanAccepted, plain.tokensPerRound, plain.width], [null, null, null, 1]);
  const none = figures({});
  assert.deepEqual([none.perSecond, none.width, none.tokens], [null, null, 0]);
  // An answer cut inside its only block has accepted more than it emitted.
  assert.ok(figures({ predicted_n: 2, draft_n: 15, draft_n_accepted: 15, draft_rounds: 1 }).width === 16);
});

test("depths are shares of rounds, whatever comes", () => {
  assert.deepEqual(depths(undefined, 3), []);
  assert.deepEqual(depths([1], 0), []);
  assert.deepEqual(depths([9, null, "x", -1, 1], 2), [1, 0, 0, 0, 0.5]);
});

test("the meter sees the last moments", () => {
  const meter = new Meter(1000);
  let last;
  for (let i = 0; i <= 40; i += 1) last = meter.push({ predicted_n: 1 + 5 * i, predicted_ms: 100 * i });
  assert.equal(last.perSecond, 50);
  assert.equal(last.width, 1);
  for (let i = 1; i <= 20; i += 1) {
    last = meter.push({ predicted_n: 201 + 8 * i, predicted_ms: 4000 + 100 * i, draft_n: 6 * i, draft_n_accepted: 6 * i, draft_rounds: 2 * i });
  }
  assert.equal(last.perSecond, 80);
  assert.equal(last.width, 4);
  assert.deepEqual(new Meter().push({ predicted_n: 1, predicted_ms: 0 }), { perSecond: null, width: null });
});

test("texts are compared by character", () => {
  assert.deepEqual(compareTexts("a👩b", "a👩b"), { identical: true, at: -1, count: 3 });
  assert.deepEqual(compareTexts("a👩b", "a👩"), { identical: false, at: 2, count: 3 });
  assert.equal(compareTexts("é", "e\u0301").identical, false);
});

test("figures for people", () => {
  assert.deepEqual([show(null), show(NaN), show(1234.56), show(2, 0, " x")], ["–", "–", "1,234.6", "2 x"]);
  assert.deepEqual([percent(null), percent(1), percent(0), percent(0.123)], ["–", "100 %", "0 %", "12.3 %"]);
});

/** A server whose answer to a request is `answer(body)`: {text, speed, finish, tokens}. */
function server(answer) {
  return async function* (body) {
    const { text, speed, finish = "stop", tokens = 9 } = answer(body);
    for (const c of text) yield { choices: [{ delta: { content: c }, finish_reason: null }] };
    yield { choices: [{ delta: {}, finish_reason: finish }], timings: { predicted_n: tokens, predicted_per_second: speed } };
    yield { choices: [], usage: {} };
  };
}

test("a comparison changes nothing but speculation", async () => {
  const bodies = comparedBodies({ speculative: { block_size: 4 }, temperature: 1, cache_prompt: true }, 5);
  assert.deepEqual({ ...bodies.plain, speculative: 0 }, { ...bodies.drafted, speculative: 0 });
  assert.deepEqual([bodies.plain.speculative, bodies.drafted.speculative], ["off", { block_size: 4 }]);
  assert.deepEqual([bodies.plain.seed, bodies.plain.max_tokens, bodies.plain.cache_prompt], [5, 256, false]);
  assert.equal(comparedBodies({ seed: 1, speculative: "off" }, 5).drafted.speculative, "auto");
  assert.equal(comparedBodies({ seed: 1 }, 5).plain.seed, 1);
  const asked = [];
  const same = server((body) => (asked.push(body.speculative), { text: "same 👩", speed: body.speculative === "off" ? 10 : 25 }));
  const result = await compare({ speculative: "auto" }, 1, same);
  assert.deepEqual(asked, ["off", "auto"]);
  assert.equal(result.speedup, 2.5);
  assert.deepEqual(result.verdict, { identical: true, at: -1, count: 6 });
});

test("a comparison finds any difference", async () => {
  const other = (change) => server((body) => ({ text: "text", speed: 1, ...(body.speculative !== "off" && change) }));
  const verdict = async (change) => (await compare({ speculative: "auto" }, 1, other(change))).verdict;
  assert.equal((await verdict({})).identical, true);
  assert.equal((await verdict({ text: "texT" })).at, 3);
  assert.match((await verdict({ finish: "length" })).why, /length/);
  assert.match((await verdict({ tokens: 8 })).why, /9 and 8/);
  assert.equal((await compare({ speculative: "auto" }, 1, other({ speed: NaN }))).speedup, null);
});
