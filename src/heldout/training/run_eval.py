"""One measurement of a model in training: from the model to results, or to why there are none.

Everything here happens between two training steps and leaves no trace of itself. With several
ranks each takes its part of the samples, and all meet at two places whatever has happened to them:
where the first says how many samples there will be, and where the parts are put together.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import anyio
import msgspec

from heldout.concurrency import Abandoned, Here, run_beside
from heldout.config import EvalConfig
from heldout.endpoints.batch import Answered, BatchEndpoint, Request
from heldout.engine import evaluate
from heldout.errors import (
    EndpointError,
    EvalFailed,
    InvalidInput,
    ResumeMismatch,
    printable_error,
)
from heldout.isolation import (
    NotBeside,
    beside_training,
    isolated,
    refusing_draws,
    untouched_random_state,
    wait_for_device,
)
from heldout.store.journal import Record, plain_value
from heldout.store.report import EvalReport
from heldout.store.rundir import RunDir
from heldout.summary import Summary, summarize_results
from heldout.training.distributed import Ranks, RanksApart
from heldout.training.runner import Answer, Runner, RunnerBuilder, describe_runner
from heldout.training.trainer_thread import NobodyCame
from heldout.types import EvalResult, Sample
from heldout.weights import fingerprint

log = logging.getLogger("heldout")

TIME_WAS_UP = "time was up"
GRACE_SECONDS = 15.0
"""How long what was cancelled may take to close its environments before training goes on."""
SETTLE_SECONDS = 2.0
"""How long, when time is up, answers that are there already may take to be scored."""

KeepGoing = Callable[[int, int], bool]
"""`(items done, items in all)`: whether to go on; called about every step of decoding."""


AskTrainer = Callable[[Callable[[], Any]], Any]
"""Raises NobodyCame where the training is over, or nobody wants the result any more."""


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be measured, and what to ask on the way."""

    step: int
    samples: Sequence[Sample]
    """All of them, in the fixed order."""
    builder: RunnerBuilder | Elsewhere
    getter: Callable[[], Any]
    home: Path
    pass_threshold: float
    seed: int
    decide: Callable[[str | None], int]
    """Given the fingerprint of the weights, how many samples to take; 0 for none. Rank 0 only."""
    admit: Callable[[dict[str, Any]], None]
    """Given `describe_runner`, raises where what is measured would not belong on the curve. Rank 0
    only."""
    keep_going: KeepGoing
    version: Callable[[Any], str | None] = fingerprint
    """Which weights these are."""
    ask_trainer: AskTrainer | None = None
    """Where this runs beside a training, in a thread of its own on weights of its own: has a
    function called in the thread that trains."""


@dataclass(frozen=True, slots=True)
class Measured:
    asked: int
    """Items that were to be run."""
    repeats: int = 1
    results: tuple[EvalResult, ...] = ()
    summary: Summary | None = None
    skipped: str | None = None
    partial: str | None = None
    weights: str | None = None
    decoding: dict[str, Any] | None = None
    rows: int = 1
    """Items that cost the same together as one does alone."""
    run: str | None = None


@runtime_checkable
class Elsewhere(Protocol):
    """Measures in another process (`heldout.training.worker`)."""

    def try_snapshot(self, model: Any, *, step: int) -> Any:
        """In the thread that trains; None where there is no room for another one."""

    def measure(self, task: Task, snapshot: Any) -> Measured | None:
        """In any thread. Like `measure`, of the weights in the snapshot."""


class Part(msgspec.Struct):
    """What one rank came to."""

    records: list[Record] = []
    repeats: int = 1
    skipped: str | None = None
    ended: str | None = None
    """Why it stopped before its last sample."""
    decoding: dict[str, Any] | None = None
    rows: int = 1
    run: str | None = None
    config: dict[str, Any] = {}


def measure(task: Task, ranks: Ranks) -> Measured | None:
    """None where `decide` wants nothing measured, and on other ranks than the first.

    An error in here is a skip, not an exception.
    """
    if isinstance(task.builder, Elsewhere):
        return _measure_elsewhere(task, task.builder)
    try:
        return _measure(task, ranks)
    except RanksApart as problem:
        if ranks.rank == 0:
            return Measured(0, skipped=str(problem))
        log.warning("mid-run eval at step %s: %s", task.step, problem)
        return None


def _measure_elsewhere(task: Task, place: Elsewhere) -> Measured | None:
    """Training waits for it."""
    try:
        with untouched_random_state():
            snapshot = place.try_snapshot(task.getter(), step=task.step)
    except Exception as problem:  # noqa: BLE001 - kept as the reason of the skip
        return Measured(0, skipped=f"model: {describe(problem)}")
    if snapshot is None:
        return Measured(0, skipped="all snapshots were in use")
    try:
        return place.measure(task, snapshot)
    finally:
        snapshot.release()


