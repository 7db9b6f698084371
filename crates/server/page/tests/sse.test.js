import assert from "node:assert/strict";
import { test } from "node:test";

import { SseParser } from "../sse.js";

const STREAM =
  ": hello\n\ndata: one\n\nevent: named\ndata: two\ndata:  lines\nid: 7\nretry: 10\n\ndata:three\n\ndata\n\n:\n\n\n" +
  'data: {"t":"äé日👩‍👧\u2028 \\n"}\n\nunknown: x\ndata: [DONE]\n\ndata: never ended\n';
const EVENTS = [
  { event: "message", data: "one" },
  { event: "named", data: "two\n lines" },
  { event: "message", data: "three" },
  { event: "message", data: "" },
  { event: "message", data: '{"t":"äé日👩‍👧\u2028 \\n"}' },
  { event: "message", data: "[DONE]" },
];

function read(pieces, parser = new SseParser()) {
  return [...pieces.flatMap((piece) => parser.push(piece)), ...parser.end()];
}

/** The bytes of `text` in pieces of `size`, decoded as they come: letters are cut as well. */
function cut(text, size) {
  const bytes = new TextEncoder().encode(text);
  const decoder = new TextDecoder();
  const pieces = [];
  for (let at = 0; at < bytes.length; at += size) pieces.push(decoder.decode(bytes.slice(at, at + size), { stream: true }));
  return pieces;
}

test("events are the same however the stream is cut and its lines end", () => {
  for (const end of ["\n", "\r\n", "\r"]) {
    const text = STREAM.replaceAll("\n", end);
    for (let size = 1; size < 40; size += 1) assert.deepEqual(read(cut(text, size)), EVENTS, `${JSON.stringify(end)} by ${size}`);
    for (let at = 0; at <= text.length; at += 1) assert.deepEqual(read([text.slice(0, at), text.slice(at)]), EVENTS, `at ${at}`);
  }
});

test("a byte order mark is no part of the first line", () => {
  assert.deepEqual(read(["\ufeff", "data: a\n\n"]), [{ event: "message", data: "a" }]);
  assert.deepEqual(read(["\ufeffdata: a\n\n"]), [{ event: "message", data: "a" }]);
});

test("the check of cuts can fail", () => {
  // A reader that forgets what a piece leaves over.
  class Forgetful extends SseParser {
    push(piece) {
      const events = super.push(piece);
      this.rest = "";
      return events;
    }
  }
  assert.deepEqual(read([STREAM], new Forgetful()), EVENTS);
  assert.notDeepEqual(read(cut(STREAM, 7), new Forgetful()), EVENTS);
});
