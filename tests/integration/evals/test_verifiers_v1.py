"""Against the real verifiers 0.4: its own runner's rewards, and its silent zeros as errors."""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import verifiers.v1 as vf
from aiohttp import web
from verifiers.v1.dialects.chat import ChatDialect, message_to_wire
from verifiers.v1.harnesses.utils.launch import CHAT_PROGRAM_SOURCE
from verifiers.v1.runtimes import subprocess as subprocess_runtime
from verifiers.v1.utils.format import format_mean

from heldout import EvalConfig, EvalDefinition, Message, Metric, Sample, Score, ToolCall
from heldout import evaluate as evaluate_eval
from heldout._core.chat.messages import message_of, to_chat_api
from heldout.adapters.tasks import list_tasks, load_task
from heldout.adapters.verifiers import from_verifiers, to_verifiers, v1_rollout
from heldout.adapters.verifiers.v1_chat import model_requests
from heldout.environments import ToolEnvironment
from heldout.errors import InvalidInput, ResumeMismatch, SystemicFailure
from tests.integration.package_scores import check_same_scores
from tests.test_docs import blocks

pytestmark = [
    pytest.mark.integration,
    # verifiers' MCP client, with tenacity 9.2.
    pytest.mark.filterwarnings("ignore:The 'initial' parameter is deprecated:DeprecationWarning"),
]

PACKAGES = Path(__file__).parent / "v1_packages"


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The packages of this folder as if they were installed, here and in tool servers."""
    monkeypatch.syspath_prepend(str(PACKAGES))
    monkeypatch.setenv("PYTHONPATH", str(PACKAGES))
    monkeypatch.setattr(subprocess_runtime, "CACHE_DIR", tmp_path / "cache")


def run(definition: EvalDefinition, policy: Any, folder: Path, **settings: Any) -> Any:
    config = EvalConfig(endpoint=policy, output_dir=str(folder), max_error_rate=0.5, **settings)
    return asyncio.run(evaluate_eval(definition, config))


# --- The same policy under verifiers' own runner ------------------------------------------------

SHOPPING = [
    ("basket_put", '{"item": "apple"}'),
    ("basket_put", "no JSON"),
    ("basket_put", "[]"),
    ("steal", "{}"),
]


def answer(messages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A policy that is a function of the conversation, in the words of chat APIs."""
    opening = str([message.get("content") for message in messages])
    turn = sum(message["role"] == "assistant" for message in messages)
    if "Buy" in opening and turn < len(SHOPPING):
        name, arguments = SHOPPING[turn]
        call = {"id": f"call{turn}", "function": {"name": name, "arguments": arguments}}
        return {"role": "assistant", "content": None, "tool_calls": [{**call, "type": "function"}]}
    return {"role": "assistant", "content": str(turn + 2)}


def policy(messages: Sequence[Message]) -> Message:
    return message_of(answer([to_chat_api(message) for message in messages]), "answer")


