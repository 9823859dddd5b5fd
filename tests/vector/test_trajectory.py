"""The file of steps: what is in it, and what is refused before anything runs."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from heldout.errors import InvalidInput
from heldout.vector import VectorReport, evaluate_env
from tests.vector.worlds import Walk, good_policy

Lines = list[dict[str, Any]]


def dump(path: Path, make_env: Any = Walk, episodes: int = 12, **settings: Any) -> Any:
    report = evaluate_env(make_env, good_policy, episodes, trajectory=path, **settings)
    return report, [json.loads(line) for line in path.read_text().splitlines()]


def test_one_environment_writes_steps_that_begin_at_0_in_each_episode(tmp_path: Path) -> None:
    report, lines = dump(tmp_path / "one.jsonl")
    assert {tuple(line) for line in lines} == {("t", "action", "reward", "done", "trunc", "dist")}
    steps = [t for e in report.episodes for t in range(e.steps)]
    assert [line["t"] for line in lines] == steps
    assert all(type(line["action"]) is int for line in lines)


def check_against(report: VectorReport, lines: Lines) -> None:
    """The lines, put together by episode, are the episodes of the report."""
    for episode in report.episodes:
        mine = [line for line in lines if line["episode"] == episode.index]
        assert [line["t"] for line in mine] == list(range(episode.steps))
        ret = 0.0
        for line in mine:
            ret += line["reward"]
        assert ret == episode.ret
        assert not any(line["done"] or line["trunc"] for line in mine[:-1])
        assert (mine[-1]["done"], mine[-1]["trunc"]) == (episode.terminated, episode.truncated)
        assert len({line["env"] for line in mine}) == 1
        # Of every step, its own: Walk counts down to its end.
        assert mine[-1]["dist"] == episode.dist
        assert [line["dist"] - mine[-1]["dist"] for line in mine] == [
            *range(episode.steps - 1, -1, -1)
        ]
    assert len(lines) == report.summary["steps"]


MAKERS: dict[str, Any] = {
    "plain": (Walk, 3),
    **{
        f"sync {mode.name}": (partial(SyncVectorEnv, [Walk] * 3, autoreset_mode=mode), 1)
        for mode in AutoresetMode
    },
    "async": (partial(AsyncVectorEnv, [Walk] * 3), 1),
}


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("which", MAKERS)
def test_several_environments_write_whose_step_it_is_in_every_mode(
    which: str, tmp_path: Path
) -> None:
    make_env, num_envs = MAKERS[which]
    report, lines = dump(tmp_path / "several.jsonl", make_env, num_envs=num_envs)
    names = ("episode", "env", "t", "action", "reward", "done", "trunc", "dist")
    assert {tuple(line) for line in lines} == {names}
    check_against(report, lines)
    same, _ = dump(tmp_path / "again.jsonl", Walk, num_envs=2)
    assert same.summary["mean_return"] == report.summary["mean_return"]


def test_an_episode_that_max_steps_cut_off_is_truncated_in_the_file_too(tmp_path: Path) -> None:
    report, lines = dump(tmp_path / "cut.jsonl", num_envs=3, max_steps=4)
    assert any(e.truncated and e.dist for e in report.episodes)
    check_against(report, lines)


def test_several_were_asked_for_so_the_form_is_that_of_several(tmp_path: Path) -> None:
    _, lines = dump(tmp_path / "few.jsonl", episodes=1, num_envs=4)
    assert {line["episode"] for line in lines} == {0}


def test_arrays_of_actions_are_lists(tmp_path: Path) -> None:
    def make_env() -> Any:
        return gymnasium.make("Pendulum-v1", max_episode_steps=3)

    path = tmp_path / "pendulum.jsonl"
    evaluate_env(make_env, lambda o: np.full((len(o), 1), 0.5), 1, trajectory=path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["action"] for line in lines] == [[0.5]] * 3
    assert lines[-1]["dist"] is None


# --- Refused before anything runs ---------------------------------------------------------------


def never(observations: Any) -> Any:
    raise AssertionError("it ran")


@pytest.mark.parametrize(
    "name", ["steps.json", "steps", "steps.csv", "there.jsonl", "no/dir.jsonl"]
)
def test_a_file_that_cannot_be_meant_is_refused_before_an_environment_is_made(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / "there.jsonl").write_text("precious")

    def make_env() -> Any:
        raise AssertionError("it was made")

    with pytest.raises(InvalidInput):
        evaluate_env(make_env, never, 1, trajectory=tmp_path / name)
    assert (tmp_path / "there.jsonl").read_text() == "precious"
    assert len(list(tmp_path.iterdir())) == 1


def test_actions_without_a_form_are_refused_before_a_step(tmp_path: Path) -> None:
    class Bare:
        def reset(self, seed: int) -> Any:
            return 0.0, {}

        def step(self, action: Any) -> Any:
            raise AssertionError("it was stepped")

        def close(self) -> None:
            pass

    with pytest.raises(InvalidInput, match="policy_fn returned"):
        evaluate_env(Bare, lambda o: {"a": [1]}, 1, trajectory=tmp_path / "bare.jsonl")
    assert not list(tmp_path.iterdir()), "an empty file stays behind"
