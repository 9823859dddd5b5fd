"""results.jsonl: append one line per result, read them back, survive kill -9.

`jsonl.py` describes how lines are written so that reported results survive. `fsync`
runs on a timer beside the writes: a result survives the death of the process at once, and that
of the machine within a second.
"""

from __future__ import annotations

import hashlib
import heapq
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from struct import Struct
from typing import Annotated, Any, TypeVar, cast

import msgspec

from heldout.errors import UNREADABLE, DamagedJournal, InvalidInput
from heldout.store import jsonl
from heldout.store.jsonl import LineFormat, LineWriter, decode, encode

# Named here, too: a journal is what most of the store deals with.
from heldout.store.jsonl import has_writer as has_writer
from heldout.store.jsonl import plain_value as plain_value
from heldout.store.jsonl import storage_error as storage_error
from heldout.store.tools import StoredTools, read_tools
from heldout.types import (
    MOST_TOKENS,
    EvalResult,
    OtherUsage,
    Sample,
    Score,
    ToolSpec,
    Trajectory,
)

T = TypeVar("T")


class ResultFormat(LineFormat):
    """The format of a journal, in which earlier versions stored impossible counts of tokens."""

    __slots__ = ()

    def decode(self, path: Path, number: int, line: bytes, kind: type[T]) -> T:
        """Decode a line; impossible counts of tokens are unknown."""
        try:
            return super().decode(path, number, line, kind)
        except DamagedJournal:
            with suppress(InvalidInput, LookupError, TypeError, *UNREADABLE):
                content = decode(line, dict[str, Any])
                usage = msgspec.convert(content["trajectory"]["usage"], UsageHead)
                if not usage.is_possible():
                    content["trajectory"]["usage"] = None
                    return msgspec.convert(content, kind)
            raise


JOURNAL = ResultFormat(
    "heldout.results",
    1,
    noun="journal",
    line="result",
    if_busy="wait for it, or use another experiment_name",
    after_repair=", after which `--resume` runs their items again",
)
RESULT = "the result of sample"

Place = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""Larger ones are not indices of a dataset, and would not fit the columns."""


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
    error_stage: str | None = None
    other_usage: tuple[OtherUsage, ...] = ()
    tools: tuple[ToolSpec, ...] | str = ()
    """What the policy could call, or the hash of its line in `tools.jsonl`."""

    @classmethod
    def of(cls, index: int, result: EvalResult) -> Record:
        """Make the line of a result."""
        of_sample, own = result.sample.metadata, result.metadata
        if own:
            own = {k: v for k, v in own.items() if k not in of_sample or of_sample[k] is not v}
        return cls(
            index,
            result.sample,
            result.trajectory,
            result.repeat,
            result.score,
            own,
            result.error,
            result.error_stage,
            result.other_usage,
            result.tools,
        )

    def result(self) -> EvalResult:
        """Return the result, without tools that only their hash is there of."""
        return EvalResult(
            self.sample.id,
            self.sample,
            self.trajectory,
            self.score,
            self.metadata,
            self.repeat,
            self.error,
            find_stage(self.error, self.error_stage),
            self.other_usage,
            () if isinstance(self.tools, str) else self.tools,
        )


# Summaries and columns need no conversation, and what was checked when it was written need not be
# checked again: a RecordRow decodes in a third of the time a Record takes. They hold no cycles, and
# the garbage collector need not walk them (`gc=False`): it would take a third of the time.


class RecordKey(msgspec.Struct, kw_only=True, gc=False):
    """What orders a record."""

    index: Place
    repeat: Place = 0
    error: str | None = None
    error_stage: str | None = None

    def is_empty(self) -> bool:
        """Return whether there is neither a score nor an answer that could be scored again."""
        return self.error is not None and find_stage(self.error, self.error_stage) != "score_fn"


_ENDED_IN_SCORING = re.compile(r"score_fn: |timeout: not done after \S+ s \(in score_fn\)")


def find_stage(error: str | None, stage: str | None) -> str | None:
    """Return the stage of an error as it is stored.

    An earlier version stored none: of its errors, those of the score function can be told.
    """
    if stage is None and error is not None and _ENDED_IN_SCORING.match(error):
        return "score_fn"
    return stage


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

    metrics: tuple[MetricHead, ...] = ()


class StopHead(msgspec.Struct, gc=False):
    """Why a trajectory ended."""

    ended_by: str
    limit: str | None = None
    truncated: bool = False
    finish_reason: str | None = None


class UsageHead(msgspec.Struct, gc=False):
    """Tokens that it took."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    def is_possible(self) -> bool:
        """Return whether these can be counts: earlier versions stored whatever a server said."""
        return all(0 <= n <= MOST_TOKENS for n in (self.prompt_tokens, self.completion_tokens))


class TimingHead(msgspec.Struct, gc=False):
    """Time that it took, and whether the model was asked."""

    seconds: float
    requests: int = 1
    cached_turns: Place = 0


