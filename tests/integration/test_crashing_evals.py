"""An eval that ends the process, in real trainers: what is saved, and how training goes on.

`test_transformers_callback.py` has transformers' Trainer, and `test_tinker.py` tinker-cookbook.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from heldout.training import current_points, read_points

pytestmark = [pytest.mark.integration, pytest.mark.heavy]

BEGINNING = """
import os, sys
from pathlib import Path
import torch
from heldout import Sample
from heldout.training import PeriodicEval, from_functions
from tests.training.toys import questions, score

folder, order = Path(sys.argv[1]), sys.argv[2]

def crash_after(results):
    # As of a driver, or of the kernel's out-of-memory killer: nothing of this process goes on.
    curve = Path(sys.argv[1], "run", "curve.jsonl")
    if "DIES" in os.environ and curve.read_text().count('"line":"result"') == results:
        os._exit(9)

def generate(model, prompts, max_new):
    crash_after(1)
    return prompts

def make_evals(**settings):
    build = from_functions(lambda messages: messages[-1].text, generate, score)
    return PeriodicEval(questions(4), build, every_steps=2, run_dir=folder / "run", **settings)
"""

LOOP = """
from accelerate import Accelerator
from heldout.integrations.accelerate import AccelerateEvals

accelerator = Accelerator(cpu=True)
model = accelerator.prepare(torch.nn.Linear(1, 1))
saved = folder / "saved"
start = max((int(path.name) for path in saved.iterdir()), default=0) if saved.exists() else 0
saved.mkdir(exist_ok=True)
evals = AccelerateEvals(accelerator, model, make_evals())
evals.begin(start)
for step in range(start + 1, 7):
    with torch.no_grad():
        model.weight.fill_(step)
    if order == "before":
        evals.step(step)
    if step % 2 == 0:
        (saved / f"{step}").touch()
    if order == "after":
        evals.step(step)
evals.finish(6)
"""

LIGHTNING = """
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from heldout.integrations.lightning import HeldoutCallback

class Line(LightningModule):
    def __init__(self):
        super().__init__()
        self.model = torch.nn.Linear(1, 1)

    def training_step(self, x, index):
        return (self.model(x) - 2 * x).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

seed_everything(0)
saved = folder / "saved"
last = max(saved.glob("*.ckpt"), default=None)
save = ModelCheckpoint(saved, "{step}", every_n_train_steps=2, save_top_k=-1)
trainer = Trainer(
    max_steps=6,
    accelerator="cpu",
    callbacks=[save, HeldoutCallback(make_evals())],  # the order here makes no difference
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
batches = torch.utils.data.DataLoader(torch.rand(64, 1), batch_size=4)
trainer.fit(Line(), batches, ckpt_path=None if last is None else str(last))
"""

GRPO = """
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer
from heldout.integrations.transformers import HeldoutCallback
from tests.tiny_model import tiny_model

torch.manual_seed(0)
model, tokenizer = tiny_model()
rows = [{"prompt": [{"role": "user", "content": f"w{i} w{i + 2}"}]} for i in range(8)]
trainer = GRPOTrainer(
    model,
    reward_funcs=lambda completions, **others: [len(c[0]["content"]) / 9 for c in completions],
    args=GRPOConfig(
        str(folder / "saved"),
        max_steps=6,
        per_device_train_batch_size=2,
        num_generations=2,
        max_completion_length=2,
        save_strategy="steps",
        save_steps=2,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
    ),
    train_dataset=Dataset.from_list(rows),
    processing_class=tokenizer,
)
HeldoutCallback(make_evals(), after_save=order == "after").attach(trainer)
trainer.train(resume_from_checkpoint=any((folder / "saved").glob("checkpoint-*")))
"""

SB3 = """
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import CheckpointCallback
from heldout.integrations.stable_baselines3 import HeldoutEvalCallback
from tests.vector.worlds import Walk

class Crashing(Walk):
    def step(self, action):
        crash_after(2)  # of steps 0 and 32
        return super().step(action)

saved = folder / "saved"
last = max(saved.glob("*.zip"), key=lambda path: int(path.stem.split("_")[2]), default=None)
if last is None:
    model = PPO("MlpPolicy", Walk(), n_steps=16, batch_size=16, seed=0, device="cpu")
else:
    model = PPO.load(last, env=Walk(), device="cpu")
evals = HeldoutEvalCallback(Crashing, 32, episodes=2, at_start=True, run_dir=folder / "run")
save = CheckpointCallback(32, str(saved))
model.learn(
    96 - model.num_timesteps,
    callback=[save, evals] if order == "after" else [evals, save],
    reset_num_timesteps=last is None,
)
"""


def train(folder: Path, script: str, order: str, *, dies: bool) -> tuple[int, list[str]]:
    """Run a training; the exit code, and what is saved of it."""
    done = subprocess.run(
        [sys.executable, "-c", BEGINNING + script, str(folder), order],
        env={**os.environ, **({"DIES": "1"} if dies else {}), "TRL_EXPERIMENTAL_SILENCE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    assert done.returncode == (9 if dies else 0), done.stdout
    saved = sorted(path.name for path in (folder / "saved").iterdir())
    return done.returncode, [name for name in saved if name != "README.md"]


def steps(folder: Path) -> list[int]:
    points = current_points(read_points(folder / "run" / "curve.jsonl"))
    assert all(point.has_result for point in points)
    return [point.step for point in points]


@pytest.mark.parametrize(("order", "left"), [("before", ["2"]), ("after", ["2", "4"])])
def test_in_a_loop_of_ones_own_the_order_is_that_of_its_lines(
    order: str, left: list[str], tmp_path: Path
) -> None:
    assert train(tmp_path, LOOP, order, dies=True) == (9, left)
    assert train(tmp_path, LOOP, order, dies=False) == (0, ["2", "4", "6"])
    assert steps(tmp_path) == [2, 4, 6]  # begin(4) evaluates what the crash has cost


@pytest.mark.filterwarnings("ignore::Warning:lightning")
def test_lightning_saves_last_so_an_eval_comes_before_the_save_of_its_step(tmp_path: Path) -> None:
    left = ["step=2.ckpt"]
    assert train(tmp_path, LIGHTNING, "before", dies=True) == (9, left)
    assert train(tmp_path, LIGHTNING, "before", dies=False) == (
        0,
        ["step=2.ckpt", "step=4.ckpt", "step=6.ckpt"],
    )
    assert steps(tmp_path) == [2, 4, 6]


def test_with_trl_an_eval_after_the_save_costs_no_step(tmp_path: Path) -> None:
    left = ["checkpoint-2", "checkpoint-4"]
    assert train(tmp_path, GRPO, "after", dies=True) == (9, left)
    assert train(tmp_path, GRPO, "after", dies=False) == (0, [*left, "checkpoint-6"])
    assert steps(tmp_path) == [2, 4, 6]


@pytest.mark.parametrize(("order", "left"), [("before", 1), ("after", 2)])
def test_with_stable_baselines3_the_order_is_that_of_the_callbacks(
    order: str, left: int, tmp_path: Path
) -> None:
    names = [f"rl_model_{step}_steps.zip" for step in (32, 64, 96)]
    assert train(tmp_path, SB3, order, dies=True) == (9, names[:left])
    assert train(tmp_path, SB3, order, dies=False) == (0, names)
    assert steps(tmp_path) == [0, 32, 64, 96]
