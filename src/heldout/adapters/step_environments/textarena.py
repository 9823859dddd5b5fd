"""TextArena's games for one player as heldout evals.

    from_textarena("Sudoku-v0", size=50)

The package seeds the global `random` at every reset and draws from it in play. Games are played in
worker processes, so training is not disturbed, and each has a random state of its own: a game goes
the same way at any concurrency. It is its seed and its moves, so it can be resumed in its middle.

A seed need not make another game: some games begin in one way only. Those that begin alike, with
what the player does not see, are taken once.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from heldout._evals.rollout import EvalDefinition
from heldout.adapters.seam import TaskAdapter
from heldout.adapters.step_environments import from_step_env, seeds, worker_pool
from heldout.errors import InvalidInput, WorkerError

MOST_TURNS = 200
"""Model turns of a game that has no limit of its own."""
BATCH = 10
_GAMES = "heldout.adapters.step_environments.games"


def from_textarena(
    name: str,
    *,
    size: int = 50,
    seed: int = 0,
    system_prompt: str | None = None,
    max_turns: int | None = None,
    seconds: float = 60.0,
    **config: Any,
) -> EvalDefinition:
    """Make an eval of a game.

    Args:
        name: Its name, such as "Sudoku-v0"; `heldout tasks textarena` lists them.
        size: Number of games, which all begin in different ways.
        seed: The first seed.
        system_prompt: A system message before the game's own prompt.
        max_turns: The most model turns; by default the game's own limit, with the wrong moves that
            it lets pass. A game that is not over by then has no reward, which is an error.
        seconds: Time limit of a move.
        **config: The game's own parameters.

    Returns:
        The eval. Its reward is the game's; the metric `invalid_move` is 1 where a wrong move ended
        the game.

    Raises:
        InvalidInput: There is no such game or parameter, it cannot be played by one player here, or
            there are fewer different games.
    """
    ADAPTER.check()
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise InvalidInput(f"size must be a whole number >= 1, got {size!r}")
    begun = _begin_different_games(name, config, size, seed)
    samples = [
        replace(sample, input={**sample.input, "begins": begun[sample.input["seed"]][0]})
        for sample in seeds(name, begun, config)
    ]
    limits = [limit for _, limit in begun.values()]
    limit = max(limits) if all(limits) else MOST_TURNS  # type: ignore[type-var]
    definition = from_step_env(
        f"{_GAMES}:make_game",
        samples,
        reward="last",
        system_prompt=system_prompt,
        metrics=("invalid_move",),
        max_turns=limit if max_turns is None else max_turns,
        seconds=seconds,
        package="textarena",
    )
    # A part of the reward is given for a game that is not won.
    return replace(definition, pass_threshold=1.0)


@functools.cache
def games() -> Mapping[str, str | None]:
    """Return the games that are installed, with the reason where one cannot be played here."""
    ADAPTER.check()
    found: dict[str, str | None] = worker_pool().run_sync(f"{_GAMES}:find_games", seconds=300)
    return found


def _begin_different_games(
    name: str, config: dict[str, Any], size: int, seed: int
) -> dict[int, tuple[str, int | None]]:
    """Return the seeds of games that begin in different ways, with a hash and the most turns."""
    taken: set[str] = set()
    begun: dict[int, tuple[str, int | None]] = {}
    for start in range(seed, seed + 2 * size + 50, BATCH):
        numbers = range(start, start + BATCH)
        try:
            rows = worker_pool().run_sync(
                f"{_GAMES}:begin_games", name, config, list(numbers), seconds=300
            )
        except WorkerError as problem:
            raise InvalidInput(_explain(name, config, problem)) from problem
        for number, (digest, limit) in zip(numbers, rows, strict=True):
            if digest not in taken:
                taken.add(digest)
                begun[number] = digest, limit
            if len(begun) == size:
                return begun
        if len(begun) == 1:
            break  # it begins in one way
    ways = "one way" if len(begun) == 1 else f"{len(begun)} different ways"
    raise InvalidInput(
        f"{name} began in {ways} with {numbers.stop - seed} seeds, and size is {size}: copies of "
        "a game would make error bars too small. Take fewer"
    )


def _explain(name: str, config: Mapping[str, Any], problem: WorkerError) -> str:
    reason = games().get(name.removesuffix("-raw").removesuffix("-train"), "")
    if reason == "":
        return f"TextArena has no game {name!r}; `heldout tasks textarena` lists them"
    if reason:
        return f"{name} cannot be played by one player here: {reason}"
    return f"{name} could not be begun with {dict(config)}: {problem}"


ADAPTER = TaskAdapter(
    "textarena",
    "textarena",
    ">=0.7.4,<0.8",
    from_textarena,
    games,
    why="newer ones may play otherwise",
)

__all__ = ["ADAPTER", "from_textarena", "games"]
