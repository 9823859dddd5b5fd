"""Names of runs and of evals of a curve: one grammar, for the command line and the viewer."""

from __future__ import annotations

from pathlib import Path

import pytest

from heldout.reporting.names import EvalName, find_run_directory, format_eval_name, parse_eval_name
from heldout.viewer.pages import Pages
from tests.viewer.runs import make_curve

CURVES = {"grpo", "team/grpo", "odd@name"}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("grpo@20", EvalName("grpo", None, 20)),
        ("grpo@last", EvalName("grpo", None, None)),
        ("team/grpo@math:20", EvalName("team/grpo", "math", 20)),
        ("grpo@math:last", EvalName("grpo", "math", None)),
        ("grpo@a:b@c:7", EvalName("grpo", "a:b@c", 7)),
        ("odd@name@20", EvalName("odd@name", None, 20)),
        ("grpo", None),
        ("grpo@", None),
        ("grpo@later", None),
        ("grpo@math:", None),
        ("grpo@-1", None),
        ("grpo@99999999999999999", None),
        ("other@20", None),
        ("@20", None),
    ],
)
def test_one_eval_of_a_curve_is_named_by_label_and_step(text: str, name: EvalName | None) -> None:
    assert parse_eval_name(text, CURVES.__contains__) == name
    if name is not None and name.step is not None:
        assert format_eval_name(name.curve, name.label, name.step) == text


def test_command_line_and_viewer_find_the_same_eval(tmp_path: Path) -> None:
    make_curve(tmp_path, 20, samples=4)
    pages = Pages([tmp_path])
    for selector in ("20", "last", "rl_eval:20"):
        found = find_run_directory(f"{tmp_path}/grpo-shop@{selector}")
        assert found == tmp_path / "grpo-shop/steps/00000020"
        assert pages.path(f"grpo-shop@{selector}") == found
