// What the page remembers: conversations and settings in localStorage, the API key for as long as the tab lives. No DOM.

const CHAT = "mlxcel.chat.";
const SETTINGS = "mlxcel.settings";
const KEY = "mlxcel.key";
const MAX_CHATS = 100;

/** The numbers of a request, with the ranges the server takes. An empty one is left to the server. */
export const FIELDS = {
  temperature: { least: 0, most: 2 },
  top_p: { above: 0, most: 1 },
  top_k: { least: -1, most: 4294967295, whole: true },
  min_p: { least: 0, most: 1 },
  repetition_penalty: { above: 0, most: 10 },
  seed: { least: 0, most: Number.MAX_SAFE_INTEGER, whole: true },
  max_tokens: { least: 1, most: Number.MAX_SAFE_INTEGER, whole: true },
};

export const MIN_K = 2;
export const MAX_K = 16;

/** Settings nobody has changed. */
export function defaultSettings() {
  return { ...Object.fromEntries(Object.keys(FIELDS).map((name) => [name, ""])), system: "", mode: "auto", k: 4 };
}

/** Why `text` cannot be the value of field `name`, or "". */
export function check(name, text) {
  const { least, above, most, whole } = FIELDS[name];
  if (text.trim() === "") return "";
  const value = Number(text);
  const kind = whole ? "a whole number" : "a number";
  const from = above === undefined ? `${kind} of at least ${least}` : `${kind} above ${above}`;
  const range = most >= 4294967295 ? from : above === undefined ? `${kind} from ${least} to ${most}` : `${from}, at most ${most}`;
  const bad = !Number.isFinite(value) || (whole && !Number.isSafeInteger(value)) || value > most;
  return bad || value < least || value <= above ? `expected ${range}` : "";
}

/** The request for an answer to `messages`; a field that is empty or wrong is left out. */
export function requestBody(settings, messages) {
  const system = settings.system.trim() ? [{ role: "system", content: settings.system }] : [];
  const body = {
    messages: [...system, ...messages.map(({ role, content }) => ({ role, content }))],
    stream: true,
    stream_options: { include_usage: true },
    timings_per_token: true,
    cache_prompt: true,
    speculative: speculative(settings),
  };
  for (const name of Object.keys(FIELDS)) {
    const text = settings[name].trim();
    if (text !== "" && check(name, text) === "") body[name] = Number(text);
  }
  return body;
}

/** The `speculative` field for a mode: "auto", "off" or {block_size}. */
export function speculative({ mode, k }) {
  return mode === "fixed" ? { block_size: k } : mode;
}

/** Everything kept, over two storages with localStorage's interface. */
export class Store {
  constructor(local, session) {
    this.local = local;
    this.session = session;
  }

  settings() {
    const settings = defaultSettings();
    const saved = read(this.local, SETTINGS);
    for (const name of Object.keys(FIELDS)) if (typeof saved?.[name] === "string") settings[name] = saved[name];
    if (typeof saved?.system === "string") settings.system = saved.system;
    if (["auto", "off", "fixed"].includes(saved?.mode)) settings.mode = saved.mode;
    if (Number.isInteger(saved?.k) && saved.k >= MIN_K && saved.k <= MAX_K) settings.k = saved.k;
    return settings;
  }

  saveSettings(settings) {
    this.#write(SETTINGS, settings);
  }

  get key() {
    try {
      return this.session.getItem(KEY) ?? "";
    } catch {
      return "";
    }
  }

  set key(value) {
    try {
      value ? this.session.setItem(KEY, value) : this.session.removeItem(KEY);
    } catch {
      // Storage is switched off: the key is asked for again.
    }
  }

  /** All conversations, the newest first. What is not one is passed over. */
  chats() {
    return this.#ids()
      .map((id) => this.chat(id))
      .filter(Boolean)
      .sort((a, b) => b.updated - a.updated);
  }

  /** The conversation `id`, or null. */
  chat(id) {
    const chat = read(this.local, CHAT + id);
    if (!Array.isArray(chat?.messages) || !chat.messages.every(isMessage)) return null;
    return { id, updated: Number(chat.updated) || 0, messages: chat.messages };
  }

  /** Each conversation has a key of its own, so that two tabs do not overwrite each other's. An empty one is not kept. */
  saveChat({ id, messages }) {
    if (messages.length === 0) return this.deleteChat(id);
    if (!this.local.getItem(CHAT + id)) this.#makeRoom(MAX_CHATS - 1, id);
    return this.#write(CHAT + id, { updated: Date.now(), messages });
  }

  deleteChat(id) {
    this.local.removeItem(CHAT + id);
    return true;
  }

  clearChats() {
    for (const id of this.#ids()) this.deleteChat(id);
  }

  #ids() {
    const keys = Array.from({ length: this.local.length }, (_, i) => this.local.key(i));
    return keys.filter((key) => key?.startsWith(CHAT)).map((key) => key.slice(CHAT.length));
  }

  #makeRoom(most, keep) {
    const others = this.chats().filter((chat) => chat.id !== keep);
    for (const chat of others.slice(Math.max(0, most))) this.deleteChat(chat.id);
    return others.length;
  }

  /** Writes; where storage is full the oldest conversations make way. Says whether it is kept. */
  #write(key, value) {
    const text = JSON.stringify(value);
    for (;;) {
      try {
        this.local.setItem(key, text);
        return true;
      } catch {
        const left = this.#makeRoom(Infinity, key.slice(CHAT.length));
        if (left === 0) return false;
        this.#makeRoom(left - 1, key.slice(CHAT.length));
      }
    }
  }
}

function read(storage, key) {
  try {
    return JSON.parse(storage.getItem(key));
  } catch {
    return null;
  }
}

function isMessage(m) {
  return (m?.role === "user" || m?.role === "assistant") && typeof m.content === "string";
}

/** A conversation without messages. */
export function newChat(now = Date.now(), random = Math.random()) {
  return { id: `${now.toString(36)}-${Math.floor(random * 2 ** 32).toString(36)}`, updated: now, messages: [] };
}

/** What a list calls a conversation: the first words of its first message. */
export function title({ messages }) {
  const line = (messages[0]?.content ?? "").trim().split("\n")[0];
  const letters = [...line];
  return letters.length > 60 ? `${letters.slice(0, 59).join("")}…` : line || "New chat";
}

/**
 * The messages that an answer after message `count` replies to. An answer that failed is left out, and the messages around it
 * become one: many templates refuse two of a role in a row.
 */
export function history(messages, count = messages.length) {
  const told = [];
  for (const { role, content } of messages.slice(0, count)) {
    if (role === "assistant" && content === "") continue;
    if (told.at(-1)?.role === role) told.at(-1).content += `\n\n${content}`;
    else told.push({ role, content });
  }
  return told;
}
