"""The policy behind a loopback HTTP server, for agents in other processes and languages.

    serve_policy(samples, ["node", "agent.js"])     # an EvalDefinition

An agent is a command or an async function, started once per attempt. It finds an OpenAI-compatible
server at OPENAI_BASE_URL, with a key (OPENAI_API_KEY) that belongs to its attempt and ends with it.
Requests go to the conversation of their attempt (driven.py), so the policy is called by heldout's
own loop: limits, journal, batches and a model in the middle of its training work as elsewhere.

An agent may swallow whatever it is told. So anything that would turn a failure into a score is the
attempt's error: a request that was refused, a turn that the agent did not wait for, an exit code
other than 0.

There is one server per event loop, while attempts are open in it. It binds to 127.0.0.1, and
answers nobody without a key.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import logging
import os
import secrets
import shutil
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from aiohttp import web

from heldout._core.chat.messages import message_of, to_chat_api
from heldout._core.config import NO_TURN_LIMIT
from heldout._core.secrets import REDACTED, is_secret_name, redact_values, remove_secret
from heldout._evals.rollout import EvalDefinition, ScoreFn
from heldout._finish_reasons import STOP, TOOL_CALLS
from heldout.environments.driven import Driven, DrivenConversation, TurnsUsedUp
from heldout.errors import UNREADABLE, EnvironmentFailed, InvalidInput, ScoringFailed
from heldout.store.fingerprint import describe_callable, set_version
from heldout.types import Completion, Message, Metric, Sample, Score, ToolSpec, Trajectory

log = logging.getLogger("heldout")

LARGEST_REQUEST = 32 * 2**20
"""Bytes of a request's body."""
LARGEST_OUTPUT = 2**20
"""Bytes of an agent's output, and of its errors, that are kept: the last ones."""
END_SECONDS = 2.0
"""How long an agent's processes have between SIGTERM and SIGKILL."""
MOST_RECORDED = 100
"""Names of fields that are recorded, since an agent may make up any."""
LARGEST_HASHED = 4 * 2**20
"""Bytes of a file named in a command up to which its content is part of the eval's identity."""

