"""Training on a GPU with evals on and off: the same weights, bit for bit?

    PYTHONPATH=src python bench/gpu/neutral.py            evals in between
    PYTHONPATH=src python bench/gpu/neutral.py --beside   evals while training goes on, in a thread
    PYTHONPATH=src python bench/gpu/neutral.py --worker   the same, in another process

A model of SmolLM2-135M's shape with dropout is trained three ways, each twice without evals (else
nothing could be concluded) and once with one every second step, on captured CUDA graphs: a plain
loop in bf16 autocast, transformers' Trainer, and, where trl is installed, GRPO. Prints a line each.
"""

from __future__ import annotations

import os

# Before torch: cuBLAS reads it when it starts. Training itself has to be repeatable.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import argparse
import importlib.util
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)
from transformers.trainer_callback import PrinterCallback

from heldout import Metric, Sample, Sampling, Score, Trajectory
from heldout._live.weights import fingerprint
from heldout.integrations.transformers import HeldoutCallback
from heldout.testing import assert_neutral
from heldout.training import AsyncEvalDispatcher, EvalWorker, PeriodicEval, live_model

STEPS, EVERY = 6, 2
WORDS = [f"w{i}" for i in range(500)]


def make_tokenizer() -> Any:
    names = ["<pad>", "<s>", "</s>", "<unk>", "user", "assistant", *WORDS]
    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(names)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        pad_token="<pad>",
        chat_template="{% for m in messages %} {{ m['role'] }} {{ m['content'] }}{% endfor %}"
        "{% if add_generation_prompt %} assistant{% endif %}",
    )


def make_model(small: bool) -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=512 if small else 49152,
            hidden_size=64 if small else 576,
            intermediate_size=128 if small else 1536,
            num_hidden_layers=2 if small else 30,
            num_attention_heads=4 if small else 9,
            num_key_value_heads=2 if small else 3,
            max_position_embeddings=512,
            tie_word_embeddings=True,
            attention_dropout=0.1,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=0,
        )
    ).to(DEVICE)


DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOKENIZER = make_tokenizer()
HELD_OUT = [Sample(f"{i}", {"question": " ".join(WORDS[i : i + 20])}) for i in range(32)]
TRAIN = [{"prompt": [{"role": "user", "content": " ".join(WORDS[i : i + 9])}]} for i in range(64)]


def score(trajectory: Trajectory, sample: Sample) -> Score:
    said = trajectory.answer.split()
    return Score((Metric("variety", len(set(said)) / max(1, len(said)), 1.0),))


def runner(sampling: Sampling | None = None) -> Any:
    return live_model(TOKENIZER, score, max_new=24, rows=32, sampling=sampling)


SAMPLED = Sampling(temperature=1.0, seed=0, max_tokens=24)
SMALL = "HELDOUT_BENCH_SMALL"
"""Set where the shape is tiny, for workers as well."""


def greedy_policy() -> Any:
    """Called in a worker: the model, and how it is run."""
    return make_model(SMALL in os.environ), runner()


def sampled_policy() -> Any:
    return make_model(SMALL in os.environ), runner(SAMPLED)


WORKERS: list[EvalWorker] = []
"""The one that evaluates, with `--worker`."""


def periodic(evaluating: bool, sampling: Sampling | None = None) -> PeriodicEval:
    return PeriodicEval(
        HELD_OUT,
        None if WORKERS else runner(sampling),
        worker=WORKERS[0] if WORKERS else None,
        every_steps=EVERY if evaluating else 0,
        run_dir=Path(tempfile.mkdtemp()) / "run",
        at_start=True,
    )


LAST: list[PeriodicEval] = []
"""Of the last training with evals."""


def beside(train: Callable[[bool], Any]) -> Callable[[bool], Any]:
    """The same training, with evals that run while it goes on."""

    def trained(evaluating: bool) -> Any:
        with AsyncEvalDispatcher(when_full="wait"):
            return train(evaluating)

    return trained


def in_worker(train: Callable[[bool], Any], policy: Callable[[], Any]) -> Callable[[bool], Any]:
    """The same training, with evals in another process."""
    overlapped = beside(train)

    def trained(evaluating: bool) -> Any:
        if not evaluating:
            return overlapped(evaluating)
        with EvalWorker(f"{__file__}:{policy.__name__}") as worker:
            WORKERS[:] = [worker]
            try:
                return overlapped(evaluating)
            finally:
                WORKERS.clear()

    return trained


def plain_loop(small: bool, sampling: Sampling | None) -> Callable[[bool], Any]:
    def train(evaluating: bool) -> Any:
        model = make_model(small)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        evals = periodic(evaluating, sampling)
        torch.manual_seed(1)
        losses = []
        evals.maybe_run(0, model)
        for step in range(1, STEPS + 1):
            ids = torch.randint(6, 500, (8, 64), device=DEVICE)
            with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=DEVICE == "cuda"):
                loss = model.train()(input_ids=ids, labels=ids).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append({"step": step, "loss": loss.item()})
            evals.maybe_run(step, model)
        LAST[:] = [evals] if evaluating else LAST
        return model, losses

    return train


