"""How far a run is: counts, the running mean with its error bar, and a line that shows them.

The line is shown on standard error, and only where that is a terminal; elsewhere it is silent.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from heldout.stats import Moments

if TYPE_CHECKING:
    from rich.console import RenderableType

FOLD_AFTER = 4096
"""Rewards that wait to be summed, at most, where nothing displays them."""


class RunProgress:
    """Counts of a run in flight; errored items count as 0, as they will in `mean`.

    The run adds in its own thread while the display reads in another.
    """

    def __init__(self, repeats: int) -> None:
        """Begin with nothing.

        Args:
            repeats: Times each sample is run.
        """
        self.done = 0
        self.errors = 0
        self.in_flight = 0
        self.total: int | None = None
        """Items in all, once that is known."""
        self.has_copies = False
        """Whether some samples are of equal content: then there is no error bar before the end."""
        self._repeats = repeats
        self._partial: dict[int, list[float]] = {}
        self._moments = Moments()
        self._fresh: list[tuple[int, float]] = []
        self._lock = threading.Lock()

    def add(self, index: int, reward: float, *, ok: bool = True) -> None:
        """Count an item that has ended.

        Args:
            index: Position of its sample in the dataset.
            reward: Its reward; 0 where it errored.
            ok: Whether it was scored.
        """
        with self._lock:
            self.done += 1
            self.errors += not ok
            if self._repeats == 1:
                self._fresh.append((index, reward))
            else:  # Error bars are clustered by sample, so its repeats go in together.
                rewards = self._partial.setdefault(index, [])
                rewards.append(reward)
                if len(rewards) == self._repeats:
                    self._fresh.extend((index, r) for r in self._partial.pop(index))
            if len(self._fresh) >= FOLD_AFTER:
                self._fold()

    def status(self) -> str:
        """Say what is known so far: the mean with its interval and denominator, and errors.

        Returns:
            `mean 0.500 (0.299 … 0.701) over 20, 1 error`, with the items in flight.
        """
        with self._lock:
            self._fold()
            parts = [f"{self.in_flight} in flight"] if self.in_flight else []
            mean = self._moments.mean
            if mean is None or self.errors == self.done:
                parts.append("mean –")
            else:
                interval = None if self.has_copies else self._moments.interval()
                bar = "" if interval is None else f" ({interval.low:.3f} … {interval.high:.3f})"
                parts.append(f"mean {mean:.3f}{bar} over {self._moments.n}")
            if self.errors:
                parts.append(f"{self.errors} error{'s' * (self.errors > 1)}")
            return ", ".join(parts)

    def _fold(self) -> None:
        if self._fresh:
            clusters, values = zip(*self._fresh, strict=True)
            self._fresh.clear()
            self._moments.add(np.array(values, dtype=np.float64), np.array(clusters))


@contextmanager
def show_progress(progress: RunProgress, name: str, *, wanted: bool) -> Iterator[None]:
    """Show a line that redraws itself a few times a second, if there is a terminal.

    Args:
        progress: What to show.
        name: Of the run.
        wanted: False shows nothing.

    Yields:
        Nothing; the line stays in its last state afterwards.
    """
    if not wanted or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    display = Live(
        console=console,
        get_renderable=make_line(progress, name, width=console.width),
        refresh_per_second=4,
        # What the user's code prints goes above the line; where it does not go to the terminal
        # it is not ours to move there.
        redirect_stdout=sys.stdout.isatty(),
    )
    # Drawn before anything is printed: two threads that print at once would draw it twice.
    display.start(refresh=True)
    try:
        yield
    finally:
        display.stop()


WIDE = 130
"""Columns of a terminal that has room for a name and a bar."""


def make_line(progress: RunProgress, name: str, *, width: int) -> Callable[[], RenderableType]:
    """Make the line of a run.

    Args:
        progress: What to show.
        name: Of the run.
        width: Columns of the terminal: a narrow one gets the parts that matter most.

    Returns:
        Draws the line as it is now.
    """
    from rich.padding import Padding
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    counts, elapsed = MofNCompleteColumn(), TimeElapsedColumn()
    title, status = (
        TextColumn(f"{{task.{field}}}", markup=False) for field in ("description", "fields[status]")
    )
    bar, remaining = BarColumn(bar_width=None), TimeRemainingColumn(compact=True)
    line = Progress(title, bar, counts, elapsed, remaining, status)
    # What a resumed run had already does not count as speed.
    task = line.add_task(name[:24], total=progress.total, completed=progress.done, status="")

    def draw() -> RenderableType:
        line.update(task, completed=progress.done, total=progress.total, status=progress.status())
        if width >= WIDE:
            drawn = line.get_renderable()
        else:
            now = line.tasks[0]
            parts = [counts.render(now), elapsed.render(now), status.render(now)]
            drawn = Text(" ", no_wrap=True, overflow="ellipsis").join(parts)
        # Room for the ^C that a terminal echoes: a line that wraps is not redrawn cleanly.
        return Padding(drawn, (0, 3, 0, 0))

    return draw
