"""Against the real tensorboard: what its loaders read from the event files."""

from __future__ import annotations

import resource
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from heldout.errors import InvalidInput
from heldout.training.loggers import TensorboardLogger
from tests.training.loggers.scenario import RESULTS, SKIPPED, STEPS, fields_of, play
from tests.training.loggers.tensorboard_files import (
    Trainer,
    by_accumulator,
    by_dashboard,
    every_reading,
    texts,
)

pytestmark = pytest.mark.integration

REWARD = "rl_eval/reward"


def points(steps: Iterable[int]) -> list[tuple[int, Any]]:
    return [(step, pytest.approx(step / 100)) for step in sorted(steps)]


def test_late_results_cost_the_trainer_nothing_and_are_at_their_steps(tmp_path: Path) -> None:
    trainer, logger = Trainer(tmp_path), TensorboardLogger(tmp_path)
    play(trainer, logger)
    logger.close()
    trainer.close()
    losses = [(step, float(step)) for step in STEPS]
    assert by_accumulator(tmp_path, "loss") == losses
    assert by_dashboard(tmp_path, ".", "loss") == losses
    for found in every_reading(tmp_path, REWARD):
        assert found == points(RESULTS)
    for found in every_reading(tmp_path, "rl_eval/skipped"):
        assert found == [(SKIPPED, 1.0)]
    for found in every_reading(tmp_path, "rl_eval/lag_steps"):
        assert [step for step, _ in found] == sorted(RESULTS)
    assert texts(tmp_path / "heldout", "rl_eval/reason") == {SKIPPED: "no model"}


def test_the_reason_of_a_skip_is_on_the_text_dashboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer

    logger = TensorboardLogger(tmp_path)
    logger.log("e", 3, {"eval_skipped": True, "eval_reason": "no model"})
    logger.close()
    multiplexer = EventMultiplexer()
    multiplexer.AddRunsFromDirectory(str(tmp_path))
    multiplexer.Reload()
    assert multiplexer.PluginRunToTagToContent("text")["heldout"].keys() == {"e/reason"}


def test_an_eval_does_not_take_the_points_of_another(tmp_path: Path) -> None:
    logger = TensorboardLogger(tmp_path)
    for name, step in (("a", 30), ("b", 20), ("b", 40), ("a", 10), ("b", 10)):
        logger.log(name, step, fields_of(step))
    logger.close()
    for tag, steps in (("a/reward", [10, 30]), ("b/reward", [10, 20, 40])):
        for found in every_reading(tmp_path, tag):
            assert found == points(steps)


def test_a_late_result_of_an_earlier_start_costs_that_start_nothing(tmp_path: Path) -> None:
    logged: list[int] = []
    for steps in ([20, 10, 40, 30], [60, 15, 50], [25, 70]):
        logger = TensorboardLogger(tmp_path)
        for step in steps:
            logger.log("rl_eval", step, fields_of(step))
            logged.append(step)
            assert by_accumulator(tmp_path / "heldout", REWARD) == points(logged)
        logger.close()
    for found in every_reading(tmp_path, REWARD):
        assert found == points(logged)


def test_a_disk_that_is_full_for_a_while_tears_no_record(tmp_path: Path) -> None:
    logger = TensorboardLogger(tmp_path)
    logger.log("rl_eval", 10, fields_of(10))
    (path,) = (tmp_path / "heldout").iterdir()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            logger.log("rl_eval", 20, fields_of(20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    logger.log("rl_eval", 30, fields_of(30))
    logger.close()
    for found in every_reading(tmp_path, REWARD):
        assert found == points([10, 20, 30])


def test_what_is_no_folder_is_refused() -> None:
    with pytest.raises(InvalidInput, match="logdir must be the trainer's log directory, got 3"):
        TensorboardLogger(3)
