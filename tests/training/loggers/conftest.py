"""Trackers with folders of their own. These tests run where all of them are installed
(`.venv-trackers` of the Makefile), so none of them asks whether they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import pytest
import wandb
from sqlalchemy import event
from sqlalchemy.engine import Engine


@pytest.fixture
def trackio_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where trackio keeps its database, which it decides when it is imported."""
    home = tmp_path / "trackio"
    home.mkdir()
    for module in ("utils", "sqlite_storage", "media.utils"):
        monkeypatch.setattr(f"trackio.{module}.TRACKIO_DIR", home, raising=False)
    return home


@pytest.fixture(scope="session")
def mlflow_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One SQLite store for all: making its tables takes seconds. It does not wait for the disk,
    which is most of a transaction, and of no matter to who reads it from the same machine."""
    folder: Path = tmp_path_factory.mktemp("mlflow")
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
    event.listen(Engine, "connect", _without_waiting)
    yield mlflow.MlflowClient()
    event.remove(Engine, "connect", _without_waiting)
    mlflow.set_tracking_uri(before)


def _without_waiting(connection: Any, record: object) -> None:
    connection.execute("PRAGMA synchronous = OFF")


@pytest.fixture
def wandb_run(tmp_path: Path) -> Iterator[Any]:
    """The trainer's run, offline."""
    run = wandb.init(
        project="p",
        group="g",
        name="training",
        dir=tmp_path,
        mode="offline",
        settings=wandb.Settings(silent=True),
    )
    yield run
    run.finish()
