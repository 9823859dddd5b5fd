"""Deterministic figures: the same numbers give the same bytes.

No dates, no random ids, none of the user's settings; colours for any kind of colour vision.
matplotlib is imported when a figure is drawn, and pyplot never.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from heldout._core.extras import missing_extra
from heldout._core.format import cut
from heldout.errors import InvalidInput

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Format = Literal["png", "svg", "pdf"]
FORMATS: tuple[Format, ...] = get_args(Format)
# Okabe and Ito's palette.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
GREY = "#666666"
STYLE: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 9,
    "grid.color": "#E5E5E5",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "pdf.fonttype": 42,  # text stays text, as publishers ask
    "svg.hashsalt": "heldout",
    "text.parse_math": False,  # a name with a dollar in it is a name
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": "black",
    "ytick.labelcolor": "black",
}
LARGEST = 1e100
"""Axis arithmetic overflows beyond it."""


def render_figure(
    draw: Callable[[Figure], None], *, size: tuple[float, float], format: Format = "png"
) -> bytes:
    """Return a picture as bytes; its size is in inches."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as problem:
        raise missing_extra(f"drawing needs matplotlib ({problem})", "plot") from None

    # Not pyplot, and settings that are put back: a notebook does not notice.
    with mpl.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # drawn as a box
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        out = io.BytesIO()
        dated = {"png": "Software", "svg": "Date", "pdf": "CreationDate"}[format]
        figure.savefig(out, format=format, dpi=200, metadata={dated: None})
    return out.getvalue()


def format_of(file: Path) -> Format:
    """Return the format of a picture by the suffix of its file name."""
    ending = file.suffix.removeprefix(".").lower()
    for format in FORMATS:
        if ending == format:
            return format
    raise InvalidInput(
        f"{file} is no picture that can be drawn; it ends in one of .{', .'.join(FORMATS)}"
    )


def shorten_label(text: str, longest: int = 40) -> str:
    """Return text as a label of at most `longest` characters, on one line."""
    return cut(text.replace("\n", " "), longest)
