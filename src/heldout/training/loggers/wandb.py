"""WandbLogger and WandbRowLogger: results to Weights & Biases.

A wandb run has one counter of steps, which only goes up. What is logged for a step that has passed
is dropped (`step=`), overwritten (`commit=False`), or moves the counter on, so that the trainer's
own next point is dropped (`define_metric` with a step key). Two ways lose nothing, and both are
here: a run of its own, and riding on the rows that the trainer logs.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from heldout.errors import HeldoutError, InvalidInput
from heldout.training.loggers import Fields
from heldout.training.loggers.rows import Row

STEP_KEY = "train/global_step"
"""What the trainers of transformers and TRL call the step, so that charts share their axis."""


class WandbLogger:
    """Results in a run of their own, in the group of the trainer's run.

    This is the default, since nothing that happens here can touch the trainer's counter, results
    are seen as they come, and the trainer need not do anything. The price is a second run in the
    workspace: group by `group`, and choose `step_key` as the horizontal axis.

    `run` is the trainer's run; None is the one that is active when the first result comes, or was
    when the logger was made. Project, entity, mode and directory are taken from it; `project`,
    `group` and `run_name` come before it. Where there is neither a run nor a project, results are
    refused: wandb would put them into a project of its own choice. A trainer's run that has no
    group cannot be given one: results are then in the group named by its id, and that id is in
    their config as `trainer_run`.
    """

    def __init__(
        self,
        run: Any = None,
        *,
        project: str | None = None,
        group: str | None = None,
        run_name: str | None = None,
        step_key: str = STEP_KEY,
    ) -> None:
        self._wandb = _package()
        if isinstance(run, str):
            raise InvalidInput(
                f"run is what wandb.init returned, got {run!r:.100}; a project is named by project="
            )
        if run is not None and not hasattr(run, "id"):
            raise InvalidInput(f"run is what wandb.init returned, got {run!r:.100}")
        self._trainer, self._project, self._group = run, project, group
        self._active = self._wandb.run
        self._run_name, self._step_key = run_name, step_key
        self._run: Any = None

    @property
    def run(self) -> Any:
        """The run that results are in; None before the first."""
        return self._run

    def log(self, name: str, step: int, fields: Fields) -> None:
        row = Row.of(name, step, fields)
        if self._run is None:
            self._run = self._begun()
        self._run.log({**row.keyed(row.values), self._step_key: row.step})

    def close(self) -> None:
        """Results are then in the hands of wandb's own process, which may still be writing."""
        if self._run is not None:
            self._run.finish()

    def _begun(self) -> Any:
        wandb = self._wandb
        trainer = self._trainer or wandb.run or self._active
        if trainer is None and self._project is None and wandb.setup().settings.project is None:
            raise HeldoutError(
                "no wandb run was active when the first result came, or when WandbLogger() was "
                "made, so the result has no project; make it after wandb.init, or "
                "WandbLogger(project=…)"
            )
        settings: dict[str, Any] = {"console": "off", "x_disable_stats": True}
        given: dict[str, Any] = {"project": self._project, "group": self._group}
        if trainer is not None:
            given = {
                "project": self._project or trainer.project,
                "entity": trainer.entity or None,
                "group": self._group or trainer.group or trainer.id,
                "mode": trainer.settings.mode,
                "dir": trainer.settings.root_dir,
                "config": {"trainer_run": trainer.id},
            }
            settings["silent"] = trainer.settings.silent
        name = self._run_name
        if name is None and trainer is not None:
            name = f"{trainer.name or trainer.id} held-out"
        run = wandb.init(
            name=name,
            job_type="eval",
            reinit="create_new",
            settings=wandb.Settings(**settings),
            **given,
        )
        run.define_metric(self._step_key)
        run.define_metric("*", step_metric=self._step_key)
        return run


class WandbRowLogger:
    """Results inside the rows of the trainer's own run: one in each row that it logs.

        run.log({"loss": loss, **logger.take()}, step=step)

    For a loop of your own that wants one run. A result waits for the next row, so there must be
    as many rows as results; its own step is `<name>/step`, the axis of its charts. What is logged
    in several calls at one step is one row to wandb: take once a step. Those that are still waiting
    at `close` become rows of their own, which moves wandb's counter: close after the trainer's
    last row. No more than `capacity` wait.
    """

    def __init__(self, run: Any, *, capacity: int = 1000) -> None:
        _package()
        if not callable(getattr(run, "log", None)):
            raise InvalidInput(f"run is what wandb.init returned, got {run!r:.100}")
        self._run, self._capacity = run, capacity
        self._waiting: deque[Row] = deque()
        self._defined: set[str] = set()
        self._lock = threading.Lock()

    def log(self, name: str, step: int, fields: Fields) -> None:
        row = Row.of(name, step, fields)
        with self._lock:
            if len(self._waiting) >= self._capacity:
                raise HeldoutError(
                    f"{len(self._waiting)} results wait to be logged with the trainer's rows; "
                    "add **logger.take() to each row"
                )
            self._waiting.append(row)

    def take(self) -> dict[str, Any]:
        """What goes into the row that the trainer logs next; nothing where nothing waits."""
        with self._lock:
            if not self._waiting:
                return {}
            row = self._waiting.popleft()
        if row.name not in self._defined:
            self._defined.add(row.name)
            self._run.define_metric(f"{row.name}/*", step_metric=f"{row.name}/step")
        return row.keyed({**row.values, "step": row.step})

    def close(self) -> None:
        while self._waiting:
            left = len(self._waiting)
            try:
                # At a step of its own: without, it would go into the trainer's last row, which is
                # still open, in the place of the result that rides there.
                self._run.log(self.take(), step=self._run.step + 1)
            except Exception as problem:
                raise HeldoutError(
                    f"{left} results were still waiting for a row of the trainer, and could not "
                    f"be logged after the last ({problem}); close before the run is finished"
                ) from problem


def _package() -> Any:
    try:
        import wandb
    except ImportError as problem:
        raise InvalidInput(
            f"logging to wandb needs the package ({problem}): pip install 'heldout[wandb]'"
        ) from None
    return wandb
