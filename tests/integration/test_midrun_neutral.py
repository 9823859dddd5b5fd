"""Training that is evaluated ends where training that is not does: clause 13, in real trainers.

Everything that could leak is there to leak: dropout, gradient checkpointing, sampled rollouts, and
evals that draw random numbers themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from heldout import Metric, Sample, Score, Trajectory
from heldout._core.config import Sampling
from heldout.integrations.transformers import HeldoutCallback
from heldout.testing.neutral import assert_neutral
from heldout.training import AsyncEvalDispatcher, PeriodicEval, live_model
from tests.tiny_model import WORDS, tiny_model

pytestmark = pytest.mark.integration

STEPS, EVERY = 6, 2
HELD_OUT = [Sample(f"s{i}", {"question": f"w{i} w{i + 1}"}, f"w{i}") for i in range(5)]


def even(answer: str) -> float:
    """The share of words with an even number."""
    words = [word for word in answer.split() if word in WORDS]
    return sum(int(word[1:]) % 2 == 0 for word in words) / max(1, len(words))


def with_dropout(model: Any) -> Any:
    """Tamed, too: in the tiny model as it is, every token is certain."""
    model.config.attention_dropout = 0.2
    made = type(model)(model.config)
    made.load_state_dict({name: value * 0.3 for name, value in model.state_dict().items()})
    return made


def make_evals(folder: Path, tokenizer: Any) -> list[PeriodicEval]:
    """Greedy, and sampled."""

    def score(trajectory: Trajectory, sample: Sample) -> Score:
        return Score((Metric("even", even(trajectory.answer), 1.0),))

    sampled = Sampling(temperature=1.0, seed=7, max_tokens=6)
    return [
        PeriodicEval(
            HELD_OUT,
            live_model(tokenizer, score, max_new=6, rows=4, **settings),
            every_steps=EVERY,
            label=label,
            run_dir=folder / label,
            at_start=True,
        )
        for label, settings in (("greedy", {}), ("sampled", {"sampling": sampled}))
    ]


@contextmanager
def dispatching(beside: bool) -> Iterator[None]:
    if beside:
        with AsyncEvalDispatcher(when_full="wait"):
            yield
    else:
        yield


in_place_and_beside = pytest.mark.parametrize("beside", [False, True], ids=["in place", "beside"])


def all_measured(evals: list[PeriodicEval], beside: bool) -> None:
    """An eval that was skipped would be neutral, too."""
    for each in evals:
        assert sorted(point.step for point in each.history) == [0, 2, 4, 6]
        assert [point.skipped for point in each.history] == [None] * 4
        assert {point.lag_steps is None for point in each.history} == {not beside}
        assert {point.n for point in each.history} == {5}
        assert len({point.weights for point in each.history}) == 4


@pytest.mark.parametrize(
    ("adapter", "beside"),
    [(False, True), (True, False)],
    ids=["all weights, beside", "LoRA, with eval_strategy, in place"],
)
def test_grpo(tmp_path: Path, adapter: bool, beside: bool) -> None:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    settings: dict[str, Any] = {}
    if adapter:
        import peft

        settings["peft_config"] = peft.LoraConfig(r=4, lora_dropout=0.2, task_type="CAUSAL_LM")
    rows = [{"prompt": [{"role": "user", "content": f"w{i} w{i + 2}"}]} for i in range(8)]
    runs: list[list[PeriodicEval]] = []

    def train(evaluating: bool) -> Any:
        torch.manual_seed(3)
        model, tokenizer = tiny_model()
        folder = tmp_path / str(len(runs))
        answered = evaluating and adapter  # TRL's own eval would change the weights
        trainer = GRPOTrainer(
            with_dropout(model),
            reward_funcs=lambda completions, **others: [even(c[0]["content"]) for c in completions],
            args=GRPOConfig(
                output_dir=str(folder / "trainer"),
                max_steps=STEPS,
                per_device_train_batch_size=4,
                num_generations=4,
                max_completion_length=6,
                learning_rate=1e-3,
                gradient_checkpointing=True,
                eval_strategy="steps" if answered else "no",
                eval_steps=EVERY,
                per_device_eval_batch_size=4,
                logging_steps=1,
                report_to="none",
                save_strategy="no",
                disable_tqdm=True,
                use_cpu=True,
                bf16=False,
            ),
            train_dataset=Dataset.from_list(rows),
            eval_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            **settings,
        )
        evals = make_evals(folder, tokenizer) if evaluating else []
        HeldoutCallback(*evals).attach(trainer)
        with dispatching(beside and evaluating):
            trainer.train()
        runs.append(evals)
        history = trainer.state.log_history
        assert sum("reward" in row for row in history) == STEPS
        assert any(row["reward_std"] > 0 for row in history if "reward" in row)
        assert not any("eval_reward" in row for row in history)
        return trainer.model, history

    print(assert_neutral(train))
    all_measured(runs[-1], beside)


@in_place_and_beside
def test_supervised_fine_tuning(tmp_path: Path, beside: bool) -> None:
    from transformers import Trainer, TrainingArguments

    runs: list[list[PeriodicEval]] = []

    def train(evaluating: bool) -> Any:
        torch.manual_seed(3)
        model, tokenizer = tiny_model()
        rows = [tokenizer(f"w{i} w{i + 1} w{i + 2}")["input_ids"] for i in range(16)]
        folder = tmp_path / str(len(runs))
        trainer = Trainer(
            with_dropout(model),
            TrainingArguments(
                output_dir=str(folder / "trainer"),
                max_steps=STEPS,
                per_device_train_batch_size=2,
                gradient_accumulation_steps=2,
                gradient_checkpointing=True,
                learning_rate=1e-3,
                logging_steps=2,
                report_to="none",
                save_strategy="no",
                disable_tqdm=True,
                use_cpu=True,
            ),
            train_dataset=[{"input_ids": row, "labels": row} for row in rows],
        )
        evals = make_evals(folder, tokenizer) if evaluating else []
        HeldoutCallback(*evals).attach(trainer)
        with dispatching(beside and evaluating):
            trainer.train()
        runs.append(evals)
        return trainer.model, trainer.state.log_history

    print(assert_neutral(train))
    all_measured(runs[-1], beside)


@in_place_and_beside
def test_a_loop_of_ones_own(tmp_path: Path, beside: bool) -> None:
    runs: list[list[PeriodicEval]] = []

    def train(evaluating: bool) -> Any:
        torch.manual_seed(3)
        model, tokenizer = tiny_model()
        model = with_dropout(model).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        evals = make_evals(tmp_path / str(len(runs)), tokenizer) if evaluating else []
        losses = []
        with dispatching(beside and evaluating):
            for step in range(STEPS + 1):
                if step > 0:
                    ids = torch.randint(8, 64, (4, 8))
                    loss = model(input_ids=ids, labels=ids).loss
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    losses.append({"loss": loss.item()})
                for each in evals:
                    each.maybe_run(step, model)
            for each in evals:
                each.run_final(STEPS, model)
        runs.append(evals)
        return model, losses

    print(assert_neutral(train))
    all_measured(runs[-1], beside)
