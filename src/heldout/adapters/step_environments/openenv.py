"""OpenEnv environments as heldout evals: a server by its address, or sessions with tools.

    from_openenv("http://127.0.0.1:8000", size=50)
    from_sessions(factory, tasks)

An episode is a WebSocket session of its own on the server. The server's errors are told apart: an
action that is no valid one is the model's, and is answered with a message; anything else is an
error of the item, such as a server that has no room for another session.
"""

from __future__ import annotations

import functools
import json
import math
import re
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import sniffio

from heldout._core.aio import Threads
from heldout._core.chat.messages import message_of, to_chat_api
from heldout._core.chat.tool_calls import INVALID, parse_json
from heldout._evals.rollout import EvalDefinition
from heldout.adapters.seam import TaskAdapter
from heldout.adapters.step_environments import GivenSamples, StepEval, StepSettings, seeds
from heldout.environment import Reply
from heldout.environments.episodes import ActionRefused
from heldout.environments.stepped import RewardOf, text_action
from heldout.errors import UNREADABLE, EnvironmentFailed, InvalidInput, ScoringFailed
from heldout.store.fingerprint import describe_callable
from heldout.types import Message, Metric, Sample, Score, ToolSpec, Trajectory

LARGEST_SCHEMA = 4 * 2**20
_CODE = re.compile(r"\(code: (\w+)\)\s*$")
_OWN_FIELDS = {"reward", "done", "metadata"}


def servers() -> dict[str, str | None]:
    """Return what can be listed of servers, which is how to name one."""
    ADAPTER.check()
    return {"URL": "name the address of a server: heldout run openenv:http://127.0.0.1:8000"}


def from_openenv(
    url: str,
    samples: Iterable[Sample] | None = None,
    *,
    size: int = 50,
    seed: int = 0,
    reward: RewardOf = "sum",
    action: Callable[[Message], Mapping[str, Any]] | None = None,
    observe: Callable[[Any], Any] | None = None,
    system_prompt: str | None = None,
    max_turns: int | None = None,
) -> EvalDefinition:
    """Make an eval of a running OpenEnv server.

    Args:
        url: Its address, such as "http://127.0.0.1:8000".
        samples: The samples, whose inputs are the arguments of `reset`: `seed`, or `split` and
            `index`. Without them there is one for each seed.
        size: Number of seeds.
        seed: The first seed.
        reward: "sum" of the rewards of all steps, or the "last" one.
        action: Makes an action, as a dict, of a model turn. Without it the turn's text fills the
            action's only required field, or its only one.
        observe: Makes a text, or messages, of an observation. Without it that is the observation's
            only text, or all of it as JSON.
        system_prompt: A system message before the first observation.
        max_turns: The eval's own limit of model turns.

    Raises:
        InvalidInput: Nothing answers at the address, or the action needs a function.
    """
    ADAPTER.check()
    # `heldout run` takes an eval as a path, which loses a slash.
    url = re.sub(r"^(https?):/+", r"\1://", url).rstrip("/")
    schema = _read_schema(url)
    act = action or functools.partial(_fill, field=_only_field(schema))
    if samples is None:
        samples = [
            Sample(sample.id, {"seed": sample.input["seed"]})
            for sample in seeds(str(schema.get("title") or "openenv"), range(seed, seed + size))
        ]
    settings = StepSettings(
        act, observe or observed_text, system_prompt, passes_input=True, is_elsewhere=True
    )
    make_env = functools.partial(ServerSession, url=url)
    made = StepEval(make_env, samples, settings, reward, (), max_turns, "openenv")
    return made.definition()


def observed_text(observation: Any) -> Any:
    """Return an observation's only text; all of it as JSON where there are several or none."""
    if not isinstance(observation, Mapping):
        return observation
    told = {k: v for k, v in observation.items() if k not in _OWN_FIELDS and v is not None}
    texts = [value for value in told.values() if isinstance(value, str)]
    return texts[0] if len(told) == len(texts) == 1 else json.dumps(told, sort_keys=True)


