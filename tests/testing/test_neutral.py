"""assert_neutral names what an eval changed, and does not blame it for what it did not."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch

from heldout._live.isolation import isolated
from heldout._live.torch_settings import torch_settings
from heldout._live.weights import fingerprint
from heldout.errors import InvalidInput
from heldout.testing import Neutral, NotNeutral, NotRepeatable, assert_neutral
from tests.tiny_model import tiny_model


def state(**changes: Any) -> dict[str, Any]:
    return {"first": torch.tensor([1.0, 2.0]), "second": torch.tensor([3.0, 4.0]), **changes}


def train(without: Any, with_eval: Any) -> Callable[[bool], Any]:
    return lambda evaluating: with_eval if evaluating else without


def said(without: Any, with_eval: Any, **settings: Any) -> str:
    with pytest.raises(NotNeutral) as raised:
        assert_neutral(train(without, with_eval), **settings)
    return str(raised.value)


def test_what_is_the_same_passes_and_can_be_printed() -> None:
    log = [{"loss": 0.5, "step": 1}, {"loss": math.nan, "step": 2}]
    result = assert_neutral(lambda evaluating: (state(), log))
    settings = len(torch_settings(torch))
    assert result == Neutral(fingerprint(state()), 2, metrics=4, settings=settings, repeats=1)
    assert str(result) == (
        f"neutral: a run with eval ended in the same 2 tensors (weights {result.weights}), 4 "
        f"logged values and {settings} settings, bit for bit, as without"
    )


def test_it_trains_twice_without_eval_and_then_with_as_often_as_asked() -> None:
    seen: list[bool] = []

    def counted(evaluating: bool) -> Any:
        seen.append(evaluating)
        return state()

    assert assert_neutral(counted, repeats=3).repeats == 3
    assert seen == [False, False, True, True, True]


def test_a_difference_in_weights_is_named_counted_and_measured() -> None:
    other = state(second=torch.tensor([3.0, 4.5]))
    assert said(state(), other) == (
        "evaluating changes the training: two runs without eval are the same, and a run with eval "
        "differs\n  - 1 of 2 tensors differ, the first is second; the largest difference is 0.5, "
        "in second"
    )
    other = state(first=torch.tensor([1.0, 2.25]), second=torch.tensor([3.0, math.nan]))
    assert (
        "2 of 2 tensors differ, the first is first; the largest difference is inf, in second"
        in (said(state(), other))
    )


@pytest.mark.parametrize(
    ("other", "part"),
    [
        ({"first": torch.tensor([1.0, 2.0])}, "tensors only without: second"),
        (state(third=torch.zeros(1)), "tensors only with: third"),
        (state(first=torch.zeros(3)), "1 of 2 tensors differ, the first is first"),
        (state(first=torch.tensor([1, 2])), "1 of 2 tensors differ, the first is first"),
        ({f"w{i}": torch.zeros(1) for i in range(9)}, "only with: w0, w1, w2 and 6 more"),
    ],
)
def test_other_tensors_are_a_difference(other: Any, part: str) -> None:
    assert part in said(state(), other)


@pytest.mark.parametrize(
    "kind", [torch.float32, torch.bfloat16, torch.complex64, torch.float8_e4m3fn, torch.bool]
)
def test_every_kind_of_weight_is_compared_bit_by_bit(kind: Any) -> None:
    zero, one = torch.zeros(2, 2).to(kind), torch.eye(2).to(kind)
    assert_neutral(lambda evaluating: {"w": zero})
    assert "the largest difference is 1" in said({"w": zero}, {"w": one})


def test_nan_is_itself_and_zero_has_a_sign() -> None:
    nan = state(first=torch.tensor([math.nan, math.inf]))
    assert_neutral(lambda evaluating: (nan, [{"loss": math.nan}]))
    zero, minus = state(first=torch.tensor([0.0, math.nan])), state()
    minus["first"] = torch.tensor([-0.0, math.nan])
    assert "the largest difference is 0, in first" in said(zero, minus)
    assert "[0]['loss']: 0.0 without, -0.0 with" in said(
        (state(), [{"loss": 0.0}]), (state(), [{"loss": -0.0}])
    )


@pytest.mark.parametrize(
    ("one", "other", "part"),
    [
        ([{"a": 1.0}, {"a": 2.0}], [{"a": 1.0}, {"a": 2.5}], "first is [1]['a']: 2.0 without, 2.5"),
        ([{"a": 1}], [{"a": 1.0}], "[0]['a']: 1 without, 1.0 with"),
        ([{"a": 1}], [{"a": 1, "b": 2}], "logged values only with: [0]['b']"),
        ([{"a": 1}, {"a": 2}], [{"a": 1}], "logged values only without: [1]['a']"),
        ({"x": {"y": [1, 2]}}, {"x": {"y": [1, 3]}}, "['x']['y'][1]: 2 without, 3 with"),
        ([np.float32(1)], [np.float32(2)], "[0]"),
        ([torch.ones(2)], [torch.zeros(2)], "[0]"),
        (1.0, 2.0, "the first is all: 1.0 without, 2.0 with"),
        ([None], [0], "[0]: None without, 0 with"),
    ],
)
def test_a_difference_in_what_was_logged_is_named(one: Any, other: Any, part: str) -> None:
    assert part in said((state(), one), (state(), other))


def test_time_and_what_the_eval_logs_are_not_compared() -> None:
    without = [
        {"loss": 1.0, "step_time": 0.1, "epoch": 0.5, "step": 1},
        {"loss": 2.0, "step_time": 0.1, "epoch": 1.0, "step": 2},
        {"train_runtime": 3.1, "train_loss": 1.5, "epoch": 1.0},
    ]
    with_eval = [
        {"loss": 1.0, "step_time": 0.2, "epoch": 0.5, "step": 1, "heldout/score": 0.3},
        {"eval_reward": 0.5, "eval_runtime": 2.0, "epoch": 0.5, "step": 1},
        {"heldout/score": 0.5},
        {"loss": 2.0, "step_time": 0.3, "epoch": 1.0, "step": 2},
        {"train_runtime": 9.1, "train_loss": 1.5, "epoch": 1.0},
    ]
    assert assert_neutral(train((state(), without), (state(), with_eval))).metrics == 8
    assert "['step_time']" in said((state(), without), (state(), with_eval), ignore=())
    with_eval[3]["epoch"] = 1.5
    assert "[1]['epoch']: 1.0 without, 1.5 with" in said((state(), without), (state(), with_eval))


def test_a_training_that_is_not_repeatable_is_not_blamed_on_the_eval() -> None:
    runs = iter([state(), state(second=torch.zeros(2))])
    with pytest.raises(NotRepeatable) as raised:
        assert_neutral(lambda evaluating: next(runs))
    assert "two runs without any eval differ, so nothing can be concluded" in str(raised.value)
    assert "1 of 2 tensors differ, the first is second" in str(raised.value)
    assert not isinstance(raised.value, NotNeutral)


def test_a_train_function_may_go_on_with_the_same_model() -> None:
    model = torch.nn.Linear(2, 2)

    def goes_on(evaluating: bool) -> Any:
        with torch.no_grad():
            model.weight.add_(1)
        return model

    with pytest.raises(NotRepeatable):
        assert_neutral(goes_on)


@pytest.mark.parametrize("returned", [None, 3, {}, (), [], ("text", []), {"a": 1}])
def test_what_cannot_be_compared_is_refused(returned: Any) -> None:
    with pytest.raises(InvalidInput, match="train returns a torch module or a state dict"):
        assert_neutral(lambda evaluating: returned)


def test_weights_that_cannot_be_read_are_refused() -> None:
    with torch.device("meta"):
        model = torch.nn.Linear(2, 2)
    with pytest.raises(InvalidInput, match="the weights of weight cannot be read"):
        assert_neutral(lambda evaluating: model)


def test_no_run_with_eval_at_all_is_refused() -> None:
    with pytest.raises(InvalidInput, match="repeats"):
        assert_neutral(lambda evaluating: state(), repeats=0)


# --- What is left changed -----------------------------------------------------------------------


def leave_hook(model: Any, tokenizer: Any) -> None:
    model[0].register_forward_pre_hook(lambda *given: None)


LEFT_CHANGED: dict[str, tuple[Callable[[Any, Any], object], str]] = {
    "a setting of torch": (
        lambda model, tokenizer: setattr(torch.backends.cudnn, "enabled", False),
        "torch.backends.cudnn.enabled: True without, False with",
    ),
    "a plain attribute": (
        lambda model, tokenizer: setattr(model[1], "p", 0.1),
        "p of 1: 0.5 without, 0.1 with",
    ),
    "a hook": (leave_hook, "_forward_pre_hooks of 0: 'OrderedDict()' without, '1 entries' with"),
    "a cache": (
        lambda model, tokenizer: model.seen.append(1),
        "seen of the model: '[]' without, '[1]' with",
    ),
    "something new": (
        lambda model, tokenizer: setattr(model, "temperature", 2.0),
        "temperature of the model: 2.0 with, absent without",
    ),
    "a tokenizer": (
        lambda model, tokenizer: setattr(tokenizer, "padding_side", "left"),
        "padding_side of TokenizersBackend 1: 'right' without, 'left' with",
    ),
}


@pytest.mark.parametrize("what", LEFT_CHANGED)
def test_what_an_eval_leaves_changed_is_named_even_if_this_training_ends_the_same(
    what: str,
) -> None:
    change, line = LEFT_CHANGED[what]
    tokenizer, numbers = tiny_model()[1], count()
    tokenizer.padding_side = "right"

    def train(evaluating: bool) -> Any:
        torch.manual_seed(0)
        model: Any = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.5))
        model.seen, model.number = [], next(numbers)  # differs from run to run
        if evaluating:
            change(model, tokenizer)
        return model

    with isolated(), pytest.raises(NotNeutral) as raised:
        assert_neutral(train)
    assert str(raised.value).endswith(f"\n  - settings that the eval changed: {line}")
