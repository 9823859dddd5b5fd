// What a reviewer says of an answer: shown where there is a note, written where the server takes notes.

import { useAnswer, useKeys } from "./hooks.js";
import { Problem, Table } from "./parts.js";
import { link } from "./route.js";
import { ago, count, oneLine, visible } from "./text.js";
import { discard, edit, insist, known, refused, save, shown, useUnsaved } from "./unsaved.js";
import { html, useEffect, useRef } from "./vendor/preact-htm.js";

const LABELS = ["correct", "incorrect", "not_attempted"];
const STATES = { typed: "not saved yet", writing: "saving…", refused: "not saved" };

/** @param {{sample: any}} props an attempt, with its note */
export function Note({ sample }) {
  useUnsaved();
  const field = useRef(null);
  const of = JSON.stringify([sample.name, sample.id, sample.repeat]);
  const { note, note_problem: damage } = known(sample);
  const { label, remark, state } = shown(sample);
  useKeys(sample.takes_notes ? { r: () => field.current?.focus() } : {});
  // A field that is taken away with the focus in it says nothing of having lost it.
  useEffect(() => () => save(sample), [of]);
  if (!note && !damage && !sample.takes_notes) return null;
  const turn = (one) => {
    edit(sample, { label: label === one ? "" : one });
    save(sample);
  };
  return html`<h2>Note</h2>
    ${damage ? html`<p class="errored">${visible(damage)}</p>` : null}
    ${note && !note.is_current ? html`<p class="errored">about an earlier answer to this sample</p>` : null}
    ${
      sample.takes_notes
        ? html`<div class="toolbar">${[...new Set([...LABELS, label].filter(Boolean))].map(
            (one) => html`<button aria-pressed=${label === one} onClick=${() => turn(one)}>
              ${visible(one)}</button>`,
          )}</div>
          <label class="remark">remark <textarea rows="3" maxlength="4000" key=${of} ref=${field} title="r"
            value=${remark} onInput=${(event) => edit(sample, { remark: event.target.value })}
            onBlur=${() => save(sample)}></textarea></label>`
        : html`<p><b>${visible(label)}</b> ${visible(remark)}</p>`
    }
    <p class=${state === "refused" ? "errored" : "soft"} role="status">${
      STATES[state] || (note ? `written ${ago(note.time)}` : "")
    }</p>`;
}

/** Notes that could not be written, on every page until they are written or discarded. */
export function Refusals() {
  useUnsaved();
  const all = refused();
  if (!all.length) return null;
  return html`<div class="refusals">${all.map((one) => {
    const { attempt, problem } = one;
    const { name, id, repeat } = attempt;
    const href = link(["run", name, "sample"], { id, repeat: repeat || "" });
    const theirs = problem.answer?.note;
    return html`<div class="problem" role="alert" key=${JSON.stringify(attempt)}>
      <p>The note on <a href=${href}>${visible(id)}</a> is not saved. ${visible(problem.message)}</p>
      ${
        problem.answer
          ? html`<p>It is now: <b>${visible(theirs?.label || "no label")}</b>${" "}
              ${visible(theirs?.remark || "")}</p>`
          : null
      }
      <p>Yours: <b>${visible(one.label || "no label")}</b> ${visible(one.remark)}</p>
      <p class="toolbar"><button onClick=${() => insist(one)}>${
        problem.answer ? "Write mine over it" : "Try again"
      }</button>
        <button onClick=${() => discard(one)}>Discard mine</button></p></div>`;
  })}</div>`;
}

/** All notes of a run. */
export function Notes({ name }) {
  const answer = useAnswer("notes", { name });
  if (answer.problem?.status === 404) return null; // an exported file without notes
  if (answer.problem) return html`<${Problem} problem=${answer.problem} />`;
  if (!answer.data?.total) return null;
  const { total, counts, rows } = answer.data;
  const labels = Object.entries(counts).map(([label, n]) => `${n} ${label || "without a label"}`);
  const href = ({ id, repeat }) => link(["run", name, "sample"], { id, repeat: repeat || "" });
  return html`<h2>Notes</h2>
    <p>${count(total)} of reviewers: ${visible(labels.join(", "))}</p>
    <${Table} label="notes" rows=${rows} columns=${[
      { title: "sample", cell: (row) => html`<a href=${href(row)}>${oneLine(row.id, 60)}</a>` },
      { title: "label", cell: (row) => visible(row.label) },
      { title: "remark", wrap: true, cell: (row) => oneLine(row.remark, 300) },
      { title: "", cell: (row) => (row.is_current ? "" : "about an earlier answer") },
    ]} />`;
}
