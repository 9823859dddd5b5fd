// Where we are, kept in the address after the #: every filter, sort and selection can be shared.

/** @typedef {{path: string[], params: URLSearchParams}} Route */

/** In a frame without an address of its own, where we are is kept here instead. */
let framed = location.protocol === "about:" ? document.documentElement.dataset.start || "#/" : null;
const listeners = [];

const current = () => framed ?? location.hash;

/** @param {() => void} listener called when the address has changed */
export function onChange(listener) {
  listeners.push(listener);
}

function changed() {
  for (const listener of listeners) listener();
}
addEventListener("hashchange", () => {
  changed();
  arrive();
});

// --- Back and forward ----------------------------------------------------------------------------

/** Milliseconds that a page may take to load until where it was scrolled to is given up. */
const LOADING = 3000;
/** What was in view at each step of the history: how far down, and the link that was followed. */
const seen = new Map();
let step = 0;
history.scrollRestoration = "manual";
addEventListener("scroll", () => seen.set(step, { ...seen.get(step), top: scrollY }), { passive: true });
addEventListener("click", (event) => {
  const href = event.target.closest?.("a")?.getAttribute("href");
  if (href) seen.set(step, { ...seen.get(step), href });
});

/** A new page begins at its top, with the focus on its content; one gone back to as it was left. */
function arrive() {
  const known = history.state?.step;
  const before = seen.get(known);
  step = known ?? Date.now();
  if (known === undefined) history.replaceState({ step }, "");
  document.getElementById("main")?.focus({ preventScroll: true });
  scrollTo(0, 0);
  if (!before) return;
  let until = performance.now() + LOADING;
  const giveUp = () => {
    until = 0;
  };
  for (const name of ["wheel", "keydown", "pointerdown"])
    addEventListener(name, giveUp, { once: true, passive: true });
  const restore = () => {
    const link = before.href && document.querySelector(`a[href="${CSS.escape(before.href)}"]`);
    if (link) link.focus({ preventScroll: true });
    scrollTo(0, before.top || 0);
    const isDone = (link || !before.href) && Math.abs(scrollY - (before.top || 0)) < 2;
    if (!isDone && step === known && performance.now() < until) requestAnimationFrame(restore);
  };
  restore();
}
if (framed === null) history.replaceState({ step }, "");

if (framed)
  addEventListener("click", (event) => {
    const href = event.target.closest?.("a")?.getAttribute("href");
    if (!href?.startsWith("#/")) return;
    event.preventDefault();
    jump(href);
  });

/** @param {string} hash as `link` gives it */
export function jump(hash) {
  if (framed === null) location.hash = hash;
  else {
    framed = hash;
    changed();
    scrollTo(0, 0);
  }
}

/** @returns {Route} */
export function here() {
  const [path, query] = current()
    .replace(/^#/, "")
    .split(/\?(.*)/s);
  return {
    path: path.split("/").filter(Boolean).map(decode),
    params: new URLSearchParams(query || ""),
  };
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** @param {string[]} path @param {Record<string, unknown>} params */
export function link(path, params = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params))
    for (const one of [value].flat())
      if (one !== undefined && one !== null && one !== "") query.append(name, String(one));
  const text = query.toString();
  return `#/${path.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

export function go(path, params = {}) {
  jump(link(path, params));
}

/** Change some parameters of this page, without a step in the history. */
export function set(params) {
  const route = here();
  const merged = {};
  for (const name of new Set(route.params.keys())) merged[name] = route.params.getAll(name);
  const hash = link(route.path, { ...merged, ...params });
  if (framed === null) history.replaceState(history.state, "", location.pathname + location.search + hash);
  else framed = hash;
  changed();
}
