"""`heldout run` on a cluster, on another GPU, and with a copy elsewhere."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from heldout.cli.main import run_cli

EVAL = """
from helper import last_word
from heldout import EvalConfig, Metric, Sample, Score


def load_dataset():
    for i in range(30):
        yield Sample(f"s{i}", {"question": f"what is {i}?"}, str(i))


async def answer(messages):
    return last_word(messages[-1].text)


def score_fn(trajectory, sample):
    return Score((Metric("correct", trajectory.answer == sample.ground_truth, weight=1.0),))


config = EvalConfig(endpoint=answer)
"""


@pytest.fixture
def eval_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # the eval file's folder comes first
    folder = tmp_path / "evals"
    folder.mkdir()
    (folder / "helper.py").write_text("def last_word(t):\n    return t.split()[-1].rstrip('?')\n")
    (folder / "numbers.py").write_text(EVAL)
    return folder / "numbers.py"


@pytest.mark.heavy
@pytest.mark.integration
def test_run_on_a_cluster_copies_the_run_and_the_copy_is_shown(
    cluster: Any, eval_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"file://{tmp_path}/copies/numbers"
    command = ["run", str(eval_file), "--on", cluster.address, "--workers", "2", "--json"]
    assert run_cli([*command, "--copy-to", url]) == 0
    assert '"n":30,' in capsys.readouterr().out.replace(" ", "")
    assert run_cli(["show", url, "--json"]) == 0
    assert '"n":30,' in capsys.readouterr().out.replace(" ", "")
    assert run_cli(["compare", url, "numbers"]) == 0
    assert "file://" not in capsys.readouterr().err
    # A second copy would replace the first.
    assert run_cli([*command, "--copy-to", url]) != 0
    assert "already holds a run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--workers", "2"], "--workers, .* go with --on"),
        (["--on", "auto", "--gpu-id", "1"], "--on runs items on a cluster, --gpu-id the whole"),
        (["--on", "auto", "--remote", "h:8265"], "--on runs items on a cluster, --remote the"),
        (["--copy-to", "memory://b/run"], "what is in memory ends with this process"),
        (["--gpu-id", "any"], "--gpu-id is the number of a GPU of this machine"),
        (["--on", "auto", "--resources", "tpu"], "--resources takes KEY=VALUE, got 'tpu'"),
        (["--on", "auto", "--workers", "0"], "workers must be a whole number >= 1, got 0"),
        (["--working-dir", "."], "--working-dir goes with --remote"),
        (["--remote", "h:1", "--working-dir", "/usr/lib"], "numbers.py is not in --working-dir"),
        (["--remote", "h:1", "--config", __file__], "test_cli.py is not in .*evals, which is the"),
        (["--remote", "ray://h:10001"], "through the cluster's dashboard, http://HOST:8265"),
        (["--remote", "127.0.0.1:1"], "no Ray dashboard at http://127.0.0.1:1: .*refused"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    options: list[str], message: str, eval_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(["run", str(eval_file), *options]) == 2
    assert re.search(message, " ".join(capsys.readouterr().err.split()))


def test_a_gpu_that_is_there_is_the_only_one_that_the_run_sees(
    eval_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    assert run_cli(["run", str(eval_file), "--gpu-id", "2"]) == 2
    assert "no GPU 2: this machine has 2, 0 to 1" in capsys.readouterr().err
    assert run_cli(["run", str(eval_file), "--gpu-id", "1"]) == 0
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "6"
