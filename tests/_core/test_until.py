"""What `until` says: one small grammar, and a refusal that shows it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heldout import EvalConfig
from heldout._core.config import config_to_dict
from heldout._core.until import Until, parse_until
from heldout.errors import InvalidInput


@pytest.mark.parametrize(
    ("text", "claim"),
    [
        ("mean>0.8", Until("mean", 0.8)),
        ("  MEAN > .8 ", Until("mean", 0.8)),
        ("mean<0.2", Until("mean", 0.2, above=False)),
        ("±0.02", Until("precision", 0.02)),
        ("+-0.02", Until("precision", 0.02)),
        ("+/- .02", Until("precision", 0.02)),
        ("better than quiz@1", Until("better", baseline="quiz@1")),
        ("better than my run", Until("better", baseline="my run")),
        ("not worse than quiz@1 by 0.02", Until("not_worse", 0.02, baseline="quiz@1")),
        ("not worse than by by 2e-2", Until("not_worse", 0.02, baseline="by")),
        ("none", None),
    ],
)
def test_each_form_is_read(text: str, claim: Until | None) -> None:
    assert parse_until(text) == claim
    if claim is not None:
        assert parse_until(str(claim)) == claim, "what is stored reads as the same claim"


@pytest.mark.parametrize(
    "text", ["", "0.8", "mean=0.8", "mean>eighty", "better", "not worse than quiz@1", "±", "worse"]
)
def test_anything_else_is_refused_with_the_grammar(text: str) -> None:
    with pytest.raises(InvalidInput, match='it takes "mean>0.8".*"not worse than RUN by 0.02"'):
        parse_until(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("mean>1.2", "between 0 and 1"),
        ("mean>80", "between 0 and 1"),
        ("mean>-0.1", "between 0 and 1"),
        ("mean>1", "no sample settles that"),
        ("mean<0", "no sample settles that"),
        ("±0", "half-width"),
        ("±2", "half-width"),
        ("not worse than a by 2", r"is 0\.02 meant"),
        ("not worse than a by 0", "margin"),
    ],
)
def test_a_number_that_makes_no_claim_is_refused(text: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        parse_until(text)


def test_a_config_stores_a_claim_in_one_way_and_refuses_its_settings_without_it() -> None:
    config = EvalConfig(until=" mean > .8 ", level=0.1, keep_power=True)
    assert config.until == "mean>0.8"
    assert replace(config, max_samples=3).settles == Until("mean", 0.8)
    given = {"level": 0.1, "keep_power": True, "this_set": True, "cluster": "book"}
    for name, value in given.items():
        with pytest.raises(InvalidInput, match=f"{name} is of runs that stop: give until"):
            EvalConfig(**{name: value})
        finishes = EvalConfig(until="none", **{name: value})
        assert name not in config_to_dict(finishes, {}), "it was that of the claim"
    with pytest.raises(InvalidInput, match="level must be"):
        EvalConfig(until="mean>0.8", level=0)


def test_answers_of_the_cache_are_not_compared_with_a_baseline() -> None:
    assert EvalConfig(until="mean>0.8", cache=True).cache is True
    with pytest.raises(InvalidInput, match="leave out cache"):
        EvalConfig(until="better than quiz@1", cache=True)
