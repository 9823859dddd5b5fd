"""One of several processes that train a sharded model, run with `python -m`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from heldout import Sample
from heldout._live.snapshots import SnapshotPool
from heldout._live.weights import fingerprint
from heldout.training import AsyncEvalDispatcher, EvalWorker, live_model, sharding
from heldout.training.ranks import current_ranks
from tests.tiny_model import tiny_model
from tests.training import rank_worker, toys

RANK = rank_worker.RANK
SAMPLES = [Sample(f"s{i}", {"question": f"w{i} w{i + 1}"}, ground_truth="w1") for i in range(5)]
MODES = {
    "fsdp2": ("off", "inline", "all", "background"),
    "fsdp1": ("off", "inline", "background"),
    "lora": ("off", "inline", "background", "worker"),
    "zero3": ("off", "inline", "all", "background", "worker"),
}


def policy() -> Any:
    """The eval worker's."""
    model, tokenizer = tiny_model()
    return model, live_model(tokenizer, toys.score, max_new=6, rows=2)


def lora_policy() -> Any:
    model, builder = policy()
    return with_lora(model), builder


def with_lora(model: Any) -> Any:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return get_peft_model(model, config)


def fsdp2(model: Any) -> Any:
    for module in model.modules():
        if type(module).__name__ == "LlamaDecoderLayer":
            fully_shard(module)
    return fully_shard(model)


def fsdp1(model: Any) -> Any:
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    return FullyShardedDataParallel(
        model,
        auto_wrap_policy=ModuleWrapPolicy({type(model.model.layers[0])}),
        use_orig_params=True,
        device_id=torch.device("cpu"),
    )


def zero3(model: Any) -> Any:
    """DeepSpeed's engine, which also has the optimizer."""
    import deepspeed

    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=[p for p in model.parameters() if p.requires_grad],
        config={
            "train_micro_batch_size_per_gpu": 2,
            "optimizer": {"type": "Adam", "params": {"lr": 1e-2, "torch_adam": True}},
            "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 40},
        },
    )
    return engine


WAYS: dict[str, Callable[[Any], Any]] = {
    "fsdp2": fsdp2,
    "fsdp1": fsdp1,
    "lora": lambda model: fsdp2(with_lora(model)),
    "zero3": zero3,
}


def train(home: Path, way: str, mode: str, *, steps: int = 4, **settings: Any) -> dict[str, Any]:
    """Train as any loop does, with an eval between the gradients and the optimizer's step."""
    torch.manual_seed(RANK)
    bare, tokenizer = tiny_model()
    for layer in bare.model.layers:
        layer.self_attn.attention_dropout = 0.1
    model = WAYS[way](bare.train())
    own = way != "zero3"
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2) if own else model.optimizer
    worker = None
    if mode == "worker":
        name = "lora_policy" if way == "lora" else "policy"
        worker = EvalWorker(f"tests.training.shard_worker:{name}", snapshots=1)
    builder = live_model(tokenizer, toys.score, max_new=6, rows=2)
    defaults: dict[str, Any] = {
        "every_steps": 2 if mode != "off" else 0,
        "model_getter": lambda: model,
        "across": "all" if mode == "all" else "first",
        "run_dir": home / f"{way}-{mode}-{RANK}",
    }
    if worker is None:
        defaults["runner_builder"] = builder
        defaults["snapshots"] = 1  # each copy gathers the frozen weights, once
    settings = {**defaults, "worker": worker, **settings}
    evals = toys.make_eval(SAMPLES, settings.pop("runner_builder", None), **settings)
    background = mode in ("background", "worker")
    gathered: list[int] = []
    plain = sharding._gathered

    def counting(*arguments: Any) -> Any:
        found = 0
        for pair in plain(*arguments):
            found += pair[1].numel()
            yield pair
        gathered.append(found)

    sharding._gathered = counting
    try:
        with AsyncEvalDispatcher(when_full="wait") if background else nullcontext():
            for step in range(1, steps + 1):
                ids = torch.randint(8, 60, (2, 12))
                loss = model(input_ids=ids, labels=ids).loss
                model.backward(loss) if not own else loss.backward()
                evals.maybe_run(step)
                model.step() if not own else optimizer.step()
                if own:
                    optimizer.zero_grad()
            evals.run_final(steps)
    finally:
        sharding._gathered = plain
        if worker is not None:
            worker.close()
    states = [] if not own else [s for s in optimizer.state.values() if "exp_avg" in s]
    return {
        "part": fingerprint(model),
        "optimizer": fingerprint([s["exp_avg"] for s in states]),
        "draws": torch.rand(1).item(),
        "points": [[p.step, p.n, p.weights, p.skipped] for p in evals.history],
        "answers": [[o.reward for o in p.outcomes] for p in evals.history],
        "whole": whole_hash(model),
        "gathered": gathered,
    }


