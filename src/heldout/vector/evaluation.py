"""evaluate_env(): a policy, an environment, so many episodes -> VectorReport.

The loop steps environments and keeps nothing but the books: which slot plays which episode is
decided in episodes.py, how a convention resets in drivers.py, what the numbers mean in report.py.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from heldout.episodes import Bools, Ended, Slots, advance, begin, episode_seed
from heldout.errors import EnvironmentFailed, InvalidInput
from heldout.isolation import held_by, isolated
from heldout.vector.drivers import (
    Driver,
    Step,
    as_numpy,
    check_actions,
    check_normalised_once,
    drive,
    is_tensor,
)
from heldout.vector.report import Books, VectorReport, summarize
from heldout.vector.trajectory import TrajectoryFile, distance

PolicyFn = Callable[[Any], Any]
SuccessFn = Callable[[Mapping[str, Any], bool, bool, float, int], bool]
"""`success(info, terminated, truncated, ret, steps)` of an episode's last step."""

SILENT = -1

REPLAYED = 16
"""How many steps are played again at the end, to see whether environments follow their seeds."""


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

    Random state (python's, numpy's and torch's, and generators that the policy holds) starts from
    `seed`, torch modules that it holds are in eval mode, without gradients, and all of that is put
    back at the end.
    """
    check_arguments(make_env, policy_fn, episodes, num_envs, seed, max_steps, success)
    dump = TrajectoryFile(trajectory) if trajectory is not None else None
    modules, generators = held_by(policy_fn)
    with isolated(modules, seed=int(seed), generators=generators), ExitStack() as stack:
        driver = drive(make_env, num_envs, episodes)
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


class _Beginning:
    """The first steps of an evaluation, until an episode ends, to be played again at its end."""

    def __init__(self, driver: Driver, seeds: Sequence[int], playing: Bools | None) -> None:
        self._driver, self._seeds, self._playing = driver, seeds, playing
        self._start = _checksum(driver.observe())
        self._steps: list[tuple[Any, bool, int]] = []

    def add(self, actions: Any, step: Step, ended: bool) -> bool:
        """Returns whether the next step is to be added too."""
        self._steps.append((actions, ended, self._outcome(step, ended)))
        return not ended and len(self._steps) < REPLAYED

    def repeats(self) -> bool:
        self._driver.reset(self._seeds)
        return self._start == _checksum(self._driver.observe()) and all(
            self._outcome(self._driver.step(actions, self._playing), ended) == outcome
            for actions, ended, outcome in self._steps
        )

    def _outcome(self, step: Step, ended: bool) -> int:
        # Where an episode ended, what is observed may be of the next one.
        return _checksum((*step, None if ended else self._driver.observe()))


def _checksum(values: Any) -> int:
    """Of all arrays, numbers and texts in there: a few bytes in place of a batch of images."""
    if isinstance(values, Mapping):
        values = [part for item in values.items() for part in item]
    if isinstance(values, tuple | list):
        return hash(tuple(map(_checksum, values)))
    array = as_numpy(values)
    return 0 if array.dtype.hasobject else zlib.crc32(np.ascontiguousarray(array).tobytes())


def _copied(actions: Any) -> Any:
    """As the environments were given them: they may work on them in place."""
    if isinstance(actions, Mapping):
        return {key: _copied(part) for key, part in actions.items()}
    if isinstance(actions, tuple | list):
        return type(actions)(map(_copied, actions))
    return actions.detach().clone() if is_tensor(actions) else copy.deepcopy(actions)


class _Evaluation:
    def __init__(self, driver: Driver, episodes: int, seed: int, success: SuccessFn | None) -> None:
        self._driver, self._seed, self._success = driver, int(seed), success
        self._seeded = driver.restarts
        self._books = Books(episodes)
        self._told = np.full(episodes, SILENT, dtype=np.int8)
        """What was said of each episode's success: 1, 0, or nothing."""
        self._said_by: set[str] = set()
        self._beginning: _Beginning | None = None

    def run(self, policy_fn: PolicyFn, max_steps: int | None, dump: TrajectoryFile | None) -> None:
        driver = self._driver
        slots = begin(driver.num_envs, len(self._books))
        seeds = [self._seed_of(slot) for slot in range(driver.num_envs)]
        try:
            driver.reset(seeds)
            self._note_seeds(slots.episode, seeds)
            if driver.restarts:
                self._beginning = _Beginning(driver, seeds, slots.playing)
            recording = self._beginning is not None and driver.cuts
            begins = getattr(policy_fn, "begin", None)
            while not slots.finished:
                if begins is not None:
                    _tell_beginnings(begins, slots)
                actions = policy_fn(driver.observe())
                check_actions(actions, driver.num_envs)
                if dump is not None:
                    dump.check(actions)
                given = _copied(actions) if recording else None
                step = driver.step(actions, slots.playing)
                if dump is not None:
                    dump.write(slots, actions, step, driver.info, max_steps)
                slots, ended = advance(slots, *step, max_steps=max_steps, rests=driver.rests)
                if recording and self._beginning is not None:
                    recording = self._beginning.add(given, step, ended is not None)
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
        """What went differently when it was played again was not seeded."""
        if self._beginning is None:
            return
        try:
            if self._beginning.repeats():
                return
            note = (
                "replayed with the same seeds and actions, the first episodes went differently: "
                "the environment does not follow its seed, or not its seed alone, so numbers may "
                "differ from run to run and with num_envs"
            )
        except Exception as problem:  # noqa: BLE001 - the episodes that were played are kept
            note = (
                "whether the environment follows its seed is not known, because its first steps "
                f"could not be replayed: {type(problem).__name__}: {problem}"
            )
        self._seeded = False
        self._books.seed[:] = -1
        self._driver.notes.append(note)

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
