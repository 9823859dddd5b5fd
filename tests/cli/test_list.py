"""`heldout list`, `heldout rm` and `heldout repair`."""

from __future__ import annotations

import json
import sys
from io import StringIO
from pathlib import Path

import pytest

from heldout.store.run_dir import RunDir
from heldout.store.runs import list_runs
from tests.cli.conftest import RUN, START, Heldout, Write
from tests.cli.runs import Terminal


@pytest.fixture
def runs(write: Write, heldout: Heldout) -> None:
    """six@1 with an error, six@2 of two samples with a tag and a note, and other@1."""
    write(
        **{
            "    return word": "    assert word != 'word5'\n    return word",
            "max_concurrent=1": "max_concurrent=1, max_error_rate=1",
        }
    )
    assert heldout("run", "eval.py").code == 0
    assert heldout("run", "eval.py", "-n", "2", "--tag", "smoke", "--note", "a try").code == 0
    assert heldout("run", "eval.py", "--name", "other", "--tag", "smoke", "--tag", "b").code == 0


def listed(heldout: Heldout, *arguments: str) -> list[str]:
    outcome = heldout("list", *arguments, "--json")
    assert outcome.code == 0, outcome.err
    return [json.loads(line)["id"] for line in outcome.out.splitlines()]


@pytest.mark.usefixtures("runs")
def test_a_list_has_a_row_per_run_with_the_name_that_commands_take(heldout: Heldout) -> None:
    out = heldout("list").out
    rows = {line.split()[0]: line for line in out.splitlines() if "@" in line}
    assert {*rows} == {"six@1", "six@2", "other@1"}
    assert "0.667" in rows["six@1"]
    assert rows["six@1"].split()[1:7] == ["answer", "0.667", "0.300", "…", "0.903", "6"]
    assert "smoke" in rows["six@2"]
    assert "a try" in rows["six@2"]
    for name in rows:
        assert heldout("show", name).code == 0


def test_a_list_names_the_sampling_where_runs_differ_by_it(write: Write, heldout: Heldout) -> None:
    write("eval.py")
    for _ in range(2):
        assert heldout("run", "eval.py").code == 0
    assert "sampling" not in heldout("list").out
    assert heldout("run", "eval.py", "--set", "temperature=0.7", "--epochs", "2").code == 0
    rows = {line.split()[0]: line for line in heldout("list").out.splitlines() if "@" in line}
    assert " T 0, 1 attempt " in rows["six@1"]
    assert " T 0.7, 2 attempts " in rows["six@3"]
    entries = map(json.loads, heldout("list", "--json").out.splitlines())
    known = {entry["id"]: (entry["temperature"], entry["attempts"]) for entry in entries}
    assert known == {"six@1": (0.0, 1), "six@2": (0.0, 1), "six@3": (0.7, 2)}


@pytest.mark.usefixtures("runs")
def test_runs_are_picked_by_name_tag_model_status_and_kind_and_sorted(heldout: Heldout) -> None:
    for arguments, ids in (
        (["six"], ["six@1", "six@2"]),
        (["o*"], ["other@1"]),
        (["--tag", "smoke"], ["other@1", "six@2"]),
        (["--tag", "smoke", "--tag", "b"], ["other@1"]),
        (["--model", "ANSW"], ["other@1", "six@1", "six@2"]),
        (["--model", "gpt"], []),
        (["--status", "running"], []),
        (["--kind", "run"], ["other@1", "six@1", "six@2"]),
    ):
        assert sorted(listed(heldout, *arguments)) == ids
    assert listed(heldout, "--sort", "mean")[0] == "six@2"
    assert listed(heldout, "--sort", "name") == ["other@1", "six@1", "six@2"]
    assert listed(heldout, "--sort", "name", "-n", "1") == ["other@1"]
    assert heldout("list", "nothing").out == "No run matches (3 in outputs/evals).\n"
    assert heldout("list", "--output-dir", "x").out == (
        "There is no run in x yet. `heldout run heldout.examples.capitals` makes one with a small "
        "model on this machine (93 MB to download); `heldout run FILE --model MODEL` runs an eval "
        "of yours.\n"
    )


