// One sample at every step of a training run.

import { Conversation, Diff } from "./conversation.js";
import { chosenSteps } from "./curve.js";
import { isExport } from "./exported.js";
import { useAnswer, useFlips, useKeys, useToggle } from "./hooks.js";
import { Crumbs, Loaded, Problem, Sign } from "./parts.js";
import { go, jump, link, set } from "./route.js";
import { visible } from "./text.js";
import { html } from "./vendor/preact-htm.js";

export function History({ name, params }) {
  const label = params.get("label") || "";
  const answer = useAnswer("history", { name, label, id: params.get("id") });
  const chosen = chosenSteps(params);
  const flips = useFlips(name, label, chosen);
  const place = flips.all.indexOf(params.get("id"));
  const goToFlip = (by) => flips.all[place + by] && jump(flips.href(flips.all[place + by]));
  const back = { label, from: params.get("from"), to: params.get("to") };
  const [rendered, turnRendered] = useToggle(false);
  const [diff, turnDiff] = useToggle(true);
  const only = params.get("only") === "changed";
  const steps = (answer.data?.steps || []).filter((step) => !only || step.changed);
  const current = steps.find((step) => String(step.step) === params.get("step")) || steps.at(-1);
  const at = steps.indexOf(current);
  const move = (by) => steps[at + by] && set({ step: steps[at + by].step });
  useKeys({
    "[": () => move(-1),
    "]": () => move(1),
    n: () => goToFlip(1),
    p: () => goToFlip(-1),
    m: turnRendered,
    d: turnDiff,
    Escape: () => go(["curve", name], back),
  });

  const turnOnly = () => set({ only: only ? "" : "changed" });
  const view = (data) => html`
    <${Crumbs} path=${[["runs", link(["runs"])], [data.name, link(["curve", data.name], back)]]} />
    <h1>${visible(data.id)} <span class="soft">across steps</span></h1>
    ${
      place >= 0
        ? html`<p class="toolbar"><button onClick=${() => goToFlip(-1)} title="p">← previous</button>
            <button onClick=${() => goToFlip(1)} title="n">next →</button>
            <span class="soft">
              ${`${place + 1} of ${flips.all.length} flips from step ${chosen.join(" to ")}`}</span></p>`
        : null
    }
    ${data.question ? html`<p>${visible(data.question)}</p>` : null}
    ${data.target !== null ? html`<p>target: <code>${visible(data.target)}</code></p>` : null}
    <nav class="strip" aria-label="steps">${steps.map(
      (step) => html`<button class=${step.outcome} aria-pressed=${step === current}
        title="step ${step.step}: reward ${step.text.reward}" onClick=${() => set({ step: step.step })}>
        <${Sign} outcome=${step.outcome} /><span>${step.step}</span></button>`,
    )}</nav>
    <div class="toolbar">
      <button aria-pressed=${only} onClick=${turnOnly}>only where the answer changed</button>
      <button aria-pressed=${diff} onClick=${turnDiff}>difference</button>
      <button aria-pressed=${rendered} onClick=${turnRendered}>Markdown</button>
    </div>
    ${
      current
        ? html`<${Step} id=${data.id} step=${current} before=${diff ? steps[at - 1] : undefined}
            rendered=${rendered} />`
        : null
    }`;
  return html`<${Loaded} answer=${answer} view=${view} />`;
}

function Step({ id, step, before, rendered }) {
  const isSaved = step.run && !isExport();
  const conversation = useAnswer(isSaved ? "sample" : null, { name: step.run, id });
  const attempts =
    step.attempts > 1 ? html` <span class="soft">mean of ${step.attempts} attempts</span>` : "";
  return html`
    <h2>Step ${step.step}: <${Sign} outcome=${step.outcome} /> reward ${step.text.reward}${attempts}</h2>
    ${step.error ? html`<p class="errored">errored: ${visible(step.error)}</p>` : null}
    ${
      before?.answer !== undefined && step.answer !== undefined
        ? html`<${Change} before=${before} step=${step} />`
        : null
    }
    ${conversation.problem ? html`<${Problem} problem=${conversation.problem} />` : null}
    ${
      conversation.data && !conversation.isStale
        ? html`<${Conversation} sample=${conversation.data} rendered=${rendered} />`
        : null
    }
    ${!isSaved && step.answer !== undefined ? html`<pre>${visible(step.answer)}</pre>` : null}
    ${
      step.answer === undefined
        ? html`<p class="soft">The conversation of this step was not saved.</p>`
        : null
    }`;
}

function Change({ before, step }) {
  const isSame = step.answer === before.answer;
  const between = `answer, from step ${before.step} to step ${step.step}`;
  return html`<p class="soft">${between}${isSame ? ": the same" : ""}</p>
    ${isSame ? null : html`<${Diff} before=${before.answer} after=${step.answer} />`}`;
}
