"""`heldout show`: what a run directory says on a terminal and in a pipe."""

from __future__ import annotations

import json
import random
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from heldout import EvalReport, EvalResult, Message, Sample, Stop, ToolCall, Trajectory
from heldout._core.format import printable
from heldout.reporting.summaries import in_order
from heldout.store.columns import summarize_results
from heldout.store.journal import JournalWriter
from heldout.store.notes import write_note
from heldout.store.run_dir import RunDir
from tests.cli.conftest import RUN, Heldout, calls, damage_line
from tests.cli.runs import Outcome, Page, result, save

# --- show ---------------------------------------------------------------------------------------


def test_show_prints_what_run_printed(finished: Outcome, heldout: Heldout) -> None:
    assert heldout("show", f"{RUN}").out == heldout("show", "six").out == finished.out
    assert "Not finished" not in finished.out


def test_show_as_json_is_one_line_with_status_config_and_summary(
    finished: Outcome, heldout: Heldout
) -> None:
    outcome = heldout("show", "six", "--json")
    assert outcome.out.count("\n") == 1
    shown = json.loads(outcome.out)
    report = EvalReport.load(RUN)
    info = RunDir(RUN).read_info()
    low, high = report.summary["ci_low"], report.summary["ci_high"]
    assert shown == {
        "decision": "complete",
        "sentence": f"{report.config['experiment_name']}: mean reward 0.667 "
        f"({low:.3f} … {high:.3f}), 6 items, 0 errored.",
        "kind": "run",
        "path": str(RUN),
        "status": "complete",
        "reason": None,
        "config": report.config,
        "summary": report.summary,
        "errors": [],
        "usage": None,
        "finish_reasons": {},
        "limits": {},
        "started": info.started,
        "finished": info.finished,
        "git": None,
        "command": info.command,
        "versions": info.versions,
        "settled": None,
        "usage_ahead": None,
    }


def test_conversations_as_markdown_are_text_and_nothing_else(
    finished: Outcome, heldout: Heldout
) -> None:
    hostile = "<img src=x> @everyone **bold** | cell"
    journal = RUN / "results.jsonl"
    journal.write_bytes(re.sub(rb"say word\d", hostile.encode(), journal.read_bytes()))
    known = {*["ul", "li", "table", "thead", "tbody", "tr", "th", "td", "code", "span"]}
    for option in (("--failures", "9"), ("--passes", "9"), ("--sample", "q5")):
        out = heldout("show", "six", *option, "--markdown").out
        page = Page(out)
        assert {*page.tags} <= known
        assert hostile in "".join(page.texts)
        assert "@everyone" not in out


def test_show_failures_prints_the_first_items_that_did_not_pass(
    finished: Outcome, heldout: Heldout
) -> None:
    outcome = heldout("show", "six", "--failures", "1")
    assert outcome.out.splitlines() == [
        "── q4",
        "reward     0.000   correct 0.000 (weight 1)   length 5.000",
        "user       say word4",
        "assistant  word4",
        "target     other",
    ]
    both = heldout("show", "six", "--failures", "9").out
    assert [line for line in both.splitlines() if line.startswith("──")] == ["── q4", "── q5"]


def test_failures_are_those_that_errored_and_then_the_wrong_ones(heldout: Heldout) -> None:
    save(
        result("wrong 1"),
        result("right", value=1.0),
        result("broken 1", error="no"),
        result("wrong 2"),
        result("broken 2", error="no"),
        result("wrong 3"),
    )

    def shown(count: int) -> list[str]:
        lines = heldout("show", "made", "--failures", str(count), "--json").out.splitlines()
        return [json.loads(line)["sample_id"] for line in lines]

    assert shown(1) == ["broken 1"]
    assert shown(3) == ["broken 1", "broken 2", "wrong 1"]
    assert shown(9) == ["broken 1", "broken 2", "wrong 1", "wrong 2", "wrong 3"]


def test_finish_reasons_that_heldout_does_not_know_are_named(heldout: Heldout) -> None:
    reasons = ["stop", "who_knows", "who_knows", "\x1b[31m" + "x" * 90]
    save(
        *(
            EvalResult(str(i), Sample(str(i), {}), Trajectory((), Stop(finish_reason=reason)))
            for i, reason in enumerate(reasons)
        )
    )
    shown = " ".join(heldout("show", "made").out.split())
    assert "heldout does not know: 'who_knows' (2), '\\x1b[31mxxx" in shown
    assert "x" * 40 not in shown
    found = json.loads(heldout("show", "made", "--json").out)["finish_reasons"]
    assert (found["who_knows"], found["stop"], len(found)) == (2, 1, 3)


