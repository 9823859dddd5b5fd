from __future__ import annotations

import copy
import dataclasses
import inspect
import itertools
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from heldout import EvalConfig, EvalDefinition, Message, Sample, Sampling, base_config, evaluate
from heldout._core.config import config_to_dict, result_changing
from heldout._core.prices import Price
from heldout._evals.rollout import merge_sampling
from heldout.cluster import RayExecutor, RayNode
from heldout.errors import InvalidInput
from heldout.types import Completion


class EchoEndpoint:
    """An endpoint object, for which any sampling will do."""

    def describe(self) -> dict[str, Any]:
        return {"kind": "echo"}

    async def complete(self, messages: Any, sampling: Sampling, tools: Any = ()) -> Completion:
        return Completion(Message("assistant", "a"))

    async def close(self) -> None:
        pass


BAD: dict[str, list[Any]] = {
    "max_samples": [0, 1.5],
    "max_concurrent": [0],
    "repeats": [0],
    "max_turns": [0],
    "token_budget": [0],
    "timeout": [0, -1, float("nan")],
    "retries": [-1],
    "on_error": ["ignore"],
    "max_error_rate": [1.5],
    "pass_threshold": [float("inf"), "high"],
    "experiment_name": ["a/b/c", "a/../b", "..", "", "../up"],
    "output_dir": [""],
    "sampling": [{"temperature": 0}],
    "endpoint": ["gpt-4", "openai:", 3],
}


@pytest.mark.parametrize("field", BAD)
def test_a_bad_value_is_refused_by_name_when_the_config_is_made(field: str) -> None:
    name = "endpoint|model" if field == "endpoint" else field  # a name is refused as a model
    for value in BAD[field]:
        with pytest.raises(InvalidInput, match=name):
            replace(base_config, **{field: value})


def test_bad_sampling_is_refused_by_name() -> None:
    bad = {"temperature": [-0.1, float("nan")], "top_p": [0, 1.1], "max_tokens": [0], "seed": [-1]}
    for field, values in bad.items():
        for value in values:
            with pytest.raises(InvalidInput, match=f"sampling.{field}"):
                Sampling(**{field: value})


STRANGE: list[Any] = [
    *(None, True, 3, 0.5, -1, float("nan"), float("inf"), 10**400, "text", "", "\ud800", "a\0b"),
    *(b"text", [], [None], ["a", 1], {}, {"a": 10**400}, {"input": None}, object(), Path("x")),
]
"""Values of which some are right for some field."""


@pytest.mark.parametrize("owner", [EvalConfig, Sampling, Price, RayExecutor, RayNode])
def test_any_value_of_any_field_is_refused_as_invalid_or_can_be_run(
    owner: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    needed: dict[str, Any] = {"input": 1.0, "output": 1.0} if owner is Price else {}
    if owner is EvalConfig:
        needed = {"endpoint": lambda messages: "a"}
    for field, value in itertools.product(dataclasses.fields(owner), STRANGE):
        try:
            made = owner(**{**needed, field.name: value})
        except InvalidInput:
            continue
        if owner is Price:
            config = EvalConfig(price=made, **{"endpoint": lambda messages: "a"})
        elif owner is Sampling:
            config = EvalConfig(sampling=made, endpoint=EchoEndpoint())
        elif owner is EvalConfig:
            config = made
        else:
            continue  # what a cluster makes of it is another test's
        # Of a function there is no cache, and without a model no run: tests/models/test_choice.py.
        if not config.cache and config.endpoint is not None:
            name = config.experiment_name or f"run-{field.name}-{STRANGE.index(value)}"
            config = replace(config, experiment_name=name, progress=False)
            report = anyio.run(evaluate, [Sample("s", {"question": "q"})], config, lambda t, s: 1.0)
            assert report.summary["n"] >= 1


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"max_error_rate.*on_error"):
        EvalConfig(on_error="raise", max_error_rate=0.5)
    with pytest.raises(InvalidInput, match="experiment_name"):
        EvalConfig(resume=True)


