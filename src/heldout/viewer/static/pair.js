// Two runs' answers to one sample, side by side: any attempt of one beside any of the other.

import { Conversation, Diff } from "./conversation.js";
import { useAnswer, useKeys } from "./hooks.js";
import { Crumbs, Loaded, Problem, Sign } from "./parts.js";
import { go, link, set } from "./route.js";
import { visible } from "./text.js";
import { html } from "./vendor/preact-htm.js";

export function Pair({ a, b, params }) {
  const id = params.get("id");
  const repeat = { a: params.get("a") || "", b: params.get("b") || "" };
  const left = useAnswer("sample", { name: a, id, repeat: repeat.a });
  const right = useAnswer("sample", { name: b, id, repeat: repeat.b });
  const step = (by) => {
    /** By the address: what is shown may still be of the attempt before. */
    const next = (answer, side) => {
      const attempts = (answer.data?.repeats || []).map((one) => one.repeat);
      return attempts[attempts.indexOf(Number(repeat[side])) + by] ?? repeat[side];
    };
    set({ a: next(left, "a") || "", b: next(right, "b") || "" });
  };
  useKeys({ Escape: () => go(["compare", a, b]), "[": () => step(-1), "]": () => step(1) });
  const view = (first) => {
    if (!right.data) return right.problem ? html`<${Problem} problem=${right.problem} />` : null;
    const second = right.data;
    const same = countSame(first.turns, second.turns);
    const turns = same === 1 ? "the first turn is" : `the first ${same} turns are`;
    return html`
      <${Crumbs} path=${[["runs", link(["runs"])], [`${a} and ${b}`, link(["compare", a, b])]]} />
      ${right.problem ? html`<${Problem} problem=${right.problem} retry=${right.reload} />` : null}
      <h1>${visible(first.id)}</h1>
      <p>${visible(first.question || "")}</p>
      <p>target: <code>${visible(first.target ?? "–")}</code></p>
      <h2>Answer, from ${visible(a)} to ${visible(b)}</h2>
      <${Diff} before=${first.answer} after=${second.answer} />
      ${
        same
          ? html`<details><summary>${turns} the same in both</summary>
              <${Conversation} sample=${{ ...first, turns: first.turns.slice(0, same) }} /></details>`
          : null
      }
      <div class="pair">
        <${Side} side="a" name=${a} sample=${first} without=${same} />
        <${Side} side="b" name=${b} sample=${second} without=${same} />
      </div>`;
  };
  return html`<${Loaded} answer=${left} view=${view} />`;
}

function countSame(left, right) {
  const differs = (turn, i) => JSON.stringify(turn) !== JSON.stringify(right[i]);
  const first = left.findIndex(differs);
  return first < 0 ? left.length : first;
}

function Side({ side, name, sample, without }) {
  const href = link(["run", name, "sample"], { id: sample.id, repeat: sample.repeat || "" });
  return html`<section>
    <h2>${side.toUpperCase()}: <a href=${href}>${visible(name)}</a>${" "}
      <${Sign} outcome=${sample.outcome} /> ${sample.text.reward}</h2>
    ${
      sample.repeats.length > 1
        ? html`<div class="toolbar" role="group" aria-label="attempts of ${name}">${sample.repeats.map(
            ({ repeat, outcome }) => html`<button aria-pressed=${repeat === sample.repeat}
              onClick=${() => set({ [side]: repeat || "" })}><${Sign} outcome=${outcome} />
              ${` attempt ${repeat + 1}`}</button>`,
          )}</div>`
        : null
    }
    ${sample.error !== null ? html`<p class="errored">errored: ${visible(sample.error)}</p>` : null}
    <${Conversation} sample=${sample} without=${without} /></section>`;
}
