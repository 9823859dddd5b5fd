"""Against the real MLflow, with a SQLite store: what it holds afterwards."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import mlflow
import pytest

from heldout.errors import HeldoutError, InvalidInput
from heldout.training.loggers import MlflowLogger
from heldout.training.loggers.mlflow import valid_key
from tests.training.loggers.scenario import RESULTS, SKIPPED, STEPS, fields_of, play

pytestmark = [
    pytest.mark.integration,
    # MLflow's own tables, with the SQLAlchemy of today.
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning"),
]


def points(store: Any, run_id: str, key: str) -> list[tuple[int, float]]:
    return sorted((m.step, m.value) for m in store.get_metric_history(run_id, key))


def test_late_results_cost_the_trainer_nothing_and_are_at_their_steps(mlflow_store: Any) -> None:
    with mlflow.start_run() as run:
        logger = MlflowLogger()
        play(lambda step: mlflow.log_metric("loss", step, step=step), logger)
        logger.close()
    run_id = run.info.run_id
    assert points(mlflow_store, run_id, "loss") == [(step, step) for step in STEPS]
    assert points(mlflow_store, run_id, "rl_eval/reward") == sorted(RESULTS.items())
    assert points(mlflow_store, run_id, "rl_eval/skipped") == [(SKIPPED, 1)]
    stored = mlflow_store.get_run(run_id).data
    assert stored.metrics["rl_eval/reward"] == 0.53  # the latest is that of the largest step
    assert stored.tags["rl_eval/reason/20"] == "no model"


def test_a_run_that_is_not_there_yet_costs_what_comes_before_it(mlflow_store: Any) -> None:
    begun: list[Any] = [None]
    logger = MlflowLogger(lambda: begun[0])
    with pytest.raises(HeldoutError, match="returned None"):
        logger.log("rl_eval", 4, fields_of(4))
    with mlflow.start_run() as run:
        begun[0] = run.info.run_id
        logger.log("rl_eval", 5, fields_of(5))
    assert points(mlflow_store, run.info.run_id, "rl_eval/reward") == [(5, 0.05)]


def test_the_store_is_that_of_when_the_run_begins(mlflow_store: Any, tmp_path: Path) -> None:
    """A trainer may choose it when it sets its tracker up."""
    uri = mlflow.get_tracking_uri()
    try:
        mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'another.db'}")
        run_id: list[str] = []
        logger = MlflowLogger(lambda: run_id[0])
    finally:
        mlflow.set_tracking_uri(uri)
    with mlflow.start_run() as run:
        run_id.append(run.info.run_id)
        logger.log("rl_eval", 5, fields_of(5))
    assert points(mlflow_store, run.info.run_id, "rl_eval/reward") == [(5, 0.05)]


def test_more_metrics_than_mlflow_takes_at_once(mlflow_store: Any) -> None:
    fields = {f"eval_metric_{n}": n for n in range(1200)} | {"eval_partial": "max_seconds=1"}
    with mlflow.start_run() as run:
        MlflowLogger().log("e", 3, fields)
    data = mlflow_store.get_run(run.info.run_id).data
    assert len(data.metrics) == 1201
    assert data.metrics["e/metric_1199"] == 1199
    assert data.tags["e/partial_reason/3"] == "max_seconds=1"


def test_a_thread_without_a_run_is_told_what_to_do(mlflow_store: Any) -> None:
    said: list[str] = []

    def make() -> None:
        with pytest.raises(InvalidInput, match="call mlflow.start_run first") as problem:
            MlflowLogger()
        said.append(str(problem.value))

    with mlflow.start_run():
        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
    assert said


def test_a_name_that_mlflow_refuses_is_spelled_so_that_it_takes_it(mlflow_store: Any) -> None:
    assert valid_key("e/metric_pass@1") == "e/metric_pass_x40_1"
    assert valid_key("e/metric_a b-c.d:é") == "e/metric_a b-c.d:_xe9_"
    with mlflow.start_run() as run:
        MlflowLogger().log("e", 1, {"eval_metric_pass@1": 0.5, "eval_reward": 0.25})
    assert points(mlflow_store, run.info.run_id, "e/metric_pass_x40_1") == [(1, 0.5)]
    assert points(mlflow_store, run.info.run_id, "e/reward") == [(1, 0.25)]
