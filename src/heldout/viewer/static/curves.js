// Several curves in one chart: seeds, runs or eval sets.

import { isNumber } from "./charts.js";
import { CurveChart, Readout, stepAxis, stepBeside } from "./curve_chart.js";
import { useAnswer, useKeys, useToggle } from "./hooks.js";
import { Crumbs, Live, Loaded, Select } from "./parts.js";
import { go, link, set } from "./route.js";
import { visible } from "./text.js";
import { html, useState } from "./vendor/preact-htm.js";

/** A curve as one is named in a list. */
const nameOf = ({ name, label, labels }) => (labels.length > 1 ? `${name}: ${label}` : name);

export function Curves({ params }) {
  const [curve, label] = [params.getAll("curve"), params.getAll("label")];
  const metric = params.get("metric") || "";
  const answer = useAnswer("curves", { name: curve, label, metric }, () => [...new Set(curve)]);
  const [at, setAt] = useState(null);
  const [withMean, turnMean] = useToggle(true);
  const series = (answer.data?.series || []).map((one) => ({ ...one, name: nameOf(one), of: one.name }));
  const axis = stepAxis(series);
  const step = axis.steps.includes(at) ? at : axis.steps.at(-1);
  const labels = curve.map((_, i) => label[i] || "");
  useKeys({
    ArrowLeft: () => setAt(stepBeside(axis, step, -1)),
    ArrowRight: () => setAt(stepBeside(axis, step, 1)),
    Escape: () => go(["runs"]),
  });

  const add = (name, its = "") => set({ curve: [...curve, name], label: [...labels, its] });
  const remove = (i) => set({ curve: curve.toSpliced(i, 1), label: labels.toSpliced(i, 1) });
  const view = (found) => {
    const others = found.series.flatMap((one) =>
      one.labels
        .filter((name) => !series.some((s) => s.of === one.name && s.label === name))
        .map((l) => [one.name, l]),
    );
    const offered = new Map([
      ...others.map(([name, its]) => [`${name}: ${its}`, [name, its]]),
      ...found.others.map((name) => [name, [name]]),
    ]);
    const over = withMean ? found.over_runs : [];
    return html`
      <${Crumbs} path=${[["runs", link(["runs"])]]} />
      <h1>${series.length} curves <${Live} state=${answer.live} /></h1>
      ${series.map(
        (one, i) => html`<${Series} one=${one} css="s${i}" metric=${found.metric}
          onRemove=${series.length > 1 ? () => remove(i) : null} />`,
      )}
      ${
        axis.steps.length
          ? html`<${CurveChart} series=${series} axis=${axis} at=${step} onAt=${setAt} over=${over} />
              <${Readout} series=${series} at=${step} metric=${found.metric} over=${over} />`
          : html`<p class="soft">No point yet.</p>`
      }
      <${OverRuns} found=${found} runs=${series.length} isOn=${withMean} onTurn=${turnMean} />
      <p class="toolbar">
        <${Select} label="metric" value=${found.metric} options=${found.metrics}
          onChange=${(name) => set({ metric: name === found.metrics[0] ? "" : name })} />
        ${
          offered.size && series.length < 6
            ? html`<${Select} label="add" value="" none="a curve" options=${[...offered.keys()]}
                onChange=${(name) => name && add(...offered.get(name))} />`
            : null
        }
        <span class="soft">← → move the crosshair</span></p>`;
  };
  return html`<${Loaded} answer=${answer} view=${view} />`;
}

function Series({ one, css, metric, onRemove }) {
  const { kind = "", sentence = "no verdict" } = one.verdict || {};
  const results = one.points.filter((point) => point.result);
  const lacks = results.length > 0 && results.every((point) => !isNumber(point.mean));
  const href = link(["curve", one.of], { label: one.labels.length > 1 ? one.label : "" });
  return html`<p class="of-series"><span class="key mean ${css}"></span>${" "}
    <a href=${href}>${visible(one.name)}</a>${" "}
    <span class="badge ${kind}">${kind || "no verdict"}</span>${" "}
    <span class="soft">${kind ? visible(sentence) : ""}</span>${" "}
    ${lacks ? html`<span class="errored">has no ${visible(metric)}</span>` : null}${" "}
    ${
      onRemove
        ? html`<button class="plain" aria-label="remove ${one.name}" onClick=${onRemove}>✕</button>`
        : null
    }</p>`;
}

/** What the band over training runs is, or why there is none. */
function OverRuns({ found, runs, isOn, onTurn }) {
  if (found.no_mean)
    return html`<p class="soft">No mean over training runs: ${visible(found.no_mean)}.
    Each band is the 95% interval of one curve's own mean, over its samples.</p>`;
  if (!found.over_runs.length)
    return html`<p class="soft">No mean over training runs: there is no step at
    which all ${runs} have a whole eval.</p>`;
  return html`<p><label><input type="checkbox" checked=${isOn} onChange=${onTurn} />
      ${` mean over ${runs} training runs`}</label></p>
    <p class="soft">${
      isOn
        ? html`The band is the 95% interval of the mean over training runs: each run's mean is one value,
            n is ${runs}. It says how far the mean of other runs, with other seeds, may be. It is drawn at
            the steps at which every run has a whole eval.`
        : "Each band is the 95% interval of one curve's own mean, over its samples."
    }</p>`;
}
