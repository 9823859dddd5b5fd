// The answers inside an exported file, which has no server.

import { parse, pickedBy, select } from "./filter.js";
import { Refused } from "./refused.js";

/** Answers by request; null where there is a server. */
let answers = null;

export const isExport = () => answers !== null;

/** Read the answers out of the page: base64 of gzip of JSON. */
export async function readAnswers(element) {
  const bytes = Uint8Array.from(atob(element.textContent.trim()), (char) => char.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  answers = JSON.parse(await new Response(stream).text());
}

/**
 * The answer to a request.
 * @param {string} path
 * @param {Record<string, any>} params
 * @param {[string, string][]} pairs the same parameters, those that are given, in order
 */
export function answer(path, params, pairs) {
  if (path === "rows") return rowsOf(answers[`rows\nname=${params.name}`], params);
  if (path === "pairs") return pairsOf(answers[`pairs\na=${params.a}\nb=${params.b}`], params);
  if (path === "position") return positionOf(answers[`rows\nname=${params.name}`], params);
  const found = answers[[path, ...pairs.map((pair) => pair.join("="))].join("\n")];
  if (found === undefined) throw notInside();
  return path === "sample" ? { ...found, tools: answers[found.tools] || [] } : found;
}

function notInside() {
  const hint = "`heldout view` shows all of it.";
  return new Refused({ error: "This is not in the exported file.", hint }, 404);
}

/** The samples of two runs that a filter holds for. */
function pairsOf(table, { where = "", sort = "", offset = 0, limit = 100 }) {
  if (!table) throw notInside();
  const chosen = select(table, parse(where), sort);
  const rows = chosen.slice(offset, offset + limit).map((row) => table.rows[row]);
  return { ...table, total: chosen.length, rows };
}

/** The rows that a filter holds for. Their mean is a matter of the server. */
function rowsOf(table, { where = "", sort = "", offset = 0, limit = 100 }) {
  if (!table) throw notInside();
  const terms = parse(where);
  const chosen = select(table, terms, sort);
  const count = (field) => {
    const { numbers } = table.columns[field];
    return chosen.reduce((sum, row) => sum + numbers[row], 0);
  };
  const picked = pickedBy(terms, table.inputs);
  return {
    ...table,
    total: chosen.length,
    picked,
    mean: picked === "all" ? table.mean : null,
    counts: { failed: count("failed"), errored: count("errored"), truncated: count("truncated") },
    rows: chosen.slice(offset, offset + limit).map((row) => table.rows[row]),
  };
}

/** Where in the filtered list a row is, and which are beside it. */
function positionOf(table, { where = "", sort = "", id, repeat = 0 }) {
  if (!table) throw notInside();
  const rows = select(table, parse(where), sort).map((row) => table.rows[row]);
  const at = rows.findIndex((row) => row.id === id && row.repeat === Number(repeat));
  const name = (row) => rows[row] && { at: row, id: rows[row].id, repeat: rows[row].repeat };
  return {
    at: at < 0 ? null : at,
    total: rows.length,
    previous: name(at < 0 ? -1 : at - 1),
    next: name(at + 1),
  };
}
