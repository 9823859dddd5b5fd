"""evaluate_env(): a policy, an environment, a number of episodes -> VectorReport.

Which slot plays which episode is decided in episodes.py, how a kind of environment is reset and
stepped in drivers.py, what the numbers mean in report.py.
"""

from __future__ import annotations

import copy
import inspect
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, get_args

import msgspec
import numpy as np

from heldout._live.isolation import held_by, isolated
from heldout.errors import EnvironmentFailed, InvalidInput
from heldout.vector.drivers import (
    NORMALISED_TWICE,
    Driver,
    VectorStep,
    as_numpy,
    check_actions,
    make_driver,
)
from heldout.vector.episodes import (
    Bools,
    EndedEpisodes,
    Slots,
    advance,
    begin,
    check_whole,
    episode_seed,
)
from heldout.vector.report import Episode, VectorReport, summarize

PolicyFn = Callable[[Any], Any]
SuccessFn = Callable[[Mapping[str, Any], bool, bool, float, int], bool]
"""`success(info, terminated, truncated, ret, steps)` of an episode's last step."""

SuccessWord = Literal["terminated", "is_success"]
"""A definition of success that needs no function: to terminate, or `info["is_success"]` alone."""
SUCCESS_WORDS: tuple[SuccessWord, ...] = get_args(SuccessWord)

REPLAYED = 16
"""How many steps are replayed at the end, to see whether environments follow their seeds."""


FAILED_IN = "heldout_failed_in"
"""The attribute of an error out of an evaluation that says in which episode it was."""


class FailedEpisode(NamedTuple):
    """Where an evaluation failed."""

    episode: int | None = None
    """Its index; None where a whole batch failed, or before the first."""
    in_flight: Sequence[int] = ()


def find_failed_episode(problem: BaseException) -> FailedEpisode:
    """Return in which episode `evaluate_env` raised an error."""
    failed = getattr(problem, FAILED_IN, None)
    return failed if isinstance(failed, FailedEpisode) else FailedEpisode()


def evaluate_env(
    make_env: Callable[[], Any],
    policy_fn: PolicyFn,
    episodes: int,
    *,
    num_envs: int = 1,
    seed: int = 0,
    max_steps: int | None = None,
    success: SuccessFn | SuccessWord | None = None,
    trajectory: str | Path | None = None,
) -> VectorReport:
    """Play exactly `episodes` episodes and report on all of them.

    Random state (Python's, numpy's and torch's, and generators that the policy holds) starts from
    `seed`; torch modules that the policy holds are in eval mode, without gradients. All of that is
    restored at the end.

    Args:
        make_env: Returns a new environment at every call, plain or vectorised. It belongs to this
            evaluation, which closes it (clause 12).
        policy_fn: A batch of observations to a batch of actions, one row per environment. If it
            keeps a state from step to step, it has a method `begin(slots)`, which is called with
            the rows in which an episode is about to start.
        episodes: How many episodes to play.
        num_envs: How many plain environments to run side by side.
        seed: Episode `i` is seeded by `(seed, i)`.
        max_steps: Truncates longer episodes.
        success: Decides whether an episode succeeded: a function of its last step, "terminated"
            (those that terminated did) or "is_success" (the environment says so under that key of
            the last step's info). Without it the environment decides (`is_success` or `success` in
            that info); without that, success is not known (None).
        trajectory: A new `.jsonl` file for every step.

    Raises:
        InvalidInput: An argument, or what `make_env` or `policy_fn` returned, cannot be used.
        EnvironmentFailed: A reward was not finite, or observations do not fit together.
    """
    check_arguments(make_env, episodes, num_envs, seed, max_steps, success)
    file = _TrajectoryFile(trajectory) if trajectory is not None else None
    modules, generators = held_by(policy_fn)
    with isolated(modules, seed=int(seed), generators=generators), ExitStack() as stack:
        driver = make_driver(make_env, num_envs, episodes)
        stack.enter_context(_closing(driver))
        if driver.normalizes and getattr(policy_fn, "normalizes", False):
            raise InvalidInput(NORMALISED_TWICE)
        if max_steps is not None and not driver.restarts:
            raise InvalidInput(
                "max_steps needs environments that can be restarted in the middle of an episode, "
                f"and {driver.name} cannot; let make_env return a plain environment, or limit its "
                "episodes there"
            )
        if file is not None:
            file.several = max(num_envs, driver.num_envs) > 1
            stack.enter_context(file)
        evaluation = _EpisodeEvaluation(driver, episodes, int(seed), max_steps, success)
        evaluation.play(policy_fn, file)
        evaluation.check_seeding()
    return evaluation.report()


