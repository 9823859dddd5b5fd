// The samples of a run: filtered and sorted by the server, one row per item.

import { follow, get } from "./api.js";
import { isExport } from "./exported.js";
import { Grid } from "./grid.js";
import { useAnswer, useKeys } from "./hooks.js";
import { Busy, Chooser, Crumbs, Mean, Problem, Sign } from "./parts.js";
import { go, link, set } from "./route.js";
import { count, duration, oneLine, visible } from "./text.js";
import { html, useEffect, useState } from "./vendor/preact-htm.js";
import { Views } from "./views.js";

const CHIPS = [
  ["failed", "failed:yes"],
  ["errored", "errored:yes"],
  ["truncated", "truncated:yes"],
];
/** Milliseconds without a key after which a filter is asked for. */
const TYPING = 200;
/** Milliseconds that a mean has to stand there to have been looked at. */
const LOOKING = 1000;

/** Filters by metadata whose mean was looked at, by run: past the first, chance has had more tries. */
const looked = new Map();

export function Samples({ name, params }) {
  const where = params.get("where") || "";
  const sort = params.get("sort") || "";
  const at = Number(params.get("at") || 0);
  const cols = params.getAll("cols");
  const request = { name, where, sort, cols };
  const answer = useRows(request);
  const head = answer.data;
  const isShown = head && !answer.isStale && !answer.problem;
  const isCounted = isShown && head.total !== null;
  const slices = useSlices(name, where, isShown && head.mean && head.picked === "metadata");
  const fresh = useNewRows(name, head);

  const toggle = (term) => {
    const terms = where.split(/\s+/).filter(Boolean);
    const next = terms.includes(term) ? terms.filter((t) => t !== term) : [...terms, term];
    set({ where: next.join(" "), at: "" });
  };
  useKeys({
    f: () => toggle("failed:yes"),
    Escape: () => go(["run", name]),
  });

  const terms = where.split(/\s+/);
  return html`
    <${Crumbs} path=${[["runs", link(["runs"])], [name, link(["run", name])]]} />
    <h1>Samples</h1>
    <div class="toolbar">
      <${Filter} where=${where} completions=${head?.completions || []} isBad=${answer.problem !== null} />
      ${CHIPS.map(
        ([label, term]) => html`<button aria-pressed=${terms.includes(term)} onClick=${() => toggle(term)}>
          <${Sign} outcome=${label} />${` ${label}`}
          ${isCounted ? html` <span class="soft">${count(head.counts[label])}</span>` : null}</button>`,
      )}
      ${
        head?.fields.length && !isExport()
          ? html`<${Chooser} fields=${head.fields} chosen=${cols.length ? cols : head.extra}
              onChange=${(names) => set({ cols: names.length ? names : ["none"] })} />`
          : null
      }
      <${Views} name=${name} view=${{ where, sort, cols }} />
      ${isShown && head.total && !isExport() ? html`<${Files} request=${request} />` : null}
    </div>
    <${Refusal} problem=${answer.problem} where=${where} retry=${answer.reload} />
    ${
      isShown
        ? html`<${Counts} head=${head} slices=${slices} fresh=${fresh} onFresh=${answer.reload} />`
        : head && answer.problem
          ? html`<p class="soft" role="status">The rows are those of the last filter.</p>`
          : null
    }
    <${Busy} is=${head && answer.isStale && !answer.problem} />
    ${
      head
        ? html`<${Rows} head=${head} request=${request} answer=${answer} at=${at} />`
        : answer.problem
          ? null
          : html`<p class="soft" role="status">Loading…</p>`
    }`;
}

/** The first rows; of a text that is in many, they are there before all of them are counted. */
function useRows(request) {
  const params = { ...request, limit: 100 };
  const isQuick = request.where && !request.sort;
  const quick = useAnswer("rows", isQuick ? { ...params, quick: 1 } : params);
  const isPart = quick.data?.total === null && !quick.isStale;
  const whole = useAnswer(isPart ? "rows" : null, params);
  if (!isPart) return quick;
  return whole.data && !whole.isStale ? whole : { ...quick, problem: quick.problem || whole.problem };
}

