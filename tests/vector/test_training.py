"""Evaluation inside a training loop, which must not notice."""

from __future__ import annotations

import functools
import json
import logging
import random
import threading
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from heldout._live.weights import fingerprint
from heldout.cli.main import run_cli
from heldout.errors import InvalidInput, ResumeMismatch, RunExists
from heldout.store.run_dir import RunDir
from heldout.testing import assert_neutral
from heldout.training import AsyncEvalDispatcher
from heldout.training.curve.points import current_points, read_points
from heldout.vector import VectorReport, evaluate_env
from heldout.vector.training import EvalEvery
from tests.vector.worlds import Walk, good_policy, played


def random_state() -> tuple[Any, ...]:
    name, keys, *rest = np.random.get_state()
    return random.getstate(), name, keys.tolist(), rest, torch.get_rng_state().tolist()


class Gambles(Walk):
    """Draws from everybody's random state, as environments should not and do."""

    def step(self, action: Any) -> Any:
        luck = random.random() + np.random.random() + torch.rand(1).item()
        observation, _, *rest = super().step(action)
        return observation, luck, *rest


def test_random_state_is_as_it_was_and_the_evaluation_is_the_same_each_time() -> None:
    evals = EvalEvery(1, Gambles, good_policy, 5)
    before = random_state()
    first = evals.maybe_run(1)
    assert random_state() == before
    random.seed(3), np.random.seed(3), torch.manual_seed(3)
    second = evals.maybe_run(2)
    assert first is not None
    assert second is not None
    assert played(first) == played(second)


def test_each_modules_own_flag_is_put_back() -> None:
    frozen = torch.nn.BatchNorm1d(2)
    network = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(), frozen).train()
    frozen.eval()
    flags = [module.training for module in network.modules()]
    seen: list[Any] = []

    def policy(observations: Any) -> Any:
        seen.append([m.training for m in network.modules()] + [torch.is_grad_enabled()])
        return network(torch.as_tensor(observations)).argmax(1).numpy()

    settings = {"num_envs": 3, "seed": 4, "max_steps": 5}
    report = EvalEvery(1, Walk, policy, 3, model=network, **settings).maybe_run(1)
    assert not any(any(flags) for flags in seen)
    assert [module.training for module in network.modules()] == flags
    assert torch.is_grad_enabled()
    network.eval()
    assert played(report) == played(evaluate_env(Walk, policy, 3, **settings))
    network.train()
    for model in ({"actor": network}, [network]):
        seen.clear()
        EvalEvery(0, Walk, policy, 2, model=model).run(1)
        assert not any(any(flags) for flags in seen)


@settings(max_examples=10)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=30), st.integers(1, 100))
def test_it_runs_exactly_once_for_each_stretch_in_which_a_multiple_lies(
    jumps: list[int], every: int
) -> None:
    evals = EvalEvery(every, Walk, good_policy, 1)
    due, before = [], 0
    for step in np.cumsum(jumps).tolist():
        evals.maybe_run(step)
        if step // every > before // every:
            due.append(step)
        before = step
    assert [point.step for point in evals.history] == due


def test_start_and_end_can_be_evaluated_and_a_counter_that_started_again_is_followed() -> None:
    evals = EvalEvery(100, Walk, good_policy, 1, at_start=True)
    for step in (0, 60, 120):
        evals.maybe_run(step)
    evals.run(130)
    assert [point.step for point in evals.history] == [0, 120, 130]
    evals = EvalEvery(100, Walk, good_policy, 1)
    evals.begin(250)
    for step in (260, 310, 0, 90, 110):
        evals.maybe_run(step)
    assert [point.step for point in evals.history] == [310, 110]


def test_0_leaves_it_to_run() -> None:
    evals = EvalEvery(0, Walk, good_policy, 1)
    assert evals.maybe_run(10**9) is None
    assert evals.history == []
    assert evals.run(5) is not None


