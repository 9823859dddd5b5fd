// Two runs' answers to one sample, side by side.

import { Conversation, Diff } from "./conversation.js";
import { useAnswer, useKeys } from "./hooks.js";
import { Crumbs, Loaded, Sign } from "./parts.js";
import { go, link } from "./route.js";
import { visible } from "./text.js";
import { html } from "./vendor/preact-htm.js";

export function Pair({ a, b, params }) {
  const answer = useAnswer("pair", { a, b, id: params.get("id") });
  useKeys({ Escape: () => go(["compare", a, b]) });
  const view = ({ a: left, b: right }) => {
    const same = countSame(left.turns, right.turns);
    const turns = same === 1 ? "the first turn is" : `the first ${same} turns are`;
    return html`
      <${Crumbs} path=${[["runs", link(["runs"])], [`${a} and ${b}`, link(["compare", a, b])]]} />
      <h1>${visible(left.id)}</h1>
      <p>${visible(left.question || "")}</p>
      <p>target: <code>${visible(left.target ?? "–")}</code></p>
      <h2>Answer, from A to B</h2>
      <${Diff} before=${left.answer} after=${right.answer} />
      ${
        same
          ? html`<details><summary>${turns} the same in both</summary>
              <${Conversation} sample=${{ ...left, turns: left.turns.slice(0, same) }} /></details>`
          : null
      }
      <div class="pair">
        <${Side} letter="A" name=${a} sample=${left} without=${same} />
        <${Side} letter="B" name=${b} sample=${right} without=${same} />
      </div>`;
  };
  return html`<${Loaded} answer=${answer} view=${view} />`;
}

function countSame(left, right) {
  const differs = (turn, i) => JSON.stringify(turn) !== JSON.stringify(right[i]);
  const first = left.findIndex(differs);
  return first < 0 ? left.length : first;
}

function Side({ letter, name, sample, without }) {
  const href = link(["run", name, "sample"], { id: sample.id });
  return html`<section>
    <h2>${letter}: <a href=${href}>${visible(name)}</a> <${Sign} outcome=${sample.outcome} />${" "}
      ${sample.text.reward}</h2>
    ${sample.repeats.length > 1 ? html`<p class="soft">attempt 1 of ${sample.repeats.length}</p>` : null}
    ${sample.error !== null ? html`<p class="errored">errored: ${visible(sample.error)}</p>` : null}
    <${Conversation} sample=${sample} without=${without} /></section>`;
}
