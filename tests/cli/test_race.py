"""`heldout race`: what it prints, and how it exits."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path

import pytest

from tests.cli.conftest import Heldout
from tests.cli.test_schema import check
from tests.faulty_server import FaultyServer, Request, answer, nothing_from_outside

EVAL = """
from heldout import EvalConfig, Sample

config = EvalConfig(max_concurrent=4, experiment_name="quiz")

def load_dataset():
    return [Sample(f"q{i}", {"question": str(i)}, "yes") for i in range(120)]

def score_fn(trajectory, sample):
    return float(trajectory.answer == sample.ground_truth)
"""
RATES = {"strong": 0.95, "weak": 0.3, "alike": 0.93}


async def behave(
    request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> bool:
    """Answer as well as the model that is asked."""
    name = request.body["model"]
    digest = hashlib.blake2b(f"{name}:{request.text}".encode(), digest_size=8).digest()
    right = int.from_bytes(digest, "big") / 2**64 < RATES[name]
    return await answer("yes" if right else "no")(request, reader, writer)


def test_the_best_is_known_or_several_cannot_be_told_apart(
    heldout: Heldout, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing_from_outside(monkeypatch)
    (folder / "quiz.py").write_text(EVAL)
    with FaultyServer() as server:
        server.script(then=behave)
        named = {name: f"openai:{name}@{server.url}" for name in RATES}
        arguments = ["--model", named["strong"], "--model", named["weak"]]
        outcome = heldout("race", "quiz.py", *arguments, "--json")
        assert outcome.code == 0, outcome.err
        check("race", outcome.out)
        said = json.loads(outcome.out)
        assert said["decision"] == "best_known"
        first, second = said["models"]
        assert first["model"] == named["strong"]
        assert second["beaten_by"] == named["strong"]
        assert said["n_spent"] < 240
        assert "look 1 of 20" in outcome.err
        for name in ("strong", "weak"):
            plain = heldout("run", "quiz.py", "--model", named[name], "--name", name)
            assert plain.code == 0
        replayed = json.loads(heldout("race", "strong", "weak", "--json").out)
        check("race", json.dumps(replayed))
        assert replayed["decision"] == "best_known"
        assert replayed["models"][0]["n_decided"] == first["n_decided"]
        assert "items would have been run" in heldout("race", "strong", "weak").out
        for option, value in (("--max-cost", "1"), ("--limit", "9"), ("--epochs", "2")):
            refused = heldout("race", "strong", "weak", option, value)
            assert refused.code == 2
            assert f"{option} is for models that run" in refused.err
        for each in (first, second):
            assert Path(each["path"], "run.json").exists()
        arguments += ["--model", named["alike"]]
        outcome = heldout("race", "quiz.py", *arguments)
    assert outcome.code == 3
    assert "cannot be told apart: the set is used up, after 120 of 120 items" in outcome.out
    assert "items were run" in outcome.out


def test_bad_input_is_refused(heldout: Heldout, folder: Path) -> None:
    (folder / "quiz.py").write_text(EVAL)
    for arguments, said in [
        (["--model", "smollm2"], "two models or more"),
        (["--model", "smollm2", "--model", "smollm2"], "smollm2 is in the race twice"),
        (
            ["--model", "smollm2", "--model", "hf:x", "--set", "until=mean>0.5"],
            "leave out until",
        ),
    ]:
        outcome = heldout("race", "quiz.py", *arguments)
        assert outcome.code == 2
        assert said in outcome.err
    assert not Path("outputs").exists()
