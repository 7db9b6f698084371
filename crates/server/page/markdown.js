// Block markdown as models write it: headings, lists, quotes, tables, rules, fenced code, paragraphs. HTML is text.
// Left out on purpose: indented code and underlined headings, which models write by accident more often than not.

import { parseInline } from "./inline.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?=\s|$)/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])([ \t]+|$)/;
const TABLE_RULE = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
// Lists and quotes inside each other; deeper ones are paragraphs.
const MAX_DEPTH = 12;

/**
 * Parses a document, which may be cut anywhere.
 * @returns {Array} blocks: {type: "heading", level, children}, {type: "paragraph", children}, {type: "rule"},
 *   {type: "code", lang, text}, {type: "quote", blocks}, {type: "list", ordered, start, tight, items: [{checked, blocks}]},
 *   {type: "table", align, head, rows}. Each top-level block has its source in `raw`, and in `offset` where that begins
 *   (with line ends counted as one character); equal sources are equal blocks.
 */
export function parseMarkdown(source) {
  const lines = source.replace(/\r\n?/g, "\n").split("\n");
  const blocks = parseBlocks(lines, 0);
  let [line, start] = [0, 0];
  for (const block of blocks) {
    for (; line < block.line; line += 1) start += lines[line].length + 1;
    block.offset = start;
  }
  return blocks;
}

function parseBlocks(lines, depth) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (blank(lines[at])) {
      at += 1;
      continue;
    }
    const start = at;
    const [block, end] = blockAt(lines, at, depth);
    at = end;
    if (depth === 0) Object.assign(block, { line: start, raw: lines.slice(start, end).join("\n") });
    blocks.push(block);
  }
  return blocks;
}

/** The block that begins at a line which is not blank, and the line after it. */
function blockAt(lines, at, depth) {
  const line = lines[at];
  if (FENCE.test(line)) return code(lines, at);
  if (HEADING.test(line)) return [heading(line), at + 1];
  if (RULE.test(line)) return [{ type: "rule" }, at + 1];
  if (depth < MAX_DEPTH && QUOTE.test(line)) return quote(lines, at, depth);
  if (depth < MAX_DEPTH && ITEM.test(line)) return list(lines, at, depth);
  if (isTable(lines, at)) return table(lines, at);
  return paragraph(lines, at);
}

function blank(line) {
  return line.trim() === "";
}

/** Whether a line ends the paragraph above it. */
function interrupts(lines, at) {
  const line = lines[at];
  if (blank(line) || FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line)) return true;
  const item = ITEM.exec(line);
  // "1986. A year" at the start of a line is no list, nor is a lone dash.
  if (item && !blank(line.slice(item[0].length)) && (!/\d/.test(item[2]) || parseInt(item[2], 10) === 1)) return true;
  return isTable(lines, at);
}

function paragraph(lines, at) {
  let end = at + 1;
  while (end < lines.length && !interrupts(lines, end)) end += 1;
  const text = lines.slice(at, end).map((line) => line.replace(/^[ \t]+/, "")).join("\n");
  return [{ type: "paragraph", children: parseInline(text.trimEnd()) }, end];
}

