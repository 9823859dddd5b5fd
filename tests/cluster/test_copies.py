"""Whether two processes' copies of a function are the same, and in what they differ."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from heldout.cluster.copies import describe_copies, name_difference

FILE = """
import os
from collections import Counter
import numpy as np
from heldout.scoring import Rubric

HERE = os.path.dirname(__file__)
answers = {}
TABLE = {"a": 1}
names = set()
arrays = [np.zeros(3)]
seen, counts, cache = [], Counter(), {}
threshold = 0.5
unused = {}


def helper(sample):
    return answers.get(sample.id, len(names) + len(arrays))


def score(trajectory, sample):
    seen.append(sample.id)
    counts[sample.id] += 1
    cache.setdefault(sample.id, HERE)
    return helper(sample) > threshold + TABLE["a"]


def graded(sample):
    return helper(sample)


rubric = Rubric(graded)


class Scorer:
    def __init__(self):
        self.table, self.log = {}, []

    def __call__(self, trajectory, sample):
        self.log.append(sample.id)
        return self.table.get(sample.id, 0)


scorer = Scorer()
"""


def load(folder: Path, name: str) -> ModuleType:
    folder.mkdir()
    (folder / "evals.py").write_text(FILE)
    spec = importlib.util.spec_from_file_location(name, folder / "evals.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def change(name: str, value: Any) -> Any:
    return lambda module: setattr(module, name, value)


CHANGES: dict[str, tuple[str, Any, str | None]] = {
    "nothing": ("score", lambda m: None, None),
    "a dict that is filled later": ("score", lambda m: m.answers.update(x=1), "the dict answers"),
    "a set that is filled later": ("score", lambda m: m.names.add("x"), "the set names"),
    "an array that is filled later": ("score", lambda m: m.arrays[0].fill(1), "the list arrays"),
    "a table in capitals": ("score", lambda m: m.TABLE.update(a=2), "the dict TABLE differs"),
    "an option": ("score", change("threshold", 0.9), "its code, or a constant that it uses"),
    "a helper": ("score", change("helper", lambda sample: 1), "its code, or a constant"),
    "a function in a rubric": ("rubric", lambda m: m.answers.update(x=1), "the dict answers"),
    "an object's table": ("scorer", lambda m: m.scorer.table.update(x=1), "the dict table"),
    "an object's log": ("scorer", lambda m: m.scorer.log.append("x"), None),
    "what the function changes itself": (
        "score",
        lambda m: (m.seen.append("x"), m.counts.update("x"), m.cache.update(x="y")),
        None,
    ),
    "what it does not use": ("score", lambda m: m.unused.update(x=1), None),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_difference_between_two_copies_is_named(what: str, tmp_path: Path) -> None:
    name, alter, said = CHANGES[what]
    here, there = load(tmp_path / "here", "evals_here"), load(tmp_path / "there", "evals_there")
    alter(here)
    own = describe_copies({"score_fn": getattr(here, name)}, tmp_path / "here")
    others = describe_copies({"score_fn": getattr(there, name)}, tmp_path / "there")
    difference = name_difference(own, others)
    if said is None:
        assert difference is None
    else:
        assert difference is not None
        assert f"its score_fn is not that of this process: {said}" in difference


def test_a_worker_without_the_function_differs() -> None:
    own = describe_copies({"score_fn": len, "prepare_messages": None}, None)
    assert "its score_fn" in str(name_difference(own, {}))
