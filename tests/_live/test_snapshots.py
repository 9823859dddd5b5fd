"""A snapshot is the model as it was at a step, bit for bit, and training does not notice it."""

from __future__ import annotations

import functools
import gc
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from heldout._live.model_copy import ModelCopy, _NoLongerFits
from heldout._live.snapshots import SnapshotPool, WeightSnapshot
from heldout._live.weights import fingerprint
from heldout.errors import InvalidInput
from heldout.testing import assert_neutral

pytestmark = pytest.mark.usefixtures("one_thread")

IDS = torch.arange(12).view(2, 6) % 11 + 3


def llama(seed: int = 0, **settings: Any) -> Any:
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        attention_dropout=0.2,
        **{"tie_word_embeddings": True, **settings},
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).train()


def lora(model: Any = None, **settings: Any) -> Any:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        target_modules=["q_proj", "v_proj"],
        lora_dropout=0.1,
        init_lora_weights=False,
        task_type="CAUSAL_LM",
        **settings,
    )
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(1)
        return get_peft_model(llama() if model is None else model, config)


class Normed(torch.nn.Module):
    """Buffers that training writes to: two that are stored, one that is not, one that is replaced
    by a new tensor, and a plain number."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(6, 6)
        self.norm = torch.nn.BatchNorm1d(6)
        self.register_buffer("calls", torch.zeros(1), persistent=False)
        self.register_buffer("largest", torch.zeros(()))
        self.steps = 0
        self.memory = {"last": torch.zeros(6)}

    def forward(self, rows: Any) -> Any:
        if self.training:
            self.calls += 1
            self.steps += 1
            self.largest = torch.maximum(self.largest, rows.abs().max())
            self.memory["last"].copy_(rows[0])
        scale = 1 + self.calls + self.steps + self.largest
        return self.norm(self.layer(rows)) * scale + self.memory["last"]


def normed(seed: int = 0) -> Normed:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Normed().train()


def logits(model: Any) -> Any:
    with torch.no_grad():
        return model(input_ids=IDS).logits


def train(model: Any, steps: int = 1) -> None:
    """As a trainer does: random numbers, gradients, and weights written in place."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    model.train()
    for _ in range(steps):
        model(input_ids=IDS, labels=IDS).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def as_in_eval_mode(model: Any, ask: Callable[[Any], Any] = logits) -> Any:
    flags = [module.training for module in model.modules()]
    model.eval()
    with torch.no_grad():
        said = ask(model)
    for module, flag in zip(model.modules(), flags, strict=True):
        module.training = flag
    return said


def beside(work: Callable[[], Any]) -> Any:
    """What `work` returns or raises in another thread."""
    found: list[Any] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as problem:
            raised.append(problem)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
    return found[0]


def evaluated(snapshot: WeightSnapshot, ask: Callable[[Any], Any] = logits) -> Any:
    def work() -> Any:
        with snapshot.in_use():
            return ask(snapshot.model)

    return beside(work)


def take(pool: SnapshotPool, model: Any, step: int = 1) -> WeightSnapshot:
    snapshot = pool.try_snapshot(model, step=step)
    assert snapshot is not None
    return snapshot


def assert_faithful(
    model: Any,
    *,
    pool: SnapshotPool | None = None,
    ask: Callable[[Any], Any] = logits,
    go_on: Callable[[Any], Any] = train,
    rounds: int = 3,
) -> None:
    """Each snapshot has the weights and says what the model did, while the model moves on."""
    pool = pool or SnapshotPool()
    for step in range(rounds):
        was, said = fingerprint(model), as_in_eval_mode(model, ask)
        snapshot = take(pool, model, step)
        go_on(model)
        assert fingerprint(model) != was
        assert beside(functools.partial(getattr, snapshot, "weights")) == was
        assert torch.equal(evaluated(snapshot, ask), said)
        snapshot.release()


# --- Every kind of model ------------------------------------------------------------------------


@pytest.mark.parametrize(("tied", "copy"), [(True, "trainable"), (False, "all")])
def test_full_fine_tuning(tied: bool, copy: Any) -> None:
    assert_faithful(llama(tie_word_embeddings=tied), pool=SnapshotPool(copy=copy))


@pytest.mark.parametrize(
    ("settings", "copy"),
    [({}, "trainable"), ({"use_dora": True}, "trainable"), ({"modules_to_save": ["norm"]}, "all")],
)
def test_lora(settings: dict[str, Any], copy: Any) -> None:
    assert_faithful(lora(**settings), pool=SnapshotPool(copy=copy))


def test_buffers_and_all_else_that_training_writes_to() -> None:
    rows = torch.linspace(-1, 1, 24).view(4, 6)

    def go_on(model: Any) -> None:
        model(rows * (2 + model.steps)).sum().backward()

    assert_faithful(normed(), ask=lambda model: model(rows), go_on=go_on)


def test_weights_that_are_also_in_lists() -> None:
    with torch.random.fork_rng():
        model = torch.nn.LSTM(4, 4)
    rows = torch.ones(3, 4)

    def go_on(model: Any) -> None:
        with torch.no_grad():
            model.weight_hh_l0.add_(1.0)

    assert_faithful(model, ask=lambda model: model(rows)[0], go_on=go_on)


