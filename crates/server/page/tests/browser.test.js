// The page in headless Chromium against a server without a model. Every test also checks that nothing left the server's
// origin and that the console is silent.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { Browser } from "./chromium.js";
import { startServer } from "./mock_server.js";
import { ANSWER, count, LAST, reader, strays, value } from "./reader.js";

const PHONE = { width: 390, height: 844, touch: true };
let browser;
before(async () => (browser = await Browser.start()));
after(() => browser?.close());

/** Runs a test on a page of its own. `complaints`: what the console may say. */
function pageTest(name, { look = {}, complaints = null, ...options }, body) {
  test(name, { timeout: 30000 }, async () => {
    const server = await startServer(options);
    const page = reader(await browser.open(`${server.origin}/`, look));
    try {
      if (!options.key && !options.loading) await page.ready();
      await body(page, server);
      assert.deepEqual(strays(page, server.origin), []);
      assert.deepEqual(page.errors.filter((error) => !complaints?.test(error)), []);
    } finally {
      await page.close();
      await server.close();
    }
  });
}

pageTest("an answer streams in, and the panel fills", { delay: 8 }, async (page, server) => {
  await page.shoot("empty");
  await page.write("hello");
  await page.streaming();
  const early = await page.eval(`${ANSWER}.textContent.length`);
  await page.eval(`window.first = ${LAST}.querySelector("h4"); window.gone = 0; new MutationObserver((all) => { for (const m of all) window.gone += m.removedNodes.length; }).observe(${ANSWER}, { childList: true }); 0`);
  assert.match(await page.until(`/tok\\/s/.test(${value("pill-text")}) && ${value("speed-now")}`, "a live speed"), /^\d/);
  assert.equal(await page.eval(`document.getElementById("messages").ariaBusy`), "true");
  await page.shoot("streaming");
  await page.idle();
  assert.ok((await page.eval(`${ANSWER}.textContent.length`)) > early + 200);
  assert.ok(await page.eval(`window.first.isConnected && window.first === ${LAST}.querySelector("h4")`), "the heading was made anew");
  // A line that turns out to be a table, code or list takes the place of a paragraph; nothing else is replaced.
  assert.ok((await page.eval("window.gone")) <= 8, `${await page.eval("window.gone")} blocks replaced`);
  for (const part of ["h4", "strong", "em", "ol > li > ul > li", "table td.to-right", ".code pre code", "blockquote", "a[rel~=noopener]"]) {
    assert.ok(await page.eval(count(`.assistant > .text ${part}`)), part);
  }
  assert.match(await page.eval(`${LAST}.querySelector(".cost").textContent`), /^\d+ tokens · [\d.]+ tokens\/s · [\d.]+ % of drafts accepted$/);
  assert.match(await page.eval(value("f-mean")), /^[\d.]+ tok\/s$/);
  assert.match(await page.eval(value("f-drafts")), /^\d+ of \d+$/);
  assert.equal(await page.eval(value("f-width")), "4.0");
  assert.equal(await page.eval(value("f-prompt")), "30 + 12 cached");
  assert.equal(await page.eval(count("#depths li")), 3);
  assert.ok(await page.eval(`document.querySelector("#depths .bar span").getBoundingClientRect().width > 20`));
  const [body] = server.chats();
  assert.deepEqual(body.messages, [{ role: "user", content: "hello" }]);
  assert.deepEqual([body.stream, body.timings_per_token, body.speculative], [true, true, "auto"]);
  assert.ok(!("temperature" in body));
  await page.shoot("answered");
});

pageTest("Esc and the button stop an answer, and the server hears of it", {}, async (page, server) => {
  for (const stop of [() => page.key("Escape"), () => page.click("#stop")]) {
    await page.write("slow");
    await page.streaming();
    assert.equal(server.open, 1);
    await stop();
    await page.idle();
    assert.match(await page.eval(`${LAST}.querySelector(".notes").textContent`), /Stopped/);
    assert.ok((await page.eval(`${ANSWER}.textContent.length`)) > 40);
    for (let i = 0; server.open && i < 100; i += 1) await new Promise((resolve) => setTimeout(resolve, 10));
    assert.equal(server.open, 0);
  }
});

