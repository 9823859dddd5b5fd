"""DataBuffer: the prompts of a training loop, in an order that a resumed run takes up exactly.

    buffer = DataBuffer(samples, seed=0, held_out=eval_samples)
    prompts = buffer.get_prompts(8)      # the next eight, over the end of an epoch if need be
    buffer.add(prompts[6:])              # not used up after all: these come first next time
    buffer.save("outputs/run1/buffer.json")
    buffer = DataBuffer.load("outputs/run1/buffer.json", samples)

With `samples_per_prompt`, prompts come in groups of so many copies (`get_samples`, `add_samples`).

The order of an epoch is a function of the seed, the epoch's number and the samples' ids, so all
there is to remember is how many prompts were given out and which were handed back. No random
state is involved, neither Python's nor numpy's nor torch's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any

import msgspec

from heldout.datasets import copy_sample, distinct, ordered_by_id
from heldout.errors import InvalidInput, ResumeMismatch, RunDirectoryError
from heldout.rollouts.overlap import HeldOutPrompts
from heldout.store.jsonl import MAX_LINE_BYTES, read_document, replace_file, storage_error
from heldout.store.resume import decode_sample, encode_sample
from heldout.types import Sample, refuse_nonfinite

FORMAT, VERSION = "heldout.buffer", 1

Count = Annotated[int, msgspec.Meta(ge=0)]


class HandedBack(msgspec.Struct, omit_defaults=True):
    """A prompt that waits to be given out again."""

    id: str
    metadata: dict[str, Any] | None = None
    """Metadata it was returned with; None if unchanged."""
    others: list[dict[str, Any] | None] = []
    """The same of the other copies in its group."""


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
    samples_per_prompt: Annotated[int, msgspec.Meta(ge=1)] = 1


def epoch_order(samples: Sequence[Sample], seed: int, epoch: int) -> list[Sample]:
    """Order the samples of an epoch by seed, epoch and ids alone."""
    return ordered_by_id(samples, f"{seed}:{epoch}")


class DataBuffer:
    """Gives out prompts: those that were handed back, then the next of the epoch.

    Within an epoch each sample is given out once. Not thread-safe.
    """

    def __init__(
        self,
        samples: Iterable[Sample],
        seed: int = 0,
        *,
        shuffle: bool = True,
        samples_per_prompt: int = 1,
        held_out: Iterable[Sample] = (),
        columns: Sequence[str] | None = None,
    ) -> None:
        """Check the samples, and start at the beginning of the first epoch.

        Args:
            samples: What to train on.
            seed: Decides the order of every epoch.
            shuffle: False keeps the order of `samples` in every epoch.
            samples_per_prompt: Copies of a prompt in a group, as GRPO needs them.
            held_out: What is evaluated.
            columns: The columns of inputs that are compared with those held out. None: the whole
                input, or the prompt where samples have other columns.

        Raises:
            InvalidInput: There are no samples; one has the id, the input or the prompt of a
                held-out one; or one has text in a column that no held-out one has.
            DuplicateSampleId: Two samples have one id.
        """
        if seed < 0:
            raise InvalidInput(f"seed must be a whole number >= 0, got {seed!r}")
        if samples_per_prompt < 1:
            raise InvalidInput(
                f"samples_per_prompt must be a whole number >= 1, got {samples_per_prompt!r}"
            )
        self._samples = tuple(distinct(samples, wanted="a buffer holds Samples"))
        self._by_id = {sample.id: sample for sample in self._samples}
        if not self._samples:
            raise InvalidInput("there are no samples to train on")
        prompts = HeldOutPrompts(columns)
        prompts.add(held_out)
        prompts.check(self._samples)
        self._seed, self._shuffle, self._group_size = seed, shuffle, samples_per_prompt
        self._taken = 0
        """Prompts given out so far, over all epochs, those handed back not counted again."""
        self._waiting: list[HandedBack] = []
        # Now, and once: their owner may change the samples, and a loop may save at every step.
        in_order = sorted(self._samples, key=attrgetter("id")) if shuffle else self._samples
        self._ids_digest = _digest(sample.id.encode() for sample in in_order)
        self._content_digest = _digest(map(_encode, in_order))
        self._ordered: tuple[int, Sequence[Sample]] | None = None

    @property
    def seed(self) -> int:
        """Seed of the order."""
        return self._seed

    @property
    def samples_per_prompt(self) -> int:
        """Copies of a prompt in a group."""
        return self._group_size

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
        """How many prompts were handed back and will come before the new ones."""
        return len(self._waiting)

    # --- Giving out and taking back ---

    def get_prompts(self, n: int) -> list[Sample]:
        """Give out the next prompts. Where the epoch has fewer left, the next epoch goes on.

        Args:
            n: How many.

        Returns:
            Copies: a note in `metadata` is for `add` to keep, and changes nothing of the dataset.

        Raises:
            InvalidInput: `n` is negative, or prompts come in groups here.
        """
        if self._group_size != 1:
            raise InvalidInput(
                f"this buffer has groups of {self._group_size} samples per prompt, which "
                "get_samples gives out"
            )
        return [prompt for (prompt,) in self.get_samples(n)]

    def get_samples(self, n: int) -> list[list[Sample]]:
        """Give out the next prompts in groups: `samples_per_prompt` copies of each.

        Args:
            n: How many groups.

        Returns:
            The groups; every copy in them is one of its own.

        Raises:
            InvalidInput: `n` is negative.
        """
        if n < 0:
            raise InvalidInput(f"n must be a whole number >= 0, got {n!r}")
        returned, self._waiting = self._waiting[:n], self._waiting[n:]
        groups = [self._restore(prompt) for prompt in returned]
        while len(groups) < n:
            order = self._order_epoch(self.epoch)
            part = order[self.position : self.position + n - len(groups)]
            self._taken += len(part)
            groups += [[copy_sample(s) for _ in range(self._group_size)] for s in part]
        return groups

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
        self.add_samples([sample] for sample in samples)

    def add_samples(self, groups: Iterable[Sequence[Sample]]) -> None:
        """Hand back groups that are unfinished or were not needed, as `add` does for prompts.

        Args:
            groups: Groups of this buffer, whole; each copy comes back with its own metadata.

        Raises:
            InvalidInput: One is no group of this buffer, or `add` would refuse a sample in it; then
                none is added.
        """
        # All or none: if half of a list was added, the list could not be handed back again.
        self._waiting += [self._take_back(group) for group in groups]

    def _take_back(self, group: Sequence[Sample]) -> HandedBack:
        ids = [sample.id for sample in group]
        if len(ids) != self._group_size or len(set(ids)) != 1:
            raise InvalidInput(
                f"a group of this buffer has {self._group_size} copies of one prompt, got {ids!r}"
            )
        first, *others = map(self._read_metadata, group)
        return HandedBack(ids[0], first, others)

    def _read_metadata(self, sample: Sample) -> dict[str, Any] | None:
        """Return a sample's metadata where they are not the dataset's."""
        original = self._by_id.get(sample.id)
        if original is None:
            raise InvalidInput(f"sample {sample.id!r} is handed back, but is not of this buffer")
        for name in ("input", "ground_truth"):
            if not _is_equal(getattr(sample, name), getattr(original, name)):
                raise InvalidInput(
                    f"sample {sample.id!r} is handed back with another {name} than it was given "
                    "out with; what is to be kept with it goes into its metadata"
                )
        if _is_equal(sample.metadata, original.metadata):
            return None
        refuse_nonfinite(sample.metadata, f"sample {sample.id!r}: metadata")
        stored = encode_sample(Sample(sample.id, {}, None, sample.metadata))
        return decode_sample(stored).metadata

    def _restore(self, prompt: HandedBack) -> list[Sample]:
        original = self._by_id[prompt.id]
        copies = [copy_sample(original) for _ in range(self._group_size)]
        return [
            copy if metadata is None else replace(copy, metadata=metadata)
            for copy, metadata in zip(copies, (prompt.metadata, *prompt.others), strict=True)
        ]

    def _order_epoch(self, epoch: int) -> Sequence[Sample]:
        if not self._shuffle:
            return self._samples
        if self._ordered is None or self._ordered[0] != epoch:
            self._ordered = (epoch, epoch_order(self._samples, self._seed, epoch))
        return self._ordered[1]

    # --- Saving and loading ---

    def save(self, path: str | Path) -> None:
        """Save the state atomically: an older file stays until the new one is complete.

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
            samples_per_prompt=self._group_size,
        )
        path = Path(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise storage_error(path.parent, problem) from problem
        replace_file(path, msgspec.json.format(msgspec.json.encode(state)) + b"\n")

    @classmethod
    def load(
        cls,
        path: str | Path,
        samples: Iterable[Sample],
        *,
        held_out: Iterable[Sample] = (),
        columns: Sequence[str] | None = None,
    ) -> DataBuffer:
        """Make a buffer that continues where a saved one stopped.

        Args:
            path: What `save` wrote.
            samples: The same samples, in any order unless it was made with `shuffle=False`.
            held_out: What is evaluated.
            columns: The columns of inputs that are compared with those held out.

        Raises:
            ResumeMismatch: The samples are not those that it was saved with.
            RunDirectoryError: There is no such file, or it cannot be read.
        """
        path = Path(path)
        try:
            # The user's own path, which may be a link to the latest file.
            state = read_document(path.resolve(), BufferFile, FORMAT, VERSION, MAX_LINE_BYTES)
        except FileNotFoundError:
            raise RunDirectoryError(f"there is no buffer at {path}; `save` makes one") from None
        buffer = cls(
            samples,
            state.seed,
            shuffle=state.shuffle,
            samples_per_prompt=state.samples_per_prompt,
            held_out=held_out,
            columns=columns,
        )
        difference = None
        if len(buffer._samples) != state.samples:
            difference = f"there were {state.samples}, and now there are {len(buffer._samples)}"
        elif buffer._ids_digest != state.ids:
            difference = "their ids are others"
            if not state.shuffle:
                difference += ", or in another order"
        elif buffer._content_digest != state.content:
            difference = "with the same ids, some input, ground truth or metadata is another"
        if difference is not None:
            raise ResumeMismatch(
                f"{path} cannot be resumed with these samples: {difference}. Give it the samples "
                "that it was saved with, or begin anew with a new DataBuffer"
            )
        for prompt in state.waiting:
            if prompt.id not in buffer._by_id or len(prompt.others) != state.samples_per_prompt - 1:
                raise RunDirectoryError(
                    f"{path} cannot be read: {prompt.id!r}, which was handed back, is no group of "
                    f"{state.samples_per_prompt} of these samples"
                )
        buffer._taken = state.epoch * state.samples + state.position
        buffer._waiting = state.waiting
        return buffer


def rewards_differ(rewards: Iterable[float | None]) -> bool:
    """Return whether the rewards of a group differ: where all are equal, there is no advantage.

    Args:
        rewards: Of the rollouts of one prompt; None stands for a failed rollout, and is ignored.

    Returns:
        True for a group to learn from, as dynamic sampling keeps them.
    """
    return len({reward for reward in rewards if reward is not None}) > 1


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def _encode(sample: Sample) -> bytes:
    try:
        return encode_sample(sample)
    except InvalidInput:  # it holds an image, say
        return sample.id.encode()


def _is_equal(a: Any, b: Any) -> bool:
    try:
        return bool(a == b)
    except ValueError:  # an array, which is neither equal nor unequal to another
        return False
