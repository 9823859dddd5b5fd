"""What runs in worker processes: TextArena's games for one player, with reset and step."""

from __future__ import annotations

import hashlib
import importlib
import inspect
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from heldout.environments.episodes import RandomStates
from heldout.types import Sample

DRAWS_LATER = {"MinesweeperEnv"}
"""Games whose seed decides nothing until the first move, so that they look alike before it."""


class TextArenaGame:
    """A game for one player."""

    def __init__(self, name: str, config: dict[str, Any]) -> None:
        import textarena

        self._game = textarena.make(name, **config)
        self._board = self._game
        # Its wrappers repeat the whole game in every observation. A conversation has it already.
        while isinstance(self._board, textarena.Wrapper):
            self._board = self._board.env
        self._own_actions = textarena.ObservationType.PLAYER_ACTION

    def reset(self, seed: int) -> tuple[str, dict[str, Any]]:
        """Begin a game."""
        self._game.reset(num_players=1, seed=seed)
        return self._new_observations(), {}

    def step(self, action: str) -> tuple[str, float | None, bool, bool, dict[str, Any]]:
        """Make a move; there is a reward at the end of the game alone."""
        done, _ = self._game.step(action)
        observed = self._new_observations()
        if not done:
            return observed, None, False, False, {}
        rewards, about = self._board.close()
        reward = None if rewards is None else rewards.get(0)
        info = about.get(0, {})
        reason = info.get("reason")
        text = "\n".join(part for part in (observed, reason) if part)
        return text, reward, True, False, {"invalid_move": bool(info.get("invalid_move"))}

    def limit(self) -> int | None:
        """Return the most turns of the game, with the wrong moves that it lets pass."""
        state = self._board.state
        if not state.max_turns:
            return None
        return int(state.max_turns) * (1 + int(state.error_allowance or 0))

    def digest(self) -> str:
        """Hash how the game begins, with what the player does not see."""
        kind = type(self._board)
        hidden = {name: value for name, value in vars(self._board).items() if name != "state"}
        texts = [f"{name}={value!r}" for name, value in sorted(hidden.items())]
        shown = [text for text in texts if " at 0x" not in text]
        parts = [kind.__name__, repr(self._board.state.game_state), *shown]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]

    def _new_observations(self) -> str:
        _, observed = self._board.get_observation()
        return "\n".join(text for _, text, kind in observed if kind != self._own_actions).strip()


def make_game(sample: Sample) -> TextArenaGame:
    """Make the game of a sample."""
    return TextArenaGame(sample.input["name"], sample.input["config"])


def begin_games(
    name: str, config: dict[str, Any], seeds: Sequence[int]
) -> list[tuple[str, int | None]]:
    """Begin games, and return of each a hash of how it begins, and its most turns."""
    begun = []
    for seed in seeds:
        with RandomStates(f"{name} {seed}").swapped_in():
            game = TextArenaGame(name, config)
            opening, _ = game.reset(seed)
        digest = f"{opening} {game.digest()}"
        if type(game._board).__name__ in DRAWS_LATER:
            digest += f" {seed}"
        begun.append((hashlib.sha256(digest.encode()).hexdigest()[:12], game.limit()))
    return begun


def find_games() -> dict[str, str | None]:
    """Return the names of all games, and why one cannot be played by one player here."""
    importlib.import_module("textarena")
    registry = importlib.import_module("textarena.envs.registration").ENV_REGISTRY
    reasons: dict[Any, str | None] = {}
    found = {}
    for name, spec in registry.items():
        if name.endswith(("-raw", "-train")):  # differ in wrappers alone, which are not used
            continue
        entry = spec.entry_point
        if entry not in reasons:
            reasons[entry] = _why_not(name, entry)
        found[name] = reasons[entry]
    return found


def _why_not(name: str, entry: Any) -> str | None:
    """Begin a game: some want data or a key, or are no valid Python here."""
    try:
        module, _, kind = entry.partition(":") if isinstance(entry, str) else ("", "", "")
        source = getattr(importlib.import_module(module), kind) if module else entry
        if "SinglePlayerState" not in inspect.getsource(source):
            return "it is for two players or more"
        begin_games(name, {}, [0])
    except Exception as problem:  # noqa: BLE001 - whatever it is, it is the reason
        lines = [line.strip(" *") for line in str(problem).splitlines()]
        with suppress(StopIteration):
            text = next(line for line in lines if line)
            return f"{type(problem).__name__}: {text[:150]}"
        return type(problem).__name__
    return None
