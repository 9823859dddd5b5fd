// The list of runs. Those that are marked are compared, or drawn together.

import { Bar, Sparkline } from "./charts.js";
import { isExport } from "./exported.js";
import { useAnswer, useKeys } from "./hooks.js";
import { Chooser, Live, Loaded, Select, Sign } from "./parts.js";
import { go, jump, link, set } from "./route.js";
import { ago, count, oneLine, visible } from "./text.js";
import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";

const target = (run) => link([run.kind === "curve" ? "curve" : "run", run.name]);

function words(run) {
  const verdicts = (run.verdicts || []).map((verdict) => verdict.kind);
  const texts = [run.name, run.model, ...run.tags, run.note, run.status, ...verdicts, run.kind];
  return texts.join(" ").toLowerCase();
}

/** Rows that are drawn at first, and again when the end of them comes into view. */
const SHOWN = 100;

/** Columns that rows can be ordered by, and what each row has there. */
const ORDERS = {
  run: (run) => run.name,
  model: (run) => run.model,
  mean: (run) => run.mean,
  n: (run) => run.n,
  errors: (run) => run.errors,
  status: (run) => run.status,
  started: (run) => run.started,
};

/** Rows in an order, "-mean" with the largest first; those without a value come last. */
function ordered(runs, sort) {
  const field = sort.replace(/^-/, "");
  const value = ORDERS[field] || ((run) => run.settings[field]);
  const sign = sort.startsWith("-") ? -1 : 1;
  const isMissing = (a) => a === null || a === undefined;
  const compare = (a, b) =>
    typeof a === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
  return [...runs].sort((one, other) => {
    const [a, b] = [value(one), value(other)];
    if (isMissing(a) || isMissing(b)) return isMissing(a) - isMissing(b);
    return sign * compare(a, b);
  });
}

/** Rows by eval or by tag, each group where its first row is; of several tags, a run is in each. */
function grouped(runs, by) {
  if (!by) return [["", runs]];
  const groups = new Map();
  for (const run of runs)
    for (const label of by === "tag" ? (run.tags.length ? run.tags : ["no tag"]) : [run.eval])
      groups.set(label, [...(groups.get(label) || []), run]);
  return [...groups];
}

