// One run: its summary, its rewards as a histogram, and slices.

import { html } from "./vendor/preact-htm.js";
import { follow, get } from "./api.js";
import { Forest, Histogram } from "./charts.js";
import * as keys from "./keys.js";
import { Facts, Notes, Page, Problem, Table } from "./parts.js";
import { go, link, set } from "./route.js";
import { ago, count, duration, interval, number, visible } from "./text.js";

export class Run extends Page {
  request = () => [`run`, { name: this.props.name }];
  slices = null;

  componentDidMount() {
    super.componentDidMount();
    this.release = keys.use({ f: () => go(["run", this.props.name, "samples"], { where: "failed:yes" }), s: () => go(["run", this.props.name, "samples"]) });
    this.end = follow([this.props.name], (event) => event === "progress" && this.load(), () => {});
  }

  componentWillUnmount() {
    super.componentWillUnmount();
    this.release();
    this.end();
  }

  componentDidUpdate() {
    super.componentDidUpdate();
    const by = this.props.params.get("by") || "";
    if (by !== (this.by || "")) this.loadSlices(by);
  }

  async loadSlices(by) {
    this.by = by;
    try {
      this.slices = by ? await get("slices", { name: this.props.name, by }) : null;
      this.sliceProblem = null;
    } catch (problem) {
      this.sliceProblem = problem;
    }
    this.forceUpdate();
  }

  view(run) {
    const done = run.status === "complete";
    return html`
      <h1>${visible(run.name)}</h1>
      <p class="lead">${run.model ? html`model: ${visible(run.model)} · ` : ""}${run.status}${run.reason ? html`: <span class="errored">${visible(run.reason)}</span>` : ""}
        ${done ? "" : html` · <span class="soft">means are of what finished first</span>`}</p>
      ${run.resume ? html`<p>Resume it with <code>${run.resume}</code></p>` : null}
      <div class="columns">
        <section>
          <div class=${done ? "" : "unfinished"}>
          <${Table} caption="Summary" rows=${run.rows} columns=${[
            { title: "", cell: (row) => visible(row.label) },
            { title: "mean", numeric: true, cell: (row) => number(row.mean) },
            { title: "95% interval", cell: (row) => interval(row.low, row.high) },
            { title: "items", numeric: true, cell: (row) => count(row.n) },
          ]} /></div>
          <p>${visible(run.counts)}</p>
          <${Notes} notes=${run.notes} />
          <p><a class="button" href=${link(["run", run.name, "samples"])}>All samples</a>
             <a class="button" href=${link(["run", run.name, "samples"], { where: "failed:yes" })}>Failures</a></p>
          ${run.histogram ? html`<h2>Rewards</h2><${Histogram} histogram=${run.histogram} />` : null}
          ${this.sliceView(run)}
        </section>
        <aside>
          <${Facts} rows=${[
            ["sampling", run.sampling && visible(run.sampling)],
            ["score function", run.scorer && visible(run.scorer)],
            ["tokens", run.tokens && `${count(run.tokens.prompt)} in, ${count(run.tokens.completion)} out`],
            ["seconds per item", run.item_seconds && `median ${duration(run.item_seconds.median)}, p95 ${duration(run.item_seconds.p95)}`],
            ["started", run.started && html`<span title=${run.started}>${ago(run.started)}</span>`],
            ["took", run.seconds && duration(run.seconds)],
            ["stored in", run.path],
          ]} />
          <details><summary>Settings</summary><pre>${JSON.stringify(run.config, null, 2)}</pre></details>
        </aside>
      </div>`;
  }

  sliceView(run) {
    const keysToSlice = run.keys || [];
    if (!keysToSlice.length) return null;
    const by = this.props.params.get("by") || "";
    const slices = this.slices;
    const open = (row) => go(["run", run.name, "samples"], { where: `${by}:${JSON.stringify(row.value)}` });
    return html`<h2>Slices</h2>
      <p><label>by <select value=${by} onChange=${(event) => set({ by: event.target.value })}>
        <option value="">choose a key</option>${keysToSlice.map((key) => html`<option value=${key}>${key}</option>`)}
      </select></label></p>
      ${this.sliceProblem ? html`<${Problem} problem=${this.sliceProblem} />` : null}
      ${slices
        ? html`<${Forest} rows=${[...slices.rows.slice(0, 40).map((row) => ({ label: visible(row.value), value: row.mean, low: row.low, high: row.high })), { label: "all", value: slices.all.mean, low: slices.all.low, high: slices.all.high, strong: true }]} at=${slices.all.mean} />
            <${Table} onRow=${open} rows=${slices.rows} columns=${[
              { title: by, cell: (row) => visible(row.value) },
              { title: "items", numeric: true, cell: (row) => count(row.n) },
              { title: "mean", numeric: true, cell: (row) => number(row.mean) },
              { title: "95% interval", cell: (row) => interval(row.low, row.high) },
              { title: "passed", numeric: true, cell: (row) => number(row.pass_rate) },
              { title: "errors", numeric: true, cell: (row) => count(row.errors) },
            ]} /><${Notes} notes=${slices.notes} />`
        : null}`;
  }
}
