"""Runs to compare, made by the real engine with function endpoints, or by hand where only the
numbers matter."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from heldout import EvalConfig, EvalReport, EvalResult, Metric, Sample, Score, Trajectory, evaluate
from heldout.store.columns import summarize_results
from heldout.types import Message, Stop, Timing

Rewards = Mapping[str, float | Sequence[float | None] | None]
"""Of each sample, or of each of its repeats; None where the item errored."""


def samples(count: int) -> list[Sample]:
    return [
        Sample(f"s{i}", {"question": f"{i}?"}, str(i), {"level": ("easy", "hard")[i % 2]})
        for i in range(count)
    ]


def exact(trajectory: Trajectory, sample: Sample) -> Score:
    right = trajectory.messages[-1].content == sample.ground_truth
    return Score((Metric("right", float(right), 1.0),))


def lenient(trajectory: Trajectory, sample: Sample) -> Score:
    right = str(sample.ground_truth) in str(trajectory.messages[-1].content)
    return Score((Metric("right", float(right), 1.0),))


def ask(sample: Sample) -> list[Message]:
    return [Message("user", sample.input["question"])]


def knows(numbers: Callable[[int], bool]) -> Callable[[list[Message]], str]:
    """An endpoint that answers these questions right, and says 'no' to others."""

    def answer(messages: list[Message]) -> str:
        number = int(str(messages[-1].content).rstrip("?"))
        return str(number) if numbers(number) else "no"

    return answer


def run(
    directory: Path,
    name: str,
    endpoint: Any,
    *,
    of: Sequence[Sample] | int = 40,
    score: Any = exact,
    **settings: Any,
) -> EvalReport:
    config = EvalConfig(
        endpoint, experiment_name=name, output_dir=str(directory), progress=False, **settings
    )
    chosen = samples(of) if isinstance(of, int) else of
    return asyncio.run(evaluate(chosen, config, score, ask))


def by_hand(
    rewards: Rewards,
    *,
    name: str = "by hand",
    metadata: Mapping[str, Mapping[str, Any]] | None = None,
    config: Mapping[str, Any] | None = None,
    cached: Collection[str] = (),
) -> EvalReport:
    """`cached` are the samples whose model turns came from the response cache."""
    results = []
    for id, given in rewards.items():
        sample = Sample(id, {"question": id}, None, dict((metadata or {}).get(id, {})))
        repeats = given if isinstance(given, Sequence) else [given]
        for repeat, reward in enumerate(repeats):
            score = Score() if reward is None else Score((Metric("r", reward, 1.0),))
            results.append(
                EvalResult(
                    id,
                    sample,
                    Trajectory(
                        (),
                        Stop("environment"),
                        timing=Timing(1.0, 0, 0, 1) if id in cached else None,
                    ),
                    score,
                    repeat=repeat,
                    error="it broke" if reward is None else None,
                )
            )
    settings = {"experiment_name": name, **(config or {})}
    return EvalReport(results, summarize_results(results), settings)


# --- Answers that may decline

C, I, N = "correct", "incorrect", "not_attempted"  # noqa: E741


Verdicts = Mapping[str, Sequence[str | None]]


def three_way_score(verdict: str, name: str = "correct") -> Score:
    metrics = [
        Metric(name, verdict == C, 1.0),
        Metric(f"{name}_incorrect", verdict == I),
        Metric(f"{name}_not_attempted", verdict == N),
    ]
    if verdict != N:
        metrics.append(Metric(f"{name}_given_attempted", verdict == C))
    return Score(tuple(metrics))


def results_of(verdicts: Verdicts, name: str = "correct") -> list[EvalResult]:
    """By sample, a verdict for each repeat; None errored."""
    found = []
    for id, repeats in verdicts.items():
        sample = Sample(id, {"question": id}, None, {"passage": id[0]})
        for repeat, verdict in enumerate(repeats):
            ended = Trajectory((), Stop("environment"))
            given = Score() if verdict is None else three_way_score(verdict, name)
            error = "NoVerdict: it broke" if verdict is None else None
            found.append(EvalResult(id, sample, ended, given, repeat=repeat, error=error))
    return found


def report_of(verdicts: Verdicts) -> EvalReport:
    results = results_of(verdicts)
    return EvalReport(results, summarize_results(results), {"experiment_name": "facts"})
