// The samples of a run: filtered and sorted by the server, one row per item.

import { Component, html } from "./vendor/preact-htm.js";
import { follow, get } from "./api.js";
import { Grid } from "./grid.js";
import * as keys from "./keys.js";
import { Mean, Problem, Sign } from "./parts.js";
import { go, link, set } from "./route.js";
import { count, duration, number, oneLine, visible } from "./text.js";

const CHIPS = [
  ["failed", "failed:yes"],
  ["errored", "errored:yes"],
  ["truncated", "truncated:yes"],
];

export class Samples extends Component {
  state = { head: null, problem: null, fresh: 0, typed: null };

  componentDidMount() {
    this.load();
    this.release = keys.use({
      "/": () => document.querySelector("[data-filter]")?.focus(),
      f: () => this.toggle("failed:yes"),
      Escape: () => (document.activeElement?.matches("[data-filter]") ? document.activeElement.blur() : go(["run", this.props.name])),
    });
    this.end = follow([this.props.name], (event, data) => event === "progress" && this.setState({ fresh: data.n }), () => {});
  }

  componentWillUnmount() {
    this.release();
    this.end();
    this.abort?.abort();
  }

  componentDidUpdate(previous) {
    const asked = this.query();
    if (previous.name !== this.props.name || asked !== this.asked) this.load();
  }

  get where() {
    return this.props.params.get("where") || "";
  }

  get sort() {
    return this.props.params.get("sort") || "";
  }

  query() {
    return JSON.stringify([this.where, this.sort]);
  }

  async load() {
    this.asked = this.query();
    this.abort?.abort();
    const abort = (this.abort = new AbortController());
    try {
      const head = await this.rows(0, 100, abort.signal);
      this.setState({ head, problem: null, fresh: 0 });
    } catch (problem) {
      // What was shown stays: the filter is being typed.
      if (problem.name !== "AbortError") this.setState({ problem });
    }
  }

  rows = (offset, limit, signal) => get("rows", { name: this.props.name, where: this.where, sort: this.sort, offset, limit }, signal);

  toggle(term) {
    const terms = this.where.split(/\s+/).filter(Boolean);
    set({ where: (terms.includes(term) ? terms.filter((t) => t !== term) : [...terms, term]).join(" "), at: "" });
  }

  columns(head) {
    const sorted = (name) => (this.sort === name ? "ascending" : this.sort === `-${name}` ? "descending" : undefined);
    const sortable = (column, name) => ({ ...column, sorted: sorted(name), onSort: () => set({ sort: this.sort === `-${name}` ? name : `-${name}`, at: "" }) });
    const extra = head.extra.slice(0, 4).map((name, i) =>
      sortable({ title: name, width: "minmax(60px, 1fr)", cell: (row) => oneLine(row.extra[i] ?? "", 40) }, name),
    );
    return [
      { title: "", width: "26px", cell: (row) => html`<${Sign} outcome=${row.outcome} />` },
      sortable({ title: "sample", width: "minmax(70px, 1fr)", cell: (row) => html`${oneLine(row.id, 40)}${row.repeat ? html`<span class="soft"> #${row.repeat + 1}</span>` : ""}` }, "id"),
      sortable({ title: "reward", width: "74px", numeric: true, cell: (row) => number(row.reward) }, "reward"),
      { title: "question", width: "minmax(120px, 3fr)", cell: (row) => oneLine(row.question) },
      { title: "target", width: "minmax(60px, 1fr)", cell: (row) => oneLine(row.target) },
      { title: "extracted", width: "minmax(60px, 1fr)", cell: (row) => (row.error ? html`<span class="errored">${oneLine(row.error)}</span>` : oneLine(row.extracted ?? row.answer)) },
      ...extra,
      sortable({ title: "tokens", width: "72px", numeric: true, cell: (row) => count(row.tokens) }, "tokens"),
      sortable({ title: "time", width: "72px", numeric: true, cell: (row) => duration(row.seconds) }, "seconds"),
    ];
  }

  render() {
    const { name } = this.props;
    const { head, problem, fresh } = this.state;
    const terms = this.where.split(/\s+/);
    const at = Number(this.props.params.get("at") || 0);
    return html`
      <h1><a href=${link(["run", name])}>${visible(name)}</a> <span class="soft">samples</span></h1>
      <div class="toolbar">
        <input class="filter" type="search" list="completions" aria-label="Filter" data-filter placeholder=${'reward<0.5  kind:"a b"  -truncated:yes  text:"refund"'} value=${this.where}
          aria-invalid=${problem ? "true" : undefined} onInput=${(event) => set({ where: event.target.value, at: "" })} />
        <datalist id="completions">${head ? head.completions.map((term) => html`<option value=${term} />`) : null}</datalist>
        ${CHIPS.map(([label, term]) => html`<button aria-pressed=${terms.includes(term)} onClick=${() => this.toggle(term)}>${label}${head ? html` <span class="soft">${count(head.counts[label])}</span>` : null}</button>`)}
      </div>
      ${problem ? html`<${Problem} problem=${problem} />` : null}
      ${head
        ? html`<p role="status" class="counts">${count(head.total)} of ${count(head.of)} rows
              ${head.mean !== null && head.mean !== undefined ? html` · mean <${Mean} value=${head.mean} low=${head.low} high=${head.high} n=${head.total} errors=${head.counts.errored} />` : null}
              ${head.picked === "outcome" ? html` · <span class="soft">picked by their result: a mean of these says nothing about the policy</span>` : null}
              ${head.excluded ? html` · <span class="soft">${visible(head.excluded)}</span>` : null}
              ${fresh > head.of ? html` · <button onClick=${() => this.load()}>${count(fresh - head.of)} new rows</button>` : null}</p>
            <${Grid} label="samples" columns=${this.columns(head)} total=${head.total} version=${`${name} ${this.asked} ${head.generation}`} selected=${Math.min(at, Math.max(0, head.total - 1))}
              load=${async (offset, limit, signal) => (offset === 0 ? head.rows : (await this.rows(offset, limit, signal)).rows)}
              onSelect=${(row) => set({ at: row })}
              onOpen=${(row, index) => go(["run", name, "sample"], { id: row.id, repeat: row.repeat || "", where: this.where, sort: this.sort, at: index })}
              onProblem=${(problem) => this.setState({ problem })} />`
        : problem ? null : html`<p class="soft" role="status">Loading…</p>`}`;
  }
}
