// Requests: JSON by name, and one stream of events. Nothing here knows what a page looks like.

const TOKEN = "heldout-token";

/** What an export has inside: answers by request, or null where there is a server. */
let embedded = null;

/** Take the token out of the address, where the command line put it, and keep it for this port. */
export function takeToken() {
  const match = /^#token=([\w-]+)(.*)$/.exec(location.hash);
  if (!match) return;
  localStorage.setItem(TOKEN, match[1]);
  history.replaceState(null, "", location.pathname + location.search + "#" + (match[2] || "/runs"));
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

/** The address of a request, parameters in order of their names: an export is keyed by it. */
export function address(path, params = {}) {
  const given = Object.entries(params).filter(([, value]) => value !== undefined && value !== null && value !== "");
  given.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0));
  const query = new URLSearchParams();
  for (const [name, value] of given) for (const one of [value].flat()) query.append(name, String(one));
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

const headers = () => {
  const token = localStorage.getItem(TOKEN);
  return token ? { Authorization: `Bearer ${token}` } : {};
};

/** Get the answer to a request. Throws Refused with the server's own sentence. */
export async function get(path, params = {}, signal = undefined) {
  const request = address(path, params);
  if (embedded) {
    if (request in embedded) return embedded[request];
    throw new Refused({ error: "This is not in the exported file.", hint: "`heldout view` shows all of it." }, 404);
  }
  let response;
  try {
    response = await fetch(`api/${request}`, { headers: headers(), signal });
  } catch (problem) {
    if (problem.name === "AbortError") throw problem;
    throw new Refused({ error: "The server does not answer.", hint: "Is `heldout view` still running?", kind: "gone" }, 0);
  }
  const body = await response.json().catch(() => ({ error: `HTTP ${response.status}` }));
  if (!response.ok) throw new Refused(body, response.status);
  return body;
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
    const response = await fetch(`api/${address("events", { name: names })}`, {
      headers: { ...headers(), ...extra },
      signal: stop.signal,
    });
    if (!response.ok || !response.body) throw new Error(String(response.status));
    onState("live");
    wait = 1000;
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
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
