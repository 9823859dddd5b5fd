"""Time evals of models at real sizes on a GPU: answers of ragged lengths.

    PYTHONPATH=src python bench/gpu/ragged.py --only heldout          under a minute
    PYTHONPATH=src python bench/gpu/ragged.py                         beside its peers: 10 minutes

64 prompts of 100 to 256 tokens and answers of up to 512 (mean 170), greedy, bfloat16, random
weights in the shapes of Qwen3-1.7B and Qwen3-4B (no download). The floor is the time to read the
weights once per token of the longest answer. Peers are `generate` in one batch and transformers'
continuous batching, on the same model in the same process. Prints a table and writes
$OUT/ragged.json, if OUT is set. On a CPU it runs the same code with tiny shapes.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from heldout._live.decoding import Decoder, Prompt

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
DTYPE = torch.bfloat16 if ON_GPU else torch.float32
PROMPTS, LONGEST, MEAN, REPEATS = (64, 512, 170, 20) if ON_GPU else (6, 40, 16, 3)
BANDWIDTH = 4.8e12
"""Bytes per second of an H200's memory, by its datasheet."""

SHAPES: dict[str, dict[str, int]] = {
    "Qwen3-0.6B": {"hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16},
    "Qwen3-1.7B": {"hidden_size": 2048, "intermediate_size": 6144, "num_attention_heads": 16},
    "Qwen3-4B": {
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_attention_heads": 32,
        "num_hidden_layers": 36,
    },
}
COMMON = {
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 8192,
}
TINY = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 512}


class Numbers:
    """A tokenizer whose words are its ids, and which ends nothing."""

    eos_token_id = None

    def decode(self, ids: Any, skip_special_tokens: bool = False) -> str:
        return " ".join(map(str, ids))


def make(name: str) -> Any:
    settings = {**COMMON, **SHAPES[name], **({} if ON_GPU else TINY)}
    torch.manual_seed(0)
    with torch.device(DEVICE):
        torch.set_default_dtype(DTYPE)
        model = Qwen3ForCausalLM(Qwen3Config(**settings, tie_word_embeddings=True)).eval()
        torch.set_default_dtype(torch.float32)
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = None
    return model


def make_prompts(vocabulary: int) -> list[Prompt]:
    numbers = torch.Generator().manual_seed(1)
    widths = torch.randint(100, 257, (PROMPTS,), generator=numbers).tolist()
    drawn = torch.empty(PROMPTS).exponential_(1.0, generator=numbers)
    lengths = (drawn * MEAN).clamp(8, LONGEST)
    lengths = (lengths * MEAN / lengths.mean()).clamp(8, LONGEST).int().tolist()
    lengths[0] = LONGEST
    return [
        Prompt(tuple(torch.randint(3, vocabulary, (width,), generator=numbers).tolist()), length)
        for width, length in zip(widths, lengths, strict=True)
    ]


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    if ON_GPU:
        torch.cuda.synchronize()
    start = time.perf_counter()
    result = work()
    if ON_GPU:
        torch.cuda.synchronize()
    return time.perf_counter() - start, result


def run_heldout(model: Any, asked: list[Prompt], rows: int) -> dict[str, Any]:
    before = torch.cuda.memory_allocated() if ON_GPU else 0
    decoder = Decoder(model, Numbers(), rows=rows)
    first, expected = timed(lambda: decoder.decode(asked))
    prepared = decoder.describe()["prepared_seconds"]
    held = torch.cuda.memory_allocated() - before if ON_GPU else 0
    calls = [timed(lambda: decoder.decode(asked)) for _ in range(REPEATS)]
    seconds = [call[0] for call in calls]
    kernels = profile(lambda: decoder.decode(asked)) if ON_GPU else {}
    decoder.release()
    left = torch.cuda.memory_allocated() - before if ON_GPU else 0
    again = timed(lambda: decoder.decode(asked))[0]
    described = decoder.describe()
    decoder.release()
    return {
        "seconds": median(seconds),
        "fastest": min(seconds),
        "first": first,
        "prepared": prepared,
        "with a capture": again,
        "left GB": left / 1e9,
        "same tokens": sum(found == expected for _, found in calls),
        "held GB": held / 1e9,
        "tokens": sum(len(found.ids) for found in expected),  # type: ignore[union-attr]
        **described,
        "kernels": kernels,
    }


