// Counts, times and texts. Rewards, means and intervals come from Python as text: see `text` in answers.

import Diff from "./vendor/diff.js";

export const count = (value) =>
  value === null || value === undefined ? "–" : value.toLocaleString("en-US");

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor((whole % 3600) / 60)];
  return hours ? `${hours} h ${minutes} min` : `${minutes} min ${whole % 60} s`;
}

export function ago(iso, now = Date.now()) {
  const seconds = (now - Date.parse(iso)) / 1000;
  if (Number.isNaN(seconds)) return "";
  if (seconds < 60) return "just now";
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86400)} d ago`;
}

/** Characters that hide or reorder others, as marks: what is shown is what is there. */
const CONTROLS = "\\u0000-\\u0008\\u000b\\u000c\\u000e-\\u001f\\u007f-\\u009f";
const INVISIBLE = "\\u00ad\\u061c\\u200b-\\u200f\\u202a-\\u202e\\u2060-\\u206f\\ufeff";
const HIDDEN = new RegExp(`[${CONTROLS}${INVISIBLE}]`, "g");

export function visible(text) {
  const mark = (char) => `⟨U+${char.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`;
  return String(text).replace(HIDDEN, mark);
}

export function oneLine(text, longest = 200) {
  const line = visible(text ?? "")
    .replace(/\s+/g, " ")
    .trim();
  return line.length > longest ? `${line.slice(0, longest - 1)}…` : line;
}

const MOST_EDITS = 2_000;

class WordDiff extends Diff {
  /** Words with the space behind them: spaces of their own would match everywhere. */
  tokenize(text) {
    return text.match(/^\s+|\S+\s*/g) || [];
  }
}

/** Words that two texts do not share: [[kind, text]…] with kind "same", "gone" or "new". */
export function wordDiff(before, after) {
  const parts = new WordDiff().diff(before, after, { maxEditLength: MOST_EDITS });
  if (parts) return parts.map((part) => [part.added ? "new" : part.removed ? "gone" : "same", part.value]);
  const whole = [
    ["gone", before],
    ["new", after],
  ];
  return whole.filter(([, text]) => text);
}

/** A field or value of a filter. */
export const quoted = (text) => (/^[^\s"\\:=<>!-][^\s"\\:=<>!]*$/.test(text) ? text : JSON.stringify(text));
