// Small pieces that several pages show.

import { Component, html } from "./vendor/preact-htm.js";
import { get } from "./api.js";
import { count, interval, number, visible } from "./text.js";

/** @typedef {"passed" | "failed" | "errored" | "truncated" | "scored"} Outcome */
const SIGNS = { passed: "✓", failed: "✗", errored: "!", truncated: "…", scored: "·" };

/** An outcome as a sign: never by colour alone. */
export const Sign = ({ outcome }) => html`<span class="sign ${outcome}" title=${outcome} role="img" aria-label=${outcome}>${SIGNS[outcome] || "·"}</span>`;

/** A mean is never without its interval and its denominator. */
export const Mean = ({ value, low, high, n, errors }) => html`<span class="mean">
  <b>${number(value)}</b> <span class="soft">${interval(low, high)}</span>
  <span class="soft"> n=${count(n)}${errors ? html`, <span class="errored">${count(errors)} errored</span>` : ""}</span>
</span>`;

export const Facts = ({ rows }) => html`<dl class="facts">${rows
  .filter(([, value]) => value !== null && value !== undefined && value !== "")
  .map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>`;

export const Notes = ({ notes }) => (notes && notes.length ? html`<ul class="notes">${notes.map((note) => html`<li>${visible(note)}</li>`)}</ul>` : null);

export const Problem = ({ problem, retry }) => html`<div class="problem" role="alert">
  <p>${visible(problem.message)}</p>
  ${problem.hint ? html`<p class="soft">${visible(problem.hint)}</p>` : null}
  ${retry ? html`<button onClick=${retry}>Try again</button>` : null}
</div>`;

/** A table of plain values; `numeric` columns are set to the right. */
export const Table = ({ caption, columns, rows, onRow }) => html`<div class="scroll"><table>
  ${caption ? html`<caption>${caption}</caption>` : null}
  <thead><tr>${columns.map((column) => html`<th scope="col" class=${column.numeric ? "num" : ""}>${column.title}</th>`)}</tr></thead>
  <tbody>${rows.map(
    (row) => html`<tr class=${onRow ? "opens" : ""} tabindex=${onRow ? 0 : undefined}
      onClick=${onRow ? () => onRow(row) : undefined}
      onKeyDown=${onRow ? (event) => event.key === "Enter" && onRow(row) : undefined}>
      ${columns.map((column) => html`<td class=${column.numeric ? "num" : ""}>${column.cell(row)}</td>`)}
    </tr>`,
  )}</tbody>
</table></div>`;

/**
 * A page that loads: `request()` gives [path, params], `view(data)` what to show of the answer.
 * What was shown stays while something newer loads, and when that fails.
 */
export class Page extends Component {
  state = { data: null, problem: null };
  asked = "";

  componentDidMount() {
    this.load();
  }

  componentDidUpdate() {
    if (JSON.stringify(this.request()) !== this.asked) this.load();
  }

  componentWillUnmount() {
    this.abort?.abort();
  }

  load = async () => {
    const request = this.request();
    this.asked = JSON.stringify(request);
    this.abort?.abort();
    const abort = (this.abort = new AbortController());
    try {
      const data = await get(...request, abort.signal);
      if (this.abort === abort) this.setState({ data, problem: null });
    } catch (problem) {
      if (problem.name !== "AbortError") this.setState({ problem });
    }
  };

  render() {
    const { data, problem } = this.state;
    return html`
      ${problem ? this.refused(problem) : null}
      ${data ? this.view(data) : problem ? null : html`<p class="soft" role="status">Loading…</p>`}
    `;
  }

  refused(problem) {
    return html`<${Problem} problem=${problem} retry=${this.load} />`;
  }
}