def test_items_that_a_limit_ended_are_counted_and_the_way_to_lift_it_is_said(
    heldout: Heldout,
) -> None:
    ends = [*[Stop("limit", "max_turns")] * 2, Stop("limit", "context"), Stop("environment")]
    save(*(EvalResult(str(i), Sample(str(i), {}), Trajectory((), s)) for i, s in enumerate(ends)))
    shown = " ".join(heldout("show", "made").out.split())
    assert "3 of 4 items ended at a limit, and what there was is scored: max_turns (2), co" in shown
    assert json.loads(heldout("show", "made", "--json").out)["limits"] == {
        "max_turns": 2,
        "context": 1,
    }


def test_the_hint_on_failures_is_a_command_that_works(heldout: Heldout) -> None:
    path = "outputs/evals/of today"
    save(result("a", error="no"), result("b"), path=path)
    out = heldout("show", "of today").out
    hint = re.search(r"`heldout (.*)` shows why items errored", out)
    assert shlex.split(hint[1]) == ["show", path, "--failures", "5"]
    assert heldout(*shlex.split(hint[1])).code == 0


def test_without_failures_show_says_so(finished: Outcome, heldout: Heldout) -> None:
    run = json.loads((RUN / "run.json").read_text())
    run["config"]["pass_threshold"] = -1
    (RUN / "run.json").write_text(json.dumps(run))
    assert heldout("show", "six", "--failures", "3").out == (
        "There is none among 6 items (passed: reward ≥ -1).\n"
    )


def test_failures_show_errors_tools_reasoning_and_turns_that_were_cut_off(heldout: Heldout) -> None:
    call = ToolCall("1", "search", '{"q": "x"}')
    save(
        result("a", error="endpoint: it broke"),
        result(
            "b",
            Message("user", "two\nlines"),
            Message("assistant", "", tool_calls=(call,), reasoning="let me see"),
            Message("tool", "found it", tool_call_id="1"),
            truth=["x", "y"],
            repeat=1,
            truncated=True,
        ),
    )
    assert heldout("show", "made", "--failures", "2").out.splitlines() == [
        "── a",
        "error      endpoint: it broke",
        "user       ?",
        "",
        "── b, repeat 1",
        "reward     0.000   correct 0.000 (weight 1)",
        "user       two",
        "           lines",
        "reasoning  let me see",
        'tool call  search({"q": "x"})',
        "tool       found it",
        "target     ['x', 'y']",
        "           The last turn was truncated.",
    ]


def test_in_a_pipe_no_line_is_broken_and_the_middle_of_an_endless_one_is_left_out(
    heldout: Heldout,
) -> None:
    text = " ".join(f"word{i}" for i in range(2000))
    save(result("a", Message("assistant", text)), result("b", Message("assistant", text[:3000])))
    lines = heldout("show", "made", "--failures", "2").out.splitlines()
    assert f"assistant  {text[:3000]}".rstrip() in lines
    assert f"assistant  {text[:2000]}".rstrip() in lines
    left_out = len(text) - 4000
    assert f"           … {left_out} characters left out; --json has all …" in lines
    whole = heldout("show", "made", "--failures", "1", "--json").out
    assert json.loads(whole)["trajectory"]["messages"][0]["content"] == text


EVIL = "\x1b[2J\x1b]0;title\x07[red]x[/red]\r\x9b31m\u202e\u2028\x00:boom:"
INERT = r"\x1b[2J\x1b]0;title\x07[red]x[/red]\r\x9b31m\u202e\u2028\x00:boom:"


