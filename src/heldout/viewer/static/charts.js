// Charts as SVG: an interval in a cell, a forest of intervals, a histogram, a small curve.
// Every chart stands beside a table with the same numbers, so it is hidden from screen readers.

import { html } from "./vendor/preact-htm.js";

export const isNumber = (value) => value !== null && value !== undefined;

/** Round numbers that cover a range. */
export function ticks(low, high, most = 5) {
  const span = high - low;
  if (!(span > 0)) return [low];
  const raw = span / most;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
  const out = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++)
    out.push(Number((k * step).toPrecision(12)));
  return out;
}

/** A round number of an axis; results have the text that came with them. */
export const axisText = (value, sign = false) =>
  (sign && value > 0 ? "+" : "") + String(Number(value.toPrecision(6))).replace(/^-0$/, "0");

/** Width of a chart in CSS pixels, so that its text keeps its size on every screen. */
export const room = (most) => Math.max(300, Math.min(most, document.documentElement.clientWidth - 40));

export const scale = (low, high, from, to) => (value) =>
  from + ((value - low) / (high - low || 1)) * (to - from);

/** The corners of a band: along its upper side, and back along the lower one. */
export const outline = (points, x, low, high) =>
  [...points.map((p) => `${x(p)},${high(p)}`), ...points.map((p) => `${x(p)},${low(p)}`).reverse()].join(
    " ",
  );

/** An interval in a table's cell, on an axis that all rows share. */
export function Bar({ value, low, high, second = null, from = 0, to = 1 }) {
  if (!isNumber(value)) return null;
  const x = scale(from, to, 2, 118);
  const clip = (v) => Math.max(2, Math.min(118, x(v)));
  return html`<svg class="bar" viewBox="0 0 120 14" width="100" height="14" aria-hidden="true">
    <line class="axis" x1="2" x2="118" y1="7" y2="7" />
    ${isNumber(low) ? html`<line class="whisker" x1=${clip(low)} x2=${clip(high)} y1="7" y2="7" />` : null}
    ${
      isNumber(second)
        ? html`<circle class="dot hollow" cx=${clip(second)} cy="7" r="3">
            <title>without errored items</title></circle>`
        : null
    }
    <circle class="dot" cx=${clip(value)} cy="7" r="3" />
  </svg>`;
}

/**
 * Intervals one below the other, with a line at `at`. `second` is the mean without what errored.
 * @typedef {{label: string, value: number | null, low: number | null, high: number | null,
 *   second?: number | null, strong?: boolean}} ForestRow
 * @param {{rows: ForestRow[], at?: number | null, detectable?: number | null, sign?: boolean}} props
 */
export function Forest({ rows, at = null, detectable = null, sign = false }) {
  const values = rows.flatMap((row) => [row.value, row.low, row.high, row.second]).filter(isNumber);
  if (at !== null) values.push(at);
  if (detectable !== null) values.push(detectable, -detectable);
  if (!values.length) return null;
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const pad = (high - low || 0.1) * 0.06;
  const width = room(720);
  const left = width < 500 ? 96 : 150;
  const height = rows.length * 24 + 34;
  const x = scale(low - pad, high + pad, left, width - 12);
  const vertical = (css, value) =>
    html`<line class=${css} x1=${x(value)} x2=${x(value)} y1="6" y2=${height - 24} />`;
  return html`<svg class="forest" viewBox="0 0 ${width} ${height}" width=${width} aria-hidden="true">
    ${ticks(low - pad, high + pad, width < 500 ? 3 : 5).map(
      (t) => html`${vertical("rule", t)}
        <text class="tick" x=${x(t)} y=${height - 8} text-anchor="middle">${axisText(t, sign)}</text>`,
    )}
    ${
      detectable === null
        ? null
        : html`<rect class="undetected" x=${x(-detectable)} width=${x(detectable) - x(-detectable)} y="6"
            height=${height - 30}>
            <title>smaller true differences are detected with less than 80% power</title></rect>`
    }
    ${at === null ? null : vertical("zero", at)}
    ${rows.map((row, i) => html`<${ForestLine} row=${row} x=${x} y=${18 + i * 24} left=${left} />`)}
  </svg>`;
}

function ForestLine({ row, x, y, left }) {
  const strong = row.strong ? "strong" : "";
  const room = left / 7;
  const label = row.label.length > room ? `${row.label.slice(0, room - 1)}…` : row.label;
  const { value, low, high, second } = row;
  const radius = strong ? 5 : 4;
  return html`<text class="label ${strong}" x=${left - 10} y=${y + 4} text-anchor="end">${label}</text>
    ${isNumber(low) ? html`<line class="whisker" x1=${x(low)} x2=${x(high)} y1=${y} y2=${y} />` : null}
    ${isNumber(second) ? html`<circle class="dot hollow" cx=${x(second)} cy=${y} r="4" />` : null}
    ${isNumber(value) ? html`<circle class="dot ${strong}" cx=${x(value)} cy=${y} r=${radius} />` : null}`;
}

/** @param {{histogram: {edges: number[], counts: number[]}}} props */
export function Histogram({ histogram }) {
  const { edges, counts } = histogram;
  const most = Math.max(...counts, 1);
  const x = scale(edges[0], edges.at(-1), 10, 390);
  return html`<svg class="histogram" viewBox="0 0 400 120" aria-hidden="true">
    ${counts.map((n, i) => {
      const height = (n / most) * 86;
      const [from, to] = [edges[i], edges[i + 1]];
      return html`<rect class="column" x=${x(from) + 0.5} width=${Math.max(1, x(to) - x(from) - 1)}
        y=${96 - height} height=${height}><title>${axisText(from)} to ${axisText(to)}: ${n}</title></rect>`;
    })}
    <line class="axis" x1="10" x2="390" y1="96" y2="96" />
    ${ticks(edges[0], edges.at(-1)).map(
      (t) => html`<text class="tick" x=${x(t)} y="112" text-anchor="middle">${axisText(t)}</text>`,
    )}
  </svg>`;
}

/**
 * A small curve for a table's cell.
 * @param {{points: [number, number, number | null, number | null][]}} props step, mean, low, high
 */
export function Sparkline({ points }) {
  if (!points || points.length < 2) return null;
  const steps = points.map(([step]) => step);
  const low = ([, mean, bound]) => bound ?? mean;
  const high = ([, mean, , bound]) => bound ?? mean;
  const values = points.flatMap((p) => [p[1], low(p), high(p)]);
  const right = scale(Math.min(...steps), Math.max(...steps), 2, 118);
  const y = scale(Math.min(...values), Math.max(...values), 20, 3);
  const x = ([step]) => right(step);
  const band = outline(
    points,
    x,
    (p) => y(low(p)),
    (p) => y(high(p)),
  );
  return html`<svg class="spark" viewBox="0 0 120 23" width="100" height="23" aria-hidden="true">
    <polygon class="band" points=${band} />
    <polyline class="mean" points=${points.map((p) => `${x(p)},${y(p[1])}`).join(" ")} />
  </svg>`;
}

/**
 * Tokens of a rollout: the model's own, and those of the environment.
 * @param {{parts: [number, number][]}} props
 */
export function Strip({ parts }) {
  const total = parts.reduce((sum, [, n]) => sum + n, 0);
  const own = parts.reduce((sum, [mine, n]) => sum + mine * n, 0);
  return html`<div class="tally" aria-hidden="true">${parts.map(
    ([mine, n]) => html`<span class=${mine ? "own" : "ties"} style=${{ flexGrow: n }}></span>`,
  )}</div>
    <span class="soft">${own} of the model, ${total - own} of the environment</span>`;
}
