"""curve.jsonl: what is written is read back, whatever happened; and what the curve is now."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heldout.errors import (
    DamagedJournal,
    InvalidInput,
    RunBusy,
    RunDirectoryError,
    StorageFull,
    UnknownFormat,
)
from heldout.training.curve.points import (
    CurvePoint,
    CurveWriter,
    ItemOutcome,
    current_points,
    is_fewer,
    most_asked,
    read_points,
    repair_curve,
    request_stop,
    stop_requested,
    verdict_line,
)
from tests.training.curves import point

HEADER = b'{"format":"heldout.curve","version":1}\n'


def write(path: Path, *points: CurvePoint) -> None:
    writer = CurveWriter(path)
    for one in points:
        writer.append(one)
    writer.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "curve.jsonl"


# --- The file -----------------------------------------------------------------------------------


def test_points_are_read_back_as_they_were_written(path: Path) -> None:
    whole = point(
        10,
        outcomes=(ItemOutcome("q1", 1.0), ItemOutcome("q2", None, 1, "it broke", True)),
        asked=4,
        of=9,
        weights="abc",
        budget={"seconds": 3.5},
        decoding={"temperature": 0},
        partial="out of time",
        stop="got worse",
        run="steps/00000010",
        final=True,
    )
    write(path, whole, point(20, None))
    write(path, point(30))
    assert read_points(path) == [whole, point(20, None), point(30)]
    assert path.read_bytes().startswith(HEADER)


def test_a_line_has_nothing_that_is_left_at_its_default(path: Path) -> None:
    write(path, point(10))
    line = json.loads(path.read_bytes().splitlines()[1])
    assert [*line] == ["line", "label", "step", "session", "time", "seconds", "summary"]


def test_a_verdict_that_came_later_is_added_to_its_result(path: Path) -> None:
    ahead = point(10, None, skipped="scheduled, not finished", pending=True)
    result, again = point(10, lag_steps=3), point(10, 0.7, time="2026-01-01T00:00:09Z")
    judged = msgspec.structs.replace(result, verdict={"kind": "improving"}, stop="enough")
    stray = msgspec.structs.replace(judged, step=20)
    write(path, ahead, result, again, verdict_line(judged), verdict_line(stray))
    assert read_points(path) == [judged, again]
    assert b"outcomes" not in path.read_bytes().splitlines()[-1]


def test_each_line_says_what_it_is(path: Path) -> None:
    result, skip = point(20), point(30, None)
    pending = point(20, None, pending=True)
    judged = msgspec.structs.replace(result, verdict={"kind": "improving"})
    lost = point(40, None, pending=True, saved_at="checkpoint-40")
    write(path, pending, result, verdict_line(judged), skip, lost)
    lines = [json.loads(line)["line"] for line in path.read_text().splitlines()[1:]]
    assert lines == ["pending", "result", "verdict", "skip", "pending"]
    assert read_points(path) == [judged, skip, lost]


def test_each_point_is_on_the_disk_when_append_returns(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = CurveWriter(path)
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_size))
    writer.append(point(10))
    assert synced == [path.stat().st_size]
    writer.close()


def test_a_torn_line_is_ignored_and_cut_off_by_the_next_writer(path: Path) -> None:
    path.write_bytes(HEADER[:12])  # a torn header is an empty curve
    assert read_points(path) == []
    write(path, point(10))
    with path.open("ab") as file:
        file.write(b'{"label":"rl_eval","st')
    assert read_points(path) == [point(10)]
    write(path, point(20))
    assert read_points(path) == [point(10), point(20)]


@pytest.mark.integration
def test_what_a_killed_process_had_appended_is_there(path: Path) -> None:
    script = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from heldout.training.curve.points import CurvePoint, CurveWriter
        writer = CurveWriter(Path(sys.argv[1]))
        for step in range(10**9):
            writer.append(CurvePoint(label="e", step=step, session="s", time="", seconds=0,
                                     summary={"pad": 1.0, "mean": 0.5}))
            print(step, flush=True)
        """
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True
    )
    for _ in range(20):
        reported = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    reported = max([reported, *map(int, process.stdout.read().splitlines())])
    process.wait()
    process.stdout.close()
    steps = [p.step for p in read_points(path)]
    assert steps[: reported + 1] == [*range(reported + 1)]
    write(path, point(5))  # and the lock is free again
    assert read_points(path)[-1] == point(5)