def test_show_has_reviewers_notes_and_says_which_are_about_an_earlier_answer(
    heldout: Heldout,
) -> None:
    answers = [result(id, Message("assistant", id), truth="a") for id in ("a", "b")]
    save(*answers)
    run = RunDir(Path("outputs/evals/made"))
    before = heldout("show", "made").out
    write_note(run, answers[0], "correct", "")
    write_note(run, result("b", Message("assistant", "other")), "incorrect", "too \x1b[31mshort")
    shown = heldout("show", "made").out
    assert "2 notes of reviewers: 1 correct; 1 incorrect" in shown
    assert [line for line in shown.splitlines() if "reviewers" not in line] == before.splitlines()
    items = heldout("show", "made", "--failures", "2").out
    assert re.search(r"^note +correct$", items, re.M)
    assert re.search(r"^note +incorrect: too .*short \(about an earlier answer\)$", items, re.M)
    assert "\x1b" not in items
    printed = heldout("show", "made", "--failures", "2", "--json").out.splitlines()
    notes = [json.loads(line)["note"] for line in printed]
    assert [(note["label"], note["is_current"]) for note in notes] == [
        ("correct", True),
        ("incorrect", False),
    ]


def test_what_a_model_says_is_shown_and_never_obeyed(heldout: Heldout) -> None:
    save(
        result(f"id{EVIL}", Message("assistant", EVIL), truth=EVIL, metric=f"m{EVIL}"),
        result("errored", error=EVIL, metadata={f"key{EVIL}": EVIL}),
        experiment_name=EVIL,
        endpoint={"model": EVIL, "base_url": EVIL},
    )
    shown = {
        "report": heldout("show", "made"),
        "failures": heldout("show", "made", "--failures", "2"),
        "slices": heldout("show", "made", "--by", f"key{EVIL}"),
        "refusal": heldout("show", "made", "--by", "nothing"),
    }
    for name, outcome in shown.items():
        said = outcome.out + outcome.err
        assert printable(said) == said, name
        assert "[red]x[/red]" in said
    assert shown["report"].out.startswith(f"{INERT}, model: {INERT} at {INERT}\n")
    assert f"assistant  {INERT}\n" in shown["failures"].out
    assert f"error      {INERT}\n" in shown["failures"].out
    assert f"target     {INERT}\n" in shown["failures"].out
    assert f"── id{INERT}\n" in shown["failures"].out


def test_words_of_any_script_stay_as_they_are() -> None:
    for text in ("plain", "naïve\u00a0café", "日本\u3000語", "नमस्\u200dते", "👩\u200d🔬", "a\tb\nc"):
        assert printable(text) == text
    assert printable("a\r\nb") == "a\nb"
    assert printable("\ud800\U000e0001") == r"\ud800\U000e0001"


def test_a_config_from_elsewhere_is_not_taken_at_its_word(heldout: Heldout) -> None:
    save(result(), pass_threshold="high", endpoint="text", repeats="two")
    assert "passed (≥ 0.5)" in heldout("show", "made").out
    assert heldout("show", "made", "--failures", "1").code == 0


def test_a_run_that_is_not_there_is_named(heldout: Heldout) -> None:
    save(result(), path="outputs/evals/nope2")
    near = heldout("show", "nope")
    assert (near.code, near.err) == (
        2,
        "Error: there is no run at nope, nor at outputs/evals/nope; did you mean nope2?\n",
    )
    assert "did you mean" not in heldout("show", "elsewhere/nope").err


# --- pass@k and clusters ------------------------------------------------------------------------


def repeated(*rewards: list[float | None]) -> list[EvalResult]:
    """Of each sample the rewards of its repeats; two samples share a passage, the last has none."""
    return [
        result(
            f"q{i}",
            repeat=repeat,
            error="broke" if value is None else None,
            value=value or 0.0,
            metadata={"passage": f"p{i // 2}", "half": i % 2} if i < len(rewards) - 1 else None,
        )
        for i, values in enumerate(rewards)
        for repeat, value in enumerate(values)
    ]


def row(out: str, label: str) -> list[str]:
    line = next(line for line in out.splitlines() if line.strip().startswith(label))
    return line.strip().removeprefix(label).split()


def test_a_run_with_repeats_shows_pass_at_their_number_by_itself(heldout: Heldout) -> None:
    save(*repeated([1.0, 0.0, None], [1.0, 1.0, 1.0], [0.0, 0.0, 0.0]), repeats=3)
    out = heldout("show", "made").out
    assert row(out, "pass@3")[0] == "0.667"
    assert row(out, "pass^3")[0] == "0.333"
    assert row(out, "pass@3")[-2:] == ["3", "samples"]
    assert "pass@1" not in out


