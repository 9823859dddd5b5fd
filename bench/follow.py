"""A folder of checkpoints: `heldout curve follow` beside one `lm_eval` for each, on the same task.

Run by hand in the environment that has lm-eval:

    .venv-evals/bin/python bench/follow.py

Both are command lines of their own: heldout is started once for the folder, lm_eval once for each
checkpoint, as a script around it would. The task is multiple choice with local data, so both give
the same accuracies, which is checked. Two models: one so small that what is left is starting,
loading and saving, and SmolLM2.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from common import emit, options, say, scratch
from likelihood import smollm2, tiny, write_task

BATCH = 16
EVAL = """
import json
from pathlib import Path

from heldout import EvalConfig
from heldout.adapters.lm_eval import from_lm_eval

definition = from_lm_eval(json.loads((Path(__file__).parent / "task.json").read_text()))
config = EvalConfig(max_concurrent={batch}, progress=False)
"""


def save_checkpoints(folder: Path, load: Any, count: int) -> list[str]:
    import torch

    model, tokenizer, words = load()
    torch.manual_seed(0)
    for step in range(10, 10 * count + 1, 10):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1 + 0.01 * torch.randn_like(parameter))
        model.save_pretrained(folder / f"checkpoint-{step}")
        tokenizer.save_pretrained(folder / f"checkpoint-{step}")
    return words


def run(words: list[str], folder: Path) -> tuple[float, float, str]:
    """Run a command; return its wall and CPU seconds, and what it printed."""
    source = str(Path(__file__).parent.parent / "src")
    path = os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        raise SystemExit(f"{words}: {done.stderr[-2000:]}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, cpu, done.stdout


def compare(name: str, load: Any, count: int, documents: int, context: int) -> None:
    folder = scratch(f"follow-{name.split()[0]}")
    words = save_checkpoints(folder / "run", load, count)
    task = write_task(folder, documents, words, context)
    (folder / "task.json").write_text(json.dumps(task))
    (folder / "tasks").mkdir(exist_ok=True)
    (folder / "tasks" / "bench.yaml").write_text(json.dumps(task))  # JSON is YAML
    (folder / "quiz.py").write_text(EVAL.replace("{batch}", str(BATCH)))

    follow = ["-m", "heldout", "curve", "follow", "run", "--eval", "quiz.py", "--once", "--json"]
    wall, cpu, printed = run([*follow, "--poll", "1"], folder)
    points = [json.loads(line) for line in printed.splitlines()]
    ours = {point["step"]: point["summary"]["metric_acc"] for point in points}

    theirs, their_wall, their_cpu = {}, 0.0, 0.0
    for step in sorted(ours):
        out = folder / f"lm-eval-{step}"
        arguments = ["--model", "hf", "--model_args", f"pretrained=run/checkpoint-{step}"]
        arguments += ["--tasks", "bench", "--include_path", "tasks", "--device", "cpu"]
        arguments += ["--batch_size", str(BATCH), "--output_path", str(out)]
        seconds = run(["-m", "lm_eval", "run", *arguments], folder)
        their_wall, their_cpu = their_wall + seconds[0], their_cpu + seconds[1]
        [path] = out.rglob("results_*.json")
        theirs[step] = json.loads(path.read_text())["results"]["bench"]["acc,none"]
    assert len(ours) == count
    assert ours == theirs, (ours, theirs)
    for what, seconds, used in (
        ("heldout curve follow", wall, cpu),
        ("lm_eval", their_wall, their_cpu),
    ):
        ratio = None if what != "lm_eval" else seconds / wall
        emit(f"{name}: {what}: evals per minute", 60 * count / seconds, "evals/min", ratio=ratio)
        emit(f"{name}: {what}: CPU per eval", used / count, "s")
    shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    args = options(__doc__).parse_args()
    for name, load, count, documents, context in (
        ("tiny model", tiny, 2 if args.quick else 6, 20 if args.quick else 100, 20),
        ("SmolLM2-135M", smollm2, 2 if args.quick else 3, 4 if args.quick else 32, 60),
    ):
        say(name)
        compare(name, load, count, documents, context)


if __name__ == "__main__":
    main()
