"""Time evals of a model that two processes train, sharded by FSDP2, inline and in the background.

Each case is a training run of its own: two processes on this machine that talk by gloo, or with
`--nccl` one process on a GPU. All of them must end in the same weights. With as many processes as
cores, an eval in the background takes its time from the training; the rows say how long training
waited, and how long it took.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

from common import emit, options, say, scratch

STEPS, EVERY, SAMPLES, NEW = 40, 10, 16, 16
CASES = ("off", "inline, the first process", "inline, all processes", "in a thread", "in a worker")


def make_policy() -> Any:
    """A model and its runner builder; the eval worker's, too."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    from heldout.training import live_model

    words = {word: i for i, word in enumerate(["<pad>", "</s>", "<unk>", *map(str, range(509))])}
    tokens = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokens.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokens, eos_token="</s>", pad_token="<pad>", chat_template=template
    )
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=4,
        eos_token_id=1,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    builder = live_model(tokenizer, is_short, max_new=NEW, rows=SAMPLES)
    return LlamaForCausalLM(config), builder


def is_short(trajectory: Any, sample: Any) -> bool:
    return len(trajectory.answer) < 10


def train(case: str, home: Path, steps: int, device: str) -> dict[str, Any]:
    """Train in one of the processes."""
    import torch
    from torch import distributed
    from torch.distributed.fsdp import fully_shard

    from heldout import Sample
    from heldout._live.weights import fingerprint
    from heldout.training import AsyncEvalDispatcher, EvalWorker, PeriodicEval

    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    distributed.init_process_group(
        "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo",
        init_method=f"file://{home / 'store'}",
        rank=rank,
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=timedelta(minutes=20),
    )
    model, builder = make_policy()
    model.to(device)
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    worker = EvalWorker(f"{__file__}:make_policy") if case == "in a worker" else None
    evals = PeriodicEval(
        [Sample(f"s{i}", {"question": f"{i} {i + 1} {i + 2}"}) for i in range(SAMPLES)],
        None if worker else builder,
        worker=worker,
        every_steps=0 if case == "off" else EVERY,
        max_seconds=600,
        model_getter=lambda: model,
        across="all" if case == "inline, all processes" else "first",
        run_dir=home / f"evals-{rank}",
    )
    torch.manual_seed(rank)

    def step() -> None:
        ids = torch.randint(3, 500, (4, 64)).to(device)
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(2):  # imports, first allocations
        step()
    if worker is not None:
        evals.run_eval(0)  # starts it
    waited = 0.0
    with AsyncEvalDispatcher(max_pending=4) if case.startswith("in a ") else nullcontext():
        distributed.barrier()
        began = time.perf_counter()
        for number in range(1, steps + 1):
            step()
            before = time.perf_counter()
            evals.maybe_run(number)
            waited += time.perf_counter() - before
        distributed.barrier()
        seconds = time.perf_counter() - began
    if worker is not None:
        worker.close()
    points = [point for point in evals.history if point.step]
    done = sum(point.summary is not None for point in points)
    distributed.destroy_process_group()
    hashed = fingerprint(model)
    return {"seconds": seconds, "waited": waited, "weights": hashed, "evals": done}


def run_case(case: str, steps: int, nccl: bool) -> list[dict[str, Any]]:
    home = scratch("sharded")
    command = [sys.executable, __file__, "--case", case, "--home", str(home), "--steps", str(steps)]
    world = 1 if nccl else 2
    processes = [
        subprocess.Popen(
            [*command, "--nccl"] if nccl else command,
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    said = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        sys.exit(f"{case}: a process failed")
    return [json.loads(text.splitlines()[-1]) for text in said]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--case")
    parser.add_argument("--home", type=Path)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--nccl", action="store_true", help="one process, on a GPU")
    args = parser.parse_args()
    if args.case:
        device = "cuda" if args.nccl else "cpu"
        print(json.dumps(train(args.case, args.home, args.steps, device)))
        return
    steps = EVERY if args.quick else args.steps
    found = {}
    for case in CASES:
        say(f"sharded, {case}")
        found[case] = run_case(case, steps, args.nccl)
        if [r["weights"] for r in found[case]] != [r["weights"] for r in found["off"]]:
            sys.exit(f"{case}: training ended in other weights")
    off = found["off"][0]["seconds"]
    where = "1 process on a GPU (FSDP2, NCCL)" if args.nccl else "2 processes (FSDP2, gloo)"
    what = f"{steps} steps of an 8M model in {where}, an eval every {EVERY}"
    emit(f"{what}: without evals", off, "s")
    for case in CASES[1:]:
        first = found[case][0]
        emit(f"{case}: training", first["seconds"], "s", ratio=first["seconds"] / off)
        emit(f"{case}: of which it waited for {first['evals']} evals", first["waited"], "s")


if __name__ == "__main__":
    main()
