// The filter of a table of samples, for exported files: the server's (viewer/filter.py) has the same
// meaning, and a test compares the two.

import { Refused } from "./refused.js";

const TERM = /(-)?(?:("(?:[^"\\]|\\.)*"|[^\s:=<>!"]+)(:|<=|>=|!=|=|<|>))?("(?:[^"\\]|\\.)*"|[^\s"]+)/suy;
const OPEN = /^-?[^\s:=<>!]+(?::|<=|>=|!=|=|<|>)$/u;
const NUMBER = /^[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?$/i;
const OUTCOMES = ["passed", "failed", "errored", "truncated"];
/** Fields of which `:` looks for a part, whatever its case. */
const CONTAINED = ["id", "error", "ground_truth", "extracted"];
/** Fields that are searched for in conversations, which only the server has. */
const SEARCHED = ["text", "answer"];
const COMPARE = {
  ":": (a, b) => a === b,
  "=": (a, b) => a === b,
  "!=": (a, b) => a !== b,
  "<": (a, b) => a < b,
  "<=": (a, b) => a <= b,
  ">": (a, b) => a > b,
  ">=": (a, b) => a >= b,
};

const refuse = (error, at) => new Refused({ error, kind: "filter", at }, 400);

/**
 * `group` counts the ORs before a term.
 * @typedef {{field: string, op: string, value: string, negated: boolean, start: number, group: number}} Term
 */

/** @returns {Term[]} */
export function parse(text) {
  const terms = [];
  let at = 0;
  let group = 0;
  let orAt = null;
  while (at < text.length) {
    if (/\s/.test(text[at])) {
      at++;
      continue;
    }
    TERM.lastIndex = at;
    const match = TERM.exec(text);
    const end = TERM.lastIndex;
    if (!match || (end < text.length && !/\s/.test(text[end])))
      throw refuse(`cannot read '${text.slice(at, at + 40)}': close the quotes`, at);
    if (match[0] === "OR") {
      if (orAt !== null || !terms.length) throw refuse("OR stands between two terms", at);
      orAt = at;
      group++;
      at = end;
      continue;
    }
    if (OPEN.test(match[0])) throw refuse(`${match[0]} has no value`, at);
    const [, minus, field = "text", op = ":", value] = match;
    const term = { field: unquote(field), op, value: unquote(value), negated: minus === "-" };
    terms.push({ ...term, start: at, group });
    orAt = null;
    at = end;
  }
  if (orAt !== null) throw refuse("OR stands between two terms", orAt);
  return terms;
}

function unquote(text) {
  if (!text.startsWith('"')) return text;
  try {
    return String(JSON.parse(text));
  } catch {
    return text.slice(1, -1).replace(/\\(.)/gsu, "$1");
  }
}

/** What rows were picked by: "all", "metadata", or "outcome", whose means mislead. */
export function pickedBy(terms, inputs) {
  if (!terms.length) return "all";
  return terms.every((term) => inputs.includes(term.field)) ? "metadata" : "outcome";
}

/**
 * The rows that all terms hold for, in an order; those without a value come last.
 * @param {{columns: Record<string, any>, fields: Record<string, string>, of: number}} table
 */
export function select(table, terms, sort) {
  const column = (field, at) => {
    const name = Object.hasOwn(table.fields, field) ? table.fields[field] : undefined;
    if (name === undefined) throw refuse(`the exported file has no column '${field}'`, at);
    return table.columns[name];
  };
  const groups = [];
  for (const term of terms) {
    if (SEARCHED.includes(term.field) && (term.field === "text" || !Object.hasOwn(table.fields, term.field)))
      throw refuse("an exported file has no search of conversations; `heldout view` has", term.start);
    const holds = test(term, column(term.field, term.start));
    groups[term.group] ??= [];
    groups[term.group].push(term.negated ? (row) => !holds(row) : holds);
  }
  const isHeld = (row) => !groups.length || groups.some((tests) => tests.every((holds) => holds(row)));
  const rows = [];
  for (let row = 0; row < table.of; row++) if (isHeld(row)) rows.push(row);
  if (!sort) return rows;
  const { numbers, codes } = column(sort.replace(/^-/, ""), 0);
  const key = numbers ? (row) => numbers[row] : (row) => (codes[row] < 0 ? null : codes[row]);
  const sign = sort.startsWith("-") ? -1 : 1;
  const order = (a, b) => (a === b ? 0 : a === null ? 1 : b === null ? -1 : a < b ? -sign : sign);
  return rows.sort((a, b) => order(key(a), key(b)));
}

/** @returns {(row: number) => boolean} */
function test(term, { numbers, codes, values }) {
  const { field, op, value, start } = term;
  if (numbers) {
    const compare = numberTest(term);
    // A row without a value satisfies no condition, "unequal" included.
    return (row) => numbers[row] !== null && compare(numbers[row]);
  }
  if (!(op === ":" || op === "=" || op === "!="))
    throw refuse(`${field} has texts; compare them with : or !=`, start);
  const part = value.toLowerCase();
  const isPart = CONTAINED.includes(field) && op === ":";
  const held = values.map((text) => (isPart ? text.toLowerCase().includes(part) : text === value));
  return (row) => codes[row] >= 0 && held[codes[row]] === (op !== "!=");
}

/** @returns {(value: number) => boolean} */
function numberTest(term) {
  const { op, value } = term;
  const range = /^(.*?)\.\.(.*)$/s.exec(value);
  if (!range || !(op === ":" || op === "=" || op === "!=")) {
    const wanted = toNumber(term);
    return (number) => COMPARE[op](number, wanted);
  }
  const end = (text) => toNumber({ ...term, value: text });
  const low = range[1] || !range[2] ? end(range[1]) : -Infinity;
  const high = range[2] ? end(range[2]) : Infinity;
  return (number) => (low <= number && number <= high) === (op !== "!=");
}

function toNumber({ field, value, start }) {
  if (OUTCOMES.includes(field) && (value === "yes" || value === "no")) return Number(value === "yes");
  const plain = value.trim().replace(/(?<=\d)_(?=\d)/g, "");
  const infinite = /^([+-]?)inf(?:inity)?$/i.exec(plain);
  if (infinite) return infinite[1] === "-" ? -Infinity : Infinity;
  if (NUMBER.test(plain)) return Number(plain);
  const wanted = OUTCOMES.includes(field) ? "yes or no" : "a number";
  throw refuse(`${field} is compared with ${wanted}, got '${value}'`, start);
}
