"""results.jsonl: append one line a result, read them back, survive kill -9.

How lines are written, so that what was reported as done survives, is said in `jsonl.py`. `fsync`
runs on a timer beside the writes: a result survives the death of the process at once, and that
of the machine within a second.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from io import BufferedReader
from math import isfinite
from pathlib import Path
from struct import Struct
from typing import Annotated, Any, TypeVar, cast, get_args, get_type_hints

import msgspec

from heldout.errors import UNENCODABLE, UNREADABLE, InvalidInput
from heldout.store import jsonl
from heldout.store.jsonl import LineFormat, LineWriter

# Named here, too: a journal is what most of the store deals with.
from heldout.store.jsonl import has_writer as has_writer
from heldout.store.jsonl import refuse_unknown as refuse_unknown
from heldout.store.jsonl import storage_error as storage_error
from heldout.types import (
    EvalResult,
    Message,
    Sample,
    Score,
    Stop,
    TokenTrace,
    Trajectory,
)

JOURNAL = LineFormat(
    "heldout.results",
    1,
    noun="journal",
    line="result",
    if_busy="wait for it, or use another experiment_name",
    after_repair=", after which `--resume` runs their items again",
)


Place = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""Larger ones are no places in a dataset, and would not fit the columns."""


class Record(msgspec.Struct, omit_defaults=True):
    """One line: a result, and where its sample stands in the dataset."""

    index: Place
    sample: Sample
    trajectory: Trajectory
    repeat: Place = 0
    score: Score = msgspec.field(default_factory=Score)
    metadata: dict[str, Any] = {}
    """What the result adds to its sample's metadata, which the sample already holds."""
    error: str | None = None

    @classmethod
    def of(cls, index: int, result: EvalResult) -> Record:
        """Make the line of a result."""
        known = result.sample.metadata
        own = {k: v for k, v in result.metadata.items() if k not in known or known[k] is not v}
        return cls(
            index, result.sample, result.trajectory, result.repeat, result.score, own, result.error
        )

    def result(self) -> EvalResult:
        """Give the result that the line is of."""
        return EvalResult(
            self.sample.id,
            self.sample,
            self.trajectory,
            self.score,
            self.metadata,
            self.repeat,
            self.error,
        )


# Summaries and columns need no conversation, and what was checked when it was written need not be
# checked again: a Row decodes in a third of the time a Record takes. They hold no cycles, and the
# garbage collector need not walk them (`gc=False`): it would take a third of the time.


class Key(msgspec.Struct, kw_only=True, gc=False):
    """What orders a record."""

    index: Place
    repeat: Place = 0
    error: str | None = None


class SampleHead(msgspec.Struct, gc=False):
    """A sample with a hash of its input and ground truth, in place of these."""

    id: str
    metadata: dict[str, Any] = {}
    input: dict[str, Any] | None = msgspec.field(default_factory=dict)
    ground_truth: Any = None
    content: int = 0

    def hash_content(self) -> None:
        """Hash what may be large, and forget it: rows wait by the thousand."""
        self.content = content_hash(self.id, self.input, self.ground_truth)
        self.input = self.ground_truth = None


class MetricHead(msgspec.Struct, gc=False):
    """A metric without its metadata."""

    name: str
    value: float
    weight: float = 0.0
    rate: bool = False


class ScoreHead(msgspec.Struct, gc=False):
    """A score as it is stored."""

    metrics: list[MetricHead] = []


class StopHead(msgspec.Struct, gc=False):
    """Why a trajectory ended."""

    ended_by: str
    limit: str | None = None
    truncated: bool = False


class UsageHead(msgspec.Struct, gc=False):
    """Tokens that it took."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class TimingHead(msgspec.Struct, gc=False):
    """Time that it took."""

    seconds: float


class TrajectoryHead(msgspec.Struct, gc=False):
    """A trajectory without its messages."""

    stop: StopHead
    usage: UsageHead | None = None
    timing: TimingHead | None = None


class Row(Key, kw_only=True, gc=False):
    """What goes into the columns of a record."""

    sample: SampleHead
    trajectory: TrajectoryHead
    score: ScoreHead = msgspec.field(default_factory=ScoreHead)
    metadata: dict[str, Any] = {}


def plain_value(value: Any) -> Any:
    """What JSON has no word for but means something plain: numpy and torch numbers and arrays."""
    if callable(getattr(value, "tolist", None)):
        return value.tolist()
    raise NotImplementedError(f"a value of type {type(value).__name__}")


# Sorted, so that a set is stored in the same order whichever process stores it.
_encoder = msgspec.json.Encoder(enc_hook=plain_value, order="deterministic")
_record_decoder = msgspec.json.Decoder(Record)
_key_decoder = msgspec.json.Decoder(Key)
_row_decoder = msgspec.json.Decoder(Row)


def content_hash(id: str, input: Any, ground_truth: Any) -> int:
    """Hash what a sample asks and what is right, whatever the order of their keys.

    Args:
        id: Of the sample; hashed where there is neither input nor ground truth.
        input: Plain JSON values.
        ground_truth: Plain JSON values.

    Returns:
        64 bits, with a sign, as Parquet has them; never 0, which stands for "not known yet".
    """
    if ground_truth is None and not input:
        return id_hash(id) or 1
    return _hash(_encoder.encode((input, ground_truth))) or 1


def id_hash(id: str) -> int:
    """Hash the id of a sample."""
    return _hash(id.encode("utf-8", "surrogatepass"))


_empty_hash = hashlib.blake2b(digest_size=8)
_unpack_int64: Callable[[bytes], tuple[int]] = Struct("<q").unpack


def _hash(content: bytes) -> int:
    hash = _empty_hash.copy()
    hash.update(content)
    (number,) = _unpack_int64(hash.digest())
    return number


def content_of(sample: Sample) -> int:
    """The hash that its row in a journal would have."""
    try:
        plain = msgspec.json.decode(_encoder.encode((sample.input, sample.ground_truth)))
        return content_hash(sample.id, *plain)
    except UNENCODABLE as problem:
        raise InvalidInput(
            f"sample {sample.id!r} holds a value that JSON cannot: {problem}"
        ) from None


def cluster_of(sample: Sample) -> int:
    """What samples of equal content share; of one that JSON cannot hold, its id's."""
    try:
        return content_of(sample)
    except InvalidInput:
        return id_hash(sample.id)


