"""Environments with reset and step: TextArena, OpenEnv on a server, SkyRL-gym, one's own."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
import skyrl_gym
import textarena
import uvicorn
from openenv.core.client_types import StepResult
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment as OpenEnvironment
from openenv.core.env_server.mcp_types import Tool
from openenv.core.env_server.types import Action, Observation, State
from openenv.core.generic_client import GenericEnvClient
from openenv.core.harness import (
    MCPHarnessAdapter,
    ModelStepResult,
    StepEnvSessionAdapter,
    VerifyResult,
)
from openenv.core.harness.collect import CollectRunner, RolloutSerializer
from openenv.core.llm_client import LLMResponse
from openenv.core.llm_client import ToolCall as LLMToolCall

from heldout import EvalConfig, EvalDefinition, EvalReport, Message, Sample, ToolCall, evaluate
from heldout._live.isolation import background_thread
from heldout.adapters.step_environments import ActionRefused, from_step_env, seeds
from heldout.adapters.step_environments.openenv import from_openenv, from_sessions
from heldout.adapters.step_environments.textarena import from_textarena, games
from heldout.adapters.tasks import load_task
from heldout.cli.main import run_cli
from heldout.errors import EvalFailed, InvalidInput
from heldout.testing import check_environment
from tests.integration.package_scores import check_same_scores
from tests.integration.plain_guess import PlainGuess, make_env
from tests.test_docs import blocks

pytestmark = [
    pytest.mark.integration,
    # Of textarena's and openenv's own dependencies.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def run(
    definition: EvalDefinition, tmp_path: Path, endpoint: Any, name: str = "eval", **settings: Any
) -> EvalReport:
    config = EvalConfig(
        endpoint=endpoint,
        experiment_name=name,
        output_dir=str(tmp_path),
        max_error_rate=1,
        **settings,
    )
    try:
        return anyio.run(evaluate, definition, config)
    except EvalFailed:  # every item errored
        return EvalReport.load(tmp_path / name)


def errors(report: EvalReport) -> list[str | None]:
    return [result.error for result in report.results]


def rewards(report: EvalReport) -> list[float]:
    assert errors(report) == [None] * len(report.results)
    return [result.score.reward for result in report.results]


# --- One's own ----------------------------------------------------------------------------------


WORKER = "tests.integration.plain_guess:make_env"


class Guess(PlainGuess):
    """In this process it may refuse an action."""

    def step(self, action: str) -> Any:
        if not action.isdecimal():
            raise ActionRefused("a digit, please")
        return super().step(action)


def make_guess(sample: Sample) -> Guess:
    return Guess()


def count_up(messages: list[Message]) -> str:
    return str(sum(message.role == "assistant" for message in messages))


def hesitate(messages: list[Message]) -> str:
    return "what?" if len(messages) == 3 else count_up(messages)


class AsyncGuess:
    """Draws from the global states before, between and after its awaits."""

    async def reset(self, seed: int) -> Any:
        await anyio.sleep(0)
        random.seed(seed)
        return "Guess.", {}

    async def step(self, action: str) -> Any:
        first = random.random()
        await anyio.sleep(0.001 * random.randint(0, 3))
        reward = first + float(np.random.random())
        with anyio.move_on_after(0.001):  # a cancellation is thrown into the coroutine
            await anyio.sleep(60)
        return "On.", reward + random.random(), action == "3", False, {}

    async def close(self) -> None:
        await anyio.sleep(0)
        random.random()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_async_episode_goes_the_same_way_at_any_concurrency(
    tmp_path: Path, backend: str
) -> None:
    definition = from_step_env(lambda sample: AsyncGuess(), seeds("guess", range(8)))
    before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    found = []
    for number in (1, 8):
        config = EvalConfig(
            endpoint=count_up,
            experiment_name=str(number),
            output_dir=str(tmp_path),
            max_concurrent=number,
        )
        found.append(rewards(anyio.run(evaluate, definition, config, backend=backend)))
    assert found[0] == found[1]
    assert len(set(found[0])) == 8
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # type: ignore[index]


@pytest.mark.parametrize("make_env", [make_env, WORKER], ids=["here", "worker"])
def test_an_episode_goes_the_same_way_at_any_concurrency_and_leaves_random_state_alone(
    make_env: Any, tmp_path: Path
) -> None:
    definition = from_step_env(make_env, seeds("guess", range(8)), metrics=("turns",))
    before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    reports = [
        run(definition, tmp_path, count_up, name, max_concurrent=number)
        for name, number in (("one", 1), ("eight", 8))
    ]
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # type: ignore[index]
    one, eight = ([r.trajectory.messages for r in report.results] for report in reports)
    assert one == eight
    assert rewards(reports[0]) == rewards(reports[1])
    assert len({messages[2].text for messages in one}) > 4  # they are different games


def test_the_reward_is_the_sum_or_the_last_and_what_was_refused_counts_for_nothing(
    tmp_path: Path,
) -> None:
    samples = seeds("guess", range(6))
    [first, *_] = summed = run(
        from_step_env(make_guess, samples), tmp_path, hesitate, "sum"
    ).results
    last = run(
        from_step_env(make_guess, samples, reward="last"), tmp_path, hesitate, "last"
    ).results
    for a, b in zip(summed, last, strict=True):
        outcome = a.trajectory.outcome
        assert outcome is not None
        assert a.score.reward == sum(outcome["rewards"])
        assert b.score.reward == outcome["rewards"][-1]
        assert a.score["steps"] == len(outcome["rewards"])
    told = [m.text for m in first.trajectory.messages if m.role == "user"]
    assert "This is no valid action: a digit, please" in told


class Odd(Guess):
    """Returns what it is told to."""

    def __init__(self, returned: Any) -> None:
        self.returned = returned

    def step(self, action: str) -> Any:
        if isinstance(self.returned, Exception):
            raise self.returned
        return self.returned


ODD: dict[str, tuple[Any, str]] = {
    "no reward": (("a", None, True, False, {}), "gave no reward for 1 of 1 steps"),
    "NaN": (("a", float("nan"), True, False, {}), "a finite number or None"),
    "no flag": (("a", 1.0, "yes", False, {}), "must be True or False"),
    "four values": (("a", 1.0, True, {}), "step returns"),
    "an image": ((b"png", 1.0, True, False, {}), "an observation must be a text"),
    "silence": (("", 1.0, False, False, {}), "an observation is empty"),
    "an exception": (KeyError("board"), "KeyError: 'board'"),
}


@pytest.mark.parametrize("case", ODD)
def test_what_cannot_be_scored_is_an_error_and_not_0(case: str, tmp_path: Path) -> None:
    returned, reason = ODD[case]
    definition = from_step_env(lambda sample: Odd(returned), seeds("odd", [1]))
    [error] = errors(run(definition, tmp_path, lambda messages: "1"))
    assert reason in str(error)


def test_a_reward_that_is_missing_in_the_middle_is_not_summed_over(tmp_path: Path) -> None:
    class Sparse(Guess):
        def step(self, action: str) -> Any:
            self.turns += 1
            over = self.turns == 3
            return "and?", 1.0 if over else None, over, False, {}

    samples = seeds("sparse", [1])
    summed = from_step_env(lambda sample: Sparse(), samples)
    [error] = errors(run(summed, tmp_path, lambda messages: "1", "sum"))
    assert (
        'no reward for 2 of 3 steps that count, which is not a reward of 0; reward="last"'
        in str(error)
    )
    last = from_step_env(lambda sample: Sparse(), samples, reward="last")
    assert rewards(run(last, tmp_path, lambda messages: "1", "last")) == [1.0]


def test_beside_a_training_it_is_refused_in_this_process_and_plays_in_a_worker(
    tmp_path: Path,
) -> None:
    samples = seeds("guess", range(2))
    with background_thread():
        [error, _] = errors(run(from_step_env(make_guess, samples), tmp_path, count_up, "a"))
        played = run(from_step_env(WORKER, samples), tmp_path, count_up, "b")
    assert "may not have the random state of this process" in str(error)
    assert len(rewards(played)) == 2


def test_environments_keep_to_the_contract_and_go_on_from_snapshots() -> None:
    for made in (make_guess, WORKER):
        definition = from_step_env(made, seeds("guess", [3]))
        factory: Callable[[Sample], Any] = definition.environment_factory  # type: ignore[assignment]
        [sample] = definition.samples
        check_environment(partial(factory, sample), turns=["1", "2"])


@pytest.mark.parametrize(
    ("arguments", "settings", "reason"),
    [
        ((7, []), {}, "make_env must be a function"),
        (("no_such_module:make", []), {}, "cannot be imported: ModuleNotFoundError"),
        ((make_guess, []), {"reward": "mean"}, "reward must be 'sum' or 'last'"),
        (("json:loads", []), {"act": str}, "actions are texts"),
    ],
)
def test_what_is_no_environment_is_refused(
    arguments: Any, settings: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidInput, match=reason):
        from_step_env(*arguments, **settings)
    with pytest.raises(InvalidInput, match="a seed must be a whole number"):
        seeds("guess", [True])


# --- SkyRL-gym ----------------------------------------------------------------------------------


def test_skyrl_gym_gives_the_rewards_of_its_own_loop(tmp_path: Path) -> None:
    def make_env(sample: Sample) -> Any:
        extras = {"reward_spec": {"ground_truth": sample.ground_truth}, "max_turns": 3}
        return skyrl_gym.make("gsm8k_multi_turn", env_config=None, extras=extras)

    def answer(messages: list[Message]) -> str:
        return ("I think", "#### 9", "#### 4")[sum(m.role == "assistant" for m in messages)]

    samples = [Sample(t, {"question": "2 + 2?"}, t) for t in ("4", "9", "5")]
    report = run(from_step_env(make_env, samples, package="skyrl-gym"), tmp_path, answer)
    own = []
    for sample in samples:
        env = make_env(sample)
        total, done = 0.0, False
        conversation, _ = env.init([{"role": "user", "content": "2 + 2?"}])
        while not done:
            step = env.step(answer([Message(m["role"], m["content"]) for m in conversation]))
            conversation += [{"role": "assistant", "content": ""}, *step["observations"]]
            total, done = total + step["reward"], step["done"]
        own.append(total)
    check_same_scores(report, own, sum(own) / len(own))
    assert own[1] == 1.0
    [first, *_] = report.results
    assert first.trajectory.messages[0] == Message("user", "2 + 2?")
    assert first.trajectory.stop.ended_by == "environment"


# --- TextArena ----------------------------------------------------------------------------------

GAMES = ("Mastermind-v0", "Minesweeper-v0", "FrozenLake-v0", "GuessTheNumber-v0", "Blackjack-v0")
MOVES = ("[1 2 3 4]", "[0 0]", "[down]", "[7]", "[hit]", "[right]", "[3 4 5 6]", "nonsense")


def some_move(messages: list[Message]) -> str:
    """A move by what was said so far, the same in every process."""
    said = "".join(message.text for message in messages)
    return MOVES[sum(map(ord, said)) % len(MOVES)]


def play_with_textarena(name: str, seed: int) -> Any:
    """The package's own loop, with the same observations as the conversation has."""
    game = textarena.make(f"{name}-raw")
    state = random.getstate()
    game.reset(num_players=1, seed=seed)
    said, done = [], False
    while not done:
        _, observed = game.get_observation()
        own = textarena.ObservationType.PLAYER_ACTION
        said.append(Message("user", "\n".join(t for _, t, k in observed if k != own).strip()))
        said.append(Message("assistant", some_move(said)))
        done, _ = game.step(said[-1].text)
    rewards, _ = game.close()
    random.setstate(state)
    return rewards[0]


