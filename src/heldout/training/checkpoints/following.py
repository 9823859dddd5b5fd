"""follow_checkpoints: the curve of a folder of checkpoints.

    follow_checkpoints("runs/ckpt", definition, model="hf:{path}", run_dir="outputs/evals/run1")

Each checkpoint is evaluated once, when it is whole, as an ordinary run (`heldout.evaluate`). Its
result is an ordinary point: judged, logged and appended by `PointPublisher`. A checkpoint has a
write-ahead line from when it is found whole, so a process that is killed leaves nothing unsaid: the
next one continues the eval where it was, or says that the checkpoint is gone.

The attempt of a point (`CurvePoint.session`) is one of the training run, not of this process.
Another one begins where a step that has a result is overwritten with other weights.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from heldout._core.config import EvalConfig, base_config
from heldout._evals.engine import Executor
from heldout._evals.rollout import (
    EvalDefinition,
    ScoreFn,
    merge_sampling,
    own_pass_threshold,
    turn_limit,
)
from heldout.datasets import ordered_by_id
from heldout.errors import InvalidInput, ResumeMismatch, SystemicFailure
from heldout.store.error_counts import count_errors, explain_no_mean
from heldout.store.fingerprint import describe_tokenizer
from heldout.store.jsonl import pack, replace_file
from heldout.store.report import EvalReport
from heldout.store.run_dir import RunDir
from heldout.training.checkpoints import finding
from heldout.training.checkpoints.checkpoint_model import PATH, CheckpointModel
from heldout.training.checkpoints.converting import hash_weights
from heldout.training.checkpoints.finding import Checkpoint, FolderState
from heldout.training.checkpoints.formats import UnreadableCheckpoint, Weights
from heldout.training.checkpoints.holding import Hold, take_hold
from heldout.training.curve.curve_file import (
    EvalHistory,
    curve_config,
    leave_curve_file,
    reserve_name,
)
from heldout.training.curve.points import (
    CurvePoint,
    pending_point,
    pending_points,
    skip_of,
    stop_requested,
)
from heldout.training.curve.publishing import Heartbeat, Monitor, PointLog, PointPublisher, point_of
from heldout.training.loggers import Logger, LogsMetrics
from heldout.training.loggers.base import Loggers
from heldout.training.reasons import describe
from heldout.training.runner import Runner, check_samples, describe_runner, no_model
from heldout.training.settings import EvalSettings
from heldout.types import Sample

log = logging.getLogger("heldout")

MAX_HELD = 2
"""Checkpoints that are held at a time: the one that is evaluated, and the next. They take room on
the disk even if their trainer has removed them."""
OLD_SECONDS = 60.0
"""A checkpoint that was last written to longer ago than this is not watched before it is taken."""
STATE_NAME = "checkpoints.json"
HELD = "held"
REMOVED = "was removed before it could be evaluated"


def follow_checkpoints(
    folder: str | Path,
    samples: Iterable[Sample] | EvalDefinition,
    score_fn: ScoreFn | None = None,
    *,
    model: str | None = None,
    serve: str | None = None,
    config: EvalConfig = base_config,
    run_dir: str | Path | None = None,
    label: str = "checkpoints",
    pattern: str | None = None,
    base: str | None = None,
    convert: str | None = None,
    once: bool = False,
    poll_seconds: float = 10.0,
    done_file: str | Path | None = None,
    stop_after: float | None = None,
    stop_file: str | Path | None = None,
    monitor: Monitor | None = None,
    heartbeat_fn: Heartbeat | None = None,
    on_point: Callable[[CurvePoint], object] | None = None,
    loggers: Sequence[Logger | LogsMetrics | str] = (),
    executor: Executor | None = None,
) -> list[CurvePoint]:
    """Evaluate each checkpoint in a folder once, as they come, and append them to a curve.

    Args:
        folder: Where a trainer saves its checkpoints. It may not exist yet.
        samples: The held-out samples, or an `EvalDefinition`.
        score_fn: Scores a trajectory, where `samples` are samples.
        model: The model of a checkpoint, with `{path}` for its folder: `hf:{path}` (the default),
            `vllm:{path}`.
        serve: In place of `model`, a command that serves a checkpoint as an OpenAI-compatible
            server, with `{path}` and `{port}`.
        config: How to run the samples; its endpoint, name and folder are not used.
        run_dir: Directory of the curve, which is continued if it has one; by default
            `outputs/evals/<label>`.
        label: The eval's name on the curve.
        pattern: Names of checkpoints: a path below `folder`, with `{step}`.
        base: The model that was trained, for checkpoints without a config or a tokenizer, and for
            adapters.
        convert: A command that converts a checkpoint, `{path}`, to a folder `{out}` in a format
            that is known.
        once: Whether to evaluate what is there now, and return.
        poll_seconds: Seconds between looks at the folder. A checkpoint is taken once nothing has
            changed in it for so long.
        done_file: A file that says that training has ended; by default `done` in `folder`. What is
            there is still evaluated.
        stop_after: Seconds without a new checkpoint after which to return.
        stop_file: A file to write when the monitor asks training to stop, with its reason.
        monitor: As for `PeriodicEval`.
        heartbeat_fn: As for `PeriodicEval`.
        on_point: Called with each point.
        loggers: Loggers that get each point.
        executor: Runs the samples elsewhere, as `heldout.cluster.RayExecutor` does, where the paths
            of checkpoints and of `run_dir` have to be the same.

    Returns:
        The current points of the curve.

    Raises:
        InvalidInput: An argument is invalid, or the first checkpoint is in a format that cannot be
            read.
        RunDirectoryError: The run directory cannot be used: it has another eval's curve, or another
            process writes it.
    """
    definition = EvalDefinition.of(samples, score_fn)
    config = replace(
        config,
        max_turns=turn_limit(config.max_turns, definition),
        sampling=merge_sampling(config.sampling, definition),
        pass_threshold=own_pass_threshold(config.pass_threshold, definition),
    )
    if config.cache and executor is None:
        raise InvalidInput("each checkpoint has answers of its own: leave out the response cache")
    if config.settles is not None:
        raise InvalidInput(
            "the points of a curve are compared, so each has all samples: leave out until"
        )
    asking = CheckpointModel(model, serve, executor, base=base, convert=convert)
    if (
        serve is None
    ):  # a setting that such a model does not have is refused before it is waited for
        replace(config, endpoint=asking.name.replace(PATH, "/checkpoint"))
    folder = Path(folder).absolute()
    if folder.exists() and not folder.is_dir():
        raise InvalidInput(f"{folder} is not a folder")
    if not poll_seconds > 0 or (stop_after is not None and not stop_after >= 0):
        raise InvalidInput("poll_seconds must be greater than 0, and stop_after 0 or more")
    patterns = finding.patterns_of(pattern)
    with Loggers(*loggers) as all_loggers:
        points = PointLog(all_loggers)
        curve = CheckpointCurve(
            folder,
            definition,
            config,
            asking,
            run_dir=Path(run_dir or Path("outputs/evals") / label).absolute(),
            label=label,
            publisher=PointPublisher(label, monitor, heartbeat_fn),
            points=points,
            on_point=on_point or (lambda point: None),
            stop_file=None if stop_file is None else Path(stop_file).absolute(),
        )
        follower = Follower(
            curve,
            patterns,
            once=once,
            poll_seconds=poll_seconds,
            done_file=Path(done_file).absolute() if done_file else folder / "done",
            stop_after=stop_after,
        )
        with curve:
            follower.run()
            return curve.history.points


# --- The curve of a folder -----------------------------------------------------------------------


class FollowedFolder(msgspec.Struct):
    """checkpoints.json: which checkpoints have a result, so that a restart reads none of them."""

    folder: str
    finished: dict[int, tuple[str, str]] = {}
    """By step: the signature of its files, and the hash of its weights."""


class CheckpointCurve:
    """Evaluates checkpoints of one folder, and puts their points on its curve.

    Entering it continues the curve in its run directory, or begins one.
    """

    def __init__(
        self,
        folder: Path,
        definition: EvalDefinition,
        config: EvalConfig,
        model: CheckpointModel,
        *,
        run_dir: Path,
        label: str,
        publisher: PointPublisher,
        points: PointLog,
        on_point: Callable[[CurvePoint], object],
        stop_file: Path | None,
    ) -> None:
        EvalSettings(label=label)  # checks the label
        held_out = ordered_by_id(check_samples(definition), 0)[: config.max_samples]
        self._definition = replace(definition, samples=held_out)
        self._config, self.model = config, model
        self.folder, self.run_dir, self.label = folder, run_dir, label
        self._publisher, self._points = publisher, points
        self._on_point, self._stop_file = on_point, stop_file
        publisher.warn_of_plateau(len(held_out))
        # Where the checkpoints are on another file system than the curve, beside them, since a link
        # costs nothing. Trainers send no names with a leading underscore to the hub.
        beside = hashlib.blake2b(os.fsencode(run_dir), digest_size=4).hexdigest()
        self._holds = (run_dir / HELD, folder / f"_heldout_{beside}")
        self.finished: dict[int, str] = {}
        """Signatures of checkpoints that need no eval, by step."""
        self._state = FollowedFolder(str(folder))
        self._has_read = False
        self.history: EvalHistory

    def __enter__(self) -> CheckpointCurve:
        self._read_state()
        for left in self._holds:  # by a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        samples = self._definition.samples
        assert isinstance(samples, list)
        config = curve_config(
            self.label,
            samples,
            seed=0,
            pass_threshold=self._config.pass_threshold,
            monitor=self._publisher.settings,
        )
        self._functions = self._describe()
        self.history = EvalHistory(self, self.run_dir, config, self._functions, resume=True)
        self.history.continue_attempt()
        results = {
            (point.step, point.weights) for point in self.history.all_points if point.has_result
        }
        for step, (signature, weights) in self._state.finished.items():
            if (step, weights) in results:
                self.finished[step] = signature
        return self

    def __exit__(self, *problem: object) -> None:
        if problem[0] is None:
            self.history.mark_complete()
        else:
            self.history.file.close()
        leave_curve_file(self.history.file, self)

    def _describe(self) -> dict[str, Any]:
        """Describe what determines the results, as `PeriodicEval` does."""
        given, config = self._definition, self._config
        runner = Runner(
            no_model,
            given.score_fn,
            given.prepare_messages,
            given.environment_factory,
            answer_filter=None,
            sampling=config.sampling,
            repeats=config.repeats,
            max_turns=config.max_turns or 1,
            token_budget=config.token_budget,
            identity={"model": self.model.name},
            rates=True,
        )
        return describe_runner(runner)

    # --- Which checkpoints are done ---

    def _read_state(self) -> None:
        path = self.run_dir / STATE_NAME
        if not path.exists():
            return
        try:
            state = msgspec.json.decode(path.read_bytes(), type=FollowedFolder)
        except (OSError, msgspec.MsgspecError) as problem:
            log.warning("%s is not read (%s): checkpoints are hashed again", path, problem)
            return
        if state.folder != str(self.folder):
            raise InvalidInput(
                f"{self.run_dir} has the curve of the checkpoints in {state.folder}, not of those "
                f"in {self.folder}. Use another name for this one; or, if the folder was moved, "
                f"remove {path}"
            )
        self._state = state

    def _finish(self, checkpoint: Checkpoint, signature: str, weights: str | None) -> None:
        """Note that a checkpoint needs no eval any more; with weights, beyond this process."""
        self.finished[checkpoint.step] = signature
        if weights is not None:
            self._state.finished[checkpoint.step] = (signature, weights)
            replace_file(self.run_dir / STATE_NAME, msgspec.json.encode(self._state))

    def unfinished(self) -> list[CurvePoint]:
        """List evals that an earlier process began, or had found, and did not finish."""
        return pending_points(self.history.all_points)

    def result_at(self, step: int) -> CurvePoint | None:
        """Return the current result of a step, if it has one."""
        points = (point for point in self.history.points if point.step == step)
        return next((point for point in points if point.has_result), None)

    # --- Points ---

    def expect(self, checkpoint: Checkpoint) -> None:
        """Write that a checkpoint is to be evaluated, unless its step has a result."""
        if self.result_at(checkpoint.step) is None and self._pending(checkpoint.step) is None:
            self._write_ahead(checkpoint)

    def is_known(self, checkpoint: Checkpoint) -> bool:
        """Whether a checkpoint of this step has been whole before."""
        return any(point.step == checkpoint.step for point in self.history.points)

    def _pending(self, step: int) -> CurvePoint | None:
        return next((point for point in self.unfinished() if point.step == step), None)

    def _write_ahead(self, checkpoint: Checkpoint, **known: Any) -> CurvePoint:
        history = self.history
        pending = pending_point(
            self.label,
            checkpoint.step,
            history.session,
            saved_at=os.fsencode(checkpoint.path).decode("utf-8", "replace"),
            follows=history.follows,
        )
        pending = msgspec.structs.replace(pending, **known)
        history.file.append(pending)
        history.drop_pending(pending.key)
        history.add(pending)
        return pending

    def give_up(self, checkpoint: Checkpoint, reason: str) -> None:
        """Publish a skip for a checkpoint that cannot be evaluated any more."""
        pending = self._pending(checkpoint.step)
        if pending is None:
            if self.is_known(checkpoint):
                return  # it has a result, or was skipped for another reason
            pending = self._write_ahead(checkpoint)
        self._publish(skip_of(pending, f"{checkpoint.name} {reason}"))

    def _publish(self, point: CurvePoint) -> None:
        self.history.drop_pending(point.key)
        self._on_point(self._publisher.publish(point, self.history, self._points))
        self.write_stop_file()

    def write_stop_file(self) -> str | None:
        """Write the stop file if the monitor, or `heldout curve stop`, asks to stop; say why."""
        reason = self._publisher.find_stop(self.run_dir)
        if reason is not None and self._stop_file is not None and not self._stop_file.exists():
            self._stop_file.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._stop_file, f"{reason}\n".encode())
        return reason

    # --- One checkpoint ---

    def check_first(self, checkpoint: Checkpoint, weights: Weights) -> None:
        """Raise UnreadableCheckpoint if a checkpoint cannot be read, and none has been so far."""
        if not self._has_read:
            self.model.check_readable(checkpoint, weights)

    def hold(self, checkpoint: Checkpoint, state: FolderState) -> Hold | None:
        """Take hold of a checkpoint; None if it is gone, is written to, or cannot be held."""
        try:
            return take_hold(checkpoint, state, self._holds)
        except OSError as problem:
            reason = f"{checkpoint.name} cannot be held: {describe(problem)}"
            self._fail(checkpoint, state, reason, time.monotonic())
            return None

    def evaluate(self, hold: Hold, weights: Weights) -> None:
        """Evaluate a checkpoint that is held, unless its step has a result on these weights.

        Raises:
            UnreadableCheckpoint: It cannot be read, and none has been so far.
        """
        began = time.monotonic()
        checkpoint, state = hold.checkpoint, hold.state
        try:
            weights = hold.relocate(weights)
            self.model.check_readable(checkpoint, weights)
            with ExitStack() as stack:
                out = self.run_dir / "converted"
                held = Checkpoint(checkpoint.step, hold.path)
                loadable = self.model.loadable(held, weights, out)
                weights, folder = stack.enter_context(loadable)
                hashed = hash_weights(weights, folder, self.model.base)
                self._has_read = True

                def is_unchanged() -> bool:
                    def rehash() -> bool:
                        return hash_weights(weights, folder, self.model.base) == hashed

                    return hold.is_unchanged(rehash)

                known = self.result_at(checkpoint.step)
                if known is not None and known.weights == hashed:
                    self._finish(checkpoint, state.signature, hashed)
                    return
                if known is not None and known.session == self.history.session:
                    self._begin_attempt(checkpoint.step)
                pending = self._begin_eval(checkpoint, hashed)
                point = self._measure(stack, checkpoint, folder, pending, began, is_unchanged)
                if hold.overwritten:
                    point = skip_of(pending, f"{checkpoint.name} was overwritten while it was read")
        except UnreadableCheckpoint as problem:
            if not self._has_read:
                raise
            self._fail(checkpoint, state, describe(problem), began)
        except Exception as problem:
            log.debug("%s", checkpoint.path, exc_info=problem)
            self._fail(checkpoint, state, describe(problem), began)
        else:
            self._publish(point)
            if not hold.overwritten:  # it is evaluated again, even if it looks the same
                weights_seen = point.weights if point.has_result else None
                self._finish(checkpoint, state.signature, weights_seen)

    def _fail(self, checkpoint: Checkpoint, state: FolderState, reason: str, began: float) -> None:
        self._finish(checkpoint, state.signature, None)
        pending = self._pending(checkpoint.step) or self._write_ahead(checkpoint)
        self._publish(skip_of(pending, reason, time.monotonic() - began))

    def _begin_attempt(self, step: int) -> None:
        """Begin another attempt of the training run, which has overwritten this step."""
        before = [p.step for p in self.history.points if p.has_result and p.step < step]
        self.history.begin_attempt()
        if before:
            self.history.follow(max(before))

    def _begin_eval(self, checkpoint: Checkpoint, hashed: str) -> CurvePoint:
        """Write ahead which weights are evaluated, and where their conversations are saved."""
        earlier = self._pending(checkpoint.step)
        if earlier is not None and earlier.weights == hashed and earlier.run is not None:
            return earlier
        name = reserve_name(self.run_dir / "steps", f"{checkpoint.step:08d}")
        return self._write_ahead(checkpoint, weights=hashed, run=f"steps/{name}")

    def _measure(
        self,
        stack: ExitStack,
        checkpoint: Checkpoint,
        folder: Path,
        pending: CurvePoint,
        began: float,
        is_unchanged: Callable[[], bool],
    ) -> CurvePoint:
        """Run the samples, and make the point of the report."""
        from transformers import AutoTokenizer

        tokenizer = describe_tokenizer(AutoTokenizer.from_pretrained(folder))
        self.history.admit({**self._functions, **tokenizer})
        assert pending.run is not None
        about = {
            "kind": "checkpoint",
            "model": checkpoint.name,
            "loaded_by": self.model.name,
            "version": pending.weights,
        }
        config = replace(
            self._config,
            experiment_name=Path(pending.run).name,
            output_dir=str(self.run_dir / "steps"),
            max_samples=None,
            resume=True,
        )
        server_log = self.run_dir / "server.log"
        name = stack.enter_context(self.model.served(folder, server_log))
        try:
            try:
                report = self.model.evaluate(self._definition, config, name, about, is_unchanged)
            except ResumeMismatch:  # it was begun before the eval was changed
                fresh = reserve_name(self.run_dir / "steps", f"{checkpoint.step:08d}")
                pending = self._write_ahead(
                    checkpoint, weights=pending.weights, run=f"steps/{fresh}"
                )
                config = replace(config, experiment_name=fresh)
                report = self.model.evaluate(self._definition, config, name, about, is_unchanged)
        except SystemicFailure as problem:
            return skip_of(pending, _explain_failure(problem, config), time.monotonic() - began)
        point = point_of(report, pending, time.monotonic() - began, self.run_dir)
        pack(RunDir(self.run_dir / str(pending.run)).journal)
        summary = self._publisher.within_bounds(point.summary)
        return msgspec.structs.replace(point, summary=summary)


def _explain_failure(problem: SystemicFailure, config: EvalConfig) -> str:
    """Say why a run has no mean, without what `heldout run` would do about it."""
    if problem.run_dir is None or not RunDir(problem.run_dir).exists():
        return describe(problem)
    report = EvalReport.load(problem.run_dir)
    errors = [(result.sample_id, result.error) for result in report.results if not result.ok]
    if not errors:
        return describe(problem)
    counts = count_errors(errors)
    return explain_no_mean(len(report.results), len(errors), counts, config.max_error_rate)[:2000]


# --- Watching ------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Watched:
    """A checkpoint that is in the folder, and has no result yet."""

    checkpoint: Checkpoint
    state: FolderState | None
    since: float
    """When it was first seen as it is."""
    waits_for: str = "is still being written"
    hold: Hold | None = None
    weights: Weights | None = None
    """Where its weights are, once it was found whole."""


class Follower:
    """Watches a folder, and has each checkpoint evaluated once it is whole.

    Args:
        curve: Evaluates them.
        patterns: Their names.
        once: As for `follow_checkpoints`, and so are the others.
        poll_seconds: Seconds between looks.
        done_file: Says that training has ended.
        stop_after: Seconds without a new checkpoint after which to end.
    """

    _clock = staticmethod(time.monotonic)
    _sleep = staticmethod(time.sleep)

    def __init__(
        self,
        curve: CheckpointCurve,
        patterns: Sequence[str],
        *,
        once: bool,
        poll_seconds: float,
        done_file: Path,
        stop_after: float | None,
    ) -> None:
        self._curve, self._patterns, self._once = curve, patterns, once
        self._poll_seconds, self._done_file = poll_seconds, done_file
        self._stop_after = stop_after
        self._watched: dict[int, _Watched] = {}
        self._told: set[tuple[int, str]] = set()
        self._last: Checkpoint | None = None
        """Which was evaluated since the last look without anything to do."""

    def run(self) -> None:
        """Evaluate what comes, until there is a reason to end."""
        for point in self._curve.unfinished():
            checkpoint = Checkpoint(point.step, Path(point.saved_at or f"checkpoint-{point.step}"))
            self._watched[point.step] = _Watched(checkpoint, None, self._clock())
        try:
            self._run()
        finally:
            for watched in self._watched.values():
                if watched.hold is not None:
                    watched.hold.release()

    def _run(self) -> None:
        busy_at = self._clock()
        while True:
            is_done = self._done_file.exists()
            ready = self._look()
            if ready and ready[0].weights is not None:
                self._curve.check_first(ready[0].checkpoint, ready[0].weights)
            for watched in ready:
                self._curve.expect(watched.checkpoint)
            # At once: imports, hashing and loading give a trainer time to remove them.
            if held := self._take_hold(ready):
                self._evaluate(held[0])
                busy_at = self._clock()
                continue
            if not ready and self._is_over(is_done=is_done, idle=self._clock() - busy_at):
                return
            self._last = None
            self._sleep(self._poll_seconds)

    def _take_hold(self, ready: Sequence[_Watched]) -> list[_Watched]:
        """Hold the oldest checkpoints, which are removed first; return those that are held."""
        for watched in ready[:MAX_HELD]:
            if watched.hold is None:
                assert watched.state is not None
                watched.hold = self._curve.hold(watched.checkpoint, watched.state)
        return [watched for watched in ready if watched.hold is not None]

    def _evaluate(self, watched: _Watched) -> None:
        assert watched.hold is not None
        assert watched.weights is not None
        try:
            self._curve.evaluate(watched.hold, watched.weights)
        finally:
            watched.hold.release()
            watched.hold = None
        # One that was overwritten meanwhile is another one.
        del self._watched[watched.checkpoint.step]
        self._last = watched.checkpoint

    def _is_over(self, *, is_done: bool, idle: float) -> bool:
        settling = [w for w in self._watched.values() if not self._is_settled(w)]
        if (self._once or is_done) and not settling:
            for watched in self._watched.values():
                if is_done:
                    self._curve.give_up(watched.checkpoint, f"is not whole: {watched.waits_for}")
                else:
                    log.warning("%s: %s", watched.checkpoint.path, watched.waits_for)
            return True
        if stop_requested(self._curve.run_dir) is not None:
            self._curve.write_stop_file()
            return True
        return self._stop_after is not None and idle >= self._stop_after

    def _look(self) -> list[_Watched]:
        """Look at the folder once; return the checkpoints that can be evaluated, by step."""
        found = finding.find_checkpoints(self._curve.folder, self._patterns)
        ready = {step: w for step, w in self._watched.items() if w.hold is not None}
        for step in sorted(self._watched.keys() - {checkpoint.step for checkpoint in found}):
            if step not in ready:
                self._give_up(self._watched.pop(step).checkpoint)
        for checkpoint in found:
            state = finding.read_state(checkpoint.path)
            # A hold stays what it was; what has become of the checkpoint is looked at afterwards.
            if state is None or checkpoint.step in ready:
                continue  # it is being removed, or renamed
            if self._curve.finished.get(checkpoint.step) == state.signature:
                self._watched.pop(checkpoint.step, None)
                continue
            watched = self._watched.get(checkpoint.step)
            if watched is None or watched.state is None or watched.state != state:
                watched = _Watched(checkpoint, state, self._clock())
                self._watched[checkpoint.step] = watched
            watched.weights = self._check(watched, state)
            if watched.weights is not None:
                ready[checkpoint.step] = watched
        return [ready[step] for step in sorted(ready)]

    def _give_up(self, checkpoint: Checkpoint) -> None:
        reason = REMOVED
        if self._last is not None:
            reason += (
                f": it was gone after the eval of {self._last.name}. Keep more checkpoints "
                "(save_total_limit), save fewer, or evaluate fewer samples"
            )
        self._curve.give_up(checkpoint, reason)

    def _is_settled(self, watched: _Watched) -> bool:
        """Whether nothing has changed in it for as long as is waited."""
        if watched.state is not None and time.time() - watched.state.changed > OLD_SECONDS:
            return True
        return self._clock() - watched.since >= self._poll_seconds

    def _check(self, watched: _Watched, state: FolderState) -> Weights | None:
        """Return the weights of a checkpoint that is whole; note what the others wait for."""
        if not self._is_settled(watched):
            return None
        checkpoint, model = watched.checkpoint, self._curve.model
        reason = finding.explain_unfinished(checkpoint, state, self._curve.folder)
        weights = None
        if reason is None:
            weights = model.locate(checkpoint)
            if weights is None and self._curve.is_known(checkpoint):
                # Some trainers leave the folder of a checkpoint that they remove (verl).
                del self._watched[checkpoint.step]
                self._curve.finished[checkpoint.step] = state.signature
                self._give_up(checkpoint)
                return None
            if weights is None:
                reason = "it holds no weights in a format that is known"
            else:
                reason = model.explain_incomplete(weights)
        if reason is None:
            return weights
        watched.waits_for = reason
        if (checkpoint.step, reason) not in self._told:
            self._told.add((checkpoint.step, reason))
            log.warning("%s is not whole yet: %s", checkpoint.path, reason)
        return None
