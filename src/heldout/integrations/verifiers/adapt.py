"""An environment of theirs as an eval: driven turn by turn from outside."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from importlib import import_module
from typing import Any, Literal

import sniffio

from heldout.environment import Reply
from heldout.errors import EnvironmentFailed, InvalidInput
from heldout.fingerprints import describe_callable
from heldout.integrations.verifiers.messages import normalized, ours
from heldout.integrations.verifiers.package import VERSIONS, verifiers_package
from heldout.integrations.verifiers.scoring import (
    Watch,
    error_chain,
    function_name,
    score_outcome,
)
from heldout.items import EvalDefinition
from heldout.types import (
    Completion,
    Message,
    Sample,
    ToolSpec,
)


def from_verifiers(
    vf_env: Any,
    *,
    split: Literal["eval", "train"] = "eval",
    metadata: Sequence[str] = (),
    client: Any = None,
    model: str = "heldout",
) -> EvalDefinition:
    """A verifiers environment as an eval: single-turn, multi-turn, with tools, or a group of these.

    A sample is a row of its dataset: `input` is the whole row, `ground_truth` its answer. The score
    is the rubric's: its reward, bit for bit, and its functions as metrics of weight 0. The
    environment opens the conversation itself, system prompt included. `max_turns` is its own limit,
    the largest one of a group, or None.

    `metadata` names columns to slice results by. `client` and `model` are what the environment's
    own code finds in its state, for one that asks a model by itself; the policy is never asked
    through them.
    """
    vf = verifiers_package()
    leaves = list(_leaves(vf, vf_env))
    for env in leaves:
        _check_adaptable(vf, env)
    samples = _samples(vf_env, split, metadata)
    # What a resumed run must share: a changed reward function makes other rewards.
    identity = _identity(vf, leaves)
    # Once, since a client made of a ClientConfig holds connections.
    asked = _no_client(vf) if client is None else _resolved(client)
    turns = [env.max_turns for env in leaves]
    return EvalDefinition(
        samples,
        partial(score_outcome, rubric=identity),
        _no_messages,
        partial(_environment, vf=vf, vf_env=vf_env, client=asked, model=model, identity=identity),
        max(turns) if min(turns) > 0 else None,
    )


def _leaves(vf: Any, env: Any) -> Iterator[Any]:
    """The environments that run rollouts: itself, or those of a group."""
    if not isinstance(env, vf.Environment):
        raise InvalidInput(
            f"from_verifiers takes an environment such as vf.load_environment(…) gives, of the "
            f"classic stack of verifiers {VERSIONS}; got {env!r:.200}"
        )
    if isinstance(env, vf.EnvGroup):
        for child in env.envs:
            yield from _leaves(vf, child)
    else:
        yield env


def _check_adaptable(vf: Any, env: Any) -> None:
    name = type(env).__name__
    if not isinstance(env, vf.MultiTurnEnv) or type(env).rollout is not vf.MultiTurnEnv.rollout:
        raise InvalidInput(
            f"{name} runs its rollouts in a way of its own; what can be adapted are MultiTurnEnv "
            "and what is made from it (SingleTurnEnv, ToolEnv, StatefulToolEnv), and EnvGroup"
        )
    if getattr(env.get_model_response, "__func__", None) is not vf.Environment.get_model_response:
        raise InvalidInput(
            f"{name} replaces get_model_response: it runs an agent that asks the model by itself, "
            "so its turns cannot be made from outside. Run it with verifiers"
        )
    if not env.score_rollouts:
        raise InvalidInput(
            f"{name} has score_rollouts=False, with which every reward is 0; "
            "call set_score_rollouts(True) on it"
        )
    for rubric in _rubrics(vf, env.rubric):
        together = [function_name(f) for f in rubric.funcs if rubric._is_group_func(f)]
        if together:
            raise InvalidInput(
                f"{name}: {', '.join(together)} score a group of rollouts together, and an eval "
                "scores one at a time. Leave them out of the rubric, or make them functions of "
                "one completion"
            )
        if not rubric.funcs and type(rubric).score_rollout is vf.Rubric.score_rollout:
            raise InvalidInput(
                f"{name}: {type(rubric).__name__} has no reward functions, and verifiers scores "
                "no single rollout with such a rubric. Give the environment a rubric with a "
                "reward function"
            )


def _rubrics(vf: Any, rubric: Any) -> Iterator[Any]:
    if isinstance(rubric, vf.RubricGroup):
        for inner in rubric.rubrics:
            yield from _rubrics(vf, inner)
    else:
        yield rubric


def _identity(vf: Any, envs: Sequence[Any]) -> str:
    parts: list[Any] = []
    for env in envs:
        # A tool's docstring is what the model reads.
        parts += [describe_callable(type(env), docstrings=True), env.max_turns]
        tools = getattr(env, "tool_map", {}).values()
        parts += [describe_callable(tool, docstrings=True) for tool in tools]
        for rubric in _rubrics(vf, env.rubric):
            parts += [describe_callable(type(rubric)), [float(w) for w in rubric.weights]]
            parts += [describe_callable(function) for function in rubric.funcs]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _samples(env: Any, split: str, metadata: Sequence[str]) -> list[Sample]:
    if split not in ("eval", "train"):
        raise InvalidInput(f"split is 'eval' or 'train', got {split!r}")
    dataset = env.build_eval_dataset() if split == "eval" else env.build_dataset()
    if dataset is None:
        other = "train" if split == "eval" else "eval"
        raise InvalidInput(
            f"{type(env).__name__} has no {split} dataset; to use its other one, say "
            f"split={other!r}"
        )
    missing = [column for column in metadata if column not in dataset.column_names]
    if missing:
        raise InvalidInput(
            f"metadata: the dataset has no column {missing[0]!r}; it has {dataset.column_names}"
        )
    samples = []
    seen: Counter[Any] = Counter()
    for row in dataset.to_list():
        number = row["example_id"]
        seen[number] += 1
        # A dataset may bring example ids of its own, and use one twice.
        name = str(number) if seen[number] == 1 else f"{number}#{seen[number]}"
        about = {column: row[column] for column in metadata}
        if route := _route(row):
            about["env_id"] = route
        # Its number is no part of a question: rows that are equal otherwise are copies of one.
        about["example_id"] = row.pop("example_id")
        samples.append(Sample(name, row, row.get("answer"), about))
    return samples


def _route(row: dict[str, Any]) -> str | None:
    """Which environment of a group a row belongs to."""
    info = row.get("info")
    route = info.get("env_id") if isinstance(info, dict) else None
    return "/".join(route) if isinstance(route, list) else route


def _no_messages(sample: Sample) -> list[Message]:
    return []


def _environment(
    sample: Sample, *, vf: Any, vf_env: Any, client: Any, model: str, identity: str
) -> VerifiersEnvironment:
    env, row = vf_env, {**sample.input, "example_id": sample.metadata["example_id"]}
    while isinstance(env, vf.EnvGroup):
        name, row, _ = env._route_child_input(row)
        env = env.get_env_for_name(name)
    return VerifiersEnvironment(vf, env, row, client, model)


def _resolved(client: Any) -> Any:
    return import_module("verifiers.clients").resolve_client(client)


@functools.cache
def _no_client(vf: Any) -> Any:
    """What stands in the state where verifiers has its client. It answers nothing."""

    def refuse(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise vf.Error(
            "this environment asks a model by itself; pass from_verifiers(…, client=…, model=…)"
        )

    base = vf.Client
    methods = dict.fromkeys(base.__abstractmethods__, refuse)
    return type("NoClient", (base,), {**methods, "get_response": refuse})(None)


class VerifiersEnvironment:
    """One rollout of a verifiers environment, driven from outside."""

    def __init__(self, vf: Any, env: Any, row: dict[str, Any], client: Any, model: str) -> None:
        self._vf, self._env, self._rubric, self._row = vf, env, env.rubric, row
        self._client, self._model = client, model
        self._state: Any = None
        self._prompt: list[Any] = []
        """What verifiers last showed the policy,"""
        self._prompted: tuple[Message, ...] = ()
        """the same as heldout's messages, taken down before anybody could change it,"""
        self._said: tuple[Message, ...] = ()
        """and the conversation with the policy's turns as it wrote them."""
        self._completion: Completion | None = None
        self._deadline: float | None = None
        self._waiting_since = 0.0
        self._uncleaned: list[Any] = []
        self._problem: str | None = None

    @property
    def tools(self) -> Sequence[ToolSpec]:
        defined = (self._env.tool_defs if self._state is None else self._state["tool_defs"]) or ()
        return tuple(ToolSpec(t.name, t.description, dict(t.parameters)) for t in defined)

    async def opening(self) -> Sequence[Message]:
        if sniffio.current_async_library() != "asyncio":
            raise InvalidInput(
                "verifiers needs asyncio; run this with asyncio.run or anyio.run, not under trio"
            )
        env = self._env
        with self._named():
            self._state = state = await env.init_state(
                self._row, self._client, self._model, deepcopy(env.sampling_args)
            )
            self._uncleaned = [env.cleanup, self._rubric.cleanup]
            timing = state["timing"]
            timing.generation.start = timing.setup.start = time.time()
            limit = self._time_limit(env.timeout_seconds)
            try:
                async with limit:
                    self._state = state = await env.setup_state(state) or state
                    timing.setup.end = time.time()
                    self._check_state()
                    if await env.is_completed(state):
                        raise EnvironmentFailed(
                            f"{type(env).__name__} ended by {state['stop_condition']!r} before "
                            "the first model turn, so there is nothing to score"
                        )
                    prompt = await env.get_prompt_messages(state)
            except TimeoutError:
                if not limit.expired():
                    raise
                raise EnvironmentFailed(
                    f"{type(env).__name__} was not ready after its timeout_seconds of "
                    f"{env.timeout_seconds:g}"
                ) from None
            self._check_state()
            if state.get("final_env_response") is not None:
                raise EnvironmentFailed(
                    f"{type(env).__name__} gave its final response before the first model turn, "
                    "so there is nothing to score"
                )
            self._said = self._show(prompt)
            return self._said

    def see_completion(self, completion: Completion) -> None:
        """What is known of the turn that `reply` is about to be given, besides its message."""
        self._completion = completion

    async def reply(self, messages: Sequence[Message]) -> Reply:
        if tuple(messages[:-1]) != self._said:
            raise InvalidInput(
                "this is not the conversation that the verifiers environment opened, which has "
                "its own prompt; pass prepare_messages=ev.prepare_messages"
            )
        env, state = self._env, self._state
        with self._named():
            limit = asyncio.timeout_at(self._deadline)
            try:
                async with limit:
                    return await self._turn(messages[-1])
            except TimeoutError:
                if not limit.expired():
                    raise
                env.mark_timed_out(state)
            except self._vf.OverlongPromptError:  # which to verifiers is an end, not a failure
                state["prompt_too_long"] = state["is_truncated"] = True
                await env.is_completed(state)
            return Reply(done=True)

    async def _turn(self, message: Message) -> Reply:
        """What `MultiTurnEnv.rollout` does from one answer of its client to the next request."""
        env, state = self._env, self._state
        response = self._response(message)
        span = self._vf.TimeSpan
        state["timing"].model.spans.append(span(start=self._waiting_since, end=time.time()))
        env.increment_state_usage_from_response(state, response)
        await env.add_model_response(state, self._prompt, response)
        self._check_state()
        if await env.is_completed(state):
            return self._ended()
        before = (*self._prompted, *ours(state["trajectory"][-1]["completion"]))
        tools = self.tools
        started = time.time()
        prompt = await env.get_prompt_messages(state)
        state["timing"].env.spans.append(span(start=started, end=time.time()))
        self._check_state()
        if state.get("final_env_response") is not None:
            await env.is_completed(state)  # notes in the state why it ended
            return self._ended()
        prompted = self._show(prompt)
        new = prompted[len(before) :]
        if prompted[: len(before)] != before:
            raise EnvironmentFailed(
                f"{type(env).__name__} rewrote what was said before. A conversation here only "
                "grows; run this environment with verifiers"
            )
        if not new:
            raise EnvironmentFailed(
                f"{type(env).__name__}.env_response gave no message and no end; return one, or "
                "set state['final_env_response']"
            )
        if self.tools != tools:
            raise EnvironmentFailed(
                f"{type(env).__name__} changed its tools in the middle of a rollout, which the "
                "policy would not be told of; run this environment with verifiers"
            )
        self._said = (*self._said, message, *new)
        return Reply(new)

    def _ended(self) -> Reply:
        self._check_state()
        final = self._state.get("final_env_response") or ()
        return Reply(ours(normalized(final)), done=True)

    async def outcome(self) -> dict[str, Any]:
        """Clean up, which is what renders the completion, and score: once."""
        state, rubric = self._state, self._rubric
        with self._named():
            if not state.get("is_completed"):
                state["is_completed"], state["stop_condition"] = True, "heldout_limit"
                state["is_truncated"] = state["is_truncated"] or any(
                    step["is_truncated"] for step in state["trajectory"]
                )
            await self._clean(self._env.cleanup)
            self._check_state()
            watch = Watch(self._vf.Rubric)
            state["timing"].scoring.start = time.time()
            await watch.over(rubric).score_rollout(state)
            state["timing"].scoring.end = time.time()
            self._check_state()
            result = watch.result(state)
            await self._clean(rubric.cleanup)
        return {
            **result,
            "stop_condition": state.get("stop_condition"),
            "is_truncated": bool(state.get("is_truncated")),
        }

    async def close(self) -> None:
        """What `outcome` has not cleaned up, because it was never asked or did not get there."""
        said = [] if self._problem is None else [self._problem]
        failed: Exception | None = None
        while self._uncleaned:
            cleanup = self._uncleaned[0]
            try:
                await self._clean(cleanup)
            except Exception as problem:  # noqa: BLE001 - raised when the others have run
                failed = failed or problem
                whose = type(cleanup.__self__).__name__
                said.append(f"the cleanup of {whose} failed: {error_chain(problem)}")
        if failed is not None:
            raise EnvironmentFailed("; and then ".join(said)) from failed

    async def _clean(self, cleanup: Any) -> None:
        """Each cleanup runs once, whether it gets through or not."""
        self._uncleaned.remove(cleanup)
        await cleanup(self._state)

    def _time_limit(self, seconds: float | None) -> asyncio.Timeout:
        if seconds is not None:
            self._deadline = asyncio.get_running_loop().time() + seconds
        return asyncio.timeout_at(self._deadline)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Their errors say nothing by themselves: `raise ToolCallError from problem`."""
        try:
            yield
        except self._vf.Error as problem:
            self._problem = f"{type(self._env).__name__}: {error_chain(problem)}"
            raise EnvironmentFailed(self._problem) from problem
        except Exception as problem:
            self._problem = error_chain(problem)
            raise

    def _check_state(self) -> None:
        """A rollout that failed would be scored all the same."""
        error = self._state.get("error")
        if error is not None:
            said = error_chain(error) if isinstance(error, BaseException) else repr(error)
            raise EnvironmentFailed(f"{type(self._env).__name__}: state['error'] is set: {said}")

    def _show(self, prompt: Any) -> tuple[Message, ...]:
        self._prompt = normalized(prompt)
        self._prompted = ours(self._prompt)
        self._waiting_since = time.time()
        return self._prompted

    def _response(self, message: Message) -> Any:
        vf, known = self._vf, self._completion
        self._completion = None
        finish, usage = (known.finish_reason, known.usage) if known else (None, None)
        calls = [
            vf.ToolCall(id=call.id, name=call.name, arguments=call.arguments)
            for call in message.tool_calls
        ]
        return vf.Response(
            id=f"heldout-{self._state['trajectory_id']}-{len(self._state['trajectory'])}",
            created=int(time.time()),
            model=self._model,
            usage=usage
            and vf.Usage(
                prompt_tokens=usage.prompt_tokens,
                reasoning_tokens=0,
                completion_tokens=usage.completion_tokens,
                total_tokens=usage.prompt_tokens + usage.completion_tokens,
            ),
            message=vf.ResponseMessage(
                # As their clients have it: a turn of nothing but calls has no content.
                content=None if calls and not message.content else message.content,
                reasoning_content=message.reasoning,
                tool_calls=calls or None,
                finish_reason=finish if finish in ("stop", "length", "tool_calls") else None,
                is_truncated=None if finish is None else finish == "length",
            ),
        )