def test_an_evaluation_that_fails_is_a_skip_with_its_reason_and_never_a_number(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(observations: Any) -> Any:
        raise RuntimeError("out of memory")

    evals = EvalEvery(10, Walk, broken, 5)
    with caplog.at_level(logging.WARNING, logger="heldout"):
        assert evals.maybe_run(10) is None
    (point,) = evals.history
    assert (point.step, point.report) == (10, None)
    assert point.skipped == "RuntimeError: out of memory"
    assert "step 10 is skipped: RuntimeError: out of memory" in caplog.text


def test_what_stops_the_program_is_not_held_back() -> None:
    def interrupted(observations: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        EvalEvery(1, Walk, interrupted, 1).maybe_run(1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"every_steps": -1},
        {"every_steps": 1.5},
        {"episodes": 0},
        {"make_env": Walk()},
        {"reward": "luck"},
        {"label": "a/b"},
        {"monitor": 3},
        {"model": 3},
    ],
)
def test_what_could_not_be_meant_is_refused_before_training(wrong: Any) -> None:
    usual = {"every_steps": 1, "make_env": Walk, "policy_fn": good_policy, "episodes": 1}
    with pytest.raises(InvalidInput):
        EvalEvery(**{**usual, **wrong})


# --- Modules and environments that nobody named -------------------------------------------------


class Agent:
    def __init__(self, network: Any) -> None:
        self.parts = {"actor": network}
        self.replay = [(0.0,)] * 5_000

    def act(self, observations: Any) -> Any:
        return self.parts["actor"](torch.as_tensor(observations)).argmax(1).numpy()

    __call__ = act


NETWORK = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2), torch.nn.Dropout())


AGENT = Agent(NETWORK)


def of_a_global(observations: Any) -> Any:
    return helper(observations)


def helper(observations: Any) -> Any:
    return NETWORK(torch.as_tensor(observations)).argmax(1).numpy()


@pytest.mark.parametrize(
    "policy",
    [
        Agent(NETWORK).act,
        Agent(NETWORK),
        functools.partial(Agent.act, Agent(NETWORK)),
        lambda observations: AGENT.act(observations),
        of_a_global,
    ],
)
def test_batch_norm_does_not_learn_from_evaluations_though_no_model_was_named(policy: Any) -> None:
    seen: list[Any] = []

    def look(network: Any, given: Any) -> None:
        seen.append(([m.training for m in network.modules()], torch.is_grad_enabled()))

    hook = NETWORK.register_forward_pre_hook(look)
    before = {name: value.clone() for name, value in NETWORK.state_dict().items()}
    evals = EvalEvery(1, Walk, policy, 3, num_envs=2)
    assert evals.run(1) is not None
    hook.remove()
    assert seen
    assert not any(any(flags) or grad for flags, grad in seen)
    assert all(module.training for module in NETWORK.modules())
    assert torch.is_grad_enabled()
    assert all(torch.equal(before[name], value) for name, value in NETWORK.state_dict().items())


@functools.cache
def cached() -> Walk:
    return Walk()


def test_an_environment_that_was_there_before_is_refused_and_left_as_it_is() -> None:
    env = Walk()
    env.reset(seed=0)
    vector = SyncVectorEnv([lambda: env])
    before = env.np_random.bit_generator.state
    cached()
    for make_env in (
        lambda: env,
        lambda: gymnasium.wrappers.TimeLimit(env, 5),
        lambda: vector,
        lambda: SyncVectorEnv([lambda: env]),
        cached,
    ):
        for first_call in ("begin", "maybe_run", "run", "run_final"):
            evals = EvalEvery(10, make_env, good_policy, 2)
            with pytest.raises(InvalidInput, match=r"lambda: gymnasium\.make"):
                getattr(evals, first_call)(0)
            assert evals.history == []
    assert env.np_random.bit_generator.state == before
    assert not env.closed
    assert not cached().closed
    assert env.length


def test_an_environment_that_make_env_keeps_and_returns_again_is_refused_before_training() -> None:
    env = Walk()
    many = [env] * 2000  # too many to be searched
    memory = functools.cache(Walk)
    for make_env in (memory, lambda: many[0], lambda: gymnasium.wrappers.TimeLimit(many[0], 5)):
        with pytest.raises(InvalidInput, match="a new environment at every call"):
            EvalEvery(10, make_env, good_policy, 2).begin(0)
    assert not env.closed
    assert not memory().closed


def test_environments_made_to_be_checked_are_closed_and_change_no_random_state() -> None:
    made: list[Walk] = []

    def make_env() -> Walk:
        random.random(), np.random.random(), torch.rand(1)
        made.append(Walk())
        return made[-1]

    before = random_state()
    EvalEvery(10, make_env, good_policy, 2).begin(0)
    assert random_state() == before
    assert [env.closed for env in made] == [True, True]


