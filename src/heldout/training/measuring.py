"""One eval of one model: isolate it, hash it, run the samples, merge the ranks, make the point.

    task = policy_eval.task(step, …)                   # due: which samples, for how long
    measured = measure(task, model, ranks)             # results, or why there are none
    point = policy_eval.make_point(task, measured, …)  # a line of the curve

`measure` has no side effects on training, which waits for it, or goes on if a snapshot is measured.
With several ranks each runs a part of the samples. They communicate twice, whatever happened to
them: to learn the number of samples from the first and whether all have its weights, and to merge
the parts. Where the weights differ they communicate once more, to say what differs.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import anyio
import msgspec

from heldout._core.aio import CallerThread, CancelTimeout, run_in_loop_thread
from heldout._core.config import EvalConfig
from heldout._core.temporary import TemporaryFolder
from heldout._evals.engine import Evaluation
from heldout._evals.rollout import EvalDefinition
from heldout._live.isolation import (
    NeedsTrainerThread,
    background_thread,
    is_background_thread,
    isolated,
    refusing_draws,
    tokenizers_of,
    wait_for_device,
)
from heldout._live.weights import fingerprint, hash_tensors, sharding_way
from heldout.analysis.passes import summarize_passes
from heldout.errors import UNENCODABLE, EndpointError, EvalFailed
from heldout.models.batch import Answered, BatchEndpoint, Request
from heldout.stats.summary import Summary, has_mean
from heldout.store.columns import PARQUET_FROM, summarize_results
from heldout.store.error_counts import count_errors, explain_no_mean
from heldout.store.journal import Record, plain_value
from heldout.store.jsonl import pack
from heldout.store.report import EvalReport
from heldout.store.run_dir import RunDir, now
from heldout.training.curve.curve_file import EvalHistory, reserve_name
from heldout.training.curve.points import CurvePoint, outcomes_of
from heldout.training.curve.publishing import PointPublisher
from heldout.training.ranks import NO_LIMIT, Ranks, RanksApart, TimeLimit, exchange
from heldout.training.reasons import describe
from heldout.training.runner import (
    EpisodeRunner,
    Runner,
    RunnerBuilder,
    build_runner,
    describe_runner,
)
from heldout.training.settings import EvalSettings
from heldout.types import EvalResult, Sample

log = logging.getLogger("heldout")

TIME_WAS_UP = "time was up"
GRACE_SECONDS = 15.0
"""How long cancelled items may take to close their environments before training goes on."""
SETTLE_SECONDS = 2.0
"""How long scoring of existing answers may take when time is up."""
LONGEST_PROMPT = 20_000
"""Characters of a rendered prompt in the curve. A longer one loses its middle."""

KeepEvaluating = Callable[[int, int], bool]
"""`(items done, all items)`: whether to go on; called about every decoding step."""


class HasWeights(Protocol):
    """A snapshot, as far as measuring it goes."""

    @property
    def weights(self) -> str | None:
        """Hash of the weights."""


class TrainerGone(Exception):
    """Training is over, so nothing runs in its thread any more."""


RunInTrainer = Callable[[Callable[[], Any]], Any]
"""Calls a function in the trainer's thread. Raises TrainerGone if training is over, or if the
result is no longer needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One eval that is due.

    Attributes:
        step: The step of its point.
        samples: The held-out set in the fixed order.
        size: How many of them to use, from the start.
        runner_builder: Makes the runner of a model.
        run_dir: The run directory.
        pass_threshold: Reward from which an item passes.
        seed: Seed for sampling.
        keep_going: Called about every decoding step, with items done and all items.
        limit: How long it may take, which `keep_going` sees to.
        history: The curve that the point belongs to. None in a worker: its client has checked it.
        whole: Whether only a point over the whole held-out set makes this eval unnecessary.
        final: Whether these are the last weights, which need no second eval at the same step.
    """

    step: int
    samples: Sequence[Sample]
    size: int
    runner_builder: RunnerBuilder | None
    run_dir: Path
    pass_threshold: float
    seed: int
    keep_going: KeepEvaluating
    limit: TimeLimit = NO_LIMIT
    history: EvalHistory | None = None
    whole: bool = False
    final: bool = False

    @property
    def name(self) -> str:
        """Name of the run with its conversations."""
        return f"{self.step:08d}"

    def find_known(self, weights: str | None, functions: dict[str, Any]) -> Known | None:
        """Find an existing point of these weights.

        Args:
            weights: Hash of the weights, if known.
            functions: `describe_runner` of the runner.

        Returns:
            The existing point; None if the weights have to be measured.

        Raises:
            ResumeMismatch: A new result could not be compared with those on the curve.
        """
        if self.history is None:
            return None
        self.history.admit(functions)
        point = self.history.known_at(self.step, weights, whole=self.whole)
        settled = self.final and self.history.is_settled(self.step, weights)
        return Known(point) if point is not None or settled else None


@dataclass(frozen=True, slots=True)
class Known:
    """No new result: these weights have this point already, or need none."""

    point: CurvePoint | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """The outcome of an eval: results, or why there are none."""

    asked: int
    """Items that were requested."""
    repeats: int = 1
    results: tuple[EvalResult, ...] = ()
    summary: Summary | None = None
    skipped: str | None = None
    partial: str | None = None
    weights: str | None = None
    decoding: dict[str, Any] | None = None
    rows: int = 1
    """Items in a batch, which costs the same if it is not full."""
    run: str | None = None


class RankStart(msgspec.Struct):
    """What a rank says before it runs its part."""

    size: int
    """How many samples there are, in the opinion of the first rank."""
    weights: str | None = None
    """Hash of its weights; None if it has none, or only a shard of the model."""
    has_model: bool = True


class RankResults(msgspec.Struct):
    """The results of one rank."""

    records: list[Record] = []
    repeats: int = 1
    skipped: str | None = None
    ended: str | None = None
    """Why it stopped before its last sample."""
    decoding: dict[str, Any] | None = None
    rows: int = 1
    run: str | None = None
    config: dict[str, Any] = {}
    has_passes: bool = True
    max_error_rate: float | None = None


def measure(
    task: Task,
    model: Any,
    ranks: Ranks,
    *,
    no_model: str | None = None,
    snapshot: HasWeights | None = None,
    run_in_trainer: RunInTrainer | None = None,
) -> Measured | Known | None:
    """Evaluate the model while training waits, or a snapshot in a thread.

    Args:
        task: What to measure.
        model: The model.
        ranks: The processes that evaluate, each a part. All of them call this, also those that
            have no model.
        no_model: Why there is no model in this process.
        snapshot: The snapshot that the model belongs to, if training goes on.
        run_in_trainer: Calls a function in the trainer's thread, for what must not run in the
            thread of a snapshot.

    Returns:
        The results, or why there are none; the point that these weights have already; None on
        other ranks than the first, and if there is no time for any sample.
    """
    if model is None and no_model is None:
        no_model = "there is no model: pass it to maybe_run, or a model_getter"
    part = RankResults(skipped=no_model)
    try:
        part, size, weights, known = _run_here(task, model, part, ranks, snapshot, run_in_trainer)
        if size == 0:
            return known
        parts = [part]
        if ranks.world > 1:
            gathered = ranks.all_gather(_encode_part(part))
            if ranks.rank != 0:
                return None
            parts = [msgspec.json.decode(raw, type=RankResults) for raw in gathered]
        return _merge(task, parts, size, weights, ranks)
    except RanksApart as problem:
        if ranks.rank == 0:
            return Measured(0, skipped=str(problem))
        log.warning("eval at step %s: %s", task.step, problem)
        return None


def _run_here(
    task: Task,
    model: Any,
    part: RankResults,
    ranks: Ranks,
    snapshot: HasWeights | None,
    run_in_trainer: RunInTrainer | None,
) -> tuple[RankResults, int, str | None, Known | None]:
    """Run this rank's part; return its results, the number of samples, and the weights' hash.

    Does not raise: the other ranks would wait for this one.
    """
    size, known, runner = 0, None, None
    weights: str | None = None
    whole: str | None = None
    """The same, if this process has all weights: hashes of shards differ."""
    try:
        with ExitStack() as stack:
            try:
                if snapshot is not None:
                    stack.enter_context(background_thread())
                    whole = weights = snapshot.weights
                elif part.skipped is None:
                    stack.enter_context(_isolated(task, model))
                    weights = fingerprint(model)
                    whole = None if sharding_way(model) else weights
            except Exception as problem:  # noqa: BLE001 - kept as the reason of the skip
                part.skipped = f"model: {describe(problem)}"
            try:
                if part.skipped is None:
                    runner = build_runner(task.runner_builder, model)
                    if ranks.rank == 0:
                        known = task.find_known(weights, describe_runner(runner))
            except Exception as problem:  # noqa: BLE001 - kept as the reason of the skip
                part.skipped, runner = describe(problem), None
            start = RankStart(0 if known else task.size, whole, has_model=runner is not None)
            starts: list[RankStart] = exchange(ranks, start, RankStart)
            size = starts[0].size
            if size and (reason := _explain_difference(starts, model, ranks)) is not None:
                part.skipped, runner = reason, None
            if size and runner is not None:
                mine = range(size)[ranks.rank :: ranks.world]
                if snapshot is None and isinstance(runner, Runner):
                    stack.callback(runner.release)
                try:
                    part = _run_part(task, model, runner, mine, ranks, run_in_trainer)
                except Exception as problem:
                    log.debug("eval at step %s", task.step, exc_info=problem)
                    part.skipped = describe(problem)
    except RanksApart:
        raise
    except Exception as problem:
        log.error("after the eval at step %s", task.step, exc_info=problem)
        part.skipped = describe(problem)
    return part, size, weights, known


def _isolated(task: Task, model: Any) -> AbstractContextManager[None]:
    """Isolate the model, and the tokenizers that the eval shares with training."""
    return isolated(model, seed=task.seed, tokenizers=tokenizers_of(task.runner_builder))


def _encode_part(part: RankResults) -> bytes:
    try:
        return msgspec.json.encode(part, enc_hook=plain_value)
    except UNENCODABLE as problem:  # no rank may leave before the others
        return msgspec.json.encode(RankResults(skipped=describe(problem)))


# --- Do all ranks have the same weights? -------------------------------------------------------


def _explain_difference(starts: Sequence[RankStart], model: Any, ranks: Ranks) -> str | None:
    """Say what differs between the weights of the ranks, all of which call this; None if nothing.

    A rank without a model has a reason of its own.
    """
    own = [(rank, start.weights) for rank, start in enumerate(starts) if start.has_model]
    others = [rank for rank, weights in own if weights != own[0][1]]
    if not others:
        return None
    try:
        tensors = hash_tensors(model)
    except Exception:  # noqa: BLE001 - no rank may leave before the others
        tensors = {}
    held = exchange(ranks, tensors, dict[str, tuple[str, bool]])
    (first, _), other = own[0], others[0]
    mine, theirs = held[first], held[other]
    names = [name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name)]
    where = f"rank {other} has other weights than rank {first}"
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        where += f": {names[0]}{more}"
    if names and all(mine.get(name, ("", True))[1] for name in names):
        where += (
            ". These are buffers, which DistributedDataParallel makes equal only when a forward "
            "pass begins; SyncBatchNorm keeps them equal"
        )
    return f"{where}. across='first' evaluates those of rank 0"


# --- One rank's part ----------------------------------------------------------------------------


def _run_part(
    task: Task,
    model: Any,
    runner: Runner | EpisodeRunner,
    indices: Sequence[int],
    ranks: Ranks,
    run_in_trainer: RunInTrainer | None,
) -> RankResults:
    if isinstance(runner, EpisodeRunner):
        return _play_episodes(task, runner)
    if not indices:  # more ranks than samples
        return RankResults(repeats=runner.repeats)
    with ExitStack() as stack:
        folder = task.run_dir / "steps"
        if ranks.world > 1:
            folder = Path(stack.enter_context(TemporaryFolder("eval")))
        name = reserve_name(folder, task.name)
        samples = [task.samples[index] for index in indices]
        # Of several parts, `_merge` decides over all: one alone may have most of the errors.
        rate = runner.max_error_rate if ranks.world == 1 else None
        answers = _Answers(
            task, replace(runner, max_error_rate=rate), model, len(samples), run_in_trainer
        )
        report, ended = _evaluate(answers, samples, folder, name)
        part = RankResults(
            repeats=runner.repeats,
            decoding=runner.describe() or None,
            ended=ended,
            max_error_rate=runner.max_error_rate,
        )
        if (part.decoding or {}).get("way") == "captured":
            part.rows = runner.rows
        if report is None:  # not even one item
            with suppress(OSError):
                (folder / name).rmdir()
            return part
        index_of = {sample.id: index for sample, index in zip(samples, indices, strict=True)}
        part.records = [Record.of(index_of[r.sample_id], r) for r in report.results]
        part.run, part.config = f"steps/{name}", report.config
        if ranks.world == 1:
            pack(RunDir(folder / name).journal)
        return part


def _play_episodes(task: Task, runner: EpisodeRunner) -> RankResults:
    report = runner.play()
    name = reserve_name(task.run_dir / "steps", task.name)
    report.config["experiment_name"] = name
    saved = RunDir(task.run_dir / "steps" / name)
    report.save(saved.path, parquet_from=PARQUET_FROM)
    pack(saved.journal)
    index_of = {sample.id: index for index, sample in enumerate(task.samples)}
    records = [Record.of(index_of[r.sample_id], r) for r in report.results]
    return RankResults(
        records, run=f"steps/{name}", config=report.config, has_passes=runner.has_passes
    )


class _Answers:
    """Answers the batches of one eval, in the thread that has its model, until its time is up.

    Args:
        task: The eval.
        runner: Answers a batch.
        model: The model, which is isolated for batches in the trainer's thread.
        samples: How many samples are run.
        run_in_trainer: As for `measure`.
    """

    def __init__(
        self,
        task: Task,
        runner: Runner,
        model: Any,
        samples: int,
        run_in_trainer: RunInTrainer | None,
    ) -> None:
        self.task, self.runner, self.items = task, runner, samples * runner.repeats
        self.endpoint: BatchEndpoint | None = None
        """Where the attempts ask, once it serves them."""
        self.trainer_gone: str | None = None
        """Why the trainer's thread answers nothing more."""
        self._model, self._run_in_trainer = model, run_in_trainer
        self._ended: float | None = None
        """When time was up."""
        self._has_told = False

    def keep_going(self) -> bool:
        """Whether there is time for more; asked about every decoding step."""
        done = 0 if self.endpoint is None else self.endpoint.done
        if self._ended is None and not self.task.keep_going(done, self.items):
            self._ended = time.monotonic()
        return self._ended is None

    def may_still_score(self) -> bool:
        """Allow existing answers to be scored, for a moment."""
        if self.keep_going():
            return True
        return self._ended is not None and time.monotonic() - self._ended < SETTLE_SECONDS

    def answer(self, requests: Sequence[Request]) -> Sequence[Answered]:
        """Answer a batch; None for what there was no time for."""
        if not self.keep_going():
            return [None] * len(requests)
        try:
            answers = self._ask(requests)
        except TrainerGone as problem:  # not an error of these items: they got no answer
            self._ended = self._ended or time.monotonic()
            self.trainer_gone = str(problem)
            return [None] * len(requests)
        if self.keep_going():
            missing = EndpointError("it got no answer")
            return [missing if turn is None else turn for turn in answers]
        return answers

    def _ask(self, requests: Sequence[Request]) -> Sequence[Answered]:
        """Answer in this thread, or in the trainer's if global state has to change."""
        if self._run_in_trainer is None:
            return self.runner.answer(requests, self.keep_going)
        try:
            with nullcontext() if self.runner.own_random else refusing_draws():
                return self.runner.answer(requests, self.keep_going)
        except NeedsTrainerThread as problem:
            reason = problem
        if not self._has_told:
            self._has_told = True
            step = self.task.step
            log.info("eval of step %s goes on in the trainer's thread: %s", step, reason)
        wait_for_device(self._model)  # the other thread has another stream
        return self._run_in_trainer(  # type: ignore[no-any-return]
            partial(self._ask_isolated, requests)
        )

    def _ask_isolated(self, requests: Sequence[Request]) -> Sequence[Answered]:
        with _isolated(self.task, self._model):
            answers = self.runner.answer(requests, self.keep_going)
            wait_for_device(self._model)
            return answers


