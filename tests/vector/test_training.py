"""Evaluation inside a training loop, which must not notice."""

from __future__ import annotations

import functools
import logging
import random
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import SyncVectorEnv
from hypothesis import given
from hypothesis import strategies as st

from heldout.errors import InvalidInput
from heldout.isolation import eval_mode, modules_of, untouched_random_state
from heldout.testing import assert_neutral
from heldout.vector import evaluate_env
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


def test_random_state_is_as_it_was_after_a_failure_too() -> None:
    before = random_state()

    @untouched_random_state(seed=5)
    def fails() -> None:
        raise KeyError(random.random(), np.random.random(), torch.rand(1))

    with pytest.raises(KeyError):
        fails()
    assert random_state() == before


def test_without_a_seed_what_runs_inside_goes_on_from_where_it_was() -> None:
    with untouched_random_state():
        first = random.random(), np.random.random(), torch.rand(1)
    assert (random.random(), np.random.random(), torch.rand(1)) == first


def test_each_modules_own_flag_is_put_back() -> None:
    frozen = torch.nn.BatchNorm1d(2).eval()
    network = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(), frozen).train()
    frozen.eval()
    flags = [module.training for module in network.modules()]
    seen: list[Any] = []

    def policy(observations: Any) -> Any:
        seen.append([m.training for m in network.modules()] + [torch.is_grad_enabled()])
        return network(torch.as_tensor(observations)).argmax(1).numpy()

    evals = EvalEvery(1, Walk, policy, 3, model=network)
    assert evals.maybe_run(1) is not None
    assert not any(any(flags) for flags in seen)
    assert [module.training for module in network.modules()] == flags
    assert torch.is_grad_enabled()

    @eval_mode(modules_of([network, frozen]))
    def fails() -> None:
        raise KeyError(network.train())  # whatever happens inside

    with pytest.raises(KeyError):
        fails()
    assert [module.training for module in network.modules()] == flags


def test_it_runs_when_a_multiple_has_been_passed_however_the_counter_jumps() -> None:
    evals = EvalEvery(100, Walk, good_policy, 1)
    for step in (0, 8, 96, 104, 192, 200, 208, 450, 460):
        evals.maybe_run(step)
    assert [point.step for point in evals.history] == [104, 200, 450]


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


def test_the_start_can_be_evaluated_and_the_end_always() -> None:
    evals = EvalEvery(100, Walk, good_policy, 1, at_start=True)
    for step in (0, 60, 120):
        evals.maybe_run(step)
    evals.run(130)
    assert [point.step for point in evals.history] == [0, 120, 130]


def test_a_counter_that_was_started_again_is_followed() -> None:
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


def test_the_report_is_that_of_evaluate_env() -> None:
    report = EvalEvery(1, Walk, good_policy, 9, num_envs=3, seed=4, max_steps=5).maybe_run(1)
    assert report is not None
    assert played(report) == played(evaluate_env(Walk, good_policy, 9, seed=4, max_steps=5))


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
    assert "step 10 skipped: RuntimeError: out of memory" in caplog.text


def test_what_stops_the_program_is_not_held_back() -> None:
    def interrupted(observations: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        EvalEvery(1, Walk, interrupted, 1).maybe_run(1)


@pytest.mark.parametrize(
    "settings", [{"every_steps": -1}, {"every_steps": 1.5}, {"episodes": 0}, {"make_env": Walk()}]
)
def test_what_could_not_be_meant_is_refused_before_training(settings: Any) -> None:
    given = {"every_steps": 1, "make_env": Walk, "policy_fn": good_policy, "episodes": 1}
    with pytest.raises(InvalidInput):
        EvalEvery(**{**given, **settings})


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
        evals = EvalEvery(10, make_env, good_policy, 2)
        assert evals.maybe_run(10) is None
        assert "a new environment at every call" in str(evals.history[0].skipped)
    assert env.np_random.bit_generator.state == before
    assert not env.closed
    assert not cached().closed
    assert env.length


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
