// The speculation panel: how to decode, how fast it goes, how often drafts are right.

import { byId, make } from "./dom.js";
import { MAX_K, MIN_K } from "./state.js";
import { figures, Meter, percent, show } from "./stats.js";

/** The panel. `settings` is changed in place; `changed()` is called when it was. */
export class Panel {
  constructor(settings, changed) {
    this.settings = settings;
    this.speculation = null;
    this.meter = new Meter();
    byId("modes").addEventListener("change", (event) => {
      settings.mode = event.target.value;
      this.showMode();
      changed();
    });
    byId("k").addEventListener("input", (event) => {
      const k = Number(event.target.value);
      if (!Number.isInteger(k) || k < MIN_K || k > MAX_K) return;
      settings.k = k;
      changed();
    });
    // What is no width gives way to the last that was.
    byId("k").addEventListener("change", () => this.showMode());
    this.showMode();
  }

  /** Whether the server can draft; unknown is yes. */
  get available() {
    return this.speculation?.enabled !== false;
  }

  /** Shows what `/props` says of speculation. */
  describe(speculation) {
    this.speculation = speculation ?? null;
    byId("modes").disabled = !this.available;
    byId("compare").disabled = !this.available;
    const { enabled, kind, drafter, block_size: k, why } = speculation ?? {};
    const name = typeof drafter === "string" ? drafter.split("/").filter(Boolean).at(-1) : "";
    const on = [kind, name, Number.isInteger(k) ? `block size ${k}` : "K adapts"].filter(Boolean).join(" · ");
    byId("drafter").textContent = enabled === undefined ? "" : enabled ? on : `Off: ${why || "the server has no drafter"}`;
    this.showMode();
  }

  showMode() {
    const { mode, k } = this.settings;
    const shown = this.available ? mode : "off";
    for (const input of byId("modes").querySelectorAll("input")) input.checked = input.value === shown;
    byId("k-row").hidden = shown !== "fixed";
    byId("k").value = String(k);
    if (!this.running && !this.measured) byId("pill-text").textContent = { auto: "Auto", off: "Plain", fixed: `K = ${k}` }[shown];
  }

  /** A request begins. */
  start() {
    this.meter = new Meter();
    this.running = true;
    this.show({});
    byId("pill-text").textContent = "…";
  }

  /** The newest timings of the request. */
  push(timings) {
    const now = this.meter.push(timings);
    this.show(timings, now);
    if (now.perSecond) byId("pill-text").textContent = `${show(now.perSecond, 0)} tok/s`;
  }

  /** The request is over. */
  finish(timings) {
    this.running = false;
    const f = figures(timings ?? {});
    if (timings) this.show(timings, { perSecond: f.perSecond, width: f.width });
    this.measured = f.perSecond !== null;
    if (!this.measured) return this.showMode();
    const rate = f.drafted ? ` · ${show(100 * f.acceptance, 0)} %` : "";
    byId("pill-text").textContent = `${show(f.perSecond, 0)} tok/s${rate}`;
  }

  show(timings, now = { perSecond: null, width: null }) {
    const f = figures(timings);
    const text = {
      "speed-now": show(now.perSecond),
      "f-mean": show(f.perSecond, 1, " tok/s"),
      "f-width": show(now.width),
      "f-acceptance": percent(f.acceptance),
      "f-accepted-len": show(f.meanAccepted, 2),
      "f-per-round": show(f.tokensPerRound, 2),
      "f-drafts": f.rounds ? `${f.accepted} of ${f.drafted}` : "–",
      "f-rounds": f.rounds ? String(f.rounds) : "–",
      "f-prompt": f.promptTokens || f.cached ? `${f.promptTokens} + ${f.cached} cached` : "–",
    };
    for (const [id, value] of Object.entries(text)) byId(id).textContent = value;
    byId("f-prompt").title = f.promptPerSecond ? `${show(f.promptPerSecond)} tokens/s` : "";
    this.showDepths(f.depths);
    this.showSpark();
  }

  showDepths(shares) {
    byId("depth-section").hidden = shares.length === 0;
    const list = byId("depths");
    while (list.children.length > shares.length) list.lastChild.remove();
    shares.forEach((share, i) => {
      const row = list.children[i] ?? list.appendChild(make("li", {}, make("span"), bar(), make("span")));
      const [label, track, value] = row.children;
      label.textContent = String(i + 1);
      track.firstChild.style.width = `${100 * share}%`;
      value.textContent = percent(share);
    });
  }

  showSpark() {
    const speeds = this.meter.series.map((point) => point.perSecond);
    const most = Math.max(...speeds, 1);
    const step = 240 / Math.max(1, speeds.length - 1);
    const points = speeds.map((y, i) => `${(i * step).toFixed(1)},${(34 - (32 * y) / most).toFixed(1)}`);
    byId("spark").firstElementChild.setAttribute("points", speeds.length > 1 ? points.join(" ") : "");
  }
}

function bar() {
  return make("span", { class: "bar", "aria-hidden": "true" }, make("span"));
}

/** A comparison under way: how far each run is. */
export function showComparing(name, run) {
  const labels = { plain: "1 of 2: plain", drafted: "2 of 2: with drafts" };
  byId("compare-result").replaceChildren(make("p", { class: "faint" }, `${labels[name]}, ${run.timings?.predicted_n ?? 0} tokens…`));
}

/** A comparison's outcome. */
export function showComparison({ plain, drafted, speedup, verdict }, prompt) {
  const runs = [["Plain", plain], ["With drafts", drafted]];
  const speeds = runs.map(([, run]) => (run.timings && figures(run.timings).perSecond) || 0);
  const most = Math.max(...speeds, 1e-9);
  const rows = runs.map(([label], i) => {
    const track = bar();
    track.firstChild.style.width = `${(100 * speeds[i]) / most}%`;
    return make("li", {}, make("span", {}, label), track, make("span", {}, show(speeds[i], 1)));
  });
  const how = speedup === null ? "" : `${show(speedup, 2)}× the speed of plain decoding`;
  byId("compare-result").replaceChildren(
    make("ol", { class: "versus", "aria-label": "Tokens a second" }, rows),
    make("p", {}, make("strong", {}, how)),
    make("p", { class: verdict.identical ? "good" : "bad" }, verdictText(verdict, plain, drafted)),
    make("p", { class: "faint" }, `Prompt: ${prompt}`),
  );
}

function verdictText({ identical, at, count, why }, plain, drafted) {
  if (identical) return `Identical: all ${count} characters, ${plain.timings?.predicted_n ?? "?"} tokens.`;
  if (why) return `Different: ${why}. Please report it with the settings and the prompt.`;
  const near = (text) => JSON.stringify([...text].slice(at, at + 20).join(""));
  return `Different from character ${at + 1} on: ${near(plain.text)} and ${near(drafted.text)}. Please report it with the settings and the prompt.`;
}
