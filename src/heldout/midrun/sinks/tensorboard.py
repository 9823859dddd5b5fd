"""TensorboardSink: results as TensorBoard's event files.

Written with the package `tensorboard` alone, which whoever looks at the curves has anyway;
`torch.utils.tensorboard` needs it, too, and torch besides.

TensorBoard reads late steps as a training that went back: its fast loader drops the points of a
series from that step on, and of two files in a folder it follows only the newer. So results have a
folder of their own, a run beside the trainer's; and a late one is written as what it is taken
for, a restart from its step, followed by the later points once more.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import Any

from heldout.errors import HeldoutError, InvalidInput
from heldout.midrun.sinks import Fields
from heldout.midrun.sinks.rows import Row

_NEVER = 2**62  # a step that no point has


class TensorboardSink:
    """Results under `<logdir>/<run>`; `logdir` is the trainer's.

    `remembered` results, those of the largest steps, are kept in memory to be written again; one
    that is older than all of them is refused. Text goes to the text dashboard.
    """

    def __init__(
        self, logdir: str | Path, *, run: str = "heldout", remembered: int = 10_000
    ) -> None:
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.plugins.text import metadata
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
            from tensorboard.util import tensor_util
        except ImportError as problem:
            raise InvalidInput(
                f"logging to TensorBoard needs the package ({problem}): "
                "pip install 'heldout[tensorboard]'"
            ) from None
        if remembered < 1:
            raise InvalidInput(f"remembered is a whole number >= 1, got {remembered!r}")
        self._event_pb2, self._summary_pb2 = event_pb2, summary_pb2
        self._text, self._tensor_util = metadata, tensor_util
        self._remembered = remembered
        self._steps: list[int] = []
        self._events: list[Any] = []
        self._newest: dict[str, int] = {}
        self._forgotten = -1
        self._writer = EventFileWriter(str(Path(logdir) / run))
        # The first restart of a file is taken for its start by one of TensorBoard's loaders.
        self._writer.add_event(self._restart(_NEVER))
        self._writer.flush()

    def log(self, name: str, step: int, fields: Fields) -> None:
        row = Row.of(name, step, fields)
        late = row.step <= self._newest.get(row.name, -1)
        if late and row.step <= self._forgotten:
            raise HeldoutError(
                f"{row.name} at step {row.step} came after {self._remembered} later results, too "
                "late for TensorBoard; give the sink a larger `remembered`"
            )
        event = self._event(row)
        place = bisect_right(self._steps, row.step)
        self._steps.insert(place, row.step)
        self._events.insert(place, event)
        if late:
            self._writer.add_event(self._restart(row.step))
            for again in self._events[bisect_left(self._steps, row.step) :]:
                self._writer.add_event(again)
        else:
            self._writer.add_event(event)
        self._newest[row.name] = max(row.step, self._newest.get(row.name, -1))
        if len(self._steps) > self._remembered:
            self._forgotten = max(self._forgotten, self._steps.pop(0))
            self._events.pop(0)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def _event(self, row: Row) -> Any:
        value = self._summary_pb2.Summary.Value
        values = [value(tag=tag, simple_value=v) for tag, v in row.keyed(row.numbers).items()]
        for tag, text in row.keyed(row.texts).items():
            described = self._text.create_summary_metadata(display_name=tag, description="")
            tensor = self._tensor_util.make_tensor_proto([text.encode()])
            values.append(value(tag=tag, metadata=described, tensor=tensor))
        summary = self._summary_pb2.Summary(value=values)
        return self._event_pb2.Event(wall_time=time.time(), step=row.step, summary=summary)

    def _restart(self, step: int) -> Any:
        log = self._event_pb2.SessionLog(status=self._event_pb2.SessionLog.START)
        return self._event_pb2.Event(wall_time=time.time(), step=step, session_log=log)
