// A table of any number of rows, of which only those in view are in the document.
// Browsers end at about 17 million pixels, so beyond 6 million the scroll bar gives a fraction of
// all rows instead of pixels; wheel and keys then move by rows.

import { onNewToken } from "./api.js";
import * as keys from "./keys.js";
import { Problem } from "./parts.js";
import { Component, html } from "./vendor/preact-htm.js";

export const ROW = 28;
const TALLEST = 6_000_000;
const PAGE = 100;
/** Milliseconds until rows that could not be loaded are asked for again; twice as many each time. */
const [FIRST_PAUSE, LONGEST_PAUSE] = [1000, 30_000];
/** What is answered otherwise if it is asked again: no answer, a server's mistake, a file that changes. */
const mayPass = ({ status }) => status === 0 || status === 422 || status === 429 || status >= 500;

/** The first row to show at a scroll position. Exported for tests. */
export function firstRow(scroll, total, visible, spacer, view) {
  const last = Math.max(0, total - visible);
  if (total * ROW <= TALLEST) return Math.min(last, Math.floor(scroll / ROW));
  return Math.round((scroll / Math.max(1, spacer - view)) * last);
}

/** The scroll position that shows a row first: the inverse of firstRow. */
export function scrollFor(first, total, visible, spacer, view) {
  const last = Math.max(0, total - visible);
  if (total * ROW <= TALLEST) return first * ROW;
  return last ? (first / last) * (spacer - view) : 0;
}

export class Grid extends Component {
  state = { first: 0, view: 600 };
  /** Why rows could not be loaded: nothing more is asked for before `retry`. */
  problem = null;
  pages = new Map();
  waiting = new Set();

  componentDidMount() {
    this.observer = new ResizeObserver(() => this.setState({ view: this.box.clientHeight }));
    this.observer.observe(this.box);
    // Not passive: in a compressed scroll range the wheel moves by rows, not by pixels.
    this.box.addEventListener("wheel", this.onWheel, { passive: false });
    const current = {
      j: () => this.move(this.props.selected + 1),
      ArrowDown: () => this.move(this.props.selected + 1),
      k: () => this.move(this.props.selected - 1),
      ArrowUp: () => this.move(this.props.selected - 1),
      PageDown: () => this.move(this.props.selected + this.visible - 1),
      PageUp: () => this.move(this.props.selected + 1 - this.visible),
      Home: () => this.move(0),
      End: () => this.move(this.props.total - 1),
      Enter: () => this.open(),
    };
    this.release = keys.use({ current });
    this.forget = onNewToken(this.retry);
    this.fetch();
    this.reveal(this.props.selected);
  }

  componentWillUnmount() {
    this.observer.disconnect();
    this.release();
    this.forget();
    this.reset();
  }

  /** Take back what is under way, and the pause after a failure. */
  reset() {
    this.abort?.abort();
    this.waiting.clear();
    clearTimeout(this.timer);
    this.problem = null;
    this.pause = FIRST_PAUSE;
  }

  retry = () => {
    clearTimeout(this.timer);
    this.problem = null;
    this.forceUpdate();
  };

  componentDidUpdate(previous) {
    if (previous.version !== this.props.version) {
      this.pages.clear();
      this.reset();
      this.box.scrollTop = 0;
      this.setState({ first: 0 });
    }
    if (previous.selected !== this.props.selected) this.reveal(this.props.selected);
    this.fetch();
  }

  get visible() {
    return Math.max(1, Math.floor(this.state.view / ROW) - 1);
  }

  get spacer() {
    return Math.min(TALLEST, this.props.total * ROW) + ROW;
  }

  onScroll = () => {
    const { scrollTop, clientHeight } = this.box;
    const first = firstRow(scrollTop, this.props.total, this.visible, this.spacer, clientHeight);
    if (first !== this.state.first && !this.placed) this.setState({ first });
    this.placed = false;
  };

  onWheel = (event) => {
    if (this.props.total * ROW <= TALLEST || event.ctrlKey) return;
    event.preventDefault();
    const rows = Math.max(1, Math.round(Math.abs(event.deltaY) / ROW));
    this.show(this.state.first + Math.sign(event.deltaY) * rows);
  };

  show(first) {
    const bounded = Math.max(0, Math.min(first, this.props.total - this.visible));
    this.placed = true;
    this.box.scrollTop = scrollFor(
      bounded,
      this.props.total,
      this.visible,
      this.spacer,
      this.box.clientHeight,
    );
    this.setState({ first: bounded });
  }

