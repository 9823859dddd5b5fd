"""HTML for notebooks, made by the viewer, which is far above what is shown.

Reports, comparisons and curves know nothing of pages. So their `_repr_html_` asks for the module by
its name, when a notebook calls it; an import there would tie half of heldout into one circle.
"""

from __future__ import annotations

from importlib import import_module
from typing import Literal


def as_html(kind: Literal["report", "comparison", "curve"], *shown: object) -> str:
    """Return what `heldout.viewer.notebook` makes of a report, a comparison or a curve."""
    html: str = getattr(import_module("heldout.viewer.notebook"), f"{kind}_html")(*shown)
    return html
