"""evaluate_env(): a policy, an environment, so many episodes -> VectorReport.

The loop steps environments and keeps nothing but the books: which slot plays which episode is
decided in episodes.py, how a convention resets in drivers.py, what the numbers mean in report.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from heldout.episodes import Ended, Slots, advance, begin, episode_seed
from heldout.errors import EnvironmentFailed, InvalidInput
from heldout.vector.driver import Driver, check_actions
from heldout.vector.drivers import drive
from heldout.vector.report import Books, VectorReport, summarize
from heldout.vector.sb3_vector import check_normalised_once
from heldout.vector.trajectory import TrajectoryFile, distance

PolicyFn = Callable[[Any], Any]
SuccessFn = Callable[[Mapping[str, Any], bool, bool, float, int], bool]
"""`success(info, terminated, truncated, ret, steps)` of an episode's last step."""

SILENT = -1


def evaluate_env(
    make_env: Callable[[], Any],
    policy_fn: PolicyFn,
    episodes: int,
    *,
    num_envs: int = 1,
    seed: int = 0,
    max_steps: int | None = None,
    success: SuccessFn | None = None,
    trajectory: str | Path | None = None,
) -> VectorReport:
    """Play exactly `episodes` episodes and report on all of them.

    `make_env()` returns a plain environment, of which `num_envs` are run side by side, or a
    vectorised one. They are this evaluation's own, and closed when it ends (clause 12).
    `policy_fn(observations) -> actions` is given the whole batch, one row an environment. If it
    keeps something from step to step, it has a method `begin(slots)`, which is called with the
    rows in which an episode is about to start.

    Success is what `success` says; without it what the environment says (`is_success` or
    `success` in the info of the last step); without that, that the episode terminated.
    `max_steps` truncates longer episodes. `trajectory` names a file for every step.
    """
    check_arguments(make_env, policy_fn, episodes, num_envs, seed, max_steps, success)
    dump = TrajectoryFile(trajectory) if trajectory is not None else None
    driver = drive(make_env, num_envs, episodes)
    with ExitStack() as stack:
        stack.enter_context(_closed_afterwards(driver))
        check_normalised_once(driver, policy_fn)
        if max_steps is not None and not driver.cuts:
            raise InvalidInput(
                "max_steps needs environments that can be restarted in the middle of an episode, "
                f"and {driver.name} cannot; let make_env return a plain environment, or limit its "
                "episodes there"
            )
        if dump is not None:
            dump.prepare(driver.action_space, several=max(num_envs, driver.num_envs) > 1)
            stack.enter_context(dump)
        evaluation = _Evaluation(driver, episodes, seed, success)
        evaluation.run(policy_fn, max_steps, dump)
        evaluation.check_seeding()
    return evaluation.report(max_steps)


@contextmanager
def _closed_afterwards(driver: Driver) -> Iterator[None]:
    problem: BaseException | None = None
    try:
        yield
    except BaseException as raised:
        problem = raised
        raise
    finally:
        try:
            driver.close()
        except Exception as second:  # noqa: BLE001 - it is reported, with the first or as a note
            said = f"closing the environments failed: {type(second).__name__}: {second}"
            if problem is not None:
                # Environments that failed often cannot be closed either.
                problem.add_note(f"heldout: {said}")
            else:  # all episodes were played: their numbers are not lost for that
                driver.notes.append(said)


def check_arguments(
    make_env: Any,
    policy_fn: Any,
    episodes: Any,
    num_envs: Any,
    seed: Any,
    max_steps: Any,
    success: Any,
) -> None:
    """Refuse what could not be meant, before anything is made."""
    if not callable(make_env):
        raise InvalidInput(
            f"make_env is a function that makes an environment, got {make_env!r:.200}; "
            "lambda: gymnasium.make(…) is one. A training environment is not to be used here"
        )
    if not callable(policy_fn):
        raise InvalidInput(
            f"policy_fn is a function of a batch of observations, got {policy_fn!r:.200}"
        )
    if success is not None and not callable(success):
        raise InvalidInput(
            "success is a function (info, terminated, truncated, ret, steps) -> bool, got "
            f"{success!r:.200}"
        )
    begin(num_envs, episodes)
    for name, value, least in (("seed", seed, 0), ("max_steps", max_steps, 1)):
        if value is None and name == "max_steps":
            continue
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise InvalidInput(f"{name} is a whole number of at least {least}, got {value!r}")


def _tell_beginnings(begins: Callable[[list[int]], object], slots: Slots) -> None:
    starting = (slots.steps == 0) & (slots.episode >= 0)
    if slots.playing is not None:
        starting &= slots.playing
    if starting.any():
        begins(np.flatnonzero(starting).tolist())


