"""The eval worker's process: it has a model of its own and evaluates it when it is asked to.

`python -m heldout.training.background.worker.server CONNECTION BUFFER…` with inherited file
descriptors. The model and what runs on it live in the main thread. Another thread reads requests,
so that the end of the training run is noticed in the middle of an eval, too.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from heldout._core.code import import_object
from heldout._live.weights import adapter_states, fingerprint, named_tensors, read_sums
from heldout.errors import HeldoutError, InvalidInput
from heldout.models.batch import Answered
from heldout.models.batch import Request as Question
from heldout.training.background.worker.messages import (
    CallFunction,
    EvalDone,
    EvaluateModel,
    LoadWeights,
    Progress,
    Ready,
    StopEval,
    WorkerMessage,
    decode_request,
    encode,
)
from heldout.training.background.worker.weight_buffer import BufferLayout, checksums, read_tensors
from heldout.training.measuring import Measured, Task, measure
from heldout.training.ranks import Alone
from heldout.training.reasons import describe
from heldout.training.runner import (
    EpisodeRunner,
    KnownBuilder,
    Runner,
    RunnerBuilder,
    build_runner,
    describe_runner,
)

PROGRESS_SECONDS = 1.0
LEAVE_SECONDS = 4.0
"""How long what is in flight, and exit handlers, may take once the training run is gone."""


def import_function(spec: str) -> Callable[[], Any]:
    """Import the function that "file.py:function" or "module:function" names."""
    source, _, name = spec.rpartition(":")
    function = import_object(source, name)
    if not callable(function):
        raise InvalidInput(f"{source} has no function {name}()")
    return function  # type: ignore[no-any-return]


def build_policy(begin: CallFunction) -> tuple[Any, RunnerBuilder]:
    """Call the user's function and check what it returns."""
    sys.path += [entry for entry in begin.path if entry not in sys.path]
    name = begin.spec.rpartition(":")[2]
    policy = import_function(begin.spec)()
    if begin.engine == "vllm":
        return _build_vllm(name, policy)
    import torch  # only now: the user's file may set what it reads

    match policy:
        case (model, builder) if callable(builder) and not isinstance(builder, torch.nn.Module):
            return model, builder
    raise InvalidInput(
        f"{name}() returns (model, runner builder), as in `return model, "
        f"live_model(tokenizer, score_fn)`; got {policy!r:.100}"
    )


def _build_vllm(name: str, policy: Any) -> tuple[Any, RunnerBuilder]:
    from heldout.training.background.worker.vllm_model import VLLMModel

    match policy:
        case (str() | dict() as source, builder) if callable(builder):
            model = VLLMModel(source)
            model.start()
            return model, builder
    raise InvalidInput(
        f"with engine='vllm', {name}() returns (path, runner builder), or vLLM's settings in place "
        "of the path, as in `return {'model': path, 'dtype': 'bfloat16'}, live_model(tokenizer, "
        f"score_fn)`; got {policy!r:.100}"
    )


def load_weights(model: Any, layout: BufferLayout, tensors: dict[str, Any]) -> None:
    """Replace the model's weights, or raise InvalidInput and change nothing."""
    import torch

    own = {named.name: named.tensor for named in named_tensors(model) or ()}
    missing = sorted((tensors.keys() | set(layout.frozen)) - own.keys())
    extra = sorted(own.keys() - tensors.keys() - set(layout.frozen))
    if missing or extra:
        differences = [f"the worker's has no {_list_names(missing)}"] if missing else []
        differences += [f"the one in training has no {_list_names(extra)}"] if extra else []
        raise InvalidInput(
            f"policy() makes another model than is in training: {', and '.join(differences)}"
        )
    sources: dict[int, tuple[str, int]] = {}
    for spec in layout.tensors:
        name, mine, theirs = spec.name, own[spec.name], tensors[spec.name]
        if (mine.shape, mine.dtype) != (theirs.shape, theirs.dtype):
            raise InvalidInput(
                f"{name} is {theirs.dtype} of {list(theirs.shape)} in training and {mine.dtype} of "
                f"{list(mine.shape)} in the worker; load the model in policy() as it is trained"
            )
        first, offset = sources.setdefault(id(mine), (name, spec.offset))
        if offset != spec.offset:
            raise InvalidInput(f"{first} and {name} are one tensor in the worker, two in training")
    if read_sums(checksums([own[name] for name in layout.frozen])) != layout.frozen_checksums:
        raise InvalidInput(
            "the weights that are not trained are others in the worker than in training; have "
            "policy() load the same ones, or give EvalWorker(…, copy='all')"
        )
    if adapter_states(model) != layout.adapters:
        raise InvalidInput(
            "the adapters are others in the worker than in training (which are in use, disabled or "
            "merged, or their scaling); have policy() set them as the training does"
        )
    with torch.inference_mode():  # where tensors that were made in it can be written to as well
        for name, tensor in tensors.items():
            own[name].data.copy_(tensor)


def _list_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