def test_several_k_are_rows_of_the_table_and_keys_in_json(heldout: Heldout) -> None:
    save(*repeated([1.0, 0.0, 0.0], [1.0, 1.0, 1.0]), repeats=3)
    asked = ("show", "made", "--pass-at", "2", "--pass-at", "1")
    out = heldout(*asked).out
    labels = re.findall(r"^ (pass[@^].*?)  ", out, re.M)
    assert labels == ["pass@1 = pass^1", "pass@2", "pass^2 = pass^3", "pass@3"]
    summary = json.loads(heldout(*asked, "--json").out)["summary"]
    assert summary["pass_at_2"] == pytest.approx((2 / 3 + 1) / 2)
    assert summary["pass_hat_2"] == 0.5
    assert summary["pass_at_2_n"] == 2
    assert summary["pass_at_2_ci_low"] < summary["pass_at_2"] < summary["pass_at_2_ci_high"]


def test_of_an_unfinished_run_pass_at_k_waits_and_the_rest_is_shown(heldout: Heldout) -> None:
    results = repeated([1.0, 0.0], [1.0])
    summary = {**summarize_results(results), "complete": False, "n_asked": 4}
    config = {"experiment_name": "made", "repeats": 2}
    EvalReport(results, summary, config).save("outputs/evals/made")
    outcome = heldout("show", "made", "--pass-at", "1")
    assert outcome.code == 0
    assert row(outcome.out, "pass@1 = pass^1")[0] == "0.750"
    assert row(outcome.out, "pass@2 = pass^2") == ["–", "–", "–"]
    assert "no pass@2 and pass^2 yet: 1 sample has fewer than 2 attempts" in outcome.out
    shown = json.loads(heldout("show", "made", "--json").out)["summary"]
    assert (shown["pass_at_2"], shown["pass_at_2_short"]) == (None, 1)