def test_a_make_env_that_fails_before_training_is_a_skip_when_it_is_due() -> None:
    def make_env() -> Walk:
        raise RuntimeError("no simulator yet")

    evals = EvalEvery(10, make_env, good_policy, 2)
    evals.begin(0)
    assert evals.maybe_run(10) is None
    assert "no simulator yet" in str(evals.history[0].skipped)


def test_training_is_bit_for_bit_the_same_with_a_policy_that_draws_and_learns() -> None:
    def train(evaluating: bool) -> Any:
        random.seed(0), np.random.seed(0), torch.manual_seed(0)
        own = np.random.default_rng(0)
        network = torch.nn.Sequential(
            torch.nn.Linear(2, 8),
            torch.nn.BatchNorm1d(8),
            torch.nn.Dropout(),
            torch.nn.Linear(8, 2),
        )
        optimizer = torch.optim.Adam(network.parameters())
        env = Walk()
        env.reset(seed=0)

        def policy(observations: Any) -> Any:
            scores = network(torch.as_tensor(observations)).detach().numpy()
            noise = own.normal(size=scores.shape) + np.random.normal() + random.random()
            return (scores + noise).argmax(1)

        evals = EvalEvery(2, Walk, policy, 3, num_envs=2)
        for step in range(1, 9):
            batch = torch.as_tensor(own.normal(size=(4, 2)) + np.random.normal()).float()
            network(batch + random.random()).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            _, _, terminated, truncated, _ = env.step(1)
            if terminated or truncated:
                env.reset()
            if evaluating:
                evals.maybe_run(step)
        assert [point.skipped for point in evals.history] == [None] * (4 * evaluating)
        return network, [{"next": own.random(), "env": env.np_random.random()}]

    assert_neutral(train)


# --- The curve ----------------------------------------------------------------------------------


def ended_early(info: Any, terminated: bool, truncated: bool, ret: float, steps: int) -> bool:
    return steps < 6


class Judged(Walk):
    def step(self, action: Any) -> Any:
        *rest, info = super().step(action)
        return *rest, {**info, "is_success": self.good}


class Learns:
    """A policy that acts well in a growing share of its rows."""

    def __init__(self) -> None:
        self.network = torch.nn.Linear(1, 1)
        self.level = 0.0

    def train(self, level: float) -> None:
        self.level = level
        torch.nn.init.constant_(self.network.weight, level)

    def __call__(self, observations: Any) -> Any:
        good = good_policy(observations)
        bad = np.abs(observations[:, 0]) % 1 >= self.level
        return np.where(bad, 1 - good, good)


def trained(evals: EvalEvery, policy: Learns, steps: range, *, levels: Any = None) -> None:
    for step in steps:
        policy.train(step / 10 if levels is None else levels[step])
        evals.maybe_run(step)


def test_a_resumed_training_run_has_no_second_first_step(tmp_path: Path) -> None:
    for steps in (range(0), range(4), range(3, 7)):  # killed before the first step, and after 3
        policy = Learns()
        evals = EvalEvery(4, Walk, policy, 2, at_start=True, run_dir=tmp_path / "run", resume=True)
        trained(evals, policy, steps)
    assert [point.step for point in evals.points] == [0, 4]


def test_the_curve_of_returns_has_intervals_verdicts_and_flips_and_no_pass_rate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy, beats = Learns(), list[Any]()
    evals = EvalEvery(
        2, Walk, policy, 40, num_envs=4, at_start=True, run_dir=tmp_path / "run",
        heartbeat_fn=lambda name, fields: beats.append((name, fields)),
    )  # fmt: skip
    trained(evals, policy, range(9))
    policy.train(1.0)
    final = evals.run_final(9)
    points = current_points(read_points(tmp_path / "run/curve.jsonl"))
    assert [point.step for point in points] == [0, 2, 4, 6, 8, 9]
    assert points == evals.points
    for point, measured in zip(points, evals.history, strict=True):
        summary = measured.report.summary
        assert point.reward == pytest.approx(summary["mean_return"])
        assert point.ci == pytest.approx(
            (summary["mean_return_ci_low"], summary["mean_return_ci_high"])
        )
        assert point.number("pass_rate") is None
        assert (point.n, point.of, point.partial) == (40, 40, None)
        assert VectorReport.load(tmp_path / "run" / str(point.run)).summary == summary
    assert len({point.weights for point in points}) == 6
    assert points[-1].final
    assert final is evals.history[-1].report
    assert points[-1].verdict is not None
    assert points[-1].verdict["kind"] == "improving"
    assert [fields["step"] for name, fields in beats if name == "env_eval"] == [0, 2, 4, 6, 8, 9]

    assert run_cli(["curve", "flips", str(tmp_path / "run"), "--json"]) == 0
    changed = json.loads(capsys.readouterr().out)
    first, last = (
        np.array([e.ret for e in point.report.episodes])
        for point in (evals.history[0], evals.history[-1])
        if point.report is not None
    )
    assert changed["pass_threshold"] is None
    assert len(changed["gained"]) == (last > first).sum() > 10
    assert len(changed["lost"]) == (last < first).sum()
    assert changed["unchanged"] == (last == first).sum()
    assert changed["difference"] == pytest.approx((last - first).mean())
    for command in (
        ["show"],
        ["flips"],
        ["watch", "--once"],
        ["plot", "-o", str(tmp_path / "c.svg")],
    ):
        assert run_cli(["curve", command[0], str(tmp_path / "run"), *command[1:]]) == 0, command
    shown = capsys.readouterr().out
    assert "improving" in shown
    assert "Finished" in shown
    assert "passed: ≥" not in shown
    assert "compared by reward" in shown


