// One run: its summary, its rewards as a histogram, and slices.

import { Forest, Histogram } from "./charts.js";
import { Export } from "./export.js";
import { useAnswer, useKeys } from "./hooks.js";
import { Notes } from "./note.js";
import {
  Blocks,
  Crumbs,
  Errored,
  Facts,
  Live,
  Loaded,
  Outcomes,
  Problem,
  Select,
  Table,
  TextTable,
} from "./parts.js";
import { go, link, set } from "./route.js";
import { ago, count, duration, quoted, visible } from "./text.js";
import { html, useRef } from "./vendor/preact-htm.js";

export function Run({ name, params }) {
  const follows = (run) => (run.unfinished ? [name] : null);
  const answer = useAnswer("run", { name }, follows);
  const by = params.get("by") || "";
  const slices = useAnswer(by ? "slices" : null, { name, by });
  useKeys({
    f: () => go(["run", name, "samples"], { where: "failed:yes" }),
    s: () => go(["run", name, "samples"]),
    Escape: () => go(["runs"]),
  });
  const view = (run) => html`
    <${Crumbs} path=${[["runs", link(["runs"])]]} />
    <h1>${visible(run.name)}${" "}
      ${run.unfinished ? html`<span class="badge ${run.status}">${run.status}</span>` : null}${" "}
      <${Live} state=${answer.live} /></h1>
    <p class="lead">${run.model ? html`model: <b>${visible(run.model)}</b>` : ""}
      ${run.parent ? html` · trajectories of ${visible(run.parent)}, scored again` : ""}</p>
    <div class="columns">
      <section>
        <${Headline} run=${run} />
        <div class=${run.unfinished ? "unfinished" : ""}>
          <${TextTable} table=${run.table} caption="Summary" /></div>
        <${Blocks} blocks=${run.notes} />
        ${run.histogram ? html`<h2>Rewards</h2><${Histogram} histogram=${run.histogram} />` : null}
        <${Notes} name=${run.name} />
        ${run.keys?.length ? html`<${Slices} run=${run} by=${by} answer=${slices} />` : null}
      </section>
      <${About} run=${run} />
    </div>`;
  return html`<${Loaded} answer=${answer} view=${view} />`;
}

function Headline({ run }) {
  const { numbers, outcomes, unfinished, asked } = run;
  const samples = (where) => link(["run", run.name, "samples"], { where });
  const of = unfinished && asked ? ` of ${count(asked)}` : "";
  return html`
    <div class="headline ${unfinished ? "unfinished" : ""}">
      <div><span class="big">${numbers.text.mean}</span>${" "}
        <span class="soft">mean reward${unfinished ? ", of what finished first" : ""}</span></div>
      <div>95% interval ${numbers.text.interval}, n ${count(numbers.n)}${of}</div>
      ${numbers.errors ? html`<div><${Errored} of=${numbers} /></div>` : null}
    </div>
    ${run.resume ? html`<p>Go on with it: <code>${visible(run.resume)}</code></p>` : null}
    <${TimeLeft} run=${run} />
    ${of ? html`<progress aria-label="finished" value=${numbers.n} max=${asked}></progress>` : null}
    ${outcomes ? html`<${Outcomes} counts=${outcomes} />` : null}
    <p class="toolbar"><a class="button primary" href=${samples("")}>All samples</a>
      ${outcomes?.failed ? html`<a class="button" href=${samples("failed:yes")}>Failures</a>` : null}
      ${outcomes?.errored ? html`<a class="button" href=${samples("errored:yes")}>Errors</a>` : null}</p>`;
}

/** Seconds and items that a rate is of, at the least. */
const [LONG_ENOUGH, MANY_ENOUGH] = [5, 3];

/**
 * How long a running eval may take, by what was seen to finish since the page was opened: a resumed run
 * began long before, and its start says nothing of its pace.
 */
function TimeLeft({ run }) {
  const seen = useRef([]);
  const { asked, numbers, status } = run;
  if (status !== "running" || !asked || numbers.n >= asked) return null;
  const all = seen.current;
  if (all.at(-1)?.n !== numbers.n) all.push({ n: numbers.n, at: performance.now() / 1000 });
  if (all.length > 100) all.shift();
  const [first, last] = [all[0], all.at(-1)];
  const [items, seconds] = [last.n - first.n, last.at - first.at];
  if (items < MANY_ENOUGH || seconds < LONG_ENOUGH)
    return html`<p class="soft" role="status">time left: not known yet</p>`;
  const left = ((asked - numbers.n) * seconds) / items;
  const rate = `${(items / seconds).toPrecision(2)} items per second in the last ${duration(seconds)}`;
  return html`<p role="status">about ${duration(left)} left
    <span class="soft">${`, at ${rate}; what is slow finishes last`}</span></p>`;
}

