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
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec

from heldout.errors import (
    InvalidInput,
    ResumeMismatch,
    RunDirectoryError,
)
from heldout.overlaps import content_of, overlaps, refuse_overlaps, some_of
from heldout.samples import distinct, ordered_by_id
from heldout.store.journal import UNENCODABLE, plain_value
from heldout.store.jsonl import open_to_read, refuse_unknown, storage_error
from heldout.store.run_dir import replace_file
from heldout.types import Sample

FORMAT, VERSION = "heldout.buffer", 1

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


# --- Order and content: pure functions ----------------------------------------------------------


def epoch_order(samples: Sequence[Sample], seed: int, epoch: int) -> list[Sample]:
    """The samples as this epoch has them, in whichever order they are given here."""
    return ordered_by_id(samples, f"{seed}:{epoch}")


class Digests(NamedTuple):
    """Which samples these are."""

    ids: str
    content: str


def _digest(parts: Iterable[bytes]) -> str:
    whole = hashlib.blake2b(digest_size=16)
    for part in parts:
        whole.update(len(part).to_bytes(8, "big") + part)
    return whole.hexdigest()


def copied(value: Any) -> Any:
    """Dicts and lists of its own, all the way down; what stands in them is the same."""
    if type(value) is dict:
        return {key: copied(each) for key, each in value.items()}
    return [copied(each) for each in value] if type(value) is list else value


def given_out(sample: Sample) -> Sample:
    """A sample whose dicts the caller may write into: the dataset's stay as they are."""
    try:
        asked, truth = copied(sample.input), copied(sample.ground_truth)
        return Sample(sample.id, asked, truth, copied(sample.metadata))
    except RecursionError:  # a list that holds itself
        return replace(sample, metadata={**sample.metadata})


def unchanged(given: Any, own: Any) -> bool:
    """Whether both say the same. What has no words in JSON must be the very same thing."""
    if given is own:
        return True
    said, known = content_of(given), content_of(own)
    if said != known or said.whole:
        return said == known
    if type(given) is type(own) is dict:
        return given.keys() == own.keys() and all(unchanged(given[k], own[k]) for k in own)
    if type(given) is type(own) is list:
        return len(given) == len(own) and all(map(unchanged, given, own))
    return False


# --- The buffer ---------------------------------------------------------------------------------


