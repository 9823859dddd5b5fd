"""`show`, `watch`, `flips`, `plot` and `stop` of a run that was evaluated during training."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console, RenderableType
from rich.text import Text

from heldout import Message
from heldout.cli._braille import Dot, Series, draw_curves
from heldout.cli._tables import render_line, render_table
from heldout.cli.curve import draw_screen
from heldout.reporting.blocks import Table
from heldout.reporting.curves import (
    build_curve_table,
    format_age,
    format_n,
    latest_verdicts,
    read_curve,
)
from heldout.reporting.names import list_result_steps
from heldout.store.run_dir import RunDir, RunInfo
from heldout.store.runs import find_run
from heldout.training.curve.points import CurvePoint, CurveWriter, ItemOutcome, stop_requested
from tests.cli.conftest import Heldout
from tests.cli.runs import (
    CONFIG,
    CURVE,
    POINTS,
    Outcome,
    Terminal,
    append,
    command_of,
    point,
    result,
    save,
)
from tests.cli.runs import CURVE_RUN as RUN
from tests.training.curves import look


def words(text: str) -> list[list[str]]:
    """The cells of each line that are not empty."""
    return [re.split(r" {2,}", line.strip()) for line in text.splitlines() if line.strip()]


# --- show ---------------------------------------------------------------------------------------


def test_show_prints_a_line_a_point(run: Path, heldout: Heldout) -> None:
    outcome = heldout("show", "rl_eval")
    assert outcome.code == 0
    title, head, _, *rows, verdict, start, best, status, kept = words(outcome.out)
    assert title == ["rl_eval, every 50 steps"]
    assert head == [
        *["step", "reward", "95% interval", "passed", "n", "errors", "seconds"],
        *["verdict", "length", "note"],
    ]
    assert rows == [
        [
            *["0", "0.250", "0.100 … 0.900", "0.500", "4", "1", "2.0", "inconclusive"],
            *["12.000 of 3", "0.333 without errored items"],
        ],
        ["50", "0.750", "0.100 … 0.900", "0.500", "4", "0", "2.0", "inconclusive", "12.000"],
        ["100", "–", "–", "–", "–", "–", "2.0", "–", "–", "skipped: no memory left"],
        [
            *["150", "0.750", "0.100 … 0.900", "0.500", "4", "0", "2.0", "inconclusive", "12.000"],
            "final",
        ],
    ]
    assert verdict == [
        "inconclusive: 0.000 (-1.000 … 1.000) from step 50 to step 150, paired on 4 samples; no "
        "gain could have been seen"
    ]
    assert start[0].startswith("not seen to have changed since its start: +0.333 (-1.000 … 1.000)")
    assert best[0].startswith("best so far: step 50, 0.")
    assert best[0].endswith("for picking the best of 3; 0.750 as measured), on 4 samples")
    assert re.fullmatch(r"Finished; the last point came \d+ (s|min) ago\.", status[0])
    assert kept == ["saved to outputs/evals/rl_eval"]


def test_show_says_that_the_last_attempt_has_no_results(run: Path, heldout: Heldout) -> None:
    skip = msgspec.structs.replace(POINTS[2], session="later", skipped="another score_fn")
    append(skip)
    shown = " ".join(heldout("show", "rl_eval").out.split())
    assert "the last attempt has no results; these are of earlier ones" in shown
    assert "another score_fn" in shown


def show_points(heldout: Heldout, *arguments: str) -> list[Any]:
    points: list[Any] = json.loads(heldout("show", "rl_eval", "--json", *arguments).out)["points"]
    return points


def test_show_as_json_has_every_field_of_every_point(run: Path, heldout: Heldout) -> None:
    shown = show_points(heldout)
    assert [one["step"] for one in shown] == [0, 50, 100, 150]
    assert {*shown[0]} == {*CurvePoint.__struct_fields__} - {"outcomes"}
    assert shown[0]["summary"] == POINTS[0].summary
    assert (shown[2]["summary"], shown[2]["skipped"]) == (None, "no memory left")


def test_a_list_has_the_verdict_on_a_curve(run: Path, heldout: Heldout) -> None:
    out = heldout("list", "rl_eval").out
    assert "verdict" in out
    assert " inconclusive " in out
    [line] = heldout("list", "rl_eval", "--json").out.splitlines()
    assert json.loads(line)["verdict"] == "inconclusive"


def test_show_a_step_prints_the_report_that_the_curve_names(run: Path, heldout: Heldout) -> None:
    save(result("old"), path=str(RUN / "steps/00000050"))
    save(result("new"), result("newer"), path=str(RUN / "steps/00000050-10"))
    save(result("not this"), path=str(RUN / "steps/00000050-9"))
    save(result("nor this"), path=str(RUN / "steps/00000500-99"))
    append(point(50, 1.0, 0.0, run="steps/00000050-10"))
    out = heldout("show", "rl_eval", "--step", "50").out
    assert "2 items: 2 scored" in out
    assert "saved to outputs/evals/rl_eval/steps/00000050-10" in out
    failures = heldout("show", "rl_eval", "--step", "50", "--failures", "1").out
    assert failures.startswith("── new")
    summary = json.loads(heldout("show", "rl_eval", "--step", "50", "--json").out)["summary"]
    assert summary["n"] == 2


CANNOT_SHOW = {
    ("--step", "70"): "has no eval at step 70; there are 0, 50, 150",
    ("--step", "100"): "of step 100 were not saved; it was skipped: no memory left",
    ("--failures", "2"): "a curve of many: add --step N; there are 0, 50, 150",
    ("--pass-at", "2"): "--pass-at of which eval? outputs/evals/rl_eval is a curve of many",
    ("--cluster", "level"): "--cluster of which eval?",
    ("--effect", "0"): "effect",
    ("--alpha", "5"): "alpha must be between 0 and 1; got 5",
    ("--window", "1"): "window",
}


def test_what_show_cannot_do_is_said(run: Path, heldout: Heldout) -> None:
    for arguments, said in CANNOT_SHOW.items():
        outcome = heldout("show", "rl_eval", *arguments)
        assert (outcome.code, outcome.out) == (2, "")
        assert said in outcome.err


def test_an_ordinary_run_has_no_steps(finished: Outcome, heldout: Heldout) -> None:
    outcome = heldout("show", "six", "--step", "5")
    assert outcome.code == 2
    assert f"{find_run('six')} has no curve.jsonl, so --step does not apply to it" in outcome.err
    assert "so --effect does not apply to it" in heldout("show", "six", "--effect", "0.1").err
    for command in ("flips", "plot", "stop"):
        outcome = heldout("curve", command, "six")
        assert outcome.code == 2
        assert "nothing was evaluated there during training" in outcome.err
    assert heldout("curve", "watch", "six", "--once").code == 2


def test_json_says_whether_a_training_run_is_alive_finished_or_stale(
    run: Path, heldout: Heldout
) -> None:
    def state() -> str:
        shown = json.loads(heldout("show", "rl_eval", "--json").out)["training"]
        return str(shown["state"])

    assert state() == "finished"
    info = RunDir(RUN).read_info()
    info.status = "running"
    RunDir(RUN).write_info(info)
    assert state() == "stale"
    writer = CurveWriter(CURVE)
    assert state() == "alive"
    live = r"^Live; the last point came \d+ (s|min) ago\.$"
    assert re.search(live, heldout("show", "rl_eval").out, re.MULTILINE)
    writer.close()


def test_json_has_the_newest_verdict_of_each_label(run: Path, heldout: Heldout) -> None:
    shown = json.loads(heldout("show", "rl_eval", "--json").out)
    judged = [point for point in shown["points"] if point.get("verdict")]
    assert judged
    assert set(shown["verdicts"]) == {point["label"] for point in judged}
    for label, verdict in shown["verdicts"].items():
        last = [point for point in judged if point["label"] == label][-1]
        assert verdict == {"step": last["step"], **last["verdict"]}


def test_a_run_whose_training_is_gone_says_so(run: Path, heldout: Heldout) -> None:
    RunDir(RUN).write_info(RunInfo.new(CONFIG, {}))
    assert "Not finished: no process is writing it now" in heldout("show", "rl_eval").out
    info = RunInfo.new(CONFIG, {})
    info.status, info.reason = "failed", "CUDA error"
    RunDir(RUN).write_info(info)
    assert "Not finished: failed (CUDA error); the last" in heldout("show", "rl_eval").out


def test_a_curve_is_headed_by_its_label_and_where_it_is_if_that_is_another(
    run: Path, heldout: Heldout
) -> None:
    (RUN / "run.json").unlink()
    assert words(heldout("show", "rl_eval").out)[0] == ["rl_eval"]
    RUN.rename("august")
    assert words(heldout("show", "august").out)[0] == ["rl_eval in august"]


def test_points_that_a_restart_went_back_on_are_left_out_and_counted(
    run: Path, heldout: Heldout
) -> None:
    append(point(40, 1.0, session="two"))
    out = heldout("show", "rl_eval").out
    assert [row[0] for row in words(out)[3:5]] == ["0", "40"]
    assert "2 results left out: superseded by a later attempt" in out


def test_each_label_has_a_section(run: Path, heldout: Heldout) -> None:
    append(point(50, 1.0, label="other"))
    titles = [row[0] for row in words(heldout("show", "rl_eval").out) if len(row) == 1]
    assert titles[0] == "other"
    assert "rl_eval, every 50 steps" in titles


def test_two_curves_of_one_training_name_the_sampling_that_they_differ_by(
    run: Path, heldout: Heldout
) -> None:
    greedy = look(50, [1.0, 0.0], label="greedy", decoding={"temperature": 0.0})
    again = [msgspec.structs.replace(outcome, repeat=1) for outcome in greedy.outcomes]
    both = (*greedy.outcomes, *again)
    append(greedy, look(50, [1.0, 0.0], label="same", decoding={"temperature": 0.0}))
    assert "T 0" not in heldout("show", "rl_eval").out.partition("rl_eval")[0]
    append(look(50, [1.0, 0.0], label="drawn", decoding={"temperature": 0.7}, outcomes=both))
    titles = [row[0] for row in words(heldout("show", "rl_eval").out) if len(row) == 1]
    assert "greedy, T 0, 1 attempt" in titles
    assert "drawn, T 0.7, 2 attempts" in titles
    assert json.loads(heldout("list", "--json").out)["attempts"] == 2


def test_notes_say_how_a_point_is_to_be_read(run: Path, heldout: Heldout) -> None:
    append(
        point(200, 1.0, 0.0, asked=4, of=8, partial="more than 60 s"),
        point(250, 1.0, 0.0, asked=2, of=8, budget={"max_overhead": 0.1}),
        point(300, 1.0, 0.0, stop="it got worse"),
    )
    *_, partial, cut, stop, _, _, best, _, _ = words(heldout("show", "rl_eval").out)
    numbers = ["0", "2.0", "inconclusive", "12.000"]
    assert partial[4:] == ["2 of 4 of 8", *numbers, "partial: more than 60 s"]
    assert cut[4:] == ["2 of 8", *numbers, "fewer items, to keep its budget"]
    assert stop[-1] == "stop: it got worse"
    ending = "on 4 samples; left out, with fewer samples: steps 200, 250, 300"
    assert best[0].endswith(ending)


def climb(label: str = "climb", **changed: Any) -> list[CurvePoint]:
    """Twelve evals of 26 samples, of which each gets two more right."""
    return [
        point(10 * i, *(float(sample < 2 * i) for sample in range(26)), label=label, **changed)
        for i in range(12)
    ]


def test_show_ends_a_curve_with_what_it_allows_one_to_say(run: Path, heldout: Heldout) -> None:
    CURVE.unlink()
    append(*climb("rl_eval"))
    *_, verdict, start, best, _, _ = heldout("show", "rl_eval").out.splitlines()
    assert re.fullmatch(
        r"improving: \+0\.385 \(0\.\d+ … 0\.\d+\) from steps 20–60 to 70–110, "
        "paired on 26 samples",
        verdict,
    )
    assert start.startswith("improved since its start: +0.538 (0.233 … 0.844) from steps 0–40 to ")
    assert best.startswith("best so far: step 110, 0.")
    assert best.endswith("picking the best of 12; 0.846 as measured), on 26 samples")
    *_, other, _, _, _, _ = heldout("show", "rl_eval", "--window", "6").out.splitlines()
    assert " from steps 0–30 to 80–110, " in other


def test_show_takes_effect_alpha_and_window_from_the_curve(run: Path, heldout: Heldout) -> None:
    terms = {"effect": 0.5, "alpha": 0.05, "window": 3}
    CURVE.unlink()
    append(*(point(10 * i, *[1.0] * 20, *[0.0] * 20, verdict=terms) for i in range(30)))
    *_, verdict, _, _, _, _ = heldout("show", "rl_eval").out.splitlines()
    assert re.fullmatch(
        r"plateau since step 280: 0\.000 \(.*\) from step 280 to step 290, paired on 40 samples; "
        r"no gain as large as 0\.500",
        verdict,
    )
    *_, verdict, _, _, _, _ = heldout("show", "rl_eval", "--effect", "0.01").out.splitlines()
    assert verdict.startswith("inconclusive: 0.000 (-0.")


def test_show_as_json_has_the_verdict_as_it_was_given_or_as_it_is_asked_for(
    run: Path, heldout: Heldout
) -> None:
    stored = {"kind": "plateau", "effect": 0.05, "since_start_text": None}
    CURVE.unlink()
    append(*climb("rl_eval", verdict=stored))

    def shown(*arguments: str) -> list[Any]:
        return [point["verdict"] for point in show_points(heldout, *arguments)]

    assert shown()[:-1] == [stored] * 11
    assert shown()[-1].items() >= stored.items()
    anew = shown("--effect", "0.2")
    assert [one["effect"] for one in anew] == [0.2] * 12
    assert anew[0]["kind"] == "inconclusive"
    assert (anew[-1]["kind"], anew[-1]["since"], anew[-1]["best_step"]) == ("improving", 20, 110)
    assert {one["best_step"] for one in anew[:-1]} == {None}


def test_a_curve_of_thousands_is_shown_in_seconds_with_a_best_eval(
    run: Path, heldout: Heldout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What takes the cube of their number is left out, and said to be."""
    monkeypatch.setattr("heldout.training.curve.stored_verdicts.CORRECTED_EVALS", 10)
    CURVE.unlink()
    append(*climb("rl_eval"))
    *_, best, _, _ = heldout("show", "rl_eval").out.splitlines()
    assert best == (
        "best so far: step 110, 0.846 as measured, not corrected for picking the best of 12, "
        "on 26 samples"
    )