def test_weights_behind_a_parametrization() -> None:
    with torch.random.fork_rng():
        model = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 4))

    def go_on(model: Any) -> None:
        with torch.no_grad():
            model.parametrizations.weight.original0.mul_(2.0)

    assert_faithful(model, ask=lambda model: model(torch.ones(1, 4)), go_on=go_on)


def test_a_compiled_wrapper() -> None:
    inner = llama()
    compiled = torch.compile(inner, backend="eager")
    assert_faithful(inner, go_on=lambda _: train(inner))
    snapshot = take(SnapshotPool(), compiled)
    assert snapshot.weights == fingerprint(compiled)
    assert type(snapshot.model) is LlamaForCausalLM
    assert torch.equal(evaluated(snapshot), as_in_eval_mode(inner))


def refuse_to_compile(*_: Any) -> Any:
    raise AssertionError("a copy compiles nothing")


@pytest.mark.parametrize("what", ["module", "layer", "forward"])
def test_compiled_parts_are_not_compiled_in_a_copy(what: str) -> None:
    model = llama()
    said = as_in_eval_mode(model)
    if what == "module":
        model.compile(backend=refuse_to_compile)
    elif what == "layer":
        layers = model.model.layers
        layers[1] = torch.compile(layers[1], backend=refuse_to_compile)
    else:
        model.forward = torch.compile(model.forward, backend=refuse_to_compile)
    snapshot = take(SnapshotPool(), model)
    assert snapshot.weights == fingerprint(model)
    assert torch.equal(evaluated(snapshot), said)


@pytest.fixture
def process_group() -> Iterator[None]:
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("process_group")
def test_a_model_in_distributed_data_parallel() -> None:
    wrapped = torch.nn.parallel.DistributedDataParallel(llama())
    assert_faithful(wrapped)
    assert type(take(SnapshotPool(), wrapped).model) is LlamaForCausalLM


@pytest.fixture
def accelerator() -> Iterator[Any]:
    import accelerate

    accelerate.state.AcceleratorState._reset_state(True)
    try:
        yield accelerate.Accelerator(cpu=True, mixed_precision="bf16")
    finally:
        accelerate.state.AcceleratorState._reset_state(True)


def patched_by_a_method(model: Any) -> None:
    pass


def patched_by_a_function(model: Any) -> None:
    """So accelerate cannot tell whose forward pass it is, and encloses the model's own."""
    model.forward = functools.partial(model.forward)


@pytest.mark.parametrize("prepare", [patched_by_a_method, patched_by_a_function])
@pytest.mark.parametrize("make", [llama, lora])
def test_a_model_with_mixed_precision(accelerator: Any, make: Any, prepare: Any) -> None:
    model = make()
    exact = as_in_eval_mode(model)
    prepare(model)
    prepared = accelerator.prepare_model(model)
    assert not torch.equal(as_in_eval_mode(prepared), exact)  # it is autocast's doing
    assert_faithful(prepared)


def test_a_copy_runs_none_of_the_models_own_code_objects(accelerator: Any) -> None:
    """Two threads must not enter one autocast object: it keeps what to put back in itself."""
    model = accelerator.prepare_model(llama())
    copied = take(SnapshotPool(), model).model

    def autocast(model: Any) -> Any:
        cast = model.forward.__func__.__wrapped__.model_forward
        return next(
            cell.cell_contents
            for cell in cast.__closure__
            if isinstance(cell.cell_contents, torch.autocast)
        )

    assert copied.forward.__self__ is copied
    assert autocast(copied) is not autocast(model)
    assert vars(autocast(copied)) == vars(autocast(model))


def test_casts_that_training_keeps_are_kept(accelerator: Any) -> None:
    """A weight that is used twice in a region is cast once, so gradients add up in one precision:
    what evaluates beside it must not empty the cache, which all threads share."""
    model = accelerator.prepare_model(llama())
    snapshot = take(SnapshotPool(), model)
    weight, row = torch.nn.Parameter(torch.ones(4, 4)), torch.ones(1, 4)

    def cast(result: Any) -> list[Any]:
        return [f for f, _ in result.grad_fn.next_functions if f is not None]

    with torch.autocast("cpu", torch.bfloat16):
        first = torch.nn.functional.linear(row, weight)
        evaluated(snapshot)
        second = torch.nn.functional.linear(row, weight)
        assert [f.name() for f in cast(first)[:1]]
        ways = [{node for f in cast(r) for node in (f, *_before(f))} for r in (first, second)]
    assert any("ToCopy" in node.name() for node in ways[0] & ways[1])


def _before(node: Any) -> list[Any]:
    found = [f for f, _ in node.next_functions if f is not None]
    return found + [each for f in found for each in _before(f)]