@pytest.mark.integration
@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize("columns", [60, 120])
def test_a_list_fits_the_terminal_and_names_what_it_leaves_out(columns: int) -> None:
    terminal = Terminal("list", columns=columns)
    assert terminal.read_all() == 0
    plain = "".join(part.partition("m")[2] for part in ("m" + terminal.written).split("\x1b["))
    assert max(map(len, plain.splitlines())) <= columns
    assert ("No room for" in plain) == (columns < 120)


# --- rm -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("runs")
def test_a_run_is_removed_only_if_that_is_confirmed(heldout: Heldout) -> None:
    refused = heldout("rm", "six")
    assert refused.code == 2
    assert "cannot ask for confirmation without a terminal: add --yes" in refused.err
    assert heldout("rm", "six", "--yes").out == f"Removed {RUN}-2.\n"
    assert listed(heldout, "six") == ["six@1"]
    removed = json.loads(heldout("rm", "six", "other", "--yes", "--json").out)
    assert removed["removed"] == [str(RUN), f"outputs/evals/other/{START}"]
    assert not list_runs()
    # The counter outlives them: six@1 must never be another run.
    assert [path.name for path in Path("outputs/evals/six").iterdir()] == [".numbers"]


@pytest.mark.usefixtures("runs")
def test_all_runs_of_a_name_go_on_request(heldout: Heldout) -> None:
    assert heldout("rm", "six", "--all", "-y").out.count("Removed") == 2
    assert listed(heldout) == ["other@1"]


class Keyboard(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.usefixtures("runs")
def test_rm_asks_in_a_terminal(heldout: Heldout, monkeypatch: pytest.MonkeyPatch) -> None:
    for typed, code, left in (("\n", 130, 3), ("n\n", 130, 3), ("y\n", 0, 2)):
        monkeypatch.setattr(sys, "stdin", Keyboard(typed))
        outcome = heldout("rm", "six@2")
        assert f"{RUN}-2: run of " in outcome.out
        assert "Remove 1 run? [y/N]" in outcome.out
        assert (outcome.code, len(list_runs())) == (code, left)


@pytest.mark.usefixtures("runs")
def test_files_that_are_not_of_the_run_stay(heldout: Heldout) -> None:
    (RUN / "checkpoint.pt").write_text("weights")
    assert "; 1 file not of the run stay there" in heldout("rm", "six@1", "-y").out
    assert [file.name for file in RUN.iterdir()] == ["checkpoint.pt"]


@pytest.mark.usefixtures("runs")
def test_a_run_that_is_being_written_is_not_removed(heldout: Heldout) -> None:
    from heldout.store.journal import JournalWriter

    journal = JournalWriter(RUN / "results.jsonl")
    outcome = heldout("rm", "six@1", "-y")
    journal.close()
    assert outcome.code == 2
    assert "is being written by another process" in outcome.err
    assert RunDir(RUN).exists()


# --- Tokens and cost ----------------------------------------------------------------------------


def test_tokens_and_cost_are_in_run_show_list_and_compare(write: Write, heldout: Heldout) -> None:
    completion = "Completion(Message('assistant', word), usage=Usage(200_000, 1000))"
    text = "from heldout import Completion, Message, Usage\n"
    path = write(**{"    return word": f"    return {completion}"})
    path.write_text(text + path.read_text())
    priced = ("--set", "price.input=1", "--set", "price.output=10")
    ran = heldout("run", "eval.py", *priced)
    assert "\ntokens: 1,200,000 in, 6,000 out; cost: 1.26\n" in ran.out
    free = json.loads(heldout("run", "eval.py", "--json").out)
    share = {"n": 6, "prompt_tokens": 1_200_000, "completion_tokens": 6000, "cost": None}
    policy = {**share, "role": "policy", "model": None, "unknown": 0}
    assert free["usage"] == {**share, "models": [policy]}
    assert heldout("show", "six@1").out == ran.out
    rows = [line.split() for line in heldout("list").out.splitlines() if "six@" in line]
    assert [row[8] for row in rows] == ["1,206,000", "1,206,000"]
    assert {row[9] for row in rows} == {"1.26", "–"}
    assert listed(heldout, "--sort", "cost") == ["six@1", "six@2"]
    compared = heldout("compare", "six@1", "six@2").out
    assert "0 errored; tokens: 1,200,000 in, 6,000 out; cost: 1.26\n" in compared
