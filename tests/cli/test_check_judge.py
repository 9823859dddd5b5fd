"""`heldout check judge`, against a real server on loopback; and what `heldout show` says of it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from heldout import EvalReport, EvalResult, Message, Metric, Sample, Score, Trajectory
from heldout.store.columns import summarize_results
from heldout.store.notes import write_note
from heldout.store.run_dir import RunDir
from tests.analysis.runs import C, I, N, report_of
from tests.cli.conftest import Heldout
from tests.cli.runs import command_of
from tests.faulty_server import (
    KEY,
    Action,
    FaultyServer,
    Request,
    answer,
    hang,
    nothing_from_outside,
)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyServer]:
    nothing_from_outside(monkeypatch)
    with FaultyServer() as server:
        yield server


@pytest.fixture
def check(server: FaultyServer, heldout: Heldout) -> Callable[..., Any]:
    def run(*options: str) -> Any:
        return heldout(
            "check", "judge", "labels.jsonl", "--judge", f"openai:m@{server.url}", *options
        )

    return run


def write_labels(rows: list[dict[str, Any]]) -> None:
    Path("labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def rows(count: int = 20) -> list[dict[str, Any]]:
    """Every fourth answer is wrong, and people have said so."""
    return [
        {
            "id": f"q{i}",
            "question": f"Say {i}.",
            "answer": f"{i + (i % 4 == 0)}",
            "ground_truth": f"{i}",
            "label": i % 4 > 0,
        }
        for i in range(count)
    ]


def shown(request: Request, name: str) -> str:
    text = request.body["messages"][1]["content"]
    found = re.search(rf"--- BEGIN {name} \w+ ---\n(.*?)\n--- END {name} ", text, re.DOTALL)
    assert found, text
    return found[1]


def compares(request: Request) -> str:
    verdict = "equal" if shown(request, "ANSWER") == shown(request, "TARGET") else "different"
    return json.dumps({"reasoning": "by comparing", "verdict": verdict})


def behave(server: FaultyServer, judge: Callable[[Request], str]) -> None:
    server.behave = lambda request: answer(
        judge, usage={"prompt_tokens": 100, "completion_tokens": 10}
    )


def test_notes_of_reviewers_are_labels(server: FaultyServer, heldout: Heldout) -> None:
    results = []
    for row in rows(6):
        sample = Sample(row["id"], {"question": row["question"]}, row["ground_truth"])
        messages = (Message("user", row["question"]), Message("assistant", row["answer"]))
        metric = Metric("m", 1.0, 1.0)
        results.append(EvalResult(sample.id, sample, Trajectory(messages), Score((metric,))))
    EvalReport(results, summarize_results(results), {"repeats": 1}).save("outputs/evals/made")
    run = RunDir(Path("outputs/evals/made"))
    judge = ("--judge", f"openai:m@{server.url}", "--json")
    refused = heldout("check", "judge", "made", *judge)
    assert refused.code == 2
    assert "has no note that labels an answer correct or incorrect" in refused.err
    for i, result in enumerate(results[:4]):
        write_note(run, result, "incorrect" if i == 0 else "correct", "")
    write_note(run, results[4], "unsure", "")
    behave(server, compares)
    done = heldout("check", "judge", "made", *judge)
    found = json.loads(done.out)
    assert (found["items"], found["against_labels"]["agreement"]["value"]) == (4, 1.0)
    assert "1 note of made left out" in done.err
    refused = heldout("check", "judge", "made", "--kind", "pairwise", *judge)
    assert "for pairwise give a file of labels" in refused.err


def test_the_report_has_every_number_with_its_denominator(check: Any, server: FaultyServer) -> None:
    def mistaken(request: Request) -> str:
        if shown(request, "TARGET") == "5":
            return json.dumps({"reasoning": "a \x1b[31mred\x1b[0m herring", "verdict": "different"})
        return compares(request)

    behave(server, mistaken)
    write_labels(rows())
    outcome = check("--failures", "3")
    assert outcome.code == 0, outcome.err
    assert outcome.err == ""
    lines = [" ".join(line.split()) for line in outcome.out.splitlines()]
    assert lines[0] == f"m at {server.url}, equality: 20 answers, each judged twice"
    assert "agrees with labels 0.950 0.764 … 0.991 19 of 20 answers" in lines
    assert any(line.startswith("kappa 0.875 0.") for line in lines)
    assert any(line.startswith("balanced F1 0.937 0.") for line in lines)
    assert "agrees with itself 1.000 0.839 … 1.000 20 of 20 answers" in lines
    assert "equal 1.000 14 of 14 0.933 14 of 15 0.966" in lines
    assert "different 0.833 5 of 6 1.000 5 of 5 0.909" in lines
    assert "equal 14 1" in lines
    assert "different 0 5" in lines
    assert "40 verdicts, 0 of them from the cache; tokens: 4,000 in, 400 out" in lines
    assert "1 of 1 on which judge and label differ:" in lines
    assert "── q5" in lines
    assert "\x1b" not in outcome.out
    assert "a \\u001b[31mred\\u001b[0m herring" in outcome.out
    assert KEY not in outcome.out


def test_items_without_a_verdict_are_named_with_bounds(check: Any, server: FaultyServer) -> None:
    def mumbles(request: Request) -> str:
        return "A" if shown(request, "TARGET") in ("1", "2", "3", "6") else compares(request)

    behave(server, mumbles)
    write_labels(rows())
    outcome = check()
    assert outcome.code == 0
    assert "16 of 16 answers" in outcome.out
    assert (
        "no verdict: 4 of 20 answers, which count neither as right nor as wrong. Agreement with "
        "labels would be 0.800 if the judge were wrong on all of them, 1.000 if right."
    ) in outcome.out
    # What is said of several is said once.
    assert "  q1, q2, q3, 1 more: NoVerdict: judge m gave no verdict in 3" in outcome.out
    assert outcome.out.count("NoVerdict") == 1
    assert "no verdict in later draws: 4, which have no part in how far" in outcome.out
    asked = 32 + 8 * 3
    assert f"tokens: {100 * asked:,} in, {10 * asked} out, with those" in outcome.out


def test_json_has_everything_on_one_line(check: Any, server: FaultyServer) -> None:
    behave(server, compares)
    write_labels([*rows(8), {**rows(9)[8], "label": True}])
    outcome = check("--json", "--failures", "5")
    assert outcome.out.count("\n") == 1
    found = json.loads(outcome.out)
    assert found["against_labels"]["agreement"]["count"] == 8
    assert found["against_labels"]["table"] == [[6, 1], [0, 2]]
    assert found["usage"] == {"prompt_tokens": 1800, "completion_tokens": 180}
    (failure,) = found["failures"]
    assert (failure["id"], failure["label"]) == ("q8", "equal")
    assert [draw["verdict"] for draw in failure["draws"]] == ["different", "different"]
    assert "failures" not in json.loads(check("--json").out)


def test_pairs_are_asked_about_in_both_orders(check: Any, server: FaultyServer) -> None:
    behave(server, lambda request: json.dumps({"reasoning": "it is first", "verdict": "first"}))
    labels = [
        {"question": "?", "first": f"a{i}", "second": "b", "label": "first"} for i in range(5)
    ]
    write_labels(labels)
    outcome = check("--kind", "pairwise", "--epochs", "1", "--failures", "1")
    lines = [" ".join(line.split()) for line in outcome.out.splitlines()]
    assert len(server.requests) == 10
    assert any(re.match(r"same in both orders 0\.000 .* 0 of 5 pairs", line) for line in lines)
    assert any(
        re.match(r"prefers the first position 1\.000 .* 5 of 5 pairs", line) for line in lines
    )
    assert outcome.out.count("it is first") == 2


def test_criteria_show_what_differs_and_why(check: Any, server: FaultyServer) -> None:
    reply = {"criteria": [
        {"id": "cites", "met": True, "reasoning": "it names a book"},
        {"id": "short", "met": True, "reasoning": "three words"},
    ]}  # fmt: skip
    behave(server, lambda request: json.dumps(reply))
    criteria = [{"id": "cites", "description": "a source"}, {"id": "short", "description": "brief"}]
    label = {"cites": False, "short": True}
    given = {"question": "?", "answer": "x", "criteria": criteria, "label": label}
    write_labels([{**given, "answer": f"x{i}"} for i in range(3)])
    outcome = check("--kind", "criteria", "--failures", "1")
    lines = [" ".join(line.split()) for line in outcome.out.splitlines()]
    assert any(line.endswith("3 of 6 criteria") for line in lines)
    assert "label cites: not met, short: met" in lines
    assert "judge cites: met, short: met" in lines
    assert "it names a book" in outcome.out


def test_a_cache_is_asked_first(check: Any, server: FaultyServer) -> None:
    behave(server, compares)
    write_labels(rows(4))
    first = check("--cache", "verdicts.db")
    assert len(server.requests) == 8
    second = check("--cache", "verdicts.db")
    assert len(server.requests) == 8
    assert "8 verdicts, 8 of them from the cache" in second.out
    assert first.out.splitlines()[:-1] == second.out.splitlines()[:-1]
    assert KEY.encode() not in Path("verdicts.db").read_bytes()


# --- Who is asked -------------------------------------------------------------------------------


def test_what_a_server_is_sent_can_be_added_to(check: Any, server: FaultyServer) -> None:
    behave(server, compares)
    write_labels(rows(2))
    extra = json.dumps({"temperature": 1, "reasoning_effort": "low"})
    outcome = check("--extra", extra, "--max-tokens", "400", "--timeout", "30")
    assert outcome.code == 0, outcome.err
    body = server.requests[0].body
    assert (body["temperature"], body["reasoning_effort"], body["max_tokens"]) == (1, "low", 400)
    for wrong, said in (
        ("{", "extra_body must be a dict of request fields"),
        ("[1]", "must be a dict"),
    ):
        assert said in check("--extra", wrong).err


MINE = """
import json
from heldout.scoring.judges import Judge