@pytest.mark.parametrize("name", GAMES)
def test_textarena_gives_the_rewards_of_its_own_loop_at_any_concurrency(
    name: str, tmp_path: Path
) -> None:
    definition = from_textarena(name, size=4)
    before = random.getstate()
    one = run(definition, tmp_path, some_move, "one", max_concurrent=1)
    four = run(definition, tmp_path, some_move, "four", max_concurrent=4)
    assert random.getstate() == before
    messages = [[r.trajectory.messages for r in report.results] for report in (one, four)]
    assert messages[0] == messages[1]
    own = [play_with_textarena(name, sample.input["seed"]) for sample in definition.samples]
    for report in (one, four):
        check_same_scores(report, own, sum(own) / len(own))
    assert next(iter(definition.samples)).id == f"{name}-0"


def test_a_game_that_is_not_over_is_an_error_and_not_0(tmp_path: Path) -> None:
    definition = from_textarena("Mastermind-v0", size=2, max_turns=2)
    [error, _] = errors(run(definition, tmp_path, lambda messages: "[1 2 3 4]"))
    assert "not over when its turns were used up" in str(error)


def test_games_keep_to_the_contract_and_go_on_from_snapshots() -> None:
    definition = from_textarena("Mastermind-v0", size=1, code_length=3)
    factory: Any = definition.environment_factory
    [sample] = definition.samples
    assert sample.input["config"] == {"code_length": 3}
    check_environment(partial(factory, sample), turns=["[1 2 3]", "[2 3 4]"])


