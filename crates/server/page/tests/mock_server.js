// A server with this API and no model, for tests of the page: the last message says how to answer. Its figures are made up.

import { readFile } from "node:fs/promises";
import { createServer } from "node:http";

const PAGE = new URL("../", import.meta.url);
const TYPES = { html: "text/html", js: "text/javascript", css: "text/css", svg: "image/svg+xml" };
export const CSP = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

export const SAMPLE = `## Speculative decoding

A small **drafter** guesses the next tokens; the model checks them *in one pass* and keeps what it would have written itself.
The answer is the same, byte for byte. See [the paper](https://arxiv.org/abs/2211.17192).

1. The drafter proposes \`K - 1\` tokens.
2. The model scores all of them at once.
   - Right ones are kept.
   - The first wrong one is replaced.

| K | tokens a round | speed |
|--:|--:|--:|
| 1 | 1.00 | 1.0× |
| 4 | 3.12 | 1.9× |

\`\`\`rust
fn accept(drafts: &[u32], chosen: &[u32]) -> usize {
    // How many drafts the model would have chosen itself. A comment long enough that a phone has to scroll.
    drafts.iter().zip(chosen).take_while(|(a, b)| a == b).count()
}
\`\`\`

> It changes the speed, never the answer. 日本語 👩‍👩‍👧
`;

const XSS = `<img src=x onerror="window.pwned=1"> <script>window.pwned=1</script>
[a](javascript:window.pwned=1) ![b](http://127.0.0.1:1/pixel.png)

\`\`\`html
</code></pre><script>window.pwned=1</script>
\`\`\`
`;

