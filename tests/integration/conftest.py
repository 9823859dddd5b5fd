"""Shared by the tests of real trainers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """A model this small is slower in two, and much slower where others work too."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# TRL is not in every environment that tests here run in, so it is imported where it is used.


@pytest.fixture(scope="session")
def taught() -> dict[str, Any]:
    from tests.integration.trl_fake import teach

    return teach()


@pytest.fixture
def make_trainer(
    taught: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    from tests.integration.trl_fake import trainer_maker

    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return trainer_maker(taught, tmp_path)


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Any:
    from tests.integration.trl_fake import install_vllm

    return install_vllm(monkeypatch)
