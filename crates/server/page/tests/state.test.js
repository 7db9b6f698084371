import assert from "node:assert/strict";
import { test } from "node:test";

import { ApiError } from "../api.js";
import { check, defaultSettings, FIELDS, history, newChat, requestBody, Store, title } from "../state.js";

class FakeStorage {
  constructor(room = Infinity) {
    this.map = new Map();
    this.room = room;
  }

  get length() {
    return this.map.size;
  }

  key(i) {
    return [...this.map.keys()][i] ?? null;
  }

  getItem(key) {
    return this.map.get(key) ?? null;
  }

  setItem(key, value) {
    const used = [...this.map].reduce((n, [k, v]) => n + (k === key ? 0 : v.length), 0);
    if (used + value.length > this.room) throw new Error("QuotaExceededError");
    this.map.set(key, value);
  }

  removeItem(key) {
    this.map.delete(key);
  }
}

const say = (content) => ({ role: "user", content });

test("what is saved is found again, in another tab too", () => {
  const local = new FakeStorage();
  const [one, two] = [new Store(local, new FakeStorage()), new Store(local, new FakeStorage())];
  assert.deepEqual(one.settings(), defaultSettings());
  one.saveSettings({ ...defaultSettings(), temperature: "0.5", mode: "fixed", k: 7, system: "Be brief." });
  assert.deepEqual(two.settings(), { ...defaultSettings(), temperature: "0.5", mode: "fixed", k: 7, system: "Be brief." });
  const [a, b] = [newChat(1, 0.1), newChat(2, 0.2)];
  a.messages.push(say("a"));
  b.messages.push(say("b"));
  one.saveChat(a);
  two.saveChat(b);
  assert.deepEqual(one.chats().map((chat) => chat.messages[0].content).sort(), ["a", "b"]);
  one.deleteChat(a.id);
  assert.equal(two.chat(a.id), null);
  two.clearChats();
  assert.deepEqual(one.chats(), []);
  assert.equal(one.settings().k, 7);
  one.key = "secret";
  assert.equal(one.key, "secret");
  assert.equal(two.key, "");
  assert.ok(![...local.map.values()].join().includes("secret"));
});

test("what storage holds by accident does no harm", () => {
  const local = new FakeStorage();
  const store = new Store(local, new FakeStorage());
  for (const bad of ["", "{", "null", "[]", '"x"', '{"messages":3}', '{"messages":[null]}', '{"messages":[{"role":"system","content":"x"}]}', '{"messages":[{"role":"user"}]}']) {
    local.setItem("mlxcel.chat.x", bad);
    local.setItem("mlxcel.settings", bad);
    local.setItem("other", bad);
    assert.deepEqual(store.chats(), [], bad);
    assert.deepEqual(store.settings(), defaultSettings(), bad);
  }
  local.setItem("mlxcel.settings", '{"temperature":1,"mode":"x","k":99,"system":null,"more":1}');
  assert.deepEqual(store.settings(), defaultSettings());
});

test("a full storage loses the oldest chats, not the newest", () => {
  const store = new Store(new FakeStorage(1000), new FakeStorage());
  const saved = [];
  for (let i = 0; i < 10; i += 1) {
    const chat = newChat(i, i / 10);
    chat.messages.push(say("x".repeat(200)));
    assert.equal(store.saveChat(chat), true);
    saved.push(chat.id);
  }
  assert.ok(store.chats().length >= 2 && store.chats().length < 5);
  assert.ok(store.chat(saved.at(-1)));
  const large = newChat(11, 0.5);
  large.messages.push(say("x".repeat(2000)));
  assert.equal(store.saveChat(large), false);
});

