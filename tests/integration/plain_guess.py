"""An environment that a worker process can import: it needs no package of the tests."""

from __future__ import annotations

import random
from typing import Any

import numpy as np


class PlainGuess:
    """Guess a number from 0 to 9, drawn from the global random state."""

    def reset(self, seed: int) -> tuple[str, dict[str, Any]]:
        random.seed(seed)
        np.random.seed(seed)
        self.number, self.turns = random.randint(0, 9), 0
        return "A number from 0 to 9?", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.turns += 1
        right = action == str(self.number)
        noise = random.random() + float(np.random.random())
        reward = 1.0 if right else -0.125
        return f"Not {action} ({noise:.6f})", reward, right, self.turns == 6, {"turns": self.turns}


def make_env(sample: Any) -> PlainGuess:
    return PlainGuess()