def test_rewards_that_cannot_be_judged_are_shown_all_the_same(run: Path, heldout: Heldout) -> None:
    append(point(200, 1e300, 0.0))
    outcome = heldout("show", "rl_eval")
    assert outcome.code == 0
    assert "no verdict: a reward at step 200 is 1e+300" in outcome.out
    assert heldout("curve", "watch", "rl_eval", "--once").code == 0
    seen(CURVE)


def test_damage_is_named_and_repaired(run: Path, heldout: Heldout) -> None:
    lines = CURVE.read_bytes().splitlines(keepends=True)
    CURVE.write_bytes(b"".join([*lines[:2], b"\x00nonsense\n", *lines[2:]]))
    outcome = heldout("show", "rl_eval")
    assert outcome.code == 2
    assert "curve.jsonl, line 3: not a readable point" in outcome.err
    assert "line 3: not a readable point" in heldout("curve", "watch", "rl_eval").err
    outcome = heldout("repair", "rl_eval")
    assert outcome.code == 0
    assert (
        "Moved damaged line 3 of outputs/evals/rl_eval/curve.jsonl to curve.damaged." in outcome.err
    )
    assert "has no damaged line" in heldout("repair", "rl_eval").err


EVIL = "x\x1b[2J\u202e\nfake row"


