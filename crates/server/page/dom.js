// Small helpers over the DOM.

/** The element with this id. */
export function byId(id) {
  return document.getElementById(id);
}

/** An element with attributes, listeners (`onclick: f`) and children; null children are left out. */
export function make(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value === true) node.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(key, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

/** Tells those who cannot see the page. */
export function announce(text) {
  byId("announce").textContent = text;
}

/** Copies text; says whether it could. Pages that are not on loopback or https have no clipboard of their own. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = make("textarea", { class: "hidden", readonly: true });
    area.value = text;
    const focused = document.activeElement;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    focused?.focus();
    return done;
  }
}

/** Copies text at the press of `button`, which says how it went. */
export async function copyFrom(button, text) {
  const label = button.textContent;
  if (button.dataset.busy) return;
  button.dataset.busy = "yes";
  button.textContent = (await copy(text)) ? "Copied" : "Not copied";
  announce(button.textContent);
  setTimeout(() => {
    button.textContent = label;
    delete button.dataset.busy;
  }, 1200);
}

/** Runs `paint` at most once a frame, and less often where it takes long; `flush` runs it now. */
export class Painter {
  constructor(paint) {
    this.paint = paint;
    this.timer = null;
    this.cost = 0;
  }

  request() {
    if (this.timer !== null) return;
    // Timers rather than frames: a tab in the background keeps its page up to date.
    this.timer = setTimeout(() => this.flush(), Math.max(16, 4 * this.cost));
  }

  flush() {
    clearTimeout(this.timer);
    this.timer = null;
    const start = performance.now();
    this.paint();
    this.cost = performance.now() - start;
  }
}
