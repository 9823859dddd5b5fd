"""Verdicts as they are stored on the points of a curve, for those who read it.

A stored verdict is the one that training saw. Where its process ended before there was one, or an
earlier version stored it without all answers, `with_verdicts` makes it by the same settings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, get_args

import msgspec

from heldout._core.format import number
from heldout.errors import InvalidInput
from heldout.stats.sequential import VerdictKind
from heldout.training.curve.points import CurvePoint
from heldout.training.curve.verdicts import Terms, best_as_dict, best_checkpoint, judge_points

CORRECTED_EVALS = 500
"""Evals up to which readers get a corrected best: with more it takes minutes."""


def terms_of(points: Iterable[CurvePoint], config: Mapping[str, Any] | None = None) -> Terms:
    """Return the settings that a curve was judged by.

    Args:
        points: The curve, of one label.
        config: That of its run.json, if there is one.

    Returns:
        The settings of its last stored verdict; else those that its `PeriodicEval` began with; else
        the defaults.
    """
    known = list(points)
    stored: list[Any] = [point.verdict for point in reversed(known)]
    if config is not None and any(point.label == config.get("label") for point in known):
        stored.append(config.get("monitor"))
    for terms in stored:
        try:
            # (0, 1) is what rewards between them get anyway, as long as all lie there.
            bounds = None if terms.get("bounds") == [0, 1] else terms.get("bounds")
            return Terms(terms["effect"], terms["alpha"], terms["window"], bounds)
        except (AttributeError, KeyError, InvalidInput):
            continue
    return Terms()


def answers(verdict: Mapping[str, Any]) -> list[str]:
    """Return what a stored verdict says, in sentences, in the order of the questions.

    Args:
        verdict: `verdict` of a point: a dict, as in `curve.jsonl`.

    Returns:
        Whether the curve still improves, whether it has improved since its start, and which step is
        best. What is not known is left out.
    """
    texts = (verdict.get(key) for key in ("text", "since_start_text", "best_text"))
    return [text for text in texts if isinstance(text, str)]


def short_verdict(verdict: Mapping[str, Any]) -> str:
    """Return a stored verdict for narrow columns: its kind, and the gain if one is claimed."""
    kind, gain = verdict.get("kind"), verdict.get("gain")
    if kind not in ("improving", "regressing") or not isinstance(gain, int | float):
        return str(kind)
    return f"{kind} {number(gain, sign=True)}"


def with_verdicts(
    points: Sequence[CurvePoint], terms: Terms | None = None, *, anew: bool = False
) -> list[CurvePoint]:
    """Return the points of one label with the verdicts that every reader of the curve gets.

    A stored verdict is that one. It is computed where none is stored (the process ended before),
    where an earlier version stored it without all answers, and where it is asked for anew.

    Args:
        points: The curve, from `current_points`.
        terms: The settings of what is computed; None: those of `terms_of`.
        anew: Whether stored verdicts are replaced, because the settings are others.

    Raises:
        InvalidInput: The points have several labels, or no verdict can be made of their rewards.
    """
    judged = [point for point in points if point.has_result and point.outcomes]
    if not judged:
        return list(points)
    newest = judged[-1]
    stored = newest.verdict or {}
    has_all = not anew and "since_start_text" in stored
    made: dict[int, dict[str, Any]] = {}
    terms = terms or terms_of(points)
    if not has_all or not all(point.verdict for point in judged):
        made = {
            verdict.step: verdict.as_dict() for verdict in judge_points(points, **asdict(terms))
        }
    last = stored if has_all else made[newest.step]
    if last.get("best_estimate") is None:  # beyond `MOST_CANDIDATES`, it is not stored
        best = best_checkpoint(points, bounds=terms.bounds, most=CORRECTED_EVALS)
        last = {**last, **best_as_dict(best)}
    filled = []
    for point in points:
        verdict = point.verdict
        if point is newest:
            verdict = last
        elif anew or verdict is None:
            # The best is known as of the last step alone.
            verdict = {**made[point.step], **best_as_dict(None)} if point.step in made else None
        filled.append(msgspec.structs.replace(point, verdict=verdict))
    return filled


def stored_kind(point: CurvePoint) -> VerdictKind | None:
    """Return the kind of the verdict stored on a point, or None."""
    kind = (point.verdict or {}).get("kind")
    if kind == "cannot tell":  # the word of earlier versions
        return "inconclusive"
    return kind if kind in get_args(VerdictKind) else None
