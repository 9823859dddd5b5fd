"""Against the real reasoning-gym: its scores bit for bit, its seeds and `eval` held in check."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import reasoning_gym

from heldout import EvalConfig, EvalDefinition, EvalReport, Message, Trajectory, evaluate
from heldout.adapters.reasoning_gym import families, from_reasoning_gym
from heldout.adapters.tasks import list_tasks, load_task
from heldout.errors import InvalidInput
from heldout.rollouts.overlap import check_no_overlap
from tests.integration.package_scores import check_same_scores

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def score(definition: EvalDefinition, reply: str, number: int = 0) -> Any:
    (sample,) = list(definition.samples)[number : number + 1]
    trajectory = Trajectory((Message("user", "?"), Message("assistant", reply)))
    return await definition.score_fn(trajectory, sample)  # type: ignore[misc]


async def run(definition: EvalDefinition, answer: Any, folder: Path, **settings: Any) -> EvalReport:
    config = EvalConfig(endpoint=answer, output_dir=str(folder), **settings)
    return await evaluate(definition, config)


REPLIES = ("<answer>{}</answer>", "<answer>The answer is {}</answer>", "{}", "none", "")


@pytest.mark.parametrize(
    ("family", "values"),
    [
        ("chain_sum", {0.0, 1.0}),
        ("countdown", {0.01, 1.0}),
        ("spiral_matrix", {0.0, 1.0}),
        ("word_sorting", {0.0, 1.0}),
        ("propositional_logic", set()),
    ],
)
async def test_a_run_has_the_scores_of_the_package(
    family: str, values: set[float], tmp_path: Path
) -> None:
    definition = from_reasoning_gym(family, size=10, seed=3)
    sets = {sample.input["question"]: n for n, sample in enumerate(definition.samples)}
    right = {s.input["question"]: s.ground_truth for s in definition.samples}

    async def answer(messages: list[Message], **_: Any) -> str:
        question = messages[-1].text
        return REPLIES[sets[question] % len(REPLIES)].format(right[question])

    report = await run(definition, answer, tmp_path)
    # The package has no runner of its own, but a function that scores an answer.
    theirs = reasoning_gym.create_dataset(family, seed=3, size=500)
    own = []
    for sample, result in zip(definition.samples, report.results, strict=True):
        text = reasoning_gym.utils.extract_answer(result.trajectory.answer)
        entry = theirs[sample.metadata["index"]]
        assert entry["question"] == sample.input["question"]
        own.append(theirs.score_answer(text, entry))
    check_same_scores(report, own, sum(own) / len(own))
    assert {result.score.reward for result in report.results} >= values
    for result in report.results:
        assert result.score["exact"] == (result.score.reward == 1.0)


async def test_a_family_opens_with_its_own_prompt_and_slices_by_its_settings(
    tmp_path: Path,
) -> None:
    asked = []

    async def answer(messages: list[Message], **_: Any) -> str:
        asked.append(messages)
        return "7"

    report = await run(from_reasoning_gym("chain_sum", size=2), answer, tmp_path)
    assert [message.role for message in asked[0]] == ["system", "user"]
    assert "num_terms" in report.results[0].metadata


@pytest.mark.parametrize(
    ("family", "reply", "expected"),
    [
        ("spiral_matrix", "__import__('pathlib').Path({path!r}).touch()", (0.0, 0.0)),
        ("countdown", "open(chr(47)).x", (0.01, 0.0)),
        ("countdown", "9**9**9", (0.0, 1.0)),  # it would take for ever
        ("prime_factorization", "seven", (0.0, 1.0)),  # its scorer raises
        ("string_insertion", "['A', 'B']", (0.0, 0.0)),
    ],
)
async def test_what_a_model_writes_is_not_run(
    family: str, reply: str, expected: tuple[float, float], tmp_path: Path
) -> None:
    path = tmp_path / "made"
    definition = from_reasoning_gym(family, size=1, seconds=2)
    given = await score(definition, f"<answer>{reply.format(path=str(path))}</answer>")
    assert (given.reward, given["refused"]) == expected
    assert not path.exists()


async def test_an_answer_that_is_a_literal_is_read_as_the_package_does() -> None:
    definition = from_reasoning_gym("spiral_matrix", size=1)
    (sample,) = definition.samples
    numbers = [int(number) for number in str(sample.ground_truth).split()]
    assert (await score(definition, f"<answer>{numbers}</answer>")).reward == 0.1


async def test_a_reference_that_cannot_be_scored_is_an_error_and_no_zero() -> None:
    definition = from_reasoning_gym("chain_sum", size=1)
    (sample,) = definition.samples
    sample.input["question"] += "?"  # as where another version generates another item
    with pytest.raises(Exception, match="another question"):
        await score(definition, "<answer>1</answer>")


def test_sets_share_no_question_and_neighbouring_seeds_do() -> None:
    held_out = from_reasoning_gym("chain_sum", size=30, seed=0)
    neighbour = from_reasoning_gym("chain_sum", size=30, seed=1)
    with pytest.raises(InvalidInput, match="^29 training samples"):
        check_no_overlap(neighbour.samples, held_out)
    apart = from_reasoning_gym("chain_sum", size=30, seed=1, without=held_out)
    assert check_no_overlap(apart.samples, held_out) == 0
    assert len({sample.id for sample in [*apart.samples, *held_out.samples]}) == 60


@pytest.mark.parametrize("family", ["isomorphic_strings", "list_functions", "acre"])
def test_a_set_is_the_same_every_time(family: str) -> None:
    first, second = (from_reasoning_gym(family, size=3, seed=5) for _ in range(2))
    assert list(first.samples) == list(second.samples)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"family": "chain_summ"}, "no family 'chain_summ'"),
        ({"family": "game_of_life_halting"}, "every answer"),
        ({"family": "gcd", "max_number": 3}, "no parameter 'max_number'; it has max_numbers"),
        ({"family": "gcd", "max_numbers": 1}, "could not generate"),
        ({"family": "tower_of_hanoi", "size": 300}, "different questions in 600 draws"),
        ({"family": "gcd", "size": 0}, "size must be"),
    ],
)
def test_what_cannot_be_an_eval_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        from_reasoning_gym(**arguments)


def test_a_task_is_found_by_its_name() -> None:
    names = {task.name: task.refused for task in list_tasks("reasoning-gym")}
    assert names["reasoning-gym:gcd"] is None
    assert names["reasoning-gym:composite"] == families()["composite"] is not None
    with pytest.raises(InvalidInput, match="PREFIX:NAME"):
        load_task("gcd")
    assert len(list(load_task("reasoning-gym:gcd", size=4).samples)) == 4
