"""Several samples: each of them a Sample, no id twice, in an order that their ids decide."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence

from heldout.errors import DuplicateSampleId, InvalidInput
from heldout.types import Sample


def distinct(samples: Iterable[Sample], *, wanted: str) -> Iterator[Sample]:
    """The samples, one by one; `wanted` is what to say of one that is none."""
    seen: set[str] = set()
    for position, sample in enumerate(samples):
        if not isinstance(sample, Sample):
            raise InvalidInput(f"{wanted}, got {sample!r:.200}")
        if sample.id in seen:
            raise DuplicateSampleId(sample.id, position)
        seen.add(sample.id)
        yield sample


def ordered_by_id(samples: Sequence[Sample], key: object) -> list[Sample]:
    """As if shuffled, by nothing but `key` and ids: the same in every process, whichever order they
    are given in, and without a part of them the others are as before."""

    def place(sample: Sample) -> bytes:
        text = f"{key}:{sample.id}".encode("utf-8", "surrogatepass")
        return hashlib.blake2b(text, digest_size=16).digest()

    return sorted(samples, key=place)
