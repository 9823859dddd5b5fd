"""TrackioLogger: results to trackio, in the trainer's run.

A row of trackio has the step that it is given, whenever it comes; none is dropped for being late.
What is dropped is a batch, the trainer's rows in it too, that trackio could not store at its one
try: after 10 s of another process holding the project's lock, say. It keeps a note of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from heldout.errors import HeldoutError, InvalidInput
from heldout.training.loggers import Fields
from heldout.training.loggers.rows import Row

_LOST = {
    "write-logs-to-sqlite",
    "write-logs-fragment",
    "persist-logs-locally",
    "persist-logs-fragment",
}
"""What trackio calls its warnings that rows are lost. Nothing that it promises: one that has no
such note is one of which nothing is noticed."""


class TrackioLogger:
    """`run` is what `trackio.init` returned, or a function that returns it, for a run that begins
    later. None is the run of the thread that makes the logger: trackio keeps one a thread, so the
    thread that results come from has none.

    The trainer must log with `step=`, as those of transformers and TRL do: one that leaves counting
    to trackio would go on counting from the largest step of an eval.
    """

    def __init__(self, run: Any | Callable[[], Any] = None) -> None:
        try:
            from trackio import context_vars
        except ImportError as problem:
            raise InvalidInput(
                f"logging to trackio needs the package ({problem}): pip install 'heldout[trackio]'"
            ) from None
        run = run if run is not None else context_vars.current_run.get()
        if run is None:
            raise InvalidInput(
                "there is no trackio run in this thread; call trackio.init first, or give its run, "
                "or a function that returns it"
            )
        self._run = run

    def log(self, name: str, step: int, fields: Fields) -> None:
        row = Row.of(name, step, fields)
        if not hasattr(self._run, "log"):
            begun = self._run()
            if begun is None:
                raise HeldoutError("the function that was to return trackio's run returned None")
            self._run = begun
        self._run.log(row.keyed(row.values), step=row.step)

    def close(self) -> None:
        """The run is the trainer's; finishing it sends what waits. What trackio cannot store after
        this it says in a warning of its own, and to nobody else."""
        if _LOST.intersection(getattr(self._run, "_warned_failures", ())):
            raise HeldoutError(
                "trackio could not store some rows of this run, of the trainer or of evals; its "
                "own warning says why, and the curve in the run directory has the results"
            )
