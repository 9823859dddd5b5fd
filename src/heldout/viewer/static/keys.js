// Keys: what the page on top understands, then what every page does. Never inside a field.

import { stored } from "./api.js";

const OFF = "heldout-keys-off";
/** @type {Array<Record<string, (event: KeyboardEvent) => void>>} */
const layers = [];
let pending = "";

export const isOff = () => stored.get(OFF) === "1";
export const turn = (on) => stored.set(OFF, on ? "0" : "1");

/** @returns {() => void} takes them away again */
export function use(keys) {
  layers.push(keys);
  return () => layers.splice(layers.indexOf(keys), 1);
}

function inField(target) {
  return target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));
}

addEventListener("keydown", (event) => {
  if (isOff() || event.ctrlKey || event.metaKey || event.altKey) return;
  if (inField(event.target)) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const typed = pending ? `${pending} ${event.key}` : event.key;
  pending = "";
  for (const layer of [...layers].reverse()) {
    if (layer[typed]) {
      event.preventDefault();
      layer[typed](event);
      return;
    }
  }
  if (layers.some((layer) => Object.keys(layer).some((key) => key.startsWith(`${event.key} `)))) pending = event.key;
});
