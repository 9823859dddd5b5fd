"""TensorboardLogger: results as TensorBoard's event files.

Written with the package `tensorboard` alone, which whoever looks at the curves has anyway;
`torch.utils.tensorboard` needs it, too, and torch besides.

TensorBoard reads late steps as a training that went back: its fast loader drops the points of a
series from that step on, and of two files in a folder it follows only the newer. So results have a
folder of their own, a run beside the trainer's; and a late one is written as what it is taken
for, a restart from its step, followed by the later points once more. A training that goes on in
the same folder reads what is there first: an eval that it makes up for is late, too.

A point is put into its record once, checksums and all, which TensorBoard does in Python, byte by
byte; to write it again is to copy it.
"""

from __future__ import annotations

import io
import os
import socket
import time
from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import Any

from heldout.errors import HeldoutError, InvalidInput
from heldout.training.loggers import Fields
from heldout.training.loggers.rows import Row

_NEVER = 2**62  # a step that no point has


class TensorboardLogger:
    """Results under `<logdir>/<run>`; `logdir` is the trainer's, a local folder.

    `remembered` results, those of the largest steps, are kept in memory to be written again; one
    that is older than all of them, and late, is refused. Text goes to the text dashboard.
    """

    def __init__(self, logdir: str | Path, *, run: str = "heldout", remembered: int = 1000) -> None:
        try:
            from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.plugins.text import metadata
            from tensorboard.summary.writer.record_writer import RecordWriter
            from tensorboard.util import tensor_util
        except ImportError as problem:
            raise InvalidInput(
                f"logging to TensorBoard needs the package ({problem}): "
                "pip install 'heldout[tensorboard]'"
            ) from None
        if not isinstance(logdir, str | os.PathLike):
            raise InvalidInput(f"logdir is a folder, the trainer's, got {logdir!r:.100}")
        if isinstance(remembered, bool) or not isinstance(remembered, int) or remembered < 1:
            raise InvalidInput(f"remembered is a whole number >= 1, got {remembered!r}")
        self._event_pb2, self._summary_pb2 = event_pb2, summary_pb2
        self._text, self._tensor_util = metadata, tensor_util
        self._framed = RecordWriter
        self._remembered = remembered
        self._steps: list[int] = []
        self._records: list[bytes] = []
        self._newest: dict[str, int] = {}
        """The largest step of each series."""
        self._forgotten = -1
        folder = Path(logdir) / run
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(folder.glob("events.out.tfevents.*")):
            for event in LegacyEventFileLoader(str(path)).Load():
                self._recall(event)
        self._file = (folder / _file_name()).open("xb", buffering=0)
        version = event_pb2.Event(wall_time=time.time(), file_version="brain.Event:2")
        # The first restart of a file is taken for its start by one of TensorBoard's loaders.
        self._append(self._record(version) + self._record(self._restart(_NEVER)))

    def log(self, name: str, step: int, fields: Fields) -> None:
        row = Row.of(name, step, fields)
        event = self._event(row)
        late = any(row.step <= self._newest.get(v.tag, -1) for v in event.summary.value)
        if late and row.step <= self._forgotten:
            raise HeldoutError(
                f"{row.name} at step {row.step} came after {self._remembered} later results, too "
                "late for TensorBoard; give the logger a larger `remembered`"
            )
        record = self._record(event)
        self._remember(event, record)
        if late:
            record = self._record(self._restart(row.step))
            record += b"".join(self._records[bisect_left(self._steps, row.step) :])
        self._forget()
        self._append(record)

    def close(self) -> None:
        self._file.close()

    def _append(self, records: bytes) -> None:
        size, left = self._file.tell(), memoryview(records)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError:
            # Readers stop at half a record, and would miss all that follows.
            self._file.truncate(size)
            self._file.seek(size)
            raise

    def _remember(self, event: Any, record: bytes) -> None:
        place = bisect_right(self._steps, event.step)
        self._steps.insert(place, event.step)
        self._records.insert(place, record)
        for value in event.summary.value:
            self._newest[value.tag] = max(event.step, self._newest.get(value.tag, -1))

    def _forget(self) -> None:
        while len(self._steps) > self._remembered:
            self._forgotten = max(self._forgotten, self._steps.pop(0))
            self._records.pop(0)

    def _recall(self, event: Any) -> None:
        """What an earlier start of the training wrote, as a reader has it at the end."""
        if event.HasField("summary"):
            self._remember(event, self._record(event))
            self._forget()
        elif event.HasField("session_log"):
            place = bisect_left(self._steps, event.step)
            del self._steps[place:], self._records[place:]

    def _record(self, event: Any) -> bytes:
        """As it stands in a file."""
        framed = io.BytesIO()
        self._framed(framed).write(event.SerializeToString())
        return framed.getvalue()

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


def _file_name() -> str:
    """TensorBoard reads the files of a folder in the order of their names, so the time is first."""
    unique = f"{time.time():020.9f}.{socket.gethostname()}.{os.getpid()}.{os.urandom(4).hex()}"
    return f"events.out.tfevents.{unique}"