def test_a_second_writer_is_refused(path: Path) -> None:
    writer = CurveWriter(path)
    with pytest.raises(
        RunBusy, match="being written by another process; wait for it, or use anoth"
    ):
        CurveWriter(path)
    writer.close()
    CurveWriter(path).close()


def test_a_damaged_line_is_named_and_can_be_moved_aside(path: Path) -> None:
    write(path, point(10), point(20), point(30))
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = b'{"label": 5}\n'
    path.write_bytes(b"".join(lines))
    with pytest.raises(DamagedJournal, match="line 3: not a readable point") as caught:
        read_points(path)
    assert caught.value.line == 3
    assert repair_curve(path) == [3]
    assert read_points(path) == [point(10), point(30)]
    assert path.with_suffix(".damaged").read_bytes() == b'{"label": 5}\n'


DEEP = b'{"label":"e","budget":{"a":' + b"[" * 100_000 + b"\n"


@pytest.mark.parametrize("line", [b"\xff\xfe\n", DEEP, b"\n", b"null\n"])
def test_no_line_is_too_strange_to_be_named(path: Path, line: bytes) -> None:
    path.write_bytes(HEADER + line)
    with pytest.raises(DamagedJournal, match="line 2"):
        read_points(path)


@pytest.mark.parametrize("step", [-1, 2**60, 10**400])
def test_a_step_that_is_none_is_damage_and_not_written(path: Path, step: int) -> None:
    with pytest.raises(InvalidInput, match="could not be read back|JSON cannot"):
        write(path, point(step))
    raw = b'{"label":"e","step":%d,"session":"s","time":"","seconds":1}\n' % step
    path.write_bytes(HEADER + raw)
    with pytest.raises(DamagedJournal, match="line 2"):
        read_points(path)


@pytest.mark.parametrize(
    "header",
    [b'{"format":"heldout.curve","version":2}\n', b'{"format":"heldout.results","version":1}\n'],
)
def test_another_version_is_refused_by_name(path: Path, header: bytes) -> None:
    path.write_bytes(header)
    with pytest.raises(UnknownFormat, match="this heldout reads 'heldout.curve' up to version 1"):
        read_points(path)
    with pytest.raises(UnknownFormat):
        CurveWriter(path)
    assert path.read_bytes() == header


def test_a_file_that_is_something_else_is_not_written_to(path: Path) -> None:
    path.write_bytes(b"my notes\n")
    with pytest.raises(DamagedJournal, match="not a heldout curve header"):
        CurveWriter(path)
    assert path.read_bytes() == b"my notes\n"


def test_a_pipe_in_place_of_the_curve_does_not_hang_its_reader(path: Path) -> None:
    os.mkfifo(path)
    with pytest.raises(RunDirectoryError, match="not an ordinary file"):
        read_points(path)


def test_a_full_disk_leaves_a_readable_curve(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = CurveWriter(path)
    writer.append(point(10))
    write_bytes, left = os.write, [50, 0]

    def nearly_full(fd: int, data: bytes) -> int:
        room = left.pop(0)
        if not room:
            raise OSError(28, "No space left on device")
        return write_bytes(fd, data[:room])

    monkeypatch.setattr(os, "write", nearly_full)
    with pytest.raises(StorageFull, match="the 1 points written before are readable"):
        writer.append(point(20))
    monkeypatch.undo()
    writer.append(point(30))
    writer.close()
    assert read_points(path) == [point(10), point(30)]


def test_numbers_of_numpy_are_stored_as_what_they_are(path: Path) -> None:
    write(
        path, point(10, summary={"mean": np.float32(0.5), "n": np.int64(3)}, seconds=np.float64(2))
    )
    assert read_points(path) == [point(10, summary={"mean": 0.5, "n": 3}, seconds=2.0)]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"outcomes": (ItemOutcome("q1", float("nan")),)}, "reward nan for sample 'q1'"),
        ({"budget": {"x": object()}}, "JSON cannot"),
        ({"seconds": float("nan")}, "could not be read back"),
        ({"label": "\ud800"}, "JSON cannot"),
    ],
)
def test_a_point_that_could_not_be_read_back_is_not_written(
    path: Path, changed: dict[str, Any], said: str
) -> None:
    writer = CurveWriter(path)
    with pytest.raises(InvalidInput, match=said):
        writer.append(point(10, **changed))
    writer.append(point(20))
    writer.close()
    assert read_points(path) == [point(20)]


