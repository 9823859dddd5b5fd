"""A trainer that logs while results of its evals come late, and out of order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from heldout.training.loggers import Logger, Loggers, LoggersReport

STEPS = range(57)
"""What the trainer logs; the value of each is its step."""
RESULTS = {30: 0.3, 10: 0.1, 53: 0.53}
SKIPPED = 20


def fields_of(step: int) -> dict[str, Any]:
    return {
        "step": step,
        "eval_reward": step / 100,
        "eval_n": 24,
        "eval_pass_rate": None,
        "eval_seconds": 1.5,
        "lag_steps": 7,
    }


def skip_of(step: int, reason: str = "no model") -> dict[str, Any]:
    return {"step": step, "eval_skipped": True, "eval_reason": reason, "eval_seconds": 0.5}


def play(trainer: Callable[[int], object], logger: Logger) -> None:
    """Steps 0 to 50, then results of steps 30, 10 and others between those of the trainer."""

    def late(step: int, fields: dict[str, Any]) -> None:
        failed: list[BaseException] = []

        def log() -> None:
            try:
                logger.log("rl_eval", step, fields)
            except BaseException as problem:
                failed.append(problem)

        thread = threading.Thread(target=log)
        thread.start()
        thread.join()
        assert not failed, failed

    for step in range(51):
        trainer(step)
    late(30, fields_of(30))
    trainer(51)
    trainer(52)
    late(10, fields_of(10))
    late(SKIPPED, skip_of(SKIPPED))
    for step in range(53, 57):
        trainer(step)
    late(53, fields_of(53))


def send(n: int, *loggers: Logger) -> LoggersReport:
    """`n` results, through Loggers."""
    guarded = Loggers(*loggers, capacity=n)
    for step in range(n):
        guarded.log("rl_eval", step, fields_of(step))
    return guarded.close(timeout=120)
