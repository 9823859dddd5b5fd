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
  const [last, setMade] = useState(null);
  if (isExport()) return null;
  const request = { name: names, samples };
  // What was made of another choice says nothing of this one.
  const made = last?.of === samples ? last : null;
  const look = async () => {
    setMade({ of: samples, busy: true });
    const answer = await get("export", request).catch((problem) => ({ problem }));
    setMade((latest) => (latest?.of === samples ? { ...answer, of: samples } : latest));
  };
  const save = async () => {
    const refuse = (problem) => setMade({ of: samples, problem });
    const blob = await getBlob("exported", request).catch(refuse);
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
  return html`<details class="export"><summary>Export as one file</summary>
    <p><${Select} label="conversations" value=${samples} options=${["failures", "all"]}
        onChange=${setSamples} />${" "}
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
