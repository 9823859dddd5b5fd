"""The line of a run in flight: what it says, and that it fits."""

from __future__ import annotations

import io
import random
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console, RenderableType

from heldout import Usage
from heldout._core.prices import Price
from heldout._evals import progress as progress_module
from heldout._evals.progress import RunProgress, make_line, show_progress
from heldout.stats import Moments


def drawn(progress: RunProgress, *, width: int = 140, name: str = "capitals") -> str:
    return rendered(make_line(progress, name, width=width), width=width)


def rendered(draw: Callable[[], RenderableType], *, width: int = 140) -> str:
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    with console.capture() as capture:
        console.print(draw())
    return capture.get()


def half_done() -> RunProgress:
    progress = RunProgress(1)
    progress.total, progress.in_flight = 100, 8
    for i in range(20):
        progress.add(i, float(i % 2), ok=i != 0)
    return progress


def test_it_says_counts_mean_with_its_denominator_errors_and_items_in_flight() -> None:
    assert half_done().status() == "mean 0.500 (0.299 … 0.701) over 20, 1 error"
    line = drawn(half_done(), width=140)
    for part in ("capitals", "20/100", "0:00:00", "mean 0.500", "1 error", "8 in flight"):
        assert part in line


def test_before_the_first_result_there_is_no_mean() -> None:
    progress = RunProgress(1)
    progress.in_flight = 16
    assert progress.status() == "mean –"
    assert "?" in drawn(progress)
    assert "16 in flight" in drawn(progress)


def test_where_everything_errored_there_is_no_mean() -> None:
    progress = RunProgress(1)
    for i in range(3):
        progress.add(i, 0.0, ok=False)
    assert progress.status() == "mean –, 3 errors"


@pytest.mark.parametrize("width", [50, 80, 119, 120, 200])
def test_it_is_one_line_that_leaves_room_for_what_a_terminal_echoes(width: int) -> None:
    progress = half_done()
    progress.total = 1_000_000
    line = drawn(progress, width=width, name="a run with quite a long name")
    assert line.count("\n") == 1
    assert len(line.rstrip()) <= width - 3
    assert "20/1000000" in line


def test_it_says_how_fast_the_model_writes_and_what_that_has_cost() -> None:
    progress = RunProgress(1, Price(input=1.0, output=10.0))
    progress.total, progress.in_flight = 50, 16
    progress.add_turn(None)  # a model that does not report its tokens
    now = 100.0
    draw = make_line(progress, "capitals", width=140, clock=lambda: now)
    now = 104.0
    assert "tokens/s" not in rendered(draw)
    assert "0:00:04" in rendered(draw)
    assert "16 in flight" in rendered(draw)
    progress.add_turn(Usage(3_000, 1_000))
    assert "250 tokens/s" in rendered(draw)
    assert "cost 0.013" in rendered(draw)


def test_a_narrow_terminal_gets_the_parts_that_matter_most() -> None:
    line = drawn(half_done(), width=75)
    assert "capitals" not in line
    assert "20/100" in line
    assert "0:00:00" in line
    assert "mean 0.500 (0.299 … 0.701)" in line


def test_names_are_not_markup() -> None:
    assert "[red]x" in drawn(half_done(), name="[red]x")


def test_samples_of_equal_content_leave_the_error_bar_to_the_end() -> None:
    progress = half_done()
    progress.has_copies = True
    assert "mean 0.500 over 20" in progress.status()


def test_repeats_of_a_sample_widen_the_error_bar_as_one() -> None:
    together, apart, single = RunProgress(2), RunProgress(1), RunProgress(1)
    rng = random.Random(0)
    rewards = [float(rng.random() < 0.5) for _ in range(40)]
    for repeat in range(2):
        for i, reward in enumerate(rewards):
            together.add(i, reward)
            apart.add(2 * i + repeat, reward)
    for i, reward in enumerate(rewards):
        single.add(i, reward)
    bars = []
    for progress in (together, single, apart):
        progress.status()
        bars.append(progress._moments.stderr)
    assert bars[0] == pytest.approx(bars[1])
    assert bars[2] < 0.8 * bars[1]


def test_the_mean_of_many_is_computed_again_where_enough_is_new_and_at_the_end() -> None:
    progress = RunProgress(1)
    progress.total = 1010
    seen = []
    for i in range(progress.total):
        progress.add(i, 1.0)
        seen.append(progress.status().rpartition(" over ")[2])
    assert seen[:20] == [str(n) for n in range(1, 21)]
    assert len(set(seen)) < 100
    assert all(int(n) > 0.95 * done for done, n in enumerate(seen, start=1))
    assert seen[-1] == "1010"


def test_a_result_that_arrives_while_the_display_reads_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    progress = RunProgress(1)
    arriving = threading.Thread(target=progress.add, args=(1, 1.0))
    compute = Moments.of

    def interrupted(*given: Any) -> Moments:
        if arriving.ident is None:
            arriving.start()
            arriving.join(0.1)  # it has to wait until this is over
        return compute(*given)

    monkeypatch.setattr(Moments, "of", interrupted)
    progress.add(0, 1.0)
    progress.status()
    arriving.join()
    assert "over 2" in progress.status()


def test_without_a_terminal_a_line_is_printed_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    class Log(io.StringIO):
        written = threading.Event()

        def flush(self) -> None:
            self.written.set()

    log = Log()
    monkeypatch.setattr(sys, "stderr", log)
    monkeypatch.setattr(progress_module, "LINE_SECONDS", 0.001)
    progress = RunProgress(1)
    progress.total = 4
    progress.add(0, 1.0)
    with show_progress(progress, "quiz", wanted=True):
        assert log.written.wait(60)
    assert log.getvalue().splitlines()[0] == "quiz: 1/4 in 0 s, mean 1.000 (0.207 … 1.000) over 1"
    assert not any(thread.name == "heldout-progress" for thread in threading.enumerate())


def test_a_run_that_is_quick_prints_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    with show_progress(RunProgress(1), "quiz", wanted=True):
        pass
    assert capsys.readouterr().err == ""
