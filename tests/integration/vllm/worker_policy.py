"""What an eval worker with vLLM is given in tests."""

from __future__ import annotations

import os
from typing import Any

from heldout import Sample, Trajectory
from heldout.training import live_model
from heldout.training.runner import RunnerBuilder
from tests.integration.vllm.conftest import MODEL, SETTINGS
from tests.tiny_model import tiny_model


def score(trajectory: Trajectory, sample: Sample) -> float:
    return float(trajectory.last_turn is not None and bool(trajectory.last_turn.text))


def builder(tokenizer: Any) -> RunnerBuilder:
    return live_model(tokenizer, score, max_new=12, rows=4)


def policy() -> tuple[dict[str, Any], RunnerBuilder]:
    settings = {"model": os.environ["HELDOUT_TEST_FOLDER"], **SETTINGS}
    return settings, builder(tiny_model(**MODEL)[1])
