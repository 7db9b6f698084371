// Headless Chromium over its debugging pipe: no package, no port.

import { spawn, spawnSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const NAMES = [process.env.CHROMIUM, "chromium", "chromium-browser", "google-chrome"].filter(Boolean);
const KEYS = { Enter: 13, Escape: 27, Tab: 9, Space: 32, ArrowRight: 39, ArrowLeft: 37, ArrowDown: 40 };

export class Browser {
  static async start() {
    const name = NAMES.find((n) => spawnSync(n, ["--version"]).status === 0);
    if (!name) throw new Error(`no browser found: expected one of ${NAMES.join(", ")} on PATH (Debian: apt-get install chromium)`);
    const profile = mkdtempSync(join(tmpdir(), "page-test-"));
    const flags = ["--headless=new", "--remote-debugging-pipe", `--user-data-dir=${profile}`, "--disable-gpu", "--no-first-run", "--hide-scrollbars", "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"];
    // A container's root has no user namespaces to make a sandbox of; the pages are this repository's own.
    if (process.getuid?.() === 0) flags.push("--no-sandbox");
    const child = spawn(name, [...flags, "about:blank"], { stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"] });
    return new Browser(child, profile);
  }

  constructor(child, profile) {
    Object.assign(this, { child, profile, next: 1, waiting: new Map(), listeners: new Map() });
    let rest = "";
    child.stdio[4].setEncoding("utf8").on("data", (piece) => {
      const messages = (rest + piece).split("\0");
      rest = messages.pop();
      messages.forEach((message) => this.#receive(JSON.parse(message)));
    });
    child.on("exit", (code) => {
      for (const { reject } of this.waiting.values()) reject(new Error(`the browser ended with code ${code}`));
    });
  }

  #receive({ id, result, error, method, params, sessionId }) {
    if (id === undefined) return this.listeners.get(sessionId)?.(method, params);
    const { resolve, reject } = this.waiting.get(id);
    this.waiting.delete(id);
    if (error) reject(new Error(error.message));
    else resolve(result);
  }

  send(method, params = {}, sessionId) {
    const id = this.next++;
    this.child.stdio[3].write(`${JSON.stringify({ id, method, params, sessionId })}\0`);
    return new Promise((resolve, reject) => this.waiting.set(id, { resolve, reject }));
  }

  /** Opens an address in a profile of its own. `look`: width, height, dark, touch. */
  async open(url, look = {}) {
    const { browserContextId } = await this.send("Target.createBrowserContext");
    const { targetId } = await this.send("Target.createTarget", { url: "about:blank", browserContextId });
    const { sessionId } = await this.send("Target.attachToTarget", { targetId, flatten: true });
    const page = new Page(this, sessionId, browserContextId);
    await page.prepare(look);
    await page.go(url);
    return page;
  }

  async close() {
    const ended = new Promise((resolve) => this.child.on("exit", resolve));
    this.send("Browser.close").catch(() => {});
    const timer = setTimeout(() => this.child.kill("SIGKILL"), 3000);
    await ended;
    clearTimeout(timer);
    rmSync(this.profile, { recursive: true, force: true, maxRetries: 5 });
  }
}

/** One tab. `errors`: what its console complains of; `addresses`: what it asked for. */
class Page {
  constructor(browser, session, context) {
    Object.assign(this, { browser, session, context, errors: [], addresses: [] });
    browser.listeners.set(session, (method, params) => {
      if (method === "Network.requestWillBeSent") this.addresses.push(params.request.url);
      if (method === "Runtime.exceptionThrown") this.errors.push(params.exceptionDetails.exception?.description ?? params.exceptionDetails.text);
      if (method === "Runtime.consoleAPICalled" && ["error", "warning", "assert"].includes(params.type)) this.errors.push(JSON.stringify(params.args.map((a) => a.value)));
      if (method === "Log.entryAdded" && params.entry.level !== "verbose") this.errors.push(`${params.entry.text} ${params.entry.url ?? ""}`);
      if (method === "Page.javascriptDialogOpening") this.send("Page.handleJavaScriptDialog", { accept: true });
    });
  }

  send(method, params) {
    return this.browser.send(method, params, this.session);
  }

  async prepare({ width = 1280, height = 800, dark = false, touch = false }) {
    for (const domain of ["Page", "Runtime", "Network", "Log"]) await this.send(`${domain}.enable`);
    await this.look({ width, height, dark, touch });
  }

  async look({ width = 1280, height = 800, dark = false, touch = false }) {
    await this.send("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: touch ? 2 : 1, mobile: touch });
    await this.send("Emulation.setTouchEmulationEnabled", { enabled: touch });
    await this.send("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value: dark ? "dark" : "light" }] });
  }

  async go(url) {
    await this.send("Page.navigate", { url });
    await this.until("document.readyState === 'complete' && location.href !== 'about:blank'", "the page to load");
  }

  async reload() {
    await this.eval("window.before = true");
    await this.send("Page.reload");
    await this.until("!window.before && document.readyState === 'complete'", "the page to load again");
  }

  /** The value of an expression in the page. */
  async eval(expression) {
    const { result, exceptionDetails } = await this.send("Runtime.evaluate", { expression, returnByValue: true, awaitPromise: true, userGesture: true });
    if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
    return result.value;
  }

  /** Waits until an expression is true; returns its value. */
  async until(expression, what = expression, ms = 8000) {
    const end = Date.now() + ms;
    for (;;) {
      const value = await this.eval(`(() => { try { return ${expression} } catch { return null } })()`).catch(() => null);
      if (value) return value;
      if (Date.now() > end) throw new Error(`waited ${ms} ms for ${what}`);
      await new Promise((resolve) => setTimeout(resolve, 25));
    }
  }

  type(text) {
    return this.send("Input.insertText", { text });
  }

  /** Presses a key. `modifiers`: 1 Alt, 2 Ctrl, 8 Shift. */
  async key(name, modifiers = 0) {
    const key = name === "Space" ? " " : name;
    const text = { Enter: "\r", Space: " " }[name];
    const event = { key, code: name, windowsVirtualKeyCode: KEYS[name], modifiers };
    await this.send("Input.dispatchKeyEvent", { type: text ? "keyDown" : "rawKeyDown", ...event, text });
    await this.send("Input.dispatchKeyEvent", { type: "keyUp", ...event });
  }

  /** Presses the middle of the first element a selector names, as a mouse does. */
  async click(selector) {
    const at = await this.eval(`(() => { const e = document.querySelector(${JSON.stringify(selector)}); e.scrollIntoView({ block: "nearest" }); const r = e.getBoundingClientRect(); return { x: r.x + r.width / 2, y: r.y + r.height / 2 } })()`);
    for (const type of ["mousePressed", "mouseReleased"]) await this.send("Input.dispatchMouseEvent", { type, ...at, button: "left", clickCount: 1 });
  }

  async shot(path) {
    const { data } = await this.send("Page.captureScreenshot", { format: "png" });
    writeFileSync(path, Buffer.from(data, "base64"));
  }

  async close() {
    this.browser.listeners.delete(this.session);
    await this.browser.send("Target.disposeBrowserContext", { browserContextId: this.context });
  }
}
