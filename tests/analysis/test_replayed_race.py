"""A race of finished runs stops where a race that runs would have stopped."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import anyio
import pytest

from heldout import EvalReport
from heldout._evals.racing import run_race
from heldout._evals.rollout import EvalDefinition
from heldout.analysis.replayed_race import race_runs
from heldout.errors import InvalidInput
from tests._evals.test_racing import configs
from tests._evals.test_stopping import SAMPLES, grade, model
from tests.conftest import RunEval


def test_finished_runs_race_as_models_do(run_eval: RunEval, tmp_path: Path) -> None:
    rates = {"A": 0.7, "B": 0.95, "C": 0.4}
    live = anyio.run(
        partial(run_race, EvalDefinition(SAMPLES, grade), configs(tmp_path / "live", rates))
    )
    for name, rate in rates.items():
        run_eval(SAMPLES, grade, endpoint=model(rate, name), experiment_name=name)
    found = race_runs([tmp_path / name for name in rates])
    assert (found.decision, found.looks_used) == (live.decision, live.looks_used)
    assert found.placed == live.placed
    assert found.n_spent == sum(placed.n_decided for placed in live.placed) <= live.n_spent
    with pytest.raises(InvalidInput, match="two runs or more"):
        race_runs([EvalReport.load(tmp_path / "A")])
