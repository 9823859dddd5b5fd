"""A policy of plain functions: what it answers depends on the step it has been trained to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from heldout import Metric, Sample, Score, Trajectory
from heldout.training import CurvePoint, PeriodicEval, from_functions, read_points
from heldout.training.curve.points import NOT_FINISHED


def questions(count: int = 8) -> list[Sample]:
    return [Sample(f"q{i}", {"question": f"{i}"}, ground_truth=str(i)) for i in range(count)]


def score(trajectory: Trajectory, sample: Sample) -> Score:
    answer = trajectory.answer
    right = float(answer == sample.ground_truth)
    return Score((Metric("right", right, 1.0), Metric("length", float(len(answer)))))


class Model:
    """Knows the answers below `knows`; raises for those in `fails`."""

    def __init__(self, knows: int = 4, fails: Sequence[str] = ()) -> None:
        self.knows, self.fails = knows, fails
        self.batches: list[list[str]] = []

    def answer(self, prompts: list[str]) -> list[Any]:
        self.batches.append(list(prompts))
        return [
            ValueError(f"no {p}") if p in self.fails else p if int(p) < self.knows else "?"
            for p in prompts
        ]


def weighted(knows: int = 4) -> Any:
    """A `Model` that is a torch module: its weights have a hash, so points of it are recognised."""
    import torch

    class Weighted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.knows = torch.nn.Parameter(torch.tensor(float(knows)))

        def answer(self, prompts: list[str]) -> list[Any]:
            return Model(int(self.knows.item())).answer(prompts)

    return Weighted()


def builder(**settings: Any) -> Any:
    """Few samples are enough for most tests, so any share of them may error."""
    settings.setdefault("max_error_rate", 1)

    def generate(model: Model, prompts: list[str], max_new: int) -> list[Any]:
        return model.answer(prompts)

    return from_functions(lambda messages: messages[-1].text, generate, score, **settings)


class Clock:
    """Stands still unless somebody moves it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Heartbeats(list[tuple[str, dict[str, Any]]]):
    def __call__(self, name: str, fields: dict[str, Any]) -> None:
        self.append((name, fields))

    def named(self, name: str) -> list[dict[str, Any]]:
        return [fields for known, fields in self if known == name]


class Rows(list[tuple[str, int, dict[str, Any]]]):
    """A logger."""

    closed = 0

    def log(self, name: str, step: int, fields: Mapping[str, Any]) -> None:
        self.append((name, step, dict(fields)))

    def close(self) -> None:
        self.closed += 1


def points_of(folder: Path) -> list[CurvePoint]:
    """Of evals that have ended."""
    return [p for p in read_points(folder / "curve.jsonl") if p.skipped != NOT_FINISHED]


def make_eval(*args: Any, clock: Any = None, ranks: Any = None, **settings: Any) -> PeriodicEval:
    """A PeriodicEval with a clock and ranks of the test's, that continues the curve it finds."""

    class Seamed(PeriodicEval):
        if clock is not None:
            _clock = staticmethod(clock)
        if ranks is not None:
            _current_ranks = staticmethod(lambda: ranks)

    settings.setdefault("resume", True)
    return Seamed(*args, **settings)


def periodic(folder: Path, model: Any = None, **settings: Any) -> PeriodicEval:
    settings.setdefault("samples", questions())
    settings.setdefault("runner_builder", builder())
    settings.setdefault("every_steps", 10)
    settings.setdefault("model_getter", lambda: model if model is not None else Model())
    return make_eval(run_dir=folder / "run", **settings)
