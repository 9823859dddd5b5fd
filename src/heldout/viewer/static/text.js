// Numbers and texts as the command line prints them.

/** Three digits after the point, as `heldout show` has them. */
export function number(value, { sign = false } = {}) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  const text = size === 0 || (size >= 1e-3 && size < 1e6) ? fixed(size) : short(size);
  return (value < 0 ? "-" : sign && value > 0 ? "+" : "") + text;
}

/** Python rounds a tie to the even digit, toFixed and toExponential to the larger number. */
function fixed(size) {
  const [whole, digits] = size.toFixed(20).split(".");
  const even = (digits.charCodeAt(2) - 48) % 2 === 0;
  return even && /^50*$/.test(digits.slice(3)) ? `${whole}.${digits.slice(0, 3)}` : size.toFixed(3);
}

function short(size) {
  const exact = size.toExponential(20);
  const tie = /^\d\.\d[02468]50*e/.test(exact);
  const [digits, power] = (tie ? exact.slice(0, 4) + exact.slice(exact.indexOf("e")) : size.toExponential(2)).split("e");
  if (power === "-4") return `0.000${Number(digits.replace(".", ""))}`.replace(/0+$/, "");
  return `${Number(digits)}e${power[0]}${power.slice(1).padStart(2, "0")}`;
}

export const interval = (low, high) => (low === null || low === undefined ? "–" : `${number(low)} … ${number(high)}`);

export const count = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en-US"));

export const plural = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  const parts = [Math.floor(whole / 3600), Math.floor((whole % 3600) / 60), whole % 60];
  return parts[0] ? `${parts[0]} h ${parts[1]} min` : `${parts[1]} min ${parts[2]} s`;
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
const HIDDEN = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]/g;
export function visible(text) {
  return String(text).replace(HIDDEN, (char) => `⟨U+${char.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

export const oneLine = (text, longest = 200) => {
  const line = visible(text ?? "").replace(/\s+/g, " ").trim();
  return line.length > longest ? `${line.slice(0, longest - 1)}…` : line;
};

/**
 * Words that two texts do not share: [[kind, text]…] with kind "same", "gone" or "new".
 * Longest common subsequence of words; where that would take too long, all gone and all new.
 */
export function wordDiff(before, after) {
  // Words with the space behind them: spaces of their own would match everywhere.
  const words = (text) => text.match(/^\s+|\S+\s*/g) || [];
  const a = words(before);
  const b = words(after);
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start++;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end++;
  const x = a.slice(start, a.length - end);
  const y = b.slice(start, b.length - end);
  const out = [];
  const push = (kind, text) => {
    if (!text) return;
    if (out.length && out[out.length - 1][0] === kind) out[out.length - 1][1] += text;
    else out.push([kind, text]);
  };
  push("same", a.slice(0, start).join(""));
  if (x.length * y.length > 4e6) {
    push("gone", x.join(""));
    push("new", y.join(""));
  } else {
    const width = y.length + 1;
    const length = new Uint32Array((x.length + 1) * width);
    for (let i = x.length - 1; i >= 0; i--)
      for (let j = y.length - 1; j >= 0; j--)
        length[i * width + j] =
          x[i] === y[j] ? length[(i + 1) * width + j + 1] + 1 : Math.max(length[(i + 1) * width + j], length[i * width + j + 1]);
    let i = 0;
    let j = 0;
    while (i < x.length || j < y.length) {
      if (i < x.length && j < y.length && x[i] === y[j]) {
        push("same", x[i]);
        i++;
        j++;
      } else if (j >= y.length || (i < x.length && length[(i + 1) * width + j] >= length[i * width + j + 1])) push("gone", x[i++]);
      else push("new", y[j++]);
    }
  }
  push("same", a.slice(a.length - end).join(""));
  return out;
}

/** A field or value of a filter. */
export const quoted = (text) => (/^[^\s"\\:=<>!-][^\s"\\:=<>!]*$/.test(text) ? text : JSON.stringify(text));
