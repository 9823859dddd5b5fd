"""Several runs ranked, in a table and a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heldout._core.format import count, list_some, number, percent
from heldout.reporting.blocks import Block, Line, Report, Table
from heldout.reporting.comparisons import interval_text, side_line

if TYPE_CHECKING:
    from heldout.analysis.ranking import RunRanking

NAMED = 5
"""Runs that a sentence names."""


def build_ranking(ranking: RunRanking) -> Report:
    """Build what `heldout compare` prints of three runs or more."""
    rows = [
        (
            run.side.name,
            number(run.mean),
            interval_text(run.interval),
            f"{run.highest}" if run.highest == run.lowest else f"{run.highest} to {run.lowest}",
        )
        for run in ranking.runs
    ]
    winner, runs = ranking.winner, ranking.runs
    blocks: list[Block] = [side_line(f"{i + 1}", run.side) for i, run in enumerate(runs)]
    blocks += [
        Line(f"{ranking.metric}, on the {count(ranking.samples, 'sample')} scored in all runs"),
        Table(["run", "mean", f"{percent(ranking.confidence)} interval", "rank"], rows),
        Line(
            f"Ranks hold for all runs together. Corrected for having been picked, the mean of "
            f"{runs[0].side.name} is {number(winner.estimate)} ({interval_text(winner.interval)})."
        ),
    ]
    if ranking.errors_as is not None:
        text = f"Items errored: ranks hold without them, and with them as {ranking.errors_as:g}."
        blocks.append(Line(text))
    blocks += [
        Line(f"note: {mismatch.kind}: {mismatch.text}", style="yellow")
        for mismatch in ranking.mismatches
    ]
    return Report(blocks, conclusion=conclude_ranking(ranking), style="bold")


def conclude_ranking(ranking: RunRanking) -> str:
    """Return which runs may be the best as one sentence."""
    best = [run.side.name for run in ranking.best]
    if len(best) == 1:
        return f"{best[0]} is the best of {len(ranking.runs)}."
    if len(best) == len(ranking.runs):
        return f"Which of the {len(best)} is best cannot be told."
    return f"One of these is best, and which cannot be told: {list_some(best, NAMED, ', ')}."
