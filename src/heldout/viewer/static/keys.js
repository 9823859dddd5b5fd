// Keys: what the page on top understands, then what every page does. Never inside a field, and
// never the keys that a control with the focus has a use for itself.

import { stored } from "./api.js";

const OFF = "heldout-keys-off";
const FIELDS = "input, textarea, select, [contenteditable]";
const CONTROLS = "a[href], button, summary, [role=button], tr[tabindex]";

/** @type {Array<{current: Record<string, (event: KeyboardEvent) => void>}>} */
const layers = [];
let pending = "";

export const isOff = () => stored.get(OFF) === "1";
export const turn = (on) => stored.set(OFF, on ? "0" : "1");

/** @returns {() => void} takes them away again */
export function use(layer) {
  layers.push(layer);
  return () => layers.splice(layers.indexOf(layer), 1);
}

const starts = (handlers, key) => Object.keys(handlers).some((typed) => typed.startsWith(`${key} `));

addEventListener("keydown", (event) => {
  const { key, target } = event;
  if (isOff() || event.ctrlKey || event.metaKey || event.altKey) return;
  if (target.closest?.(FIELDS)) {
    if (key === "Escape") target.blur();
    return;
  }
  if ((key === "Enter" || key === " ") && target.closest?.(CONTROLS)) return;
  const typed = pending ? `${pending} ${key}` : key;
  pending = "";
  const layer = layers.findLast(({ current }) => current[typed]);
  if (layer) {
    event.preventDefault();
    layer.current[typed](event);
  } else if (layers.some(({ current }) => starts(current, key))) pending = key;
});
