"""Every convention of resetting, each against the real thing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import cycle, pairwise
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.vector.async_vector_env import _async_worker
from gymnasium.wrappers.vector import (
    DictInfoToList,
    NormalizeObservation,
    RecordEpisodeStatistics,
)
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack

from heldout.errors import EnvironmentFailed, InvalidInput
from heldout.vector import evaluate_env
from heldout.vector.drivers import UNINSPECTED, UNSEEDED
from tests.vector.worlds import Walk, alone, good_policy, played

# Python 3.12 warns of fork() in a process with threads, which torch and pytest have.
pytestmark = pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded:DeprecationWarning"
)

MODES = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED]


@pytest.fixture(params=[SyncVectorEnv, AsyncVectorEnv])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


# --- Gymnasium's own ----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_every_episode_is_as_exact_as_alone(kind: Callable[..., Any], mode: AutoresetMode) -> None:
    report = evaluate_env(lambda: kind([Walk] * 4, autoreset_mode=mode), good_policy, 30, seed=5)
    assert played(report) == alone(30, seed=5)
    assert report.notes == ()
    assert (report.summary["num_envs"], report.summary["seeded"]) == (4, True)


@pytest.mark.parametrize("mode", MODES)
def test_neither_the_size_of_the_vector_environment_nor_max_steps_changes_an_episode(
    mode: AutoresetMode,
) -> None:
    for size, episodes, longest in ((1, 7, None), (16, 40, None), (5, 3, None), (3, 20, 4)):
        make = partial(SyncVectorEnv, [Walk] * size, autoreset_mode=mode)
        report = evaluate_env(make, good_policy, episodes, max_steps=longest)
        assert played(report) == alone(episodes, max_steps=longest)


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_workers_without_shared_memory_restart_in_these_modes(mode: AutoresetMode) -> None:
    make = partial(AsyncVectorEnv, [Walk] * 4, shared_memory=False, autoreset_mode=mode)
    assert played(evaluate_env(make, good_policy, 12)) == alone(12)


def test_workers_without_shared_memory_reset_themselves_in_the_next_step_and_are_unseeded() -> None:
    make = partial(AsyncVectorEnv, [Walk] * 2, shared_memory=False)
    report = evaluate_env(make, good_policy, 12)
    assert report.notes == (f"{UNSEEDED} (AsyncVectorEnv without shared memory stands in the way)",)
    assert (report.summary["episodes"], report.summary["seeded"]) == (12, False)
    with pytest.raises(InvalidInput, match="max_steps needs environments"):
        evaluate_env(make, good_policy, 4, max_steps=4)


@pytest.mark.parametrize("mode", MODES)
def test_an_environment_that_has_nothing_left_to_play_is_not_stepped_past_its_end(
    kind: Callable[..., Any], mode: AutoresetMode
) -> None:
    # Walk raises if it is: one long episode is played beside two slots that were done long ago.
    make = partial(kind, [Walk, Walk, partial(Walk, 60)], autoreset_mode=mode)
    for seed in range(3):
        assert evaluate_env(make, good_policy, 3, seed=seed).summary["episodes"] == 3


def test_num_envs_that_contradicts_the_vector_environment_is_refused() -> None:
    with pytest.raises(InvalidInput, match="vectorised environment of 3, and num_envs is 4"):
        evaluate_env(lambda: SyncVectorEnv([Walk] * 3), good_policy, 9, num_envs=4)
    # … and one that agrees is not, however few the episodes.
    report = evaluate_env(lambda: SyncVectorEnv([Walk] * 3), good_policy, 2, num_envs=3)
    assert played(report) == alone(2)


def test_statistics_that_go_on_learning_are_said() -> None:
    def make_env() -> Any:
        return gymnasium.wrappers.NormalizeObservation(Walk())

    report = evaluate_env(make_env, good_policy, 2)
    assert "NormalizeObservation goes on learning" in report.notes[0]
    report = evaluate_env(lambda: SyncVectorEnv([make_env]), good_policy, 2)
    assert "NormalizeObservation goes on learning" in report.notes[0]


@pytest.mark.parametrize("learns", [True, False])
def test_statistics_in_worker_processes_are_said_too(learns: bool) -> None:
    def make_env() -> Any:
        env = gymnasium.wrappers.NormalizeReward(Walk())
        env.update_running_mean = learns
        return env

    notes = evaluate_env(lambda: AsyncVectorEnv([make_env] * 2), good_policy, 2).notes
    assert notes[0] == "rewards are those of NormalizeReward, not the environment's own"
    assert any("NormalizeReward goes on learning" in note for note in notes) is learns


def test_workers_of_ones_own_are_said_not_to_have_been_inspected() -> None:
    def make_env() -> Any:
        return AsyncVectorEnv([Walk] * 2, worker=_async_worker)

    assert evaluate_env(make_env, good_policy, 2).notes == (UNSEEDED, UNINSPECTED)


@pytest.mark.parametrize("max_steps", [None, 5])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("wrap", [RecordEpisodeStatistics, "list", "inside"])
def test_what_a_wrapper_counts_of_an_episode_is_what_was_played(
    wrap: Any, mode: AutoresetMode, max_steps: int | None
) -> None:
    def make_env() -> Any:
        if wrap == "inside":
            return SyncVectorEnv(
                [lambda: gymnasium.wrappers.RecordEpisodeStatistics(Walk())] * 3,
                autoreset_mode=mode,
            )
        env = RecordEpisodeStatistics(SyncVectorEnv([Walk] * 3, autoreset_mode=mode))
        return DictInfoToList(env) if wrap == "list" else env

    counted = []

    def success(info: Any, terminated: bool, truncated: bool, ret: float, steps: int) -> bool:
        if "episode" in info:
            counted.append(steps)
            assert info["episode"]["r"] == pytest.approx(ret)
            assert info["episode"]["l"] == steps
        else:
            assert steps == max_steps, "only an episode that was cut off has not been counted"
        return True

    report = evaluate_env(make_env, good_policy, 30, success=success, max_steps=max_steps)
    assert len(counted) == 30 if max_steps is None else len(counted) >= 5
    expected = [one._replace(success=True) for one in alone(30, max_steps=max_steps)]
    assert played(report) == expected


# --- Vector environments with a code of their own -----------------------------------------------


def test_a_vector_entry_point_plays_whole_episodes_and_says_that_it_is_unseeded() -> None:
    def make_env() -> Any:
        return gymnasium.make_vec(
            "CartPole-v1", num_envs=5, vectorization_mode="vector_entry_point"
        )

    def policy(observations: Any) -> Any:
        return (observations[:, 2] > 0).astype(np.int64)

    report = evaluate_env(make_env, policy, 30, seed=1)
    assert report.notes == (UNSEEDED,)
    assert not report.summary["seeded"]
    assert all(e.seed is None for e in report.episodes)
    # A reward of 1 a step: the step that only resets is in neither number.
    assert all(e.ret == e.steps for e in report.episodes)
    assert played(report) == played(evaluate_env(make_env, policy, 30, seed=1))
    with pytest.raises(InvalidInput, match="max_steps"):
        evaluate_env(make_env, policy, 30, max_steps=10)


class Counts(VectorEnv[Any, Any, Any]):
    """Slot i plays episodes of i + 1 steps, and a step earns 1; its mode is what it is told."""

    single_observation_space = gymnasium.spaces.Box(0, 99, (1,))
    single_action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, size: int, mode: AutoresetMode, masks: bool = True) -> None:
        self.num_envs, self.metadata = size, {"autoreset_mode": mode}
        self.mode, self.masks = mode, masks
        self.t = np.zeros(size, int)
        self.over = np.zeros(size, bool)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        mask = (options or {}).get("reset_mask")
        if mask is None or not self.masks:
            mask = np.ones(self.num_envs, bool)
        self.t[mask], self.over[mask] = 0, False
        return self.t[:, None].astype(np.float32), {}

    def step(self, actions: Any) -> Any:
        if self.mode == AutoresetMode.DISABLED:
            assert not self.over.any(), "stepped past an end"
        resting = self.over if self.mode == AutoresetMode.NEXT_STEP else np.zeros_like(self.over)
        self.t = np.where(resting, 0, self.t + 1)
        self.over = (self.t == np.arange(self.num_envs) + 1) & ~resting
        infos = {}
        if self.mode == AutoresetMode.SAME_STEP:
            ends = self.over.copy()
            infos = {"final_info": {"dist": self.t * 10.0, "_dist": ends}, "_final_info": ends}
            self.t = np.where(ends, 0, self.t)
        reward = np.where(resting, 1e9, 1.0)  # what nobody earned would show
        return (
            self.t[:, None].astype(np.float32),
            reward,
            self.over,
            np.zeros_like(self.over),
            infos,
        )


@pytest.mark.parametrize("mode", MODES)
def test_a_vector_environment_of_ones_own_is_read_in_the_mode_it_states(
    mode: AutoresetMode,
) -> None:
    report = evaluate_env(lambda: Counts(3, mode), lambda o: np.zeros(3, int), 12)
    assert all(e.ret == e.steps and 1 <= e.steps <= 3 for e in report.episodes)
    assert {e.steps for e in report.episodes} == {1, 2, 3}
    assert report.summary["seeded"] == (mode == AutoresetMode.DISABLED)
    if mode == AutoresetMode.SAME_STEP:
        assert all(e.dist == 10 * e.steps for e in report.episodes)


class Tells(Counts):
    """Says how it went without saying whose that is, in each of the forms that are about."""

    def __init__(self, mode: AutoresetMode, form: str) -> None:
        super().__init__(4, mode)
        self.form = form

    def step(self, actions: Any) -> Any:
        t = np.where(self.over & (self.mode == AutoresetMode.NEXT_STEP), 0, self.t + 1)
        observations, reward, terminated, truncated, _ = super().step(actions)
        even = t % 2 == 0
        said: dict[str, Any] = {
            "numpy": {"success": even, "deep": {"dist": t * 1.0}},
            "torch": {"success": torch.as_tensor(even), "deep": {"dist": torch.as_tensor(t)}},
            "list": {"success": even.tolist(), "deep": {"dist": t.tolist()}},
        }[self.form]
        said |= {"name": "four", "scale": torch.tensor(2.0), "pair": [1, 2]}
        infos = said
        if self.mode == AutoresetMode.SAME_STEP:
            infos = {"success": np.zeros(4, bool), "final_info": said}
            if self.form == "list":  # as Gymnasium had it until 1.0
                rows = [{"success": x % 2 == 0, "deep": {"dist": x}} for x in t.tolist()]
                infos["final_info"] = np.where(self.over, np.array(rows), None)
        return observations, reward, terminated, truncated, infos


@pytest.mark.parametrize("form", ["numpy", "torch", "list"])
@pytest.mark.parametrize("mode", MODES)
def test_what_an_environment_says_without_a_mask_is_heard(mode: AutoresetMode, form: str) -> None:
    seen = []

    def success(info: Any, terminated: bool, truncated: bool, ret: float, steps: int) -> bool:
        seen.append((int(info["deep"]["dist"]), steps, sorted(info)))
        return bool(info["success"])

    for given, said in ((None, "info['success']"), (success, "success")):
        report = evaluate_env(
            lambda: Tells(mode, form), lambda o: np.zeros(4, int), 12, success=given
        )
        assert said in str(report.summary["success_is"])
        assert all(e.success == (e.steps % 2 == 0) for e in report.episodes)
    assert all(dist == steps and keys == ["deep", "success"] for dist, steps, keys in seen)


@pytest.mark.parametrize("mode", MODES)
def test_ends_that_are_numbers_are_read_as_booleans(mode: AutoresetMode) -> None:
    def play(env: Callable[..., Counts]) -> Any:
        return played(evaluate_env(lambda: env(3, mode), lambda o: np.zeros(3, int), 12))

    for kind in (np.uint8, np.int64, np.float32):

        class Numbers(Counts):
            def step(self, actions: Any, kind: Any = kind) -> Any:
                observations, reward, *ends, infos = super().step(actions)
                return observations, reward, *(end.astype(kind) for end in ends), infos

        assert play(Numbers) == play(Counts)


@pytest.mark.parametrize("place", [1, 2, 3])
def test_a_column_where_a_row_belongs_is_refused(place: int) -> None:
    class Column(Counts):
        def step(self, actions: Any) -> Any:
            given = list(super().step(actions))
            given[place] = given[place][:, None]
            return tuple(given)

    name = ["reward", "terminated", "truncated"][place - 1]
    with pytest.raises(InvalidInput, match=f"{name} of shape \\(3, 1\\)"):
        evaluate_env(lambda: Column(3, AutoresetMode.NEXT_STEP), lambda o: np.zeros(3, int), 9)


def test_one_that_ignores_the_mask_and_reuses_its_arrays_is_found_out() -> None:
    class Reuses(Counts):
        shown = np.zeros((3, 1), np.float32)
        taken = 0

        def reset(self, **settings: Any) -> Any:
            self.shown[:] = super().reset(**settings)[0]
            return self.shown, {}

        def step(self, actions: Any) -> Any:
            self.taken += 1
            assert self.taken < 99, "nobody but the first ever comes to an end"
            observations, *rest = super().step(actions)
            self.shown[:] = observations
            return self.shown, *rest

    with pytest.raises(EnvironmentFailed, match="ignores options\\['reset_mask'\\]"):
        evaluate_env(
            lambda: Reuses(3, AutoresetMode.DISABLED, masks=False), lambda o: np.zeros(3, int), 9
        )


def test_one_that_does_not_say_how_it_resets_is_refused_and_closed() -> None:
    closed = []

    class Says(Counts):
        def close(self, **settings: Any) -> None:
            closed.append(True)

    def make_env() -> Any:
        env = Says(2, AutoresetMode.NEXT_STEP)
        env.metadata = {}
        return env

    with pytest.raises(InvalidInput, match="does not say how it resets"):
        evaluate_env(make_env, good_policy, 2)
    assert closed


# --- Batches of tensors -------------------------------------------------------------------------


class Tensors:
    """A batch environment in torch. Slot i plays episodes of lengths[i], over and over."""

    def __init__(self, lengths: list[int], *, mode: str | None = None, device: str = "cpu") -> None:
        self.num_envs, self.device = len(lengths), device
        self.length = torch.tensor(lengths, device=device)
        self.t = torch.zeros_like(self.length)
        self.resting = torch.zeros_like(self.length, dtype=torch.bool)
        if mode is not None:
            self.autoreset_mode = mode
        self.next_step = mode == "next_step"

    def reset(self, seed: int) -> Any:
        return self.t[:, None].float(), {}

    def step(self, actions: Any) -> Any:
        assert isinstance(actions, torch.Tensor)
        assert actions.device.type == self.device
        self.t = torch.where(self.resting, 0, self.t + 1)
        over = self.t == self.length
        done, cut = over & (self.length % 2 == 0), over & (self.length % 2 == 1)
        reward = torch.where(self.resting, torch.inf, 1.0)
        info = {"dist": self.t.float(), "scale": torch.tensor(3.0), "name": "tensors"}
        if self.next_step:
            self.resting = over
        else:
            self.t = torch.where(over, 0, self.t)
        return self.t[:, None].float(), reward, done, cut, info


def stay(observations: Any) -> Any:
    assert isinstance(observations, torch.Tensor)
    return torch.zeros(len(observations), dtype=torch.int64, device=observations.device)


DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", [None, "same_step", "next_step"])
def test_a_batch_of_tensors_is_played_on_its_own_device(mode: str | None, device: str) -> None:
    report = evaluate_env(lambda: Tensors([2, 5, 3], mode=mode, device=device), stay, 8)
    assert sorted(e.steps for e in report.episodes[:3]) == [2, 3, 5]
    assert all(e.ret == e.steps == e.dist for e in report.episodes)
    assert all(e.terminated == (e.steps == 2) for e in report.episodes)
    assert all(e.truncated == (e.steps != 2) for e in report.episodes)
    assert UNSEEDED in report.notes
    assert any("same-step reset assumed" in note for note in report.notes) == (mode is None)


def test_a_tensor_that_numpy_cannot_read_is_fetched_from_its_device() -> None:
    class OnDevice:
        """As a tensor on a GPU: to numpy only over cpu()."""

        def __init__(self, values: Any) -> None:
            self.values = np.asarray(values)

        def __array__(self, *_: Any) -> Any:
            raise TypeError("can't convert cuda:0 device type tensor to numpy")

        def detach(self) -> OnDevice:
            return self

        def cpu(self) -> Any:
            return torch.as_tensor(self.values)

    class Remote(Tensors):
        def step(self, actions: Any) -> Any:
            observations, *rest, info = super().step(actions)
            return observations, *map(OnDevice, rest), info

    report = evaluate_env(lambda: Remote([2, 3]), stay, 4)
    assert all(e.ret == e.steps for e in report.episodes)


def test_one_that_cannot_be_seeded_or_does_not_reset_is_said_or_refused() -> None:
    class Unseedable(Tensors):
        def reset(self) -> Any:
            return self.t[:, None].float()

    assert "it cannot be seeded at all" in evaluate_env(lambda: Unseedable([2]), stay, 1).notes
    with pytest.raises(InvalidInput, match="does not reset by itself"):
        evaluate_env(lambda: Tensors([2], mode="disabled"), stay, 1)


class ToTorch(VectorWrapper):
    """What gymnasium's NumpyToTorch does, which needs one more package."""

    def reset(self, **settings: Any) -> Any:
        observations, infos = self.env.reset(**settings)
        return torch.as_tensor(observations), infos

    def step(self, actions: Any) -> Any:
        *arrays, infos = self.env.step(actions.numpy())
        return *map(torch.as_tensor, arrays), infos


