// Two runs compared: the verdict, the difference with its interval, slices, and flips.

import { Forest } from "./charts.js";
import { Export } from "./export.js";
import { isExport } from "./exported.js";
import { useAnswer, useKeys } from "./hooks.js";
import { Pairs } from "./pairs.js";
import { Blocks, Crumbs, Loaded, Mean, Problem, Select } from "./parts.js";
import { go, link, set } from "./route.js";
import { count, oneLine, visible } from "./text.js";
import { html, useEffect } from "./vendor/preact-htm.js";

const WORDS = { b_better: "better", a_better: "worse", inconclusive: "inconclusive" };

/** How many runs one baseline was compared with since the page was opened. */
const compared = new Map();

export function Compare({ a, b, params }) {
  const by = params.get("by") || "";
  const metric = params.get("metric") || "";
  const allow = params.getAll("allow");
  const answer = useAnswer("compare", { a, b, by, metric, allow });
  useKeys({
    w: () => go(["compare", b, a], { allow }),
    Escape: () => go(["runs"]),
  });
  useEffect(() => void compared.set(a, (compared.get(a) || new Set()).add(b)), []);

  const refused = (problem) =>
    problem.status === 409
      ? html`<${NotCompared} names=${[a, b]} problem=${problem} allow=${allow} />`
      : null;
  const view = (found) => {
    if (answer.problem?.status === 409) return null;
    const many = compared.get(a)?.size || 0;
    return html`
      <${Crumbs} path=${[["runs", link(["runs"])]]} />
      <h1>${visible(b)} <span class="soft">compared with</span> ${visible(a)}</h1>
      <p class="verdict ${WORDS[found.verdict] || ""}" role="status">${visible(found.sentence)}</p>
      ${
        many > 2
          ? html`<p class="note yellow">${many} runs were compared with ${visible(a)} since this page was
              opened: the best of many looks better than it is. ${isExport() ? "" : together(a)}</p>`
          : null
      }
      <div class="columns">
        <section>
          <div class="sides">
            <${Side} letter="A" name=${a} side=${found.a} /><${Side} letter="B" name=${b} side=${found.b} />
          </div>
          <${Differences} found=${found} metric=${metric} by=${by} />
          <${Blocks} blocks=${found.blocks.slice(2)} />
          <${SliceTables} blocks=${found.slice_blocks} />
        </section>
        <aside>
          ${found.paired ? html`<${Tally} found=${found} />` : null}
          <${Settings} rows=${found.config} />
          ${isExport() ? null : html`<p><a href=${severalLink([a, b])}>Compare with more runs</a></p>`}
          <${Export} names=${[a, b]} />
        </aside>
      </div>
      ${found.paired ? html`<${Pairs} a=${a} b=${b} found=${found} params=${params} />` : null}`;
  };
  return html`<${Loaded} answer=${answer} view=${view} refused=${refused} />`;
}

const severalLink = (run) => link(["several"], { run });

/** All runs that one was compared with, corrected for their number. */
const together = (a) => html`<a href=${severalLink([a, ...compared.get(a)])}>Compare them in one table</a>`;

export function NotCompared({ names, problem, allow }) {
  const turn = (kind, on) => set({ allow: on ? [...allow, kind] : allow.filter((other) => other !== kind) });
  return html`<${Crumbs} path=${[["runs", link(["runs"])]]} />
    <h1>${names.map(visible).join(" and ")}</h1>
    <p class="verdict">Not compared: a difference would not be the policy's alone.</p>
    <${Problem} problem=${problem} />
    <p>Compare them all the same, although these differ:</p>
    <p>${[...new Set([...allow, ...problem.kinds])].map(
      (kind) => html`<label class="allow"><input type="checkbox" checked=${allow.includes(kind)}
        onChange=${(event) => turn(kind, event.target.checked)} /> ${kind}</label>`,
    )}</p>`;
}

const Side = ({ letter, name, side }) =>
  html`<div><span class="letter">${letter}</span><div>
    <a href=${link(["run", name])}>${visible(name)}</a>${" "}
    <span class="soft">${visible(side.model || "")}</span><br /><${Mean} of=${side} /></div></div>`;

function Differences({ found, metric, by }) {
  const drawn = (label, { difference, low, high }) => ({ label, value: difference, low, high });
  const slices = found.slices.map((row) => drawn(row.value === null ? "–" : visible(row.value), row));
  const second = found.with_errors;
  const readings = second
    ? [drawn(`errored as ${found.errors_as ?? 0}`, second), drawn(found.scored_samples, found)]
    : [drawn("all samples", found)];
  readings[readings.length - 1].strong = true;
  const metrics = html`<${Select} label="metric" value=${metric || "reward"}
    options=${["reward", "passed", ...found.metrics]}
    onChange=${(name) => set({ metric: name === "reward" ? "" : name })} />`;
  const keys = html`<${Select} label="slices by" value=${by} none="no key" options=${found.keys}
    onChange=${(key) => set({ by: key })} />`;
  return html`<h2>${visible(found.b.name)} − ${visible(found.a.name)}, ${found.metric}</h2>
    <${Forest} at=${0} rows=${[...slices, ...readings]} detectable=${found.minimum_detectable} sign />
    ${
      slices.length && second
        ? html`<p class="soft">Slices are drawn of what was scored; their numbers below have both
            readings.</p>`
        : null
    }
    <p class="toolbar">${isExport() ? null : metrics}${found.keys.length ? keys : null}</p>`;
}

/** Both readings' tables are folded, since they are drawn above; what one has to know of them is not. */
function SliceTables({ blocks }) {
  if (!blocks.length) return null;
  const end = blocks.findLastIndex((block) => block.columns) + 1;
  return html`<details><summary>Slices in numbers</summary>
      <${Blocks} blocks=${blocks.slice(0, end)} /></details>
    <${Blocks} blocks=${blocks.slice(end)} />`;
}

function Tally({ found }) {
  const parts = ["wins", "ties", "losses"];
  return html`<h2>Sample by sample</h2>
    <div class="tally" aria-hidden="true">${parts.map(
      (kind) => html`<span class=${kind} style=${{ flexGrow: found[kind] || 0.001 }}></span>`,
    )}</div>
    <p>${visible(found.b.name)} is higher on <b>${count(found.wins)}</b>, lower on${" "}
      <b>${count(found.losses)}</b>, equal on ${count(found.ties)}.</p>`;
}

function Settings({ rows }) {
  const side = (letter, value) => html`<span class="letter">${letter}</span> ${oneLine(value ?? "–", 120)}`;
  return html`<h2>What differs in the settings</h2>
    ${
      rows.length
        ? html`<dl class="settings">${rows.map(
            (row) => html`<dt>${visible(row.key)}</dt>
              <dd>${side("A", row.a)}<br />${side("B", row.b)}</dd>`,
          )}</dl>`
        : html`<p class="soft">Nothing.</p>`
    }`;
}
