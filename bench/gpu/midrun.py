"""Time one eval of a language model in the middle of its training, on a GPU, and check it.

    python bench/gpu/midrun.py                       both shapes, all variants: about 3 minutes
    python bench/gpu/midrun.py --shape smollm2-135m --only captured,profile
    python bench/gpu/midrun.py --only compiled       with torch.compile: minutes of compiling

32 prompts of 128 tokens and 128 new tokens each, greedy, bfloat16, random weights (no download).
Prints a table and writes everything as JSON to $OUT/midrun.json, if OUT is set. Needs torch and
transformers; on a CPU it runs the same code with tiny shapes, to show that it works.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from heldout._live.decoding import Decoder, Prompt
from heldout._live.decoding.captured import fusing, placing

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32
PROMPTS, WIDTH, NEW, REPEATS = (32, 128, 128, 20) if DEVICE == "cuda" else (4, 70, 24, 3)
SECTIONS = (
    "singly",
    "generate",
    "eager",
    "exact",
    "captured",
    "repeats",
    "moving",
    "ablation",
    "profile",
)

SHAPES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "smollm2-135m": (
        LlamaConfig,
        LlamaForCausalLM,
        {
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "vocab_size": 49152,
            "tie_word_embeddings": True,
        },
    ),
    "qwen3-0.6b": (
        Qwen3Config,
        Qwen3ForCausalLM,
        {
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 151936,
            "tie_word_embeddings": True,
        },
    ),
}
TINY = {"hidden_size": 144, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 512}


class Numbers:
    """A tokenizer whose words are its ids, and which ends nothing."""

    eos_token_id = None

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return " ".join(map(str, ids))


def make(shape: str, seed: int = 0) -> Any:
    config, model, settings = SHAPES[shape]
    if DEVICE == "cpu":
        settings = {**settings, **TINY}
    torch.manual_seed(seed)
    with torch.device(DEVICE):
        made = model(config(**settings, max_position_embeddings=8192)).to(DTYPE).eval()
    made.generation_config.eos_token_id = made.generation_config.pad_token_id = None
    return made


def prompts(vocabulary: int) -> list[Prompt]:
    numbers = torch.Generator().manual_seed(1)
    ids = torch.randint(3, vocabulary, (PROMPTS, WIDTH), generator=numbers).tolist()
    return [Prompt(tuple(row), max_new=NEW) for row in ids]


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    result = work()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start, result


def tokens(results: list[Any]) -> torch.Tensor:
    return torch.tensor([result.ids for result in results])


def agreement(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a == b).float().mean())


@contextmanager
def replaced(home: Any, **others: Any) -> Iterator[None]:
    usual = {name: getattr(home, name) for name in others}
    for name, other in others.items():
        setattr(home, name, other)
    try:
        yield
    finally:
        for name, thing in usual.items():
            setattr(home, name, thing)


def unpinned() -> Any:
    """Whichever attention kernel torch likes best."""
    return replaced(torch.nn.attention, sdpa_kernel=lambda *_: nullcontext())


# --- What is measured ---------------------------------------------------------------------------


def singly(model: Any, asked: list[Prompt]) -> dict[str, Any]:
    ids = [torch.tensor([prompt.ids], device=DEVICE) for prompt in asked[:3]]
    generate(model, ids[0], new=32)
    seconds = min(timed(lambda: generate(model, one))[0] for one in ids[1:])  # noqa: B023
    return {"one prompt at a time (32 times the faster of 2)": seconds * PROMPTS}


def generate(model: Any, ids: torch.Tensor, new: int = NEW, **more: Any) -> torch.Tensor:
    with torch.no_grad():
        out: torch.Tensor = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=new,
            pad_token_id=0,
            **more,
        )
    return out


def generated(model: Any, asked: list[Prompt]) -> dict[str, Any]:
    ids = torch.tensor([prompt.ids for prompt in asked], device=DEVICE)
    seconds, _ = timed(lambda: generate(model, ids))
    return {"one batch, model.generate": seconds}


def compiled(model: Any, asked: list[Prompt]) -> dict[str, Any]:
    """What transformers offers for speed: a static cache and a compiled step."""
    ids = torch.tensor([prompt.ids for prompt in asked], device=DEVICE)
    calls = [timed(lambda: generate(model, ids, cache_implementation="static"))[0] for _ in "123"]
    return {"model.generate, compiled": min(calls[1:]), "model.generate, compiling": calls[0]}


def eager(model: Any, asked: list[Prompt], found: dict[str, Any]) -> dict[str, Any]:
    decoder = Decoder(model, Numbers(), graphs=False)
    seconds, results = timed(lambda: decoder.decode(asked))
    found["eager"] = tokens(results)
    return {"Decoder, eager": seconds}


def exact(model: Any, asked: list[Prompt]) -> dict[str, Any]:
    """Without the rounding of half precision both ways must say the same."""
    model.to(torch.float32)
    ways = [Decoder(model, Numbers(), graphs=graphs).decode(asked) for graphs in (False, True)]
    model.to(DTYPE)
    return {"tokens as eager, float32": agreement(*map(tokens, ways))}


def captured(model: Any, asked: list[Prompt], found: dict[str, Any]) -> dict[str, Any]:
    decoder = Decoder(model, Numbers(), graphs=True)
    before = torch.get_rng_state(), *([torch.cuda.get_rng_state()] if DEVICE == "cuda" else [])
    held = torch.cuda.memory_allocated() if DEVICE == "cuda" else 0
    first, results = timed(lambda: decoder.decode(asked))
    way = decoder.describe()
    steady = [timed(lambda: decoder.decode(asked)) for _ in range(7)]
    after = torch.get_rng_state(), *([torch.cuda.get_rng_state()] if DEVICE == "cuda" else [])
    found["captured"] = tokens(results)
    out = {
        "Decoder, captured": median(seconds for seconds, _ in steady),
        "fastest": min(seconds for seconds, _ in steady),
        "first call": first,
        "preparation": way["prepared_seconds"],
        "way": way,
        "first call = later calls": all(
            torch.equal(tokens(r), found["captured"]) for _, r in steady
        ),
        "random state untouched": all(map(torch.equal, before, after)),
    }
    if DEVICE == "cuda":
        out["kept between evals, MB"] = (torch.cuda.memory_allocated() - held) / 2**20
    if "eager" in found:
        out["tokens as eager"] = agreement(found["captured"], found["eager"])
    return out


def repeats(model: Any, asked: list[Prompt], found: dict[str, Any]) -> dict[str, Any]:
    def different(count: int) -> list[float]:
        decoder = Decoder(model, Numbers(), graphs=True)
        first = tokens(decoder.decode(asked))
        return [1 - agreement(tokens(decoder.decode(asked)), first) for _ in range(count - 1)]

    pinned = different(REPEATS)
    with unpinned():
        loose = different(6)
    return {
        f"{REPEATS} repeats identical": max(pinned) == 0,
        "tokens that differ, kernel not pinned (worst of 5)": max(loose),
    }


def moving(model: Any, asked: list[Prompt], found: dict[str, Any]) -> dict[str, Any]:
    """Weights that change in place, as training does, and one that is put elsewhere."""
    decoder = Decoder(model, Numbers(), graphs=True)
    before = tokens(decoder.decode(asked))
    numbers = torch.Generator(device=DEVICE).manual_seed(2)
    with torch.no_grad():
        for weight in model.parameters():
            noise = torch.randn(weight.shape, generator=numbers, device=DEVICE)
            weight.add_(0.02 * noise.to(weight.dtype))
    after, again = decoder.decode(asked), decoder.describe()["prepared_seconds"]
    fresh = tokens(Decoder(model, Numbers(), graphs=True).decode(asked))
    weight = model.model.layers[0].mlp.down_proj.weight
    weight.data = -20 * weight.data
    moved, anew = decoder.decode(asked), decoder.describe()["prepared_seconds"]
    other = tokens(Decoder(model, Numbers(), graphs=True).decode(asked))
    return {
        "in place: other tokens": not torch.equal(tokens(after), before),
        "in place: those of a fresh decoder": torch.equal(tokens(after), fresh),
        "in place: nothing captured again": again == 0.0,
        "moved: captured again": anew > 0.0,
        "moved: those of a fresh decoder": torch.equal(tokens(moved), other),
        "moved: other tokens": not torch.equal(tokens(moved), fresh),
    }


def ablation(model: Any, asked: list[Prompt], found: dict[str, Any]) -> dict[str, Any]:
    """An eval with one of the savings left out, or done another way."""
    nothing: Callable[..., None] = lambda *_: None  # noqa: E731
    cases: dict[str, tuple[Any, dict[str, Any]]] = {
        "all": (fusing, {}),
        "attention by a kernel, layers as they are": (fusing, {"_fuse_layers": nothing}),
        "without Triton": (placing, {"why_no_triton": lambda device: "left out"}),
    }
    out = {}
    for name, (home, others) in cases.items():
        with replaced(home, **others):
            decoder = Decoder(model, Numbers(), graphs=True)
            decoder.decode(asked)
            out[name] = median(timed(lambda: decoder.decode(asked))[0] for _ in range(5))  # noqa: B023
            if not decoder.describe()["way"].startswith(("captured", "static")):
                out[name] = decoder.describe()["why_eager"]
    return out


def profiled(model: Any, asked: list[Prompt], found: dict[str, Any]) -> dict[str, Any]:
    """Kernels of an eval: how many a step, and how long each kind takes."""
    from torch.profiler import ProfilerActivity, profile

    decoder = Decoder(model, Numbers(), graphs=True)
    decoder.decode(asked)
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        decoder.decode(asked)
        if DEVICE == "cuda":
            torch.cuda.synchronize()
    events = [e for e in seen.key_averages() if e.self_device_time_total > 0]
    events.sort(key=lambda e: -e.self_device_time_total)
    layers = model.config.num_hidden_layers
    return {
        "kernels a step": sum(e.count for e in events) / NEW,
        "busy, s": sum(e.self_device_time_total for e in events) / 1e6,
        "kinds": [
            f"{e.count / NEW / layers:6.2f} a layer, {e.self_device_time_total / e.count:7.2f} µs, "
            f"{e.self_device_time_total / 1e3:8.2f} ms  {e.key[:110]}"
            for e in events[:32]
        ],
    }


def measure(shape: str, sections: Sequence[str]) -> dict[str, Any]:
    model = make(shape)
    asked = prompts(model.config.vocab_size)
    found: dict[str, Any] = {}
    out: dict[str, Any] = {}
    ways: dict[str, Callable[[], dict[str, Any]]] = {
        "singly": lambda: singly(model, asked),
        "generate": lambda: generated(model, asked),
        "eager": lambda: eager(model, asked, found),
        "exact": lambda: exact(model, asked),
        "captured": lambda: captured(model, asked, found),
        "repeats": lambda: repeats(model, asked, found),
        "ablation": lambda: ablation(model, asked, found),
        "compiled": lambda: compiled(model, asked),
        "profile": lambda: profiled(model, asked, found),
        "moving": lambda: moving(model, asked, found),
    }
    for name, way in ways.items():  # `moving` last: it changes the weights
        if name in sections:
            out[name] = way()
            print(json.dumps({shape: {name: out[name]}}, indent=1, ensure_ascii=False), flush=True)
    return out


# --- What is told -------------------------------------------------------------------------------


def table(all_found: dict[str, Any]) -> str:
    lines = [
        f"| {PROMPTS} prompts x {WIDTH} + {NEW} tokens, {DTYPE} | {' | '.join(all_found)} |",
        "|---|" + "---:|" * len(all_found),
    ]
    rows: dict[str, list[str]] = {}
    for place, found in enumerate(all_found.values()):
        for section in found.values():
            for name, value in section.items():
                if isinstance(value, bool | float):
                    row = rows.setdefault(name, [""] * len(all_found))
                    row[place] = f"{value:.3f}" if isinstance(value, float) else _yes(value)
    return "\n".join([*lines, *(f"| {name} | {' | '.join(row)} |" for name, row in rows.items())])


def _yes(value: bool) -> str:
    return "yes" if value else "**no**"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--shape", action="append", choices=tuple(SHAPES))
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, with commas between")
    args = parser.parse_args()
    where = torch.cuda.get_device_name() if DEVICE == "cuda" else "cpu, tiny shapes"
    print(f"{where}, torch {torch.__version__}", flush=True)
    all_found = {
        shape: measure(shape, args.only.split(",")) for shape in args.shape or tuple(SHAPES)
    }
    print(table(all_found))
    if folder := os.environ.get("OUT"):
        text = json.dumps({"where": where, **all_found}, indent=1, ensure_ascii=False)
        Path(folder, "midrun.json").write_text(text)


if __name__ == "__main__":
    main()
