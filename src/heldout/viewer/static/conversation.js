// A conversation: turns as they were said, reasoning folded, tool calls beside their results.

import { count, duration, visible, wordDiff } from "./text.js";
import { Component, html } from "./vendor/preact-htm.js";

/** `markdown.js`, once it is asked for; its path is no literal, so that the bundle leaves it out. */
let markdown = null;
const MODULE = "./markdown.js";

/** An exported file has it as a script of its own; it is waited for all the same, by every text. */
async function loadMarkdown() {
  const loaded = await (globalThis.heldoutMarkdown ?? import(MODULE));
  loaded.setElements(html);
  markdown = loaded;
}

/** Markdown; the text as it is until what reads it is there. */
class Rendered extends Component {
  componentDidMount() {
    const settle = (problem) => this.setState({ problem });
    if (!markdown) loadMarkdown().then(() => settle(null), settle);
  }

  render({ text, extracted }, { problem }) {
    if (markdown) return markdown.Markdown({ text, extracted });
    return html`${problem ? html`<p class="soft">Markdown could not be loaded.</p>` : null}
      <pre class="said">${visible(text)}</pre>`;
  }
}

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
        : html`<div class="result ${call.failed ? "errored" : ""}">
            <span class="soft">${call.failed ? "result: the tool failed" : "result"}</span>
            <${Text} text=${call.result} /></div>`
    }
  </div>`;
}

/** What a turn says, and its calls, as they were written. */
function copyTurn({ reasoning, text, calls }) {
  const called = calls.flatMap((call) => [`${call.name}(${call.arguments})`, call.result]);
  navigator.clipboard?.writeText([reasoning, text, ...called].filter(Boolean).join("\n\n"));
}

/** What a turn took, as far as it was measured. */
function cost({ tokens, seconds = null, reply_seconds = null }) {
  const parts = [
    tokens && `${count(tokens)} tokens`,
    seconds !== null && duration(seconds),
    reply_seconds !== null && `reply ${duration(reply_seconds)}`,
  ];
  return parts.filter(Boolean).join(" · ");
}

function Turn({ turn, rendered, folded }) {
  return html`<article class="turn ${turn.role}"><details open>
    <summary>${turn.role} <span class="soft">${cost(turn)}</span></summary>
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
  </details>
  <button class="plain copy" onClick=${() => copyTurn(turn)}>copy</button></article>`;
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
