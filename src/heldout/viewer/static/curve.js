// A training curve, live while it trains; flips between two steps; one sample across steps.

import { html } from "./vendor/preact-htm.js";
import { follow, get } from "./api.js";
import { Curve as Chart } from "./charts.js";
import { Conversation, Diff } from "./conversation.js";
import * as keys from "./keys.js";
import { Facts, Notes, Page, Problem, Sign, Table } from "./parts.js";
import { go, link, set } from "./route.js";
import { ago, count, duration, interval, number, oneLine, visible } from "./text.js";

export class Curve extends Page {
  live = "";
  flips = null;

  request = () => ["curve", { name: this.props.name, label: this.props.params.get("label") || "" }];

  componentDidMount() {
    super.componentDidMount();
    this.release = keys.use({ Escape: () => go(["runs"]) });
    this.end = follow(
      [this.props.name],
      (event) => (event === "point" || event === "status") && this.load(),
      (state) => {
        this.live = state;
        this.forceUpdate();
      },
    );
  }

  componentWillUnmount() {
    super.componentWillUnmount();
    this.release();
    this.end();
  }

  componentDidUpdate() {
    super.componentDidUpdate();
    const wanted = `${this.props.params.get("from") || ""} ${this.props.params.get("to") || ""}`;
    if (wanted !== this.wanted) this.loadFlips(wanted);
  }

  async loadFlips(wanted) {
    this.wanted = wanted;
    const [from, to] = wanted.split(" ");
    try {
      this.flips = from && to ? await get("curve-flips", { name: this.props.name, label: this.props.params.get("label") || "", from_step: from, to_step: to }) : null;
      this.flipsProblem = null;
    } catch (problem) {
      this.flips = null;
      this.flipsProblem = problem;
    }
    this.forceUpdate();
  }

  choose = (step) => {
    const chosen = ["from", "to"].map((name) => this.props.params.get(name)).filter(Boolean).map(Number);
    const [from, to] = [...chosen.slice(-1), step].sort((x, y) => x - y);
    set(chosen.includes(step) ? { from: "", to: "" } : { from, to: to ?? "" });
  };

  view(curve) {
    const { params } = this.props;
    const chosen = ["from", "to"].map((name) => params.get(name)).filter(Boolean).map(Number);
    if (!curve.points.length) return html`<h1>${visible(curve.name)}</h1><p role="status">No point yet. ${curve.waiting ? visible(curve.waiting) : ""}</p>`;
    return html`
      <h1>${visible(curve.name)} ${this.live ? html`<span class="live ${this.live}" role="status">${this.live}</span>` : null}</h1>
      <p class="verdict ${curve.verdict?.word || ""}" role="status" aria-live="polite">${visible(curve.verdict?.sentence || "")}</p>
      ${curve.stop ? html`<p class="errored">Asked to stop: ${visible(curve.stop)}</p>` : null}
      ${curve.labels.length > 1 ? html`<nav class="tabs" aria-label="evals">${curve.labels.map((label) => html`<a aria-current=${label === curve.label ? "true" : undefined} href=${link(["curve", curve.name], { label })}>${visible(label)}</a>`)}</nav>` : null}
      <${Chart} points=${curve.points} chosen=${chosen} windows=${curve.verdict?.windows || []} best=${curve.best?.step ?? null} onPoint=${this.choose} />
      <p class="soft">Choose two points to see what flipped between them. Hollow points have fewer items than the others.</p>
      <${Facts} rows=${[
        ["best so far", curve.best && visible(curve.best.sentence)],
        ["last point", curve.last && html`<span title=${curve.last}>${ago(curve.last)}</span>${curve.every ? `, due every ${curve.every} steps` : ""}`],
        ["evals took", curve.seconds && duration(curve.seconds)],
        ["left out", curve.superseded ? `${count(curve.superseded)} points of attempts that a later one superseded` : null],
      ]} />
      <${Notes} notes=${curve.notes} />
      ${this.flipView(chosen)}
      <details><summary>All points</summary>
        <${Table} rows=${[...curve.points].reverse()} columns=${[
          { title: "step", numeric: true, cell: (p) => p.step },
          { title: "mean", numeric: true, cell: (p) => number(p.mean) },
          { title: "95% interval", cell: (p) => interval(p.low, p.high) },
          { title: "n", numeric: true, cell: (p) => `${count(p.n)}${p.fewer ? ` of ${count(p.of)}` : ""}` },
          { title: "errors", numeric: true, cell: (p) => count(p.errors) },
          { title: "took", numeric: true, cell: (p) => duration(p.seconds) },
          { title: "", cell: (p) => (p.pending ? "in flight" : visible(p.skipped || p.partial || p.word || "")) },
        ]} />
      </details>`;
  }

