"""What the pages show: the numbers and sentences of the command line, and no others."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from heldout import (
    EvalConfig,
    EvalReport,
    EvalResult,
    Message,
    Metric,
    Sample,
    Score,
    ToolCall,
    Trajectory,
    evaluate,
)
from heldout.errors import InvalidInput, NotComparable, SystemicFailure
from heldout.store.journal import JournalWriter
from heldout.store.run_dir import RunDir, RunInfo
from heldout.training.curve.points import CURVE_NAME
from heldout.types import TokenTrace
from heldout.viewer.pages import Pages, UnknownRun, scan_runs
from heldout.viewer.values import numbers
from tests.training.curves import point
from tests.viewer.conftest import HOSTILE, Command
from tests.viewer.runs import (
    make_curve,
    make_metrics_only,
    make_questions,
    make_two_evals,
    save_results,
)

Json = Callable[..., Any]


def lines_of(blocks: list[dict[str, Any]]) -> list[str]:
    return [block["line"] for block in blocks if "line" in block]


# --- Runs ---------------------------------------------------------------------------------------


def test_runs_are_listed_the_newest_first_with_their_numbers(pages: Pages) -> None:
    rows = {row["name"]: row for row in pages.runs()["runs"]}
    assert rows["shop-base"]["kind"] == "run"
    assert rows["cartpole"]["kind"] == "episodes"
    assert rows["grpo-shop"]["kind"] == "curve"
    (verdict,) = rows["grpo-shop"]["verdicts"]
    assert verdict["kind"] in ("improving", "inconclusive")
    assert len(rows["grpo-shop"]["spark"]) == 7
    assert (rows["shop-killed"]["status"], rows["shop-killed"]["n"]) == ("interrupted", 37)
    assert rows["shop-killed"]["asked"] == 60
    assert "cannot be read" in rows["damaged"]["problem"]
    started = [row["started"] or "" for row in pages.runs()["runs"]]
    assert started == sorted(started, reverse=True)


def test_a_curve_of_several_evals_has_a_verdict_each_the_worst_first(tmp_path: Path) -> None:
    make_two_evals(tmp_path)
    (row,) = Pages([tmp_path]).runs()["runs"]
    kinds = [(one["label"], one["kind"], one["short"]) for one in row["verdicts"]]
    assert kinds == [
        ("safety", "regressing", "regressing"),
        ("math", "improving", "improving"),
    ]
    assert row["text"]["mean"] == "0.250"  # that of safety


def test_runs_are_found_three_levels_deep_and_links_are_not_followed(tmp_path: Path) -> None:
    result = EvalResult("q", Sample("q", {}), Trajectory(()), Score((Metric("m", 1.0, 1.0),)))
    save_results(tmp_path / "root" / "a" / "b" / "c", [result])
    save_results(tmp_path / "root" / "too" / "deep" / "for" / "this", [result])
    save_results(tmp_path / "outside", [result])
    (tmp_path / "root" / "link").symlink_to(tmp_path / "outside")
    assert list(scan_runs([tmp_path / "root"])) == ["a/b/c"]
    save_results(tmp_path / "root" / "a" / "b" / "c" / "2026-11-15T22-08-31", [result])
    assert list(scan_runs([tmp_path / "root"])) == ["a/b/c", "a/b/c/2026-11-15T22-08-31"]
    assert list(scan_runs([tmp_path / "outside"])) == ["outside"]
    assert scan_runs([tmp_path / "nowhere"]) == {}


@pytest.mark.parametrize(
    "name", ["", "nope", "../runs", "/etc", "shop-base/../shop-base", "shop-base\0", "shop-base@1"]
)
def test_a_name_that_the_scan_does_not_have_is_refused(pages: Pages, name: str) -> None:
    with pytest.raises((UnknownRun, InvalidInput)):
        pages.run(name)
    with pytest.raises(UnknownRun, match="did you mean shop-base"):
        pages.run("shop-bas")


# --- One run ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["shop-base", "shop-tuned", "arithmetic", "shop-killed", "cartpole", "shop-base-strict"]
)
def test_a_runs_numbers_are_those_of_show(
    pages: Pages, folder: Path, name: str, command: Command, command_json: Json
) -> None:
    run = pages.run(name)
    shown = command_json("show", folder / name)
    assert msgspec.json.decode(msgspec.json.encode(run["summary"])) == shown["summary"]
    assert run["status"] == shown["status"]
    printed = command("show", folder / name)
    for row in run["table"]["rows"]:
        assert " ".join(row[0].split()) in printed
        assert row[1] in printed
        assert row[2] in printed
    timed = " ".join(command("show", folder / name, "--time").split())
    for line in lines_of([*run["notes"], *run["about"]]):
        assert line in printed or line.removeprefix("Time: ") in timed


def test_an_unfinished_run_says_so(pages: Pages) -> None:
    run = pages.run("shop-killed")
    assert run["unfinished"]
    assert lines_of(run["notes"])[0].startswith("Not finished: interrupted after 37 of 60 items")


def test_an_interrupted_run_says_how_to_go_on(pages: Pages, tmp_path: Path, folder: Path) -> None:
    assert pages.run("shop-killed")["resume"] is None  # a test began it
    shutil.copytree(folder / "shop-killed", tmp_path / "run")
    run = RunDir(tmp_path / "run")
    info = run.read_info()
    info.command = ["/usr/bin/heldout", "run", "my eval.py", "--set", "retries=2"]
    run.write_info(info)
    resume = Pages([tmp_path]).run("run")["resume"]
    assert resume == "heldout run 'my eval.py' --set retries=2 --resume"


def test_slices_are_those_of_the_command_line(pages: Pages, folder: Path, command: Command) -> None:
    printed = command("show", folder / "shop-base", "--by", "level", "--json").splitlines()
    expected = [json.loads(line) for line in printed]
    slices = pages.slices("shop-base", "level")
    assert [row["value"] for row in slices["rows"]] == ["easy", "medium", "hard"]
    for row, summary in zip(slices["rows"], expected, strict=True):
        assert (row["mean"], row["low"], row["high"], row["n"], row["errors"]) == tuple(
            summary[key] for key in ("mean", "ci_low", "ci_high", "n", "n_errors")
        )


def rows(pages: Pages, name: str, where: str = "", sort: str = "", limit: int = 100) -> Any:
    return pages.rows(name, where, sort, [], 0, limit)


def test_rows_picked_by_metadata_have_the_mean_that_where_gives(pages: Pages, folder: Path) -> None:
    picked = rows(pages, "shop-base", "level:hard topic!=price")
    report = EvalReport.load(folder / "shop-base").where(
        "metadata.level = 'hard' and metadata.topic <> 'price'"
    )
    assert picked["picked"] == "metadata"
    assert picked["mean"]["mean"] == report.summary["mean"]
    assert picked["mean"]["low"] == report.summary["ci_low"]
    assert picked["mean"]["errors"] == report.summary["n_errors"]
    assert picked["total"] == picked["mean"]["n"] == report.summary["n"]


@pytest.mark.parametrize(
    "where",
    ["failed:yes", "reward<1 level:hard", "text:sofa", "tokens>50", "brief:1", "error:closed"],
)
def test_rows_picked_by_outcome_have_counts_and_no_mean(pages: Pages, where: str) -> None:
    picked = rows(pages, "shop-base", where)
    assert picked["picked"] == "outcome"
    assert picked["mean"] is None
    counts = picked["counts"]
    assert counts["passed"] + counts["failed"] + counts["errored"] == picked["total"]


def test_metadata_that_results_add_is_an_outcome(pages: Pages) -> None:
    assert rows(pages, "cartpole", "success:true")["picked"] == "outcome"


def test_a_row_shows_what_the_grader_extracted(pages: Pages) -> None:
    head = rows(pages, "shop-base", "", "-tokens")
    tokens = [row["tokens"] for row in head["rows"] if row["tokens"] is not None]
    assert tokens == sorted(tokens, reverse=True)
    row = next(row for row in rows(pages, "shop-base")["rows"] if row["outcome"] == "passed")
    assert row["extracted"] == row["target"]
    assert "Answer:" in row["answer"]
    assert head["extra"] == ["items", "level", "topic"]
    chosen = pages.rows("shop-base", "", "", ["metric.brief", "level"], 0, 1)
    assert chosen["extra"] == ["metric.brief", "level"]
    assert len(chosen["rows"][0]["extra"]) == 2
    second = pages.rows("shop-base", "", "", [], 10, 5)
    assert [row["id"] for row in second["rows"]] == [
        r["id"] for r in rows(pages, "shop-base")["rows"][10:15]
    ]


def test_rows_that_are_asked_for_quickly_have_no_count_unless_it_is_known(pages: Pages) -> None:
    whole = pages.rows("shop-base", "text:lamp", "", [], 0, 5)
    quick = pages.rows("shop-base", "text:lamp", "", [], 0, 5, 1)
    assert quick == whole | {"total": None, "counts": None}
    for where, limit in (("text:lamp", 100), ("level:hard", 5)):
        known = pages.rows("shop-base", where, "", [], 0, limit, 1)
        assert known == pages.rows("shop-base", where, "", [], 0, limit)


# --- One sample ---------------------------------------------------------------------------------


def test_a_sample_pairs_tool_calls_with_results_and_marks_what_was_extracted(
    pages: Pages,
) -> None:
    passed = next(r for r in rows(pages, "shop-base")["rows"] if r["outcome"] == "passed")
    sample = pages.sample("shop-base", passed["id"], 0)
    assert [turn["role"] for turn in sample["turns"]] == [
        "system",
        "user",
        "assistant",
        "assistant",
    ]
    (call,) = sample["turns"][2]["calls"]
    assert call["name"] == "look_up"
    assert call["problem"] is None
    assert float(call["result"]) > 0
    start, end = sample["turns"][3]["mark"]
    assert sample["turns"][3]["text"][start:end] == passed["extracted"]


def test_a_sample_has_the_time_of_each_turn_and_the_tools_of_the_run(pages: Pages) -> None:
    for name in ("shop-base", "shop-base-strict", "shop-killed"):
        sample = pages.sample(name, "price-004", 0)
        asked, *said = sample["turns"][1:]
        assert "seconds" not in asked
        times = [turn[key] for turn in said for key in ("seconds", "reply_seconds")]
        assert all(time >= 0 for time in times)
        assert 0 < sum(times) <= sample["seconds"]
        (tool,) = sample["tools"]
        assert tool["name"] == "look_up"
        assert json.loads(tool["parameters"])["required"] == ["item"]
    # Nothing is made up where nothing was measured.
    old = pages.sample("hostile", HOSTILE[0], 0)
    assert not any("seconds" in turn for turn in old["turns"])


def test_every_attempt_has_its_outcome(pages: Pages) -> None:
    attempt = pages.sample("arithmetic", "sum-03", 2)
    assert [r["repeat"] for r in attempt["repeats"]] == [0, 1, 2, 3]
    assert attempt["repeat"] == 2
    with pytest.raises(UnknownRun, match="no attempt 5"):
        pages.sample("arithmetic", "sum-03", 4)
    with pytest.raises(UnknownRun, match="near it are sum-.., sum-.., sum-.."):
        pages.sample("arithmetic", "sum-0", 0)


def test_an_errored_item_has_its_error_and_no_reward(pages: Pages) -> None:
    sample = pages.sample("hostile", "broken", 0)
    assert (sample["outcome"], sample["reward"]) == ("errored", None)
    assert sample["error"] == "\n".join(HOSTILE)
    assert f"1 × {HOSTILE[0]}" in lines_of(pages.run("hostile")["notes"])


def test_a_run_with_too_many_errors_has_counts_and_no_mean_on_any_page(tmp_path: Path) -> None:
    def answer(messages: list[Message]) -> str:
        return "yes" if "1" in messages[-1].text else str(1 / 0)

    samples = [Sample(f"q{i}", {"text": f"{i}?"}, metadata={"odd": i % 2}) for i in range(4)]
    config = EvalConfig(answer, "run", output_dir=str(tmp_path))
    with pytest.raises(SystemicFailure):
        asyncio.run(evaluate(samples, config, lambda trajectory, sample: 1.0))
    pages = Pages([tmp_path])
    page = pages.run("run")
    assert page["status"] == "failed"
    assert lines_of(page["notes"])[0].startswith("Failed: 3 of 4 items errored")
    assert (page["summary"]["mean"], page["summary"]["n_errors"]) == (None, 3)
    (row,) = pages.runs()["runs"]
    assert (row["mean"], row["mean_scored"], row["errors"]) == (None, None, 3)
    assert {part["mean"] for part in pages.slices("run", "odd")["rows"]} == {None}
    assert pages.rows("run", "odd:1", "", [], 0, 5)["mean"]["mean"] is None


def test_an_episode_without_a_conversation_has_its_input_and_metrics(pages: Pages) -> None:
    sample = pages.sample("cartpole", "episode-3", 0)
    assert sample["turns"] == []
    assert sample["input"]["env"] == "CartPole-v1"
    assert {metric["name"] for metric in sample["metrics"]} == {"success", "return", "steps"}


def test_the_tokens_of_a_rollout_are_told_apart(tmp_path: Path) -> None:
    trace = TokenTrace((1, 2), (3, 4, 5, 6), None, (1, 1, 0, 1))
    result = EvalResult("q", Sample("q", {}), Trajectory((), tokens=trace))
    save_results(tmp_path / "run", [result])
    assert Pages([tmp_path / "run"]).sample("run", "q", 0)["trace"] == [(1, 2), (0, 1), (1, 1)]


def test_arguments_that_are_no_json_are_shown_as_written(tmp_path: Path) -> None:
    call = ToolCall("c", "f", '{"item": "de')
    result = EvalResult(
        "q", Sample("q", {}), Trajectory((Message("assistant", "", tool_calls=(call,)),))
    )
    save_results(tmp_path / "run", [result])
    (turn,) = Pages([tmp_path / "run"]).sample("run", "q", 0)["turns"]
    assert turn["calls"][0]["arguments"] == '{"item": "de'
    assert turn["calls"][0]["problem"].startswith("not JSON: ")
    assert turn["calls"][0]["result"] is None


def test_calls_of_one_id_have_each_its_own_result(tmp_path: Path) -> None:
    messages = [
        message
        for result in ("4", "9")
        for message in (
            Message("assistant", "", (ToolCall("f:0", "f"),), api_turn={"api": "x"}),
            Message("tool", result, tool_call_id="f:0"),
        )
    ]
    save_results(tmp_path / "run", [EvalResult("q", Sample("q", {}), Trajectory(tuple(messages)))])
    sample = Pages([tmp_path / "run"]).sample("run", "q", 0)
    assert [turn["calls"][0]["result"] for turn in sample["turns"]] == ["4", "9"]
    assert "api_turn" not in json.dumps(sample)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_arrives_as_it_is(pages: Pages, text: str) -> None:
    sample = pages.sample("hostile", text, 0)
    turns = sample["turns"]
    assert [turn["text"] for turn in turns] == [text] * 4
    assert turns[2]["reasoning"] == turns[2]["calls"][0]["name"] == text
    assert turns[2]["calls"][0]["result"] == text
    assert sample["metrics"][0]["extracted"] == sample["metrics"][0]["note"] == text
    assert sample["target"] == sample["metadata"]["kind"] == text
    found = rows(pages, "hostile", f"kind:{json.dumps(text)}")
    assert [row["id"] for row in found["rows"]] == [text]


# --- Two runs -----------------------------------------------------------------------------------


def test_a_comparison_is_that_of_the_command_line(
    pages: Pages, folder: Path, command: Command, command_json: Json
) -> None:
    runs = folder / "shop-base", folder / "shop-tuned"
    page = pages.compare("shop-base", "shop-tuned", "level", "", [])
    shown = command_json("compare", *runs, "--by", "level")
    assert page["verdict"] == shown["verdict"]
    assert (page["difference"], page["low"], page["high"]) == tuple(
        shown["overall"][key] for key in ("difference", "ci_low", "ci_high")
    )
    assert page["with_errors"]["difference"] == shown["with_errors"]["difference"]
    assert [(part["difference"], part["low"]) for part in page["slices"]] == [
        (part["difference"], part["simultaneous_ci_low"])
        for label in ("easy", "medium", "hard")
        for part in shown["slices"]
        if part["slice"] == {"level": label}
    ]
    printed = command("compare", *runs, "--by", "level")
    named = "shop-tuned is better than shop-base"
    assert page["sentence"].startswith(named)
    assert page["sentence"].replace(named, "B is better") in printed
    for line in lines_of([*page["blocks"], *page["slice_blocks"]]):
        assert line in printed
    assert (page["gained"], page["lost"]) == (shown["gained_total"], shown["lost_total"])
    assert {"key": "endpoint.name", "a": "base-1b", "b": "tuned-1b"} in page["config"]


PAIR = ("shop-base", "shop-tuned", "", ())


@pytest.mark.parametrize(
    ("where", "holds"),
    [
        ("", lambda a, b: True),
        ("gained:yes", lambda a, b: a == 0 and b == 1),
        ("lost:yes", lambda a, b: a == 1 and b == 0),
        ("equal:yes a:1", lambda a, b: a == b == 1),
        ("-difference>=0", lambda a, b: a is None or b is None or b < a),
        ("compared:no", lambda a, b: a is None or b is None),
    ],
)
def test_samples_of_two_runs_are_filtered_by_both_values_ties_and_errors_included(
    pages: Pages, where: str, holds: Callable[[Any, Any], bool]
) -> None:
    read = [pages.rows(name, "", "", [], 0, 200)["rows"] for name in PAIR[:2]]
    rewards = [{row["id"]: row["reward"] for row in side} for side in read]
    wanted = [id for id in rewards[0] if holds(rewards[0][id], rewards[1][id])]
    found = pages.pairs(*PAIR, where, "", 0, 200)
    assert found["total"] == len(wanted)
    assert [row["id"] for row in found["rows"]] == wanted
    assert pages.pairs(*PAIR, where, "-id", 1, 2)["rows"] == [
        next(row for row in found["rows"] if row["id"] == id) for id in sorted(wanted)[::-1][1:3]
    ]


def test_samples_of_two_runs_are_filtered_by_metadata_and_text_of_either(pages: Pages) -> None:
    for where in ("level:hard", "text:lamp"):
        found = pages.pairs(*PAIR, where, "", 0, 9)
        assert found["total"] == rows(pages, PAIR[0], where)["total"] < found["of"]
    with pytest.raises(InvalidInput, match="samples of two runs have no 'reward'"):
        pages.pairs(*PAIR, "reward<1", "", 0, 9)


def test_several_runs_are_compared_with_the_first_and_corrected_for_their_number(
    pages: Pages,
) -> None:
    names = ["shop-base", "shop-tuned", "shop-base-strict"]
    one, two = pages.several(names[:2], "", []), pages.several(names, "", [])
    alone = pages.compare("shop-base", "shop-tuned", "", "", [])
    assert (one["rows"][1]["readings"][0]["low"], two["compared"]) == (alone["low"], 2)
    narrow, wide = (several["rows"][1]["readings"][0] for several in (one, two))
    assert wide["low"] < narrow["low"] < narrow["high"] < wide["high"]
    assert [row.get("verdict") for row in two["rows"]][:2] == [None, "higher"]
    with pytest.raises(InvalidInput, match="2 to 12 runs, got 1"):
        pages.several(["shop-base"] * 2, "", [])


def test_what_is_not_comparable_is_refused_until_it_is_allowed(pages: Pages) -> None:
    with pytest.raises(NotComparable) as refusal:
        pages.compare("shop-base", "arithmetic", "", "", [])
    kinds = refusal.value.kinds
    assert kinds == ("samples", "scorer", "environment")
    with pytest.raises(NotComparable):
        pages.pairs("shop-base", "arithmetic", "", ["samples"], "", "", 0, 9)
    page = pages.compare("shop-base", "arithmetic", "", "", kinds)
    assert any("allowed to differ: scorer" in line for line in lines_of(page["blocks"]))
    assert page["wins"] is None


def test_the_same_answers_scored_twice_are_no_better(pages: Pages) -> None:
    page = pages.compare("shop-base", "shop-base-strict", "", "", [])
    assert any("the same answers, scored twice" in line for line in lines_of(page["blocks"]))


def test_evals_of_a_curve_are_compared_by_their_steps(pages: Pages) -> None:
    page = pages.compare("grpo-shop@0", "grpo-shop@120", "", "", [])
    assert page["sentence"].startswith("grpo-shop@120 is better than grpo-shop@0: ")
    assert page["a"]["name"] == "grpo-shop@0"
    with pytest.raises(InvalidInput, match="is a curve of many evals"):
        pages.compare("grpo-shop", "shop-base", "", "", [])


# --- Curves -------------------------------------------------------------------------------------


def test_a_curve_has_the_verdict_and_the_best_step_that_show_prints(
    pages: Pages, folder: Path, command: Command, command_json: Json
) -> None:
    curve = pages.curve("grpo-shop", "", "")
    printed = command("show", folder / "grpo-shop")
    assert curve["verdict"]["sentence"] in printed
    assert curve["best"]["sentence"] in printed
    stored = command_json("show", folder / "grpo-shop")["points"]
    assert [(p["step"], p["mean"], p["low"]) for p in curve["points"]] == [
        (p["step"], p["summary"]["mean"], p["summary"]["ci_low"]) for p in stored
    ]
    errored = next(p for p in curve["points"] if p["errors"])
    assert errored["mean_scored"] > errored["mean"]
    assert curve["every"] == 20
    assert pages.curve("grpo-shop", "", "brief")["points"][0]["mean"] == 1.0


def test_a_curve_without_stored_verdicts_is_judged_by_the_settings_of_its_run(
    tmp_path: Path,
) -> None:
    from heldout.store.run_dir import RunInfo
    from heldout.training.curve.points import CurveWriter
    from tests.training.curves import FLAT, curve

    run = RunDir(tmp_path / "flat")
    run.path.mkdir()
    writer = CurveWriter(run.curve)
    for each in curve(FLAT):
        writer.append(each)
    writer.close()
    for effect, kind in ((0.05, "plateau"), (0.02, "inconclusive")):
        monitor = {"effect": effect, "alpha": 0.05, "window": 10, "bounds": None}
        run.write_info(RunInfo.new({"label": "rl_eval", "monitor": monitor}, {}))
        pages = Pages([tmp_path])
        (row,) = pages.runs()["runs"]
        assert [verdict["kind"] for verdict in row["verdicts"]] == [kind]
        shown = pages.curve("flat", "", "")
        assert shown["verdict"]["kind"] == shown["points"][-1]["kind"] == kind


def test_flips_of_two_steps_are_those_of_the_command_line(
    pages: Pages, folder: Path, command: Command, command_json: Json
) -> None:
    shown = command_json("curve", "flips", folder / "grpo-shop", "--from", 0, "--to", 120)
    flips = pages.curve_flips("grpo-shop", "", 0, 120)
    assert [row["id"] for row in flips["gained"]["rows"]] == [c["id"] for c in shown["gained"]]
    assert flips["lost"]["total"] == len(shown["lost"])
    printed = command("curve", "flips", folder / "grpo-shop", "--from", 0, "--to", 120)
    for line in lines_of(flips["notes"]):
        assert line in printed
    with pytest.raises(InvalidInput, match="no result at step 7"):
        pages.curve_flips("grpo-shop", "", 7, 120)


def test_one_sample_is_followed_across_steps(pages: Pages) -> None:
    strip = pages.strip("grpo-shop", "")
    assert strip["steps"] == list(range(0, 121, 20))
    flipped = strip["rows"][0]
    history = pages.history("grpo-shop", "", flipped["id"])
    words = {"passed": "p", "failed": "f", "errored": "e"}
    assert "".join(words[step["outcome"]] for step in history["steps"]) == flipped["cells"]
    answers = [step["answer"] for step in history["steps"]]
    assert [step["changed"] for step in history["steps"]] == [
        i == 0 or answers[i] != answers[i - 1] for i in range(len(answers))
    ]
    last = history["steps"][-1]
    assert pages.sample(last["run"], flipped["id"], 0)["answer"] == last["answer"]
    with pytest.raises(UnknownRun, match="has a sample"):
        pages.history("grpo-shop", "", "nope")


def test_a_path_in_a_curve_is_never_followed(folder: Path, tmp_path: Path) -> None:
    make_curve(tmp_path, 20, samples=8)
    curve = tmp_path / "grpo-shop" / CURVE_NAME
    curve.write_bytes(
        curve.read_bytes().replace(b'"run":"steps/00000020"', b'"run":"../../outside"')
    )
    history = Pages([tmp_path]).history("grpo-shop", "", "price-000")
    assert ["answer" in step for step in history["steps"]] == [True, False]


def test_each_metric_of_a_curve_has_its_own_denominator(tmp_path: Path) -> None:
    from heldout.training.curve.points import CurveWriter

    bounds = {"ci_low": 0.1, "ci_high": 0.9, "pass_at_4_ci_low": 0.2, "pass_at_4_ci_high": 1.0}
    some = {"metric_words": 3.0, "metric_words_n": 150, "metric_words_stderr": 0.1}
    summary = {"n": 160, "mean": 0.5, "pass_rate": 0.5, "pass_at_4": 0.9, "pass_at_4_n": 40}
    (tmp_path / "new").mkdir()
    writer = CurveWriter(tmp_path / "new" / CURVE_NAME)
    writer.append(point(10, summary={**summary, **some, **bounds}))
    writer.close()
    pages = Pages([tmp_path])
    assert pages.curve("new", "", "")["metrics"] == ["reward", "pass_rate", "words", "pass@4"]
    shown = {name: pages.curve("new", "", name)["points"][0] for name in ("", "words", "pass@4")}
    assert [each["n"] for each in shown.values()] == ["160", "150 of 160", "40 samples"]
    assert shown["pass@4"]["text"]["mean"] == "0.900"
    assert shown["pass@4"]["text"]["interval"] == "0.200 … 1.000"


def test_a_curve_without_a_point_is_waited_for(tmp_path: Path) -> None:
    from heldout.training.curve.points import CurveWriter

    (tmp_path / "new").mkdir()
    CurveWriter(tmp_path / "new" / CURVE_NAME).close()
    curve = Pages([tmp_path]).curve("new", "", "")
    assert (curve["points"], curve.get("verdict")) == ([], None)


# --- Events -------------------------------------------------------------------------------------


def test_a_change_of_a_run_is_an_event_once(tmp_path: Path) -> None:
    evals = make_curve(tmp_path, 20, samples=8)
    pages = Pages([tmp_path])
    state = pages.curve("grpo-shop", "", "")["state"]
    assert pages.events(["grpo-shop"], state) == ([], state)
    evals.run_final(33)
    (event,), now = pages.events(["grpo-shop"], state)
    assert event == ("changed", {"name": "grpo-shop", "lines": 0})
    assert pages.events(["grpo-shop"], now) == ([], now)
    assert pages.curve("grpo-shop", "", "")["points"][-1]["step"] == 33


def test_a_new_run_is_an_event_of_the_list(tmp_path: Path) -> None:
    pages = Pages([tmp_path])
    state = pages.runs()["state"]
    result = EvalResult("q", Sample("q", {}), Trajectory(()), Score((Metric("m", 1.0, 1.0),)))
    save_results(tmp_path / "run", [result])
    assert pages.events([], state)[0] == [("runs", {})]
    assert RunDir(tmp_path / "run").exists()
    assert [row["name"] for row in pages.runs()["runs"]] == ["run"]


def test_the_row_of_a_running_run_moves_with_every_result(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "live")
    run.make()
    run.write_info(RunInfo.new({"experiment_name": "live", "repeats": 1}, {}, asked=9))
    pages = Pages([tmp_path])
    journal = JournalWriter(run.journal)
    samples = make_questions(4)
    for index, reward in ((2, None), (0, 1.0), (2, 0.5), (1, 0.0)):  # the error is run again
        state = pages.runs()["state"]
        assert pages.events([], state)[0] == []
        sample, score = samples[index], Score((Metric("m", reward or 0.0, 1.0),))
        error = "no" if reward is None else None
        result = EvalResult(
            sample.id, sample, Trajectory(()), Score() if error else score, error=error
        )
        journal.append(index, result)
        assert pages.events([], state)[0] == [("runs", {})]
        (row,) = pages.runs()["runs"]
        assert row["status"] == "running"
        expected = numbers(EvalReport.load(run.path).summary)
        assert {key: row[key] for key in expected} == expected
    journal.close()
    assert pages.runs()["runs"][0]["status"] == "interrupted"


def test_a_run_whose_journal_has_lost_lines_is_not_listed_as_finished(
    folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder / "shop-base", tmp_path / "cut")
    journal = tmp_path / "cut" / "results.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:50]))
    (row,) = Pages([tmp_path]).runs()["runs"]
    assert (row["status"], row["unfinished"], row["n"], row["asked"]) == (
        "incomplete", True, 49, 120,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("root", "name"),
    [
        ("", "capitals/2026-01-02T03-04-05"),
        ("capitals", "capitals/2026-01-02T03-04-05"),
        ("capitals/2026-01-02T03-04-05", "capitals/2026-01-02T03-04-05"),
    ],
)
def test_a_run_is_never_named_by_its_time_alone(
    folder: Path, tmp_path: Path, root: str, name: str
) -> None:
    path = tmp_path / "capitals" / "2026-01-02T03-04-05"
    shutil.copytree(folder / "shop-base", path)
    assert scan_runs([tmp_path / root]) == {name: path}


def test_a_curve_is_drawn_by_what_its_evals_have(tmp_path: Path) -> None:
    make_metrics_only(tmp_path)
    make_curve(tmp_path, 20, samples=8, name="rewarded")
    pages = Pages([tmp_path])
    pages.runs()
    curve = pages.curve("metrics-only", "", "")
    assert (curve["metric"], curve["metrics"]) == ("accuracy", ["accuracy", "late"])
    assert [point["mean"] for point in curve["points"]] == [i / 10 for i in range(1, 10)]
    assert curve["no_verdict"] == "these evals have no reward, and verdicts are on rewards"
    late = pages.curve("metrics-only", "", "late")["points"]
    assert [point["mean"] is None for point in late] == [True] * 5 + [False] * 4
    assert all(point["result"] for point in late)
    with pytest.raises(InvalidInput, match="no metric 'nope' in metrics-only, only accuracy, late"):
        pages.curve("metrics-only", "", "nope")
    assert pages.curve("rewarded", "", "")["metrics"][:2] == ["reward", "pass_rate"]
    both = ["metrics-only", "rewarded"]
    assert pages.curves(both[:1], [], "")["metric"] == "accuracy"
    assert pages.curves(both[::-1], [], "")["metric"] == "reward"
    assert pages.curves(both, [], "")["metrics"] == []
    with pytest.raises(InvalidInput, match="no metric 'nope'"):
        pages.curves(both, [], "nope")
