// A training curve, live while it trains, and which samples flipped between two of its steps.

import { Curve as Chart } from "./charts.js";
import { isExport } from "./exported.js";
import { useAnswer, useKeys } from "./hooks.js";
import { Blocks, Crumbs, Facts, Live, Loaded, Problem, Select, Sign, Table } from "./parts.js";
import { go, link, set } from "./route.js";
import { ago, count, duration, oneLine, visible } from "./text.js";
import { html, useEffect, useReducer } from "./vendor/preact-htm.js";

const CELLS = { p: "passed", f: "failed", e: "errored", "-": "missing" };

export function Curve({ name, params }) {
  const metric = params.get("metric") || "";
  const answer = useAnswer("curve", { name, label: params.get("label") || "", metric }, () => [name]);
  const [, tick] = useReducer((times) => times + 1, 0);
  useEffect(() => {
    const clock = setInterval(tick, 10_000); // "4 min ago"
    return () => clearInterval(clock);
  }, []);
  const chosen = ["from", "to"]
    .map((end) => params.get(end))
    .filter(Boolean)
    .map(Number);

  const choose = (step) => {
    const [from, to] = [...chosen.slice(-1), step].sort((x, y) => x - y);
    set(chosen.includes(step) ? { from: "", to: "" } : { from, to: to ?? "" });
  };
  /** Move the later of the two steps that are compared. */
  const shift = (by) => {
    const steps = answer.data?.points.filter((point) => point.result).map((point) => point.step) || [];
    const [from = steps[0], to = steps.at(-1)] = chosen;
    const next = steps[steps.indexOf(to) + by];
    if (chosen.length < 2) set({ from, to });
    else if (next !== undefined && next > from) set({ from, to: next });
  };
  useKeys({
    Escape: () => go(["runs"]),
    "[": () => shift(-1),
    "]": () => shift(1),
  });

  const view = (curve) => {
    const results = curve.points.filter((point) => point.result);
    // A curve of one eval has no label in its address.
    const label = curve.labels.length > 1 ? curve.label : "";
    return html`
      <${Crumbs} path=${[["runs", link(["runs"])]]} />
      <h1>${visible(curve.name)} ${curve.live ? html`<${Live} state=${answer.live || "live"} />` : null}</h1>
      <${Labels} name=${name} curve=${curve} />
      <${Verdict} curve=${curve} hasResults=${results.length > 0} />
      <${Drawing} curve=${curve} results=${results} chosen=${chosen} onPoint=${choose} />
      <div class="columns">
        <section>
          ${curve.best ? html`<p>${visible(curve.best.sentence)}</p>` : null}
          ${
            chosen.length === 2
              ? html`<${Flips} name=${name} label=${label} steps=${chosen} results=${results} />`
              : html`<p class="soft">Choose two points to see which samples flipped between them${
                  chosen.length ? `; step ${chosen[0]} is chosen` : ""
                }.</p>`
          }
          ${
            results.length > 1
              ? html`<${Strip} name=${name} label=${label} version=${results.length} />`
              : null
          }
        </section>
        <${About} curve=${curve} />
      </div>
      <details><summary>All points</summary>
        <${Points} curve=${curve} /></details>`;
  };
  return html`<${Loaded} answer=${answer} view=${view} />`;
}

function Labels({ name, curve }) {
  if (curve.labels.length < 2) return null;
  return html`<nav class="tabs" aria-label="evals">${curve.labels.map(
    (label) => html`<a aria-current=${label === curve.label ? "true" : undefined}
      href=${link(["curve", name], { label })}>${visible(label)}</a>`,
  )}</nav>`;
}

function Verdict({ curve, hasResults }) {
  const { verdict, no_verdict: why, every } = curve;
  if (!hasResults)
    return html`<p class="verdict" role="status">No point yet.${
      every ? ` An eval is due every ${every} steps.` : ""
    }</p>`;
  const sentence = verdict?.sentence || (why ? `no verdict: ${why}` : "no verdict yet");
  return html`<p class="verdict ${verdict?.kind || ""}" role="status" aria-live="polite">
    ${visible(sentence)}</p>`;
}

function Drawing({ curve, results, chosen, onPoint }) {
  if (!curve.points.length) return null;
  const { metric, best } = curve;
  // The verdict and the best step are of the reward, whatever is drawn.
  const windows = metric === "reward" ? curve.verdict?.windows || [] : [];
  const top = metric === "reward" ? (best?.step ?? null) : null;
  const key = (kind, text) => html`<span class="key ${kind}"></span> ${text}`;
  return html`
    <${Chart} points=${curve.points} chosen=${chosen} windows=${windows} best=${top} onPoint=${onPoint} />
    <p class="legend soft">
      ${key("mean", `mean ${metric} with its 95% interval`)}
      ${windows.length ? key("window", "the two windows of the verdict") : null}
      ${top === null ? null : key("best", "best step")}
      ${
        results.some((point) => point.mean_scored !== null)
          ? key("second", "without errored items, which the mean counts as 0")
          : null
      }
      ${results.some((point) => point.fewer) ? key("hollow", "fewer items than the others") : null}
      ${curve.points.some((point) => !point.result) ? key("tick", "skipped or in flight") : null}</p>
    ${
      curve.metrics.length
        ? html`<p><${Select} label="metric" value=${metric}
            options=${["reward", "pass_rate", ...curve.metrics]}
            onChange=${(name) => set({ metric: name === "reward" ? "" : name })} /></p>`
        : null
    }`;
}

