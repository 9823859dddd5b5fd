// Two runs compared: the verdict, the difference with its interval, slices, and flips.

import { html } from "./vendor/preact-htm.js";
import { get } from "./api.js";
import { Forest } from "./charts.js";
import { Diff } from "./conversation.js";
import * as keys from "./keys.js";
import { Notes, Page, Problem, Sign, Table } from "./parts.js";
import { go, link, set } from "./route.js";
import { count, interval, number, oneLine, visible } from "./text.js";

const KINDS = [
  ["lost", "A passed, B failed"],
  ["gained", "A failed, B passed"],
];

export class Compare extends Page {
  rows = null;

  request = () => {
    const { a, b, params } = this.props;
    return ["compare", { a, b, by: params.get("by") || "", allow: params.getAll("allow") }];
  };

  componentDidMount() {
    super.componentDidMount();
    this.release = keys.use({ w: () => go(["compare", this.props.b, this.props.a]), Escape: () => go(["runs"]) });
    this.loadRows();
  }

  componentWillUnmount() {
    super.componentWillUnmount();
    this.release();
  }

  componentDidUpdate() {
    super.componentDidUpdate();
    if (this.kind !== (this.props.params.get("kind") || "lost") || this.pairOf !== `${this.props.a} ${this.props.b}`) this.loadRows();
  }

  async loadRows() {
    this.kind = this.props.params.get("kind") || "lost";
    this.pairOf = `${this.props.a} ${this.props.b}`;
    try {
      const { a, b, params } = this.props;
      this.rows = await get("flips", { a, b, kind: this.kind, allow: params.getAll("allow") });
      this.rowsProblem = null;
    } catch (problem) {
      this.rowsProblem = problem;
    }
    this.forceUpdate();
  }

  refused(problem) {
    if (problem.status !== 409) return super.refused(problem);
    const allowed = this.props.params.getAll("allow");
    return html`<h1>${visible(this.props.a)} and ${visible(this.props.b)}</h1>
      <${Problem} problem=${problem} />
      <p>Compare them all the same, although this differs:</p>
      <p>${problem.kinds.map((kind) => html`<label class="allow"><input type="checkbox" checked=${allowed.includes(kind)} onChange=${(event) => set({ allow: event.target.checked ? [...allowed, kind] : allowed.filter((k) => k !== kind) })} /> ${kind}</label>`)}</p>`;
  }

  view(found) {
    if (this.state.problem?.status === 409) return null;
    const { a, b, params } = this.props;
    const by = params.get("by") || "";
    return html`
      <h1>${visible(a)} and ${visible(b)}</h1>
      <p class="verdict ${found.word}" role="status">${visible(found.sentence)}</p>
      <div class="columns">
        <section>
          <${Forest} at=${0} rows=${[
            ...(found.slices || []).map((row) => ({ label: visible(row.value), value: row.difference, low: row.low, high: row.high })),
            { label: "B − A", value: found.difference, low: found.low, high: found.high, strong: true },
          ]} />
          <${Table} rows=${found.means} columns=${[
            { title: "", cell: (row) => visible(row.label) },
            { title: "mean", numeric: true, cell: (row) => number(row.mean, { sign: row.sign }) },
            { title: "95% interval", cell: (row) => interval(row.low, row.high) },
            { title: "n", numeric: true, cell: (row) => count(row.n) },
            { title: "errors", numeric: true, cell: (row) => count(row.errors) },
          ]} />
          <${Notes} notes=${found.notes} />
          ${found.keys.length
            ? html`<p><label>slices by <select value=${by} onChange=${(event) => set({ by: event.target.value })}><option value="">none</option>${found.keys.map((key) => html`<option value=${key}>${key}</option>`)}</select></label></p>`
            : null}
          ${found.slices
            ? html`<${Table} rows=${found.slices} columns=${[
                { title: by, cell: (row) => visible(row.value) },
                { title: "n", numeric: true, cell: (row) => count(row.n) },
                { title: "difference", numeric: true, cell: (row) => number(row.difference, { sign: true }) },
                { title: "simultaneous 95% interval", cell: (row) => interval(row.low, row.high) },
                { title: "p (Holm)", numeric: true, cell: (row) => number(row.p) },
              ]} />`
            : null}
          ${this.flips()}
        </section>
        <aside>
          <h2>Samples</h2>
          <div class="tally" aria-hidden="true">${["wins", "ties", "losses"].map((kind) => html`<span class=${kind} style=${{ flexGrow: found[kind] || 0.001 }}></span>`)}</div>
          <p>B better on ${count(found.wins)}, worse on ${count(found.losses)}, equal on ${count(found.ties)}</p>
          <h2>What differs</h2>
          ${found.config.length
            ? html`<${Table} rows=${found.config} columns=${[
                { title: "setting", cell: (row) => visible(row.key) },
                { title: "A", cell: (row) => oneLine(row.a, 60) },
                { title: "B", cell: (row) => oneLine(row.b, 60) },
              ]} />`
            : html`<p class="soft">Nothing but the answers.</p>`}
        </aside>
      </div>`;
  }

  flips() {
    const { a, b } = this.props;
    const kind = this.props.params.get("kind") || "lost";
    const rows = this.rows;
    return html`<h2>Flips</h2>
      <div class="toolbar">${KINDS.map(([name, label]) => html`<button aria-pressed=${kind === name} onClick=${() => set({ kind: name })}>${label}</button>`)}</div>
      ${this.rowsProblem && this.rowsProblem.status !== 409 ? html`<${Problem} problem=${this.rowsProblem} retry=${() => this.loadRows()} />` : null}
      ${rows
        ? html`<p class="soft" role="status">${count(rows.total)} samples${rows.total > rows.rows.length ? `, the first ${rows.rows.length} shown` : ""}</p>
            ${rows.rows.map(
              (row) => html`<article class="flip">
                <header><a href=${link(["compare", a, b, "sample"], { id: row.id })}>${visible(row.id)}</a>
                  <span class="soft">A <${Sign} outcome=${row.a.outcome} /> ${number(row.a.reward)} · B <${Sign} outcome=${row.b.outcome} /> ${number(row.b.reward)}</span></header>
                <p>${oneLine(row.question, 300)}</p>
                <p class="soft">target: <code>${oneLine(row.target, 100)}</code></p>
                <${Diff} before=${row.a.answer} after=${row.b.answer} />
              </article>`,
            )}`
        : null}`;
  }
}
