// A training curve, live while it trains; flips between two steps; one sample across steps.

import { Component, html } from "./vendor/preact-htm.js";
import { get, isExport } from "./api.js";
import { Curve as Chart } from "./charts.js";
import { Conversation, Diff } from "./conversation.js";
import * as keys from "./keys.js";
import { Blocks, Crumbs, Facts, Live, Page, Problem, Select, Sign, Table } from "./parts.js";
import { go, link, set } from "./route.js";
import { ago, count, duration, interval, number, oneLine, visible } from "./text.js";

/** Loads when its request changes, and shows what came with `view`. */
class Part extends Component {
  state = { data: null, problem: null };

  componentDidMount() {
    this.load();
  }

  componentDidUpdate() {
    if (this.wanted() !== this.asked) this.load();
  }

  wanted() {
    return JSON.stringify([this.props.request, this.props.version]);
  }

  async load() {
    const { request } = this.props;
    const asked = (this.asked = this.wanted());
    try {
      const data = await get(...request);
      if (this.asked === asked) this.setState({ data, problem: null });
    } catch (problem) {
      this.setState({ data: null, problem });
    }
  }

  render({ view }, { data, problem }) {
    return problem ? html`<${Problem} problem=${problem} />` : data ? view(data) : null;
  }
}

export class Curve extends Page {
  request = () => ["curve", { name: this.props.name, label: this.props.params.get("label") || "", metric: this.props.params.get("metric") || "" }];

  follows = () => [this.props.name];

  componentDidMount() {
    super.componentDidMount();
    this.release = keys.use({
      Escape: () => go(["runs"]),
      "[": () => this.shift(-1),
      "]": () => this.shift(1),
    });
    this.clock = setInterval(() => this.forceUpdate(), 10_000);
  }

  componentWillUnmount() {
    super.componentWillUnmount();
    this.release();
    clearInterval(this.clock);
  }

  get chosen() {
    return ["from", "to"].map((name) => this.props.params.get(name)).filter(Boolean).map(Number);
  }

  choose = (step) => {
    const { chosen } = this;
    if (chosen.includes(step)) set({ from: "", to: "" });
    else {
      const [from, to] = [...chosen.slice(-1), step].sort((x, y) => x - y);
      set({ from, to: to ?? "" });
    }
  };

  /** Move the later of the two steps that are compared. */
  shift(by) {
    const steps = this.state.data?.points.filter((p) => p.result).map((p) => p.step) || [];
    const [from = steps[0], to = steps[steps.length - 1]] = this.chosen;
    const next = steps[steps.indexOf(to) + by];
    if (this.chosen.length < 2) set({ from, to });
    else if (next !== undefined && next > from) set({ from, to: next });
  }

