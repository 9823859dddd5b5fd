"""docs/vllm.md, whose code needs vLLM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.test_docs import blocks

pytestmark = pytest.mark.integration


def test_the_code_blocks_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evals.py").touch()
    namespace: dict[str, Any] = {"__name__": "__docs__"}
    for kind, code in blocks("docs/vllm.md"):
        assert kind in ("python", "sh")
        if kind == "python":
            exec(compile(code, "docs/vllm.md", "exec"), namespace)
    assert namespace["endpoint"].describe()["settings"] == {"max_model_len": 8192}
    namespace["worker"].close()
