"""TrackioLogger: results to trackio, in the trainer's run.

trackio stores rows at any step, in any order. It writes every half second and tries once: if
another process holds the project's lock for 10 s, a batch of rows is lost, the trainer's included.
`close` reports that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from heldout._core.extras import missing_extra
from heldout.errors import HeldoutError, InvalidInput
from heldout.training.loggers.base import Fields, split_fields, with_prefix

_LOST_ROWS = {
    "write-logs-to-sqlite",
    "write-logs-fragment",
    "persist-logs-locally",
    "persist-logs-fragment",
}
"""What trackio calls its warnings that rows are lost. Private to trackio: where it has no such
note, nothing is noticed."""


class TrackioLogger:
    """Logs results to the trainer's run.

    The trainer must log with `step=`, as transformers and TRL do: trackio's own counter would
    continue from the largest step of an eval.

    Args:
        run: The run that `trackio.init` returned, or a function that returns it, for a run that
            starts later. Default: the run of the thread that makes the logger.

    Raises:
        InvalidInput: trackio is not installed, or this thread has no run.
    """

    def __init__(self, run: Any | Callable[[], Any] = None) -> None:
        try:
            from trackio import context_vars
        except ImportError as problem:
            raise missing_extra(
                f"logging to trackio needs the package ({problem})", "trackio"
            ) from None
        # trackio keeps a run per thread, and results come from another one.
        self._run = run if run is not None else context_vars.current_run.get()
        if self._run is None:
            raise InvalidInput(
                "there is no trackio run in this thread; call trackio.init first, or pass its run, "
                "or a function that returns it"
            )

    def log(self, name: str, step: int, fields: Fields) -> None:
        """Log one row."""
        if not hasattr(self._run, "log"):
            run = self._run()
            if run is None:
                raise HeldoutError("the function that was to return trackio's run returned None")
            self._run = run
        numbers, texts = split_fields(fields)
        self._run.log(with_prefix(name, {**numbers, **texts}), step=step)

    def close(self) -> None:
        """Check that trackio stored all rows so far. The run stays open: it is the trainer's."""
        if _LOST_ROWS.intersection(getattr(self._run, "_warned_failures", ())):
            raise HeldoutError(
                "trackio could not store some rows of this run, of the trainer or of evals; its "
                "own warning says why, and the curve in the run directory has the results"
            )