def test_nothing_in_a_curve_is_obeyed_by_the_terminal(run: Path, heldout: Heldout) -> None:
    summary = {**(POINTS[0].summary or {}), f"metric_{EVIL}": 1.0}
    summary |= {f"metric_{EVIL}_n": 1, f"metric_{EVIL}_stderr": 0.0}
    outcomes = (ItemOutcome(EVIL, 0.0), ItemOutcome("b", 1.0))
    append(
        point(0, label=EVIL, skipped=EVIL, time=EVIL),
        point(1, 1.0, label=EVIL, summary=summary, partial=EVIL, stop=EVIL, outcomes=outcomes),
        point(2, 1.0, label=EVIL, outcomes=(ItemOutcome(EVIL, 1.0), ItemOutcome("b", 1.0))),
    )
    for arguments in (
        ["show"],
        ["curve", "watch", "--once"],
        ["curve", "flips", "--label", EVIL],
        ["curve", "flips", "--label", "none"],
        ["curve", "plot", "--metric", "none"],
        ["curve", "plot"],
    ):
        outcome = heldout(*arguments, "rl_eval")
        for text in (outcome.out, outcome.err):
            assert "\x1b" not in text
            assert "\u202e" not in text
            assert "\nfake row" not in text


@pytest.mark.parametrize("width", [60, 120])
def test_a_table_fits_its_width_and_keeps_what_matters(width: int) -> None:
    points = [point(p.step, *(o.reward for o in p.outcomes)) for p in POINTS]
    points.append(point(100_000, 1.0, 0.0, asked=4, of=8, partial="it took more than 60 s"))
    console = Console(width=width, record=True, file=open(os.devnull, "w"))  # noqa: PTH123, SIM115
    with console.file:
        for block in build_curve_table(points, width):
            table = isinstance(block, Table)
            console.print(render_table(block) if table else render_line(block))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    for needed in ("100000", "0.750", "0.100 … 0.900"):
        assert needed in text
    assert all(word in text for word in ("partial:", "took", "more", "than", "60"))
    assert ("length" in text.splitlines()[1]) == (width >= 120)


