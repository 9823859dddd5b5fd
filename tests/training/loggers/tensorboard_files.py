"""What event files hold, as each of TensorBoard's ways of reading them has it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Trainer:
    """Writes its own event file, as torch's SummaryWriter does with this very class."""

    def __init__(self, logdir: Path) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(str(logdir))

    def __call__(self, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        value = Summary.Value(tag="loss", simple_value=step)
        self._writer.add_event(Event(step=step, summary=Summary(value=[value])))

    def close(self) -> None:
        self._writer.close()


def events(folder: Path) -> Iterator[Any]:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    for path in sorted(folder.glob("events.*")):
        yield from EventFileLoader(str(path)).Load()


def by_accumulator(folder: Path, tag: str) -> list[tuple[int, float]]:
    """As the library that scripts read event files with has it."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return [(e.step, e.value) for e in accumulator.Scalars(tag)]


def by_dashboard(logdir: Path, run: str, tag: str) -> list[tuple[int, float]]:
    """As TensorBoard itself has it, with the loader that is written in Python."""
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer

    multiplexer = EventMultiplexer(tensor_size_guidance={"scalars": 0})
    multiplexer.AddRunsFromDirectory(str(logdir))
    multiplexer.Reload()
    return [(e.step, e.tensor_proto.float_val[0]) for e in multiplexer.Tensors(run, tag)]


def by_fast_loader(folder: Path, tag: str) -> list[tuple[int, float]]:
    """By the rule of its data server: a step preempts those of its series that are not smaller."""
    kept: list[tuple[int, float]] = []
    for event in events(folder):
        for value in event.summary.value:
            if value.tag == tag:
                kept = [point for point in kept if point[0] < event.step]
                kept.append((event.step, value.tensor.float_val[0]))
    return kept


def texts(folder: Path, tag: str) -> dict[int, str]:
    return {
        event.step: value.tensor.string_val[0].decode()
        for event in events(folder)
        for value in event.summary.value
        if value.tag == tag
    }


def every_reading(logdir: Path, tag: str) -> list[list[tuple[int, float]]]:
    folder = logdir / "heldout"
    return [
        by_accumulator(folder, tag),
        by_dashboard(logdir, "heldout", tag),
        by_fast_loader(folder, tag),
    ]
