// A conversation: turns as they were said, reasoning folded, tool calls beside their results.

import { Component, html } from "./vendor/preact-htm.js";
import { get, isExport } from "./api.js";
import { Markdown } from "./markdown.js";
import { count, visible, wordDiff } from "./text.js";

/** A text with a part of it marked: what the grader extracted. */
const Marked = ({ text, mark }) =>
  mark ? html`${visible(text.slice(0, mark[0]))}<mark title="what the grader extracted">${visible(text.slice(mark[0], mark[1]))}</mark>${visible(text.slice(mark[1]))}` : visible(text);

/** Words taken away and words added; a sign stands beside the colours. */
export const Diff = ({ before, after }) => html`<pre class="said diff">${wordDiff(visible(before || ""), visible(after || "")).map(([kind, text]) =>
  kind === "same" ? text : kind === "gone" ? html`<del>${text}</del>` : html`<ins>${text}</ins>`,
)}</pre>`;

/** A text of which the server sent the beginning. */
class Text extends Component {
  state = { more: "", left: null };

  load = async () => {
    const { text, more } = this.props;
    const answer = await get("text", { ...more, offset: text.length + this.state.more.length });
    this.setState({ more: this.state.more + answer.text, left: answer.left });
  };

  render() {
    const { text, left, mark, rendered, more } = this.props;
    const whole = text + this.state.more;
    const missing = this.state.left ?? left ?? 0;
    return html`${rendered && !mark ? html`<${Markdown} text=${whole} />` : html`<pre class="said"><${Marked} text=${whole} mark=${mark} /></pre>`}
      ${missing ? html`<p class="soft">${count(missing)} more characters ${more && !isExport() ? html`<button onClick=${this.load}>show more</button>` : null}</p>` : null}`;
  }
}

function Call({ call, more }) {
  return html`<div class="call">
    <div><span class="soft">tool call</span>${call.problem ? html` <span class="errored">${visible(call.problem)}</span>` : ""}</div>
    <${Text} text=${`${call.name}(${call.arguments})`} left=${call.arguments_left} />
    ${call.result === null ? html`<p class="soft">no result</p>` : html`<div class="result"><span class="soft">result</span><${Text} text=${call.result} left=${call.result_left} more=${more && { ...more, part: `${call.place}` }} /></div>`}
  </div>`;
}

/**
 * @param {{sample: any, without?: number, rendered?: boolean, folded?: boolean, onFirst?: (first: number) => void}} props
 */
export function Conversation({ sample, rendered = false, folded = true, without = 0, onFirst }) {
  const { turns_total: total, turns_first: first } = sample;
  const turns = sample.turns.slice(without);
  const source = { name: sample.name, id: sample.id, repeat: sample.repeat };
  const pager =
    sample.turns.length < total && onFirst
      ? html`<p class="soft">turns ${count(first + 1)} to ${count(first + turns.length)} of ${count(total)}
          <button disabled=${first === 0} onClick=${() => onFirst(Math.max(0, first - turns.length))}>earlier</button>
          <button disabled=${first + turns.length >= total} onClick=${() => onFirst(first + turns.length)}>later</button></p>`
      : null;
  if (!total) return html`<p class="soft">There is no conversation.</p>`;
  return html`<div class="conversation">${pager}${turns.map(
    (turn) => html`<article key=${turn.place} class="turn ${turn.role}">
      <header>${turn.role}</header>
      ${turn.reasoning
        ? html`<details class="reasoning" open=${!folded}><summary>reasoning, ${count(turn.reasoning.length + (turn.reasoning_left || 0))} characters</summary><${Text} text=${turn.reasoning} left=${turn.reasoning_left} more=${{ ...source, part: `${turn.place}.reasoning` }} /></details>`
        : null}
      ${turn.text ? html`<${Text} text=${turn.text} left=${turn.text_left} mark=${turn.mark} rendered=${rendered} more=${{ ...source, part: `${turn.place}` }} />` : null}
      ${turn.calls.map((call) => html`<${Call} call=${call} more=${source} />`)}
    </article>`,
  )}${pager}</div>`;
}