def test_no_column_takes_the_place_of_one_that_matters_more() -> None:
    table, *_ = build_curve_table([point(0, 1.0, asked=10_000, of=200_000)], 40)
    assert isinstance(table, Table)
    assert [column.heading for column in table.columns] == ["step", "reward", "95% interval"]


def test_steps_in_a_sentence_do_not_fill_the_screen() -> None:
    assert list_result_steps([]) == "no step has a result yet"
    assert list_result_steps([point(5, 1.0)]) == "there is only 5"
    assert list_result_steps(point(i, 1.0) for i in range(1000)).endswith(
        "3, 4, 5, …, 995, 996, 997, 998, 999"
    )


def test_how_long_ago_a_point_came() -> None:
    ages = {0: "0 s", 119: "119 s", 120: "2 min", 7200: "2 h", 200_000: "2 days"}
    assert {seconds: format_age(seconds) for seconds in ages} == {
        seconds: f"{said} ago" for seconds, said in ages.items()
    }
    assert format_age(None) == "at an unknown time"


def test_counts_of_items_name_what_they_are_of() -> None:
    assert format_n(point(0, 1.0)) == "1"
    assert format_n(point(0, 1.0, asked=3, of=3)) == "1 of 3"
    assert format_n(point(0, 1.0, asked=1, of=9)) == "1 of 9"
    assert format_n(point(0, 1.0, asked=3, of=9)) == "1 of 3 of 9"