class _Evaluation:
    def __init__(self, driver: Driver, episodes: int, seed: int, success: SuccessFn | None) -> None:
        self._driver, self._seed, self._success = driver, int(seed), success
        self._seeded = driver.restarts
        self._books = Books(episodes)
        self._told = np.full(episodes, SILENT, dtype=np.int8)
        """What was said of each episode's success: 1, 0, or nothing."""
        self._said_by: set[str] = set()

    def run(self, policy_fn: PolicyFn, max_steps: int | None, dump: TrajectoryFile | None) -> None:
        driver = self._driver
        slots = begin(driver.num_envs, len(self._books))
        seeds = [self._seed_of(slot) for slot in range(driver.num_envs)]
        try:
            driver.reset(seeds)
            self._note_seeds(slots.episode, seeds)
            begins = getattr(policy_fn, "begin", None)
            while not slots.finished:
                if begins is not None:
                    _tell_beginnings(begins, slots)
                actions = policy_fn(driver.observe())
                check_actions(actions, driver.num_envs)
                if dump is not None:
                    dump.check(actions)
                step = driver.step(actions, slots.playing)
                if dump is not None:
                    dump.write(slots, actions, step, driver.info, max_steps)
                slots, ended = advance(slots, *step, max_steps=max_steps, rests=driver.rests)
                if ended is not None:
                    self._enter(ended)
                    self._restart(ended)
        except Exception as problem:
            playing = slots.episode[slots.episode >= 0].tolist()
            problem.add_note(f"heldout: episodes {playing} were under way; no number is reported")
            raise

    def _enter(self, ended: Ended) -> None:
        """Write the episodes that ended into the books."""
        books, at = self._books, ended.episode
        if not np.isfinite(ended.ret).all():
            bad = int(np.flatnonzero(~np.isfinite(ended.ret))[0])
            raise EnvironmentFailed(
                f"episode {at[bad]} has the return {ended.ret[bad]}: a reward was not a finite "
                "number, and no mean can be made of it"
            )
        books.ret[at], books.steps[at] = ended.ret, ended.steps
        books.terminated[at], books.truncated[at] = ended.terminated, ended.truncated
        for place, slot in enumerate(ended.slots.tolist()):
            info = self._driver.info(slot)
            how_far = distance(info)
            if how_far is not None:
                books.dist[at[place]] = how_far
            self._told[at[place]] = self._success_of(
                info,
                bool(ended.terminated[place]),
                bool(ended.truncated[place]),
                float(ended.ret[place]),
                int(ended.steps[place]),
            )

    def _success_of(
        self, info: Mapping[str, Any], terminated: bool, truncated: bool, ret: float, steps: int
    ) -> int:
        if self._success is not None:
            verdict: Any = self._success(info, terminated, truncated, ret, steps)
            if verdict is None:
                raise InvalidInput("success() returned None; it says True or False")
            return int(bool(verdict))
        for name in ("is_success", "success"):
            if info.get(name) is not None and info[name] == info[name]:  # a NaN says nothing
                self._said_by.add(f"info[{name!r}]")
                return int(bool(info[name]))
        return SILENT

    def check_seeding(self) -> None:
        """An environment that takes a seed and does not follow it was not seeded."""
        follows = getattr(self._driver, "follows_seed", None)
        if follows is not None and not follows(self._seed_of(0)):
            self._seeded = False
            self._books.seed[:] = -1
            self._driver.notes.append(
                "reset twice with the same seed, the environment began differently: it does not "
                "follow its seed, so numbers do not repeat"
            )

    def _restart(self, ended: Ended) -> None:
        if not self._driver.restarts:
            return
        going_on = ended.following >= 0
        slots, following = ended.slots[going_on].tolist(), ended.following[going_on].tolist()
        if slots:
            seeds = [self._seed_of(episode) for episode in following]
            self._driver.restart(slots, seeds)
            self._note_seeds(following, seeds)

    def _seed_of(self, episode: int) -> int:
        return episode_seed(self._seed, episode)

    def _note_seeds(self, episodes: Iterable[int], seeds: Sequence[int]) -> None:
        if self._driver.restarts:
            for episode, seed in zip(episodes, seeds, strict=True):
                if episode >= 0:
                    self._books.seed[episode] = seed

    def report(self, max_steps: int | None) -> VectorReport:
        driver, books = self._driver, self._books
        notes = list(driver.notes)
        success_is = self._decide_successes(notes)
        summary = summarize(books, num_envs=driver.num_envs, seed=self._seed, seeded=self._seeded)
        summary["success_is"] = success_is
        summary["notes"] = notes
        config = {
            "kind": "episodes",
            "env": driver.name,
            "episodes": len(books),
            "num_envs": driver.num_envs,
            "seed": self._seed,
            "seeded": self._seeded,
            "max_steps": None if max_steps is None else int(max_steps),
            "success_is": success_is,
            "notes": list(notes),
        }
        return VectorReport(summary, books, config, tuple(notes))

    def _decide_successes(self, notes: list[str]) -> str:
        """Clause 9: what success is, once all that was said of it is known."""
        books, told = self._books, self._told
        if self._success is not None:
            books.success[:] = told == 1
            return "success function"
        if self._said_by:
            # An environment that speaks of success only where there is one means no by silence.
            books.success[:] = told == 1
            silent = int((told == SILENT).sum())
            if silent:
                notes.append(
                    f"{silent} of {len(books)} episodes said nothing of success where others did: "
                    "they count as failures"
                )
            return ", ".join(sorted(self._said_by))
        books.success[:] = books.terminated
        both = books.terminated & books.truncated
        if both.any() and (both == books.truncated).all():
            notes.append(
                f"all {int(both.sum())} truncated episodes were reported as terminated too, and "
                "count as successes; if `done` means any end here, say with success= what one is"
            )
        return "terminated"
