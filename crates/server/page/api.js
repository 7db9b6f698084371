// The server's HTTP API. Addresses are relative to the page, so that it works behind a proxy's path as well.

import { SseParser } from "./sse.js";

/** A refusal or a failure, with what the server said of it. */
export class ApiError extends Error {
  constructor(message, { status = 0, type = "", code = "", param = "", retryAfter = 0 } = {}) {
    super(message);
    Object.assign(this, { status, type, code, param, retryAfter });
  }

  static fromBody(body, status, retryAfter = 0) {
    const error = body?.error ?? {};
    const { type = "", code = "", param = "" } = error;
    const message = (typeof error === "string" ? error : error.message) || `the server answered ${status}`;
    return new ApiError(message, { status, type: type ?? "", code: String(code ?? ""), param: param ?? "", retryAfter });
  }

  /** What a reader can do: {text, action}, where action is "settings", "key", "new-chat", "retry" or null. */
  get advice() {
    if (this.code === "unreachable") return { text: "Is the server still running? Start it, then try again.", action: "retry" };
    if (this.code === "stream_cut") {
      return { text: "The answer above is incomplete: the server stopped or the network failed. Try again.", action: "retry" };
    }
    if (this.status === 401 || this.status === 403) {
      return { text: "This server wants an API key: enter the one it was started with.", action: "key" };
    }
    if (this.code === "context_length_exceeded") {
      return { text: "Start a new chat, or edit your message into a shorter one.", action: "new-chat" };
    }
    if (this.status === 413) return { text: "Edit your message into a shorter one.", action: null };
    if (this.status === 503 && this.type === "overloaded_error") {
      const when = this.retryAfter ? `in ${this.retryAfter} s` : "in a moment";
      return { text: `The server is busy with other requests. Try again ${when}.`, action: "retry" };
    }
    if (this.status === 503) return { text: "The model is being loaded. Try again in a moment.", action: "retry" };
    if (this.param && !this.param.startsWith("messages")) {
      return { text: `Change “${this.param}” in the settings, then try again.`, action: "settings" };
    }
    if (this.status >= 500) return { text: "Try again; if it stays, the server's log says more.", action: "retry" };
    return { text: "Change the request, then try again.", action: "retry" };
  }
}

function headers(key) {
  return { "content-type": "application/json", ...(key && { authorization: `Bearer ${key}` }) };
}

async function request(path, options, key) {
  let response;
  try {
    response = await fetch(path, { ...options, headers: headers(key), cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("the server cannot be reached", { code: "unreachable" });
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  throw ApiError.fromBody(body, response.status, Number(response.headers.get("retry-after")) || 0);
}

/** `GET /props`: the model, its context and what speculation does. */
export async function props(key) {
  return (await request("props", {}, key)).json();
}

/**
 * `POST /v1/chat/completions` as a stream of chunks. Ends at `[DONE]`.
 * @throws {ApiError} if the server refuses, fails midway or goes away; an AbortError if `signal` fires.
 */
export async function* chat(body, key, signal) {
  const options = { method: "POST", body: JSON.stringify(body), signal };
  const response = await request("v1/chat/completions", options, key);
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  const parser = new SseParser();
  let finished = false;
  try {
    for (;;) {
      const { done, value } = await reader.read();
      const events = done ? parser.end() : parser.push(decoder.decode(value, { stream: true }));
      for (const { data } of events) {
        if (data === "[DONE]") return;
        const chunk = parse(data);
        if (chunk.error) throw ApiError.fromBody(chunk, 500);
        finished ||= Boolean(chunk.choices?.[0]?.finish_reason);
        yield chunk;
      }
      if (done) break;
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof ApiError) throw error;
    throw new ApiError("the connection broke", { code: "stream_cut" });
  } finally {
    reader.cancel().catch(() => {});
  }
  if (!finished) throw new ApiError("the connection closed before the answer ended", { code: "stream_cut" });
}

function parse(data) {
  try {
    return JSON.parse(data);
  } catch {
    throw new ApiError(`expected JSON in the stream, found ${JSON.stringify(data.slice(0, 80))}`, { code: "stream_cut" });
  }
}
