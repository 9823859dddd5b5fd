"""MlflowLogger: results to MLflow, in the trainer's run.

A metric of MLflow has the step that it is given, whenever it comes; nothing is dropped, and the
latest value shown is that of the largest step. Text becomes tags, `<name>/reason/<step>`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

from heldout.errors import HeldoutError, InvalidInput
from heldout.training.loggers import Fields
from heldout.training.loggers.rows import Row


class MlflowLogger:
    """`run_id` is the trainer's run, or a function that returns it, for a run that begins later.
    None is the active run of the thread that makes the logger: MLflow keeps one a thread, so the
    thread that results come from has none. `tracking_uri` is the one that MLflow has when the run
    is known, unless given."""

    def __init__(
        self, run_id: str | Callable[[], str] | None = None, *, tracking_uri: str | None = None
    ) -> None:
        try:
            import mlflow
            from mlflow.entities import Metric, RunTag
        except ImportError as problem:
            raise InvalidInput(
                f"logging to MLflow needs the package ({problem}): pip install 'heldout[mlflow]'"
            ) from None
        if run_id is None:
            active = mlflow.active_run()
            if active is None:
                raise InvalidInput(
                    "there is no active MLflow run in this thread; call mlflow.start_run first, or "
                    "give its run_id, or a function that returns it"
                )
            run_id = active.info.run_id
        self._run_id: Any = run_id
        self._new_client: Callable[[], Any] = lambda: mlflow.MlflowClient(tracking_uri)
        self._client = None if callable(run_id) else self._new_client()
        self._metric, self._tag = Metric, RunTag

    def log(self, name: str, step: int, fields: Fields) -> None:
        row = Row.of(name, step, fields)
        now = int(time.time() * 1000)
        numbers, texts = row.keyed(row.numbers), row.keyed(row.texts)
        metrics = [self._metric(as_key(key), v, now, row.step) for key, v in numbers.items()]
        tags = [self._tag(as_key(f"{key}/{row.step}"), text) for key, text in texts.items()]
        client = self._the_client()
        client.log_batch(self._run_id, metrics=metrics, tags=tags)

    def close(self) -> None:
        """The run is the trainer's; each result is stored when `log` returns."""

    def _the_client(self) -> Any:
        if self._client is None:
            begun = self._run_id()
            if begun is None:
                raise HeldoutError("the function that was to return MLflow's run id returned None")
            self._run_id, self._client = begun, self._new_client()
        return self._client


def as_key(key: str) -> str:
    """MLflow refuses a batch for one name with another character: `pass@1` is `pass_x40_1`."""
    return re.sub(r"[^A-Za-z0-9_\-. :/]", lambda found: f"_x{ord(found[0]):x}_", key)