@pytest.mark.integration
def test_a_model_in_the_hands_of_a_trainer(tmp_path: Any) -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    pool, steps = SnapshotPool(), []

    class Snapshots(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, model: Any, **_: Any) -> None:
            was, said = fingerprint(model), as_in_eval_mode(model)
            snapshot = take(pool, model, state.global_step)
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.requires_grad:
                        parameter.add_(0.01)
            assert beside(lambda: snapshot.weights) == was
            assert torch.equal(evaluated(snapshot), said)
            snapshot.release()
            steps.append((state.global_step, was))

    trainer = Trainer(
        lora(),
        TrainingArguments(
            str(tmp_path),
            max_steps=3,
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            gradient_checkpointing=True,
            disable_tqdm=True,
        ),
        train_dataset=[{"input_ids": row, "labels": row} for row in IDS] * 6,
        callbacks=[Snapshots()],
    )
    trainer.train()
    assert [step for step, _ in steps] == [1, 2, 3]
    assert len({was for _, was in steps}) == 3


# --- What a copy is -----------------------------------------------------------------------------


def test_a_copy_is_in_eval_mode_without_gradients_and_shares_nothing_that_is_trained() -> None:
    model = llama()
    train(model)
    model(input_ids=IDS, labels=IDS).loss.backward()
    model.gradient_checkpointing_enable()
    copied = take(SnapshotPool(), model).model
    assert type(copied) is type(model)
    assert not any(module.training for module in copied.modules())
    assert not any(p.requires_grad or p.grad is not None for p in copied.parameters())
    assert not copied.is_gradient_checkpointing
    assert copied.lm_head.weight is copied.model.embed_tokens.weight
    assert copied.config is not model.config
    assert copied.config.to_dict() == model.config.to_dict()
    assert copied.generation_config is not model.generation_config
    assert copied.model.config is copied.config
    live = {t.data_ptr() for t in (*model.parameters(), *model.buffers())}
    assert not live & {t.data_ptr() for t in (*copied.parameters(), *copied.buffers())}


@pytest.mark.parametrize("copy", ["trainable", "all"])
def test_only_frozen_weights_are_shared(copy: Any) -> None:
    model = lora()
    live = dict(model.named_parameters())
    copied = dict(take(SnapshotPool(copy=copy), model).model.named_parameters())
    shared = {n for n, p in live.items() if p.data_ptr() == copied[n].data_ptr()}
    frozen = {n for n, p in live.items() if not p.requires_grad}
    assert shared == (frozen if copy == "trainable" else set())
    assert not any(parameter.requires_grad for parameter in copied.values())


def test_adapters_that_are_off_are_off_in_the_copy() -> None:
    model, pool = lora(), SnapshotPool()
    with_adapters = as_in_eval_mode(model)
    take(pool, model).release()
    with model.disable_adapter():
        without = as_in_eval_mode(model)
        snapshot = take(pool, model)
    assert not torch.equal(with_adapters, without)
    assert torch.equal(evaluated(snapshot), without)


def test_hooks_that_are_the_models_own_write_to_the_copy() -> None:
    class Counting(torch.nn.Linear):
        seen = 0

        def count(self, module: Any, given: Any, result: Any) -> Any:
            self.seen += 1
            return result + 1

    with torch.random.fork_rng():
        model = Counting(4, 4)
    model.register_forward_hook(model.count)
    said = as_in_eval_mode(model, lambda model: model(torch.ones(4)))
    snapshot = take(SnapshotPool(), model)
    answer, seen = evaluated(snapshot, lambda model: (model(torch.ones(4)), model.seen))
    assert torch.equal(answer, said)
    assert (model.seen, seen) == (1, 2)


def test_a_hook_that_only_makes_gradients_flow_is_left_out() -> None:
    model = lora()
    model.enable_input_require_grads()
    assert_faithful(model)


def test_what_an_evaluation_changes_is_put_back() -> None:
    pool, model = SnapshotPool(), llama()
    snapshot = take(pool, model)

    def meddle(copied: Any) -> None:
        copied.config.use_cache = not model.config.use_cache
        copied.generation_config.max_new_tokens = 3
        copied.model.rotary_emb.inv_freq = torch.zeros(4)

    evaluated(snapshot, meddle)
    assert snapshot.model.config.use_cache is model.config.use_cache
    snapshot.release()
    assert_faithful(model, pool=pool)


def test_a_buffer_that_an_evaluation_replaces_is_filled_again() -> None:
    model, pool, rows = normed(), SnapshotPool(), torch.linspace(-1, 1, 24).view(4, 6)
    snapshot = take(pool, model)
    evaluated(snapshot, lambda copied: setattr(copied.norm, "running_mean", torch.ones(6)))
    snapshot.release()
    snapshot = take(pool, model)
    assert snapshot.weights == fingerprint(model)
    said = as_in_eval_mode(model, lambda model: model(rows))
    assert torch.equal(evaluated(snapshot, lambda model: model(rows)), said)


def test_a_copy_is_used_again_for_the_same_model_until_it_is_cleared() -> None:
    model, other, pool = llama(), llama(1), SnapshotPool(size=2)
    was = fingerprint(model)
    first, second = take(pool, model, step=7), take(pool, model)
    copied = first.model
    assert (first.step, first.weights) == (7, was)
    first.release()
    train(model)
    again = take(pool, model)
    assert again.model is copied
    assert (first.step, first.weights) == (7, was)  # asked for once, it stays
    again.release()
    pool.clear()
    assert second.weights == was  # what is in use stays
    made = take(pool, other)
    assert made.model is not copied
    assert made.weights == fingerprint(other)


