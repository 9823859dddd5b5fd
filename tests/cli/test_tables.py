"""Reports as rows: the same content in a terminal, in Markdown and in JSON, never obeyed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import heldout
from heldout.cli._tables import print_json, print_report, render_markdown
from heldout.errors import HeldoutError
from heldout.reporting.blocks import Column, Line, Report, Section, Span, Table, code, name
from heldout.stats import CONFIDENCE

REPORT = Report(
    [
        Line("A: ", name("before"), "; 2 samples"),
        Line("B: ", name("after"), "; 2 samples"),
        Table(
            [Column(""), Column("mean", "right")],
            [[code("reward"), "0.250"], [code("length"), "31.000"]],
            totals=[["all", "1.000"]],
        ),
        Line("Two wins."),
        Line("No losses."),
        Section("Flips: 1", [Table([Column("sample")], [[Span("q1", "green")]])]),
    ],
    conclusion="B is better.",
)


def test_a_terminal_has_the_conclusion_last(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(REPORT)
    lines = [line.strip(" ─") for line in capsys.readouterr().out.splitlines()]
    assert [line for line in lines if line] == [
        "A: before; 2 samples",
        "B: after; 2 samples",
        "mean",
        "reward    0.250",
        "length   31.000",
        "all       1.000",
        "Two wins.",
        "No losses.",
        "Flips: 1",
        "sample",
        "q1",
        "B is better.",
    ]


def test_markdown_has_the_conclusion_as_its_heading() -> None:
    assert render_markdown(REPORT).splitlines() == [
        "### B is better.",
        "",
        "- A: <code>before</code>; 2 samples",
        "- B: <code>after</code>; 2 samples",
        "",
        "|  | mean |",
        "| :-- | --: |",
        "| <code>reward</code> | 0.250 |",
        "| <code>length</code> | 31.000 |",
        "| all | 1.000 |",
        "",
        "- Two wins.",
        "- No losses.",
        "",
        "<details>",
        "<summary>Flips: 1</summary>",
        "",
        "| sample |",
        "| :-- |",
        "| q1 |",
        "",
        "</details>",
    ]


def test_an_icon_stands_before_the_conclusion_in_markdown() -> None:
    assert render_markdown(Report([], conclusion="Passes.", icon="✅")) == "### ✅ Passes."


def test_text_in_a_terminal_is_neither_markup_nor_escapes_nor_rows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    hostile = "[red]x[/red]\x1b[2J\u202e\n | y"
    table = Table([Column(hostile, wrap=True)], [[hostile], [Span(hostile, "bold")]])
    print_report(Report([Line(hostile), table], conclusion=hostile))
    shown = "[red]x[/red]\\x1b[2J\\u202e\\n | y"
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert [line for line in lines if line.strip("─")] == [shown] * 5


def test_json_keeps_its_values_and_escapes_what_a_terminal_would_obey(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    value = {"id": "\x1b[2J\u202eright\U000e0001", "n": 1}
    print_json(value, None)
    out = capfdbinary.readouterr().out.decode()
    assert "\u202e" not in out
    assert "\x1b" not in out
    assert json.loads(out) == value


@pytest.mark.parametrize("value", [{"path": "x"}, {"path": 1, "moved": []}, []])
def test_json_that_does_not_keep_to_its_schema_is_not_printed(
    capsysbinary: pytest.CaptureFixture[bytes], value: object
) -> None:
    with pytest.raises(HeldoutError, match="keeps to its schema"):
        print_json(value, "repair")
    assert capsysbinary.readouterr().out == b""


def test_labels_in_terminals_and_pages_say_the_level_of_the_intervals() -> None:
    """They are written out: a column's title is read more often than the level changes."""
    package = Path(heldout.__file__).parent
    sources = [*package.glob("reporting/*.py"), *package.glob("cli/*.py")]
    sources += [p for p in package.glob("viewer/static/*.js") if "bundle" not in p.name]
    labels = [m for p in sources for m in re.findall(r"(\d+)% interval", p.read_text())]
    assert len(labels) > 10
    assert {f"{CONFIDENCE:.0%}"} == {f"{label}%" for label in labels}