def check_arguments(
    make_env: Any, episodes: int, num_envs: int, seed: int, max_steps: int | None, success: Any
) -> None:
    """Check the arguments of `evaluate_env` before anything is made."""
    if not callable(make_env):
        raise InvalidInput(
            f"make_env must be a function that makes an environment, got {make_env!r:.200}; "
            "lambda: gymnasium.make(…) is one. A training environment is not to be used here"
        )
    check_whole("num_envs", num_envs, least=1)
    check_whole("episodes", episodes, least=1)
    check_whole("seed", seed, least=0)
    if max_steps is not None:
        check_whole("max_steps", max_steps, least=1)
    _check_success(success)


def _check_success(success: Any) -> None:
    """Refuse what could not decide about an episode, which would show at the first one's end."""
    if success is None or success in SUCCESS_WORDS:
        return
    form = "success(info, terminated, truncated, ret, steps) -> bool"
    if not callable(success):
        words = " or ".join(map(repr, SUCCESS_WORDS))
        raise InvalidInput(f"success must be a function {form}, {words}; got {success!r:.200}")
    # A coroutine is true, whatever it would have returned: each episode would be a success.
    if inspect.iscoroutinefunction(success):
        raise InvalidInput(f"success must be a plain function {form}, and this one is async")
    try:
        signature = inspect.signature(success)
    except (TypeError, ValueError):  # compiled
        return
    try:
        signature.bind({}, True, False, 0.0, 1)
    except TypeError as problem:
        raise InvalidInput(
            f"success must be a function {form}; this one cannot be called so ({problem}): "
            f"{getattr(success, '__qualname__', type(success).__qualname__)}{signature}"
        ) from None


@contextmanager
def _closing(driver: Driver) -> Iterator[None]:
    """Close the environments at the end, without losing an error or the numbers over it."""
    add_note = driver.notes.append
    try:
        yield
    except BaseException as error:
        add_note = error.add_note
        raise
    finally:
        try:
            driver.close()
        except Exception as problem:  # noqa: BLE001 - the environment's code; it is reported
            add_note(f"closing the environments failed: {type(problem).__name__}: {problem}")