# --- Refused ------------------------------------------------------------------------------------


def hooked(model: Any) -> None:
    model.model.layers[0].register_forward_hook(lambda module, given, result: None)


def with_lock(model: Any) -> None:
    model.model.guard = threading.Lock()


def with_data(model: Any) -> None:
    model.batches = {"train": torch.utils.data.DataLoader([1, 2])}


def with_other_model(model: Any) -> None:
    model.reference = [torch.nn.Linear(2, 2)]


def with_forward_by_a_global_name(model: Any) -> None:
    """As in a notebook: what the patch uses is beside it, not enclosed by it."""
    names = {"original_forward": model.forward}
    exec("def forward(*args, **more): return original_forward(*args, **more)", names)
    model.forward = names["forward"]


def with_something_that_ends(model: Any) -> None:
    model.log = Ends()


class Ends:
    def __del__(self) -> None:
        pass


def with_a_tensor_in_slots(model: Any) -> None:
    model.state = Slotted(torch.ones(2))


def with_compiled_helper(model: Any) -> None:
    names = {"helper": torch.compile(torch.nn.functional.gelu, backend="eager")}
    exec("def forward(rows): return helper(rows)", names)
    model.forward = names["forward"]


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (hooked, r"model\.layers\.0: .*hooked\.<locals>\.<lambda> is a hook of"),
        (with_lock, r"model\.guard: a lock cannot be copied"),
        (with_data, r"batches: it leads to the data of the training"),
        (with_other_model, r"reference: it leads to a Linear that is no part of the model"),
        (
            with_forward_by_a_global_name,
            r"forward reads the global original_forward, which is the Llama",
        ),
        (with_a_tensor_in_slots, r"the model itself: an object in it holds a tensor"),
        (with_something_that_ends, r"log: a Ends does something when it ends"),
        (with_compiled_helper, r"forward reads the global helper, which is compiled"),
    ],
)
def test_what_cannot_be_copied_faithfully_is_refused_by_name(spoil: Any, named: str) -> None:
    model, pool = llama(), SnapshotPool()
    spoil(model)
    with pytest.raises(InvalidInput, match=named):
        pool.try_snapshot(model, step=1)
    assert pool.free == pool.size


def test_an_attribute_may_have_the_name_of_a_global_that_is_the_model() -> None:
    names: dict[str, Any] = {}
    exec("def forward(self, rows): return self.policy(rows) + shift", names)
    kind = type("Wrapped", (torch.nn.Module,), {"forward": names["forward"]})
    model = kind()
    model.policy = torch.nn.Linear(2, 2)
    names["policy"], names["shift"] = model, 1.0
    rows = torch.ones(1, 2)
    snapshot = take(SnapshotPool(), model)
    assert torch.equal(evaluated(snapshot, lambda copied: copied(rows)), model(rows))


def test_a_copy_that_has_other_weights_than_the_model_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forget_the_last(targets: Any, sources: Any, **_: Any) -> None:
        for target, source in zip(targets[:-1], sources[:-1], strict=True):
            target.copy_(source)
        targets[-1].fill_(7.0)

    monkeypatch.setattr(torch, "_foreach_copy_", forget_the_last)
    with pytest.raises(
        InvalidInput, match="the weights of the copy differ from those of the model"
    ):
        SnapshotPool().try_snapshot(torch.nn.Linear(2, 2), step=1)


def test_weights_that_are_nowhere_are_refused() -> None:
    with torch.device("meta"):
        model = torch.nn.Linear(2, 2)
    with pytest.raises(InvalidInput, match=r"weight: its weights cannot be copied .*meta"):
        SnapshotPool().try_snapshot(model, step=1)


@pytest.mark.usefixtures("process_group")
def test_weights_of_which_only_a_part_is_here_are_refused() -> None:
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    model = torch.nn.Linear(2, 2)
    mesh = init_device_mesh("cpu", (1,))
    model.weight = torch.nn.Parameter(distribute_tensor(model.weight.data, mesh, [Shard(0)]))
    with pytest.raises(InvalidInput, match="spread over several processes"):
        SnapshotPool().try_snapshot(model, step=1)


def test_what_is_no_module_and_wrong_settings_are_refused() -> None:
    for model in (None, "llama", [torch.nn.Linear(2, 2)]):
        with pytest.raises(InvalidInput, match="a torch module"):
            SnapshotPool().try_snapshot(model, step=1)
    for settings in ({"size": 0}, {"size": True}, {"copy": "none"}):
        with pytest.raises(InvalidInput):
            SnapshotPool(**settings)


# --- The pool -----------------------------------------------------------------------------------


def test_no_more_snapshots_than_copies() -> None:
    model, pool = llama(), SnapshotPool(size=2)
    first, second = take(pool, model, 1), take(pool, model, 2)
    assert first.model is not second.model
    assert (pool.free, pool.size) == (0, 2)
    assert pool.try_snapshot(model, step=3) is None
    beside(first.release)
    first.release()
    assert pool.free == 1
    assert take(pool, model, 3).step == 3