def test_games_that_cannot_be_played_here_are_refused_with_the_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    known = games()
    assert known["Sudoku-v0"] is None
    assert known["Nim-v0"] == "it is for two players or more"
    assert "API key" in str(known["TwentyQuestions-v0"])  # which would ask a model of its own
    for name, settings, reason in (
        ("Nim-v0", {}, "two players or more"),
        ("TwentyQuestions-v0", {}, "API key"),
        ("NoGame-v0", {}, "no game 'NoGame-v0'"),
        ("TowerOfHanoi-v0", {"size": 2}, "began in one way with 10 seeds, and size is 2"),
        ("Sudoku-v0", {"depth": 3}, "unexpected keyword argument 'depth'"),
        ("Sudoku-v0", {"size": 0}, "size must be a whole number"),
    ):
        with pytest.raises(InvalidInput, match=reason):
            from_textarena(name, **settings)  # type: ignore[arg-type]
    assert len(list(from_textarena("TowerOfHanoi-v0", size=1).samples)) == 1
    assert run_cli(["tasks", "textarena"]) == 0
    assert "textarena:Sudoku-v0" in capsys.readouterr().out


# --- OpenEnv ------------------------------------------------------------------------------------


class Move(Action):
    text: str


class Board(Observation):
    told: str = ""


