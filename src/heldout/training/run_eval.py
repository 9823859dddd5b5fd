"""One eval of one model: get the model, isolate it, hash it, run the samples, merge the ranks.

`measure` has no side effects on training, which waits for it, or goes on if a snapshot is measured.
With several ranks each runs a part of the samples. They communicate twice, whatever happened to
them: to learn the number of samples from the first and whether all have its weights, and to merge
the parts. Where the weights differ they communicate once more, to say what differs.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Sequence
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
from heldout._evals.rollout import EvalDefinition, check_questions
from heldout._live.isolation import (
    NeedsTrainerThread,
    background_thread,
    isolated,
    refusing_draws,
    tokenizers_of,
    untouched_random_state,
    wait_for_device,
)
from heldout._live.weights import fingerprint, hash_tensors, sharding_way
from heldout.analysis.passes import summarize_passes
from heldout.datasets import distinct
from heldout.errors import (
    UNENCODABLE,
    EndpointError,
    EvalFailed,
    InvalidInput,
)
from heldout.models.batch import Answered, BatchEndpoint, Request
from heldout.stats.summary import Summary, has_mean
from heldout.store.columns import PARQUET_FROM, summarize_results
from heldout.store.error_counts import count_errors, explain_no_mean
from heldout.store.journal import Record, plain_value
from heldout.store.jsonl import link_error, pack
from heldout.store.report import EvalReport
from heldout.store.resume import as_stored
from heldout.store.run_dir import RunDir
from heldout.training.curve.curve_file import EvalHistory, numbered_names
from heldout.training.curve.points import CurvePoint
from heldout.training.ranks import Ranks, RanksApart
from heldout.training.reasons import describe
from heldout.training.runner import (
    EpisodeRunner,
    Runner,
    RunnerBuilder,
    StoppableBatchFn,
    describe_runner,
)
from heldout.types import EvalResult, Sample

log = logging.getLogger("heldout")

TIME_WAS_UP = "time was up"
GRACE_SECONDS = 15.0
"""How long cancelled items may take to close their environments before training goes on."""
SETTLE_SECONDS = 2.0
"""How long scoring of existing answers may take when time is up."""

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


def check_samples(
    samples: Iterable[Sample] | EvalDefinition,
    builder: RunnerBuilder | None = None,
    *,
    may_be_empty: bool = False,
) -> list[Sample]:
    """Return the held-out samples as a run directory stores them.

    Args:
        samples: The samples, or the eval that has them.
        builder: Makes the runner that asks them, where it is known. One that cannot be described
            before there is a model may have a `prepare_messages` of its own.
        may_be_empty: Whether there may be none.

    Raises:
        InvalidInput: There are none, or one of them cannot be stored or asked.
    """
    runner: EvalDefinition | Runner | None = getattr(builder, "prototype", None)
    if isinstance(samples, EvalDefinition):
        runner, samples = samples, samples.samples
    checked = [as_stored(s) for s in distinct(samples, wanted="held-out samples are Samples")]
    if not checked and not may_be_empty:
        raise InvalidInput("there are no samples to evaluate")
    if isinstance(runner, EvalDefinition | Runner):
        check_questions(checked, runner.prepare_messages)
    return checked


def hash_samples(samples: Sequence[Sample]) -> str:
    """Hash the content of samples, the same after a restart."""
    content = hashlib.sha256()
    for sample in samples:
        content.update(msgspec.json.encode(sample, enc_hook=plain_value) + b"\n")
    return content.hexdigest()[:16]


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
    get_model: Callable[[], Any],
    ranks: Ranks,
    snapshot: HasWeights | None = None,
    run_in_trainer: RunInTrainer | None = None,
) -> Measured | Known | None:
    """Evaluate the model while training waits, or a snapshot in a thread.

    Args:
        task: What to measure.
        get_model: Returns the model.
        ranks: The processes that evaluate, each a part.
        snapshot: The snapshot that the model belongs to, if training goes on.
        run_in_trainer: Calls a function in the trainer's thread, for what must not run in the
            thread of a snapshot.

    Returns:
        The results, or why there are none; the point that these weights have already; None on
        other ranks than the first, and if there is no time for any sample.
    """
    try:
        part, size, weights, known = _run_here(task, get_model, ranks, snapshot, run_in_trainer)
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
    get_model: Callable[[], Any],
    ranks: Ranks,
    snapshot: HasWeights | None,
    run_in_trainer: RunInTrainer | None,
) -> tuple[RankResults, int, str | None, Known | None]:
    """Run this rank's part; return its results, the number of samples, and the weights' hash.

    Does not raise: the other ranks would wait for this one.
    """
    part, size, known = RankResults(), 0, None
    weights: str | None = None
    whole: str | None = None
    """The same, if this process has all weights: hashes of shards differ."""
    try:
        with ExitStack() as stack:
            model, runner = None, None
            try:
                if snapshot is None:
                    with untouched_random_state():
                        model = get_model()
                    if model is not None:
                        stack.enter_context(_isolated(task, model))
                        weights = fingerprint(model)
                        whole = None if sharding_way(model) else weights
                else:
                    model = get_model()
                    stack.enter_context(background_thread())
                    whole = weights = snapshot.weights
                if model is None:
                    part.skipped = "there is no model: pass it to maybe_run, or a model_getter"
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
            starts = _exchange(ranks, start)
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


def _exchange(ranks: Ranks, start: RankStart) -> list[RankStart]:
    if ranks.world == 1:
        return [start]
    raw = ranks.all_gather(msgspec.json.encode(start))
    return [msgspec.json.decode(each, type=RankStart) for each in raw]


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
    held = [
        msgspec.json.decode(raw, type=dict[str, tuple[str, bool]])
        for raw in ranks.all_gather(msgspec.json.encode(tensors))
    ]
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


def build_runner(builder: RunnerBuilder | None, model: Any) -> Runner | EpisodeRunner:
    """Make the runner of a model.

    Args:
        builder: The runner builder.
        model: The model.

    Raises:
        InvalidInput: The builder fails, or returns something else.
    """
    assert builder is not None
    try:
        runner = builder(model)
    except Exception as problem:
        raise InvalidInput(f"runner_builder: {describe(problem)}") from problem
    if not isinstance(runner, Runner | EpisodeRunner):
        raise InvalidInput(f"runner_builder returns a heldout.training.Runner, got {runner!r:.100}")
    return runner


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
        answer = runner.answer
        if run_in_trainer is not None:
            answer = _answer_in_background(task, runner, model, run_in_trainer)
        # Of several parts, `_merge` decides over all: one alone may have most of the errors.
        rate = runner.max_error_rate if ranks.world == 1 else None
        runner_here = replace(runner, answer=answer, max_error_rate=rate)
        report, ended = _evaluate(task, runner_here, samples, folder, name)
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


def _answer_in_background(
    task: Task, runner: Runner, model: Any, run_in_trainer: RunInTrainer
) -> StoppableBatchFn:
    """Answer in this thread, or in the trainer's if global state has to change."""
    logged = False

    def answer(requests: Sequence[Request], keep_going: Callable[[], bool]) -> Sequence[Answered]:
        nonlocal logged
        try:
            with nullcontext() if runner.own_random else refusing_draws():
                return runner.answer(requests, keep_going)
        except NeedsTrainerThread as problem:
            reason = problem

        def answer_in_trainer() -> Sequence[Answered]:
            with _isolated(task, model):
                answers = runner.answer(requests, keep_going)
                wait_for_device(model)
                return answers

        if not logged:
            logged = True
            log.info("eval of step %s goes on in the trainer's thread: %s", task.step, reason)
        wait_for_device(model)  # the other thread has another stream
        return run_in_trainer(answer_in_trainer)  # type: ignore[no-any-return]

    return answer


