"""How much evaluating the training can bear: pure, over seconds that are passed in.

    budget = Budget(0.05, total=256)
    samples = budget.plan(trained=600.0)   # 0: it has to wait
    …                                      # evaluate the first so many of the fixed order
    budget = budget.spend(samples, seconds=12.0)

Evals take a smaller part of the held-out set first, from a fixed series of nested ones, and wait
longer where the smallest is still too much. What an eval costs is taken from the last one; the
first is run on the smallest part, to find out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

SMALLEST = 8
"""Samples below which a mean says too little to be worth its time."""


@dataclass(frozen=True, slots=True)
class Budget:
    max_overhead: float
    """Seconds of evaluation for each second of training, at most."""
    total: int
    """Samples in the whole set."""
    smallest: int = SMALLEST
    step: int = 1
    """Samples that are run at once and cost the same if there are fewer."""
    spent: float = 0.0
    """Seconds evaluated so far."""
    cost: float | None = None
    """Seconds that one `step` of samples took the last time."""

    def sizes(self) -> list[int]:
        """The nested subsets, largest first: all, a half, a quarter … not below the smallest."""
        found, size = [self.total], self.total
        while (size := (size + 1) // 2) >= max(self.smallest, 1) and size < found[-1]:
            found.append(size)
        return found

    def seconds(self, samples: int) -> float | None:
        """What that many are expected to take."""
        return None if self.cost is None else self.cost * -(-samples // self.step)

    def overhead(self, trained: float) -> float:
        return self.spent / trained if trained > 0 else 0.0

    def plan(self, trained: float) -> int:
        """How many samples, from the start of the fixed order, can be afforded after that many
        seconds of training; 0: none, yet."""
        left = self.max_overhead * trained - self.spent
        if self.cost is None:  # the first, or none has come to anything yet
            return self.sizes()[-1] if self.spent == 0 or left > 0 else 0
        for size in self.sizes():
            expected = self.seconds(size)
            assert expected is not None
            if expected <= left:
                return size
        return 0

    def spend(self, samples: int, seconds: float, *, once: float = 0.0) -> Budget:
        """After an eval that scored so many; `once` of its seconds were preparation that will not
        come again."""
        steps = -(-samples // self.step)
        cost = self.cost if samples == 0 else max(0.0, seconds - once) / steps
        return replace(self, spent=self.spent + seconds, cost=cost)
