"""The other side of `EvalWorker`: a process that has a model and measures it when it is asked to.

`python -m heldout.training.worker.main REQUESTS ANSWERS` with the numbers of two pipes. The model
and what is run on it live in the main thread; another one reads requests, so that the end of the
training is noticed in the middle of an eval, too.
"""

from __future__ import annotations

import atexit
import faulthandler
import importlib
import importlib.util
import logging
import os
import queue
import select
import signal
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, TextIO

from heldout.endpoints.batch import Answered
from heldout.endpoints.batch import Request as Asked
from heldout.errors import HeldoutError, InvalidInput
from heldout.training.distributed import Alone
from heldout.training.run_eval import Measured, Task, build_runner, describe, measure
from heldout.training.runner import Runner, describe_runner
from heldout.training.worker.protocol import (
    ENDS_ITSELF,
    Alive,
    Begin,
    Ended,
    Lines,
    Load,
    Loaded,
    Measure,
    Message,
    Ready,
    Refused,
    Request,
    Stop,
    encoded,
    requests,
    write_all,
)
from heldout.training.worker.shared import Snapshot, read_snapshot
from heldout.training.worker.sharedfile import remove_abandoned, remove_all_abandoned
from heldout.weights import adapter_states, fingerprint, named_tensors

log = logging.getLogger("heldout")

ALIVE_SECONDS = 1.0
LEAVE_SECONDS = 2.0
"""How long what is under way may take to end once the training is gone."""


# --- The model ----------------------------------------------------------------------------------


def policy_function(spec: str) -> Callable[[], Any]:
    """The function that "file.py:function" or "module:function" names."""
    place, _, name = spec.rpartition(":")
    if place.endswith(".py"):
        path = Path(place)
        # Not under its plain name: the file may be called json.py.
        module_name = f"heldout_policy_{path.stem}"
        found = importlib.util.spec_from_file_location(module_name, path)
        if found is None or found.loader is None or not path.is_file():
            raise InvalidInput(f"{place} is not a Python file that can be loaded")
        module = importlib.util.module_from_spec(found)
        # Its own folder first, as for a script: such files import their neighbours.
        sys.path.insert(0, str(path.parent))
        sys.modules[module_name] = module
        found.loader.exec_module(module)
    else:
        module = importlib.import_module(place)
    function = getattr(module, name, None)
    if not callable(function):
        raise InvalidInput(f"{place} has no function {name}()")
    return function  # type: ignore[no-any-return]


def built(begin: Begin) -> tuple[Any, Callable[[Any], Runner]]:
    sys.path += [entry for entry in begin.path if entry not in sys.path]
    if begin.device is not None and begin.device.startswith("cuda:"):
        import torch

        torch.cuda.set_device(begin.device)
    name = begin.spec.rpartition(":")[2]
    try:
        given = policy_function(begin.spec)()
    except SystemExit as problem:
        said = InvalidInput(f"sys.exit({problem.code!r}) was called, so there is no model")
        raise said.with_traceback(problem.__traceback__) from None
    if not isinstance(given, tuple) or len(given) != 2 or not callable(given[1]):
        raise InvalidInput(
            f"{name}() returns (model, runner builder), as in `return model, "
            f"live_model(tokenizer, score_fn)`; got {given!r:.100}"
        )
    import torch

    model, builder = given
    if isinstance(builder, torch.nn.Module) and not isinstance(model, torch.nn.Module):
        raise InvalidInput(f"{name}() returns (runner builder, model): the model comes first")
    if begin.device is not None and isinstance(model, torch.nn.Module):
        model = model.to(begin.device)
    if not named_tensors(model):
        raise InvalidInput(f"the model has no weights to replace: {model!r:.100}")
    return model, builder


