"""results.jsonl: append one line a result, read them back, survive kill -9.

How lines are written, so that what was reported as done survives, is said in `jsonl.py`. `fsync`
runs on a timer beside the writes: a result survives the death of the process at once, and that
of the machine within a second.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable, Iterator
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import msgspec

from heldout.errors import InvalidInput
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
    Timing,
    TokenTrace,
    Trajectory,
    Usage,
    weighted_mean,
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
        known = result.sample.metadata
        own = {k: v for k, v in result.metadata.items() if k not in known or known[k] is not v}
        return cls(
            index, result.sample, result.trajectory, result.repeat, result.score, own, result.error
        )

    def result(self) -> EvalResult:
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
# checked again: these decode in a third of the time a Record takes.


class Key(msgspec.Struct, kw_only=True):
    """What orders a record."""

    index: Place
    repeat: Place = 0
    error: str | None = None


class SampleHead(msgspec.Struct):
    id: str
    metadata: dict[str, Any] = {}


class MetricHead(msgspec.Struct):
    name: str
    value: float
    weight: float = 0.0
    rate: bool = False


class ScoreHead(msgspec.Struct):
    metrics: list[MetricHead] = []


class Shape(Key, kw_only=True):
    """… and what columns it needs."""

    sample: SampleHead
    score: ScoreHead = msgspec.field(default_factory=ScoreHead)
    metadata: dict[str, Any] = {}


class StopHead(msgspec.Struct):
    ended_by: str
    limit: str | None = None
    truncated: bool = False


class TrajectoryHead(msgspec.Struct):
    stop: StopHead
    usage: Usage | None = None
    timing: Timing | None = None


class AskedHead(SampleHead):
    """… with a hash of what was asked and what is right, instead of these."""

    input: msgspec.Raw = msgspec.Raw(b"{}")
    ground_truth: msgspec.Raw = msgspec.Raw(b"null")
    content: int = 0

    def __post_init__(self) -> None:
        if not self.content:
            plain = map(msgspec.json.decode, (self.input, self.ground_truth))
            self.content = content_hash(self.id, *plain)
        # A Raw keeps the whole line, answer and all, and rows wait by the thousand.
        self.input = self.ground_truth = _FORGOTTEN


class Row(Shape, kw_only=True):
    """… and all that goes into them."""

    sample: AskedHead
    trajectory: TrajectoryHead

    @property
    def reward(self) -> float | None:
        """None where the item errored: it has no score (clause 2)."""
        return weighted_mean(self.score.metrics) if self.error is None else None

    @property
    def weighted(self) -> bool:
        return any(m.weight for m in self.score.metrics)


def plain_value(value: Any) -> Any:
    """What JSON has no word for but means something plain: numpy and torch numbers and arrays."""
    if callable(getattr(value, "tolist", None)):
        return value.tolist()
    raise NotImplementedError(f"a value of type {type(value).__name__}")


UNENCODABLE = (TypeError, NotImplementedError, UnicodeEncodeError, RecursionError, OverflowError)
"""What encoding raises for values that JSON has no words for."""

# Sorted, so that a set is stored in the same order whichever process stores it.
_encoder = msgspec.json.Encoder(enc_hook=plain_value, order="deterministic")
_record_decoder = msgspec.json.Decoder(Record)
_key_decoder = msgspec.json.Decoder(Key)

_FORGOTTEN = msgspec.Raw(b"")


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
    return _hash(id.encode("utf-8", "surrogatepass"))


def _hash(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little", signed=True)


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


def metadata_of(result: EvalResult) -> tuple[dict[str, Any], dict[str, Any]]:
    """Its sample's and its own as a journal would give them back: arrays as lists, NaN as None."""
    own = Record.of(0, result).metadata
    try:
        sample, own = msgspec.json.decode(_encoder.encode((result.sample.metadata, own)))
    except UNENCODABLE as problem:
        raise InvalidInput(
            f"the metadata of sample {result.sample_id!r} holds a value that JSON cannot: {problem}"
        ) from None
    return sample, own


