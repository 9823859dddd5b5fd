"""TensorboardLogger: results as TensorBoard's event files, in a run next to the trainer's.

TensorBoard treats an earlier step as a restart from there: its default loader (the data server)
drops the points of a series from that step on. And of two files in one folder it follows the newer.
So results have their own folder, and a late result is written as a restart from its step, followed
by the later points again.

Needs only the package `tensorboard`, not torch.
"""

from __future__ import annotations

import io
import os
import socket
import time
from bisect import bisect_left, insort
from operator import itemgetter
from pathlib import Path
from typing import Any

from heldout._core.extras import missing_extra
from heldout.errors import InvalidInput
from heldout.training.loggers.base import Fields, split_fields, with_prefix

_NO_STEP = 2**62  # a step that no point has


class TensorboardLogger:
    """Logs results under `<logdir>/heldout`, texts to the text dashboard.

    Existing results in the folder are kept.

    Args:
        logdir: The trainer's log directory, a local folder.

    Raises:
        InvalidInput: tensorboard is not installed, or `logdir` is not a path.
    """

    def __init__(self, logdir: str | Path) -> None:
        try:
            from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.plugins.text import metadata
            from tensorboard.summary.writer.record_writer import RecordWriter
            from tensorboard.util import tensor_util
        except ImportError as problem:
            raise missing_extra(
                f"logging to TensorBoard needs the package ({problem})", "tensorboard"
            ) from None
        if not isinstance(logdir, str | Path):
            raise InvalidInput(f"logdir must be the trainer's log directory, got {logdir!r:.100}")
        self._event_pb2, self._summary_pb2 = event_pb2, summary_pb2
        self._text_metadata, self._tensor_util = metadata, tensor_util
        self._record_writer = RecordWriter
        self._points: list[tuple[int, bytes]] = []
        """Step and record of every result, by step. A record has checksums, which TensorBoard
        computes in Python: to write it again is to copy it."""
        folder = Path(logdir) / "heldout"
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(folder.glob("events.out.tfevents.*")):
            for event in LegacyEventFileLoader(str(path)).Load():
                if event.HasField("summary"):
                    self._remember(event)
                elif event.HasField("session_log"):  # a restart
                    del self._points[self._position(event.step) :]
        # TensorBoard reads the files of a folder in the order of their names.
        unique = f"{time.time():020.9f}.{socket.gethostname()}.{os.getpid()}"
        # What a full disk does not take stays in the buffer, so that no record is torn.
        self._file = (folder / f"events.out.tfevents.{unique}").open("xb", buffering=2**20)
        version = event_pb2.Event(wall_time=time.time(), file_version="brain.Event:2")
        # One of TensorBoard's loaders takes the first restart of a file for its start.
        self._file.write(self._record(version) + self._restart_record(_NO_STEP))
        self._file.flush()

    def log(self, name: str, step: int, fields: Fields) -> None:
        """Write one result; it can be read when this returns."""
        is_late = bool(self._points) and step <= self._points[-1][0]
        record = self._remember(self._result_event(name, step, fields))
        if is_late:
            later = self._points[self._position(step) :]
            record = self._restart_record(step) + b"".join(record for _, record in later)
        self._file.write(record)
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _remember(self, event: Any) -> bytes:
        record = self._record(event)
        insort(self._points, (event.step, record), key=itemgetter(0))
        return record

    def _position(self, step: int) -> int:
        """Where the points from `step` on begin."""
        return bisect_left(self._points, step, key=itemgetter(0))

    def _record(self, event: Any) -> bytes:
        buffer = io.BytesIO()
        self._record_writer(buffer).write(event.SerializeToString())
        return buffer.getvalue()

    def _result_event(self, name: str, step: int, fields: Fields) -> Any:
        numbers, texts = split_fields(fields)
        new_value = self._summary_pb2.Summary.Value
        values = [
            new_value(tag=tag, simple_value=number)
            for tag, number in with_prefix(name, numbers).items()
        ]
        for tag, text in with_prefix(name, texts).items():
            metadata = self._text_metadata.create_summary_metadata(display_name=tag, description="")
            tensor = self._tensor_util.make_tensor_proto([text.encode()])
            values.append(new_value(tag=tag, metadata=metadata, tensor=tensor))
        summary = self._summary_pb2.Summary(value=values)
        return self._event_pb2.Event(wall_time=time.time(), step=step, summary=summary)

    def _restart_record(self, step: int) -> bytes:
        start = self._event_pb2.SessionLog(status=self._event_pb2.SessionLog.START)
        event = self._event_pb2.Event(wall_time=time.time(), step=step, session_log=start)
        return self._record(event)