def load_into(model: Any, snapshot: Snapshot, *, cast: bool = False) -> None:
    """The snapshot's weights in place of the model's own, or nothing at all."""
    import torch

    mine = {each.name: each.tensor for each in named_tensors(model) or ()}
    header, given = snapshot
    others = {form.name for form in header.frozen}
    missing = sorted((given.keys() | others) - mine.keys())
    extra = sorted(mine.keys() - given.keys() - others)
    if missing or extra:
        said = [f"the worker's has no {_names(missing)}"] if missing else []
        said += [f"the one in training has no {_names(extra)}"] if extra else []
        raise InvalidInput(
            f"policy() makes another model than is in training: {', and '.join(said)}"
        )
    taken: dict[int, tuple[str, int]] = {}
    for piece in header.tensors:
        own, name = mine[piece.name], piece.name
        if tuple(own.shape) != piece.shape:
            raise InvalidInput(
                f"{name} is {list(piece.shape)} in training and {list(own.shape)} in the worker"
            )
        if own.dtype != given[name].dtype and not cast:
            raise InvalidInput(
                f"{name} is {given[name].dtype} in training and {own.dtype} in the worker; load "
                "the model in policy() as it is trained, or allow it by EvalWorker(…, cast=True)"
            )
        before, offset = taken.setdefault(id(own), (name, piece.offset))
        if offset != piece.offset:
            raise InvalidInput(f"{before} and {name} are one tensor in the worker, two in training")
    if header.frozen_weights is not None:
        frozen = fingerprint({name: mine[name] for name in others})
        if frozen not in (None, header.frozen_weights) and not cast:
            raise InvalidInput(
                "the weights that are not trained are others in the worker than in training; have "
                "policy() load the same ones, or give EvalWorker(…, copy='all')"
            )
    if adapter_states(model) != header.adapters:
        raise InvalidInput(
            "the adapters are others in the worker than in training (which are in use, disabled or "
            "merged, or their scaling); have policy() set them as the training does"
        )
    with torch.inference_mode():  # there, tensors that were made in one may be written to, too
        for name, tensor in given.items():
            mine[name].data.copy_(tensor)


