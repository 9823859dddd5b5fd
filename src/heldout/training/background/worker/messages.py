"""The protocol between a training run and its eval worker.

The client asks, the server answers: msgspec structs as JSON, one in each frame of a
`multiprocessing.connection`, and never a pickle. Both carry the number of the request, so that an
answer the client no longer waits for is not taken for another one.
"""

from __future__ import annotations

from typing import Any

import msgspec

from heldout.store.journal import plain_value
from heldout.training.background.worker.weight_buffer import BufferLayout
from heldout.training.measuring import Measured
from heldout.training.settings import TrainerSettings
from heldout.types import Sample

INSIDE_WORKER = "HELDOUT_EVAL_WORKER"
"""Set in the environment of a worker, so that it starts none itself."""


class WorkerMessage(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """A message between client and worker; `number` is that of the request."""

    number: int


class CallFunction(WorkerMessage, frozen=True):
    """Call the user's function. Answered by Ready or EvalDone."""

    spec: str
    """file.py:function or module:function."""
    path: list[str]
    """Where the training run finds its modules."""
    log: str = ""
    """The file that the worker prints to, to be named in reasons."""
    engine: str = "transformers"
    """What the function's model runs in: `transformers`, or `vllm`."""


class LoadWeights(WorkerMessage, frozen=True):
    """Replace the weights of the model. Answered by Ready or EvalDone."""

    buffer: int
    """Which of the inherited buffers they are in."""
    layout: BufferLayout
    trainer: TrainerSettings = TrainerSettings()
    """How training has the model answer."""


class EvaluateModel(WorkerMessage, frozen=True):
    """Evaluate the model. Answered by Progress, and then EvalDone."""

    samples: list[Sample]
    step: int
    seed: int
    pass_threshold: float
    run_dir: str


class StopEval(WorkerMessage, frozen=True):
    """End the eval of this number with the results so far: time is up. Not answered."""


class Ready(WorkerMessage, frozen=True):
    """The function was called, or the weights are loaded."""

    weights: str | None = None
    """Hash of all weights, once they are loaded."""
    functions: dict[str, Any] = {}
    """What the numbers depend on (`describe_runner`), to tell whether they belong on the curve."""


class Progress(WorkerMessage, frozen=True):
    """Items that are done, and in total."""

    done: int
    total: int


class EvalDone(WorkerMessage, frozen=True):
    """The outcome of the eval; a skip if a request failed."""

    measured: Measured
    restart: bool = False
    """Something of this eval is still running, so the next one needs another worker."""


WorkerRequest = CallFunction | LoadWeights | EvaluateModel | StopEval
WorkerReply = Ready | Progress | EvalDone

_requests: msgspec.json.Decoder[WorkerRequest] = msgspec.json.Decoder(WorkerRequest)
_answers: msgspec.json.Decoder[WorkerReply] = msgspec.json.Decoder(WorkerReply)

encode = msgspec.json.Encoder(enc_hook=plain_value).encode
decode_request, decode_answer = _requests.decode, _answers.decode
