"""Checkpoints of a tiny model, saved by the real packages in the layouts of trainers."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch

from heldout import EvalConfig, Sample, Sampling
from heldout.types import Trajectory
from tests.tiny_model import tiny_model

CONFIG = EvalConfig(sampling=Sampling(max_tokens=3), progress=False)
SAMPLES = [Sample(f"q{i}", {"question": f"w{i} w{i + 1}"}) for i in range(6)]


def score_fn(trajectory: Trajectory, sample: Sample) -> float:
    return float("w1" in trajectory.answer)


@cache
def _parts() -> tuple[Any, Any]:
    from transformers.utils import logging

    logging.disable_progress_bar()
    return tiny_model()


def model_of(seed: int) -> Any:
    """The tiny model with weights of its own."""
    model, _ = _parts()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model


def tokenizer() -> Any:
    return _parts()[1]


def save(folder: Path, seed: int = 0, **how: Any) -> Path:
    """As `Trainer` saves it."""
    model_of(seed).save_pretrained(folder, **how)
    tokenizer().save_pretrained(folder)
    return folder


def save_distributed(folder: Path, state: dict[str, Any], **how: Any) -> None:
    import torch.distributed.checkpoint as distributed

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        distributed.save(state, checkpoint_id=folder, no_dist=True, **how)


def save_bin(folder: Path, seed: int) -> None:
    save(folder, seed)
    torch.save(model_of(seed).state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def save_shards(folder: Path, seed: int) -> None:
    """Shards without config, tokenizer and index."""
    save(folder, seed, max_shard_size="20KB")
    for path in folder.iterdir():
        if path.suffix != ".safetensors":
            path.unlink()
    assert len(list(folder.iterdir())) > 1


def save_fsdp(folder: Path, seed: int) -> None:
    """As accelerate saves a model with FSDP's sharded state dicts."""
    state = {"model": model_of(seed).state_dict(), "optim": {"lr": 0.1, "step": 3}}
    save_distributed(folder / "pytorch_model_fsdp_0", state)


def save_prime_rl(folder: Path, seed: int) -> None:
    state = {"app": {"model": model_of(seed).state_dict(), "progress": {"step": 3}}}
    save_distributed(folder / "trainer", state)


def save_nemo_rl(folder: Path, seed: int) -> None:
    save_distributed(folder / "policy" / "weights", {"model": model_of(seed).state_dict()})
    tokenizer().save_pretrained(folder / "policy" / "tokenizer")


def save_nemo_rl_slices(folder: Path, seed: int) -> None:
    """Slices of tensors in safetensors, as torch's writer makes them."""
    from torch.distributed.checkpoint import HuggingFaceStorageWriter

    path = folder / "policy" / "weights" / "model"
    writer = HuggingFaceStorageWriter(str(path), save_distributed=True)
    save_distributed(path, model_of(seed).state_dict(), storage_writer=writer)
    tokenizer().save_pretrained(folder / "policy" / "tokenizer")


def save_verl(folder: Path, seed: int) -> None:
    """With hf_model in save_contents."""
    save(folder / "actor" / "huggingface", seed)
    torch.save({}, folder / "actor" / "model_world_size_1_rank_0.pt")


def save_adapter(folder: Path, seed: int, base: Path) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    config = LoraConfig(target_modules=["q_proj"], init_lora_weights=False)
    get_peft_model(AutoModelForCausalLM.from_pretrained(base), config).save_pretrained(folder)


WHOLE_MODELS: dict[str, Callable[[Path, int], object]] = {
    "transformers": save,
    "pytorch_model.bin": save_bin,
    "shards": save_shards,
    "fsdp": save_fsdp,
    "prime-rl": save_prime_rl,
    "nemo-rl": save_nemo_rl,
    "nemo-rl slices": save_nemo_rl_slices,
    "verl": save_verl,
}


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **changes}))
