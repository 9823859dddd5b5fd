"""Evals in TRL's own trainer: a naive one changes the trained weights, an isolated one does not."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from heldout.isolation import isolated
from heldout.testing import NotNeutral, assert_neutral
from tests.tiny_model import WORDS, tiny_model

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore::UserWarning")]


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def grpo(
    folder: Path, isolation: Callable[[Any], AbstractContextManager[Any]], **settings: Any
) -> Any:
    """A train function for assert_neutral: three steps of GRPO, with dropout, checkpointed."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    class Evaluates(TrainerCallback):  # type: ignore[misc]
        """As people write it: generates with the model as it is, and samples."""

        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            model, tokenizer = rest["model"], rest["processing_class"]
            with isolation(model):
                prompt = tokenizer("w1 w2 w3", return_tensors="pt")
                model.generate(**prompt, do_sample=True, max_new_tokens=4)

    def train(evaluating: bool) -> Any:
        model, tokenizer = tiny_model()
        model.config.attention_dropout = 0.1
        trainer = GRPOTrainer(
            model,
            reward_funcs=lambda completions, **columns: [len(set(text)) for text in completions],
            args=GRPOConfig(
                **{
                    "output_dir": str(folder),
                    "per_device_train_batch_size": 4,
                    "num_generations": 4,
                    "max_completion_length": 6,
                    "max_steps": 3,
                    "learning_rate": 1e-3,
                    "logging_steps": 1,
                    "report_to": "none",
                    "save_strategy": "no",
                    "disable_tqdm": True,
                    "use_cpu": True,
                    "bf16": False,
                    "gradient_checkpointing": True,
                    "seed": 3,
                    **settings,
                }
            ),
            train_dataset=Dataset.from_dict({"prompt": [f"{w} w0" for w in WORDS[:8]]}),
            processing_class=tokenizer,
            callbacks=[Evaluates()] if evaluating else [],
        )
        trainer.train()
        return trainer.model, trainer.state.log_history

    return train


def test_a_naive_eval_changes_what_grpo_trains(tmp_path: Path) -> None:
    with pytest.raises(NotNeutral, match="tensors differ, the first is") as raised:
        assert_neutral(grpo(tmp_path, lambda model: nullcontext()))
    assert "logged values differ" in str(raised.value)


def test_the_same_eval_isolated_does_not(tmp_path: Path) -> None:
    result = assert_neutral(grpo(tmp_path, isolated))
    assert result.tensors > 20
    assert result.metrics > 30