# --- flips --------------------------------------------------------------------------------------


def test_flips_compares_the_first_result_with_the_last(run: Path, heldout: Heldout) -> None:
    out = heldout("curve", "flips", "rl_eval").out
    title, *rows = words(out)
    assert title == ["rl_eval, step 0 to 150"]
    assert rows == [
        ["gained a", "0.000 → 1.000"],
        ["gained b", "0.000 → 1.000"],
        ["lost c", "1.000 → 0.000"],
        ["3 samples compared (passed: ≥ 0.5): 2 gained, 1 lost, 0 still pass, 0 still fail"],
        ["mean reward changed by +0.333 (95%, paired: -0.585 … 0.877)"],
        ["not compared, without a score at one of the steps: 1 sample"],
    ]


def test_flips_of_repeats_say_whose_answers_they_show(run: Path, heldout: Heldout) -> None:
    def repeated(step: int, *rewards: float) -> CurvePoint:
        outcomes = [ItemOutcome("a", reward, repeat) for repeat, reward in enumerate(rewards)]
        return point(step, *rewards, outcomes=tuple(outcomes))

    append(repeated(200, 0.0, 0.0), repeated(250, 0.0, 1.0))
    out = heldout("curve", "flips", "rl_eval", "--from", "200", "--to", "250").out
    assert "rewards are means over a sample's attempts, and answers are those of the first" in out


def test_flips_have_question_target_and_answers_where_conversations_were_saved(
    run: Path, heldout: Heldout
) -> None:
    for step, said in ((200, "Lyon"), (250, "Paris")):
        messages = (Message("user", "Capital of\nFrance?"), Message("assistant", said))
        save(result("a", *messages, truth="Paris"), path=str(RUN / f"steps/00000{step}"))
    append(point(200, 0.0, 1.0, run="steps/00000200"), point(250, 1.0, 1.0, run="steps/00000250"))
    arguments = ("curve", "flips", "rl_eval", "--from", "200", "--to", "250")
    assert heldout(*arguments).out.splitlines()[1:6] == [
        "gained a  0.000 → 1.000",
        "question  Capital of France?",
        "target    Paris",
        "at 200    Lyon",
        "at 250    Paris",
    ]
    (flip,) = json.loads(heldout(*arguments, "--json").out)["gained"]
    assert (flip["answer_before"], flip["answer_after"]) == ("Lyon", "Paris")


def test_flips_lists_as_many_as_are_asked_for(run: Path, heldout: Heldout) -> None:
    append(point(200, *[0.0] * 12), point(250, *[1.0] * 12))
    arguments = ("curve", "flips", "rl_eval", "--from", "200", "--to", "250")
    assert "10 of 12 are listed; --limit N lists more, --json all." in heldout(*arguments).out
    assert "are listed" not in heldout(*arguments, "-n", "12").out
    assert len(json.loads(heldout(*arguments, "--json").out)["gained"]) == 12