def test_the_curve_is_of_successes_where_success_is_defined_or_asked_for() -> None:
    cases: list[tuple[Any, dict[str, Any]]] = [
        (Walk, {"success": ended_early}),
        (Judged, {"reward": "success"}),
        (Walk, {"success": "terminated"}),
        (Judged, {"success": "is_success"}),
    ]
    for make_env, case in cases:
        evals = EvalEvery(1, make_env, good_policy, 20, **case)
        report = evals.maybe_run(1)
        (point,) = evals.points
        assert point.reward == report.summary["success_rate"] == point.number("pass_rate")
    assert evals.run_dir.name == "env_eval-4"


def test_a_curve_of_successes_that_nothing_defines_has_no_number() -> None:
    evals = EvalEvery(1, Walk, good_policy, 5, reward="success")
    assert evals.maybe_run(1) is None
    assert "nothing says which episodes succeeded" in str(evals.history[0].skipped)


def test_episodes_are_the_same_samples_and_clusters_at_every_eval() -> None:
    policy = Learns()
    evals = EvalEvery(1, Gambles, policy, 9)  # does not follow its seed alone
    trained(evals, policy, range(1, 3), levels=[0, 0, 1])
    first, second = evals.points
    assert [o.id for o in first.outcomes] == [o.id for o in second.outcomes]
    assert not any(o.copy_of for o in (*first.outcomes, *second.outcomes))
    assert first.number("n_clusters") is None


def test_a_second_training_gets_a_curve_of_its_own() -> None:
    for name in ("env_eval", "env_eval-2"):
        evals = EvalEvery(5, Walk, good_policy, 2)
        evals.maybe_run(5)
        assert evals.run_dir == Path("outputs/evals", name).absolute()
        assert [point.step for point in evals.points] == [5]
    # … with the same object, too.
    evals.begin(0)
    evals.maybe_run(5)
    assert evals.run_dir.name == "env_eval-3"
    assert [point.step for point in evals.history] == [5, 5]
    with pytest.raises(RunExists):
        EvalEvery(5, Walk, good_policy, 2, run_dir=evals.run_dir).maybe_run(5)


def test_a_training_that_resumes_continues_its_curve(tmp_path: Path) -> None:
    policy = Learns()
    make = functools.partial(EvalEvery, 5, Walk, policy, 9, run_dir=tmp_path / "run")
    trained(make(), policy, range(13))
    evals = make()
    evals.begin(10, resume=True)
    policy.train(1.0)  # the weights of step 10
    again = evals.run(10)
    assert again is not None
    assert played(again) == played(evaluate_env(Walk, policy, 9))
    assert evals.history[-1].reused
    trained(evals, policy, range(11, 16))
    assert [point.step for point in evals.points] == [5, 10, 15]
    lines = read_points(tmp_path / "run/curve.jsonl")
    assert [point.step for point in lines] == [5, 10, 15], "10 was there already, of these weights"
    evals = make(resume=True)
    trained(evals, policy, range(16, 21), levels=[0.5] * 21)
    assert [point.step for point in evals.history] == [20], "16 is past no multiple since 15"
    changed: list[dict[str, Any]] = [
        {"success": ended_early},
        {"max_steps": 3},
        {"seed": 1},
        {"make_env": lambda: Walk(3)},
        {"identity": {"policy": "greedy"}},
    ]
    for change in changed:
        settings = {"every_steps": 5, "make_env": Walk, "policy_fn": policy, "episodes": 9}
        with pytest.raises(ResumeMismatch):
            EvalEvery(**{**settings, **change}, run_dir=tmp_path / "run", resume=True)