def test_show_clusters_by_a_key_and_says_so(heldout: Heldout) -> None:
    save(*repeated(*[[float(i // 2 % 2)] for i in range(41)]))
    plain = json.loads(heldout("show", "made", "--json").out)["summary"]
    out = heldout("show", "made", "--cluster", "passage").out
    assert (
        "error bars clustered by passage: 21 clusters, "
        "1 of them samples without passage, each on its own"
    ) in out
    assert "rough" not in out
    summary = json.loads(heldout("show", "made", "--cluster", "passage", "--json").out)["summary"]
    assert (summary["clustered_by"], summary["n_clusters"]) == ("passage", 21)
    assert summary["mean"] == plain["mean"]
    assert summary["ci_high"] - summary["ci_low"] > plain["ci_high"] - plain["ci_low"]
    save(*repeated(*[[float(i % 2)] for i in range(7)]), path="few")
    assert (
        "intervals from 4 clusters are rough" in heldout("show", "few", "--cluster", "passage").out
    )


def test_slice_clusters_by_a_key_and_counts_clusters(heldout: Heldout) -> None:
    save(*repeated(*[[float(i % 3 > 0)] for i in range(41)]))
    out = heldout("show", "made", "--by", "half", "--cluster", "passage").out
    assert row(out, "half")[:2] == ["n", "clusters"]
    assert row(out, "0")[:2] == ["20", "20"]
    assert row(out, "–")[:2] == ["1", "1"]
    assert row(out, "all")[:2] == ["41", "21"]
    assert "clustered by passage: 21 clusters" in out
    assert "one cluster does not show how clusters differ" in out
    lines = heldout("show", "made", "--by", "half", "--cluster", "passage", "--json").out
    first = json.loads(lines.splitlines()[0])
    assert (first["slice"], first["n_clusters"]) == ({"half": 0}, 20)


# --- Unfinished and damaged ---------------------------------------------------------------------


def unfinished(status: str, asked: int | None, kept: int, reason: str | None = None) -> None:
    run = json.loads((RUN / "run.json").read_text())
    run |= {"status": status, "asked": asked, "reason": reason}
    (RUN / "run.json").write_text(json.dumps(run))
    journal = RUN / "results.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[: kept + 1]))


@pytest.mark.parametrize(
    ("status", "asked", "reason", "said", "code"),
    [
        ("running", None, None, "Not finished: interrupted after 3 items; ", 0),
        ("interrupted", 6, None, "Not finished: interrupted after 3 of 6 items; ", 0),
        ("failed", 6, "[b]why[/b]", "Not finished: failed after 3 of 6 items ([b]why[/b]); ", 4),
        ("complete", 6, None, "Its journal is not the one it was finished with: 3 of 6 items", 0),
    ],
)
def test_an_unfinished_run_shows_as_such(
    finished: Outcome,
    heldout: Heldout,
    status: str,
    asked: int | None,
    reason: str | None,
    said: str,
    code: int,
) -> None:
    unfinished(status, asked, 3, reason)
    outcome, as_json = heldout("show", "six"), heldout("show", "six", "--json")
    failures = heldout("show", "six", "--failures", "1")
    assert (outcome.code, as_json.code, failures.code) == (code,) * 3
    assert said in outcome.out
    assert "3 items: 3 scored" in outcome.out
    shown = json.loads(as_json.out)
    # Nobody is writing it, so it does not run.
    found = "interrupted" if status == "running" else status
    assert (shown["status"], shown["reason"]) == (found, reason)
    assert (shown["summary"]["complete"], shown["summary"]["n_asked"]) == (False, asked)
    sliced = heldout("show", "six", "--by", "topic")
    assert said.split(" (")[0].rstrip("; ") in sliced.out
    line = heldout("show", "six", "--by", "topic", "--json").out.splitlines()[0]
    assert json.loads(line)["complete"] is False


def test_an_unfinished_run_without_a_score_has_no_numbers_to_speak_of(heldout: Heldout) -> None:
    def shown(*results: EvalResult, path: str) -> str:
        summary = {**summarize_results(results), "complete": False, "n_asked": 6}
        EvalReport(results, summary, {"experiment_name": "made", "repeats": 1}).save(path)
        info = RunDir(Path(path)).read_info()
        info.status = "failed"
        RunDir(Path(path)).write_info(info)
        return heldout("show", path).out

    said = shown(result("a", error="no"), result("b", error="no"), path="errored")
    assert "failed after 2" in said
    assert "; none of them has a score.\n" in said
    assert "; the numbers are of these.\n" in shown(result("a"), path="scored")


def test_a_run_under_way_shows_as_such(finished: Outcome, heldout: Heldout) -> None:
    unfinished("running", None, 3)
    writer = JournalWriter(RUN / "results.jsonl")
    try:
        assert "\nStill running: 3 items so far; the numbers are of these.\n" in (
            heldout("show", "six").out
        )
        refused = heldout("run", "eval.py", "--resume")
        assert refused.code == 2
        assert "is being written by another process" in refused.err
    finally:
        writer.close()


def without_times(printed: str) -> str:
    """Leave out when a run ended, and what follows from it."""
    return re.sub(r"ended .*", "", printed)


def test_a_damaged_line_is_named_moved_aside_and_run_again(
    finished: Outcome, heldout: Heldout
) -> None:
    damaged = damage_line(3)
    # The journal is as long as it was, but not the one that the summary was made of.
    for options in ((), ("--failures", "9")):
        refused = heldout("show", "six", *options)
        assert refused.code == 2
        assert f"{RUN}/results.jsonl, line 3: not a readable result" in refused.err
        assert f"`heldout repair {RUN}`" in refused.err

    repaired = heldout("repair", "six", "--json")
    assert json.loads(repaired.out) == {
        "decision": "repaired",
        "sentence": f"Moved damaged line 3 of {RUN}/results.jsonl to results.damaged.",
        "path": str(RUN),
        "moved": [3],
    }
    assert repaired.err == (f"Moved damaged line 3 of {RUN}/results.jsonl to results.damaged.\n")
    shown = heldout("show", "six").out
    assert "Not finished: interrupted after 5 of 6 items" in shown
    assert "(1 damaged journal line moved aside)" in shown
    assert (RUN / "results.damaged").read_bytes() == damaged

    Path("calls.txt").unlink()
    resumed = heldout("run", "eval.py", "--resume").out
    assert without_times(resumed) == without_times(finished.out)
    assert calls() == ["word1"]
    assert heldout("show", "six", "--failures", "9").code == 0
    assert heldout("repair", "six").err == f"{RUN}/results.jsonl has no damaged line.\n"


# --- slice --------------------------------------------------------------------------------------


def cells(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines() if line.strip(" ─")]


def test_slice_prints_a_line_for_each_value_and_one_for_all(
    finished: Outcome, heldout: Heldout
) -> None:
    rows = cells(heldout("show", "six", "--by", "difficulty").out)
    assert rows[0] == ["difficulty", "n", "mean", "95%", "interval", "passed", "errors"]
    assert [(row[0], row[1], row[2]) for row in rows[1:]] == [
        ("easy", "2", "0.500"),
        ("medium", "2", "1.000"),
        ("hard", "2", "0.500"),
        ("all", "6", "0.667"),
    ]


def test_two_keys_slice_by_their_combinations(finished: Outcome, heldout: Heldout) -> None:
    outcome = heldout("show", "six", "--by", "difficulty", "--by", "topic", "--json")
    lines = [json.loads(line) for line in outcome.out.splitlines()]
    assert [(*line["slice"].values(), line["n"]) for line in lines] == [
        ("easy", "topic 0", 1),
        ("easy", "topic 1", 1),
        ("medium", "topic 0", 1),
        ("medium", "topic 1", 1),
        ("hard", "topic 0", 1),
        ("hard", "topic 1", 1),
    ]
    table = heldout("show", "six", "--by", "difficulty", "--by", "topic").out
    assert cells(table)[1][:4] == ["easy", "topic", "0", "1"]


def test_a_report_its_slices_and_its_items_are_shown_one_at_a_time(
    finished: Outcome, heldout: Heldout
) -> None:
    for first in (["--failures", "1"], ["--by", "topic"]):
        for second in (["--pass-at", "1"], ["--passes", "1"]):
            outcome = heldout("show", "six", *first, *second)
            assert outcome.code == 2
            assert "do not go together" in outcome.err


def test_items_without_the_key_come_last_and_show_as_a_dash(heldout: Heldout) -> None:
    save(result("a"), result("b", metadata={"level": 10}), result("c", metadata={"level": 9}))
    rows = cells(heldout("show", "made", "--by", "level").out)
    assert [row[0] for row in rows[1:]] == ["9", "10", "–", "all"]


@pytest.mark.parametrize(
    "expected",
    [
        ["easy", "medium", "hard"],
        ["Very_Easy", "Easy", "Hard", "very-hard"],
        ["low", "medium", "high"],
        ["small", "large"],
        ["level 1", "level 2", "Level 10"],
        ["algebra", "Geometry", "zeros"],
        ["easy", "hard", "geometry"],
        ["1", "2", "10", "a", "a²", "b1", "b1c", "b1c2"],
        [-1, 2.5, 10, "a", None],
        [False, True, None],
    ],
)
def test_slices_are_in_the_order_people_expect(expected: Any) -> None:
    keys = [(value, "same") for value in expected]
    for seed in range(5):
        mixed = random.Random(seed).sample(keys, len(keys))
        assert in_order(mixed) == keys


def test_a_report_labels_its_start_its_end_and_its_duration(
    finished: Outcome, heldout: Heldout
) -> None:
    [path] = Path("outputs/evals/six").glob("2*")
    stored = json.loads((path / "run.json").read_text())
    times = {"started": "2026-11-16T11:10:59Z", "finished": "2026-11-16T12:15:01Z"}
    (path / "run.json").write_text(json.dumps(stored | times))
    took = "started 2026-11-16 11:10:59 UTC, ended 12:15:01, duration 1 h 4 min"
    assert took in heldout("show", "six").out
    (path / "run.json").write_text(
        json.dumps(stored | times | {"finished": "2026-11-17T11:11:00Z"})
    )
    assert "UTC, ended 2026-11-17 11:11:00, duration 1 d" in heldout("show", "six").out
    (path / "run.json").write_text(json.dumps(stored | times | {"finished": None}))
    assert "started 2026-11-16 11:10:59 UTC, not ended" in heldout("show", "six").out


def test_where_the_time_went_is_shown(finished: Outcome, heldout: Heldout) -> None:
    outcome = heldout("show", "six", "--time")
    assert outcome.code == 0
    for word in ("model", "retries", "environment", "scoring", "other", "slowest", "6 requests"):
        assert word in outcome.out
    assert heldout("show", "six", "--time", "--where", "reward > 0").code == 2
