"""`heldout run --until`: what it prints, how it exits, and how other commands meet such a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from heldout import EvalReport
from heldout.store.runs import find_run
from tests.cli.conftest import Heldout
from tests.cli.test_schema import check

EVAL = """
import hashlib
from heldout import EvalConfig, Sample

RIGHT = {rate}

def answer(messages):
    number = messages[-1].text
    digest = hashlib.blake2b(f"{tag}:{{number}}".encode(), digest_size=8).digest()
    return "yes" if int.from_bytes(digest, "big") / 2**64 < RIGHT else "no"

config = EvalConfig(endpoint=answer, max_concurrent=4)

def load_dataset():
    return [Sample(f"q{{i}}", {{"question": str(i)}}, "yes", {{"half": i % 2}}) for i in range(300)]

from scoring import score_fn
"""
SCORING = """
def score_fn(trajectory, sample):
    return float(trajectory.answer == sample.ground_truth)
"""


@pytest.fixture
def evals(folder: Path) -> None:
    """Eval files of models that are right in 60 and in 97 of 100."""
    (folder / "scoring.py").write_text(SCORING)
    for name, rate in (("weak", 0.6), ("strong", 0.97)):
        (folder / f"{name}.py").write_text(EVAL.format(rate=rate, tag=name))


@pytest.mark.usefixtures("evals")
def test_the_exit_code_and_the_json_say_what_was_settled(heldout: Heldout) -> None:
    assert heldout("run", "weak.py").code == 0
    for until, name, code, decision in [
        ("mean>0.8", "strong", 0, "true"),
        ("mean>0.8", "weak", 1, "false"),
        ("mean>0.6", "weak", 3, "inconclusive"),
        ("±0.1", "strong", 0, "true"),
        ("better than weak@1", "strong", 0, "true"),
        ("not worse than weak@1 by 0.1", "strong", 0, "true"),
    ]:
        outcome = heldout("run", f"{name}.py", "--until", until, "--json")
        assert outcome.code == code, outcome.err
        check("run-until", outcome.out)
        said = json.loads(outcome.out)
        assert said["decision"] == decision
        assert (said["claim"], said["n_asked"], said["looks_planned"]) == (until, 300, 20)
        assert said["n"] == said["n_decided"] <= said["n_spent"] <= said["n_decided"] + 4
        assert said["interval"][0] <= said["estimate"] <= said["interval"][1]
        assert (said["ci_low"] is None) == (code != 3)


@pytest.mark.usefixtures("evals")
def test_people_read_what_was_settled_and_what_the_numbers_are_of(heldout: Heldout) -> None:
    out = heldout("run", "strong.py", "--until", "mean>0.8", "--level", "0.1", "--keep-power").out
    assert "The mean is above 0.8: 0.9" in out
    assert "sequential: until mean>0.8; exact binomial test, keeping power spending" in out
    assert "wrong in at most 10% of such runs" in out
    assert "The plain mean, " in out
    assert "`--resume --until none` finishes the set" in out
    shown = heldout("show", "strong")
    assert "The mean is above 0.8" in shown.out
    stopped = json.loads(heldout("show", "strong", "--json").out)
    assert stopped["settled"]["decision"] == "true"
    check("show", json.dumps(stopped))
    outcome = heldout("gate", "strong", "--min-mean", "0.5")
    assert outcome.code == 2
    assert "was stopped by until='mean>0.8'" in outcome.err
    verdict = heldout("gate", "strong", "--min-mean", "0.8", "--confidence", "0.9", "--json")
    assert verdict.code == 0
    check("gate", verdict.out)
    assert "This run was stopped by its claim: The mean is above 0.8" in " ".join(
        heldout("gate", "strong", "--min-mean", "0.8", "--confidence", "0.9").out.split()
    )


@pytest.mark.usefixtures("evals")
def test_a_list_says_that_a_run_was_stopped_and_what_it_settled(heldout: Heldout) -> None:
    heldout("run", "strong.py", "--until", "mean>0.8")
    settled = EvalReport.load(find_run("strong")).settled
    assert settled is not None
    out = heldout("list").out
    assert " stopped" in out
    assert f"strong@1: {settled.sentence}" in out
    [run] = [json.loads(line) for line in heldout("list", "--json").out.splitlines()]
    assert (run["status"], run["reason"]) == ("stopped", settled.sentence)
    assert (run["n"], run["asked"], run["ci_low"]) == (settled.n_decided, 300, None)
    heldout("run", "strong.py", "--resume", "--until", "none")
    assert " stopped" not in heldout("list").out


@pytest.mark.usefixtures("evals")
def test_resume_with_none_finishes_the_set(heldout: Heldout) -> None:
    claim = ["--until", "mean>0.8", "--level", "0.1", "--keep-power", "--cluster", "sample_id"]
    assert heldout("run", "strong.py", *claim).code == 0
    assert EvalReport.load(find_run("strong")).summary["n"] < 300
    outcome = heldout("run", "strong.py", "--resume", "--until", "none")
    assert outcome.code == 0
    assert "300 items: 300 scored" in outcome.out
    assert EvalReport.load(find_run("strong")).settled is None
    assert len(list(Path("outputs/evals/strong").glob("2*"))) == 1


@pytest.mark.usefixtures("evals")
def test_a_set_that_was_used_up_is_an_ordinary_run_after_none(heldout: Heldout) -> None:
    assert heldout("run", "weak.py", "--until", "mean>0.6").code == 3
    before = EvalReport.load(find_run("weak"))
    outcome = heldout("run", "weak.py", "--resume", "--until", "none")
    assert outcome.code == 0
    after = EvalReport.load(find_run("weak"))
    assert (after.settled, after.summary) == (None, before.summary)


@pytest.mark.usefixtures("evals")
def test_no_view_of_a_stopped_run_has_ordinary_intervals(heldout: Heldout) -> None:
    claim = ["--until", "mean>0.6", "--epochs", "2"]
    assert heldout("run", "strong.py", *claim).code == 0
    shown = json.loads(heldout("show", "strong", "--pass-at", "1", "--json").out)
    summary = shown["summary"]
    assert summary["pass_at_1"] > 0.9
    assert [key for key, value in summary.items() if "_ci_" in key and value is not None] == []
    for arguments in (["--by", "half"], ["--cluster", "half"], ["--pass-at", "2"]):
        out = heldout("show", "strong", *arguments).out
        assert "ordinary intervals of them would not hold" in out
        assert "error bars clustered" not in out


@pytest.mark.usefixtures("evals")
def test_a_damaged_line_beyond_the_stop_is_moved_aside_and_its_item_run_again(
    heldout: Heldout,
) -> None:
    assert heldout("run", "strong.py", "--until", "mean>0.8").code == 0
    ahead = find_run("strong") / "ahead.jsonl"
    header, first, *rest = ahead.read_bytes().splitlines(keepends=True)
    ahead.write_bytes(b"".join([header, first[:30] + b"\xff" + first[31:], *rest]))
    before = EvalReport.load(find_run("strong"))
    assert before.settled is not None
    resume = ["run", "strong.py", "--resume", "--until", "none"]
    refused = heldout(*resume)
    assert refused.code == 2
    assert "heldout repair" in refused.err
    outcome = heldout("repair", "strong")
    assert "Moved damaged line 2 of" in outcome.err
    assert EvalReport.load(find_run("strong")).summary == before.summary
    assert heldout(*resume).code == 0
    assert EvalReport.load(find_run("strong")).summary["n"] == 300


@pytest.mark.usefixtures("evals")
def test_a_claim_may_stand_in_a_file_of_settings(heldout: Heldout) -> None:
    Path("ci.toml").write_text('until = "mean > .8"\nlevel = 0.02\nkeep_power = true\n')
    outcome = heldout("run", "strong.py", "--config", "ci.toml", "--json")
    said = json.loads(outcome.out)
    assert (said["claim"], said["level"], said["decision"]) == ("mean>0.8", 0.02, "true")
    outcome = heldout("run", "strong.py", "--set", "until=mean>0.8", "--json")
    assert json.loads(outcome.out)["level"] == 0.05


@pytest.mark.usefixtures("evals")
def test_bad_input_is_refused_before_anything_runs(heldout: Heldout) -> None:
    for arguments, said in [
        (["--until", "mean=0.8"], 'it takes "mean>0.8", "mean<0.2", "±0.02", "better than RUN"'),
        (["--until", "better than nobody"], "baseline that is not there"),
        (["--until", "better than strong"], "name the baseline by its number, such as strong@1"),
        (["--level", "0.1"], "level is of runs that stop: give until"),
        (["--keep-power"], "keep_power is of runs that stop: give until"),
        (["--until", "mean>0.8", "--level", "2"], "level must be"),
    ]:
        outcome = heldout("run", "strong.py", *arguments)
        assert outcome.code == 2
        assert said in outcome.err
    assert not Path("outputs/evals/strong").exists()
