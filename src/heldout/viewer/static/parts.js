// Small pieces that several pages show.

import { count, visible } from "./text.js";
import { html } from "./vendor/preact-htm.js";

/** @typedef {"passed" | "failed" | "errored" | "truncated"} Outcome */
const SIGNS = { passed: "✓", failed: "✗", errored: "!", truncated: "…" };

/** An outcome as a sign: never by colour alone. */
export const Sign = ({ outcome }) =>
  html`<span class="sign ${outcome}" title=${outcome} role="img" aria-label=${outcome}>${
    SIGNS[outcome] || "·"
  }</span>`;

/** The second reading of a mean, where something errored. */
export function Errored({ of }) {
  const without = `${of.text.mean_scored} (${of.text.interval_scored}) without them`;
  return html`<span class="errored">${count(of.errors)} errored, counted as 0; ${without}</span>`;
}

/** A mean is never without its interval, its denominator, and what errored. */
export const Mean = ({ of }) =>
  html`<span class="mean"><b>${of.text.mean}</b>
    <span class="soft">${` (${of.text.interval}), n ${count(of.n)}`}</span>
    ${of.errors ? html` <${Errored} of=${of} />` : ""}</span>`;

/** How many passed, failed and errored, as a bar with its numbers. */
export function Outcomes({ counts }) {
  const parts = ["passed", "failed", "errored"].filter((name) => counts[name]);
  return html`<div class="outcomes">
    <div class="tally" aria-hidden="true">${parts.map(
      (name) => html`<span class=${name} style=${{ flexGrow: counts[name] }}></span>`,
    )}</div>
    <p>${parts.map(
      (name) => html`<span class="count"><${Sign} outcome=${name} /> ${count(counts[name])} ${name}</span>`,
    )}
      ${
        counts.truncated
          ? html`<span class="count soft"><${Sign} outcome="truncated" />
              ${` ${count(counts.truncated)}`} of them truncated</span>`
          : null
      }</p></div>`;
}

const isKnown = (value) => value !== null && value !== undefined && value !== "" && value !== false;

export const Facts = ({ rows }) =>
  html`<dl class="facts">${rows
    .filter(([, value]) => isKnown(value))
    .map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;

/** Lines and tables as the command line prints them. */
export const Blocks = ({ blocks }) =>
  blocks.map((block) =>
    block.line === undefined
      ? html`<${TextTable} table=${block} />`
      : html`<p class="note ${block.style}">${visible(block.line)}</p>`,
  );

export function TextTable({ table, caption }) {
  const columns = table.columns.map(({ title, numeric, wrap }, i) => ({
    title,
    numeric,
    wrap,
    cell: (row) => visible(row[i]),
  }));
  return html`<${Table} caption=${caption} rows=${[...table.rows, ...table.totals]} columns=${columns} />`;
}

export const Problem = ({ problem, retry }) =>
  html`<div class="problem" role="alert"><p>${visible(problem.message)}</p>
    ${problem.hint ? html`<p class="soft">${visible(problem.hint)}</p>` : null}
    ${retry ? html`<button onClick=${retry}>Try again</button>` : null}</div>`;

/** What a page shows of an answer: why there is none, and what there is. */
export function Loaded({ answer, view, refused }) {
  const { data, problem, reload } = answer;
  if (!data && !problem) return html`<p class="soft" role="status">Loading…</p>`;
  return html`
    ${problem ? refused?.(problem) || html`<${Problem} problem=${problem} retry=${reload} />` : null}
    ${data ? view(data) : null}`;
}

/** A line that moves while something newer than what is shown is on its way. */
export const Busy = ({ is }) =>
  html`<div class="busy" role="progressbar" aria-label="searching" hidden=${!is}></div>`;

/** A table of plain values; `numeric` columns are set to the right. */
export function Table({ caption, columns, rows, onRow, label }) {
  const opens = (row) =>
    onRow
      ? {
          class: "opens",
          tabindex: 0,
          onClick: () => onRow(row),
          onKeyDown: (event) => event.key === "Enter" && onRow(row),
        }
      : {};
  const kind = (column) => (column.numeric ? "num" : column.wrap ? "wrap" : "");
  return html`<div class="scroll" tabindex="0" role="group" aria-label=${caption || label || "table"}><table>
    ${caption ? html`<caption>${caption}</caption>` : null}
    <thead><tr>${columns.map(
      (column) =>
        html`<th scope="col" class=${column.numeric ? "num" : ""}>${
          column.title || html`<span class="hidden">name</span>`
        }</th>`,
    )}</tr></thead>
    <tbody>${rows.map(
      (row) =>
        html`<tr ...${opens(row)}>${columns.map(
          (column) => html`<td class=${kind(column)}>${column.cell(row)}</td>`,
        )}</tr>`,
    )}</tbody>
  </table></div>`;
}

export const Select = ({ label, value, options, none, onChange }) =>
  html`<label class="select">${label}${" "}
    <select value=${value} onChange=${(event) => onChange(event.target.value)}>
      ${none === undefined ? null : html`<option value="">${none}</option>`}
      ${options.map((option) => html`<option value=${option}>${option}</option>`)}
    </select></label>`;

/** Which columns a table has. */
export function Chooser({ fields, chosen, onChange }) {
  const toggle = (name, on) => {
    const rest = chosen.filter((other) => other !== name);
    onChange(on ? [...rest, name] : rest);
  };
  return html`<details class="chooser"><summary>columns</summary><div>${fields.map(
    (name) => html`<label><input type="checkbox" checked=${chosen.includes(name)}
      onChange=${(event) => toggle(name, event.target.checked)} /> ${visible(name)}</label>`,
  )}</div></details>`;
}

export const Crumbs = ({ path }) =>
  html`<nav class="crumbs" aria-label="where this is">${path.map(
    ([text, href]) => html`<a href=${href}>${visible(text)}</a><span aria-hidden="true">/</span>`,
  )}</nav>`;

export const Live = ({ state }) =>
  state ? html`<span class="live ${state}" role="status">${state}</span>` : null;
