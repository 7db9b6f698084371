// The conversation on the screen.

import { copyFrom, make } from "./dom.js";
import { MarkdownView } from "./render.js";
import { figures, percent, show } from "./stats.js";

/** Shows messages and keeps them up to date. `actions` has regenerate(), edit(index, text), retry(), advise(action). */
export class MessageList {
  constructor(root, actions) {
    this.root = root;
    this.actions = actions;
    this.views = [];
    root.addEventListener("click", (event) => {
      const button = event.target.closest?.("[data-action=copy-code]");
      if (button) copyFrom(button, button.closest(".code").querySelector("code").textContent);
    });
  }

  /** Shows another conversation. */
  show(messages) {
    this.root.replaceChildren();
    this.views = [];
    this.sync(messages, false);
  }

  /** Follows a conversation that grew, shrank or changed at its end; `running`: its last answer is being written. */
  sync(messages, running) {
    const same = this.views.findIndex((view, i) => view.message !== messages[i]);
    if (same >= 0) this.views.splice(same).forEach((view) => view.node.remove());
    for (const message of messages.slice(this.views.length)) {
      const view = message.role === "user" ? new UserView(message) : new AnswerView(message);
      this.views.push(view);
      this.root.append(view.node);
    }
    const lastUser = messages.findLastIndex((m) => m.role === "user");
    this.views.forEach((view, i) => {
      const last = i === messages.length - 1;
      view.update({ running: running && last, last, editable: i === lastUser && !running, index: i }, this.actions);
    });
    this.root.setAttribute("aria-busy", String(running));
  }

  /** Shows what the last answer has become. */
  grow() {
    this.views.at(-1)?.paint(true);
  }
}

class UserView {
  constructor(message) {
    this.message = message;
    this.text = make("div", { class: "said" }, message.content);
    this.foot = make("footer");
    this.node = make("article", { class: "message user", "aria-label": "You" }, this.text, this.foot);
  }

  paint() {}

  update({ editable, index }, actions) {
    if (this.editing && editable) return;
    this.editing = false;
    this.node.replaceChildren(this.text, this.foot);
    const edit = make("button", { type: "button", class: "quiet", onclick: () => this.edit(index, actions) }, "Edit");
    this.foot.replaceChildren(...(editable ? [edit] : []));
  }

  edit(index, actions) {
    this.editing = true;
    const area = make("textarea", { "aria-label": "Edit your message", rows: "3" });
    area.value = this.message.content;
    const close = () => {
      this.editing = false;
      this.update({ editable: true, index }, actions);
      this.foot.querySelector("button")?.focus();
    };
    const send = () => {
      if (!area.value.trim()) return;
      this.editing = false;
      actions.edit(index, area.value);
    };
    area.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) event.preventDefault(), send();
      if (event.key === "Escape") event.stopPropagation(), close();
    });
    const buttons = [
      make("button", { type: "button", class: "quiet", onclick: close }, "Cancel"),
      make("button", { type: "button", class: "primary", onclick: send }, "Send"),
    ];
    this.node.replaceChildren(make("div", { class: "edit" }, area, make("div", { class: "actions" }, buttons)));
    area.focus();
  }
}

class AnswerView {
  constructor(message) {
    this.message = message;
    this.reasoning = make("div", { class: "text" });
    this.summary = make("summary", {}, "Reasoning");
    this.details = make("details", { class: "reasoning", hidden: true }, this.summary, this.reasoning);
    // Whoever opened or closed it knows better than the stream.
    this.summary.addEventListener("click", () => (this.chosen = true));
    this.text = make("div", { class: "text" });
    this.notes = make("div", { class: "notes" });
    this.foot = make("footer", { class: "faint" });
    this.node = make(
      "article",
      { class: "message assistant", "aria-label": "Answer" },
      this.details,
      this.text,
      this.notes,
      this.foot,
    );
    this.markdown = new MarkdownView(this.text);
    this.thoughts = new MarkdownView(this.reasoning);
  }

  paint(running) {
    const { content, reasoning = "" } = this.message;
    this.thoughts.update(reasoning);
    this.markdown.update(content);
    this.details.hidden = reasoning.trim() === "";
    const thinking = running && content === "";
    this.summary.textContent = thinking ? "Reasoning…" : "Reasoning";
    if (!this.chosen) this.details.open = thinking;
    this.node.classList.toggle("waiting", thinking && !reasoning);
    this.node.classList.toggle("running", running);
  }

  update({ running, last }, actions) {
    this.paint(running);
    const { content, error, finish, stopped, timings } = this.message;
    const notes = [];
    if (!running) {
      if (stopped) notes.push(note("Stopped."));
      if (finish === "length") notes.push(note("Cut: the most tokens allowed were written, or the context is full."));
      if (!content && !error && !stopped) notes.push(note("The answer is empty."));
      if (error) notes.push(failure(error, last, actions));
    }
    this.notes.replaceChildren(...notes);
    const copyButton = make("button", { type: "button", class: "quiet", onclick: () => copyFrom(copyButton, content) }, "Copy");
    const again = make("button", { type: "button", class: "quiet", onclick: actions.regenerate }, "Regenerate");
    const parts = [];
    if (!running && content) parts.push(copyButton);
    if (!running && last && error?.action !== "retry") parts.push(again);
    if (!running && timings) parts.push(make("span", { class: "cost" }, cost(this.message)));
    this.foot.replaceChildren(...parts);
  }
}

function note(text) {
  return make("p", { class: "faint" }, text);
}

/** An error and what to do about it. */
function failure({ message, advice, action }, last, actions) {
  const labels = { key: "Enter key", settings: "Open settings", "new-chat": "New chat", retry: "Try again" };
  const act = () => (action === "retry" ? actions.retry() : actions.advise(action));
  const button = last && labels[action] && make("button", { type: "button", onclick: act }, labels[action]);
  return make("div", { class: "error", role: "alert" }, make("p", {}, make("strong", {}, message)), make("p", {}, advice), button || null);
}

function cost({ timings, mode }) {
  const f = figures(timings);
  const parts = [`${f.tokens} tokens`, `${show(f.perSecond)} tokens/s`];
  if (f.drafted) parts.push(`${percent(f.acceptance)} of drafts accepted`);
  else if (mode === "off") parts.push("plain");
  return parts.join(" · ");
}