def test_a_config_takes_the_names_of_the_command_line_and_keeps_those_of_python() -> None:
    made = EvalConfig(model="openai:m", limit=3, epochs=2, name="x")  # type: ignore[call-arg]
    assert made == EvalConfig("openai:m", "x", 3, repeats=2)
    assert "model" not in repr(made)
    assert [*inspect.signature(EvalConfig).parameters] == [f.name for f in dataclasses.fields(made)]
    both = "EvalConfig: endpoint and model are one setting, and both are given; give one"
    for call, said in (
        (lambda: EvalConfig("openai:m", model="openai:m"), both),  # type: ignore[call-arg]
        (lambda: EvalConfig(endpoint="openai:m", model="openai:m"), both),  # type: ignore[call-arg]
        (lambda: replace(made, model="x"), "replace: write endpoint=…, as the field is called"),
    ):
        with pytest.raises(InvalidInput) as refused:
            call()
        assert str(refused.value) == said
    assert replace(made, endpoint="openai:n").repeats == 2


def test_lists_and_paths_are_taken_for_what_they_are() -> None:
    assert Sampling(stop=["a", "b"]).stop == ("a", "b")
    assert Sampling(stop="a").stop == ("a",)
    assert Sampling(stop=None).stop == ()
    assert EvalConfig(output_dir=Path("x")).output_dir == "x"


def test_every_item_draws_from_a_stream_of_its_own() -> None:
    sampling = Sampling(temperature=1.0, seed=7)
    seeds = {sampling.for_item(s, r).seed for s in ("a", "b") for r in range(3)}
    assert len(seeds) == 6
    assert sampling.for_item("a", 0) == sampling.for_item("a", 0)
    assert sampling.for_item("a", 0).seed != Sampling(seed=8).for_item("a", 0).seed
    assert Sampling(temperature=1.0).for_item("a", 0).seed is None


def test_only_what_changes_results_stands_in_the_way_of_resuming() -> None:
    def identity(**settings: Any) -> dict[str, Any]:
        return result_changing(config_to_dict(EvalConfig(**settings), {"kind": "function"}))

    assert identity() == identity(max_concurrent=3, retries=9, timeout=1.0, pass_threshold=0.9)
    assert identity() != identity(sampling=Sampling(temperature=0.5))
    assert identity() != identity(repeats=2)
    assert identity() != identity(max_samples=5)


def test_what_was_given_wins_over_the_evals_own_also_where_it_is_the_default() -> None:
    own = EvalDefinition([], lambda t, s: 0.0, sampling=Sampling(temperature=0.7, stop=("END",)))

    def merged(sampling: Sampling) -> tuple[float | None, tuple[str, ...]]:
        result = merge_sampling(sampling, own)
        return result.temperature, result.stop

    assert merged(Sampling()) == (0.7, ("END",))
    assert merged(Sampling(temperature=0)) == (0, ("END",))
    assert merged(Sampling(temperature=0.0, stop=())) == (0.0, ())
    assert merged(Sampling().having(temperature=0.0)) == (0.0, ("END",))
    # What is replaced otherwise stays unset, and what was given stays given.
    assert merged(replace(Sampling(), seed=1)) == (0.7, ("END",))
    assert merged(replace(Sampling(temperature=0.0), seed=1)) == (0.0, ("END",))
    assert merged(replace(Sampling(), temperature=0.5)) == (0.5, ("END",))
    assert merged(Sampling(temperature=0.0).for_item("a", 0)) == (0.0, ("END",))
    through = msgspec.json.decode(msgspec.json.encode(Sampling(temperature=0.0)), type=Sampling)
    assert merged(through) == (0.0, ("END",))
    assert Sampling(temperature=0.0) == Sampling() == Sampling(stop=())
    assert "given" not in Sampling(temperature=0.0).to_dict()


def test_a_replaced_temperature_is_given_also_where_it_equals_the_default() -> None:
    own = EvalDefinition([], int, sampling=Sampling(temperature=0.7, top_p=0.9))  # type: ignore[arg-type]
    unset = Sampling()
    pickled = pickle.loads(pickle.dumps(unset))  # noqa: S301 - as Ray sends it
    copies = (unset, copy.deepcopy(unset), pickled, replace(unset))
    for sampling in copies:
        for greedy in (replace(sampling, temperature=0.0), replace(sampling, temperature=0)):
            assert greedy.given == ("temperature",)
            assert merge_sampling(greedy, own).temperature == 0
            again = copy.deepcopy(greedy)
            assert (again, again.given) == (greedy, greedy.given)
        seeded = replace(sampling, seed=3).for_item("a", 1)
        assert seeded.given == ()
        assert merge_sampling(seeded, own).temperature == 0.7
    assert merge_sampling(unset.having(top_p=None), own).top_p is None
