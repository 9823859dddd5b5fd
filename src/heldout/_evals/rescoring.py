"""Saved trajectories, scored again: another grader, the same answers, and no policy asked.

    report = await rescore("outputs/evals/capitals", score_fn)

makes a new run that names its parent; `heldout compare` on the two shows what the grader changed.
It is the engine's run with another way to an item, so it resumes, reports and fails like any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec

from heldout._core.config import DEFAULT_LEVEL, MAX_ERROR_RATE, EvalConfig, base_config
from heldout._evals.baseline import CLAIM_KEYS
from heldout._evals.engine import EvalRun, Item, ItemResult
from heldout._evals.rollout import (
    Attempt,
    EvalDefinition,
    ScoreFn,
    check_score_fn,
    own_pass_threshold,
)
from heldout.errors import InvalidInput, RunDirectoryError
from heldout.store.fingerprint import PARTS, describe_callable, describe_parts
from heldout.store.report import EvalReport
from heldout.store.run_config import repeats_of, threshold_of
from heldout.store.run_dir import RunDir, RunInfo
from heldout.store.settled import Settled
from heldout.types import EvalResult, OtherUsage, Sample, Score


async def rescore(
    run: EvalReport | str | Path,
    score_fn: ScoreFn | EvalDefinition,
    config: EvalConfig | None = None,
) -> EvalReport:
    """Score every saved trajectory of a finished run, into a new run.

    What errored before it could be scored stays an error; what the score function itself had
    failed on is scored.

    Args:
        run: The run, or where it is.
        score_fn: Scores a trajectory; or an eval that has one.
        config: Name and place of the new run, `max_concurrent`, `timeout`, `on_error`,
            `max_error_rate` (by default the parent's), `resume` and `progress`; the rest, and the
            threshold from which an item passes, is the parent's. Without a name it is
            PARENT-rescored.

    Raises:
        InvalidInput: There are no trajectories to score, or no score function.
        RunDirectoryError: The run is not finished, or the new one cannot be made.
        SystemicFailure: Every item errored, or more than `max_error_rate`.
    """
    if isinstance(score_fn, EvalDefinition):
        score_fn = score_fn.score_fn
    check_score_fn(score_fn)
    parent = run if isinstance(run, EvalReport) else EvalReport.load(run)
    if parent.path is None:
        raise InvalidInput("the report lives in memory only; save it, and score what was saved")
    parent_dir = RunDir(parent.path)
    info = parent_dir.read_info()
    _refuse_unfinished(parent, info)
    name = str(parent.config.get("experiment_name") or parent.path.name)
    config = config or replace(base_config, output_dir=str(parent.path.parent))
    repeats, threshold = repeats_of(parent.config), threshold_of(parent.config)
    rate = config.max_error_rate
    if rate == MAX_ERROR_RATE:  # then the errors that the parent's user accepted are accepted here
        rate = parent.config.get("max_error_rate", rate)
    settings = replace(
        config,
        endpoint=None,  # no model is called
        experiment_name=config.experiment_name or f"{name}-rescored",
        until=None,
        level=DEFAULT_LEVEL,
        keep_power=False,
        this_set=False,
        repeats=repeats,
        max_samples=len(parent.results) // repeats,
        max_error_rate=rate,
        pass_threshold=own_pass_threshold(config.pass_threshold)
        if threshold is None
        else threshold,
        save_turns=False,
    )
    described = {
        **{key: value for key, value in parent.config.items() if key not in (*CLAIM_KEYS, "order")},
        **{key: getattr(settings, key) for key in _OF_THIS_RUN},
        "parent": {
            "run": name,
            "score_fn": info.functions.get("score_fn"),
            **parent_dir.origin(info),
        },
    }
    parts = {**(info.functions.get(PARTS) or {}), **describe_parts({"score_fn": score_fn})}
    functions = {**info.functions, "score_fn": describe_callable(score_fn), PARTS: parts}
    return await _Rescoring(parent, score_fn, settings, described, functions).run()


_OF_THIS_RUN = (
    *("output_dir", "max_concurrent", "timeout", "on_error", "max_error_rate"),
    *("resume", "progress"),
)


def _refuse_unfinished(parent: EvalReport, info: RunInfo) -> None:
    if info.config.get("kind") == "episodes":
        raise InvalidInput(
            f"{parent.path} has episodes of an environment, which keep no trajectory to score"
        )
    count = len(parent.results)
    # A run that failed, as every item errored in its score function, has all there is to score.
    if count == 0 or info.asked != count or parent.status in ("running", "interrupted"):
        of = "" if info.asked is None else f" of {info.asked}"
        finish = "" if parent.is_imported else ". Finish it first: heldout run … --resume"
        raise RunDirectoryError(
            f"{parent.path} is not finished ({parent.status}): it has {count}{of} items, and those "
            f"that end first are not like the others{finish}"
        )


class _Rescoring(EvalRun):
    """A run whose trajectories are another run's."""

    def __init__(
        self,
        parent: EvalReport,
        score_fn: ScoreFn,
        config: EvalConfig,
        described: dict[str, Any],
        functions: dict[str, Any],
    ) -> None:
        super().__init__(self._samples(), config, described, functions)
        self.parent, self.definition = parent, EvalDefinition((), score_fn)
        if parent.settled is not None and parent.settled.is_early:
            self.inherited = _inherit(parent.settled)
        self.by_repeat: dict[int, EvalResult] = {}

    def _samples(self) -> Iterator[Sample]:
        """Yield samples, with one sample's results in memory at a time."""
        for _, results in groupby(self.parent.results, key=attrgetter("sample_id")):
            self.by_repeat = {result.repeat: result for result in results}
            yield self.by_repeat[0].sample

    async def run_item(self, item: Item) -> ItemResult:
        result = self.by_repeat[item.repeat]
        if result.error is not None and result.error_stage != "score_fn":
            return result, None
        attempt = await Attempt(
            item.sample,
            definition=self.definition,
            timeout=self.config.timeout,
            trajectory=result.trajectory,
            stored=result.score,
        ).run()
        score = attempt.score if attempt.score is not None else Score()
        users = [part for part in result.other_usage if part.role == "user"]
        others = OtherUsage.merge([*users, *attempt.other_usage])
        scored = replace(
            result,
            score=score,
            error=attempt.error,
            error_stage=attempt.error_stage,
            other_usage=others,
        )
        return scored, attempt.problem


def _inherit(settled: Settled) -> Settled:
    """Return what a rescored run says of the stop: it was made by other scores."""
    return msgspec.structs.replace(
        settled,
        decision="inconclusive",
        sentence=(
            f"Nothing is settled by these scores: the run was stopped by {settled.stopped_by} "
            "under its own score function."
        ),
        estimate=None,
        interval=None,
        mean=None,
        difference=None,
    )
