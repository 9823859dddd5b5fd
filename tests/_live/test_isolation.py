"""`isolated` leaves no trace, whatever runs inside and however it ends."""

from __future__ import annotations

import copy
import random
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from heldout import Sample
from heldout._live import isolation
from heldout._live.isolation import eval_mode, isolated, modules_of, untouched_random_state
from heldout._live.torch_settings import torch_settings
from heldout.testing import NotNeutral, assert_neutral
from heldout.training import PeriodicEval, from_functions
from tests.tiny_model import CONTEXT, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")


def network() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 2))


# --- One disturbance each -----------------------------------------------------------------------


def language_model() -> Any:
    """In training, as trainers set it up: checkpointing in places, a part frozen, no cache."""
    model, _ = tiny_model()
    model.train()
    model.gradient_checkpointing_enable({"use_reentrant": False}, every_n_layers=2)
    model.config.use_cache = False
    model.config.text_config = copy.deepcopy(model.config)  # as in models that see
    model.config.text_config.use_cache = False
    model.generation_config.stop_strings = ["one"]
    model.model.layers[0].mlp.eval()
    model.model.embed_tokens.weight.requires_grad_(False)
    model.prefixes, model.lengths = {"one": 1}, [1, 2]
    return model


def unlike_before(thing: Any, name: str, value: Any) -> None:
    assert getattr(thing, name) != value
    setattr(thing, name, value)


def training_flags(model: Any) -> Any:
    return [module.training for module in model.modules()]


def checkpointing(model: Any) -> Any:
    return [
        (vars(module).get("gradient_checkpointing"), vars(module).get(_FUNCTION))
        for module in model.modules()
    ]


_FUNCTION = "_gradient_checkpointing_func"


def numpy_state(model: Any) -> Any:
    name, keys, *rest = np.random.get_state()
    return name, keys.tolist(), rest


def compile_forward(model: Any) -> None:
    for module in (model, model.model.layers[1]):
        module.forward = lambda *given, **named: None


def swap_generation_config(model: Any) -> None:
    model.generation_config.temperature = 0.1
    model.generation_config.stop_strings.append("two")
    model.generation_config = copy.deepcopy(model.generation_config)


def generation_config(model: Any) -> Any:
    return id(model.generation_config), model.generation_config.to_dict()


def read_much(model: Any) -> None:
    """Rotary embeddings that stretch with the longest text that was read."""
    rotary = model.model.rotary_emb
    rotary.register_buffer("inv_freq", rotary.inv_freq / 2, persistent=False)
    rotary.max_seq_len_cached = 10 * CONTEXT
    rotary.full_attention_max_seq_len_cached = 10 * CONTEXT


def rotary(model: Any) -> Any:
    module = model.model.rotary_emb
    lengths = {name: vars(module)[name] for name in vars(module) if "max_seq_len" in name}
    return id(module.inv_freq), module.inv_freq.tolist(), lengths


def precision(model: Any) -> Any:
    try:
        older = torch.get_float32_matmul_precision()
    except RuntimeError:
        older = "torch does not tell, since it was set in both ways"
    return older, torch.backends.cuda.matmul.fp32_precision


def autocast(model: Any) -> Any:
    return (
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.is_autocast_cache_enabled(),
    )


def replace_parts(model: Any) -> None:
    model.model.layers[0].mlp.act_fn = torch.nn.Identity()
    model.model.norm.weight = torch.nn.Parameter(torch.ones(3))


def fill_caches(model: Any) -> None:
    model.prefixes["two"] = 2
    model.lengths.pop(0)
    model.lengths.append(1)


def stay_hooked(model: Any) -> None:
    model.register_forward_hook(lambda *given: None)
    torch.nn.modules.module.register_module_forward_hook(lambda *given: None)


def hooks(model: Any) -> Any:
    return list(model._forward_hooks), len(torch.nn.modules.module._global_forward_hooks)


def switch_autocast(model: Any) -> None:
    torch.set_autocast_enabled("cpu", True)
    torch.set_autocast_dtype("cpu", torch.float16)
    torch.set_autocast_cache_enabled(False)


