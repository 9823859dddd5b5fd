"""Progress of a run: counts, tokens, the running mean with its error bar, and a status line.

The line is on standard error: drawn again and again on a terminal, a new one every 30 s elsewhere.
"""

from __future__ import annotations

import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from heldout._core.format import count, printable
from heldout._core.prices import Price, find_price
from heldout.stats import Moments
from heldout.types import OtherUsage, Usage

if TYPE_CHECKING:
    from rich.console import RenderableType

NARROW = 120
"""Terminal width below which there is no room for a run's name and a bar."""
LINE_SECONDS = 30.0
"""Between two lines where there is no terminal: a log of a day has 3,000."""
FRESH_SHARE = 0.05
"""New rewards, as a share of those before, for which the mean is computed again."""


class RunProgress:
    """Counts of a run in flight; errored items count as 0, as they will in `mean`.

    The run adds in its own thread while the display reads in another.
    """

    def __init__(self, repeats: int, price: Price | None = None) -> None:
        self.done = 0
        self.errors = 0
        self.in_flight = 0
        self.held_back = ""
        """How `heldout ctl` holds the run back, in words."""
        self.total: int | None = None
        """Items in all, once that is known."""
        self.has_copies = False
        """Whether some samples are of equal content: then there is no error bar before the end."""
        self.prompt_tokens = 0
        self.completion_tokens = 0
        """Tokens of the model turns since this run, or its resumption, began."""
        self.weight_versions: dict[str, None] = {}
        """The versions of weights that servers said they answered with, in order."""
        self.describe_looks: Callable[[], str] | None = None
        """Says what the last look of a run that stops has found; the mean so far says nothing."""
        self._price = price
        self._other_prices: dict[str, Price | None] = {}
        self._other_cost = 0.0
        self._repeats = repeats
        self._partial: dict[int, list[float]] = {}
        # Of samples that have all their repeats, one sample after the other.
        self._rewards = array("d")
        self._moments = Moments()
        self._lock = threading.Lock()

    def add(self, index: int, reward: float, *, ok: bool = True) -> None:
        """Count a finished item of the sample at an index; `ok` if it was scored."""
        with self._lock:
            self.done += 1
            self.errors += not ok
            # Error bars are clustered by sample, so its repeats go in together.
            rewards = self._partial.setdefault(index, [])
            rewards.append(reward)
            if len(rewards) == self._repeats:
                self._rewards.extend(self._partial.pop(index))

    def mend(self, reward: float, *, ok: bool) -> None:
        """Count an item anew that had errored, which counted as 0; `ok` if it was scored now."""
        with self._lock:
            self.errors -= ok
            # Any 0 is as good as the one that it was.
            if ok and 0.0 in self._rewards:
                self._rewards[self._rewards.index(0.0)] = reward

    def add_turn(self, usage: Usage | None) -> None:
        """Count the tokens of a model turn, where the endpoint reports them."""
        if usage is not None:
            self.prompt_tokens += usage.prompt_tokens
            self.completion_tokens += usage.completion_tokens

    def add_others(self, usages: Iterable[OtherUsage]) -> None:
        """Count what judges and simulated users cost; without a price there is no cost at all."""
        for part in usages if self._price is not None else ():
            if part.model not in self._other_prices:
                self._other_prices[part.model] = find_price(part.model)
            price = self._other_prices[part.model]
            if price is None or part.usage is None:
                self._price = None
                return
            tokens = part.usage.prompt_tokens, part.usage.completion_tokens
            self._other_cost += price.cost(*tokens)

    def status(self) -> str:
        """Return the mean so far and errors: `mean 0.500 (0.299 … 0.701) over 20, 1 error`."""
        with self._lock:
            if self.describe_looks is not None:
                text = self.describe_looks()
                return f"{text}, {count(self.errors, 'error')}" if self.errors else text
            self._update_moments()
            text, mean = "mean –", self._moments.mean
            if mean is not None and self.errors < self.done:
                interval = None if self.has_copies else self._moments.interval()
                bar = "" if interval is None else f" ({interval.low:.3f} … {interval.high:.3f})"
                text = f"mean {mean:.3f}{bar} over {self._moments.n}"
            return f"{text}, {count(self.errors, 'error')}" if self.errors else text

    def details(self, elapsed: float) -> str:
        """Return the status, items in flight, tokens per second, and the cost where it is known."""
        parts = [self.held_back] if self.held_back else []
        parts.append(self.status())
        if self.in_flight:
            parts.append(f"{self.in_flight} in flight")
        if self.completion_tokens and elapsed:
            parts.append(f"{self.completion_tokens / elapsed:,.0f} tokens/s")
        if (cost := self.cost()) is not None:
            parts.append(f"cost {cost:.4g}")
        return ", ".join(parts)

    def cost(self) -> float | None:
        """Return what was spent since this run, or its resumption, began; None if not known."""
        if self._price is None:
            return None
        return self._price.cost(self.prompt_tokens, self.completion_tokens) + self._other_cost

    def _update_moments(self) -> None:
        """Compute the mean again where enough is new: of a million rewards it takes a while."""
        n, before = len(self._rewards), self._moments.n
        if n - before > FRESH_SHARE * before or self.done == self.total:
            # A copy: an array cannot grow while numpy has a view of it.
            values = np.array(self._rewards)
            self._moments = Moments.of(values, np.arange(n) // self._repeats)


@contextmanager
def show_progress(progress: RunProgress, name: str, *, wanted: bool) -> Iterator[None]:
    """Show a line that redraws itself a few times a second.

    Without a terminal there is a new line every `LINE_SECONDS`, and none of a run that is quicker.
    """
    if not wanted:
        yield
        return
    if not sys.stderr.isatty():
        with _printing_lines(progress, name):
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


@contextmanager
def _printing_lines(progress: RunProgress, name: str) -> Iterator[None]:
    over, begun = threading.Event(), time.monotonic()

    def print_lines() -> None:
        while not over.wait(LINE_SECONDS):
            elapsed = time.monotonic() - begun
            sys.stderr.write(write_line(progress, name, elapsed) + "\n")
            sys.stderr.flush()

    thread = threading.Thread(target=print_lines, name="heldout-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def write_line(progress: RunProgress, name: str, elapsed: float) -> str:
    """Write how far a run is, for a log: `quiz: 20/100 in 60 s, mean 0.500 over 20`."""
    total = "" if progress.total is None else f"/{progress.total}"
    return printable(
        f"{name}: {progress.done}{total} in {elapsed:.0f} s, {progress.details(elapsed)}"
    )


def make_line(
    progress: RunProgress, name: str, *, width: int, clock: Callable[[], float] = time.monotonic
) -> Callable[[], RenderableType]:
    """Return a function that draws the line of a run as it is now.

    A terminal of less than `NARROW` columns gets no name and no bar; what is too long for it is cut
    at the end.
    """
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.table import Column

    columns: list[ProgressColumn] = [
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn(
            "{task.fields[details]}",
            markup=False,
            table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"),
        ),
        # For the ^C that a terminal echoes: a line that wraps is not redrawn cleanly.
        TextColumn("", table_column=Column(width=2)),
    ]
    if width >= NARROW:
        columns = [TextColumn("{task.description}", markup=False), BarColumn(20), *columns]
    display = Progress(*columns, expand=True, get_time=clock)
    task = display.add_task(name[:24], total=None, completed=progress.done, details="")

    def draw() -> RenderableType:
        details = progress.details(display.tasks[0].elapsed or 0.0)
        display.update(task, completed=progress.done, total=progress.total, details=details)
        return display.get_renderable()

    return draw