class ServerSession:
    """A session on a server, as an environment with reset and step."""

    def __init__(self, sample: Sample, *, url: str) -> None:
        from openenv.core import GenericEnvClient

        if sniffio.current_async_library() != "asyncio":
            raise EnvironmentFailed("OpenEnv's client runs on asyncio alone")
        self._client = GenericEnvClient(base_url=url)

    async def reset(self, **given: Any) -> Any:
        """Begin an episode."""
        try:
            return await self._client.reset(**given)
        except RuntimeError as problem:
            if _code_of(problem) == "CAPACITY_REACHED":
                raise EnvironmentFailed(
                    "the server has no room for another session; it takes one at a time unless it "
                    f"was started for more, so set max_concurrent=1: {problem}"
                ) from problem
            raise

    async def step(self, action: Mapping[str, Any]) -> Any:
        """Take an action."""
        try:
            return await self._client.step(dict(action))
        except RuntimeError as problem:
            if _code_of(problem) == "VALIDATION_ERROR":
                raise ActionRefused(str(problem)) from problem
            raise

    async def close(self) -> None:
        """Disconnect."""
        await self._client.close()


def _code_of(problem: RuntimeError) -> str | None:
    """Read the code of a server's error, which the client has as the end of its text alone."""
    code = _CODE.search(str(problem))
    return code and code[1]


def _fill(turn: Message, *, field: str) -> dict[str, Any]:
    return {field: text_action(turn)}


def _read_schema(url: str) -> dict[str, Any]:
    """Ask a server for the schema of its actions."""
    if not url.startswith(("http://", "https://")):
        raise InvalidInput(f"a server's address must be like http://127.0.0.1:8000, got {url!r}")
    try:
        with urllib.request.urlopen(f"{url}/schema", timeout=20) as response:
            schema = json.loads(response.read(LARGEST_SCHEMA))["action"]
        if not isinstance(schema, dict):
            raise TypeError("the schema of actions is no object")
    except (OSError, LookupError, TypeError, ValueError, *UNREADABLE) as problem:
        raise InvalidInput(
            f"there is no OpenEnv server at {url}, or it does not say what its actions are "
            f"(GET {url}/schema): {problem}"
        ) from problem
    return schema


def _only_field(schema: Mapping[str, Any]) -> str:
    """Find the field of an action that a text can fill."""
    fields: Mapping[str, Any] = schema.get("properties") or {}
    own = [name for name in fields if name != "metadata"]
    required = [name for name in schema.get("required") or () if name in own]
    candidates = required or own
    if len(candidates) == 1 and fields[candidates[0]].get("type") == "string":
        return candidates[0]
    raise InvalidInput(
        f"an action of this server has the fields {own}, which a text alone does not fill: pass "
        "action, a function of the model turn that returns a dict"
    )


# --- Sessions with tools ------------------------------------------------------------------------


def from_sessions(
    factory: Any,
    tasks: Iterable[Sample],
    *,
    system_prompt: str | None = None,
    max_turns: int | None = None,
) -> EvalDefinition:
    """Make an eval of OpenEnv's resource sessions, whose tools the policy calls.

    Args:
        factory: A `ResourceSessionFactory`.
        tasks: The samples: `task` and `seed` in an input go to `factory.create`; without `task`,
            the whole input is the task.
        system_prompt: A system message before the session's own messages.
        max_turns: The eval's own limit of model turns.

    Returns:
        The eval. Its reward is what `verify` says, whose numbers are metrics of weight 0.
    """
    ADAPTER.check()
    if not callable(getattr(factory, "create", None)):
        raise InvalidInput(
            f"from_sessions takes a ResourceSessionFactory with create(task, seed, episode_id), "
            f"got {factory!r:.200}"
        )
    return SessionEval(factory, tasks, system_prompt, max_turns).definition()


