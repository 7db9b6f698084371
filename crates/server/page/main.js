// The page: what the reader does, what the server answers, and what is kept.

import { ApiError, chat as chatStream, props } from "./api.js";
import { compare } from "./compare.js";
import { announce, byId, make, Painter } from "./dom.js";
import { fit, Follower, Panes } from "./layout.js";
import { MessageList } from "./messages.js";
import { Panel, showComparing, showComparison } from "./panel.js";
import { SettingsDialog } from "./settings.js";
import { history, newChat, requestBody, Store, title } from "./state.js";

const QUESTION = "What is speculative decoding?";
const store = new Store(localStorage, sessionStorage);
const settings = store.settings();
const panes = new Panes();
const follower = new Follower();
const panel = new Panel(settings, () => store.saveSettings(settings));
const dialog = new SettingsDialog(settings, store, () => connect());
const list = new MessageList(byId("messages"), { regenerate, edit, retry: regenerate, advise });
const prompt = byId("prompt");

let current = store.chats()[0] ?? newChat();
let running = null; // the AbortController of the request under way
let connection = 0;
let leaving = false;

/** Asks the server what it runs, and again until it answers. */
async function connect() {
  const attempt = ++connection;
  const state = (name, text) => {
    byId("dot").dataset.state = name;
    byId("status").textContent = text;
  };
  try {
    const found = await props(store.key);
    if (attempt !== connection) return;
    byId("model").textContent = document.title = found.model_alias || "mlxcel";
    const { n_ctx: context } = found.default_generation_settings ?? {};
    state("ready", context ? `${context.toLocaleString("en")} tokens of context` : "");
    panel.describe(found.speculation);
    dialog.describe(found.default_generation_settings);
  } catch (error) {
    if (attempt !== connection) return;
    if (error.status === 401 || error.status === 403) return state("failed", "wants an API key");
    state(error.status === 503 ? "loading" : "failed", error.status === 503 ? "loading the model" : error.message);
    setTimeout(() => attempt === connection && connect(), error.status === 503 ? 1000 : 5000);
  }
}

/** Shows which request is under way, if any, in everything that depends on it. */
function setRunning(controller) {
  running = controller;
  // Moving the focus from a button that goes keeps the keyboard where it was.
  const moved = document.activeElement === byId(controller ? "send" : "stop");
  byId("send").hidden = Boolean(controller);
  byId("stop").hidden = !controller;
  byId("compare").disabled = Boolean(controller) || !panel.available;
  if (moved) byId(controller ? "stop" : "send").focus();
}

/** The body of a request for an answer to `messages`. */
function bodyFor(messages) {
  const body = requestBody(settings, messages);
  if (!panel.available) body.speculative = "off";
  return body;
}

/** Settings out of range would be left out without a word: show them instead. Says whether all are right. */
function settingsRight() {
  const wrong = dialog.wrong;
  if (wrong) dialog.open(wrong.name);
  return !wrong;
}

/** Asks for an answer to the conversation as it stands. */
async function answer() {
  const chat = current;
  const body = bodyFor(history(chat.messages));
  const message = { role: "assistant", content: "", reasoning: "", mode: body.speculative };
  chat.messages.push(message);
  const controller = new AbortController();
  setRunning(controller);
  list.sync(chat.messages, true);
  showWelcome();
  follower.toEnd();
  panel.start();
  announce("Answering");
  let saved = performance.now();
  const painter = new Painter(() => {
    if (chat === current) list.grow(), follower.follow();
    if (message.timings) panel.push(message.timings);
    if (performance.now() - saved > 1000) save(chat), (saved = performance.now());
  });
  try {
    for await (const chunk of chatStream(body, store.key, controller.signal)) {
      const choice = chunk.choices?.[0];
      message.content += choice?.delta?.content ?? "";
      message.reasoning += choice?.delta?.reasoning_content ?? "";
      message.finish = choice?.finish_reason ?? message.finish;
      message.timings = chunk.timings ?? message.timings;
      painter.request();
    }
  } catch (error) {
    if (error.name === "AbortError") message.stopped = true;
    else if (!leaving) message.error = describe(error);
  }
  painter.flush();
  panel.finish(message.timings);
  if (running === controller) setRunning(null);
  save(chat);
  if (chat !== current) return;
  list.sync(chat.messages, false);
  follower.follow();
  announce(message.error ? "" : message.stopped ? "Stopped" : list.views.at(-1).text.textContent.slice(0, 2000));
}