def strict(messages):
    return json.dumps({"verdict": "different"})

judge = Judge(strict, attempts=1)
number = 3
"""


@pytest.mark.parametrize("named", ["mine.py:judge", "mine.py:strict", "mine_judges:judge"])
def test_a_judge_or_a_function_of_ones_own_is_named(named: str, heldout: Heldout) -> None:
    for name in ("mine.py", "mine_judges.py"):
        Path(name).write_text(MINE)
    write_labels(rows(8))
    outcome = heldout("check", "judge", "labels.jsonl", "--judge", named)
    assert outcome.code == 0, outcome.err
    assert "2 of 8 answers" in outcome.out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("mine.py:judge", "--max-tokens", "5"), "settings of its own; leave out --max-tokens"),
        (("mine.py:nobody",), "there is no mine.py:nobody"),
        (("mine.py:number",), "endpoint is a string, a function of the messages or"),
        (("mine.py:strict", "--extra", "{}"), "--extra goes to a server"),
        (("nowhere:judge",), "there is no module 'nowhere'"),
    ],
)
def test_a_judge_that_cannot_be_had_is_refused(
    options: tuple[str, ...], said: str, heldout: Heldout
) -> None:
    Path("mine.py").write_text(MINE)
    write_labels(rows(2))
    outcome = heldout("check", "judge", "labels.jsonl", "--judge", *options)
    assert (outcome.code, outcome.out) == (2, "")
    assert said in outcome.err


def test_bad_lines_are_refused_before_anything_is_asked(check: Any, server: FaultyServer) -> None:
    write_labels([*rows(2), {"question": "?"}, {**rows(1)[0], "id": "z", "label": "perhaps"}])
    outcome = check()
    assert outcome.code == 2
    assert "Error: labels.jsonl, line 3: 'answer' is missing" in outcome.err
    assert "line 4: 'label' must be true or false; got 'perhaps'" in outcome.err
    assert server.requests == []


def test_where_every_item_fails_the_exit_code_says_that_there_is_no_number(
    check: Any, server: FaultyServer
) -> None:
    behave(server, lambda request: "A")
    write_labels(rows(3))
    outcome = check()
    assert (outcome.code, outcome.out) == (4, "")
    said = "Check failed: the judge gave no verdict on any of 3 answers; on 'q0': NoVerdict"
    assert outcome.err.startswith(said)


def test_ctrl_c_keeps_the_verdicts_that_were_given(server: FaultyServer, heldout: Heldout) -> None:
    third = threading.Event()

    def two_and_no_more(request: Request) -> Action:
        if len(server.requests) < 3:
            return answer(compares)
        third.set()
        return hang()

    server.behave = two_and_no_more
    write_labels(rows(6))
    asked = ["check", "judge", "labels.jsonl", "--judge", f"openai:m@{server.url}"]
    process = subprocess.Popen(
        command_of(*asked, "--max-concurrent", "1", "--cache", "kept.db"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert third.wait(60), process.communicate()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert err == (
        "Interrupted. Verdicts so far are saved to kept.db; the same command asks for the others.\n"
    )
    assert json.loads(heldout("cache", "show", "kept.db", "--json").out)["entries"] == 2


def test_ctrl_c_without_a_cache_says_that_nothing_is_kept(
    check: Any, heldout: Heldout, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*given: Any, **more: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("heldout.cli.check._run_check", interrupted)
    write_labels(rows(2))
    outcome = check()
    assert outcome.code == 130
    assert outcome.err == "Interrupted. Nothing is saved; with --cache FILE verdicts are.\n"
    Path("mine.py").write_text(MINE.replace("attempts=1", "cache='own.db'"))
    write_labels(rows(2))
    outcome = heldout("check", "judge", "labels.jsonl", "--judge", "mine.py:judge")
    assert "Verdicts so far are saved to own.db" in outcome.err


# --- heldout show -------------------------------------------------------------------------------


def test_show_says_how_many_were_right_wrong_and_declined(heldout: Heldout, folder: Path) -> None:
    verdicts = [*[C] * 40, *[I] * 30, *[N] * 30, None, None]
    report_of({f"q{i}": [verdict] for i, verdict in enumerate(verdicts)}).save(folder / "run")
    out = heldout("show", "run").out
    said = "correct 40, incorrect 30, not attempted 30 of 100 scored; F1 0.471 (0.3"
    line = next(each for each in out.splitlines() if each.startswith(said))
    assert "; 2 errored, which are no attempts" in line