  flipView(chosen) {
    if (this.flipsProblem) return html`<${Problem} problem=${this.flipsProblem} />`;
    const flips = this.flips;
    if (!flips || chosen.length < 2) return null;
    const side = (title, rows) => html`<section><h2>${title} <span class="soft">${count(rows.length)}</span></h2>
      <ul>${rows.slice(0, 200).map((row) => html`<li><a href=${link(["curve", this.props.name, "sample"], { id: row.id, label: this.props.params.get("label") || "", step: chosen[1] })}>${oneLine(row.id, 60)}</a> <span class="soft">${number(row.before)} → ${number(row.after)}</span></li>`)}</ul></section>`;
    return html`<h2>From step ${chosen[0]} to step ${chosen[1]}</h2>
      <p>${visible(flips.sentence)} <span class="soft">Picked by looking: the verdict above is what the curve allows one to say.</span></p>
      <div class="pair">${side("Lost", flips.lost)}${side("Gained", flips.gained)}</div>`;
  }
}

/** One sample at every step of a training run. */
export class History extends Page {
  rendered = false;

  request = () => ["history", { name: this.props.name, label: this.props.params.get("label") || "", id: this.props.params.get("id") }];

  componentDidMount() {
    super.componentDidMount();
    this.release = keys.use({
      "[": () => this.move(-1),
      "]": () => this.move(1),
      m: () => { this.rendered = !this.rendered; this.forceUpdate(); },
      d: () => { this.diff = !this.diff; this.forceUpdate(); },
      Escape: () => go(["curve", this.props.name]),
    });
  }

  componentWillUnmount() {
    super.componentWillUnmount();
    this.release();
  }

  move(by) {
    const steps = this.state.data.steps;
    const at = steps.findIndex((s) => s.step === this.at(steps).step) + by;
    if (steps[at]) set({ step: steps[at].step });
  }

  at(steps) {
    const step = Number(this.props.params.get("step"));
    return steps.find((s) => s.step === step) || steps[steps.length - 1];
  }

  view(data) {
    if (!data.steps.length) return html`<h1>${visible(data.id)}</h1><p>No eval of this curve has this sample.</p>`;
    const current = this.at(data.steps);
    const before = data.steps[data.steps.indexOf(current) - 1];
    return html`
      <h1><a href=${link(["curve", data.name])}>${visible(data.name)}</a> <span class="soft">${visible(data.id)}</span></h1>
      ${data.target !== null && data.target !== undefined ? html`<p>target: <code>${visible(data.target)}</code></p>` : null}
      <nav class="strip" aria-label="steps">${data.steps.map(
        (s) => html`<a class=${s.outcome} aria-current=${s === current ? "true" : undefined} title="step ${s.step}: ${number(s.reward)}" href=${link(["curve", data.name, "sample"], { id: data.id, label: this.props.params.get("label") || "", step: s.step })}><${Sign} outcome=${s.outcome} /><span>${s.step}</span></a>`,
      )}</nav>
      <p class="soft">step ${current.step}, reward ${number(current.reward)}${current.error ? html` · <span class="errored">${visible(current.error)}</span>` : ""}</p>
      ${this.diff && before ? html`<h2>Answer, from step ${before.step} to ${current.step}</h2><${Diff} before=${before.answer || ""} after=${current.answer || ""} />` : null}
      ${current.messages ? html`<${Conversation} messages=${current.messages} marks=${current.marks} rendered=${this.rendered} />` : html`<p class="soft">The conversation of this step is not stored.</p>`}`;
  }
}
