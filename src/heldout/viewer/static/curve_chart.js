// Training curves as one chart: points with their bands, a crosshair that reads out a step, skips as
// ticks at the bottom, and a mark where another attempt resumes.

import { axisText, isNumber, outline, room, scale, ticks } from "./charts.js";
import { Table } from "./parts.js";
import { count, oneLine } from "./text.js";
import { html } from "./vendor/preact-htm.js";

const [TOP, BOTTOM, HEIGHT] = [16, 296, 334];

/** @typedef {{name: string, points: any[]}} Series */

/**
 * The axis of steps, which the chart and what stands below it share.
 * @param {Series[]} series
 */
export function stepAxis(series) {
  const steps = [...new Set(series.flatMap(({ points }) => points.map((point) => point.step)))];
  steps.sort((a, b) => a - b);
  const width = room(1240);
  const left = width < 700 ? 58 : 150;
  const [first, last] = [steps[0], steps.at(-1)];
  const right = width - 36;
  return { steps, width, left, right, x: scale(first, last === first ? first + 1 : last, left, right) };
}

/** The step beside another one. */
export const stepBeside = ({ steps }, step, by) =>
  steps[Math.max(0, Math.min(steps.length - 1, steps.indexOf(step) + by))];

/** Points of one attempt of a training run; another attempt begins after a gap. */
function byAttempt(points) {
  const stretches = [];
  for (const point of points) {
    const open = stretches.at(-1);
    if (open?.at(-1).attempt === point.attempt) open.push(point);
    else stretches.push([point]);
  }
  return stretches;
}

/**
 * @param {{series: Series[], axis: ReturnType<typeof stepAxis>, at: number, onAt: (step: number) => void,
 *   over?: any[], chosen?: number[], windows?: number[][], best?: number | null,
 *   onPoint?: (step: number) => void}} props
 */
export function CurveChart({ series, axis, at, onAt, over = [], chosen = [], windows = [], best, onPoint }) {
  const { steps, width, left, right, x } = axis;
  const shown = series.map(({ points }) => points.filter((point) => isNumber(point.mean)));
  const values = [...shown.flat(), ...over].flatMap((p) => [p.mean, p.low, p.high, p.mean_scored]);
  const known = values.filter(isNumber);
  const [low, high] = known.length ? [Math.min(...known), Math.max(...known)] : [0, 1];
  const pad = (high - low || 0.1) * 0.08;
  const y = scale(low - pad, high + pad, BOTTOM, TOP);
  const follow = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const pointed = ((event.clientX - box.left) / box.width) * width;
    onAt(
      steps.reduce((near, step) =>
        Math.abs(x(step) - pointed) < Math.abs(x(near) - pointed) ? step : near,
      ),
    );
  };
  return html`<svg class="curve" viewBox="0 0 ${width} ${HEIGHT}" width=${width} role="group"
    aria-label="Mean by training step; the table below has the numbers" onPointerMove=${follow}>
    ${ticks(low - pad, high + pad).map(
      (t) => html`<line class="rule" x1=${left} x2=${right} y1=${y(t)} y2=${y(t)} />
        <text class="tick" x=${left - 8} y=${y(t) + 4} text-anchor="end">${axisText(t)}</text>`,
    )}
    ${ticks(steps[0], steps.at(-1), width / 110).map(
      (t) => html`<text class="tick" x=${x(t)} y=${BOTTOM + 20} text-anchor="middle">${t}</text>`,
    )}
    <text class="tick" x=${right} y=${BOTTOM + 36} text-anchor="end">training step</text>
    ${windows.map(
      ([from, to]) => html`<rect class="window" x=${x(from) - 6} width=${x(to) - x(from) + 12} y=${TOP}
        height=${BOTTOM - TOP} />`,
    )}
    <line class="cross" x1=${x(at)} x2=${x(at)} y1=${TOP} y2=${BOTTOM} />
    ${series.map(
      ({ points }, i) => html`<g class="series s${i} ${over.length ? "thin" : ""}">
        ${byAttempt(shown[i]).map(
          (line, nth) => html`<${Stretch} line=${line} x=${x} y=${y} hasBand=${!over.length} />
            ${nth ? html`<${Resumed} point=${line[0]} x=${x(line[0].step)} />` : null}`,
        )}
        ${points
          .filter((p) => !isNumber(p.mean))
          .map(
            (
              p,
            ) => html`<line class=${missed(p)} x1=${x(p.step)} x2=${x(p.step)} y1=${BOTTOM - 8} y2=${BOTTOM}>
              <title>step ${p.step}: ${p.result ? "without this metric" : p.note}</title></line>`,
          )}
        ${shown[i].map(
          (p) => html`<${Point} point=${p} x=${x(p.step)} y=${y} onPoint=${onPoint}
            isChosen=${chosen.includes(p.step)} isBest=${p.step === best} />`,
        )}</g>`,
    )}
    ${over.length ? html`<g class="over"><${Stretch} line=${over} x=${x} y=${y} hasBand /></g>` : null}
  </svg>`;
}

