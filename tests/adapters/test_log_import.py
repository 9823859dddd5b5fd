"""Logs made by hand: hostile archives, damaged lines, formats told apart, classic verifiers.

Those that the packages write themselves are in evals/test_logs.py.
"""

from __future__ import annotations

import io
import json
import random
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import zstandard

from heldout import EvalReport
from heldout.adapters.inspect.values import to_number
from heldout.adapters.logs import archive, export_inspect, find_logs, import_log
from heldout.analysis import compare
from heldout.cli.main import run_cli
from heldout.errors import HeldoutError, InvalidInput, NotComparable, ScoringFailed
from heldout.reporting.blocks import Line
from heldout.reporting.summaries import build_report
from heldout.store.run_dir import RunDir

SPEC = {
    "task": "pkg/quiz",
    "model": "openai/gpt",
    "created": "2026-11-18T10:00:00+02:00",
    "dataset": {"samples": 1, "sample_ids": ["q"]},
    "config": {"epochs": 1},
    "packages": {"inspect_ai": "0.3.1"},
}
HEADER = {"version": 2, "status": "success", "eval": SPEC, "plan": {}, "stats": {}}
ASKED = {"role": "user", "content": "2 + 2?"}
SAMPLE: dict[str, Any] = {
    "id": "q",
    "epoch": 1,
    "input": "2 + 2?",
    "target": "4",
    "messages": [ASKED, {"role": "assistant", "content": "4"}],
    "scores": {"match": {"value": "C"}},
    "events": [{"event": "x", "nested": [1, 2, 3]}],
}


def entries(sample: Any = SAMPLE, header: Any = HEADER) -> dict[str, bytes]:
    return {
        "header.json": json.dumps(header).encode(),
        "samples/q_epoch_1.json": json.dumps(sample).encode(),
    }


def write_zip(path: Path, files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as file:
        for name, content in files.items():
            file.writestr(name, content)
    return path


def write_zstandard(path: Path, name: str, content: bytes, *, size: int | None = None) -> Path:
    """Write an archive whose one entry is compressed with zstandard, which zipfile cannot."""
    packed = zstandard.ZstdCompressor().compress(content)
    stored = io.BytesIO()
    with zipfile.ZipFile(stored, "w") as file:
        file.writestr(name, packed)
    raw = bytearray(stored.getvalue())
    crc = struct.pack("<I", zlib.crc32(content))
    sizes = struct.pack("<II", len(packed), len(content) if size is None else size)
    directory = raw.index(b"PK\x01\x02")
    for start in (8, directory + 10):
        raw[start : start + 2] = struct.pack("<H", archive.ZSTANDARD)
    for start in (14, directory + 16):
        raw[start : start + 12] = crc + sizes
    path.write_bytes(raw)
    return path


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_zip(tmp_path / "quiz.eval", entries())


def test_a_log_says_only_what_it_says(log: Path, tmp_path: Path) -> None:
    report = import_log(log, output_dir=tmp_path / "runs")
    (result,) = report.results
    assert result.score.reward == 1
    assert (result.trajectory.usage, result.trajectory.timing) == (None, None)
    assert report.path is not None
    info = RunDir(report.path).read_info()
    assert (info.started, info.finished, info.git) == ("2026-11-18T08:00:00Z", None, None)
    assert info.versions == {"heldout": info.versions["heldout"], "inspect_ai": "0.3.1"}
    assert "sampling" not in info.config
    assert report.path.parent == tmp_path / "runs" / "quiz"


def refuse(path: Path, tmp_path: Path, words: str) -> None:
    """The message says why, and no directory is left."""
    with pytest.raises(InvalidInput, match=words):
        import_log(path, output_dir=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"header.json": b"{}"}, "missing required field `eval`"),
        ({"other.json": b"{}"}, "it has no header.json"),
        (entries(header={**HEADER, "version": 9}), "in version 9"),
        ({"header.json": json.dumps(HEADER).encode()}, "no samples to import"),
        (entries(sample={**SAMPLE, "id": ["x"]}), r"Expected `int \| str`"),
        (entries() | {"samples/q_epoch_1.json": b"[" * 10**6}, "entry 'samples/q_epoch_1.json'"),
        (entries() | {"samples/q_epoch_1.json": b'{"id": NaN' + b"[" * 10**6}, "entry 'samples"),
        (entries() | {"samples/z_epoch_1.json": json.dumps(SAMPLE).encode()}, "two results"),
        (entries(sample={**SAMPLE, "epoch": 2}), "was run 1 times, and has attempt 2"),
        (entries() | {"samples/z_epoch_1/sample.json": b"{}"}, "samples in chunks"),
    ],
)
def test_an_archive_that_is_no_log_is_refused_and_leaves_nothing(
    files: dict[str, bytes], words: str, tmp_path: Path
) -> None:
    refuse(write_zip(tmp_path / "bad.eval", files), tmp_path, words)


