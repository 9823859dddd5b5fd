"""What is prepared for the decoding of a model does not keep it in memory."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from heldout import Message, Sampling
from heldout.models.batch import Request
from heldout.training import SnapshotPool, live_model
from heldout.types import Continuation
from tests.tiny_model import tiny_model


@pytest.fixture
def no_collector() -> Iterator[None]:
    """On a GPU the next model has to fit beside what only the collector would free."""
    tiny_model()  # transformers' imports make cycles that have the first model in them
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def evaluate(builder: Any, model: Any) -> None:
    runner = builder(model)
    asked = Request((Message("user", "w1 w2"),), Sampling(max_tokens=3))
    [answer] = runner.answer([asked], lambda: True)
    assert answer.usage.completion_tokens > 0
    given = Request((), Sampling(), (), (Continuation("w1", " w2"),))
    assert runner.answer([given], lambda: True)[0].likelihoods
    assert "w1 w2" in runner.describe()["prompt"]
    runner.release()


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "static"])
@pytest.mark.usefixtures("no_collector")
def test_a_model_in_training_ends_with_its_last_reference(graphs: bool) -> None:
    model, tokenizer = tiny_model()
    builder = live_model(tokenizer, lambda t, s: 1.0, graphs=graphs, keep_cache=True)
    evaluate(builder, model)
    evaluate(builder, model)
    held = weakref.ref(model)
    del model
    assert held() is None


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "static"])
@pytest.mark.usefixtures("no_collector")
def test_a_snapshot_ends_with_its_pool(graphs: bool) -> None:
    model, tokenizer = tiny_model()
    builder = live_model(tokenizer, lambda t, s: 1.0, graphs=graphs, keep_cache=True)
    pool = SnapshotPool()
    snapshot = pool.try_snapshot(model, step=1)
    assert snapshot is not None
    evaluate(builder, snapshot.model)
    held = weakref.ref(snapshot.model)
    snapshot.release()
    assert held() is not None  # the pool fills it again
    del snapshot, pool
    assert held() is None
