// The page in headless Chromium against mlxcel-server with the embedded demo. MLXCEL_SERVER names the program.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { Browser } from "./chromium.js";
import { ANSWER, count, LAST, reader, strays, value } from "./reader.js";

const PROGRAM = process.env.MLXCEL_SERVER;
const ROOT = new URL("../../../../", import.meta.url).pathname;
const QUESTION = "What is speculative decoding?";
const cache = mkdtempSync(join(tmpdir(), "page-demo-"));
let browser;
before(async () => PROGRAM && (browser = await Browser.start()));
after(() => Promise.all([browser?.close(), rmSync(cache, { recursive: true, force: true })]));

/** Starts the server on a free port; {origin, close}. */
async function startDemo(...flags) {
  const child = spawn(PROGRAM, ["--port", "0", "-np", "8", "-c", "1024", ...flags], {
    cwd: ROOT,
    stdio: ["ignore", "ignore", "pipe"],
    env: { ...process.env, MLXCEL_CACHE_DIR: cache },
  });
  const ended = new Promise((resolve) => child.on("exit", resolve));
  let log = "";
  const origin = await new Promise((resolve, reject) => {
    child.stderr.setEncoding("utf8").on("data", (piece) => {
      log += piece;
      // Written piece by piece: the address is whole when something follows it.
      const found = /listening on (http:\/\/[\d.]+:\d+)\D/.exec(log);
      if (found) resolve(found[1]);
    });
    child.on("exit", (code) => reject(new Error(`the server ended with ${code}:\n${log}`)));
    child.on("error", reject);
  });
  const close = async () => {
    child.kill("SIGTERM");
    const timer = setTimeout(() => child.kill("SIGKILL"), 10000);
    await ended;
    clearTimeout(timer);
  };
  const slots = async () => (await (await fetch(`${origin}/slots`)).json()).filter((slot) => slot.is_processing).length;
  return { origin, close, slots };
}

function demoTest(name, flags, body) {
  test(name, { timeout: 60000, skip: !PROGRAM && "no MLXCEL_SERVER: cargo build --release -p mlxcel-cli, then tools/page_test.sh" }, async () => {
    const server = await startDemo(...flags);
    const page = reader(await browser.open(`${server.origin}/`));
    try {
      await page.ready();
      // Asked for once while the model was being loaded, perhaps.
      const complaints = page.errors.filter((error) => !/503/.test(error)).length;
      assert.equal(complaints, 0, page.errors.join());
      await body(page, server);
      assert.deepEqual(strays(page, server.origin), []);
      assert.deepEqual(page.errors.filter((error) => !/503/.test(error)), []);
    } finally {
      await page.close();
      await server.close();
    }
  });
}

/** Keeps six other slots busy, so that answers take their time; a function that ends it. */
function crowd({ origin }) {
  const controller = new AbortController();
  const body = JSON.stringify({ prompt: "Once upon a time", max_tokens: 900, ignore_eos: true, stream: true, speculative: "off" });
  const all = Array.from({ length: 6 }, async () => {
    const answer = await fetch(`${origin}/v1/completions`, { method: "POST", body, signal: controller.signal });
    for await (const piece of answer.body) void piece;
  });
  return () => (controller.abort(), Promise.allSettled(all));
}

/** Types settings, each empty before. */
async function set(page, values) {
  await page.click("#settings-open");
  for (const [name, text] of Object.entries(values)) {
    await page.eval(`document.getElementById("set-${name}").select()`);
    await page.type(text);
  }
  await page.press("Done");
}

async function idle(server) {
  for (let i = 0; (await server.slots()) && i < 200; i += 1) await new Promise((resolve) => setTimeout(resolve, 10));
  assert.equal(await server.slots(), 0);
}

/** Decodes in a way and says what a question is answered with, once it is. */
async function answer(page, mode, text) {
  await page.eval(`document.querySelector("[name=mode][value=${mode}]").click()`);
  await page.click("#new-chat");
  await page.ask(text);
  await page.until(`${LAST}.querySelector(".cost")`, "the answer's figures");
  return page.eval(`${ANSWER}.textContent`);
}