def damage(change: Callable[[bytearray], None]) -> Callable[[Path], None]:
    def act(path: Path) -> None:
        raw = bytearray(path.read_bytes())
        change(raw)
        path.write_bytes(raw)

    return act


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda path: path.write_bytes(b"PK\x03\x04 not a zip"), "not a readable zip archive"),
        (lambda path: path.write_bytes(path.read_bytes()[:-30]), "not a readable zip archive"),
        (damage(lambda raw: raw.__setitem__(60, raw[60] ^ 255)), "cannot be read"),
        (
            damage(lambda raw: raw.__setitem__(slice(-10, -6), b"\xff\xff\xff\x7f")),
            "a directory of 2,147 MB",
        ),
    ],
)
def test_a_damaged_archive_is_refused(
    log: Path, tmp_path: Path, act: Callable[[Path], None], words: str
) -> None:
    act(log)
    refuse(log, tmp_path, words)


def test_an_archive_is_not_decompressed_beyond_its_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bomb = write_zip(tmp_path / "a.eval", entries() | {"samples/b_epoch_1.json": b" " * 10**6})
    monkeypatch.setattr(archive, "MAX_ENTRY_BYTES", 10**5)
    refuse(bomb, tmp_path, "entry 'samples/b_epoch_1.json': 1 MB")
    monkeypatch.setattr(archive, "MAX_ARCHIVE_BYTES", 10**5)
    refuse(bomb, tmp_path, "entries that are decompressed 1 MB; 0 MB are read at most")
    monkeypatch.setattr(archive, "MAX_DIRECTORY_BYTES", 10)
    refuse(bomb, tmp_path, "a directory of 0 MB")


def test_zstandard_is_read_within_the_size_that_the_archive_declares(tmp_path: Path) -> None:
    content = json.dumps(HEADER).encode()
    path = write_zstandard(tmp_path / "a.eval", "header.json", content)
    with archive.Archive(path) as opened:
        assert opened.read("header.json") == content
    bomb = write_zstandard(tmp_path / "b.eval", "header.json", b" " * 10**7, size=10)
    refuse(bomb, tmp_path, "not what the archive says")


def test_a_log_as_json_with_nan_is_read(tmp_path: Path) -> None:
    unscored = {**SAMPLE, "scores": {"match": {"value": float("nan"), "reason": "refusal"}}}
    path = tmp_path / "log.json"
    path.write_text(json.dumps({**HEADER, "samples": [unscored]}, indent=2))
    (result,) = import_log(path, output_dir=tmp_path).results
    assert (result.score.reward, result.score["match.noanswer"]) == (0, 1)


@pytest.mark.parametrize("value", ["banana", "", "1_0", " 1", None, [], {}, "inf", float("inf")])
def test_what_is_no_number_is_no_score(value: Any) -> None:
    with pytest.raises(ScoringFailed):
        to_number(value)


# --- Classic verifiers --------------------------------------------------------------------------

