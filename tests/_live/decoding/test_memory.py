"""What decoding keeps beside training, by the numbers of an allocator that is played here.

bench/gpu/test_decoding.py trains on a real one.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from heldout._live.decoding.memory import KeptMemory, give_back_if_tight
from heldout.errors import InvalidInput
from heldout.training import live_model

TOTAL = 100


class Gpu:
    """The numbers of torch's allocator, of a GPU with 100 bytes, and a decoder that keeps some."""

    def __init__(self) -> None:
        self.used = self.cached = self.peak = self.retries = 0
        self.held = self.private = 0
        self.empties = 0

    def train_step(self, size: int) -> None:
        """Weights and optimizer take 20; a step takes `size` more, which stays in the cache."""
        self.used = 20
        self.cached = max(self.cached, size)
        self.peak = max(self.peak, self.used + self.held + size)
        assert self.used + self.held + self.private + size <= TOTAL, "out of memory"

    def decode(self, kept: int, private: int = 0) -> None:
        self.held, self.private = kept, private
        self.peak = max(self.peak, self.used + kept)

    def release(self) -> None:
        self.held = self.private = 0

    def memory_stats(self, device: Any) -> dict[str, int]:
        allocated = self.used + self.held
        return {
            "allocated_bytes.all.current": allocated,
            "allocated_bytes.all.peak": self.peak,
            "reserved_bytes.all.current": min(TOTAL, allocated + self.private + self.cached),
            "num_alloc_retries": self.retries,
        }

    def mem_get_info(self, device: Any) -> tuple[int, int]:
        return TOTAL - self.memory_stats(device)["reserved_bytes.all.current"], TOTAL

    def memory_snapshot(self) -> list[dict[str, Any]]:
        ours = {"total_size": self.held + self.private, "allocated_size": self.held}
        others = {"total_size": self.used + self.cached, "allocated_size": self.used}
        return [
            {"device": 0, "segment_pool_id": (0, 1), **ours},
            {"device": 0, "segment_pool_id": (0, 0), **others},
            {"device": 1, "segment_pool_id": (0, 1), "total_size": 90, "allocated_size": 0},
        ]

    def empty_cache(self) -> None:
        self.cached = 0
        self.empties += 1


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    gpu = Gpu()
    for name in ("memory_stats", "mem_get_info", "memory_snapshot", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, getattr(gpu, name))
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: 1.0)
    return gpu


def evaluate(memory: KeptMemory, gpu: Gpu, kept: int, private: int = 0) -> None:
    memory.begin_eval()
    gpu.decode(kept, private)
    memory.end_eval()


def memory_of(gpu: Gpu, keep: Any) -> KeptMemory:
    weights = [SimpleNamespace(device=SimpleNamespace(type="cuda", index=0))]
    return KeptMemory(gpu, SimpleNamespace(parameters=lambda: iter(weights)), keep)


@pytest.mark.parametrize(("keep", "held"), [(False, [0, 0]), (True, [30, 30]), ("auto", [0, 30])])
def test_graphs_are_kept_as_asked(gpu: Gpu, keep: Any, held: list[int]) -> None:
    memory = memory_of(gpu, keep)
    found = []
    for _ in range(2):
        gpu.train_step(20)
        evaluate(memory, gpu, 30)
        found.append(gpu.held)
    assert found == held
    assert gpu.empties == held.count(0)


def test_training_that_grows_gets_the_memory_before_it_needs_it(gpu: Gpu) -> None:
    memory = memory_of(gpu, "auto")
    for _ in range(2):
        gpu.train_step(20)
        evaluate(memory, gpu, 30)
    held = []
    for size in range(20, 80, 5):  # 80 beside the weights is all there is
        gpu.train_step(size)
        give_back_if_tight()
        held.append(gpu.held)
    assert held[:5] == [30] * 5
    assert held[5:] == [0] * 7
    assert gpu.empties == 2


def test_what_training_needed_before_the_eval_counts(gpu: Gpu) -> None:
    memory = memory_of(gpu, "auto")
    gpu.train_step(60)
    for _ in range(2):
        evaluate(memory, gpu, 30)
        assert gpu.held == 0
        gpu.train_step(60)


def test_training_whose_cache_was_emptied_for_room_gets_it(gpu: Gpu) -> None:
    memory = memory_of(gpu, "auto")
    for _ in range(2):
        gpu.train_step(20)
        evaluate(memory, gpu, 30)
    give_back_if_tight()
    assert gpu.held == 30
    gpu.retries += 1
    give_back_if_tight()
    assert gpu.held == 0
    give_back_if_tight()
    assert gpu.empties == 2


def test_memory_that_only_graphs_can_use_is_not_free(gpu: Gpu) -> None:
    memory = memory_of(gpu, "auto")
    for _ in range(2):
        gpu.train_step(20)
        evaluate(memory, gpu, 30, private=25)
    assert gpu.held == 0


def test_a_decoder_that_is_gone_is_forgotten(gpu: Gpu) -> None:
    memory = memory_of(gpu, "auto")
    for _ in range(2):
        gpu.train_step(20)
        evaluate(memory, gpu, 30)
    del memory
    gpu.retries += 1
    give_back_if_tight()
    assert gpu.empties == 1


def test_another_value_of_keep_cache_is_refused() -> None:
    with pytest.raises(InvalidInput, match="keep_cache is True, False or \"auto\", got 'yes'"):
        live_model(None, lambda trajectory, sample: 1.0, keep_cache="yes")  # type: ignore[arg-type]
