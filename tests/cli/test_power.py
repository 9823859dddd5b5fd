"""`heldout power`: how many samples and repeats, in words and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from heldout.analysis import plan
from heldout.cli.power import make_notes
from tests.cli.conftest import Heldout
from tests.cli.runs import BETTER, BROKEN, A, make_run, other_score_fn, rows


def test_without_repeats_the_answer_is_a_range_and_says_why(runs: None, heldout: Heldout) -> None:
    outcome = heldout("power", "before", "--detect", "0.05")
    assert (outcome.code, outcome.err) == (0, "")
    found = plan("outputs/evals/before", detect=0.05)
    said = rows(outcome.out)
    assert said[0][0].startswith("before (model: make_run")
    assert said[0][0].endswith("; 60 samples, 1 attempt each")
    assert said[1:3] == [
        [
            "To detect a true difference of 0.050 in reward at 80% power and p < 0.05, "
            "two runs need:"
        ],
        ["repeats", "samples", "attempts of each run"],
    ]
    assert said[3:7] == [
        [
            str(row.repeats),
            f"{row.at_least:,} to {row.samples:,}" if i else f"{row.samples:,}",
            f"{row.at_least * row.repeats:,} to {row.answers:,}" if i else f"{row.answers:,}",
        ]
        for i, row in enumerate(found.rows)
    ]
    assert [line[0] for line in said[7:9]] == [
        "Minimum detectable effect of these 60 samples with 1 attempt each: "
        f"{found.detectable:.3f} at 80% power.",
        "Repeats with which these samples would be enough: unknown.",
    ]
    assert [line[0] for line in said[9:]] == [f"note: {note}" for note in make_notes(found)]


def test_as_json_it_is_one_line_with_every_number(runs: None, heldout: Heldout) -> None:
    outcome = heldout(
        *("power", "before", "--baseline", "after", "--detect", "0.05", "--json"),
        *("--epochs", "3", "--epochs", "5", "--power", "0.9", "--alpha", "0.01"),
    )
    assert outcome.out.count("\n") == 1
    found = plan(
        "outputs/evals/before",
        against="outputs/evals/after",
        detect=0.05,
        repeats=(3, 5),
        power=0.9,
        alpha=0.01,
    )
    expected = {**asdict(found), "notes": [*make_notes(found)]}
    printed = json.loads(outcome.out)
    assert (printed.pop("decision"), found.detectable > 0.05) == ("too_few", True)
    assert f"{found.detectable:.3f} at 90% power." in printed.pop("sentence")
    assert printed == json.loads(json.dumps(expected))


def test_options_are_what_the_numbers_are_made_of(runs: None, heldout: Heldout) -> None:
    arguments = ("power", "before", "--detect", "0.05")

    def first_row(*more: str) -> list[str]:
        lines = rows(heldout(*arguments, *more).out)
        return next(line for line in lines if line[0] in ("1", "3"))

    plain = first_row()
    for more in (["--power", "0.9"], ["--alpha", "0.01"], ["--correlation", "0.5"]):
        assert first_row(*more)[1] != plain[1]
    assert first_row("--epochs", "3")[0] == "3"
    out = heldout(*arguments, "--baseline", "after", "--power", "0.9", "--alpha", "0.01").out
    assert "\nvariance of its differences from after\n" in out
    assert "at 90% power and p < 0.01, two runs need:" in out
    assert "in size at 80% power" in heldout(*arguments, "--metric", "size").out


def test_what_repeats_would_do_for_these_samples_is_said(heldout: Heldout) -> None:
    make_run("sure", A, repeats=2)  # every repeat says the same: there is nothing to average out
    out = heldout("power", "sure", "--detect", "0.05").out
    assert "; 60 samples, 2 attempts each\n" in out
    assert "\nRepeats with which these samples would be enough: no number of them.\n" in out
    easy = heldout("power", "sure", "--detect", "0.9").out
    assert "\nRepeats with which these samples would be enough: 1.\n" in easy


def test_samples_without_a_value_are_counted(heldout: Heldout) -> None:
    make_run("before", [BROKEN, *A[1:]])
    out = heldout("power", "before", "--detect", "0.05").out
    assert "; 59 samples, 1 attempt each; 1 sample left out, without a value\n" in out


def test_cluster_and_allow_are_those_of_a_comparison(runs: None, heldout: Heldout) -> None:
    arguments = ("power", "before", "--detect", "0.05")
    clustered = heldout(*arguments, "--cluster", "book")
    assert "\nnote: 1.00 times as many, since samples come in 30 clusters by book" in clustered.out
    make_run("other", BETTER, score=other_score_fn)
    refused = heldout(*arguments, "--baseline", "other")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.endswith("(--allow scorer)\n")
    assert heldout(*arguments, "--baseline", "other", "--allow", "scorer").code == 0


BAD_INPUT = [
    (["--detect", "nan"], "a difference to detect; got nan"),
    (
        ["--detect", "0.1", "--baseline", "after", "--correlation", "0.5"],
        "--baseline measures what --correlation guesses",
    ),
    (["--detect", "0.1", "--allow", "scorer"], "between two runs: add --baseline RUN"),
    (["--detect", "0.1", "--epochs", "0"], "at least once"),
    (["--detect", "0.1", "--baseline", "nowhere"], "there is no run at nowhere"),
    ([], "Missing option '--detect'"),
]


def test_bad_input_exits_with_2_and_says_what_is_wrong(runs: None, heldout: Heldout) -> None:
    for arguments, said in BAD_INPUT:
        outcome = heldout("power", "before", *arguments)
        assert (outcome.code, outcome.out) == (2, "")
        assert said in outcome.err


def test_a_sequential_plan_says_what_stopping_costs_at_each_true_difference(
    runs: None, heldout: Heldout
) -> None:
    arguments = ("power", "before", "--detect", "0.2", "--sequential")
    found = plan("outputs/evals/before", detect=0.2, sequential="linear")
    assert [row.effect for row in found.expected] == [e * 0.2 for e in (0, 0.5, 1, 1.5, 2, 3)]
    shares = [row.share for row in found.expected]
    assert shares == sorted(shares, reverse=True)
    assert found.expected[0].better == pytest.approx(0.025)
    assert found.expected[0].worse == pytest.approx(0.025)
    said = rows(heldout(*arguments).out)
    assert [
        "true difference", "better", "worse", "expected samples", "of the set", "better, all run"
    ] in said  # fmt: skip
    for row in found.expected:
        assert f"{row.share:.1%}" in next(
            line
            for line in said
            if line[0] == f"{row.effect:+.3f}" or line[0] == f"{row.effect:.3f}"
        )
    printed = json.loads(heldout(*arguments, "--json").out)
    assert printed["spending"] == "linear"
    assert printed["expected"] == [asdict(row) for row in found.expected]


def test_keeping_power_costs_samples_and_misses_less(runs: None, heldout: Heldout) -> None:
    arguments = ("power", "before", "--detect", "0.3", "--sequential", "--json")
    linear = json.loads(heldout(*arguments).out)["expected"][2]
    kept = json.loads(heldout(*arguments, "--keep-power").out)["expected"][2]
    assert kept["better"] > linear["better"]
    assert kept["samples"] > linear["samples"]


def test_a_margin_asks_what_a_gate_costs_where_nothing_is_wrong(
    runs: None, heldout: Heldout
) -> None:
    arguments = ("power", "before", "--detect", "0.2", "--sequential", "--no-worse-than", "0.3")
    printed = json.loads(heldout(*arguments, "--json").out)
    assert printed["margin"] == 0.3
    assert [row["effect"] for row in printed["expected"]] == [-0.3, -0.15, 0.0, 0.2]
    bound, _, unchanged, _ = printed["expected"]
    assert bound["better"] <= 0.0251
    assert unchanged["better"] > 0.5
    assert "not worse by 0.3" in heldout(*arguments).out
    refused = heldout("power", "before", "--detect", "0.2", "--no-worse-than", "0.3")
    assert refused.code == 2
    assert "are for --sequential" in refused.err
