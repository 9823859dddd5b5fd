// One item: the conversation, and beside it what the grader extracted and what it is worth.

import { Strip } from "./charts.js";
import { Conversation } from "./conversation.js";
import { isExport } from "./exported.js";
import { useAnswer, useKeys, useToggle } from "./hooks.js";
import { Note } from "./note.js";
import { Crumbs, Facts, Loaded, Problem, Sign } from "./parts.js";
import { go, link, set } from "./route.js";
import { count, duration, visible } from "./text.js";
import { html } from "./vendor/preact-htm.js";

export function Sample({ name, params }) {
  const id = params.get("id");
  const list = {
    where: params.get("where") || "",
    sort: params.get("sort") || "",
    at: params.get("at") || "",
  };
  const request = { name, id, repeat: params.get("repeat") || "" };
  const answer = useAnswer("sample", request);
  const [rendered, turnRendered] = useToggle(false);
  const [folded, turnFolded] = useToggle(true);
  const [isJson, turnJson] = useToggle(false);
  const json = useAnswer(isJson ? "record" : null, request);

  const back = () => go(["run", name, "samples"], list);
  const { where, sort } = list;
  const position = useAnswer("position", { name, where, sort, id, repeat: request.repeat }).data;
  /** To the next row of the list that this one was opened from. */
  const step = (to) =>
    to && go(["run", name, "sample"], { ...list, id: to.id, repeat: to.repeat || "", at: to.at || "" });
  const turnRepeat = (by) => {
    const { repeats, repeat } = answer.data;
    const next = repeats[repeats.findIndex((other) => other.repeat === repeat) + by];
    if (next) set({ repeat: next.repeat || "" });
  };
  useKeys({
    m: turnRendered,
    e: turnFolded,
    s: turnJson,
    n: () => step(position?.next),
    p: () => step(position?.previous),
    "[": () => turnRepeat(-1),
    "]": () => turnRepeat(1),
    Escape: back,
  });

  const toggle = (label, on, act) => html`<button aria-pressed=${on} onClick=${act}>${label}</button>`;
  const toolbar = html`<div class="toolbar">
    ${toggle("Markdown", rendered, turnRendered)}
    ${toggle("reasoning", !folded, turnFolded)}
    ${isExport() ? null : toggle("JSON", isJson, turnJson)}
    <span class="space"></span>
    ${position ? html`<${Position} position=${position} where=${where} />` : null}
    <button disabled=${!position?.previous} onClick=${() => step(position.previous)} title="p">
      ← previous</button>
    <button disabled=${!position?.next} onClick=${() => step(position.next)} title="n">next →</button>
  </div>`;
  const content = (sample) => {
    if (json.data && !json.isStale) return html`<pre tabindex="0">${visible(json.data.text)}</pre>`;
    if (json.problem) return html`<${Problem} problem=${json.problem} />`;
    if (sample.turns.length)
      return html`<${Conversation} sample=${sample} rendered=${rendered} folded=${folded} />`;
    return html`<h2>Episode</h2><p class="soft">There is no conversation.</p>
      <${Facts} rows=${Object.entries(sample.input).map(fact)} />`;
  };
  const view = (sample) => html`
    <${Crumbs} path=${[
      ["runs", link(["runs"])],
      [name, link(["run", name])],
      ["samples", link(["run", name, "samples"], list)],
    ]} />
    <h1><${Sign} outcome=${sample.outcome} /> ${visible(sample.id)}</h1>
    <${Attempts} name=${name} sample=${sample} list=${list} />
    ${
      sample.error !== null
        ? html`<div class="problem"><p><b>errored:</b> ${visible(sample.error)}</p>
            <p class="soft">It has no score. What was said until then is below.</p></div>`
        : null
    }
    <div class="columns">
      <section>${isExport() && !sample.turns.length ? null : toolbar}${content(sample)}</section>
      <aside class="score"><${Grades} sample=${sample} /><${Note} sample=${sample} />
        <${HowItWent} sample=${sample} /></aside>
    </div>`;
  return html`<${Loaded} answer=${answer} view=${view} />`;
}