class SessionEval(GivenSamples):
    """An eval of resource sessions, which are environments with tools of their own."""

    name, package = "from_sessions", "openenv"

    def __init__(
        self,
        factory: Any,
        tasks: Iterable[Sample],
        system_prompt: str | None,
        max_turns: int | None,
    ) -> None:
        super().__init__(tasks)
        self._factory, self._system_prompt, self.max_turns = factory, system_prompt, max_turns

    def environment(self, sample: Sample) -> SessionEnvironment:
        """Make an environment whose session is not created yet."""
        return SessionEnvironment(self._factory, sample, self._system_prompt)

    def score(self, trajectory: Trajectory, sample: Sample) -> Score:
        """Score a session by what its `verify` said.

        Raises:
            ScoringFailed: It gave no reward, which is not a reward of 0.
        """
        outcome = trajectory.outcome or {}
        if outcome.get("reward") is None:
            raise ScoringFailed("verify gave no reward, which is not a reward of 0")
        metrics = [Metric("reward", outcome["reward"], 1.0)]
        return Score((*metrics, *(Metric(name, n) for name, n in outcome["metrics"].items())))

    def identity(self) -> dict[str, Any]:
        """Describe the factory."""
        return {
            "factory": describe_callable(self._factory.create),
            "system_prompt": self._system_prompt,
        }


class SessionEnvironment:
    """A resource session that replies to a policy. Its methods block, so they run in a thread."""

    def __init__(self, factory: Any, sample: Sample, system_prompt: str | None) -> None:
        self._factory, self._sample, self._system_prompt = factory, sample, system_prompt
        self._threads = Threads()
        self._session: Any = None
        self._conversation: Sequence[Message] = ()
        self.tools: Sequence[ToolSpec] = ()

    async def opening(self) -> Sequence[Message]:
        """Create the session, and return its messages."""
        given = self._sample.input
        task = given.get("task", given)
        create = functools.partial(self._factory.create, task, given.get("seed"), self._sample.id)
        self._session = await self._threads.run(create)
        tools = await self._threads.run(self._session.list_tools)
        if not tools:
            # OpenEnv's MCP client returns an empty list where the request has failed.
            raise EnvironmentFailed(
                "the session offers no tools, as it does where asking for them failed"
            )
        self.tools = tuple(
            ToolSpec(tool.name, tool.description or "", dict(tool.input_schema)) for tool in tools
        )
        messages = await self._threads.run(self._session.initial_messages)
        prompt = self._system_prompt
        system = [] if prompt is None else [Message("system", prompt)]
        opening = [*system, *(message_of(dict(m), "initial_messages") for m in messages)]
        self._conversation = opening
        return opening

    async def reply(self, messages: Sequence[Message]) -> Reply:
        """Make the calls of the model's turn; a turn without one ends the session."""
        self._conversation = messages
        replies, done = [], False
        for call in messages[-1].tool_calls:
            if done:
                break
            text, done = await self._call(call.name, call.arguments)
            replies.append(Message("tool", text, tool_call_id=call.id))
        self._conversation = [*messages, *replies]
        return Reply(tuple(replies), done)

    async def _call(self, name: str, arguments: str) -> tuple[str, bool]:
        if name not in {tool.name for tool in self.tools}:
            return f"Error: there is no tool {name!r:.100}", False
        parsed = parse_json(arguments)
        if parsed is INVALID or not isinstance(parsed, dict):
            return "Error: the arguments are not a JSON object", False
        result = await self._threads.run(self._session.call_tool, name, parsed)
        if result.error is not None:
            return f"Error: {result.error}", bool(result.done)
        data = result.data
        text = data if isinstance(data, str) else json.dumps(data, sort_keys=True, default=str)
        return text, bool(result.done)

    async def outcome(self) -> dict[str, Any]:
        """Have the session verified."""
        transcript = [to_chat_api(message) for message in self._conversation]
        verified = await self._threads.run(self._session.verify, transcript)
        reward = verified.env_reward
        metrics = {
            str(name): float(value)
            for name, value in (verified.metrics or {}).items()
            if isinstance(value, bool | int | float) and math.isfinite(value) and name != "reward"
        }
        return {"reward": None if reward is None else float(reward), "metrics": metrics}

    async def close(self) -> None:
        """Close the session."""
        try:
            if self._session is not None:
                await self._threads.run(self._session.close)
        finally:
            self._threads.close()


ADAPTER = TaskAdapter(
    "openenv",
    "openenv",
    ">=0.10,<0.11",
    from_openenv,
    servers,
    why="its protocol changes from version to version",
)

__all__ = ["ADAPTER", "from_openenv", "from_sessions", "observed_text", "servers"]
