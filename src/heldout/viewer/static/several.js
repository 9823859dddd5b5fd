// Several runs, each compared with the first, in one table that is corrected for their number.

import { Forest } from "./charts.js";
import { NotCompared } from "./compare.js";
import { useAnswer, useKeys } from "./hooks.js";
import { Blocks, Crumbs, Loaded, Select, Table } from "./parts.js";
import { go, link, set } from "./route.js";
import { count, visible } from "./text.js";
import { html } from "./vendor/preact-htm.js";

export function Several({ params }) {
  const runs = params.getAll("run");
  const allow = params.getAll("allow");
  const answer = useAnswer("several", { name: runs, metric: params.get("metric") || "", allow });
  useKeys({ Escape: () => go(["runs"]) });
  const refused = (problem) =>
    problem.status === 409 ? html`<${NotCompared} names=${runs} problem=${problem} allow=${allow} />` : null;
  const view = (found) => {
    if (answer.problem) return null;
    const [base, ...others] = found.rows;
    const drawn = others.map((row) => ({
      label: visible(row.name),
      value: row.readings[0].difference,
      low: row.readings[0].low,
      high: row.readings[0].high,
    }));
    const hasErrors = others.some((row) => row.has_errors);
    const first = (name) => set({ run: [name, ...runs.filter((other) => other !== name)] });
    const reading = (i, part) => (row) => row.readings?.[i].text[part] ?? "–";
    const columns = [
      { title: "run", cell: (row) => html`<a href=${link(["run", row.name])}>${visible(row.name)}</a>` },
      { title: "mean reward", numeric: true, cell: (row) => row.text.mean },
      { title: "95% interval", cell: (row) => row.text.interval },
      { title: "n", numeric: true, cell: (row) => count(row.n) },
      { title: "errors", numeric: true, cell: (row) => count(row.errors) },
      { title: `difference, ${found.metric}`, numeric: true, cell: reading(0, "difference") },
      { title: "simultaneous interval", cell: reading(0, "interval") },
      { title: "p, Holm", numeric: true, cell: reading(0, "p") },
      { title: "of", numeric: true, cell: (row) => row.readings?.[0].n ?? "–" },
      { title: "errored counted", cell: reading(1, "difference"), errors: true },
      { title: "its interval", cell: reading(1, "interval"), errors: true },
      {
        title: "verdict",
        cell: (row) =>
          row.verdict
            ? html`<a href=${link(["compare", base.name, row.name], { allow })}>${row.verdict}</a>`
            : html`<span class="soft">compared with</span>`,
      },
    ];
    return html`
      <${Crumbs} path=${[["runs", link(["runs"])]]} />
      <h1>${others.length} runs <span class="soft">compared with</span> ${visible(base.name)}</h1>
      <p>${others.length} comparisons, corrected for their number: p by Holm, and intervals by Bonferroni,
        so that all of them hold at once with 95% confidence. A verdict needs a whole interval on one side
        of 0${hasErrors ? ", with errored items counted and without them" : ""}.</p>
      <p><${Select} label="compare with" value=${base.name} options=${runs} onChange=${first} />${" "}
        <${Select} label="add" value="" none="a run" options=${found.others}
          onChange=${(name) => name && set({ run: [...runs, name] })} /></p>
      <${Forest} at=${0} rows=${drawn} sign />
      <${Table} label="runs" rows=${found.rows} columns=${columns.filter((c) => hasErrors || !c.errors)} />
      ${others.map((row) =>
        row.blocks.length
          ? html`<details><summary>${visible(row.name)}: what limits it</summary>
              <${Blocks} blocks=${row.blocks} /></details>`
          : null,
      )}`;
  };
  return html`<${Loaded} answer=${answer} view=${view} refused=${refused} />`;
}
