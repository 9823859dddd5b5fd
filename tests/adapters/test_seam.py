"""The seam of adapters: ids, ways to run a row, identities, pickling and refusals, each once."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from heldout import EvalConfig, EvalReport, Message, Metric, Sample, Score, Trajectory, evaluate
from heldout.adapters import AdaptedEval, Conversation, Row, score_rewards
from heldout.environments import likelihood
from heldout.errors import InvalidInput, ResumeMismatch
from heldout.models.base import RatesContinuations
from heldout.types import Completion, Continuation, Likelihood, Rating

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Sums(AdaptedEval):
    name = "sums:small"

    def __init__(self, upto: int = 3, secret: Any = None) -> None:
        self.upto, self.secret = upto, secret

    def rows(self) -> Sequence[Row]:
        return [Row({"question": f"{a} + 1 = ?"}, a + 1, source=a) for a in range(self.upto)]

    def score(self, trajectory: Trajectory, sample: Sample) -> Score:
        return Score((Metric("right", trajectory.answer == str(self.source_of(sample) + 1), 1.0),))

    def identity(self) -> dict[str, Any]:
        return {"secret": self.secret}


class Interview(Sums):
    async def converse(self, sample: Sample, conversation: Conversation) -> Mapping[str, Any]:
        messages = [Message("user", sample.input["question"])]
        first = await conversation.ask(messages)
        await conversation.ask([*messages, first.message, Message("user", "Sure?")])
        return {"first": first.message.text}

    def score(self, trajectory: Trajectory, sample: Sample) -> Score:
        assert trajectory.outcome is not None
        return Score((Metric("first", trajectory.outcome["first"] == "2", 1.0),))


class Countdown(Sums):
    def make_env(self, sample: Sample) -> Any:
        class Count:
            def reset(self) -> Any:
                return "one left", {}

            def step(self, action: str) -> Any:
                return "none left", float(action), True, False, {}

        return Count()

    def score(self, trajectory: Trajectory, sample: Sample) -> Score:
        return score_rewards(trajectory, sample, reward="sum")


class Rated(Sums):
    def continuations(self, sample: Sample) -> Sequence[Continuation]:
        return [Continuation(sample.input["question"], f" {n}") for n in range(3)]

    def score(self, trajectory: Trajectory, sample: Sample) -> Score:
        rated = [each.logprob for each in likelihood.likelihoods_of(trajectory)]
        return Score((Metric("right", rated.index(max(rated)) == sample.ground_truth, 1.0),))


class PrefersTwo(RatesContinuations):
    async def complete(self, *_: Any) -> Completion:
        raise AssertionError("it is never asked")

    async def rate(self, continuations: Sequence[Continuation]) -> Rating:
        def rated(text: str) -> Likelihood:
            return Likelihood(-1.0 if text == " 2" else -9.0, False, 1, len(text), len(text))

        return Rating(tuple(rated(each.text) for each in continuations))

    def describe(self) -> dict[str, Any]:
        return {"kind": "function"}

    async def close(self) -> None:
        pass


async def run(adapted: AdaptedEval, tmp_path: Path, **config: Any) -> EvalReport:
    given = {"endpoint": lambda messages: "2", "output_dir": str(tmp_path), **config}
    return await evaluate(adapted.definition(), EvalConfig(**given))


@pytest.mark.parametrize(
    ("adapted", "rewards", "turns"),
    [(Sums(), [0, 1, 0], 1), (Interview(), [1, 1, 1], 2), (Countdown(), [2, 2, 2], 1)],
)
async def test_a_row_is_run_in_the_way_that_the_eval_fills(
    adapted: AdaptedEval, rewards: list[float], turns: int, tmp_path: Path
) -> None:
    report = await run(adapted, tmp_path)
    assert [result.score.reward for result in report.results] == rewards
    for result in report.results:
        roles = [message.role for message in result.trajectory.messages]
        assert roles.count("assistant") == turns


async def test_given_texts_are_rated_and_their_prompts_are_in_the_record(tmp_path: Path) -> None:
    report = await run(Rated(), tmp_path, endpoint=PrefersTwo())
    assert [result.score.reward for result in report.results] == [0, 1, 0]
    assert report.results[0].trajectory.messages[0].text == "0 + 1 = ?"


def test_ids_are_of_the_content_and_copies_are_numbered() -> None:
    class Named(Sums):
        def rows(self) -> Sequence[Row]:
            return [
                *(Row({"question": "a"}, n) for n in range(2)),
                Row({"question": "b", "noise": 1}, content="b", stem="other"),
                *(Row({"question": "c"}, id="own") for _ in range(2)),
            ]

    ids = [sample.id for sample in Named().samples]
    assert ids[0].startswith("small-")
    assert ids[1] == f"{ids[0]}-2"
    assert ids[2] == "other-3e23e8160039"  # of the text itself
    assert ids[3:] == ["own", "own-2"]
    assert ids == [sample.id for sample in Named().samples]


async def test_a_sample_of_another_set_is_refused(tmp_path: Path) -> None:
    own, other = Sums(), Sums(upto=9)
    foreign = other.samples[8]
    with pytest.raises(InvalidInput, match="is not one of sums:small's"):
        own.source_of(foreign)
    with pytest.raises(InvalidInput, match="another question"):
        own.source_of(Sample(own.samples[0].id, {"question": "?"}))


async def test_a_run_is_resumed_only_with_the_same_identity(tmp_path: Path) -> None:
    name = {"experiment_name": "x"}
    await run(Sums(), tmp_path, **name)
    again = await run(Sums(), tmp_path, resume=True, **name)
    assert again.summary["n"] == 3
    with pytest.raises(ResumeMismatch):
        await run(Sums(secret="other"), tmp_path, resume=True, **name)


async def test_a_pickled_eval_scores_the_same(tmp_path: Path) -> None:
    definition = pickle.loads(pickle.dumps(Sums().definition()))  # noqa: S301 - its own
    config = EvalConfig(endpoint=lambda messages: "2", output_dir=str(tmp_path))
    report = await evaluate(definition, config)
    assert report.summary["mean"] == 1 / 3


def test_an_eval_that_cannot_be_one_is_refused() -> None:
    class Both(Interview, Countdown):
        pass

    with pytest.raises(InvalidInput, match="Both fills Converses and Steps"):
        Both().definition()
    with pytest.raises(InvalidInput, match="sums:small has no samples"):
        Sums(upto=0).definition()