PROMPT = [{"role": "user", "content": "2 + 2?"}]
CALL = '{"id": "1", "function": {"name": "add", "arguments": "{\\"a\\": 2}"}}'
ROLLOUT = {
    "example_id": 3,
    "prompt": PROMPT,
    "completion": [
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "4", "tool_call_id": "1"},
        {"role": "assistant", "content": "4"},
    ],
    "answer": "4",
    "reward": 1.5,
    "metrics": {"correct": 1.0, "format": 0.5},
    "error": None,
    "is_completed": True,
    "is_truncated": False,
    "stop_condition": "max_turns_reached",
    "token_usage": {"input_tokens": 10.0, "output_tokens": 4.0},
    "timing": {"total": 2.5},
}
FAILURE = {"error": "InfraError", "message": "m", "error_chain_repr": "InfraError('gone')"}


def write_rollouts(folder: Path, rows: list[dict[str, Any]], **about: Any) -> Path:
    folder.mkdir()
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "results.jsonl").write_text(lines)
    metadata = {"env_id": "my-env", "model": "gpt", "num_examples": 2, "rollouts_per_example": 2}
    (folder / "metadata.json").write_text(json.dumps({**metadata, **about}))
    return folder / "results.jsonl"


def test_rollouts_of_classic_verifiers_are_repeats_and_failures_are_errors(tmp_path: Path) -> None:
    other = {**ROLLOUT, "example_id": 4, "prompt": "3 + 3?", "completion": "6", "metrics": {}}
    rows = [
        ROLLOUT,
        {**other, "error": FAILURE, "reward": 0.0},
        {**ROLLOUT, "reward": None},
        {**other, "is_completed": False, "reward": 0.0},
    ]
    path = write_rollouts(tmp_path / "vf", rows, sampling_args={"temperature": 0.7, "n": 1})
    report = import_log(tmp_path / "vf", output_dir=tmp_path, max_error_rate=1)
    first, second, third, fourth = report.results
    assert [m.name for m in first.score.metrics] == ["reward", "correct", "format"]
    assert first.score.reward == 1.5
    assert first.trajectory.messages[1].tool_calls[0].name == "add"
    assert (first.trajectory.stop.limit, first.trajectory.answer) == ("max_turns", "4")
    assert (first.sample.id, first.sample.input["prompt"], second.repeat) == ("3", PROMPT, 1)
    assert second.error == "score_fn: its 'reward' is None, which is no score"
    assert third.error == "log: InfraError('gone')"
    assert fourth.error == "log: the rollout did not complete"
    assert report.config["sampling"] == {"temperature": 0.7}
    assert report.status == "complete"
    path.with_name("metadata.json").write_text('{"num_examples": 3, "rollouts_per_example": 2}')
    torn = import_log(path, output_dir=tmp_path, max_error_rate=1)
    assert (torn.status, torn.summary["n"], torn.summary["n_asked"]) == ("interrupted", 4, 6)
    path.write_text("{broken}\n" + json.dumps(ROLLOUT))
    with pytest.raises(InvalidInput, match="line 1: "):
        import_log(path, output_dir=tmp_path)


TRACE = {
    "task": {"data": {"id": "t", "prompt": "2 + 2?", "answer": "4"}},
    "agent": {"config": {}, "trainable": True},
    "nodes": [
        {"message": PROMPT[0]},
        {"parent": 0, "message": {"role": "assistant", "content": "4"}, "sampled": True},
    ],
    "calls": [{"model": "m", "usage": {"prompt_tokens": 1, "completion_tokens": 2}}],
    "rewards": {"right": {"score": 1.0, "weight": 0.5}},
    "metrics": {"words": 1.0},
    "timing": {"start": 1.0, "scoring": {"end": 2.0}},
    "ok": True,
}
EPISODE = {"task": TRACE["task"], "ok": True, "traces": [TRACE]}
DOCUMENT = {
    "doc_id": 0,
    "doc": {"q": "2 + 2?", "gold": 1},
    "target": "1",
    "arguments": {f"gen_args_{i}": {"arg_0": "2 + 2?", "arg_1": f" {i}"} for i in (3, 4)},
    "resps": [[["-2.0", "False"]], [["-1.0", "True"]]],
    "filtered_resps": [["-2.0", "False"], ["-1.0", "True"]],
    "filter": "none",
    "metrics": ["acc"],
    "acc": 1.0,
}
STRANGE = [None, True, -1, 1e300, 2**70, "", "x", [], {}, [None], {"a": None}, [[1]]]


