// What the figures of a request come to. K counts the certain token and the drafts of a round; K = 1 is plain decoding.

/**
 * Figures of a request so far, from the server's timings. Rates that cannot be told yet are null.
 *
 * steps = passes through the model after the prompt: each emits one token of its own and the drafts it accepts.
 */
export function figures(t) {
  const drafted = t.draft_n ?? 0;
  const accepted = t.draft_n_accepted ?? 0;
  const rounds = t.draft_rounds ?? 0;
  const predicted = t.predicted_n ?? 0;
  const steps = Math.max(rounds, predicted - 1 - accepted);
  return {
    tokens: predicted,
    perSecond: positive(t.predicted_per_second),
    promptTokens: t.prompt_n ?? 0,
    promptPerSecond: positive(t.prompt_per_second),
    cached: t.cache_n ?? 0,
    drafted,
    accepted,
    rounds,
    acceptance: ratio(accepted, drafted),
    meanAccepted: ratio(accepted, rounds),
    tokensPerRound: rounds ? 1 + accepted / rounds : null,
    width: steps > 0 ? 1 + drafted / steps : null,
    depths: depths(t.draft_accepted_by_depth, rounds),
  };
}

function positive(x) {
  return Number.isFinite(x) && x > 0 ? x : null;
}

function ratio(a, b) {
  return b > 0 ? a / b : null;
}

/** For each depth the share of rounds whose draft there was accepted, 0 to 1; nothing after the last accepted one. */
export function depths(counts, rounds) {
  if (!Array.isArray(counts) || !(rounds > 0)) return [];
  const shares = counts.map((n) => Math.min(1, Math.max(0, Number(n) / rounds || 0)));
  while (shares.length && shares.at(-1) === 0) shares.pop();
  return shares;
}

/** Speed and width over the last moments of a stream. */
export class Meter {
  /** @param {number} window milliseconds of decoding to look back on */
  constructor(window = 1000) {
    this.window = window;
    this.points = [];
    this.series = [];
  }

  /** Takes the timings of the newest chunk; returns {perSecond, width} of now, null where unknown. */
  push(t) {
    this.points.push(t);
    const newest = t.predicted_ms;
    // The oldest point kept is the last one at least a window ago.
    while (this.points.length > 2 && newest - this.points[1].predicted_ms >= this.window) this.points.shift();
    const then = this.points[0];
    const ms = newest - then.predicted_ms;
    const tokens = t.predicted_n - then.predicted_n;
    if (!(ms > 0) || !(tokens > 0)) return this.series.at(-1) ?? { perSecond: null, width: null };
    const accepted = (t.draft_n_accepted ?? 0) - (then.draft_n_accepted ?? 0);
    const rounds = (t.draft_rounds ?? 0) - (then.draft_rounds ?? 0);
    const steps = Math.max(1, rounds, tokens - accepted);
    const now = {
      perSecond: (1000 * tokens) / ms,
      width: 1 + ((t.draft_n ?? 0) - (then.draft_n ?? 0)) / steps,
    };
    this.series.push(now);
    if (this.series.length > 240) this.series = this.series.filter((_, i) => i % 2);
    return now;
  }
}

/**
 * Whether two answers are one: {identical, at, count}; `at` is the first character that differs, `count` the characters of
 * the longer. Characters are code points, so that no pair is split.
 */
export function compareTexts(a, b) {
  const [left, right] = [[...a], [...b]];
  const count = Math.max(left.length, right.length);
  for (let at = 0; at < count; at += 1) if (left[at] !== right[at]) return { identical: false, at, count };
  return { identical: true, at: -1, count };
}

/** A figure for people: "–" where there is none. */
export function show(x, digits = 1, unit = "") {
  if (x === null || x === undefined || !Number.isFinite(x)) return "–";
  return x.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }) + unit;
}

/** A share as a percentage. */
export function percent(x) {
  return x === null || x === undefined ? "–" : show(100 * x, x > 0.9995 || x === 0 ? 0 : 1, " %");
}