class _EpisodeEvaluation:
    """Episodes that are played in the environments of one driver."""

    def __init__(
        self,
        driver: Driver,
        episodes: int,
        seed: int,
        max_steps: int | None,
        success: SuccessFn | SuccessWord | None,
    ) -> None:
        self._driver, self._seed, self._max_steps = driver, seed, max_steps
        self._episodes, self._success = episodes, success
        self._seeded = driver.restarts
        self._ended: dict[int, _EpisodeEnd] = {}
        self._info_keys: set[str] = set()
        """Where the environment said which episodes succeeded."""
        self._judged: int | None = None
        """The episode that has ended and is being recorded."""
        self._replay: _Replay | None = None

    def play(self, policy_fn: PolicyFn, file: _TrajectoryFile | None) -> None:
        driver, max_steps = self._driver, self._max_steps
        slots = begin(driver.num_envs, self._episodes)
        policy_begin = getattr(policy_fn, "begin", None)
        try:
            seeds = [episode_seed(self._seed, slot) for slot in range(driver.num_envs)]
            driver.reset(seeds)
            recording = None
            if driver.restarts:
                recording = self._replay = _Replay(driver, seeds, slots.playing)
            while not slots.finished:
                if policy_begin is not None:
                    _announce_episodes(policy_begin, slots)
                actions = policy_fn(driver.observe())
                check_actions(actions, driver.num_envs)
                if file is not None:
                    file.check(actions)
                # A copy: environments may change actions in place.
                copied = None if recording is None else copy.deepcopy(actions)
                step = driver.step(actions, slots.playing)
                if file is not None:
                    file.write(slots, actions, step, driver.info, max_steps)
                slots, ended = advance(slots, *step, max_steps=max_steps, rests=driver.rests)
                if recording is not None and not recording.add(copied, step, ended is not None):
                    recording = None
                if ended is not None:
                    self._record(ended)
                    if driver.restarts:
                        self._restart(ended)
        except (Exception, SystemExit) as problem:
            failed = self._find_failed(slots)
            problem.add_note(
                f"heldout: episodes {failed.in_flight} were in flight; no number is reported"
            )
            vars(problem)[FAILED_IN] = failed
            raise

    def _find_failed(self, slots: Slots) -> FailedEpisode:
        in_flight: list[int] = slots.episode[slots.episode >= 0].tolist()
        if self._judged is not None:
            return FailedEpisode(self._judged, in_flight)
        if self._driver.failed is not None:
            return FailedEpisode(int(slots.episode[self._driver.failed]), in_flight)
        return FailedEpisode(in_flight[0] if len(in_flight) == 1 else None, in_flight)

    def _restart(self, ended: EndedEpisodes) -> None:
        goes_on = ended.following >= 0
        following = ended.following[goes_on].tolist()
        if following:
            seeds = [episode_seed(self._seed, episode) for episode in following]
            self._driver.restart(ended.slots[goes_on].tolist(), seeds)

    def _record(self, ended: EndedEpisodes) -> None:
        columns = [column.tolist() for column in ended[:6]]
        for slot, episode, ret, steps, terminated, truncated in zip(*columns, strict=True):
            self._judged = episode
            if not math.isfinite(ret):
                raise EnvironmentFailed(
                    f"episode {episode} has the return {ret}: a reward was not a finite number, "
                    "and no mean can be made of it"
                )
            info = self._driver.info(slot)
            success = self._judge(info, terminated, truncated, ret, steps)
            self._ended[episode] = _EpisodeEnd(
                steps, ret, success, terminated, truncated, _distance(info)
            )
        self._judged = None

    def _judge(
        self, info: Mapping[str, Any], terminated: bool, truncated: bool, ret: float, steps: int
    ) -> bool | None:
        """Decide whether an episode succeeded; None if nothing says so."""
        if self._success == "terminated":
            return terminated
        if callable(self._success):
            verdict: Any = self._success(info, terminated, truncated, ret, steps)
            if verdict is None:
                raise InvalidInput("success() returned None; it says True or False")
            return bool(verdict)
        for key in ("is_success", "success") if self._success is None else (self._success,):
            if info.get(key) is not None and info[key] == info[key]:  # a NaN says nothing
                self._info_keys.add(f"info[{key!r}]")
                return bool(info[key])
        return None

    def check_seeding(self) -> None:
        """Replay the first steps: whatever differs was not seeded."""
        if self._replay is None:
            return
        try:
            if self._replay.repeats():
                return
            note = (
                "replayed with the same seeds and actions, the first episodes went differently: "
                "the environment does not follow its seed, or not its seed alone, so numbers may "
                "differ from run to run and with num_envs"
            )
        except Exception as problem:  # noqa: BLE001 - the environment's code; it is reported
            note = (
                "whether the environment follows its seed is not known, because its first steps "
                f"could not be replayed: {type(problem).__name__}: {problem}"
            )
        self._seeded = False
        self._driver.notes.append(note)

    def report(self) -> VectorReport:
        driver = self._driver
        success_is = self._name_success()
        episodes = [
            Episode(
                index,
                episode_seed(self._seed, index) if self._seeded else None,
                end.steps,
                end.ret,
                None if success_is is None else bool(end.success),
                end.terminated,
                end.truncated,
                end.dist,
            )
            for index, end in sorted(self._ended.items())
        ]
        config = {
            "kind": "episodes",
            "env": driver.name,
            "episodes": self._episodes,
            "num_envs": driver.num_envs,
            "seed": self._seed,
            "seeded": self._seeded,
            "max_steps": None if self._max_steps is None else int(self._max_steps),
            "success_is": success_is,
            "notes": list(driver.notes),
        }
        if isinstance(self._success, str):
            config["success"] = self._success  # what `was_success_assumed` looks for
        return VectorReport(summarize(episodes, config), episodes, config, tuple(driver.notes))

    def _name_success(self) -> str | None:
        """Name what decided which episodes succeeded (clause 9); None if nothing did."""
        if callable(self._success):
            return "success function"
        if self._success == "terminated":
            return self._success
        if not self._info_keys:
            if self._success is not None:
                self._driver.notes.append(
                    f"success is {self._success!r}, which no episode's last info has, so which of "
                    "them succeeded is not known"
                )
            return None
        silent = sum(end.success is None for end in self._ended.values())
        if silent:
            self._driver.notes.append(
                f"{silent} of {len(self._ended)} episodes said nothing of success where others "
                "did: they count as failures, so the success rate is a lower bound"
            )
        return ", ".join(sorted(self._info_keys))


class _EpisodeEnd(NamedTuple):
    steps: int
    ret: float
    success: bool | None
    """What `success` or the environment said; None for nothing."""
    terminated: bool
    truncated: bool
    dist: float | None


def _announce_episodes(policy_begin: Callable[[list[int]], object], slots: Slots) -> None:
    """Tell a stateful policy in which rows an episode is about to start."""
    starting = (slots.steps == 0) & (slots.episode >= 0)
    if slots.playing is not None:
        starting &= slots.playing
    if starting.any():
        policy_begin(np.flatnonzero(starting).tolist())