def test_a_released_snapshot_does_not_hand_out_other_weights() -> None:
    snapshot = take(SnapshotPool(), llama(), step=5)
    snapshot.release()
    with pytest.raises(InvalidInput, match="snapshot of step 5 was released"):
        _ = snapshot.model
    with pytest.raises(InvalidInput, match="released"):
        _ = snapshot.weights


def test_many_threads_give_copies_back() -> None:
    model, pool = normed(), SnapshotPool(size=4)
    for step in range(10):
        snapshots = [take(pool, model, step) for _ in range(4)]
        assert pool.try_snapshot(model, step=step) is None
        threads = [threading.Thread(target=s.release) for s in snapshots for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert pool.free == 4


# --- When the model changes its build -----------------------------------------------------------


def add_adapter(model: Any) -> None:
    from peft import LoraConfig

    config = LoraConfig(target_modules=["q_proj"], init_lora_weights=False)
    with torch.random.fork_rng():
        model.add_adapter("other", config)
    model.set_adapter("other")


def patch(model: Any) -> None:
    norm = norm_of(model)
    norm.forward = types.MethodType(lambda self, *given: 2 * type(self).forward(self, *given), norm)


def norm_of(model: Any) -> Any:
    return model.base_model.model.model.norm


def replace_weight(module: Any) -> None:
    module.weight = torch.nn.Parameter(module.weight.detach() * 2, requires_grad=False)


def put_elsewhere(model: Any) -> None:
    norm_of(model).weight.data = norm_of(model).weight.data + 1.0


CHANGES: dict[str, Callable[[Any], Any]] = {
    "a weight is unfrozen": lambda m: norm_of(m).weight.requires_grad_(True),
    "a weight is put elsewhere": put_elsewhere,
    "a parameter is replaced": lambda m: replace_weight(norm_of(m)),
    "weights are untied": lambda m: replace_weight(m.base_model.model.lm_head),
    "half precision": lambda m: m.to(torch.bfloat16),
    "merged": lambda m: m.merge_adapter(),
    "scaled": lambda m: m.base_model.model.model.layers[0].self_attn.q_proj.scaling.update(
        default=3.0
    ),
    "another adapter": add_adapter,
    "config": lambda m: setattr(m.base_model.model.config, "_attn_implementation", "eager"),
    "generation": lambda m: setattr(m.base_model.model.generation_config, "max_new_tokens", 17),
    "patched": patch,
    "another module": lambda m: setattr(m.base_model.model.model, "norm", torch.nn.Identity()),
    "a number": lambda m: setattr(norm_of(m), "variance_epsilon", 5.0),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_copy_follows_whatever_is_done_to_the_model(change: str) -> None:
    model, pool = lora(), SnapshotPool(size=2)
    for snapshot in (take(pool, model), take(pool, model)):
        snapshot.release()
    CHANGES[change](model)
    for step in range(2):
        was, said = fingerprint(model), as_in_eval_mode(model)
        snapshot = take(pool, model, step)
        assert evaluated(snapshot, _settings) == _settings(model)
        assert snapshot.weights == was
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.mul_(0.5)
        assert torch.equal(evaluated(snapshot), said)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.double(),
        lambda m: m.resize_token_embeddings(40, mean_resizing=False),
        lambda m: setattr(
            m.model.layers[0].mlp.up_proj, "bias", torch.nn.Parameter(torch.ones(24))
        ),
    ],
    ids=["double precision", "more words", "a bias"],
)
def test_trained_weights_may_become_others(change: Any) -> None:
    model, pool = llama(), SnapshotPool()
    take(pool, model).release()
    with torch.random.fork_rng():
        change(model)
    assert_faithful(model, pool=pool)


def test_weights_that_are_tied_later_get_another_copy() -> None:
    """A graph captured of the copy there is reads each tensor where it was."""
    with torch.random.fork_rng():
        model = torch.nn.Sequential(*(torch.nn.Linear(2, 2, bias=False) for _ in range(3)))
    pool = SnapshotPool()
    snapshot = take(pool, model)
    first = snapshot.model
    snapshot.release()
    model[1].weight = model[0].weight
    snapshot = take(pool, model)
    assert snapshot.model is not first
    assert snapshot.model[1].weight is snapshot.model[0].weight


def test_copies_that_no_longer_fit_give_up_their_memory() -> None:
    model, pool = llama(), SnapshotPool(size=2)
    snapshots = [take(pool, model), take(pool, model)]
    old = [weakref.ref(snapshot.model) for snapshot in snapshots]
    for snapshot in snapshots:
        snapshot.release()
    model.double()
    take(pool, model)
    gc.collect()
    assert [copied() for copied in old] == [None, None]


def test_on_another_device_frozen_weights_are_copied_once_until_they_are_written_to() -> None:
    model = lora()
    frozen = {id(p) for p in model.parameters() if not p.requires_grad}
    trained = {id(p) for p in model.parameters() if p.requires_grad}
    buffers = {id(buffer) for buffer in model.buffers()}
    made = ModelCopy(model, device="meta")  # which any machine has

    def copied() -> set[int]:
        transfers = made.update()
        assert {target.device.type for _, target in transfers} == {"meta"}
        return {id(source) for source, _ in transfers}

    assert copied() == frozen | trained | buffers
    assert copied() == trained | buffers
    with torch.no_grad():
        model.base_model.model.model.norm.weight.add_(1.0)
    with pytest.raises(_NoLongerFits):
        made.update()