function About({ run }) {
  const { pass_threshold: threshold, started, finished } = run;
  const took = finished && started && (Date.parse(finished) - Date.parse(started)) / 1000;
  const json = (value) => html`<pre tabindex="0">${visible(JSON.stringify(value, null, 2))}</pre>`;
  const facts = [
    ["passes from", threshold === null ? "nothing: the reward is the return" : `reward ≥ ${threshold}`],
    [
      "samples",
      run.samples && count(run.samples) + (run.repeats > 1 ? `, ${run.repeats} attempts each` : ""),
    ],
    [
      "tokens per item",
      run.tokens && `median ${count(run.tokens.median)}, p95 ${count(Math.round(run.tokens.p95))}`,
    ],
    [
      "time per item",
      run.seconds && `median ${duration(run.seconds.median)}, p95 ${duration(run.seconds.p95)}`,
    ],
    ["started", started && html`<time datetime=${started} title=${started}>${ago(started)}</time>`],
    ["took", took && duration(took)],
    ["saved to", html`<code>${visible(run.path)}</code>`],
  ];
  const { functions, versions } = run;
  return html`<aside>
    <h2>About this run</h2>
    <${Blocks} blocks=${run.about} />
    <${Facts} rows=${facts} />
    <${Export} names=${[run.name]} />
    <details><summary>Settings</summary>${json(run.config)}</details>
    <details><summary>Functions and versions</summary>${json({ functions, versions })}</details>
  </aside>`;
}

function Slices({ run, by, answer }) {
  return html`<h2>Slices</h2>
    <p><${Select} label="by" value=${by} none="choose a key" options=${run.keys}
      onChange=${(key) => set({ by: key })} /></p>
    ${answer.problem ? html`<${Problem} problem=${answer.problem} />` : null}
    ${answer.data && !answer.isStale ? html`<${SliceTable} run=${run} slices=${answer.data} />` : null}`;
}

function SliceTable({ run, slices }) {
  const { by, rows, all, total } = slices;
  const label = (row) => (row.value === null ? "–" : visible(row.value));
  const open = (row) =>
    row.value !== null && go(["run", run.name, "samples"], { where: `${quoted(by)}:${quoted(row.value)}` });
  const drawn = (name, row) => ({
    label: name,
    value: row.mean,
    low: row.low,
    high: row.high,
    second: row.errors ? row.mean_scored : null,
  });
  const columns = [
    { title: by, cell: label },
    { title: "n", numeric: true, cell: (row) => count(row.n) },
    { title: "mean", numeric: true, cell: (row) => row.text.mean },
    { title: "95% interval", cell: (row) => row.text.interval },
    { title: "scored only", numeric: true, cell: (row) => row.text.mean_scored, errors: true },
    { title: "passed", numeric: true, cell: (row) => row.text.pass_rate },
    { title: "errors", numeric: true, cell: (row) => count(row.errors) },
  ];
  const forest = rows.slice(0, 40).map((row) => drawn(label(row), row));
  const some = total > rows.length ? `the first ${rows.length} of ${count(total)} values` : "";
  const known = new Set(run.notes.map((note) => note.line));
  return html`
    <${Forest} at=${all.mean} rows=${[...forest, { ...drawn("all", all), strong: true }]} />
    <${Table} label="slices" onRow=${open} rows=${rows}
      columns=${columns.filter((column) => all.errors || !column.errors)} />
    ${some ? html`<p class="soft">${some}</p>` : null}
    ${
      all.errors
        ? html`<p class="legend soft"><span class="key second"></span>
            without errored items, which the mean counts as 0</p>`
        : null
    }
    ${
      rows.length > 1
        ? html`<p class="soft">${rows.length} slices looked at: some will stand out by chance. Two runs
            compared by slices are corrected for that.</p>`
        : null
    }
    <${Blocks} blocks=${slices.notes.filter((note) => !known.has(note.line))} />`;
}
