// Where we are, kept in the address after the #: every filter, sort and selection can be shared.

/** @typedef {{path: string[], params: URLSearchParams}} Route */

/** @returns {Route} */
export function here() {
  const [path, query] = location.hash.replace(/^#/, "").split(/\?(.*)/s);
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
    for (const one of [value].flat()) if (one !== undefined && one !== null && one !== "") query.append(name, String(one));
  const text = query.toString();
  return `#/${path.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

export function go(path, params = {}) {
  location.hash = link(path, params);
}

/** Change some parameters of this page, without a step in the history. */
export function set(params) {
  const route = here();
  const merged = {};
  for (const name of new Set(route.params.keys())) merged[name] = route.params.getAll(name);
  history.replaceState(null, "", location.pathname + location.search + link(route.path, { ...merged, ...params }));
  dispatchEvent(new HashChangeEvent("hashchange"));
}
