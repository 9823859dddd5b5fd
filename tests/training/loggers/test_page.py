"""docs/loggers.md, whose code needs the trackers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import pytest

from tests.test_docs import blocks

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning"),
]


@pytest.fixture
def mlflow_as_it_was() -> Iterator[None]:
    uri = mlflow.get_tracking_uri()
    yield
    mlflow.set_tracking_uri(uri)


@pytest.mark.usefixtures("trackio_home", "mlflow_as_it_was")
def test_the_code_blocks_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_SILENT", "true")
    page = blocks("docs/loggers.md")
    assert {kind for kind, _ in page} == {"python", "text"}
    namespace: dict[str, Any] = {"__name__": "__docs__"}
    for kind, code in page:
        if kind == "python":
            capsys.readouterr()
            exec(compile(code, "docs/loggers.md", "exec"), namespace)
        else:
            assert capsys.readouterr().out == code
