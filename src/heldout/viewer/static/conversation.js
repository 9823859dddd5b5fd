// A conversation: turns as they were said, reasoning folded, tool calls beside their results.

import { Rendered } from "./markdown.js";
import { count, visible, wordDiff } from "./text.js";
import { html } from "./vendor/preact-htm.js";

/** A text with a part of it marked: what the grader extracted. */
function Marked({ text, mark }) {
  if (!mark) return visible(text);
  const [start, end] = mark;
  return html`${visible(text.slice(0, start))}<mark title="what the grader extracted">${visible(
    text.slice(start, end),
  )}</mark>${visible(text.slice(end))}`;
}

/** Words taken away and words added; a sign stands beside the colours. */
export function Diff({ before, after }) {
  const parts = wordDiff(visible(before || ""), visible(after || ""));
  const tags = { gone: "del", new: "ins" };
  return html`<pre class="said diff">${parts.map(([kind, text]) =>
    kind === "same" ? text : html`<${tags[kind]}>${text}<//>`,
  )}</pre>`;
}

function Text({ text, mark = null, rendered = false }) {
  if (rendered) return html`<${Rendered} text=${text} extracted=${mark && text.slice(...mark)} />`;
  return html`<pre class="said"><${Marked} text=${text} mark=${mark} /></pre>`;
}

function Call({ call }) {
  return html`<div class="call">
    <div><span class="soft">tool call</span>
      ${call.problem ? html` <span class="errored">${visible(call.problem)}</span>` : ""}</div>
    <${Text} text=${`${call.name}(${call.arguments})`} />
    ${
      call.result === null
        ? html`<p class="soft">no result</p>`
        : html`<div class="result"><span class="soft">result</span><${Text} text=${call.result} /></div>`
    }
  </div>`;
}

function Turn({ turn, rendered, folded }) {
  return html`<article class="turn ${turn.role}">
    <header>${turn.role}</header>
    ${
      turn.reasoning
        ? html`<details class="reasoning" open=${!folded}>
            <summary>reasoning, ${count(turn.reasoning.length)} characters</summary>
            <${Text} text=${turn.reasoning} /></details>`
        : null
    }
    ${turn.images.map((url, i) => html`<img class="said" src=${url} alt="image ${i + 1} of the message" />`)}
    ${turn.text ? html`<${Text} text=${turn.text} mark=${turn.mark} rendered=${rendered} />` : null}
    ${turn.calls.map((call) => html`<${Call} call=${call} />`)}
  </article>`;
}

/**
 * @param {{sample: any, without?: number, rendered?: boolean, folded?: boolean}} props
 */
export function Conversation({ sample, rendered = false, folded = true, without = 0 }) {
  if (!sample.turns.length) return html`<p class="soft">There is no conversation.</p>`;
  return html`<div class="conversation">${sample.turns
    .slice(without)
    .map(
      (turn) => html`<${Turn} key=${turn.place} turn=${turn} rendered=${rendered} folded=${folded} />`,
    )}</div>`;
}