/** How many slices of a run were looked at: those whose mean stood there long enough to be read. */
function useSlices(name, where, isMean) {
  const [, setSeen] = useState(0);
  const seen = looked.get(name) || new Set();
  useEffect(() => {
    if (!isMean) return undefined;
    const timer = setTimeout(() => {
      looked.set(name, seen.add(where));
      setSeen(seen.size);
    }, LOOKING);
    return () => clearTimeout(timer);
  }, [name, where, isMean]);
  return seen.size;
}

/** How many rows a running eval has by now. */
function useNewRows(name, head) {
  const [lines, setLines] = useState(0);
  useEffect(() => {
    if (!head?.running) return undefined;
    return follow(
      [name],
      "",
      (_, data) => setLines(data.lines),
      () => {},
    );
  }, [name, head?.running]);
  return head ? Math.max(0, lines - head.of) : 0;
}

/** Whether the last word of a filter may become a field: no text is searched for half a name. */
function isHalfTyped(text, completions) {
  const word = /(?:^|\s)-?([^\s:=<>!"]+)$/.exec(text)?.[1].toLowerCase();
  return word !== undefined && completions.some(({ term }) => term.toLowerCase().startsWith(word));
}

/** The filter is asked for when typing pauses, and at Enter. */
function Filter({ where, completions, isBad }) {
  const [typed, setTyped] = useState(null);
  const isHalf = typed !== null && isHalfTyped(typed, completions);
  const ask = () => {
    if (typed === null) return;
    if (typed !== where) set({ where: typed, at: "" });
    setTyped(null);
  };
  useEffect(() => {
    if (typed === null || isHalf) return undefined;
    const timer = setTimeout(ask, TYPING);
    return () => clearTimeout(timer);
  }, [typed]);
  const text = typed ?? where;
  // What is completed is the last term; those before it stay.
  const before = text.replace(/\S*$/, "");
  return html`<input class="filter" type="search" list="completions" aria-label="Filter" data-filter
      spellcheck="false" autocomplete="off" value=${text} aria-invalid=${isBad ? "true" : undefined}
      placeholder=${'filter: reward<0.5  level:hard  -truncated:yes  text:"refund"'}
      onInput=${(event) => setTyped(event.target.value)} onBlur=${ask}
      onKeyDown=${(event) => event.key === "Enter" && ask()} />
    <datalist id="completions">${completions.map(
      ({ term, rows }) =>
        html`<option value=${before + term}>${rows === null ? "" : `${count(rows)} rows`}</option>`,
    )}</datalist>
    ${isHalf ? html`<span class="soft" role="status">Enter searches for the text</span>` : null}`;
}

/** The rows of the filter as a file. */
function Files({ request }) {
  const [said, setSaid] = useState("");
  const save = async (format) => {
    setSaid("…");
    try {
      const { text, rows, total } = await get("table-file", { ...request, cols: [], format });
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([text]));
      link.download = `${request.name.replace(/[^\w.-]+/g, "-")}.${format}`;
      link.click();
      URL.revokeObjectURL(link.href);
      setSaid(rows < total ? `the first ${count(rows)} of ${count(total)} rows` : "");
    } catch (problem) {
      setSaid(problem.message);
    }
  };
  return html`<span>${["csv", "jsonl"].map(
    (format) => html`<button onClick=${() => save(format)} title="these rows as a file">${format}</button> `,
  )}<span class="soft" role="status">${said}</span></span>`;
}

/** Why there are no rows; of a filter, where it cannot be read. */
function Refusal({ problem, where, retry }) {
  if (!problem) return null;
  if (problem.at === undefined) return html`<${Problem} problem=${problem} retry=${retry} />`;
  return html`<p class="problem" role="alert"><code>${visible(where.slice(0, problem.at))}
    <mark>${visible(where.slice(problem.at))}</mark></code>${` ${visible(problem.message)}`}</p>`;
}

function Counts({ head, slices, fresh, onFresh }) {
  const notes = [];
  if (head.mean) notes.push(html`mean reward <${Mean} of=${head.mean} />`);
  if (head.picked === "outcome")
    notes.push("picked by their result, so a mean of these would say nothing about the policy");
  if (head.picked === "metadata" && isExport())
    notes.push("an exported file has no mean of some of the rows; the run's slices have theirs");
  if (head.picked === "metadata" && slices > 1)
    notes.push(`${slices} slices looked at: some stand out by chance`);
  if (head.near?.length)
    notes.push(
      html`did you mean ${head.near.map(
        (term) => html`<button onClick=${() => set({ where: term, at: "" })}>${visible(term)}</button> `,
      )}`,
    );
  if (isExport() && head.inside < head.of)
    notes.push(
      `${count(head.inside)} of ${count(head.of)} conversations are in this file; other rows are grey`,
    );
  const total = head.total === null ? `at least ${count(head.rows.length)}` : count(head.total);
  if (head.total === null) notes.unshift("counting…");
  return html`<p role="status" class="counts">${total} of ${count(head.of)} rows
    ${notes.map((note) => html` · <span class=${typeof note === "string" ? "soft" : ""}>${note}</span>`)}
    ${fresh ? html` · <button onClick=${onFresh}>${count(fresh)} new rows</button>` : null}</p>`;
}

function Rows({ head, request, answer, at }) {
  const { name, where, sort } = request;
  const total = head.total ?? head.rows.length;
  const of = answer.of.replace("&quick=1", ""); // rows stay while they are counted
  const load = async (offset, limit, signal) => {
    if (offset === 0) return head.rows;
    return (await get("rows", { ...request, offset, limit }, signal)).rows;
  };
  const open = (row, index) =>
    go(["run", name, "sample"], { id: row.id, repeat: row.repeat || "", where, sort, at: index });
  return html`<${Grid} label="samples" columns=${columns(head, sort)} total=${total}
    version=${`${name} ${of} ${head.generation}`} isStale=${answer.isStale || answer.problem !== null}
    selected=${Math.min(at, Math.max(0, total - 1))} load=${load}
    isAbsent=${(row) => row.inside === false}
    onSelect=${(row) => set({ at: row })} onOpen=${open} />`;
}

function columns(head, sort) {
  const sortable = (name, column) => ({
    ...column,
    sorted: sort === name ? "ascending" : sort === `-${name}` ? "descending" : undefined,
    onSort: () => set({ sort: sort === `-${name}` ? name : `-${name}`, at: "" }),
  });
  const numeric = { width: "72px", numeric: true };
  const attempt = (row) => (head.repeats > 1 ? html`<span class="soft"> #${row.repeat + 1}</span>` : "");
  const extracted = (row) => {
    if (row.error) return html`<span class="errored">${oneLine(row.error)}</span>`;
    return row.extracted === null ? html`<em>nothing</em>` : oneLine(row.extracted ?? row.answer);
  };
  const answers = [
    { title: "extracted", width: "minmax(80px, 1.2fr)", cell: extracted },
    { title: "target", width: "minmax(60px, 1fr)", cell: (row) => oneLine(row.target) },
  ];
  const extra = head.extra.map((field, i) =>
    sortable(field, {
      title: field.replace(/^(metric|metadata)\./, ""),
      width: "minmax(60px, 1fr)",
      cell: (row) => oneLine(row.extra[i] ?? "", 60),
    }),
  );
  return [
    {
      title: html`<span class="hidden">outcome</span>`,
      width: "22px",
      cell: (row) => html`<${Sign} outcome=${row.outcome} />`,
    },
    sortable("id", {
      title: "sample",
      width: "minmax(90px, 1fr)",
      cell: (row) => html`${oneLine(row.id, 60)}${attempt(row)}`,
    }),
    sortable("reward", { ...numeric, title: "reward", cell: (row) => row.text.reward }),
    { title: "question", width: "minmax(140px, 3fr)", cell: (row) => oneLine(row.question) },
    ...(head.rows.some((row) => row.answer || row.error) ? answers : []),
    ...extra,
    sortable("tokens", { ...numeric, title: "tokens", cell: (row) => count(row.tokens) }),
    sortable("seconds", { ...numeric, title: "time", cell: (row) => duration(row.seconds) }),
  ];
}