class _Replay:
    """The first steps of an evaluation, up to an episode's end, to be replayed at its end."""

    def __init__(self, driver: Driver, seeds: Sequence[int], playing: Bools | None) -> None:
        self._driver, self._seeds, self._playing = driver, seeds, playing
        self._start = _checksum(driver.observe())
        self._steps: list[tuple[Any, bool, int]] = []
        """Actions, whether an episode ended, and a checksum of what came of it."""

    def add(self, actions: Any, step: VectorStep, ended: bool) -> bool:
        """Add a step; return whether the next one is to be added too."""
        self._steps.append((actions, ended, self._checksum_step(step, ended)))
        return not ended and len(self._steps) < REPLAYED

    def repeats(self) -> bool:
        self._driver.reset(self._seeds)
        return self._start == _checksum(self._driver.observe()) and all(
            self._checksum_step(self._driver.step(actions, self._playing), ended) == checksum
            for actions, ended, checksum in self._steps
        )

    def _checksum_step(self, step: VectorStep, ended: bool) -> int:
        # Where an episode ended, the observation may belong to the next one.
        return _checksum((*step, None if ended else self._driver.observe()))


def _checksum(values: Any) -> int:
    """Hash all arrays, numbers and texts: a few bytes instead of a batch of images."""
    if isinstance(values, Mapping):
        values = [part for item in values.items() for part in item]
    if isinstance(values, tuple | list):
        return hash(tuple(map(_checksum, values)))
    array = as_numpy(values)
    return 0 if array.dtype.hasobject else zlib.crc32(np.ascontiguousarray(array).tobytes())


# --- Steps as JSON lines -------------------------------------------------------------------------

DISTANCES = ("dist", "distance", "dist_to_goal", "distance_to_goal")
"""Keys under which environments put it in their infos."""


def _distance(info: Mapping[str, Any]) -> float | None:
    """Return the distance to the goal that an info states, if it is a finite number."""
    for name in DISTANCES:
        value = info.get(name)
        if value is None:
            continue
        array = as_numpy(value)
        if array.size == 1 and array.dtype.kind in "biuf":
            number = float(array.reshape(()))
            return number if math.isfinite(number) else None
    return None


class _TrajectoryFile:
    """A new file with one JSON line for every step of an episode; a context manager.

    One environment writes `{t, action, reward, done, trunc, dist}`, `t` from 0 in every episode;
    several write `{episode, env, t, …}`. `done` is terminated; `dist` is null where the environment
    does not say how far it is from its goal. Actions without such a form are refused before a step.
    """

    def __init__(self, path: str | Path) -> None:
        self.several = False
        """Whether lines name the environment and the episode."""
        self._path = Path(path)
        self._lines = 0
        self._encode = msgspec.json.Encoder().encode
        if self._path.suffix != ".jsonl":
            raise InvalidInput(
                f"a trajectory is written as JSON lines: name the file ….jsonl, not {self._path}"
            )
        if self._path.exists():
            raise InvalidInput(f"{self._path} is already there; remove it, or name another file")
        if not self._path.parent.is_dir():
            raise InvalidInput(f"there is no directory {self._path.parent} to write {path} in")

    def check(self, actions: Any) -> None:
        """Refuse actions that are neither numbers nor arrays, before the first step."""
        if self._lines == 0 and (
            isinstance(actions, dict | tuple) or as_numpy(actions).dtype.kind not in "biuf"
        ):
            raise InvalidInput(
                "a trajectory holds actions that are numbers or arrays of numbers; policy_fn "
                f"returned {actions!r:.120}. Leave trajectory out"
            )

    def __enter__(self) -> Self:
        self._file = self._path.open("xb")
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()
        if self._lines == 0:
            self._path.unlink()

    def write(
        self,
        slots: Slots,
        actions: Any,
        step: VectorStep,
        info: Callable[[int], Mapping[str, Any]],
        max_steps: int | None,
    ) -> None:
        """Write one step of all environments that play an episode.

        `slots` are as they were before the step, `max_steps` is where episodes are truncated.
        """
        actions = as_numpy(actions)
        for slot, episode in enumerate(slots.episode.tolist()):
            if slots.playing is not None and not slots.playing[slot]:
                continue
            t, done = int(slots.steps[slot]), bool(step.terminated[slot])
            cut = max_steps is not None and t + 1 >= max_steps and not done
            line = {
                **({"episode": episode, "env": slot} if self.several else {}),
                "t": t,
                "action": actions[slot].tolist(),
                "reward": float(step.reward[slot]),
                "done": done,
                "trunc": bool(step.truncated[slot]) or cut,
                "dist": _distance(info(slot)),
            }
            self._file.write(self._encode(line) + b"\n")
            self._lines += 1
