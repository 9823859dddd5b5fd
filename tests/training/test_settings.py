from __future__ import annotations

import pytest

from heldout.errors import InvalidInput
from heldout.training.settings import EnvironmentSettings


def test_what_is_not_set_says_nothing() -> None:
    assert EnvironmentSettings.from_environment({}) == EnvironmentSettings(None, None, None, None)


def test_all_four_are_read() -> None:
    environ = {
        "HELDOUT_EVAL_EVERY_STEPS": " 50 ",
        "HELDOUT_EVAL_NUM": "64",
        "HELDOUT_EVAL_MAX_NEW": "128",
        "HELDOUT_EVAL_PASS_THRESHOLD": "0.9",
    }
    assert EnvironmentSettings.from_environment(environ) == EnvironmentSettings(50, 64, 128, 0.9)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("HELDOUT_EVAL_EVERY_STEPS", "-5", EnvironmentSettings(every_steps=0)),
        ("HELDOUT_EVAL_NUM", "-1", EnvironmentSettings(num=0)),
        ("HELDOUT_EVAL_MAX_NEW", "-7", EnvironmentSettings(max_new=1)),
        ("HELDOUT_EVAL_MAX_NEW", "0", EnvironmentSettings(max_new=1)),
        ("HELDOUT_EVAL_NUM", "", EnvironmentSettings()),
    ],
)
def test_counts_are_clamped(name: str, text: str, expected: EnvironmentSettings) -> None:
    assert EnvironmentSettings.from_environment({name: text}) == expected


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("HELDOUT_EVAL_EVERY_STEPS", "often"),
        ("HELDOUT_EVAL_NUM", "1.5"),
        ("HELDOUT_EVAL_PASS_THRESHOLD", "nan"),
        ("HELDOUT_EVAL_PASS_THRESHOLD", "half"),
    ],
)
def test_what_cannot_be_read_is_an_error_that_names_the_variable(name: str, text: str) -> None:
    with pytest.raises(InvalidInput, match=name):
        EnvironmentSettings.from_environment({name: text})
