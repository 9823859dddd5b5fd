"""What an evaluation of episodes reports: every number with its denominator and error bar.

Clauses 9 to 11 of docs/semantics.md. A report that is saved is read like that of any other eval:
an episode is a sample, its reward is its success, or its return where success is not known, and
return, steps and distance are metrics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from heldout.errors import InvalidInput, RunDirectoryError
from heldout.stats import Interval, Moments, median_interval, wilson
from heldout.store.report import EvalReport
from heldout.store.run_config import threshold_of, was_success_assumed
from heldout.types import EvalResult, Metric, Sample, Score, Stop, Trajectory

Reward = Literal["success", "return"]


@dataclass(frozen=True, slots=True)
class Episode:
    """One episode that was played to its end."""

    index: int
    seed: int | None
    """What it was reset with; None where the environment cannot be seeded."""
    steps: int
    ret: float
    success: bool | None
    """None if nothing says what success is."""
    terminated: bool
    truncated: bool
    dist: float | None = None
    """Distance to its goal at the end, where the environment says so."""


@dataclass(frozen=True, slots=True)
class VectorReport:
    """The result of an evaluation."""

    summary: dict[str, Any]
    """Numbers under stable keys in a stable order."""
    episodes: Sequence[Episode]
    config: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """What the environments cannot do, and what else a reader should know."""

    def __repr__(self) -> str:
        keys = ("episodes", "success_rate", "median_steps_to_goal", "mean_return")
        numbers = {key: self.summary.get(key) for key in keys}
        return f"VectorReport({numbers}, env={self.config.get('env')!r})"

    def as_eval(self, reward: Reward | None = None) -> EvalReport:
        """Convert to a report of samples, one per episode, named `episode-<index>`.

        Args:
            reward: What the reward of a sample is: 1 for a success and 0 otherwise, or the
                episode's return, which no threshold passes. By default it is success where that is
                known. The return is a metric either way, and so is success where it is known.

        Returns:
            The same episodes as `EvalResult`s, for whatever reads those.

        Raises:
            InvalidInput: The reward is to be success, and nothing says what that is.
        """
        from heldout.store.columns import summarize_results

        is_known = self.config.get("success_is") is not None
        reward = reward or ("success" if is_known else "return")
        config = dict(self.config)
        if reward == "return":
            config["reward"] = reward
        elif not is_known:
            raise InvalidInput(
                "nothing says which episodes succeeded: pass success=, let the environment put "
                "is_success into the info of the last step, or take the return as the reward"
            )
        results = [_as_result(episode, self.config, reward) for episode in self.episodes]
        return EvalReport(results, summarize_results(results, threshold_of(config)), config)

    def save(self, path: str | Path) -> None:
        """Write a run directory that `heldout show` and the other commands read.

        Args:
            path: A directory that holds no run.

        Raises:
            RunExists: It holds one.
        """
        report = self.as_eval()
        report.config["experiment_name"] = Path(path).name
        report.save(path)

    @classmethod
    def load(cls, path: str | Path) -> VectorReport:
        """Read a report that `save` wrote.

        Args:
            path: Its run directory.

        Returns:
            The report, computed again from the results of its episodes.

        Raises:
            InvalidInput: The run is one of samples.
            RunDirectoryError: The run is damaged.
        """
        saved = EvalReport.load(path)
        added = ("experiment_name", "reward")
        config = {key: value for key, value in saved.config.items() if key not in added}
        if config.get("kind") != "episodes":
            raise InvalidInput(
                f"{path} holds the results of samples, not of episodes; EvalReport.load reads it"
            )
        if was_success_assumed(config):
            config["success_is"] = None
        try:
            episodes = [_read_result(i, result, config) for i, result in enumerate(saved.results)]
            return cls(summarize(episodes, config), episodes, config, tuple(config["notes"]))
        except (KeyError, TypeError, ValueError) as problem:
            raise RunDirectoryError(f"{path} is no run of episodes: {problem!r}") from problem


def episode_sample(index: int, seed: int | None, env: str | None = None) -> Sample:
    """Make the sample of an episode: the same at every evaluation that plays it.

    The index is part of its input, so that no two are equal where nothing can be seeded.
    """
    return Sample(f"episode-{index}", {"env": env, "index": index, "seed": seed})


def _as_result(episode: Episode, config: Mapping[str, Any], reward: Reward) -> EvalResult:
    sample = episode_sample(episode.index, episode.seed, config.get("env"))
    metadata: dict[str, Any] = {"ended": "terminated" if episode.terminated else "truncated"}
    if episode.success is not None:
        metadata["success"] = episode.success
    if episode.terminated and episode.truncated:
        metadata["truncated"] = True
    stop = Stop("environment") if episode.terminated else Stop("limit", "steps", truncated=True)
    metrics = [Metric("return", episode.ret, weight=float(reward == "return"))]
    if episode.success is not None:
        metrics.insert(0, Metric("success", episode.success, weight=float(reward == "success")))
    metrics.append(Metric("steps", episode.steps))
    if episode.dist is not None:
        metrics.append(Metric("dist_at_end", episode.dist))
    return EvalResult(sample.id, sample, Trajectory((), stop), Score(tuple(metrics)), metadata)


def _read_result(index: int, result: EvalResult, config: Mapping[str, Any]) -> Episode:
    values = {metric.name: metric.value for metric in result.score.metrics}
    terminated = result.metadata["ended"] == "terminated"
    return Episode(
        index,
        result.sample.input["seed"],
        int(values["steps"]),
        float(values["return"]),
        None if config["success_is"] is None else result.metadata["success"],
        terminated,
        not terminated or result.metadata.get("truncated", False),
        values.get("dist_at_end"),
    )


def summarize(episodes: Sequence[Episode], config: Mapping[str, Any]) -> dict[str, Any]:
    """Compute the summary (clause 10) of all episodes that were asked for."""
    ret = np.array([episode.ret for episode in episodes])
    steps = np.array([episode.steps for episode in episodes])
    success = np.array([episode.success is True for episode in episodes])
    failure = np.array([episode.success is False for episode in episodes])
    terminated = np.array([episode.terminated for episode in episodes])
    dist = np.array([episode.dist for episode in episodes if episode.dist is not None])
    n, is_known = len(episodes), config["success_is"] is not None
    successes = int(success.sum()) if is_known else None
    rate = None if successes is None else successes / n
    to_goal = steps[success]
    returns = Moments.of(ret)
    return {
        "episodes": n,
        "successes": successes,
        "success_rate": rate,
        **_bounds("success_rate", None if rate is None else wilson(rate, n)),
        "median_steps_to_goal": _median(to_goal),
        **_bounds("median_steps_to_goal", median_interval(to_goal)),
        "median_steps_to_goal_n": successes,
        "mean_return": returns.mean,
        "mean_return_stderr": returns.stderr,
        # A return is no rate, even where all that were seen lie between 0 and 1.
        **_bounds("mean_return", returns.interval(bounded=False)),
        "steps": int(steps.sum()),
        "terminated": int(terminated.sum()),
        "truncated": n - int(terminated.sum()),
        "return_mean_success": Moments.of(ret[success]).mean,
        "return_mean_fail": Moments.of(ret[failure]).mean,
        "steps_p50_success": _median(to_goal),
        "dist_at_end_p50": _median(dist),
        "dist_n": len(dist),
        "num_envs": config["num_envs"],
        "seed": config["seed"],
        "seeded": config["seeded"],
        "success_is": config["success_is"],
        "notes": list(config["notes"]),
    }


def _median(values: NDArray[Any]) -> float | None:
    return float(np.median(values)) if len(values) else None


def _bounds(name: str, interval: Interval | None) -> dict[str, Any]:
    return {
        f"{name}_ci_low": interval.low if interval else None,
        f"{name}_ci_high": interval.high if interval else None,
    }
