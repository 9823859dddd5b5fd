// Named views of samples: a filter, its order and columns, kept by this browser for this server.

import { stored } from "./api.js";
import { link } from "./route.js";
import { visible } from "./text.js";
import { html, useRef, useState } from "./vendor/preact-htm.js";

const VIEWS = "heldout-views";
const MOST = 50;

/** @returns {{name: string, where: string, sort: string, cols: string[]}[]} */
function read() {
  try {
    const views = JSON.parse(stored.get(VIEWS) || "[]");
    return views.filter((view) => typeof view.name === "string").slice(-MOST);
  } catch {
    return []; // something else has this name
  }
}

/** Save, open and delete them; they are of no run, so that the next run is looked at alike. */
export function Views({ name, view }) {
  const [views, setViews] = useState(read);
  const [typed, setTyped] = useState("");
  const [said, setSaid] = useState("");
  const details = useRef(null);
  if (!stored.works()) return null;
  const keep = (next) => {
    stored.set(VIEWS, JSON.stringify(next.slice(-MOST)));
    setViews(read());
  };
  const without = (other) => read().filter((one) => one.name !== other);
  const save = () => {
    const title = typed.trim();
    if (!title) return;
    keep([...without(title), { name: title, ...view }]);
    const isKept = read().some((one) => one.name === title);
    setSaid(isKept ? `saved ${visible(title)}` : "the browser did not keep it");
    setTyped("");
  };
  const remove = (title) => {
    keep(without(title));
    setSaid(`deleted ${visible(title)}`);
    details.current.querySelector("summary").focus(); // the button that had it is gone
  };
  const close = () => details.current.removeAttribute("open");
  const current = link([], view);
  return html`<details class="chooser views" ref=${details}><summary>views</summary><div>
    ${views.map(({ name: title, ...saved }) => {
      const isCurrent = link([], saved) === current;
      return html`<span><a href=${link(["run", name, "samples"], saved)} onClick=${close}
          aria-current=${isCurrent ? "true" : undefined}>${visible(title)}</a>
        <button class="plain" aria-label="delete ${visible(title)}"
          onClick=${() => remove(title)}>×</button></span>`;
    })}
    <span><input type="text" aria-label="name of this view" placeholder="name of this view"
        maxlength="60" value=${typed} onInput=${(event) => setTyped(event.target.value)}
        onKeyDown=${(event) => event.key === "Enter" && save()} />
      <button disabled=${!typed.trim()} onClick=${save}>save</button></span>
    <span class="soft" role="status">${said}</span></div></details>`;
}
