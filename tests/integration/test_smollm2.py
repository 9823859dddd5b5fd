"""A real language model, with its real weights, from the package index."""

from __future__ import annotations

from pathlib import Path

import pytest

from heldout import EvalReport
from heldout.cli.main import run_cli

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.integration
# torch and transformers warn about themselves while a GGUF file is read
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_smollm2_answers_the_questions_of_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HELDOUT_CACHE", str(ROOT / ".cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    settings = ["experiment_name=run", "sampling.max_tokens=12", f"output_dir={tmp_path}"]
    options = [part for setting in settings for part in ("--set", setting)]
    assert run_cli(["run", "heldout.examples.capitals", "--limit", "2", *options]) == 0
    assert "2 items: 2 scored, 0 errored" in capfd.readouterr().out
    report = EvalReport.load(tmp_path / "run")
    answers = [result.trajectory.answer for result in report.results]
    assert answers == [
        "The capital of Nigeria is Abuja.",
        "The capital of the Dominican Republic is Santo Domingo.",
    ]
    assert report.summary["mean"] == 1.0
    assert report.usage.completion_tokens > 10
    assert report.config["endpoint"]["model"] == "smollm2"
    assert report.config["endpoint"]["default_max_tokens"] == 64
