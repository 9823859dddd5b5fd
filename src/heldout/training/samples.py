"""The held-out set: checked, in an order of its own, and known by its content."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import msgspec

from heldout.datasets import distinct, ordered_by_id
from heldout.errors import InvalidInput
from heldout.rollout import EvalDefinition
from heldout.store.journal import plain_value
from heldout.store.resume import as_stored
from heldout.types import Sample


def checked(samples: Iterable[Sample] | EvalDefinition) -> list[Sample]:
    """Check a held-out set.

    Args:
        samples: The samples, or an eval with them.

    Returns:
        The samples as they are read back from a report.

    Raises:
        InvalidInput: There are none, or one cannot be stored.
        DuplicateSampleId: Two have one id.
    """
    if isinstance(samples, EvalDefinition):
        samples = samples.samples
    stored = [as_stored(s) for s in distinct(samples, wanted="held-out samples are Samples")]
    if not stored:
        raise InvalidInput("there are no samples to evaluate")
    return stored


def fixed_order(samples: Sequence[Sample], seed: int) -> list[Sample]:
    """Order the held-out set by seed and ids alone: its beginnings are the nested subsets.

    Args:
        samples: The samples, in any order.
        seed: Another one gives another order.

    Returns:
        The samples in order.
    """
    return ordered_by_id(samples, seed)


def digest(samples: Sequence[Sample]) -> str:
    """Hash what the samples are.

    Args:
        samples: The samples.

    Returns:
        A hash that is the same after a restart.
    """
    content = hashlib.sha256()
    for sample in samples:
        content.update(msgspec.json.encode(sample, enc_hook=plain_value) + b"\n")
    return content.hexdigest()[:16]
