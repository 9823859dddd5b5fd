"""Hundreds of evals beside a training, into every logger at once: nothing lost, nothing twice."""

from __future__ import annotations

import gc
import io
import logging
import random
import re
import threading
import weakref
from pathlib import Path
from typing import Any

import anyio
import mlflow
import pytest
import trackio
from trackio.sqlite_storage import SQLiteStorage

from heldout.training.background.dispatcher import AsyncEvalDispatcher
from heldout.training.curve.points import read_points
from heldout.training.loggers import (
    CallableLogger,
    Loggers,
    MlflowLogger,
    StdoutLogger,
    TensorboardLogger,
    TrackioLogger,
    WandbLogger,
)
from tests.training.loggers import wandb_file
from tests.training.loggers.tensorboard_files import Trainer, by_accumulator, every_reading, texts

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning"),
]

STEPS = range(1, 301)
RUNNING = 16
"""Evals at once; which of them is next is a matter of chance."""
FAILED = {step for step in STEPS if random.Random(f"fails {step}").random() < 0.1}
VALUES = {step: step / 1000 for step in STEPS if step not in FAILED}
REASONS = {step: f"ValueError: nothing at {step}" for step in FAILED}


class Result(dict[str, float]):
    """A mapping that can be watched."""

    __hash__ = object.__hash__


class Watched:
    """Which evaluators and results there still are."""

    def __init__(self) -> None:
        self.evaluators: weakref.WeakSet[Any] = weakref.WeakSet()
        self.results: weakref.WeakSet[Any] = weakref.WeakSet()
        self.most = 0
        self._lock = threading.Lock()

    def see(self, one: Any, among: weakref.WeakSet[Any]) -> None:
        with self._lock:
            among.add(one)
            self.most = max(self.most, len(self.evaluators), len(self.results))

    def check(self) -> None:
        """There were never more than those that ran, however many there have been."""
        assert self.most <= RUNNING + 8
        gc.collect()
        assert not self.evaluators
        assert not self.results


class Evaluator:
    """Of a step: after a while of its own, its value or its failure."""

    def __init__(self, step: int, watched: Watched) -> None:
        self.step, self.watched = step, watched
        watched.see(self, watched.evaluators)

    def result(self) -> Result:
        if self.step in FAILED:
            raise ValueError(f"nothing at {self.step}")
        found = Result(score=VALUES[self.step])
        self.watched.see(found, self.watched.results)
        return found


class Late(Evaluator):
    async def __call__(self) -> Result:
        await anyio.sleep(random.Random(f"takes {self.step}").expovariate(1 / 0.01))
        return self.result()


class Plain(Evaluator):
    """In a thread."""

    def __call__(self) -> Result:
        return self.result()


def schedule(evals: AsyncEvalDispatcher, step: int, watched: Watched) -> None:
    kind = Plain if step % 10 == 0 else Late
    evals.schedule(kind(step, watched), step=step, name="rl_eval")


def what(fields: dict[str, Any]) -> float | str:
    """The value, or why there is none."""
    if "skipped" not in fields:
        return float(fields["metric_score"])
    assert "metric_score" not in fields
    return str(fields["reason"])


def unkeyed(row: dict[str, Any]) -> dict[str, Any]:
    mark = "rl_eval/"
    return {key.removeprefix(mark): value for key, value in row.items() if key.startswith(mark)}


EXPECTED = [(step, VALUES.get(step, REASONS.get(step))) for step in STEPS]
SKIPS = [(step, 1.0) for step in sorted(FAILED)]
LOSSES = [(step, float(step)) for step in STEPS]