/** Where in the list this sample is: "3 of 707 · failed:yes". */
function Position({ position, where }) {
  const { at, total } = position;
  return html`<span class="position" role="status">${
    at === null ? "not among the" : `${count(at + 1)} of`
  } ${count(total)}${where ? html` · <code>${visible(where)}</code>` : null}</span>`;
}

const fact = ([key, value]) => [visible(key), visible(value ?? "–")];

function Attempts({ name, sample, list }) {
  if (sample.repeats.length < 2) return null;
  const href = (repeat) => link(["run", name, "sample"], { ...list, id: sample.id, repeat: repeat || "" });
  return html`<nav class="tabs" aria-label="attempts">${sample.repeats.map(
    ({ repeat, outcome }) => html`<a aria-current=${repeat === sample.repeat ? "true" : undefined}
      href=${href(repeat)}><${Sign} outcome=${outcome} /> attempt ${repeat + 1}</a>`,
  )}</nav>`;
}

/** What a grader made of an answer. */
function Grades({ sample }) {
  const answer = sample.answer
    ? html`<span class="clamp">${visible(sample.answer)}</span>`
    : html`<em>none</em>`;
  return html`<h2>Score</h2>
    <p class="headline"><span class="big">${sample.text.reward}</span> <span class="soft">reward</span>${" "}
      <${Sign} outcome=${sample.outcome} /> ${sample.outcome}</p>
    ${sample.metrics.map((metric) => html`<${Grade} metric=${metric} />`)}
    <${Facts} rows=${[
      ["target", sample.target !== null && html`<code>${visible(sample.target)}</code>`],
      ["answer", sample.turns.length > 0 && answer],
      ["final state", sample.outcome_state && html`<code>${visible(sample.outcome_state)}</code>`],
    ]} />`;
}

function Grade({ metric }) {
  const { name, text, weight, extracted } = metric;
  const found = extracted === null ? html`<em>nothing</em>` : html`<code>${visible(extracted)}</code>`;
  return html`<div class="metric">
    <div><b>${visible(name)}</b> ${text.value}${" "}
      <span class="soft">${weight ? `× ${weight}` : "tracked only"}</span></div>
    ${metric.has_extracted ? html`<div>extracted: ${found}</div>` : null}
    ${metric.note ? html`<div class="soft">${visible(metric.note)}</div>` : null}
    ${
      metric.reply
        ? html`<details><summary>the judge's reply</summary>
            <pre class="said" tabindex="0">${visible(metric.reply)}</pre></details>`
        : null
    }
  </div>`;
}

function HowItWent({ sample }) {
  const { ended_by, limit, truncated, finish_reason } = sample.stop;
  const ended = [
    limit ? `limit: ${limit}` : ended_by,
    truncated ? "last turn truncated" : null,
    finish_reason ? `finish reason ${finish_reason}` : null,
  ];
  const { tokens } = sample;
  const facts = [
    ["ended by", visible(ended.filter(Boolean).join(", "))],
    ["tokens", tokens && `${count(tokens.prompt)} in, ${count(tokens.completion)} out`],
    ["token trace", sample.trace && html`<${Strip} parts=${sample.trace} />`],
    ["took", sample.seconds !== null && duration(sample.seconds)],
    ["requests", sample.requests],
    ...Object.entries(sample.metadata).map(fact),
  ];
  return html`<h2>How it went</h2><${Facts} rows=${facts} />
    ${
      sample.turns.length
        ? html`<details><summary>Input</summary>
            <${Facts} rows=${Object.entries(sample.input).map(fact)} /></details>`
        : null
    }
    ${
      sample.tools.length
        ? html`<details><summary>Tools (${sample.tools.length})</summary>
            ${sample.tools.map(
              ({ name, description, parameters }) => html`<h3>${visible(name)}</h3>
                ${description ? html`<p>${visible(description)}</p>` : null}
                <pre class="said">${visible(parameters)}</pre>`,
            )}</details>`
        : null
    }`;
}
