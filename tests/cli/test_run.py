"""`heldout run`: what it takes, what it refuses, what it prints and how it exits."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from heldout import EvalReport
from heldout.store.run_dir import RunDir
from heldout.store.runs import find_run
from tests.cli.conftest import EVAL, RUN, START, Heldout, Write, calls
from tests.cli.runs import Outcome
from tests.faulty_server import FaultyServer, nothing_from_outside


def without_times(printed: str) -> str:
    return re.sub(r"ended [\d: -]+, duration [^;]+;", "", printed)


def status() -> str:
    return json.loads((RUN / "run.json").read_text())["status"]


# --- A run --------------------------------------------------------------------------------------


def test_running_an_eval_file_prints_its_report_and_where_it_is_kept(finished: Outcome) -> None:
    assert finished.err == ""  # without a terminal there is no progress
    assert f"six/{START}, model: answer" in finished.out
    assert "6 items: 6 scored, 0 errored, 0 truncated" in finished.out
    assert f"saved to {RUN}" in finished.out
    reward = next(line for line in finished.out.splitlines() if line.strip().startswith("reward"))
    assert " ".join(reward.split()) == ("reward = passed (≥ 0.5) = correct 0.667 0.300 … 0.903 6")
    assert status() == "complete"


def test_a_config_without_a_name_takes_that_of_the_file(write: Write, heldout: Heldout) -> None:
    write("my eval.py", **{'experiment_name="six", ': ""})
    assert heldout("run", "my eval.py").code == 0
    assert EvalReport.load(find_run("my-eval")).status == "complete"


def test_an_eval_file_may_have_its_eval_in_one_object(write: Write, heldout: Heldout) -> None:
    text = EVAL + "\ndefinition = EvalDefinition(load_dataset(), score_fn)\n"
    write(text=f"from heldout import EvalDefinition\n{text}del load_dataset, score_fn\n")
    assert "6 items: 6 scored" in heldout("run", "eval.py").out
    write("both.py", text=f"from heldout import EvalDefinition\n{text}")
    assert "both.py has a definition and load_dataset: give one" in heldout("run", "both.py").err


def test_an_eval_file_is_a_module_whatever_its_name_beside_its_neighbours(
    write: Write, heldout: Heldout, folder: Path
) -> None:
    (folder / "deep").mkdir()
    (folder / "deep" / "neighbour_of_it.py").write_text("NAME = 'six'")
    write("deep/json.py", **{'experiment_name="six"': "experiment_name=NAME"})
    path = Path("deep/json.py")
    main = "if __name__ == '__main__':\n    raise SystemExit(9)\n"
    path.write_text(f"from neighbour_of_it import NAME\n{path.read_text()}\n{main}")
    assert heldout("run", "deep/json.py").code == 0
    assert sys.modules["json"] is json
    assert status() == "complete"


def test_json_is_exactly_one_line_on_stdout(write: Write, heldout: Heldout) -> None:
    path = write()
    path.write_text(path.read_text().replace("    word =", "    print('thinking')\n    word ="))
    path.write_text("print('loading')\n" + path.read_text())
    outcome = heldout("run", "eval.py", "--json")
    assert outcome.code == 0
    assert outcome.out.count("\n") == 1
    summary = json.loads(outcome.out)
    assert (summary["n"], summary["mean"]) == (6, pytest.approx(4 / 6))
    assert outcome.err.splitlines() == ["loading", *["thinking"] * 6]


# --- Settings -----------------------------------------------------------------------------------


def test_settings_are_read_as_their_types(write: Write, heldout: Heldout) -> None:
    write()
    settings = {
        "repeats": "2",
        "pass_threshold": "0.25",
        "max_samples": "none",
        "timeout": "None",
        "progress": "False",
        "on_error": "raise",
        "experiment_name": "16",
        "output_dir": "none",
        "sampling.temperature": "0.7",
        "sampling.top_p": "1",
        "sampling.stop": r'["\n", "a,b"]',
        "sampling.seed": "none",
    }
    given = [part for k, v in settings.items() for part in ("--set", f"{k}={v}")]
    outcome = heldout("run", "eval.py", *given)
    assert outcome.code == 0, outcome.err
    config = EvalReport.load(find_run("none/16")).config
    sampling = config.pop("sampling")
    found = {k: config[k] for k in settings if "." not in k}
    assert found == {
        "repeats": 2,
        "pass_threshold": 0.25,
        "max_samples": None,
        "timeout": None,
        "progress": False,
        "on_error": "raise",
        "experiment_name": f"16/{START}",
        "output_dir": "none",
    }
    assert sampling == {
        "temperature": 0.7,
        "top_p": 1.0,
        "max_tokens": None,
        "stop": ["\n", "a,b"],
        "seed": None,
    }
    assert "12 items" in outcome.out


def test_settings_that_are_valid_only_together_go_in_together(
    write: Write, heldout: Heldout
) -> None:
    write(**{"max_concurrent=1": "max_error_rate=0.5"})
    both = ["--set", "on_error=raise", "--set", "max_error_rate=none"]
    assert heldout("run", "eval.py", *both).code == 0


def test_an_option_of_its_own_wins_over_set(write: Write, heldout: Heldout) -> None:
    write()
    heldout("run", "eval.py", "--set", "max_samples=5", "--limit", "1")
    assert calls() == ["word0"]
    heldout("run", "eval.py", "--set", "limit=5", "--max-samples", "1")
    assert calls() == ["word0"] * 2


OTHER_NAMES = [
    ("limit", "max_samples", "3", lambda config: config["max_samples"] == 3),
    ("epochs", "repeats", "2", lambda config: config["repeats"] == 2),
    ("name", "experiment_name", "mine", lambda config: "mine/" in config["experiment_name"]),
    ("model", "endpoint", "openai:m@{url}", lambda config: config["endpoint"]["model"] == "m"),
]
"""Settings with two names: on the command line, in Python, a value, and whether a run has it."""


@pytest.mark.parametrize(
    ("shown", "other", "value", "has"), OTHER_NAMES, ids=[shown for shown, *_ in OTHER_NAMES]
)
def test_a_setting_is_taken_by_either_name_and_both_at_once_are_refused(
    write: Write,
    heldout: Heldout,
    monkeypatch: pytest.MonkeyPatch,
    shown: str,
    other: str,
    value: str,
    has: Callable[[dict[str, Any]], bool],
) -> None:
    write()
    nothing_from_outside(monkeypatch)
    option = f"--{other.replace('_', '-')}"
    with FaultyServer() as server:
        value = value.format(url=server.url)
        ways = [(f"--{shown}", value), (option, value), (f"{option}={value}",)]
        ways += [("--set", f"{shown}={value}"), ("--set", f"{other}={value}")]
        for name in (shown, other):
            Path(f"{name}.toml").write_text(f"{name} = {value if value.isdigit() else repr(value)}")
            ways.append(("--config", f"{name}.toml"))
        for way in ways:
            outcome = heldout("run", "eval.py", "--json", *way)
            assert outcome.code == 0, (way, outcome.err)
            path = json.loads(outcome.out)["path"]
            assert has(EvalReport.load(path).config), way
            if way == (option, value):  # what it was begun with is read the same
                again = (option, value) if shown == "name" else ()
                resumed = heldout("run", "eval.py", "--json", "--resume", *again)
                assert json.loads(resumed.out)["path"] == path, resumed.err
    Path("both.toml").write_text(
        "".join(Path(f"{n}.toml").read_text() + "\n" for n in (shown, other))
    )
    for both, said in (
        ([f"--{shown}", value, option, value], f"--{shown} and {option} are one setting"),
        ([f"{option}={value}", f"--{shown}={value}"], f"--{shown} and {option} are one setting"),
        (
            ["--set", f"{other}={value}", "--set", f"{shown}={value}"],
            f"{other} and {shown} are one",
        ),
        (["--config", "both.toml"], f"--config: {shown} and {other} are one setting, and both"),
    ):
        refused = heldout("run", "eval.py", *both)
        assert refused.code == 2
        assert said in refused.err


def test_resume_starts_a_run_where_there_is_none(write: Write, heldout: Heldout) -> None:
    write()
    assert heldout("run", "eval.py", "--resume").code == 0


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("limt=3", "--set limt: there is no such setting; did you mean limit?"),
        ("sampling.temprature=1", "did you mean sampling.temperature?"),
        ("xyzzy=1", "there is no such setting; there are model, name, limit, "),
        ("max_samples", "--set takes KEY=VALUE, got 'max_samples'"),
        ("max_samples=ten", "--set max_samples=ten: Expected `int | null`, got `str`"),
        ("limit=0", "limit must be a whole number >= 1, got 0"),
        ("repeats=0", "epochs must be a whole number >= 1, got 0"),
        ("progress=maybe", "--set progress=maybe: Expected `bool`, got `str`"),
        ("sampling.stop=[1]", "--set sampling.stop=[1]: Expected `str`, got `int`"),
        ("endpoint=nobody", "model 'nobody' is not one of openai:MODEL"),
        ("extra_body.a=1 extra_body.a.b=2", "--set extra_body.a.b: a is 1 already"),
        ("endpoint=eval.py:f", "set a function in the eval file: config = EvalConfig("),
        ("--limit -1", "'--limit': -1 is not in the range x>=1"),
        ("--nonsense", "No such option"),
        ("--max_samples 3", "there is no option --max_samples: write --set limit=VALUE\n"),
        ("--max_tokens 1", "there is no option --max_tokens: write --set max_tokens=VALUE\n"),
    ],
)
def test_a_wrong_setting_is_refused_before_anything_runs(
    write: Write, heldout: Heldout, setting: str, said: str
) -> None:
    write()
    given = setting.split()
    if not setting.startswith("--"):
        given = [part for one in given for part in ("--set", one)]
    outcome = heldout("run", "eval.py", *given)
    assert outcome.code == 2
    assert said in outcome.err
    assert "Traceback" not in outcome.err
    assert not Path("outputs").exists()


# --- Resuming -----------------------------------------------------------------------------------


def test_a_second_run_has_a_directory_of_its_own(finished: Outcome, heldout: Heldout) -> None:
    before = (RUN / "results.jsonl").read_bytes()
    outcome = heldout("run", "eval.py", "--limit", "2")
    assert outcome.code == 0
    assert f"saved to {RUN}-2" in outcome.out
    assert (RUN / "results.jsonl").read_bytes() == before
    assert "2 items" in heldout("show", "six").out
    assert "6 items" in heldout("show", "six@1").out


def test_a_run_of_another_config_is_not_resumed(finished: Outcome, heldout: Heldout) -> None:
    outcome = heldout("run", "eval.py", "--resume", "--set", "sampling.temperature=1")
    assert outcome.code == 2
    assert "sampling.temperature was 0.0, is now 1.0" in outcome.err
    assert outcome.err.endswith("leave out --resume to begin a new run\n")


def test_a_run_is_resumed_with_the_settings_it_was_begun_with(
    write: Write, heldout: Heldout
) -> None:
    write(
        **{"def load_dataset():": "def load_dataset(word='word'):", "say word{i}": "say {word}{i}"}
    )
    Path("run.toml").write_text("repeats = 2\n[dataset]\nword = 'term'\n")
    settings = ("--config", "run.toml", "--sample-id", "q1", "--sample-id", "q4", "--tag", "a")
    begun = heldout("run", "eval.py", *settings, "--set", "temperature=0.5", "-n", "1")
    assert (begun.code, calls()) == (0, ["term1"] * 2)
    journal = RUN / "results.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:2]))
    resumed = heldout("run", "eval.py", "--resume", "--set", "max_concurrent=2")
    assert without_times(resumed.out) == without_times(begun.out), resumed.err
    assert calls() == ["term1"] * 3
    assert f"Resuming {RUN}, as it was begun by: heldout run eval.py --config run.toml" in (
        resumed.err
    )
    config = EvalReport.load(RUN).config
    assert (config["max_concurrent"], config["tags"]) == (2, ["a"])
    refused = heldout("run", "eval.py", "--resume", "--epochs", "1")
    assert "repeats was 2, is now 1" in refused.err


def test_an_eval_without_a_model_is_refused_before_its_dataset_is_loaded(
    write: Write, heldout: Heldout, folder: Path
) -> None:
    loads = 'def load_dataset():\n    open("loaded", "w")'
    write("my eval.py", **{"endpoint=answer, ": "", "def load_dataset():": loads})
    before = [*folder.iterdir()]
    for more in ((), ("--resume",), ("--set", "epochs=2")):
        refused = heldout("run", "my eval.py", *more)
        assert (refused.code, refused.out) == (2, "")
        assert refused.err == (
            "Error: my eval.py names no model. Name one: "
            "`heldout run 'my eval.py' --model smollm2` asks a small model on this machine "
            "(93 MB to download, 0.5 GB on disk); "
            "`heldout run 'my eval.py' --model openai:gpt-4o-mini` asks a server "
            "(with its key in OPENAI_API_KEY)\n"
        )
    assert {path.name for path in {*folder.iterdir()} - {*before}} <= {"__pycache__"}


def test_a_run_whose_command_line_names_no_model_is_resumed_on_its_own(
    write: Write, heldout: Heldout, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing_from_outside(monkeypatch)
    write(**{"endpoint=answer, ": ""})
    with FaultyServer() as server:
        begun = heldout("run", "eval.py", "--model", f"openai:m@{server.url}", "-n", "2")
        assert begun.code == 0, begun.err
        for command in (["heldout", "run", "eval.py", "-n", "2"], ["train.py"]):
            info = RunDir(RUN).read_info()  # of a version that had a default, or of a script
            info.command = command
            RunDir(RUN).write_info(info)
            resumed = heldout("run", "eval.py", "-n", "2", "--resume")
            assert resumed.code == 0, resumed.err
            assert without_times(resumed.out) == without_times(begun.out)
        info = RunDir(RUN).read_info()
        info.command = ["heldout", "run", "eval.py", "-n", "2", "--model", f"openai:n@{server.url}"]
        RunDir(RUN).write_info(info)
        named = heldout("run", "eval.py", "--resume")  # what its command line names comes first
        assert "endpoint.model was 'm', is now 'n'" in named.err


def test_a_key_of_the_command_line_is_typed_again_to_resume(write: Write, heldout: Heldout) -> None:
    write(**{"def load_dataset():": "def load_dataset(api_key):"})
    assert heldout("run", "eval.py", "-T", "api_key=abc", "-n", "2").code == 0
    refused = heldout("run", "eval.py", "--resume")
    assert refused.code == 2
    command = "heldout run eval.py -T 'api_key=[redacted]' -n 2 --resume"
    assert refused.err.endswith(f"was saved. Type the whole command: {command}\n")
    assert heldout("run", "eval.py", "--resume", "-T", "api_key=abc").code == 0


def test_what_began_a_run_is_named_where_it_was_no_such_command(
    finished: Outcome, heldout: Heldout
) -> None:
    info = RunDir(RUN).read_info()
    info.command = ["train.py", "--fast"]
    RunDir(RUN).write_info(info)
    outcome = heldout("run", "eval.py", "--resume")
    assert (outcome.code, outcome.out) == (0, finished.out)
    assert outcome.err == f"Resuming {RUN}, which was begun by: train.py --fast\n"


@pytest.mark.parametrize("status", ["complete", "interrupted"])
def test_after_a_change_of_the_scorer_rescore_is_named(
    finished: Outcome, heldout: Heldout, write: Write, status: Literal["complete", "interrupted"]
) -> None:
    info = RunDir(RUN).read_info()
    info.status = status
    RunDir(RUN).write_info(info)
    write(**{"trajectory.answer == sample": "trajectory.answer != sample"})
    outcome = heldout("run", "eval.py", "--resume")
    assert outcome.code == 2
    assert "the code of score_fn, or of something it uses, has changed" in outcome.err
    assert f"heldout rescore {RUN} --scorer FILE.py:score_fn" in outcome.err
    assert ("finish it as it was" in outcome.err) == (status == "interrupted")


# --- Failures -----------------------------------------------------------------------------------


def test_an_eval_in_which_everything_fails_exits_4_with_the_commonest_errors(
    write: Write, heldout: Heldout
) -> None:
    write(**{"    return word": "    raise RuntimeError('no \\x1b[31mGPU: ' + word)"})
    outcome = heldout("run", "eval.py")
    assert outcome.code == 4
    assert outcome.out == ""
    assert "all 6 items errored" in outcome.err
    assert r"1 × endpoint: RuntimeError: no \x1b[31mGPU: word0 (eval.py, line " in outcome.err
    assert "; 3 with other errors. Mend the cause" in outcome.err
    assert f"Results so far are saved to {RUN}" in outcome.err
    assert "Traceback" not in outcome.err
    assert status() == "failed"


def test_by_default_more_than_a_tenth_of_errors_exit_4_and_no_command_has_a_mean(
    write: Write, heldout: Heldout
) -> None:
    write(**{"    return word": "    assert word != 'word1'; return word"})
    outcome = heldout("run", "eval.py", "--json")
    assert outcome.code == 4
    said = json.loads(outcome.out)["error"]["message"]
    assert "1 of 6 items errored, above max_error_rate=0.1, so there is no mean: 1 × endp" in said
    assert "--resume" in said
    assert "--set max_error_rate=1" in said
    assert "sample 'q1'" not in outcome.out
    shown = heldout("show", "six")
    assert shown.code == 4
    assert "Failed: 1 of 6 items errored" in shown.out
    assert "\n1 × endpoint: AssertionError" in shown.out
    numbers = json.loads(heldout("show", "six", "--json").out)["summary"]
    assert (numbers["n"], numbers["n_errors"], numbers["mean"]) == (6, 1, None)
    for row in heldout("show", "six", "--by", "difficulty", "--json").out.splitlines():
        assert json.loads(row)["mean"] is None
    write("good.py", **{"six": "good"})
    assert heldout("run", "good.py").code == 0
    for command in (["compare", "good", "six"], ["gate", "six", "--min-mean", "0"]):
        refused = heldout(*command)
        assert refused.code == 2
        assert "failed: 1 of its 6 items errored, so it has no mean to compare" in refused.err
    accepted = heldout("run", "eval.py", "--resume", "--set", "max_error_rate=1")
    assert accepted.code == 0
    assert "0.500" in accepted.out


def test_errors_that_are_allowed_are_reported_and_exit_0(write: Write, heldout: Heldout) -> None:
    write(**{"    return word": "    assert word != 'word1'; return word"})
    outcome = heldout("run", "eval.py", "--set", "max_error_rate=1")
    assert outcome.code == 0
    assert "\n1 × endpoint: AssertionError: " in outcome.out
    again = heldout("run", "eval.py", "--set", "max_error_rate=1", "--json")
    (error,) = json.loads(again.out)["errors"]
    assert error["count"] == 1
    assert error["error"].startswith("endpoint: AssertionError")
    assert "6 items: 5 scored, 1 errored, 0 truncated" in outcome.out
    scored = next(line for line in outcome.out.splitlines() if "reward, scored only" in line)
    assert "0.600" in scored
    first = heldout("run", "eval.py", "--set", "on_error=raise")
    assert first.code == 4
    assert "sample 'q1': endpoint: AssertionError" in first.err


# --- Eval files that are none -------------------------------------------------------------------


BAD_FILES: dict[str, tuple[dict[str, str], str, str]] = {
    "no score_fn": (
        {"def score_fn": "def scorefn"},
        "",
        "eval.py defines no function score_fn(trajectory, sample) -> Score; did you mean scorefn?",
    ),
    "no dataset": (
        {"def load_dataset": "def _something_else"},
        "",
        "eval.py defines no function load_dataset() -> list[Sample]",
    ),
    "a score_fn that is none": (
        {},
        "score_fn = 3",
        "eval.py: score_fn must be a function (trajectory, sample) -> Score, got int",
    ),
    "an environment that is none": (
        {},
        "environment_factory = 3",
        "eval.py: environment_factory must be a function, got int",
    ),
    "a config that is none": ({}, "config = 3", "eval.py: config must be an EvalConfig, got int"),
    "another name for config": (
        {"config =": "my_config ="},
        "",
        "eval.py has an EvalConfig called my_config, and no config",
    ),
    "a function that is nearly one": (
        {},
        "def enviroment_factory(sample): ...",
        "eval.py defines enviroment_factory, which is not used; is it environment_factory?",
    ),
    "no module": (
        {},
        "import not_a_module",
        "eval.py could not be loaded: ModuleNotFoundError: No module named 'not_a_module' "
        "(eval.py, line 24)",
    ),
    "no Python": ({}, "y = (2", "eval.py could not be loaded: SyntaxError: "),
    "a neighbour that is no Python": ({}, "import no_python", "(no_python.py, line 3)"),
    "a wrong setting": (
        {"max_concurrent=1": "max_samples=-1"},
        "",
        "loaded: max_samples must be a whole number >= 1, got -1 (eval.py, line 12)",
    ),
    "no samples": ({"range(6)": "range(0)"}, "", "there are no samples to evaluate"),
    "a dataset that is none": (
        {"    return [\n": "    return {}\n    [\n"},
        "",
        "load_dataset returns a list of samples, got dict",
    ),
}


@pytest.mark.parametrize("what", BAD_FILES)
def test_what_is_wrong_with_an_eval_file_is_said_in_a_line(
    write: Write, heldout: Heldout, what: str
) -> None:
    changed, added, said = BAD_FILES[what]
    Path("no_python.py").write_text("\n\nif:\n")
    path = write(**changed)
    path.write_text(f"{path.read_text()}{added}\n")
    outcome = heldout("run", "eval.py")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert said in outcome.err
    assert not Path("outputs").exists()


def test_what_is_no_eval_file_is_named(heldout: Heldout, folder: Path) -> None:
    (folder / "notes.txt").write_text("")
    assert heldout("run", "nowhere.py").err == "Error: nowhere.py does not exist\n"
    assert "is a directory, not a Python file" in heldout("run", ".").err
    assert "notes.txt is not a Python file" in heldout("run", "notes.txt").err


@pytest.mark.parametrize("stream", [False, True])
def test_an_error_in_load_dataset_is_reported_with_its_line(
    write: Write, heldout: Heldout, stream: bool
) -> None:
    body = "    return [\n"
    path = write(
        **{body: ("    yield Sample('q', {'question': 'a b'})\n" * stream) + "    {}['key']\n[\n"}
    )
    line = path.read_text().splitlines().index("    {}['key']") + 1
    outcome = heldout("run", "eval.py")
    assert outcome.code == 2
    assert f"eval.py: load_dataset failed: KeyError: 'key' (eval.py, line {line})" in outcome.err
    assert "Traceback" not in outcome.err


# --- Exits in user code -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code", ["raise SystemExit(0)", "def load_dataset():\n    raise SystemExit"]
)
def test_an_exit_of_the_eval_file_itself_is_no_success(
    write: Write, heldout: Heldout, code: str
) -> None:
    path = write("leaves.py")
    path.write_text(path.read_text() + f"\n{code}\n")
    outcome = heldout("run", "leaves.py")
    assert outcome.code == 4
    assert "SystemExit" in outcome.err
    assert "there is no report" in outcome.err


# --- Options of the field -----------------------------------------------------------------------


def test_limit_epochs_and_model_are_options_and_settings(write: Write, heldout: Heldout) -> None:
    write()
    for arguments in (
        ("-n", "2", "--epochs", "3"),
        ("--set", "limit=2", "--set", "epochs=3"),
        ("--set", "max_samples=2", "--set", "repeats=3"),
    ):
        outcome = heldout("run", "eval.py", *arguments)
        assert "6 items: 6 scored" in outcome.out, outcome.err
    refused = heldout("run", "eval.py", "--model", "gpt-4o")
    assert refused.code == 2
    assert "write openai:gpt-4o" in refused.err


def test_a_sampling_setting_needs_no_prefix(write: Write, heldout: Heldout) -> None:
    write()
    settings = ("--set", "max_tokens=32", "--set", "temperature=0.5", "--set", "name=mine")
    assert heldout("run", "eval.py", *settings).code == 0
    sampling = EvalReport.load(find_run("mine")).config["sampling"]
    assert (sampling["max_tokens"], sampling["temperature"]) == (32, 0.5)


def test_only_the_samples_of_an_id_are_run(write: Write, heldout: Heldout) -> None:
    write()
    outcome = heldout("run", "eval.py", "--sample-id", "q3", "--sample-id", "q1")
    assert "2 items: 2 scored" in outcome.out
    assert calls() == ["word1", "word3"]
    refused = heldout("run", "eval.py", "--sample-id", "q33")
    assert refused.code == 2
    assert "--sample-id: the dataset has no q33" in refused.err


PARAMETERS = "def load_dataset(count=6, *, word='word'):"


def test_parameters_of_load_dataset_come_from_the_command_line(
    write: Write, heldout: Heldout
) -> None:
    path = write(**{"def load_dataset():": PARAMETERS})
    path.write_text(path.read_text().replace("range(6)", "range(count)"))
    assert "3 items" in heldout("run", "eval.py", "-T", "count=3").out
    refused = heldout("run", "eval.py", "-T", "cuont=3")
    assert refused.code == 2
    assert "unexpected keyword argument 'cuont'" in refused.err
    assert "-T takes KEY=VALUE, got 'count'" in heldout("run", "eval.py", "-T", "count").err


def test_a_toml_file_has_settings_that_the_command_line_wins_over(
    write: Write, heldout: Heldout
) -> None:
    path = write(**{"def load_dataset():": PARAMETERS})
    path.write_text(path.read_text().replace("range(6)", "range(count)"))
    Path("run.toml").write_text(
        'epochs = 2\nname = "mine"\ntags = ["a"]\n[sampling]\nmax_tokens = 5\nstop = ["x,y"]\n'
        "[dataset]\ncount = 4\n"
    )
    outcome = heldout("run", "eval.py", "--config", "run.toml")
    assert "8 items" in outcome.out, outcome.err
    config = EvalReport.load(find_run("mine")).config
    assert (config["tags"], config["sampling"]["max_tokens"]) == (["a"], 5)
    assert config["sampling"]["stop"] == ["x,y"]
    wins = ("--epochs", "1", "-T", "count=2")
    assert "2 items" in heldout("run", "eval.py", "--config", "run.toml", *wins).out


BAD_TOML = {
    None: "--config run.toml cannot be read: ",
    "a = ": "--config run.toml cannot be read: Invalid value",
    "epoch = 1": "--config epoch: there is no such setting",
    'epochs = "two"': "--config: epochs=two: Expected `int`, got `str`",
    "sampling = 0.5": "sampling is a table, [sampling] with a line for each key, got 0.5",
    'dataset = "x"': "dataset is a table, [dataset] with a line for each key, got 'x'",
}


def test_a_toml_file_that_is_wrong_is_refused(write: Write, heldout: Heldout) -> None:
    write()
    for text, said in BAD_TOML.items():
        if text is not None:
            Path("run.toml").write_text(text)
        outcome = heldout("run", "eval.py", "--config", "run.toml")
        assert outcome.code == 2
        assert said in outcome.err


def test_a_name_groups_runs_and_resume_continues_the_latest(write: Write, heldout: Heldout) -> None:
    write()
    for _ in range(2):
        assert heldout("run", "eval.py", "--name", "mine", "--output-dir", "runs").code == 0
    latest = Path(f"runs/mine/{START}-2")
    journal = latest / "results.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:4]))
    Path("calls.txt").unlink()
    arguments = ("run", "eval.py", "--name", "mine", "--output-dir", "runs", "--resume")
    assert f"saved to {latest}" in heldout(*arguments).out
    assert calls() == ["word3", "word4", "word5"]
    named = ("run", "eval.py", "--name", "mine@1", "--output-dir", "runs", "--resume")
    assert f"saved to runs/mine/{START}\n" in heldout(*named).out
    assert "@ and / are for a run that exists" in heldout("run", "eval.py", "--name", "a@1").err


def test_overwrite_removes_the_latest_run_once_the_new_one_is_done(
    finished: Outcome, heldout: Heldout, write: Write
) -> None:
    write(**{"    return word": "    raise RuntimeError('down')"})
    assert heldout("run", "eval.py", "--overwrite").code == 4
    assert RUN.exists()
    write()
    assert heldout("run", "eval.py", "--overwrite").code == 0
    assert RUN.exists()  # the latest was the one that failed
    assert not Path(f"{RUN}-2").exists()
    assert heldout("run", "eval.py", "--overwrite", "--resume").code == 2


def test_a_run_has_its_tags_note_and_command_line_without_keys(
    write: Write, heldout: Heldout
) -> None:
    given = ("run", "eval.py", "-T", "key=sk-proj-0123456789abcdefghij")
    write(**{"def load_dataset():": "def load_dataset(key):"})
    outcome = heldout(*given, "--tag", "a", "--tag", "b", "--note", "why not")
    assert "tags: a, b; note: why not" in outcome.out
    stored = (RUN / "run.json").read_text()
    assert "0123456789" not in stored
    assert json.loads(stored)["command"][:6] == ["-m", "heldout", *given[:3], "key=[redacted]"]
