"""`keep_steps` keeps the answers of the first, the best, the last and the newest evals."""

from __future__ import annotations

from pathlib import Path

import pytest

from heldout.cli.main import run_cli
from heldout.errors import InvalidInput, RunDirectoryError
from heldout.reporting.names import find_step
from tests.training.toys import Model, periodic, points_of

KNOWS = {10: 2, 20: 7, 30: 3, 40: 4, 50: 3, 60: 1}


def train(folder: Path, **settings: object) -> Path:
    model = Model()
    evals = periodic(folder, model, **settings)
    for step, knows in KNOWS.items():
        model.knows = knows
        evals.maybe_run(step)
    return folder / "run"


def kept(run: Path) -> list[int]:
    return sorted(int(path.name) for path in (run / "steps").iterdir())


@pytest.mark.parametrize(
    ("keep", "steps"),
    [(None, [*KNOWS]), (3, [10, 20, 60]), (4, [10, 20, 50, 60]), (6, [*KNOWS])],
)
def test_the_first_the_best_the_last_and_the_newest_are_kept(
    tmp_path: Path, keep: int | None, steps: list[int]
) -> None:
    run = train(tmp_path, keep_steps=keep)
    assert kept(run) == steps
    assert [point.step for point in points_of(run)] == [*KNOWS]  # with all their rewards
    assert all(len(point.outcomes) == 8 for point in points_of(run))


def test_what_is_gone_is_said_and_flips_still_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(tmp_path, keep_steps=3)
    with pytest.raises(RunDirectoryError) as problem:
        find_step(run, 30)
    assert str(problem.value).endswith(
        "the answers of step 30 are no longer in steps/ (keep_steps= removes all but the first, "
        "the best and the last ones); those of 10, 20, 60 are there"
    )
    assert find_step(run, 20).name == "00000020"
    run_cli(["curve", "flips", str(run), "--from", "10", "--to", "30"])
    said = " ".join(capsys.readouterr().out.split())
    assert "1 gained, 0 lost" in said
    assert "the answers of step 30 are no longer" in said
    assert "the answers of step 10" not in said


def test_a_run_that_continues_keeps_as_many(tmp_path: Path) -> None:
    run = train(tmp_path, keep_steps=3)
    again = periodic(tmp_path, Model(knows=2), keep_steps=3)
    again.maybe_run(70)
    assert kept(run) == [10, 20, 70]


@pytest.mark.parametrize("wrong", [0, 2, True, "3"])
def test_fewer_than_three_are_refused(tmp_path: Path, wrong: object) -> None:
    with pytest.raises(InvalidInput, match="keep_steps must be a whole number >= 3"):
        periodic(tmp_path, Model(), keep_steps=wrong)