/** Why a step has no dot: its eval has other metrics, was skipped, or has not finished. */
const missed = ({ result, pending }) => `missed ${result ? "unmeasured" : pending ? "pending" : ""}`;

function Stretch({ line, x, y, hasBand }) {
  const band = outline(
    line.filter((p) => isNumber(p.low)),
    (p) => x(p.step),
    (p) => y(p.low),
    (p) => y(p.high),
  );
  return html`${hasBand ? html`<polygon class="band" points=${band} />` : null}
    <polyline class="mean" points=${line.map((p) => `${x(p.step)},${y(p.mean)}`).join(" ")} />`;
}

/** Where another attempt of the training run went on. */
const Resumed = ({ point, x }) =>
  html`<line class="resumed" x1=${x} x2=${x} y1=${TOP - 12} y2=${BOTTOM} />
    <text class="tick" x=${x + 4} y=${TOP - 4}>attempt ${point.attempt}</text>`;

function Point({ point, x, y, isChosen, isBest, onPoint }) {
  const { step, mean, low, high, mean_scored: scored, errors, text } = point;
  const marks = [point.fewer && "hollow", isChosen && "chosen", isBest && "best"].filter(Boolean);
  const css = `dot ${marks.join(" ")}`;
  const second = errors ? `, ${errors} errored; ${text.mean_scored} without them` : "";
  const title = `step ${step}: ${text.mean} (${text.interval}), n ${point.n}${second}`;
  if (!onPoint)
    return html`<circle class=${css} cx=${x} cy=${y(mean)} r="3"><title>${title}</title></circle>`;
  return html`
    ${isNumber(low) ? html`<line class="whisker" x1=${x} x2=${x} y1=${y(low)} y2=${y(high)} />` : null}
    ${isNumber(scored) ? html`<circle class="second" cx=${x} cy=${y(scored)} r="4" />` : null}
    <circle class=${css} cx=${x} cy=${y(mean)} r=${isBest ? 6 : 4} tabindex="0" role="button"
      aria-label="step ${step}, mean ${text.mean}" onClick=${() => onPoint(step)}
      onKeyDown=${(event) => event.key === "Enter" && onPoint(step)}><title>${title}</title></circle>`;
}

/**
 * What the crosshair is at, with its denominator and its verdict.
 * @param {{series: Series[], at: number, metric: string, over?: any[]}} props
 */
export function Readout({ series, at, metric, over = [] }) {
  const of = (points) => points.find((point) => point.step === at);
  const rows = series.map(({ name, points }, i) => ({ name, css: `s${i}`, point: of(points) }));
  if (over.length) rows.push({ name: "mean over runs", css: "over", point: of(over) });
  const cell = (read) => (row) => (row.point ? read(row.point) : "–");
  const key = (row) => html`<span class="key mean ${row.css}"></span> ${oneLine(row.name, 60)}`;
  return html`<div class="readout"><${Table} label="at step ${at}" rows=${rows} columns=${[
    { title: `step ${at}`, cell: key },
    { title: metric, numeric: true, cell: cell((point) => point.text.mean) },
    { title: "95% interval", cell: cell((point) => point.text.interval) },
    { title: "n", numeric: true, cell: cell((point) => point.n) },
    { title: "errors", numeric: true, cell: cell((point) => count(point.errors)) },
    { title: "verdict", cell: cell((point) => point.kind || "–") },
    {
      title: "note",
      wrap: true,
      cell: (row) => oneLine(row.point ? row.point.note || "" : "no eval at this step"),
    },
  ]} /></div>`;
}
