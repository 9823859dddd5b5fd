"""EvalWorker: evaluates a model in training in a separate process.

    worker = EvalWorker("evals.py:policy", environment={"CUDA_VISIBLE_DEVICES": "1"})

`policy()` is called once, in the worker, and returns `(model, runner builder)`. For each eval the
weights of the model in training replace that model's own, through shared memory. Nothing in the
worker affects training: no random numbers, settings of torch, waits for the interpreter or crashes.
A failure is a skip with its reason, and the next eval starts a new worker.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, Literal, Protocol

from heldout._core.checks import check_count
from heldout._core.memory import available_memory
from heldout._live.weights import Copy
from heldout.errors import HeldoutError, InvalidInput
from heldout.store.jsonl import open_to_append
from heldout.training.background.worker.messages import (
    INSIDE_WORKER,
    CallFunction,
    EvalDone,
    EvaluateModel,
    LoadWeights,
    Progress,
    Ready,
    StopEval,
    WorkerMessage,
    WorkerReply,
    decode_answer,
    encode,
)
from heldout.training.background.worker.weight_buffer import WeightBuffer
from heldout.training.measuring import Known, Measured, Task
from heldout.training.reasons import describe
from heldout.training.settings import TrainerSettings

SERVER = "heldout.training.background.worker.server"
LOG = "worker.log"
POLL_SECONDS = 0.2
GRACE_SECONDS = 30.0
"""How long the worker may take to end an eval when time is up, before it is killed."""
LEAVE_SECONDS = 5.0
EXIT_SECONDS = 3.0
LOG_LINES = 8
LOG_BYTES = 4096
DEFAULT_SNAPSHOTS = 2
RETRY_EVERY = 10
"""After two equal failures, `policy()` is called only at one in this many evals."""

_LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_LAUNCHER_PREFIXES = ("TORCHELASTIC_", "GROUP_", "ROLE_", "ACCELERATE_USE_", "FSDP_")
"""What makes a process one of several that train together, which a worker is not."""


class WorkerGone(HeldoutError):
    """The worker has ended or cannot be used any more. The message is the reason of a skip."""


class TimeIsUp(HeldoutError):
    """An eval ran out of time before it began. The worker is kept for the next one."""


class WorkerSnapshot:
    """Weights of one step in shared memory. `release` it once its eval is over."""

    weights = None
    """Only the worker, which has the frozen weights, knows the hash of all of them."""

    def __init__(self, step: int, slot: int, buffer: WeightBuffer, free: deque[int]) -> None:
        self.step = step
        self.slot = slot
        self.buffer = buffer
        self._free: deque[int] | None = free

    def in_use(self) -> AbstractContextManager[None]:
        """Nothing to enter: another process uses it."""
        return nullcontext()

    def why_changed(self) -> None:
        """It does not change: nothing in it is shared with the model in training."""

    def release(self) -> None:
        """Free its buffer."""
        free, self._free = self._free, None
        if free is not None:
            free.append(self.slot)


class EvalWorker:
    """Evaluates the weights of the model in training in a separate process.

    If `policy()` fails twice in a row for the same reason, it is called again only at every tenth
    eval; the others are skips.

    Args:
        spec: "file.py:function" or "module:function". The function is called once, in the worker,
            and returns a model of the same kind and a runner builder.
        snapshots: How many snapshots there may be at once: one that is evaluated, and others that
            wait. By default two, where there is memory for a second one.
        start_timeout: Seconds for `policy()`, and for loading weights.
        environment: Variables to add to this process's environment for the worker; None removes
            one.
        copy: "trainable" sends what is trained, and checks that the rest is equal; "all" sends
            everything.
        on: Another machine to run it on, as `heldout.cluster.RayNode` does; by default this one.
        engine: "vllm" answers with vLLM, which is sent all weights: the function returns a path, or
            vLLM's settings with it as `model`, in place of a model.

    Raises:
        InvalidInput: An argument is invalid, the file does not exist, or this process is itself a
            worker.
    """

    def __init__(
        self,
        spec: str,
        *,
        snapshots: int | None = None,
        start_timeout: float = 600.0,
        environment: Mapping[str, str | None] | None = None,
        copy: Copy = "trainable",
        on: WorkerHost | None = None,
        engine: Literal["transformers", "vllm"] = "transformers",
    ) -> None:
        if INSIDE_WORKER in os.environ:
            raise InvalidInput(
                "an EvalWorker was made inside of an eval worker: put the training behind "
                "`if __name__ == '__main__':`, or policy() into another file"
            )
        self.spec = _check_spec(spec)
        check_count("snapshots", snapshots, low=1, optional=True)
        if not isinstance(start_timeout, int | float) or not start_timeout > 0:
            raise InvalidInput(f"start_timeout must be a number of seconds, got {start_timeout!r}")
        for name, value in (environment or {}).items():
            if not isinstance(value, str | None):
                # Not the value: it may be a key.
                raise InvalidInput(
                    f"environment: {name!r} must be text, got {type(value).__name__}"
                )
        if engine not in ("transformers", "vllm"):
            raise InvalidInput(f"engine must be 'transformers' or 'vllm', got {engine!r}")
        if engine == "vllm":
            copy = "all"  # it cannot compare its own, which it has fused, with those in training
        self._engine = engine
        self._start_timeout = start_timeout
        self._environment = dict(environment or {})
        self._host = on
        self.size = DEFAULT_SNAPSHOTS if snapshots is None else snapshots
        """How many snapshots there are at most."""
        self._must_fit = snapshots is None
        self._is_tight = False
        """Whether there was no memory for the last snapshot that was asked for."""
        self._buffers = [WeightBuffer(copy=copy) for _ in range(self.size)]
        self._free = deque(range(self.size))
        self._lock = threading.Lock()
        """Held during an eval."""
        self._process: WorkerProcess | None = None
        self._closed = False
        self.trainer = TrainerSettings()
        """How training has the model answer; what the worker's own code says wins."""
        self._failures: tuple[str, int] = ("", 0)
        """The last reason why it did not start, and at how many consecutive evals."""
        self._owner = os.getpid()

    @property
    def pid(self) -> int | None:
        """Of the worker's process, where one is running."""
        return None if self._process is None else self._process.pid

    def try_snapshot(self, model: Any, *, step: int) -> WorkerSnapshot | None:
        """Copy the weights to shared memory, in the trainer's thread; None: no slot is free."""
        if self._closed:
            raise InvalidInput("the eval worker was closed")
        if model is None:
            raise InvalidInput("there is no model: pass it to maybe_run, or a model_getter")
        if not self._free:
            return None
        # Not the one that was used last, but the one that has memory already.
        slot = max(self._free, key=lambda free: self._buffers[free].size)
        largest = max(buffer.size for buffer in self._buffers)
        self._is_tight = self._must_fit and self._buffers[slot].size == 0 < largest
        self._is_tight = self._is_tight and 2 * largest > available_memory()
        if self._is_tight:
            return None
        self._free.remove(slot)
        snapshot = WorkerSnapshot(step, slot, self._buffers[slot], self._free)
        try:
            snapshot.buffer.write(model)
        except BaseException:
            snapshot.release()
            raise
        return snapshot

    def say_full(self) -> str:
        """Say that all snapshots were in use, and which setting has more."""
        if self._is_tight:
            return (
                "the snapshot of the eval worker was in use, and memory is tight for a second one "
                "(EvalWorker(snapshots=2) takes it all the same)"
            )
        were = "the snapshot" if self.size == 1 else f"all {self.size} snapshots"
        verb = "was" if self.size == 1 else "were"
        more = f"EvalWorker(snapshots={self.size + 1}) has one more"
        return f"{were} of the eval worker {verb} in use ({more})"

    def measure(self, task: Task, snapshot: WorkerSnapshot) -> Measured | Known:
        """Evaluate the weights of a snapshot, in any thread. What goes wrong is a skip."""
        with self._lock:
            try:
                return self._measure(task, snapshot)
            except TimeIsUp as problem:
                return Measured(0, skipped=str(problem))
            except Exception as problem:  # noqa: BLE001 - training goes on; the reason of a skip
                self._end_process()
                gone = isinstance(problem, WorkerGone)
                reason = str(problem) if gone else f"eval worker: {describe(problem)}"
                return Measured(0, skipped=reason)
            except BaseException:
                self._end_process()
                raise

    def close(self) -> None:
        """End the worker, even in the middle of an eval, and free the memory."""
        if os.getpid() != self._owner:  # a forked child
            return
        self._closed = True  # which an eval in flight notices
        with self._lock:
            self._end_process()
            for buffer in self._buffers:
                buffer.close()

    def __enter__(self) -> EvalWorker:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- One eval ---

    def _measure(self, task: Task, snapshot: WorkerSnapshot) -> Measured | Known:
        if self._closed:
            raise WorkerGone("the eval worker was closed")
        layout = snapshot.buffer.wait()
        process = self._ready_process(task)
        number = next(process.numbers)
        process.send(LoadWeights(number, snapshot.slot, layout, self.trainer))
        loaded = self._wait(process, task, number, "loading the weights", time.monotonic())
        if isinstance(loaded, EvalDone):
            return loaded.measured
        try:
            known = task.find_known(loaded.weights, loaded.functions)
        except (HeldoutError, OSError) as problem:
            return Measured(0, skipped=describe(problem), weights=loaded.weights)
        if known is not None:
            return known
        ended = self._run(process, task)
        if ended.restart:
            self._end_process()
        return ended.measured

    def _ready_process(self, task: Task) -> WorkerProcess:
        """Return a worker whose `policy()` has returned: a new one, or the one that is running."""
        process = self._process
        if process is not None and process.ready:
            return process
        reason, times = self._failures
        if process is None and times >= 2 and (times - 1) % RETRY_EVERY:
            self._failures = reason, times + 1
            raise WorkerGone(
                f"the eval worker was not started, after it had failed in the same way before: "
                f"{reason} (it is tried again at every {RETRY_EVERY}th eval)"
            )
        try:
            if process is None:
                process = self._process = self._start_process(task.run_dir / LOG)
                path = [entry or str(Path.cwd()) for entry in sys.path]
                number, log = next(process.numbers), str(process.log)
                process.send(CallFunction(number, self.spec, path, log, self._engine))
            answer = self._wait(process, task, 1, "starting", process.started_at)
            if isinstance(answer, EvalDone):
                raise WorkerGone(f"{self.spec}: {answer.measured.skipped}")
        except WorkerGone as problem:
            self._failures = str(problem), times + 1 if str(problem) == reason else 1
            raise
        self._failures = "", 0
        process.ready = True
        return process

    def _start_process(self, log: Path) -> WorkerProcess:
        if self._host is not None:
            return self._host.start(self.spec, self._environment, self._buffers, log)
        environment = worker_environment(os.environ, self._environment)
        return LocalProcess(environment, [buffer.fd for buffer in self._buffers], log)

    def _wait(
        self, process: WorkerProcess, task: Task, number: int, what: str, since: float
    ) -> Ready | EvalDone:
        while not isinstance(answer := self._receive(process, number), Ready | EvalDone):
            if not task.keep_going(0, len(task.samples)):
                raise TimeIsUp(f"time was up while the eval worker was {what}")
            if time.monotonic() - since > self._start_timeout:
                raise WorkerGone(
                    f"the eval worker was still {what} after {self._start_timeout:g} s "
                    f"(start_timeout){process.last_lines()}"
                )
        return answer

    def _run(self, process: WorkerProcess, task: Task) -> EvalDone:
        number, samples = next(process.numbers), list(task.samples[: task.size])
        run_dir = str(task.run_dir)
        process.send(
            EvaluateModel(number, samples, task.step, task.seed, task.pass_threshold, run_dir)
        )
        done, total = 0, len(task.samples)
        stopped_at: float | None = None
        while not isinstance(answer := self._receive(process, number), EvalDone):
            if isinstance(answer, Progress):
                done, total = answer.done, answer.total
            if stopped_at is None:
                if not task.keep_going(done, total):
                    stopped_at = time.monotonic()
                    process.send(StopEval(number))
            elif time.monotonic() - stopped_at > GRACE_SECONDS:
                raise WorkerGone(
                    f"time was up after {done} of {total} items, and the eval worker had not "
                    f"ended {GRACE_SECONDS:g} s later, so it was killed"
                )
        return answer

    def _receive(self, process: WorkerProcess, number: int) -> WorkerReply | None:
        if self._closed:
            raise WorkerGone("the eval worker was closed")
        return process.receive(number)

    def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.end(LEAVE_SECONDS if self._closed else 0.0)