def torch_policy(observations: Any) -> Any:
    return (observations[:, 0] > 0).long()


def test_a_vector_environment_wrapped_into_tensors_keeps_episodes_exact() -> None:
    def make_env() -> Any:
        return ToTorch(SyncVectorEnv([Walk] * 3, autoreset_mode=AutoresetMode.DISABLED))

    report = evaluate_env(make_env, torch_policy, 12)
    assert played(report) == alone(12)
    assert report.notes == ()


def test_a_wrapper_of_ones_own_is_not_taken_to_obey_masks() -> None:
    report = evaluate_env(lambda: ToTorch(SyncVectorEnv([Walk] * 3)), torch_policy, 12)
    assert report.notes == (f"{UNSEEDED} (ToTorch stands in the way)",)
    assert not report.summary["seeded"]
    assert report.summary["episodes"] == 12
    with pytest.raises(InvalidInput, match="max_steps"):
        evaluate_env(lambda: ToTorch(SyncVectorEnv([Walk] * 3)), torch_policy, 2, max_steps=3)


class Before(VectorWrapper):
    """Shows the observation before too, and knows of ends but not of masks."""

    def reset(self, **settings: Any) -> Any:
        observations, infos = self.env.reset(**settings)
        self.before = observations.copy()
        return np.concatenate([observations, self.before], axis=1), infos

    def step(self, actions: Any) -> Any:
        observations, reward, terminated, truncated, infos = self.env.step(actions)
        over = terminated | truncated
        self.before[over] = observations[over]
        shown = np.concatenate([observations, self.before], axis=1)
        self.before = observations.copy()
        return shown, reward, terminated, truncated, infos


