"""What all tests of decoding share."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _cheap_collections() -> Iterator[None]:
    """Leave what was there before a test out of the collections that free memory for batches."""
    gc.freeze()
    yield
    gc.unfreeze()