class WorkerProcess(Protocol):
    """A started worker, on this machine or another one."""

    ready: bool
    """Whether `policy()` has returned."""
    started_at: float
    numbers: Iterator[int]
    """Of the requests."""
    log: Path
    pid: int

    def send(self, message: WorkerMessage) -> None:
        """Send a request; WorkerGone if the worker has ended."""
        ...

    def receive(self, number: int) -> WorkerReply | None:
        """Return the next answer, if one comes soon and is to the request of this number."""
        ...

    def end(self, patience: float) -> None:
        """End it and all that it has started; kill what has not ended after `patience` seconds."""
        ...

    def last_lines(self) -> str:
        """Return what it has printed last, to follow a reason."""
        ...


class WorkerHost(Protocol):
    """Starts workers on another machine."""

    def start(
        self,
        spec: str,
        environment: Mapping[str, str | None],
        buffers: Sequence[WeightBuffer],
        log: Path,
    ) -> WorkerProcess:
        """Start a worker.

        Args:
            spec: "file.py:function" or "module:function".
            environment: Variables added to those of the machine; None removes one.
            buffers: Hold the snapshots of weights.
            log: Where what it prints is to be kept.

        Raises:
            HeldoutError: It cannot be started.
        """
        ...


def worker_environment(own: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """This process's environment without its rank, and with changes."""
    kept = {
        name: value
        for name, value in own.items()
        if name not in _LAUNCHER and not name.startswith(_LAUNCHER_PREFIXES)
    }
    # A model may print what has no bytes in the log's encoding.
    kept |= {INSIDE_WORKER: "1", "PYTHONIOENCODING": "utf-8:backslashreplace"}
    merged = {**kept, **changes}
    return {name: value for name, value in merged.items() if value is not None}


def _check_spec(spec: str) -> str:
    """The spec with an absolute path. Nothing of it is imported."""
    source, _, name = str(spec).rpartition(":")
    if not source or not name.isidentifier():
        raise InvalidInput(
            f"spec must be 'file.py:function' or 'module:function', got {spec!r:.100}"
        )
    if source.endswith(".py"):
        path = Path(source).absolute()  # the working directory may change
        if not path.is_file():
            raise InvalidInput(f"{path} does not exist; it should define {name}()")
        return f"{path}:{name}"
    return spec


class LocalProcess:
    """A started worker: its connection, its output, and how it ends.

    It has a session and a process group of its own, so that Ctrl-C in the terminal reaches the
    training alone. It ends when the connection closes, and so with the training run, however that
    ends.
    """

    def __init__(self, environment: dict[str, str], buffers: Sequence[int], log: Path) -> None:
        self.ready = False
        self.started_at = time.monotonic()
        self.numbers: Iterator[int] = itertools.count(1)
        self.log = log
        self._connection, inherited = Pipe()
        fds = (inherited.fileno(), *buffers)
        command = [sys.executable, "-uP", "-X", "faulthandler", "-m", SERVER, *map(str, fds)]
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            with inherited, open_to_append(log) as output:
                self._log_start = output.tell()
                self._popen = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=environment,
                    pass_fds=fds,
                    start_new_session=True,
                )
        except OSError as problem:
            self._connection.close()
            raise WorkerGone(f"the eval worker could not be started: {describe(problem)}") from None
        self.pid = self._popen.pid

    def send(self, message: WorkerMessage) -> None:
        """Send a request."""
        try:
            self._connection.send_bytes(encode(message))
        except OSError:
            raise WorkerGone(self._why_gone()) from None

    def receive(self, number: int) -> WorkerReply | None:
        """The next answer, if one comes soon and is to the request of this number."""
        content = self.receive_bytes()
        if content is None:
            return None
        answer = decode_answer(content)
        return answer if answer.number == number else None

    def receive_bytes(self) -> bytes | None:
        """The next answer to any request, not decoded."""
        try:
            if self._connection.poll(POLL_SECONDS):
                return self._connection.recv_bytes()
        except (EOFError, OSError):
            raise WorkerGone(self._why_gone()) from None
        if self._popen.poll() is not None:  # what it has started may hold the connection open
            raise WorkerGone(self._why_gone())
        return None

    def end(self, patience: float) -> None:
        """End it and all that it has started; kill what has not ended after `patience` seconds."""
        self._connection.close()
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(patience)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):  # the system may not be done with it
            self._popen.wait(EXIT_SECONDS)

    def last_lines(self) -> str:
        """What it has printed last, to follow a reason."""
        with self.log.open("rb") as log:
            log.seek(max(self._log_start, log.seek(0, os.SEEK_END) - LOG_BYTES))
            lines = log.read().decode("utf-8", "replace").splitlines()
        last = [line.rstrip() for line in lines if line.strip()][-LOG_LINES:]
        return "; its last output:\n" + "\n".join(last) if last else ""

    def _why_gone(self) -> str:
        with suppress(subprocess.TimeoutExpired):  # it closes the connection before it is dead
            self._popen.wait(EXIT_SECONDS)
        code = self._popen.returncode
        if code is None:
            ended = "no longer answers"
        elif code >= 0:
            ended = f"ended by itself, with exit code {code}"
        else:
            ended = f"was ended by {signal.Signals(-code).name}"
            if -code == signal.SIGKILL:
                ended += ", as the system does when memory runs out"
        return f"the eval worker {ended}; see {self.log}{self.last_lines()}"
