import assert from "node:assert/strict";
import { test } from "node:test";

import { parseInline, plainText, safeHref } from "../inline.js";
import { parseMarkdown } from "../markdown.js";
import { MarkdownView } from "../render.js";
import { elements, fakeDocument, html, text } from "./fake_dom.js";

function view() {
  const root = fakeDocument().createElement("div");
  return { root, markdown: new MarkdownView(root) };
}

function render(source) {
  const { root, markdown } = view();
  markdown.update(source);
  return root;
}

/** HTML without the parts of a code block that are the same everywhere. */
function short(source) {
  return html(render(source))
    .replace(/^<div>|<\/div>$/g, "")
    .replace(/<div class="code"><div class="code-head"><span class="code-lang">(.*?)<\/span><button.*?<\/button><\/div><pre[^>]*><code>(.*?)<\/code><\/pre><\/div>/gs, "[$1|$2]")
    .replace(/ rel="[^"]*" target="_blank"/g, "")
    .replace(/<div aria-label="table"[^>]*>(<table>.*?<\/table>)<\/div>/gs, "$1");
}

const CASES = [
  ["plain", "<p>plain</p>"],
  ["two\nlines", "<p>two\nlines</p>"],
  ["one\n\ntwo", "<p>one</p><p>two</p>"],
  ["hard  \nbreak\\\nagain", "<p>hard<br></br>break<br></br>again</p>"],
  ["# One #\n## Two", '<h3 class="level-1">One</h3><h4 class="level-2">Two</h4>'],
  ["#hash", "<p>#hash</p>"],
  ["a **b** *c* ***d*** __e__ _f_ ~~g~~", "<p>a <strong>b</strong> <em>c</em> <em><strong>d</strong></em> <strong>e</strong> <em>f</em> <del>g</del></p>"],
  ["snake_case_name 2 * 3 * 4 ~x~", "<p>snake_case_name 2 * 3 * 4 ~x~</p>"],
  ["**bold *both* bold**", "<p><strong>bold <em>both</em> bold</strong></p>"],
  ["*a **b*", "<p>*a *<em>b</em></p>"],
  ["un**closed", "<p>un**closed</p>"],
  ["`a *b* <i>` ``c ` d``", "<p><code>a *b* &lt;i></code> <code>c ` d</code></p>"],
  ["`open", "<p>`open</p>"],
  ["\\*not\\* \\q", "<p>*not* \\q</p>"],
  ["&lt;b&gt; &amp;&nope; AT&T", "<p>&lt;b> &amp;&amp;nope; AT&amp;T</p>"],
  ["[a *b*](https://x.org/p?q=1 \"t\")", '<p><a href="https://x.org/p?q=1">a <em>b</em></a></p>'],
  ["*[a*](https://x.org)", '<p>*<a href="https://x.org/">a*</a></p>'],
  ["[w](https://x.org/a_(b))", '<p><a href="https://x.org/a_(b)">w</a></p>'],
  ["see https://x.org/a. (http://y.org)", '<p>see <a href="https://x.org/a">https://x.org/a</a>. (<a href="http://y.org/">http://y.org</a>)</p>'],
  ["<https://x.org>", '<p><a href="https://x.org/">https://x.org</a></p>'],
  ["![cat](https://x.org/c.png)", '<p><a href="https://x.org/c.png">cat</a></p>'],
  ["[x] [y](z w v)", "<p>[x] [y](z w v)</p>"],
  ["---\n***", "<hr></hr><hr></hr>"],
  ["> a\nb\n> - c\n\nd", "<blockquote><p>a\nb</p><ul><li>c</li></ul></blockquote><p>d</p>"],
  ["- a\n- b\n  - c\n\nd", "<ul><li>a</li><li>b<ul><li>c</li></ul></li></ul><p>d</p>"],
  ["1. a\n  - b\n2. c", "<ol><li>a<ul><li>b</li></ul></li><li>c</li></ol>"],
  ["3) a\n4) b", '<ol start="3"><li>a</li><li>b</li></ol>'],
  ["- a\n\n- b", "<ul><li><p>a</p></li><li><p>b</p></li></ul>"],
  ["- a\n\n  more\n- b", "<ul><li><p>a</p><p>more</p></li><li><p>b</p></li></ul>"],
  ["- ```sh\n  ls\n\n  pwd\n  ```\n- b", "<ul><li>[sh|ls\n\npwd]</li><li>b</li></ul>"],
  ["text\n- a\n1986. no list", "<p>text</p><ul><li>a</li></ul><ol start=\"1986\"><li>no list</li></ol>"],
  ["in\n1986. it was", "<p>in\n1986. it was</p>"],
  ["- [x] done\n- [ ] not", '<ul><li class="task"><input aria-label="done" checked="" disabled="" type="checkbox"></input>done</li><li class="task"><input aria-label="to do" disabled="" type="checkbox"></input>not</li></ul>'],
  ["```rust\nfn a() {}\n\n  b\n```\nafter", "[rust|fn a() {}\n\n  b]<p>after</p>"],
  ["~~~\n```\n~~~", "[text|```]"],
  ["````md\n```\nx\n```\n````", "[md|```\nx\n```]"],
  ["```py\nopen", "[py|open]"],
  ["```\tx y`z", "<p>```\tx y`z</p>"],
  ["| a | b |\n|---|:-:|\n| 1 | `x|y` |\n| 2 |\nend", '<table><thead><tr><th>a</th><th class="to-center">b</th></tr></thead><tbody><tr><td>1</td><td class="to-center"><code>x|y</code></td></tr><tr><td>2</td><td class="to-center"></td></tr></tbody></table><p>end</p>'],
  ["a | b\nno table", "<p>a | b\nno table</p>"],
  ["a\r\nb\rc", "<p>a\nb\nc</p>"],
  ["    four spaces", "<p>four spaces</p>"],
  ["-", "<ul><li></li></ul>"],
  ["- \n\na", "<ul><li></li></ul><p>a</p>"],
  ["", ""],
  ["\n \n", ""],
  ["日本**語**です", "<p>日本<strong>語</strong>です</p>"],
  ["👩‍👩‍👧 **é**", "<p>👩‍👩‍👧 <strong>é</strong></p>"],
];

