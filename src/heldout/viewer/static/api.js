// Requests: JSON by name, and one stream of events. Nothing here knows what a page looks like.

import * as exported from "./exported.js";
import { Refused } from "./refused.js";

const TOKEN = "heldout-token";
const SILENCE = 40_000;

/** What is kept between visits; a sandboxed frame keeps nothing. */
export const stored = {
  works() {
    try {
      return localStorage !== null;
    } catch {
      return false;
    }
  },
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

/** Take the token out of the address, or get it for the code there, and keep it for this port. */
export async function takeToken() {
  const match = /^#(token|code)=([\w-]+)(.*)$/.exec(location.hash);
  if (!match) return;
  const rest = match[3] || "/runs";
  history.replaceState(history.state, "", `${location.pathname}${location.search}#${rest}`);
  if (match[1] === "token") {
    stored.set(TOKEN, match[2]);
    return;
  }
  const response = await fetch("api/token", { headers: { Authorization: `Code ${match[2]}` } });
  // Refused, the page says what every request of it says.
  if (response.ok) stored.set(TOKEN, (await response.json()).token);
}

/** Call a listener when another tab has got a newer token: after a restart the old one is none. */
export function onNewToken(listener) {
  const heard = (event) => event.key === TOKEN && listener();
  addEventListener("storage", heard);
  return () => removeEventListener("storage", heard);
}

/** Parameters that have a value, as pairs in order of their names. */
function pairs(params) {
  const isGiven = (value) => value !== undefined && value !== null && value !== "" && value !== 0;
  const given = Object.entries(params).filter(([, value]) => isGiven(value));
  given.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0));
  return given.flatMap(([name, value]) => [value].flat().map((one) => [name, String(one)]));
}

/** A request as text: equal ones are the same request. */
export function address(path, params = {}) {
  const text = new URLSearchParams(pairs(params)).toString();
  return text ? `${path}?${text}` : path;
}

function headers() {
  const token = stored.get(TOKEN);
  return token ? { Authorization: `Bearer ${token}` } : {};
}

/** Get the answer to a request. Throws Refused with the server's own sentence. */
export async function get(path, params = {}, signal = undefined) {
  if (exported.isExport()) return exported.answer(path, params, pairs(params));
  return readAnswer(fetch(`api/${address(path, params)}`, { headers: headers(), signal }));
}

async function readAnswer(request) {
  let response;
  try {
    response = await request;
  } catch (problem) {
    if (problem.name === "AbortError") throw problem;
    const hint = "Is `heldout view` still running?";
    throw new Refused({ error: "The server does not answer.", hint, kind: "gone" }, 0);
  }
  if (response.ok) return response.json();
  const body = await response.json().catch(() => ({ error: `HTTP ${response.status}` }));
  throw new Refused(body, response.status);
}

/** Get the file that answers a request. */
export async function getBlob(path, params) {
  const response = await fetch(`api/${address(path, params)}`, { headers: headers() });
  if (response.ok) return response.blob();
  throw new Refused(await response.json(), response.status);
}

/** Send something to be written, if the page is left meanwhile, too; the answer, as of `get`. */
export async function send(path, body) {
  const options = { method: "POST", body: JSON.stringify(body), keepalive: true };
  const type = { "Content-Type": "application/json" };
  return readAnswer(fetch(`api/${path}`, { ...options, headers: { ...headers(), ...type } }));
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
  if (exported.isExport()) return () => {};
  let stop = new AbortController();
  let wait = 1000;

  async function read(signal) {
    // The server says something every fifteen seconds; a stream that is silent longer is dead.
    const silence = new AbortController();
    let timer;
    const heard = () => {
      clearTimeout(timer);
      timer = setTimeout(() => silence.abort(new Error("silent")), SILENCE);
    };
    heard();
    const response = await fetch(`api/${address("events", { name: names })}`, {
      headers: { ...headers(), ...(last ? { "Last-Event-ID": last } : {}) },
      signal: AbortSignal.any([signal, silence.signal]),
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

  /** One loop per signal: an older one ends where its signal was aborted, while it waits, too. */
  async function run(signal) {
    while (!signal.aborted) {
      await read(signal).catch(() => {}); // lost, as is said next
      if (signal.aborted) return;
      onState("lost");
      await new Promise((resolve) => setTimeout(resolve, wait));
      wait = Math.min(wait * 2, 15_000);
    }
  }

  function onVisibility() {
    stop.abort();
    stop = new AbortController();
    if (document.hidden) onState("paused");
    else run(stop.signal);
  }
  document.addEventListener("visibilitychange", onVisibility);
  if (!document.hidden) run(stop.signal);
  return () => {
    stop.abort();
    document.removeEventListener("visibilitychange", onVisibility);
  };
}
