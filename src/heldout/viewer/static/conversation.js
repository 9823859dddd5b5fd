// A conversation: turns as they were said, reasoning folded, tool calls beside their results.

import { html } from "./vendor/preact-htm.js";
import { Markdown } from "./markdown.js";
import { count, visible, wordDiff } from "./text.js";

const WINDOW = 200;

/** Text of a message's content, whose parts may be texts, images or anything else. */
export function contentText(content) {
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return content ? JSON.stringify(content) : "";
  return content.map((part) => (typeof part === "string" ? part : part.text ?? `[${part.type || "part"}]`)).join("\n");
}

/** A text with a part of it marked: what the grader extracted. */
const Marked = ({ text, mark }) =>
  mark && mark[1] > mark[0] ? html`${visible(text.slice(0, mark[0]))}<mark>${visible(text.slice(mark[0], mark[1]))}</mark>${visible(text.slice(mark[1]))}` : visible(text);

export const Diff = ({ before, after }) => html`<pre class="said">${wordDiff(visible(before), visible(after)).map(([kind, text]) =>
  kind === "same" ? text : kind === "gone" ? html`<del>${text}</del>` : html`<ins>${text}</ins>`,
)}</pre>`;

function Call({ call, result }) {
  return html`<div class="call">
    <div><span class="soft">calls</span> <code>${visible(call.name)}</code>${call.problem ? html` <span class="errored">${visible(call.problem)}</span>` : ""}</div>
    <pre>${visible(call.arguments)}</pre>
    ${result ? html`<details open><summary>result</summary><pre>${visible(contentText(result.content))}</pre></details>` : html`<p class="soft">no result</p>`}
  </div>`;
}

/**
 * @param {{messages: any[], rendered: boolean, folded: boolean, marks: Record<number, [number, number]>, from: number, onFrom: (from: number) => void}} props
 */
export function Conversation({ messages, rendered = false, folded = true, marks = {}, from = 0, onFrom }) {
  const results = new Map(messages.filter((m) => m.role === "tool" && m.tool_call_id).map((m) => [m.tool_call_id, m]));
  const paired = new Set(messages.flatMap((m) => (m.tool_calls || []).map((call) => call.id)).filter((id) => results.has(id)));
  const long = messages.length > 2 * WINDOW;
  const shown = long ? messages.slice(from, from + WINDOW) : messages;
  const pager = long
    ? html`<p class="soft">messages ${count(from + 1)} to ${count(Math.min(messages.length, from + WINDOW))} of ${count(messages.length)}
        <button disabled=${from === 0} onClick=${() => onFrom(Math.max(0, from - WINDOW))}>earlier</button>
        <button disabled=${from + WINDOW >= messages.length} onClick=${() => onFrom(from + WINDOW)}>later</button></p>`
    : null;
  return html`<div class="conversation">${pager}${shown.map((message, i) => {
    const index = (long ? from : 0) + i;
    if (message.role === "tool" && paired.has(message.tool_call_id)) return null;
    const text = contentText(message.content);
    return html`<article key=${index} class="turn ${message.role}">
      <header>${message.role}${message.name ? html` <span class="soft">${visible(message.name)}</span>` : ""}</header>
      ${message.reasoning ? html`<details class="reasoning" open=${!folded}><summary>reasoning, ${count(message.reasoning.length)} characters</summary><pre class="said">${visible(message.reasoning)}</pre></details>` : null}
      ${text ? (rendered && !marks[index] ? html`<${Markdown} text=${text} />` : html`<pre class="said"><${Marked} text=${text} mark=${marks[index]} /></pre>`) : null}
      ${message.cut ? html`<p class="soft">${count(message.cut)} more characters are not shown</p>` : null}
      ${(message.tool_calls || []).map((call) => html`<${Call} call=${call} result=${results.get(call.id)} />`)}
    </article>`;
  })}${pager}</div>`;
}
