"""A fingerprint changes with every bit of the weights, and with nothing else."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from peft import LoraConfig, PromptTuningConfig, get_peft_model

from heldout._live import weights
from heldout._live.weights import fingerprint
from heldout.errors import InvalidInput
from heldout.models.local import LocalEndpoint
from heldout.training.background.worker.weight_buffer import WeightBuffer
from tests.tiny_model import tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

KINDS = [
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.int8,
    torch.int64,
    torch.bool,
    torch.float8_e4m3fn,
    torch.complex64,
]


def network() -> torch.nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5))


def bits_of(tensor: Any) -> Any:
    """Its memory, to be changed in place."""
    return tensor.view(-1).view(torch.uint8) if tensor.numel() else tensor


def random_tensor(kind: Any, shape: tuple[int, ...], seed: int = 0) -> Any:
    size = int(np.prod(shape)) * torch.empty((), dtype=kind).element_size()
    found = np.random.default_rng(seed).integers(0, 2 if kind == torch.bool else 256, size)
    return torch.from_numpy(found.astype(np.uint8)).view(kind).view(shape)


# --- What changes it ----------------------------------------------------------------------------


@given(st.data(), st.sampled_from(KINDS), st.integers(1, 70_000))
def test_a_single_bit_changes_it(data: Any, kind: Any, length: int) -> None:
    tensor = random_tensor(kind, (length,))
    before = fingerprint([tensor])
    bits = bits_of(tensor)
    place = data.draw(st.integers(0, len(bits) - 1))
    bits[place] ^= 1 if kind == torch.bool else 1 << data.draw(st.integers(0, 7))
    assert fingerprint([tensor]) != before


@given(st.data(), st.sampled_from(KINDS), st.integers(2, 70_000))
def test_two_elements_that_change_places_change_it(data: Any, kind: Any, length: int) -> None:
    tensor = random_tensor(kind, (length,))
    one, other = data.draw(
        st.tuples(st.integers(0, length - 1), st.integers(0, length - 1)).filter(
            lambda places: places[0] != places[1]
        )
    )
    rows = bits_of(tensor).view(length, -1)
    if torch.equal(rows[one], rows[other]):
        rows[one, -1] ^= 1 if kind == torch.bool else 128  # the sign: the hardest to see
    before = fingerprint([tensor])
    rows[[one, other]] = rows[[other, one]]
    assert fingerprint([tensor]) != before


def test_no_two_places_of_a_row_have_constants_that_a_swap_could_hide_behind() -> None:
    constants = weights._constants().view(np.uint64)
    assert np.all(constants % np.uint64(2) == 1)
    assert len(np.unique(constants & np.uint64(2**32 - 1))) == weights.ROW


def test_shape_type_sign_name_and_place_change_it() -> None:
    for other in (
        torch.zeros(6, 2),
        torch.zeros(3, 4, dtype=torch.int32),
        torch.zeros(12),
        torch.zeros(3, 4, 1),
        -torch.zeros(3, 4),
        torch.zeros(3, 5),
        torch.zeros(0, 4),
    ):
        assert fingerprint({"w": torch.zeros(3, 4)}) != fingerprint({"w": other})
    one, other = torch.zeros(4), torch.ones(4)
    assert fingerprint({"v": one}) != fingerprint({"w": one})
    assert fingerprint({"a": one, "b": other}) != fingerprint({"a": other, "b": one})
    assert fingerprint({"a": one, "b": other}) == fingerprint({"b": other, "a": one})


def adapted(kind: Any) -> Any:
    model = get_peft_model(tiny_model()[0], kind)
    model.add_adapter("other", kind)
    return model


@pytest.mark.parametrize(
    "kind",
    [
        LoraConfig(target_modules=["q_proj"]),
        LoraConfig(target_modules=["q_proj"], modules_to_save=["lm_head"]),
        PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2),
    ],
    ids=["lora", "modules to save", "prompt tuning"],
)
def test_the_adapter_in_use_changes_it(kind: Any) -> None:
    model = adapted(kind)
    before, listed = fingerprint(model), fingerprint([model])
    model.set_adapter("other")
    assert fingerprint(model) != before
    model.set_adapter("default")
    assert fingerprint(model) == before
    with model.disable_adapter():
        assert fingerprint(model) != before
        assert fingerprint([model]) != listed
    assert fingerprint(model) == before


def test_the_scaling_of_an_adapter_changes_it() -> None:
    model = adapted(LoraConfig(target_modules=["q_proj"]))
    before = fingerprint(model)
    layers = [module for module in model.modules() if hasattr(module, "set_scale")]
    layers[0].set_scale("default", 2.0)
    assert fingerprint(model) != before
    layers[0].set_scale("default", 1.0)
    assert fingerprint(model) == before


# --- What does not ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_how_it_lies_in_memory_does_not_change_it(
    monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    monkeypatch.setattr(weights, "PIECE", 2**17)  # several pieces, of several rows
    for shape in ((3, 211, 307), (2, 4, 6)):
        tensor = random_tensor(kind, shape)
        expected = fingerprint([tensor])
        transposed = tensor.transpose(0, 2).contiguous().transpose(0, 2)
        every_second = torch.stack([tensor, tensor], -1)[..., 0]
        shifted = torch.cat([tensor.view(-1)[:1], tensor.view(-1)])[1:].view(tensor.shape)
        for other in (transposed, every_second, shifted, tensor.clone()):
            assert torch.equal(bits_of(other.contiguous()), bits_of(tensor))
            assert fingerprint([other]) == expected is not None


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.int8])
def test_a_row_larger_than_a_piece_is_cut_again(monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    monkeypatch.setattr(weights, "PIECE", 1024)
    tensor = random_tensor(kind, (2, 3, 5001))
    assert max(piece.nbytes for piece in weights._pieces(tensor)) <= 1024
    together = torch.cat(list(weights._pieces(tensor)))
    assert torch.equal(bits_of(together), bits_of(tensor))
    assert fingerprint([tensor]) == fingerprint([tensor.clone()])


def test_the_sums_are_those_of_the_definition() -> None:
    """Worked out again with Python's integers, so that no device can have its own idea of them."""
    tensor = random_tensor(torch.float32, (weights.ROW + 3,))
    words = tensor.numpy().view(np.int32).tolist()
    factors = weights._constants().tolist()
    expected = [
        sum(word * factor for word, factor in zip(row, factors, strict=False))
        for row in (words[: weights.ROW], words[weights.ROW :])
    ]
    found = weights._row_sums(torch, tensor, torch.from_numpy(weights._constants()))
    assert [each % 2**64 for each in found.tolist()] == [each % 2**64 for each in expected]


