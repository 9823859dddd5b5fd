"""Here every run has a Parquet file, however few results it has."""

from __future__ import annotations

import pytest

from heldout.store import columns


@pytest.fixture(autouse=True)
def parquet_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "PARQUET_FROM", 1)
