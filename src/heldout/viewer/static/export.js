// One file to share: what will be in it and how large it is, before it is saved.

import { get, getBlob } from "./api.js";
import { isExport } from "./exported.js";
import { Problem, Select } from "./parts.js";
import { count } from "./text.js";
import { html, useState } from "./vendor/preact-htm.js";

const size = (bytes) => (bytes < 1e6 ? `${Math.ceil(bytes / 1e3)} KB` : `${(bytes / 1e6).toFixed(1)} MB`);

/** @param {{names: string[]}} props the runs that the file is of */
export function Export({ names }) {
  const [samples, setSamples] = useState("failures");
  const [made, setMade] = useState(null);
  if (isExport()) return null;
  const request = { name: names, samples };
  const look = async () => {
    setMade({ busy: true });
    setMade(await get("export", request).catch((problem) => ({ problem })));
  };
  const save = async () => {
    const blob = await getBlob("exported", request).catch((problem) => setMade({ problem }));
    if (!blob) return;
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = `${names
      .join("-")
      .replace(/[^\w.@-]+/g, "_")
      .slice(0, 120)}.html`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  };
  const choose = (next) => {
    setSamples(next);
    setMade(null);
  };
  return html`<details class="export"><summary>Export as one file</summary>
    <p><${Select} label="conversations" value=${samples} options=${["failures", "all"]}
        onChange=${choose} />${" "}
      <button onClick=${look} disabled=${made?.busy}>What will be in it?</button></p>
    <div role="status">
      ${made?.busy ? html`<p class="soft">Making it…</p>` : null}
      ${made?.problem ? html`<${Problem} problem=${made.problem} />` : null}
      ${
        made?.names
          ? html`<p>${`Summaries, slices, rows and notes of ${made.names.join(", ")}, and `}
                ${`${count(made.inside)} of ${count(made.whole)} conversations: ${size(made.bytes)}. `}
                Whoever has the file can read all of it.</p>
              <p><button onClick=${save}>Save ${size(made.bytes)}</button></p>`
          : null
      }</div></details>`;
}
