"""A run is steered by a file in its directory, and its report is the same as without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from heldout import EvalConfig, EvalReport, Message, Sample, evaluate
from heldout._evals import engine
from heldout._evals.steering import Steering
from heldout.store.control import CONTROL_NAME, RunControl, read_control, write_control

pytestmark = pytest.mark.anyio

SAMPLES = [Sample(f"q{n}", {"question": f"{n}"}, str(n)) for n in range(12)]


def exact(trajectory: Any, sample: Sample) -> float:
    return float(trajectory.answer == sample.ground_truth)


class Steered:
    """An endpoint whose answers wait until they are let go, and which counts them."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.in_flight = self.most = 0
        self.gate = anyio.Event()

    async def __call__(self, messages: list[Message]) -> str:
        self.begun.append(messages[-1].text)
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        await self.gate.wait()
        await anyio.lowlevel.checkpoint()
        self.in_flight -= 1
        return messages[-1].text


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(120):
        while not condition():
            await anyio.sleep(0.001)


class Watched:
    """The steering of the run, once it has looked at the control file."""

    def __init__(self) -> None:
        self.steering: Steering[Any] | None = None

    def says(self, text: str) -> bool:
        return self.steering is not None and text in self.steering.describe()

    def has_seen_retries(self) -> bool:
        return self.steering is not None and self.steering._control.retries > 0


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    monkeypatch.setattr(engine, "SYNC_SECONDS", 0.001)
    watch, poll = Watched(), Steering.poll

    def watched_poll(self: Steering[Any]) -> None:
        poll(self)
        watch.steering = self

    monkeypatch.setattr(Steering, "poll", watched_poll)
    return watch


def config(tmp_path: Path, endpoint: Any, **given: Any) -> EvalConfig:
    return EvalConfig(
        endpoint=endpoint, output_dir=str(tmp_path), experiment_name="x", progress=False, **given
    )


async def steered_run(tmp_path: Path, endpoint: Any, steer: Any, **given: Any) -> EvalReport:
    reports: list[EvalReport] = []

    async def run() -> None:
        settings = config(tmp_path, endpoint, **given)
        reports.append(await evaluate(SAMPLES, settings, exact))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await steer(tmp_path / "x")
    return reports[0]


async def test_a_paused_run_begins_nothing_until_it_goes_on(
    tmp_path: Path, watched: Watched
) -> None:
    endpoint = Steered()

    async def steer(run: Path) -> None:
        await until(lambda: len(endpoint.begun) == 2)
        write_control(run, RunControl(paused=True))
        await until(lambda: watched.says("paused"))
        endpoint.gate.set()
        await until(lambda: endpoint.in_flight == 0)
        for _ in range(50):
            await anyio.lowlevel.checkpoint()
        assert len(endpoint.begun) == 2
        write_control(run, RunControl(paused=False))

    report = await steered_run(tmp_path, endpoint, steer, max_concurrent=2)
    assert (report.summary["n"], report.summary["mean"]) == (12, 1.0)
    assert not (tmp_path / "x" / CONTROL_NAME).exists()


async def test_fewer_items_are_in_flight_once_asked_for(tmp_path: Path, watched: Watched) -> None:
    endpoint = Steered()

    async def steer(run: Path) -> None:
        await until(lambda: len(endpoint.begun) == 6)
        write_control(run, RunControl(max_concurrent=2))
        await until(lambda: watched.says("at most 2 at a time"))
        endpoint.gate.set()
        await until(lambda: endpoint.in_flight <= 2)
        endpoint.most = 0

    report = await steered_run(tmp_path, endpoint, steer, max_concurrent=6)
    assert endpoint.most <= 2
    assert report.summary["mean"] == 1.0


