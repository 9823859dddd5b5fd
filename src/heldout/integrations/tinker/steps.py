"""Which step the weights are of. An evaluator is not told.

The step is the number of updates that the weights have behind them, which is also where the loops
log it. It is read off what the loop says of itself, and the place is recorded with the result:

    task        the RL loops run every evaluator in a task that is named after its iteration
    trace       with `enable_trace`, the supervised loop has it in its trace scope
    count       the supervised loop and those of distillation evaluate at every multiple of
                `eval_every`, in order, so the number of calls since the training began tells,
                given where it began
    checkpoint  `evaluate_final` measures what checkpoints.jsonl names
    given       somebody has said so

Where none of them is to be had there is no step, and none is made up.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, replace
from typing import Any, Literal

from heldout.integrations.tinker.package import cookbook

Source = Literal["task", "trace", "count", "checkpoint", "given"]


@dataclass(frozen=True, slots=True)
class Step:
    number: int
    source: Source


@dataclass(frozen=True, slots=True)
class Cadence:
    """What `with_heldout` knows of the loop."""

    every: int
    """Steps from one eval to the next; 0: none."""
    start: int | None = 0
    """The step that training begins at; None: not known."""
    counted: bool = False
    """Whether the loop evaluates at every multiple, none left out."""
    calls: int = 0
    """… so many of which it has had since it began."""

    @property
    def first(self) -> int | None:
        if self.start is None or self.every < 1:
            return None
        return -(-self.start // self.every) * self.every

    def after_call(self) -> Cadence:
        return replace(self, calls=self.calls + 1)

    def counted_step(self) -> int | None:
        """The step of the call that is being made."""
        if not self.counted or self.first is None:
            return None
        return self.first + self.calls * self.every

    def missed(self, previous: int | None, step: int) -> list[int]:
        """The steps between two calls, or before the first one, that an eval was due at."""
        if self.first is None:
            return []
        begin = self.first if previous is None else (previous // self.every + 1) * self.every
        return list(range(max(begin, self.first), step, self.every))


def current_step(cadence: Cadence | None) -> Step | None:
    """The step that the call which is under way is about."""
    named = _of_task()
    if named is not None:
        return Step(named, "task")
    traced = _of_trace()
    if traced is not None:
        return Step(traced, "trace")
    counted = None if cadence is None else cadence.counted_step()
    return None if counted is None else Step(counted, "count")


def _of_task() -> int | None:
    task = asyncio.current_task()
    found = re.fullmatch(r"eval_.*_iteration_(\d+)", task.get_name(), re.S) if task else None
    return int(found[1]) if found else None


def _of_trace() -> int | None:
    context: Any = cookbook("utils.trace").trace_context.get(None)
    attributes = getattr(context, "attributes", None) or {}
    # Scopes of many kinds have a step; this is the one around an evaluator.
    step = attributes.get("step") if "evaluator_name" in attributes else None
    return step if isinstance(step, int) and not isinstance(step, bool) else None


def sampler_path(log_path: str, step: int) -> str | None:
    """Where an RL loop has saved the weights of that step, if it has."""
    records = cookbook("checkpoint_utils").load_checkpoints_file(log_path)
    # The supervised loop's say which batch of an epoch they are of, and are saved at odd moments.
    found = [r.sampler_path for r in records if r.batch == step and r.epoch is None]
    return next((path for path in reversed(found) if path is not None), None)