Look = Callable[[Any], Any]
Disturb = Callable[[Any], Any]
DISTURBANCES: dict[str, tuple[Look, Disturb]] = {
    "python's random state": (lambda m: random.getstate(), lambda m: random.random()),
    "numpy's random state": (numpy_state, lambda m: np.random.random()),
    "torch's random state": (lambda m: torch.get_rng_state().tolist(), lambda m: torch.rand(1)),
    "seeds kept for a GPU": (
        lambda m: list(torch.cuda._lazy_seed_tracker.get_calls()),
        lambda m: torch.manual_seed(5),
    ),
    "train mode": (training_flags, lambda m: m.train()),
    "eval mode": (training_flags, lambda m: m.eval()),
    "gradients": (lambda m: torch.is_grad_enabled(), lambda m: torch.set_grad_enabled(False)),
    "requires_grad": (
        lambda m: [p.requires_grad for p in m.parameters()],
        lambda m: m.requires_grad_(not m.model.embed_tokens.weight.requires_grad),
    ),
    "checkpointing off": (checkpointing, lambda m: m.gradient_checkpointing_disable()),
    "checkpointing on": (checkpointing, lambda m: m.gradient_checkpointing_enable()),
    "forward": (lambda m: [vars(k).get("forward") for k in m.modules()], compile_forward),
    "use_cache": (
        lambda m: m.config.use_cache,
        lambda m: unlike_before(m.config, "use_cache", True),
    ),
    "a nested config": (
        lambda m: m.config.text_config.use_cache,
        lambda m: unlike_before(m.config.text_config, "use_cache", True),
    ),
    "another config": (
        lambda m: id(m.config),
        lambda m: setattr(m, "config", copy.deepcopy(m.config)),
    ),
    "something new in a config": (
        lambda m: sorted(vars(m.config)),
        lambda m: setattr(m.config, "never_seen_before", 1),
    ),
    "attention": (
        lambda m: (m.config._attn_implementation, m.config.text_config._attn_implementation),
        lambda m: unlike_before(m.config, "_attn_implementation", "eager"),
    ),
    "generation config": (generation_config, swap_generation_config),
    "rotary embeddings": (rotary, read_much),
    "a plain attribute": (
        lambda m: m.model.layers[0].self_attn.attention_dropout,
        lambda m: unlike_before(m.model.layers[0].self_attn, "attention_dropout", 0.25),
    ),
    "an attribute that is new": (
        lambda m: sorted(vars(m)),
        lambda m: setattr(m, "never_seen_before", 1),
    ),
    "caches": (lambda m: (dict(m.prefixes), list(m.lengths)), fill_caches),
    "hooks": (hooks, stay_hooked),
    "modules and parameters": (
        lambda m: (id(m.model.layers[0].mlp.act_fn), id(m.model.norm.weight)),
        replace_parts,
    ),
    "precision of matmul": (precision, lambda m: torch.set_float32_matmul_precision("high")),
    "precision of matmul, the newer way": (
        precision,
        lambda m: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
    ),
    "autocast": (autocast, switch_autocast),
}

ENDS: list[type[BaseException] | None] = [None, KeyError, KeyboardInterrupt]


@pytest.mark.parametrize("what", DISTURBANCES)
def test_what_is_disturbed_inside_is_as_it_was_however_it_ends(what: str) -> None:
    look, disturb = DISTURBANCES[what]
    model = language_model()
    before = look(model)
    for problem in ENDS:

        @isolated(model)
        def evaluate(problem: type[BaseException] | None = problem) -> None:
            disturb(model)
            if problem is not None:
                raise problem

        with nullcontext() if problem is None else pytest.raises(problem):
            evaluate()
        assert look(model) == before
    if what in ("gradients", "eval mode"):
        return
    with isolated(), torch.enable_grad():  # global settings only: so it would stay
        disturb(model)
        assert look(model) != before


OTHER_VALUES: dict[str, Any] = {
    "torch.get_float32_matmul_precision": "high",
    "torch.backends.cudnn.depthwise_kernel": "cudnn",
    "torch.backends.opt_einsum.strategy": "greedy",
    "torch.backends.quantized.engine": "qnnpack",
    "torch.get_num_threads": 2,
    "torch.get_default_dtype": torch.float64,
    "torch._C._get_sdp_priority_order": [0, 2, 1, 3, 4],
    "torch.use_deterministic_algorithms": {"mode": True, "warn_only": True},
    "torch.set_anomaly_enabled": (True, False),
    "torch.set_default_device": torch.device("meta"),
    **{
        f"torch.backends.cuda.matmul.allow_{kind}_reduced_precision_reduction": (False, False)
        for kind in ("fp16", "bf16")
    },
}
"""Of settings that are neither on nor off, and no precision: a value that is not the default."""

