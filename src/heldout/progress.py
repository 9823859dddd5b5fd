"""The live line while an eval runs: done, rate, time left, running mean with its error bar.

Shown on standard error, and only there is a terminal; elsewhere it is silent.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from heldout.stats import Moments


class Running:
    """Counts of a run under way; errored items count as 0, as they will in `mean`."""

    def __init__(self, repeats: int) -> None:
        self.done = 0
        self.errors = 0
        self.total: int | None = None
        self._repeats = repeats
        self._partial: dict[int, list[float]] = {}
        self._moments = Moments()
        self._fresh: list[tuple[int, float]] = []

    def add(self, index: int, reward: float, *, ok: bool = True) -> None:
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
        if self._fresh:
            clusters, values = zip(*self._fresh, strict=True)
            self._fresh.clear()
            self._moments.add(np.array(values, dtype=np.float64), np.array(clusters))
        if self._moments.mean is None or self.errors == self.done:
            return "mean –"
        stderr = self._moments.stderr
        bar = "" if stderr is None else f" ± {1.96 * stderr:.3f}"
        return f"mean {self._moments.mean:.3f}{bar}"

    def trim(self) -> None:
        """Fold what waits into the sums, so that nothing grows where nobody looks."""
        if len(self._fresh) >= 4096:
            self.mean()


@contextmanager
def shown(running: Running, name: str, *, wanted: bool) -> Iterator[bool]:
    """Whether there is a display; it redraws itself from `running` a few times a second."""
    if not wanted or not sys.stderr.isatty():
        yield False
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class RateColumn(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{task.speed:.1f}/s" if task.speed else "–/s")

    class LiveProgress(Progress):
        def get_renderables(self):  # type: ignore[no-untyped-def]
            errors = f"  [red]{running.errors} errors[/red]" if running.errors else ""
            self.update(
                task, completed=running.done, total=running.total, now=running.mean() + errors
            )
            yield from super().get_renderables()

    display = LiveProgress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        RateColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[now]}"),
        console=Console(stderr=True),
        refresh_per_second=4,
    )
    task = display.add_task(name.replace("[", r"\["), total=running.total, now="")
    with display:
        yield True