def test_what_a_summary_says_is_not_taken_at_its_word() -> None:
    odd: dict[str, Any] = {"mean": True, "ci_low": 0.9, "ci_high": 0.1, "n": 10**400}
    assert (point(1, summary=odd).reward, point(1, summary=odd).ci) == (None, None)
    assert point(1, summary=odd).n == 0
    assert point(1, 0.25).reward == 0.25
    assert point(1, 0.25).ci == (0.0, 1.0)
    assert point(1, None).reward is None


@pytest.mark.parametrize(("name", "key"), [("reward", "mean"), ("pass@2", "pass_at_2")])
def test_a_metric_named_as_a_number_of_the_summary_is_told_apart(name: str, key: str) -> None:
    own = {f"metric_{name}": 0.5, f"metric_{name}_n": 3, f"metric_{name}_stderr": 0.1}
    both = point(10, summary={**own, key: 1.0})
    assert f"metric_{name}" in both.metrics()
    assert both.value_and_interval(name) == (1.0, None)
    assert both.value_and_interval(f"metric_{name}") == (0.5, None)


def test_metrics_are_named_by_the_summary() -> None:
    of_one = {"metric_len": 5.0, "metric_len_n": 2, "metric_len_stderr": 0.1}
    bounds = {"metric_len_ci_low": 4.0, "metric_len_ci_high": 6.0}
    shown = point(1, summary={"mean": 1.0, **of_one, **bounds})
    assert shown.metrics() == ["len"]
    assert shown.value_and_interval("len") == (5.0, (4.0, 6.0))
    assert shown.value_and_interval("other") == (None, None)


def test_a_point_of_fewer_items_than_others_of_its_curve_is_told_apart() -> None:
    whole = [point(1, asked=8, of=90), point(2, asked=8, of=90)]
    most = most_asked(whole)
    assert not is_fewer(whole[0], most)
    assert is_fewer(point(3, asked=4, of=90), most)
    assert is_fewer(point(3, asked=8, of=90, partial="out of time"), most)


# --- The curve ----------------------------------------------------------------------------------


FOUR = [point(10), point(20), point(30), point(40)]
LAST, BACK = point(10, 0.7), point(30, 0.9, session="b")
LABELS = [point(10, label="b"), point(10, label="a"), point(5, label="b")]
LATER = [point(40, session="b"), point(25, session="b")]
OTHER_REASON = point(10, None, skipped="another reason")


@pytest.mark.parametrize(
    ("written", "curve"),
    [
        ([point(10, 0.1), point(20), LAST], [LAST, point(20)]),
        (LABELS, [LABELS[2], LABELS[1], LABELS[0]]),
        ([*FOUR, BACK], [point(10), point(20), BACK]),
        ([point(100, label="rare"), point(30, None), BACK], [BACK]),
        ([point(20), point(30), point(10)], FOUR[:3]),
        ([point(20), point(30), point(10), *LATER], [point(10), point(20), LATER[1], LATER[0]]),
        ([*FOUR[:3], point(20, None, session="b")], FOUR[:3]),
        ([point(10, None), point(20, None), point(10)], [point(10), point(20, None)]),
        ([point(10), point(10, None)], [point(10)]),
        ([point(10, None), OTHER_REASON], [OTHER_REASON]),
    ],
    ids=[
        "the last result at a step",
        "labels are curves of their own",
        "a restart supersedes what it went back on",
        "a restart supersedes what it has not reached again",
        "steps of a session in any order",
        "steps of two sessions in any order",
        "a skip of a later session supersedes nothing",
        "a result in place of a skip",
        "a skip after a result",
        "the last of two skips",
    ],
)
def test_what_the_curve_is_now(written: list[CurvePoint], curve: list[CurvePoint]) -> None:
    assert current_points(written) == curve


