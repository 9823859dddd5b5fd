// A conversation: turns as they were said, reasoning folded, tool calls beside their results.

import { html } from "./vendor/preact-htm.js";
import { Markdown } from "./markdown.js";
import { count, visible, wordDiff } from "./text.js";

/** A text with a part of it marked: what the grader extracted. */
const Marked = ({ text, mark }) =>
  mark ? html`${visible(text.slice(0, mark[0]))}<mark title="what the grader extracted">${visible(text.slice(mark[0], mark[1]))}</mark>${visible(text.slice(mark[1]))}` : visible(text);

/** Words taken away and words added; a sign stands beside the colours. */
export const Diff = ({ before, after }) => html`<pre class="said diff">${wordDiff(visible(before || ""), visible(after || "")).map(([kind, text]) =>
  kind === "same" ? text : kind === "gone" ? html`<del>${text}</del>` : html`<ins>${text}</ins>`,
)}</pre>`;

const Text = ({ text, mark, rendered }) =>
  rendered && !mark ? html`<${Markdown} text=${text} />` : html`<pre class="said"><${Marked} text=${text} mark=${mark} /></pre>`;

const Call = ({ call }) => html`<div class="call">
  <div><span class="soft">tool call</span>${call.problem ? html` <span class="errored">${visible(call.problem)}</span>` : ""}</div>
  <${Text} text=${`${call.name}(${call.arguments})`} />
  ${call.result === null ? html`<p class="soft">no result</p>` : html`<div class="result"><span class="soft">result</span><${Text} text=${call.result} /></div>`}
</div>`;

/**
 * @param {{sample: any, without?: number, rendered?: boolean, folded?: boolean}} props
 */
export function Conversation({ sample, rendered = false, folded = true, without = 0 }) {
  if (!sample.turns.length) return html`<p class="soft">There is no conversation.</p>`;
  return html`<div class="conversation">${sample.turns.slice(without).map(
    (turn) => html`<article key=${turn.place} class="turn ${turn.role}">
      <header>${turn.role}</header>
      ${turn.reasoning
        ? html`<details class="reasoning" open=${!folded}><summary>reasoning, ${count(turn.reasoning.length)} characters</summary><${Text} text=${turn.reasoning} /></details>`
        : null}
      ${turn.text ? html`<${Text} text=${turn.text} mark=${turn.mark} rendered=${rendered} />` : null}
      ${turn.calls.map((call) => html`<${Call} call=${call} />`)}
    </article>`,
  )}</div>`;
}