def _measure(task: Task, ranks: Ranks) -> Measured | None:
    part, size, weights = Part(), 0, None
    refused: str | None = None
    # Past this point no rank may leave before the others: they would wait for it.
    try:
        with ExitStack() as stack:
            model = None
            try:
                if task.ask_trainer is None:
                    with untouched_random_state():
                        model = task.getter()
                else:
                    model = task.getter()
                if model is None:
                    part.skipped = "there is no model yet"
                else:
                    alone = task.ask_trainer is None
                    stack.enter_context(
                        isolated(model, seed=task.seed) if alone else beside_training()
                    )
                    weights = task.version(model)
            except Exception as problem:  # noqa: BLE001 - kept as the reason of the skip
                part.skipped = f"model: {describe(problem)}"
            runner = None
            if part.skipped is None:
                try:
                    assert callable(task.builder)
                    runner = build_runner(task.builder, model)
                    if ranks.rank == 0:
                        # Before `decide`: a point that is known already may be of another eval.
                        task.admit(describe_runner(runner))
                except Exception as problem:  # noqa: BLE001 - kept as the reason of the skip
                    part.skipped = describe(problem)
            decided = 0
            if ranks.rank == 0:
                try:
                    decided = task.decide(weights if part.skipped is None else None)
                except Exception as problem:  # noqa: BLE001 - kept as the reason of the skip
                    refused = describe(problem)
            size = int(ranks.from_first(str(decided).encode()))
            if size and runner is not None and part.skipped is None:
                mine = range(size)[ranks.rank :: ranks.world]
                try:
                    part = _run_part(task, model, runner, mine, ranks)
                except Exception as problem:
                    log.debug("mid-run eval at step %s", task.step, exc_info=problem)
                    part.skipped = describe(problem)
    except RanksApart:
        raise
    except Exception as problem:
        log.error("after the mid-run eval at step %s", task.step, exc_info=problem)
        part.skipped = refused = describe(problem)
    if size == 0:
        return None if refused is None else Measured(0, skipped=refused, weights=weights)
    if ranks.world == 1:
        return _merge(task, [part], size, weights, ranks)
    given = ranks.gather(_sent(part))
    if ranks.rank != 0:
        return None
    return _merge(task, [msgspec.json.decode(p, type=Part) for p in given], size, weights, ranks)


def _sent(part: Part) -> bytes:
    try:
        return msgspec.json.encode(part, enc_hook=plain_value)
    except Exception as problem:  # noqa: BLE001 - kept as the reason of the skip
        return msgspec.json.encode(Part(skipped=describe(problem)))


def describe(problem: BaseException) -> str:
    said = printable_error(problem)
    if isinstance(problem, EvalFailed | InvalidInput | ResumeMismatch):
        return said[:2000]
    return f"{type(problem).__name__}: {said}"[:2000]


# --- One rank's part ----------------------------------------------------------------------------


def build_runner(builder: RunnerBuilder, model: Any) -> Runner:
    """The runner for a model; InvalidInput where the builder fails, or returns something else."""
    try:
        runner = builder(model)
    except Exception as problem:
        raise InvalidInput(f"runner_builder: {describe(problem)}") from problem
    if not isinstance(runner, Runner):
        raise InvalidInput(f"runner_builder returns a heldout.training.Runner, got {runner!r:.100}")
    return runner


def _run_part(task: Task, model: Any, runner: Runner, places: Sequence[int], ranks: Ranks) -> Part:
    if not places:  # more ranks than samples
        return Part(repeats=runner.repeats)
    with ExitStack() as stack:
        home = task.home / "steps"
        if ranks.world > 1:
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="heldout-")))
        name = _reserved(home, task.step)
        samples = [task.samples[place] for place in places]
        answer = runner.answer if task.ask_trainer is None else _mostly_here(task, runner, model)
        ended = _evaluate(task, replace(runner, answer=answer), samples, home, name)
        part = Part(repeats=runner.repeats, decoding=runner.describe() or None)
        if (part.decoding or {}).get("way") == "captured":
            part.rows = runner.rows
        part.ended = ended
        if not RunDir(home / name).exists():  # not even one item
            with suppress(OSError):
                (home / name).rmdir()
            return part
        report = EvalReport.load(home / name)
        place_of = {sample.id: place for sample, place in zip(samples, places, strict=True)}
        part.records = [Record.of(place_of[r.sample_id], r) for r in report.results]
        part.run, part.config = f"steps/{name}", report.config
        return part


def _mostly_here(task: Task, runner: Runner, model: Any) -> Answer:
    """Answers in this thread; in the one that trains, where something global has to change."""
    assert task.ask_trainer is not None
    ask, said = task.ask_trainer, False

    def answer(requests: Sequence[Request], keep_going: Callable[[], bool]) -> Sequence[Answered]:
        nonlocal said
        try:
            with nullcontext() if runner.own_random else refusing_draws():
                return runner.answer(requests, keep_going)
        except NotBeside as problem:
            why = problem

        def there() -> Sequence[Answered]:
            with isolated(model, seed=task.seed):
                given = runner.answer(requests, keep_going)
                wait_for_device(model)
                return given

        if not said:
            said = True
            log.info("eval of step %s goes on in the thread that trains: %s", task.step, why)
        wait_for_device(model)  # the other thread has another stream
        return ask(there)  # type: ignore[no-any-return]

    return answer


