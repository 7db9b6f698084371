// Markdown trees as DOM nodes, made one by one: no HTML is ever parsed. A growing text changes only what grew, so that a
// selection, a scrolled code block and the reader's eye stay where they are.

import { parseMarkdown } from "./markdown.js";

// What is added to a text can change the block it is added to and the one before, which it may continue: "2" is a paragraph
// until it turns out to be "2. ", the next item of the list above. One more for good measure.
const UNSETTLED = 3;

/** Shows one markdown text in `root`, and its later versions. */
export class MarkdownView {
  constructor(root) {
    this.root = root;
    this.doc = root.ownerDocument;
    this.source = "";
    this.shown = []; // the {raw, offset} of each block
  }

  /** Makes `root` show `source`. */
  update(source) {
    const grows = source.startsWith(this.source) && !source.includes("\r");
    const settled = grows ? Math.max(0, this.shown.length - UNSETTLED) : 0;
    const offset = settled ? this.shown[settled].offset : 0;
    const kept = this.shown.slice(0, settled);
    for (const block of parseMarkdown(source.slice(offset))) {
      const i = kept.length;
      const old = this.shown[i];
      kept.push({ raw: block.raw, offset: offset + block.offset });
      if (old?.raw === block.raw) continue;
      const node = renderBlock(block, this.doc);
      if (old === undefined) this.root.appendChild(node);
      else morph(this.root.childNodes[i], node);
    }
    while (this.root.childNodes.length > kept.length) this.root.removeChild(this.root.lastChild);
    this.source = source;
    this.shown = kept;
  }
}

/** Turns `from` into `to`, keeping every node that can be kept. */
export function morph(from, to) {
  if (from.nodeName !== to.nodeName) {
    from.parentNode.replaceChild(to, from);
    return;
  }
  if (from.nodeType === 3) {
    if (to.data.startsWith(from.data)) {
      if (to.data.length > from.data.length) from.appendData(to.data.slice(from.data.length));
    } else from.data = to.data;
    return;
  }
  for (const { name } of [...from.attributes]) if (!to.hasAttribute(name)) from.removeAttribute(name);
  for (const { name, value } of [...to.attributes]) {
    if (from.getAttribute(name) !== value) from.setAttribute(name, value);
  }
  const next = [...to.childNodes];
  const kept = [...from.childNodes];
  next.forEach((child, i) => (kept[i] ? morph(kept[i], child) : from.appendChild(child)));
  kept.slice(next.length).forEach((child) => from.removeChild(child));
}

function element(doc, name, attributes, ...children) {
  const node = doc.createElement(name);
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value !== null && value !== undefined) node.setAttribute(key, value);
  }
  for (const child of children.flat()) node.appendChild(typeof child === "string" ? doc.createTextNode(child) : child);
  return node;
}

function renderBlock(block, doc) {
  const inline = (nodes) => renderInline(nodes, doc);
  switch (block.type) {
    case "heading":
      // The page's own headings come first: an answer's begin below them.
      return element(doc, `h${Math.min(6, block.level + 2)}`, { class: `level-${block.level}` }, inline(block.children));
    case "rule":
      return element(doc, "hr");
    case "code":
      return renderCode(block, doc);
    case "quote":
      return element(doc, "blockquote", null, block.blocks.map((b) => renderBlock(b, doc)));
    case "list":
      return renderList(block, doc);
    case "table":
      return renderTable(block, doc);
    default:
      return element(doc, "p", null, inline(block.children));
  }
}

function renderCode({ lang, text }, doc) {
  const label = /^[\w+#.-]{1,30}$/.test(lang) ? lang : "";
  return element(
    doc,
    "div",
    { class: "code" },
    element(
      doc,
      "div",
      { class: "code-head" },
      element(doc, "span", { class: "code-lang" }, label || "text"),
      element(doc, "button", { type: "button", class: "quiet", "data-action": "copy-code" }, "Copy"),
    ),
    // Focusable, so that the keyboard can scroll a long line into view.
    element(doc, "pre", { tabindex: "0", "aria-label": label ? `${label} code` : "code" }, element(doc, "code", null, text)),
  );
}

function renderList({ ordered, start, tight, items }, doc) {
  const children = items.map(({ checked, blocks }) => {
    const content = blocks.flatMap((block) =>
      tight && block.type === "paragraph" ? renderInline(block.children, doc) : [renderBlock(block, doc)],
    );
    if (checked === null) return element(doc, "li", null, content);
    const box = { type: "checkbox", disabled: "", checked: checked ? "" : null, "aria-label": checked ? "done" : "to do" };
    return element(doc, "li", { class: "task" }, element(doc, "input", box), content);
  });
  return element(doc, ordered ? "ol" : "ul", { start: ordered && start !== 1 ? String(start) : null }, children);
}

function renderTable({ align, head, rows }, doc) {
  const row = (name, cells) =>
    element(
      doc,
      "tr",
      null,
      cells.map((cell, i) => element(doc, name, { class: align[i] && `to-${align[i]}` }, renderInline(cell, doc))),
    );
  const table = element(
    doc,
    "table",
    null,
    element(doc, "thead", null, row("th", head)),
    element(doc, "tbody", null, rows.map((cells) => row("td", cells))),
  );
  return element(doc, "div", { class: "table", tabindex: "0", role: "region", "aria-label": "table" }, table);
}

function renderInline(nodes, doc) {
  return nodes.map((node) => {
    if (typeof node === "string") return doc.createTextNode(node);
    if (node.type === "br") return element(doc, "br");
    if (node.type === "code") return element(doc, "code", null, node.text);
    const children = renderInline(node.children, doc);
    if (node.type !== "link") return element(doc, node.type, null, children);
    const attributes = { href: node.href, target: "_blank", rel: "noopener noreferrer nofollow" };
    return element(doc, "a", attributes, children);
  });
}