def row_of(index: int, result: EvalResult) -> Row:
    """Give the row of a result in memory as the journal would give it back.

    Args:
        index: The number of its sample in the dataset.
        result: The result.

    Returns:
        The row.

    Raises:
        InvalidInput: It holds a value that JSON cannot.
    """
    whole = result.trajectory
    trajectory = Trajectory((), whole.stop, whole.usage, timing=whole.timing)
    record = Record.of(index, replace(result, trajectory=trajectory))
    line = _encode_record(record, result.sample_id)
    row = _row_decoder.decode(line)
    row.sample.hash_content()
    return row


def _encode_record(record: Record, sample_id: str) -> bytes:
    try:
        return _encoder.encode(record)
    except UNENCODABLE as problem:
        raise InvalidInput(
            f"the result of sample {sample_id!r} holds a value that JSON cannot: {problem}"
        ) from None


WAITING_ROWS = 16_384
"""Rows held in memory while results are put in order; of more, only the place in the file."""

R = TypeVar("R", bound=msgspec.Struct)


# --- Writing ------------------------------------------------------------------------------------


class JournalWriter(LineWriter):
    """Appends results to one journal."""

    def __init__(self, path: Path, *, new: bool = False) -> None:
        """`new`: the journal must not be there yet (FileExistsError)."""
        super().__init__(path, JOURNAL, new=new)

    def append(self, index: int, result: EvalResult, sample: bytes | None = None) -> None:
        """Append a result.

        Args:
            index: The number of its sample in the dataset, from 0.
            result: The result.
            sample: Its sample as JSON, as it was before anything could write into it; without it
                the sample is taken from the result.

        Raises:
            InvalidInput: It holds a value that JSON cannot, or that could not be read back.
            RunDirectoryError: It cannot be written; what was written before is readable.
        """
        self.append_line(encode_result(index, result, sample))


def encode_result(index: int, result: EvalResult, sample: bytes | None = None) -> bytes:
    """Encode a result as its line of a journal.

    Args:
        index: The number of its sample in the dataset, from 0.
        result: The result.
        sample: Its sample, if that is encoded already.

    Returns:
        The line.

    Raises:
        InvalidInput: It holds a value that JSON cannot, or that could not be read back.
    """
    record = Record.of(index, result)
    if sample is not None:
        record.sample = cast("Sample", msgspec.Raw(sample))  # encoded as the text that it is
    line = _encode_record(record, result.sample_id) + b"\n"
    if not has_plain_types(result):
        try:
            # One line that cannot be read would make the whole journal damaged.
            _record_decoder.decode(line)
        except (*UNREADABLE, InvalidInput) as problem:
            raise InvalidInput(
                f"the result of sample {result.sample_id!r} could not be read back: {problem}"
            ) from None
    return line


TEXT_OR_NONE = (str, type(None))
ENDED_BY = frozenset(get_args(get_type_hints(Stop)["ended_by"]))