def test_flips_uses_the_threshold_of_the_run(run: Path, heldout: Heldout) -> None:
    RunDir(RUN).write_info(RunInfo.new({**CONFIG, "pass_threshold": -1}, {}))
    assert "0 gained, 0 lost, 3 still pass" in heldout("curve", "flips", "rl_eval").out


def test_flips_names_the_steps_there_are(run: Path, heldout: Heldout) -> None:
    outcome = heldout("curve", "flips", "rl_eval", "--to", "100")
    assert outcome.code == 2
    assert "no result at step 100; there are 0, 50, 150" in outcome.err
    CURVE.unlink()
    append(point(0))
    assert "Error: no step has a result yet" in heldout("curve", "flips", "rl_eval").err


def test_flips_asks_which_eval_where_there_are_several(run: Path, heldout: Heldout) -> None:
    append(point(50, 1.0, label="other"))
    assert "of which eval?" in heldout("curve", "flips", "rl_eval").err
    assert "it has other, rl_eval" in heldout("curve", "flips", "rl_eval", "--label", "x").err
    assert heldout("curve", "flips", "rl_eval", "--label", "rl_eval").code == 0


# --- plot and stop ------------------------------------------------------------------------------


def test_plot_writes_the_picture_that_its_name_asks_for(run: Path, heldout: Heldout) -> None:
    outcome = heldout("curve", "plot", "rl_eval")
    assert (outcome.code, outcome.out) == (0, "Wrote curve.png.\n")
    assert Path("curve.png").read_bytes().startswith(b"\x89PNG")
    assert (
        heldout("curve", "plot", "rl_eval", str(RUN), "-o", "two.SVG", "--metric", "length").code
        == 0
    )
    assert b"<svg" in Path("two.SVG").read_bytes()


CANNOT_DRAW = {
    ("rl_eval", "-o", "curve.gif"): "curve.gif is no picture that can be drawn",
    ("rl_eval", "--metric", "nope"): "no metric 'nope'; it has reward, pass_rate, length",
    ("nowhere",): "there is no run at nowhere, nor at outputs/evals/nowhere",
    ("rl_eval", "-o", "no/where.png"): "cannot write no/where.png",
    ("skips",): "skips has no result yet: there is nothing to plot",
    (): "Missing argument",
}


def test_what_plot_cannot_draw_is_said(run: Path, heldout: Heldout) -> None:
    Path("skips").mkdir()
    with contextlib.closing(CurveWriter(Path("skips/curve.jsonl"))) as writer:
        writer.append(point(0))
    for arguments, said in CANNOT_DRAW.items():
        outcome = heldout("curve", "plot", *arguments)
        assert outcome.code == 2
        assert said in outcome.err


def test_stop_leaves_its_reason_for_the_training(writer: CurveWriter, heldout: Heldout) -> None:
    outcome = heldout("curve", "stop", "rl_eval", "--reason", "enough")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == "Asked the training run that writes outputs/evals/rl_eval to stop.\n"
    assert stop_requested(RUN) == "enough"
    assert "Asked to stop: enough" in heldout("show", "rl_eval").out


def test_stop_says_that_nobody_seems_to_be_there(run: Path, heldout: Heldout) -> None:
    finished = heldout("curve", "stop", "rl_eval")
    assert finished.code == 2
    assert "outputs/evals/rl_eval has finished: there is no training run to stop" in finished.err
    assert stop_requested(RUN) is None
    RunDir(RUN).write_info(RunInfo.new(CONFIG, {}))
    outcome = heldout("curve", "stop", "rl_eval")
    assert outcome.code == 0
    assert "No process seems to be writing it now" in outcome.err
    assert heldout("curve", "stop", "nowhere").code == 2
    assert not Path("nowhere").exists()


# --- Drawing ------------------------------------------------------------------------------------


def drawn(*series: Series, width: int = 40, height: int = 12) -> list[str]:
    return draw_curves(series, width, height).plain.split("\n")


def test_a_curve_rises_where_its_values_do() -> None:
    lines = drawn(Series([Dot(0, 0.0), Dot(100, 1.0)]))
    places = [(line.index("●"), row) for row, line in enumerate(lines) if "●" in line]
    (right, top), (left, bottom) = places
    assert top == 0
    assert bottom == 9
    assert left < right == 39
    assert lines[-1].split() == ["0", "100"]
    assert [float(line.split("┤")[0]) for line in lines if "┤" in line] == pytest.approx(
        [0.97, 0.56, 0.05], abs=0.02
    )


def test_hollow_points_and_skips_are_marked() -> None:
    lines = drawn(Series([Dot(0, 0.2), Dot(100, 0.4, hollow=True)], [50]))
    assert "".join(lines).count("○") == 1
    assert lines[-2].index("×") == pytest.approx(22, abs=2)


