// What the server embeds: complete, all of it used, and nothing in it that a strict policy forbids or the network must bring.

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";

const PAGE = new URL("../", import.meta.url);
const NAMES = readdirSync(PAGE).filter((name) => /\.(html|js|css|svg)$/.test(name));
const text = (name) => readFileSync(new URL(name, PAGE), "utf8");

/** Files that `name` asks for. */
function wanted(name, source = text(name)) {
  const patterns = { js: /from "\.\/([^"]+)"/g, html: /(?:src|href)="page\/([^"]+)"/g };
  const pattern = patterns[name.split(".").at(-1)];
  return pattern ? [...source.matchAll(pattern)].map((match) => match[1]) : [];
}

/** What a page under `default-src 'self'` may not have, and what names another host. */
function forbidden(name, source) {
  const found = [];
  if (name.endsWith(".html")) {
    if (/<style|<script(?![^>]*\ssrc=)[^>]*>|\sstyle=|\son[a-z]+=|javascript:/i.test(source)) found.push("inline code or style");
  }
  if (name.endsWith(".css") && /@import|url\(/.test(source)) found.push("another resource");
  if (name.endsWith(".js") && /\beval\(|new Function|innerHTML|outerHTML|insertAdjacentHTML|document\.write|import\(/.test(source)) found.push("text made code");
  const bare = source.replace(/\/\/www\.w3\.org\/[\w/]+"/, "").replace(/^\s*(?:\/\/|\/?\*).*$/gm, "");
  if (/["'(]\s*(?:https?:)?\/\/[\w]/.test(bare)) found.push("another host");
  return found;
}

test("every file is there and used", () => {
  const used = new Set(["index.html"]);
  for (const name of used) for (const next of wanted(name)) used.add(next);
  assert.deepEqual([...used].sort(), [...NAMES].sort());
});

test("no file needs more than its own server", () => {
  for (const name of NAMES) assert.deepEqual(forbidden(name, text(name)), [], name);
});

test("ids are unique, and those the code names exist", () => {
  const ids = [...text("index.html").matchAll(/\sid="([^"]+)"/g)].map((match) => match[1]);
  assert.equal(new Set(ids).size, ids.length);
  for (const name of NAMES.filter((n) => n.endsWith(".js"))) {
    for (const [, id] of text(name).matchAll(/byId\("([^"]+)"\)/g)) assert.ok(ids.includes(id), `${name}: ${id}`);
  }
});

test("the checks of files can fail", () => {
  for (const source of ['<p style="x">', "<script>1</script>", '<a onclick="x">', "<style></style>", '<img src="https://x.org/a">', '<link href="//x.org">']) {
    assert.notDeepEqual(forbidden("x.html", source), [], source);
  }
  for (const source of ["a.innerHTML = b", "eval(a)", 'import("x")', 'fetch("https://x.org")']) assert.notDeepEqual(forbidden("x.js", source), [], source);
  assert.notDeepEqual(forbidden("x.css", 'a { background: url("b") }'), []);
  assert.deepEqual(wanted("x.js", 'import { a } from "./gone.js";'), ["gone.js"]);
});