class DataBuffer:
    """Gives out prompts: those that were handed back first, then the next ones of the epoch.

    Within an epoch each sample is given out once. `shuffle=False` keeps the order of `samples` in
    every epoch. `held_out` is the set that is evaluated: a training sample with the id or the
    input of one of those is refused. To be used from one thread at a time.
    """

    def __init__(
        self,
        samples: Iterable[Sample],
        seed: int = 0,
        *,
        shuffle: bool = True,
        held_out: Iterable[Sample] = (),
    ) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
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
        refuse_overlaps(overlaps(self._samples, held_out))
        self._seed, self._shuffle = seed, bool(shuffle)
        self._taken = 0
        """Prompts given out so far, over all epochs, those handed back not counted again."""
        self._waiting: list[HandedBack] = []
        # Now, and once: whose samples they are may change them, and a loop may save at every step.
        self._digests = self._digested()
        self._ordered: tuple[int, Sequence[Sample]] | None = None

    @property
    def seed(self) -> int:
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
        """The next `n`. Where the epoch has fewer left, the next epoch goes on.

        What they hold is a copy: a note in `metadata` is for `add` to keep, and changes nothing of
        the dataset.
        """
        if isinstance(n, bool) or not isinstance(n, int) or n < 0:
            raise InvalidInput(f"n is a whole number >= 0, got {n!r}")
        again, self._waiting = self._waiting[:n], self._waiting[n:]
        prompts = [self._restored(each) for each in again]
        while len(prompts) < n:
            order = self._order_of(self.epoch)
            part = order[self.position : self.position + n - len(prompts)]
            self._taken += len(part)
            prompts += map(given_out, part)
        return prompts

    def add(self, samples: Iterable[Sample]) -> None:
        """Hand prompts back. They are given out first, in this order, after those handed back
        before them.

        A sample may come back with other metadata, such as what an unfinished rollout had said.
        That is kept as JSON, from now on and not only in the file: a tuple comes out again as a
        list, a dataclass as a dict, and what JSON cannot hold is refused here, not when the
        training is saved. Input and ground truth are the dataset's.
        """
        if isinstance(samples, Sample):
            raise InvalidInput("add takes several Samples; put a single one in a list")
        # All or none: a list of which half was added could not be handed back again.
        self._waiting += [self._checked(sample) for sample in samples]

    def _checked(self, sample: Sample) -> HandedBack:
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
        if unchanged(sample.metadata, known.metadata):
            return HandedBack(sample.id)
        return HandedBack(sample.id, _as_json(sample))

    def _restored(self, handed_back: HandedBack) -> Sample:
        sample = given_out(self._by_id[handed_back.id])
        if handed_back.metadata is None:
            return sample
        return replace(sample, metadata=handed_back.metadata)

    def _order_of(self, epoch: int) -> Sequence[Sample]:
        if not self._shuffle:
            return self._samples
        if self._ordered is None or self._ordered[0] != epoch:
            self._ordered = (epoch, epoch_order(self._samples, self._seed, epoch))
        return self._ordered[1]

    # --- Saving and loading ---

    def save(self, path: str | Path) -> None:
        """Write where this stands, all of it or nothing: an older file stays until then."""
        state = BufferFile(
            format=FORMAT,
            version=VERSION,
            seed=self._seed,
            shuffle=self._shuffle,
            samples=len(self._samples),
            ids=self._digests.ids,
            content=self._digests.content,
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
        """A buffer that goes on where the saved one stood. Its samples are given again: the same
        ones, in any order unless it was made with `shuffle=False`."""
        path = Path(path)
        state = _read(path)
        buffer = cls(samples, state.seed, shuffle=state.shuffle, held_out=held_out)
        if difference := buffer._difference(state):
            raise ResumeMismatch(
                f"{path} cannot be resumed with these samples: {difference}. Give it the samples "
                "that it was saved with, or begin anew with a new DataBuffer"
            )
        if state.position >= state.samples:
            raise _damaged(path, f"it is at {state.position} of {state.samples} samples")
        unknown = [repr(each.id) for each in state.waiting if each.id not in buffer._by_id]
        if unknown:
            raise _damaged(path, f"it waits for samples that it does not have: {some_of(unknown)}")
        buffer._taken = state.epoch * state.samples + state.position
        buffer._waiting = state.waiting
        return buffer

    def _difference(self, state: BufferFile) -> str | None:
        """In what these samples are not those that it was saved with."""
        if len(self._samples) != state.samples:
            return f"there were {state.samples}, and now there are {len(self._samples)}"
        if self._digests.ids != state.ids:
            return "their ids are others" + ("" if self._shuffle else ", or in another order")
        if self._digests.content != state.content:
            return "their ids are the same, but some input, ground truth or metadata is another"
        return None

    def _digested(self) -> Digests:
        samples: Sequence[Sample] = self._samples
        if self._shuffle:  # then their order here decides nothing
            samples = sorted(samples, key=lambda sample: sample.id)
        return Digests(
            ids=_digest(sample.id.encode() for sample in samples),
            content=_digest(
                content_of(part).text
                for sample in samples
                for part in (sample.input, sample.ground_truth, sample.metadata)
            ),
        )


def _as_json(sample: Sample) -> dict[str, Any]:
    """Its metadata as a file would give it back."""
    try:
        plain = msgspec.to_builtins(sample.metadata, str_keys=True, enc_hook=plain_value)
        # JSON has no word for a number that is not finite; msgspec would make it null.
        text = json.dumps(plain, allow_nan=False, ensure_ascii=False).encode()
        return msgspec.json.decode(text, type=dict[str, Any])
    except (*UNENCODABLE, ValueError, msgspec.MsgspecError) as problem:
        raise InvalidInput(
            f"sample {sample.id!r} is handed back with metadata that JSON cannot hold: {problem}"
        ) from None


def _read(path: Path) -> BufferFile:
    try:
        with open_to_read(path) as file:
            raw = file.read()
    except FileNotFoundError:
        raise RunDirectoryError(f"there is no buffer at {path}; `save` makes one") from None
    except OSError as problem:
        raise RunDirectoryError(f"cannot read {path}: {problem.strerror}") from problem
    refuse_unknown(path, raw, FORMAT, VERSION)
    try:
        return msgspec.json.decode(raw, type=BufferFile)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as problem:
        raise _damaged(path, str(problem)) from None


def _damaged(path: Path, why: str) -> RunDirectoryError:
    return RunDirectoryError(
        f"{path} is not a buffer that was saved: {why}. Go back to an older one, or begin anew"
    )
