"""heldout view: runs, comparisons and curves in a browser.

Run directories go in, as untrusted data; pages come out, on loopback or as one file. The rows and
sentences are those of `reporting/`, so the page says what the terminal prints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heldout._core.lazy import lazy

if TYPE_CHECKING:
    from heldout.viewer.notebook import view as view

__all__, __getattr__, __dir__ = lazy(__name__)