WAITING_ROWS = 16_384
"""Rows held in memory while results are put in order; of more, only the place in the file."""

R = TypeVar("R", bound=msgspec.Struct)


# --- Writing ------------------------------------------------------------------------------------


class JournalWriter(LineWriter):
    """Appends results to one journal."""

    def __init__(self, path: Path, *, new: bool = False) -> None:
        """`new`: the journal must not be there yet (FileExistsError)."""
        super().__init__(path, JOURNAL, new=new)

    def append(self, index: int, result: EvalResult) -> None:
        try:
            line = _encoder.encode(Record.of(index, result)) + b"\n"
        except UNENCODABLE as problem:
            raise InvalidInput(
                f"the result of sample {result.sample_id!r} holds a value that JSON cannot: "
                f"{problem}"
            ) from None
        if not has_plain_types(result):
            try:
                # One line that cannot be read would make the whole journal damaged.
                _record_decoder.decode(line)
            except (msgspec.MsgspecError, RecursionError, InvalidInput) as problem:
                raise InvalidInput(
                    f"the result of sample {result.sample_id!r} could not be read back: {problem}"
                ) from None
        self.append_line(line)


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


class Superseded:
    """Finds items that were run again after an error, as the journal is read."""

    def __init__(self) -> None:
        self._errors: dict[tuple[int, int], int] = {}
        self.stale: dict[tuple[int, int], int] = {}
        """For each such item, how many of its records came too early."""

    def see(self, record: Key) -> None:
        item = (record.index, record.repeat)
        errors = self._errors.get(item)
        if errors is not None:
            self.stale[item] = errors
        if record.error is not None:
            self._errors[item] = (errors or 0) + 1


def superseded(path: Path) -> dict[tuple[int, int], int]:
    found = Superseded()
    for key in records(path, Key):
        found.see(key)
    return found.stale


def in_order(
    path: Path, repeats: int, stale: dict[tuple[int, int], int] | None = None
) -> Iterator[Row]:
    """Every item once, its last record, in dataset order.

    Items finish nearly in order, so only those that overtook a slower one wait in memory.
    `stale` is what `superseded` found, for a caller that has read the journal already.
    """
    stale = superseded(path) if stale is None else dict(stale)
    waiting: list[tuple[int, int, int, int, Row | None]] = []
    expected = (0, 0)
    decode = msgspec.json.Decoder(Row).decode
    with jsonl.open_to_read(path) as file:

        def read_again(offset: int, number: int) -> Row:
            file.seek(offset)
            return JOURNAL.decoded(decode, path, number, file.readline())

        for number, offset, line in lines(path):
            row = JOURNAL.decoded(decode, path, number, line)
            item = (row.index, row.repeat)
            if stale.get(item):
                stale[item] -= 1
                continue
            # Behind one slow item there may be a million: then only where they stand is kept.
            held = row if len(waiting) < WAITING_ROWS else None
            heapq.heappush(waiting, (*item, offset, number, held))
            while waiting and waiting[0][:2] <= expected:
                index, repeat, *place, ready = heapq.heappop(waiting)
                expected = (index, repeat + 1) if repeat + 1 < repeats else (index + 1, 0)
                yield ready or read_again(*place)
        while waiting:
            _, _, *place, ready = heapq.heappop(waiting)
            yield ready or read_again(*place)


def decode_result(path: Path, number: int, line: bytes) -> EvalResult:
    return JOURNAL.decoded(_record_decoder.decode, path, number, line).result()


def decode_key(path: Path, number: int, line: bytes) -> Key:
    return JOURNAL.decoded(_key_decoder.decode, path, number, line)


# --- Repair -------------------------------------------------------------------------------------


def repair(path: Path) -> list[int]:
    """Move lines that cannot be read to `results.damaged`; returns their numbers."""
    return jsonl.repair(path, JOURNAL, _record_decoder.decode)
