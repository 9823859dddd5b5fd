"""Where the time, the tokens and the money of a run went, for people."""

from __future__ import annotations

from collections.abc import Iterator

from heldout._core.format import count, duration, list_some
from heldout.analysis.time_use import STAGES, TimeUse
from heldout.reporting.blocks import Block, Cell, Column, Line, Report, Table, code


def conclude_time(use: TimeUse) -> str:
    """Return the stages that took most as one sentence."""
    if not use.timed:
        return "The time of no attempt is known."
    known = [(s.share, s.stage) for s in use.stages if s.share is not None and s.share >= 0.005]
    most = sorted(known, key=lambda part: -part[0])
    parts = list_some([f"{_share(share)} {stage}" for share, stage in most], 6, ", ")
    queue = " Time in a queue was not recorded." if use.queue_unknown == use.timed else ""
    whole = f"{_seconds(use.attempt_seconds)} in {count(use.timed, 'attempt')}"
    return f"{whole}: {parts or 'none'}.{queue}"


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return "not recorded"
    return f"{seconds:.2f} s" if seconds < 10 else duration(seconds)


def _share(share: float | None) -> str:
    if share is None:
        return ""
    return "<1%" if 0 < share < 0.005 else f"{share:.0%}"


def build_time_report(use: TimeUse) -> Report:
    """Build what `heldout show --time` prints."""
    rows: list[list[Cell]] = [
        [s.stage, _seconds(s.seconds), _share(s.share), STAGES[s.stage]] for s in use.stages
    ]
    columns = [Column("stage"), Column("time"), Column("share"), Column("", wrap=True)]
    blocks: list[Block] = [Line(conclude_time(use), style="bold"), Table(columns, rows)]
    if use.slowest:
        slow: list[list[Cell]] = [
            [
                code(f"{each.sample_id}{f' #{each.repeat + 1}' if each.repeat else ''}"),
                _seconds(each.seconds),
                each.stage,
                str(each.turns),
                each.error or "",
            ]
            for each in use.slowest
        ]
        names = ("slowest", "time", "most of it", "turns")
        titles = [*map(Column, names), Column("", wrap=True)]
        blocks.append(Table(titles, slow))
    return Report([*blocks, *(Line(text) for text in _lines(use))])


def _lines(use: TimeUse) -> Iterator[str]:
    if use.wall_seconds:
        side_by_side = use.attempt_seconds / use.wall_seconds
        limit = f", of {use.max_concurrent} at most" if use.max_concurrent is not None else ""
        yield (
            f"The run took {_seconds(use.wall_seconds)}, with {side_by_side:.1f} attempts at a "
            f"time on average{limit} (pauses before it was resumed count)."
        )
    if use.queue_unknown:
        yield (
            f"Of {count(use.queue_unknown, 'attempt')} it was not recorded how long they waited in "
            "a queue: that time is in the stages where they waited."
        )
    again = f", {use.retried} of them made again after a failure" if use.retried else ""
    cached = f"; {count(use.cached_turns, 'turn')} from the response cache" * bool(use.cached_turns)
    yield f"{count(use.requests, 'request')} to the model{again}{cached}."
    if use.errored_seconds:
        yield f"{_seconds(use.errored_seconds)} went into attempts that errored."
    if use.tokens_per_model_second is not None:
        speed = f"{use.tokens_per_model_second:.3g} tokens/s written in one attempt"
        whole = use.tokens_per_second
        yield speed + (f", {whole:.3g} tokens/s by the run" if whole is not None else "") + "."
    for model in use.usage.models:
        name = f"{model.role} {model.model or ''}".strip()
        cost = "no price is set" if model.cost is None else f"costs {model.cost:.4g}"
        tokens = f"{model.prompt_tokens} tokens read, {model.completion_tokens} written"
        yield f"{name}: {tokens}; {cost}."
    if use.usage.cost is not None:
        yield f"A repeat of the run would cost about {use.usage.cost:.4g}."
    if use.untimed:
        yield f"Of {count(use.untimed, 'attempt')} the time is not known."


__all__ = ["build_time_report", "conclude_time"]
