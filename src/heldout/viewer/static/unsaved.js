// Notes that are not on disk yet. One writer sends them, one at a time and each with all that is on
// screen, so that none is overwritten by an older half. What could not be written stays here.

import { send } from "./api.js";
import { useEffect, useReducer } from "./vendor/preact-htm.js";

/**
 * @typedef {{label: string, remark: string}} Text
 * @typedef {Text & {attempt: {name: string, id: string, repeat: number}, was: Text, isDue: boolean,
 *   problem: any}} Unsaved `was` is what it replaces, which the server checks
 * @type {Map<string, Unsaved>}
 */
const unsaved = new Map();
/** What the server said of each attempt when it wrote a note. */
const answers = new Map();
const listeners = new Set();
let writing = null;

const keyOf = ({ name, id, repeat }) => JSON.stringify([name, id, repeat]);
const isSame = (one, other) => one.label === other.label && one.remark === other.remark;
/** As the server keeps it. */
const trimmed = (one) => ({ ...one, label: one.label.trim(), remark: one.remark.trim() });
const textOf = ({ note }) => ({ label: note?.label || "", remark: note?.remark || "" });

function tell() {
  for (const listener of listeners) listener();
}

/** Draw again whenever a note is changed, written or refused. */
export function useUnsaved() {
  const [, draw] = useReducer((times) => times + 1, 0);
  useEffect(() => {
    listeners.add(draw);
    return () => listeners.delete(draw);
  }, []);
}

/** The note on an attempt as the server has it, by the newest of its answers: its file only grows. */
export function known(sample) {
  const answer = answers.get(keyOf(sample));
  return answer?.notes_bytes >= sample.notes_bytes ? answer : sample;
}

/** What is on screen, and how far it is from being written. */
export function shown(sample) {
  const key = keyOf(sample);
  const one = unsaved.get(key);
  if (!one) return { ...textOf(known(sample)), state: "saved" };
  if (one.problem) return { ...one, state: "refused" };
  return { ...one, state: one.isDue || writing === key ? "writing" : "typed" };
}

/** Change what is on screen; `save` has it written. */
export function edit(sample, part) {
  const key = keyOf(sample);
  const { name, id, repeat } = sample;
  const present = textOf(known(sample));
  const before = unsaved.get(key) || { ...present, was: present, isDue: false, problem: null };
  unsaved.set(key, { ...before, ...part, attempt: { name, id, repeat } });
  tell();
}

export function save(sample) {
  const key = keyOf(sample);
  if (!unsaved.has(key)) return;
  const one = trimmed(unsaved.get(key));
  // Of a request that failed, nobody knows whether it was written.
  if (isSame(one, one.was) && !one.problem && writing !== key) unsaved.delete(key);
  else unsaved.set(key, { ...one, isDue: true, problem: null });
  tell();
  write();
}

async function write() {
  if (writing) return;
  for (;;) {
    const [key, sent] = [...unsaved].find(([, one]) => one.isDue) || [];
    if (!sent) return;
    writing = key;
    // What is typed from here on waits until its field is left: half a word is no remark, and the
    // server's answer, without the space at its end, would take that space from under the cursor.
    unsaved.set(key, { ...sent, isDue: false });
    const { attempt, label, remark, was } = sent;
    const result = await send("note", { ...attempt, label, remark, was }).catch((problem) => ({ problem }));
    writing = null;
    const now = unsaved.get(key);
    if (result.problem) {
      if (now) unsaved.set(key, { ...now, isDue: false, problem: result.problem });
    } else {
      answers.set(key, result);
      const written = textOf(result);
      if (now && isSame(now, written)) unsaved.delete(key);
      else if (now) unsaved.set(key, { ...now, was: written });
    }
    tell();
  }
}

/** Notes that could not be written. */
export const refused = () => [...unsaved.values()].filter((one) => one.problem);

/** Write one all the same: over what somebody else wrote meanwhile, if that is why it was refused. */
export function insist({ attempt, problem }) {
  const one = unsaved.get(keyOf(attempt));
  if (problem.answer) unsaved.set(keyOf(attempt), { ...one, was: textOf(problem.answer) });
  save(attempt);
}

export function discard({ attempt, problem }) {
  if (problem.answer) answers.set(keyOf(attempt), problem.answer);
  unsaved.delete(keyOf(attempt));
  tell();
}

// The request goes on without the page, but nobody would see that it failed.
addEventListener("beforeunload", (event) => {
  if (!unsaved.size) return;
  for (const { attempt } of unsaved.values()) save(attempt);
  if (unsaved.size) event.preventDefault();
});
