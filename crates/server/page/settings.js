// The settings dialog. Every change counts at once and is kept; a value out of range is said to be so and not sent.

import { byId } from "./dom.js";
import { check, defaultSettings, FIELDS } from "./state.js";

const UNSET = { seed: "random", max_tokens: "no limit" };

/** The dialog over `settings`, changed in place; `store` keeps them, `keyChanged()` hears of another API key. */
export class SettingsDialog {
  constructor(settings, store, keyChanged) {
    this.settings = settings;
    this.store = store;
    this.dialog = byId("settings");
    byId("settings-open").addEventListener("click", () => this.open());
    for (const name of [...Object.keys(FIELDS), "system"]) {
      byId(`set-${name}`).addEventListener("input", (event) => {
        settings[name] = event.target.value;
        this.#complain(name);
        store.saveSettings(settings);
      });
    }
    byId("set-key").addEventListener("change", (event) => {
      store.key = event.target.value.trim();
      keyChanged();
    });
    byId("settings-reset").addEventListener("click", () => {
      const { mode, k } = settings;
      Object.assign(settings, defaultSettings(), { mode, k });
      store.saveSettings(settings);
      this.#fill();
    });
    // A press beside the dialog closes it.
    this.dialog.addEventListener("click", (event) => {
      if (event.target === this.dialog) this.dialog.close();
    });
    this.#fill();
  }

  /** Opens the dialog, at the field `name` if given. */
  open(name) {
    this.#fill();
    this.dialog.showModal();
    if (name) byId(`set-${name}`)?.focus();
  }

  /** The first field whose value is out of range, as {name, why}, or null. */
  get wrong() {
    const name = Object.keys(FIELDS).find((field) => check(field, this.settings[field]));
    return name ? { name, why: check(name, this.settings[name]) } : null;
  }

  /** Shows the server's own values where nothing is set. */
  describe(defaults = {}) {
    const values = { ...defaults, ...defaults.params };
    for (const name of Object.keys(FIELDS)) {
      const value = name === "repetition_penalty" ? (values[name] ?? values.repeat_penalty) : values[name];
      const usable = typeof value === "number" && check(name, String(value)) === "";
      // The server writes 32-bit floats: 0.95 comes as 0.949999988.
      byId(`set-${name}`).placeholder = usable ? String(Number(value.toPrecision(6))) : (UNSET[name] ?? "");
    }
  }

  #fill() {
    for (const name of Object.keys(FIELDS)) {
      byId(`set-${name}`).value = this.settings[name];
      this.#complain(name);
    }
    byId("set-system").value = this.settings.system;
    byId("set-key").value = this.store.key;
  }

  #complain(name) {
    if (!FIELDS[name]) return;
    const why = check(name, this.settings[name]);
    byId(`why-${name}`).textContent = why;
    byId(`set-${name}`).setAttribute("aria-invalid", String(why !== ""));
  }
}
