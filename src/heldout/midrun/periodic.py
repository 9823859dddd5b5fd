"""PeriodicEval: an eval every so many steps of somebody else's training.

    evals = PeriodicEval(samples, live_model(tokenizer, score_fn), every_steps=50,
                         heartbeat_fn=print, model_getter=lambda: model, run_dir="outputs/run1")
    for step in range(1, …):
        …                          # train
        evals.maybe_run(step)      # evaluates if it is due
    evals.run_final(step)          # the last weights, on or off cadence

This is cadence, isolation, budget and curve around `heldout.evaluate`; there is no second engine.
Training does not notice (clause 13) and is never interrupted: an eval ends in a result or in a skip
with its reason, and both are lines of `curve.jsonl` (clause 14).
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from heldout.config import describe_callable
from heldout.errors import InvalidInput, ResumeMismatch, RunDirectoryError
from heldout.isolation import untouched_random_state
from heldout.midrun.budget import SMALLEST, Budget
from heldout.midrun.curve import (
    CurvePoint,
    CurveWriter,
    Outcome,
    current_points,
    curve_writer,
    forget_stop,
    read_points,
    stop_requested,
)
from heldout.midrun.heartbeats import Heartbeat, heartbeat_fields
from heldout.midrun.measure import Measured, Task, describe, measure
from heldout.midrun.ranks import Alone, Ranks, current_ranks
from heldout.midrun.runners import Runner, RunnerBuilder
from heldout.midrun.samples import checked, digest, fixed_order
from heldout.midrun.settings import NUM, Settings
from heldout.store.rundir import RunDir, RunInfo, now
from heldout.types import Sample

log = logging.getLogger("heldout")

Monitor = Callable[[Sequence[CurvePoint]], str | None]
"""Given the curve so far, by step: why training should stop, or None."""


class PeriodicEval:
    """`label` names the eval in heartbeats, logs and the curve; `run_dir` is where that curve is.

    `model_getter` may be set later, and is asked anew each time. `num` takes only so many of the
    samples; which ones, and in which order, depends on `seed` and their ids alone, so that every
    smaller part lies inside every larger one. `at_start` evaluates step 0 too. `max_overhead` is
    the share of training time that evals may take (`min_samples` are the fewest it goes down to);
    `max_seconds` ends an eval early, as a partial, so that nothing holds up training for ever.
    `across` says who evaluates where training runs in several processes: the first one, or all of
    them, each its part.
    """

    def __init__(
        self,
        samples: Iterable[Sample],
        runner_builder: RunnerBuilder,
        every_steps: int | None = None,
        heartbeat_fn: Heartbeat | None = None,
        model_getter: Callable[[], Any] | None = None,
        pass_threshold: float | None = None,
        label: str = "rl_eval",
        *,
        run_dir: str | Path | None = None,
        num: int | None = None,
        seed: int = 0,
        at_start: bool = False,
        max_overhead: float | None = None,
        min_samples: int = SMALLEST,
        max_seconds: float | None = 3600.0,
        monitor: Monitor | None = None,
        progress_seconds: float = 10.0,
        across: Literal["first", "all"] = "first",
        ranks: Ranks | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        outside = Settings.from_environment()
        self.every_steps = outside.every_steps if every_steps is None else every_steps
        if num is None and os.environ.get(NUM, "").strip():
            num = outside.num
            if num == 0:
                self.every_steps, num = 0, None
        _check_counts(self.every_steps, num, min_samples, seed)
        _check_seconds(max_overhead, max_seconds, progress_seconds)
        if across not in ("first", "all"):
            raise InvalidInput(f"across is 'first' or 'all', got {across!r}")
        if not callable(runner_builder):
            raise InvalidInput(
                f"runner_builder is a function (model) -> Runner, got {runner_builder!r:.100}"
            )
        if not isinstance(label, str) or not label.replace("_", "").replace("-", "").isalnum():
            raise InvalidInput(f"label is a name: letters, digits, _ and -, got {label!r}")
        self.label = label
        self.model_getter = model_getter
        # Absolute: somebody may change the working directory in the middle of it.
        self.run_dir = Path(run_dir or Path("outputs/evals") / label).absolute()
        self.rides_window = False
        """Whether it runs inside the rollouts of a trainer, and nowhere else."""
        self.history: list[CurvePoint] = []
        """Points of this start of the training; `points` has those before it, too."""
        self.samples = fixed_order(checked(samples), seed)[:num]
        """Those that are evaluated, in the fixed order."""
        self.runner_builder, self._heartbeat, self._monitor = runner_builder, heartbeat_fn, monitor
        self._threshold = outside.pass_threshold if pass_threshold is None else pass_threshold
        self._seed, self._at_start, self._across = seed, at_start, across
        self._max_seconds, self._progress_seconds = max_seconds, progress_seconds
        self._clock, self._ranks = clock, ranks
        self._session = os.urandom(4).hex()
        self._budget = None
        if max_overhead is not None:
            self._budget = Budget(max_overhead, len(self.samples), smallest=min_samples)
        self._seen: int | None = None
        self._began: float | None = None
        self._evaluating = self._trained_before = 0.0
        self._unwritten: list[CurvePoint] = []
        self._reused = False
        self._last: int | None = None
        self._stop: str | None = None
        self._earlier: list[CurvePoint] = []
        self._functions: dict[str, Any] | None = None
        self._curve: CurveWriter | None = None
        first = os.environ.get("RANK", "0") == "0" and (ranks or current_ranks()).rank == 0
        if self.every_steps and first:
            self._enter()

    # --- Cadence ---

    def should_run(self, step: int) -> bool:
        """Whether an eval is due at this step, by the cadence alone.

        A counter that jumps is due where it has passed a multiple since `maybe_run` last saw it.
        """
        if self.every_steps <= 0 or step < 0:
            return False
        if step == 0:
            return self._at_start
        seen = step - 1 if self._seen is None or self._seen >= step else self._seen
        return step // self.every_steps > seen // self.every_steps

    def maybe_run(self, step: int, model: Any = None) -> CurvePoint | None:
        """Evaluate if it is due and the budget allows it; None otherwise."""
        self.begin()
        if self._seen is not None and step < self._seen:
            self._start_again()
        due = self.should_run(step)
        self._seen = step
        # Where others take part the first one says so to all of them, further down.
        if not due or (self._across == "first" and self._affordable() == 0):
            return None
        return self._run(step, model, lambda weights: self._affordable())

    def run_eval(self, step: int, model: Any = None) -> CurvePoint | None:
        """Evaluate all samples now, as step `step`. None where another process does it."""
        return self._run(step, model, lambda weights: len(self.samples), whole=True)

    def run_final(self, step: int, model: Any = None) -> CurvePoint | None:
        """The last weights, on all samples, unless they have that result already (clause 17)."""
        if self.every_steps <= 0:
            return None
        whole = len(self.samples)

        def missing(weights: str | None) -> int:
            """Asked of the first process alone: the others have no history."""
            for point in self.history:
                if point.step != step:
                    continue
                # The same weights would be skipped for the same reason, or cut at the same limit.
                if not point.has_result and None not in (weights, point.weights):
                    known = True
                else:
                    known = _is_whole(point) or point.partial is not None
                if known and _same(point.weights, weights):
                    return 0
            return whole

        point = self._run(step, model, missing, final=True, whole=True)
        self._say_complete()
        return point

    def begin(self) -> None:
        """Training starts now, as far as the budget is concerned; the first step says so, too."""
        if self._began is None:
            self._began = self._clock()

    def _start_again(self) -> None:
        """The counter went back: another training, or this one from a checkpoint."""
        self._earlier += self.history
        self.history = []
        self._session = os.urandom(4).hex()

    @property
    def points(self) -> list[CurvePoint]:
        """The curve as it stands, by step, earlier starts of this training included."""
        return current_points([*self._earlier, *self.history])

    @property
    def stop_requested(self) -> str | None:
        """Why training should stop, if the monitor or `heldout stop` said so."""
        if self._stop is None:
            self._stop = stop_requested(self.run_dir)
        return self._stop

    # --- One eval ---

    def _run(
        self,
        step: int,
        model: Any,
        affordable: Callable[[str | None], int],
        *,
        final: bool = False,
        whole: bool = False,
    ) -> CurvePoint | None:
        """No Exception gets out of here: this is called in the middle of a training."""
        self.begin()
        began = self._clock()
        known: list[CurvePoint] = []

        def decide(weights: str | None) -> int:
            if self._curve is None:
                self._enter()
            found = self._known_at(step, weights, whole=whole)
            if found is not None:
                known.append(found)
            return affordable(weights) if found is None else 0

        try:
            ranks = self._ranks or current_ranks()
            if self._across == "first":
                if ranks.rank != 0:
                    return None
                ranks = Alone()
            task = Task(
                step=step,
                samples=self.samples,
                builder=self.runner_builder,
                getter=self._model(model),
                home=self.run_dir,
                pass_threshold=self._threshold,
                seed=self._seed,
                decide=decide,
                admit=self._admit,
                keep_going=self._pulse(step, began, alive=ranks.rank == 0),
            )
            measured = measure(task, ranks)
            if known:
                return self._reuse(known[0])
            if measured is None or ranks.rank != 0:
                return None
        except Exception as problem:
            log.warning("%s at step %s", self.label, step, exc_info=problem)
            measured = Measured(0, skipped=describe(problem))
        finally:
            self._evaluating += self._clock() - began
        measured_at = self._clock()
        point = self._point(step, measured, measured_at - began, final=final)
        # What watches may draw random numbers, and takes its time, too.
        with untouched_random_state():
            point = self._publish(point)
        after = self._clock() - measured_at
        self._evaluating += after
        if self._budget is not None:
            self._budget = replace(self._budget, spent=self._budget.spent + after)
        return point

    def _reuse(self, point: CurvePoint) -> CurvePoint:
        """An earlier start of this training has that point already."""
        if not self._reused:
            self._reused = True
            log.warning(
                "%s: points from step %s on are on the curve in %s already, and are not measured "
                "again as long as the weights are the same; another training needs another run_dir",
                self.label,
                point.step,
                self.run_dir,
            )
        with untouched_random_state():
            self._beat(self.label, {**heartbeat_fields(point), "eval_reused": True})
        return point

    def _model(self, given: Any) -> Callable[[], Any]:
        if given is not None:
            return lambda: given
        return self.model_getter or (lambda: None)

    def _known_at(self, step: int, weights: str | None, *, whole: bool) -> CurvePoint | None:
        """A result of an earlier start that need not be repeated: same step, same weights."""
        for point in self.points:
            if (
                point.step == step
                and point.session != self._session
                and point.has_result
                and point.partial is None
                and (_is_whole(point) or not whole)
                and _same(point.weights, weights)
            ):
                return point
        return None

    def _affordable(self) -> int:
        return len(self.samples) if self._budget is None else self._budget.plan(self._trained())

    def _trained(self) -> float:
        """Seconds of training so far, without those of evaluation."""
        if self._began is None:
            return self._trained_before
        return self._trained_before + self._clock() - self._began - self._evaluating

    def _pulse(self, step: int, began: float, *, alive: bool) -> Callable[[int, int], bool]:
        """Asked all the time while an eval runs: gives signs of life, and says when time is up."""
        spoke = began

        def keep_going(done: int, total: int) -> bool:
            nonlocal spoke
            now = self._clock()
            if alive and now - spoke >= self._progress_seconds:
                spoke = now
                said = {"eval_done": done, "eval_total": total, "eval_seconds": now - began}
                self._beat(f"{self.label}_progress", {"step": step, **said})
            return self._max_seconds is None or now - began < self._max_seconds

        return keep_going

    def _point(self, step: int, measured: Measured, seconds: float, *, final: bool) -> CurvePoint:
        budget = None
        if self._budget is not None:
            once = (measured.decoding or {}).get("prepared_seconds") or 0.0
            done = len({r.sample_id for r in measured.results if r.ok})
            together = max(1, measured.rows // measured.repeats)
            spent = replace(self._budget, step=together).spend(done, seconds, once=once)
            self._budget = spent
            budget = {
                "max_overhead": spent.max_overhead,
                "overhead": spent.overhead(self._trained()),
                "spent": spent.spent,
                "trained": self._trained(),
                "cost": spent.cost,
                "samples": measured.asked // measured.repeats,
                "of": len(self.samples),
                "every_steps": self.every_steps,
                "steps_since_last": step - (self._last or 0),
            }
        self._last = step
        partial = measured.partial
        if partial is not None and self._max_seconds is not None:
            partial = f"max_seconds={self._max_seconds:g}: {partial}"
        return CurvePoint(
            label=self.label,
            step=step,
            session=self._session,
            time=now(),
            seconds=seconds,
            summary=measured.summary,
            skipped=measured.skipped,
            partial=partial,
            outcomes=tuple(
                Outcome(
                    r.sample_id,
                    r.score.reward if r.ok else None,
                    r.repeat,
                    None if r.error is None else r.error[:300],
                    r.trajectory.stop.truncated,
                )
                for r in measured.results
            ),
            asked=measured.asked,
            of=len(self.samples) * measured.repeats,
            weights=measured.weights,
            budget=budget,
            decoding=measured.decoding,
            run=measured.run,
            final=final,
        )

    def _publish(self, point: CurvePoint) -> CurvePoint:
        if self._monitor is not None and point.summary is not None:
            try:
                reason = self._monitor(current_points([*self._earlier, *self.history, point]))
                if reason:
                    point = msgspec.structs.replace(point, stop=str(reason))
                    self._stop = str(reason)
            except Exception as problem:
                log.warning("%s: the monitor failed", self.label, exc_info=problem)
        if point.skipped is not None and not (self.history and self.history[-1].skipped):
            log.warning("%s at step %s is skipped: %s", self.label, point.step, point.skipped)
        self.history.append(point)
        self._unwritten.append(point)
        try:
            self._curve = curve_writer(RunDir(self.run_dir).curve)
            while self._unwritten:
                self._curve.append(self._unwritten[0])
                del self._unwritten[0]
        except Exception as problem:
            log.error(
                "%s: the point at step %s could not be written to the curve in %s; it is tried "
                "again with the next one",
                self.label,
                point.step,
                self.run_dir,
                exc_info=problem,
            )
        self._beat(self.label, heartbeat_fields(point))
        return point

    def _beat(self, name: str, fields: dict[str, Any]) -> None:
        if self._heartbeat is None:
            return
        try:
            self._heartbeat(name, fields)
        except Exception as problem:
            log.warning("%s: heartbeat_fn failed", self.label, exc_info=problem)

    # --- The run directory ---

    def _enter(self) -> None:
        """Into the run directory. A curve of something else is refused, before training begins."""
        run = RunDir(self.run_dir)
        config = {
            "kind": "midrun",
            "label": self.label,
            "n": len(self.samples),
            "samples": digest(self.samples),
            "seed": self._seed,
            "pass_threshold": self._threshold,
            "every_steps": self.every_steps,
        }
        if run.exists() and not run.curve.exists():
            raise RunDirectoryError(f"{run.path} holds a run of another kind; use another run_dir")
        run.make()
        # Held for as long as this training lives: two of them would make one wrong curve.
        self._curve = curve_writer(run.curve)
        self._earlier = read_points(run.curve)
        if run.run.exists():
            info = run.read_info()
            different = [
                f"{key} was {info.config.get(key)!r}, is now {config[key]!r}"
                for key in config
                if key != "every_steps" and info.config.get(key) != config[key]
            ]
            if different and (self._earlier or info.config.get("label") != self.label):
                raise ResumeMismatch(
                    f"{run.path} has a curve whose points could not be compared with these: "
                    + "; ".join(different)
                    + ". Undo the change, or use another run_dir"
                )
            self._functions = info.functions if self._earlier else None
        self._take_over_budget()
        run.write_info(RunInfo.new(config, self._functions or {}))
        forget_stop(run.path)

    def _take_over_budget(self) -> None:
        """What earlier starts have spent is spent. The file is not taken at its word."""
        known = [point.budget for point in self._earlier if point.budget is not None]
        if self._budget is None or not known:
            return
        spent, trained, cost = (_time(known[-1].get(k)) for k in ("spent", "trained", "cost"))
        if spent is not None and trained is not None:
            self._budget = replace(self._budget, spent=spent, cost=cost)
            self._trained_before = trained

    def _admit(self, runner: Runner) -> None:
        """One curve, one scorer: points that were scored differently are not put side by side."""
        functions = {
            "score_fn": describe_callable(runner.score_fn),
            "prepare_messages": describe_callable(runner.prepare_messages),
            "environment_factory": describe_callable(runner.environment_factory),
            "answer_filter": describe_callable(runner.answer_filter),
            "settings": {
                "repeats": runner.repeats,
                "max_turns": runner.max_turns,
                "token_budget": runner.token_budget,
                "temperature": runner.sampling.temperature,
                "top_p": runner.sampling.top_p,
                "max_tokens": runner.sampling.max_tokens,
                "stop": list(runner.sampling.stop),
            },
        }
        if self._functions:
            changed = [name for name in functions if self._functions.get(name) != functions[name]]
            if changed:
                raise InvalidInput(
                    f"{' and '.join(changed)}: not what it was when the curve in {self.run_dir} "
                    "began, so its points could not be compared; use another run_dir"
                )
            return
        self._functions = functions
        run = RunDir(self.run_dir)
        if run.run.exists():
            info = run.read_info()
            info.functions = functions
            run.write_info(info)

    def _say_complete(self) -> None:
        run = RunDir(self.run_dir)
        try:
            if self.history and run.run.exists():
                info = run.read_info()
                info.status, info.finished = "complete", now()
                run.write_info(info)
            if self._curve is not None:
                self._curve.close()
        except (RunDirectoryError, OSError) as problem:
            log.warning("%s: %s", self.label, problem)


def _is_whole(point: CurvePoint) -> bool:
    """Whether it is of the whole held-out set."""
    return point.has_result and point.partial is None and point.asked == point.of


def _same(before: str | None, now: str | None) -> bool:
    """Whether these are the same weights, as far as can be told."""
    return before is None or now is None or before == now


def _time(value: Any) -> float | None:
    known = isinstance(value, int | float) and math.isfinite(value) and value >= 0
    return float(value) if known else None


def _check_counts(every_steps: Any, num: Any, min_samples: Any, seed: Any) -> None:
    for name, value, low in (
        ("every_steps", every_steps, 0),
        ("num", 1 if num is None else num, 1),
        ("min_samples", min_samples, 1),
        ("seed", seed, 0),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise InvalidInput(f"{name} is a whole number >= {low}, got {value!r}")


def _check_seconds(max_overhead: Any, max_seconds: Any, progress_seconds: Any) -> None:
    for name, value in (
        ("max_overhead", max_overhead),
        ("max_seconds", max_seconds),
        ("progress_seconds", progress_seconds),
    ):
        if (value is not None or name == "progress_seconds") and (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
            or value <= 0
        ):
            raise InvalidInput(f"{name} is a number above 0, or None, got {value!r}")
