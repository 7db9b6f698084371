// Side panes, which are columns where there is room and drawers where there is not; scrolling; the message field's height.

import { byId } from "./dom.js";

const WIDE = { chats: "(min-width: 75rem)", panel: "(min-width: 60rem)" };

/** Shows and hides the panes; a drawer takes the focus and gives it back. */
export class Panes {
  constructor() {
    this.open = {};
    for (const name of Object.keys(WIDE)) {
      const query = matchMedia(WIDE[name]);
      byId(`${name}-toggle`).addEventListener("click", () => this.set(name, !this.open[name]));
      query.addEventListener("change", () => this.set(name, query.matches, false));
      this.set(name, query.matches, false);
    }
    for (const node of [byId("backdrop"), ...document.querySelectorAll("aside .close")]) {
      node.addEventListener("click", () => this.closeDrawers());
    }
  }

  /** Opens or closes a pane. */
  set(name, open, moveFocus = true) {
    this.open[name] = open;
    byId(name).hidden = !open;
    byId(`${name}-toggle`).setAttribute("aria-expanded", String(open));
    const drawers = this.#drawers();
    if (open && drawers.includes(name)) for (const other of drawers) if (other !== name) this.set(other, false, false);
    const covered = this.#drawers().length > 0;
    byId("backdrop").hidden = !covered;
    byId("main").inert = covered;
    if (!moveFocus || !drawers.includes(name)) {
      if (moveFocus && !open) byId(`${name}-toggle`).focus();
      return;
    }
    byId(name).querySelector("button:enabled, input:enabled")?.focus();
  }

  /** Closes what covers the conversation; says whether anything did. */
  closeDrawers() {
    const drawers = this.#drawers();
    for (const name of drawers) this.set(name, false);
    return drawers.length > 0;
  }

  #drawers() {
    return Object.keys(WIDE).filter((name) => this.open[name] && !matchMedia(WIDE[name]).matches);
  }
}

/** Keeps the end of the conversation in view while the reader is there, and leaves a reader elsewhere alone. */
export class Follower {
  constructor() {
    this.scroller = byId("scroller");
    this.following = true;
    this.top = 0; // where this last put the reader
    this.scroller.addEventListener("scroll", () => {
      this.#set(this.#gap() < 48);
    });
    byId("to-end").addEventListener("click", () => this.toEnd());
    // A taller message field or a phone's keyboard takes room from the conversation.
    new ResizeObserver(() => this.follow()).observe(this.scroller);
  }

  toEnd() {
    this.top = 0;
    this.#set(true);
    this.follow();
  }

  follow() {
    // Text may come between the reader's scrolling and the event that tells of it.
    if (this.scroller.scrollTop < this.top - 2 && this.#gap() > 2) this.#set(false);
    if (!this.following) return;
    this.scroller.scrollTop = this.scroller.scrollHeight;
    this.top = this.scroller.scrollTop;
  }

  #gap() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    return scrollHeight - scrollTop - clientHeight;
  }

  #set(following) {
    this.following = following;
    byId("to-end").hidden = following;
  }
}

/** Makes a text field as high as its text, up to a third of the window. */
export function fit(area) {
  area.style.height = "auto";
  area.style.height = `${Math.min(area.scrollHeight + 2, Math.max(96, innerHeight / 3))}px`;
}
