"""What the pages on training say in tables and numbers is what the code does."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from heldout.training import (
    AsyncEvalDispatcher,
    CurveMonitor,
    PeriodicEval,
    follow_checkpoints,
    from_functions,
)
from heldout.training.checkpoints import commands
from heldout.training.loggers import Loggers, base
from tests.test_docs import tables
from tests.training.toys import Clock, Heartbeats, Model, periodic, questions, score, weighted

TRAINING = "docs/training.md"


def table_of(page: str, heading: str) -> list[list[str]]:
    """The rows of the only table of a page whose first column is called so."""
    (found,) = (t for t in tables(page) if t[0][0].strip("| ") == heading)
    return found[2:]


def names_in(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


# --- Arguments ----------------------------------------------------------------------------------

DECIDED_LATER = {"every_steps", "run_dir", "pass_threshold", "monitor", "snapshots", "bounds"}
"""None in the signature: what it comes to is in other tests, by what is evaluated."""


@pytest.mark.parametrize(
    ("page", "heading", "function"),
    [
        (TRAINING, "argument", PeriodicEval.__init__),
        ("docs/verdicts.md", "argument of `CurveMonitor`", CurveMonitor.__init__),
    ],
)
def test_defaults_are_those_that_the_page_names(page: str, heading: str, function: Any) -> None:
    parameters = inspect.signature(function).parameters
    words = {"no": (False, None), "none": (None,), "all": (None,), "never": (None,)}
    checked = set()
    for cell, default, *_ in table_of(page, heading):
        names = names_in(cell)
        said = [default.strip("` ")] if len(names) == 1 else default.replace("`", "").split(", ")
        for name, value in zip(names, said * (1 + len(names) - len(said)), strict=True):
            assert name in parameters, f"{page}: {name}"
            if name in DECIDED_LATER:
                assert parameters[name].default is None, f"{page}: {name}"
                continue
            real = parameters[name].default
            is_same = any(real is word for word in words.get(value, ()))
            assert is_same or str(real).removesuffix(".0") == value, f"{page}: {name} = {value}"
            checked.add(name)
    assert len(checked) >= 4


def test_numbers_in_the_text_are_the_defaults() -> None:
    """Of how long, and how many: background evals, loggers, followed checkpoints."""
    background = inspect.signature(AsyncEvalDispatcher).parameters
    assert background["max_pending"].default == 8
    assert background["drain_timeout"].default == 600
    assert background["when_full"].default == "skip"
    assert inspect.signature(Loggers).parameters["capacity"].default == 1000
    assert inspect.signature(Loggers.close).parameters["timeout"].default == 60
    assert base.SLOW_SECONDS == 120
    assert commands.CONVERT_SECONDS == 4 * 60 * 60
    assert inspect.signature(follow_checkpoints).parameters["poll_seconds"].default == 10


def test_after_ctrl_c_what_is_in_flight_has_two_seconds(tmp_path: Path) -> None:
    def train() -> None:
        with AsyncEvalDispatcher(run_dir=tmp_path) as evals:
            evals.schedule(never, step=1)
            raise KeyboardInterrupt

    async def never() -> dict[str, float]:
        import anyio

        await anyio.sleep_forever()
        raise AssertionError

    with pytest.raises(KeyboardInterrupt):
        train()
    assert "not finished 2.0 s after the end of training" in (tmp_path / "curve.jsonl").read_text()


# --- Fields -------------------------------------------------------------------------------------


def documented_fields() -> set[str]:
    found: set[str] = set()
    for cell, *_ in table_of(TRAINING, "field"):
        names = names_in(cell)
        whole = [name for name in names if not name.startswith("_")]
        found |= {*whole, *(f"{name}{end}" for name in whole for end in names if end not in whole)}
    return found


def reported_fields(folder: Path) -> set[str]:
    """The fields of heartbeats of every kind of point."""
    beats, clock = Heartbeats(), Clock()

    def answers(model: Any, prompts: list[str], max_new: int) -> list[Any]:
        clock.now += 2.0
        return model.answer(prompts)

    def evals(name: str, model: Any, **settings: Any) -> PeriodicEval:
        build = from_functions(
            lambda messages: messages[-1].text, answers, score, rows=4, repeats=2, max_error_rate=1
        )
        settings = {"runner_builder": build, "heartbeat_fn": beats, "clock": clock, **settings}
        return periodic(folder / name, model, samples=questions(16), **settings)

    model = weighted(6)
    evals("whole", model, monitor=lambda points: "enough").run_final(10)
    evals("whole", model).maybe_run(10)  # of an earlier attempt
    evals("cut", Model(6), max_seconds=6.0).maybe_run(10)
    evals("fewer", Model(6), max_overhead=0.5, min_samples=4).maybe_run(10)
    evals("none", model_getter=lambda: None, model=None).maybe_run(10)
    with AsyncEvalDispatcher(when_full="wait"):
        evals("late", model).maybe_run(10)
    fields = {key for _, fields in beats for key in fields if "progress" not in _}
    plain = {key.removeprefix("eval_") for key in fields} - {"step"}
    metric, passes = r"^metric_(right|length)", r"^pass_(at|hat)_2"
    return {re.sub(passes, r"pass_\1_<k>", re.sub(metric, "metric_<m>", key)) for key in plain}


def test_the_table_has_every_field_of_a_point_and_no_other(tmp_path: Path) -> None:
    assert reported_fields(tmp_path) == documented_fields()


# --- Room on disk -------------------------------------------------------------------------------


def test_the_conversations_of_200_one_word_answers_take_about_9_kb(tmp_path: Path) -> None:
    evals = periodic(tmp_path, Model(knows=100), samples=questions(200))
    point = evals.maybe_run(10)
    assert point is not None
    files = [path for path in (evals.run_dir / str(point.run)).rglob("*") if path.is_file()]
    assert 5_000 < sum(path.stat().st_size for path in files) < 13_000