def has_plain_types(result: EvalResult) -> bool:
    """Check that every typed field of a result holds exactly what its type says.

    The types check most of their fields when they are made; this checks the rest, so that what is
    encoded can be read back. It takes a tenth of the time that reading back takes.

    Args:
        result: The result to be written.

    Returns:
        False where a field holds something else, which may still be readable (a NumPy integer).
    """
    trajectory, stop = result.trajectory, result.trajectory.stop
    usage, timing, tokens = trajectory.usage, trajectory.timing, trajectory.tokens
    if not (
        type(stop.truncated) is bool
        and stop.ended_by in ENDED_BY
        and isinstance(stop.limit, TEXT_OR_NONE)
        and isinstance(stop.finish_reason, TEXT_OR_NONE)
        and isinstance(result.error, TEXT_OR_NONE)
        and type(result.sample.metadata) is dict
    ):
        return False
    for message in trajectory.messages:
        if not (
            type(message) is Message
            and (type(message.content) is str or _all_are(dict, message.content))
            and isinstance(message.tool_call_id, TEXT_OR_NONE)
            and isinstance(message.reasoning, TEXT_OR_NONE)
        ):
            return False
    for metric in result.score.metrics:
        if type(metric.metadata) is not dict or type(metric.rate) is not bool:
            return False
    return (
        (usage is None or _all_are(int, (usage.prompt_tokens, usage.completion_tokens)))
        and (timing is None or (type(timing.requests) is int and isfinite(timing.seconds)))
        and (trajectory.outcome is None or type(trajectory.outcome) is dict)
        and (trajectory.model_turns is None or _all_are(int, trajectory.model_turns))
        and (tokens is None or _has_plain_tokens(tokens))
    )


def _has_plain_tokens(tokens: TokenTrace) -> bool:
    return (
        _all_are(int, tokens.prompt_ids)
        and _all_are(int, tokens.completion_ids)
        and _all_are(int, tokens.env_mask)
        and (
            tokens.logprobs is None
            or (_all_are(float, tokens.logprobs) and all(map(isfinite, tokens.logprobs)))
        )
    )


def _all_are(kind: type, values: Iterable[object]) -> bool:
    return {*map(type, values)} <= {kind}


# --- Reading ------------------------------------------------------------------------------------


def lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """(line number, byte offset, line) of every whole line after the header."""
    return jsonl.lines(path, JOURNAL)


def records(path: Path, kind: type[R]) -> Iterator[R]:
    """Every record in the order written; `kind` says how much of each to decode."""
    decode = msgspec.json.Decoder(kind).decode
    for number, _, line in lines(path):
        yield JOURNAL.decoded(decode, path, number, line)


def superseded(path: Path) -> dict[tuple[int, int], int]:
    """Find items that were run again after an error.

    Args:
        path: The journal.

    Returns:
        By (index, repeat) of each such item, how many of its records came too early.
    """
    errors: dict[tuple[int, int], int] = {}
    stale: dict[tuple[int, int], int] = {}
    if not jsonl.contains(path, JOURNAL, b'"error":'):  # as is most often so, and known soon
        return stale
    for number, _, line in lines(path):
        record = decode_key(path, number, line)
        item = (record.index, record.repeat)
        if item in errors:
            stale[item] = errors[item]
        if record.error is not None:
            errors[item] = errors.get(item, 0) + 1
    return stale


def in_order(path: Path, repeats: int) -> Iterator[Row]:
    """Read every item once, its last record, in dataset order.

    Items finish nearly in order, so only those that overtook a slower one wait in memory.

    Args:
        path: The journal.
        repeats: How often each sample is run.

    Yields:
        A row for each item.

    Raises:
        DamagedJournal: A line is not a result.
    """
    stale = superseded(path)
    waiting: list[tuple[int, int, int, int, Row | None]] = []
    index = repeat = 0
    with jsonl.open_to_read(path) as file:
        for number, offset, line in lines(path):
            row = _decode_row(path, number, line)
            if stale and stale.get((row.index, row.repeat)):
                stale[row.index, row.repeat] -= 1
                continue
            if row.index == index and row.repeat == repeat and not waiting:  # by far the most
                index, repeat = (index, repeat + 1) if repeat + 1 < repeats else (index + 1, 0)
                yield row
                continue
            # Behind one slow item there may be a million: then only where they stand is kept.
            held = row if len(waiting) < WAITING_ROWS else None
            heapq.heappush(waiting, (row.index, row.repeat, offset, number, held))
            while waiting and waiting[0][:2] <= (index, repeat):
                index, repeat, *place, ready = heapq.heappop(waiting)
                index, repeat = (index, repeat + 1) if repeat + 1 < repeats else (index + 1, 0)
                yield ready or _read_row(file, path, *place)
        while waiting:
            _, _, *place, ready = heapq.heappop(waiting)
            yield ready or _read_row(file, path, *place)


def _read_row(file: BufferedReader, path: Path, offset: int, number: int) -> Row:
    file.seek(offset)
    return _decode_row(path, number, file.readline())


def _decode_row(path: Path, number: int, line: bytes) -> Row:
    row = JOURNAL.decoded(_row_decoder.decode, path, number, line)
    row.sample.hash_content()
    return row


def decode_result(path: Path, number: int, line: bytes) -> EvalResult:
    """Decode a whole result."""
    return JOURNAL.decoded(_record_decoder.decode, path, number, line).result()


def decode_key(path: Path, number: int, line: bytes) -> Key:
    """Decode what orders a result."""
    return JOURNAL.decoded(_key_decoder.decode, path, number, line)


# --- Repair -------------------------------------------------------------------------------------


def repair(path: Path) -> list[int]:
    """Move lines that cannot be read to `results.damaged`; returns their numbers."""
    return jsonl.repair(path, JOURNAL, _record_decoder.decode)