class Sum(OpenEnvironment):
    """Add numbers up to ten; the last step has the reward 1, and no other has one unless asked."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, **more: Any) -> Board:
        self.total, self.dense = seed or 0, bool(more.get("dense"))
        return Board(told=f"{self.total}, and?", done=False, reward=None)

    def step(self, action: Move, timeout_s: float | None = None, **more: Any) -> Board:
        if action.text == "crash":
            raise RuntimeError("no disk")
        self.total += int(action.text)
        done = self.total >= 10
        reward = 1.0 if done else 0.25 if self.dense else None
        return Board(told=f"{self.total}", done=done, reward=reward)

    @property
    def state(self) -> State:
        return State(episode_id="e", step_count=0)


class TwoFields(Action):
    x: int
    y: int


@pytest.fixture(scope="module")
def serve() -> Iterator[Callable[..., str]]:
    """Starts servers on loopback, and stops them."""
    started: list[tuple[uvicorn.Server, threading.Thread]] = []

    def start(action: Any = Move, **settings: Any) -> str:
        app = create_fastapi_app(Sum, action, Board, **settings)
        bound = socket.socket()
        bound.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", ws="websockets-sansio"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
        thread.start()
        started.append((server, thread))
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        return f"http://127.0.0.1:{bound.getsockname()[1]}"

    yield start
    for server, thread in started:
        server.should_exit = True
        thread.join(10)


@pytest.fixture(scope="module")
def server(serve: Callable[..., str]) -> str:
    return serve(max_concurrent_envs=8)


def four(messages: list[Message]) -> str:
    return "4"


def test_an_openenv_server_is_played_over_its_websocket(server: str, tmp_path: Path) -> None:
    report = run(from_openenv(server, size=5, reward="last"), tmp_path, four, max_concurrent=5)
    assert rewards(report) == [1.0] * 5
    [first, *_] = report.results
    assert [m.text for m in first.trajectory.messages] == [
        *("0, and?", "4", "4", "4", "8", "4", "12"),
    ]
    assert [r.sample_id for r in report.results][:2] == ["Move-0", "Move-1"]
    named = load_task(str(Path(f"openenv:{server}")), size=2)  # as the command line has it
    assert [sample.id for sample in named.samples] == ["Move-0", "Move-1"]


def test_rewards_of_a_server_are_summed_where_all_are_given(server: str, tmp_path: Path) -> None:
    dense = [Sample("a", {"seed": 1, "dense": True})]
    assert rewards(run(from_openenv(server, dense), tmp_path, four, "dense")) == [1.5]
    [error] = errors(run(from_openenv(server, size=1), tmp_path, four, "sparse"))
    assert "no reward for 2 of 3 steps" in str(error)


def some_number(said: str) -> str:
    """An answer by what was said last, the same in every process."""
    return str(1 + sum(map(ord, said)) % 5)


def play_with_openenv(url: str, **reset: Any) -> list[float | None]:
    """The package's own client in its own loop: the rewards of an episode's steps."""
    with GenericEnvClient(base_url=url).sync() as env:
        result, rewards = env.reset(**reset), []
        while not result.done:
            result = env.step({"text": some_number(result.observation["told"])})
            rewards.append(result.reward)
    return rewards


@pytest.mark.parametrize("reward", ["sum", "last"])
def test_openenv_gives_the_rewards_of_its_own_client(
    reward: Any, server: str, tmp_path: Path
) -> None:
    inputs = [{"seed": seed, "dense": reward == "sum"} for seed in (0, 1, 5, 8)]
    samples = [Sample(str(number), given) for number, given in enumerate(inputs)]
    definition = from_openenv(server, samples, reward=reward)
    report = run(definition, tmp_path, lambda messages: some_number(messages[-1].text))
    episodes = [play_with_openenv(server, **given) for given in inputs]
    own = [sum(steps) if reward == "sum" else steps[-1] for steps in episodes]  # type: ignore[arg-type]
    check_same_scores(report, own, sum(own) / len(own))  # type: ignore[arg-type]
    assert {len(steps) for steps in episodes} > {1}
    if reward == "sum":
        assert len({*own}) > 1


def test_an_invalid_action_is_the_model_s_and_a_failing_server_is_not(
    server: str, tmp_path: Path
) -> None:
    def action(turn: Message) -> dict[str, Any]:
        return {"text": turn.text} if turn.text != "wrong" else {"no_such_field": 1}

    def answer(messages: list[Message]) -> str:
        return "wrong" if len(messages) == 1 else "20"

    definition = from_openenv(server, size=1, reward="last", action=action)
    report = run(definition, tmp_path, answer, "wrong")
    assert rewards(report) == [1.0]
    assert "VALIDATION_ERROR" in report.results[0].trajectory.messages[2].text
    [error] = errors(run(from_openenv(server, size=1), tmp_path, lambda m: "crash", "crash"))
    assert "EXECUTION_ERROR" in str(error)


def test_a_server_without_room_is_an_error_that_says_what_to_do(
    serve: Callable[..., str], tmp_path: Path
) -> None:
    definition = from_openenv(serve(), size=4, reward="last")
    found = errors(run(definition, tmp_path, four, "four", max_concurrent=4))
    assert any("set max_concurrent=1" in str(error) for error in found)
    assert rewards(run(definition, tmp_path, four, "one", max_concurrent=1)) == [1.0] * 4


def test_a_server_that_cannot_be_an_eval_is_refused(serve: Callable[..., str]) -> None:
    with pytest.raises(InvalidInput, match=r"the fields \['x', 'y'\], which a text alone"):
        from_openenv(serve(TwoFields))
    with pytest.raises(InvalidInput, match="there is no OpenEnv server at http://127.0.0.1:9"):
        from_openenv("http://127.0.0.1:9")
    with pytest.raises(InvalidInput, match="address must be like"):
        from_openenv("localhost")


class SumSessions:
    """Sessions with one tool, made of the real client as OpenEnv does it."""

    def __init__(
        self, url: str, tools: bool = True, reward: bool = True, dense: bool = False
    ) -> None:
        self.url, self.tools, self.reward, self.dense = url, tools, reward, dense

    def create(
        self, task: Any, seed: int | None = None, episode_id: str | None = None
    ) -> StepEnvSessionAdapter:
        def opening(result: StepResult[Any], task: Any) -> list[Any]:
            return [{"role": "user", "content": result.observation["told"]}]

        schema = {"type": "object", "properties": {"text": {"type": "string"}}}
        verify = lambda *arguments: VerifyResult(None)  # noqa: E731
        return StepEnvSessionAdapter(
            GenericEnvClient(base_url=self.url),
            task=task,
            seed=seed,
            reset_kwargs={"dense": self.dense},
            tool_specs=[Tool(name="add", description="", input_schema=schema)] * self.tools,
            action_builder=lambda name, arguments: arguments,
            initial_messages_builder=opening,
            verify_builder=None if self.reward else verify,
        )


def test_sessions_offer_their_tools_and_verify_gives_the_reward(
    server: str, tmp_path: Path
) -> None:
    calls = [("add", '{"text": "4"}'), ("subtract", "{}"), ("add", "4"), ("add", '{"text": "9"}')]

    def answer(messages: list[Message], tools: Any) -> Message:
        assert [tool.name for tool in tools] == ["add"]
        turn = sum(message.role == "assistant" for message in messages)
        return Message("assistant", "", (ToolCall(f"call0000{turn}", *calls[turn]),))

    samples = [Sample("a", {"task": "add", "seed": 3})]
    report = run(from_sessions(SumSessions(server), samples), tmp_path, answer)
    assert rewards(report) == [1.0]
    told = [m.text for m in report.results[0].trajectory.messages if m.role == "tool"]
    assert told[1:3] == [
        "Error: there is no tool 'subtract'",
        "Error: the arguments are not a JSON object",
    ]
    assert '"told": "16"' in told[3]


class SeededSessions(SumSessions):
    """The package's own runner says no seed: a task is one."""

    def create(self, task: Any, seed: Any = None, episode_id: Any = None) -> StepEnvSessionAdapter:
        return super().create(task, task, episode_id)


