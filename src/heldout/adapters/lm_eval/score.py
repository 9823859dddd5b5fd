"""Tasks of lm-eval as evals: their filters and metrics, on stored answers and likelihoods."""

from __future__ import annotations

import hashlib
import json
import math
import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Number
from typing import Any

from heldout._core.config import Sampling
from heldout.adapters.seam import AdaptedEval, Row
from heldout.environments.likelihood import continuations_of, likelihoods_of
from heldout.errors import InvalidInput
from heldout.types import Continuation, Metric, Sample, Score, Trajectory


def metric_name(metric: str, filter_name: str) -> str:
    """Name a metric after a filter, as lm-eval does: `exact_match,strict-match`.

    Where a task has no filters of its own ("none"), the metric's name is enough.
    """
    return metric if filter_name == "none" else f"{metric},{filter_name}"


@dataclass(frozen=True, slots=True)
class MetricNames:
    """Which of a task's metrics are means over documents, and which are not."""

    means: tuple[str, ...]
    corpus: tuple[str, ...]
    """Of all documents together: they have no value for one."""
    filters: tuple[str, ...]
    lower_is_better: frozenset[str]

    @classmethod
    def of(cls, task: Any) -> MetricNames:
        """Read them from a task."""
        from lm_eval.api.registry import get_aggregation

        averages = [get_aggregation("mean"), get_aggregation("nanmean")]
        aggregation = dict(task.aggregation())
        means = [name for name, function in aggregation.items() if function in averages]
        lower = [name for name, higher in task.higher_is_better().items() if higher is False]
        return cls(
            tuple(name for name in means if name != "bypass"),
            tuple(name for name in aggregation if name not in means),
            tuple(ensemble.name for ensemble in task._filters),
            frozenset(lower),
        )

    def find(self, wanted: str | None, task: str) -> str:
        """Return the name of the reward: what is wanted, or the first metric and filter.

        Raises:
            InvalidInput: There is no such metric, or more of it is worse.
        """
        names = {
            metric_name(metric, filter_name): metric
            for metric in self.means
            for filter_name in self.filters
        }
        if not names:
            raise InvalidInput(
                f"{task} has no metric that is a mean over documents: {', '.join(self.corpus)} "
                "are of all documents together"
            )
        if wanted is None:
            ordered = [name for name, metric in names.items() if metric not in self.lower_is_better]
            if not ordered:
                raise InvalidInput(f"{task}: of {', '.join(names)} less is better: no reward")
            return ordered[0]
        short = wanted.removesuffix(",none")
        match = short if short in names else metric_name(short, self.filters[0])
        if match not in names:
            raise InvalidInput(f"{task} has no metric {wanted!r}; it has {', '.join(names)}")
        if names[match] in self.lower_is_better:
            raise InvalidInput(f"{task}: of {wanted} less is better, so it is no reward")
        return match


class LmEvalTasks(AdaptedEval):
    """A task, or the tasks of a group: a document is scored by its task's filters and metrics.

    Args:
        name: What the user called it.
        tasks: The tasks by name.
        reward: Which metric is the reward; the others have weight 0.
        sampling: How the tasks have answers generated; None where texts are rated.
    """

    package = "lm-eval"

    def __init__(
        self, name: str, tasks: Mapping[str, Any], reward: str, sampling: Sampling | None
    ) -> None:
        self.name, self.sampling = f"lm-eval:{name}"[:200], sampling
        self._tasks, self._reward = tasks, reward
        self._stops = sampling.stop if sampling else ()
        self._names = {name: MetricNames.of(task) for name, task in tasks.items()}
        self.built: Sequence[Row] = ()
        """The documents as rows, whose sources are the instances that lm-eval has built."""
        self.published: dict[str, Any] | None = None
        """What names the task in its logs, too."""

    def rows(self) -> Sequence[Row]:
        """Return the documents."""
        return self.built

    def identity(self) -> dict[str, Any]:
        """Return config and code of the tasks."""
        own = {
            "config": _digest([_config_of(self._tasks[name]) for name in sorted(self._tasks)]),
            "reward": self._reward,
            "stops": list(self._stops),
        }
        return own if self.published is None else {**own, "published": self.published}

    @abstractmethod
    def responses(self, trajectory: Trajectory) -> list[Any]:
        """Return what lm-eval takes for a model's responses."""

    def score(self, trajectory: Trajectory, sample: Sample) -> Score:
        """Score one document."""
        name, requests = sample.metadata["task"], self.source_of(sample)
        answered = [
            replace(request, resps=[response], filtered_resps={})
            for request, response in zip(requests, self.responses(trajectory), strict=True)
        ]
        metrics = list(self._score(self._tasks[name], self._names[name], answered))
        if self._reward not in [metric.name for metric in metrics]:
            raise InvalidInput(f"{name} gave no {self._reward} for this document")
        return Score(tuple(metrics))

    def _score(self, task: Any, names: MetricNames, answered: list[Any]) -> Iterator[Metric]:
        for ensemble in task._filters:
            ensemble.apply(answered)
            filtered = [request.filtered_resps[ensemble.name] for request in answered]
            values = task.process_results(answered[0].doc, filtered)
            for metric, value in values.items():
                if metric in names.corpus or metric == "bypass":
                    continue
                if not isinstance(value, Number | bool):
                    raise InvalidInput(
                        f"{metric} of a document must be a number, got {value!r:.100}"
                    )
                number = float(value)  # type: ignore[arg-type]
                if math.isnan(number):
                    continue  # of a metric that leaves out such documents (nanmean)
                name = metric_name(metric, ensemble.name)
                extracted = filtered[0] if isinstance(filtered[0], str) else None
                shown = {} if extracted is None else {"extracted": extracted[:500]}
                yield Metric(name, number, float(name == self._reward), shown)


class AskedTasks(LmEvalTasks):
    """Tasks whose answers the policy writes."""

    def responses(self, trajectory: Trajectory) -> list[Any]:
        """Return the answer up to the first stop, for endpoints that do not stop there."""
        text = trajectory.answer
        for stop in self._stops:
            text = text.split(stop, 1)[0]
        return [text]


class RatedTasks(LmEvalTasks):
    """Tasks whose choices the policy rates."""

    def continuations(self, sample: Sample) -> Sequence[Continuation]:
        """Return the choices."""
        return continuations_of(sample)

    def responses(self, trajectory: Trajectory) -> list[Any]:
        """Return how likely the choices are."""
        return [(rated.logprob, rated.greedy) for rated in likelihoods_of(trajectory)]


def _config_of(task: Any) -> str:
    """Return a task's config as text: functions by their source, and no addresses in memory."""
    text = json.dumps(task.config.to_dict(), sort_keys=True, default=str)
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)


def _digest(parts: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