@asynccontextmanager
async def model_server(respond: Callable[..., Any]) -> AsyncIterator[vf.EvalClientConfig]:
    """A chat API on loopback, for verifiers' own client."""

    async def handle(request: web.Request) -> web.Response:
        body = await request.json()
        choice = {"index": 0, "message": respond(body["messages"]), "finish_reason": "stop"}
        raw = {"id": "x", "object": "chat.completion", "created": 0, "model": "m"}
        raw["choices"] = [choice]
        if not body.get("stream"):
            return web.json_response(raw)
        events = b"".join(ChatDialect().stream_events(raw))
        return web.Response(body=events, content_type="text/event-stream")

    app = web.Application()
    app.router.add_post("/v1/chat/completions", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    address = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    yield vf.EvalClientConfig(base_url=address, api_key_var="NO_KEY")
    await runner.cleanup()


async def run_with_verifiers(taskset_id: str, role: str) -> list[Any]:
    """The package's own runner, its `null` program and its HTTP client; their traces."""
    seat = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
    env = vf.load_environment(vf.resolve_env_config({"taskset": {"id": taskset_id}, role: seat}))
    async with model_server(answer) as client, env.serving():
        ctx = vf.ModelContext(model="m", client=client)
        slots = [slot for task in env.taskset for slot in env.slots(task)]
        episodes = await asyncio.gather(*(env.run_slot(slot, ctx) for slot in slots))
    return [episode.traces[0] for episode in episodes]


@pytest.fixture
def chat_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program of `null`, ready to start as if `uv` had installed it: this Python has it all."""
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    script = scripts / f"{hashlib.sha256(CHAT_PROGRAM_SOURCE.encode()).hexdigest()}.py"
    script.write_text(CHAT_PROGRAM_SOURCE)
    runtime = subprocess_runtime.SubprocessRuntime
    monkeypatch.setattr(runtime, "scripts_dir", str(scripts))
    monkeypatch.setattr(runtime, "_interpreters", {str(script): sys.executable})


def written(message: Message) -> Any:
    calls = [(call.id, call.name, call.arguments) for call in message.tool_calls]
    return message.role, message.text, calls, message.tool_call_id


@pytest.mark.usefixtures("chat_program")
@pytest.mark.parametrize(
    ("taskset_id", "role"), [("vf-sums", "agent"), ("vf-guess", "player"), ("vf-shop", "agent")]
)
def test_rollouts_are_those_of_verifiers_own_runner(
    taskset_id: str, role: str, tmp_path: Path
) -> None:
    source: Any = taskset_id
    if taskset_id == "vf-shop":  # as an object, which takes another way through the package
        from vf_shop import ShopTaskset

        source = ShopTaskset(vf.TasksetConfig())
    report = run(from_verifiers(source), policy, tmp_path)
    traces = asyncio.run(run_with_verifiers(taskset_id, role))
    assert all(trace.ok for trace in traces), [trace.errors for trace in traces]
    mean = format_mean(traces, lambda trace: trace.reward, digits=15)  # as its own eval prints it
    check_same_scores(report, [trace.reward for trace in traces], float(mean))
    for result, trace in zip(report.results, traces, strict=True):
        theirs = [message_of(message_to_wire(m), "trace") for m in trace.messages]
        assert [*map(written, result.trajectory.messages)] == [*map(written, theirs)]
        rewards = {name: reward.score for name, reward in trace.rewards.items()}
        measured = {metric.name: metric.value for metric in result.score.metrics}
        assert measured == {"reward": trace.reward, **rewards, **trace.metrics}
        weights = {m.name: m.metadata["weight"] for m in result.score.metrics if m.metadata}
        assert weights == {
            **{name: reward.weight for name, reward in trace.rewards.items()},
            **dict.fromkeys(trace.metrics),
        }
        assert result.trajectory.outcome["stop_condition"] == trace.stop_condition


# --- What the package would count as 0 ----------------------------------------------------------


class Data(vf.TaskData):
    answer: str = "2"


class Fair(vf.Task[Data]):
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == self.data.answer)


class Raises(Fair):
    @vf.reward
    async def broken(self, trace: vf.Trace) -> float:
        raise KeyError("gold")


class NoNumber(Fair):
    @vf.reward
    async def undefined(self, trace: vf.Trace) -> float:
        return float("nan")


class NoMetric(Fair):
    @vf.metric
    async def infinite(self, trace: vf.Trace) -> float:
        return float("inf")


class Nothing(vf.Task[Data]):
    @vf.reward
    async def by_name(self, trace: vf.Trace) -> dict[str, float]:
        return {}


class Masked(Fair):
    @vf.metric
    async def mask_sample(self, trace: vf.Trace) -> float:
        return 1.0


class Slow(Fair):
    async def wait(self) -> None:
        await asyncio.Event().wait()


class SlowReward(Slow):
    @vf.reward
    async def late(self, trace: vf.Trace) -> float:
        await self.wait()
        return 1.0


class SlowSetup(Slow):
    async def setup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        await self.wait()


class SlowFinalize(Slow):
    async def finalize(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        await self.wait()


class BrokenSetup(Fair):
    async def setup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        raise OSError("no disk")


class BrokenStop(Fair):
    @vf.stop
    async def enough(self, trace: vf.Trace) -> bool:
        raise LookupError("no state")


class ExitingReward(Fair):
    @vf.reward()
    async def exiting(self, trace: vf.Trace) -> float:
        sys.exit("no license")


class ExitingStop(Fair):
    @vf.stop
    async def enough(self, trace: vf.Trace) -> bool:
        sys.exit("no license")


def taskset_of(*tasks: vf.Task, infinite: bool = False) -> vf.Taskset:
    class Given(vf.Taskset[Fair]):
        INFINITE = infinite

        def load(self) -> Iterator[vf.Task]:
            yield from tasks

    return Given(vf.TasksetConfig())


def task(kind: type[vf.Task] = Fair, **data: Any) -> vf.Task:
    return kind(Data(**{"prompt": "1 + 1?", **data}))


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (Raises, "TaskError.*KeyError: 'gold'"),
        (NoNumber, "its 'reward' is nan"),
        (NoMetric, "its 'infinite' is inf"),
        (Nothing, "no reward was recorded"),
        (Masked, "mask_sample"),
        (SlowReward, "it ended by scoring_timeout"),
        (SlowSetup, "it ended by setup_timeout"),
        (SlowFinalize, "it ended by finalize_timeout"),
        (BrokenSetup, "OSError: no disk"),
        (BrokenStop, "no state"),
        (ExitingReward, "no license"),
        (ExitingStop, "Server disconnected"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_verifiers_counts_as_0_is_an_error(
    kind: type[vf.Task], error: str, tmp_path: Path
) -> None:
    soon = 0.05 if issubclass(kind, Slow) else None
    bad = task(kind, id="bad", timeout=vf.TaskTimeout(setup=soon, finalize=soon, scoring=soon))
    report = run(from_verifiers(taskset_of(bad, task(id="good"))), policy, tmp_path)
    assert report.summary["n_errors"] == 1
    assert re.search(error, report.results[0].error), report.results[0].error
    assert report.results[1].score.reward == 1.0


# --- Harnesses ----------------------------------------------------------------------------------


class InProcess(vf.Harness[vf.HarnessConfig]):
    """Runs `talk(post)`, which calls the model as it likes."""

    NEEDS_CONTAINER = EXECUTES_CODE = False
    secrets: list[str]

    def __init__(self, talk: Callable[[Any], Any]) -> None:
        super().__init__(vf.HarnessConfig(id="in-process"))
        self.talk, self.secrets, self.endpoints = talk, [], []

    async def launch(
        self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, urls: Any, data: Any
    ) -> vf.ProgramResult:
        self.secrets.append(secret)
        self.endpoints.append(endpoint)
        async with model_requests(endpoint, secret) as post:
            await self.talk(post)
        return vf.ProgramResult(0, "", "")


def said(*texts: str) -> list[dict[str, str]]:
    return [{"role": role, "content": t} for role, t in zip(["user", "assistant"] * 9, texts)]  # noqa: B905


async def rewrites(post: Any) -> None:
    await post({"messages": said("a")})
    await post({"messages": said("b", "2", "c")})


async def branches(post: Any) -> None:
    await post({"messages": said("a")})
    await post({"messages": said("a")})


async def twice_at_once(post: Any) -> None:
    await asyncio.gather(post({"messages": said("a")}), post({"messages": said("b")}))


async def swallows(post: Any) -> None:
    for _ in range(3):
        await post({"messages": said("a")})  # whatever the status


async def wants_a_stop(post: Any) -> None:
    await post({"messages": said("a"), "stop": ["\n"]})


async def says_nothing(post: Any) -> None:
    pass


async def two_turns(post: Any) -> None:
    first = (await post({"messages": said("a"), "temperature": 0.3})).json()
    reply = first["choices"][0]["message"]["content"]
    assert (await post({"messages": said("a", reply, "sure?")})).status_code == 200


async def streams(post: Any) -> None:
    body = (await post({"messages": said("a"), "stream": True})).text
    assert '"content": "2"' in body
    assert body.endswith("data: [DONE]\n\n")


def broken(messages: Sequence[Message]) -> str:
    raise OSError("the engine is gone")


@pytest.mark.parametrize(
    ("talk", "endpoint", "error"),
    [
        (rewrites, policy, "rewritten message 0"),
        (branches, policy, "branches, or begins another"),
        (twice_at_once, policy, "a second conversation"),
        (swallows, broken, "endpoint: OSError: the engine is gone"),
        (wants_a_stop, policy, "asks for stop"),
        (says_nothing, policy, "without asking the model"),
        (two_turns, policy, None),
        (streams, policy, None),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_harness_leads_one_conversation_that_grows(
    talk: Any, endpoint: Any, error: str | None, tmp_path: Path
) -> None:
    definition = from_verifiers(taskset_of(task()), harness=InProcess(talk))
    if error is not None:
        with pytest.raises(SystemicFailure, match=error):
            run(definition, endpoint, tmp_path)
        return
    (result,) = run(definition, endpoint, tmp_path).results
    ignored = result.trajectory.outcome["ignored_settings"]
    assert ignored == (["temperature"] if talk is two_turns else [])


def test_a_limit_ends_the_rollout_as_verifiers_own_and_it_is_scored(tmp_path: Path) -> None:
    address = {"type": "eval", "base_url": "http://127.0.0.1:1/v1"}
    elsewhere = {"model": "another", "client": address}
    settings = {"taskset": {"id": "vf-guess", "numbers": (3, 5)}, "player": elsewhere}
    env = vf.load_environment(vf.resolve_env_config(settings))  # the policy plays all the same
    report = run(from_verifiers(env), policy, tmp_path, max_turns=2)
    found, not_found = report.results
    assert (found.score.reward, found.trajectory.stop.ended_by) == (0.3, "environment")
    assert (not_found.score.reward, not_found.trajectory.stop.limit) == (0.0, "max_turns")
    assert not_found.score["turns"] == 2
    outcome = not_found.trajectory.outcome
    assert (outcome["stop_condition"], outcome["is_truncated"]) == ("max_turns", True)


def test_a_rollout_without_limits_has_as_many_turns_as_it_takes(tmp_path: Path) -> None:
    report = run(from_verifiers("vf-guess", numbers=(30,)), policy, tmp_path)
    (result,) = report.results
    assert (result.score.reward, result.score["turns"], report.limits) == (0.3, 29, {})


def test_the_server_is_on_loopback_ends_with_the_run_and_its_secret_stays_in_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    harness = InProcess(two_turns)
    state = random.getstate()
    run(from_verifiers(taskset_of(task(), task(id="b")), harness=harness), policy, tmp_path)
    assert random.getstate() == state
    assert not v1_rollout._keepers
    assert len(set(harness.secrets)) == 2
    (endpoint,) = set(harness.endpoints)
    assert endpoint.startswith("http://127.0.0.1:")
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    for secret in harness.secrets:
        assert secret not in caplog.text
        assert all(secret.encode() not in content for content in files)

    async def connect() -> None:
        await asyncio.open_connection("127.0.0.1", int(endpoint.split(":")[2].split("/")[0]))

    with pytest.raises(ConnectionRefusedError):
        asyncio.run(connect())


# --- What is refused, and how tasks are found ---------------------------------------------------


class Boxed(Fair):
    NEEDS_CONTAINER = True


class Rewriter(Fair):
    @vf.intercept
    async def censor(self, request: vf.Request) -> vf.Request:
        return request


class Unrewarded(vf.Task[Data]):
    pass


class Tools(vf.Toolset[vf.ToolsetConfig, vf.State]):
    pass


class WithTools(Fair):
    @classmethod
    def toolsets(cls, config: Any) -> list[vf.Toolset]:
        return [Tools(vf.ToolsetConfig())]


class RemoteTools(Fair):
    @classmethod
    def toolsets(cls, config: Any) -> list[vf.Toolset]:
        return [Tools(vf.ToolsetConfig(runtime=vf.DockerConfig()))]


@pytest.mark.parametrize(
    ("source", "arguments", "message"),
    [
        (lambda: taskset_of(task(Boxed)), {}, "Boxed needs a container"),
        (lambda: taskset_of(task(image="python:3.12")), {}, "requires image"),
        (lambda: taskset_of(task(), task(network_block=["*"])), {}, "network policy"),
        (lambda: taskset_of(task(agent_user="me")), {}, "agent_user"),
        (lambda: taskset_of(task(Rewriter)), {}, "rewrites what is said .censor"),
        (lambda: taskset_of(task(Unrewarded)), {}, "no reward"),
        (lambda: taskset_of(task(WithTools)), {}, "Tools is started as `python -m"),
        (lambda: taskset_of(task(RemoteTools)), {}, "docker container"),
        (lambda: taskset_of(), {}, "no tasks"),
        (lambda: taskset_of(task(), infinite=True), {}, "has no end: pass limit"),
        (lambda: taskset_of(task()), {"limit": 0}, "limit must be a whole number"),
        (lambda: taskset_of(task()), {"metadata": ["topic"]}, "no field 'topic'.*'answer'"),
        (lambda: taskset_of(task()), {"n": 3}, "no argument 'n'"),
        (lambda: taskset_of(task()), {"harness": "bash"}, "run code on this machine"),
        (lambda: taskset_of(task()), {"harness": "codex"}, "in a container"),
        (lambda: taskset_of(task()), {"harness": "nobodys"}, "harness 'nobodys' not found"),
        (lambda: "vf-sums", {"m": 3}, "taskset.m: Extra inputs.*It has .*n"),
        (lambda: "no-such", {}, "taskset 'no-such' not found"),
        (lambda: "textarena", {"game": "Wordle-v0"}, "global random numbers"),
        (lambda: env_of("user-sim"), {}, "several agents .assistant, user"),
        (lambda: env_of("best-of-n"), {}, "compares several attempts"),
        (lambda: object(), {}, "no classic environments any more"),
    ],
)
def test_what_cannot_be_an_eval_is_refused_before_it_runs(
    source: Callable[[], Any], arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        from_verifiers(source(), **arguments)


def env_of(env_id: str) -> vf.Env:
    settings = {"id": env_id, "taskset": {"id": "vf-sums"}}
    return vf.load_environment(vf.resolve_env_config(settings))


def test_a_task_is_found_by_its_id(tmp_path: Path) -> None:
    definition = load_task("verifiers:vf-sums", n=2, metadata=["answer"])
    first, second = definition.samples
    assert (first.ground_truth, first.metadata) == ("0", {"answer": "0", "idx": 0})
    assert first.id.startswith("task-")
    again = load_task("verifiers:vf-sums", n=4)
    assert [sample.id for sample in again.samples][:2] == [first.id, second.id]
    assert len(list(load_task("verifiers:vf-sums", limit=1).samples)) == 1
    listed = {each.name: each.refused for each in list_tasks("verifiers")}
    assert listed["verifiers:nemo-gym"] is None
    assert "containers" in str(listed["verifiers:harbor"])
    assert "openenv" in str(listed["verifiers:openenv"])


# --- Resuming, training -------------------------------------------------------------------------


def test_a_stopped_run_is_resumed_to_the_same_report_and_not_with_other_rewards(
    tmp_path: Path,
) -> None:
    calls = []

    def stops(messages: Sequence[Message]) -> Message:
        calls.append(messages)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return policy(messages)

    settings: dict[str, Any] = {"experiment_name": "sums", "max_concurrent": 1}
    with pytest.raises(KeyboardInterrupt):
        run(from_verifiers("vf-sums", n=5), stops, tmp_path, **settings)
    resumed = run(from_verifiers("vf-sums", n=5), stops, tmp_path, resume=True, **settings)
    assert len(calls) == 2 + 1 + 3
    whole = run(from_verifiers("vf-sums", n=5), policy, tmp_path / "whole", **settings)
    assert resumed.summary == whole.summary
    assert [r.score for r in resumed.results] == [r.score for r in whole.results]
    plugged = {"rewards": {"correct": {"weight": 0.5}}}
    with pytest.raises(ResumeMismatch, match="environment_factory"):
        run(from_verifiers("vf-sums", n=5, task=plugged), stops, tmp_path, resume=True, **settings)


def test_a_curve_in_training_leaves_the_weights_as_they_are(tmp_path: Path) -> None:
    import torch

    from heldout.testing import assert_neutral
    from heldout.training import PeriodicEval, live_model
    from tests.tiny_model import WORDS, tiny_model

    tasks = [task(prompt=f"{word} {word}", answer="w1", id=word) for word in WORDS[:6]]
    points: list[Any] = []

    async def asks_twice(post: Any) -> None:
        first = (await post({"messages": said("w3")})).json()
        reply = first["choices"][0]["message"]["content"]
        await post({"messages": said("w3", reply, "w4")})

    def train(evaluating: bool) -> Any:
        torch.manual_seed(3)
        random.seed(3)
        model, tokenizer = tiny_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        held_out = from_verifiers(taskset_of(*tasks), harness=InProcess(asks_twice))
        runner = live_model(tokenizer, held_out, max_new=3, rows=4)
        folder = tmp_path / f"{evaluating}-{len(points)}"
        settings: dict[str, Any] = {"every_steps": 1, "model_getter": lambda: model}
        evals = PeriodicEval(held_out, runner, run_dir=folder, **settings)
        for step in range(1, 3):
            ids = torch.randint(8, 60, (2, 5)) + random.randint(0, 1)
            model(ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if evaluating:
                points.append(evals.maybe_run(step))
        return model

    assert_neutral(train)
    assert [(p.summary["n"], p.summary["n_errors"]) for p in points] == [(6, 0)] * 2


def test_training_rollouts_have_their_tokens_and_rewards() -> None:
    from heldout.rollouts.generating import rollout_batch
    from tests.toy import engine, parse, plain, render

    definition = from_verifiers("vf-guess", numbers=(3, 5))

    def number(text: str, turns: int) -> str:
        return str(turns + 1)

    rollouts = rollout_batch(
        definition, None, render, engine(number), 3, 30, decode=plain, parse=parse
    )
    assert [rollout.error for rollout in rollouts] == [None, None]
    assert [rollout.reward for rollout in rollouts] == [0.3, 0.0]
    assert all(len(rollout.completion_ids) == len(rollout.env_mask) for rollout in rollouts)


# --- The other way round ------------------------------------------------------------------------


def adder() -> ToolEnvironment:
    def add(a: int, b: int) -> str:
        """Add two numbers."""
        return str(a + b)

    return ToolEnvironment([add])


def use_tool(messages: Sequence[Message]) -> Message:
    if messages[-1].role == "tool":
        return Message("assistant", messages[-1].text)
    return Message("assistant", "", tool_calls=(ToolCall("call00001", "add", '{"a": 1, "b": 2}'),))


def score_sum(trajectory: Any, sample: Sample) -> Score:
    if sample.id == "bad":
        raise LookupError("no target")
    right = trajectory.answer == sample.ground_truth
    tools = sum(message.role == "tool" for message in trajectory.messages)
    return Score((Metric("right", right, weight=1.0), Metric("tools", tools)))


SAMPLES = [Sample("3", {"question": "1 + 2?"}, "3"), Sample("bad", {"question": "1 + 2?"}, "4")]


@pytest.mark.parametrize("with_tools", [False, True])
def test_an_eval_of_heldout_has_the_same_scores_in_verifiers(
    with_tools: bool, tmp_path: Path
) -> None:
    parts: dict[str, Any] = {"environment_factory": lambda sample: adder()} if with_tools else {}
    respond = use_tool if with_tools else policy
    taskset_class, harness_class = to_verifiers(SAMPLES, score_sum, **parts)
    taskset = taskset_class(vf.TasksetConfig())

    def wire(messages: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return to_chat_api(respond([message_of(message, "request") for message in messages]))

    async def run_there() -> list[vf.Trace]:
        async with model_server(wire) as client:
            settings = {"model": "m", "client": client, "runtime": vf.SubprocessConfig()}
            agent = vf.Agent(vf.AgentConfig(harness={"id": "null"}, **settings))
            agent.harness = harness_class(vf.HarnessConfig(id="heldout"))
            return [await agent.run(each) for each in taskset]

    good, bad = asyncio.run(run_there())
    here = run(EvalDefinition(SAMPLES, score_sum, None, **parts), respond, tmp_path).results[0]
    theirs = [message_of(message_to_wire(message), "trace") for message in good.messages]
    assert [*map(written, theirs)] == [*map(written, here.trajectory.messages)]
    assert good.reward == here.score.reward == float(with_tools)
    assert good.metrics == {metric.name: metric.value for metric in here.score.metrics}
    assert not bad.ok
    assert "no target" in bad.last_error.message
    again = from_verifiers(taskset)  # with null: a harness of another's
    if with_tools:
        with pytest.raises(SystemicFailure, match="its own harness"):
            run(again, policy, tmp_path / "null")
    else:
        assert run(again, policy, tmp_path / "null").results[0].score["right"] == 0.0


def test_the_code_blocks_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "__docs__"}
    for kind, code in blocks("docs/verifiers.md"):
        if kind == "python":
            exec(compile(code, "docs/verifiers.md", "exec"), namespace)
