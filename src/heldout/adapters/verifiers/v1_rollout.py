"""Rollouts of verifiers v1 whose model calls heldout's policy answers.

A harness calls a model through verifiers' interception server. In there, in place of a client to a
provider, is `PolicyClient`: it finds the item by the rollout's trace and asks on its conversation
(`environments/driven.py`). All else (setup, tools, stops, scoring) is the package's own code.

The package counts some failures as 0. `read_trace` is where they become errors.
"""

from __future__ import annotations

import asyncio
import contextvars
import copy
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import verifiers.v1 as vf
from verifiers.v1.clients.client import RelayReply
from verifiers.v1.interception import InterceptionServer
from verifiers.v1.mcp.launch import serve_shared

from heldout._core.aio import SharedUserCode, in_user_code
from heldout._core.chat.messages import message_of, to_chat_api
from heldout._core.current_attempt import add_other_usage
from heldout._finish_reasons import LENGTH, STOP, TOOL_CALLS
from heldout.adapters.verifiers.scores import FAILED_STAGES, finite, number_names
from heldout.environments.driven import DrivenConversation, TurnsUsedUp
from heldout.errors import EnvironmentFailed, InvalidInput
from heldout.types import Completion, Message, ToolSpec, Usage

MODEL = "heldout"
CLIENT = vf.EvalClientConfig(base_url="http://127.0.0.1:9/v1", api_key_var="HELDOUT_HAS_NO_KEY")
"""Stands for `PolicyClient`; nothing is sent to this address but a question for model names, which
gets no answer."""
MAX_TURNS = "max_turns"
"""The stop condition of a rollout that heldout's limit ends, as of one that verifiers' does."""
HONOURED = {"model", "messages", "tools", "stream", "stream_options", "n"}
REFUSED = {"stop", "response_format", "logit_bias", "functions", "prediction", "modalities"}
"""Settings that a request may not have: they would change what the model answers."""

OnTrace = Callable[[Any], None]
RunTask = Callable[[Any, OnTrace], Awaitable[Any]]
"""Runs a task, and returns its trace."""


@dataclass(slots=True)
class RunningRollout:
    """One rollout that may ask the policy."""

    conversation: DrivenConversation
    trace: Any
    ignored: set[str] = field(default_factory=set)
    """Sampling settings that its harness asked for; heldout's own are used."""


class PolicyClient(vf.Client):  # type: ignore[misc]
    """Answers model calls with the turns of heldout's policy."""

    def __init__(self) -> None:
        self.rollouts: dict[str, RunningRollout] = {}
        """By the id of the trace."""

    async def get_response(
        self,
        dialect: Any,
        body: dict[str, Any],
        sampling: Any,
        session_id: str | None = None,
        turn: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Have the policy make the next turn."""
        raw = await self._complete(dialect, body, session_id)
        response = dialect.parse_response(dialect.validate_response(raw))
        response.raw = raw
        return response

    async def relay(
        self,
        dialect: Any,
        body: dict[str, Any],
        session_id: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Have the policy make the next turn, for a harness that streams: in one piece."""
        raw = await self._complete(dialect, body, session_id)

        async def chunks() -> AsyncIterator[bytes]:
            for event in dialect.stream_events(raw):
                yield event

        async def close() -> None:
            pass

        return RelayReply("text/event-stream", chunks(), close)

    async def _complete(
        self, dialect: Any, body: dict[str, Any], session_id: str | None
    ) -> dict[str, Any]:
        rollout = self.rollouts.get(session_id or "")
        if rollout is None:
            raise vf.ProviderError("no item of heldout's runs under this trace", status_code=400)
        try:
            messages, tools = self._read_request(dialect, body, rollout)
            completion = await rollout.conversation.ask(messages, tools)
        except TurnsUsedUp as limit:
            rollout.trace.stop(MAX_TURNS)
            raise vf.ProviderError(str(limit), status_code=400) from None
        except (EnvironmentFailed, InvalidInput) as problem:
            # The item's error, whatever the harness makes of a refused call.
            rollout.conversation.fail(problem)
            raise vf.ProviderError(str(problem), status_code=400) from problem
        return _to_chat_completion(completion, rollout.trace)

    @staticmethod
    def _read_request(
        dialect: Any, body: dict[str, Any], rollout: RunningRollout
    ) -> tuple[list[Message], list[ToolSpec]]:
        if dialect.upstream_path != "/chat/completions":
            raise EnvironmentFailed(
                f"its harness calls {dialect.upstream_path}; heldout answers chat completions alone"
            )
        settings = {key for key, value in body.items() if value is not None} - HONOURED
        if body.get("tool_choice", "auto") != "auto":
            settings.add("tool_choice")
        elif "tool_choice" in settings:
            settings.remove("tool_choice")
        if refused := sorted(settings & {*REFUSED, "tool_choice"}):
            raise EnvironmentFailed(
                f"its harness asks for {', '.join(refused)}, which a policy of heldout's does not "
                "take: sampling is set by the eval"
            )
        rollout.ignored |= settings
        messages = [message_of(m, "a message of the harness") for m in body.get("messages") or ()]
        return messages, [_read_tool(tool) for tool in body.get("tools") or ()]


def _read_tool(tool: Any) -> ToolSpec:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise EnvironmentFailed(f"its harness offers a tool that is no function: {tool!r:.200}")
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    return ToolSpec(function["name"], function.get("description") or "", parameters)


def _to_chat_completion(completion: Completion, trace: Any) -> dict[str, Any]:
    """Make the reply of a chat API of a model turn."""
    turn = completion.message
    message = to_chat_api(turn)
    if turn.tool_calls and not turn.content:
        message["content"] = None  # as chat APIs have it
    elif not isinstance(turn.content, str):
        message["content"] = turn.text
    if turn.reasoning:
        message["reasoning_content"] = turn.reasoning
    finish = completion.finish_reason
    if finish not in (STOP, LENGTH, TOOL_CALLS):
        finish = TOOL_CALLS if turn.tool_calls else STOP
    raw: dict[str, Any] = {
        "id": f"heldout-{trace.id}-{trace.num_turns}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": MODEL,
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
    }
    if (usage := completion.usage) is not None:
        raw["usage"] = {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }
    return raw


# --- What the rollouts of an event loop share ---------------------------------------------------


Servers = tuple[PolicyClient, RunTask]
StartedServers = WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Future[Servers]]