def train_all(way: str, modes: Iterable[str], home: Path) -> dict[str, Any]:
    return {mode: train(home, way, mode) for mode in modes}


def whole_hash(model: Any) -> str | None:
    """The hash of the whole weights, as torch or DeepSpeed has them."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.fsdp import FullyShardedDataParallel as Fsdp1

    if hasattr(model, "ds_config") or type(model).__name__ == "DeepSpeedEngine":
        import deepspeed

        with deepspeed.zero.GatheredParameters(list(model.parameters()), modifier_rank=None):
            return fingerprint(dict(model.module.state_dict()))
    if isinstance(model, Fsdp1):  # with cpu_offload torch 2.13 reads freed memory on a CPU
        with Fsdp1.summon_full_params(model, writeback=False):
            return fingerprint(dict(model.named_parameters()))
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    whole = get_model_state_dict(model, options=options)
    if hasattr(model, "peft_config"):
        target = with_lora(tiny_model()[0])
        if whole:
            target.load_state_dict(whole)
        return fingerprint(target)
    return fingerprint(whole) if whole else None


# --- TRL ----------------------------------------------------------------------------------------


def shard_on_cpu() -> None:
    """Have accelerate shard on a CPU, too, where it would take DDP; FSDP1 refuses its device."""
    from accelerate.state import AcceleratorState, DistributedType

    if AcceleratorState.__init__.__name__ == "initialize":
        return
    plain = AcceleratorState.__init__

    def initialize(self: Any, *arguments: Any, fsdp_plugin: Any = None, **named: Any) -> None:
        plain(self, *arguments, fsdp_plugin=fsdp_plugin, **named)
        if fsdp_plugin is not None:
            self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, fsdp_plugin

    AcceleratorState.__init__ = initialize  # type: ignore[method-assign]


def trl(home: Path) -> Any:
    """SFT of TRL, sharded by accelerate."""
    from accelerate.state import AcceleratorState
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    from heldout.integrations.transformers import HeldoutCallback

    shard_on_cpu()

    def train_sft(mode: str) -> Any:
        AcceleratorState._reset_state(reset_partial_state=False)
        model, tokenizer = tiny_model()
        rows = [{"input_ids": [1, 5, 8 + i % 40, 6, 9 + i % 40, 2]} for i in range(32)]
        arguments = SFTConfig(
            str(home / f"{mode}-{RANK}"),
            max_steps=4,
            per_device_train_batch_size=2,
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            bf16=False,
            fsdp=True,
            fsdp_config={"version": 2, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]},
            disable_tqdm=True,
            logging_steps=1,
        )
        trainer = SFTTrainer(
            model, arguments, train_dataset=Dataset.from_list(rows), processing_class=tokenizer
        )
        evals = toys.make_eval(
            SAMPLES,
            live_model(tokenizer, toys.score, max_new=6, rows=2),
            every_steps=2 if mode != "off" else 0,
            run_dir=home / f"evals-{mode}-{RANK}",
        )
        HeldoutCallback(evals).attach(trainer)
        with AsyncEvalDispatcher(when_full="wait") if mode == "background" else nullcontext():
            trainer.train()
        return {
            "way": sharding.sharding_way(trainer.model),
            "whole": whole_hash(trainer.model),
            "loss": [row["loss"] for row in trainer.state.log_history if "loss" in row],
            "points": [[p.step, p.n, p.weights, p.skipped] for p in evals.history],
        }

    return {mode: train_sft(mode) for mode in ("off", "inline", "background")}


def accelerate(home: Path) -> Any:
    """A loop of one's own, with what accelerate makes of its model: DDP, or sharded."""
    from accelerate import Accelerator, FullyShardedDataParallelPlugin
    from accelerate.state import AcceleratorState

    from heldout.integrations.accelerate import AccelerateEvals

    def run(evaluating: bool, plugin: Any, **settings: Any) -> Any:
        AcceleratorState._reset_state(reset_partial_state=False)
        accelerator = Accelerator(cpu=True, fsdp_plugin=plugin, gradient_accumulation_steps=2)
        torch.manual_seed(RANK)
        bare, tokenizer = tiny_model()
        optimizer = torch.optim.Adam(bare.parameters(), lr=1e-2)
        model, optimizer = accelerator.prepare(bare.train(), optimizer)
        evals = None
        if evaluating:
            periodic = toys.make_eval(
                SAMPLES,
                live_model(tokenizer, toys.score, max_new=6, rows=2),
                every_steps=2,
                run_dir=home / f"{len(list(home.parent.glob('accelerate/*')))}-{RANK}",
                **settings,
            )
            evals = AccelerateEvals(accelerator, model, periodic)
            evals.begin()
        step = 0
        for _ in range(8):
            with accelerator.accumulate(model):
                ids = torch.randint(8, 60, (2, 12))
                accelerator.backward(model(input_ids=ids, labels=ids).loss)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                step += 1
                if evals is not None and evals.step(step):
                    break
        if evals is not None:
            evals.finish(step)
        points = [[p.step, p.n, p.skipped] for p in evals.evals[0].history] if evals else []
        way = sharding.sharding_way(model)
        return {"part": fingerprint(model), "step": step, "points": points, "way": way}

    def stop_at_once(points: Any) -> str | None:
        return "enough" if RANK == 0 else None

    seen = {}
    for name in ("ddp", "fsdp2"):
        plugin = None
        if name == "fsdp2":
            shard_on_cpu()
            plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
        seen[name] = {
            "off": run(False, plugin),
            "on": run(True, plugin),
            "stopped": run(True, plugin, monitor=stop_at_once),
        }
    return seen