function heading(line) {
  const [mark, hashes] = HEADING.exec(line);
  const text = line.slice(mark.length).trim().replace(/(^|\s)#+$/, "").trim();
  return { type: "heading", level: hashes.length, children: parseInline(text) };
}

function code(lines, at) {
  const [, fence, info] = FENCE.exec(lines[at]);
  const indent = width(lines[at]);
  const text = [];
  let end = at + 1;
  for (; end < lines.length; end += 1) {
    const close = /^ {0,3}(`{3,}|~{3,})[ \t]*$/.exec(lines[end]);
    if (close && close[1][0] === fence[0] && close[1].length >= fence.length) break;
    text.push(unindent(lines[end], indent));
  }
  const closed = end < lines.length;
  return [{ type: "code", lang: info.trim().split(/\s/)[0], text: text.join("\n") }, closed ? end + 1 : end];
}

function quote(lines, at, depth) {
  const inner = [];
  let end = at;
  for (; end < lines.length; end += 1) {
    if (QUOTE.test(lines[end])) inner.push(lines[end].replace(QUOTE, ""));
    else if (!interrupts(lines, end) && !blank(inner.at(-1))) inner.push(lines[end]);
    else break;
  }
  return [{ type: "quote", blocks: parseBlocks(inner, depth + 1) }, end];
}

function list(lines, at, depth) {
  const first = ITEM.exec(lines[at]);
  const ordered = /\d/.test(first[2]);
  const items = [];
  let tight = true;
  let end = at;
  while (end < lines.length) {
    const item = ITEM.exec(lines[end]);
    if (!item || /\d/.test(item[2]) !== ordered || RULE.test(lines[end])) break;
    const [inner, next] = itemLines(lines, end, item);
    const gap = trailingBlanks(inner.slice(1));
    const content = inner.slice(0, inner.length - gap);
    const follows = next < lines.length && ITEM.test(lines[next]) && /\d/.test(ITEM.exec(lines[next])[2]) === ordered;
    if ((gap && follows) || hasGap(content)) tight = false;
    items.push(makeItem(content, depth));
    end = next;
    // Blank lines after the last item are not the list's.
    if (!follows) {
      end -= gap;
      break;
    }
  }
  return [{ type: "list", ordered, start: ordered ? parseInt(first[2], 10) : 1, tight, items }, end];
}

/** The lines of one item without its indent, and the line after them. */
function itemLines(lines, at, [mark, before, marker, space]) {
  const offset = before.length + marker.length + (space.length > 4 || !space ? 1 : space.length);
  // Models often indent by two what should stand under the text of "1. ".
  const enough = Math.min(offset, before.length + 2);
  const inner = [space.length > 4 ? space.slice(1) + lines[at].slice(mark.length) : lines[at].slice(mark.length)];
  let fence = FENCE.exec(inner[0])?.[1];
  let end = at + 1;
  for (; end < lines.length; end += 1) {
    const line = lines[end];
    if (blank(line)) {
      inner.push("");
    } else if (width(line) >= enough) {
      inner.push(unindent(line, offset));
    } else if (fence || ITEM.test(line) || blank(inner.at(-1)) || interrupts(lines, end)) {
      break;
    } else {
      inner.push(line);
    }
    const mark = FENCE.exec(inner.at(-1))?.[1];
    if (mark) fence = fence ? undefined : mark;
  }
  return [inner, end];
}

function makeItem(lines, depth) {
  const task = /^\[([ xX])\][ \t]+/.exec(lines[0] ?? "");
  const content = task ? [lines[0].slice(task[0].length), ...lines.slice(1)] : lines;
  return { checked: task ? task[1] !== " " : null, blocks: parseBlocks(content, depth + 1) };
}

function trailingBlanks(lines) {
  let n = 0;
  while (n < lines.length && blank(lines[lines.length - 1 - n])) n += 1;
  return n;
}

/** Whether a blank line stands between paragraphs of an item, rather than in its code or before a nested list. */
function hasGap(lines) {
  let fenced = false;
  return lines.some((line, i) => {
    if (FENCE.test(line)) fenced = !fenced;
    return !fenced && i > 0 && blank(lines[i - 1]) && !blank(line) && !FENCE.test(line) && !ITEM.test(line);
  });
}

function isTable(lines, at) {
  const rule = lines[at + 1];
  if (rule === undefined || !lines[at].includes("|") || !rule.includes("-") || !TABLE_RULE.test(rule)) return false;
  return cells(lines[at]).length === cells(rule).length;
}

function table(lines, at) {
  const head = cells(lines[at]);
  const align = cells(lines[at + 1]).map((cell) => {
    const [left, right] = [cell.startsWith(":"), cell.endsWith(":")];
    return left && right ? "center" : right ? "right" : left ? "left" : null;
  });
  const rows = [];
  let end = at + 2;
  for (; end < lines.length && lines[end].includes("|") && !blank(lines[end]); end += 1) {
    const row = cells(lines[end]);
    rows.push(head.map((_, i) => parseInline(row[i] ?? "")));
  }
  return [{ type: "table", align, head: head.map((cell) => parseInline(cell)), rows }, end];
}

/** A row's cells: split at `|`, but not at `\|` nor inside a code span. */
function cells(line) {
  const out = [];
  let cell = "";
  let ticked = false;
  const text = line.trim().replace(/^\|/, "");
  for (let i = 0; i < text.length; i += 1) {
    if (text[i] === "\\" && text[i + 1] === "|") (cell += "|"), (i += 1);
    else if (text[i] === "|" && !ticked) out.push(cell.trim()), (cell = "");
    else {
      if (text[i] === "`") ticked = !ticked && text.indexOf("`", i + 1) > 0;
      cell += text[i];
    }
  }
  if (cell.trim() || out.length === 0) out.push(cell.trim());
  return out;
}

/** Columns of white space before the text; a tab is four. */
function width(line) {
  let n = 0;
  for (const c of line) {
    if (c === " ") n += 1;
    else if (c === "\t") n += 4;
    else break;
  }
  return n;
}

/** The line without at most `columns` of the white space it begins with. */
function unindent(line, columns) {
  let at = 0;
  let left = columns;
  while (left > 0 && (line[at] === " " || line[at] === "\t")) {
    left -= line[at] === "\t" ? 4 : 1;
    at += 1;
  }
  return " ".repeat(Math.max(0, -left)) + line.slice(at);
}