  view(curve) {
    const { params, name } = this.props;
    const label = params.get("label") || "";
    const { chosen } = this;
    const results = curve.points.filter((p) => p.result);
    const last = curve.points[curve.points.length - 1];
    return html`
      <${Crumbs} path=${[["runs", link(["runs"])]]} />
      <h1>${visible(curve.name)} ${curve.live ? html`<${Live} state=${this.state.live || "live"} />` : null}</h1>
      ${curve.labels.length > 1 ? html`<nav class="tabs" aria-label="evals">${curve.labels.map((other) => html`<a aria-current=${other === curve.label ? "true" : undefined} href=${link(["curve", name], { label: other })}>${visible(other)}</a>`)}</nav>` : null}
      ${results.length
        ? html`<p class="verdict ${curve.verdict?.kind || ""}" role="status" aria-live="polite">${visible(curve.verdict?.sentence || (curve.no_verdict ? `no verdict: ${curve.no_verdict}` : "no verdict yet"))}</p>`
        : html`<p class="verdict" role="status">No point yet.${curve.every ? ` An eval is due every ${curve.every} steps.` : ""}</p>`}
      ${curve.points.length
        ? html`<${Chart} points=${curve.points} chosen=${chosen} windows=${curve.metric === "reward" ? curve.verdict?.windows || [] : []} best=${curve.metric === "reward" ? curve.best?.step ?? null : null} onPoint=${this.choose} metric=${curve.metric} every=${curve.every} />`
        : null}
      <p class="legend soft"><span class="key mean"></span> mean ${curve.metric} with its 95% interval
        ${curve.verdict?.windows.length ? html`<span class="key window"></span> the two windows of the verdict` : null}
        ${curve.best && curve.metric === "reward" ? html`<span class="key best"></span> best step` : null}
        ${results.some((p) => p.mean_scored !== null) ? html`<span class="key second"></span> without errored items, which the mean counts as 0` : null}
        ${results.some((p) => p.fewer) ? html`<span class="key hollow"></span> fewer items than the others` : null}
        ${curve.points.some((p) => !p.result) ? html`<span class="key tick"></span> skipped or in flight` : null}</p>
      ${curve.metrics.length ? html`<p><${Select} label="metric" value=${curve.metric} options=${["reward", "pass_rate", ...curve.metrics]} onChange=${(metric) => set({ metric: metric === "reward" ? "" : metric })} /></p>` : null}
      <div class="columns">
        <section>
          ${curve.best ? html`<p>${visible(curve.best.sentence)}</p>` : null}
          ${chosen.length === 2
            ? html`<${Part} key="flips" request=${["curve-flips", { name, label, from_step: chosen[0], to_step: chosen[1] }]} view=${(flips) => this.flips(flips, chosen, results)} />`
            : html`<p class="soft">Choose two points to see which samples flipped between them${chosen.length ? `; step ${chosen[0]} is chosen` : ""}.</p>`}
          ${results.length > 1 ? html`<${Part} key="strip" request=${["strip", { name, label }]} version=${results.length} view=${(strip) => this.strip(strip)} />` : null}
        </section>
        <aside>
          <h2>About this curve</h2>
          <${Facts} rows=${[
            ["status", visible(curve.status.line)],
            ["last point", last && html`step ${last.step}, <time datetime=${last.time}>${ago(last.time)}</time>${curve.every ? `; due every ${curve.every} steps` : ""}`],
            ["model", curve.model && visible(curve.model)],
            ["evals took", duration(curve.seconds)],
            ["superseded", curve.superseded > 0 && `${count(curve.superseded)} results left out: a later attempt went back to before them`],
            ["last skip", curve.last_skip && visible(curve.last_skip)],
            ["saved to", html`<code>${visible(curve.path)}</code>`],
          ]} />
        </aside>
      </div>
      <details><summary>All points</summary>
        <${Table} label="points" rows=${[...curve.points].reverse()} columns=${[
          { title: "step", numeric: true, cell: (p) => (p.saved && !isExport() ? html`<a href=${link(["run", `${name}@${curve.labels.length > 1 ? `${curve.label}:` : ""}${p.step}`])}>${p.step}</a>` : p.step) },
          { title: curve.metric, numeric: true, cell: (p) => number(p.mean) },
          { title: "95% interval", cell: (p) => interval(p.low, p.high) },
          { title: "n", numeric: true, cell: (p) => p.n },
          { title: "errors", numeric: true, cell: (p) => count(p.errors) },
          { title: "took", numeric: true, cell: (p) => duration(p.seconds) },
          { title: "verdict", cell: (p) => p.kind || "–" },
          { title: "note", wrap: true, cell: (p) => visible(p.note) },
        ]} />
      </details>`;
  }

  flips(flips, [from, to], results) {
    const { name, params } = this.props;
    const saved = results.filter((p) => p.saved).map((p) => p.step);
    const side = (title, sign, { total, rows }) => html`<section><h3><${Sign} outcome=${sign} /> ${title} <span class="soft">${count(total)}</span></h3>
      <ul class="flips">${rows.map((row) => html`<li><a href=${link(["curve", name, "sample"], { id: row.id, label: params.get("label") || "", step: to })}>${oneLine(row.id, 60)}</a> <span class="soft">${number(row.before)} → ${number(row.after)}</span></li>`)}</ul>
      ${total > rows.length ? html`<p class="soft">and ${count(total - rows.length)} more</p>` : null}</section>`;
    return html`<h2>From step ${from} to step ${to}</h2>
      <${Blocks} blocks=${flips.notes} />
      <p class="soft">These two were picked by looking. What the curve allows one to say is the verdict above.${
        saved.includes(from) && saved.includes(to) && !isExport() ? html` <a href=${link(["compare", `${name}@${from}`, `${name}@${to}`])}>Compare the two evals</a>` : ""
      }</p>
      <div class="pair">${side("lost", "failed", flips.lost)}${side("gained", "passed", flips.gained)}</div>`;
  }

