"""What a training and its eval worker say to each other: lines of JSON, over two pipes.

The training asks, the worker answers; both carry the number of the request, so that answers to
somebody who has given up are told from those that are waited for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import msgspec

from heldout.errors import InvalidInput
from heldout.store.journal import Record, plain_value
from heldout.training.run_eval import Measured
from heldout.types import Sample

LINE_LIMIT = 2**31
INSIDE = "HELDOUT_EVAL_WORKER"
"""Set in the environment of a worker, so that it starts none itself."""
ENDS_ITSELF = "heldout: the eval worker ends itself"
"""Printed before it does so by SIGKILL, which is not to be taken for the system's."""


class Message(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    number: int


# --- Requests -----------------------------------------------------------------------------------


class Begin(Message, frozen=True):
    spec: str
    """file.py:function or module:function."""
    path: list[str]
    """Where the training finds its modules."""
    device: str | None = None
    weights: str | None = None
    """The snapshot that will be loaded first: left behind if the training is killed meanwhile."""


class Load(Message, frozen=True):
    weights: str
    cast: bool = False


class Measure(Message, frozen=True):
    samples: list[Sample]
    step: int
    seed: int
    pass_threshold: float
    home: str


class Stop(Message, frozen=True):
    """Time is up: end with what there is."""


Request = Begin | Load | Measure | Stop


# --- Answers ------------------------------------------------------------------------------------


class Ready(Message, frozen=True):
    """`policy()` has returned."""


class Loaded(Message, frozen=True):
    weights: str | None = None
    functions: dict[str, Any] = {}
    """What makes the numbers (`describe_runner`): whether they belong on the curve."""
    problem: str | None = None
    """Why there is no runner for these weights."""
    logged: bool = False
    """There is a traceback in the log."""


class Alive(Message, frozen=True):
    done: int
    total: int


class Ended(Message, frozen=True):
    asked: int
    repeats: int = 1
    records: list[Record] = []
    summary: dict[str, Any] | None = None
    skipped: str | None = None
    partial: str | None = None
    weights: str | None = None
    decoding: dict[str, Any] | None = None
    rows: int = 1
    run: str | None = None
    worn: bool = False
    """Something of this eval is still running: the next one needs another worker."""
    logged: bool = False
    """There is a traceback in the log."""

    @classmethod
    def of(cls, number: int, measured: Measured, *, worn: bool, logged: bool) -> Ended:
        return cls(
            number,
            measured.asked,
            measured.repeats,
            [Record.of(place, result) for place, result in enumerate(measured.results)],
            measured.summary,
            measured.skipped,
            measured.partial,
            measured.weights,
            measured.decoding,
            measured.rows,
            measured.run,
            worn,
            logged,
        )

    def measured(self) -> Measured:
        return Measured(
            asked=self.asked,
            repeats=self.repeats,
            results=tuple(record.result() for record in self.records),
            summary=self.summary,
            skipped=self.skipped,
            partial=self.partial,
            weights=self.weights,
            decoding=self.decoding,
            rows=self.rows,
            run=self.run,
        )


class Refused(Message, frozen=True):
    """This request cannot be answered, and why."""

    reason: str
    logged: bool = False
    """There is a traceback in the log."""


Answer = Ready | Loaded | Alive | Ended | Refused

_encoder = msgspec.json.Encoder(enc_hook=plain_value)
requests = msgspec.json.Decoder(Request)
answers = msgspec.json.Decoder(Answer)


def encoded(message: Message) -> bytes:
    return _encoder.encode(message) + b"\n"


class Lines:
    """Bytes as they come, cut into lines."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, data: bytes) -> Iterator[bytes]:
        *whole, rest = data.split(b"\n")
        for line in whole:
            self._parts.append(line)
            found, self._parts, self._size = b"".join(self._parts), [], 0
            yield found
        self._parts.append(rest)
        self._size += len(rest)
        if self._size > LINE_LIMIT:
            raise InvalidInput(f"a line of more than {LINE_LIMIT} bytes")


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