class TrajectoryHead(msgspec.Struct, gc=False):
    """A trajectory without its messages."""

    stop: StopHead
    usage: UsageHead | None = None
    timing: TimingHead | None = None
    reads_metadata: bool = False


class RecordRow(RecordKey, kw_only=True, gc=False):
    """What goes into the columns of a record."""

    sample: SampleHead
    trajectory: TrajectoryHead
    score: ScoreHead = msgspec.field(default_factory=ScoreHead)
    metadata: dict[str, Any] = {}
    other_usage: tuple[OtherUsage, ...] = ()

    def cluster_hash(self) -> int:
        """Hash what samples of one cluster share."""
        return cluster_hash(
            self.sample.content, self.sample.metadata, whole=self.trajectory.reads_metadata
        )


def content_hash(id: str, input: Any, ground_truth: Any) -> int:
    """Hash what a stored sample asks and what is right, or its id if it has neither; never 0."""
    if ground_truth is None and not input:
        return id_hash(id) or 1
    return _hash(jsonl.encoder.encode((input, ground_truth))) or 1


def cluster_hash(content: int, metadata: dict[str, Any], *, whole: bool) -> int:
    """Hash what samples of one cluster share: their content, with metadata if `whole`.

    An environment is made of the whole sample, so metadata may be all that tells its tasks apart.
    """
    if not whole or not metadata:
        return content
    return _hash(jsonl.encoder.encode((content, metadata))) or 1


def id_hash(id: str) -> int:
    """Hash the id of a sample."""
    return _hash(id.encode("utf-8", "surrogatepass"))


def hash_ids(ids: Iterable[str]) -> bytes:
    """Hash ids as `id_hash` does, in two thirds of the time: eight bytes each, low ones first."""
    digests = []
    for id in ids:
        hash = _empty_hash.copy()
        hash.update(id.encode("utf-8", "surrogatepass"))
        digests.append(hash.digest())
    return b"".join(digests)


_empty_hash = hashlib.blake2b(digest_size=8)
_unpack_int64: Callable[[bytes], tuple[int]] = Struct("<q").unpack


def _hash(content: bytes) -> int:
    hash = _empty_hash.copy()
    hash.update(content)
    return _unpack_int64(hash.digest())[0]


def content_of(sample: Sample) -> int:
    """Hash the content of a sample as its row in a journal has it; InvalidInput if it has none."""
    text = encode((sample.input, sample.ground_truth), "sample", sample.id)
    input, ground_truth = decode(text, list[Any])
    return content_hash(sample.id, input, ground_truth)


def cluster_of(result: EvalResult) -> int:
    """Hash what results of one cluster share; of a sample that JSON cannot hold, its id."""
    sample, whole = result.sample, result.trajectory.reads_metadata
    try:
        text = encode(sample.metadata if whole else {}, "sample", sample.id)
        metadata = decode(text, dict[str, Any])
        return cluster_hash(content_of(sample), metadata, whole=whole)
    except InvalidInput:
        return id_hash(sample.id)


def row_of(index: int, result: EvalResult) -> RecordRow:
    """Return the row of a result in memory as the journal would give it back."""
    rollout = result.trajectory
    trajectory = replace(rollout, messages=(), tokens=None, outcome=None, model_turns=None)
    record = Record.of(index, replace(result, trajectory=trajectory, tools=()))
    row = decode(encode(record, RESULT, result.sample_id), RecordRow)
    row.sample.hash_content()
    return row


WAITING_ROWS = 16_384
"""Rows held in memory while results are put in order; of more, only the place in the file."""

R = TypeVar("R", bound=msgspec.Struct)


# --- Writing ------------------------------------------------------------------------------------


class JournalWriter(LineWriter):
    """Appends results to one journal."""

    def __init__(self, path: Path, *, new: bool = False) -> None:
        """`new`: the journal must not be there yet (FileExistsError)."""
        if not new:
            jsonl.unpack(path)
        super().__init__(path, JOURNAL, new=new)
        self._tools: StoredTools | None = None

    def append(self, index: int, result: EvalResult, sample: bytes | None = None) -> None:
        """Append a result; `sample` is its sample as JSON, before anything could write into it.

        Raises InvalidInput as `encode_result` does, and RunDirectoryError where it cannot be
        written; what was written before is readable.
        """
        self.append_line(encode_result(index, result, sample, self._store_tools))

    def encode(self, index: int, result: EvalResult, sample: bytes | None = None) -> bytes:
        """Encode a result as its line here, with its tools stored; raises as `append` does."""
        return encode_result(index, result, sample, self._store_tools)

    def _store_tools(self, tools: tuple[ToolSpec, ...]) -> tuple[ToolSpec, ...] | str:
        """Store tools once for all results that have them; returns what stands for them."""
        if self._tools is None:
            self._tools = StoredTools(self.path)
        return self._tools.add(tools)


