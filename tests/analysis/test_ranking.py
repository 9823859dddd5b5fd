"""Which of several runs is best: ranks with intervals, and a winner that is corrected."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from heldout.analysis import rank
from heldout.errors import InvalidInput, NotComparable
from tests.analysis.runs import knows, lenient, run

N = 200


def skilled(share: float, seed: int) -> set[int]:
    return {i for i in range(N) if random.Random(f"{seed}:{i}").random() < share}


def make(directory: Path, name: str, share: float, seed: int, **settings: object) -> str:
    known = skilled(share, seed)
    run(directory, name, knows(lambda number: number in known), of=N, **settings)
    return str(directory / name)


def test_runs_are_ranked_with_the_ranks_that_each_may_have(tmp_path: Path) -> None:
    shares = {"weak": 0.2, "good": 0.8, "alike": 0.79, "poor": 0.5}
    ranking = rank(
        [make(tmp_path, name, share, i) for i, (name, share) in enumerate(shares.items())]
    )
    names = [one.side.name for one in ranking.runs]
    assert set(names[:2]) == {"good", "alike"}
    assert names[2:] == ["poor", "weak"]
    assert [(one.highest, one.lowest) for one in ranking.runs] == [(1, 2), (1, 2), (3, 3), (4, 4)]
    assert {one.side.name for one in ranking.best} == {"good", "alike"}
    assert ranking.samples == N
    assert ranking.winner.estimate <= ranking.winner.raw, "the winner was picked"
    assert ranking.errors_as is None


def test_errored_items_can_only_widen_the_ranks(tmp_path: Path) -> None:
    """A run that errors where it would fail is not known to be the best by the rest."""
    known = skilled(0.6, 1)

    def breaks(messages: list[object]) -> str:
        number = int(str(messages[-1].content).rstrip("?"))  # type: ignore[attr-defined]
        if number not in known:
            raise ValueError("broken")
        return str(number)

    run(tmp_path, "breaks", breaks, of=N, max_error_rate=1)
    others = [make(tmp_path, "good", 0.75, 2), make(tmp_path, "poor", 0.2, 3)]
    ranking = rank([str(tmp_path / "breaks"), *others])
    assert ranking.errors_as == 0
    assert ranking.runs[0].side.name == "breaks", "without its errors it is right in all"
    assert (ranking.runs[0].highest, ranking.runs[0].lowest) == (1, 2)
    assert len(ranking.best) == 2


def test_what_is_not_comparable_is_refused(tmp_path: Path) -> None:
    runs = [make(tmp_path, name, 0.5, i) for i, name in enumerate("ab")]
    with pytest.raises(InvalidInput, match="two runs or more"):
        rank(runs[:1])
    other = make(tmp_path, "other", 0.5, 4, score=lenient)
    with pytest.raises(NotComparable, match="a and other cannot be compared: scorer"):
        rank([*runs, other])
    allowed = rank([*runs, other], allow=["scorer"])
    assert [mismatch.kind for mismatch in allowed.mismatches] == ["scorer"]
    stopped = make(tmp_path, "stopped", 0.9, 5, until="mean>0.5")
    with pytest.raises(NotComparable, match="stopped by until"):
        rank([*runs, stopped])