def _evaluate(
    answers: _Answers, samples: Sequence[Sample], folder: Path, name: str
) -> tuple[EvalReport | None, str | None]:
    """Run the samples; return the report, and why it is not complete."""
    task, runner, items = answers.task, answers.runner, answers.items
    rows = max(1, min(runner.rows, items))
    sampling = runner.sampling
    if sampling.temperature and sampling.seed is None:
        sampling = replace(sampling, seed=task.seed)  # the same weights, the same summary

    async def main(caller_thread: CallerThread) -> EvalReport | str:
        endpoint = BatchEndpoint(answers.answer, caller_thread, items=items, rows=rows)
        answers.endpoint = endpoint
        config = EvalConfig(
            endpoint=endpoint,
            experiment_name=name,
            max_concurrent=rows,
            repeats=runner.repeats,
            max_turns=runner.max_turns,
            token_budget=runner.token_budget,
            sampling=sampling,
            timeout=runner.timeout,
            retries=0,
            max_error_rate=runner.max_error_rate,
            pass_threshold=task.pass_threshold,
            output_dir=str(folder),
            progress=False,
        )
        definition = EvalDefinition(
            samples, runner.scoring(), runner.prepare_messages, runner.environment_factory
        )
        run = Evaluation(definition, config, endpoint, parquet_from=PARQUET_FROM)

        async def cancel_when_over() -> None:
            await endpoint.over.wait()
            group.cancel_scope.cancel()

        ended: EvalReport | str = TIME_WAS_UP
        async with anyio.create_task_group() as group:
            group.start_soon(endpoint.serve)
            group.start_soon(cancel_when_over)
            try:
                ended = await run.run()
            except EvalFailed as problem:
                if not RunDir(folder / name).exists():
                    raise
                ended = describe(problem)
            group.cancel_scope.cancel()
        return ended

    try:
        ended = run_in_loop_thread(
            main, keep_going=answers.may_still_score, every=0.1, grace=GRACE_SECONDS
        )
    except CancelTimeout as problem:
        log.error(
            "eval at step %s: %s. It goes on in its thread, and may draw random numbers that "
            "training would have drawn",
            task.step,
            problem,
        )
        ended = f"{TIME_WAS_UP}, and a blocked call was left running"
    if isinstance(ended, EvalReport):
        return ended, answers.trainer_gone
    report = EvalReport.load(folder / name) if RunDir(folder / name).exists() else None
    return report, answers.trainer_gone or ended or TIME_WAS_UP


