"""JSON on standard output whatever happens, and the schema that it keeps to."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema

from heldout.cli.main import COMMANDS, EXIT_CODES
from heldout.cli.outputs import OUTPUTS, UNDECIDED, build_schema
from heldout.training.curve.points import CurveWriter
from tests.cli.conftest import Heldout, Write
from tests.cli.runs import Outcome


def check(name: str, out: str) -> None:
    lines = out.splitlines()
    assert lines
    for line in lines:
        jsonschema.validate(json.loads(line), build_schema(name))
        if name not in UNDECIDED:
            assert re.fullmatch("[a-z_]+", json.loads(line)["decision"])
            assert len(json.loads(line)["sentence"]) > 5


PRINTED = [
    ("run", ["run", "eval.py"]),
    ("rescore", ["rescore", "six@1", "--scorer", "eval.py:score_fn"]),
    ("list", ["list"]),
    ("show", ["show", "six"]),
    ("show-items", ["show", "six", "--failures", "2"]),
    ("show-slices", ["show", "six", "--by", "topic"]),
    ("show-time", ["show", "six", "--time"]),
    ("sql", ["sql", "six", "select sample_id from results"]),
    ("compare", ["compare", "six@1", "six@2", "--by", "topic"]),
    ("gate", ["gate", "six@1", "--min-mean", "0.1"]),
    ("gate", ["gate", "six@2", "--baseline", "six@1", "--no-worse-than", "0.9"]),
    ("power", ["power", "six", "--detect", "0.2"]),
    ("aggregate", ["aggregate", "six@1", "six@2", "--repetitions", "20"]),
    ("cache show", ["cache", "show", "none.db"]),
    ("cache clear", ["cache", "clear", "none.db"]),
    ("repair", ["repair", "six"]),
    ("rm", ["rm", "six@1", "--yes"]),
]


def test_what_a_command_prints_keeps_to_its_schema(finished: Outcome, heldout: Heldout) -> None:
    assert heldout("run", "eval.py").code == 0
    for name, arguments in PRINTED:
        outcome = heldout(*arguments, "--json")
        assert outcome.code == 0, outcome.err
        check(name, outcome.out)


def test_what_a_command_prints_of_a_curve_keeps_to_its_schema(run: Path, heldout: Heldout) -> None:
    for name, arguments in (
        ("show-curve", ["show", "rl_eval"]),
        ("show-curve", ["curve", "show", "rl_eval"]),
        ("curve flips", ["curve", "flips", "rl_eval"]),
        ("curve plot", ["curve", "plot", "rl_eval", "-o", "x.svg"]),
    ):
        outcome = heldout(*arguments, "--json")
        assert outcome.code == 0, outcome.err
        check(name, outcome.out)


def test_what_stop_prints_keeps_to_its_schema(writer: CurveWriter, heldout: Heldout) -> None:
    outcome = heldout("curve", "stop", "rl_eval", "--json")
    assert outcome.code == 0, outcome.err
    check("curve stop", outcome.out)


def test_a_schema_has_the_types_and_the_words_of_the_class_that_has_the_field() -> None:
    schema = build_schema("gate")
    assert schema["properties"]["outcome"]["enum"] == ["errored", "fail", "inconclusive", "pass"]
    check = schema["$defs"]["GateCheckOutput"]["properties"]
    assert (
        check["errors_as"]["description"] == "What errored items count as; None if nothing errored."
    )
    assert check["estimate"]["description"].startswith("The difference, or the mean")  # a property
    assert check["needed"]["description"].endswith("or no usable number would do.")  # of two lines
    assert "description" not in check["ci_low"]


def test_the_schema_of_curve_show_is_that_of_a_curve(heldout: Heldout) -> None:
    assert heldout("schema", "curve", "show").out == heldout("schema", "show-curve").out != ""


def test_watch_streams_points_and_ends_with_the_state_of_the_training(
    run: Path, heldout: Heldout
) -> None:
    outcome = heldout("curve", "watch", "rl_eval", "--once", "--json")
    *points, last = outcome.out.splitlines()
    check("curve watch", "\n".join(points))
    assert [json.loads(line)["step"] for line in points] == [0, 50, 100, 150]
    shown = json.loads(heldout("show", "rl_eval", "--json").out)["training"]
    for state in (json.loads(last)["training"], shown):
        assert state["state"] == "finished"
        assert state["last_point"] == json.loads(points[-1])["time"]


def test_there_is_a_schema_of_every_command(heldout: Heldout) -> None:
    described = {name.split()[0].split("-")[0] for name in OUTPUTS}
    described |= {name.split()[0] for name in OUTPUTS}
    assert {*COMMANDS} - described == {"schema", "view"}
    every = json.loads(heldout("schema", "--all").out)
    assert json.loads(heldout("schema").out) == [*every]
    for name, schema in every.items():
        jsonschema.Draft202012Validator.check_schema(schema)
        assert json.loads(heldout("schema", *name.split()).out) == schema
    assert heldout("schema", "nothing").code == 2


# --- Errors -------------------------------------------------------------------------------------


REFUSED = [
    (["show", "nowhere"], 2, "run_directory_error"),
    (["show"], 2, "usage_error"),
    (["show", "six", "--nonsense"], 2, "no_such_option"),
    (["shwo", "six"], 2, "usage_error"),
    (["show", "six", "--by", "nothing"], 2, "run_directory_error"),
    (["compare", "six", "six"], 2, "invalid_input"),
    (["sql", "six", "drop table results"], 2, "invalid_query"),
    (["run", "nowhere.py"], 2, "eval_file_error"),
    (["run", "broken.py"], 4, "systemic_failure"),
    (["curve", "watch", "six", "--once"], 2, "run_directory_error"),
    (["agent", "Nothing-v0", "--policy", "no:where"], 2, "invalid_input"),
    (["check", "judge", "none.jsonl", "--judge", "smollm2"], 2, "invalid_input"),
    (["tool-calls", "none.jsonl", "--model", "openai:m"], 2, "invalid_input"),
    (["rm", "six"], 2, "usage_error"),
    (["repair", "nowhere"], 2, "run_directory_error"),
    (["power", "nowhere", "--detect", "1"], 2, "run_directory_error"),
    (["schema", "nothing"], 2, "invalid_input"),
]


def test_an_error_is_json_on_stdout_and_a_message_on_stderr(
    finished: Outcome, heldout: Heldout, write: Write
) -> None:
    write("broken.py", **{"    return word": "    raise RuntimeError('down')"})
    for arguments, code, kind in REFUSED:
        outcome = heldout(*arguments, "--json")
        assert outcome.code == code, outcome.err
        assert outcome.out.count("\n") == 1
        check("error", outcome.out)
        error = json.loads(outcome.out)["error"]
        assert error["kind"] == kind
        assert error["message"] in outcome.err
        assert outcome.code in EXIT_CODES


def test_an_error_has_the_hint_that_its_message_has(finished: Outcome, heldout: Heldout) -> None:
    error = json.loads(heldout("show", "sixx", "--json").out)["error"]
    assert error["hint"] == "did you mean six?"


def test_exit_codes_are_in_the_help(heldout: Heldout) -> None:
    out = heldout("--help").out
    for code, text in EXIT_CODES.items():
        assert f"  {code:<3}  {text}" in out


def test_comparisons_and_gates_say_what_to_act_on_and_one_sentence(
    finished: Outcome, heldout: Heldout
) -> None:
    assert heldout("run", "eval.py").code == 0
    compared = json.loads(heldout("compare", "six@1", "six@2", "--json").out)
    assert compared["decision"] == compared["verdict"] == "inconclusive"
    assert compared["sentence"] in heldout("compare", "six@1", "six@2").out
    gated = json.loads(heldout("gate", "six@1", "--min-mean", "0.1", "--json").out)
    assert gated["decision"] == gated["outcome"] == "pass"
    assert gated["sentence"] in heldout("gate", "six@1", "--min-mean", "0.1").out


def test_every_output_but_errors_and_rows_of_a_query_has_a_decision_and_a_sentence() -> None:
    for name in OUTPUTS:
        required = {"decision", "sentence"} & {*build_schema(name).get("required", ())}
        assert required == (set() if name in UNDECIDED else {"decision", "sentence"})


def test_a_decision_is_the_plainest_true_word(
    finished: Outcome, run: Path, heldout: Heldout
) -> None:
    def decide(*arguments: str) -> tuple[str, str]:
        first = json.loads(heldout(*arguments, "--json").out.splitlines()[0])
        return first["decision"], first["sentence"]

    summary = json.loads(heldout("show", "six", "--json").out)["summary"]
    decision, sentence = decide("show", "six")
    assert decision == "complete"
    assert f"mean reward {summary['mean']:.3f}" in sentence
    assert f"{summary['n']} items" in sentence
    assert decide("show", "six", "--failures", "1")[0] == "failed"
    assert decide("show", "six", "--passes", "1")[0] == "passed"
    assert decide("list", "six")[0] == "finished"
    assert decide("power", "six", "--detect", "0.0001")[0] == "too_few"
    assert decide("cache", "show", "none.db")[0] == "none"
    assert decide("repair", "six")[0] == "unchanged"
    shown = json.loads(heldout("show", "rl_eval", "--json").out)
    newest = shown["verdicts"]["rl_eval"]
    assert shown["decision"] == newest["kind"]
    assert newest["text"] in shown["sentence"]


def test_samples_that_fail_in_both_runs_are_named_not_only_counted(
    finished: Outcome, heldout: Heldout
) -> None:
    assert heldout("run", "eval.py").code == 0
    compared = json.loads(heldout("compare", "six@1", "six@2", "--json").out)
    failed = heldout("show", "six", "--failures", "9", "--json").out.splitlines()
    ids = [json.loads(line)["sample"]["id"] for line in failed]
    assert compared["both_fail"] == ids != []
    assert compared["both_fail_total"] == compared["overall"]["stayed_failing"] == len(ids)