class TaskRunner(Protocol):
    """Runs tasks as the package does."""

    def serving(self, client: PolicyClient) -> AbstractAsyncContextManager[RunTask]:
        """Start the interception server and shared tool servers, for one event loop."""
        ...


@dataclass(slots=True)
class AgentRunner:
    """Runs the tasks of a taskset with one agent."""

    config: Any
    """A `vf.AgentConfig`."""
    harness: Any
    shared: Sequence[Any]
    """Tool servers of the taskset."""

    @asynccontextmanager
    async def serving(self, client: PolicyClient) -> AsyncIterator[RunTask]:
        """Start the servers."""
        async with AsyncExitStack() as stack:
            shared: dict[str, Any] = {}
            if self.shared:
                shared = await stack.enter_async_context(serve_shared(list(self.shared)))
            secrets = [server.state_secret for server in shared.values() if server.state_secret]
            server = InterceptionServer(state_service_secrets=secrets)
            await stack.enter_async_context(server)
            server.clients[CLIENT.model_dump_json()] = client
            agent = vf.Agent(self.config, interception=server)
            _use_harness(agent, self.harness)

            async def run(task: Any, on_trace: OnTrace) -> Any:
                return await agent.run(task, tools=shared, on_trace=on_trace)

            yield run


@dataclass(slots=True)
class EnvRunner:
    """Runs the episodes of an environment with one role."""

    env: Any
    role: str
    harness: Any

    @asynccontextmanager
    async def serving(self, client: PolicyClient) -> AsyncIterator[RunTask]:
        """Start the servers."""
        env = copy.copy(self.env)  # its servers are attributes, and belong to one event loop

        async def setup(agents: Any) -> None:
            await self.env.setup(agents)
            _use_harness(getattr(agents, self.role), self.harness)

        env.setup = setup
        ctx = vf.ModelContext(model=MODEL, client=CLIENT)
        async with env.serving():
            env._interception.clients[CLIENT.model_dump_json()] = client

            async def run(task: Any, on_trace: OnTrace) -> Any:
                episode = await env.run_episode(task, ctx, on_trace=on_trace)
                if episode.errors:
                    raise EnvironmentFailed(_describe(episode.errors[-1]))
                return episode.traces[-1]

            yield run


def _use_harness(agent: Any, harness: Any) -> None:
    """Give an agent its harness: the package makes one by its id, which not all have."""
    agent.harness = harness
    agent.config = agent.config.model_copy(update={"harness": harness.config})


