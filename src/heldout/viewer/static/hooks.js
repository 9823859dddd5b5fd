// What pages share: an answer that follows its request, keys while a page is there, a switch.

import { address, follow, get, onNewToken } from "./api.js";
import * as keys from "./keys.js";
import { link } from "./route.js";
import { useEffect, useLayoutEffect, useReducer, useRef, useState } from "./vendor/preact-htm.js";

/** The longest rest between two answers, in milliseconds. */
const LONGEST_REST = 10_000;

/**
 * When what changed is loaded again, however fast changes come: never while an answer is under way,
 * since the next load would abort it, and after a rest of three times what the last answer took.
 * @param {() => void} load
 */
function makePace(load) {
  let timer = null;
  let [isLoading, isBehind, begun, rested] = [false, false, 0, 0];
  const cancel = () => {
    clearTimeout(timer);
    timer = null;
    isBehind = false;
  };
  const plan = () => {
    if (!isBehind || isLoading || timer !== null) return;
    timer = setTimeout(load, Math.max(0, rested - performance.now()));
  };
  return {
    cancel,
    changed() {
      isBehind = true;
      plan();
    },
    begin() {
      cancel(); // this answer has all changes until now
      [isLoading, begun] = [true, performance.now()];
    },
    end() {
      const now = performance.now();
      [isLoading, rested] = [false, now + Math.min(LONGEST_REST, 3 * (now - begun))];
      plan();
    },
  };
}

/**
 * The answer to a request, asked for again whenever the request changes. What was answered stays
 * while something newer loads, and when that fails.
 * @param {string | null} path null: nothing is asked for
 * @param {Record<string, unknown>} params
 * @param {(data: any) => string[] | null} follows the runs whose changes load it again
 * @param {unknown} version what else loads it again when it changes
 */
export function useAnswer(path, params = {}, follows = () => null, version = 0) {
  const [answer, setAnswer] = useState({ data: null, problem: null, of: "" });
  const [live, setLive] = useState("");
  const [asked, reload] = useReducer((times) => times + 1, 0);
  const pace = useRef(null);
  pace.current ??= makePace(reload);
  const seen = useRef(version);
  const request = path === null ? "" : address(path, params);

  useEffect(() => {
    if (!request) return undefined;
    const stop = new AbortController();
    pace.current.begin();
    seen.current = version;
    const settle = (next) => {
      if (stop.signal.aborted) return;
      pace.current.end();
      setAnswer(next);
    };
    get(path, params, stop.signal).then(
      (data) => settle({ data, problem: null, of: request }),
      (problem) => settle((last) => ({ ...last, problem })),
    );
    return () => {
      stop.abort();
      pace.current.cancel();
    };
  }, [request, asked]);

  useEffect(() => {
    if (request && seen.current !== version) pace.current.changed();
    seen.current = version;
  }, [version]);

  useEffect(() => (answer.problem?.status === 401 ? onNewToken(reload) : undefined), [answer.problem]);

  const names = answer.data && request ? follows(answer.data) : null;
  useEffect(
    () => (names ? follow(names, answer.data.state || "", pace.current.changed, setLive) : undefined),
    [names?.join("\n")],
  );

  if (!request) return { data: null, problem: null, of: "", live: "", isStale: false, reload };
  return { ...answer, live, isStale: answer.of !== request, reload };
}

/**
 * The samples that flipped between two steps of a curve, one after the other.
 * @param {string} name @param {string} label @param {number[]} steps two, or nothing is asked for
 */
export function useFlips(name, label, steps) {
  const [from, to] = steps;
  const isChosen = steps.length === 2;
  const answer = useAnswer(isChosen ? "curve-flips" : null, { name, label, from_step: from, to_step: to });
  const { lost, gained } = answer.data && !answer.isStale ? answer.data : {};
  const all = lost ? [...lost.rows, ...gained.rows].map((row) => row.id) : [];
  const href = (id) => link(["curve", name, "sample"], { id, label, step: to, from, to });
  return { answer, all, href };
}

/** Keys while a component is there; those of what came later come first. */
export function useKeys(handlers) {
  const layer = useRef(handlers);
  layer.current = handlers;
  useLayoutEffect(() => keys.use(layer), []);
}

/** A value that is on or off, and what turns it. */
export function useToggle(first) {
  return useReducer((on) => !on, first);
}
