"""Two processes of Lightning: what each of them keeps as the best checkpoint of an eval.

python lightning_ranks.py FOLDER      # Lightning starts the second process itself
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from heldout import Sample
from heldout.integrations.lightning import HeldoutCallback
from heldout.training import PeriodicEval, from_functions


class Line(LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Linear(1, 1)

    def training_step(self, x: torch.Tensor, index: int) -> torch.Tensor:
        return (self.model(x) - 2 * x).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main(home: Path) -> None:
    builder = from_functions(
        lambda messages: messages[-1].text,
        lambda model, prompts, max_new: prompts,
        lambda trajectory, sample: trajectory.answer == sample.ground_truth,
    )
    samples = [Sample(f"n{i}", {"question": str(i)}, ground_truth="1") for i in range(4)]
    evals = PeriodicEval(samples, builder, every_steps=2, at_start=True, run_dir=home / "evals")
    best = ModelCheckpoint(home / "saved", monitor="eval_heldout_reward", every_n_train_steps=1)
    trainer = Trainer(
        max_steps=5,
        accelerator="cpu",
        strategy="ddp",
        devices=2,
        callbacks=[HeldoutCallback(evals), best],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Line(), torch.utils.data.DataLoader(torch.rand(64, 1), batch_size=4))
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    seen = metrics["eval_heldout_reward"], metrics["eval_heldout_step"]
    (home / f"rank{trainer.global_rank}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
