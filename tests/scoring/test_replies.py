"""Whole replies with what is read of them, and with targets that they must and must not earn.

`replies/realistic.json` has replies as models write them, `replies/hostile.json` odd ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heldout.scoring import (
    Grade,
    grade_choice,
    grade_exact,
    grade_list,
    grade_match,
    grade_math_sync,
    grade_number,
)

FOLDER = Path(__file__).parent / "replies"
GRADERS: dict[str, tuple[Callable[..., Grade], Any]] = {
    "choice": (grade_choice, "A"),
    "exact": (grade_exact, "?"),
    "list": (grade_list, ["?"]),
    "match": (grade_match, "no such words"),
    "math": (grade_math_sync, "987654"),
    "number": (grade_number, 987654),
}
"""Each with a target for where only the reading counts."""


def replies(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((FOLDER / name).read_text("utf-8"))
    return found


@pytest.mark.integration
@pytest.mark.parametrize("reply", [*replies("realistic.json"), *replies("hostile.json")], ids=ascii)
def test_a_reply_is_read_as_a_person_reads_it(reply: dict[str, Any]) -> None:
    grade, any_target = GRADERS[reply["grader"]]
    answer, options = reply["answer"], reply.get("options", {})

    def value(target: Any) -> float:
        return grade(answer, target, **options).value

    assert [target for target in reply["wrong"] if value(target) != 0.0] == [], "too mild"
    assert [target for target in reply["right"] if value(target) != 1.0] == [], "too strict"
    assert grade(answer, any_target, **options).extracted == reply["reads"]
