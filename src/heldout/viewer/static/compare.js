// Two runs compared: the verdict, the difference with its interval, slices, and flips.

import { get } from "./api.js";
import { Forest } from "./charts.js";
import { Diff } from "./conversation.js";
import { isExport } from "./exported.js";
import { useAnswer, useKeys } from "./hooks.js";
import { Blocks, Crumbs, Loaded, Mean, Problem, Select } from "./parts.js";
import { go, link, set } from "./route.js";
import { count, oneLine, visible } from "./text.js";
import { html, useEffect, useState } from "./vendor/preact-htm.js";

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
    problem.status === 409 ? html`<${NotCompared} a=${a} b=${b} problem=${problem} allow=${allow} />` : null;
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
              opened: the best of many looks better than it is.</p>`
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
          ${found.paired ? html`<${Flips} a=${a} b=${b} found=${found} params=${params} />` : null}
        </section>
        <aside>
          ${found.paired ? html`<${Tally} found=${found} />` : null}
          <${Settings} rows=${found.config} />
        </aside>
      </div>`;
  };
  return html`<${Loaded} answer=${answer} view=${view} refused=${refused} />`;
}

function NotCompared({ a, b, problem, allow }) {
  const turn = (kind, on) => set({ allow: on ? [...allow, kind] : allow.filter((other) => other !== kind) });
  return html`<${Crumbs} path=${[["runs", link(["runs"])]]} />
    <h1>${visible(a)} and ${visible(b)}</h1>
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
  return html`<h2>B − A, ${found.metric}</h2>
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
    <p>B is better on <b>${count(found.wins)}</b>, worse on <b>${count(found.losses)}</b>, equal on${" "}
      ${count(found.ties)}.</p>`;
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

function Flips({ a, b, found, params }) {
  const kind = params.get("kind") || "lost";
  const request = { a, b, kind, metric: params.get("metric") || "", allow: params.getAll("allow") };
  const answer = useAnswer("flips", request);
  const [more, setMore] = useState({ of: "", rows: [], problem: null });
  const further = more.of === answer.of ? more : { rows: [], problem: null };
  const rows = answer.data && !answer.isStale ? [...answer.data.rows, ...further.rows] : [];
  const load = async () => {
    try {
      const next = await get("flips", { ...request, offset: rows.length });
      setMore({ of: answer.of, rows: [...further.rows, ...next.rows], problem: null });
    } catch (problem) {
      setMore({ of: answer.of, rows: further.rows, problem });
    }
  };
  const [lost, gained] =
    found.pass_threshold === null
      ? ["the return fell", "the return rose"]
      : ["A passed, B failed", "A failed, B passed"];
  const tab = (name, total, title) =>
    html`<button title=${title} aria-pressed=${kind === name} onClick=${() => set({ kind: name })}>
      ${`${name} ${count(total)}`}</button>`;
  const problem = further.problem || (answer.problem?.status === 409 ? null : answer.problem);
  const retry = further.problem ? load : answer.reload;
  const total = answer.data?.total;
  return html`<h2>Flips</h2>
    <div class="toolbar">${tab("lost", found.lost, lost)}${tab("gained", found.gained, gained)}
      <span class="soft">${kind === "lost" ? lost : gained}</span></div>
    ${problem ? html`<${Problem} problem=${problem} retry=${retry} />` : null}
    ${rows.map((row) => html`<${Flip} key=${row.id} row=${row} a=${a} b=${b} />`)}
    ${answer.data ? html`<${Rest} left=${total - rows.length} total=${total} onMore=${load} />` : null}`;
}

/** Flips that are not listed: more on request, or said to be missing from an exported file. */
function Rest({ left, total, onMore }) {
  if (total === 0) return html`<p class="soft">None.</p>`;
  if (left <= 0) return null;
  if (isExport()) return html`<p class="soft">${count(left)} more are not in the exported file.</p>`;
  return html`<p><button onClick=${onMore}>${count(left)} more</button></p>`;
}

function Flip({ row, a, b }) {
  const side = (letter, { text, extracted }) =>
    html`<span>${letter} ${text.reward}${
      extracted === undefined
        ? ""
        : html` <span class="soft">extracted</span> ${
            extracted === null ? html`<em>nothing</em>` : html`<code>${oneLine(extracted, 40)}</code>`
          }`
    }</span>`;
  const error = row.a.error || row.b.error;
  const attempts = row.attempts > 1 ? `means of ${row.attempts} attempts; the first is shown` : "";
  return html`<article class="flip">
    <header><a href=${link(["compare", a, b, "sample"], { id: row.id })}>${visible(row.id)}</a>
      <span class="soft">target <code>${oneLine(row.target ?? "–", 60)}</code></span>
      ${side("A", row.a)}${side("B", row.b)}</header>
    <p class="soft">${oneLine(row.question, 300)}</p>
    ${attempts ? html`<p class="soft">${attempts}</p>` : null}
    ${
      error
        ? html`<p class="errored">${visible(error)}</p>`
        : html`<${Diff} before=${row.a.answer} after=${row.b.answer} />`
    }
  </article>`;
}
