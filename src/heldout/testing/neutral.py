"""assert_neutral(): train with and without eval, and compare the results bit for bit.

    def train(evaluating: bool):
        torch.manual_seed(0)
        …                                  # from its own seed, with evals or without
        return model, trainer.state.log_history

    print(assert_neutral(train))

It trains twice without eval first. If those two differ, training is not repeatable: nothing can be
concluded about the eval, and the error says so.

Beside weights and logs it compares what training would go on with: torch's global settings, the
model's attributes and hooks, and the tokenizers that `train` can reach.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from heldout._live.isolation import tokenizers_of
from heldout._live.torch_settings import torch_settings
from heldout._live.weights import fingerprint, named_tensors, readable
from heldout.errors import InvalidInput

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

_EVAL_PREFIXES = ("eval_", "eval/", "heldout")
_POSITIONS = {"step", "epoch", "global_step"}
"""Keys of a logged row that say where in training it was made."""


class NotNeutral(AssertionError):
    """Training with eval ends differently than without; the message names what differs."""


class NotRepeatable(AssertionError):
    """Training differs from run to run without eval, so nothing is known about the eval."""


@dataclass(frozen=True, slots=True)
class Neutral:
    """What was compared, and is the same in every bit."""

    weights: str | None
    """Fingerprint of the trained weights (`heldout._live.weights.fingerprint`)."""
    tensors: int
    """How many tensors were compared."""
    metrics: int
    """How many logged values were compared."""
    settings: int
    """How many settings of torch, attributes of the model and of tokenizers were compared."""
    repeats: int
    """How many runs with eval there were."""

    def __str__(self) -> str:
        runs = "a run" if self.repeats == 1 else f"{self.repeats} runs"
        return (
            f"neutral: {runs} with eval ended in the same {self.tensors} tensors (weights "
            f"{self.weights}), {self.metrics} logged values and {self.settings} settings, bit for "
            "bit, as without"
        )


def assert_neutral(
    train: Callable[[bool], Any], *, repeats: int = 1, ignore: Collection[str] = TIMINGS
) -> Neutral:
    """Check that training ends in the same weights and metrics with eval as without.

    Args:
        train: `train(evaluating)` trains from its own fixed seed. It returns a torch module or a
            state dict, or a pair of that and what was logged (a list of dicts, or anything like
            JSON). It runs twice with False, and `repeats` times with True.
        repeats: How often to train with eval.
        ignore: Logged keys that are not compared. Those of the eval itself, which begin with
            "eval_", "eval/" or "heldout", are never compared.

    Returns:
        What was compared.

    Raises:
        NotNeutral: If a run with eval differs.
        NotRepeatable: If the two runs without eval differ.
        InvalidInput: If `train` returns something else.
    """
    if repeats < 1:
        raise InvalidInput(f"repeats must be a whole number of at least 1, got {repeats!r}")
    tokenizers = tokenizers_of(train)  # before: a run may leave others where `train` can reach them

    def run(*, evaluating: bool) -> _TrainingResult:
        return _read_result(train(evaluating), ignore, tokenizers)

    first, second = run(evaluating=False), run(evaluating=False)
    differences = _compare(first, second, ("first", "second"))
    if differences:
        raise NotRepeatable(
            "training is not repeatable: two runs without any eval differ, so nothing can be "
            "concluded about the eval. Seed everything that training draws from, in every run"
            + _bullets(differences)
        )
    # A counter, or a path, that differs from run to run says nothing.
    settled = {
        name: value
        for name, value in first.settings.items()
        if name in second.settings and _same(value, second.settings[name])
    }
    for _ in range(repeats):
        result = run(evaluating=True)
        differences = [
            *_compare(first, result, ("without", "with")),
            *_changed_settings(settled, result.settings, second.settings),
        ]
        if differences:
            raise NotNeutral(
                "evaluating changes the training: two runs without eval are the same, and a run "
                "with eval differs" + _bullets(differences)
            )
    return Neutral(first.fingerprint, len(first.tensors), len(first.metrics), len(settled), repeats)


def _bullets(lines: list[str]) -> str:
    return "".join(f"\n  - {line}" for line in lines)


# --- The result of a run ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _TrainingResult:
    fingerprint: str | None
    tensors: dict[str, Any]
    metrics: dict[str, Any]
    """Every logged value by the path to it."""
    settings: dict[str, Any]
    """What training would go on with, apart from tensors, by name."""


def _read_result(
    returned: Any, ignore: Collection[str], tokenizers: Collection[Any]
) -> _TrainingResult:
    model, logged = returned, None
    if isinstance(returned, tuple) and len(returned) == 2:
        model, logged = returned
    pairs = named_tensors(model) if "torch" in sys.modules else None
    if not pairs:
        raise InvalidInput(
            "train returns a torch module or a state dict, or that and what was logged, "
            f"got {returned!r:.120}"
        )
    tensors: dict[str, Any] = {}
    for name, tensor in pairs:
        local = readable(tensor)
        if local is None:
            raise InvalidInput(f"the weights of {name} cannot be read in this process")
        # Copied at once: a train function may continue with the same model.
        tensors[name] = local.cpu().clone()
    metrics = dict(_flatten(logged, "", ignore))
    settings = dict(_read_settings(model, tokenizers))
    return _TrainingResult(fingerprint(model), tensors, metrics, settings)


_PLAIN = (type(None), bool, int, float, complex, str, bytes)


def _read_settings(model: Any, tokenizers: Collection[Any]) -> Iterator[tuple[str, Any]]:
    for name, setting in torch_settings(sys.modules["torch"]).items():
        try:
            yield name, setting.read()
        except RuntimeError:
            yield name, "not told by torch"
    if callable(getattr(model, "named_modules", None)):
        for path, module in model.named_modules():
            yield from _read_attributes(path or "the model", vars(module))
    for number, tokenizer in enumerate(tokenizers, start=1):
        kind = type(tokenizer).__name__
        yield from _read_attributes(f"{kind} {number}", vars(tokenizer))


def _read_attributes(owner: str, held: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """List plain values, and how much is in containers: what is in them may be of any kind."""
    for name, value in held.items():
        if isinstance(value, _PLAIN):
            yield f"{name} of {owner}", value
        elif isinstance(value, dict | list | tuple | set):
            items = value.values() if isinstance(value, dict) else value
            is_plain = len(value) <= 1000 and all(isinstance(item, _PLAIN) for item in items)
            yield f"{name} of {owner}", repr(value) if is_plain else f"{len(value)} entries"


def _flatten(value: Any, path: str, ignore: Collection[str]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key not in ignore and not _is_eval_key(key):
                yield from _flatten(inner, f"{path}[{key!r}]", ignore)
    elif isinstance(value, list | tuple):
        # Rows of the eval would shift those that follow.
        rows = [row for row in value if not _is_eval_row(row, ignore)]
        for index, inner in enumerate(rows):
            yield from _flatten(inner, f"{path}[{index}]", ignore)
    elif value is not None or path:
        yield path, value


def _is_eval_key(key: Any) -> bool:
    return isinstance(key, str) and key.startswith(_EVAL_PREFIXES)


def _is_eval_row(row: Any, ignore: Collection[str]) -> bool:
    if not isinstance(row, Mapping) or not any(_is_eval_key(key) for key in row):
        return False
    return all(_is_eval_key(key) or key in ignore or key in _POSITIONS for key in row)


# --- Comparing ----------------------------------------------------------------------------------


def _compare(a: _TrainingResult, b: _TrainingResult, labels: tuple[str, str]) -> list[str]:
    """List the differences between two runs; the labels name the runs."""
    lines = [
        *_only_in_one(a.tensors, b.tensors, "tensors", labels),
        *_only_in_one(a.metrics, b.metrics, "logged values", labels),
    ]
    names = _find_different(a.tensors, b.tensors)
    if names:
        line = f"{len(names)} of {len(a.tensors)} tensors differ, the first is {names[0]}"
        largest, name = max((_distance(a.tensors[name], b.tensors[name]), name) for name in names)
        if largest >= 0:
            line += f"; the largest difference is {largest:.3g}, in {name}"
        lines.append(line)
    paths = _find_different(a.metrics, b.metrics)
    if paths:
        path = paths[0]
        lines.append(
            f"{len(paths)} of {len(a.metrics)} logged values differ, the first is "
            f"{path or 'all'}: {a.metrics[path]!r:.80} {labels[0]}, {b.metrics[path]!r:.80} "
            f"{labels[1]}"
        )
    return lines


def _changed_settings(
    settled: dict[str, Any], now: dict[str, Any], known: dict[str, Any]
) -> Iterator[str]:
    """Say which settings an eval has left changed, or added."""
    changed = [
        f"{name}: {value!r:.80} without, {now[name]!r:.80} with"
        if name in now
        else f"{name}: {value!r:.80} without, gone with"
        for name, value in settled.items()
        if name not in now or not _same(value, now[name])
    ]
    changed += [
        f"{name}: {now[name]!r:.80} with, absent without" for name in now if name not in known
    ]
    if changed:
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        yield "settings that the eval changed: " + "; ".join(changed[:3]) + more


def _find_different(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    return [name for name in a if name in b and not _same(a[name], b[name])]


def _only_in_one(
    a: dict[str, Any], b: dict[str, Any], kind: str, labels: tuple[str, str]
) -> Iterator[str]:
    for names, counterpart, label in ((a, b, labels[0]), (b, a, labels[1])):
        extra = [name for name in names if name not in counterpart]
        if extra:
            more = f" and {len(extra) - 3} more" if len(extra) > 3 else ""
            yield f"{kind} only {label}: {', '.join(extra[:3])}{more}"


def _same(a: Any, b: Any) -> bool:
    """Compare bits: NaN is NaN, 0.0 is not -0.0, and 1 is neither 1.0 nor True."""
    torch: Any = sys.modules["torch"]
    if type(a) is not type(b) or not isinstance(a, torch.Tensor | np.ndarray):
        return repr(a) == repr(b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if isinstance(a, np.ndarray):
        return bool(a.tobytes() == b.tobytes())
    if a.is_complex():
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    a, b = (part.detach().cpu().reshape(-1).contiguous().view(torch.uint8) for part in (a, b))
    return bool(torch.equal(a, b))


def _distance(a: Any, b: Any) -> float:
    """Return the largest difference of two elements, inf with NaN; -1 if shapes or types differ."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return -1.0
    torch: Any = sys.modules["torch"]
    wide = torch.complex128 if a.is_complex() else torch.float64
    a, b = a.to(wide), b.to(wide)
    distances = (a - b).abs().nan_to_num(nan=math.inf)
    distances[(a == b) | (a.isnan() & b.isnan())] = 0.0
    return float(distances.max())