def _evaluate(
    task: Task, runner: Runner, samples: Sequence[Sample], home: Path, name: str
) -> str | None:
    """Why not all of it was run; None if it was. What was run is in the run directory."""
    items = len(samples) * runner.repeats
    rows = max(1, min(runner.rows, items))
    sampling = runner.sampling
    if sampling.temperature > 0 and sampling.seed is None:
        sampling = replace(sampling, seed=task.seed)  # the same weights, the same summary
    endpoints: list[BatchEndpoint] = []
    up: list[float] = []
    why: list[str] = []

    def keep_going() -> bool:
        if not up and not task.keep_going(endpoints[0].done if endpoints else 0, items):
            up.append(time.monotonic())
        return not up

    def answer(requests: Sequence[Request]) -> Sequence[Answered]:
        if not keep_going():
            return [None] * len(requests)
        try:
            given = runner.answer(requests, keep_going)
        except NobodyCame as problem:  # no error of these items: nobody answered them
            up.append(time.monotonic())
            why.append(str(problem))
            return [None] * len(requests)
        if keep_going():
            nothing = EndpointError("it was given no answer")
            return [nothing if each is None else each for each in given]
        return given

    async def main(here: Here) -> tuple[str | None]:
        endpoint = BatchEndpoint(answer, here, items=items, rows=rows)
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
            pass_threshold=task.pass_threshold,
            output_dir=str(home),
            progress=False,
        )

        async def until_over() -> None:
            await endpoint.over.wait()
            group.cancel_scope.cancel()

        ended: str | None = TIME_WAS_UP
        async with anyio.create_task_group() as group:
            group.start_soon(endpoint.serve)
            group.start_soon(until_over)
            try:
                await evaluate(
                    samples,
                    config,
                    runner.scoring(),
                    runner.prepare_messages,
                    runner.environment_factory,
                )
                ended = None
            except EvalFailed as problem:
                if not RunDir(home / name).exists():
                    raise
                ended = describe(problem)
            group.cancel_scope.cancel()
        return (ended,)

    def not_hopeless() -> bool:
        """What was answered in time may still be scored, for a moment."""
        return keep_going() or time.monotonic() - up[0] < SETTLE_SECONDS

    try:
        found = run_beside(main, keep_going=not_hopeless, every=0.1, grace=GRACE_SECONDS)
    except Abandoned as problem:
        log.error(
            "mid-run eval at step %s: %s. It goes on in a thread of its own, and may draw random "
            "numbers that the training would have drawn",
            task.step,
            problem,
        )
        return f"{TIME_WAS_UP}, and something that blocks was left behind"
    if why:
        return why[0]
    return TIME_WAS_UP if found is None else found[0]


def _reserved(home: Path, step: int) -> str:
    """The name of a directory that is ours: others may measure the same step at the same time."""
    name, number = f"{step:08d}", 2
    home.mkdir(parents=True, exist_ok=True)
    while True:
        try:
            (home / name).mkdir()
        except FileExistsError:
            name, number = f"{step:08d}-{number}", number + 1
        else:
            return name


# --- Together -----------------------------------------------------------------------------------


def _merge(
    task: Task, parts: Sequence[Part], size: int, weights: str | None, ranks: Ranks
) -> Measured:
    first, several = parts[0], ranks.world > 1
    asked = size * first.repeats
    for rank, part in enumerate(parts):
        if part.skipped is not None:
            where = f"rank {rank}: " if several else ""
            return Measured(asked, skipped=where + part.skipped, weights=weights)
    records = {(r.index, r.repeat): r for part in parts for r in part.records}
    # Only a beginning of the fixed order that is complete: of the others those are finished that
    # were quick, and their mean would be another one.
    results: list[EvalResult] = []
    for place in range(size):
        own = [records.get((place, repeat)) for repeat in range(first.repeats)]
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
        return measured(skipped=f"{why} before any beginning of the samples was complete")
    if not any(result.ok for result in results):
        return measured(
            skipped=f"all {len(results)} items errored, so there is no mean; the last: "
            f"sample {results[-1].sample_id!r}: {results[-1].error}"
        )
    summary = summarize_results(results, task.pass_threshold)
    run = first.run
    if several and ranks.rank == 0:
        run = f"steps/{_reserved(task.home / 'steps', task.step)}"
        EvalReport(results, summary, first.config).save(task.home / run)
    cut = f"{ended} after {len(results)} of {asked} items" if len(results) < asked else None
    return measured(summary=summary, partial=cut, run=run)
