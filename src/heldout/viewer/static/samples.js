// The samples of a run: filtered and sorted by the server, one row per item.

import { Component, html } from "./vendor/preact-htm.js";
import { follow, get, isExport } from "./api.js";
import { Grid } from "./grid.js";
import * as keys from "./keys.js";
import { Crumbs, Mean, Problem, Sign } from "./parts.js";
import { go, link, set } from "./route.js";
import { count, duration, number, oneLine, visible } from "./text.js";

const CHIPS = [
  ["failed", "failed:yes"],
  ["errored", "errored:yes"],
  ["truncated", "truncated:yes"],
];

/** Filters by metadata that were looked at, by run: past the first, chance has had more tries. */
const looked = new Map();

export class Samples extends Component {
  state = { head: null, problem: null, fresh: 0 };

  componentDidMount() {
    this.load();
    this.release = keys.use({
      f: () => this.toggle("failed:yes"),
      Escape: () => go(["run", this.props.name]),
    });
  }

  componentWillUnmount() {
    this.release();
    this.end?.();
    this.abort?.abort();
  }

  componentDidUpdate(previous) {
    if (previous.name !== this.props.name || this.query() !== this.asked) this.load();
  }

  get where() {
    return this.props.params.get("where") || "";
  }

  get sort() {
    return this.props.params.get("sort") || "";
  }

  get cols() {
    return this.props.params.getAll("cols");
  }

  query() {
    return JSON.stringify([this.where, this.sort, this.cols]);
  }

  load = async () => {
    const asked = (this.asked = this.query());
    this.abort?.abort();
    const abort = (this.abort = new AbortController());
    try {
      const head = await this.rows(0, 100, abort.signal);
      if (head.picked === "metadata") looked.set(this.props.name, (looked.get(this.props.name) || new Set()).add(this.where));
      this.setState({ head, version: `${asked} ${head.generation}`, problem: null, fresh: 0 });
      if (head.running && !this.end) this.end = follow([this.props.name], "", (event, data) => this.setState({ fresh: data.lines }), () => {});
    } catch (problem) {
      // What was shown stays: the filter is being typed.
      if (problem.name !== "AbortError") this.setState({ problem });
    }
  };

  rows = (offset, limit, signal) => get("rows", { name: this.props.name, where: this.where, sort: this.sort, cols: this.cols, offset, limit }, signal);

  toggle(term) {
    const terms = this.where.split(/\s+/).filter(Boolean);
    set({ where: (terms.includes(term) ? terms.filter((t) => t !== term) : [...terms, term]).join(" "), at: "" });
  }

