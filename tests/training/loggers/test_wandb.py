"""Against the real wandb, offline: what its files hold afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import wandb

from heldout.errors import InvalidInput
from heldout.training.loggers import WandbLogger
from tests.training.loggers.scenario import (
    RESULTS,
    SKIPPED,
    STEPS,
    fields_of,
    play,
    send,
)
from tests.training.loggers.wandb_file import parsed, rows

pytestmark = pytest.mark.integration


@pytest.fixture
def trainer(wandb_run: Any) -> Any:
    return wandb_run


def offline(folder: Path) -> dict[str, Any]:
    return {"dir": folder, "mode": "offline", "settings": wandb.Settings(silent=True)}


def folder(run: Any) -> Path:
    return Path(run.dir).parent


def test_late_results_cost_the_trainer_nothing_and_are_at_their_steps(trainer: Any) -> None:
    logger = WandbLogger()
    play(lambda step: trainer.log({"loss": step}, step=step), logger)
    assert wandb.run is trainer
    logger.close()
    trainer.finish()
    assert [(row["_step"], row["loss"]) for row in rows(folder(trainer))] == [
        (step, step) for step in STEPS
    ]
    evals = rows(folder(logger.run))
    found = {row["train/global_step"]: row for row in evals}
    assert [row["train/global_step"] for row in evals] == [30, 10, 20, 53]
    assert {s: found[s]["rl_eval/reward"] for s in RESULTS} == RESULTS
    assert found[30]["rl_eval/lag_steps"] == 7
    skip = {key: value for key, value in found[SKIPPED].items() if key.startswith("rl_eval/")}
    assert skip == {"rl_eval/skipped": 1, "rl_eval/seconds": 0.5, "rl_eval/reason": "no model"}


def test_results_are_in_the_trainers_project_and_group_by_its_step(trainer: Any) -> None:
    logger = WandbLogger(trainer)
    logger.log("rl_eval", 30, fields_of(30))
    logger.close()
    run, metrics = None, {}
    for record in parsed(folder(logger.run)):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run = record.run
        elif kind == "metric":
            metrics[record.metric.name or record.metric.glob_name] = record.metric.step_metric
    assert (run.project, run.run_group, run.job_type) == ("p", "g", "eval")
    assert run.display_name == "training held-out"
    assert metrics == {"train/global_step": "", "*": "train/global_step"}
    assert logger.run.config["trainer_run"] == trainer.id


def test_a_trainer_without_a_group_is_named_as_the_group(tmp_path: Path) -> None:
    with wandb.init(project="p", **offline(tmp_path)) as run:
        logger = WandbLogger(run)
        logger.log("e", 1, fields_of(1))
        assert logger.run.group == run.id
        assert logger.run.offline  # as the trainer's is, though no variable says so
        logger.close()


def test_without_a_trainers_run_there_is_one_for_the_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    wandb.teardown()  # it reads variables once a process
    logger = WandbLogger(project="mine", step_key="step")
    logger.log("e", 4, fields_of(4))
    logger.close()
    assert folder(logger.run).is_relative_to(tmp_path)
    assert [row["step"] for row in rows(folder(logger.run))] == [4]
    wandb.teardown()


def test_a_result_that_comes_after_the_trainers_run_was_closed_is_in_its_project(
    trainer: Any,
) -> None:
    logger = WandbLogger()
    trainer.finish()
    logger.log("rl_eval", 30, fields_of(30))
    logger.close()
    assert (logger.run.project, logger.run.group) == ("p", "g")
    assert logger.run.config["trainer_run"] == trainer.id
    assert [row["train/global_step"] for row in rows(folder(logger.run))] == [30]


def test_without_a_run_or_a_project_a_result_is_refused_and_counted_as_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    logger = WandbLogger()
    with wandb.init(project="p", **offline(tmp_path)):
        pass  # begun after the logger was made, and closed before the first result
    report = send(2, logger)
    assert report[0].n_lost == 2
    assert "WandbLogger(project=…)" in str(report)
    assert logger.run is None


def test_a_logger_that_got_nothing_begins_no_run(trainer: Any) -> None:
    logger = WandbLogger()
    logger.close()
    assert logger.run is None


def test_what_is_no_run_is_refused() -> None:
    with pytest.raises(InvalidInput, match="got 'proj'; a project is named by project="):
        WandbLogger("proj")
    with pytest.raises(InvalidInput, match="what wandb.init returned, got 3"):
        WandbLogger(3)