def test_sessions_have_the_rewards_of_openenvs_own_runner(server: str, tmp_path: Path) -> None:
    """One goes on to the end, one stops in its middle, one makes several calls in a turn."""

    def turn(said: str) -> tuple[str, ...]:
        if '"told": "7"' in said:
            return ()
        return ("1", "2") if said.startswith("2, and") else (some_number(said),)

    def answer(messages: list[Message], tools: Any) -> Message:
        calls = [
            ToolCall(f"call{len(messages)}{n}", "add", json.dumps({"text": text}))
            for n, text in enumerate(turn(messages[-1].text))
        ]
        return Message("assistant", "", tuple(calls))

    def step(messages: list[Any], tools: list[Any], sampling: Any) -> ModelStepResult:
        calls = [
            LLMToolCall(f"call{len(messages)}{n}", "add", {"text": text})
            for n, text in enumerate(turn(messages[-1]["content"]))
        ]
        return ModelStepResult(LLMResponse("", calls))

    starts = [0, 2, 3, 8]
    factory = SeededSessions(server, dense=True)
    definition = from_sessions(factory, [Sample(str(n), {"task": n}) for n in starts])
    report = run(definition, tmp_path, answer)
    serializer = RolloutSerializer(tmp_path / "own")
    runner = CollectRunner(
        session_factory=factory,  # type: ignore[arg-type]
        harness_adapter=MCPHarnessAdapter(),
        serializer=serializer,
        tasks=starts,
    )
    own = runner.run(model_step=step, num_episodes=len(starts))
    records = [json.loads(line) for line in serializer.results_path.read_text().splitlines()]
    assert (own.num_collected, own.num_failed) == (len(starts), 0)
    check_same_scores(report, [record["reward"] for record in records], own.avg_reward)


def test_a_session_without_tools_or_without_a_reward_is_an_error(
    server: str, tmp_path: Path
) -> None:
    samples = [Sample("a", {"seed": 3})]
    silent = from_sessions(SumSessions(server, tools=False), samples)
    [error] = errors(run(silent, tmp_path, four, "tools"))
    assert "offers no tools" in str(error)
    unscored = from_sessions(SumSessions(server, reward=False), samples)
    [error] = errors(run(unscored, tmp_path, four, "reward"))
    assert "verify gave no reward, which is not a reward of 0" in str(error)
    with pytest.raises(InvalidInput, match="takes a ResourceSessionFactory"):
        from_sessions(7, samples)


# --- The page -----------------------------------------------------------------------------------


def test_the_code_blocks_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "__docs__"}
    for kind, code in blocks("docs/step-environments.md"):
        if kind == "python":
            exec(compile(code, "docs/step-environments.md", "exec"), namespace)
