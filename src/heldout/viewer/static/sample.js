// One item: the conversation, and beside it what the grader extracted and what it is worth.

import { html } from "./vendor/preact-htm.js";
import { get } from "./api.js";
import { Conversation, Diff } from "./conversation.js";
import * as keys from "./keys.js";
import { Facts, Page, Sign } from "./parts.js";
import { go, link } from "./route.js";
import { count, duration, number, visible } from "./text.js";

export class Sample extends Page {
  rendered = false;
  folded = true;
  raw = false;
  from = 0;

  request = () => {
    const { name, params } = this.props;
    return ["sample", { name, id: params.get("id"), repeat: params.get("repeat") || "" }];
  };

  componentDidMount() {
    super.componentDidMount();
    const flip = (field) => () => {
      this[field] = !this[field];
      this.forceUpdate();
    };
    this.release = keys.use({
      m: flip("rendered"),
      e: flip("folded"),
      s: flip("raw"),
      n: () => this.step(1),
      p: () => this.step(-1),
      "[": () => this.repeat(-1),
      "]": () => this.repeat(1),
      Escape: () => this.back(),
    });
  }

  componentWillUnmount() {
    super.componentWillUnmount();
    this.release();
  }

  get list() {
    const { params } = this.props;
    return { where: params.get("where") || "", sort: params.get("sort") || "" };
  }

  back() {
    go(["run", this.props.name, "samples"], { ...this.list, at: this.props.params.get("at") || "" });
  }

  /** To the next row of the list that this one was opened from. */
  async step(by) {
    const at = Number(this.props.params.get("at") || -1);
    if (at < 0 || at + by < 0) return;
    const { rows } = await get("rows", { name: this.props.name, ...this.list, offset: at + by, limit: 1 }).catch(() => ({ rows: [] }));
    if (rows[0]) go(["run", this.props.name, "sample"], { id: rows[0].id, repeat: rows[0].repeat || "", ...this.list, at: at + by });
  }

  repeat(by) {
    const repeats = this.state.data?.repeats || [];
    const at = repeats.findIndex((r) => r.repeat === this.state.data.repeat) + by;
    if (repeats[at]) go(["run", this.props.name, "sample"], { id: this.state.data.id, repeat: repeats[at].repeat || "", ...this.list, at: this.props.params.get("at") || "" });
  }

  view(sample) {
    const { name } = this.props;
    return html`
      <h1><a href=${link(["run", name, "samples"], { ...this.list, at: this.props.params.get("at") || "" })}>${visible(name)}</a> <span class="soft">${visible(sample.id)}</span> <${Sign} outcome=${sample.outcome} /></h1>
      ${sample.repeats.length > 1
        ? html`<nav class="tabs" aria-label="attempts">${sample.repeats.map(
            (r) => html`<a aria-current=${r.repeat === sample.repeat ? "true" : undefined} href=${link(["run", name, "sample"], { id: sample.id, repeat: r.repeat || "", ...this.list })}><${Sign} outcome=${r.outcome} /> ${r.repeat + 1}</a>`,
          )}</nav>`
        : null}
      ${sample.error ? html`<div class="problem" role="alert"><p>errored: ${visible(sample.error)}</p><p class="soft">It has no score. What was said is below.</p></div>` : null}
      <div class="columns">
        <section>
          <div class="toolbar">
            <button aria-pressed=${this.rendered} onClick=${() => { this.rendered = !this.rendered; this.forceUpdate(); }}>Markdown</button>
            <button aria-pressed=${!this.folded} onClick=${() => { this.folded = !this.folded; this.forceUpdate(); }}>reasoning</button>
            <button aria-pressed=${this.raw} onClick=${() => { this.raw = !this.raw; this.forceUpdate(); }}>JSON</button>
          </div>
          ${this.raw ? html`<pre class="said">${visible(JSON.stringify(sample.record, null, 2))}</pre>` : html`<${Conversation} messages=${sample.messages} marks=${sample.marks} rendered=${this.rendered} folded=${this.folded} from=${this.from} onFrom=${(from) => { this.from = from; this.forceUpdate(); }} />`}
        </section>
        <aside>
          <h2>What the grader read</h2>
          ${sample.metrics.map(
            (metric) => html`<div class="metric">
              <div><b>${visible(metric.name)}</b> ${number(metric.value)}${metric.weight ? html` <span class="soft">× ${number(metric.weight)}</span>` : html` <span class="soft">tracked only</span>`}</div>
              ${metric.extracted === undefined ? null : html`<div>extracted: ${metric.extracted === null ? html`<em>nothing</em>` : html`<code>${visible(metric.extracted)}</code>`}</div>`}
              ${metric.note ? html`<div class="soft">${visible(metric.note)}</div>` : null}
              ${metric.reply ? html`<details><summary>the judge's reply</summary><pre class="said">${visible(metric.reply)}</pre></details>` : null}
            </div>`,
          )}
          <${Facts} rows=${[
            ["reward", number(sample.reward)],
            ["target", sample.target !== null && sample.target !== undefined ? html`<code>${visible(sample.target)}</code>` : null],
            ["answer", sample.answer ? html`<span class="clamp">${visible(sample.answer)}</span>` : html`<em>none</em>`],
            ["ended by", visible(sample.ended)],
            ["tokens", sample.tokens && `${count(sample.tokens.prompt)} in, ${count(sample.tokens.completion)} out`],
            ["took", duration(sample.seconds)],
            ["requests", sample.requests],
            ...Object.entries(sample.metadata).map(([key, value]) => [visible(key), visible(typeof value === "string" ? value : JSON.stringify(value))]),
          ]} />
        </aside>
      </div>`;
  }
}

/** Two runs' answers to one sample, side by side. */
export class Pair extends Page {
  request = () => ["pair", { a: this.props.a, b: this.props.b, id: this.props.params.get("id") }];

  componentDidMount() {
    super.componentDidMount();
    this.release = keys.use({ Escape: () => history.back() });
  }

  componentWillUnmount() {
    super.componentWillUnmount();
    this.release();
  }

  view({ a, b }) {
    return html`
      <h1><a href=${link(["compare", this.props.a, this.props.b])}>${visible(this.props.a)} and ${visible(this.props.b)}</a> <span class="soft">${visible(a.id)}</span></h1>
      <p>target: <code>${visible(a.target ?? "–")}</code></p>
      <div class="pair">
        ${[["A", this.props.a, a], ["B", this.props.b, b]].map(
          ([letter, name, side]) => html`<section><h2>${letter}: ${visible(name)} <${Sign} outcome=${side.outcome} /> ${number(side.reward)}</h2>
            ${side.error ? html`<p class="errored">${visible(side.error)}</p>` : null}
            <${Conversation} messages=${side.messages} marks=${side.marks} /></section>`,
        )}
      </div>
      <h2>Answers, from A to B</h2>
      <${Diff} before=${a.answer} after=${b.answer} />`;
  }
}
