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

import json
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from heldout._evals.rollout import EvalDefinition
from heldout.adapters.seam import AdaptedEval, Row, TaskAdapter
from heldout.errors import InvalidInput, WorkerError
from heldout.rollouts.overlap import HeldOutPrompts
from heldout.scoring.process_pool import Pool
from heldout.types import Message, Metric, Sample, Score, Trajectory

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
    ADAPTER.check()
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise InvalidInput(f"size must be a whole number >= 1, got {size!r}")
    _check_family(family, config)
    return Family(family, config, size, seed, without, system_prompt, seconds).definition()


def families() -> dict[str, str | None]:
    """Return the families that are installed, with the reason where one cannot be an eval."""
    ADAPTER.check()
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


class Family(AdaptedEval):
    """A family of tasks: items are generated, and answers scored, in worker processes."""

    package = "reasoning-gym"
    pass_threshold = 1.0  # parts of the reward are given for answers that are not right

    def __init__(
        self,
        family: str,
        config: dict[str, Any],
        size: int,
        seed: int,
        without: Iterable[Sample] | EvalDefinition | None,
        system_prompt: str | None,
        seconds: float,
    ) -> None:
        """Make the eval; see `from_reasoning_gym`."""
        self.name, self._family, self._size = f"reasoning-gym:{family}", family, size
        self._draws = max(500, 2 * size)
        self._settings = json.dumps({"seed": seed, "size": self._draws, **config}, sort_keys=True)
        self._taken = HeldOutPrompts()
        self._excludes = without is not None
        if without is not None:
            self._taken.add(without)
        self._prompt, self._seconds = system_prompt, seconds
        if system_prompt is not None:
            prompts = worker_pool().run_sync(f"{_WORKER}:system_prompts", seconds=60)
            self._prompt = prompts.get(system_prompt, system_prompt)

    def rows(self) -> Iterator[Row]:
        """Generate items until there are enough different questions."""
        seen: set[str] = set()
        for start in range(0, self._draws, BATCH):
            for index, row in enumerate(self._generate(start), start):
                question = row["question"]
                if question in seen or self._taken.find(question) is not None:
                    continue
                seen.add(question)
                metadata = {**row["metadata"], "index": index}
                asked = {"question": question}
                yield Row(asked, row["answer"], metadata, content=question)
                if len(seen) == self._size:
                    return
        left = " that are not in `without`" if self._excludes else ""
        raise InvalidInput(
            f"{self._family} gave {len(seen)} different questions{left} in {self._draws} draws, "
            f"and size is {self._size}. Take fewer, or parameters with more room"
        )

    def _generate(self, start: int) -> list[dict[str, Any]]:
        stop = min(start + BATCH, self._draws)
        arguments = self._family, self._settings, start, stop
        try:
            rows: list[dict[str, Any]] = worker_pool().run_sync(
                f"{_WORKER}:generate", *arguments, seconds=GENERATE_SECONDS
            )
        except WorkerError as problem:
            raise InvalidInput(
                f"reasoning-gym could not generate items {start} to {stop - 1} of {self._family} "
                f"with {self._settings}: {problem}"
            ) from problem
        return rows

    def opening(self, sample: Sample) -> Sequence[Message]:
        """Ask the question, after the system prompt."""
        system = [] if self._prompt is None else [Message("system", self._prompt)]
        return [*system, Message("user", sample.input["question"])]

    def reference(self, sample: Sample) -> str | None:
        """Return the item's own answer, in the tags that the system prompt asks for."""
        if sample.ground_truth is None:
            return None
        tagged = self._prompt is not None
        return f"<answer>{sample.ground_truth}</answer>" if tagged else sample.ground_truth

    async def score(self, trajectory: Trajectory, sample: Sample) -> Score:
        """Score a reply by the family's own scorer, in a worker process.

        Raises:
            WorkerError: The reference answer cannot be scored either.
        """
        pool, seconds = worker_pool(), self._seconds
        item = self._family, self._settings, sample.metadata["index"], sample.input["question"]
        refused: dict[str, str] = {}
        try:
            value, answer = await pool.run(
                f"{_WORKER}:score",
                *(*item, trajectory.answer, self._prompt is not None),
                seconds=seconds,
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

    def identity(self) -> dict[str, Any]:
        """Return the parameters, and what asks for the answer."""
        return {
            "settings": self._settings,
            "system_prompt": self._prompt,
            "seconds": self._seconds,
            "code": 1,
        }


ADAPTER = TaskAdapter(
    "reasoning-gym",
    "reasoning-gym",
    ">=0.1.25,<0.2",
    from_reasoning_gym,
    families,
    why="newer ones may score otherwise",
)

__all__ = ["ADAPTER", "families", "from_reasoning_gym"]
