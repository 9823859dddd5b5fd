"""Where the time and the tokens of a run went: by stage, and to which samples.

    use = time_use(EvalReport.load("capitals"))
    print(use.stages, use.slowest)

Stages add up to the seconds of all attempts, which ran side by side: their sum is more than the
run took. What was not measured is the stage `other`, and never a guess.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from heldout.store.report import EvalReport
from heldout.store.run_dir import RunUsage
from heldout.types import EvalResult, Timing

Stage = Literal["queue", "model", "retries", "environment", "scoring", "other"]
STAGES: dict[Stage, str] = {
    "queue": "waiting for a batch to begin, or for a slot of a judge, sandbox or worker",
    "model": "model turns",
    "retries": "requests that failed and were made again, with the waits",
    "environment": "replies of environments: tools, users, games",
    "scoring": "the score function, its judges included",
    "other": "what is not measured: opening messages, waiting for the event loop",
}
SLOWEST = 5


@dataclass(frozen=True, slots=True)
class StageUse:
    """What a stage took.

    Attributes:
        stage: queue, model, retries, environment, scoring or other.
        seconds: In all attempts together. None where it was not recorded, as the queue by an
            earlier version: then waiting is a part of the stages that it was in.
        share: Of the seconds of all attempts; None like these.
    """

    stage: Stage
    seconds: float | None
    share: float | None


@dataclass(frozen=True, slots=True)
class SlowAttempt:
    """One of the attempts that took longest.

    Attributes:
        sample_id: Its sample.
        repeat: Which attempt at it.
        seconds: What it took.
        stage: Where most of that went.
        turns: Its model turns.
        error: Why it has no score; None if it has one.
    """

    sample_id: str
    repeat: int
    seconds: float
    stage: Stage
    turns: int
    error: str | None


@dataclass(frozen=True, slots=True)
class TimeUse:
    """Where time and tokens of a run went.

    Attributes:
        wall_seconds: From its beginning to its end, with pauses where it was resumed; None where it
            has not ended.
        max_concurrent: The most attempts at a time that the run was begun with; None where that is
            not known.
        attempt_seconds: Of all attempts together.
        timed: Attempts whose time is known.
        untimed: Attempts whose time is not known, as of imported logs.
        queue_unknown: Attempts whose time is known, and not how much of it they waited.
        stages: Where their seconds went.
        requests: Requests made to the policy's model.
        retried: Of these, those made again after a failure.
        cached_turns: Model turns from the response cache.
        errored_seconds: Seconds of attempts that errored.
        tokens_per_second: Tokens that the policy wrote, by the run's wall time; None where unknown.
        tokens_per_model_second: The same by seconds of model turns: the speed of one attempt.
        slowest: The attempts that took longest.
        usage: Tokens and cost. A repeat takes as many, up to chance; cost is None without a price.
    """

    wall_seconds: float | None
    max_concurrent: int | None
    attempt_seconds: float
    timed: int
    untimed: int
    queue_unknown: int
    stages: Sequence[StageUse]
    requests: int
    retried: int
    cached_turns: int
    errored_seconds: float
    tokens_per_second: float | None
    tokens_per_model_second: float | None
    slowest: Sequence[SlowAttempt]
    usage: RunUsage


def time_use(report: EvalReport, *, slowest: int = SLOWEST) -> TimeUse:
    """Add up where the time of a run went.

    Args:
        report: The run.
        slowest: How many of the attempts that took longest are named.
    """
    sums = dict.fromkeys(STAGES, 0.0)
    timed = untimed = queue_unknown = requests = retried = cached = written = 0
    errored = 0.0
    longest: list[tuple[float, int, SlowAttempt]] = []
    for number, result in enumerate(report.results):
        timing = result.trajectory.timing
        if timing is None:
            untimed += 1
            continue
        timed += 1
        queue_unknown += timing.queue_seconds is None
        parts = _split(timing)
        for stage, seconds in parts.items():
            sums[stage] += seconds
        turns = sum(message.role == "assistant" for message in result.trajectory.messages)
        turns = len(timing.turn_seconds) if timing.turn_seconds is not None else turns
        requests += timing.requests
        cached += timing.cached_turns
        if timing.turn_seconds is not None:
            retried += max(timing.requests + timing.cached_turns - max(turns, 1), 0)
        errored += timing.seconds if result.error is not None else 0.0
        usage = result.trajectory.usage
        written += usage.completion_tokens if usage is not None else 0
        attempt = _describe(result, timing, parts, turns)
        heapq.heappush(longest, (timing.seconds, -number, attempt))
        if len(longest) > slowest:
            heapq.heappop(longest)
    whole = sum(sums.values())
    wall = _wall_seconds(report)
    model = sums["model"]
    at_most = report.config.get("max_concurrent")
    return TimeUse(
        wall,
        at_most if isinstance(at_most, int) else None,
        whole,
        timed,
        untimed,
        queue_unknown,
        [
            StageUse(stage, None, None)
            if stage == "queue" and queue_unknown == timed > 0
            else StageUse(stage, seconds, seconds / whole if whole else 0.0)
            for stage, seconds in sums.items()
        ],
        requests,
        retried,
        cached,
        errored,
        written / wall if wall and written else None,
        written / model if model and written else None,
        [attempt for _, _, attempt in sorted(longest, reverse=True)],
        report.usage,
    )


def _split(timing: Timing) -> dict[Stage, float]:
    """Return the seconds of an attempt by stage."""
    turns = sum(seconds or 0.0 for seconds in timing.turn_seconds or ())
    retries = min(timing.retry_seconds or 0.0, turns) if turns else timing.retry_seconds or 0.0
    parts: dict[Stage, float] = {
        "queue": 0.0,
        "model": max(turns - retries, 0.0),
        "retries": retries,
        "environment": sum(seconds or 0.0 for seconds in timing.reply_seconds or ()),
        "scoring": timing.score_seconds or 0.0,
    }
    parts["other"] = max(timing.seconds - sum(parts.values()), 0.0)
    for waited_in, waited in (timing.queue_seconds or {}).items():
        # No more than a stage took. A request that was made again waited in `retries`; a turn that
        # failed has no seconds of its own, and its wait is in what is left.
        for stage in (*(s for s in STAGES if s == waited_in), "retries", "other"):
            moved = min(waited, parts[stage])
            parts[stage] -= moved
            parts["queue"] += moved
            waited -= moved
    return parts


def _describe(
    result: EvalResult, timing: Timing, parts: dict[Stage, float], turns: int
) -> SlowAttempt:
    stage = max(parts, key=parts.__getitem__)
    return SlowAttempt(result.sample_id, result.repeat, timing.seconds, stage, turns, result.error)


def _wall_seconds(report: EvalReport) -> float | None:
    info = report.info
    if info is None or not info.started or not info.finished:
        return None
    try:
        ended, began = (datetime.fromisoformat(text) for text in (info.finished, info.started))
    except ValueError:
        return None
    return max((ended - began).total_seconds(), 0.0)


__all__ = ["STAGES", "SlowAttempt", "Stage", "StageUse", "TimeUse", "time_use"]