NOT_HERE = {
    "torch.backends.cudnn.benchmark_limit",  # without cuDNN
    "torch.backends.mkldnn.allow_tf32",  # without an Intel GPU
    "torch.backends.opt_einsum.enabled",  # without opt_einsum
    "torch.backends.opt_einsum.strategy",
    "torch._C._get_blas_preferred_backend",  # without CUDA
    "torch._C._get_linalg_preferred_backend",
}


def test_a_setting_of_torch_that_is_changed_inside_is_as_it_was() -> None:
    for name in sorted(torch_settings(torch).keys() - NOT_HERE):
        read, write = torch_settings(torch)[name]
        before = read()
        other = not before
        if name in OTHER_VALUES:
            other = OTHER_VALUES[name]
        elif isinstance(before, str):
            other = "tf32" if before != "tf32" else "ieee"
        with isolated():
            write(other)
            assert read() != before, name
        assert read() == before, name


TOKENIZER_CHANGES: dict[str, Any] = {
    "padding_side": "left",
    "truncation_side": "left",
    "pad_token": "two",
    "chat_template": "{{ messages }}",
    "model_max_length": 7,
}


def test_a_tokenizer_that_an_eval_shares_with_training_is_as_it_was(tmp_path: Path) -> None:
    model, tokenizer = tiny_model()

    def look() -> dict[str, Any]:
        return {name: getattr(tokenizer, name) for name in TOKENIZER_CHANGES}

    before, changed = look(), []

    def generate(model: Any, prompts: list[str], max_new: int) -> list[str]:
        for name, value in TOKENIZER_CHANGES.items():
            setattr(tokenizer, name, value)
        changed.append([now != was for now, was in zip(look().values(), before.values())])  # noqa: B905
        return ["one"] * len(prompts)

    runner = from_functions(lambda messages: messages[-1].text, generate, lambda t, s: 1.0)
    evals = PeriodicEval(
        [Sample("s", {"question": "one"})], runner, every_steps=1, run_dir=tmp_path / "run"
    )
    assert evals.maybe_run(1, model).reward == 1.0
    assert changed == [[True] * len(before)]
    assert look() == before


def test_inside_everything_is_in_eval_mode_and_without_gradients() -> None:
    actor, critic = network(), network()
    with isolated({"actor": actor, "critic": [critic]}):
        assert not any(training_flags(actor) + training_flags(critic))
        assert not actor(torch.ones(1, 4)).requires_grad
    assert all(training_flags(actor) + training_flags(critic))
    assert actor(torch.ones(1, 4)).requires_grad
    with isolated():
        assert not torch.is_grad_enabled()


def test_with_a_seed_the_inside_is_the_same_each_time() -> None:
    def draw() -> Any:
        return random.random(), np.random.random(), torch.rand(1).item()

    drawn, model = [], network()
    for outside in range(2):
        random.seed(outside), np.random.seed(outside), torch.manual_seed(outside)
        expected = torch.Generator().manual_seed(outside)
        with isolated(model, seed=3):
            drawn.append(draw())
        assert torch.equal(torch.rand(1), torch.rand(1, generator=expected))
    assert drawn[0] == drawn[1]
    with untouched_random_state():  # without one it goes on from where it was
        first = draw()
    assert draw() == first


def test_what_has_no_modules_is_left_alone() -> None:
    class Client:
        modules = "not these"

    stream = iter([network()])
    with_others: list[Any] = [print, 3, "text", Client(), Client, stream, object(), None]
    for thing in [*with_others, with_others, {"some": with_others}]:
        assert modules_of(thing) == []
        with isolated(thing, seed=1):
            torch.rand(1)
    assert next(stream) is not None
    net = network()
    assert len(modules_of([net, 3, {"again": net}])) == 4
    with eval_mode(modules_of(None)):
        pass


def test_modules_that_keep_their_flag_elsewhere_are_switched_too() -> None:
    compiled: Any = torch.compile(network(), backend="eager")
    compiled.train()
    with isolated(compiled):
        assert not compiled.training
        assert not compiled._orig_mod[1].training
    assert compiled.training
    assert compiled._orig_mod[1].training


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_modules_are_switched_too() -> None:
    scripted = torch.jit.script(network())
    with isolated(scripted):
        assert not scripted.training
        assert torch.equal(scripted(torch.ones(1, 4)), scripted(torch.ones(1, 4)))
    assert scripted.training


