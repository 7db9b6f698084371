// One prompt, decoded plainly and with drafts: the same answer, and how long each took.

import { compareTexts, figures } from "./stats.js";

/** Tokens of each run where the settings name no limit. */
const TOKENS = 256;

/** The two requests that differ in nothing but speculation. `seed` is for settings without one. */
export function comparedBodies(body, seed) {
  // Neither run may find its prompt in the cache because of the other.
  const common = { ...body, cache_prompt: false, seed: body.seed ?? seed, max_tokens: body.max_tokens ?? TOKENS };
  const drafted = body.speculative === "off" ? "auto" : body.speculative;
  return { plain: { ...common, speculative: "off" }, drafted: { ...common, speculative: drafted } };
}

/**
 * Runs both, one after the other.
 * @param chat (body) -> async iterable of chunks
 * @param onChunk ("plain"|"drafted", run so far) is told of every chunk
 * @returns {{plain, drafted, speedup, verdict}}
 */
export async function compare(body, seed, chat, onChunk = () => {}) {
  const bodies = comparedBodies(body, seed);
  const runs = {};
  for (const name of ["plain", "drafted"]) {
    const run = (runs[name] = { text: "", finish: null, timings: null });
    for await (const chunk of chat(bodies[name])) {
      absorb(run, chunk);
      onChunk(name, run);
    }
  }
  return { ...runs, speedup: speedup(runs), verdict: verdict(runs) };
}

function absorb(run, chunk) {
  const choice = chunk.choices?.[0];
  run.text += (choice?.delta?.reasoning_content ?? "") + (choice?.delta?.content ?? "");
  run.finish = choice?.finish_reason ?? run.finish;
  run.timings = chunk.timings ?? run.timings;
}

function speedup({ plain, drafted }) {
  const [before, after] = [plain, drafted].map((run) => run.timings && figures(run.timings).perSecond);
  return before && after ? after / before : null;
}

/** Whether the runs said the same, and ended for the same reason after as many tokens. */
function verdict({ plain, drafted }) {
  const texts = compareTexts(plain.text, drafted.text);
  if (!texts.identical) return texts;
  if (plain.finish !== drafted.finish) return { ...texts, identical: false, why: `ended by “${plain.finish}” and “${drafted.finish}”` };
  const [a, b] = [plain.timings?.predicted_n, drafted.timings?.predicted_n];
  return a === b ? texts : { ...texts, identical: false, why: `${a} and ${b} tokens` };
}
