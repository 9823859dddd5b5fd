"""Task families of reasoning-gym as heldout evals: generated, so there is nothing to download.

    held_out = from_reasoning_gym("chain_sum", size=200, seed=0)
    train = from_reasoning_gym("chain_sum", size=2000, seed=1, without=held_out)

The package makes item i of seed s from `s + i`: nearly all items of seed 1 are items of seed 0, and
families with few different questions repeat them under any seed. So a sample's id is a hash of its
question, each question occurs once, and `without` leaves out those of another set.

The reward is the package's own score, bit for bit. `exact` beside it says whether it was 1: many
families give a part of it for an answer that is not right, or for none.
"""

from __future__ import annotations

import functools
import hashlib
import json
import threading
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from typing import Any

from heldout._core.versions import check_version
from heldout._evals.rollout import EvalDefinition
from heldout.errors import InvalidInput, WorkerError
from heldout.rollouts.overlap import HeldOutPrompts
from heldout.scoring.process_pool import Pool
from heldout.types import Message, Metric, Sample, Score, Trajectory

SUPPORTED = ">=0.1.25,<0.2"
REFUSED = {
    "composite": "it mixes families, whose scores do not mean the same; make an eval of each",
    "game_of_life_halting": "its scorer takes every answer that is not empty for right",
}
"""Why a family cannot be an eval."""
BATCH = 20
"""Items that a worker generates at once."""
GENERATE_SECONDS = 300.0

_WORKER = "heldout.adapters.reasoning_gym.worker"
_pool: Pool | None = None
_creating = threading.Lock()


def from_reasoning_gym(
    family: str,
    *,
    size: int = 100,
    seed: int = 0,
    without: Iterable[Sample] | EvalDefinition | None = None,
    system_prompt: str | None = "default",
    seconds: float = 30.0,
    **config: Any,
) -> EvalDefinition:
    """Make an eval of a task family.

    Args:
        family: Its name, such as "chain_sum"; `heldout tasks reasoning-gym` lists them.
        size: Number of samples, whose questions all differ.
        seed: Seed of the first item. Another seed alone makes no other set: see `without`.
        without: Samples, or an eval, whose questions are left out.
        system_prompt: A name in the package's SYSTEM_PROMPTS, or a text, that asks for the answer
            in <answer> tags; what stands there is scored. With None the whole reply is.
        seconds: Time limit of scoring an answer.
        **config: The family's own parameters, such as `max_terms=3`.

    Returns:
        The eval; only a reward of 1 passes. Where an answer makes the scorer fail or
        exceed its time and the reference answer does not, the reward is 0 and the metric `refused`
        is 1.

    Raises:
        InvalidInput: There is no such family or parameter, it cannot be an eval, or it has fewer
            different questions.
    """
    check_version("reasoning-gym", SUPPORTED, why="newer ones may score otherwise")
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise InvalidInput(f"size must be a whole number >= 1, got {size!r}")
    _check_family(family, config)
    pool = worker_pool()
    draws = max(500, 2 * size)
    settings = json.dumps({"seed": seed, "size": draws, **config}, sort_keys=True)
    samples = list(_draw_samples(pool, family, settings, size, draws, without))
    prompt = system_prompt
    if system_prompt is not None:
        prompt = pool.run_sync(f"{_WORKER}:system_prompts", seconds=60).get(
            system_prompt, system_prompt
        )
    score_fn = functools.partial(
        score_answer,
        family=family,
        settings=settings,
        tagged=prompt is not None,
        seconds=seconds,
        package=version("reasoning-gym"),
    )
    opening = functools.partial(_opening, system_prompt=prompt)
    # Parts of the reward are given for answers that are not right.
    return EvalDefinition(samples, score_fn, opening, pass_threshold=1.0)


def families() -> dict[str, str | None]:
    """Return the families that are installed, with the reason where one cannot be an eval."""
    check_version("reasoning-gym", SUPPORTED, why="newer ones may score otherwise")
    names: list[str] = worker_pool().run_sync(f"{_WORKER}:families", seconds=60)
    return {name: REFUSED.get(name) for name in names}


