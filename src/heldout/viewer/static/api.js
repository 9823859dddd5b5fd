// Requests: JSON by name, and one stream of events. Nothing here knows what a page looks like.

const TOKEN = "heldout-token";
const SILENCE = 40_000;

/** What is kept between visits; a sandboxed frame keeps nothing. */
export const stored = {
  get(name) {
    try {
      return localStorage.getItem(name);
    } catch {
      return null;
    }
  },
  set(name, value) {
    try {
      localStorage.setItem(name, value);
    } catch {
      // It lasts as long as the page, then.
    }
  },
};

/** What an export has inside: answers by request, or null where there is a server. */
let embedded = null;

/** Take the token out of the address, or get it for the code there, and keep it for this port. */
export async function takeToken() {
  const match = /^#(token|code)=([\w-]+)(.*)$/.exec(location.hash);
  if (!match) return;
  history.replaceState(null, "", location.pathname + location.search + "#" + (match[3] || "/runs"));
  if (match[1] === "token") {
    stored.set(TOKEN, match[2]);
    return;
  }
  const response = await fetch("api/token", { headers: { Authorization: `Code ${match[2]}` } });
  // Refused, the page says what every request of it says.
  if (response.ok) stored.set(TOKEN, (await response.json()).token);
}

/** @param {Record<string, unknown>} answers */
export function embed(answers) {
  embedded = answers;
}

export const isExport = () => embedded !== null;

export class Refused extends Error {
  /** @param {{error: string, hint?: string, kind?: string, kinds?: string[]}} body @param {number} status */
  constructor(body, status) {
    super(body.error);
    this.hint = body.hint || "";
    this.at = body.at;
    this.kind = body.kind || "";
    this.kinds = body.kinds || [];
    this.status = status;
  }
}

/** Parameters that have a value, as pairs in order of their names. */
function pairs(params) {
  const given = Object.entries(params).filter(([, value]) => value !== undefined && value !== null && value !== "" && value !== 0);
  given.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0));
  return given.flatMap(([name, value]) => [value].flat().map((one) => [name, String(one)]));
}

export function address(path, params = {}) {
  const text = new URLSearchParams(pairs(params)).toString();
  return text ? `${path}?${text}` : path;
}

/** The answer that an exported file has: by the request, and of rows those that the page asks for. */
function fromExport(path, params) {
  if (path === "rows") return rowsOf(embedded[`rows\nname=${params.name}`], params);
  const answer = embedded[[path, ...pairs(params).map((pair) => pair.join("="))].join("\n")];
  if (answer === undefined) throw new Refused({ error: "This is not in the exported file.", hint: "`heldout view` shows all of it." }, 404);
  return answer;
}

/** Rows of an exported file: an outcome, or words that a row has. */
function rowsOf(table, { where = "", sort = "", offset, limit }) {
  const words = where.toLowerCase().split(/\s+/).filter(Boolean);
  const holds = (row, word) => (word === `${row.outcome}:yes` || (word === "failed:yes" && row.outcome === "truncated") || (word === "truncated:yes" && row.truncated)) || (!word.endsWith(":yes") && JSON.stringify(row).toLowerCase().includes(word));
  let rows = table.rows.filter((row) => words.every((word) => holds(row, word)));
  if (sort) {
    const name = sort.replace(/^-/, "");
    const value = (row) => (table.extra.includes(name) ? row.extra[table.extra.indexOf(name)] : row[name]);
    const order = (a, b) => (a === b ? 0 : a === null || a === undefined ? 1 : b === null || b === undefined ? -1 : (a < b) === !sort.startsWith("-") ? -1 : 1);
    rows = [...rows].sort((a, b) => order(value(a), value(b)));
  }
  const count = (test) => rows.filter(test).length;
  const counts = { failed: count((r) => r.outcome === "failed" || r.outcome === "truncated"), errored: count((r) => r.outcome === "errored"), truncated: count((r) => r.truncated) };
  return { ...table, total: rows.length, counts, mean: words.length ? null : table.mean, picked: words.length ? "outcome" : "all", rows: rows.slice(offset, offset + limit) };
}

const headers = () => {
  const token = stored.get(TOKEN);
  return token ? { Authorization: `Bearer ${token}` } : {};
};

/** Get the answer to a request. Throws Refused with the server's own sentence. */
export async function get(path, params = {}, signal = undefined) {
  if (embedded) return fromExport(path, params);
  const request = address(path, params);
  let response;
  try {
    response = await fetch(`api/${request}`, { headers: headers(), signal });
  } catch (problem) {
    if (problem.name === "AbortError") throw problem;
    throw new Refused({ error: "The server does not answer.", hint: "Is `heldout view` still running?", kind: "gone" }, 0);
  }
  if (response.ok) return response.json();
  const body = await response.json().catch(() => ({ error: `HTTP ${response.status}` }));
  throw new Refused(body, response.status);
}

/**
 * Follow the events of some runs while the page is visible, reconnecting where the stream ends.
 * @param {string[]} names none: the list of runs
 * @param {string} last the state that is shown already
 * @param {(event: string, data: any) => void} onEvent
 * @param {(state: "live" | "paused" | "lost") => void} onState
 * @returns {() => void} ends it
 */
export function follow(names, last, onEvent, onState) {
  if (embedded) return () => {};
  let stop = new AbortController();
  let ended = false;
  let wait = 1000;

  async function read() {
    const extra = last ? { "Last-Event-ID": last } : {};
    // The server says something every fifteen seconds; a stream that is silent longer is dead.
    const silence = new AbortController();
    let timer = setTimeout(() => silence.abort(new Error("silent")), SILENCE);
    const heard = () => {
      clearTimeout(timer);
      timer = setTimeout(() => silence.abort(new Error("silent")), SILENCE);
    };
    const response = await fetch(`api/${address("events", { name: names })}`, {
      headers: { ...headers(), ...extra },
      signal: AbortSignal.any([stop.signal, silence.signal]),
    });
    if (!response.ok || !response.body) throw new Error(String(response.status));
    onState("live");
    wait = 1000;
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      heard();
      if (done) return;
      text += value;
      const blocks = text.split("\n\n");
      text = blocks.pop();
      for (const block of blocks) {
        const field = (name) => (new RegExp(`^${name}: ?(.*)$`, "m").exec(block) || [])[1];
        last = field("id") ?? last;
        const data = field("data");
        if (data !== undefined) onEvent(field("event") || "message", JSON.parse(data));
      }
    }
  }

  async function run() {
    while (!ended && !document.hidden) {
      try {
        await read();
      } catch (problem) {
        if (problem.name === "AbortError") return;
      }
      if (ended || document.hidden) return;
      onState("lost");
      await new Promise((resolve) => setTimeout(resolve, wait));
      wait = Math.min(wait * 2, 15000);
    }
  }

  function onVisibility() {
    stop.abort();
    stop = new AbortController();
    if (document.hidden) onState("paused");
    else run();
  }
  document.addEventListener("visibilitychange", onVisibility);
  run();
  return () => {
    ended = true;
    stop.abort();
    document.removeEventListener("visibilitychange", onVisibility);
  };
}