def encode_result(
    index: int,
    result: EvalResult,
    sample: bytes | None = None,
    store_tools: Callable[[tuple[ToolSpec, ...]], tuple[ToolSpec, ...] | str] | None = None,
) -> bytes:
    """Encode a result as its line of a journal.

    `sample` is its sample as JSON, where the engine made the result: its types have checked what is
    in it. Any other result is read back, since one line that cannot be read would make the whole
    journal damaged. Raises InvalidInput where it holds a value that JSON cannot, cannot be read, or
    is too long.
    """
    record = Record.of(index, result)
    if result.tools and store_tools is not None:
        record.tools = store_tools(result.tools)
    if sample is not None:
        record.sample = cast("Sample", msgspec.Raw(sample))  # encoded as the text that it is
    line = encode(record, RESULT, result.sample_id)
    if len(line) > jsonl.MAX_LINE_BYTES:
        raise InvalidInput(
            f"{RESULT} {result.sample_id!r} has {len(line) / 1e6:,.0f} MB; a journal holds "
            f"{jsonl.MAX_LINE_BYTES / 1e6:.0f} MB per result"
        )
    if sample is None:
        try:
            decode(line, Record)
        except InvalidInput as problem:
            raise InvalidInput(
                f"{RESULT} {result.sample_id!r} could not be read back: {problem}"
            ) from None
    return line + b"\n"


# --- Reading ------------------------------------------------------------------------------------


def lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """(line number, byte offset, line) of every whole line after the header."""
    return jsonl.lines(path, JOURNAL)


def records(path: Path, kind: type[R]) -> Iterator[R]:
    """Every record in the order written; `kind` says how much of each to decode."""
    for number, _, line in lines(path):
        yield JOURNAL.decode(path, number, line, kind)


def superseded(path: Path) -> dict[tuple[int, int], int]:
    """Count the stale records of items, by (index, repeat), that were run again after an error."""
    errors: dict[tuple[int, int], int] = {}
    stale: dict[tuple[int, int], int] = {}
    for record in records(path, RecordKey):
        item = (record.index, record.repeat)
        if item in errors:
            stale[item] = errors[item]
        if record.error is not None:
            errors[item] = errors.get(item, 0) + 1
    return stale


def in_order(path: Path, repeats: int) -> Iterator[RecordRow]:
    """Yield the last record of every item, in dataset order.

    Raises DamagedJournal if a line cannot be read. Items finish nearly in order, so only those that
    overtook a slower one wait in memory.
    """
    stale: dict[tuple[int, int], int] | None = None
    # Behind one slow item there may be a million: of most, only where they stand is kept.
    waiting: list[tuple[int, int, int, RecordRow | int]] = []
    item = (0, 0)

    def take_first() -> RecordRow:
        _, _, number, row = heapq.heappop(waiting)
        if isinstance(row, int):
            file.seek(row)
            row = _decode_row(path, number, jsonl.read_line(file))
        return row

    with jsonl.open_to_read(path) as file:
        for number, offset, line in lines(path):
            row = _decode_row(path, number, line)
            if row.error is not None and stale is None:
                stale = superseded(path)
            if stale and stale.get((row.index, row.repeat)):
                stale[row.index, row.repeat] -= 1
            elif not waiting and (row.index, row.repeat) == item:  # by far the most
                item = _next_item(row, repeats)
                yield row
            else:
                row_or_offset = row if len(waiting) < WAITING_ROWS else offset
                heapq.heappush(waiting, (row.index, row.repeat, number, row_or_offset))
            while waiting and waiting[0][:2] <= item:
                row = take_first()
                item = _next_item(row, repeats)
                yield row
        while waiting:
            yield take_first()


def _next_item(row: RecordRow, repeats: int) -> tuple[int, int]:
    return (row.index, row.repeat + 1) if row.repeat + 1 < repeats else (row.index + 1, 0)


_row_decoder = msgspec.json.Decoder(RecordRow)


def _decode_row(path: Path, number: int, line: bytes) -> RecordRow:
    JOURNAL.refuse_long(path, number, line)
    try:
        row = _row_decoder.decode(line)  # directly: it is a third of the time to derive a report
    except UNREADABLE:
        row = JOURNAL.decode(
            path, number, line, RecordRow
        )  # which says what is wrong with the line
    row.sample.hash_content()
    return row


def decode_result(path: Path, number: int, line: bytes) -> EvalResult:
    """Decode a whole result."""
    record = JOURNAL.decode(path, number, line, Record)
    if isinstance(record.tools, str):
        record.tools = read_tools(path, record.tools)
    return record.result()


def repair(path: Path, announce: Callable[[list[int]], None]) -> list[int]:
    """Move lines that cannot be read to `results.damaged`; returns their numbers.

    Args:
        path: The journal.
        announce: Called with the numbers before the lines are moved.
    """
    return jsonl.repair(path, JOURNAL, Record, announce)