HONOURED = frozenset({"model", "messages", "tools", "stream", "stream_options"})
WITHOUT_EFFECT = frozenset(
    {
        *("user", "metadata", "store", "service_tier", "safety_identifier"),
        *("prompt_cache_key", "prompt_cache_retention"),
    }
)
"""Fields that change no answer anywhere."""
RECORDED = frozenset(
    {
        *("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "max_completion_tokens"),
        *("presence_penalty", "frequency_penalty", "repetition_penalty"),
        *("reasoning_effort", "verbosity", "parallel_tool_calls"),
    }
)
"""Fields about sampling, which is the eval's: they are recorded and not honoured."""
_ASKS_FOR_NOTHING: Mapping[str, Sequence[Any]] = {
    "n": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "stop": ("", []),
    "response_format": ({"type": "text"},),
    "tool_choice": ("auto",),
    "modalities": (["text"],),
    "logit_bias": ({},),
}
"""Values of other fields with which they ask for nothing. Else a request is refused."""


@dataclass(frozen=True, slots=True)
class PolicyAccess:
    """How an agent reaches the policy of its attempt."""

    base_url: str
    api_key: str = field(repr=False)
    model: str


AgentFn = Callable[[PolicyAccess, Sample], Awaitable[Mapping[str, Any] | None]]
"""Starts an agent anywhere, waits for its end, and returns what it reports."""


def reported_score(trajectory: Trajectory, sample: Sample) -> Score:
    """Score an attempt by what its agent reports: `score`; other numbers are metrics of weight 0.

    Raises:
        ScoringFailed: It has reported no score, which is not a score of 0.
    """
    report = (trajectory.outcome or {}).get("report")
    if not isinstance(report, dict) or not _is_number(report.get("score")):
        raise ScoringFailed(
            "the agent has reported no score: the last line of its output is JSON such as "
            f'{{"score": 1.0}}; it reported {report!r:.200}'
        )
    others = {name: value for name, value in report.items() if _is_number(value)}
    metrics = [Metric("score", float(others.pop("score")), 1.0)]
    return Score((*metrics, *(Metric(name, float(value)) for name, value in others.items())))


set_version(reported_score, 1)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def serve_policy(
    samples: Iterable[Sample],
    agent: Sequence[str] | AgentFn,
    score_fn: ScoreFn = reported_score,
    *,
    model: str = "policy",
    tolerate: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    max_turns: int | None = None,
) -> EvalDefinition:
    """Make an eval of an agent that asks a model over HTTP.

    Args:
        samples: The samples. A command reads one as JSON from its standard input: `id`, `input` and
            `metadata`, not the target.
        agent: A command, as a list; or an async function of a `PolicyAccess` and the sample, which
            starts the agent elsewhere, waits for its end and returns what it reports.
        score_fn: Scores the trajectory. Its `outcome` has the agent's `report` (of a command, the
            last line of its output if that is a JSON object), `exit_code`, `requests` and
            `not_honoured`.
        model: The model's name, for agents that have one built in. Other names are refused.
        tolerate: Fields of requests that would be refused, and are to be recorded only, such as
            "response_format".
        env: Further variables of a command's environment. Variables that hold secrets are not
            passed on by themselves: an agent that finds a key may ask another model.
        cwd: The folder that a command runs in.
        max_turns: The eval's own limit of model turns; without it, agents end by themselves.

    Raises:
        InvalidInput: The agent is no command that can be started, and no async function.
    """
    if isinstance(tolerate, str) or HONOURED & {*tolerate}:
        raise InvalidInput(f"tolerate must be a list of fields that are refused, got {tolerate!r}")
    if callable(agent):
        if not inspect.iscoroutinefunction(agent):
            raise InvalidInput("an agent is a command or an async function (access, sample)")
        factory = AgentEnvironments(agent, (), model, frozenset(tolerate))
    else:
        command = _check_command(agent, cwd)
        folder = None if cwd is None else str(cwd)
        factory = AgentEnvironments(
            None, command, model, frozenset(tolerate), dict(env or {}), folder
        )
    limit = NO_TURN_LIMIT if max_turns is None else max_turns
    return EvalDefinition(samples, score_fn, _no_messages, factory, limit)


def _no_messages(sample: Sample) -> list[Message]:
    return []


def _check_command(command: Any, cwd: str | Path | None) -> tuple[str, ...]:
    if isinstance(command, str) or not isinstance(command, Sequence) or not command:
        raise InvalidInput(
            f"a command must be a list such as ['node', 'agent.js'], got {command!r}"
        )
    for word in command:
        if not isinstance(word, str | Path):
            raise InvalidInput(f"a command must be a list of texts, got {word!r} in it")
    words = tuple(map(str, command))
    if cwd is not None and not Path(cwd).is_dir():
        raise InvalidInput(f"cwd must be a folder that exists, got {str(cwd)!r}")
    name = words[0] if "/" not in words[0] else str(Path(cwd or ".") / words[0])
    if shutil.which(name) is None:
        raise InvalidInput(f"there is no program {words[0]!r} to start the agent with")
    return words


@dataclass(frozen=True)
class AgentEnvironments:
    """Makes the environment of an attempt: an agent that is started, and a key for it."""

    function: AgentFn | None
    command: tuple[str, ...]
    model: str
    tolerated: frozenset[str]
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = None
    said: set[str] = field(default_factory=set, compare=False, repr=False)
    """Fields that a warning has been logged for."""

    def __call__(self, sample: Sample) -> Driven:
        """Make an environment, in which the agent is not started yet."""
        return Driven.of(lambda conversation: self._run(conversation, sample))

    def identity(self) -> dict[str, Any]:
        """Describe the agent: its command with the files that it names, or its function."""
        agent: Any = describe_callable(self.function)
        if self.function is None:
            folder = Path(self.cwd or ".")
            files = {word: _hash_file(folder / word) for word in self.command}
            agent = {
                "command": redact_values([*self.command]),
                "files": {word: digest for word, digest in files.items() if digest is not None},
                "env": sorted(self.env),  # not the values, which may be keys
            }
        return {
            "name": "serve_policy",
            "agent": agent,
            "model": self.model,
            "tolerated": sorted(self.tolerated),
        }

    async def _run(self, conversation: DrivenConversation, sample: Sample) -> dict[str, Any]:
        client = _AgentClient(conversation, self)
        async with _serving(client) as base_url:
            access = PolicyAccess(base_url, client.key, self.model)
            outcome: dict[str, Any] = {"report": None, "exit_code": None}
            try:
                if self.function is not None:
                    report = await self.function(access, sample)
                    outcome["report"] = report and _redact_report(report, client)
                else:
                    outcome.update(await self._run_command(access, sample, client))
            except (Exception, SystemExit) as problem:
                if not client.knows_limit:
                    raise
                # An agent that does not catch the error of the limit; what there is is scored.
                log.debug("an agent ended at the limit with %s", type(problem).__name__)
            client.check_heard()
            return {
                **outcome,
                "requests": client.requests,
                "not_honoured": dict(sorted(client.not_honoured.items())),
            }

    async def _run_command(
        self, access: PolicyAccess, sample: Sample, client: _AgentClient
    ) -> dict[str, Any]:
        given = {"id": sample.id, "input": sample.input, "metadata": sample.metadata}
        async with _process(self.command, self._environment(access), self.cwd) as process:
            code, output, errors = await _communicate(process, json.dumps(given).encode())
        output, errors = client.redact(output), client.redact(errors)
        if code != 0 and not client.knows_limit:
            end = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
            said = errors.decode("utf-8", "replace").strip()[-1000:] or "(nothing on stderr)"
            raise EnvironmentFailed(f"the agent {end}: {said}")
        return {"report": _last_object(output), "exit_code": code}

    def _environment(self, access: PolicyAccess) -> dict[str, str]:
        inherited = {name: v for name, v in os.environ.items() if not is_secret_name(name)}
        direct = "127.0.0.1,localhost"  # a proxy cannot reach this server
        proxied = {
            name: f"{inherited[name]},{direct}" if inherited.get(name) else direct
            for name in ("NO_PROXY", "no_proxy")
        }
        own = {
            "OPENAI_BASE_URL": access.base_url,
            "OPENAI_API_KEY": access.api_key,
            "OPENAI_MODEL": access.model,
        }
        return {**inherited, **proxied, **self.env, **own}


def _redact_report(report: Mapping[str, Any], client: _AgentClient) -> Any:
    return json.loads(client.redact(json.dumps(dict(report)).encode()))


def _hash_file(path: Path) -> str | None:
    with suppress(OSError, ValueError):
        if path.is_file() and path.stat().st_size <= LARGEST_HASHED:
            return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    return None


def _last_object(output: bytes) -> dict[str, Any] | None:
    """Read the last line of an output, if it is a JSON object."""
    lines = output.strip().splitlines()
    with suppress(*UNREADABLE):
        if lines:
            return msgspec.json.decode(lines[-1], type=dict[str, Any])
    return None


# --- Processes ----------------------------------------------------------------------------------


@asynccontextmanager
async def _process(
    command: Sequence[str], env: Mapping[str, str], cwd: str | None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start a process in a group of its own, and end the whole group afterwards."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, stdin=pipe, stdout=pipe, stderr=pipe, env=env, cwd=cwd, start_new_session=True
    )
    try:
        yield process
    finally:
        _signal_group(process.pid, signal.SIGTERM)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), END_SECONDS)
        _signal_group(process.pid, signal.SIGKILL)
        # A process that has left the group may hold the pipes open.
        process._transport.close()  # type: ignore[attr-defined]
        await process.wait()


