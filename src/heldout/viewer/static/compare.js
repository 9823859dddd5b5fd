// Two runs compared: the verdict, the difference with its interval, slices, and flips.

import { html } from "./vendor/preact-htm.js";
import { get, isExport } from "./api.js";
import { Forest } from "./charts.js";
import { Diff } from "./conversation.js";
import * as keys from "./keys.js";
import { Blocks, Crumbs, Mean, Page, Problem, Select } from "./parts.js";
import { go, link, set } from "./route.js";
import { count, interval, number, oneLine, visible } from "./text.js";

const WORDS = { b_better: "better", a_better: "worse", inconclusive: "inconclusive" };

/** How many runs one baseline was compared with since the page was opened. */
const compared = new Map();

export class Compare extends Page {
  rows = null;

  request = () => {
    const { a, b, params } = this.props;
    return ["compare", { a, b, by: params.get("by") || "", metric: params.get("metric") || "", allow: params.getAll("allow") }];
  };

  componentDidMount() {
    super.componentDidMount();
    const { a, b, params } = this.props;
    this.release = keys.use({ w: () => go(["compare", b, a], { allow: params.getAll("allow") }), Escape: () => go(["runs"]) });
    compared.set(a, (compared.get(a) || new Set()).add(b));
    this.loadRows();
  }

  componentWillUnmount() {
    super.componentWillUnmount();
    this.release();
  }

  componentDidUpdate() {
    super.componentDidUpdate();
    if (JSON.stringify(this.rowRequest()) !== this.rowsAsked) this.loadRows();
  }

  rowRequest() {
    const { a, b, params } = this.props;
    return { a, b, kind: params.get("kind") || "lost", metric: params.get("metric") || "", allow: params.getAll("allow") };
  }

  async loadRows(more = false) {
    const request = this.rowRequest();
    this.rowsAsked = JSON.stringify(request);
    try {
      const rows = await get("flips", more ? { ...request, offset: this.rows.rows.length } : request);
      this.rows = more ? { ...rows, rows: [...this.rows.rows, ...rows.rows] } : rows;
      this.rowsProblem = null;
    } catch (problem) {
      this.rowsProblem = problem;
    }
    this.forceUpdate();
  }

  refused(problem) {
    if (problem.status !== 409) return super.refused(problem);
    const allowed = this.props.params.getAll("allow");
    return html`<${Crumbs} path=${[["runs", link(["runs"])]]} />
      <h1>${visible(this.props.a)} and ${visible(this.props.b)}</h1>
      <p class="verdict">Not compared: a difference would not be the policy's alone.</p>
      <${Problem} problem=${problem} />
      <p>Compare them all the same, although these differ:</p>
      <p>${[...new Set([...allowed, ...problem.kinds])].map((kind) => html`<label class="allow"><input type="checkbox" checked=${allowed.includes(kind)} onChange=${(event) => set({ allow: event.target.checked ? [...allowed, kind] : allowed.filter((k) => k !== kind) })} /> ${kind}</label>`)}</p>`;
  }