def test_a_wrapper_that_keeps_a_state_for_each_environment_gets_no_masks() -> None:
    seen: list[Any] = []

    def policy(observations: Any) -> Any:
        seen.append(observations)
        return good_policy(observations)

    def make_env(mode: AutoresetMode) -> Any:
        return Before(SyncVectorEnv([Walk] * 3, autoreset_mode=mode))

    evaluate_env(partial(make_env, AutoresetMode.SAME_STEP), policy, 20)
    for earlier, now in pairwise(seen):
        # Walk shows the time: 0 where an episode has just begun, which is its own predecessor.
        begun = now[:, 1] == 0
        np.testing.assert_array_equal(now[:, 2:], np.where(begun[:, None], now, earlier)[:, :2])
    # Where it has to obey them, it is checked.
    with pytest.raises(EnvironmentFailed, match="Before ignores options\\['reset_mask'\\]"):
        evaluate_env(partial(make_env, AutoresetMode.DISABLED), policy, 20)


def test_gymnasiums_wrapper_that_refuses_masks_is_left_to_reset_itself() -> None:
    def make_env() -> Any:
        return NormalizeObservation(SyncVectorEnv([Walk] * 3))

    notes = evaluate_env(make_env, good_policy, 12).notes
    assert notes[0] == f"{UNSEEDED} (NormalizeObservation stands in the way)"
    assert "NormalizeObservation goes on learning" in notes[1]


