// Inline markdown: emphasis, code spans, links, line breaks. Returns a tree of strings and nodes; knows nothing of HTML,
// so nothing in a model's answer can become markup.

const PUNCTUATION = /[!-/:-@[-`{-~\p{P}\p{S}]/u;
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", "#39": "'", nbsp: "\u00a0" };
// A title is bounded so that no text makes the search for its end slow.
const DESTINATION =
  /\(\s*(<[^<>\n]{0,2000}>|[^\s()<>]*(?:\([^\s()<>]*\)[^\s()<>]*)*)(?:\s+(?:"[^"]{0,300}"|'[^']{0,300}'|\([^)]{0,300}\)))?\s*\)/y;
const AUTOLINK = /<((?:https?:\/\/|mailto:)[^\s<>]{1,2000})>/y;
const BARE_URL = /https?:\/\/[^\s<>"'`]+/y;
// Where a run of plain text may end; "h" begins a bare address.
const SPECIAL = /[`\\\n&*_~![<h]/g;
// Openers waiting for their closer. More than this is no prose, and each closer looks through all of them.
const MAX_OPEN = 32;

/** The address if a link may go there, else null: only absolute http, https and mailto addresses. */
export function safeHref(address) {
  // Browsers drop these characters inside an address, so they must not hide a scheme from the test.
  const bare = address.replace(/[\u0000-\u0020\u007f-\u009f]/g, "");
  if (!/^(?:https?:\/\/[^/]|mailto:)/i.test(bare)) return null;
  try {
    const url = new URL(bare);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

/**
 * Parses a run of text.
 * @returns {Array} strings and nodes: {type: "strong"|"em"|"del", children}, {type: "code", text},
 *   {type: "link", href, children}, {type: "br"}
 */
export function parseInline(source, inLink = false) {
  const { code, pairs } = scan(source);
  const out = new Nest();
  let at = 0;
  while (at < source.length) {
    const c = source[at];
    const span = code.get(at);
    if (span) {
      out.add(span.end === at + span.ticks ? source.slice(at, span.end) : { type: "code", text: span.text });
      at = span.end;
    } else if (c === "\\") {
      const next = source[at + 1];
      if (next === "\n") out.add({ type: "br" });
      else if (next && /[!-/:-@[-`{-~]/.test(next)) out.add(next);
      else out.add("\\"), (at -= 1);
      at += 2;
    } else if (c === "\n") {
      const spaces = out.trimEnd();
      out.add(spaces >= 2 ? { type: "br" } : "\n");
      at += 1;
      while (source[at] === " ") at += 1;
    } else if (c === "&") {
      const entity = /^&(#39|[a-z]{2,4});/.exec(source.slice(at, at + 8));
      const text = entity && ENTITIES[entity[1]];
      out.add(text ?? "&");
      at += text ? entity[0].length : 1;
    } else if (c === "*" || c === "_" || c === "~") {
      at = out.delimiter(source, at);
    } else if (!inLink && (c === "[" || (c === "!" && source[at + 1] === "["))) {
      const link = linkAt(source, c === "!" ? at + 1 : at, pairs, c === "!");
      if (link) out.add(...link.nodes);
      else out.add(c);
      at = link ? link.end : at + 1;
    } else if (!inLink && (c === "<" || c === "h")) {
      const link = urlAt(source, at);
      out.add(link ? { type: "link", href: link.href, children: [link.text] } : c);
      at = link ? link.end : at + 1;
    } else {
      SPECIAL.lastIndex = at + 1;
      const end = SPECIAL.exec(source)?.index ?? source.length;
      out.add(source.slice(at, end));
      at = end;
    }
  }
  return out.finish();
}

/** The tree's text without its marks. */
export function plainText(nodes) {
  return nodes
    .map((n) => (typeof n === "string" ? n : n.type === "br" ? "\n" : (n.text ?? plainText(n.children))))
    .join("");
}

/** Code spans by where they begin, and the closing bracket of each opening one; both bind before all else. */
function scan(source) {
  const code = new Map();
  const pairs = new Map();
  const open = [];
  const unclosed = new Set(); // run lengths known to have no closer further on
  for (let at = 0; at < source.length; at += 1) {
    const c = source[at];
    if (c === "\\") at += 1;
    else if (c === "[") open.push(at);
    else if (c === "]") {
      if (open.length) pairs.set(open.pop(), at);
    } else if (c === "`") {
      const ticks = runLength(source, at);
      const end = unclosed.has(ticks) ? -1 : closingTicks(source, at + ticks, ticks);
      if (end < 0) unclosed.add(ticks);
      const after = end < 0 ? at + ticks : end + ticks;
      let text = end < 0 ? "" : source.slice(at + ticks, end).replaceAll("\n", " ");
      if (text.startsWith(" ") && text.endsWith(" ") && text.trim()) text = text.slice(1, -1);
      code.set(at, { end: after, ticks, text });
      at = after - 1;
    }
  }
  return { code, pairs };
}

