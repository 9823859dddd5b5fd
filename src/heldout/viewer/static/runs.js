// The list of runs. Two can be marked and compared.

import { html } from "./vendor/preact-htm.js";
import { isExport } from "./api.js";
import { Bar, Sparkline } from "./charts.js";
import * as keys from "./keys.js";
import { Live, Page, Sign } from "./parts.js";
import { go, jump, link, set } from "./route.js";
import { ago, count, interval, number, oneLine, visible } from "./text.js";

const target = (run) => (run.kind === "curve" ? link(["curve", run.name]) : link(["run", run.name]));
const text = (run) => `${run.name} ${run.model || ""} ${run.tags.join(" ")} ${run.note || ""} ${run.status || ""} ${run.verdict || ""} ${run.kind}`.toLowerCase();

export class Runs extends Page {
  request = () => ["runs"];
  marked = [];
  at = 0;
  shown = [];

  follows = () => [];

  componentDidMount() {
    super.componentDidMount();
    this.release = keys.use({
      j: () => this.move(1),
      ArrowDown: () => this.move(1),
      k: () => this.move(-1),
      ArrowUp: () => this.move(-1),
      Home: () => this.move(-this.shown.length),
      End: () => this.move(this.shown.length),
      Enter: () => this.shown[this.at] && !this.shown[this.at].problem && jump(target(this.shown[this.at])),
      x: () => this.mark(this.shown[this.at]),
      c: () => this.compare(),
    });
  }

  componentWillUnmount() {
    super.componentWillUnmount();
    this.release();
  }

  move(by) {
    this.at = Math.max(0, Math.min(this.at + by, this.shown.length - 1));
    this.forceUpdate();
    document.querySelector("tr.at")?.scrollIntoView({ block: "nearest" });
  }

  mark(run) {
    if (!run || run.kind === "curve" || run.problem) return;
    this.marked = this.marked.includes(run.name) ? this.marked.filter((n) => n !== run.name) : [...this.marked.slice(-1), run.name];
    this.forceUpdate();
  }

  compare() {
    // The older one is A.
    const runs = this.state.data.runs.filter((run) => this.marked.includes(run.name));
    if (runs.length === 2) go(["compare", ...runs.reverse().map((run) => run.name)]);
  }

  view({ runs, roots }) {
    const where = this.props.params.get("where") || "";
    const words = where.toLowerCase().split(/\s+/).filter(Boolean);
    this.shown = runs.filter((run) => words.every((word) => text(run).includes(word)));
    if (!runs.length)
      return html`<h1>Runs</h1><p>No runs under ${roots.join(", ")}.</p><p class="soft"><code>heldout run FILE</code> makes one.</p>`;
    const bounded = runs.every((run) => run.kind === "curve" || !(run.min < 0 || run.max > 1));
    return html`
      <h1>Runs <${Live} state=${this.state.live} /></h1>
      <div class="toolbar">
        <input type="search" aria-label="Filter by name, model or status" placeholder="name, model, status" value=${where} onInput=${(event) => set({ where: event.target.value })} data-filter />
        <button disabled=${this.marked.length !== 2} onClick=${() => this.compare()}>Compare ${this.marked.length === 2 ? "the two marked" : "two runs: mark them"}</button>
      </div>
      <div class="scroll" tabindex="0" role="group" aria-label="runs"><table class="runs">
        <thead><tr><th scope="col"><span class="hidden">marked</span></th><th scope="col">run</th><th scope="col">model</th><th scope="col" class="num">mean</th><th scope="col">95% interval</th><th scope="col"><span class="hidden">chart</span></th><th scope="col" class="num">n</th><th scope="col" class="num">errors</th><th scope="col">status</th><th scope="col">started</th></tr></thead>
        <tbody>${this.shown.map((run, i) => this.row(run, i === this.at, bounded))}</tbody>
      </table></div>
      <p class="soft" role="status">${count(this.shown.length)} of ${count(runs.length)} runs${this.marked.length ? `; marked: ${this.marked.join(" and ")}` : ""}${isExport() ? "" : ` · ${roots.join(", ")}`}</p>`;
  }

  row(run, at, bounded) {
    const css = at ? "at" : "";
    if (run.problem)
      return html`<tr class=${css}><td></td><td>${visible(run.name)}</td><td colspan="8" class="errored">${oneLine(run.problem)}${run.repair ? html` <code>${run.repair}</code>` : null}</td></tr>`;
    const curve = run.kind === "curve";
    return html`<tr class=${css} onClick=${(event) => !event.target.closest("a, input, label") && jump(target(run))}>
      <td>${curve ? null : html`<input type="checkbox" aria-label="mark ${run.name}" checked=${this.marked.includes(run.name)} onChange=${() => this.mark(run)} />`}</td>
      <td><a href=${target(run)}>${visible(run.name)}</a>${curve ? html` <span class="soft">curve</span>` : run.kind === "episodes" ? html` <span class="soft">episodes</span>` : ""}</td>
      <td class="soft">${oneLine(run.model, 40)}${run.tags.map((tag) => html` <span class="badge">${visible(tag)}</span>`)}</td>
      <td class="num ${run.unfinished ? "soft" : ""}">${number(run.mean)}</td>
      <td class=${run.unfinished ? "soft" : ""}>${interval(run.low, run.high)}</td>
      <td>${curve ? html`<${Sparkline} points=${run.spark} />` : bounded ? html`<${Bar} value=${run.mean} low=${run.low} high=${run.high} second=${run.errors ? run.mean_scored : null} />` : null}</td>
      <td class="num">${count(run.n)}${run.unfinished && run.asked ? html`<span class="soft"> of ${count(run.asked)}</span>` : ""}</td>
      <td class="num">${run.errors ? html`<span class="errored"><${Sign} outcome="errored" />${count(run.errors)}</span>` : count(run.errors)}</td>
      <td>${curve ? html`<span class="badge ${run.verdict || ""}">${run.verdict || "no verdict"}</span> <span class="soft">at step ${run.step ?? "–"}${run.status === "finished" ? "" : `, ${run.status}`}</span>` : html`<span class="badge ${run.status}">${run.status}</span>`}</td>
      <td class="soft" title=${run.started}>${ago(run.started)}</td>
    </tr>`;
  }
}