def test_a_curve_of_one_word_for_success_is_not_continued_with_another(tmp_path: Path) -> None:
    make = functools.partial(EvalEvery, 1, Judged, good_policy, 5, run_dir=tmp_path / "run")
    make(success="terminated").run_final(1)
    make(success="terminated", resume=True)
    with pytest.raises(ResumeMismatch, match="another success"):
        make(success="is_success", resume=True)


def test_a_loop_is_told_to_stop_by_the_monitor_and_from_the_command_line() -> None:
    def at_the_third(points: Any) -> str | None:
        return "three will do" if len(points) == 3 else None

    evals = EvalEvery(1, Walk, good_policy, 2, monitor=at_the_third)
    for step in range(1, 4):
        assert evals.stop_requested is None
        evals.maybe_run(step)
    assert evals.stop_requested == "three will do"
    evals = EvalEvery(1, Walk, good_policy, 2)
    evals.maybe_run(1)
    assert evals.stop_requested is None
    assert run_cli(["curve", "stop", str(evals.run_dir), "--reason", "enough"]) == 0
    assert evals.stop_requested == "enough"


def test_the_final_weights_are_evaluated_once_and_the_curve_is_complete() -> None:
    policy = Learns()
    evals = EvalEvery(5, Walk, policy, 3)
    trained(evals, policy, range(6))
    final = evals.run_final(5)
    assert [point.step for point in evals.history] == [5]
    assert final is evals.history[0].report
    policy.train(0.9)  # an update after the evaluation of that step
    assert evals.run_final(5) is not final
    assert [point.step for point in evals.history] == [5, 5]
    assert RunDir(evals.run_dir).read_info().status == "complete"
    rarely = EvalEvery(0, Walk, policy, 3)
    assert rarely.run_final(5) is not None
    assert RunDir(rarely.run_dir).read_info().status == "complete"


def test_weights_are_those_that_the_policy_reaches_and_unknown_where_it_has_none() -> None:
    network, other = torch.nn.Sequential(torch.nn.Linear(2, 2)), torch.nn.Linear(1, 1)

    def policy(observations: Any) -> Any:
        return network[0](torch.as_tensor(observations)).argmax(1).numpy()

    def weights(policy_fn: Any, **settings: Any) -> str | None:
        evals = EvalEvery(1, Walk, policy_fn, 2, **settings)
        evals.run(1)
        return evals.points[0].weights

    known = weights(policy)
    assert known == fingerprint([network])
    assert weights(policy, model=network) == known
    assert weights(policy, model=other) != known
    assert weights(policy, model=lambda: [network, torch.ones(2)]) not in (None, known)
    torch.nn.init.zeros_(network[0].weight)
    assert weights(policy) != known
    assert weights(good_policy) is None


def test_episodes_are_played_in_the_thread_that_trains_though_there_is_a_dispatcher(
    caplog: pytest.LogCaptureFixture,
) -> None:
    threads = set()
    network = torch.nn.Linear(2, 2)

    def policy(observations: Any) -> Any:
        threads.add(threading.get_ident())
        return network(torch.as_tensor(observations)).argmax(1).numpy()

    evals = EvalEvery(1, Walk, policy, 2)
    with AsyncEvalDispatcher():
        reports = [evals.maybe_run(1), evals.maybe_run(2), evals.run(3), evals.run_final(4)]
    assert None not in reports
    assert threads == {threading.get_ident()}
    assert caplog.text.count("training waits for evals: episodes are played in") == 1


def test_whoever_launches_a_run_can_change_its_evals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELDOUT_EVAL_NUM", "3")
    monkeypatch.setenv("HELDOUT_EVAL_EVERY_STEPS", "10")
    evals = EvalEvery(5, Walk, good_policy, 8)
    for step in range(21):
        evals.maybe_run(step)
    assert [(p.step, p.n) for p in evals.points] == [(10, 3), (20, 3)]
    monkeypatch.setenv("HELDOUT_EVAL_NUM", "0")
    off = EvalEvery(5, Walk, good_policy, 8)
    assert [off.maybe_run(5), off.run(6), off.run_final(7)] == [None] * 3
    assert off.history == off.points == []
