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
const CONTROLS = "\\u0000-\\u0008\\u000b\\u000c\\u000e-\\u001f\\u007f-\\u009f\\ufff9-\\ufffb";
const HIDDEN = new RegExp(`[${CONTROLS}\\p{Default_Ignorable_Code_Point}]`, "gu");
const EMOJI = /\p{Extended_Pictographic}[\ufe0f\u{1f3fb}-\u{1f3ff}]*$/u;
const PICTURE = /^\p{Extended_Pictographic}/u;
/** Scripts that are written with joiners. */
const JOINED = ["Arab", "Syrc", "Mong", "Nkoo", "Deva", "Beng", "Guru", "Gujr", "Orya", "Taml"]
  .concat(["Telu", "Knda", "Mlym", "Sinh", "Khmr", "Mymr", "Tibt"])
  .map((script) => `\\p{Script_Extensions=${script}}`)
  .join("");
const JOINS_BEFORE = new RegExp(`[${JOINED}]$`, "u");
const JOINS_AFTER = new RegExp(`^[${JOINED}]`, "u");
/** The flags of England, Scotland and Wales: any other text in tag characters is a hidden one. */
const FLAGS = ["gbeng", "gbsct", "gbwls"].map(
  (code) =>
    `\u{1f3f4}${[...code].map((c) => String.fromCodePoint(0xe0000 + c.charCodeAt(0))).join("")}\u{e007f}`,
);

/** Whether an invisible character only shapes what stands beside it, as in emoji and many scripts. */
function isShaping(char, at, text) {
  const before = text.slice(Math.max(0, at - 12), at);
  const after = text.slice(at + char.length, at + char.length + 2);
  if (char === "\u200d" && EMOJI.test(before) && PICTURE.test(after)) return true;
  if (char === "\u200d" || char === "\u200c") return JOINS_BEFORE.test(before) && JOINS_AFTER.test(after);
  if (char === "\ufe0e" || char === "\ufe0f")
    return /\p{Extended_Pictographic}$/u.test(before) || after[0] === "\u20e3";
  if (char >= "\u{e0000}" && char <= "\u{e007f}") {
    const start = text.lastIndexOf("\u{1f3f4}", at);
    return FLAGS.some((flag) => text.startsWith(flag, start) && at < start + flag.length);
  }
  return false;
}

export function visible(text) {
  const mark = (char, at, whole) =>
    isShaping(char, at, whole)
      ? char
      : `⟨U+${char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`;
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
export const quoted = (text) =>
  text !== "OR" && /^[^\s"\\:=<>!-][^\s"\\:=<>!]*$/.test(text) ? text : JSON.stringify(text);