def _names(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


# --- The process --------------------------------------------------------------------------------


class Worker:
    def __init__(self, incoming: int, outgoing: int) -> None:
        self._incoming, self._outgoing = incoming, outgoing
        self._asked: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._stopped: set[int] = set()
        self.gone = False
        self._seen: set[Path] = set()
        self._model: Any = None
        self._builder: Any = None
        self._spec = ""
        self._logged = False
        self._ended = threading.Event()
        self._parent = os.getppid()

    def run(self) -> None:
        threading.Thread(target=self._listen, name="heldout-requests", daemon=True).start()
        try:
            while (request := self._asked.get()) is not None:
                self._logged = False
                try:
                    self._say(self._answer(request))
                except Exception as problem:  # noqa: BLE001 - told to the training
                    self._log_traceback(problem)
                    reason = described(problem, known=self._spec.rpartition(":")[0])
                    self._say(Refused(request.number, reason, self._logged))
        finally:
            self._ended.set()

    def _answer(self, request: Request) -> Message:
        number = request.number
        if isinstance(request, Begin):
            self._spec = request.spec
            if request.weights is not None:
                self._seen.add(Path(request.weights))
            self._model, self._builder = built(request)
            return Ready(number)
        if isinstance(request, Load):
            self._seen.add(Path(request.weights))
            load_into(self._model, read_snapshot(request.weights), cast=request.cast)
            weights = fingerprint(self._model)
            try:
                runner = build_runner(self._runner, self._model)
            except InvalidInput as problem:
                return Loaded(number, weights, problem=str(problem), logged=self._logged)
            return Loaded(number, weights, describe_runner(runner))
        if isinstance(request, Measure):
            found = measure(self._task(request), lambda: self._model, Alone())
            assert isinstance(found, Measured)
            left = any(thread.name == "heldout-beside" for thread in threading.enumerate())
            return Ended.of(number, found, worn=left, logged=self._logged)
        raise InvalidInput(f"nobody has asked for a {type(request).__name__}")

    def _log_traceback(self, problem: BaseException) -> None:
        """Those that are heldout's own say all there is to say."""
        if not isinstance(problem, HeldoutError):
            self._logged = True
            traceback.print_exception(problem)

    def _runner(self, model: Any) -> Runner:
        """As it was built; but what goes wrong in it is printed, too."""
        try:
            runner = self._builder(model)
        except Exception as problem:
            self._log_traceback(problem)
            raise
        if not isinstance(runner, Runner):
            return runner  # type: ignore[no-any-return]
        inner = runner.answer

        def answer(asked: Sequence[Asked], keep_going: Callable[[], bool]) -> Sequence[Answered]:
            try:
                return inner(asked, keep_going)
            except Exception as problem:
                self._log_traceback(problem)
                raise

        return replace(runner, answer=answer)

    def _task(self, request: Measure) -> Task:
        spoke = time.monotonic()

        def keep_going(done: int, total: int) -> bool:
            nonlocal spoke
            if time.monotonic() - spoke >= ALIVE_SECONDS:
                spoke = time.monotonic()
                self._say(Alive(request.number, done, total))
            return not self.gone and request.number not in self._stopped

        return Task(
            step=request.step,
            samples=request.samples,
            size=len(request.samples),
            runner_builder=self._runner,
            run_dir=Path(request.home),
            pass_threshold=request.pass_threshold,
            seed=request.seed,
            keep_going=keep_going,
        )

    def _say(self, message: Message) -> None:
        try:
            line = encoded(message)
        except Exception as problem:  # noqa: BLE001 - kept as the reason of the skip
            line = encoded(Refused(message.number, f"the answer: {described(problem)}"))
        with suppress(BrokenPipeError):
            write_all(self._outgoing, line)

    # --- The training, and its end ---

    def _listen(self) -> None:
        lines = Lines()
        why = "the training is gone"
        try:
            # A child that the training has forked may hold the pipe open. The training is gone
            # all the same where somebody else has become our parent.
            while os.getppid() == self._parent:
                if not select.select([self._incoming], [], [], 1.0)[0]:
                    continue
                data = os.read(self._incoming, 2**20)
                if not data:
                    break
                for line in lines.add(data):
                    request = requests.decode(line)
                    if isinstance(request, Stop):
                        self._stopped.add(request.number)
                    else:
                        self._asked.put(request)
        except Exception as problem:  # noqa: BLE001 - without requests there is nothing to do
            why = f"no more requests can be read ({describe(problem)})"
        self._leave(why)

    def _leave(self, why: str) -> None:
        """Ends whatever is under way; then the process, and all that it has started."""
        # Works even where some extension never gives the interpreter back.
        faulthandler.dump_traceback_later(2 * LEAVE_SECONDS, exit=True)
        self.gone = True
        self._asked.put(None)
        if not self._ended.wait(LEAVE_SECONDS):
            self.clean()
            end_group(why)
        time.sleep(LEAVE_SECONDS)  # for what others do at exit
        end_group(why)

    def clean(self) -> None:
        """A training that was killed has left its files behind."""
        began = time.monotonic()
        left = set(self._seen)
        while left := {path for path in left if not remove_abandoned(path)}:
            # It may be that it is only just dying.
            waited = time.monotonic() - began
            if waited > (0.1 if os.getppid() == self._parent else 2.0):
                break
            time.sleep(0.01)
        for folder in {path.parent for path in self._seen}:  # other snapshots that waited
            remove_all_abandoned(folder)


def end_group(why: str) -> NoReturn:
    """This process and all that it has started."""
    with suppress(Exception):
        sys.stderr.write(f"{ENDS_ITSELF}: {why}\n")
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def described(problem: BaseException, known: str = "") -> str:
    """With the place to look at: the last line of a file that is not heldout's or python's. The
    file that is `known` is not named."""
    trace, where = problem.__traceback__, ""
    libraries = (str(Path(__file__).parent.parent), sysconfig.get_path("stdlib"), "<")
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith(libraries) and "site-packages" not in file:
            where = f" ({'' if file == known else f'{file}, '}line {trace.tb_lineno})"
        trace = trace.tb_next
    return describe(problem) + where


def main() -> None:
    incoming, outgoing = int(sys.argv[1]), int(sys.argv[2])
    for pipe in (incoming, outgoing):
        os.set_inheritable(pipe, False)
    for stream in (sys.stdout, sys.stderr):
        _lenient(stream)
    worker = Worker(incoming, outgoing)
    # The first to be registered is the last to be called.
    atexit.register(lambda: end_group("the training is gone") if worker.gone else None)
    worker.run()
    worker.clean()


def _lenient(stream: TextIO) -> None:
    """What a model writes may have no bytes in the log's encoding."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace", line_buffering=True)


if __name__ == "__main__":
    main()
