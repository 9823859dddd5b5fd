// A training curve, live while it trains, and which samples flipped between two of its steps.

import { isNumber } from "./charts.js";
import { CurveChart, Readout, stepAxis, stepBeside } from "./curve_chart.js";
import { Export } from "./export.js";
import { isExport } from "./exported.js";
import { useAnswer, useFlips, useKeys } from "./hooks.js";
import { Blocks, Crumbs, Facts, Live, Loaded, Problem, Select, Sign, Table } from "./parts.js";
import { go, jump, link, set } from "./route.js";
import { ago, count, duration, oneLine, visible } from "./text.js";
import { html, useEffect, useReducer, useState } from "./vendor/preact-htm.js";

const CELLS = { p: "passed", f: "failed", e: "errored" };

/** The steps that are compared: none, one or two. */
export const chosenSteps = (params) =>
  ["from", "to"]
    .map((end) => params.get(end))
    .filter(Boolean)
    .map(Number);

export function Curve({ name, params }) {
  const metric = params.get("metric") || "";
  const answer = useAnswer("curve", { name, label: params.get("label") || "", metric }, () => [name]);
  const [pointed, setPointed] = useState(null);
  const [, tick] = useReducer((times) => times + 1, 0);
  useEffect(() => {
    const clock = setInterval(tick, 10_000); // "4 min ago"
    return () => clearInterval(clock);
  }, []);
  const chosen = chosenSteps(params);

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
  const series = [{ name, points: answer.data?.points || [] }];
  const axis = stepAxis(series);
  const at = axis.steps.includes(pointed) ? pointed : axis.steps.at(-1);
  // A curve of one eval has no label in its address.
  const label = answer.data?.labels.length > 1 ? answer.data.label : "";
  const flips = useFlips(name, label, answer.data ? chosen : []);
  useKeys({
    Escape: () => go(["runs"]),
    ArrowLeft: () => setPointed(stepBeside(axis, at, -1)),
    ArrowRight: () => setPointed(stepBeside(axis, at, 1)),
    n: () => flips.all[0] && jump(flips.href(flips.all[0])),
    "[": () => shift(-1),
    "]": () => shift(1),
  });

  const view = (curve) => {
    const results = curve.points.filter((point) => point.result);
    return html`
      <${Crumbs} path=${[["runs", link(["runs"])]]} />
      <h1>${visible(curve.name)} ${curve.live ? html`<${Live} state=${answer.live || "live"} />` : null}</h1>
      <${Labels} name=${name} curve=${curve} />
      <${Verdict} curve=${curve} hasResults=${results.length > 0} />
      ${
        axis.steps.length
          ? html`<${Drawing} curve=${curve} results=${results} chosen=${chosen} onPoint=${choose}
                series=${series} axis=${axis} at=${at} onAt=${setPointed} />
              <${Heat} name=${name} label=${label} version=${results.length} axis=${axis} at=${at} />`
          : null
      }
      <${Choices} curve=${curve} />
      <div class="columns">
        <section>
          ${curve.verdict?.since_start ? html`<p>${visible(curve.verdict.since_start)}</p>` : null}
          ${curve.best ? html`<p>${visible(curve.best.sentence)}</p>` : null}
          ${
            chosen.length === 2
              ? html`<${Flips} flips=${flips} steps=${chosen} results=${results} />`
              : html`<p class="soft">Choose two points to see which samples flipped between them${
                  chosen.length ? `; step ${chosen[0]} is chosen` : ""
                }.</p>`
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

function Drawing({ curve, results, chosen, onPoint, ...drawn }) {
  const { metric, best } = curve;
  // The verdict and the best step are of the reward, whatever is drawn.
  const windows = metric === "reward" ? curve.verdict?.windows || [] : [];
  const top = metric === "reward" ? (best?.step ?? null) : null;
  const hasInterval = results.some((point) => isNumber(point.low));
  const key = (kind, text) => html`<span class="key ${kind}"></span> ${text}`;
  return html`
    <${CurveChart} ...${drawn} chosen=${chosen} windows=${windows} best=${top} onPoint=${onPoint} />
    <${Readout} series=${drawn.series} at=${drawn.at} metric=${metric} />
    <p class="legend soft">
      ${key("mean", hasInterval ? `mean ${metric} with its 95% interval` : `${metric}, without an interval`)}
      ${windows.length ? key("window", "the two windows of the verdict") : null}
      ${top === null ? null : key("best", "best step")}
      ${
        results.some((point) => point.mean_scored !== null)
          ? key("second", "without errored items, which the mean counts as 0")
          : null
      }
      ${results.some((point) => point.fewer) ? key("hollow", "fewer items than the others") : null}
      ${results.some((point) => point.mean === null) ? key("unmeasured", `an eval without ${metric}`) : null}
      ${curve.points.some((point) => !point.result) ? key("tick", "skipped or in flight") : null}</p>`;
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
  return html`<aside><h2>About this curve</h2><${Facts} rows=${facts} />
    <${Export} names=${[curve.name]} /></aside>`;
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

/** What is drawn, and with which other curves. */
function Choices({ curve }) {
  const labels = curve.labels.filter((label) => label !== curve.label);
  const others = new Map([
    ...labels.map((label) => [`${curve.name}: ${label}`, [curve.name, label]]),
    ...curve.others.map((name) => [name, [name, ""]]),
  ]);
  const canDraw = others.size > 0 && !isExport();
  const draw = ([name, label]) =>
    go(["curves"], { curve: [curve.name, name], label: [curve.label, label], metric: curve.metric });
  return html`<p class="toolbar">
    ${
      curve.metrics.length > 1
        ? html`<${Select} label="metric" value=${curve.metric} options=${curve.metrics}
            onChange=${(name) => set({ metric: name === curve.metrics[0] ? "" : name })} />`
        : null
    }
    ${
      canDraw
        ? html`<${Select} label="draw together with" value="" none="another curve"
            options=${[...others.keys()]} onChange=${(name) => name && draw(others.get(name))} />`
        : null
    }</p>`;
}

function Flips({ flips, steps, results }) {
  const [from, to] = steps;
  const { answer } = flips;
  if (answer.problem) return html`<${Problem} problem=${answer.problem} />`;
  if (!answer.data || answer.isStale) return null;
  const both = steps.map((step) => results.find((point) => point.step === step)?.run);
  const isSaved = both.every(Boolean) && !isExport();
  const side = (title, sign, { total, rows }) => html`<section>
    <h3><${Sign} outcome=${sign} /> ${title} <span class="soft">${count(total)}</span></h3>
    <ul class="flips" tabindex="0" aria-label=${title}>${rows.map(
      ({ id, text }) => html`<li><a href=${flips.href(id)}>${oneLine(id, 60)}</a>${" "}
        <span class="soft">${text.before} → ${text.after}</span></li>`,
    )}</ul>
    ${total > rows.length ? html`<p class="soft">and ${count(total - rows.length)} more</p>` : null}
  </section>`;
  return html`<h2>From step ${from} to step ${to}</h2>
    <${Blocks} blocks=${answer.data.notes} />
    <p class="soft">These two were picked by looking. What the curve allows one to say is the verdict
      above. ${isSaved ? html`<a href=${link(["compare", ...both])}>Compare the two evals</a>` : ""}</p>
    <div class="pair">
      ${side("lost", "failed", answer.data.lost)}${side("gained", "passed", answer.data.gained)}</div>
    ${flips.all.length ? html`<p class="soft"><kbd>n</kbd> goes through them.</p>` : null}`;
}

/** Each sample at each step, below the chart and on its axis; those that flipped last come first. */
function Heat({ name, label, version, axis, at }) {
  const answer = useAnswer(version > 1 ? "strip" : null, { name, label }, undefined, version);
  if (answer.problem) return html`<${Problem} problem=${answer.problem} />`;
  const strip = answer.data;
  // Returns neither pass nor fail.
  if (!strip?.rows.some((row) => /[pfe]/.test(row.cells))) return null;
  const { x, width, left } = axis;
  const places = strip.steps.map(x);
  const gaps = places.slice(1).map((place, i) => place - places[i]);
  const size = Math.max(1.5, Math.min(36, ...gaps) - 1);
  /** The cells of one outcome as one path: a row has up to 200 of them. */
  const path = (cells, letter) =>
    [...cells]
      .map((cell, i) =>
        cell === letter ? `M${(places[i] - size / 2).toFixed(1)} 1h${size}v13h-${size}z` : "",
      )
      .join("");
  const key = (kind) => html`<span class="key ${kind}"></span> ${kind} `;
  const passed = (cells) => `${[...cells].filter((cell) => cell === "p").length} of ${cells.length}`;
  return html`<h2>Samples by step</h2>
    <p class="legend soft">One line per sample, those that flipped last first.
      ${["passed", "failed", "errored"].map(key)}</p>
    <div class="heat" tabindex="0" role="region" aria-label="samples by step"><div>
      ${strip.rows.map(
        ({
          id,
          cells,
        }) => html`<a href=${link(["curve", name, "sample"], { id, label, step: at })} title=${id}
          aria-label="${id}: ${passed(cells)} steps passed">
          <span class="id" style=${{ width: `${left - 24}px` }}>${oneLine(id, 24)}</span>
          <svg viewBox="0 0 ${width} 15" width=${width} height="15" aria-hidden="true">${Object.entries(
            CELLS,
          ).map(([letter, kind]) => html`<path class=${kind} d=${path(cells, letter)} />`)}</svg></a>`,
      )}
      <i class="cross" style=${{ left: `${x(at)}px` }}></i></div></div>
    ${
      strip.total > strip.rows.length
        ? html`<p class="soft">the first ${strip.rows.length} of ${count(strip.total)}</p>`
        : null
    }`;
}
