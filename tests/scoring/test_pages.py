"""The pages of examples are what the tables say, and every grader has one."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import heldout.scoring
from heldout.store.fingerprint import version_of
from tests.scoring.examples import Example
from tests.scoring.pages import FOLDER, PAGES, Table, cell, page, table, write

REMAKE = "run: python -m tests.scoring.pages"


def ready_made() -> set[Callable[..., Any]]:
    """Every function that is marked as a grader, wherever it is."""
    found = set()
    for module in pkgutil.walk_packages(heldout.scoring.__path__, "heldout.scoring."):
        for value in vars(importlib.import_module(module.name)).values():
            if inspect.isfunction(value) and version_of(value) is not None:
                found.add(value)
    return found


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_tables_say(name: str) -> None:
    assert (FOLDER / f"{name}.md").read_text(encoding="utf-8") == page(PAGES[name]), REMAKE


def test_there_is_no_page_of_something_else() -> None:
    assert {path.stem for path in FOLDER.glob("*.md")} == set(PAGES), REMAKE


def test_every_ready_made_grader_has_a_page() -> None:
    documented = {function for made in PAGES.values() for function in made.graders}
    missing = {function.__qualname__ for function in ready_made() - documented}
    assert not missing, f"{missing} have no page in tests/scoring/pages.py"


def test_every_ready_made_grader_is_found() -> None:
    names = {function.__name__ for function in ready_made()}
    assert {"grade_choice", "grade_number", "grade_math", "grade_json", "has_tags"} <= names


def test_writing_the_pages_removes_stale_ones(tmp_path: Path) -> None:
    (tmp_path / "gone.md").write_text("of a grader that is no more")
    write(tmp_path)
    assert {path.stem for path in tmp_path.glob("*.md")} == set(PAGES)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a", "`a`"),
        ("", "(nothing)"),
        ("  ", "␣␣"),
        (" a\n", "`␣a⏎`"),
        ("a|b", "`a\\|b`"),
        ("a\\|b", "<code>a&#92;&#124;b</code>"),
        ("a`b", "``a`b``"),
        ("`a`", "`` `a` ``"),
        ("<think>$x$", "`<think>$x$`"),
        ("a\u2028\ud800", "`a\\u2028\\ud800`"),
        ("a\\", "<code>a&#92;</code>"),
    ],
)
def test_a_cell_shows_every_character(text: str, shown: str) -> None:
    assert cell(text) == shown


def test_a_row_has_what_was_read_and_why() -> None:
    example = Example("a|b", ["a"], None, 1 / 3, "`x|y` and $5 <b>")
    last = table(Table((example,))).splitlines()[-1]
    assert last == ('| `a\\|b` | `["a"]` | – | 0.333 | `x\\|y` and &#36;5 &#60;b&#62; |')