def worker_pool() -> Pool:
    """Return the workers that all evals of this process share."""
    global _pool
    with _creating:
        if _pool is None:
            _pool = Pool(prepare=f"{_WORKER}:prepare", memory=4 * 2**30)
        return _pool


def _check_family(family: str, config: dict[str, Any]) -> None:
    known = families()
    if family not in known:
        raise InvalidInput(
            f"reasoning-gym has no family {family!r}; `heldout tasks reasoning-gym` lists them"
        )
    if why := known[family]:
        raise InvalidInput(f"{family} cannot be an eval: {why}")
    names = worker_pool().run_sync(f"{_WORKER}:parameters", family, seconds=60)
    if unknown := sorted(config.keys() - {*names}):
        own = ", ".join(sorted({*names} - {"seed", "size"}))
        raise InvalidInput(f"{family} has no parameter {unknown[0]!r}; it has {own}")


def _draw_samples(
    pool: Pool,
    family: str,
    settings: str,
    size: int,
    draws: int,
    without: Iterable[Sample] | EvalDefinition | None,
) -> Iterator[Sample]:
    taken = HeldOutPrompts()
    if without is not None:
        taken.add(without)
    seen: set[str] = set()
    for start in range(0, draws, BATCH):
        stop = min(start + BATCH, draws)
        try:
            rows = pool.run_sync(
                f"{_WORKER}:generate", family, settings, start, stop, seconds=GENERATE_SECONDS
            )
        except WorkerError as problem:
            raise InvalidInput(
                f"reasoning-gym could not generate items {start} to {stop - 1} of {family} with "
                f"{settings}: {problem}"
            ) from problem
        for index, row in enumerate(rows, start):
            question = row["question"]
            if question in seen or taken.find(question) is not None:
                continue
            seen.add(question)
            digest = hashlib.sha256(question.encode()).hexdigest()[:12]
            metadata = {**row["metadata"], "index": index}
            yield Sample(f"{family}-{digest}", {"question": question}, row["answer"], metadata)
            if len(seen) == size:
                return
    left = " that are not in `without`" if without is not None else ""
    raise InvalidInput(
        f"{family} gave {len(seen)} different questions{left} in {draws} draws, and size is "
        f"{size}. Take fewer, or parameters with more room"
    )


def _opening(sample: Sample, *, system_prompt: str | None) -> list[Message]:
    system = [] if system_prompt is None else [Message("system", system_prompt)]
    return [*system, Message("user", sample.input["question"])]


async def score_answer(
    trajectory: Trajectory,
    sample: Sample,
    *,
    family: str,
    settings: str,
    tagged: bool,
    seconds: float,
    package: str,
) -> Score:
    """Score a reply by the family's own scorer, in a worker process.

    Args:
        trajectory: What the policy did; its last turn is read.
        sample: The sample, whose metadata has the item's index.
        family: The task family.
        settings: Its parameters, seed and size, as JSON.
        tagged: Whether the answer stands in <answer> tags.
        seconds: Time limit.
        package: Version of reasoning-gym; another one may score otherwise.

    Raises:
        WorkerError: The reference answer cannot be scored either.
    """
    pool = worker_pool()
    item = family, settings, sample.metadata["index"], sample.input["question"]
    refused: dict[str, str] = {}
    try:
        value, answer = await pool.run(
            f"{_WORKER}:score", *item, trajectory.answer, tagged, seconds=seconds
        )
    except WorkerError as problem:
        # Whose fault is it? The answer's, if the scorer works on another one.
        await pool.run(f"{_WORKER}:score_reference", *item, seconds=seconds)
        value, answer, refused = 0.0, None, {"reason": str(problem)[:500]}
    return Score(
        (
            Metric("score", value, 1.0, {"extracted": answer}),
            Metric("exact", value >= 1.0),
            Metric("refused", bool(refused), metadata=refused),
        )
    )


__all__ = ["families", "from_reasoning_gym", "score_answer"]
