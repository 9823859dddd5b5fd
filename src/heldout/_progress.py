"""How far a run is: counts, tokens, the running mean with its error bar, and a line of them.

The line is shown on standard error, and only where that is a terminal; elsewhere it is silent.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import numpy as np

from heldout._format import cut
from heldout.prices import Price
from heldout.stats import Moments
from heldout.types import Usage

if TYPE_CHECKING:
    from rich.console import RenderableType

FOLD_AFTER = 4096
"""Rewards that wait to be summed, at most, where nothing displays them."""


class RunProgress:
    """Counts of a run in flight; errored items count as 0, as they will in `mean`.

    The run adds in its own thread while the display reads in another.
    """

    def __init__(self, repeats: int, price: Price | None = None) -> None:
        """Begin with nothing.

        Args:
            repeats: Times each sample is run.
            price: What tokens cost, where that is known.
        """
        self.done = 0
        self.errors = 0
        self.in_flight = 0
        self.total: int | None = None
        """Items in all, once that is known."""
        self.has_copies = False
        """Whether some samples are of equal content: then there is no error bar before the end."""
        self.prompt_tokens = 0
        self.completion_tokens = 0
        """Tokens of the model turns since this run, or its resumption, began."""
        self._price = price
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

    def add_turn(self, usage: Usage | None) -> None:
        """Count the tokens of a model turn.

        Args:
            usage: As the endpoint reports them; None if it does not.
        """
        if usage is not None:
            self.prompt_tokens += usage.prompt_tokens
            self.completion_tokens += usage.completion_tokens

    def status(self) -> str:
        """Say what is known so far: the mean with its interval and denominator, and errors.

        Returns:
            `mean 0.500 (0.299 … 0.701) over 20, 1 error`.
        """
        with self._lock:
            self._fold()
            parts = []
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

    @property
    def cost(self) -> float | None:
        """What the tokens so far cost; None without a price."""
        if self._price is None:
            return None
        return self._price.cost(self.prompt_tokens, self.completion_tokens)

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


BAR = 20
"""Columns of the bar."""
PARTS = (
    *("count", "status", "elapsed", "tokens", "in flight", "left", "cost"),
    *("name", "speed", "bar"),
)
"""What a line shows, as far as there is room: the first matter most."""
SPARE = 3
"""Columns for the ^C that a terminal echoes: a line that wraps is not redrawn cleanly."""


def make_line(
    progress: RunProgress, name: str, *, width: int, clock: Callable[[], float] = time.monotonic
) -> Callable[[], RenderableType]:
    """Make the line of a run.

    Args:
        progress: What to show.
        name: Of the run.
        width: Columns of the terminal: a narrow one gets the parts that matter most.
        clock: Seconds that pass.

    Returns:
        Draws the line as it is now.
    """
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    start = clock()
    resumed_at = progress.done  # what a resumed run had already does not count as speed

    def draw() -> RenderableType:
        done, total = progress.done, progress.total
        elapsed = clock() - start
        # Over the whole run: a short stretch says little where answers take different times.
        speed = (done - resumed_at) / elapsed if elapsed else 0.0
        left = (total - done) / speed if total is not None and speed else 0.0
        tokens = progress.completion_tokens / elapsed if elapsed else 0.0
        texts = {
            "name": name[:24],
            "bar": " " * BAR,
            "count": f"{done}/{'?' if total is None else total}",
            "speed": _format_speed(speed),
            "tokens": f"{tokens:,.0f} tokens/s" if tokens else "",
            "elapsed": "in " * (done == total) + str(timedelta(seconds=int(elapsed))),
            "left": f"{timedelta(seconds=int(left))} left" if left else "",
            "in flight": f"{progress.in_flight} in flight" if progress.in_flight else "",
            "status": progress.status(),
            "cost": "" if progress.cost is None else f"cost {progress.cost:.4g}",
        }
        room, shown = width - SPARE, set()
        texts["status"] = cut(texts["status"], max(1, room - len(texts["count"]) - 2))
        for part in PARTS:
            if texts[part] and len(texts[part]) + 1 <= room:
                room -= len(texts[part]) + 1
                shown.add(part)
        bar = ProgressBar(total=total, completed=done, width=BAR)
        line = Table.grid(padding=(0, 1, 0, 0))
        line.add_row(
            *(bar if part == "bar" else Text(texts[part]) for part in texts if part in shown)
        )
        return line

    return draw


def _format_speed(speed: float) -> str:
    if not speed:
        return ""
    return f"{speed:.1f}/s" if speed >= 1 else f"{speed * 60:.1f}/min"