demoTest("the demo answers in the page", [], async (page, server) => {
  assert.match(await page.eval(value("status")), /^1,024 tokens of context$/);
  assert.match(await page.eval(value("drafter")), /^mtp · .*assistant.* · K adapts$/);
  await set(page, { temperature: "0", max_tokens: "120" });
  // Lengths of the answer as it grows, and the speeds shown meanwhile.
  await page.eval(`window.seen = []; new MutationObserver(() => { if (!document.getElementById("stop").hidden && document.querySelector(".assistant")) window.seen.push([${ANSWER}.textContent.length, ${value("speed-now")}]); }).observe(document.body, { childList: true, subtree: true, characterData: true }); 0`);
  const leave = crowd(server);
  await page.write("Tell me a story.");
  await page.until(`${LAST}.querySelector(".cost")`, "the answer");
  await leave();
  const seen = await page.eval("window.seen");
  const lengths = new Set(seen.map(([length]) => length).filter((length) => length > 0));
  assert.ok(lengths.size >= 3, `the answer came in ${lengths.size} pieces`);
  assert.ok(seen.some(([, speed]) => /^[\d,.]+$/.test(speed)), "no speed while it came");
  assert.match(await page.eval(`${LAST}.querySelector(".cost").textContent`), /^\d+ tokens · [\d.,]+ tokens\/s · [\d.]+ % of drafts accepted$/);
  assert.match(await page.eval(value("f-mean")), /^[\d,.]+ tok\/s$/);
  assert.match(await page.eval(value("f-acceptance")), /^[\d.]+ %$/);
  assert.match(await page.eval(value("f-drafts")), /^\d+ of \d+$/);
  assert.match(await page.eval(value("f-prompt")), /^\d+ \+ \d+ cached$/);
  // Bars by depth, where the server counts them.
  const counted = await page.eval(`JSON.parse(localStorage.getItem(Object.keys(localStorage).find((k) => k.startsWith("mlxcel.chat.")))).messages.at(-1).timings.draft_accepted_by_depth?.length > 0`);
  assert.equal((await page.eval(count("#depths li"))) > 0, counted);
  const first = await page.eval(`${ANSWER}.textContent`);
  await page.press("Regenerate");
  await page.until(`${LAST}.querySelector(".cost") && document.getElementById("stop").hidden && ${ANSWER}.textContent.length > 40`, "another answer");
  assert.equal(await page.eval(`${ANSWER}.textContent`), first, "greedy answers are one");
  await page.shoot("demo");
  await idle(server);
});

demoTest("drafts change the speed and not the answer", [], async (page) => {
  for (const values of [{ temperature: "0", max_tokens: "60" }, { temperature: "0.9", seed: "7" }]) {
    await set(page, values);
    const plain = await answer(page, "off", QUESTION);
    assert.match(await page.eval(`${LAST}.querySelector(".cost").textContent`), /plain$/);
    assert.equal(await page.eval(value("f-width")), "1.0");
    assert.equal(await answer(page, "auto", QUESTION), plain);
    assert.equal(await answer(page, "fixed", QUESTION), plain);
    assert.match(await page.eval(`${LAST}.querySelector(".cost").textContent`), /of drafts accepted$/);
    assert.ok(plain.length > 40, plain);
  }
  await page.click("#compare");
  await page.until(count("#compare-result .versus"), "the outcome");
  assert.match(await page.eval(value("compare-result")), /the speed of plain decoding.*Identical: all \d+ characters, \d+ tokens/);
});

demoTest("an answer is stopped, and its slot is free", [], async (page, server) => {
  // Hot answers seldom end by themselves.
  await set(page, { temperature: "2", seed: "3" });
  await page.write("Tell me a story.");
  await page.streaming();
  await page.key("Escape");
  await page.idle();
  assert.match(await page.eval(`${LAST}.querySelector(".notes").textContent`), /Stopped/);
  await idle(server);
  await set(page, { temperature: "0", max_tokens: "9", system: "Be brief." });
  await page.press("Regenerate");
  await page.until(`/Cut/.test(${LAST}.querySelector(".notes").textContent)`, "the cut answer");
  assert.match(await page.eval(`${LAST}.querySelector(".cost").textContent`), /^9 tokens/);
});

demoTest("without a drafter the panel says so", ["-md", "none", "--temp", "0.25"], async (page) => {
  assert.match(await page.eval(value("drafter")), /^Off: ./);
  assert.equal(await page.eval(`document.getElementById("compare").disabled`), true);
  await page.click("#settings-open");
  assert.equal(await page.eval(`document.getElementById("set-temperature").placeholder`), "0.25");
  await page.press("Done");
  await page.ask(QUESTION);
  assert.match(await page.eval(`${LAST}.querySelector(".cost").textContent`), /tokens\/s · plain$/);
});
