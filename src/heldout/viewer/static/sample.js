// One item: the conversation, and beside it what the grader extracted and what it is worth.

import { html } from "./vendor/preact-htm.js";
import { get, isExport } from "./api.js";
import { Strip } from "./charts.js";
import { Conversation, Diff } from "./conversation.js";
import * as keys from "./keys.js";
import { Crumbs, Facts, Page, Sign } from "./parts.js";
import { go, link, set } from "./route.js";
import { count, duration, number, visible } from "./text.js";

/** What a grader made of an answer. */
export const Grades = ({ sample }) => html`<h2>Score</h2>
  <p class="headline"><span class="big">${number(sample.reward)}</span> <span class="soft">reward</span> <${Sign} outcome=${sample.outcome} /> ${sample.outcome}</p>
  ${sample.metrics.map(
    (metric) => html`<div class="metric">
      <div><b>${visible(metric.name)}</b> ${number(metric.value)}${metric.weight ? html` <span class="soft">× ${metric.weight}</span>` : html` <span class="soft">tracked only</span>`}</div>
      ${metric.has_extracted ? html`<div>extracted: ${metric.extracted === null ? html`<em>nothing</em>` : html`<code>${visible(metric.extracted)}</code>`}</div>` : null}
      ${metric.note ? html`<div class="soft">${visible(metric.note)}</div>` : null}
      ${metric.reply ? html`<details><summary>the judge's reply</summary><pre class="said" tabindex="0">${visible(metric.reply)}</pre></details>` : null}
    </div>`,
  )}
  <${Facts} rows=${[
    ["target", sample.target !== null && html`<code>${visible(sample.target)}</code>`],
    ["answer", sample.turns.length > 0 && (sample.answer ? html`<span class="clamp">${visible(sample.answer)}</span>` : html`<em>none</em>`)],
    ["final state", sample.outcome_state && html`<code>${visible(sample.outcome_state)}</code>`],
  ]} />`;

const ended = ({ ended_by, limit, truncated, finish_reason }) =>
  [limit ? `limit: ${limit}` : ended_by, truncated ? "last turn truncated" : null, finish_reason ? `finish reason ${finish_reason}` : null].filter(Boolean).join(", ");

export class Sample extends Page {
  rendered = false;
  folded = true;
  record = null;

  request = () => {
    const { name, params } = this.props;
    return ["sample", { name, id: params.get("id"), repeat: params.get("repeat") || "" }];
  };

