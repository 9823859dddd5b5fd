"""Time conversations, common system prompts and long prompts on a GPU.

    PYTHONPATH=src python bench/gpu/turns.py          three minutes on an H200

Random weights in the shape of Qwen3-1.7B, bfloat16, greedy. Each line is timed as an eval runs it:
with what a conversation's cache holds (or what all prompts begin with) computed once, and with
every prompt computed anew. On a CPU it runs the same code with tiny shapes.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from heldout._live.decoding import Decoder, Generation, Prompt
from heldout._live.decoding.captured import placing

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
DTYPE = torch.bfloat16 if ON_GPU else torch.float32
SCALE = 1 if ON_GPU else 16
REAL = {
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
}
TINY = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "vocab_size": 512,
}


class Numbers:
    """A tokenizer whose words are its ids, and which ends nothing."""

    eos_token_id = None

    def decode(self, ids: Any, skip_special_tokens: bool = False) -> str:
        return " ".join(map(str, ids))


def make() -> Any:
    settings = {**(REAL if ON_GPU else TINY), "max_position_embeddings": 40960}
    torch.manual_seed(0)
    with torch.device(DEVICE):
        torch.set_default_dtype(DTYPE)
        model = Qwen3ForCausalLM(Qwen3Config(**settings, tie_word_embeddings=True)).eval()
        torch.set_default_dtype(torch.float32)
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = None
    return model


numbers = torch.Generator().manual_seed(1)


def ids_of(count: int) -> tuple[int, ...]:
    return tuple(torch.randint(3, 512, (count // SCALE,), generator=numbers).tolist())


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    if ON_GPU:
        torch.cuda.synchronize()
    start = time.perf_counter()
    result = work()
    if ON_GPU:
        torch.cuda.synchronize()
    return time.perf_counter() - start, result


def converse(
    decoder: Decoder, first: list[tuple[int, ...]], replies: list[Any], keep: bool
) -> tuple[int, int]:
    """Hold all conversations, a turn of each at a time; return new tokens and known ones."""
    prompts = [Prompt(ids, 128 // SCALE) for ids in first]
    made = known = 0
    for turn, replied in enumerate([*replies, None]):
        found = decoder.decode(prompts, same_weights=keep and turn > 0)
        known += decoder.describe().get("known_tokens", 0)
        ids = [answer.ids for answer in found if isinstance(answer, Generation)]
        made += sum(map(len, ids))
        if replied is not None:
            prompts = [
                Prompt(prompt.ids + answer + reply, 128 // SCALE, continued=True)
                for prompt, answer, reply in zip(prompts, ids, replied, strict=True)
            ]
    return made, known


def measure_turns(model: Any, turns: int, rows: int) -> dict[str, Any]:
    first = [ids_of(512) for _ in range(rows)]
    replies = [[ids_of(256) for _ in range(rows)] for _ in range(turns - 1)]
    line: dict[str, Any] = {"turns": turns, "conversations": rows}
    for name, keep in (("kept", True), ("computed anew", False)):
        decoder = Decoder(model, Numbers(), rows=rows, graphs=True)
        work = partial(converse, decoder, first, replies, keep)
        fresh = timed(work)[0]
        seconds, (made, known) = timed(work)
        line[name] = {
            "tokens per second": made / seconds,
            "seconds": seconds,
            "with captures": fresh,
            "known tokens": known,
            "held GB": torch.cuda.memory_allocated() / 1e9 if ON_GPU else 0,
        }
        decoder.release()
    return line


def measure_beginning(model: Any) -> dict[str, Any]:
    beginning = ids_of(2048)
    asked = [Prompt(beginning + ids_of(100), 64 // SCALE) for _ in range(64)]
    line: dict[str, Any] = {}
    usual = placing.WORTH_SHARING
    for name, worth in (("once", usual // SCALE**2), ("in every row", 1 << 40)):
        placing.WORTH_SHARING = worth
        decoder = Decoder(model, Numbers(), rows=64, graphs=True)
        work = partial(decoder.decode, asked)
        fresh, seconds = timed(work)[0], timed(work)[0]
        known = decoder.describe().get("known_tokens", 0)
        line[name] = {"seconds": seconds, "with captures": fresh, "known tokens": known}
        decoder.release()
    placing.WORTH_SHARING = usual
    return line


def measure_long(model: Any, rows: int) -> dict[str, Any]:
    asked = [Prompt(ids_of(8192), 2048 // SCALE) for _ in range(rows)]
    decoder = Decoder(model, Numbers(), rows=rows, graphs=True)
    if ON_GPU:
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if ON_GPU else 0
    fresh = timed(lambda: decoder.decode(asked))[0]
    described = decoder.describe()
    seconds, found = timed(lambda: decoder.decode(asked))
    first = timed(lambda: decoder.decode([Prompt(prompt.ids, 1) for prompt in asked]))[0]
    peak = torch.cuda.max_memory_allocated() - before if ON_GPU else 0
    again = [answer.ids for answer in decoder.decode(asked) if isinstance(answer, Generation)]
    decoder.release()
    return {
        "prompts": rows,
        "seconds": seconds,
        "prompts alone": first,
        "with captures": fresh,
        "new tokens per second": sum(map(len, again)) / seconds,
        "repeats": again == [answer.ids for answer in found],
        "peak GB": peak / 1e9,
        **described,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=32 if ON_GPU else 3)
    parser.add_argument("--long-rows", type=int, default=16 if ON_GPU else 2)
    arguments = parser.parse_args()
    model = make()
    found: dict[str, Any] = {}
    print("| turns | kept, tokens/s | computed anew, tokens/s |\n|---:|---:|---:|")
    found["turns"] = [measure_turns(model, turns, arguments.rows) for turns in (1, 4, 8)]
    for line in found["turns"]:
        kept, anew = line["kept"], line["computed anew"]
        speeds = [f"{part['tokens per second']:,.0f}" for part in (kept, anew)]
        print(f"| {line['turns']} | {' | '.join(speeds)} |")
    found["beginning"] = measure_beginning(model)
    found["long"] = measure_long(model, arguments.long_rows)
    print(json.dumps(found, indent=1))
    if "OUT" in os.environ:
        Path(os.environ["OUT"], "turns.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
