"""A comparison as a forest plot: what is drawn, of which numbers, and always the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import matplotlib
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from heldout import EvalReport, EvalResult, Message, Metric, Sample, Score, Trajectory
from heldout.analysis import Comparison, compare
from heldout.analysis.plot import ROWS_DRAWN, plot_comparison
from heldout.errors import InvalidInput
from heldout.store.columns import summarize_results


def report(
    name: str, rewards: Sequence[float | None], topics: Sequence[str] | None = None
) -> EvalReport:
    topics = topics or ["easy", "hard"] * (len(rewards) // 2)
    results = [
        EvalResult(
            f"q{i}",
            Sample(f"q{i}", {"question": "?"}, metadata={"topic": topic}),
            Trajectory((Message("user", "?"),)),
            Score() if reward is None else Score((Metric("right", reward, weight=1.0),)),
            error="it broke" if reward is None else None,
        )
        for i, (reward, topic) in enumerate(zip(rewards, topics, strict=True))
    ]
    return EvalReport(results, summarize_results(results), {"experiment_name": name})


def comparison(*, topics: Sequence[str] | None = None, broken: int = 0, **named: str) -> Comparison:
    n = 40 if topics is None else len(topics)
    a = report(named.get("a", "before"), ([0.0, 0.5] * n)[:n], topics)
    b = report(
        named.get("b", "after"), [*[None] * broken, *([1.0, 0.0, 0.5] * n)[broken:n]], topics
    )
    return compare(a, b, by="topic")


def drawn(found: Comparison, **settings: Any) -> Any:
    """The figure that would be saved."""
    from matplotlib.figure import Figure

    kept: list[Figure] = []
    save = Figure.savefig

    def keep(figure: Figure, *args: Any, **given: Any) -> None:
        kept.append(figure)
        save(figure, *args, **given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", keep)
        plot_comparison(found, **settings)
    return kept[0]


def bars(figure: Any) -> list[tuple[float, float]]:
    """Ends of the intervals, from top to bottom."""
    lines = [line.get_xdata() for line in figure.axes[0].lines if line.get_marker() == "None"]
    return [(float(x[0]), float(x[1])) for x in lines if len({*x}) > 1]


def labels(figure: Any) -> list[str]:
    return [label.get_text() for label in figure.axes[0].get_yticklabels()]


def test_every_difference_has_its_estimate_its_interval_and_its_n() -> None:
    found = comparison()
    figure = drawn(found)
    assert labels(figure) == ["all", "easy", "hard"]
    assert labels(drawn(found, order=[("hard",), ("easy",)])) == ["all", "hard", "easy"]
    intervals = [found.overall.interval, *(one.simultaneous_interval for one in found.slices)]
    assert bars(figure) == [(i.low, i.high) for i in intervals if i is not None]
    marks = [line for line in figure.axes[0].lines if line.get_marker() in ("D", "o")]
    differences = [found.overall, *(one.difference for one in found.slices)]
    assert [float(mark.get_xdata()[0]) for mark in marks] == [d.difference for d in differences]
    assert [text.get_text() for text in figure.axes[0].texts] == ["n = 40", "n = 20", "n = 20"]


def test_the_figure_says_who_is_compared_in_what_and_how_sure() -> None:
    figure = drawn(comparison())
    assert figure.get_suptitle() == "A: before\nB: after"
    assert figure.get_supxlabel() == (
        "difference in reward, B - A (95% intervals; those of the 2 slices simultaneous)"
    )
    whole = replace(comparison(), by=(), slices=(), slices_with_errors=())
    assert drawn(whole).get_supxlabel() == "difference in reward, B - A (95% interval)"


def test_where_items_errored_both_readings_are_drawn() -> None:
    figure = drawn(comparison(broken=4))
    assert labels(figure) == [
        *(
            "all, scored in both",
            "all, errored as 0",
            "easy, scored in both",
            "hard, scored in both",
        )
    ]
    assert [text.get_text() for text in figure.axes[0].texts][:2] == ["n = 36", "n = 40"]


def test_what_errored_counts_as_is_named() -> None:
    a, b = report("a", [-3.0, 1.0] * 10), report("b", [None, 1.0] * 10)
    assert labels(drawn(compare(a, b)))[1] == "all, errored as -3"


def test_an_estimate_without_an_interval_is_hollow() -> None:
    figure = drawn(compare(report("a", [3.0, 3.0]), report("b", [5.0, 5.0])))
    assert bars(figure) == []
    assert next(line.get_markerfacecolor() for line in figure.axes[0].lines) == "white"


@pytest.mark.parametrize(
    ("label", "shown"),
    [
        ("costs $5 and $6", "costs $5 and $6"),
        (r"$\frac{$", r"$\frac{$"),
        ("two\nlines", "two lines"),
        ("\x1b[2J\u202e", r"\x1b[2J\u202e"),
        ("x" * 200, "x" * 35 + "…"),
        ("日本語 \ue000", "日本語 \\ue000"),
    ],
)
def test_labels_are_text_and_never_formulas(label: str, shown: str) -> None:
    found = comparison(topics=[label, "other"] * 10, a=label, b=r"$\broken{$")
    figure = drawn(found)
    assert shown in labels(figure)
    assert figure.get_suptitle().endswith(r"B: $\broken{$")


def test_thirty_slices_have_room_and_a_thousand_are_refused() -> None:
    figure = drawn(comparison(topics=[f"topic {i % 30} {'long ' * 20}" for i in range(120)]))
    assert len(labels(figure)) == 31
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    boxes = [t.get_window_extent(renderer) for t in figure.axes[0].get_yticklabels()]
    for above, below in pairwise(boxes):
        assert below.y1 <= above.y0
    width = figure.get_window_extent(renderer).x1
    texts = [*figure.axes[0].texts, *figure.texts, *figure.axes[0].get_yticklabels()]
    for one in texts:
        box = one.get_window_extent(renderer)
        assert box.x0 >= -1, one.get_text()
        assert box.x1 <= width + 1, one.get_text()
    many = comparison(topics=[f"topic {i}" for i in range(ROWS_DRAWN + 1)])
    with pytest.raises(InvalidInput, match="201 slices are too many to draw"):
        plot_comparison(many)


@pytest.mark.parametrize("format", ["png", "svg", "pdf"])
def test_the_same_comparison_gives_the_same_bytes(format: Any) -> None:
    one = plot_comparison(comparison(), format=format)
    with matplotlib.rc_context({"lines.linewidth": 9, "font.size": 30}):
        assert plot_comparison(comparison(), format=format) == one
    assert one.startswith({"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[format])