pageTest("regenerate and edit replace what came after", {}, async (page, server) => {
  await page.ask("one");
  await page.ask("two");
  await page.press("Regenerate");
  await page.until(`!document.getElementById("stop").hidden`);
  await page.idle();
  const [, second, third] = server.chats();
  assert.deepEqual(third, second);
  assert.equal(await page.eval(count(".message")), 4);
  await page.press("Edit");
  await page.eval(`document.querySelector(".edit textarea").select()`);
  await page.type("three");
  await page.key("Enter");
  await page.until(`document.querySelectorAll(".said")[1]?.textContent === "three"`);
  await page.idle();
  assert.equal(await page.eval(count(".message")), 4);
  assert.deepEqual(server.chats()[3].messages.map((m) => m.role), ["user", "assistant", "user"]);
  assert.equal(server.chats()[3].messages[2].content, "three");
  await page.press("Edit");
  await page.key("Escape");
  assert.deepEqual(await page.eval(`[document.querySelectorAll(".said")[1].textContent, document.querySelectorAll(".edit").length]`), ["three", 0]);
});

pageTest("settings are sent, kept and checked", {}, async (page, server) => {
  await page.click("#settings-open");
  assert.equal(await page.eval(`document.getElementById("set-top_p").placeholder`), "0.95");
  const values = { temperature: "0.3", top_p: "0.9", top_k: "20", min_p: "0.05", repetition_penalty: "1.1", seed: "42", max_tokens: "9", system: "Be brief." };
  for (const [name, text] of Object.entries(values)) {
    await page.eval(`document.getElementById("set-${name}").focus()`);
    await page.type(text);
  }
  await page.shoot("settings");
  await page.press("Done");
  await page.reload();
  await page.ready();
  await page.ask("hi");
  const [body] = server.chats();
  for (const [name, text] of Object.entries(values)) if (name !== "system") assert.equal(body[name], Number(text), name);
  assert.deepEqual(body.messages[0], { role: "system", content: "Be brief." });
  assert.match(await page.eval(`${LAST}.querySelector(".notes").textContent`), /Cut/);
  await page.click("#settings-open");
  await page.eval(`document.getElementById("set-top_p").select()`);
  await page.type("7");
  assert.equal(await page.eval(value("why-top_p")), "expected a number above 0, at most 1");
  await page.press("Done");
  await page.write("again");
  assert.ok(await page.until(`document.getElementById("settings").open && document.activeElement.id === "set-top_p"`, "the wrong field"));
  assert.equal(server.chats().length, 1);
  await page.press("Reset");
  await page.press("Done");
  await page.key("Enter");
  await page.until(`document.querySelectorAll(".cost").length === 2`);
  assert.ok(!("top_p" in server.chats()[1]));
});

pageTest("plain, automatic and fixed widths", {}, async (page, server) => {
  await page.eval(`document.querySelector("[name=mode][value=off]").click()`);
  await page.ask("plain");
  assert.equal(server.chats()[0].speculative, "off");
  assert.deepEqual(await page.eval(`[${value("f-acceptance")}, ${value("f-width")}, document.getElementById("depth-section").hidden]`), ["–", "1.0", true]);
  await page.eval(`document.querySelector("[name=mode][value=fixed]").click(); document.getElementById("k").select()`);
  await page.type("6");
  await page.reload();
  await page.ready();
  await page.ask("fixed");
  assert.deepEqual(server.chats()[1].speculative, { block_size: 6 });
  assert.equal(await page.eval(value("f-width")), "6.0");
  assert.equal(await page.eval(`document.querySelector("[name=mode][value=fixed]").checked`), true);
});

pageTest("without a drafter the panel says why", { speculation: { enabled: false, kind: "none", why: "no drafter fits the model" } }, async (page, server) => {
  assert.equal(await page.eval(value("drafter")), "Off: no drafter fits the model");
  assert.deepEqual(await page.eval(`[document.getElementById("modes").disabled, document.getElementById("compare").disabled]`), [true, true]);
  await page.ask("hi");
  assert.equal(server.chats()[0].speculative, "off");
  assert.equal(await page.eval(`document.getElementById("compare").disabled`), true);
});

pageTest("compare shows both speeds and that the texts are one", {}, async (page, server) => {
  await page.click("#compare");
  await page.until(count("#compare-result .versus"), "the outcome");
  assert.match(await page.eval(value("compare-result")), /2\.\d\d× the speed of plain decoding.*Identical: all \d+ characters, \d+ tokens/);
  const [plain, drafted] = server.chats();
  assert.deepEqual([plain.speculative, drafted.speculative], ["off", "auto"]);
  assert.deepEqual({ ...plain, speculative: 0 }, { ...drafted, speculative: 0 });
  assert.ok(Number.isInteger(plain.seed));
  assert.equal(await page.eval(count(".message")), 0);
  await page.shoot("compared");
});