def test_hundreds_of_evals_are_a_line_each_in_every_logger(
    tmp_path: Path,
    wandb_run: Any,
    trackio_home: Path,
    mlflow_store: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # pytest would keep each warning, with the failed evaluator in its traceback.
    monkeypatch.setattr(logging.getLogger("heldout"), "disabled", True)
    watched = Watched()
    got: list[tuple[int, dict[str, Any]]] = []
    stream = io.StringIO()
    tracked = trackio.init(project="p", name="training", embed=False)
    board = Trainer(tmp_path / "board")
    with mlflow.start_run() as run:
        wandb_logger = WandbLogger(wandb_run)
        loggers = Loggers(
            CallableLogger(lambda name, step, fields: got.append((step, fields))),
            StdoutLogger(stream),
            wandb_logger,
            TrackioLogger(tracked),
            TensorboardLogger(tmp_path / "board"),
            MlflowLogger(run.info.run_id),
        )
        with AsyncEvalDispatcher(
            run_dir=tmp_path / "run", loggers=loggers, max_pending=RUNNING, when_full="wait"
        ) as evals:
            for step in STEPS:
                wandb_run.log({"loss": step}, step=step)
                trackio.log({"loss": step}, step=step)
                board(step)
                if step % 10 == 0:  # each is a transaction
                    mlflow.log_metric("loss", step, step=step)
                schedule(evals, step, watched)
            evals.drain()
            report = loggers.close(timeout=600)  # MLflow, on a busy machine, may be far behind
    trackio.finish()
    board.close()
    wandb_run.finish()

    assert report.complete, str(report)
    assert {each.got for each in report} == {len(STEPS)}

    # What never left the process, and what needs no package
    points = read_points(tmp_path / "run" / "curve.jsonl")
    assert [step for step, _ in got] != list(STEPS)  # late, and out of order
    assert (
        sorted(
            (p.step, p.skipped if p.summary is None else p.summary["metric_score"]) for p in points
        )
        == EXPECTED
    )
    assert sorted((step, what(fields)) for step, fields in got) == EXPECTED
    printed = re.findall(
        r"^rl_eval step (\d+): (?:.*metric_score ([\d.]+)|SKIPPED, .*reason: (.*)$)",
        stream.getvalue(),
        re.M,
    )
    assert len(stream.getvalue().splitlines()) == len(STEPS)
    assert sorted((int(s), float(v) if v else why) for s, v, why in printed) == EXPECTED

    # wandb: a run of their own; the trainer's has its own rows only
    rows = wandb_file.rows(Path(wandb_logger.run.dir).parent)
    assert sorted((row["train/global_step"], what(unkeyed(row))) for row in rows) == EXPECTED
    rows = wandb_file.rows(Path(wandb_run.dir).parent)
    assert [(row["_step"], row["loss"]) for row in rows] == LOSSES

    # trackio: in the trainer's run
    stored = SQLiteStorage.get_logs("p", "training")
    assert [(row["step"], row["loss"]) for row in stored if "loss" in row] == LOSSES
    found = [row for row in stored if "rl_eval/seconds" in row]
    assert sorted((row["step"], what(unkeyed(row))) for row in found) == EXPECTED

    # TensorBoard: a run beside the trainer's
    assert by_accumulator(tmp_path / "board", "loss") == LOSSES
    for reading in every_reading(tmp_path / "board", "rl_eval/metric_score"):
        assert [(step, round(value, 6)) for step, value in reading] == sorted(VALUES.items())
    for reading in every_reading(tmp_path / "board", "rl_eval/skipped"):
        assert reading == SKIPS
    assert texts(tmp_path / "board" / "heldout", "rl_eval/reason") == REASONS

    # MLflow: in the trainer's run
    def history(key: str) -> list[tuple[int, float]]:
        found = mlflow_store.get_metric_history(run.info.run_id, key)
        return sorted((metric.step, metric.value) for metric in found)

    assert history("loss") == LOSSES[9::10]
    assert history("rl_eval/metric_score") == sorted(VALUES.items())
    assert history("rl_eval/skipped") == SKIPS
    tags = mlflow_store.get_run(run.info.run_id).data.tags
    said = {key: text for key, text in tags.items() if key.startswith("rl_eval/reason/")}
    assert said == {f"rl_eval/reason/{step}": why for step, why in REASONS.items()}

    watched.check()