def test_the_band_lies_between_the_bounds() -> None:
    between = (0.4, 0.6)
    dots = [Dot(0, 0.5, between), Dot(90, 0.5, between), Dot(95, 0.0), Dot(100, 1.0)]
    lines = drawn(Series(dots), height=22)
    shaded = [row for row, line in enumerate(lines) if line[10] == "░"]
    drawn_over = [row for row, line in enumerate(lines) if "\u2800" < line[10] <= "\u28ff"]
    assert sorted(shaded + drawn_over) == [8, 9, 10, 11]  # of 20, from 1 at the top to 0
    assert len(drawn_over) == 1


DRAWN: list[list[Dot]] = [
    [],
    [Dot(0, 0.0)],
    [Dot(5, 0.3, (0.1, 0.5))],
    [Dot(0, -5.0), Dot(2**53, 1e9, (-1e12, 1e12))],
    [Dot(0, 1.0), Dot(1, 1.0 + 1e-16)],
    [Dot(i, i % 7 / 7, (0, 1)) for i in range(500)],
]


def test_every_drawing_fits() -> None:
    for dots, width, height in itertools.product(DRAWN, (1, 20, 40, 200), (1, 5, 24)):
        lines = drawn(Series(dots), width=width, height=height)
        if len(lines) > 1:
            assert len(lines) == height
            assert max(Text(line).cell_len for line in lines) <= width


def picture(path: Path, metric: str, console: Console) -> RenderableType:
    curve = read_curve(path)
    return draw_screen(curve, metric, console, latest_verdicts(curve))


@pytest.mark.parametrize(("width", "height"), [(40, 12), (200, 50), (15, 5)])
def test_the_picture_fits_the_terminal(run: Path, width: int, height: int) -> None:
    append(*(point(200 + i, 0.5, label="b", skipped="x" * 500) for i in range(20)))
    console = Console(width=width, height=height, file=open(os.devnull, "w"))  # noqa: PTH123, SIM115
    with console.file:
        lines = console.render_lines(picture(RUN, "reward", console))
    if width >= 40:
        assert len(lines) <= height
        assert "┤" in "".join(piece.text for line in lines for piece in line)
    assert all(sum(piece.cell_length for piece in line) <= width for line in lines)


def seen(path: Path, width: int = 80, height: int = 24) -> list[str]:
    """The picture of a watch, line by line."""
    console = Console(width=width, height=height, file=open(os.devnull, "w"))  # noqa: PTH123, SIM115
    with console.file:
        lines = console.render_lines(picture(path.parent, "reward", console))
    return ["".join(piece.text for piece in line).rstrip() for line in lines]


def test_the_picture_says_what_the_curve_says_now(run: Path) -> None:
    CURVE.unlink()
    append(*climb("rl_eval"))
    said = seen(CURVE, width=100)[2]
    assert re.fullmatch(r"improving: \+0.385 \(0.*\) from steps 20–60 to 70–110, paired.*", said)
    assert seen(CURVE, width=40)[2] == "improving +0.385"


def test_a_verdict_in_a_pipe_is_one_of_four_words(run: Path, heldout: Heldout) -> None:
    append(
        point(200, 1.0, verdict={"kind": "improving"}),
        point(250, 1.0, verdict={"kind": "\x1b[2J"}),
        point(300, 1.0, verdict={"kind": ["x"], "effect": "x"}),
        point(350, 1.0, verdict={"kind": "cannot tell"}),
    )
    *_, one, two, three, old = heldout("curve", "watch", "rl_eval", "--once").out.splitlines()
    assert "  verdict improving  " in one
    assert "verdict" not in two + three
    assert "  verdict inconclusive  " in old  # the word of earlier versions
    assert show_points(heldout)[-1]["verdict"]["kind"] == "inconclusive"


# --- watch --------------------------------------------------------------------------------------


def test_watch_in_a_pipe_prints_a_line_a_point(run: Path, heldout: Heldout) -> None:
    out = heldout("curve", "watch", "rl_eval", "--once").out.splitlines()
    assert out == [
        "step 0  reward 0.250  95% interval 0.100 … 0.900  passed 0.500  n 4  errors 1  "
        "seconds 2.0  note 0.333 without errored items  length 12.000 of 3",
        "step 50  reward 0.750  95% interval 0.100 … 0.900  passed 0.500  n 4  errors 0  "
        "seconds 2.0  length 12.000",
        "step 100  seconds 2.0  note skipped: no memory left",
        "step 150  reward 0.750  95% interval 0.100 … 0.900  passed 0.500  n 4  errors 0  "
        "seconds 2.0  note final  length 12.000",
    ]


