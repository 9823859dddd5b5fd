"""What an offline run of wandb holds: its own records, in the framing of LevelDB's logs.

wandb has had no reader of its own in Python since it reads these files in Go. `finish` returns
while wandb's own process still writes; its last record is `exit`.
"""

from __future__ import annotations

import json
import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK = 32_768
FULL, LAST = 1, 4


def records(path: Path) -> Iterator[bytes]:
    data = path.read_bytes()
    assert struct.unpack("<4sHB", data[:7]) == (b":W&B", 0xBEE1, 0)
    record, at = b"", 7
    while at < len(data):
        left = BLOCK - at % BLOCK
        if left < 7:
            at += left
            continue
        if at + 7 > len(data):
            return  # being written
        checksum, size, kind = struct.unpack("<IHB", data[at : at + 7])
        piece = data[at + 7 : at + 7 + size]
        if len(piece) < size:
            return
        assert zlib.crc32(data[at + 6 : at + 7] + piece) == checksum
        record += piece
        at += 7 + size
        if kind in (FULL, LAST):
            yield record
            record = b""


def parsed(run_dir: Path) -> list[Any]:
    """Every record of a finished run, once all of them are there."""
    from wandb.proto import wandb_internal_pb2

    (path,) = run_dir.glob("*.wandb")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = []
        for raw in records(path):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(raw)
            found.append(record)
        if found and found[-1].WhichOneof("record_type") == "exit":
            return found
        time.sleep(0.02)
    raise AssertionError(f"{path} has no end; was the run finished?")


def rows(run_dir: Path) -> list[dict[str, Any]]:
    """Each row that was logged."""
    return [
        {
            item.key or "/".join(item.nested_key): json.loads(item.value_json)
            for item in record.history.item
        }
        for record in parsed(run_dir)
        if record.WhichOneof("record_type") == "history"
    ]