def spoil(value: Any, rng: random.Random) -> Any:
    """Return a copy in which something, somewhere, is something else."""
    value = json.loads(json.dumps(value))
    places: list[tuple[Any, Any]] = []

    def walk(part: Any) -> None:
        for key in part if isinstance(part, dict) else range(len(part)):
            places.append((part, key))
            if isinstance(part[key], dict | list):
                walk(part[key])

    walk(value)
    part, key = rng.choice(places)
    part[key] = rng.choice(STRANGE)
    return value


@pytest.mark.parametrize("seed", range(6))
def test_a_log_with_strange_values_is_imported_or_refused_in_words(
    seed: int, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    logs = {
        "results.jsonl": ROLLOUT,
        "traces.jsonl": EPISODE,
        "samples_x_2026-11-18T10-42-35.63.jsonl": DOCUMENT,
    }
    for number in range(2):
        for name, line in logs.items():
            path = tmp_path / name
            path.write_text(json.dumps(spoil(line, rng)) + "\n")
            with suppress(HeldoutError):
                import_log(path, output_dir=tmp_path / f"runs{number}")
        path = write_zip(tmp_path / "a.eval", entries(spoil(SAMPLE, rng), spoil(HEADER, rng)))
        with suppress(HeldoutError):
            import_log(path, output_dir=tmp_path / f"runs{number}")


# --- Logs that were cut off ---------------------------------------------------------------------

LINES: dict[str, list[dict[str, Any]]] = {
    "results.jsonl": [{**ROLLOUT, "example_id": i} for i in range(3)],
    "traces.jsonl": [
        {**EPISODE, "task": {"data": {"id": str(i), "prompt": "2 + 2?"}}} for i in range(3)
    ],
    "samples_x_2026-11-18T10-42-35.63.jsonl": [{**DOCUMENT, "doc_id": i} for i in range(3)],
}


def write_lines(folder: Path, name: str) -> Path:
    (folder / name).write_text("".join(json.dumps(line) + "\n" for line in LINES[name]))
    return folder / name


@pytest.mark.parametrize("name", LINES)
def test_a_log_that_was_cut_off_is_an_interrupted_run_that_says_so(
    name: str, tmp_path: Path
) -> None:
    path = write_lines(tmp_path, name)
    whole = import_log(path, output_dir=tmp_path / "whole")
    assert (whole.status, whole.summary["n"]) == ("complete", 3)
    content = path.read_bytes()
    path.write_bytes(content[:-20])
    cut = import_log(path, output_dir=tmp_path / "cut")
    assert (cut.status, cut.summary["n"], cut.summary["n_asked"]) == ("interrupted", 2, None)
    assert cut.info is not None
    assert cut.info.reason == f"{name} is cut off: its last line is half a line, which is left out"
    with pytest.raises(NotComparable, match=r"is not finished \(interrupted\): it has 2 items"):
        compare(cut, whole)
    path.write_bytes(content.rstrip())  # a line without its line break is a line
    assert import_log(path, output_dir=tmp_path / "rest").summary["n"] == 3
    path.write_bytes(content[: len(content) // 3 - 20])
    refuse(path, tmp_path, "no samples to import: .* is cut off")


@pytest.mark.parametrize("name", LINES)
def test_a_damaged_line_that_is_not_the_last_one_refuses_the_log(name: str, tmp_path: Path) -> None:
    path = write_lines(tmp_path, name)
    first, second, third = path.read_text().splitlines(keepends=True)
    path.write_text(first + second[:-20] + "\n" + third)  # as a resumed eval leaves it
    refuse(path, tmp_path, "line 2: ")
    path.write_text(first + second + '{"doc_id": [], "example_id": 1, "task": 1, "prompt": 5}')
    refuse(path, tmp_path, "line 3: ")


def test_the_last_line_is_found_however_long_it_is(tmp_path: Path) -> None:
    for size in (0, 1, 2**16 - 1, 2**16, 2**17 + 5, 10**6):
        for rest in (b"", b'{"a": 1}\n', b'{"a": 1}\n' * 20_000):
            path = tmp_path / "lines.jsonl"
            path.write_bytes(rest + b'{"b": "' + b"x" * size)
            lines = archive.JsonLines(path)
            assert (lines.cut is None, len(list(lines.read(dict)))) == (False, rest.count(b"\n"))
            path.write_bytes(rest + b'{"b": "' + b"x" * size + b'"}')
            lines = archive.JsonLines(path)
            assert (lines.cut, len(list(lines.read(dict)))) == (None, rest.count(b"\n") + 1)


def test_an_inspect_log_as_json_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    path.write_text(json.dumps({**HEADER, "samples": [SAMPLE]})[:-9])
    refuse(path, tmp_path, "truncated")


# --- The log's own results ----------------------------------------------------------------------


def write_quiz(path: Path, values: list[list[Any]], results: dict[str, Any]) -> Path:
    """Write a log of Inspect with the values of each sample's epochs, and results of its own."""
    ids = [str(i) for i in range(len(values))]
    epochs = len(values[0])
    spec = {**SPEC, "dataset": {"sample_ids": ids}, "config": {"epochs": epochs}}
    files = {"header.json": json.dumps({**HEADER, "eval": spec, "results": results}).encode()}
    for id, row in zip(ids, values, strict=True):
        for epoch, value in enumerate(row, start=1):
            sample = {**SAMPLE, "id": id, "input": f"{id} + 2?", "epoch": epoch}
            sample["scores"] = {"match": value}
            files[f"samples/{id}_epoch_{epoch}.json"] = json.dumps(sample).encode()
    return write_zip(path, files)


def match_results(value: float, metric: str = "accuracy", **scored: Any) -> dict[str, Any]:
    params = scored.pop("params", {})
    return {
        "scores": [
            {
                "name": "match",
                "scorer": "match",
                "metrics": {metric: {"name": metric, "value": value, "params": params}},
                **scored,
            }
        ]
    }


YES, NO, REFUSED, NO_NUMBER = (
    {"value": "C"},
    {"value": "I"},
    {"value": float("nan"), "reason": "refusal"},
    {"value": "banana"},
)


@pytest.mark.parametrize(
    ("values", "results", "why"),
    [
        ([[YES], [NO]], match_results(0.5), None),
        ([[YES, NO], [NO, NO]], match_results(0.25, reducer="mean"), None),
        (
            [[YES, NO], [NO, NO]],
            match_results(0.5, reducer="max"),
            "takes the max of a sample's att",
        ),
        (
            [[YES, NO], [NO, NO]],
            match_results(0.5, reducer="at_least_1"),
            "attempts by 'at_least_1'",
        ),
        ([[YES], [YES], [NO]], match_results(0.9), "one of the two was changed later"),
        ([[YES], [YES], [NO]], match_results(1.0), "one of the two was changed later"),
        (
            [[YES], [NO], [REFUSED]],
            match_results(0.5),
            "over 2 attempts, here over 3: .* 1 count",
        ),
        (
            [[YES]] * 9 + [[NO], [NO_NUMBER]],
            match_results(0.9),
            "is over 10 attempts, here over 11",
        ),
        ([[YES]] * 9 + [[NO], [NO_NUMBER]], match_results(9 / 11), None),
        (
            [[{"value": 4}], [{"value": 3}]],
            match_results(0.3, params={"to_float": "to_float"}),
            r"accuracy\(to_float=to_float\), which cannot be applied",
        ),
        ([[YES], [NO]], match_results(0.7, "f1"), "'f1' is a number over all samples"),
    ],
)
def test_an_imported_number_is_the_logs_own_or_the_run_says_why_not(
    values: list[list[Any]],
    results: dict[str, Any],
    why: str | None,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = write_quiz(tmp_path / "quiz.eval", values, results)
    report = import_log(path, output_dir=tmp_path)
    own = report.config["imported"]["own_results"]
    assert own["compared"] == 1
    if why is None:
        assert (own["differ"], caplog.messages) == ([], [])
        return
    (differ,) = own["differ"]
    (metric,) = results["scores"][0]["metrics"].values()
    assert (differ["log"], differ["run"]) == (metric["value"], report.summary["mean"])
    assert re.search(why, differ["why"])
    assert "the log itself reports match " in caplog.text
    lines = [block.parts for block in build_report(report).blocks if isinstance(block, Line)]
    assert any(differ["why"] in str(part) for parts in lines for part in parts)


def test_results_of_lm_eval_and_verifiers_are_compared_too(tmp_path: Path) -> None:
    rows = [{**ROLLOUT, "example_id": i, "reward": float(i)} for i in range(2)]
    means = {"avg_reward": 0.5, "avg_metrics": {"correct": 1.0, "format": 0.75}}
    path = write_rollouts(tmp_path / "vf", rows, rollouts_per_example=1, **means)
    own = import_log(path, output_dir=tmp_path).config["imported"]["own_results"]
    assert own["compared"] == 3
    assert [(d["name"], d["log"], d["run"]) for d in own["differ"]] == [("avg_format", 0.75, 0.5)]
    other = import_log(path, output_dir=tmp_path, score="format").config["imported"]["own_results"]
    assert other["compared"] == 2
    assert [(d["name"], d["log"], d["run"]) for d in other["differ"]] == [("avg_format", 0.75, 0.5)]

    lines = [{**DOCUMENT, "doc_id": i, "acc": float(i == 0), "acc_norm": 1.0} for i in range(4)]
    lines = [{**line, "metrics": ["acc", "acc_norm"]} for line in lines]
    name = "samples_x_2026-11-18T10-42-35.63.jsonl"
    (tmp_path / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    theirs = {"x": {"acc,none": 0.5, "acc_norm,none": 1.0, "acc_stderr,none": 0.1}}
    (tmp_path / "results_2026-11-18T10-42-35.63.json").write_text(json.dumps({"results": theirs}))
    own = import_log(tmp_path / name, output_dir=tmp_path).config["imported"]["own_results"]
    assert own["compared"] == 2
    assert [(d["name"], d["log"], d["run"]) for d in own["differ"]] == [("acc,none", 0.5, 0.25)]


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_attempt_that_is_in_the_archive_twice_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_quiz(tmp_path / "quiz.eval", [[YES], [YES]], match_results(1.0))
    with zipfile.ZipFile(path, "a") as file:
        for id, scored in (("0", YES), ("1", NO)):  # the first is the same once more
            sample = {**SAMPLE, "id": id, "input": f"{id} + 2?", "scores": {"match": scored}}
            file.writestr(f"samples/{id}_epoch_1.json", json.dumps(sample))
    report = import_log(path, output_dir=tmp_path)
    assert report.summary["mean"] == 0.5
    imported = report.config["imported"]
    assert imported["repeated_entries"] == ["samples/1_epoch_1.json"]
    assert [d["log"] for d in imported["own_results"]["differ"]] == [1.0]
    assert "1 attempt is in the log more than once, with different content" in caplog.text


def test_attempts_that_the_header_does_not_list_are_counted_and_said(tmp_path: Path) -> None:
    path = write_quiz(tmp_path / "quiz.eval", [[YES], [YES]], match_results(1.0))
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("samples/new_epoch_1.json", json.dumps({**SAMPLE, "id": "new"}))
    report = import_log(path, output_dir=tmp_path)
    assert report.summary["n"] == 3
    (differ,) = report.config["imported"]["own_results"]["differ"]
    assert (differ["name"], differ["log"], differ["run"]) == ("attempts", 2, 3)


# --- The command --------------------------------------------------------------------------------


def test_a_folder_of_logs_becomes_a_run_for_each_and_one_bad_log_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs").mkdir()
    write_zip(tmp_path / "logs" / "a.eval", entries())
    write_rollouts(tmp_path / "logs" / "vf", [ROLLOUT], num_examples=1, rollouts_per_example=1)
    (tmp_path / "logs" / "notes.json").write_text('{"version": "mine"}')
    (tmp_path / "logs" / "rows.jsonl").write_text('{"question": "?"}\n')
    assert [log.path.name for log in find_logs(["logs"])] == ["a.eval", "results.jsonl"]
    assert run_cli(["import", "logs", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["n"], line["mean"], line["is_new"]) for line in lines] == [
        (1, 1, True),
        (1, 1.5, True),
    ]
    (tmp_path / "logs" / "bad.eval").write_bytes(b"PK\x03\x04")
    assert run_cli(["import", "logs"]) == 2
    shown = capsys.readouterr()
    assert "a.eval was imported before" in shown.err
    assert "1 of 3 logs have no mean, or could not be imported" in shown.err
    assert run_cli(["import", "logs/vf/metadata.json"]) == 2
    assert "Name the folder" in capsys.readouterr().err
    assert run_cli(["export", "quiz", "--inspect", "out.eval", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "decision": "written",
        "sentence": "Written to out.eval.",
        "path": "out.eval",
    }
    back = import_log("out.eval", name="back")
    assert list(back.results) == list(EvalReport.load("quiz").results)
    assert run_cli(["export", "quiz", "--inspect", "out.zip"]) == 2
    with pytest.raises(InvalidInput, match="logs has 3 logs"):
        import_log("logs")


def test_an_export_is_all_or_nothing(log: Path, tmp_path: Path) -> None:
    report = import_log(log, output_dir=tmp_path)
    with pytest.raises(InvalidInput, match="ends in .eval"):
        export_inspect(report, tmp_path / "x.zip")
    export_inspect(report, tmp_path / "a.eval")
    export_inspect(report, tmp_path / "b.eval")
    assert (tmp_path / "a.eval").read_bytes() == (tmp_path / "b.eval").read_bytes()
    assert not list(tmp_path.glob(".*.tmp"))


def test_nobody_is_told_to_run_an_imported_log_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_quiz(tmp_path / "bad.eval", [[NO_NUMBER]] * 3, {})
    write_quiz(tmp_path / "half.eval", [[YES]] * 60 + [[NO_NUMBER]] * 20, {})
    (tmp_path / "logs").mkdir()
    path = write_lines(tmp_path / "logs", "results.jsonl")
    path.write_bytes(path.read_bytes()[:-20])
    assert run_cli(["import", "bad.eval", "--name", "bad", "--max-error-rate", "1"]) == 4
    assert run_cli(["import", "half.eval", "--name", "half", "--max-error-rate", "1"]) == 0
    assert run_cli(["import", "logs", "--name", "cut"]) == 0
    Path("score.py").write_text("def score(trajectory, sample): return 1.0\n")
    said = []
    for command in (
        ["compare", "bad", "half"],
        ["compare", "cut", "half"],
        ["gate", "half", "--min-mean", "0.9"],
        ["rescore", "cut", "--scorer", "score.py:score"],
        ["show", "half"],
    ):
        capsys.readouterr()
        run_cli(command)
        shown = capsys.readouterr()
        said.append(shown.out + shown.err)
    assert "has no score: all of its 3 items errored. `heldout rescore` can" in said[0]
    assert "is not finished (interrupted)" in said[1]
    assert "it depends on what 20 errored items count as" in said[2]
    assert "is not finished (interrupted)" in said[3]
    assert not any("--resume" in text for text in said)