function About({ curve }) {
  const last = curve.points.at(-1);
  const due = curve.every ? `; due every ${curve.every} steps` : "";
  const facts = [
    ["status", visible(curve.status.line)],
    [
      "last point",
      last && html`step ${last.step}, <time datetime=${last.time}>${ago(last.time)}</time>${due}`,
    ],
    ["model", curve.model && visible(curve.model)],
    ["evals took", duration(curve.seconds)],
    [
      "superseded",
      curve.superseded > 0 &&
        `${count(curve.superseded)} results left out: a later attempt went back to before them`,
    ],
    ["last skip", curve.last_skip && visible(curve.last_skip)],
    ["saved to", html`<code>${visible(curve.path)}</code>`],
  ];
  return html`<aside><h2>About this curve</h2><${Facts} rows=${facts} /></aside>`;
}

function Points({ curve }) {
  const step = (point) =>
    point.run && !isExport() ? html`<a href=${link(["run", point.run])}>${point.step}</a>` : point.step;
  return html`<${Table} label="points" rows=${[...curve.points].reverse()} columns=${[
    { title: "step", numeric: true, cell: step },
    { title: curve.metric, numeric: true, cell: (point) => point.text.mean },
    { title: "95% interval", cell: (point) => point.text.interval },
    { title: "n", numeric: true, cell: (point) => point.n },
    { title: "errors", numeric: true, cell: (point) => count(point.errors) },
    { title: "took", numeric: true, cell: (point) => duration(point.seconds) },
    { title: "verdict", cell: (point) => point.kind || "–" },
    { title: "note", wrap: true, cell: (point) => visible(point.note) },
  ]} />`;
}

function Flips({ name, label, steps, results }) {
  const [from, to] = steps;
  const answer = useAnswer("curve-flips", { name, label, from_step: from, to_step: to });
  if (answer.problem) return html`<${Problem} problem=${answer.problem} />`;
  if (!answer.data || answer.isStale) return null;
  const both = steps.map((step) => results.find((point) => point.step === step)?.run);
  const isSaved = both.every(Boolean) && !isExport();
  const sample = (id) => link(["curve", name, "sample"], { id, label, step: to });
  const side = (title, sign, { total, rows }) => html`<section>
    <h3><${Sign} outcome=${sign} /> ${title} <span class="soft">${count(total)}</span></h3>
    <ul class="flips">${rows.map(
      ({ id, text }) => html`<li><a href=${sample(id)}>${oneLine(id, 60)}</a>${" "}
        <span class="soft">${text.before} → ${text.after}</span></li>`,
    )}</ul>
    ${total > rows.length ? html`<p class="soft">and ${count(total - rows.length)} more</p>` : null}
  </section>`;
  return html`<h2>From step ${from} to step ${to}</h2>
    <${Blocks} blocks=${answer.data.notes} />
    <p class="soft">These two were picked by looking. What the curve allows one to say is the verdict
      above. ${isSaved ? html`<a href=${link(["compare", ...both])}>Compare the two evals</a>` : ""}</p>
    <div class="pair">
      ${side("lost", "failed", answer.data.lost)}${side("gained", "passed", answer.data.gained)}</div>`;
}

/** Each sample at each step; those that flipped last come first. */
function Strip({ name, label, version }) {
  const answer = useAnswer("strip", { name, label }, undefined, version);
  if (answer.problem) return html`<${Problem} problem=${answer.problem} />`;
  const strip = answer.data;
  // Returns neither pass nor fail.
  if (!strip?.rows.some((row) => /[pfe]/.test(row.cells))) return null;
  const key = (kind) => html`<span class="cells"><i class=${kind}></i></span> ${kind} `;
  const cell = (cells) => [...cells].map((letter) => html`<i class=${CELLS[letter]}></i>`);
  const passed = (cells) => `${[...cells].filter((cell) => cell === "p").length} of ${cells.length}`;
  return html`<h2>Samples by step</h2>
    <p class="soft">One line per sample, steps ${strip.steps[0]} to ${strip.steps.at(-1)} from left to right,
      those that flipped last first. ${["passed", "failed", "errored"].map(key)}</p>
    <div class="heat" tabindex="0" role="region" aria-label="samples by step">${strip.rows.map(
      ({ id, cells }) => html`<a href=${link(["curve", name, "sample"], { id, label })} title=${id}
        aria-label="${id}: ${passed(cells)} steps passed"><span class="id">${oneLine(id, 24)}</span>
        <span class="cells" aria-hidden="true">${cell(cells)}</span>
      </a>`,
    )}</div>
    ${
      strip.total > strip.rows.length
        ? html`<p class="soft">the first ${strip.rows.length} of ${count(strip.total)}</p>`
        : null
    }`;
}