class EvalServer:
    """Answers the requests of one training run; weights come in buffers, by file descriptor."""

    def __init__(self, connection: Connection, buffers: Sequence[int]) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._buffers = buffers
        self._requests: queue.SimpleQueue[CallFunction | LoadWeights | EvaluateModel | None] = (
            queue.SimpleQueue()
        )
        self._stopped = 0
        """The number of the last eval that was told to stop."""
        self._client = os.getppid()
        self._client_gone = False
        self._log = self._engine = ""
        self._model: Any = None
        self._builder: RunnerBuilder
        self._weights: str | None = None
        self._printed = False
        """Whether a traceback was printed while this request was answered."""

    def serve(self) -> None:
        """Answer requests until the client is gone. In the main thread."""
        threading.Thread(target=self._listen, name="heldout-requests", daemon=True).start()
        while (request := self._requests.get()) is not None:
            self._printed = False
            try:
                answer = self._answer(request)
            except Exception as problem:  # noqa: BLE001 - the user's code: the reason of a skip
                self._print_traceback(problem)
                reason = describe(problem) + self._see_log()
                answer = EvalDone(
                    request.number, Measured(0, skipped=reason, weights=self._weights)
                )
            self._send(answer)

    def _answer(self, request: CallFunction | LoadWeights | EvaluateModel) -> WorkerMessage:
        match request:
            case CallFunction():
                self._log, self._engine = request.log, request.engine
                self._model, self._builder = build_policy(request)
                return Ready(request.number)
            case LoadWeights():
                self._weights = None
                self._weights = self._load(self._buffers[request.buffer], request.layout)
                if isinstance(self._builder, KnownBuilder):
                    self._builder.use_trainer(request.trainer)
                runner = build_runner(self._builder, self._model)
                return Ready(request.number, self._weights, describe_runner(runner))
            case EvaluateModel():
                return self._measure(request)

    def _load(self, fd: int, layout: BufferLayout) -> str | None:
        """Replace the weights, and return their hash."""
        if self._engine == "vllm":
            return str(self._model.load(fd, layout))
        load_weights(self._model, layout, read_tensors(fd, layout))
        return fingerprint(self._model)

    def _measure(self, request: EvaluateModel) -> EvalDone:
        sent = time.monotonic()

        def keep_going(done: int, total: int) -> bool:
            nonlocal sent
            if time.monotonic() - sent >= PROGRESS_SECONDS:
                sent = time.monotonic()
                self._send(Progress(request.number, done, total))
            return not self._client_gone and request.number > self._stopped

        task = Task(
            step=request.step,
            samples=request.samples,
            size=len(request.samples),
            runner_builder=self._build_runner,
            run_dir=Path(request.run_dir),
            pass_threshold=request.pass_threshold,
            seed=request.seed,
            keep_going=keep_going,
        )
        measured = measure(task, self._model, Alone())
        assert isinstance(measured, Measured)
        # An engine's model has no weights to hash: it is asked for answers of those it was sent.
        measured = replace(measured, weights=measured.weights or self._weights)
        if measured.skipped is not None:
            measured = replace(measured, skipped=measured.skipped + self._see_log())
        left = any(thread.name == "heldout-loop" for thread in threading.enumerate())
        return EvalDone(request.number, measured, restart=left)

    def _build_runner(self, model: Any) -> Runner | EpisodeRunner:
        """Build the user's runner; print the traceback if that fails."""
        runner = self._builder(model)
        if not isinstance(runner, Runner):
            return runner
        answer_questions = runner.answer

        def answer(asked: Sequence[Question], keep_going: Callable[[], bool]) -> Sequence[Answered]:
            try:
                return answer_questions(asked, keep_going)
            except Exception as problem:
                self._print_traceback(problem)
                raise

        return replace(runner, answer=answer)

    def _print_traceback(self, problem: Exception) -> None:
        # An error of heldout's own says all there is to say, unless the user's code is behind it.
        if not isinstance(problem, HeldoutError) or problem.__cause__ is not None:
            self._printed = True
            traceback.print_exception(problem)

    def _see_log(self) -> str:
        return f"; see {self._log}" if self._printed else ""

    def _send(self, answer: WorkerMessage) -> None:
        content = encode(answer)
        # The listening thread notices where the client is gone.
        with self._sending, suppress(OSError):
            self._connection.send_bytes(content)

    def _listen(self) -> None:
        """Read requests until the client is gone, and then leave. A thread of its own."""
        # A child that the training run has forked may hold the connection open. The training
        # run is gone all the same where this process has another parent.
        with suppress(EOFError, OSError):
            while os.getppid() == self._client:
                if self._connection.poll(1.0):
                    request = decode_request(self._connection.recv_bytes())
                    if isinstance(request, StopEval):
                        self._stopped = request.number
                    else:
                        self._requests.put(request)
        # Also where an extension does not give the interpreter back.
        faulthandler.dump_traceback_later(2 * LEAVE_SECONDS, exit=True)
        self._client_gone = True
        self._requests.put(None)
        time.sleep(LEAVE_SECONDS)
        self.kill_group()

    def kill_group(self) -> None:
        """End this process and all that it has started, where the client is gone."""
        if self._client_gone:
            os.killpg(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Serve the client that started this process."""
    connection, *buffers = map(int, sys.argv[1:])
    server = EvalServer(Connection(connection), buffers)
    # The first to be registered is the last to be called.
    atexit.register(server.kill_group)
    server.serve()


if __name__ == "__main__":
    main()