# --- All ranks -----------------------------------------------------------------------------------


def _merge(
    task: Task, parts: Sequence[RankResults], size: int, weights: str | None, ranks: Ranks
) -> Measured:
    first, several = parts[0], ranks.world > 1
    asked = size * first.repeats
    for rank, part in enumerate(parts):
        if part.skipped is not None:
            is_own = any(other.skipped != part.skipped for other in parts)
            where = f"rank {rank}: " if is_own else ""
            return Measured(asked, skipped=where + part.skipped, weights=weights)
    records = {(r.index, r.repeat): r for part in parts for r in part.records}
    # Only a complete prefix of the fixed order: beyond it, only the quick items have finished,
    # and their mean would be biased.
    results: list[EvalResult] = []
    for index in range(size):
        own = [records.get((index, repeat)) for repeat in range(first.repeats)]
        if any(record is None for record in own):
            break
        results += [record.result() for record in own if record is not None]
    ended = next((part.ended for part in parts if part.ended), None)
    measured = partial(
        Measured,
        asked,
        first.repeats,
        tuple(results),
        weights=weights,
        decoding=first.decoding,
        rows=first.rows,
    )
    if not results:
        why = ended or "nothing was run"
        return measured(skipped=f"{why} before the first sample was complete")
    errors = [(result.sample_id, result.error) for result in results if not result.ok]
    if not has_mean(len(results), len(errors), first.max_error_rate):
        counts = count_errors(errors)
        why = explain_no_mean(len(results), len(errors), counts, first.max_error_rate)
        return measured(skipped=why[:2000])
    summary = summarize_results(results, task.pass_threshold if first.has_passes else None)
    run = first.run
    if several and ranks.rank == 0:
        run = f"steps/{reserve_name(task.run_dir / 'steps', task.name)}"
        config = {**first.config, "max_error_rate": first.max_error_rate}
        merged = EvalReport(results, summary, config)
        merged.save(task.run_dir / run, parquet_from=PARQUET_FROM)
        pack(RunDir(task.run_dir / run).journal)
    cut = f"{ended} after {len(results)} of {asked} items" if len(results) < asked else None
    if first.repeats > 1:
        summary = {**summary, **summarize_passes(results, first.repeats, task.pass_threshold)}
    return measured(summary=summary, partial=cut, run=run)


