// What readers do to a page, and expressions for what they see.

import { mkdirSync } from "node:fs";
import { join } from "node:path";

const SHOTS = process.env.PAGE_SHOTS; // a directory for screenshots, if wanted
if (SHOTS) mkdirSync(SHOTS, { recursive: true });

export const count = (selector) => `document.querySelectorAll(${JSON.stringify(selector)}).length`;
export const value = (id) => `document.getElementById("${id}").textContent`;
export const LAST = `[...document.querySelectorAll(".assistant")].at(-1)`;
export const ANSWER = `${LAST}.querySelector(":scope > .text")`;

/** Adds what readers do to a page. */
export function reader(page) {
  return Object.assign(page, {
    ready: () => page.until(`document.getElementById("dot").dataset.state === "ready"`, "the model's name"),
    async write(text) {
      await page.eval(`document.getElementById("prompt").focus()`);
      await page.type(text);
      await page.key("Enter");
    },
    streaming: () => page.until(`!document.getElementById("stop").hidden && ${ANSWER}.textContent.length > 40`, "an answer to begin"),
    idle: () => page.until(`document.getElementById("stop").hidden`, "the answer to end"),
    async ask(text) {
      await page.write(text);
      await page.until(`!document.getElementById("stop").hidden || document.querySelector(".error, .cost")`, "a request");
      await page.idle();
    },
    press: (label, within = "document") => page.eval(`[...${within}.querySelectorAll("button")].filter((b) => b.checkVisibility() && (b.textContent === "${label}" || b.ariaLabel === "${label}")).at(-1).click()`),
    async shoot(name) {
      if (SHOTS) await page.shot(join(SHOTS, `${name}.png`));
    },
  });
}

/** What is wrong with where a page's requests went. */
export function strays(page, origin) {
  return page.addresses.filter((address) => !address.startsWith(`${origin}/`));
}
