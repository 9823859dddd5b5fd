"""Multiple choice by likelihood: heldout beside lm-eval's own HFLM, same task, model and batch.

Run by hand in the environment that has lm-eval:

    .venv-evals/bin/python bench/likelihood.py

Two models: one so small that what is left is each package's own work per item, and SmolLM2. Both
packages run in this process, in turns; the data are local and the same, rows of text with four
choices. heldout is measured as `heldout.run` (every item saved) and as a live model (batches).
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from common import emit, options, say, scratch

BATCH = 16
WORDS = ["the", "old", "river", "runs", "under", "a", "stone", "bridge", "near", "our", "town"]


def write_task(folder: Path, documents: int, vocabulary: list[str], context: int) -> dict[str, Any]:
    draw = random.Random(0)

    def text(n: int) -> str:
        return " ".join(draw.choice(vocabulary) for _ in range(n))

    rows = [
        {
            "question": text(context),
            "choices": [text(draw.randint(2, 6)) for _ in range(4)],
            "label": draw.randrange(4),
        }
        for _ in range(documents)
    ]
    path = folder / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return {
        "task": "bench",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(path)}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "label",
    }


def tiny() -> tuple[Any, Any, list[str]]:
    sys.path.append(str(Path(__file__).parent.parent))
    from tests.tiny_model import WORDS as words
    from tests.tiny_model import tiny_model

    return *tiny_model(), words


def smollm2() -> tuple[Any, Any, list[str]]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from heldout.models.demo import weights_folder

    folder = weights_folder()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(folder), WORDS


def measure(function: Callable[[], Any], rounds: int) -> tuple[float, float]:
    """Return CPU and wall seconds, the median of some rounds."""
    cpu, wall = [], []
    for _ in range(rounds):
        began = time.process_time(), time.perf_counter()
        with contextlib.redirect_stderr(io.StringIO()):
            function()
        cpu.append(time.process_time() - began[0])
        wall.append(time.perf_counter() - began[1])
    return median(cpu), median(wall)


def compare(name: str, load: Any, documents: int, context: int, rounds: int) -> None:
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    import heldout
    from heldout.adapters.lm_eval import from_lm_eval
    from heldout.models.local import LocalEndpoint
    from heldout.training import PeriodicEval, live_model

    model, tokenizer, words = load()
    folder = scratch(f"lm-eval-{name}")
    task = write_task(folder, documents, words, context)
    lm = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=BATCH, device="cpu")
    definition = from_lm_eval(task)
    numbers = iter(range(10_000))

    def theirs() -> None:
        simple_evaluate(
            model=lm,
            tasks=[task],
            bootstrap_iters=0,
            task_manager=TaskManager(include_defaults=False),
        )

    def run() -> None:
        heldout.run(
            from_lm_eval(task),
            endpoint=LocalEndpoint(model, tokenizer),
            max_concurrent=BATCH,
            output_dir=str(folder / "runs"),
        )

    def live() -> None:
        curve = PeriodicEval(
            definition,
            live_model(tokenizer, definition, rows=BATCH),
            every_steps=1,
            run_dir=folder / f"curve{next(numbers)}",
        )
        curve.maybe_run(1, model)
        assert curve.points[0].summary["n"] == documents

    figures = {}
    for what, function in (
        ("heldout.run, hf", run),
        ("a point of a curve, live_model", live),
        ("lm-eval, HFLM", theirs),
    ):
        function()  # warm: imports, datasets' cache
        figures[what] = measure(function, rounds)
    own = figures["heldout.run, hf"]
    for what, (cpu, wall) in figures.items():
        ratio = None if "heldout" in what else cpu / own[0]
        emit(f"{name}: {what}: CPU per item", 1000 * cpu / documents, "ms", ratio=ratio)
        emit(f"{name}: {what}: items per second", documents / wall, "items/s")


def main() -> None:
    args = options(__doc__).parse_args()
    logging.disable(logging.WARNING)
    import torch

    torch.set_num_threads(1)
    rounds = 1 if args.quick else 3
    for name, load, documents, context in (
        ("tiny model", tiny, 20 if args.quick else 200, 20),
        ("SmolLM2-135M", smollm2, 4 if args.quick else 8, 60),
    ):
        say(name)
        compare(name, load, documents, context, rounds)


if __name__ == "__main__":
    main()