  /** Each sample at each step; those that flipped last come first. */
  strip(strip) {
    if (!strip.rows.some((row) => /[pfe]/.test(row.cells))) return null; // returns neither pass nor fail
    const words = { p: "passed", f: "failed", e: "errored", "-": "missing" };
    const open = (id, step) => link(["curve", this.props.name, "sample"], { id, label: this.props.params.get("label") || "", step });
    return html`<h2>Samples by step</h2>
      <p class="soft">One line per sample, steps ${strip.steps[0]} to ${strip.steps[strip.steps.length - 1]} from left to right, those that flipped last first. <span class="cells"><i class="passed"></i></span> passed <span class="cells"><i class="failed"></i></span> failed <span class="cells"><i class="errored"></i></span> errored</p>
      <div class="heat" tabindex="0" role="region" aria-label="samples by step">${strip.rows.map(
        (row) => html`<a href=${open(row.id, "")} title=${row.id} aria-label="${row.id}: ${[...row.cells].filter((c) => c === "p").length} of ${row.cells.length} steps passed">
          <span class="id">${oneLine(row.id, 24)}</span><span class="cells" aria-hidden="true">${[...row.cells].map((cell) => html`<i class=${words[cell]}></i>`)}</span></a>`,
      )}</div>
      ${strip.total > strip.rows.length ? html`<p class="soft">the first ${strip.rows.length} of ${count(strip.total)}</p>` : null}`;
  }
}

/** One sample at every step of a training run. */
export class History extends Page {
  rendered = false;
  diff = true;
  request = () => ["history", { name: this.props.name, label: this.props.params.get("label") || "", id: this.props.params.get("id") }];

  componentDidMount() {
    super.componentDidMount();
    this.release = keys.use({
      "[": () => this.move(-1),
      "]": () => this.move(1),
      m: () => this.flip("rendered"),
      d: () => this.flip("diff"),
      Escape: () => go(["curve", this.props.name], { label: this.props.params.get("label") || "" }),
    });
  }

  componentWillUnmount() {
    super.componentWillUnmount();
    this.release();
  }

  flip(field) {
    this[field] = !this[field];
    this.forceUpdate();
  }

  get only() {
    return this.props.params.get("only") === "changed";
  }

  get steps() {
    const { steps } = this.state.data;
    return this.only ? steps.filter((s) => s.changed) : steps;
  }

  move(by) {
    const { steps } = this;
    const next = steps[steps.indexOf(this.current(steps)) + by];
    if (next) set({ step: next.step });
  }

  current(steps) {
    const step = this.props.params.get("step");
    return steps.find((s) => String(s.step) === step) || steps[steps.length - 1];
  }

  view(data) {
    const { steps } = this;
    const current = this.current(steps);
    const before = steps[steps.indexOf(current) - 1];
    return html`
      <${Crumbs} path=${[["runs", link(["runs"])], [data.name, link(["curve", data.name], { label: this.props.params.get("label") || "" })]]} />
      <h1>${visible(data.id)} <span class="soft">across steps</span></h1>
      ${data.question ? html`<p>${visible(data.question)}</p>` : null}
      ${data.target !== null ? html`<p>target: <code>${visible(data.target)}</code></p>` : null}
      <nav class="strip" aria-label="steps">${steps.map(
        (s) => html`<button class=${s.outcome} aria-pressed=${s === current} title="step ${s.step}: reward ${number(s.reward)}" onClick=${() => set({ step: s.step })}><${Sign} outcome=${s.outcome} /><span>${s.step}</span></button>`,
      )}</nav>
      <div class="toolbar">
        <button aria-pressed=${this.only} onClick=${() => set({ only: this.only ? "" : "changed" })}>only where the answer changed</button>
        <button aria-pressed=${this.diff} onClick=${() => this.flip("diff")}>difference</button>
        <button aria-pressed=${this.rendered} onClick=${() => this.flip("rendered")}>Markdown</button>
      </div>
      <h2>Step ${current.step}: <${Sign} outcome=${current.outcome} /> reward ${number(current.reward)}${current.attempts > 1 ? html` <span class="soft">mean of ${current.attempts} attempts</span>` : ""}</h2>
      ${current.error ? html`<p class="errored">errored: ${visible(current.error)}</p>` : null}
      ${this.diff && before && current.answer !== undefined && before.answer !== undefined
        ? html`<p class="soft">answer, from step ${before.step} to step ${current.step}${current.answer === before.answer ? ": the same" : ""}</p>${current.answer === before.answer ? null : html`<${Diff} before=${before.answer} after=${current.answer} />`}`
        : null}
      ${current.run && !isExport()
        ? html`<${Part} request=${["sample", { name: current.run, id: data.id }]} view=${(sample) => html`<${Conversation} sample=${sample} rendered=${this.rendered} />`} />`
        : current.answer !== undefined
          ? html`<pre>${visible(current.answer)}</pre>`
          : html`<p class="soft">The conversation of this step was not saved.</p>`}`;
  }
}