points = st.builds(
    point,
    st.integers(0, 6),
    st.none() | st.floats(0, 1),
    session=st.sampled_from("abc"),
    label=st.sampled_from(["x", "y"]),
)


@given(st.lists(points, max_size=12))
def test_a_curve_has_one_point_a_step_in_order(written: list[CurvePoint]) -> None:
    curve = current_points(written)
    places = [(p.step, p.label) for p in curve]
    assert places == sorted(set(places))
    assert all(p in written for p in curve)
    assert current_points(curve) == curve or len({p.session for p in curve}) > 1


@given(st.lists(points, max_size=12))
def test_every_point_is_in_the_curve_or_something_took_its_place(written: list[CurvePoint]) -> None:
    """The rule over again, point by point, from what each may be left out for."""
    sessions = [*dict.fromkeys(p.session for p in written)]
    curve = current_points(written)
    for i, one in enumerate(written):
        rank = sessions.index(one.session)
        back = any(
            p.has_result and p.step <= one.step and sessions.index(p.session) > rank
            for p in written
        )
        same = [
            p
            for j, p in enumerate(written)
            if (p.label, p.step) == (one.label, one.step)
            and (p.has_result, j) > (one.has_result, i)
            and not any(
                q.has_result
                and q.step <= p.step
                and sessions.index(q.session) > sessions.index(p.session)
                for q in written
            )
        ]
        assert (one in curve) == (not back and not same) or written.count(one) > 1


@given(st.lists(points, max_size=8), st.randoms())
def test_one_session_gives_one_curve_in_whatever_order_its_steps_come(
    written: list[CurvePoint], random: Any
) -> None:
    distinct = list({(p.step, p.label): p for p in written if p.session == "a"}.values())
    shuffled = random.sample(distinct, len(distinct))
    assert current_points(shuffled) == current_points(distinct)


# --- Stop ---------------------------------------------------------------------------------------


def test_a_request_to_stop_is_found_with_its_reason(tmp_path: Path) -> None:
    assert stop_requested(tmp_path) is None
    request_stop(tmp_path, "the reward is hacked")
    assert stop_requested(tmp_path) == "the reward is hacked"
    stored = json.loads((tmp_path / "stop").read_text())
    assert {**stored, "time": None} == {
        "format": "heldout.stop",
        "version": 1,
        "reason": "the reward is hacked",
        "time": None,
    }
    assert [p.name for p in tmp_path.iterdir()] == ["stop"]
    request_stop(tmp_path, "")
    assert stop_requested(tmp_path) == "stop file"  # which is true, where "" would not be


def test_whatever_is_called_stop_means_stop(tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    for content in (b"", b"null", b"\xff", b"[" * 100_000, b'{"reason":5}', b"x" * 10_000_000):
        stop.write_bytes(content)
        assert stop_requested(tmp_path) == "stop file"
        stop.unlink()
    for make in (
        stop.mkdir,
        lambda: stop.symlink_to(tmp_path / "nowhere"),
        lambda: os.mkfifo(stop),
    ):
        make()
        assert stop_requested(tmp_path) == "stop file"  # and does not wait for a pipe
        stop.rmdir() if stop.is_dir() else stop.unlink()


def test_a_reason_that_is_no_line_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="70000 characters"):
        request_stop(tmp_path, "x" * 70_000)
    with pytest.raises(InvalidInput, match="not text"):
        request_stop(tmp_path, "\ud800")
    with pytest.raises(RunDirectoryError, match="cannot write"):
        request_stop(tmp_path / "nowhere", "x")