def profile(work: Callable[[], Any]) -> dict[str, float]:
    """Seconds of the GPU by kernel, the longest first."""
    from torch.profiler import ProfilerActivity

    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as profiler:
        work()
        torch.cuda.synchronize()
    times: Counter[str] = Counter()
    for event in profiler.key_averages():
        times[event.key[:90]] += event.self_device_time_total / 1e6
    return {"all": sum(times.values()), **dict(times.most_common(14))}


def run_generate(model: Any, asked: list[Prompt]) -> dict[str, Any]:
    width = max(len(prompt.ids) for prompt in asked)
    ids = torch.tensor([(0,) * (width - len(p.ids)) + p.ids for p in asked], device=DEVICE)
    mask = torch.tensor([[0] * (width - len(p.ids)) + [1] * len(p.ids) for p in asked])
    longest = max(prompt.max_new for prompt in asked)

    def generate() -> Any:
        with torch.no_grad():
            return model.generate(
                ids,
                attention_mask=mask.to(DEVICE),
                do_sample=False,
                max_new_tokens=longest,
                pad_token_id=0,
            )

    return {"seconds": timed(generate)[0]}


def run_continuous(model: Any, asked: list[Prompt]) -> dict[str, Any]:
    longest = max(prompt.max_new for prompt in asked)
    settings = GenerationConfig(
        max_new_tokens=longest, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    try:
        seconds, _ = timed(
            lambda: model.generate_batch(
                [list(prompt.ids) for prompt in asked], generation_config=settings
            )
        )
    except Exception as problem:  # noqa: BLE001 - a peer that cannot run here is named with why
        return {"problem": f"{type(problem).__name__}: {problem}"[:300]}
    return {"seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=("heldout", "peers"))
    parser.add_argument("--shapes", default="Qwen3-1.7B,Qwen3-4B")
    parser.add_argument("--rows", default="32,64")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--top-p", type=float)
    arguments = parser.parse_args()
    found: dict[str, Any] = {}
    for name in arguments.shapes.split(","):
        model = make(name)
        asked = [
            replace(prompt, temperature=arguments.temperature, top_p=arguments.top_p, seed=seed)
            for seed, prompt in enumerate(make_prompts(model.config.vocab_size))
        ]
        weights = sum(w.numel() * w.element_size() for w in model.parameters())
        steps = max(prompt.max_new for prompt in asked)
        found[name] = {"floor": {"seconds": weights * steps / BANDWIDTH}}
        if arguments.only != "peers":
            for rows in map(int, arguments.rows.split(",")):
                found[name][f"heldout, {rows} rows"] = run_heldout(model, asked, rows)
        if arguments.only != "heldout":
            found[name]["generate"] = run_generate(model, asked)
            found[name]["continuous batching"] = run_continuous(model, asked)
        print(f"| {name} | seconds | |\n|---|---:|---|")
        for what, numbers in found[name].items():
            seconds = numbers.get("seconds")
            more = {
                key: value for key, value in numbers.items() if key not in ("seconds", "kernels")
            }
            print(f"| {what} | {'-' if seconds is None else f'{seconds:.3f}'} | {more} |")
        for what, numbers in found[name].items():
            for kernel, seconds in numbers.get("kernels", {}).items():
                print(f"  {what}: {seconds:.4f} {kernel}")
        del model
        if ON_GPU:
            torch.cuda.empty_cache()
    if "OUT" in os.environ:
        Path(os.environ["OUT"], "ragged.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
