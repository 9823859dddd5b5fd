"""Lightning's Trainer and Fabric, for real: evals in them, and the same weights without."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger

from heldout import Sample
from heldout.errors import InvalidInput
from heldout.integrations.lightning import FabricEvals, HeldoutCallback
from heldout.testing import assert_neutral
from heldout.training import from_functions, live_model
from tests.tiny_model import tiny_model
from tests.training import toys

pytestmark = [
    pytest.mark.integration,
    # Lightning asks for more workers and for a validation loop, and uses torch's old names.
    pytest.mark.filterwarnings("ignore::Warning:lightning"),
    pytest.mark.filterwarnings("ignore:mkldnn_matmul failed:UserWarning"),  # of a CPU without bf16
]

SAMPLES = [Sample(f"s{i}", {"question": f"w{i} w{i + 1}"}, ground_truth="w1") for i in range(4)]
BATCHES = [
    torch.randint(8, 60, (2, 12), generator=torch.Generator().manual_seed(i)) for i in range(8)
]


class Policy(LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.model, self.tokenizer = tiny_model()
        self.model.config.attention_dropout = 0.1

    def training_step(self, batch: Any, index: int) -> Any:
        return self.model(input_ids=batch, labels=batch).loss

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def make_evals(tokenizer: Any, run_dir: Path, *, evaluating: bool = True, **settings: Any) -> Any:
    return toys.make_eval(
        SAMPLES,
        live_model(tokenizer, toys.score, max_new=4, rows=2),
        every_steps=2 if evaluating else 0,
        run_dir=run_dir,
        **settings,
    )


def fit(home: Path, *, evaluating: bool = True, precision: Any = "32-true", **settings: Any) -> Any:
    torch.manual_seed(0)
    module = Policy()
    evals = make_evals(module.tokenizer, home / "evals", evaluating=evaluating, **settings)
    trainer = Trainer(
        max_epochs=1,
        accelerator="cpu",
        accumulate_grad_batches=2,
        precision=precision,
        logger=CSVLogger(home, flush_logs_every_n_steps=1),
        callbacks=[HeldoutCallback(evals)],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
    )
    trainer.fit(module.train(), torch.utils.data.DataLoader(BATCHES, batch_size=None))
    return module, trainer, evals


@pytest.mark.heavy
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_training_with_lightning_ends_in_the_same_weights(precision: str, tmp_path: Path) -> None:
    runs = iter("abcd")

    def train(evaluating: bool) -> Any:
        module, *_ = fit(tmp_path / next(runs), evaluating=evaluating, precision=precision)
        return module.model, [{"draw": torch.rand(1).item()}]

    assert_neutral(train)


def test_points_are_at_optimizer_steps_and_reach_the_trainers_loggers(tmp_path: Path) -> None:
    _, trainer, evals = fit(tmp_path)
    assert [(p.step, p.n, p.skipped) for p in evals.history] == [(2, 4, None), (4, 4, None)]
    assert float(trainer.callback_metrics["eval_heldout_step"]) == 4
    trainer.logger.finalize("success")
    written = next(tmp_path.rglob("metrics.csv")).read_text()
    assert "eval_heldout_reward" in written.splitlines()[0]


def test_what_is_evaluated_is_what_the_callback_is_told_in_the_trainers_precision(
    tmp_path: Path,
) -> None:
    class Named(Policy):
        def __init__(self) -> None:
            super().__init__()
            self.policy, self.model = torch.nn.Linear(1, 1), None

        def training_step(self, batch: Any, index: int) -> Any:
            return self.policy(batch[:, :1].float()).square().mean()

    seen: list[Any] = []

    def generate(model: Any, prompts: list[str], max_new: int) -> list[str]:
        is_autocast = torch.is_autocast_enabled("cpu")
        seen.append((model is module.policy, is_autocast and torch.get_autocast_dtype("cpu")))
        return prompts

    build = from_functions(lambda messages: messages[-1].text, generate, toys.score)
    evals = toys.make_eval(SAMPLES, build, every_steps=4, run_dir=tmp_path / "evals")
    module = Named()
    trainer = Trainer(
        max_epochs=1,
        accelerator="cpu",
        precision="bf16-mixed",
        callbacks=[HeldoutCallback(evals, model=lambda module: module.policy)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, torch.utils.data.DataLoader(BATCHES, batch_size=None))
    assert [(point.step, point.skipped) for point in evals.history] == [(4, None), (8, None)]
    assert seen == [(True, torch.bfloat16)] * 2


def test_a_monitor_stops_the_trainer(tmp_path: Path) -> None:
    _, trainer, evals = fit(tmp_path, monitor=lambda points: "enough")
    assert trainer.global_step == 2
    assert [p.step for p in evals.history] == [2]


@pytest.mark.heavy
def test_all_processes_see_a_result_so_that_a_checkpoint_can_monitor_it(tmp_path: Path) -> None:
    script = Path(__file__).with_name("lightning_ranks.py")
    hidden = {"RANK", "LOCAL_RANK", "WORLD_SIZE"}
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, str(script), str(tmp_path)],
            env={name: value for name, value in os.environ.items() if name not in hidden},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        assert process.wait(240) == 0, (tmp_path / "log").read_text()
    finally:
        if process.poll() is None:  # they wait for each other
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    seen = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    assert seen == [[0.25, 5.0]] * 2
    assert len(list((tmp_path / "saved").iterdir())) == 1


def test_a_loop_with_fabric_ends_in_the_same_weights_and_logs(tmp_path: Path) -> None:
    runs = iter("abcd")
    seen: list[Any] = []

    def train(evaluating: bool) -> Any:
        home = tmp_path / next(runs)
        fabric = Fabric(accelerator="cpu", loggers=CSVLogger(home, flush_logs_every_n_steps=1))
        torch.manual_seed(0)
        bare, tokenizer = tiny_model()
        optimizer = torch.optim.Adam(bare.parameters(), lr=1e-2)
        model, optimizer = fabric.setup(bare.train(), optimizer)
        evals = make_evals(tokenizer, home / "evals", evaluating=evaluating)
        hooks = FabricEvals(fabric, model, evals)
        hooks.begin()
        for step, batch in enumerate(BATCHES[:4], 1):
            fabric.backward(model(input_ids=batch, labels=batch).loss)
            optimizer.step()
            optimizer.zero_grad()
            assert not hooks.step(step)
        hooks.finish(4)
        seen.append([(p.step, p.n, p.skipped) for p in evals.history])
        return bare, [{"draw": torch.rand(1).item()}]

    assert_neutral(train)
    assert seen[-1] == [(2, 4, None), (4, 4, None)]
    assert "eval_heldout_reward" in next((tmp_path / "c").rglob("metrics.csv")).read_text()


def test_what_is_no_eval_no_fabric_and_no_model_of_it_is_refused(tmp_path: Path) -> None:
    evals = make_evals(tiny_model()[1], tmp_path)
    fabric = Fabric(accelerator="cpu")
    for make, message in [
        (lambda: HeldoutCallback(), "one or more PeriodicEvals are needed"),
        (lambda: HeldoutCallback(evals, evals), "a label of its own"),
        (lambda: FabricEvals(None, None, evals), "fabric must be a lightning Fabric"),
        (lambda: FabricEvals(fabric, torch.nn.Linear(1, 1), evals), "what fabric.setup returned"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            make()
