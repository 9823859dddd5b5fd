"""A real Trainer that saves at each step and keeps two checkpoints: `python train.py DIR`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from tests.tiny_model import tiny_model

FOLDER = Path(sys.argv[1])


class WaitAfterFirstSave(TrainerCallback):
    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        while state.global_step == 1 and not (FOLDER / "go").exists():
            time.sleep(0.05)


model, tokenizer = tiny_model()
texts = [torch.randint(8, 60, (8,)) for _ in range(20)]
arguments = TrainingArguments(
    str(FOLDER),
    max_steps=5,
    save_steps=1,
    save_total_limit=2,
    use_cpu=True,
    report_to="none",
    disable_tqdm=True,
)
Trainer(
    model,
    arguments,
    train_dataset=[{"input_ids": text, "labels": text} for text in texts],
    processing_class=tokenizer,
    callbacks=[WaitAfterFirstSave()],
).train()
(FOLDER / "done").touch()
