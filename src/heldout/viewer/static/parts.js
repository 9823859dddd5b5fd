// Small pieces that several pages show.

import { Component, html } from "./vendor/preact-htm.js";
import { follow, get } from "./api.js";
import { count, interval, number, visible } from "./text.js";

/** @typedef {"passed" | "failed" | "errored" | "truncated"} Outcome */
const SIGNS = { passed: "✓", failed: "✗", errored: "!", truncated: "…" };

/** An outcome as a sign: never by colour alone. */
export const Sign = ({ outcome }) => html`<span class="sign ${outcome}" title=${outcome} role="img" aria-label=${outcome}>${SIGNS[outcome] || "·"}</span>`;

/** A mean is never without its interval, its denominator, and what errored. */
export const Mean = ({ of }) => html`<span class="mean"><b>${number(of.mean)}</b> <span class="soft">(${interval(of.low, of.high)}), n ${count(of.n)}</span>${
  of.errors ? html` <span class="errored">${count(of.errors)} errored, counted as 0; ${number(of.mean_scored)} (${interval(of.low_scored, of.high_scored)}) without them</span>` : ""
}</span>`;

/** How many passed, failed and errored, as a bar with its numbers. */
export const Outcomes = ({ counts }) => {
  const parts = ["passed", "failed", "errored"].filter((name) => counts[name]);
  return html`<div class="outcomes"><div class="tally" aria-hidden="true">${parts.map((name) => html`<span class=${name} style=${{ flexGrow: counts[name] }}></span>`)}</div>
    <p>${parts.map((name) => html`<span class="count"><${Sign} outcome=${name} /> ${count(counts[name])} ${name}</span>`)}
      ${counts.truncated ? html`<span class="count soft"><${Sign} outcome="truncated" /> ${count(counts.truncated)} of them truncated</span>` : null}</p></div>`;
};

export const Facts = ({ rows }) => html`<dl class="facts">${rows
  .filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false)
  .map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;

/** Lines and tables as the command line prints them. */
export const Blocks = ({ blocks }) => blocks.map((block) => (block.line === undefined ? html`<${TextTable} table=${block} />` : html`<p class="note ${block.style}">${visible(block.line)}</p>`));

export const TextTable = ({ table, caption, onRow }) => html`<${Table} caption=${caption} onRow=${onRow} rows=${[...table.rows, ...table.totals]}
  columns=${table.columns.map((column, i) => ({ title: column.title, numeric: column.numeric, wrap: column.wrap, cell: (row) => visible(row[i]) }))} />`;

export const Problem = ({ problem, retry }) => html`<div class="problem" role="alert">
  <p>${visible(problem.message)}</p>
  ${problem.hint ? html`<p class="soft">${visible(problem.hint)}</p>` : null}
  ${retry ? html`<button onClick=${retry}>Try again</button>` : null}
</div>`;

/** A table of plain values; `numeric` columns are set to the right. */
export const Table = ({ caption, columns, rows, onRow, label }) => html`<div class="scroll" tabindex="0" role="group" aria-label=${caption || label || "table"}><table>
  ${caption ? html`<caption>${caption}</caption>` : null}
  <thead><tr>${columns.map((column) => html`<th scope="col" class=${column.numeric ? "num" : ""}>${column.title || html`<span class="hidden">name</span>`}</th>`)}</tr></thead>
  <tbody>${rows.map(
    (row) => html`<tr class=${onRow ? "opens" : ""} tabindex=${onRow ? 0 : undefined}
      onClick=${onRow ? () => onRow(row) : undefined}
      onKeyDown=${onRow ? (event) => event.key === "Enter" && onRow(row) : undefined}>
      ${columns.map((column) => html`<td class=${column.numeric ? "num" : column.wrap ? "wrap" : ""}>${column.cell(row)}</td>`)}
    </tr>`,
  )}</tbody>
</table></div>`;

export const Select = ({ label, value, options, none, onChange }) => html`<label class="select">${label} <select value=${value} onChange=${(event) => onChange(event.target.value)}>
  ${none === undefined ? null : html`<option value="">${none}</option>`}${options.map((option) => html`<option value=${option}>${option}</option>`)}
</select></label>`;

export const Crumbs = ({ path }) => html`<nav class="crumbs" aria-label="where this is">${path.map(([text, href]) => html`<a href=${href}>${visible(text)}</a><span aria-hidden="true">/</span>`)}</nav>`;

/**
 * A page that loads: `request()` gives [path, params], `view(data)` what to show of the answer,
 * `follows()` the runs whose changes load it again. What was shown stays while something newer
 * loads, and when that fails.
 */
export class Page extends Component {
  state = { data: null, problem: null, live: "" };
  asked = "";

  follows() {
    return null;
  }

  componentDidMount() {
    this.load();
  }

  componentDidUpdate() {
    if (JSON.stringify(this.request()) !== this.asked) this.load();
  }

  componentWillUnmount() {
    this.abort?.abort();
    this.end?.();
    clearTimeout(this.later);
  }

  load = async () => {
    const request = this.request();
    this.asked = JSON.stringify(request);
    this.abort?.abort();
    const abort = (this.abort = new AbortController());
    const begun = performance.now();
    try {
      const data = await get(...request, abort.signal);
      if (this.abort !== abort) return;
      this.took = performance.now() - begun;
      this.setState({ data, problem: null });
      this.listen(data);
    } catch (problem) {
      if (problem.name !== "AbortError") this.setState({ problem });
    }
  };

  listen(data) {
    const names = this.follows();
    if (!names || this.end) return;
    this.end = follow(names, data.state || "", (event, info) => this.changed(event, info), (live) => this.setState({ live }));
  }

  /** Load again, not more often than an answer takes. */
  changed() {
    clearTimeout(this.later);
    this.later = setTimeout(this.load, Math.min(10_000, 3 * (this.took || 0)));
  }

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

export const Live = ({ state }) => (state ? html`<span class="live ${state}" role="status">${state}</span>` : null);