def _evaluate(
    task: Task, runner: Runner, samples: Sequence[Sample], folder: Path, name: str
) -> tuple[EvalReport | None, str | None]:
    """Run the samples; return the report, and why it is not complete."""
    items = len(samples) * runner.repeats
    rows = max(1, min(runner.rows, items))
    sampling = runner.sampling
    if sampling.temperature and sampling.seed is None:
        sampling = replace(sampling, seed=task.seed)  # the same weights, the same summary
    endpoints: list[BatchEndpoint] = []
    time_up: list[float] = []
    gone: list[str] = []

    def keep_going() -> bool:
        if not time_up and not task.keep_going(endpoints[0].done if endpoints else 0, items):
            time_up.append(time.monotonic())
        return not time_up

    def answer(requests: Sequence[Request]) -> Sequence[Answered]:
        if not keep_going():
            return [None] * len(requests)
        try:
            answers = runner.answer(requests, keep_going)
        except TrainerGone as problem:  # not an error of these items: they got no answer
            time_up.append(time.monotonic())
            gone.append(str(problem))
            return [None] * len(requests)
        if keep_going():
            missing = EndpointError("it got no answer")
            return [missing if turn is None else turn for turn in answers]
        return answers

    async def main(caller_thread: CallerThread) -> EvalReport | str:
        endpoint = BatchEndpoint(answer, caller_thread, items=items, rows=rows)
        endpoints.append(endpoint)
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

        async def cancel_when_over() -> None:
            await endpoint.over.wait()
            group.cancel_scope.cancel()

        ended: EvalReport | str = TIME_WAS_UP
        async with anyio.create_task_group() as group:
            group.start_soon(endpoint.serve)
            group.start_soon(cancel_when_over)
            try:
                ended = await Evaluation(
                    EvalDefinition(
                        samples,
                        runner.scoring(),
                        runner.prepare_messages,
                        runner.environment_factory,
                    ),
                    config,
                    endpoint,
                    parquet_from=PARQUET_FROM,
                ).run()
            except EvalFailed as problem:
                if not RunDir(folder / name).exists():
                    raise
                ended = describe(problem)
            group.cancel_scope.cancel()
        return ended

    def may_still_score() -> bool:
        """Allow existing answers to be scored, for a moment."""
        return keep_going() or time.monotonic() - time_up[0] < SETTLE_SECONDS

    try:
        ended = run_in_loop_thread(main, keep_going=may_still_score, every=0.1, grace=GRACE_SECONDS)
    except CancelTimeout as problem:
        log.error(
            "eval at step %s: %s. It goes on in its thread, and may draw random numbers that "
            "training would have drawn",
            task.step,
            problem,
        )
        ended = f"{TIME_WAS_UP}, and a blocked call was left running"
    if isinstance(ended, EvalReport):
        return ended, gone[0] if gone else None
    report = EvalReport.load(folder / name) if RunDir(folder / name).exists() else None
    return report, gone[0] if gone else ended or TIME_WAS_UP


def reserve_name(folder: Path, name: str) -> str:
    """Create a directory of that name, numbered if another eval has it, and return its name."""
    if folder.is_symlink():
        raise link_error(folder)
    folder.mkdir(parents=True, exist_ok=True)
    names = numbered_names(name)
    while True:
        free = next(names)
        with suppress(FileExistsError):
            (folder / free).mkdir()
            return free


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