def _signal_group(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


async def _communicate(
    process: asyncio.subprocess.Process, given: bytes
) -> tuple[int, bytes, bytes]:
    """Give a process its input, and wait for its end: its exit code, and the ends of its output.

    What it has started may hold the pipes open, so the end of the process is waited for, and not
    that of its output.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    tails = bytearray(), bytearray()
    pumps = [
        asyncio.create_task(_feed(process.stdin, given)),
        asyncio.create_task(_read_tail(process.stdout, tails[0])),
        asyncio.create_task(_read_tail(process.stderr, tails[1])),
    ]
    try:
        code = await process.wait()
        await asyncio.wait(pumps[1:], timeout=END_SECONDS)
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.wait(pumps)
    return code, bytes(tails[0]), bytes(tails[1])


async def _feed(stdin: asyncio.StreamWriter, given: bytes) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):  # an agent need not read it
        stdin.write(given)
        await stdin.drain()
        stdin.close()
        await stdin.wait_closed()


async def _read_tail(stream: asyncio.StreamReader, tail: bytearray) -> None:
    while part := await stream.read(2**16):
        tail += part
        if len(tail) > 2 * LARGEST_OUTPUT:
            del tail[:-LARGEST_OUTPUT]


# --- One attempt's requests ---------------------------------------------------------------------


class _RequestRefused(Exception):
    """A request that is not answered with a turn."""

    def __init__(self, status: int, code: str, message: str) -> None:
        self.status, self.code = status, code
        super().__init__(message)


class _FunctionTool(msgspec.Struct):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _OfferedTool(msgspec.Struct):
    type: Literal["function"]
    function: _FunctionTool


class _ChatRequest(msgspec.Struct):
    model: str
    messages: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)]
    tools: list[_OfferedTool] | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None


class _AgentClient:
    """The requests of one attempt's agent, which its key stands for."""

    def __init__(self, conversation: DrivenConversation, settings: AgentEnvironments) -> None:
        self.key = f"heldout-{secrets.token_urlsafe(24)}"
        self._conversation, self._settings = conversation, settings
        self.requests = 0
        self.not_honoured: dict[str, Any] = {}
        self.knows_limit = False
        """Whether the agent was told that there are no turns left."""
        self._asked: tuple[list[Message], list[ToolSpec]] | None = None
        self._turn: asyncio.Task[Completion] | None = None
        self._is_waiting = False
        """Whether a connection waits for the turn."""
        self._delivered = True
        """Whether the last turn, or the error in place of it, was sent."""
        self._turns: dict[int, Message] = {}
        """The model's turns by their position in the conversation."""

    def redact(self, content: bytes) -> bytes:
        """Remove the key from what is stored."""
        return remove_secret(content, self.key, REDACTED.encode())

    def refuse(self, problem: _RequestRefused) -> None:
        """Make a refused request the attempt's error, whatever the agent makes of it."""
        self._conversation.fail(EnvironmentFailed(f"a request of the agent was refused: {problem}"))

    def check_heard(self) -> None:
        """Refuse an agent that has ended while it was owed a turn: it gave up on the model."""
        if not self._delivered and not self.knows_limit:
            raise EnvironmentFailed(
                "the agent ended without waiting for the model's turn that it had asked for; if "
                "its client has a time limit, it is too short for this model"
            )

    async def answer(self, request: web.Request, body: bytes) -> web.StreamResponse:
        """Answer a request for a turn."""
        wanted = self._read(body)
        completion = await self._take_turn(wanted)
        payload = _render_completion(completion, wanted.model, self.requests)
        if wanted.stream:
            include_usage = bool((wanted.stream_options or {}).get("include_usage"))
            events = _render_events(payload, include_usage)
            response = web.Response(body=events, content_type="text/event-stream")
        else:
            content = msgspec.json.encode(payload)
            response = web.Response(body=content, content_type="application/json")
        await response.prepare(request)
        self._delivered = True
        try:
            await response.write_eof()
        except ConnectionResetError:
            self._delivered = False  # it may ask for it again
        return response

    async def _take_turn(self, wanted: _ChatRequest) -> Completion:
        messages = [self._read_message(m, n) for n, m in enumerate(wanted.messages)]
        tools = [self._read_tool(tool.function) for tool in wanted.tools or ()]
        self._note_changed_turns(messages)
        if self._is_waiting:
            raise _RequestRefused(
                400,
                "second_request",
                "the agent asks for a second turn while it waits for one; an attempt is one "
                "conversation, and a grader or a simulated user needs a model of its own",
            )
        if self._delivered or (messages, tools) != self._asked:
            # Else its client lost the connection, and asks for the turn that it did not get.
            self.requests += 1
            self._asked, self._delivered = (messages, tools), False
            self._turn = asyncio.create_task(self._conversation.ask(messages, tools))
            # Read, even if its client is gone: asyncio would log that nobody did.
            self._turn.add_done_callback(lambda turn: turn.cancelled() or turn.exception())
        turn = self._turn
        assert turn is not None
        self._is_waiting = True
        try:
            await asyncio.wait([turn])  # which goes on if this request is cancelled
        finally:
            self._is_waiting = False
        try:
            completion = turn.result()
        except (TurnsUsedUp, asyncio.CancelledError):
            self.knows_limit = self._delivered = True
            raise _RequestRefused(
                400, "turn_limit_reached", "no model turn is left for this sample: end now"
            ) from None
        except EnvironmentFailed as problem:
            raise _RequestRefused(400, "conversation_refused", str(problem)) from None
        self._turns[len(messages)] = completion.message
        return completion

    # --- Reading a request ---

    def _read(self, body: bytes) -> _ChatRequest:
        try:
            fields = msgspec.json.decode(self.redact(body), type=dict[str, Any])
        except UNREADABLE as problem:
            raise _RequestRefused(400, "invalid_json", f"the body is no JSON: {problem}") from None
        try:
            wanted = msgspec.convert(fields, _ChatRequest)
        except msgspec.ValidationError as problem:
            raise _RequestRefused(400, "invalid_request", str(problem)) from None
        if wanted.model != self._settings.model:
            raise _RequestRefused(
                404,
                "model_not_found",
                f"there is one model here, {self._settings.model!r} (serve_policy(model=…)), and "
                f"not {wanted.model!r:.100}",
            )
        for name, value in fields.items():
            self._check_field(name, value)
        return wanted

    def _check_field(self, name: str, value: Any) -> None:
        known = HONOURED | WITHOUT_EFFECT
        if value is None or name in known or value in _ASKS_FOR_NOTHING.get(name, ()):
            return
        if name not in RECORDED | self._settings.tolerated:
            raise _RequestRefused(
                400,
                "unsupported_parameter",
                f"{name} is not honoured here, so the request is refused; leave it out, or have "
                f"it only recorded: serve_policy(tolerate=[{name!r:.100}])",
            )
        self._note(name, value)

    def _note(self, name: str, value: Any) -> None:
        """Record what is not honoured, and say so once per eval."""
        name = name[:100]
        plain = value if isinstance(value, bool | int | float) else f"{value!r:.200}"
        if len(self.not_honoured) < MOST_RECORDED:
            self.not_honoured.setdefault(name, plain)
        said = self._settings.said
        if name not in said and len(said) < MOST_RECORDED:
            said.add(name)
            log.warning("agents send %r, which is recorded and not honoured", name)

    def _read_message(self, value: dict[str, Any], number: int) -> Message:
        where = f"messages[{number}]"
        content = value.get("content")
        if isinstance(content, list) and all(
            isinstance(part, dict) and part.get("type") == "text" for part in content
        ):
            content = "".join(str(part.get("text", "")) for part in content)
        role = "system" if value.get("role") == "developer" else value.get("role")
        known = {"role", "content", "tool_calls", "tool_call_id", "reasoning_content"}
        for name in value.keys() - known:
            if value[name]:
                self._note(f"messages.{name}", value[name])
        try:
            return message_of({**value, "role": role, "content": content}, where)
        except (InvalidInput, TypeError) as problem:
            raise _RequestRefused(400, "invalid_request", f"{where}: {problem}") from None

    def _read_tool(self, tool: _FunctionTool) -> ToolSpec:
        if tool.strict:
            self._note("tools.strict", True)
        return ToolSpec(tool.name, tool.description or "", tool.parameters or {"type": "object"})

    def _note_changed_turns(self, messages: Sequence[Message]) -> None:
        """Record where the model's turns came back changed: it is shown what it wrote."""
        for position, turn in self._turns.items():
            if position >= len(messages):
                continue
            back = messages[position]
            same_calls = [c.name for c in back.tool_calls] == [c.name for c in turn.tool_calls]
            if back.text.strip() != turn.text.strip() or not same_calls:
                self._note("messages.changed_turns", True)


def _render_completion(completion: Completion, model: str, number: int) -> dict[str, Any]:
    message = to_chat_api(completion.message)
    if message.get("tool_calls") and not message["content"]:
        message["content"] = None
    if completion.message.reasoning is not None:
        message["reasoning_content"] = completion.message.reasoning
    reason = completion.finish_reason or (TOOL_CALLS if completion.message.tool_calls else STOP)
    payload = {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": reason}],
    }
    if (usage := completion.usage) is not None:
        payload["usage"] = {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }
    return payload


def _render_events(payload: dict[str, Any], include_usage: bool) -> bytes:
    """Render a completion as the events of a stream: its role, what it says, and how it ended."""
    [choice] = payload["choices"]
    delta = dict(choice["message"])
    calls = [{"index": n, **call} for n, call in enumerate(delta.pop("tool_calls", ()))]
    role = {"role": delta.pop("role"), "content": ""}
    if calls:
        delta["tool_calls"] = calls
    shared = {key: payload[key] for key in ("id", "created", "model")}
    shared["object"] = "chat.completion.chunk"

    def chunk(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        part = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return {**shared, "choices": [part]}

    chunks = [chunk(role), chunk(delta), chunk({}, choice["finish_reason"])]
    if include_usage:
        chunks.append({**shared, "choices": [], "usage": payload.get("usage")})
    events = [b"data: %b\n\n" % msgspec.json.encode(part) for part in chunks]
    return b"".join([*events, b"data: [DONE]\n\n"])


# --- The server ---------------------------------------------------------------------------------


class _PolicyServer:
    """The server of one event loop; attempts join it and leave it."""

    def __init__(self) -> None:
        self.users = 0
        self.base_url = ""
        self._clients: dict[bytes, _AgentClient] = {}
        self._starting = asyncio.Lock()
        self._runner: web.AppRunner | None = None
        self._hosts: tuple[str, ...] = ()

    async def start(self) -> None:
        """Bind to a free port, once."""
        async with self._starting:
            if self._runner is not None:
                return
            app = web.Application(middlewares=[self._guard], client_max_size=LARGEST_REQUEST)
            app.router.add_get("/v1/models", self._list_models)
            app.router.add_post("/v1/chat/completions", self._complete)
            runner = web.AppRunner(
                app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True
            )
            await runner.setup()
            self._runner = runner
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            port = runner.addresses[0][1]
            self._hosts = (f"127.0.0.1:{port}", f"localhost:{port}")
            self.base_url = f"http://{self._hosts[0]}/v1"

    def admit(self, client: _AgentClient) -> None:
        """Answer the requests with a client's key from now on."""
        self._clients[_digest(client.key)] = client

    def dismiss(self, client: _AgentClient) -> None:
        """Answer them no longer."""
        self._clients.pop(_digest(client.key), None)

    async def stop(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        client: _AgentClient | None = None
        try:
            client = self._identify(request)
            try:
                return await handler(request)
            except web.HTTPException as problem:  # an unknown path or method, a body too large
                text = f"{request.method} {request.path[:100]}: {problem.reason}"
                raise _RequestRefused(problem.status, "not_served_here", text) from None
        except _RequestRefused as problem:
            error = {"message": str(problem), "type": "heldout_error", "code": problem.code}
            headers = {"x-should-retry": "false"}  # which OpenAI's clients follow
            response = web.json_response({"error": error}, status=problem.status, headers=headers)
            if client is not None and request.method != "GET" and not client.knows_limit:
                # Sent first: the attempt, and with it the agent, ends with the refusal.
                await response.prepare(request)
                with suppress(ConnectionResetError):
                    await response.write_eof()
                client.refuse(problem)
            return response

    def _identify(self, request: web.Request) -> _AgentClient:
        if request.headers.get("Host", "").lower() not in self._hosts:
            raise _RequestRefused(421, "wrong_host", "this server answers to its own address only")
        if "Origin" in request.headers or "Sec-Fetch-Site" in request.headers:
            raise _RequestRefused(403, "web_page", "requests of web pages are not answered")
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        client = self._clients.get(_digest(given.strip()))
        if scheme.lower() != "bearer" or client is None:
            raise _RequestRefused(
                401,
                "invalid_api_key",
                "no attempt that is running has this key: it is wrong, or its attempt has ended",
            )
        return client

    async def _list_models(self, request: web.Request) -> web.Response:
        model = self._identify(request)._settings.model
        entry = {"id": model, "object": "model", "created": 0, "owned_by": "heldout"}
        return web.json_response({"object": "list", "data": [entry]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        client = self._identify(request)
        if request.headers.get("Content-Encoding", "identity") != "identity":
            raise _RequestRefused(415, "compressed", "send the body as it is, not compressed")
        return await client.answer(request, await request.read())


def _digest(key: str) -> bytes:
    """Hash a key: how long a lookup takes then says nothing about other keys."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


_servers: dict[asyncio.AbstractEventLoop, _PolicyServer] = {}


@asynccontextmanager
async def _serving(client: _AgentClient) -> AsyncIterator[str]:
    """Answer a client's requests at the address returned; the last to leave stops the server."""
    loop = asyncio.get_running_loop()
    server = _servers.setdefault(loop, _PolicyServer())
    server.users += 1
    try:
        await server.start()
        server.admit(client)
        yield server.base_url
    finally:
        server.dismiss(client)
        server.users -= 1
        if server.users == 0:
            del _servers[loop]
            await server.stop()


__all__ = ["AgentEnvironments", "PolicyAccess", "reported_score", "serve_policy"]