  view(found) {
    if (this.state.problem?.status === 409) return null;
    const { a, b, params } = this.props;
    const by = params.get("by") || "";
    const slices = found.slices.map((row) => ({ label: row.value === null ? "–" : visible(row.value), value: row.difference, low: row.low, high: row.high }));
    const second = found.with_errors;
    const readings = second
      ? [{ label: `errored as ${found.errors_as ?? 0}`, value: second.difference, low: second.low, high: second.high }, { label: found.scored_samples, value: found.difference, low: found.low, high: found.high, strong: true }]
      : [{ label: "all samples", value: found.difference, low: found.low, high: found.high, strong: true }];
    return html`
      <${Crumbs} path=${[["runs", link(["runs"])]]} />
      <h1>${visible(b)} <span class="soft">compared with</span> ${visible(a)}</h1>
      <p class="verdict ${WORDS[found.verdict] || ""}" role="status">${visible(found.sentence)}</p>
      ${compared.get(a)?.size > 2 ? html`<p class="note yellow">${compared.get(a).size} runs were compared with ${visible(a)} since this page was opened: the best of many looks better than it is.</p>` : null}
      <div class="columns">
        <section>
          <div class="sides">
            ${[["A", a, found.a], ["B", b, found.b]].map(
              ([letter, name, side]) => html`<div><span class="letter">${letter}</span><div><a href=${link(["run", name])}>${visible(name)}</a> <span class="soft">${visible(side.model || "")}</span><br /><${Mean} of=${side} /></div></div>`,
            )}
          </div>
          <h2>B − A, ${found.metric}</h2>
          <${Forest} at=${0} rows=${[...slices, ...readings]} detectable=${found.minimum_detectable} sign=${true} />
          ${slices.length && second ? html`<p class="soft">Slices are drawn of what was scored; their numbers below have both readings.</p>` : null}
          <p class="toolbar">
            ${isExport() ? null : html`<${Select} label="metric" value=${params.get("metric") || "reward"} options=${["reward", "passed", ...found.metrics]} onChange=${(metric) => set({ metric: metric === "reward" ? "" : metric })} />`}
            ${found.keys.length ? html`<${Select} label="slices by" value=${by} none="no key" options=${found.keys} onChange=${(key) => set({ by: key })} />` : null}
          </p>
          <${Blocks} blocks=${found.blocks.slice(2)} />
          ${found.slice_blocks.length ? this.sliceTables(found.slice_blocks) : null}
          ${found.paired ? this.flips(found) : null}
        </section>
        <aside>
          ${found.paired
            ? html`<h2>Sample by sample</h2>
                <div class="tally" aria-hidden="true">${["wins", "ties", "losses"].map((kind) => html`<span class=${kind} style=${{ flexGrow: found[kind] || 0.001 }}></span>`)}</div>
                <p>B is better on <b>${count(found.wins)}</b>, worse on <b>${count(found.losses)}</b>, equal on ${count(found.ties)}.</p>`
            : null}
          <h2>What differs in the settings</h2>
          ${found.config.length
            ? html`<dl class="settings">${found.config.map((row) => html`<dt>${visible(row.key)}</dt><dd><span class="letter">A</span> ${oneLine(row.a ?? "–", 120)}<br /><span class="letter">B</span> ${oneLine(row.b ?? "–", 120)}</dd>`)}</dl>`
            : html`<p class="soft">Nothing.</p>`}
        </aside>
      </div>`;
  }

  /** Both readings' tables are folded, since they are drawn above; what one has to know of them is not. */
  sliceTables(blocks) {
    const end = blocks.findLastIndex((block) => block.columns) + 1;
    return html`<details><summary>Slices in numbers</summary><${Blocks} blocks=${blocks.slice(0, end)} /></details><${Blocks} blocks=${blocks.slice(end)} />`;
  }

  flips(found) {
    const { a, b } = this.props;
    const kind = this.props.params.get("kind") || "lost";
    const rows = this.rows;
    const [lost, gained] = found.pass_threshold === null ? ["the return fell", "the return rose"] : ["A passed, B failed", "A failed, B passed"];
    const tabs = [["lost", `lost ${count(found.lost)}`, lost], ["gained", `gained ${count(found.gained)}`, gained]];
    return html`<h2>Flips</h2>
      <div class="toolbar">${tabs.map(([name, label, title]) => html`<button title=${title} aria-pressed=${kind === name} onClick=${() => set({ kind: name })}>${label}</button>`)}
        <span class="soft">${tabs.find(([name]) => name === kind)?.[2]}</span></div>
      ${this.rowsProblem && this.rowsProblem.status !== 409 ? html`<${Problem} problem=${this.rowsProblem} retry=${() => this.loadRows()} />` : null}
      ${rows
        ? html`${rows.rows.map((row) => this.flip(row, a, b))}
            ${rows.total === 0 ? html`<p class="soft">None.</p>` : null}
            ${rows.rows.length < rows.total ? html`<p><button onClick=${() => this.loadRows(true)}>${count(rows.total - rows.rows.length)} more</button></p>` : null}`
        : null}`;
  }

  flip(row, a, b) {
    const side = (letter, reward, s) => html`<span>${letter} ${number(reward)}${s.extracted !== undefined ? html` <span class="soft">extracted</span> ${s.extracted === null ? html`<em>nothing</em>` : html`<code>${oneLine(s.extracted, 40)}</code>`}` : ""}</span>`;
    return html`<article class="flip">
      <header><a href=${link(["compare", a, b, "sample"], { id: row.id })}>${visible(row.id)}</a>
        <span class="soft">target <code>${oneLine(row.target ?? "–", 60)}</code></span>${side("A", row.a.reward, row.a)}${side("B", row.b.reward, row.b)}</header>
      <p class="soft">${oneLine(row.question, 300)}</p>
      ${row.attempts > 1 ? html`<p class="soft">means of ${row.attempts} attempts; the first is shown</p>` : null}
      ${row.a.error || row.b.error ? html`<p class="errored">${visible(row.a.error || row.b.error)}</p>` : html`<${Diff} before=${row.a.answer} after=${row.b.answer} />`}
    </article>`;
  }
}