def test_adapters_are_as_they_were() -> None:
    import peft

    model, _ = tiny_model()
    lora = peft.LoraConfig(r=2, target_modules=["q_proj"])
    adapted = peft.get_peft_model(model, lora)
    adapted.add_adapter("other", lora)
    adapted.train()

    def look() -> Any:
        layers = [m for m in adapted.modules() if hasattr(m, "_disable_adapters")]
        switches = [(m._disable_adapters, list(m.active_adapters)) for m in layers]
        return adapted.active_adapter, switches, [p.requires_grad for p in adapted.parameters()]

    before = look()
    with isolated(adapted):
        adapted.set_adapter("other")
        adapted.base_model.disable_adapter_layers()
        assert look() != before
    assert look() == before


# --- When putting back fails --------------------------------------------------------------------


@pytest.mark.parametrize("problem", ENDS)
def test_the_rest_is_put_back_even_where_something_cannot_be(
    monkeypatch: pytest.MonkeyPatch, problem: type[BaseException] | None
) -> None:
    model = network()
    state, original = torch.get_rng_state(), torch.set_default_dtype

    def refuses(dtype: Any) -> None:
        raise OSError("no")

    @isolated(model)
    def evaluate() -> None:
        torch.rand(1), model.train(), torch.set_autocast_cache_enabled(False)
        original(torch.float64)
        if problem is not None:
            raise problem("inside")

    monkeypatch.setattr(torch, "set_default_dtype", refuses)
    try:
        with pytest.raises(OSError, match="no") as raised:
            evaluate()
        assert torch.is_autocast_cache_enabled()
        assert torch.equal(torch.get_rng_state(), state)
        assert all(training_flags(model))
        assert torch.is_grad_enabled()
    finally:
        original(torch.float32)
    if problem is not None:
        assert isinstance(raised.value.__context__, problem)


# --- Autocast -----------------------------------------------------------------------------------


def train_under_autocast(inside: Callable[[Any, Any], None]) -> Any:
    """The gradient of a weight that is used before and after something else, in one region."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(64, 64)
    before, after, other = torch.randn(3, 8, 64)
    with torch.autocast("cpu", torch.bfloat16):
        loss = layer(before).float().pow(2).sum()
        inside(layer, other)
        loss = loss + layer(after).float().pow(2).sum()
    loss.backward()
    return layer.weight.grad.clone()


def only_after(inside: Callable[[Any, Any], None]) -> Any:
    torch.manual_seed(0)
    layer = torch.nn.Linear(64, 64)
    after, other = torch.randn(2, 8, 64)
    with torch.autocast("cpu", torch.bfloat16):
        inside(layer, other)
        layer(after).float().pow(2).sum().backward()
    return layer.weight.grad


def average_weights(layer: Any, inputs: Any) -> None:
    """Evaluate other weights (an average of the last steps, say), and put the own ones back."""
    own = layer.weight.detach().clone()
    layer.weight.data.copy_(own * 0.5)
    with torch.no_grad():
        layer(inputs)
    layer.weight.data.copy_(own)


def nothing(layer: Any, inputs: Any) -> None:
    pass


def test_casts_made_inside_do_not_stay_in_a_cache_outside() -> None:
    def isolated_eval(layer: Any, inputs: Any) -> None:
        with isolated(layer):
            average_weights(layer, inputs)
            assert layer(inputs).dtype == torch.bfloat16  # as the caller has it

    expected = only_after(nothing)
    assert not torch.equal(only_after(average_weights), expected)
    assert torch.equal(only_after(isolated_eval), expected)


def isolated_eval(layer: Any, inputs: Any) -> None:
    with isolated(layer):
        layer(inputs)


def test_a_weight_first_used_inside_gets_its_gradient() -> None:
    """In torch 2.9, a cast made without gradients is found again where they are needed."""
    assert torch.equal(only_after(isolated_eval), only_after(nothing))


def test_casts_made_outside_are_still_there() -> None:
    """A cache that was emptied would do too, if it did not change the last bits of gradients."""
    expected = train_under_autocast(nothing)
    assert torch.equal(train_under_autocast(isolated_eval), expected)
    emptied = train_under_autocast(lambda layer, inputs: torch.clear_autocast_cache())
    assert not torch.equal(emptied, expected)


def test_a_region_that_is_off_may_lie_in_one_that_is_on() -> None:
    def in_a_region_that_is_off(layer: Any, inputs: Any) -> None:
        with torch.autocast("cpu", enabled=False), isolated(), torch.autocast("cpu"):
            average_weights(layer, inputs)

    assert torch.equal(only_after(in_a_region_that_is_off), only_after(nothing))


def test_a_region_made_before_has_the_cache_on_and_does_not_use_it() -> None:
    def in_a_region_made_before(layer: Any, inputs: Any) -> None:
        with_cache = torch.autocast("cpu", torch.bfloat16)
        with isolated(layer), with_cache:
            assert torch.is_autocast_cache_enabled()
            average_weights(layer, inputs)

    assert torch.equal(only_after(in_a_region_made_before), only_after(nothing))


def test_outside_of_autocast_the_inside_has_its_cache() -> None:
    with isolated(network()):
        assert torch.is_autocast_cache_enabled()


# --- Torch that nobody has imported, GPUs that nobody has started -------------------------------


def test_torch_is_not_imported() -> None:
    script = """
