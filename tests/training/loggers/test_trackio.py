"""Against the real trackio, in a folder of its own: what its database holds afterwards."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trackio

from heldout.errors import HeldoutError, InvalidInput
from heldout.training.loggers import Loggers, TrackioLogger
from tests.training.loggers.scenario import RESULTS, SKIPPED, STEPS, fields_of, play

pytestmark = pytest.mark.integration


@pytest.fixture
def trainer(trackio_home: Path) -> Iterator[Any]:
    """The trainer's run."""
    run = trackio.init(project="p", name="training", embed=False)
    yield run
    with suppress(RuntimeError):  # the test has finished it
        trackio.finish()


def stored(trackio_home: Path) -> list[dict[str, Any]]:
    from trackio.sqlite_storage import SQLiteStorage

    assert list(trackio_home.glob("*.db"))
    return list(SQLiteStorage.get_logs("p", "training"))


def test_late_results_cost_the_trainer_nothing_and_are_at_their_steps(
    trainer: Any, trackio_home: Path
) -> None:
    logger = TrackioLogger()
    play(lambda step: trackio.log({"loss": step}, step=step), logger)
    logger.close()
    trackio.finish()
    found = stored(trackio_home)
    assert [(row["step"], row["loss"]) for row in found if "loss" in row] == [
        (step, step) for step in STEPS
    ]
    evals = {row["step"]: row for row in found if "rl_eval/seconds" in row}
    assert evals.keys() == {*RESULTS, SKIPPED}
    assert {s: evals[s]["rl_eval/reward"] for s in RESULTS} == RESULTS
    skip = {key: value for key, value in evals[SKIPPED].items() if key.startswith("rl_eval/")}
    assert skip == {"rl_eval/skipped": 1, "rl_eval/seconds": 0.5, "rl_eval/reason": "no model"}


def test_a_run_that_is_not_there_yet_costs_what_comes_before_it(trackio_home: Path) -> None:
    begun: list[Any] = [None]
    logger = TrackioLogger(lambda: begun[0])
    with pytest.raises(HeldoutError, match="returned None"):
        logger.log("rl_eval", 4, fields_of(4))
    begun[0] = trackio.init(project="p", name="training", embed=False)
    logger.log("rl_eval", 5, fields_of(5))
    trackio.finish()
    assert [row["step"] for row in stored(trackio_home)] == [5]


def test_what_comes_when_the_run_is_finished_is_stored(trainer: Any, trackio_home: Path) -> None:
    trackio.log({"loss": 1}, step=7)
    trackio.finish()
    TrackioLogger(trainer).log("rl_eval", 4, fields_of(4))
    assert [row["step"] for row in stored(trackio_home)] == [7, 4]


def test_a_thread_without_a_run_is_told_what_to_do(trainer: Any) -> None:
    said: list[str] = []

    def make() -> None:
        with pytest.raises(InvalidInput, match="call trackio.init first") as problem:
            TrackioLogger()
        said.append(str(problem.value))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    assert said


@pytest.mark.filterwarnings("ignore:trackio failed to flush metric logs:UserWarning")
def test_rows_that_trackio_could_not_store_are_said_at_the_end(
    trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = threading.Event()

    def full(**batch: Any) -> None:
        tried.set()
        raise OSError("disk full")

    monkeypatch.setattr("trackio.sqlite_storage.SQLiteStorage.bulk_log", full)
    loggers = Loggers(TrackioLogger(trainer))
    loggers.log("rl_eval", 4, fields_of(4))
    assert tried.wait(60)
    trackio.finish()  # the batch has ended, one way or the other
    (report,) = loggers.close()
    assert report.got == 1
    assert report.problem is not None
    assert "could not store some rows" in report.problem
