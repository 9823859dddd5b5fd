"""DataBuffer: the prompts of a training loop, in an order that a resumed run takes up exactly.

    buffer = DataBuffer(samples, seed=0, held_out=eval_samples)
    prompts = buffer.get_prompts(8)      # the next eight, over the end of an epoch if need be
    buffer.add(prompts[6:])              # not used up after all: these come first next time
    buffer.save("outputs/run1/buffer.json")
    buffer = DataBuffer.load("outputs/run1/buffer.json", samples)

The order of an epoch is a function of the seed, the epoch's number and the samples' ids, so all
there is to remember is how many prompts were given out and which were handed back. No random
state is involved, neither Python's nor numpy's nor torch's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec

from heldout.datasets import copy_sample, distinct, ordered_by_id
from heldout.errors import (
    UNENCODABLE,
    UNREADABLE,
    InvalidInput,
    ResumeMismatch,
    RunDirectoryError,
)
from heldout.store.journal import plain_value
from heldout.store.jsonl import read_whole, refuse_unknown, storage_error
from heldout.store.run_dir import replace_file
from heldout.types import Sample

FORMAT, VERSION = "heldout.buffer", 1
LISTED_IDS = 5
"""Ids that a message lists; of more it says how many they are."""

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class HandedBack(msgspec.Struct, omit_defaults=True):
    """A prompt that waits to be given out again."""

    id: str
    metadata: dict[str, Any] | None = None
    """What it came back with; None if that is what the dataset has."""


class BufferFile(msgspec.Struct):
    """What `save` writes. The samples are not in it: two digests say which they were."""

    format: str
    version: int
    seed: Count
    shuffle: bool
    samples: Count
    ids: str
    content: str
    epoch: Count
    position: Count
    waiting: list[HandedBack]


def epoch_order(samples: Sequence[Sample], seed: int, epoch: int) -> list[Sample]:
    """Order the samples of an epoch.

    Args:
        samples: The samples, in any order.
        seed: The buffer's seed.
        epoch: The epoch's number, from 0.

    Returns:
        The samples in an order that depends on seed, epoch and ids alone.
    """
    return ordered_by_id(samples, f"{seed}:{epoch}")


class DataBuffer:
    """Gives out prompts: those that were handed back first, then the next ones of the epoch.

    Within an epoch each sample is given out once. To be used from one thread at a time.
    """

    def __init__(
        self,
        samples: Iterable[Sample],
        seed: int = 0,
        *,
        shuffle: bool = True,
        held_out: Iterable[Sample] = (),
    ) -> None:
        """Check the samples and stand at the beginning of the first epoch.

        Args:
            samples: What to train on.
            seed: Decides the order of every epoch.
            shuffle: False keeps the order of `samples` in every epoch.
            held_out: What is evaluated.

        Raises:
            InvalidInput: There are no samples, or one has the id or the input of a held-out one.
            DuplicateSampleId: Two samples have one id.
        """
        if not 0 <= seed < 2**63:
            raise InvalidInput(f"seed is a whole number >= 0, of 63 bits at most, got {seed!r}")
        self._samples = tuple(samples)
        self._by_id: dict[str, Sample] = {}
        for sample in distinct(self._samples, wanted="a buffer holds Samples"):
            try:
                sample.id.encode()
            except UnicodeEncodeError:
                raise InvalidInput(f"sample id {sample.id!a} has no bytes in UTF-8") from None
            self._by_id[sample.id] = sample
        if not self._samples:
            raise InvalidInput("there are no samples to train on")
        refuse_overlaps(self._samples, held_out)
        self._seed, self._shuffle = seed, shuffle
        self._taken = 0
        """Prompts given out so far, over all epochs, those handed back not counted again."""
        self._waiting: list[HandedBack] = []
        # Now, and once: their owner may change the samples, and a loop may save at every step.
        in_order = sorted(self._samples, key=attrgetter("id")) if shuffle else self._samples
        self._ids_digest = _digest(sample.id.encode() for sample in in_order)
        self._content_digest = _digest(
            content_of(part).text
            for sample in in_order
            for part in (sample.input, sample.ground_truth, sample.metadata)
        )
        self._ordered: tuple[int, Sequence[Sample]] | None = None

    @property
    def seed(self) -> int:
        """What decides the order."""
        return self._seed

    @property
    def epoch(self) -> int:
        """How many epochs have been given out whole: 0 until the last sample of the first."""
        return self._taken // len(self._samples)

    @property
    def position(self) -> int:
        """How many of this epoch's prompts have been given out: 0 where an epoch just ended."""
        return self._taken % len(self._samples)

    @property
    def waiting(self) -> int:
        """How many were handed back and will come before the new ones."""
        return len(self._waiting)

    # --- Giving out and taking back ---

    def get_prompts(self, n: int) -> list[Sample]:
        """Give out the next prompts. Where the epoch has fewer left, the next epoch goes on.

        Args:
            n: How many.

        Returns:
            Copies: a note in `metadata` is for `add` to keep, and changes nothing of the dataset.

        Raises:
            InvalidInput: `n` is negative.
        """
        if n < 0:
            raise InvalidInput(f"n is a whole number >= 0, got {n!r}")
        again, self._waiting = self._waiting[:n], self._waiting[n:]
        prompts = [self._restore(prompt) for prompt in again]
        while len(prompts) < n:
            order = self._order_epoch(self.epoch)
            part = order[self.position : self.position + n - len(prompts)]
            self._taken += len(part)
            prompts += map(copy_sample, part)
        return prompts

    def add(self, samples: Iterable[Sample]) -> None:
        """Hand prompts back. They are given out first, after those handed back before them.

        A sample may come back with other metadata, such as what an unfinished rollout had said.
        That is kept as JSON, from now on and not only in the file: a tuple comes out again as a
        list, a dataclass as a dict, and what JSON cannot hold is refused here, not when the
        training is saved. Input and ground truth are the dataset's.

        Args:
            samples: Prompts of this buffer, in the order to give them out in.

        Raises:
            InvalidInput: One is not of this buffer, has another input, or metadata that JSON cannot
                hold; then none is added.
        """
        if isinstance(samples, Sample):
            raise InvalidInput("add takes several Samples; put a single one in a list")
        # All or none: a list of which half was added could not be handed back again.
        self._waiting += [self._take_back(sample) for sample in samples]

    def _take_back(self, sample: Sample) -> HandedBack:
        if not isinstance(sample, Sample):
            raise InvalidInput(
                f"add takes Samples, got {type(sample).__name__}: hand back the sample, with what "
                "should be kept of its rollout in its metadata"
            )
        known = self._by_id.get(sample.id)
        if known is None:
            raise InvalidInput(f"sample {sample.id!r} is handed back, but is not of this buffer")
        for name in ("input", "ground_truth"):
            if content_of(getattr(sample, name)) != content_of(getattr(known, name)):
                raise InvalidInput(
                    f"sample {sample.id!r} is handed back with another {name} than it was given "
                    "out with; what is to be kept with it goes into its metadata"
                )
        try:
            is_unchanged = sample.metadata == known.metadata
        except ValueError:  # an array, which is neither equal nor unequal to another
            is_unchanged = False
        return HandedBack(sample.id, None if is_unchanged else _metadata_as_json(sample))

    def _restore(self, prompt: HandedBack) -> Sample:
        sample = copy_sample(self._by_id[prompt.id])
        return sample if prompt.metadata is None else replace(sample, metadata=prompt.metadata)

    def _order_epoch(self, epoch: int) -> Sequence[Sample]:
        if not self._shuffle:
            return self._samples
        if self._ordered is None or self._ordered[0] != epoch:
            self._ordered = (epoch, epoch_order(self._samples, self._seed, epoch))
        return self._ordered[1]

    # --- Saving and loading ---

    def save(self, path: str | Path) -> None:
        """Write where this stands, all of it or nothing: an older file stays until then.

        Args:
            path: The file; its directory is made.

        Raises:
            RunDirectoryError: It cannot be written.
        """
        state = BufferFile(
            format=FORMAT,
            version=VERSION,
            seed=self._seed,
            shuffle=self._shuffle,
            samples=len(self._samples),
            ids=self._ids_digest,
            content=self._content_digest,
            epoch=self.epoch,
            position=self.position,
            waiting=self._waiting,
        )
        path = Path(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise storage_error(path.parent, problem) from problem
        replace_file(path, msgspec.json.format(msgspec.json.encode(state)) + b"\n")

    @classmethod
    def load(
        cls, path: str | Path, samples: Iterable[Sample], *, held_out: Iterable[Sample] = ()
    ) -> DataBuffer:
        """Make a buffer that goes on where a saved one stood.

        Args:
            path: What `save` wrote.
            samples: The same samples, in any order unless it was made with `shuffle=False`.
            held_out: What is evaluated.

        Returns:
            The buffer.

        Raises:
            ResumeMismatch: The samples are not those that it was saved with.
            RunDirectoryError: There is no such file, or it cannot be read.
        """
        path = Path(path)
        state = _read_file(path)
        buffer = cls(samples, state.seed, shuffle=state.shuffle, held_out=held_out)
        if difference := buffer._compare(state):
            raise ResumeMismatch(
                f"{path} cannot be resumed with these samples: {difference}. Give it the samples "
                "that it was saved with, or begin anew with a new DataBuffer"
            )
        if state.position >= state.samples:
            raise _damaged(path, f"it is at {state.position} of {state.samples} samples")
        unknown = [repr(prompt.id) for prompt in state.waiting if prompt.id not in buffer._by_id]
        if unknown:
            raise _damaged(path, f"it waits for samples that it does not have: {some_of(unknown)}")
        buffer._taken = state.epoch * state.samples + state.position
        buffer._waiting = state.waiting
        return buffer

    def _compare(self, state: BufferFile) -> str | None:
        """Say in what these samples are not those that it was saved with."""
        if len(self._samples) != state.samples:
            return f"there were {state.samples}, and now there are {len(self._samples)}"
        if self._ids_digest != state.ids:
            return "their ids are others" + ("" if self._shuffle else ", or in another order")
        if self._content_digest != state.content:
            return "their ids are the same, but some input, ground truth or metadata is another"
        return None


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def _metadata_as_json(sample: Sample) -> dict[str, Any]:
    """Return a sample's metadata as a file would give it back."""
    try:
        plain = msgspec.to_builtins(sample.metadata, str_keys=True, enc_hook=plain_value)
        # JSON has no word for a number that is not finite; msgspec would make it null.
        text = json.dumps(plain, allow_nan=False, ensure_ascii=False).encode()
        return msgspec.json.decode(text, type=dict[str, Any])
    except (*UNENCODABLE, ValueError, msgspec.MsgspecError) as problem:
        raise InvalidInput(
            f"sample {sample.id!r} is handed back with metadata that JSON cannot hold: {problem}"
        ) from None


def _read_file(path: Path) -> BufferFile:
    try:
        raw = read_whole(path)
    except FileNotFoundError:
        raise RunDirectoryError(f"there is no buffer at {path}; `save` makes one") from None
    refuse_unknown(path, raw, FORMAT, VERSION)
    try:
        return msgspec.json.decode(raw, type=BufferFile)
    except UNREADABLE as problem:
        raise _damaged(path, str(problem)) from None


def _damaged(path: Path, why: str) -> RunDirectoryError:
    return RunDirectoryError(
        f"{path} is not a buffer that was saved: {why}. Go back to an older one, or begin anew"
    )


# --- Overlaps with the held-out set -------------------------------------------------------------


class Overlap(NamedTuple):
    """A training sample that is in the held-out set, too."""

    trained: str
    held_out: str
    same_input: bool


def find_overlaps(samples: Iterable[Sample], held_out: Iterable[Sample]) -> list[Overlap]:
    """Find the samples that have the id or the input of a held-out one.

    Args:
        samples: What is trained on.
        held_out: What is evaluated.

    Returns:
        The overlaps, in the order of `samples`.

    Raises:
        InvalidInput: Something in `held_out` is no Sample.
    """
    ids: set[str] = set()
    by_input: dict[bytes, str] = {}
    for sample in held_out:
        if not isinstance(sample, Sample):
            raise InvalidInput(f"held_out takes Samples, got {sample!r:.200}")
        ids.add(sample.id)
        content = content_of(sample.input)
        # Two questions about two images are not the same for being worded alike.
        if content.whole:
            by_input.setdefault(content.text, sample.id)
    overlaps = []
    for sample in samples if ids else ():
        content = content_of(sample.input)
        twin = by_input.get(content.text) if content.whole else None
        if twin is not None:
            overlaps.append(Overlap(sample.id, twin, same_input=True))
        elif sample.id in ids:
            overlaps.append(Overlap(sample.id, sample.id, same_input=False))
    return overlaps


def refuse_overlaps(samples: Iterable[Sample], held_out: Iterable[Sample]) -> None:
    """Refuse to train on the test set, which makes a curve that rises and means nothing.

    Args:
        samples: What is trained on.
        held_out: What is evaluated.

    Raises:
        InvalidInput: Some are in both; the message names them.
    """
    overlaps = find_overlaps(samples, held_out)
    if not overlaps:
        return
    same = [
        repr(o.trained) + (f" (held out as {o.held_out!r})" if o.held_out != o.trained else "")
        for o in overlaps
        if o.same_input
    ]
    named_alike = [repr(o.trained) for o in overlaps if not o.same_input]
    reasons = []
    if same:
        reasons.append(f"{len(same)} with the input of a held-out one: {some_of(same)}")
    if named_alike:
        reasons.append(
            f"{len(named_alike)} with the id of a held-out one, though another input: "
            f"{some_of(named_alike)} (if they are other questions, give them ids of their own)"
        )
    raise InvalidInput(
        "training samples are in the held-out set: "
        + "; ".join(reasons)
        + ". Leave them out of one of the two"
    )


class Content(NamedTuple):
    """What a value says, whatever the order of its keys."""

    text: bytes
    whole: bool
    """False where something in it has no words in JSON (an image, say) and counts by its type."""


def content_of(value: Any) -> Content:
    """Render what a value says as JSON, for comparisons and digests.

    Args:
        value: Any part of a sample.

    Returns:
        The same bytes for the same content, in every process.
    """
    whole = True

    def name_type(part: Any) -> Any:
        nonlocal whole
        try:
            return plain_value(part)
        except (NotImplementedError, TypeError, ValueError):
            whole = False
            return type(part).__qualname__  # not its repr, which has an address in it

    try:
        plain = msgspec.to_builtins(value, str_keys=True, order="deterministic", enc_hook=name_type)
        return Content(json.dumps(plain).encode(), whole)
    except (*UNENCODABLE, ValueError):  # keys that are no names, say
        return Content(type(value).__qualname__.encode(), whole=False)


def some_of(names: Sequence[str]) -> str:
    """List a few names, and say how many more there are.

    Args:
        names: The names.

    Returns:
        A text such as `a, b, c, d, e and 7 more`.
    """
    listed = ", ".join(names[:LISTED_IDS])
    return listed if len(names) <= LISTED_IDS else f"{listed} and {len(names) - LISTED_IDS} more"