test("markdown as models write it", () => {
  for (const [source, expected] of CASES) assert.equal(short(source), expected, JSON.stringify(source));
});

const ATTACKS = [
  "<script>alert(1)</script>",
  "<img src=x onerror=alert(1)>",
  "**<svg/onload=alert(1)>**",
  "[x](javascript:alert(1))",
  "[x](JaVaScRiPt:alert(1))",
  "[x](java\tscript:alert(1))",
  "[x](<java\u0001script:alert(1)>)",
  "[x](&#106;avascript:alert(1))",
  "[x](data:text/html,<script>alert(1)</script>)",
  "[x](vbscript:msgbox)",
  "[x](//evil.example/a)",
  "[x](/v1/models)",
  "[x](file:///etc/passwd)",
  "![x](javascript:alert(1))",
  "![x](https://evil.example/pixel.png)",
  "<javascript:alert(1)>",
  '[x](https://a.example/" onmouseover="alert(1))',
  '[x](https://a.example "\\" onclick=alert(1))',
  "```\"><img src=x onerror=alert(1)>\nx\n```",
  "```html\n</code></pre><script>alert(1)</script>\n```",
  "| <img src=x onerror=alert(1)> | b |\n|---|---|\n| <script>1</script> | [y](javascript:1) |",
  "&lt;script&gt;alert(1)&lt;/script&gt;",
  "# <iframe src=javascript:alert(1)>",
  "- [ ] <input autofocus onfocus=alert(1)>",
  "<a href='javascript:alert(1)'>x</a>",
  "<style>*{display:none}</style>",
];
const TAGS = "P H3 H4 H5 H6 HR UL OL LI BLOCKQUOTE DIV SPAN BUTTON PRE CODE TABLE THEAD TBODY TR TH TD STRONG EM DEL A BR INPUT".split(" ");
const ATTRIBUTES = "class type data-action tabindex aria-label role start href target rel disabled checked".split(" ");

/** Fails on anything a page could be harmed with. */
function assertSafe(root) {
  for (const node of elements(root)) {
    assert.ok(TAGS.includes(node.nodeName), `element ${node.nodeName}`);
    for (const { name, value } of node.attributes) {
      assert.ok(ATTRIBUTES.includes(name), `attribute ${name}`);
      if (name === "href") assert.match(value, /^(https?:\/\/|mailto:)/);
    }
  }
}

test("an answer cannot become markup or a dangerous link", () => {
  for (const attack of ATTACKS) {
    for (let cut = 1; cut <= attack.length; cut += 1) assertSafe(render(attack.slice(0, cut)));
    assertSafe(render(`> 1. **a** ${attack}`));
  }
});

test("the check of safety can fail", () => {
  const doc = fakeDocument();
  for (const [name, attribute, value] of [["script"], ["p", "onclick", "x"], ["a", "href", "javascript:x"], ["img", "src", "x"]]) {
    const root = doc.createElement("div");
    const node = root.appendChild(doc.createElement(name));
    if (attribute) node.setAttribute(attribute, value);
    assert.throws(() => assertSafe(root), /AssertionError/, name);
  }
});

test("addresses: absolute http, https and mailto, nothing else", () => {
  for (const good of ["https://x.org/", "http://localhost:8080/a", "mailto:a@b.c", "HTTPS://X.ORG"]) assert.ok(safeHref(good), good);
  for (const bad of ["", "x", "/x", "//x.org", "javascript:1", " javascript:1", "https:", "https:///", "http://[", "blob:https://x/1", "ftp://x"]) {
    assert.equal(safeHref(bad), null, bad);
  }
});

const LONG = `# Title
Some **bold, *nested* text** and \`code\` with https://example.org/a_b.

1. first
   - inner \`x\`

2. second

   \`\`\`python
   def f(a):
   \treturn "<b>"
   \`\`\`
3. [ ] third

| k | v |
|--:|---|
| 1 | a\\|b |

> quote
> more

~~~
open`;

