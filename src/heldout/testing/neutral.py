"""Does evaluating change what is trained? Train with and without it, and compare every bit.

    def train(evaluating: bool):
        torch.manual_seed(0)
        …                                  # from its own seed, with an eval now and then or not
        return model, trainer.state.log_history

    print(assert_neutral(train))

It trains twice without eval first. If those two differ, so would any third, whatever an eval does:
then nothing can be concluded, and the error says so.
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from heldout.errors import InvalidInput
from heldout.weights import fingerprint, named_tensors, readable

TIMINGS = frozenset(
    {
        "train_runtime",
        "train_samples_per_second",
        "train_steps_per_second",
        "train_tokens_per_second",
        "step_time",
        "time/fps",
        "time/time_elapsed",
    }
)
"""Metrics of trainers (transformers, TRL, stable-baselines3) that measure time."""

_OF_THE_EVAL = ("eval_", "eval/", "heldout")
_WHERE = {"step", "epoch", "global_step"}
"""What a row of an eval holds beside its own metrics: where in training it was."""


class NotNeutral(AssertionError):
    """Training with eval ends otherwise than without; the message names what differs."""


class NotRepeatable(AssertionError):
    """Training differs from run to run without any eval, so nothing is known about the eval."""


@dataclass(frozen=True, slots=True)
class Neutral:
    """What was compared, and found to be the same in every bit."""

    weights: str | None
    """Fingerprint of the trained weights (`heldout.weights.fingerprint`)."""
    tensors: int
    metrics: int
    """How many logged values."""
    repeats: int

    def __str__(self) -> str:
        runs = "a run" if self.repeats == 1 else f"{self.repeats} runs"
        return (
            f"neutral: {runs} with eval ended in the same {self.tensors} tensors (weights "
            f"{self.weights}) and {self.metrics} logged values, bit for bit, as without"
        )


def assert_neutral(
    train: Callable[[bool], Any], *, repeats: int = 1, ignore: Collection[str] = TIMINGS
) -> Neutral:
    """Raise NotNeutral unless training ends in the same weights and metrics with eval as without.

    `train(evaluating)` trains from its own fixed seed, and returns what to compare: a torch module
    or a state dict, or that and what was logged (a list of dicts, or anything like JSON). It runs
    twice with False and `repeats` times with True. Of what was logged, keys in `ignore` are not
    compared, nor those that are the eval's own: such as begin with "eval_", "eval/" or "heldout".
    """
    if repeats < 1:
        raise InvalidInput(f"repeats is a whole number of at least 1, got {repeats!r}")
    first = _outcome(train(False), ignore)
    differences = _differences(first, _outcome(train(False), ignore), "first", "second")
    if differences:
        raise NotRepeatable(
            "training is not repeatable: two runs without any eval differ, so nothing can be "
            "concluded about the eval. Seed everything that training draws from, in every run"
            + _listed(differences)
        )
    for _ in range(repeats):
        differences = _differences(first, _outcome(train(True), ignore), "without", "with")
        if differences:
            raise NotNeutral(
                "evaluating changes the training: two runs without eval are the same, and a run "
                "with eval differs" + _listed(differences)
            )
    return Neutral(first.fingerprint, len(first.tensors), len(first.metrics), repeats)


def _listed(differences: list[str]) -> str:
    return "".join(f"\n  - {difference}" for difference in differences)


# --- What a run ended in ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Outcome:
    fingerprint: str | None
    tensors: dict[str, Any]
    metrics: dict[str, Any]
    """Every logged value by the path to it."""


def _outcome(returned: Any, ignore: Collection[str]) -> _Outcome:
    model, logged = returned, None
    if isinstance(returned, tuple) and len(returned) == 2:
        model, logged = returned
    named = named_tensors(model) if "torch" in sys.modules else None
    if not named:
        raise InvalidInput(
            "train returns a torch module or a state dict, or that and what was logged, "
            f"got {returned!r:.120}"
        )
    tensors: dict[str, Any] = {}
    for name, tensor in named:
        local = readable(tensor)
        if local is None:
            raise InvalidInput(f"the weights of {name} cannot be read in this process")
        # Copied at once: a train function may well go on with the same model.
        unique = f"{name} ({len(tensors)})" if name in tensors else name
        tensors[unique] = local.cpu().clone()
    return _Outcome(fingerprint(model), tensors, dict(_values(logged, "", ignore)))


def _values(value: Any, path: str, ignore: Collection[str]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key not in ignore and not _of_the_eval(key):
                yield from _values(inner, f"{path}[{key!r}]", ignore)
    elif isinstance(value, list | tuple):
        # Rows of the eval's own would shift those that follow.
        rows = [row for row in value if not _row_of_the_eval(row, ignore)]
        for index, inner in enumerate(rows):
            yield from _values(inner, f"{path}[{index}]", ignore)
    elif value is not None or path:
        yield path, value


def _of_the_eval(key: Any) -> bool:
    return isinstance(key, str) and key.startswith(_OF_THE_EVAL)


def _row_of_the_eval(row: Any, ignore: Collection[str]) -> bool:
    if not isinstance(row, Mapping) or not any(_of_the_eval(key) for key in row):
        return False
    return all(_of_the_eval(key) or key in ignore or key in _WHERE for key in row)


# --- Comparing ----------------------------------------------------------------------------------


def _differences(one: _Outcome, other: _Outcome, of_one: str, of_other: str) -> list[str]:
    return [
        *_in_tensors(one.tensors, other.tensors, of_one, of_other),
        *_in_metrics(one.metrics, other.metrics, of_one, of_other),
    ]


def _in_tensors(
    one: dict[str, Any], other: dict[str, Any], of_one: str, of_other: str
) -> Iterator[str]:
    yield from _only_in(one, other, "tensors", of_one, of_other)
    both = [name for name in one if name in other]
    differ = [name for name in both if not _same(one[name], other[name])]
    if not differ:
        return
    largest, name = max((_distance(one[name], other[name]), name) for name in differ)
    said = f"{len(differ)} of {len(both)} tensors differ, the first is {differ[0]}"
    yield f"{said}; the largest difference is {largest:.3g}, in {name}" if largest >= 0 else said


def _in_metrics(
    one: dict[str, Any], other: dict[str, Any], of_one: str, of_other: str
) -> Iterator[str]:
    yield from _only_in(one, other, "logged values", of_one, of_other)
    both = [path for path in one if path in other]
    differ = [path for path in both if not _same(one[path], other[path])]
    if differ:
        path = differ[0]
        yield (
            f"{len(differ)} of {len(both)} logged values differ, the first is {path or 'all'}: "
            f"{one[path]!r:.80} {of_one}, {other[path]!r:.80} {of_other}"
        )


def _only_in(
    one: dict[str, Any], other: dict[str, Any], what: str, of_one: str, of_other: str
) -> Iterator[str]:
    for here, there, which in ((one, other, of_one), (other, one, of_other)):
        alone = [name for name in here if name not in there]
        if alone:
            more = f" and {len(alone) - 3} more" if len(alone) > 3 else ""
            yield f"{what} only {which}: {', '.join(alone[:3])}{more}"


def _same(one: Any, other: Any) -> bool:
    """The same bits: NaN is itself, 0.0 is not -0.0, and 1 is neither 1.0 nor True."""
    if type(one) is not type(other):
        return False
    torch: Any = sys.modules["torch"]
    if isinstance(one, torch.Tensor):
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        return bool(torch.equal(_bytes(torch, one), _bytes(torch, other)))
    if isinstance(one, np.ndarray | np.generic):
        alike = one.dtype == other.dtype and one.shape == other.shape
        return bool(alike and one.tobytes() == other.tobytes())
    if isinstance(one, float):
        return struct.pack("<d", one) == struct.pack("<d", other)
    return bool(one == other)


def _bytes(torch: Any, tensor: Any) -> Any:
    tensor = tensor.detach().cpu()
    parts = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return parts.reshape(-1).contiguous().view(torch.uint8)


def _distance(one: Any, other: Any) -> float:
    """The largest difference between two elements, infinite where one of them is no number; -1
    where shapes or types differ."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return -1.0
    torch: Any = sys.modules["torch"]
    wide = torch.complex128 if one.is_complex() else torch.float64
    one, other = one.to(wide), other.to(wide)
    distances = (one - other).abs().nan_to_num(nan=math.inf)
    distances[(one == other) | (one.isnan() & other.isnan())] = 0.0
    return float(distances.max())
