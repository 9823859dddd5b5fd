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
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from heldout.errors import InvalidInput
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
    say) is due when it passes a multiple. `model` is a torch module, or several: they are put into
    eval mode, without gradients, and then back, each to the flag it had. Everything else is
    `evaluate_env`'s.
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
            make_env,
            policy_fn,
            episodes,
            num_envs=num_envs,
            seed=seed,
            max_steps=max_steps,
            success=success,
        )
        self._model = list(_modules(model))  # once: an iterator of modules would be used up
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
            with untouched_random_state(seed=self.seed), eval_mode(self._model):
                report = self._evaluate()
        except Exception as problem:
            # Whatever it was, it must not end the training.
            skipped = f"{type(problem).__name__}: {problem}"
            log.warning("evaluation at step %s skipped: %s", step, skipped, exc_info=problem)
        self.history.append(EvalPoint(step, report, skipped, time.perf_counter() - began))
        return report


# --- Leaving everything as it was ---------------------------------------------------------------


@contextmanager
def untouched_random_state(*, seed: int | None = None) -> Iterator[None]:
    """Global random state of python, numpy and torch (every device), put back at the end.

    With `seed`, what runs inside starts from that seed, so that an environment or a policy that
    draws from global state is the same in every evaluation. Torch counts only where it has been
    imported: one that has not has no state yet.
    """
    python, numpy = random.getstate(), np.random.get_state(legacy=False)
    torch = sys.modules.get("torch")
    generators = _torch_generators(torch) if torch is not None else []
    try:
        if seed is not None:
            random.seed(seed)
            np.random.seed(seed % 2**32)
            for _, _, reseed in generators:
                reseed(seed)
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        for state, put_back, _ in generators:
            put_back(state)


def _torch_generators(torch: Any) -> list[tuple[Any, Callable[[Any], None], Callable[[int], Any]]]:
    """(state, how to put it back, how to seed) of each generator that is in use."""
    found: list[tuple[Any, Callable[[Any], None], Callable[[int], Any]]] = [
        (
            torch.random.get_rng_state(),
            torch.random.set_rng_state,
            torch.random.default_generator.manual_seed,
        )
    ]
    # Asking a GPU that nobody uses would start it.
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        for generator in torch.cuda.default_generators:
            found.append((generator.get_state(), generator.set_state, generator.manual_seed))
    mps = getattr(torch, "mps", None)
    if mps is not None and torch.backends.mps.is_available():
        found.append((mps.get_rng_state(), mps.set_rng_state, mps.manual_seed))
    return found


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """A torch module, or several, in eval mode and without gradients; then each flag as it was.

    Each module's own: a frozen batch norm inside a network in training stays frozen.
    """
    with eval_mode(list(_modules(model))):
        yield


@contextmanager
def eval_mode(modules: Sequence[Any]) -> Iterator[None]:
    """`evaluating`, of modules that have been looked up before."""
    flags = [module.training for module in modules]
    try:
        _set_training(modules, [False] * len(modules))
        with sys.modules["torch"].no_grad() if modules else nullcontext():
            yield
    finally:
        _set_training(modules, flags)


def _set_training(modules: Sequence[Any], flags: Sequence[bool]) -> None:
    for module, flag in zip(modules, flags, strict=True):
        if module.training is not flag:
            # Past Module.__setattr__, which looks for parameters first: this is done every step.
            object.__setattr__(module, "training", flag)


def _modules(model: Any) -> Iterable[Any]:
    if model is None:
        return []
    if callable(getattr(model, "modules", None)):
        return list(model.modules())
    parts = model.values() if isinstance(model, Mapping) else model
    if isinstance(parts, str) or not isinstance(parts, Iterable):
        raise InvalidInput(
            f"model is a torch module, or a list or dict of them, got {model!r:.120}"
        )
    return [module for part in parts for module in _modules(part)]
