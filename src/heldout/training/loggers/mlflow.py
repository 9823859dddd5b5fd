"""MlflowLogger: results to MLflow, in the trainer's run.

MLflow stores a metric at any step, in any order, and shows the one with the largest step as the
latest. Texts become tags, `<name>/reason/<step>`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

from heldout._core.extras import missing_extra
from heldout.errors import HeldoutError, InvalidInput
from heldout.training.loggers.base import Fields, split_fields, with_prefix


class MlflowLogger:
    """Logs results to the trainer's run.

    Args:
        run_id: Id of the trainer's run, or a function that returns it, for a run that starts later.
            Default: the active run of the thread that makes the logger.

    Raises:
        InvalidInput: MLflow is not installed, or this thread has no active run.
    """

    def __init__(self, run_id: str | Callable[[], str] | None = None) -> None:
        try:
            import mlflow
            from mlflow.entities import Metric, RunTag
        except ImportError as problem:
            raise missing_extra(
                f"logging to MLflow needs the package ({problem})", "mlflow"
            ) from None
        if run_id is None:
            # MLflow keeps an active run per thread, and results come from another one.
            active = mlflow.active_run()
            if active is None:
                raise InvalidInput(
                    "there is no active MLflow run in this thread; call mlflow.start_run first, or "
                    "give its run_id, or a function that returns it"
                )
            run_id = active.info.run_id
        self._metric, self._tag = Metric, RunTag
        self._new_client: Callable[[], Any] = mlflow.MlflowClient
        self._run_id = run_id
        self._client: Any = None if callable(run_id) else self._new_client()

    def log(self, name: str, step: int, fields: Fields) -> None:
        """Store one result, in one transaction."""
        if callable(self._run_id):
            run_id = self._run_id()
            if run_id is None:
                raise HeldoutError("the function that was to return MLflow's run id returned None")
            self._run_id, self._client = run_id, self._new_client()
        numbers, texts = split_fields(fields)
        now = int(time.time() * 1000)
        metrics = [
            self._metric(valid_key(key), value, now, step)
            for key, value in with_prefix(name, numbers).items()
        ]
        tags = [
            self._tag(valid_key(f"{key}/{step}"), text)
            for key, text in with_prefix(name, texts).items()
        ]
        self._client.log_batch(self._run_id, metrics=metrics, tags=tags)

    def close(self) -> None:
        """Nothing to do: results are stored when `log` returns, and the run is the trainer's."""


def valid_key(key: str) -> str:
    """Escape characters that MLflow refuses in names: `pass@1` is `pass_x40_1`."""
    return re.sub(r"[^A-Za-z0-9_\-. :/]", lambda match: f"_x{ord(match[0]):x}_", key)
