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

from heldout._fingerprint import describe_callable
from heldout.config import EvalConfig, base_config
from heldout.engine import Item, Outcome, Run
from heldout.errors import InvalidInput, RunDirectoryError
from heldout.rollout import EvalDefinition, ScoreFn, check_score_fn, failed_in_scoring, score_again
from heldout.store.report import EvalReport, repeats_of, threshold_of
from heldout.store.run_dir import RunDir, RunInfo
from heldout.types import EvalResult, Sample, Score


async def rescore(
    run: EvalReport | str | Path,
    score_fn: ScoreFn | EvalDefinition,
    config: EvalConfig | None = None,
) -> EvalReport:
    """Score every saved trajectory of a finished run, into a new run.

    What errored before it could be scored stays an error; what the score function itself had
    failed on is scored. Of `config` count the name and place of the new run, `max_concurrent`,
    `timeout`, `on_error`, `max_error_rate`, `resume` and `progress`; the rest, and the threshold
    from which an item passes, is the parent's. Without a name it is PARENT-rescored.
    """
    if isinstance(score_fn, EvalDefinition):
        score_fn = score_fn.score_fn
    check_score_fn(score_fn)
    parent = run if isinstance(run, EvalReport) else EvalReport.load(run)
    if parent.path is None:
        raise InvalidInput("the report lives in memory only; save it, and score what was saved")
    home = RunDir(parent.path)
    info = home.read_info()
    _refuse_unfinished(parent, info)
    name = str(parent.config.get("experiment_name") or parent.path.name)
    given = config or replace(base_config, output_dir=str(parent.path.parent))
    repeats = repeats_of(parent.config)
    settings = replace(
        given,
        endpoint=base_config.endpoint,  # nobody is asked
        experiment_name=given.experiment_name or f"{name}-rescored",
        repeats=repeats,
        max_samples=len(parent.results) // repeats,
        pass_threshold=threshold_of(parent.config),
    )
    saved = _Saved(parent, score_fn, settings.timeout)
    described = {
        **parent.config,
        **{key: getattr(settings, key) for key in _OF_THIS_RUN},
        "parent": {"run": name, "score_fn": info.functions.get("score_fn"), **home.origin(info)},
    }
    functions = {**info.functions, "score_fn": describe_callable(score_fn)}
    return await Run(saved.samples(), settings, saved.one, described, functions).run()


_OF_THIS_RUN = (
    *("output_dir", "max_concurrent", "timeout", "on_error", "max_error_rate"),
    *("resume", "progress"),
)


def _refuse_unfinished(parent: EvalReport, info: RunInfo) -> None:
    if info.config.get("kind") == "episodes":
        raise InvalidInput(
            f"{parent.path} has episodes of an environment, which keep no trajectory to score"
        )
    there = len(parent.results)
    # A run that failed, as every item errored in its score function, has all there is to score.
    if there == 0 or info.asked != there or parent.status in ("running", "interrupted"):
        of = "" if info.asked is None else f" of {info.asked}"
        raise RunDirectoryError(
            f"{parent.path} is not finished ({parent.status}): it has {there}{of} items, and those "
            "that end first are not like the others. Finish it first: heldout run … --resume"
        )
    if there % repeats_of(parent.config):
        raise RunDirectoryError(
            f"{parent.path} has {there} items, which are not {repeats_of(parent.config)} of each "
            "sample, as its config says"
        )


class _Saved:
    """The samples of a run in their order, and what came of each."""

    def __init__(self, parent: EvalReport, score_fn: ScoreFn, timeout: float | None) -> None:
        self._results, self._score_fn, self._timeout = parent.results, score_fn, timeout
        self._path, self._repeats = parent.path, repeats_of(parent.config)
        self._by_repeat: dict[int, EvalResult] = {}

    def samples(self) -> Iterator[Sample]:
        """Holds the results of one sample at a time: a worker takes its item as it is given out."""
        for id, results in groupby(self._results, key=attrgetter("sample_id")):
            self._by_repeat = {result.repeat: result for result in results}
            if [*self._by_repeat] != [*range(self._repeats)]:
                raise RunDirectoryError(
                    f"{self._path}: sample {id!r:.100} has the repeats {[*self._by_repeat]!r:.60}, "
                    f"where its config says {self._repeats} of each"
                )
            yield self._by_repeat[0].sample

    async def one(self, item: Item) -> Outcome:
        result = self._by_repeat[item.repeat]
        if result.error is not None and not failed_in_scoring(result.error):
            return result, None
        again = await score_again(
            result.trajectory, result.sample, self._score_fn, timeout=self._timeout
        )
        scored = replace(result, score=again.score or Score(), error=again.error)
        return scored, again.problem