function describe(error) {
  const known = error instanceof ApiError ? error : new ApiError(String(error?.message ?? error));
  if (known.status === 401 || known.code === "unreachable") connect();
  return { message: known.message, advice: known.advice.text, action: known.advice.action };
}

function stop() {
  running?.abort();
}

function send() {
  const text = prompt.value;
  if (running || !text.trim() || !settingsRight()) return;
  prompt.value = "";
  fit(prompt);
  current.messages.push({ role: "user", content: text });
  answer();
}

/** Answers the last message of the reader again. */
function regenerate() {
  if (running || !settingsRight()) return;
  const last = current.messages.findLastIndex((m) => m.role === "user");
  if (last < 0) return;
  current.messages.length = last + 1;
  answer();
  prompt.focus();
}

/** Replaces the message at `index` and all after it. */
function edit(index, text) {
  if (running || !settingsRight()) return;
  current.messages.length = index;
  current.messages.push({ role: "user", content: text });
  answer();
  prompt.focus();
}

function advise(action) {
  if (action === "new-chat") openChat(newChat());
  else dialog.open(action === "key" ? "key" : undefined);
}

/** Runs the prompt at hand plainly and with drafts. */
async function runComparison() {
  if (running || !settingsRight()) return;
  const typed = prompt.value.trim();
  const last = current.messages.findLastIndex((m) => m.role === "user");
  let messages = [{ role: "user", content: QUESTION }];
  if (typed) messages = [...history(current.messages), { role: "user", content: typed }];
  else if (last >= 0) messages = history(current.messages, last + 1);
  const controller = new AbortController();
  setRunning(controller);
  const seed = Math.floor(Math.random() * 2 ** 31);
  let shown = null;
  try {
    const stream = (body) => {
      panel.start();
      return chatStream(body, store.key, controller.signal);
    };
    const result = await compare(bodyFor(messages), seed, stream, (name, run) => {
      shown = run;
      showComparing(name, run);
      if (run.timings) panel.push(run.timings);
    });
    showComparison(result, title({ messages: messages.slice(-1) }));
  } catch (error) {
    const { message, advice } = error.name === "AbortError" ? { message: "Stopped.", advice: "" } : describe(error);
    byId("compare-result").replaceChildren(make("p", { class: "bad" }, `${message} ${advice}`));
  }
  panel.finish(shown?.timings);
  if (running === controller) setRunning(null);
}

function save(chat) {
  if (chat.deleted) return;
  if (store.saveChat(chat) === false) byId("status").textContent = "this chat is too large to be kept in the browser";
  listChats();
}

function openChat(chat) {
  stop();
  current = chat;
  list.show(chat.messages);
  showWelcome();
  listChats();
  follower.toEnd();
  panes.closeDrawers();
  prompt.focus();
}

function showWelcome() {
  byId("welcome").hidden = current.messages.length > 0;
}

function listChats() {
  const chats = store.chats();
  byId("clear-chats").hidden = chats.length === 0;
  const rows = chats.map((chat) => {
    const name = title(chat);
    const open = () => chat.id !== current.id && openChat(store.chat(chat.id) ?? newChat());
    const here = chat.id === current.id ? "true" : null;
    return make(
      "li",
      {},
      make("button", { type: "button", class: "chat", "aria-current": here, title: name, onclick: open }, name),
      make("button", { type: "button", class: "icon", "aria-label": `Delete “${name}”`, title: "Delete", onclick: () => remove(chat.id) }, "×"),
    );
  });
  byId("chat-list").replaceChildren(...rows);
}

function remove(id) {
  store.deleteChat(id);
  if (id === current.id) current.deleted = true, openChat(newChat());
  else listChats();
}

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
byId("stop").addEventListener("click", stop);
byId("compare").addEventListener("click", runComparison);
byId("new-chat").addEventListener("click", () => openChat(newChat()));
byId("clear-chats").addEventListener("click", () => {
  if (!confirm("Delete all chats kept in this browser?")) return;
  store.clearChats();
  current.deleted = true;
  openChat(newChat());
});
prompt.addEventListener("input", () => fit(prompt));
prompt.addEventListener("keydown", (event) => {
  // While a word is being composed Enter belongs to the input method.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.defaultPrevented || byId("settings").open) return;
  if (!panes.closeDrawers()) stop();
});
addEventListener("pagehide", () => {
  leaving = true;
  if (!running) return;
  const last = current.messages.at(-1);
  if (last?.role === "assistant") last.stopped = true;
  save(current);
});

openChat(current);
connect();