def _settings(model: Any) -> Any:
    inner = model.base_model.model
    return inner.config.to_dict(), inner.generation_config.to_dict()


def test_a_hook_that_is_registered_later_is_noticed() -> None:
    model, pool = llama(), SnapshotPool()
    take(pool, model).release()
    hooked(model)
    with pytest.raises(InvalidInput, match="is a hook of"):
        pool.try_snapshot(model, step=2)


class Scaled(torch.nn.Module):
    """Says how it is scaled, by something that hangs on it."""

    def __init__(self, held: Any, scale: Callable[[Any], Any]) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.held = held
        self.scale = scale

    def forward(self) -> Any:
        return self.weight * self.scale(self.held)


@dataclass(slots=True)
class Slotted:
    scale: Any = 1.0


class Gauge:
    def __init__(self) -> None:
        self.level = 1.0

    def low(self) -> float:
        return self.level

    def high(self) -> float:
        return self.level + 1.0


def enclosing() -> tuple[Any, Any]:
    level = 1.0

    def current() -> float:
        return level

    def change() -> None:
        nonlocal level
        level = 2.0

    return current, change


def called(held: Any) -> Any:
    return held()


def _with_array() -> tuple[Any, Any]:
    model = Scaled(np.ones(1, dtype=np.float32), torch.from_numpy)
    return model, lambda: model.held.__iadd__(1)


def _with_slots() -> tuple[Any, Any]:
    model = Scaled(Slotted(), lambda held: held.scale)
    return model, lambda: setattr(model.held, "scale", 2.0)


def _with_a_method() -> tuple[Any, Any]:
    gauge = Gauge()
    model = Scaled(gauge.low, called)
    return model, lambda: setattr(model, "held", gauge.high)


def _with_a_closure() -> tuple[Any, Any]:
    current, change = enclosing()
    return Scaled(current, called), change


def _with_defaults() -> tuple[Any, Any]:
    def current(level: float = 1.0) -> float:
        return level

    return Scaled(current, called), lambda: setattr(current, "__defaults__", (2.0,))


def _with_a_partial() -> tuple[Any, Any]:
    gauge = Gauge()
    model = Scaled(functools.partial(lambda of: of.level, gauge), called)
    return model, lambda: setattr(gauge, "level", 2.0)


@pytest.mark.parametrize(
    "make",
    [
        _with_array,
        _with_slots,
        _with_a_method,
        _with_a_closure,
        _with_defaults,
        _with_a_partial,
    ],
)
def test_what_hangs_on_a_model_is_compared_by_its_content(make: Any) -> None:
    (model, change), pool = make(), SnapshotPool()
    for level in (1.0, 2.0):
        snapshot = take(pool, model)
        assert evaluated(snapshot, lambda copied: copied().tolist()) == [level] * 3
        snapshot.release()
        change()


def test_a_frozen_weight_that_is_laid_out_otherwise_is_noticed() -> None:
    model = torch.nn.Linear(2, 2, bias=False).requires_grad_(False)
    pool = SnapshotPool()
    take(pool, model).release()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    model.weight.data = model.weight.data.t()
    assert take(pool, model).model.weight.tolist() == [[1.0, 3.0], [2.0, 4.0]]


def test_a_list_that_grows_does_not_cost_another_copy() -> None:
    model, pool = normed(), SnapshotPool()
    model.losses, model.kinds, model.pair = [0.5], {"a": 1}, (1, 2)
    snapshot = take(pool, model)
    first = snapshot.model
    snapshot.release()
    model.losses.append(0.25)
    model.kinds = {"b": 2}
    model.pair = (3,)
    snapshot = take(pool, model)
    assert snapshot.model is first
    assert (first.losses, first.kinds, first.pair) == ([0.5, 0.25], {"b": 2}, (3,))
    assert first.losses is not model.losses
    snapshot.release()
    model.kinds["c"] = [1, 2]
    snapshot = take(pool, model)
    assert snapshot.model is first
    assert first.kinds == {"b": 2, "c": [1, 2]}
    assert first.kinds["c"] is not model.kinds["c"]


class Trainer:
    def __init__(self, model: Any) -> None:
        self.optimizer = torch.optim.SGD(model.parameters())


def test_optimizers_are_left_out() -> None:
    model, pool = normed(), SnapshotPool()
    model.optimizer = torch.optim.SGD(model.parameters())
    model.trainer = Trainer(model)
    snapshot = take(pool, model)
    assert snapshot.model.optimizer is None
    assert snapshot.model.trainer.optimizer is None
    snapshot.release()
    model.optimizer = torch.optim.Adam(model.parameters())
    assert take(pool, model).model.optimizer is None


@pytest.mark.parametrize("make", [np.random.default_rng, torch.Generator])
def test_a_generator_that_a_module_holds_draws_the_same_and_leaves_the_models_alone(
    make: Any,
) -> None:
    model: Any = torch.nn.Linear(2, 2)
    model.numbers = make()

    def draw(model: Any) -> Any:
        if make is torch.Generator:
            return torch.rand(3, generator=model.numbers).tolist()
        return model.numbers.random(3).tolist()

    drawn = evaluated(take(SnapshotPool(), model), draw)
    assert drawn == draw(model)
    assert drawn != draw(model)