# --- What a PeriodicEval measures at each step ---------------------------------------------------


class PolicyEval:
    """One eval of a policy in training, at any step: its samples and settings, and what is watched.

    Args:
        settings: The settings of the eval.
        samples: The samples, in the fixed order.
        runner_builder: Makes the runner of a model; None with a worker.
        publisher: Gets the progress of a long eval.
        clock: The clock.
    """

    def __init__(
        self,
        settings: EvalSettings,
        samples: Sequence[Sample],
        runner_builder: RunnerBuilder | None,
        publisher: PointPublisher,
        clock: Callable[[], float],
    ) -> None:
        self.settings, self.samples, self.runner_builder = settings, samples, runner_builder
        self._publisher, self._clock = publisher, clock
        self._progress: deque[Callable[[], object]] = deque()
        """Heartbeats of background evals, to be called in the trainer's thread."""
        self._warned: set[str] = set()

    def warn_once(self, text: str) -> None:
        """Log what is true of many evals of a training, once."""
        if text not in self._warned:
            self._warned.add(text)
            log.warning("%s: %s", self.settings.label, text)

    def task(
        self,
        step: int,
        run_dir: Path,
        history: EvalHistory | None,
        *,
        size: int | None = None,
        final: bool = False,
        limit: TimeLimit = NO_LIMIT,
        beats: bool = True,
        is_given_up: Callable[[], bool] = lambda: False,
    ) -> Task:
        """Say what is measured at a step, from now on.

        Args:
            step: The step of the point.
            run_dir: The run directory.
            history: The curve, in the first process.
            size: How many samples to use; None for the whole set, on the last weights say.
            final: Whether these are the last weights.
            limit: How long it may take.
            beats: Whether this process gives heartbeats.
            is_given_up: Whether nobody waits for its result any more.
        """
        return Task(
            step=step,
            samples=self.samples,
            size=len(self.samples) if size is None else size,
            runner_builder=self.runner_builder,
            run_dir=run_dir,
            pass_threshold=self.settings.pass_threshold,
            seed=self.settings.seed,
            keep_going=self._keep_going(step, limit.seconds, is_given_up, beats=beats),
            limit=limit,
            history=history,
            whole=size is None,
            final=final,
        )

    def make_point(
        self,
        task: Task,
        measured: Measured,
        seconds: float,
        *,
        budget: dict[str, Any] | None = None,
    ) -> CurvePoint:
        """Make the point of a result or a skip.

        Args:
            task: What was due, on a curve.
            measured: The result, or why there is none.
            seconds: How long it took.
            budget: What the budget was charged, if training waited for it.
        """
        curve = task.history
        assert curve is not None
        decoding = dict(measured.decoding or {})
        prompt = decoding.pop("prompt", None)
        if prompt is not None and len(prompt) > LONGEST_PROMPT:
            prompt = f"{prompt[: LONGEST_PROMPT // 2]} … {prompt[-LONGEST_PROMPT // 2 :]}"
        partial_reason = measured.partial
        if partial_reason is not None and task.limit.text:
            partial_reason = f"{task.limit.text}: {partial_reason}"
        return CurvePoint(
            label=self.settings.label,
            step=task.step,
            session=curve.session,
            time=now(),
            seconds=seconds,
            summary=self._publisher.within_bounds(measured.summary),
            skipped=measured.skipped,
            partial=partial_reason,
            outcomes=outcomes_of(measured.results),
            asked=measured.asked,
            of=len(self.samples) * measured.repeats,
            weights=measured.weights,
            budget=budget,
            decoding=decoding or None,
            prompt=None if prompt == curve.last_prompt else prompt,
            run=measured.run,
            final=task.final,
            follows=curve.follows,
        )

    # --- Progress ---

    def _keep_going(
        self,
        step: int,
        seconds: float | None,
        is_given_up: Callable[[], bool],
        *,
        beats: bool,
    ) -> KeepEvaluating:
        """Make the callback of a running eval: it gives heartbeats and says when time is up."""
        settings = self.settings
        began = last_beat = self._clock()

        def keep_going(done: int, total: int) -> bool:
            nonlocal last_beat
            time_now = self._clock()
            if beats and time_now - last_beat >= settings.progress_seconds:
                last_beat = time_now
                fields = {"eval_done": done, "eval_total": total, "eval_seconds": time_now - began}
                name = f"{settings.label}_progress"
                beat = partial(self._publisher.beat, name, {"step": step, **fields})
                if is_background_thread():
                    self._progress.append(beat)
                else:
                    beat()
            in_time = seconds is None or time_now - began < seconds
            return in_time and not is_given_up()

        return keep_going

    @property
    def has_progress(self) -> bool:
        """Whether background evals have heartbeats to give."""
        return bool(self._progress)

    def beat_progress(self) -> None:
        """Give the heartbeats of background evals, in the trainer's thread."""
        while self._progress:
            self._progress.popleft()()
