"""A wall clock that jumps back and forth by hours and years, while evals and training run."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from torture.kills import MODES, facts_of_run, trials_of
from torture.trials import Journal, Trial

PART, COUNT = "clock", 20
TRIED = (
    *("run", "run --cache", "rescore", "agent"),
    *("training, evals inline", "training, evals in the background"),
)
JUMPS = (0.0, 3600.0, -3600.0, 86_400.0 * 400, -86_400.0 * 400, 3.1e9, -1.7e9)
"""Seconds that the clock is off by: into 2124, and before 1975."""
CHANCE = 0.2


def jump(seed: float) -> None:
    """Make the wall clock of this process jump at random; the monotonic one goes on."""
    rng, offset = random.Random(seed), [0.0]
    real, gmtime, localtime = time.time, time.gmtime, time.localtime
    clock: Any = time

    def shift() -> float:
        if rng.random() < CHANCE:
            offset[0] = rng.choice(JUMPS)
        return offset[0]

    def now() -> float:
        return real() + shift()

    clock.time = now
    clock.time_ns = lambda: int(now() * 1e9)
    clock.gmtime = lambda seconds=None: gmtime(now() if seconds is None else seconds)
    clock.localtime = lambda seconds=None: localtime(now() if seconds is None else seconds)


def make_trials(scale: float, journal: Journal) -> Iterator[Trial]:
    """Yield trials in which processes are killed, too: a clock is often set at a restart."""
    modes = [mode for mode in MODES if mode.name in TRIED]
    # By this clock cached turns expire, so how many there are at the end is left out.
    plain = partial(facts_of_run, "run")
    modes = [replace(m, facts=plain) if m.starts_server else m for m in modes]
    return trials_of(PART, modes, max(1, round(COUNT * scale)), jump)
