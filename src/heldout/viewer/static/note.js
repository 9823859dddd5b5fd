// What a reviewer says of an answer: shown where there is a note, written where the server takes notes.

import { send } from "./api.js";
import { useAnswer, useKeys } from "./hooks.js";
import { Problem, Table } from "./parts.js";
import { link } from "./route.js";
import { ago, count, oneLine, visible } from "./text.js";
import { html, useRef, useState } from "./vendor/preact-htm.js";

const LABELS = ["correct", "incorrect", "not_attempted"];

/** @param {{sample: any}} props an attempt, with its note */
export function Note({ sample }) {
  const { name, id, repeat } = sample;
  const [written, setWritten] = useState(null);
  const [problem, setProblem] = useState(null);
  const field = useRef(null);
  const of = `${name}\n${id}\n${repeat}`;
  const { note, note_problem: damage } = written?.of === of ? written : sample;
  const write = async (label, remark) => {
    try {
      setWritten({ of, ...(await send("note", { name, id, repeat, label, remark })) });
      setProblem(null);
    } catch (refused) {
      setProblem(refused);
    }
  };
  useKeys(sample.takes_notes ? { r: () => field.current?.focus() } : {});
  if (!note && !damage && !sample.takes_notes) return null;
  const label = note?.label || "";
  const remark = note?.remark || "";
  const turn = (one) => write(label === one ? "" : one, remark);
  return html`<h2>Note</h2>
    ${damage ? html`<p class="errored">${visible(damage)}</p>` : null}
    ${problem ? html`<${Problem} problem=${problem} />` : null}
    ${note && !note.is_current ? html`<p class="errored">about an earlier answer to this sample</p>` : null}
    ${
      sample.takes_notes
        ? html`<div class="toolbar">${[...new Set([...LABELS, label].filter(Boolean))].map(
            (one) => html`<button aria-pressed=${label === one} onClick=${() => turn(one)}>
              ${visible(one)}</button>`,
          )}</div>
          <label class="remark">remark <textarea rows="3" maxlength="4000" key=${of} ref=${field} title="r"
            onChange=${(event) => write(label, event.target.value)}>${remark}</textarea></label>`
        : html`<p><b>${visible(label)}</b> ${visible(remark)}</p>`
    }
    ${note ? html`<p class="soft">written ${ago(note.time)}</p>` : null}`;
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