def _by_a_closure(model: Any) -> Any:
    return lambda rows: model.layer(rows)


def _by_a_default(model: Any) -> Any:
    return lambda rows, owner=model: owner.layer(rows)


def _by_a_list(model: Any) -> Any:
    layers = [model.layer]
    return lambda rows: layers[0](rows)


def _by_a_wrapped_method(model: Any) -> Any:
    inner = model.forward

    @functools.wraps(inner)
    def forward(*args: Any, **more: Any) -> Any:
        return inner(*args, **more)

    return forward


def _by_a_cache(model: Any) -> Any:
    return functools.lru_cache(model.forward)


def _by_a_weak_reference(model: Any) -> Any:
    return weakref.ref(model)


def _by_a_method_of_a_container(model: Any) -> Any:
    return {"layer": model.layer}.get


def one_layer() -> Any:
    class Layer(torch.nn.Module):
        def forward(self, rows: Any) -> Any:
            return self.layer(rows)

    model = Layer()
    with torch.random.fork_rng():
        model.layer = torch.nn.Linear(2, 2)
    return model


@pytest.mark.parametrize(
    "make",
    [
        _by_a_closure,
        _by_a_default,
        _by_a_list,
        _by_a_wrapped_method,
        _by_a_cache,
        _by_a_weak_reference,
        _by_a_method_of_a_container,
    ],
)
def test_a_function_in_a_container_that_leads_to_the_model_is_refused(make: Any) -> None:
    """A copy would call it, too, and use the weights of the model in training."""
    model = one_layer()
    function = make(model)
    for head in (
        {"a": [function]},
        types.SimpleNamespace(a=function),
        functools.partial(print, function),
    ):
        model.head = head
        with pytest.raises(InvalidInput, match="this model cannot be copied, because of head: "):
            SnapshotPool().try_snapshot(model, step=1)


def test_what_cannot_be_made_anew_is_refused() -> None:
    for make in (_by_a_cache, _by_a_weak_reference, _by_a_method_of_a_container):
        model = one_layer()
        model.head = make(model)
        with pytest.raises(InvalidInput, match=r"because of head: a copy would share its"):
            SnapshotPool().try_snapshot(model, step=1)


def _by_its_own_name(model: Any) -> Any:
    def recursive(rows: Any, depth: int = 2) -> Any:
        return recursive(model.layer(rows), depth - 1) if depth else rows

    return recursive


def _by_a_keyword(model: Any) -> Any:
    def forward(rows: Any, *, owner: Any = model) -> Any:
        return owner.layer(rows)

    return forward


@pytest.mark.parametrize(
    "make",
    [
        _by_a_closure,
        _by_a_default,
        _by_a_keyword,
        _by_a_list,
        _by_its_own_name,
        _by_a_wrapped_method,
    ],
)
def test_a_function_that_encloses_the_model_uses_the_copy(make: Any) -> None:
    model = one_layer()
    model.forward = make(model)

    def go_on(model: Any) -> None:
        with torch.no_grad():
            model.layer.weight.add_(1.0)

    assert_faithful(model, ask=lambda model: model(torch.ones(1, 2)), go_on=go_on)


def test_a_weak_reference_to_nothing_is_no_obstacle() -> None:
    model = normed()
    model.former = weakref.ref(torch.ones(1))
    assert take(SnapshotPool(), model).model.former() is None


def test_a_model_that_accelerate_has_dispatched() -> None:
    from accelerate import dispatch_model

    assert_faithful(dispatch_model(llama(), {"": "cpu"}, force_hooks=True))


def test_what_a_function_encloses_stays_as_it_was() -> None:
    model, change = _with_a_closure()
    snapshot = take(SnapshotPool(), model)
    change()
    assert evaluated(snapshot, lambda copied: copied().tolist()) == [1.0] * 3


def test_methods_and_partials_of_the_model_use_the_copy() -> None:
    with torch.random.fork_rng():
        model: Any = torch.nn.Sequential(torch.nn.Linear(2, 2))
    model.heads = {"a": model[0].forward, "b": functools.partial(torch.nn.Linear.forward, model[0])}

    def ask(model: Any) -> Any:
        return torch.cat([head(torch.ones(1, 2)) for head in model.heads.values()])

    def go_on(model: Any) -> None:
        with torch.no_grad():
            model[0].weight.add_(1.0)

    assert_faithful(model, ask=ask, go_on=go_on)


def test_writing_to_shared_weights_while_they_are_evaluated_is_noticed() -> None:
    for asks_before in (True, False):
        model = lora()
        snapshot = take(SnapshotPool(), model)
        assert not asks_before or snapshot.why_changed() is None
        model.merge_adapter()  # through `.data`, which no version counts
        assert "frozen weights" in str(snapshot.why_changed())
    model = lora()
    snapshot = take(SnapshotPool(), model)
    with torch.no_grad():
        norm_of(model).weight.add_(1.0)
    assert "frozen weights" in str(snapshot.why_changed())
    model = lora()
    snapshot = take(SnapshotPool(copy="all"), model)
    was = fingerprint(model)
    model.merge_adapter()
    assert (snapshot.why_changed(), snapshot.weights) == (None, was)


