"""WandbLogger: results to Weights & Biases, in a second run.

A wandb run has one step counter, which only goes up. A row for an earlier step is dropped (`step=`)
or overwritten (`commit=False`). With its own step metric (`define_metric`) it is kept, but advances
the counter, and the trainer's next row is dropped. In a second run nothing is dropped: rows are in
the order in which they come, with the step as x-axis.
"""

from __future__ import annotations

from typing import Any

from heldout._core.extras import missing_extra
from heldout.errors import HeldoutError, InvalidInput
from heldout.training.loggers.base import Fields, split_fields, with_prefix

STEP_KEY = "train/global_step"
"""Name of the step in transformers and TRL, so that charts share their x-axis."""


class WandbLogger:
    """Logs results to a second run, in the group of the trainer's run.

    In the workspace, group by `group` and choose `step_key` as the x-axis. If the trainer's run has
    no group, results are in a group named by its id, which is in their config as `trainer_run`. The
    second run starts with the first result.

    Args:
        run: The trainer's run, whose project, entity, group, mode and directory are used. Default:
            the run that is active at the first result, or else when the logger is made.
        project: Project to use instead of the trainer's.
        step_key: Name of the step.

    Raises:
        InvalidInput: wandb is not installed, or `run` is not a run.
    """

    run: Any = None
    """The run with the results; None before the first."""

    def __init__(
        self, run: Any = None, *, project: str | None = None, step_key: str = STEP_KEY
    ) -> None:
        try:
            import wandb
        except ImportError as problem:
            raise missing_extra(
                f"logging to wandb needs the package ({problem})", "wandb"
            ) from None
        if run is not None and not hasattr(run, "id"):
            hint = "; a project is named by project=" if isinstance(run, str) else ""
            raise InvalidInput(f"run must be what wandb.init returned, got {run!r:.100}{hint}")
        self._wandb: Any = wandb
        self._trainer, self._active = run, wandb.run
        self._project, self._step_key = project, step_key

    def log(self, name: str, step: int, fields: Fields) -> None:
        """Log one row."""
        if self.run is None:
            self.run = self._start_run()
        numbers, texts = split_fields(fields)
        self.run.log({**with_prefix(name, {**numbers, **texts}), self._step_key: step})

    def close(self) -> None:
        """Finish the second run. wandb's own process may go on writing for a moment."""
        if self.run is not None:
            self.run.finish()

    def _start_run(self) -> Any:
        wandb = self._wandb
        trainer = self._trainer or wandb.run or self._active
        if trainer is None and self._project is None and wandb.setup().settings.project is None:
            # wandb would put the run into a project of its own choice.
            raise HeldoutError(
                "no wandb run was active when the first result came, or when WandbLogger() was "
                "made, so the result has no project; make it after wandb.init, or "
                "WandbLogger(project=…)"
            )
        settings: dict[str, Any] = {"console": "off", "x_disable_stats": True}
        options: dict[str, Any] = {"project": self._project}
        if trainer is not None:
            settings["silent"] = trainer.settings.silent
            options = {
                "project": self._project or trainer.project,
                "entity": trainer.entity or None,
                "group": trainer.group or trainer.id,
                "name": f"{trainer.name or trainer.id} held-out",
                "mode": trainer.settings.mode,
                "dir": trainer.settings.root_dir,
                "config": {"trainer_run": trainer.id},
            }
        run = wandb.init(
            job_type="eval", reinit="create_new", settings=wandb.Settings(**settings), **options
        )
        run.define_metric(self._step_key)
        run.define_metric("*", step_metric=self._step_key)
        return run
