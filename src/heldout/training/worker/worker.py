"""EvalWorker: evaluates a model in training in a process of its own.

    worker = EvalWorker("evals.py:policy", environment={"CUDA_VISIBLE_DEVICES": "1"})

`policy()` is called once, in the worker, and returns `(model, runner builder)`. For each eval the
weights of the model in training take the place of that model's own, by shared memory. Nothing that
an eval does reaches the training: no random number, no switch of torch's, no wait for the
interpreter, no crash. What goes wrong there is a skip with its reason, and the next eval has a new
worker.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from heldout.errors import InvalidInput
from heldout.store.journal import UNENCODABLE, plain_value
from heldout.training.run_eval import Known, Measured, Task, describe
from heldout.training.snapshot import PolicyVersion
from heldout.training.worker.process import WorkerGone, WorkerProcess
from heldout.training.worker.protocol import (
    INSIDE,
    Alive,
    Answer,
    Begin,
    Ended,
    Load,
    Loaded,
    Measure,
    Message,
    Ready,
    Refused,
    Stop,
)
from heldout.training.worker.shared import SharedWeights
from heldout.types import Sample
from heldout.weights import Copy

MODULE = "heldout.training.worker.main"
SEND_SECONDS = 60.0
LOG = "worker.log"
TRIED_AGAIN = 10
"""After two failures that are alike, `policy()` is called at one in so many evals."""

_LAUNCHED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_LAUNCHED_BY = ("TORCHELASTIC_", "GROUP_", "ROLE_", "ACCELERATE_USE_", "FSDP_")
"""What makes a process one of several that train together, which a worker is not."""

A = TypeVar("A", bound=Message)


class Slot:
    """A snapshot of the weights of one step. `release` it once its eval is over."""

    def __init__(self, pool: _Pool, weights: SharedWeights, step: int) -> None:
        self.step = step
        self.problem: str | None = None
        """Why there is none after all."""
        self.weights = weights
        self._pool: _Pool | None = pool

    def in_use(self) -> AbstractContextManager[None]:
        """Nothing to enter: another process uses it."""
        return nullcontext()

    def version(self) -> PolicyVersion:
        """Only the worker, which has the frozen weights, knows the hash of all of them."""
        return PolicyVersion(self.step, None)

    def why_changed(self) -> str | None:
        """It does not: nothing in here is shared with the training."""
        return None

    def release(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.give_back(self.weights)


class _Pool:
    def __init__(self, slots: int, copy: Copy) -> None:
        self._lock = threading.Lock()
        self._all = [SharedWeights(copy=copy) for _ in range(slots)]
        self._free = list(self._all)

    def take(self) -> SharedWeights | None:
        with self._lock:
            return self._free.pop() if self._free else None

    def give_back(self, weights: SharedWeights) -> None:
        with self._lock:
            self._free.append(weights)

    def close(self) -> None:
        for weights in self._all:
            weights.close()


class TimeIsUp(Exception):
    pass


class EvalWorker:
    """`spec` is "file.py:function" or "module:function".

    `slots` is how many snapshots there may be at once: one that is measured, and others that wait.
    `environment` is added to this process's own for the worker (None takes a variable away);
    `device` is where its model is moved to. `copy`: "trainable" hands over what is trained, and
    checks that the rest is the same; "all" hands over everything. `cast` allows weights of another
    type than those in training. `start_timeout` bounds seconds until `policy()` has returned;
    `grace` those that a worker may take to end when time is up, before it is killed. What it
    prints goes to `log`, by default worker.log beside the curve.

    Where `policy()` has failed twice in a row for the same reason, it is called again only at every
    tenth eval; the others are skips at once.
    """

    def __init__(
        self,
        spec: str,
        *,
        slots: int = 1,
        start_timeout: float = 600.0,
        grace: float = 30.0,
        environment: Mapping[str, str | None] | None = None,
        device: str | None = None,
        python: str = sys.executable,
        copy: Copy = "trainable",
        cast: bool = False,
        log: str | Path | None = None,
    ) -> None:
        if INSIDE in os.environ:
            raise InvalidInput(
                "an EvalWorker was made inside of an eval worker: put the training behind "
                "`if __name__ == '__main__':`, or policy() into a file of its own"
            )
        here = python == sys.executable and "PYTHONPATH" not in (environment or {})
        self.spec = _checked_spec(spec, find=here)
        if isinstance(slots, bool) or not isinstance(slots, int) or slots < 1:
            raise InvalidInput(f"slots is a whole number >= 1, got {slots!r}")
        for name, value in (("start_timeout", start_timeout), ("grace", grace)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise InvalidInput(f"{name} is a number of seconds above 0, got {value!r}")
        self._start_timeout, self._grace = float(start_timeout), float(grace)
        self._environment = _checked_environment(environment or {})
        self._device, self._python, self._cast = device, python, cast
        self._log = None if log is None else Path(log).absolute()
        self._pool = _Pool(slots, copy)
        self._turn = threading.Lock()
        self._process: WorkerProcess | None = None
        self._began = 0.0
        self._ready = self._closed = False
        self._number = 0
        self._failed: tuple[str, int] = ("", 0)
        """Why it last did not start, and at how many evals in a row it has been so."""
        self._samples: tuple[Sequence[Sample], list[Sample]] | None = None
        self._maker = os.getpid()

    def __repr__(self) -> str:
        return f"EvalWorker({self.spec!r})"

    @property
    def pid(self) -> int | None:
        """Of the process, where one is running."""
        return None if self._process is None else self._process.pid

    def try_snapshot(self, model: Any, *, step: int) -> Slot | None:
        """In the thread that trains. None where all slots are in use. Raises no Exception: what
        went wrong is the reason of the skip."""
        if os.getpid() != self._maker:
            return None
        weights = self._pool.take()
        if weights is None:
            return None
        slot = Slot(self._pool, weights, step)
        try:
            if model is None:
                slot.problem = "there is no model yet"
            elif self._closed:
                slot.problem = "the eval worker was closed"
            else:
                weights.write(model, step)
        except Exception as problem:  # noqa: BLE001 - kept as the reason of the skip
            slot.problem = f"model: {describe(problem)}"
        except BaseException:
            slot.release()
            raise
        return slot

    def measure(self, task: Task, slot: Slot) -> Measured | Known:
        """In any thread, one at a time: as `measure.measure`, of the weights in the slot."""
        if os.getpid() != self._maker:
            return Measured(0, skipped="the eval worker belongs to another process")
        if slot.problem is not None:
            return Measured(0, skipped=slot.problem)
        with self._turn:
            try:
                path, samples = slot.weights.seal(), self._plain(task.samples)
            except Exception as problem:  # noqa: BLE001 - kept as the reason of the skip
                return Measured(0, skipped=describe(problem))
            try:
                return self._measure(task, path, samples)
            except TimeIsUp as problem:
                return Measured(0, skipped=str(problem))
            except WorkerGone as problem:
                self._retire()
                return Measured(0, skipped=str(problem))
            except Exception as problem:  # noqa: BLE001 - kept as the reason of the skip
                self._retire()
                return Measured(0, skipped=f"eval worker: {describe(problem)}")
            except BaseException:
                self._retire()
                raise

    def close(self) -> None:
        """Ends the worker, even in the middle of an eval, and frees the memory."""
        if os.getpid() != self._maker:
            return
        self._closed = True
        if self._process is not None:
            self._process.end()
        with self._turn:
            self._retire()
            self._pool.close()

    def __enter__(self) -> EvalWorker:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- One eval ---

    def _measure(self, task: Task, path: Path, samples: list[Sample]) -> Measured | Known:
        self._start(task, path)
        number = self._send(Load, str(path), self._cast)
        loaded = self._wait(
            task, number, Loaded, what="loading the weights", since=time.monotonic()
        )
        if isinstance(loaded, Refused):
            return Measured(0, skipped=f"model: {loaded.reason}")
        if loaded.problem is not None:
            reason = loaded.problem + self._see_log(loaded)
            return Measured(0, skipped=reason, weights=loaded.weights)
        try:
            known = task.find_known(loaded.weights, loaded.functions)
        except Exception as problem:  # noqa: BLE001 - kept as the reason of the skip
            return Measured(0, skipped=describe(problem), weights=loaded.weights)
        if known is not None:
            return known
        size = task.size
        asked = (samples[:size], task.step, task.seed, task.pass_threshold, str(task.run_dir))
        ended = self._run(task, self._send(Measure, *asked))
        if isinstance(ended, Refused):
            reason = ended.reason + self._see_log(ended)
            return Measured(size, skipped=reason, weights=loaded.weights)
        found = ended.measured()
        if found.skipped is not None:
            found = replace(found, skipped=found.skipped + self._see_log(ended))
        if ended.worn:
            self._retire()
        return found

    def _see_log(self, answer: Loaded | Ended | Refused) -> str:
        return self._process.see_log() if answer.logged and self._process is not None else ""

    def _start(self, task: Task, path: Path) -> None:
        if self._ready and self._process is not None:
            return
        reason, times = self._failed
        if self._process is None and times >= 2 and (times - 1) % TRIED_AGAIN:
            self._failed = reason, times + 1
            raise WorkerGone(
                f"the eval worker was not started, after it had failed in the same way before: "
                f"{reason} (it is tried again at every {TRIED_AGAIN}th eval)"
            )
        try:
            self._started(task, path)
        except WorkerGone as problem:
            if not self._closed:
                said = str(problem)
                self._failed = said, times + 1 if said == reason else 1
            raise
        self._failed = "", 0

    def _started(self, task: Task, path: Path) -> None:
        if self._closed:
            raise WorkerGone("the eval worker was closed")
        if self._process is None:
            command = [self._python, "-P", "-X", "faulthandler", "-m", MODULE]
            self._ready, self._began = False, time.monotonic()
            self._process = WorkerProcess(
                command,
                environment=worker_environment(os.environ, self._environment),
                log=self._log or task.run_dir / LOG,
            )
            entries = [entry or str(Path.cwd()) for entry in sys.path]
            self._send(Begin, self.spec, entries, self._device, str(path))
        ready = self._wait(task, 1, Ready, what="starting", since=self._began)
        if isinstance(ready, Refused):
            raise WorkerGone(f"{self.spec}: {ready.reason}{self._see_log(ready)}")
        self._ready = True

    def _wait(
        self, task: Task, number: int, kind: type[A], *, what: str, since: float
    ) -> A | Refused:
        """Something that an eval begins with: what comes of it serves the next one, too."""
        while (answer := self._answer(number)) is None or not isinstance(answer, kind | Refused):
            if not task.keep_going(0, len(task.samples)):
                raise TimeIsUp(f"time was up while the eval worker was {what}")
            if time.monotonic() - since > self._start_timeout:
                assert self._process is not None
                raise WorkerGone(
                    f"the eval worker was still {what} after {self._start_timeout:g} s "
                    f"(start_timeout){self._process.last_lines()}"
                )
        return answer

    def _run(self, task: Task, number: int) -> Ended | Refused:
        done, total = 0, len(task.samples)
        stopped: float | None = None
        while True:
            answer = self._answer(number)
            if isinstance(answer, Ended | Refused):
                return answer
            if isinstance(answer, Alive):
                done, total = answer.done, answer.total
            if stopped is None:
                if not task.keep_going(done, total):
                    stopped = time.monotonic()
                    self._send(Stop, number=number)
            elif time.monotonic() - stopped > self._grace:
                raise WorkerGone(
                    f"time was up after {done} of {total} items, and the eval worker had not "
                    f"ended {self._grace:g} s later, so it was killed"
                )

    def _answer(self, number: int) -> Answer | None:
        """The next one to this request, if one comes soon. Others were given up on."""
        if self._process is None or self._closed:
            raise WorkerGone("the eval worker was closed")
        answer = self._process.receive(seconds=0.2)
        return answer if answer is not None and answer.number == number else None

    def _send(self, kind: Callable[..., Message], *fields: Any, number: int | None = None) -> int:
        if self._process is None:
            raise WorkerGone("the eval worker was closed")
        if number is None:
            self._number = number = 1 if kind is Begin else self._number + 1
        self._process.send(kind(number, *fields), seconds=SEND_SECONDS)
        return number

    def _retire(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()

    def _plain(self, samples: Sequence[Sample]) -> list[Sample]:
        if self._samples is None or self._samples[0] is not samples:
            self._samples = (samples, [through_json(sample) for sample in samples])
        return self._samples[1]


# --- Plain functions ----------------------------------------------------------------------------


def through_json(sample: Sample) -> Sample:
    """The sample as the worker will see it, which has to be as it is."""
    try:
        line = msgspec.json.encode(sample, enc_hook=plain_value)
        same = bool((found := msgspec.json.decode(line, type=Sample)) == sample)
    except (*UNENCODABLE, msgspec.MsgspecError, ValueError) as problem:
        raise InvalidInput(
            f"sample {sample.id!r} cannot be sent to the worker: {problem}"
        ) from None
    if not same:
        raise InvalidInput(
            f"sample {sample.id!r} holds values that JSON does not have (a tuple, a key that is no "
            "text, an array), and would be another one in the worker; use plain ones"
        )
    return found


def worker_environment(own: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    kept = {
        name: value
        for name, value in own.items()
        if name not in _LAUNCHED and not name.startswith(_LAUNCHED_BY)
    }
    merged = {**kept, INSIDE: "1", **changes}
    return {name: value for name, value in merged.items() if value is not None}


def _checked_spec(spec: Any, *, find: bool) -> str:
    """Without running anything of it, but for packages that a module is in."""
    place, _, name = spec.rpartition(":") if isinstance(spec, str) else ("", "", "")
    if not place or not name.isidentifier():
        raise InvalidInput(
            f"an eval worker is given 'file.py:function' or 'module:function', got {spec!r:.100}"
        )
    if not place.endswith(".py"):
        if "/" in place or not all(part.isidentifier() for part in place.split(".")):
            raise InvalidInput(f"{place!r} is neither a file that ends in .py nor a module")
        if find:
            _check_module(place, name)
        return str(spec)
    path = Path(place).absolute()  # somebody may change the working directory
    if not path.is_file():
        raise InvalidInput(f"{path} does not exist; it was to define {name}()")
    _check_defines(path, name)
    return f"{path}:{name}"


def _check_module(place: str, name: str) -> None:
    try:
        found = importlib.util.find_spec(place)
    except (ImportError, ValueError) as problem:  # of __main__, too
        raise InvalidInput(f"module {place} cannot be found: {describe(problem)}") from None
    if found is None:
        raise InvalidInput(f"there is no module {place}; it was to define {name}()")
    if found.origin is not None and found.origin.endswith(".py") and Path(found.origin).is_file():
        _check_defines(Path(found.origin), name)


def _check_defines(path: Path, name: str) -> None:
    try:
        names = set(_names(ast.parse(path.read_bytes()).body))
    except (SyntaxError, ValueError) as problem:
        raise InvalidInput(f"{path} cannot be read as Python: {problem}") from None
    if not names & {name, "*", "__getattr__"}:
        raise InvalidInput(
            f"{path} does not define {name}(); it has {', '.join(sorted(names)) or 'nothing'}"
        )


def _names(body: Sequence[ast.AST]) -> Iterator[str]:
    """What a module that begins like this has; "*" where it cannot be said."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((each.asname or each.name).partition(".")[0] for each in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        else:
            yield from _names(list(ast.iter_child_nodes(node)))


def _checked_environment(environment: Mapping[str, str | None]) -> dict[str, str | None]:
    for name, value in environment.items():
        if not isinstance(name, str) or not isinstance(value, str | None):
            # Not the value: it may be a key.
            raise InvalidInput(f"environment: {name!r} is a text, got a {type(value).__name__}")
    return dict(environment)


__all__ = ["EvalWorker", "Slot", "worker_environment"]
