// The samples of two runs as one table, ties included, with both answers of the chosen one beside it.

import { get } from "./api.js";
import { Diff } from "./conversation.js";
import { Grid } from "./grid.js";
import { useAnswer } from "./hooks.js";
import { Problem, Sign } from "./parts.js";
import { go, link, set } from "./route.js";
import { count, oneLine, visible } from "./text.js";
import { html, useEffect, useState } from "./vendor/preact-htm.js";

const CHIPS = ["lost", "gained", "lower", "higher", "equal"];
const SIGNS = { lost: "failed", gained: "passed", lower: "failed", higher: "passed" };
/** Milliseconds without a key after which a filter is asked for. */
const TYPING = 200;
const PAGE = 100;

export function Pairs({ a, b, found, params }) {
  const where = params.get("where") || "";
  const sort = params.get("sort") || "difference"; // what was lost comes first
  const at = Number(params.get("at") || 0);
  const request = { a, b, metric: params.get("metric") || "", allow: params.getAll("allow"), where, sort };
  const answer = useAnswer("pairs", { ...request, limit: PAGE });
  const head = answer.data;
  const problem = answer.problem?.status === 409 ? null : answer.problem;
  const load = async (offset, limit, signal) =>
    offset ? (await get("pairs", { ...request, offset, limit }, signal)).rows : head.rows;
  const beyond = useAnswer(at >= PAGE ? "pairs" : null, { ...request, offset: at, limit: 1 });
  const chosen = at < PAGE ? head?.rows[at] : beyond.data?.rows[0];
  /** A click shows the answers beside the table, a second one or Enter both conversations. */
  const open = (row, index) => index === at && go(["compare", a, b, "sample"], { id: row.id });
  return html`<h2>Samples</h2>
    <${Chips} head=${head} where=${where} found=${found} />
    ${problem ? html`<${Problem} problem=${problem} retry=${answer.reload} />` : null}
    ${
      head
        ? html`<p role="status" class="soft">${count(head.total)} of ${count(head.of)} samples${
            head.left_out ? `; ${count(head.left_out)} more are not in the exported file` : ""
          }</p>`
        : null
    }
    ${
      head
        ? html`<div class="pairs"><div>
            <${Grid} label="samples of both runs" columns=${columns(sort)} load=${load} total=${head.total}
               version=${answer.of} isStale=${answer.isStale || answer.problem !== null}
              selected=${Math.min(at, Math.max(0, head.total - 1))} isAbsent=${(row) => row.inside === false}
              onSelect=${(row) => set({ at: row })} onOpen=${open} /></div>
            ${beyond.problem ? html`<${Problem} problem=${beyond.problem} retry=${beyond.reload} />` : null}
            ${chosen ? html`<${Answers} a=${a} b=${b} row=${chosen} />` : null}</div>`
        : null
    }`;
}

function Chips({ head, where, found }) {
  const [typed, setTyped] = useState(null);
  const ask = () => {
    if (typed === null) return;
    if (typed !== where) set({ where: typed, at: "" });
    setTyped(null);
  };
  useEffect(() => {
    if (typed === null) return undefined;
    const timer = setTimeout(ask, TYPING);
    return () => clearTimeout(timer);
  }, [typed]);
  const terms = where.split(/\s+/).filter(Boolean);
  const toggle = (term) => {
    const others = terms.filter((other) => !CHIPS.includes(other.replace(/:yes$/, "")));
    set({ where: (terms.includes(term) ? others : [...others, term]).join(" "), at: "" });
  };
  const titles =
    found.pass_threshold === null
      ? { lost: "the return fell", gained: "the return rose" }
      : {
          lost: `${found.a.name} passed, ${found.b.name} failed`,
          gained: `${found.a.name} failed, ${found.b.name} passed`,
        };
  return html`<div class="toolbar">
    <input class="filter" type="search" aria-label="Filter samples" data-filter spellcheck="false"
      placeholder=${"filter: difference<0  level:hard  lost:yes  text:refund"} value=${typed ?? where}
      onInput=${(event) => setTyped(event.target.value)} onBlur=${ask}
      onKeyDown=${(event) => event.key === "Enter" && ask()} />
    ${CHIPS.map(
      (name) => html`<button aria-pressed=${terms.includes(`${name}:yes`)} title=${titles[name]}
        onClick=${() => toggle(`${name}:yes`)}>${`${name} `}
        ${head ? html`<span class="soft">${count(head.counts[name])}</span>` : null}</button>`,
    )}</div>`;
}

function columns(sort) {
  const sortable = (name, column) => ({
    ...column,
    sorted: sort === name ? "ascending" : sort === `-${name}` ? "descending" : undefined,
    onSort: () => set({ sort: sort === `-${name}` ? name : `-${name}`, at: "" }),
  });
  const value = (name, title) =>
    sortable(name, { title, width: "70px", numeric: true, cell: (row) => row.text[name] });
  return [
    {
      title: "change",
      width: "96px",
      cell: (row) =>
        html`${SIGNS[row.change] ? html`<${Sign} outcome=${SIGNS[row.change]} /> ` : ""}${row.change}`,
    },
    sortable("id", { title: "sample", width: "minmax(90px, 1fr)", cell: (row) => oneLine(row.id, 60) }),
    value("a", "A"),
    value("b", "B"),
    value("difference", "B − A"),
    { title: "question", width: "minmax(120px, 2fr)", cell: (row) => oneLine(row.question ?? "") },
  ];
}

/** Both answers to one sample, and what differs in them. */
function Answers({ a, b, row }) {
  const { id } = row;
  const isInside = row.inside !== false;
  const both = [
    useAnswer(isInside ? "sample" : null, { name: a, id }),
    useAnswer(isInside ? "sample" : null, { name: b, id }),
  ];
  const [left, right] = both.map((side) => (side.isStale ? null : side.data));
  const problem = both.map((side) => side.problem).find(Boolean);
  const side = (letter, sample) => html`<p><span class="letter">${letter}</span> ${sample.text.reward}${" "}
      <${Sign} outcome=${sample.outcome} /> <span class="errored">${visible(sample.error ?? "")}</span></p>
    <pre class="said clamp">${visible(sample.answer)}</pre>`;
  return html`<section class="answers" aria-label="both answers">
    <h3><a href=${link(["compare", a, b, "sample"], { id })}>${visible(id)}</a></h3>
    ${isInside ? null : html`<p class="soft">Its conversations are not in the exported file.</p>`}
    ${problem ? html`<${Problem} problem=${problem} />` : null}
    ${
      left && right
        ? html`<p class="soft">${oneLine(left.question, 300)}</p>
            <p>target: <code>${oneLine(left.target ?? "–", 120)}</code></p>
            ${
              left.repeats.length > 1
                ? html`<p class="soft">The first of ${left.repeats.length} attempts; the page of both
                    conversations has all.</p>`
                : null
            }
            ${side("A", left)}${side("B", right)}
            ${
              left.answer === right.answer
                ? html`<p class="soft">The answers are the same.</p>`
                : html`<p class="soft">from A to B</p>
                    <${Diff} before=${left.answer} after=${right.answer} />`
            }`
        : null
    }</section>`;
}