pageTest("compare finds an answer that drafting changed", {}, async (page) => {
  await page.eval(`document.getElementById("prompt").focus()`);
  await page.type("differ");
  await page.click("#compare");
  await page.until(count("#compare-result .versus"), "the outcome");
  assert.match(await page.eval(value("compare-result")), /Different from character \d+ on: "yte.*" and "ite/);
  assert.equal(await page.eval(count("#compare-result .good")), 0);
});

pageTest("reasoning is shown and folded away", { delay: 8 }, async (page) => {
  await page.write("think");
  await page.until(`document.querySelector(".reasoning[open] strong")`, "open reasoning");
  await page.shoot("reasoning");
  await page.idle();
  assert.equal(await page.eval(`document.querySelector(".reasoning").open`), false);
  assert.equal(await page.eval(`${ANSWER}.textContent`), "Speed it is.");
});

const FAILED = /Failed to load resource/;
pageTest("a refusal says what to do", { complaints: FAILED }, async (page, server) => {
  for (const [text, message, advice, button] of [
    ["busy", /queue is full/, /in 2 s/, "Try again"],
    ["fail midway", /not finite/, /log/, "Try again"],
    ["cut", /connection/, /incomplete/, "Try again"],
    ["too long", /at most 8191/, /new chat/, "New chat"],
  ]) {
    await page.ask(text);
    const shown = await page.eval(`${LAST}.querySelector(".error").textContent`);
    assert.match(shown, message);
    assert.match(shown, advice);
    assert.ok(shown.endsWith(button), shown);
    if (text === "cut") assert.match(await page.eval(`${ANSWER}.textContent`), /Speculative/);
    if (text === "busy") await page.shoot("refusal");
  }
  await page.press("New chat", LAST);
  assert.equal(await page.eval(count(".message")), 0);
  await server.close();
  await page.ask("anyone?");
  assert.match(await page.eval(`${LAST}.querySelector(".error").textContent`), /cannot be reached.*still running/);
});

pageTest("an API key is asked for, used and forgotten with the tab", { key: "s3cret", complaints: FAILED }, async (page, server) => {
  await page.until(`/API key/.test(${value("status")})`);
  await page.ask("hi");
  await page.press("Enter key");
  assert.equal(await page.eval("document.activeElement.id"), "set-key");
  await page.type("s3cret");
  await page.key("Enter");
  await page.ready();
  await page.press("Regenerate");
  await page.until(count(".cost"), "an answer");
  assert.equal(server.requests.at(-1).auth, "Bearer s3cret");
  assert.equal(await page.eval("JSON.stringify(localStorage).includes('s3cret')"), false);
});

pageTest("a server that loads its model is waited for", { loading: true, complaints: FAILED }, async (page, server) => {
  await page.until(`/loading/.test(${value("status")})`);
  server.loading = false;
  await page.ready();
});

pageTest("an answer cannot run in the page or send for anything", {}, async (page) => {
  await page.ask("xss");
  assert.equal(await page.eval("window.pwned"), undefined);
  assert.equal(await page.eval(count(".text img, .text script, .text a[href^=javascript]")), 0);
  assert.match(await page.eval(`${ANSWER}.textContent`), /<img src=x onerror/);
});

test("the checks of the console and of addresses can fail", async () => {
  const server = await startServer();
  const page = await browser.open(`${server.origin}/`);
  await page.eval(`new Image().src = "http://127.0.0.1:1/pixel.png"; fetch("http://localhost:1/").catch(() => {}); console.error("x"); 0`);
  await page.eval("new Promise((resolve) => setTimeout(resolve, 200))");
  assert.ok(strays(page, server.origin).length >= 1, "a stray request");
  assert.ok(page.errors.some((e) => /Content Security Policy/.test(e)) && page.errors.includes('["x"]'), page.errors.join());
  await page.close();
  await server.close();
});

pageTest("conversations survive a reload, and can be left and deleted", {}, async (page) => {
  await page.ask("first chat");
  await page.reload();
  assert.deepEqual(await page.eval(`[...document.querySelectorAll(".message")].map((m) => m.className.split(" ")[1])`), ["user", "assistant"]);
  await page.click("#new-chat");
  await page.ask("second chat");
  assert.deepEqual(await page.eval(`[...document.querySelectorAll("#chat-list .chat")].map((b) => b.textContent)`), ["second chat", "first chat"]);
  await page.press("first chat");
  assert.equal(await page.eval(`document.querySelector(".said").textContent`), "first chat");
  await page.write("slow");
  await page.streaming();
  await page.reload();
  assert.match(await page.eval(`${LAST}.textContent`), /Stopped/);
  assert.ok((await page.eval(`${ANSWER}.textContent.length`)) > 40);
  await page.press("Delete “first chat”");
  assert.equal(await page.eval(count("#chat-list li")), 1);
  await page.press("Delete all chats");
  assert.deepEqual(await page.eval(`[${count("#chat-list li")}, Object.keys(localStorage).filter((k) => k.startsWith("mlxcel.chat")).length]`), [0, 0]);
});

pageTest("another chat stops the answer in this one", {}, async (page, server) => {
  await page.write("slow");
  await page.streaming();
  await page.click("#new-chat");
  await page.ask("next");
  assert.equal(await page.eval(count(".message")), 2);
  assert.match(await page.eval(`${LAST}.textContent`), /You said: next/);
  assert.equal(server.open, 0);
});

pageTest("the end is followed unless the reader is elsewhere", { delay: 4 }, async (page) => {
  const gap = `(() => { const s = document.getElementById("scroller"); return s.scrollHeight - s.scrollTop - s.clientHeight })()`;
  await page.write("long");
  await page.until(`document.getElementById("scroller").scrollTop > 200`);
  assert.ok((await page.eval(gap)) < 48);
  await page.eval(`document.getElementById("scroller").scrollTop = 0`);
  await page.until(`!document.getElementById("to-end").hidden`);
  await page.idle();
  assert.equal(await page.eval(`document.getElementById("scroller").scrollTop`), 0);
  await page.click("#to-end");
  assert.ok((await page.until(`${gap} < 48 && 1`)) === 1);
});

pageTest("the keyboard alone is enough", {}, async (page, server) => {
  const focused = `(document.activeElement.id || document.activeElement.value || document.activeElement.textContent)`;
  const tabTo = async (what, modifiers = 0) => {
    const seen = [];
    for (let i = 0; i < 40; i += 1) {
      await page.key("Tab", modifiers);
      seen.push(await page.eval(focused));
      if (seen.at(-1) === what) {
        const outline = `getComputedStyle(document.activeElement.matches("[type=radio]") ? document.activeElement.nextElementSibling : document.activeElement).outlineStyle`;
        assert.ok(what === "prompt" || (await page.eval(outline)) !== "none", `${what} shows no focus`);
        return;
      }
    }
    assert.fail(`Tab does not reach ${what}: ${seen.join(", ")}`);
  };
  assert.equal(await page.eval(focused), "prompt");
  await page.type("one");
  await page.key("Enter", 8);
  await page.type("two");
  await page.key("Enter");
  await page.idle();
  await page.until(count(".cost"));
  assert.equal(server.chats()[0].messages[0].content, "one\ntwo");
  assert.equal(await page.eval(focused), "prompt");
  await page.key("Enter");
  assert.equal(server.chats().length, 1, "an empty message was sent");
  await tabTo("auto");
  await page.key("ArrowRight");
  assert.equal(await page.eval(focused), "off");
  await tabTo("compare");
  await page.key("Space");
  await page.until(count("#compare-result .versus"));
  await tabTo("settings-open", 8);
  await page.key("Enter");
  await page.until(`document.getElementById("settings").open`);
  await tabTo("set-seed");
  await page.key("Escape");
  await page.until(`!document.getElementById("settings").open`);
  assert.equal(await page.eval(focused), "settings-open");
  await tabTo("Regenerate");
  await page.key("Enter");
  await page.until(`document.activeElement.id === "prompt"`);
  await page.idle();
  assert.equal(server.chats().at(-1).speculative, "off");
});

pageTest("who composes a word is not interrupted", {}, async (page) => {
  const press = (composing) => page.eval(`(() => { const p = document.getElementById("prompt"); p.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", isComposing: ${composing}, bubbles: true, cancelable: true })); return p.value })()`);
  await page.eval(`document.getElementById("prompt").focus()`);
  await page.type("x");
  assert.equal(await press(true), "x");
  assert.equal(await press(false), "");
  await page.until(count(".cost"));
});

for (const width of [320, 390, 820]) {
  pageTest(`at ${width} pixels nothing sticks out, and panes are drawers`, { look: { ...PHONE, width } }, async (page) => {
    await page.ask("hello");
    const inside = `document.documentElement.scrollWidth <= innerWidth && ["header", "#composer", "#scroller"].every((s) => { const r = document.querySelector(s).getBoundingClientRect(); return r.left >= 0 && r.right <= innerWidth + 0.5 }) && document.getElementById("scroller").scrollWidth <= document.getElementById("scroller").clientWidth`;
    assert.ok(await page.eval(inside), "something sticks out");
    await page.shoot(`phone-${width}`);
    for (const name of ["panel", "chats"]) {
      assert.ok(await page.eval(`document.getElementById("${name}").hidden`), `${name} is open`);
      await page.click(`#${name}-toggle`);
      assert.ok(await page.eval(`!document.getElementById("${name}").hidden && document.getElementById("main").inert && document.getElementById("${name}").contains(document.activeElement)`), `${name} did not take the focus`);
      await page.shoot(`phone-${width}-${name}`);
      if (name === "panel") await page.key("Escape");
      else await page.click("#chats .close");
      assert.ok(await page.eval(`document.getElementById("${name}").hidden && !document.getElementById("main").inert && document.activeElement.id === "${name}-toggle"`), `${name} did not close`);
    }
    const small = await page.eval(`["send", "settings-open", "chats-toggle"].filter((id) => { const r = document.getElementById(id).getBoundingClientRect(); return r.width < 40 || r.height < 40 })`);
    assert.deepEqual(small, []);
    await page.click("#settings-open");
    assert.ok(await page.eval(`(() => { const r = document.getElementById("settings").getBoundingClientRect(); return r.left >= 0 && r.right <= innerWidth && r.bottom <= innerHeight })()`));
    await page.shoot(`phone-${width}-settings`);
  });
}

/** Pairs of colours that do not stand out from each other by `least`, as in WCAG. */
const CONTRAST = `(() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const light = (name) => {
    canvas.fillStyle = getComputedStyle(document.documentElement).getPropertyValue(name);
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map((x) => x / 255).map((x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
  return (pairs) => pairs.filter(([a, b]) => !(ratio(a, b) >= 4.5)).map((pair) => pair.join(" on "));
})()`;
const PAIRS = [["--text", "--ground"], ["--text", "--raised"], ["--soft", "--ground"], ["--soft", "--raised"], ["--accent", "--ground"], ["--on-accent", "--accent"], ["--good", "--ground"], ["--bad", "--ground"], ["--bad", "--bad-ground"]];

for (const dark of [false, true]) {
  pageTest(`the ${dark ? "dark" : "light"} colours can be read`, { look: { dark } }, async (page) => {
    await page.ask("hello");
    await page.shoot(dark ? "dark" : "light");
    const ground = await page.eval(`Number(/\\d+/.exec(getComputedStyle(document.body).backgroundColor)[0])`);
    assert.ok(dark ? ground < 60 : ground > 200, `ground ${ground}`);
    assert.deepEqual(await page.eval(`${CONTRAST}(${JSON.stringify(PAIRS)})`), []);
    assert.deepEqual(await page.eval(`${CONTRAST}([["--line", "--ground"]])`), ["--line on --ground"]);
  });
}

pageTest("everything has a name for those who cannot see it", {}, async (page) => {
  await page.ask("hello");
  const { nodes } = await page.send("Accessibility.getFullAXTree");
  const roles = ["button", "textbox", "radio", "spinbutton", "link", "dialog", "complementary", "log"];
  const nameless = nodes.filter((n) => !n.ignored && roles.includes(n.role?.value) && !n.name?.value);
  assert.deepEqual(nameless.map((n) => n.role.value), []);
  assert.ok(nodes.filter((n) => n.role?.value === "button").length > 8);
  assert.match(await page.eval(value("announce")), /^Speculative decoding/);
});

pageTest("code is copied", {}, async (page) => {
  await page.ask("hello");
  // The clipboard itself is refused here, as on a page that is neither on loopback nor secure.
  await page.eval(`window.copied = ""; document.addEventListener("copy", () => (window.copied = document.activeElement.value)); 0`);
  await page.press("Copy", `document.querySelector(".code")`);
  await page.until(`/cop/i.test(document.querySelector(".code button").textContent) && document.querySelector(".code button").textContent !== "Copy"`);
  const [label, copied] = await page.eval(`[document.querySelector(".code button").textContent, window.copied]`);
  assert.equal(label, "Copied");
  if (copied) assert.match(copied, /^fn accept[^]*\}$/);
});