  columns(head) {
    const sorted = (name) => (this.sort === name ? "ascending" : this.sort === `-${name}` ? "descending" : undefined);
    const sortable = (column, name) => ({ ...column, sorted: sorted(name), onSort: () => set({ sort: this.sort === `-${name}` ? name : `-${name}`, at: "" }) });
    const extra = head.extra.map((name, i) =>
      sortable({ title: name.replace(/^(metric|metadata)\./, ""), width: "minmax(60px, 1fr)", cell: (row) => (typeof row.extra[i] === "number" && !Number.isInteger(row.extra[i]) ? number(row.extra[i]) : oneLine(row.extra[i] ?? "", 60)) }, name),
    );
    const conversations = head.rows.some((row) => row.answer || row.error);
    return [
      { title: html`<span class="hidden">outcome</span>`, width: "22px", cell: (row) => html`<${Sign} outcome=${row.outcome} />` },
      sortable({ title: "sample", width: "minmax(90px, 1fr)", cell: (row) => html`${oneLine(row.id, 60)}${head.repeats > 1 ? html`<span class="soft"> #${row.repeat + 1}</span>` : ""}` }, "id"),
      sortable({ title: "reward", width: "70px", numeric: true, cell: (row) => number(row.reward) }, "reward"),
      { title: "question", width: "minmax(140px, 3fr)", cell: (row) => oneLine(row.question) },
      ...(conversations
        ? [
            { title: "extracted", width: "minmax(80px, 1.2fr)", cell: (row) => (row.error ? html`<span class="errored">${oneLine(row.error)}</span>` : row.extracted === null ? html`<em>nothing</em>` : oneLine(row.extracted ?? row.answer)) },
            { title: "target", width: "minmax(60px, 1fr)", cell: (row) => oneLine(row.target) },
          ]
        : []),
      ...extra,
      sortable({ title: "tokens", width: "72px", numeric: true, cell: (row) => count(row.tokens) }, "tokens"),
      sortable({ title: "time", width: "72px", numeric: true, cell: (row) => duration(row.seconds) }, "seconds"),
    ];
  }

  filter(head, problem) {
    // What is completed is the last term; those before it stay.
    const before = this.where.replace(/\S*$/, "");
    return html`<input class="filter" type="search" list="completions" aria-label="Filter" data-filter spellcheck="false" autocomplete="off"
        placeholder=${'filter: reward<0.5  level:hard  -truncated:yes  text:"refund"'} value=${this.where} aria-invalid=${problem ? "true" : undefined}
        onInput=${(event) => set({ where: event.target.value, at: "" })} />
      <datalist id="completions">${head ? head.completions.map((term) => html`<option value=${before + term} />`) : null}</datalist>`;
  }

  chooser(head) {
    const chosen = this.cols.length ? this.cols : head.extra;
    const toggle = (name, on) => set({ cols: on ? [...chosen, name] : chosen.length > 1 ? chosen.filter((n) => n !== name) : ["none"] });
    return html`<details class="chooser"><summary>columns</summary><div>${head.fields.map(
      (name) => html`<label><input type="checkbox" checked=${chosen.includes(name)} onChange=${(event) => toggle(name, event.target.checked)} /> ${visible(name)}</label>`,
    )}</div></details>`;
  }

  render() {
    const { name } = this.props;
    const { head, version, problem, fresh } = this.state;
    const terms = this.where.split(/\s+/);
    const at = Number(this.props.params.get("at") || 0);
    return html`
      <${Crumbs} path=${[["runs", link(["runs"])], [name, link(["run", name])]]} />
      <h1>Samples</h1>
      ${html`<div class="toolbar">${this.filter(head, problem)}
            ${CHIPS.map(([label, term]) => html`<button aria-pressed=${terms.includes(term)} onClick=${() => this.toggle(term)}><${Sign} outcome=${label} /> ${label}${head ? html` <span class="soft">${count(head.counts[label])}</span>` : null}</button>`)}
            ${head && head.fields.length && !isExport() ? this.chooser(head) : null}
          </div>`}
      ${problem
        ? problem.at === undefined
          ? html`<${Problem} problem=${problem} retry=${this.load} />`
          : html`<p class="problem" role="alert"><code>${visible(this.where.slice(0, problem.at))}<mark>${visible(this.where.slice(problem.at))}</mark></code> ${visible(problem.message)}</p>`
        : null}
      ${head
        ? html`<p role="status" class="counts">${count(head.total)} of ${count(head.of)} rows
              ${head.mean ? html` · mean reward <${Mean} of=${head.mean} />` : null}
              ${head.picked === "outcome" ? html` · <span class="soft">picked by their result, so a mean of these would say nothing about the policy</span>` : null}
              ${head.picked === "metadata" && looked.get(name).size > 1 ? html` · <span class="soft">${looked.get(name).size} slices looked at: some stand out by chance</span>` : null}
              ${fresh > head.of ? html` · <button onClick=${this.load}>${count(fresh - head.of)} new rows</button>` : null}</p>
            <${Grid} label="samples" columns=${this.columns(head)} total=${head.total} version=${`${name} ${version}`} selected=${Math.min(at, Math.max(0, head.total - 1))}
              load=${async (offset, limit, signal) => (offset === 0 ? head.rows : (await this.rows(offset, limit, signal)).rows)}
              onSelect=${(row) => set({ at: row })}
              onOpen=${(row, index) => go(["run", name, "sample"], { id: row.id, repeat: row.repeat || "", where: this.where, sort: this.sort, at: index })}
              onProblem=${(problem) => this.setState({ problem })} />`
        : problem ? null : html`<p class="soft" role="status">Loading…</p>`}`;
  }
}
