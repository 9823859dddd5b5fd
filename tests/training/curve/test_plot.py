"""Curves as a figure: what is drawn, from which numbers, and always the same bytes."""

from __future__ import annotations

import sys
from typing import Any

import matplotlib
import pytest

from heldout.errors import InvalidInput
from heldout.training.curve.plot import NamedCurve, plot
from heldout.training.curve.points import CurvePoint
from tests.training.curves import point


def result(step: int, mean: float, **changed: Any) -> CurvePoint:
    summary = {
        "n": 8,
        "mean": mean,
        "ci_low": mean - 0.1,
        "ci_high": mean + 0.1,
        "pass_rate": mean / 2,
        "metric_len": 100 * mean,
        "metric_len_n": 5,
        "metric_len_stderr": 1.0,
    }
    return point(step, summary=summary, asked=8, of=8, **changed)


CURVE = NamedCurve("mine", [result(0, 0.2), point(50, None), result(100, 0.6)])


def drawn(*curves: NamedCurve, metric: str = "reward", pass_rate: bool = False) -> list[Any]:
    """The panels of the figure that would be saved."""
    from matplotlib.figure import Figure

    kept: list[Figure] = []
    save = Figure.savefig

    def keep(figure: Figure, *args: Any, **settings: Any) -> None:
        kept.append(figure)
        save(figure, *args, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", keep)
        plot(curves, metric, pass_rate=pass_rate)
    return kept[0].axes


def values(panel: Any, marker: str = "None", face: str | None = None) -> list[tuple[float, float]]:
    """(x, y) of everything drawn with this marker; "None" is the line itself."""
    lines = [line for line in panel.lines if line.get_marker() == marker]
    if face is not None:
        lines = [
            line for line in lines if (line.get_markerfacecolor() == "white") == (face == "white")
        ]
    return [(float(x), float(y)) for line in lines for x, y in line.get_xydata()]


def test_the_line_goes_through_the_means_and_the_band_through_the_bounds() -> None:
    (panel,) = drawn(CURVE)
    assert values(panel) == [(0, 0.2), (100, 0.6)]
    corners = {tuple(map(float, v)) for v in panel.collections[0].get_paths()[0].vertices}
    assert {(0.0, 0.1), (0.0, 0.30000000000000004), (100.0, 0.5), (100.0, 0.7)} <= corners


def test_skips_are_crosses_on_the_axis() -> None:
    (panel,) = drawn(CURVE)
    assert values(panel, "x") == [(50, 0)]


def test_points_of_fewer_items_are_hollow() -> None:
    fewer = [result(150, 0.5, partial="out of time"), point(200, 0.5, asked=4, of=8)]
    (panel,) = drawn(NamedCurve("mine", [*CURVE.points, *fewer]))
    assert values(panel, "o", "white") == [(150, 0.5), (200, 0.5)]
    assert values(panel, "o", "full") == [(0, 0.2), (100, 0.6)]


def test_the_axis_says_what_it_is_of_and_how_many_items() -> None:
    assert drawn(CURVE)[0].get_ylabel() == "held-out reward (n = 8)"
    assert drawn(CURVE, metric="len")[0].get_ylabel() == "held-out len (n = 5)"
    assert values(drawn(CURVE, metric="len")[0]) == [(0, 20.0), (100, 60.0)]
    more = NamedCurve("more", [point(0, summary={"n": 20, "mean": 0.5})])
    assert drawn(CURVE, more)[0].get_ylabel() == "held-out reward (n = 8–20)"


def test_the_pass_rate_has_a_panel_of_its_own_if_asked_for() -> None:
    panels = drawn(CURVE, pass_rate=True)
    assert [panel.get_ylabel() for panel in panels] == [
        "held-out reward (n = 8)",
        "held-out pass rate (n = 8)",
    ]
    assert values(panels[1]) == [(0, 0.1), (100, 0.3)]


def test_a_single_point_has_its_interval_as_a_bar() -> None:
    (panel,) = drawn(NamedCurve("mine", [result(10, 0.5)]))
    bar = panel.collections[-1].get_segments()[0]
    assert [tuple(map(float, end)) for end in bar] == [(10.0, 0.4), (10.0, 0.6)]


@pytest.mark.parametrize("format", ["png", "svg", "pdf"])
def test_the_same_curves_give_the_same_bytes(format: Any) -> None:
    one = plot([CURVE], format=format)
    assert one == plot([CURVE], format=format)
    assert one.startswith({"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[format])
    assert b"20" + b"26-" not in one  # no date


def test_the_settings_of_the_user_do_not_show_and_are_left_as_they_were() -> None:
    before = plot([CURVE], format="svg")
    with matplotlib.rc_context({"lines.linewidth": 9, "text.usetex": True, "font.size": 30}):
        assert plot([CURVE], format="svg") == before
        assert matplotlib.rcParams["lines.linewidth"] == 9
    assert (
        "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()
    )


@pytest.mark.parametrize("name", ["$\\frac{1}$", "漢字", "a\nb", "_hidden", "x" * 500])
def test_a_name_is_a_name(name: str) -> None:
    assert plot([NamedCurve(name, CURVE.points)])


def test_what_is_too_large_to_draw_is_named() -> None:
    with pytest.raises(InvalidInput, match=r"reward is 1e\+308 at step 7 of mine: too large"):
        plot([NamedCurve("mine", [point(7, 1e308)])])


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InvalidInput, match="pip install 'matplotlib>="):
        plot([CURVE])


def test_two_panels_fit_without_skips() -> None:
    """What stands on the axis has no say in the layout. Warnings are errors here."""
    points = [point(step, step / 50) for step in (0, 10, 20, 50)]
    assert plot([NamedCurve("a", points)], pass_rate=True)
