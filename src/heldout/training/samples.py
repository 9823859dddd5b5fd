"""The held-out set: checked, in an order of its own, and known by its content."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import msgspec

from heldout.errors import InvalidInput
from heldout.rollout import EvalDefinition
from heldout.samples import distinct, ordered_by_id
from heldout.store.journal import plain_value
from heldout.store.resume import as_stored
from heldout.types import Sample


def checked(samples: Iterable[Sample] | EvalDefinition) -> list[Sample]:
    if isinstance(samples, EvalDefinition):
        samples = samples.samples
    found = list(distinct(samples, wanted="held-out samples are Samples"))
    if not found:
        raise InvalidInput("there are no samples to evaluate")
    return [as_stored(sample) for sample in found]


def fixed_order(samples: Sequence[Sample], seed: int) -> list[Sample]:
    """An order that depends on seed and ids alone: its beginnings are the nested subsets."""
    return ordered_by_id(samples, seed)


def digest(samples: Sequence[Sample]) -> str:
    """A hash of what they are, the same after a restart."""
    content = hashlib.sha256()
    for sample in samples:
        content.update(msgspec.json.encode(sample, enc_hook=plain_value) + b"\n")
    return content.hexdigest()[:16]