test("ranges are the server's", () => {
  const good = { temperature: ["", "0", "2", " 0.7 ", "1e-3"], top_p: ["0.01", "1"], top_k: ["-1", "0", "40"], min_p: ["0", "1"], repetition_penalty: ["0.1", "10"], seed: ["0", "9007199254740991"], max_tokens: ["1", "100000"] };
  const bad = { temperature: ["-0.1", "2.1", "x", "NaN", "1,5", "Infinity"], top_p: ["0", "1.1"], top_k: ["-2", "1.5"], min_p: ["-1", "2"], repetition_penalty: ["0", "11"], seed: ["-1", "1.5", "9007199254740993"], max_tokens: ["0", "-1", "2.5"] };
  for (const name of Object.keys(FIELDS)) {
    for (const text of good[name]) assert.equal(check(name, text), "", `${name} ${text}`);
    for (const text of bad[name]) assert.match(check(name, text), /^expected a (whole )?number/, `${name} ${text}`);
  }
  assert.equal(check("top_p", "2"), "expected a number above 0, at most 1");
  assert.equal(check("max_tokens", "0"), "expected a whole number of at least 1");
});

test("a request holds what is set, and leaves the rest to the server", () => {
  const messages = [say("hi"), { role: "assistant", content: "ho", reasoning: "hm", timings: {} }, say("again")];
  const settings = defaultSettings();
  assert.deepEqual(requestBody(settings, messages), {
    messages: [say("hi"), { role: "assistant", content: "ho" }, say("again")],
    stream: true,
    stream_options: { include_usage: true },
    timings_per_token: true,
    cache_prompt: true,
    speculative: "auto",
  });
  Object.assign(settings, { temperature: "0", top_k: "40", seed: "7", max_tokens: " 12 ", min_p: "9", system: "S", mode: "fixed", k: 5 });
  const body = requestBody(settings, [say("x")]);
  assert.deepEqual([body.temperature, body.top_k, body.seed, body.max_tokens], [0, 40, 7, 12]);
  assert.ok(!("min_p" in body) && !("top_p" in body));
  assert.deepEqual(body.messages[0], { role: "system", content: "S" });
  assert.deepEqual(body.speculative, { block_size: 5 });
  assert.equal(requestBody({ ...settings, mode: "off" }, []).speculative, "off");
});

test("titles and histories", () => {
  assert.equal(title(newChat()), "New chat");
  assert.equal(title({ messages: [say("  a\nb")] }), "a");
  assert.equal([...title({ messages: [say("👩".repeat(99))] })].length, 60);
  const failed = { role: "assistant", content: "" };
  const messages = [say("a"), failed, say("b"), { role: "assistant", content: "c", reasoning: "r" }, say("d")];
  assert.deepEqual(history(messages), [say("a\n\nb"), { role: "assistant", content: "c" }, say("d")]);
  assert.equal(messages[0].content, "a");
  assert.deepEqual(history([say("a"), failed, say("b")], 1), [say("a")]);
});

test("every refusal comes with advice", () => {
  const error = (status, fields) => ApiError.fromBody({ error: { message: "m", ...fields } }, status, 3);
  const cases = [
    [error(401, { type: "authentication_error" }), "key", /API key/],
    [error(400, { code: "context_length_exceeded", param: "messages" }), "new-chat", /new chat/],
    [error(400, { param: "top_p", code: "invalid_value" }), "settings", /top_p/],
    [error(413), null, /shorter/],
    [error(503, { type: "overloaded_error" }), "retry", /in 3 s/],
    [error(503, { type: "unavailable_error" }), "retry", /loaded/],
    [error(500, { type: "server_error" }), "retry", /log/],
    [error(400, { param: null, code: null }), "retry", /./],
    [new ApiError("x", { code: "unreachable" }), "retry", /running/],
    [new ApiError("x", { code: "stream_cut" }), "retry", /incomplete/],
  ];
  for (const [e, action, text] of cases) {
    assert.equal(e.advice.action, action, e.code || e.status);
    assert.match(e.advice.text, text);
  }
  assert.equal(ApiError.fromBody(null, 502).message, "the server answered 502");
  assert.equal(ApiError.fromBody({ error: "plain" }, 500).message, "plain");
});

test("the checks of storage can fail", () => {
  const local = new FakeStorage();
  const store = new Store({ getItem: () => null, setItem() {}, removeItem() {}, key: () => null, length: 0 }, local);
  store.saveSettings({ ...defaultSettings(), k: 9 });
  assert.notEqual(store.settings().k, 9);
});