def test_wrappers_and_state_dicts_have_that_of_the_bare_model() -> None:
    model = network()
    expected = fingerprint(model)
    compiled: Any = torch.compile(model, backend="eager")
    partly: Any = copy.deepcopy(model)
    partly[0] = torch.compile(partly[0], backend="eager")
    wrapped: Any = torch.nn.Module()
    wrapped.module = compiled
    for same in (compiled, partly, wrapped, model.state_dict(), model.eval()):
        assert fingerprint(same) == expected
    adapters: Any = torch.nn.Module()  # as DistributedDataParallel holds them
    adapters.module = adapted(LoraConfig(r=2, target_modules=["q_proj"]))
    assert fingerprint(adapters) == fingerprint(adapters.module)
    assert len(expected) == 16


def test_it_stays_the_same_between_versions() -> None:
    """It is stored with results: other values would be other weights."""
    assert fingerprint({"w": torch.arange(6.0).view(2, 3)}) == "16ad4515d4173ca0"


def test_tied_weights_count_by_each_of_their_names() -> None:
    tied = network()
    tied.register_parameter("again", tied[0].weight)
    untied = copy.deepcopy(tied)
    untied.again = torch.nn.Parameter(tied.again.detach().clone())
    assert fingerprint(tied) == fingerprint(untied) == fingerprint(tied.state_dict())
    with torch.no_grad():
        untied.again[0, 0] += 1
    assert fingerprint(tied) != fingerprint(untied)


def test_only_what_is_saved_counts() -> None:
    model = network()
    before = fingerprint(model)
    model.register_buffer("scratch", torch.rand(3), persistent=False)
    assert fingerprint(model) == before
    model.register_buffer("kept", torch.rand(3))
    assert fingerprint(model) != before