/** The first cut after which growing in steps shows something else than showing the text at once, or -1. */
function firstDifference(makeView, source, step) {
  const { root, markdown } = makeView();
  for (let cut = 0; cut <= source.length; cut += step) {
    markdown.update(source.slice(0, cut));
    if (html(root) !== html(render(source.slice(0, cut)))) return cut;
  }
  return -1;
}

test("a text shown as it grows is the text shown at once", () => {
  for (const step of [1, 2, 3, 7, 50]) assert.equal(firstDifference(view, LONG, step), -1, `in steps of ${step}`);
  for (const [source] of CASES) assert.equal(firstDifference(view, source, 1), -1, source);
  for (const source of ATTACKS) assert.equal(firstDifference(view, source, 1), -1, source);
});

test("random texts as well", () => {
  const pieces = ["\n", "\n", "\n\n", "- ", "1. ", "2. ", "> ", "```", "~~~", "# ", "|", "a | b\n", "-|-\n", "---", "  ", "    ", "x", "**", "*", "`", "[a](", "https://x.org", ")", "\\", "- [ ] ", "\t"];
  let state = 1;
  const random = (n) => (state = (state * 48271) % 2147483647) % n;
  for (let round = 0; round < 400; round += 1) {
    const source = Array.from({ length: 24 }, () => pieces[random(pieces.length)]).join("");
    assert.equal(firstDifference(view, source, 1 + random(3)), -1, JSON.stringify(source));
  }
});

test("a long text that grows is not read again from its beginning", () => {
  const { markdown } = view();
  const paragraph = "Some *text* with `code`, and some more of it to fill a line.\n\n";
  let source = paragraph.repeat(2000);
  markdown.update(source);
  const time = (work) => {
    const start = performance.now();
    for (let i = 0; i < 10; i += 1) work();
    return performance.now() - start;
  };
  const grown = time(() => markdown.update((source += paragraph)));
  const whole = time(() => parseMarkdown(source));
  assert.ok(grown < whole / 3, `${grown} ms to grow, ${whole} ms to read`);
});

test("the check of growing can fail", () => {
  const stale = () => {
    const { root, markdown } = view();
    const update = markdown.update.bind(markdown);
    let n = 0;
    markdown.update = (source) => (n += 1) % 40 && update(source);
    return { root, markdown };
  };
  assert.ok(firstDifference(stale, LONG, 1) > 0);
});

test("growing keeps the nodes there were", () => {
  const { root, markdown } = view();
  markdown.update("# A\n\ntext\n\n```js\nlet a");
  const [heading, paragraph, code] = root.childNodes;
  const data = elements(code).find((node) => node.nodeName === "CODE").childNodes[0];
  markdown.update("# A\n\ntext\n\n```js\nlet a = 1;\nlet b;\n```\n\nmore");
  assert.ok([heading, paragraph, code].every((node, i) => root.childNodes[i] === node));
  assert.equal(data.data, "let a = 1;\nlet b;");
  assert.ok(elements(code).find((node) => node.nodeName === "CODE").childNodes[0] === data);
});

test("a shorter text takes away what was there", () => {
  const { root, markdown } = view();
  markdown.update(LONG);
  markdown.update("a");
  assert.equal(html(root), html(render("a")));
  markdown.update("");
  assert.equal(root.childNodes.length, 0);
});

test("no letter is lost", () => {
  const words = "alpha beta **gamma** `delta` [epsilon](https://x.org) zeta";
  assert.equal(plainText(parseInline(words)), "alpha beta gamma delta epsilon zeta");
  assert.equal(text(render("a < b && c > d \"q\" 'r'")), "a < b && c > d \"q\" 'r'");
  for (const odd of ["[", "]", "![", "](", "**", "`", "``", "<", "\\", "&", "~~", "_", "* ", "a\\"]) {
    assert.ok(text(render(odd)).length + elements(render(odd)).length > 0, odd);
  }
});

test("no text makes it slow", () => {
  const n = 20000;
  const texts = ["*", "_", "**a", "[", "![", "[a](", "[a](b (", "`", "`a``", "<", "<h", "https://", "> ", "- ", "1. ", "|", "&", "\\", "~~", "*a_", "a|b\n-|-\n", "- a\n\n", "#", " ", "\t", "(", "[](", "*a **b ", "http"];
  for (const piece of texts) {
    const source = piece.repeat(Math.ceil(n / piece.length));
    const start = performance.now();
    render(source);
    const ms = performance.now() - start;
    assert.ok(ms < 1500, `${JSON.stringify(piece)}: ${ms} ms`);
  }
});

test("deep nesting ends", () => {
  assert.ok(parseMarkdown("> ".repeat(500) + "x").length > 0);
  assert.ok(parseMarkdown(Array.from({ length: 200 }, (_, i) => " ".repeat(2 * i) + "- x").join("\n")).length > 0);
});