  componentDidMount() {
    super.componentDidMount();
    this.release = keys.use({
      m: () => this.flip("rendered"),
      e: () => this.flip("folded"),
      s: () => this.json(),
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

  componentDidUpdate() {
    if (JSON.stringify(this.request()) !== this.asked) this.record = null;
    super.componentDidUpdate();
  }

  flip(field) {
    this[field] = !this[field];
    this.forceUpdate();
  }

  async json() {
    if (this.record) this.record = null;
    else {
      const { name, id, repeat } = { ...this.state.data };
      this.record = await get("record", { name, id, repeat }).catch((problem) => ({ text: problem.message }));
    }
    this.forceUpdate();
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
    const at = Number(this.props.params.get("at") || 0) + by;
    if (at < 0) return;
    const { rows } = await get("rows", { name: this.props.name, ...this.list, offset: at, limit: 1 }).catch(() => ({ rows: [] }));
    if (rows[0]) go(["run", this.props.name, "sample"], { id: rows[0].id, repeat: rows[0].repeat || "", ...this.list, at });
  }

  repeat(by) {
    const { repeats, repeat } = this.state.data;
    const next = repeats[repeats.findIndex((r) => r.repeat === repeat) + by];
    if (next) set({ repeat: next.repeat || "" });
  }

  view(sample) {
    const { name, params } = this.props;
    const toggle = (label, on, act) => html`<button aria-pressed=${on} onClick=${act}>${label}</button>`;
    return html`
      <${Crumbs} path=${[["runs", link(["runs"])], [name, link(["run", name])], ["samples", link(["run", name, "samples"], { ...this.list, at: params.get("at") || "" })]]} />
      <h1><${Sign} outcome=${sample.outcome} /> ${visible(sample.id)}</h1>
      ${sample.repeats.length > 1
        ? html`<nav class="tabs" aria-label="attempts">${sample.repeats.map(
            (r) => html`<a aria-current=${r.repeat === sample.repeat ? "true" : undefined} href=${link(["run", name, "sample"], { id: sample.id, repeat: r.repeat || "", ...this.list, at: params.get("at") || "" })}><${Sign} outcome=${r.outcome} /> attempt ${r.repeat + 1}</a>`,
          )}</nav>`
        : null}
      ${sample.error !== null ? html`<div class="problem"><p><b>errored:</b> ${visible(sample.error)}</p><p class="soft">It has no score. What was said until then is below.</p></div>` : null}
      <div class="columns">
        <section>
          ${isExport() && !sample.turns.length
            ? null
            : html`<div class="toolbar">
                ${toggle("Markdown", this.rendered, () => this.flip("rendered"))}
                ${toggle("reasoning", !this.folded, () => this.flip("folded"))}
                ${isExport() ? null : toggle("JSON", this.record !== null, () => this.json())}
                <span class="space"></span>
                ${isExport() ? null : html`<button onClick=${() => this.step(-1)} title="p">← previous</button><button onClick=${() => this.step(1)} title="n">next →</button>`}
              </div>`}
          ${this.record
            ? html`<pre tabindex="0">${visible(this.record.text)}</pre>`
            : sample.turns.length
              ? html`<${Conversation} sample=${sample} rendered=${this.rendered} folded=${this.folded} />`
              : html`<h2>Episode</h2><p class="soft">There is no conversation.</p><${Facts} rows=${Object.entries(sample.input).map(([key, value]) => [visible(key), visible(value ?? "–")])} />`}
        </section>
        <aside>
          <${Grades} sample=${sample} />
          <h2>How it went</h2>
          <${Facts} rows=${[
            ["ended by", visible(ended(sample.stop))],
            ["tokens", sample.tokens && `${count(sample.tokens.prompt)} in, ${count(sample.tokens.completion)} out`],
            ["token trace", sample.trace && html`<${Strip} parts=${sample.trace} />`],
            ["took", sample.seconds !== null && duration(sample.seconds)],
            ["requests", sample.requests],
            ...Object.entries(sample.metadata).map(([key, value]) => [visible(key), visible(value ?? "–")]),
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
    this.release = keys.use({ Escape: () => go(["compare", this.props.a, this.props.b]) });
  }

  componentWillUnmount() {
    super.componentWillUnmount();
    this.release();
  }

  view({ a, b }) {
    const sides = [["A", this.props.a, a], ["B", this.props.b, b]];
    let same = 0;
    while (same < a.turns.length && JSON.stringify(a.turns[same]) === JSON.stringify(b.turns[same])) same++;
    return html`
      <${Crumbs} path=${[["runs", link(["runs"])], [`${this.props.a} and ${this.props.b}`, link(["compare", this.props.a, this.props.b])]]} />
      <h1>${visible(a.id)}</h1>
      <p>${visible(a.question || "")}</p>
      <p>target: <code>${visible(a.target ?? "–")}</code></p>
      <h2>Answer, from A to B</h2>
      <${Diff} before=${a.answer} after=${b.answer} />
      ${same ? html`<details><summary>${same === 1 ? "the first turn is" : `the first ${same} turns are`} the same in both</summary><${Conversation} sample=${{ ...a, turns: a.turns.slice(0, same) }} /></details>` : null}
      <div class="pair">
        ${sides.map(
          ([letter, name, side]) => html`<section><h2>${letter}: <a href=${link(["run", name, "sample"], { id: side.id })}>${visible(name)}</a> <${Sign} outcome=${side.outcome} /> ${number(side.reward)}</h2>
            ${side.repeats.length > 1 ? html`<p class="soft">attempt 1 of ${side.repeats.length}</p>` : null}
            ${side.error !== null ? html`<p class="errored">errored: ${visible(side.error)}</p>` : null}
            <${Conversation} sample=${side} without=${same} /></section>`,
        )}
      </div>`;
  }
}
