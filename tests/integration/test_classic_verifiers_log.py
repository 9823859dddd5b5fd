"""What the real verifiers (0.3) saves with --save-results, as a run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import verifiers as vf
from datasets import Dataset

from heldout.adapters.logs import import_log
from tests.integration.test_verifiers import Turn, scripted_client

pytestmark = pytest.mark.integration


def test_saved_rollouts_become_the_repeats_of_a_run(tmp_path: Path) -> None:
    rows = [{"question": question, "answer": question.upper()} for question in ("aa", "bb", "cc")]

    async def right(completion: Any, answer: str) -> float:
        return float(completion[-1]["content"] == answer)

    async def length(completion: Any) -> float:
        return float(len(completion[-1]["content"]))

    rubric = vf.Rubric(funcs=[right, length], weights=[1.0, 0.5])
    env = vf.SingleTurnEnv(dataset=Dataset.from_list(rows), rubric=rubric)
    client = scripted_client({"aa": [Turn("AA")], "bb": [Turn("no")]})
    answer_turn = client.get_response

    async def answer(prompt: Any, *rest: Any, **named: Any) -> Any:
        if prompt[-1].content == "cc":
            raise vf.ModelError("the model is gone")
        return await answer_turn(prompt, *rest, **named)

    client.get_response = answer
    outputs = asyncio.run(
        env.evaluate(
            client,
            "m",
            sampling_args={"temperature": 0.5},
            rollouts_per_example=2,
            results_path=tmp_path / "saved",
            save_results=True,
            independent_scoring=True,
        )
    )
    report = import_log(tmp_path / "saved", output_dir=tmp_path, max_error_rate=1)
    results = {(r.sample_id, r.repeat): r for r in report.results}
    theirs = [row for row in outputs["outputs"] if row["error"] is None]
    assert len(theirs) == 4
    assert [r.score.reward for r in report.results if r.ok] == [row["reward"] for row in theirs]
    assert results["0", 1].score["right"] == 1.0
    assert [m.text for m in results["0", 0].trajectory.messages] == ["aa", "AA"]
    assert "the model is gone" in (results["2", 0].error or "")
    assert report.config["endpoint"] == {"model": "m"}
    assert report.config["sampling"]["temperature"] == 0.5
    # The mean reward of verifiers counts what failed as 0, as heldout's does; so do its metrics.
    own = report.config["imported"]["own_results"]
    assert own["compared"] == 4
    differ = {one["name"]: (one["log"], one["run"]) for one in own["differ"]}
    assert differ == {
        "avg_right": (pytest.approx(1 / 3), 0.5),
        "avg_length": (pytest.approx(4 / 3), 2.0),
        "avg_num_turns": (pytest.approx(2 / 3), 1.0),
    }
    assert all("there it is over 6 attempts, here over 4" in one["why"] for one in own["differ"])