def test_frozen_weights_that_change_places_are_noticed() -> None:
    def elements(data: Any) -> None:
        data[0, [0, 1]] = data[0, [1, 0]]

    def rows(data: Any) -> None:
        data[[0, 1]] = data[[1, 0]]

    for swap in (elements, rows, lambda data: data.copy_(data.flip(0, 1))):
        model = lora()
        snapshot = take(SnapshotPool(), model)
        weight = model.base_model.model.model.embed_tokens.weight
        assert not weight.requires_grad
        swap(weight.data)
        assert "frozen weights" in str(snapshot.why_changed())


def test_weights_that_are_copied_once_are_copied_again_once_they_were_seen_to_differ() -> None:
    model, pool = lora(), SnapshotPool()
    made = ModelCopy(model)
    made._device = torch.device("cpu:0")  # as if it lay elsewhere: no memory is shared
    assert made.try_fill()
    assert made.is_as_taken()
    model.merge_adapter()
    pool._put_back(made)
    pool._taken = 0
    snapshot = take(pool, model)
    assert snapshot.model is made.model
    assert "frozen weights" in str(snapshot.why_changed())
    snapshot.release()
    snapshot = take(pool, model)
    assert snapshot.why_changed() is None
    assert snapshot.weights == fingerprint(model)


# --- What torch keeps for each thread -----------------------------------------------------------


def test_a_copy_is_used_with_the_default_device_and_the_autocast_of_the_trainers_thread() -> None:
    def seen() -> Any:
        casts = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        return torch.empty(1).device.type, casts, torch.is_autocast_cache_enabled()

    model = normed()
    with torch.device("meta"), torch.autocast("cpu", dtype=torch.float16, cache_enabled=False):
        there = seen()
        snapshot = take(SnapshotPool(), model)
    plain = seen()

    def inside() -> Any:
        with snapshot.in_use():
            within = seen()
        return within, seen()

    assert beside(inside) == (there, plain)
    assert there != plain


def test_what_was_made_in_inference_mode_is_copied() -> None:
    model, pool = normed(), SnapshotPool()
    with torch.inference_mode():
        model.memory["made"] = torch.ones(6)
        model.register_buffer("offset", torch.ones(6))
        model.fixed = torch.nn.Parameter(torch.ones(2), requires_grad=False)
        take(pool, model).release()
    snapshot = take(pool, model)
    assert snapshot.why_changed() is None
    rows = torch.ones(2, 6)
    said = evaluated(snapshot, lambda copied: copied(rows))
    assert torch.equal(said, as_in_eval_mode(model, lambda live: live(rows)))
    assert not any(p.is_inference() for p in snapshot.model.layer.parameters())


# --- Neutral ------------------------------------------------------------------------------------


def test_training_with_a_snapshot_at_every_step_ends_in_the_same_weights() -> None:
    def run(evaluating: bool) -> Any:
        torch.manual_seed(0)
        model = lora()
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.05)
        pool, losses, held = SnapshotPool(size=2), [], []
        for step in range(6):
            loss = model(input_ids=IDS, labels=IDS).loss
            loss.backward()
            if evaluating:  # with gradients around
                held.append(take(pool, model, step))
                if len(held) == 2:
                    snapshot = held.pop(0)
                    evaluated(snapshot)
                    _ = snapshot.weights
                    snapshot.release()
            optimizer.step()
            optimizer.zero_grad()
            losses.append({"loss": loss.item(), "dropped": torch.rand(1).item()})
        return model, losses

    assert_neutral(run)


def test_evaluating_while_training_steps_changes_neither() -> None:
    """Both at once, in two threads, and not one after the other."""
    model, pool = llama(), SnapshotPool()
    was, said = fingerprint(model), as_in_eval_mode(model)
    snapshot = take(pool, model)
    begun, results = threading.Event(), []

    def work() -> None:
        with snapshot.in_use():
            begun.set()
            results.extend(logits(snapshot.model) for _ in range(30))

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    train(model, steps=20)
    thread.join()
    assert len(results) == 30
    assert all(torch.equal(result, said) for result in results)
    assert snapshot.weights == was


def test_making_and_taking_draw_nothing_and_leave_the_model_as_it_was() -> None:
    model, pool = llama(), SnapshotPool(size=2)
    model(input_ids=IDS, labels=IDS).loss.backward()
    kept = {id(p): (p.grad, p.grad.clone(), p._version) for p in model.parameters()}
    held = {id(m): {k: id(v) for k, v in vars(m).items()} for m in model.modules()}
    was, random = fingerprint(model), torch.get_rng_state()
    for step in range(2):
        take(pool, model, step)
    assert torch.equal(torch.get_rng_state(), random)
    assert fingerprint(model) == was
    assert {id(m): {k: id(v) for k, v in vars(m).items()} for m in model.modules()} == held
    for parameter in model.parameters():
        grad, copied, version = kept[id(parameter)]
        assert parameter.grad is grad
        assert torch.equal(grad, copied)
        assert parameter._version == version
        assert parameter.requires_grad
