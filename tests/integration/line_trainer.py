"""transformers' Trainer on a model of two weights, and evals whose results are known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from heldout import Metric, Sample, Score, Trajectory
from heldout.training import PeriodicEval, from_functions
from tests.training.toys import make_eval


class Line(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layer = nn.Linear(1, 1)

    def forward(self, x: Any, labels: Any) -> dict[str, Any]:
        return {"loss": nn.functional.mse_loss(self.layer(x), labels)}


DATA = [{"x": torch.tensor([i / 8]), "labels": torch.tensor([i / 4 + 1])} for i in range(8)]


class Heard(TrainerCallback):
    """What reaches a reporter, which stands before our callback."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.evaluated: list[dict[str, Any]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kw: Any) -> None:
        self.rows.append({**logs, "step": state.global_step})

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any, **kw: Any) -> None:
        self.evaluated.append({**metrics, "step": state.global_step})


def make_trainer(folder: Path, *callbacks: Any, steps: int = 6, **settings: Any) -> Any:
    defaults: dict[str, Any] = {
        "per_device_train_batch_size": 2,
        "learning_rate": 0.05,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "max_steps": steps,
    }
    eval_dataset = DATA if "eval_strategy" in settings else None
    return Trainer(
        Line(),
        TrainingArguments(str(folder / "trainer"), **{**defaults, **settings}),
        train_dataset=DATA,
        eval_dataset=eval_dataset,
        callbacks=list(callbacks),
    )


def samples(n: int = 4) -> list[Sample]:
    return [Sample(f"s{i}", {"question": f"{i}"}) for i in range(n)]


Scored = Callable[[int, int], float]
"""(which eval of the training, which sample) -> reward."""


class Known:
    """A builder of runners whose scores are given; remembers the weights that it has seen."""

    def __init__(self, scored: Scored, rows: int = 32) -> None:
        self.seen: list[float] = []
        self._scored, self._rows = scored, rows

    def __call__(self, model: Any) -> Any:
        self.seen.append(model.layer.weight.item())
        number = len(self.seen) - 1

        def generate(model: Any, prompts: list[int], max_new: int) -> list[str]:
            assert not model.training
            return [str(self._scored(number, prompt)) for prompt in prompts]

        def score(trajectory: Trajectory, sample: Sample) -> Score:
            number = float(trajectory.answer)
            return Score((Metric("reward", number, 1.0), Metric("twice", 2 * number)))

        build = from_functions(
            lambda messages: int(messages[-1].text), generate, score, rows=self._rows
        )
        return build(model)


def make_evals(folder: Path, scored: Scored | None = None, **settings: Any) -> PeriodicEval:
    label = settings.setdefault("label", "rl_eval")
    settings.setdefault("run_dir", folder / label)
    settings.setdefault("every_steps", 2)
    known = settings.pop("builder", None) or Known(scored or (lambda eval, sample: 0.5))
    settings.setdefault("resume", None)
    return make_eval(settings.pop("samples", samples()), known, **settings)
