"""Evaluation between the steps of a training loop that you wrote yourself.

    evals = EvalEvery(10_000, make_env, policy_fn, episodes=100, model=network)
    for step in range(…):
        …                                  # train
        report = evals.maybe_run(step)     # None unless an evaluation is due
    evals.run(step)                        # the final one, on or off cadence

The training does not notice: environments are the evaluation's own, random state and every
module's train/eval flag are as they were (docs/semantics.md, clauses 12 to 14). An evaluation that
fails is a skip with its reason, in `history` and in the log, and never a number.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from heldout.errors import InvalidInput
from heldout.isolation import eval_mode, modules_of, reached
from heldout.vector.drivers import layers
from heldout.vector.evaluation import PolicyFn, SuccessFn, check_arguments, evaluate_env
from heldout.vector.report import VectorReport

log = logging.getLogger("heldout")


@dataclass(frozen=True, slots=True)
class EvalPoint:
    """An evaluation that was due: its report, or why there is none."""

    step: int
    report: VectorReport | None
    skipped: str | None
    seconds: float


class EvalEvery:
    """Evaluates whenever `every_steps` more steps have been trained; 0 leaves it to `run`.

    Steps are whatever you count: a counter that jumps (by the number of training environments,
    say) is due when it passes a multiple. `make_env` makes a new environment at every call; one
    that was there before is refused. `model` is a torch module, or several, to be put into eval
    mode, without gradients, and then back, each to the flag it had; those that `policy_fn` closes
    over or is bound to are found without it. Everything else is `evaluate_env`'s.
    """

    def __init__(
        self,
        every_steps: int,
        make_env: Callable[[], Any],
        policy_fn: PolicyFn,
        episodes: int,
        *,
        num_envs: int = 1,
        seed: int = 0,
        max_steps: int | None = None,
        success: SuccessFn | None = None,
        model: Any = None,
        at_start: bool = False,
    ) -> None:
        if (
            isinstance(every_steps, bool)
            or not isinstance(every_steps, int | np.integer)
            or every_steps < 0
        ):
            raise InvalidInput(
                f"every_steps is a whole number of at least 0 (0: only where run() is called), "
                f"got {every_steps!r}"
            )
        check_arguments(make_env, policy_fn, episodes, num_envs, seed, max_steps, success)
        self.every_steps, self.seed = every_steps, seed
        self.history: list[EvalPoint] = []
        self._evaluate: Callable[[], VectorReport] = lambda: evaluate_env(
            partial(_new, make_env),
            policy_fn,
            episodes,
            num_envs=num_envs,
            seed=seed,
            max_steps=max_steps,
            success=success,
        )
        self._model = _modules(model)  # once: an iterator of modules would be used up
        self._at_start = at_start
        self._passed = -1 if at_start else 0
        """How many multiples of every_steps were passed at the last look."""

    def begin(self, step: int) -> None:
        """Say where training begins, if that is not at 0: what lies before is not due."""
        self._passed = step // self.every_steps if self.every_steps else 0
        if self._at_start:
            self._passed -= 1

    def maybe_run(self, step: int) -> VectorReport | None:
        """The report of an evaluation that was due and could run; None otherwise."""
        if not self.every_steps:
            return None
        passed = step // self.every_steps
        if passed == self._passed:
            return None
        # A counter that went back has been started again.
        due, self._passed = passed > self._passed, passed
        return self.run(step) if due else None

    def run(self, step: int) -> VectorReport | None:
        """Evaluate now, as step `step`. Returns None, never raises, where it fails."""
        began = time.perf_counter()
        report, skipped = None, None
        try:
            with eval_mode(self._model):
                report = self._evaluate()
        except Exception as problem:
            # Whatever it was, it must not end the training.
            skipped = f"{type(problem).__name__}: {problem}"
            log.warning("evaluation at step %s skipped: %s", step, skipped, exc_info=problem)
        self.history.append(EvalPoint(step, report, skipped, time.perf_counter() - began))
        return report


def _new(make_env: Callable[[], Any]) -> Any:
    """An environment that `make_env` has made, not one that it had: training's would be reset in
    the middle of an episode, and closed."""
    before = list(reached(make_env))  # kept: nothing that is made now can have the id of one
    env = make_env()
    if not {id(layer) for layer in layers(env)}.isdisjoint(map(id, before)):
        raise InvalidInput(
            "make_env() returned an environment that was there before, such as one that training "
            "uses; it must make a new environment at every call: make_env=lambda: gymnasium.make(…)"
        )
    return env


def _modules(model: Any) -> list[Any]:
    """As `modules_of`, but of whatever can be iterated, and strict."""
    if model is None or callable(getattr(model, "modules", None)):
        return modules_of(model)
    parts = model.values() if isinstance(model, Mapping) else model
    if isinstance(parts, str) or not isinstance(parts, Iterable):
        raise InvalidInput(
            f"model is a torch module, or a list or dict of them, got {model!r:.120}"
        )
    return [module for part in parts for module in _modules(part)]