# --- What goes wrong ----------------------------------------------------------------------------


def cannot_be_copied(home: Path) -> Any:
    """A hook in the forward pass, which no copy may call."""

    def shard(model: Any) -> Any:
        model.model.norm.register_forward_hook(lambda module, given, out: None)
        return fsdp2(model)

    WAYS["hooked"] = shard
    return train_all("hooked", ("inline", "all", "background"), home)


def one_has_no_model(home: Path) -> Any:
    asked = []

    class Getter:
        model: Any = None

        def __call__(self) -> Any:
            asked.append(1)
            if RANK == 1 and len(asked) > 1:
                raise RuntimeError("this one cannot")
            return self.model

    getter = Getter()
    plain = WAYS["fsdp2"]

    def shard(model: Any) -> Any:
        getter.model = plain(model)
        return getter.model

    WAYS["getter"] = shard
    return {"inline": train(home, "getter", "inline", model_getter=getter)}


def no_time(home: Path) -> Any:
    """The first process cannot afford its second eval."""
    return {
        across: train(home / across, "fsdp2", across, max_overhead=1e-9, min_samples=1)
        for across in ("inline", "all")
    }


def partly_sharded(home: Path) -> Any:
    """`fully_shard` has left a layer alone."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    whole = fingerprint(model)
    fully_shard(model[0])
    snapshot = SnapshotPool().try_snapshot(sharding.ShardedModel(model, current_ranks()), step=1)
    assert snapshot is not None
    return snapshot.weights == whole


OTHERS: dict[str, Callable[[Path], Any]] = {
    "accelerate": accelerate,  # before what shards on a CPU
    "trl": trl,
    "cannot_be_copied": cannot_be_copied,
    "one_has_no_model": one_has_no_model,
    "no_time": no_time,
    "partly_sharded": partly_sharded,
}


if __name__ == "__main__":
    # The processes find each other by themselves: accelerate only wants to read these.
    here = {"LOCAL_RANK": str(RANK), "LOCAL_WORLD_SIZE": str(rank_worker.WORLD)}
    os.environ.update(here, MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    rank_worker.RULES.clear()
    for name, modes in MODES.items():
        rank_worker.RULES[name] = partial(train_all, name, modes)
    rank_worker.RULES |= OTHERS
    rank_worker.main(sys.argv[2:], Path(sys.argv[1]))
