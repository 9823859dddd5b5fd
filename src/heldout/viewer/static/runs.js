// The list of runs. Two can be marked and compared.

import { html } from "./vendor/preact-htm.js";
import { follow } from "./api.js";
import { Bar, Sparkline } from "./charts.js";
import * as keys from "./keys.js";
import { Page, Sign } from "./parts.js";
import { go, link, set } from "./route.js";
import { ago, count, interval, number, oneLine, visible } from "./text.js";

const target = (run) => (run.kind === "curve" ? link(["curve", run.name]) : link(["run", run.name]));

export class Runs extends Page {
  request = () => ["runs"];
  marked = [];
  at = 0;

  componentDidMount() {
    super.componentDidMount();
    this.release = keys.use({
      j: () => this.move(1),
      ArrowDown: () => this.move(1),
      k: () => this.move(-1),
      ArrowUp: () => this.move(-1),
      Enter: () => this.shown[this.at] && (location.hash = target(this.shown[this.at])),
      x: () => this.mark(this.shown[this.at]),
      c: () => this.compare(),
    });
    this.end = follow([], (event) => event === "runs" && this.load(), () => {});
  }

  componentWillUnmount() {
    super.componentWillUnmount();
    this.release();
    this.end();
  }

  move(by) {
    this.at = Math.max(0, Math.min(this.at + by, this.shown.length - 1));
    this.forceUpdate();
    document.querySelector("tr.at")?.scrollIntoView({ block: "nearest" });
  }

  mark(run) {
    if (!run || run.kind !== "run" || run.problem) return;
    this.marked = this.marked.includes(run.name) ? this.marked.filter((n) => n !== run.name) : [...this.marked.slice(-1), run.name];
    this.forceUpdate();
  }

  compare() {
    if (this.marked.length === 2) go(["compare", ...this.marked]);
  }

  view({ runs, roots }) {
    const where = this.props.params.get("where") || "";
    const words = where.toLowerCase().split(/\s+/).filter(Boolean);
    this.shown = runs.filter((run) => words.every((word) => `${run.name} ${run.model} ${run.status}`.toLowerCase().includes(word)));
    if (!runs.length)
      return html`<h1>Runs</h1><p>No runs under ${roots.join(", ")}.</p><p class="soft"><code>heldout run FILE</code> makes one.</p>`;
    return html`
      <h1>Runs</h1>
      <div class="toolbar">
        <input type="search" aria-label="Filter by name, model or status" placeholder="name, model, status" value=${where} onInput=${(event) => set({ where: event.target.value })} data-filter />
        <button disabled=${this.marked.length !== 2} onClick=${() => this.compare()}>Compare ${this.marked.length === 2 ? "the two marked" : "two marked runs"}</button>
      </div>
      <div class="scroll"><table class="runs">
        <thead><tr><th scope="col"><span class="hidden">marked</span></th><th scope="col">run</th><th scope="col">model</th><th scope="col" class="num">mean</th><th scope="col">95% interval</th><th scope="col"><span class="hidden">chart</span></th><th scope="col" class="num">n</th><th scope="col" class="num">errors</th><th scope="col">status</th><th scope="col">started</th></tr></thead>
        <tbody>${this.shown.map((run, i) =>
          run.problem
            ? html`<tr class=${i === this.at ? "at" : ""}><td></td><td>${run.name}</td><td colspan="8" class="errored">${oneLine(run.problem)}</td></tr>`
            : html`<tr class=${i === this.at ? "at" : ""}>
                <td>${run.kind === "run" ? html`<input type="checkbox" aria-label="mark ${run.name}" checked=${this.marked.includes(run.name)} onChange=${() => this.mark(run)} />` : null}</td>
                <td><a href=${target(run)}>${visible(run.name)}</a></td>
                <td>${oneLine(run.model, 60)}</td>
                <td class="num">${number(run.mean)}</td>
                <td>${interval(run.ci_low, run.ci_high)}</td>
                <td>${run.kind === "curve" ? html`<${Sparkline} points=${run.spark} />` : html`<${Bar} value=${run.mean} low=${run.ci_low} high=${run.ci_high} />`}</td>
                <td class="num">${count(run.n)}${run.status !== "complete" && run.asked ? html`<span class="soft"> of ${count(run.asked)}</span>` : ""}</td>
                <td class="num">${run.errors ? html`<span class="errored"><${Sign} outcome="errored" /> ${count(run.errors)}</span>` : "0"}</td>
                <td>${run.verdict || run.status}</td>
                <td class="soft" title=${run.started}>${ago(run.started)}</td>
              </tr>`,
        )}</tbody>
      </table></div>
      <p class="soft" role="status">${count(this.shown.length)} of ${count(runs.length)} runs${this.marked.length ? `, marked: ${this.marked.join(" and ")}` : ""}</p>`;
  }
}