class LoopServers:
    """The servers of each event loop that rollouts run in; in training that is one per point."""

    def __init__(self, runner: TaskRunner) -> None:
        self._runner = runner
        self._started: StartedServers = WeakKeyDictionary()

    def __reduce__(self) -> Any:
        # For workers on other machines, which start their own.
        return LoopServers, (self._runner,)

    async def get(self) -> Servers:
        """Return those of this loop, started by its first rollout.

        Raises:
            EnvironmentFailed: They could not be started.
        """
        loop = asyncio.get_running_loop()
        if loop not in self._started:
            self._started[loop] = loop.create_future()
            # Not in the context of the rollout that happens to be the first. The servers call code
            # of tasks (a stop, say), whose exit must not end the event loop.
            context = contextvars.Context()
            context.run(in_user_code.set, SharedUserCode())
            keeping = _keep_servers(self._runner, self._started)
            keeper = loop.create_task(keeping, context=context)
            _keepers.add(keeper)
            keeper.add_done_callback(_keepers.discard)
            finalizer = weakref.finalize(self, _end, loop, keeper)
            finalizer.atexit = False
            keeper.add_done_callback(lambda keeper: finalizer.detach())
        try:
            return await asyncio.shield(self._started[loop])
        except Exception as problem:
            raise EnvironmentFailed(
                f"verifiers' servers could not be started: {type(problem).__name__}: {problem}"
            ) from problem


_keepers: set[asyncio.Task[None]] = set()
"""Event loops hold no tasks."""


async def _keep_servers(runner: TaskRunner, started: StartedServers) -> None:
    # Nothing tells an environment factory which item is the last one. But an event loop that ends
    # cancels its tasks, and waits for them: then the servers stop.
    loop, client = asyncio.get_running_loop(), PolicyClient()
    try:
        async with runner.serving(client) as run:
            started[loop].set_result((client, run))
            await loop.create_future()
    except Exception as problem:
        if started[loop].done():
            raise
        started[loop].set_exception(problem)
    except asyncio.CancelledError:
        started.pop(loop).cancel()  # the future would keep its loop
        raise


def _end(loop: asyncio.AbstractEventLoop, keeper: asyncio.Task[None]) -> None:
    if not loop.is_closed() and not keeper.done():
        loop.call_soon_threadsafe(keeper.cancel)


# --- One rollout --------------------------------------------------------------------------------


async def run_task(
    conversation: DrivenConversation, *, task: Any, servers: LoopServers
) -> dict[str, Any]:
    """Run a task to its end, and return what its rewards and metrics say.

    Args:
        conversation: Where its model calls are answered.
        task: The `vf.Task`.
        servers: The servers of this event loop.

    Raises:
        EnvironmentFailed: It failed, or has no score.
    """
    client, run = await servers.get()
    rollouts: list[RunningRollout] = []

    def on_trace(trace: Any) -> None:
        if rollouts:
            conversation.fail(
                EnvironmentFailed(
                    "its environment runs the agent more than once in an episode; heldout repeats "
                    "a sample itself (`repeats`)"
                )
            )
            return
        rollouts.append(RunningRollout(conversation, trace))
        client.rollouts[trace.id] = rollouts[0]

    try:
        trace = await run(task, on_trace)
    finally:
        for rollout in rollouts:
            client.rollouts.pop(rollout.trace.id, None)
    for usage in trace.extra_usage:
        add_other_usage("judge", "judge", Usage(usage.input_tokens, usage.completion_tokens))
    return {**read_trace(trace), "ignored_settings": sorted(rollouts[0].ignored)}


def read_trace(trace: Any) -> dict[str, Any]:
    """Return what rewards and metrics say of a finished rollout.

    Raises:
        EnvironmentFailed: It failed, timed out where the model is not to blame, branched, or lacks
            a score that it should have.
    """
    if not trace.ok or trace.stop_condition in FAILED_STAGES:
        ended = f"it ended by {trace.stop_condition}"
        raise EnvironmentFailed(_describe(trace.last_error) if trace.errors else ended)
    if trace.num_branches > 1:
        raise EnvironmentFailed(
            f"its conversation has {trace.num_branches} branches; a trajectory is one conversation"
        )
    missing = [name for name, reward in trace.rewards.items() if reward is None]
    missing += [name for name, value in trace.metrics.items() if value is None]
    if missing:
        raise EnvironmentFailed(f"no value was recorded for {', '.join(missing)}")
    if not trace.rewards:
        raise EnvironmentFailed("no reward was recorded")
    if trace.metrics.get("mask_sample"):
        raise EnvironmentFailed("its environment says not to count it (mask_sample)")
    rewards = {name: reward.score for name, reward in trace.rewards.items()}
    found = [*rewards.items(), *trace.metrics.items()]
    weights = [reward.weight for reward in trace.rewards.values()] + [None] * len(trace.metrics)
    names = number_names([name for name, _ in found])
    return {
        "reward": finite("reward", trace.reward),
        "metrics": {
            name: finite(theirs, value) for name, (theirs, value) in zip(names, found, strict=True)
        },
        "weights": dict(zip(names, weights, strict=True)),
        "stop_condition": trace.stop_condition,
        "is_truncated": trace.is_truncated,
    }


def _describe(error: Any) -> str:
    return f"{error.type}: {error.message}"[:2000]
