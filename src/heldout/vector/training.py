"""Evaluation between the steps of a training loop that you wrote yourself.

    evals = EvalEvery(10_000, make_env, policy_fn, episodes=100)
    for step in range(…):
        …                                  # train
        report = evals.maybe_run(step)     # None unless an evaluation is due
    evals.run(step)                        # the final one, on or off cadence

It has no side effects on training: environments are the evaluation's own, random state and every
module's train/eval flag are restored (docs/semantics.md, clauses 12 to 14). An evaluation that
fails is a skip with its reason, in `history` and in the log, and never a number.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from heldout.errors import InvalidInput
from heldout.isolation import eval_mode, modules_of, reached
from heldout.vector.drivers import layers
from heldout.vector.evaluation import (
    PolicyFn,
    SuccessFn,
    check_arguments,
    check_whole,
    evaluate_env,
)
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
    """Evaluates whenever `every_steps` more steps have been trained.

    Args:
        every_steps: In whatever unit you count; 0 evaluates only where `run` is called. A counter
            that jumps (by the number of training environments, say) is due when it passes a
            multiple.
        make_env: Makes a new environment at every call. One that existed before is refused:
            training's would be reset in the middle of an episode, and closed.
        policy_fn: As in `evaluate_env`. Torch modules that it closes over or is bound to are put
            into eval mode, without gradients, and then each back to the flag it had.
        episodes: How many episodes an evaluation plays.
        num_envs: How many plain environments to run side by side.
        seed: Of every evaluation, so that all of them play the same episodes.
        max_steps: Truncates longer episodes.
        success: As in `evaluate_env`.
        model: A torch module, or several, that `policy_fn` reaches in another way.
        at_start: Whether the first step is due too.

    Raises:
        InvalidInput: An argument cannot be used.
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
        check_whole("every_steps", every_steps, least=0, note=" (0: only where run() is called)")
        check_arguments(make_env, policy_fn, episodes, num_envs, seed, max_steps, success)
        self.every_steps, self.seed = every_steps, seed
        self.history: list[EvalPoint] = []
        """Every evaluation that was due, skipped ones too."""
        self._evaluate: Callable[[], VectorReport] = lambda: evaluate_env(
            partial(_make_new, make_env),
            policy_fn,
            episodes,
            num_envs=num_envs,
            seed=seed,
            max_steps=max_steps,
            success=success,
        )
        self._modules = _modules_of(model)  # once: an iterator of modules would be used up
        self._at_start = at_start
        self._passed = -1 if at_start else 0
        """How many multiples of every_steps had been passed at the last call."""

    def begin(self, step: int) -> None:
        """Say where training begins, if that is not at 0: what lies before is not due.

        Args:
            step: The first step of this training run.
        """
        self._passed = step // self.every_steps if self.every_steps else 0
        if self._at_start:
            self._passed -= 1

    def maybe_run(self, step: int) -> VectorReport | None:
        """Evaluate if it is due.

        Args:
            step: How far training is.

        Returns:
            The report; None where no evaluation was due, or where it failed.
        """
        if not self.every_steps:
            return None
        passed = step // self.every_steps
        # A counter that went back has been started again, and is not due.
        due, self._passed = passed > self._passed, passed
        return self.run(step) if due else None

    def run(self, step: int) -> VectorReport | None:
        """Evaluate now.

        Args:
            step: How far training is.

        Returns:
            The report; None where the evaluation failed, which is a skip in `history`.
        """
        began = time.perf_counter()
        report, skipped = None, None
        try:
            with eval_mode(self._modules):
                report = self._evaluate()
        except Exception as problem:
            # Whatever it was, it must not end the training.
            skipped = f"{type(problem).__name__}: {problem}"
            log.warning("evaluation at step %s skipped: %s", step, skipped, exc_info=problem)
        self.history.append(EvalPoint(step, report, skipped, time.perf_counter() - began))
        return report


def _make_new(make_env: Callable[[], Any]) -> Any:
    """Make an environment, and check that it did not exist before."""
    before = list(reached(make_env))  # kept: no new object can have the id of one of these
    env = make_env()
    if not {id(layer) for layer in layers(env)}.isdisjoint(map(id, before)):
        raise InvalidInput(
            "make_env() returned an environment that was there before, such as one that training "
            "uses; it must make a new environment at every call: make_env=lambda: gymnasium.make(…)"
        )
    return env


def _modules_of(model: Any) -> list[Any]:
    """`isolation.modules_of` for any iterable of modules, refusing what is none."""
    if model is None or callable(getattr(model, "modules", None)):
        return modules_of(model)
    parts = model.values() if isinstance(model, Mapping) else model
    if isinstance(parts, str) or not isinstance(parts, Iterable):
        raise InvalidInput(
            f"model is a torch module, or a list or dict of them, got {model!r:.120}"
        )
    return [module for part in parts for module in _modules_of(part)]
