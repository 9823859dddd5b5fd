// Charts as SVG: an interval in a cell, a forest of intervals, a histogram, a curve with its band.
// Every chart stands beside a table with the same numbers, so it is hidden from screen readers.

import { html } from "./vendor/preact-htm.js";
import { number } from "./text.js";

/** Round numbers that cover a range. */
export function ticks(low, high, most = 5) {
  const span = high - low;
  if (!(span > 0)) return [low];
  const raw = span / most;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
  const out = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) out.push(Number((k * step).toPrecision(12)));
  return out;
}

/** Width of a chart in CSS pixels, so that its text keeps its size on every screen. */
const room = (most) => Math.max(300, Math.min(most, document.documentElement.clientWidth - 40));

const scale = (low, high, from, to) => (value) => from + ((value - low) / (high - low || 1)) * (to - from);

/** An interval in a table's cell, on an axis that all rows share. */
export const Bar = ({ value, low, high, second = null, from = 0, to = 1 }) => {
  if (value === null || value === undefined) return null;
  const x = scale(from, to, 2, 118);
  const clip = (v) => Math.max(2, Math.min(118, x(v)));
  return html`<svg class="bar" viewBox="0 0 120 14" width="100" height="14" aria-hidden="true">
    <line class="axis" x1="2" x2="118" y1="7" y2="7" />
    ${low === null || low === undefined ? null : html`<line class="whisker" x1=${clip(low)} x2=${clip(high)} y1="7" y2="7" />`}
    ${second === null || second === undefined ? null : html`<circle class="dot hollow" cx=${clip(second)} cy="7" r="3"><title>without errored items</title></circle>`}
    <circle class="dot" cx=${clip(value)} cy="7" r="3" />
  </svg>`;
};

/**
 * Intervals one below the other, with a line at `at`. `second` is the mean without what errored.
 * @param {{label: string, value: number | null, low: number | null, high: number | null, second?: number | null, strong?: boolean}[]} rows
 */
export const Forest = ({ rows, at = null, detectable = null, sign = false }) => {
  const values = rows.flatMap((row) => [row.value, row.low, row.high, row.second]).filter((v) => v !== null && v !== undefined);
  if (at !== null) values.push(at);
  if (detectable !== null) values.push(detectable, -detectable);
  if (!values.length) return null;
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const pad = (high - low || 0.1) * 0.06;
  const width = room(720);
  const left = width < 500 ? 96 : 150;
  const height = rows.length * 24 + 34;
  const x = scale(low - pad, high + pad, left, width - 12);
  return html`<svg class="forest" viewBox="0 0 ${width} ${height}" width=${width} aria-hidden="true">
    ${ticks(low - pad, high + pad, width < 500 ? 3 : 5).map(
      (t) => html`<line class="rule" x1=${x(t)} x2=${x(t)} y1="6" y2=${height - 24} />
        <text class="tick" x=${x(t)} y=${height - 8} text-anchor="middle">${number(t, { sign })}</text>`,
    )}
    ${detectable === null ? null : html`<rect class="undetected" x=${x(-detectable)} width=${x(detectable) - x(-detectable)} y="6" height=${height - 30}><title>smaller true differences are detected with less than 80% power</title></rect>`}
    ${at === null ? null : html`<line class="zero" x1=${x(at)} x2=${x(at)} y1="6" y2=${height - 24} />`}
    ${rows.map((row, i) => {
      const y = 18 + i * 24;
      return html`<text class="label ${row.strong ? "strong" : ""}" x=${left - 10} y=${y + 4} text-anchor="end">${row.label.length > left / 7 ? `${row.label.slice(0, left / 7 - 1)}…` : row.label}</text>
        ${row.low === null || row.low === undefined ? null : html`<line class="whisker" x1=${x(row.low)} x2=${x(row.high)} y1=${y} y2=${y} />`}
        ${row.second === null || row.second === undefined ? null : html`<circle class="dot hollow" cx=${x(row.second)} cy=${y} r="4" />`}
        ${row.value === null || row.value === undefined ? null : html`<circle class="dot ${row.strong ? "strong" : ""}" cx=${x(row.value)} cy=${y} r=${row.strong ? 5 : 4} />`}`;
    })}
  </svg>`;
};

/** @param {{edges: number[], counts: number[]}} histogram */
export const Histogram = ({ histogram }) => {
  const { edges, counts } = histogram;
  const most = Math.max(...counts, 1);
  const x = scale(edges[0], edges[edges.length - 1], 10, 390);
  return html`<svg class="histogram" viewBox="0 0 400 120" aria-hidden="true">
    ${counts.map((n, i) => {
      const height = (n / most) * 86;
      return html`<rect class="column" x=${x(edges[i]) + 0.5} width=${Math.max(1, x(edges[i + 1]) - x(edges[i]) - 1)} y=${96 - height} height=${height}><title>${number(edges[i])} to ${number(edges[i + 1])}: ${n}</title></rect>`;
    })}
    <line class="axis" x1="10" x2="390" y1="96" y2="96" />
    ${ticks(edges[0], edges[edges.length - 1]).map((t) => html`<text class="tick" x=${x(t)} y="112" text-anchor="middle">${number(t)}</text>`)}
  </svg>`;
};