def test_several_models_have_one_too() -> None:
    one, other = network(), network()
    with torch.no_grad():
        other[0].weight[0, 0] += 1
    assert fingerprint([one, other]) != fingerprint([other, one])
    assert fingerprint({"actor": one, "tokenizer": object()}) is not None


def test_nothing_is_changed_and_no_random_number_drawn() -> None:
    model = network()
    state, before = torch.get_rng_state(), copy.deepcopy(model.state_dict())
    fingerprint(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_shards_are_those_of_this_process() -> None:
    class Shard(torch.Tensor):
        def to_local(self) -> Any:
            return torch.ones(2)

    assert fingerprint({"w": torch.zeros(4).as_subclass(Shard)}) == fingerprint(
        {"w": torch.ones(2)}
    )


def test_signs_that_change_in_pairs_change_the_total() -> None:
    tensor = torch.randn(256, 300)
    before = weights.read_sums(weights.sum_bits([tensor]))
    tensor[:, 1::2].neg_()
    assert weights.read_sums(weights.sum_bits([tensor])) != before
    tensor = torch.randn(2**15, dtype=torch.float64)
    before = weights.read_sums(weights.sum_bits([tensor]))
    tensor.neg_()
    assert weights.read_sums(weights.sum_bits([tensor])) != before


STEPS, ZEROS = torch.full((2,), 0.5), torch.zeros(2)
QUANTISED: dict[str, Callable[[Any], Any]] = {
    "tensor": lambda t: torch.quantize_per_tensor(t, 0.5, 0, torch.qint8),
    "channel": lambda t: torch.quantize_per_channel(t, STEPS, ZEROS, 0, torch.qint8),
    "4 bits": lambda t: torch.quantize_per_channel(t, STEPS, ZEROS, 0, torch.quint4x2),
}


@pytest.mark.filterwarnings("ignore")  # torch's own quantisation is going away
@pytest.mark.parametrize("kind", QUANTISED)
def test_quantised_tensors_are_read_by_their_values_and_never_written_as_bytes(kind: str) -> None:
    # A view of their bits would end the process.
    values = torch.tensor([[-4.0, 2.0, 0.5], [1.5, -0.5, 3.0]])
    model = torch.nn.Linear(2, 2)
    model.register_buffer("table", QUANTISED[kind](values))
    before, total = fingerprint(model), weights.read_sums(weights.sum_bits([model.table]))
    assert before is not None
    assert len(total) == 1
    model.table = QUANTISED[kind](values.flip(0))
    assert fingerprint(model) != before
    assert weights.read_sums(weights.sum_bits([model.table])) != total
    with pytest.raises(InvalidInput, match="cannot be copied as bytes"):
        WeightBuffer().write(model)


def pair(quantise: Callable[[Any], Any]) -> list[Any]:
    """Two quantised layers: the second has the weights of the first, times two."""
    torch.manual_seed(0)
    weight = torch.randn(64, 64)
    found = []
    for factor in (1, 2):
        model: Any = torch.nn.Sequential(torch.nn.Linear(64, 64, bias=False)).eval()
        model[0].weight = torch.nn.Parameter(weight * factor)
        found.append(quantise(model))
    return found


def by_torch(kind: Any) -> Callable[[Any], Any]:
    def quantise(model: Any) -> Any:
        return torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=kind)

    return quantise


class Int8Linear(torch.nn.Module):
    """A layer as people write it by hand: packed weights and scales are plain attributes."""

    def __init__(self, weight: Any) -> None:
        super().__init__()
        self.scale = weight.abs().amax(1, keepdim=True) / 127
        self.packed = {"weight": (weight / self.scale).round().to(torch.int8)}

    def forward(self, x: Any) -> Any:
        return x @ (self.packed["weight"] * self.scale).T


def by_hand(model: Any) -> Any:
    return torch.nn.Sequential(Int8Linear(model[0].weight.detach()))


def by_bitsandbytes(bits: int) -> Callable[[Any], Any]:
    def quantise(model: Any) -> Any:
        from bitsandbytes import nn

        four: Any = partial(nn.Linear4bit, compress_statistics=True, quant_type="nf4")
        eight: Any = partial(nn.Linear8bitLt, has_fp16_weights=False)
        layer = (four if bits == 4 else eight)(64, 64, bias=False)
        layer.load_state_dict(model[0].state_dict())
        model[0] = layer.to("cpu")
        return model

    return quantise


