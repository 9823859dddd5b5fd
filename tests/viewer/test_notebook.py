"""Reports, comparisons and curves in a notebook: tables without script, the viewer in a frame."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from msgspec.structs import replace

import heldout
from heldout.analysis import compare
from heldout.viewer.export import export_runs
from heldout.viewer.notebook import curve_html
from tests.viewer.conftest import HOSTILE, Command, hostile_results
from tests.viewer.runs import make_curve


class Tags(HTMLParser):
    """The elements and the text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data + " "


PLAIN = {"p", "b", "table", "tr", "th", "td", "svg", "line", "circle", "text"}


def test_a_report_shows_the_table_of_show(folder: Path, command: Command) -> None:
    shown = Tags(heldout.EvalReport.load(folder / "shop-base")._repr_html_())
    assert shown.tags <= PLAIN
    printed = command("show", folder / "shop-base")
    for number in re.findall(r"\d\.\d{3}", shown.text):
        assert number in printed
    assert "reward, scored only" in shown.text


def test_a_comparison_shows_its_verdict_first(folder: Path, command: Command) -> None:
    comparison = compare(folder / "shop-base", folder / "shop-tuned", by="level")
    shown = Tags(comparison._repr_html_())
    assert shown.tags <= PLAIN
    sentence = command("compare", folder / "shop-base", folder / "shop-tuned").splitlines()[-1]
    assert shown.text.startswith(sentence)
    assert "level=hard" in shown.text


def test_a_curve_is_its_table_and_the_viewers_drawing(tmp_path: Path) -> None:
    evals = make_curve(tmp_path, 40, samples=8)
    page = evals._repr_html_()
    shown = Tags(page)
    assert shown.tags <= {*PLAIN, "iframe"}
    assert "best so far" in shown.text
    assert html.escape('<html data-start="#/curve/grpo-shop" lang="en">') in page
    several = [*evals.points, replace(evals.points[0], label="other one")]
    assert "#/curve/grpo-shop?label=other%20one" in curve_html(several, "other one", evals.run_dir)
    assert "<iframe" not in curve_html([], "eval", None)


def test_a_curve_that_cannot_be_exported_is_a_table_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> bytes:
        raise heldout.errors.InvalidInput("something looks like a key")

    monkeypatch.setattr("heldout.viewer.export.export_runs", refuse)
    shown = Tags(make_curve(tmp_path, 40, samples=8)._repr_html_())
    assert shown.tags <= PLAIN
    assert "The curve is not drawn: something looks like a key" in shown.text


def test_hostile_text_is_escaped(folder: Path) -> None:
    report = heldout.EvalReport.load(folder / "hostile")
    shown = Tags(report._repr_html_())
    assert shown.tags <= PLAIN
    assert not {name for name in shown.attributes if name.startswith("on")}
    assert "onerror=alert(1)" in shown.text  # the model's name, as text
    assert "\u202e" not in shown.text
    assert HOSTILE


def test_the_viewer_is_a_sandboxed_frame(folder: Path) -> None:
    report = heldout.EvalReport.load(folder / "arithmetic")
    shown = heldout.view(report)._repr_html_()
    assert shown.startswith('<iframe sandbox="allow-scripts" ')
    assert "allow-same-origin" not in shown
    assert shown.count("<") == 2
    source = re.search(r'srcdoc="([^"]*)"', shown)
    assert source
    assert html.unescape(source[1]).encode() == export_runs([folder / "arithmetic"])


def test_a_report_in_memory_is_shown_too() -> None:
    from heldout.store.columns import summarize_results

    results = hostile_results()
    report = heldout.EvalReport(results, summarize_results(results), {"experiment_name": "a/b"})
    assert "a_b" in heldout.view(report).page
    assert isinstance(report._repr_html_(), str)


def test_a_run_that_is_not_there_is_an_error() -> None:
    with pytest.raises(heldout.errors.RunDirectoryError, match="no run at nope"):
        heldout.view("nope")
