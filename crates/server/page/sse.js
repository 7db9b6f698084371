// Server-sent events from text that arrives cut anywhere.

/** An incremental reader of an event stream. */
export class SseParser {
  constructor() {
    this.rest = "";
    this.first = true;
    this.data = [];
    this.event = "";
  }

  /** Takes the next piece; returns the events it completes, as {event, data}. */
  push(piece) {
    let text = this.rest + piece;
    if (this.first && text) {
      this.first = false;
      if (text.startsWith("\ufeff")) text = text.slice(1);
    }
    const events = [];
    let from = 0;
    for (let at = 0; at < text.length; at += 1) {
      const c = text[at];
      if (c !== "\n" && c !== "\r") continue;
      // A CR at the end may be half of a CRLF; the next piece tells.
      if (c === "\r" && at + 1 === text.length) break;
      this.#line(text.slice(from, at), events);
      if (c === "\r" && text[at + 1] === "\n") at += 1;
      from = at + 1;
    }
    this.rest = text.slice(from);
    return events;
  }

  /** The stream is over. An event whose blank line never came is dropped, as the standard has it. */
  end() {
    const events = [];
    if (this.rest.endsWith("\r")) this.#line(this.rest.slice(0, -1), events);
    this.rest = "";
    return events;
  }

  #line(line, events) {
    if (line === "") {
      if (this.data.length) events.push({ event: this.event || "message", data: this.data.join("\n") });
      this.data = [];
      this.event = "";
      return;
    }
    const colon = line.indexOf(":");
    if (colon === 0) return;
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "data") this.data.push(value);
    else if (field === "event") this.event = value;
  }
}