def by_bitsandbytes_parametrized(model: Any) -> Any:
    from bitsandbytes.nn.parametrize import replace_parameter_4bit

    replace_parameter_4bit(model[0], "weight")  # as the experts of a mixture are loaded
    return model


def by_torchao(model: Any) -> Any:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    quantize_(model, Int8WeightOnlyConfig())
    return model


def by_quanto(model: Any) -> Any:
    from optimum.quanto import freeze, qint4, quantize

    quantize(model, weights=qint4)
    freeze(model)
    return model


def by_hqq(model: Any) -> Any:
    from hqq.core.quantize import BaseQuantizeConfig, HQQLinear

    config = BaseQuantizeConfig(nbits=4, group_size=64)
    model[0] = HQQLinear(model[0], config, compute_dtype=torch.float32, device="cpu")
    return model


# Not in [dev]: peft and transformers import these packages wherever they find them.
QUANTISERS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "torch int8": ("torch", by_torch(torch.qint8)),
    "torch float16": ("torch", by_torch(torch.float16)),
    "by hand": ("torch", by_hand),
    "bitsandbytes 4": ("bitsandbytes", by_bitsandbytes(4)),
    "bitsandbytes 8": ("bitsandbytes", by_bitsandbytes(8)),
    "bitsandbytes parametrized": ("bitsandbytes", by_bitsandbytes_parametrized),
    "torchao": ("torchao", by_torchao),
    "quanto": ("optimum", by_quanto),
    "hqq": ("hqq", by_hqq),
}


@pytest.mark.filterwarnings("ignore")  # torch's own quantisation is going away
@pytest.mark.parametrize("way", [way for way, (need, _) in QUANTISERS.items() if find_spec(need)])
def test_quantised_models_that_answer_differently_have_other_hashes(way: str) -> None:
    one, other = pair(QUANTISERS[way][1])
    inputs = torch.ones(2, 64)
    before = fingerprint(one)
    with torch.no_grad():
        assert not torch.equal(one(inputs), other(inputs))
    assert before is not None
    assert fingerprint(other) not in (None, before)
    assert fingerprint(one) == before  # the first pass unpacks or moves weights
    again, _ = pair(QUANTISERS[way][1])
    assert fingerprint(again) == before


def test_what_a_layer_only_remembers_does_not_count() -> None:
    class Embedding(torch.nn.Embedding):
        def forward(self, ids: Any) -> Any:
            self.last = {"ids": ids, "packed": ids.to(torch.uint8)}
            return super().forward(ids)

    class Agent(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = Embedding(4, 2)
            self.frames = torch.zeros(3, 4, dtype=torch.uint8)  # what it has seen

    agent = Agent()
    before = fingerprint(agent)
    agent.embed(torch.arange(3))
    agent.frames += 1
    assert fingerprint(agent) == before


class Handle:
    """Weights in the memory of some library."""


class Opaque(torch.nn.Module):
    def get_extra_state(self) -> Any:
        return {"weights": Handle()}


def test_weights_that_cannot_be_read_are_no_hash_and_the_reason_is_said() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), Opaque())
    assert fingerprint(model) is None
    described = LocalEndpoint(model, tiny_model()[1], name="mine").describe()
    assert described["unknown"] == (
        "the weights of mine cannot be read: 1._extra_state.weights is a Handle, whose "
        "content cannot be read"
    )


# --- What has none ------------------------------------------------------------------------------


def test_what_cannot_be_read_or_is_no_model_has_none() -> None:
    with torch.device("meta"):
        on_meta = torch.nn.Linear(2, 2)
    elsewhere = torch.nn.Linear(2, 2)
    elsewhere.weight = torch.nn.Parameter(torch.empty(0))
    elsewhere.weight.ds_id = 0
    lazy = torch.nn.LazyLinear(2)
    sparse = {"w": torch.eye(3).to_sparse()}
    for thing in (on_meta, elsewhere, lazy, sparse, None, object(), print, "text", 3, [], {}):
        assert fingerprint(thing) is None
    assert fingerprint([print]) is None
    assert fingerprint(torch.nn.ReLU()) is not None  # a model, if one without weights