def test_watch_does_not_wait_where_nothing_can_come(folder: Path, heldout: Heldout) -> None:
    save(result("a"), path="outputs/evals/plain")
    for arguments, said in (
        (["nowhere", "--once"], "there is no run at nowhere"),
        (["plain"], "nothing was evaluated there during training"),
    ):
        outcome = heldout("curve", "watch", *arguments)
        assert outcome.code == 2
        assert said in outcome.err


def test_watch_waits_and_says_what_may_have_been_meant(
    run: Path, heldout: Heldout, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", interrupted)
    Path("outputs/evals/empty").mkdir()
    for name, meant in {
        "rl_evals": " (did you mean rl_eval?)",
        "outputs/evals/rleval": " (did you mean outputs/evals/rl_eval?)",
        "something_else": "",
        "empti": "",
        "no/such/place": "",
    }.items():
        outcome = heldout("curve", "watch", name)
        assert outcome.code == 0
        assert outcome.err == f"Waiting for {name}/curve.jsonl; Ctrl-C ends{meant}\n"


@pytest.mark.integration
def test_watch_in_a_pipe_waits_for_the_run_and_follows_it(folder: Path) -> None:
    process = subprocess.Popen(
        command_of("curve", "watch", "rl_eval", "--interval", "0.05"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process.stdout, process.stderr:
        assert process.stderr.readline() == "Waiting for rl_eval/curve.jsonl; Ctrl-C ends\n"
        RUN.mkdir(parents=True)
        append(point(0, 1.0))
        assert process.stdout.readline().startswith("step 0  reward 1.000")
        with CURVE.open("ab") as file:
            file.write(b'{"label":"rl_ev')  # and its writer is killed
        append(point(50, 0.0))
        assert process.stdout.readline().startswith("step 50  reward 0.000")
        process.send_signal(signal.SIGINT)
        assert (process.wait(timeout=20), process.stderr.read()) == (0, "")


@pytest.mark.integration
def test_watch_on_a_terminal_draws_until_interrupted(folder: Path) -> None:
    terminal = Terminal("curve", "watch", "rl_eval", "--interval", "0.05", columns=60)
    terminal.read_until("Waiting for rl_eval/curve.jsonl")
    RUN.mkdir(parents=True)
    append(*POINTS)
    terminal.read_until("no process is writing it now")
    terminal.read_until("●")
    terminal.read_until("×")
    append(point(200, 1.0, 0.0, asked=4, of=4, partial="out of time"))
    terminal.read_until("○")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.read_all() == 0
    assert "Interrupted" not in terminal.written
    # Onto a screen of its own and back, after which the last picture is left.
    screen, _, left = terminal.written.partition("\x1b[?1049l")
    assert screen.count("\x1b[?1049h") == 1
    assert "○" in left


# --- Evals beside the training ------------------------------------------------------------------


def beside(step: int, lag: int, **metrics: float) -> CurvePoint:
    """What an evaluator that knows nothing but numbers leaves."""
    summary: dict[str, Any] = {"n": None, "mean": None}
    for name, value in metrics.items():
        summary |= {
            f"metric_{name}": value,
            f"metric_{name}_n": None,
            f"metric_{name}_stderr": None,
        }
    return point(step, summary=summary, skipped=None, lag_steps=lag)


def test_numbers_without_a_denominator_do_not_claim_one(heldout: Heldout) -> None:
    RUN.mkdir(parents=True)
    append(beside(10, 3, accuracy=0.25), beside(20, 0, accuracy=0.5))
    shown = heldout("show", "rl_eval").out
    assert "accuracy" in shown
    assert "steps late" in shown
    for absent in ("reward", " n ", "interval", "passed"):
        assert absent not in shown
    lines = heldout("curve", "watch", "rl_eval", "--once").out.splitlines()
    assert lines[0] == "step 10  seconds 2.0  steps late 3  accuracy 0.250"
    assert lines[1] == "step 20  seconds 2.0  accuracy 0.500"


def test_a_plot_of_numbers_without_a_denominator_says_so() -> None:
    from heldout.training.curve.plot import NamedCurve, _count

    curve = NamedCurve("remote", [beside(10, 3, accuracy=0.25)])
    assert _count([curve], "accuracy") == "n unknown"
    assert _count([NamedCurve("here", [point(10, 1.0, 0.0)])], "reward") == "n = 2"
