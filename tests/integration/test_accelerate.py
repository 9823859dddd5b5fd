"""A loop of one's own with accelerate, on one process; `training/test_sharding.py` has two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.tracking import GeneralTracker

from heldout.errors import InvalidInput
from heldout.integrations.accelerate import AccelerateEvals
from tests.training import toys

pytestmark = pytest.mark.integration


class Kept(GeneralTracker):  # type: ignore[misc]
    """A tracker of the user's."""

    name = "kept"
    requires_logging_directory = False

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int, dict[str, Any]]] = []

    @property
    def tracker(self) -> Any:
        return self.rows

    def store_init_configuration(self, values: dict[str, Any]) -> None: ...

    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
        self.rows.append((step or 0, values))


def test_results_go_to_the_trackers_at_their_step_and_a_monitor_ends_the_loop(
    tmp_path: Path,
) -> None:
    kept = Kept()
    accelerator = Accelerator(cpu=True, log_with=kept, gradient_accumulation_steps=2)
    accelerator.init_trackers("project")
    bare = toys.weighted(4)
    model, optimizer = accelerator.prepare(bare, torch.optim.SGD(bare.parameters(), lr=0.0))
    periodic = toys.periodic(
        tmp_path,
        every_steps=2,
        model_getter=None,
        label="rl_eval",
        monitor=lambda points: "enough" if len(points) == 2 else None,
    )
    evals = AccelerateEvals(accelerator, model, periodic)
    evals.begin()
    step = 0
    for _ in range(20):
        with accelerator.accumulate(model):
            accelerator.backward(model.knows * 0.0)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            step += 1
            if evals.step(step):
                break
    evals.finish(step)
    assert step == 4
    found = [(at, row["eval_heldout_reward"], row["eval_heldout_n"]) for at, row in kept.rows]
    assert found == [(2, 0.5, 8.0), (4, 0.5, 8.0)]
    assert [point.step for point in periodic.points] == [2, 4]


def test_what_is_no_accelerator_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="accelerator must be an accelerate.Accelerator, got 3"):
        AccelerateEvals(3, toys.Model(), toys.periodic(tmp_path))  # type: ignore[arg-type]
