// One run: its summary, its rewards as a histogram, and slices.

import { html } from "./vendor/preact-htm.js";
import { get } from "./api.js";
import { Forest, Histogram } from "./charts.js";
import * as keys from "./keys.js";
import { Blocks, Crumbs, Facts, Live, Outcomes, Page, Problem, Select, Table, TextTable } from "./parts.js";
import { go, link, set } from "./route.js";
import { ago, count, duration, interval, number, quoted, visible } from "./text.js";

export class Run extends Page {
  request = () => ["run", { name: this.props.name }];
  slices = null;
  by = "";

  follows = () => (this.state.data && this.state.data.unfinished ? [this.props.name] : null);

  componentDidMount() {
    super.componentDidMount();
    this.release = keys.use({
      f: () => go(["run", this.props.name, "samples"], { where: "failed:yes" }),
      s: () => go(["run", this.props.name, "samples"]),
      Escape: () => go(["runs"]),
    });
    this.loadSlices();
  }

  componentWillUnmount() {
    super.componentWillUnmount();
    this.release();
  }

  componentDidUpdate() {
    super.componentDidUpdate();
    this.loadSlices();
  }

  async loadSlices() {
    const by = this.props.params.get("by") || "";
    if (by === this.by) return;
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
    const { summary } = run;
    const samples = (where) => link(["run", run.name, "samples"], { where });
    return html`
      <${Crumbs} path=${[["runs", link(["runs"])]]} />
      <h1>${visible(run.name)} ${run.unfinished ? html`<span class="badge ${run.status}">${run.status}</span>` : null} <${Live} state=${this.state.live} /></h1>
      <p class="lead">${run.model ? html`model: <b>${visible(run.model)}</b>` : ""}${run.parent ? html` · trajectories of ${visible(run.parent)}, scored again` : ""}</p>
      <div class="columns">
        <section>
          <div class="headline ${run.unfinished ? "unfinished" : ""}">
            <div><span class="big">${number(summary.mean)}</span> <span class="soft">mean reward${run.unfinished ? ", of what finished first" : ""}</span></div>
            <div>95% interval ${interval(summary.ci_low, summary.ci_high)}, n ${count(summary.n)}${run.unfinished && run.asked ? ` of ${count(run.asked)}` : ""}</div>
            ${summary.n_errors ? html`<div class="errored">${count(summary.n_errors)} errored, counted as 0; ${number(summary.mean_scored)} (${interval(summary.ci_scored_low, summary.ci_scored_high)}) without them</div>` : null}
          </div>
          ${run.resume ? html`<p>Go on with it: <code>${visible(run.resume)}</code></p>` : null}
          ${run.unfinished && run.asked ? html`<progress aria-label="finished" value=${summary.n} max=${run.asked}></progress>` : null}
          ${run.outcomes ? html`<${Outcomes} counts=${run.outcomes} />` : null}
          <p class="toolbar"><a class="button primary" href=${samples("")}>All samples</a>
             ${run.outcomes?.failed ? html`<a class="button" href=${samples("failed:yes")}>Failures</a>` : null}
             ${run.outcomes?.errored ? html`<a class="button" href=${samples("errored:yes")}>Errors</a>` : null}</p>
          <div class=${run.unfinished ? "unfinished" : ""}><${TextTable} table=${run.table} caption="Summary" /></div>
          <${Blocks} blocks=${run.notes} />
          ${run.histogram ? html`<h2>Rewards</h2><${Histogram} histogram=${run.histogram} />` : null}
          ${this.sliceView(run)}
        </section>
        <aside>
          <h2>About this run</h2>
          <${Blocks} blocks=${run.about} />
          <${Facts} rows=${[
            ["passes from", run.pass_threshold === null ? "nothing: the reward is the return" : `reward ≥ ${run.pass_threshold}`],
            ["samples", run.samples && `${count(run.samples)}${run.repeats > 1 ? `, ${run.repeats} attempts each` : ""}`],
            ["tokens per item", run.tokens && `median ${count(run.tokens.median)}, p95 ${count(Math.round(run.tokens.p95))}`],
            ["time per item", run.seconds && `median ${duration(run.seconds.median)}, p95 ${duration(run.seconds.p95)}`],
            ["started", run.started && html`<time datetime=${run.started} title=${run.started}>${ago(run.started)}</time>`],
            ["took", run.finished && run.started && duration((Date.parse(run.finished) - Date.parse(run.started)) / 1000)],
            ["saved to", html`<code>${visible(run.path)}</code>`],
          ]} />
          <details><summary>Settings</summary><pre tabindex="0">${visible(JSON.stringify(run.config, null, 2))}</pre></details>
          <details><summary>Functions and versions</summary><pre tabindex="0">${visible(JSON.stringify({ functions: run.functions, versions: run.versions }, null, 2))}</pre></details>
        </aside>
      </div>`;
  }

  sliceView(run) {
    if (!run.keys || !run.keys.length) return null;
    const by = this.props.params.get("by") || "";
    const slices = by ? this.slices : null;
    const open = (row) => row.value !== null && go(["run", run.name, "samples"], { where: `${quoted(by)}:${quoted(row.value)}` });
    const label = (row) => (row.value === null ? "–" : visible(row.value));
    return html`<h2>Slices</h2>
      <p><${Select} label="by" value=${by} none="choose a key" options=${run.keys} onChange=${(key) => set({ by: key })} /></p>
      ${this.sliceProblem ? html`<${Problem} problem=${this.sliceProblem} />` : null}
      ${slices
        ? html`<${Forest} at=${slices.all.mean} rows=${[...slices.rows.slice(0, 40).map((row) => ({ label: label(row), value: row.mean, low: row.low, high: row.high, second: row.errors ? row.mean_scored : null })), { label: "all", value: slices.all.mean, low: slices.all.low, high: slices.all.high, second: slices.all.errors ? slices.all.mean_scored : null, strong: true }]} />
            <${Table} label="slices" onRow=${open} rows=${slices.rows} columns=${[
              { title: by, cell: label },
              { title: "n", numeric: true, cell: (row) => count(row.n) },
              { title: "mean", numeric: true, cell: (row) => number(row.mean) },
              { title: "95% interval", cell: (row) => interval(row.low, row.high) },
              ...(slices.all.errors ? [{ title: "scored only", numeric: true, cell: (row) => number(row.mean_scored) }] : []),
              { title: "passed", numeric: true, cell: (row) => number(row.pass_rate) },
              { title: "errors", numeric: true, cell: (row) => count(row.errors) },
            ]} />
            ${slices.total > slices.rows.length ? html`<p class="soft">the first ${slices.rows.length} of ${count(slices.total)} values</p>` : null}
            ${slices.all.errors ? html`<p class="legend soft"><span class="key second"></span> without errored items, which the mean counts as 0</p>` : null}
            ${slices.rows.length > 1 ? html`<p class="soft">${slices.rows.length} slices looked at: some will stand out by chance. Two runs compared by slices are corrected for that.</p>` : null}
            <${Blocks} blocks=${slices.notes.filter((note) => !run.notes.some((known) => known.line === note.line))} />`
        : null}`;
  }
}