function closingTicks(source, from, ticks) {
  for (let at = source.indexOf("`", from); at >= 0; at = source.indexOf("`", at)) {
    const n = runLength(source, at);
    if (n === ticks) return at;
    at += n;
  }
  return -1;
}

function runLength(source, at) {
  let end = at + 1;
  while (source[end] === source[at]) end += 1;
  return end - at;
}

/** `[text](address)` at `open`. One to an address that is not allowed leaves its text. An image is a link: a page that
 * fetched what a model names would tell strangers who reads it. */
function linkAt(source, open, pairs, image) {
  const close = pairs.get(open);
  if (close === undefined || source[close + 1] !== "(") return null;
  DESTINATION.lastIndex = close + 1;
  const match = DESTINATION.exec(source);
  if (!match) return null;
  const text = source.slice(open + 1, close);
  const children = parseInline(text || (image ? "image" : match[1]), true);
  const href = safeHref(match[1].replace(/^<|>$/g, ""));
  return { end: DESTINATION.lastIndex, nodes: href ? [{ type: "link", href, children }] : children };
}

/** `<https://...>` or a bare address at `at`. */
function urlAt(source, at) {
  AUTOLINK.lastIndex = at;
  const auto = AUTOLINK.exec(source);
  if (auto) {
    const href = safeHref(auto[1]);
    return href && { href, text: auto[1], end: AUTOLINK.lastIndex };
  }
  if (source[at] !== "h" || (at > 0 && /[\p{L}\p{N}]/u.test(source[at - 1]))) return null;
  BARE_URL.lastIndex = at;
  const bare = BARE_URL.exec(source);
  if (!bare) return null;
  let text = bare[0];
  for (;;) {
    const last = text.at(-1);
    const unbalanced = last === ")" && text.split(")").length > text.split("(").length;
    if (!unbalanced && !".,:;!?*_~]".includes(last)) break;
    text = text.slice(0, -1);
  }
  const href = safeHref(text);
  return href && { href, text, end: at + text.length };
}

/** The output so far, with the emphasis that is still open. */
class Nest {
  constructor() {
    this.frames = [{ children: [] }];
  }

  get top() {
    return this.frames.at(-1);
  }

  add(...nodes) {
    const children = this.top.children;
    for (const node of nodes) {
      if (typeof node === "string" && typeof children.at(-1) === "string") children[children.length - 1] += node;
      else if (node !== "") children.push(node);
    }
  }

  /** Takes spaces off the end; says how many. */
  trimEnd() {
    const children = this.top.children;
    const last = children.at(-1);
    if (typeof last !== "string") return 0;
    let end = last.length;
    while (end > 0 && last[end - 1] === " ") end -= 1;
    const spaces = last.length - end;
    if (spaces) end ? (children[children.length - 1] = last.slice(0, end)) : children.pop();
    return spaces;
  }

  /** A run of `*`, `_` or `~~` at `at`; returns where it ends. */
  delimiter(source, at) {
    const mark = source[at];
    const length = runLength(source, at);
    const end = at + length;
    if (mark === "~" && length !== 2) return this.add(source.slice(at, end)), end;
    const { opens, closes } = flanks(mark, source[at - 1] ?? " ", source[end] ?? " ");
    let left = length;
    while (closes && left > 0) {
      const found = this.frames.findLastIndex(
        (f) =>
          f.mark === mark &&
          // CommonMark's rule of three keeps `*a**b*` from closing in the middle.
          !((f.closes || opens) && (f.length + length) % 3 === 0 && (f.length % 3 || length % 3)),
      );
      if (found < 0) break;
      this.flattenTo(found);
      const frame = this.top;
      const used = Math.min(frame.left, left) >= 2 ? 2 : 1;
      const type = mark === "~" ? "del" : used === 2 ? "strong" : "em";
      const node = { type, children: frame.children };
      frame.left -= used;
      left -= used;
      if (frame.left === 0) this.frames.pop(), this.add(node);
      else frame.children = [node];
    }
    if (left > 0) {
      if (opens && this.frames.length <= MAX_OPEN) this.frames.push({ mark, left, length, closes, children: [] });
      else this.add(mark.repeat(left));
    }
    return end;
  }

  /** Makes what was opened above frame `index` plain text. */
  flattenTo(index) {
    while (this.frames.length - 1 > index) {
      const frame = this.frames.pop();
      this.add(frame.mark.repeat(frame.left), ...frame.children);
    }
  }

  finish() {
    this.flattenTo(0);
    return this.top.children;
  }
}

/** Whether a run between these characters can open emphasis, and whether it can close it. */
function flanks(mark, before, after) {
  const spaceBefore = /\s/.test(before);
  const spaceAfter = /\s/.test(after);
  const markBefore = PUNCTUATION.test(before);
  const markAfter = PUNCTUATION.test(after);
  const left = !spaceAfter && (!markAfter || spaceBefore || markBefore);
  const right = !spaceBefore && (!markBefore || spaceAfter || markAfter);
  if (mark !== "_") return { opens: left, closes: right };
  return { opens: left && (!right || markBefore), closes: right && (!left || markAfter) };
}
