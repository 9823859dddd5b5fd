"""The live line: what it says, and that it fits."""

from __future__ import annotations

import random
import threading

import pytest

from heldout._progress import Line, Running


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def line(total: int | None = 100, done: int = 0, repeats: int = 1) -> tuple[Line, Running, Clock]:
    running, clock = Running(repeats), Clock()
    running.total = total
    for i in range(done):
        running.add(i, 1.0)
    return Line(running, "name", clock), running, clock


def test_nothing_is_said_that_is_not_known_yet() -> None:
    it, _, _ = line()
    assert it.parts() == {"name": "name", "bar": "", "done": "  0/100", "mean": "mean –"}


def test_done_rate_time_left_mean_and_errors() -> None:
    it, running, clock = line()
    clock.now += 10
    for i in range(20):
        running.add(i, float(i % 2), ok=i != 0)
    assert it.parts() == {
        "name": "name",
        "bar": "",
        "done": " 20/100",
        "rate": "  2.0/s",
        "time": "0:40 left",
        "mean": "mean 0.500 (0.299 … 0.701)",
        "errors": "1 error",
    }


def test_slow_rates_are_by_the_minute_and_long_times_in_hours() -> None:
    it, running, clock = line()
    clock.now += 1200
    for i in range(10):
        running.add(i, 1.0)
    parts = it.parts()
    assert (parts["rate"], parts["time"]) == ("0.5/min", "3:00:00 left")


def test_before_the_first_result_it_says_how_many_are_under_way() -> None:
    it, running, _ = line()
    running.under_way = 100
    assert it.parts()["mean"] == "100 under way"
    running.add(0, 1.0)
    assert it.parts()["mean"].startswith("mean 1.000")


def test_a_time_left_is_not_guessed_from_the_first_few() -> None:
    it, running, clock = line()
    clock.now += 60
    running.add(0, 1.0)
    assert "time" not in it.parts()


def test_a_stream_of_unknown_length_has_no_time_left() -> None:
    it, running, clock = line(total=None)
    clock.now += 1
    running.add(0, 1.0)
    parts = it.parts()
    assert parts["done"] == "1 done"
    assert "time" not in parts


def test_the_rate_is_that_of_late_and_not_of_a_slow_start() -> None:
    it, running, clock = line(total=10_000)
    clock.now += 300
    it.parts()
    for second in range(60):
        clock.now += 1
        for i in range(10):
            running.add(second * 10 + i, 1.0)
        parts = it.parts()
    assert parts["rate"] == " 10.0/s"


def test_what_a_resumed_run_had_already_does_not_count_as_speed() -> None:
    it, running, clock = line(done=50)
    clock.now += 10
    for i in range(50, 60):
        running.add(i, 1.0)
    parts = it.parts()
    assert (parts["done"], parts["rate"], parts["time"]) == (" 60/100", "  1.0/s", "0:40 left")
    it.ended = True
    assert it.parts()["rate"] == "  1.0/s"


def test_in_the_end_it_says_how_long_it_took() -> None:
    it, running, clock = line(total=10)
    clock.now += 5
    for i in range(10):
        running.add(i, 1.0)
    it.ended = True
    assert it.parts()["time"] == "in 0:05"
    assert "━" * 24 in it.render(100).plain
    assert "╌" not in it.render(100).plain


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (
            88,
            "name ━━━╌╌╌╌╌╌╌╌╌╌╌╌╌ 20/100 2.0/s 0:40 left mean 0.500 (0.299 … 0.701) 1 error",
        ),
        (80, "name  ━╌╌╌╌╌╌╌   20/100    2.0/s  0:40 left  mean 0.500 (0.299 … 0.701)  1 error"),
        (72, "name   20/100    2.0/s  0:40 left  mean 0.500 (0.299 … 0.701)  1 error"),
        (66, "name   20/100  0:40 left  mean 0.500 (0.299 … 0.701)  1 error"),
        (58, " 20/100  0:40 left  mean 0.500 (0.299 … 0.701)  1 error"),
        (48, " 20/100  mean 0.500 (0.299 … 0.701)  1 error"),
    ],
)
def test_a_narrow_terminal_gets_the_parts_that_matter_most(width: int, expected: str) -> None:
    it, running, clock = line()
    clock.now += 10
    for i in range(20):
        running.add(i, float(i % 2), ok=i != 0)
    assert it.render(width).plain.split() == expected.split()
    assert len(it.render(width).plain) <= width


def test_names_are_not_markup() -> None:
    running = Running(1)
    assert Line(running, "[red]x").render(80).plain.startswith("[red]x")


def test_where_everything_errored_there_is_no_mean() -> None:
    running = Running(1)
    for i in range(3):
        running.add(i, 0.0, ok=False)
    assert running.mean() == "mean –"


def test_repeats_of_a_sample_widen_the_error_bar_as_one() -> None:
    together, apart = Running(2), Running(1)
    rng = random.Random(0)
    rewards = [float(rng.random() < 0.5) for _ in range(40)]
    for repeat in range(2):
        for i, reward in enumerate(rewards):
            together.add(i, reward)
            apart.add(2 * i + repeat, reward)
    single = Running(1)
    for i, reward in enumerate(rewards):
        single.add(i, reward)
    bars = []
    for running in (together, single, apart):
        running.mean()
        bars.append(running._moments.stderr)
    assert bars[0] == pytest.approx(bars[1])
    assert bars[2] < 0.8 * bars[1]


def test_a_result_that_arrives_while_the_display_reads_is_not_lost() -> None:
    running = Running(1)
    arriving = threading.Thread(target=running.add, args=(1, 1.0))

    class Results(list[tuple[int, float]]):
        def clear(self) -> None:
            """The moment after reading and before forgetting what was read."""
            if arriving.ident is None:
                arriving.start()
                arriving.join(0.1)  # it has to wait until this is over
            super().clear()

    running._fresh = Results()
    running.add(0, 1.0)
    running.mean()
    arriving.join()
    running.mean()
    assert running._moments.n == running.done == 2
