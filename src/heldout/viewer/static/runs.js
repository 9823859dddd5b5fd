// The list of runs. Two can be marked and compared.

import { Bar, Sparkline } from "./charts.js";
import { isExport } from "./exported.js";
import { useAnswer, useKeys } from "./hooks.js";
import { Live, Loaded, Sign } from "./parts.js";
import { go, jump, link, set } from "./route.js";
import { ago, count, oneLine, visible } from "./text.js";
import { html, useState } from "./vendor/preact-htm.js";

const target = (run) => link([run.kind === "curve" ? "curve" : "run", run.name]);

function words(run) {
  const verdicts = (run.verdicts || []).map((verdict) => verdict.kind);
  const texts = [run.name, run.model, ...run.tags, run.note, run.status, ...verdicts, run.kind];
  return texts.join(" ").toLowerCase();
}

export function Runs({ params }) {
  const answer = useAnswer("runs", {}, () => []);
  const [marked, setMarked] = useState([]);
  const [at, setAt] = useState(0);
  const where = params.get("where") || "";
  const wanted = where.toLowerCase().split(/\s+/).filter(Boolean);
  const runs = answer.data?.runs || [];
  const shown = runs.filter((run) => wanted.every((word) => words(run).includes(word)));

  /** The list takes the focus: Enter opens its row from then on, and not the last control. */
  const move = (to) => {
    setAt(Math.max(0, Math.min(to, shown.length - 1)));
    document.querySelector("[data-list]")?.focus({ preventScroll: true });
    requestAnimationFrame(() => document.querySelector("tr.at")?.scrollIntoView({ block: "nearest" }));
  };
  const mark = (run) => {
    if (!run || run.kind === "curve" || run.problem) return;
    const { name } = run;
    setMarked((names) =>
      names.includes(name) ? names.filter((n) => n !== name) : [...names.slice(-1), name],
    );
  };
  const compare = () => {
    const pair = runs.filter((run) => marked.includes(run.name));
    if (pair.length === 2) go(["compare", pair[1].name, pair[0].name]); // the older one is A
  };
  useKeys({
    j: () => move(at + 1),
    ArrowDown: () => move(at + 1),
    k: () => move(at - 1),
    ArrowUp: () => move(at - 1),
    Home: () => move(0),
    End: () => move(shown.length - 1),
    Enter: () => shown[at] && !shown[at].problem && jump(target(shown[at])),
    x: () => mark(shown[at]),
    c: compare,
  });

  const view = ({ roots }) => {
    if (!runs.length)
      return html`<h1>Runs</h1><p>No runs under ${roots.join(", ")}.</p>
        <p class="soft"><code>heldout run FILE</code> makes one.</p>`;
    const isBounded = runs.every((run) => run.kind === "curve" || !(run.min < 0 || run.max > 1));
    const ready = marked.length === 2;
    return html`
      <h1>Runs <${Live} state=${answer.live} /></h1>
      <div class="toolbar">
        <input type="search" aria-label="Filter by name, model or status" placeholder="name, model, status"
          value=${where} onInput=${(event) => set({ where: event.target.value })} data-filter />
        <button disabled=${!ready} onClick=${compare}>
          Compare ${ready ? "the two marked" : "two runs: mark them"}</button>
      </div>
      <div class="scroll" tabindex="0" role="group" aria-label="runs" data-list><table class="runs">
        <thead><tr>
          <th scope="col"><span class="hidden">marked</span></th><th scope="col">run</th>
          <th scope="col">model</th><th scope="col" class="num">mean</th><th scope="col">95% interval</th>
          <th scope="col"><span class="hidden">chart</span></th><th scope="col" class="num">n</th>
          <th scope="col" class="num">errors</th><th scope="col">status</th><th scope="col">started</th>
        </tr></thead>
        <tbody>${shown.map(
          (run, i) => html`<${Row} key=${run.name} run=${run} at=${i === at} isBounded=${isBounded}
            isMarked=${marked.includes(run.name)} onMark=${() => mark(run)} />`,
        )}</tbody>
      </table></div>
      <p class="soft" role="status">${count(shown.length)} of ${count(runs.length)} runs${
        marked.length ? `; marked: ${marked.join(" and ")}` : ""
      }${isExport() ? "" : ` · ${roots.join(", ")}`}</p>`;
  };
  return html`<${Loaded} answer=${answer} view=${view} />`;
}

function Row({ run, at, isBounded, isMarked, onMark }) {
  const css = at ? "at" : "";
  if (run.problem)
    return html`<tr class=${css}><td></td><td>${visible(run.name)}</td>
      <td colspan="8" class="errored">${oneLine(run.problem)}${
        run.repair ? html` <code>${run.repair}</code>` : null
      }</td></tr>`;
  const curve = run.kind === "curve";
  const soft = run.unfinished ? "soft" : "";
  const status = curve
    ? html`<${Verdicts} run=${run} />`
    : html`<span class="badge ${run.status}">${run.status}</span>`;
  const open = (event) => !event.target.closest("a, input, label") && jump(target(run));
  const mark = html`<input type="checkbox" aria-label="mark ${run.name}" checked=${isMarked}
    onChange=${onMark} />`;
  return html`<tr class=${css} onClick=${open}>
    <td>${curve ? null : mark}</td>
    <td><a href=${target(run)}>${visible(run.name)}</a>
      ${run.kind === "run" ? "" : html` <span class="soft">${run.kind}</span>`}</td>
    <td class="soft">${oneLine(run.model, 40)}${run.tags.map(
      (tag) => html` <span class="badge">${visible(tag)}</span>`,
    )}</td>
    <td class="num ${soft}">${run.text.mean}</td>
    <td class=${soft}>${run.text.interval}</td>
    <td>${chart(run, isBounded)}</td>
    <td class="num">${count(run.n)}${
      run.unfinished && run.asked ? html`<span class="soft"> of ${count(run.asked)}</span>` : ""
    }</td>
    <td class="num">${
      run.errors
        ? html`<span class="errored"><${Sign} outcome="errored" />${count(run.errors)}</span>`
        : count(run.errors)
    }</td>
    <td>${status}</td>
    <td class="soft" title=${run.started}>${ago(run.started)}</td>
  </tr>`;
}

function chart(run, isBounded) {
  if (run.kind === "curve") return html`<${Sparkline} points=${run.spark} />`;
  if (!isBounded) return null;
  const second = run.errors ? run.mean_scored : null;
  return html`<${Bar} value=${run.mean} low=${run.low} high=${run.high} second=${second} />`;
}

/** One badge per eval of a curve, the worst first; the numbers of the row are those of the first. */
function Verdicts({ run }) {
  const several = run.verdicts.length > 1;
  return html`${run.verdicts.map(
    ({ label, kind }) =>
      html`<span class="badge ${kind || ""}">${
        several ? `${oneLine(label, 24)}: ` : ""
      }${kind || "no verdict"}</span> `,
  )}<span class="soft">at step ${run.step ?? "–"}${
    run.status === "finished" ? "" : `, ${run.status}`
  }${several ? html`; numbers of ${oneLine(run.verdicts[0].label, 24)}` : ""}</span>`;
}