/** Starts one on a free port of the loopback. `options`: delay (ms a chunk), key, speculation, loading. */
export async function startServer(options = {}) {
  const state = { delay: 1, speculation: { enabled: true, kind: "mtp", drafter: "models/tiny-assistant", block_size: null, why: null }, requests: [], open: 0, ...options };
  const server = createServer((request, response) => {
    handle(state, request, response).catch((error) => {
      if (!response.headersSent) response.writeHead(500);
      response.end(String(error));
    });
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  state.origin = `http://127.0.0.1:${server.address().port}`;
  state.close = () => (server.closeAllConnections(), new Promise((resolve) => server.close(resolve)));
  state.chats = () => state.requests.filter((r) => r.path === "/v1/chat/completions").map((r) => r.body);
  return state;
}

async function handle(state, request, response) {
  const path = request.url.split("?")[0];
  let text = "";
  for await (const piece of request) text += piece;
  state.requests.push({ path, method: request.method, body: text ? JSON.parse(text) : null, auth: request.headers.authorization });
  const file = path === "/" ? "index.html" : /^\/page\/([\w.]+)$/.exec(path)?.[1];
  if (file && request.method === "GET") {
    const bytes = await readFile(new URL(file, PAGE)).catch(() => null);
    if (!bytes) return json(response, 404, { error: { message: `no such file: ${file}` } });
    const type = TYPES[file.split(".").at(-1)] ?? "application/octet-stream";
    response.writeHead(200, { "content-type": `${type}; charset=utf-8`, "content-security-policy": CSP, "x-content-type-options": "nosniff" });
    return response.end(bytes);
  }
  if (state.loading) return refuse(response, 503, "the model is being loaded", "unavailable_error");
  if (path === "/health") return json(response, 200, { status: "ok" });
  if (state.key && request.headers.authorization !== `Bearer ${state.key}`) {
    return refuse(response, 401, "expected an API key in the Authorization header, found none or another", "authentication_error");
  }
  if (path === "/props") {
    const params = { temperature: 1, top_p: 0.949999988, top_k: 64, min_p: 0, repetition_penalty: 1, max_tokens: null };
    return json(response, 200, { model_alias: "gemma-4-tiny-it", speculation: state.speculation, default_generation_settings: { n_ctx: 8192, params } });
  }
  if (path === "/v1/chat/completions" && request.method === "POST") return complete(state, JSON.parse(text), response);
  return refuse(response, 404, `no such route: ${path}`, "not_found_error");
}

function json(response, status, body, headers = {}) {
  response.writeHead(status, { "content-type": "application/json", ...headers });
  response.end(JSON.stringify(body));
}

function refuse(response, status, message, type, more = {}, headers = {}) {
  json(response, status, { error: { message, type, param: null, code: null, ...more } }, headers);
}

async function complete(state, body, response) {
  const said = body.messages.at(-1).content.split("\n\n").at(-1);
  if (said === "busy") return refuse(response, 503, "the queue is full", "overloaded_error", {}, { "retry-after": "2" });
  if (said === "too long") {
    return refuse(response, 400, "messages: at most 8191 tokens expected, found 9000", "invalid_request_error", { param: "messages", code: "context_length_exceeded" });
  }
  response.writeHead(200, { "content-type": "text/event-stream" });
  state.open += 1;
  let gone = false;
  response.on("close", () => ((gone = true), (state.open -= 1)));
  const drafting = body.speculative !== "off" && state.speculation.enabled;
  const stream = new Stream(response, body, drafting);
  stream.send({ role: "assistant", content: "" });
  if (said === "think") {
    for (const word of words("Let me think **hard** about this. It is a question about *speed*.")) {
      if (gone) return;
      stream.send({ reasoning_content: word });
      await sleep(state.delay);
    }
  }
  let answer = said === "xss" ? XSS : said === "think" ? "Speed it is." : `${SAMPLE}\nYou said: ${said.slice(0, 200)}`;
  if (said === "differ" && drafting) answer = answer.replace("byte for byte", "byte for bite");
  if (said === "long") answer = Array.from({ length: 60 }, (_, i) => `Paragraph ${i + 1} of a long answer.\n\n`).join("");
  do {
    for (const word of words(answer)) {
      if (gone) return;
      if (said === "cut" && stream.n > 20) return response.destroy();
      if (said === "fail midway" && stream.n > 20) {
        response.write(`data: {"error":{"message":"logits are not finite","type":"server_error","param":null,"code":null}}\n\n`);
        return response.end();
      }
      stream.send({ content: word });
      await sleep(said === "slow" ? 20 : state.delay);
      if (body.max_tokens && stream.n >= body.max_tokens) return stream.end("length");
    }
  } while (said === "slow");
  stream.end("stop");
}

/** Pieces of a text, as tokens are: most are parts of words. */
function words(text) {
  return text.match(/\s?[^\s]{1,5}|\s+/gu) ?? [];
}

/** One answer's events, in writes that cut lines and letters anywhere. */
class Stream {
  constructor(response, body, drafting) {
    this.response = response;
    this.timed = body.timings_per_token;
    this.width = drafting ? (body.speculative?.block_size ?? 4) : 1;
    this.n = 0;
    this.ms = 0;
    this.rest = Buffer.alloc(0);
    this.draft = { draft_n: 0, draft_n_accepted: 0, draft_rounds: 0, draft_accepted_by_depth: Array(16).fill(0) };
  }

  timings() {
    const rate = this.n > 1 ? ((this.n - 1) * 1000) / this.ms : 0;
    return { cache_n: 12, prompt_n: 30, prompt_ms: 60, prompt_per_second: 500, predicted_n: this.n, predicted_ms: this.ms, predicted_per_second: rate, ...this.draft };
  }

  send(delta) {
    if (delta.content || delta.reasoning_content) this.#token();
    this.#event({ choices: [{ index: 0, delta, finish_reason: null }], ...(this.timed && { timings: this.timings() }) });
  }

  /** Rounds of one token and up to K-1 drafts, of which some are right; a plain step takes 8 ms, a round 11. */
  #token() {
    this.n += 1;
    if (this.n === 1) return;
    if (this.width === 1) return void (this.ms += 8);
    if (this.pending > 0) return void (this.pending -= 1);
    const accepted = Math.min(this.width - 1, [3, 1, 2, 3, 0, 5][this.draft.draft_rounds % 6]);
    this.draft.draft_rounds += 1;
    this.draft.draft_n += this.width - 1;
    this.draft.draft_n_accepted += accepted;
    for (let d = 0; d < accepted; d += 1) this.draft.draft_accepted_by_depth[d] += 1;
    this.pending = accepted;
    this.ms += 11;
  }

  end(reason) {
    this.#event({ choices: [{ index: 0, delta: {}, finish_reason: reason }], timings: this.timings() });
    this.#event({ choices: [], usage: { prompt_tokens: 42, completion_tokens: this.n, total_tokens: 42 + this.n } });
    this.response.end(Buffer.concat([this.rest, Buffer.from("data: [DONE]\n\n")]));
  }

  #event(body) {
    const bytes = Buffer.concat([this.rest, Buffer.from(`data: ${JSON.stringify(body)}\n\n`)]);
    const cut = bytes.length - (bytes.length % 7);
    this.response.write(bytes.subarray(0, cut));
    this.rest = bytes.subarray(cut);
  }
}

function sleep(ms) {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

// By hand: node mock_server.js
if (process.argv[1] === new URL(import.meta.url).pathname) console.log((await startServer({ delay: 25 })).origin);