  reveal(row) {
    if (row < this.state.first) this.show(row);
    else if (row >= this.state.first + this.visible) this.show(row - this.visible + 1);
  }

  /** The table takes the focus: Enter opens its row from then on, and not the last control. */
  move(row) {
    this.box.focus({ preventScroll: true });
    this.select(row);
  }

  select(row) {
    if (this.props.total) this.props.onSelect(Math.max(0, Math.min(row, this.props.total - 1)));
  }

  open(row = this.props.selected) {
    const found = this.rowAt(row);
    // Rows of an older filter stay while the newer one loads; they are not what was asked for.
    if (found && !this.props.isStale) this.props.onOpen(found, row);
  }

  rowAt(index) {
    return this.pages.get(Math.floor(index / PAGE))?.[index % PAGE];
  }

  /** Ask for the rows in view that are not here. */
  async fetch() {
    const { total, load } = this.props;
    const from = Math.floor(this.state.first / PAGE);
    const to = Math.floor(Math.min(total - 1, this.state.first + this.visible + 1) / PAGE);
    for (let page = from; page <= to; page++) {
      if (this.problem || this.pages.has(page) || this.waiting.has(page) || total === 0) continue;
      if (!this.abort || this.abort.signal.aborted) this.abort = new AbortController();
      const { signal } = this.abort;
      this.waiting.add(page);
      try {
        const rows = await load(page * PAGE, PAGE, signal);
        if (signal.aborted) return; // by a newer filter, or with the table
        this.pages.set(page, rows);
        this.pause = FIRST_PAUSE;
      } catch (problem) {
        if (signal.aborted) return;
        this.fail(problem);
      }
      this.waiting.delete(page);
      this.forceUpdate();
    }
  }

  /** Stop asking, and go on after a pause if that may help. */
  fail(problem) {
    if (this.problem) return; // of two requests at a time, the first says it
    this.problem = { problem, pause: mayPass(problem) ? this.pause : null };
    if (!this.problem.pause) return;
    this.timer = setTimeout(this.retry, this.pause);
    this.pause = Math.min(LONGEST_PAUSE, 2 * this.pause);
  }

  render() {
    const { columns, total, label, isStale } = this.props;
    const { first } = this.state;
    const rows = [];
    for (let i = first; i < Math.min(total, first + this.visible + 2); i++) rows.push(i);
    const template = { gridTemplateColumns: columns.map((column) => column.width).join(" ") };
    return html`${this.problem ? html`<${NotLoaded} ...${this.problem} retry=${this.retry} />` : null}
    <div class="grid ${isStale ? "stale" : ""}" role="grid" aria-label=${label}
      aria-busy=${isStale} aria-rowcount=${total} aria-colcount=${columns.length} tabindex="0"
      onScroll=${this.onScroll}
      ref=${(box) => {
        this.box = box;
      }}>
      <div class="spacer" role="presentation" style=${{ height: `${this.spacer}px` }}>
        <div class="pane" role="rowgroup">
          <div class="line head" role="row" style=${template}>${columns.map(this.heading)}</div>
          ${rows.map((i) => this.line(i, template))}
        </div>
      </div>
    </div>`;
  }

  heading({ title, numeric, sorted, onSort }) {
    const arrow = { ascending: " ↑", descending: " ↓" }[sorted] || "";
    return html`<span role="columnheader" class=${numeric ? "num" : ""} aria-sort=${sorted}>
      ${onSort ? html`<button class="plain" onClick=${onSort}>${title}${arrow}</button>` : title}</span>`;
  }

  line(i, template) {
    const { columns, selected, isAbsent } = this.props;
    const row = this.rowAt(i);
    const state = [i === selected && "selected", row && isAbsent?.(row) && "absent"]
      .filter(Boolean)
      .join(" ");
    const open = () => {
      this.select(i);
      this.open(i);
    };
    return html`<div key=${i} class="line ${state}" role="row" aria-rowindex=${i + 1}
      aria-selected=${i === selected} style=${template} onClick=${open}>
      ${columns.map(
        (column) =>
          html`<span role="gridcell" class=${column.numeric ? "num" : ""}>${
            row ? column.cell(row) : ""
          }</span>`,
      )}
    </div>`;
  }
}

/** Why rows are empty, and when they are asked for again. */
function NotLoaded({ problem, pause, retry }) {
  const when = pause ? ` They are asked for again in ${pause / 1000} s.` : "";
  const message = `Rows could not be loaded: ${problem.message.replace(/\.$/, "")}.${when}`;
  return html`<${Problem} problem=${{ message, hint: problem.hint }} retry=${retry} />`;
}
