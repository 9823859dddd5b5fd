"""The live line while an eval runs: done, rate, time left, running mean with its error bar.

Shown on standard error, and only where that is a terminal; elsewhere it is silent.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from heldout.stats import Moments

if TYPE_CHECKING:
    from rich.text import Text

RATE_SECONDS, RATE_ITEMS = 30.0, 20
"""The rate is that of the last so many seconds and items: a slow start does not spoil it."""


class Running:
    """Counts of a run under way; errored items count as 0, as they will in `mean`.

    The run adds in its own thread while the display reads in another.
    """

    def __init__(self, repeats: int) -> None:
        self.done = 0
        self.errors = 0
        self.under_way = 0
        self.total: int | None = None
        self.has_copies = False
        """Whether some samples are of equal content: then there is no error bar before the end."""
        self._repeats = repeats
        self._partial: dict[int, list[float]] = {}
        self._moments = Moments()
        self._fresh: list[tuple[int, float]] = []
        self._lock = threading.Lock()

    def add(self, index: int, reward: float, *, ok: bool = True) -> None:
        with self._lock:
            self.done += 1
            self.errors += not ok
            if self._repeats == 1:
                self._fresh.append((index, reward))
                return
            # Error bars are clustered by sample, so its repeats go in together.
            rewards = self._partial.setdefault(index, [])
            rewards.append(reward)
            if len(rewards) == self._repeats:
                self._fresh.extend((index, r) for r in self._partial.pop(index))

    def mean(self) -> str:
        with self._lock:
            self._fold()
            if self._moments.mean is None or self.errors == self.done:
                return "mean –"
            interval = None if self.has_copies else self._moments.interval()
            bar = "" if interval is None else f" ({interval.low:.3f} … {interval.high:.3f})"
            return f"mean {self._moments.mean:.3f}{bar}"

    def trim(self) -> None:
        """Fold what waits into the sums, so that nothing grows where nobody looks."""
        if len(self._fresh) >= 4096:
            with self._lock:
                self._fold()

    def _fold(self) -> None:
        if self._fresh:
            clusters, values = zip(*self._fresh, strict=True)
            self._fresh.clear()
            self._moments.add(np.array(values, dtype=np.float64), np.array(clusters))


class Line:
    """What the display says of a run, in one line that fits."""

    def __init__(
        self, running: Running, name: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.running, self.name = running, name
        self.ended = False
        self._clock = clock
        self._started = clock()
        self._at_start = running.done  # a resumed run did not do these now
        self._marks: deque[tuple[float, int]] = deque([(self._started, running.done)])

    def parts(self) -> dict[str, str]:
        """In the order shown; whatever is not known yet is left out."""
        running, now = self.running, self._clock()
        done, total = running.done, running.total
        parts = {"name": self.name, "bar": "", "done": f"{done} done"}
        if total is not None:
            parts["done"] = f"{done:>{len(str(total))}}/{total}"
        rate = self._rate(now, done)
        if rate:
            parts["rate"] = f"{rate:5.1f}/s" if rate >= 1 else f"{rate * 60:3.1f}/min"
        if self.ended:
            parts["time"] = f"in {_duration(now - self._started)}"
        elif rate and total is not None and done - self._at_start >= total / 10:
            parts["time"] = f"{_duration((total - done) / rate)} left"
        if done == self._at_start and running.under_way:
            parts["mean"] = f"{running.under_way} under way"
        else:
            parts["mean"] = running.mean()
        if running.errors:
            parts["errors"] = f"{running.errors} error{'s' * (running.errors > 1)}"
        return parts

    def _rate(self, now: float, done: int) -> float:
        if self.ended:
            return (done - self._at_start) / max(now - self._started, 1e-9)
        marks = self._marks
        if done > marks[-1][1] and now - marks[-1][0] >= RATE_SECONDS / 60:
            marks.append((now, done))
        while (
            len(marks) > 1
            and now - marks[1][0] >= RATE_SECONDS
            and done - marks[1][1] >= RATE_ITEMS
        ):
            marks.popleft()
        then, had = marks[0]
        return (done - had) / (now - then) if now > then else 0.0

    def render(self, width: int) -> Text:
        from rich.text import Text

        parts = self.parts()
        # What a narrow terminal has no room for goes in this order.
        for least in ("bar", "rate", "name", "time"):
            if _length(parts) <= width:
                break
            parts.pop(least, None)
        if "bar" in parts:
            room = width - _length(parts) + _LEAST_BAR
            parts["bar"] = self._bar(min(24, room - room % 4))  # in steps: it must not twitch
        line = Text(no_wrap=True, overflow="ellipsis", end="")
        for part, text in parts.items():
            line.append("  " if line else "")
            line.append(text, _STYLES.get(part, ""))
        return line

    def _bar(self, width: int) -> str:
        total = self.running.total
        filled = width * self.running.done // total if total else 0
        return "━" * filled + "╌" * (width - filled)


_STYLES = {"bar": "cyan", "rate": "dim", "time": "dim", "mean": "bold", "errors": "red"}
_LEAST_BAR = 8


def _length(parts: dict[str, str]) -> int:
    texts = sum(_LEAST_BAR if part == "bar" else len(text) for part, text in parts.items())
    return texts + 2 * (len(parts) - 1)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@contextmanager
def shown(running: Running, name: str, *, wanted: bool) -> Iterator[bool]:
    """Whether there is a display; it redraws itself from `running` a few times a second."""
    if not wanted or not sys.stderr.isatty():
        yield False
        return
    from rich.console import Console
    from rich.live import Live

    console, line = Console(stderr=True), Line(running, name)
    display = Live(
        console=console,
        # Room for the ^C that a terminal echoes: a line that wraps is not redrawn cleanly.
        get_renderable=lambda: line.render(console.width - 3),
        refresh_per_second=4,
        # What the user's code prints goes above the line; where it does not go to the terminal
        # it is not ours to move there.
        redirect_stdout=sys.stdout.isatty(),
    )
    # Drawn before anything is printed: two threads that print at once would draw it twice.
    display.start(refresh=True)
    try:
        yield True
    finally:
        line.ended = True
        display.stop()