async def test_errored_items_are_run_again_and_the_report_has_their_scores(
    tmp_path: Path, watched: Watched
) -> None:
    failures: set[str] = set()
    waiting, go_on = anyio.Event(), anyio.Event()

    async def fails_at_first(messages: list[Message]) -> str:
        text = messages[-1].text
        if text in ("1", "2") and text not in failures:
            failures.add(text)
            raise RuntimeError("the engine is down")
        if text == "5" and not go_on.is_set():
            waiting.set()
            await go_on.wait()
        return text

    async def steer(run: Path) -> None:
        await waiting.wait()
        write_control(run, RunControl(retries=1))
        await until(watched.has_seen_retries)
        go_on.set()

    report = await steered_run(tmp_path, fails_at_first, steer, max_concurrent=1)
    assert (report.summary["n"], report.summary["n_errors"], report.summary["mean"]) == (12, 0, 1.0)
    plain_config = config(tmp_path / "plain", lambda messages: messages[-1].text)
    plain = await evaluate(SAMPLES, plain_config, exact)
    assert report.summary == plain.summary


@pytest.mark.parametrize("failing_at", ["0", "11"])
async def test_errors_are_run_again_where_only_the_last_item_is_still_in_flight(
    failing_at: str, tmp_path: Path, watched: Watched
) -> None:
    """One that was asked for after every item had begun, and one that fails as the last."""
    asked: list[str] = []
    others_done, go_on = anyio.Event(), anyio.Event()
    last = "11" if failing_at == "0" else "10"

    async def fails_at_first(messages: list[Message]) -> str:
        text = messages[-1].text
        asked.append(text)
        if text == failing_at and asked.count(text) == 1:
            raise RuntimeError("the engine is down")
        if text == last:
            others_done.set()
            await go_on.wait()
        return text

    async def steer(run: Path) -> None:
        await others_done.wait()
        await until(lambda: len(asked) == 12)
        for _ in range(50):  # the other worker finds nothing left, and ends
            await anyio.lowlevel.checkpoint()
        write_control(run, RunControl(retries=1))
        await until(watched.has_seen_retries)
        go_on.set()

    report = await steered_run(tmp_path, fails_at_first, steer, max_concurrent=2)
    assert (report.summary["n"], report.summary["n_errors"], report.summary["mean"]) == (12, 0, 1.0)
    assert asked.count(failing_at) == 2


async def test_what_comes_too_late_to_be_run_again_is_said(
    tmp_path: Path, watched: Watched, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    end = Steering.end

    def asked_at_the_end(self: Steering[Any]) -> None:
        write_control(tmp_path / "x", RunControl(retries=1))
        end(self)

    monkeypatch.setattr(Steering, "end", asked_at_the_end)

    async def fails_once(messages: list[Message]) -> str:
        if messages[-1].text == "3":
            raise RuntimeError("the engine is down")
        return messages[-1].text

    report = await evaluate(SAMPLES, config(tmp_path, fails_once), exact)
    assert report.summary["n_errors"] == 1
    assert "came as the run ended; run it with --resume" in caplog.text
    assert not (tmp_path / "x" / CONTROL_NAME).exists()


async def test_what_an_earlier_attempt_was_asked_for_is_forgotten(tmp_path: Path) -> None:
    settings = config(tmp_path, lambda messages: messages[-1].text)
    await evaluate(SAMPLES, settings, exact)
    write_control(tmp_path / "x", RunControl(paused=True))
    again = config(tmp_path, lambda messages: messages[-1].text, resume=True)
    report = await evaluate(SAMPLES, again, exact)
    assert report.summary["n"] == 12
    assert read_control(tmp_path / "x") == RunControl()


def test_a_file_that_cannot_be_read_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    steering: Steering[int] = Steering(tmp_path)
    write_control(tmp_path, RunControl(max_concurrent=3))
    steering.poll()
    (tmp_path / CONTROL_NAME).write_text("{")
    steering.poll()
    assert steering.describe() == "at most 3 at a time"
    assert "the run goes on as it was" in caplog.text