def test_a_policy_in_torch_plays_environments_in_numpy() -> None:
    def policy(observations: Any) -> Any:
        return (torch.as_tensor(observations)[:, 0] > 0).long()

    assert played(evaluate_env(Walk, policy, 12, num_envs=3)) == alone(12)
    assert played(evaluate_env(lambda: SyncVectorEnv([Walk] * 3), policy, 12)) == alone(12)


# --- Slots of different speed -------------------------------------------------------------------


class Pair(Walk):
    """The fast one succeeds in 2 steps, the slow one fails in 20."""

    def __init__(self, slow: bool) -> None:
        super().__init__()
        self.slow = slow

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        found = super().reset(seed=seed)
        self.length, self.good = (20, False) if self.slow else (2, True)
        return found


PAIR = [partial(Pair, False), partial(Pair, True)]


def make_pairs_in_turn() -> Callable[[], Any]:
    turns = cycle(PAIR)
    return lambda: next(turns)()


@pytest.mark.parametrize(
    ("make_env", "num_envs"),
    [
        *((partial(Tensors, [2, 19], mode=mode), 1) for mode in (None, "next_step")),
        *((partial(SyncVectorEnv, PAIR, autoreset_mode=mode), 1) for mode in MODES),
        (lambda: Before(SyncVectorEnv(PAIR)), 1),
        (lambda: DummyVecEnv(PAIR), 1),
        (lambda: VecFrameStack(DummyVecEnv(PAIR), 2), 1),
        (make_pairs_in_turn(), 2),
    ],
)
def test_a_fast_slot_plays_no_episode_of_a_slow_one(
    make_env: Callable[[], Any], num_envs: int
) -> None:
    def policy(observations: Any) -> Any:
        tensors = isinstance(observations, torch.Tensor)
        return stay(observations) if tensors else np.zeros(2, np.int64)

    report = evaluate_env(
        make_env, policy, 21, num_envs=num_envs, success=lambda *last: last[4] == 2
    )
    assert [e.success for e in report.episodes] == [i % 2 == 0 for i in range(21)]
    assert report.summary["success_rate"] == 11 / 21