export function Runs({ params }) {
  const answer = useAnswer("runs", {}, () => []);
  const where = params.get("where") || "";
  const sort = params.get("sort") || "";
  const by = params.get("group") || "";
  const cols = params.getAll("cols");
  const marked = params.getAll("mark");
  const wanted = where.toLowerCase().split(/\s+/).filter(Boolean);
  const runs = answer.data?.runs || [];
  const chosen = runs.filter((run) => marked.includes(run.name));
  const found = runs.filter((run) => wanted.every((word) => words(run).includes(word)));
  const groups = grouped(sort ? ordered(found, sort) : found, by);
  const shown = groups.flatMap(([, rows]) => rows);
  const [limit, setLimit] = useState(SHOWN);
  const at = Math.min(Number(params.get("at") || 0), Math.max(0, shown.length - 1));

  /** The list takes the focus: Enter opens its row from then on, and not the last control. */
  const move = (to) => {
    set({ at: Math.max(0, Math.min(to, shown.length - 1)) || "" });
    document.querySelector("[data-list]")?.focus({ preventScroll: true });
    requestAnimationFrame(() => document.querySelector("tr.at")?.scrollIntoView({ block: "nearest" }));
  };
  /** Runs are compared and curves drawn together: a mark of the other kind begins anew. */
  const mark = (run) => {
    if (!run || run.problem) return;
    const alike = chosen.filter((other) => (other.kind === "curve") === (run.kind === "curve"));
    const names = alike.map((other) => other.name).filter((name) => name !== run.name);
    set({ mark: marked.includes(run.name) ? names : [...names, run.name] });
  };
  const compare = () => {
    const names = chosen.map((run) => run.name).reverse(); // the oldest is A
    if (names.length < 2) return;
    if (chosen[0].kind === "curve") go(["curves"], { curve: names });
    else if (names.length === 2) go(["compare", ...names]);
    else go(["several"], { run: names });
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

  const head = (name, numeric, title = name) => {
    const sorted = sort === name ? "ascending" : sort === `-${name}` ? "descending" : undefined;
    const next = sort === `-${name}` ? name : sort === name ? "" : `-${name}`;
    return html`<th scope="col" class=${numeric ? "num" : ""} aria-sort=${sorted}>
      <button class="plain" onClick=${() => set({ sort: next, at: "" })}>${oneLine(title, 30)}${
        { ascending: " ↑", descending: " ↓" }[sorted] || ""
      }</button></th>`;
  };
  const view = ({ roots }) => {
    if (!runs.length)
      return html`<h1>Runs</h1><p>No runs under ${roots.join(", ")}.</p>
        <p class="soft"><code>heldout run heldout.examples.capitals</code> makes one with a small model
        on this machine; <code>heldout run FILE --model MODEL</code> runs an eval of yours.</p>`;
    const isBounded = runs.every((run) => run.kind === "curve" || !(run.min < 0 || run.max > 1));
    const ready = chosen.length > 1;
    const verb = chosen[0]?.kind === "curve" ? "Draw" : "Compare";
    const settings = [...new Set(runs.flatMap((run) => Object.keys(run.settings)))].sort();
    const most = Math.max(limit, at + SHOWN / 2);
    let i = 0;
    return html`
      <h1>Runs <${Live} state=${answer.live} /></h1>
      <div class="toolbar">
        <input type="search" aria-label="Filter by name, model or status" placeholder="name, model, status"
          value=${where} onInput=${(event) => set({ where: event.target.value, at: "" })} data-filter />
        <${Select} label="group by" value=${by} none="nothing" options=${["eval", "tag"]}
          onChange=${(group) => set({ group, at: "" })} />
        <${Chooser} fields=${settings} chosen=${cols} onChange=${(names) => set({ cols: names })} />
        <button disabled=${!ready} onClick=${compare}>
          ${verb} ${ready ? `the ${chosen.length} marked` : "runs: mark two or more"}</button>
      </div>
      <div class="scroll" tabindex="0" role="group" aria-label="runs" data-list><table class="runs">
        <thead><tr>
          <th scope="col"><span class="hidden">marked</span></th>${head("run")}${head("model")}
          ${head("mean", true)}<th scope="col">95% interval</th>
          <th scope="col"><span class="hidden">chart</span></th>${head("n", true)}${head("errors", true)}
          ${head("status")}${head("started")}
          ${cols.map((name) => head(name, false, name.replace(/^sampling\./, "")))}
        </tr></thead>
        ${groups.map(
          ([label, rows]) =>
            i < most &&
            html`<tbody key=${label}>
            ${
              by
                ? html`<tr class="group"><th colspan=${10 + cols.length} scope="rowgroup">
              ${visible(label)} <span class="soft">${count(rows.length)}</span></th></tr>`
                : null
            }
            ${rows.slice(0, Math.max(0, most - i)).map(
              (run) => html`<${Row} key=${run.name} run=${run} at=${i++ === at} isBounded=${isBounded}
                cols=${cols} isMarked=${marked.includes(run.name)} onMark=${() => mark(run)} />`,
            )}</tbody>`,
        )}
      </table></div>
      ${
        shown.length > most
          ? html`<${More} rest=${shown.length - most}
        onMore=${() => setLimit(most + SHOWN)} />`
          : null
      }
      <p class="soft" role="status">${count(found.length)} of ${count(runs.length)} runs${
        marked.length ? ` · marked: ${marked.map(visible).join(" and ")}` : ""
      }${isExport() ? "" : ` · ${roots.join(", ")}`}</p>`;
  };
  return html`<${Loaded} answer=${answer} view=${view} />`;
}

/** What stands where the table goes on: more rows are drawn when it comes into view. */
function More({ rest, onMore }) {
  const box = useRef(null);
  useEffect(() => {
    const observer = new IntersectionObserver(([entry]) => entry.isIntersecting && onMore());
    observer.observe(box.current);
    return () => observer.disconnect();
  });
  return html`<p ref=${box}><button onClick=${onMore}>${count(rest)} more</button></p>`;
}

function Row({ run, at, isBounded, isMarked, cols, onMark }) {
  const css = at ? "at" : "";
  if (run.problem)
    return html`<tr class=${css}><td></td><td>${visible(run.name)}</td>
      <td colspan=${8 + cols.length} class="errored">${oneLine(run.problem)}${
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
    <td>${mark}</td>
    <td><a href=${target(run)}>${visible(run.name)}</a>
      ${run.kind === "run" ? "" : html` <span class="soft">${run.kind}</span>`}</td>
    <td class="soft">${oneLine(run.model, 40)}${run.tags.map(
      (tag) => html` <span class="badge">${visible(tag)}</span>`,
    )}</td>
    <td class="num ${soft}">${run.text.mean}</td>
    <td class=${soft}>${run.text.interval}</td>
    <td>${chart(run, isBounded)}</td>
    <td class="num">${count(run.n)}${
      (run.unfinished || run.status === "stopped") && run.asked
        ? html`<span class="soft"> of ${count(run.asked)}</span>`
        : ""
    }</td>
    <td class="num">${
      run.errors
        ? html`<span class="errored"><${Sign} outcome="errored" />${count(run.errors)}</span>`
        : count(run.errors)
    }</td>
    <td>${status}</td>
    <td class="soft" title=${run.started}>${ago(run.started)}</td>
    ${cols.map((name) => html`<td class="setting">${oneLine(run.settings[name] ?? "–", 40)}</td>`)}
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
    ({ label, kind, short, answers }) =>
      html`<span class="badge ${kind || ""}" title=${visible((answers || []).join("\n"))}>${
        several ? `${oneLine(label, 24)}: ` : ""
      }${short || "no verdict"}</span> `,
  )}<span class="soft">at step ${run.step ?? "–"}${
    run.status === "finished" ? "" : `, ${run.status}`
  }${several ? html`; numbers of ${oneLine(run.verdicts[0].label, 24)}` : ""}</span>`;
}