/** A small curve for a table's cell. @param {{points: [number, number, number | null, number | null][]}} props step, mean, low, high */
export const Sparkline = ({ points }) => {
  if (!points || points.length < 2) return null;
  const steps = points.map((p) => p[0]);
  const values = points.flatMap((p) => [p[1], p[2] ?? p[1], p[3] ?? p[1]]);
  const x = scale(Math.min(...steps), Math.max(...steps), 2, 118);
  const y = scale(Math.min(...values), Math.max(...values), 20, 3);
  const band = [...points.map((p) => `${x(p[0])},${y(p[3] ?? p[1])}`), ...[...points].reverse().map((p) => `${x(p[0])},${y(p[2] ?? p[1])}`)];
  return html`<svg class="spark" viewBox="0 0 120 23" width="100" height="23" aria-hidden="true">
    <polygon class="band" points=${band.join(" ")} />
    <polyline class="mean" points=${points.map((p) => `${x(p[0])},${y(p[1])}`).join(" ")} />
  </svg>`;
};

/**
 * A training curve: points with whiskers and a band; restarts are gaps, skips ticks at the bottom.
 * @param {{points: any[], metric: string, chosen: number[], windows: number[][], best: number | null, onPoint: (step: number) => void}} props
 */
export const Curve = ({ points, chosen, windows, best, onPoint }) => {
  const width = room(1240);
  const right = width - 14;
  const shown = points.filter((p) => p.mean !== null && p.mean !== undefined);
  const steps = points.map((p) => p.step);
  if (!steps.length) return null;
  const values = shown.flatMap((p) => [p.mean, p.low ?? p.mean, p.high ?? p.mean, p.mean_scored ?? p.mean]);
  const [bottom, top] = values.length ? [Math.min(...values), Math.max(...values)] : [0, 1];
  const pad = (top - bottom || 0.1) * 0.08;
  const [first, last] = [Math.min(...steps), Math.max(...steps)];
  const x = scale(first, last === first ? first + 1 : last, 58, right);
  const y = scale(bottom - pad, top + pad, 292, 12);
  const stretches = [];
  for (const p of shown) {
    const open = stretches[stretches.length - 1];
    if (open && open[open.length - 1].session === p.session) open.push(p);
    else stretches.push([p]);
  }
  return html`<svg class="curve" viewBox="0 0 ${width} 330" width=${width} role="group" aria-label="Mean by training step; the table below has the numbers">
    ${ticks(bottom - pad, top + pad).map(
      (t) => html`<line class="rule" x1="58" x2=${right} y1=${y(t)} y2=${y(t)} /><text class="tick" x="50" y=${y(t) + 4} text-anchor="end">${number(t)}</text>`,
    )}
    ${ticks(first, last, width / 110).map((t) => html`<text class="tick" x=${x(t)} y="312" text-anchor="middle">${t}</text>`)}
    <text class="tick" x=${right} y="327" text-anchor="end">training step</text>
    ${windows.map(([from, to]) => html`<rect class="window" x=${x(from) - 6} width=${x(to) - x(from) + 12} y="12" height="280" />`)}
    ${stretches.map((line) => {
      const band = line.filter((p) => p.low !== null && p.low !== undefined);
      const outline = [...band.map((p) => `${x(p.step)},${y(p.high)}`), ...[...band].reverse().map((p) => `${x(p.step)},${y(p.low)}`)];
      return html`<polygon class="band" points=${outline.join(" ")} /><polyline class="mean" points=${line.map((p) => `${x(p.step)},${y(p.mean)}`).join(" ")} />`;
    })}
    ${points.filter((p) => p.mean === null || p.mean === undefined).map(
      (p) => html`<line class="missed ${p.pending ? "pending" : ""}" x1=${x(p.step)} x2=${x(p.step)} y1="284" y2="292"><title>step ${p.step}: ${p.note}</title></line>`,
    )}
    ${shown.map(
      (p) => html`${p.low === null || p.low === undefined ? null : html`<line class="whisker" x1=${x(p.step)} x2=${x(p.step)} y1=${y(p.low)} y2=${y(p.high)} />`}
        ${p.mean_scored === null ? null : html`<circle class="second" cx=${x(p.step)} cy=${y(p.mean_scored)} r="4" />`}
        <circle class="dot ${p.fewer ? "hollow" : ""} ${chosen.includes(p.step) ? "chosen" : ""} ${p.step === best ? "best" : ""}" cx=${x(p.step)} cy=${y(p.mean)} r=${p.step === best ? 6 : 4}
          tabindex="0" role="button" aria-label="step ${p.step}, mean ${number(p.mean)}" onClick=${() => onPoint(p.step)}
          onKeyDown=${(event) => event.key === "Enter" && onPoint(p.step)}>
          <title>step ${p.step}: ${number(p.mean)} (${number(p.low)} … ${number(p.high)}), n ${p.n}${p.errors ? `, ${p.errors} errored; ${number(p.mean_scored)} without them` : ""}</title>
        </circle>`,
    )}
  </svg>`;
};

/** Tokens of a rollout: the model's own, and those of the environment. @param {{parts: [number, number][]}} props */
export const Strip = ({ parts }) => {
  const total = parts.reduce((sum, [, n]) => sum + n, 0);
  const own = parts.reduce((sum, [mine, n]) => sum + mine * n, 0);
  return html`<div class="tally" aria-hidden="true">${parts.map(([mine, n]) => html`<span class=${mine ? "own" : "ties"} style=${{ flexGrow: n }}></span>`)}</div>
    <span class="soft">${own} of the model, ${total - own} of the environment</span>`;
};
