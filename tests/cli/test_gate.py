"""`heldout gate`: a verdict as an exit code, and nothing else as one of the verdicts."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from heldout.analysis import gate
from heldout.cli.compare import comparison_json
from heldout.cli.gate import WHY_ANOTHER_NUMBER
from tests.cli.conftest import Heldout
from tests.cli.runs import BETTER, BROKEN, A, Page, command_of, make_run, other_score_fn, rows

LEVELS_IN_ORDER = ("easy", "medium", "hard")
BASELINE = ("--baseline", "before", "--no-worse-than", "0.01")


# --- Verdicts -----------------------------------------------------------------------------------


def test_what_is_better_passes(runs: None, heldout: Heldout) -> None:
    outcome = heldout("gate", "after", *BASELINE, "--min-mean", "0.5")
    assert (outcome.code, outcome.err) == (0, "")
    found = gate(
        "outputs/evals/after", baseline="outputs/evals/before", no_worse_than=0.01, min_mean=0.5
    )
    around = [check.interval for check in found.checks]
    assert around[0] is not None
    assert around[1] is not None
    said = rows(outcome.out)
    headings = ["A", "B", "reward of A: 0.250", "reward of B: 0.717", "reward"]
    assert [re.split(r",| \(", line[0])[0] for line in said[:5]] == headings
    assert said[0][0].startswith("A, the baseline: before (model: ")
    assert said[1][0].startswith("B, the run: after (model: ")
    assert said[5:] == [
        ["check", "estimate", "95% interval", "bound", "n"],
        [
            *("✓ pass", "no worse than before by 0.01", "+0.467"),
            *(f"{around[0].low:.3f} … {around[0].high:.3f}", "-0.010", "60"),
        ],
        [
            *("✓ pass", "mean at least 0.5", "0.717"),
            *(f"{around[1].low:.3f} … {around[1].high:.3f}", "0.500", "60"),
        ],
        [
            "The error rate is that of this one comparison: where several runs are compared with "
            "before, each may err so."
        ],
        ["Passes."],
    ]


def test_what_is_worse_fails_and_names_the_checks(runs: None, heldout: Heldout) -> None:
    arguments = ("--baseline", "after", "--no-worse-than", "0.01", "--min-mean", "0.9")
    outcome = heldout("gate", "before", *arguments)
    assert outcome.code == 1
    assert [row[0] for row in rows(outcome.out) if row[0].startswith("✗")] == ["✗ fail"] * 2
    assert "\nmean at least 0.9: the interval is on the wrong side of 0.9\n" in outcome.out
    assert outcome.out.endswith("\nFails: no worse than after by 0.01; mean at least 0.9.\n")


def test_what_cannot_be_told_exits_with_3_and_says_how_many_samples_would(
    runs: None, heldout: Heldout
) -> None:
    outcome = heldout("gate", "similar", "--baseline", "before", "--no-worse-than", "0.03")
    assert outcome.code == 3
    found = gate("outputs/evals/similar", baseline="outputs/evals/before", no_worse_than=0.03)
    needed = found.checks[0].needed
    assert needed is not None
    name = "no worse than before by 0.03"
    advice = f"it would decide at 80% power on about {needed:,} samples if 0.000 is right"
    assert outcome.out.splitlines()[-3:] == [
        f"{name}: the interval contains -0.03; {advice}",
        WHY_ANOTHER_NUMBER,
        f"Inconclusive at this n: {name}.",
    ]


def test_two_runs_that_agree_on_all_samples_are_told_the_least_number_that_would_decide(
    heldout: Heldout,
) -> None:
    make_run("a", [1.0, 0.0] * 25)
    make_run("b", [1.0, 0.0] * 25)
    out = heldout("gate", "b", "--baseline", "a", "--no-worse-than", "0.01").out
    assert "; at least 381 samples would decide: nothing varies among these" in out


def test_samples_that_do_not_pass_often_enough_are_named(heldout: Heldout) -> None:
    make_run("a", [1.0, 0.0, BROKEN, 1.0], repeats=2)
    arguments = ("gate", "a", "--each-sample", "0.5")
    outcome = heldout(*arguments)
    assert outcome.code == 1
    name = "each sample passes at least 0.5 of its attempts"
    assert f"\n{name}: 2 samples do not: q1 0 of 2; q2 0 of 2, 2 errored\n" in outcome.out
    assert "count once" not in outcome.out  # as in a mean
    assert outcome.out.endswith(f"\nFails: {name}.\n")
    [check] = json.loads(heldout(*arguments, "--json").out)["checks"]
    assert check["below"] == [
        {"sample_id": "q1", "passed": 0, "errored": 0, "attempts": 2},
        {"sample_id": "q2", "passed": 0, "errored": 2, "attempts": 2},
    ]


def test_slices_are_checks_of_their_own_in_the_order_of_people(
    runs: None, heldout: Heldout
) -> None:
    arguments = ("gate", "after", *BASELINE, "--by", "difficulty", "--min-mean", "0.1")
    out = heldout(*arguments).out
    assert [row[1] for row in rows(out) if row[0].startswith("✓")] == [
        *("no worse than before by 0.01", "difficulty=easy", "difficulty=medium"),
        *("difficulty=hard", "mean at least 0.1"),
    ]
    found = json.loads(heldout(*arguments, "--json").out)
    numbers = {check["name"]: f"{check['estimate']:+.3f}" for check in found["checks"]}
    assert all(row[2] == numbers[row[1]] for row in rows(out) if "difficulty=" in row[-5:][0])
    other = heldout(*arguments, "--slice-no-worse-than", "0.2").out
    assert {row[4] for row in rows(other) if row[0][0] in "✓?" and "=" in row[1]} == {"-0.200"}


def test_a_slice_says_which_interval_it_is_held_by_and_how_many_of_its_samples_would_tell(
    heldout: Heldout,
) -> None:
    about = [{"difficulty": LEVELS_IN_ORDER[i // 40]} for i in range(120)]
    easy, medium = [1.0, 0.0] * 20, [1.0] * 8 + [0.0] * 32
    make_run("before", [*easy, *medium, *medium], metadata=about)
    worse = [0.0, 0.0, 0.0, 0.0, *easy[4:]]
    make_run("after", [*worse, *medium, *[1.0] * 20, *[0.0] * 20], metadata=about)
    arguments = ("gate", "after", *BASELINE, "--by", "difficulty")
    outcome = heldout(*arguments)
    assert outcome.code == 3
    checks = json.loads(heldout(*arguments, "--json").out)["checks"]
    check = next(check for check in checks if check["name"] == "difficulty=easy")
    bounds = f"{check['ci_low']:.3f} … {check['ci_high']:.3f}"
    row = ["? inconclusive", "difficulty=easy", "-0.050", bounds, "-0.010", "40"]
    assert row in rows(outcome.out)
    assert (
        "\ndifficulty=easy: the interval, corrected for 3 slices, contains -0.01; it would decide "
        f"at 80% power on about {check['needed']:,} samples of that slice if -0.050 is right, "
        f"about {check['needed_if_equal']:,} samples of that slice if there is no difference\n"
    ) in outcome.out
    last = "Inconclusive at this n: difficulty=easy; difficulty=medium."
    assert outcome.out.splitlines()[-1] == last


def test_where_what_errored_items_count_as_decides_there_is_no_verdict(heldout: Heldout) -> None:
    make_run("after", [1.0, 1.0, 1.0, BROKEN] * 15)
    outcome = heldout("gate", "after", "--min-mean", "0.9")
    assert (outcome.code, outcome.err) == (4, "")
    assert [row[0] for row in rows(outcome.out) if row[0][0] == "!"] == ["! errored"]
    assert (
        "\nThe table leaves out errored items, which the rewards above count as 0.\n" in outcome.out
    )
    said = "mean at least 0.9: without errored items: pass; with them: fail, 0.750 (0."
    assert f"\n{said}" in outcome.out
    last = (
        "No verdict: it depends on what 15 errored items count as: mean at least 0.9. Run again "
        "(--resume)."
    )
    assert outcome.out.endswith(f"\n{last}\n")
    markdown = heldout("gate", "after", "--min-mean", "0.9", "--markdown")
    assert markdown.code == 4
    assert markdown.out.startswith("### ❗ No verdict: it depends on what 15 errored")
    assert "| ! errored |" in markdown.out
    assert heldout("gate", "after", "--min-mean", "0.9", "--json").code == 4


def test_a_check_that_what_errored_would_change_says_so(heldout: Heldout) -> None:
    make_run("after", [1.0] * 36 + [BROKEN] * 4)
    outcome = heldout("gate", "after", "--min-mean", "0.85")
    assert outcome.code == 3
    assert "\nmean at least 0.85: without errored items: pass; with them: inconclusive, " in (
        outcome.out
    )
    assert outcome.out.endswith(" Running the errored items again (--resume) may help.\n")


def test_a_slice_without_a_pair_has_no_verdict(heldout: Heldout) -> None:
    about = [{"level": i % 2} for i in range(40)]
    make_run("before", [1.0, 0.0] * 20, metadata=about)
    make_run("after", [1.0, BROKEN] * 20, metadata=about)
    arguments = ("--baseline", "before", "--no-worse-than", "0.2", "--by", "level")
    outcome = heldout("gate", "after", *arguments)
    assert outcome.code == 4
    assert ["! errored", "level=1", "–", "–", "-0.200", "0"] in rows(outcome.out)
    assert (
        "\nlevel=1: no sample of it has a value on both sides; with errored items counted: "
        in outcome.out
    )
    assert "it depends on what 20 errored items count as: level=1." in outcome.out.splitlines()[-1]


def test_means_have_a_bound_from_above_and_losses_a_direction(runs: None, heldout: Heldout) -> None:
    assert heldout("gate", "after", *BASELINE, "--lower-is-better").code == 1
    outcome = heldout("gate", "after", "--max-mean", "0.5")
    assert outcome.code == 1
    assert outcome.out.endswith("\nFails: mean at most 0.5.\n")


def test_options_of_a_comparison_are_options_of_a_gate(runs: None, heldout: Heldout) -> None:
    plain, clustered = (
        json.loads(heldout("gate", "after", *BASELINE, "--json", *more).out)["checks"][0]
        for more in ([], ["--cluster", "book"])
    )
    assert clustered["estimate"] == plain["estimate"]
    assert clustered["ci_low"] != plain["ci_low"]
    out = heldout("gate", "after", *BASELINE, "--cluster", "book").out
    assert "60 samples, in 30 clusters by book\n" in out
    make_run("other", BETTER, score=other_score_fn)
    allowed = heldout("gate", "other", *BASELINE, "--allow", "scorer")
    assert "\nallowed to differ: scorer: " in allowed.out
    arguments = ("gate", "similar", "--metric", "passed", "--min-mean", "0.2")
    assert heldout(*arguments).code == 3
    assert "50% interval" in heldout(*arguments, "--confidence", "0.5").out
    assert heldout(*arguments, "--pass-threshold", "0").code == 0


def test_many_checks_are_not_all_named_in_the_last_line(heldout: Heldout) -> None:
    about = [{"topic": 5 - i // 10} for i in range(60)]
    make_run("before", [1.0] * 60, metadata=about)
    make_run("after", [0.0] * 60, metadata=about)
    outcome = heldout("gate", "after", *BASELINE, "--by", "topic")
    assert outcome.code == 1
    assert outcome.out.endswith(
        "\nFails: no worse than before by 0.01; topic=0; topic=1; 4 more.\n"
    )


# --- No verdict ---------------------------------------------------------------------------------


MEANINGLESS = [
    (["after"], "a gate needs --no-worse-than with a baseline, or --min-mean"),
    (["after", "--baseline", "before", "--min-mean", "0"], "--no-worse-than and baseline go"),
    (["after", *BASELINE, "--slice-no-worse-than", "0"], "--slice-no-worse-than needs the key"),
    (["after", "--min-mean", "nan"], "--min-mean must be a number, got nan"),
    (["after", "--min-mean", "much"], "'much' is not a valid float"),
    (["after", "--colour"], "No such option"),
    ([], "Missing argument 'RUN'"),
    (["nowhere", "--min-mean", "0"], "there is no run at nowhere"),
    (["after", *BASELINE, "--by", "<b>@x,y"], "no key '<b>@x,y'"),
    (["after", "--baseline", "other", "--no-worse-than", "0"], "(--allow scorer)"),
]


def test_what_gives_no_verdict_exits_with_2_in_text_and_in_markdown(
    runs: None, heldout: Heldout
) -> None:
    make_run("other", A, score=other_score_fn)
    for arguments, said in MEANINGLESS:
        outcome = heldout("gate", *arguments)
        assert (outcome.code, outcome.out) == (2, "")
        assert said in outcome.err
        markdown = heldout("gate", *arguments, "--markdown")
        assert markdown.code == 2
        assert markdown.out.startswith("### No verdict\n\n")
        page = Page(markdown.out)
        assert {*page.tags} <= {"h3", "p", "span"}
        assert said in "".join(page.texts)


def test_an_error_of_our_own_is_no_verdict_either(
    runs: None, heldout: Heldout, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("by [red]nothing\x1b[2J")

    monkeypatch.setattr("heldout.cli.gate.gate", broken)
    outcome = heldout("gate", "after", *BASELINE)
    assert (outcome.code, outcome.out) == (4, "")
    assert "Traceback" in outcome.err
    assert r"ZeroDivisionError: by [red]nothing\x1b[2J" in outcome.err
    error = json.loads(heldout("gate", "after", *BASELINE, "--json").out)["error"]
    assert (error["kind"], error["message"][:20]) == ("internal_error", "ZeroDivisionError: b")
    markdown = heldout("gate", "after", *BASELINE, "--markdown")
    assert markdown.out == "### No verdict\n\nan internal error of heldout, which the log has\n"
    assert "ZeroDivisionError: by [red]nothing" in markdown.err


@pytest.mark.integration
def test_output_that_cannot_be_written_is_no_verdict(folder: Path) -> None:
    make_run("after", BETTER)
    command = command_of("gate", "after", "--min-mean", "0.1")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=20)
    said = f"Error: cannot write the output: {os.strerror(errno.ENOSPC)}\n"
    assert (done.returncode, done.stderr) == (4, said)
    closed = ["sh", "-c", '"$@" >&-', "sh", *command]
    done = subprocess.run(closed, stderr=subprocess.PIPE, text=True, timeout=20)
    said = f"Error: cannot write the output: {os.strerror(errno.EBADF)}\n"
    assert (done.returncode, done.stderr) == (4, said)


@pytest.mark.integration
def test_the_verdict_stands_though_nobody_reads_it(folder: Path) -> None:
    make_run("after", BETTER)
    reader, writer = os.pipe()
    os.close(reader)
    command = command_of("gate", "after", "--min-mean", "0.99")
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=20)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


# --- JSON and Markdown --------------------------------------------------------------------------


def test_as_json_it_is_one_line_and_the_exit_code_is_the_same(runs: None, heldout: Heldout) -> None:
    outcome = heldout("gate", "similar", *BASELINE, "--by", "difficulty", "--json")
    assert (outcome.code, outcome.out.count("\n")) == (3, 1)
    found = gate(
        "outputs/evals/similar",
        baseline="outputs/evals/before",
        no_worse_than=0.01,
        by="difficulty",
    )
    assert found.comparison is not None
    said = json.loads(outcome.out)
    compared = json.loads(json.dumps(comparison_json(found.comparison, None)))
    assert (said["outcome"], said["exit_code"], said["comparison"]) == ("inconclusive", 3, compared)
    for check, written in zip(found.checks, said["checks"], strict=True):
        assert (written["estimate"], written["bound"], written["n"], written["needed"]) == (
            *(check.estimate, check.bound, check.n, check.needed),
        )
    arguments = ("gate", "after", *BASELINE, "--json")
    first = json.loads(heldout(*arguments, "--flips", "2").out)["comparison"]
    assert (len(first["gained"]), first["gained_total"]) == (2, 29)
    assert (
        json.loads(heldout("gate", "after", "--min-mean", "0", "--json").out)["comparison"] is None
    )


def test_markdown_has_the_outcome_as_its_heading_and_checks(runs: None, heldout: Heldout) -> None:
    assert heldout("gate", "after", *BASELINE, "--markdown").out.startswith("### ✅ Passes")
    outcome = heldout("gate", "similar", *BASELINE, "--by", "difficulty", "--markdown")
    assert outcome.code == 3
    assert outcome.out.startswith("### ❔ Inconclusive at this n: no worse than before")
    assert "<code>no worse than before by 0.01</code>" in outcome.out
    assert "\n- A, the baseline: <code>before</code> (model: <code>" in outcome.out
    places = [outcome.out.index(f"code>difficulty={level}") for level in LEVELS_IN_ORDER]
    assert places == sorted(places)


def test_the_headline_is_that_of_show(heldout: Heldout) -> None:
    make_run("after", [1.0, 1.0, 1.0, BROKEN] * 15)
    shown = json.loads(heldout("show", "after", "--json").out)["summary"]
    outcome = heldout("gate", "after", "--min-mean", "0.5")
    bounds = f"{shown['ci_low']:.3f} … {shown['ci_high']:.3f}"
    assert f"reward of the run: 0.750 ({bounds}), 60 items, errored ones as 0\n" in outcome.out
    side = json.loads(heldout("gate", "after", "--min-mean", "0.5", "--json").out)["run"]
    assert (side["mean"], side["ci_low"]) == (shown["mean"], shown["ci_low"])