import sys
from heldout._live.isolation import isolated
from heldout._live.weights import fingerprint
import heldout.testing
with isolated(object(), seed=3):
    pass
assert fingerprint(object()) is None
assert "torch" not in sys.modules
with isolated(seed=3):
    import torch
"""
    subprocess.run([sys.executable, "-c", script], check=True)


class Devices:
    """As `torch.cuda`, where a device is started when it is first used."""

    def __init__(self) -> None:
        self.default_generators: tuple[Any, ...] = ()
        self._lazy_seed_tracker = SimpleNamespace(
            manual_seed_all_cb=None, manual_seed_cb=None, call_order=[]
        )

    def is_initialized(self) -> bool:
        return bool(self.default_generators)

    def manual_seed_all(self, seed: int) -> None:
        def seed_now() -> None:
            for generator in self.default_generators:
                generator.manual_seed(seed)

        if self.is_initialized():
            seed_now()
        else:
            self._lazy_seed_tracker.call_order = [None, (seed_now, [])]

    def rand(self) -> float:
        if not self.is_initialized():
            self.default_generators = (torch.Generator(),)
            for call in self._lazy_seed_tracker.call_order:
                if call is not None:
                    call[0]()
        return torch.rand(1, generator=self.default_generators[0]).item()


@pytest.mark.parametrize("started", ["before", "inside", "after"])
def test_a_gpus_random_state_is_that_of_a_gpu_that_was_not_used(
    monkeypatch: pytest.MonkeyPatch, started: str
) -> None:
    def draws(evaluate: bool) -> list[float]:
        devices = Devices()
        monkeypatch.setattr(isolation, "_lazy_devices", lambda torch: [devices])
        devices.manual_seed_all(7)
        drawn = [devices.rand()] if started == "before" else []
        if evaluate:
            with untouched_random_state(seed=1):
                if started == "inside":
                    devices.rand()
                devices.manual_seed_all(2)
        return [*drawn, devices.rand(), devices.rand()]

    assert draws(True) == draws(False)


# --- A training loop ----------------------------------------------------------------------------


def loop(evaluate: Callable[[Any], Any]) -> Callable[[bool], Any]:
    def train(evaluating: bool) -> Any:
        torch.manual_seed(0)
        model = network()
        optimizer = torch.optim.Adam(model.parameters())
        logged = []
        for _ in range(5):
            inputs = torch.randn(16, 4)
            loss = model(inputs).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            logged.append({"loss": loss.item()})
            if evaluating:
                evaluate(model)
        return model, logged

    return train


def samples(model: Any) -> Any:
    return torch.distributions.Categorical(logits=model(torch.randn(8, 4))).sample()


def leaves_eval_mode(model: Any) -> None:
    model.eval()


@pytest.mark.parametrize("naive", [samples, leaves_eval_mode])
def test_an_eval_disturbs_a_training_loop_unless_it_is_isolated(naive: Any) -> None:
    def isolated_eval(model: Any) -> None:
        with isolated(model):
            naive(model)

    with pytest.raises(NotNeutral, match="4 of 4 tensors differ, the first is 0.weight"):
        assert_neutral(loop(naive))
    result = assert_neutral(loop(isolated_eval))
    assert (result.tensors, result.metrics) == (4, 5)