def trainer(small: bool) -> Callable[[bool], Any]:
    def train(evaluating: bool) -> Any:
        model = make_model(small)
        ids = torch.randint(6, 500, (64, 64), generator=torch.Generator().manual_seed(2))
        rows = [{"input_ids": row, "labels": row} for row in ids]
        evals = periodic(evaluating)
        made = Trainer(
            model,
            TrainingArguments(
                output_dir=tempfile.mkdtemp(),
                max_steps=STEPS,
                per_device_train_batch_size=8,
                bf16=DEVICE == "cuda",
                logging_steps=1,
                gradient_checkpointing=True,
                report_to="none",
                save_strategy="no",
                disable_tqdm=True,
                use_cpu=DEVICE == "cpu",
            ),
            train_dataset=rows,
        )
        made.remove_callback(PrinterCallback)
        HeldoutCallback(evals).attach(made)
        made.train()
        LAST[:] = [evals] if evaluating else LAST
        return model, made.state.log_history

    return train


def grpo(small: bool, sampling: Sampling | None) -> Callable[[bool], Any]:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    def reward(completions: list[Any], **others: Any) -> list[float]:
        return [len(set(c[0]["content"].split())) / 24 for c in completions]

    def train(evaluating: bool) -> Any:
        model = make_model(small)
        evals = periodic(evaluating, sampling)
        made = GRPOTrainer(
            model,
            reward_funcs=reward,
            args=GRPOConfig(
                output_dir=tempfile.mkdtemp(),
                max_steps=STEPS,
                per_device_train_batch_size=16,
                num_generations=8,
                max_completion_length=24,
                bf16=DEVICE == "cuda",
                logging_steps=1,
                gradient_checkpointing=True,
                report_to="none",
                save_strategy="no",
                disable_tqdm=True,
                use_cpu=DEVICE == "cpu",
            ),
            train_dataset=Dataset.from_list(TRAIN),
            processing_class=TOKENIZER,
        )
        made.remove_callback(PrinterCallback)
        HeldoutCallback(evals).attach(made)
        made.train()
        LAST[:] = [evals] if evaluating else LAST
        return model, made.state.log_history

    return train


def same_fingerprint() -> None:
    """A hash of weights names the same weights wherever they are."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int8):
        for shape in ((3, 211, 307), (5,), (17, 2**20)):
            numbers = torch.randn(shape, generator=torch.Generator().manual_seed(0))
            tensor = (10 * numbers).to(dtype)
            assert fingerprint([tensor.to(DEVICE)]) == fingerprint([tensor]), (dtype, shape)


def same_summary(small: bool, repeats: int = 20) -> dict[str, Any]:
    """The same weights, evaluated again and again: is every byte of the summary the same?"""
    model = make_model(small).eval()
    if DEVICE == "cuda":
        model = model.to(torch.bfloat16)
    evals = periodic(True)
    points = [evals.run_eval(step, model) for step in range(1, repeats + 1)]
    summaries = {json.dumps(p.summary, sort_keys=True) for p in points if p is not None}
    outcomes = {p.outcomes for p in points if p is not None}
    assert len(summaries) == len(outcomes) == 1, f"{len(summaries)} different summaries"
    assert points[0] is not None
    assert points[0].summary is not None
    return {"repeats": repeats, "mean": points[0].summary["mean"], "decoding": points[0].decoding}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="a tiny shape, to try it on a CPU")
    parser.add_argument("--only-repeats", action="store_true", help="no training")
    parser.add_argument("--beside", action="store_true", help="evals while training goes on")
    parser.add_argument("--worker", action="store_true", help="the same, in another process")
    arguments = parser.parse_args()
    small = arguments.small
    if small:
        os.environ[SMALL] = "1"
    same_fingerprint()
    print("20 evals of the same weights, one summary |", same_summary(small), flush=True)
    if arguments.only_repeats:
        return
    torch.use_deterministic_algorithms(True)
    # The attention kernels' backward passes add up in an order of their own.
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    trainings = {
        "plain loop, bf16 autocast": plain_loop(small, None),
        "plain loop, sampled eval": plain_loop(small, SAMPLED),
        "transformers Trainer": trainer(small),
    }
    if importlib.util.find_spec("trl") is not None:
        trainings["TRL GRPO"] = grpo(small, None)
        trainings["TRL GRPO, sampled eval"] = grpo(small, SAMPLED)
    found = {}
    for name, train in trainings.items():
        began = time.perf_counter()
        if arguments.worker:
            train = in_worker(train, sampled_policy if "sampled" in name else greedy_policy)
        elif arguments.beside:
            train = beside(train)
        neutral = assert_neutral(train)
        history = LAST[0].history
        points = [p for p in history if p.summary is not None]
        assert len(points) == len(history) == 1 + STEPS // EVERY, [p.skipped for p in history]
        assert {p.lag_steps is None for p in points} == {not (arguments.beside or arguments.worker)}
        found[name] = {
            "result": str(neutral),
            "points": len(points),
            "decoding": points[-1].decoding,
            "seconds": round(time.perf_counter() - began, 1),
        }
        print(name, "|", found[name], flush=True)
    if "OUT" in os.environ:
        Path(os.environ["OUT"], "neutral.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
