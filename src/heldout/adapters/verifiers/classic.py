"""A classic verifiers environment (0.3) as a heldout eval.

`VerifiersEnvironment` makes the calls of `MultiTurnEnv.rollout` from outside and in its order, with
heldout's policy in place of the client. The reward is what the environment's own rubric gives. What
the package would turn into a silent 0 (a reward function that raises, a rollout that failed, a NaN)
is an error of its sample here.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from importlib import import_module
from typing import Any, Literal

import sniffio

from heldout._core.config import NO_TURN_LIMIT
from heldout._evals.rollout import EvalDefinition
from heldout.adapters.seam import Row
from heldout.adapters.verifiers.classic_messages import (
    normalize,
    to_heldout_messages,
    to_response,
)
from heldout.adapters.verifiers.classic_rubric import (
    RewardCall,
    error_chain,
    function_name,
    rubric_result,
    strict_rubric,
)
from heldout.adapters.verifiers.scores import ScoredByVerifiers
from heldout.environment import Reply
from heldout.errors import EnvironmentFailed, InvalidInput
from heldout.store.fingerprint import describe_callable
from heldout.types import Completion, Message, Sample, ToolSpec


def from_classic(
    source: Any,
    *,
    split: Literal["eval", "train"] = "eval",
    metadata: Sequence[str] = (),
    client: Any = None,
    model: str = "heldout",
    **parameters: Any,
) -> EvalDefinition:
    """Make an eval of a verifiers environment: single-turn, multi-turn, with tools, or a group.

    A sample is a row of its dataset: `input` is the whole row, `ground_truth` its answer. The score
    is the rubric's: its reward, bit for bit, and its functions as metrics of weight 0. The
    environment opens the conversation itself, system prompt included.

    Args:
        source: The environment, as `vf.load_environment(…)` returns it, or its name.
        split: The dataset to take the samples from. An environment without it is refused.
        metadata: Columns of the dataset to slice results by.
        client: What the environment's own code finds as the client in its state, for one that
            calls a model by itself. The policy is never called through it.
        model: The model's name that goes with the client.
        **parameters: Parameters of the environment, where it is loaded by name.

    Returns:
        The eval. Its `max_turns` is the environment's own limit, the largest one of a group; where
        there is none, there is no limit.

    Raises:
        InvalidInput: The environment cannot be adapted; the message says why.
    """
    vf = import_module("verifiers")
    vf_env = _load(vf, source, parameters)
    members = list(_group_members(vf, vf_env))
    for env in members:
        _check_adaptable(vf, env)
    # Resolved once, since a client made from a ClientConfig holds connections.
    if client is None:
        client = _refusing_client(vf)
    else:
        client = import_module("verifiers.clients").resolve_client(client)
    made = ClassicEval(vf, vf_env, client, model, split, metadata)
    # What a resumed run must share: a changed reward function gives other rewards.
    made.source = _describe_environments(vf, members)
    limits = [env.max_turns for env in members]
    made.max_turns = max(limits) if min(limits) > 0 else NO_TURN_LIMIT
    return made.definition()


class ClassicEval(ScoredByVerifiers):
    """The rows of an environment's dataset. A row is the whole task, but for its number."""

    def __init__(
        self, vf: Any, env: Any, client: Any, model: str, split: str, metadata: Sequence[str]
    ) -> None:
        self.name = f"verifiers:{type(env).__name__}"
        self._vf, self._env, self._client, self._model = vf, env, client, model
        self._split, self._metadata = split, metadata

    def rows(self) -> Iterator[Row]:
        """Return the rows of the dataset."""
        env, split, metadata = self._env, self._split, self._metadata
        if split not in ("eval", "train"):
            raise InvalidInput(f"split must be 'eval' or 'train', got {split!r}")
        dataset = env.build_eval_dataset() if split == "eval" else env.build_dataset()
        if dataset is None:
            other = "train" if split == "eval" else "eval"
            raise InvalidInput(
                f"{type(env).__name__} has no {split} dataset; to use its other one, say "
                f"split={other!r}"
            )
        for column in metadata:
            if column not in dataset.column_names:
                raise InvalidInput(
                    f"metadata: the dataset has no column {column!r}; it has {dataset.column_names}"
                )
        for row in dataset.to_list():
            # Its number is no part of a question: rows that are equal otherwise are copies of one.
            # A dataset may bring numbers of its own, and use one twice.
            number = row.pop("example_id")
            about = {column: row[column] for column in metadata if column != "example_id"}
            info = row.get("info")
            route = info.get("env_id") if isinstance(info, dict) else None
            if route:
                about["env_id"] = "/".join(route) if isinstance(route, list) else route
            about["example_id"] = number
            yield Row(row, row.get("answer"), about, str(number))

    def environment(self, sample: Sample) -> VerifiersEnvironment:
        """Make the environment of a row; of a group, that of its member."""
        env, row = self._env, {**sample.input, "example_id": sample.metadata["example_id"]}
        while isinstance(env, self._vf.EnvGroup):
            name, row, _ = env._route_child_input(row)
            env = env.get_env_for_name(name)
        return VerifiersEnvironment(self._vf, env, row, self._client, self._model)


# --- The environment and its dataset ------------------------------------------------------------


def _load(vf: Any, source: Any, parameters: dict[str, Any]) -> Any:
    if isinstance(source, str):
        try:
            return vf.load_environment(source, **parameters)
        except (ValueError, RuntimeError) as problem:
            raise InvalidInput(
                f"verifiers: {problem} If it is a taskset of verifiers.v1: "
                "pip install 'verifiers>=0.4,<0.4.1'"
            ) from problem
    if parameters:
        raise InvalidInput(
            f"from_verifiers has no argument {min(parameters)!r} for an environment object"
        )
    return source


def _group_members(vf: Any, env: Any) -> Iterator[Any]:
    """Yield the environments that run rollouts: the environment itself, or those of a group."""
    if not isinstance(env, vf.Environment):
        raise InvalidInput(
            "from_verifiers takes an environment such as vf.load_environment(…) gives; tasksets "
            f"of verifiers.v1 need verifiers 0.4. Got {env!r:.200}"
        )
    if isinstance(env, vf.EnvGroup):
        for child in env.envs:
            yield from _group_members(vf, child)
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
            f"{name} replaces get_model_response: it runs an agent that calls the model by itself, "
            "so its turns cannot be made from outside. Run it with verifiers"
        )
    if not env.score_rollouts:
        raise InvalidInput(
            f"{name} has score_rollouts=False, with which every reward is 0; "
            "call set_score_rollouts(True) on it"
        )
    for rubric in _flatten_rubrics(vf, env.rubric):
        group_functions = [function_name(f) for f in rubric.funcs if rubric._is_group_func(f)]
        if group_functions:
            raise InvalidInput(
                f"{name}: {', '.join(group_functions)} score a group of rollouts together, and an "
                "eval scores one at a time. Leave them out of the rubric, or make them functions "
                "of one completion"
            )
        if not rubric.funcs and type(rubric).score_rollout is vf.Rubric.score_rollout:
            raise InvalidInput(
                f"{name}: {type(rubric).__name__} has no reward functions, and verifiers scores "
                "no single rollout with such a rubric. Give the environment a rubric with a "
                "reward function"
            )


def _flatten_rubrics(vf: Any, rubric: Any) -> Iterator[Any]:
    if isinstance(rubric, vf.RubricGroup):
        for inner in rubric.rubrics:
            yield from _flatten_rubrics(vf, inner)
    else:
        yield rubric


def _describe_environments(vf: Any, envs: Sequence[Any]) -> str:
    """Return a fingerprint of everything that decides the rewards."""
    parts: list[Any] = []
    for env in envs:
        # A tool's docstring is what the model reads.
        parts += [describe_callable(type(env), docstrings=True), env.max_turns]
        tools = getattr(env, "tool_map", {}).values()
        parts += [describe_callable(tool, docstrings=True) for tool in tools]
        for rubric in _flatten_rubrics(vf, env.rubric):
            parts += [describe_callable(type(rubric)), [float(w) for w in rubric.weights]]
            parts += [describe_callable(function) for function in rubric.funcs]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


@functools.cache
def _refusing_client(vf: Any) -> Any:
    """Return the client of an environment that was given none: it says how to pass one."""

    def refuse(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise vf.Error(
            "this environment calls a model by itself; pass from_verifiers(…, client=…, model=…)"
        )

    methods = dict.fromkeys(vf.Client.__abstractmethods__, refuse)
    return type("NoClient", (vf.Client,), {**methods, "get_response": refuse})(None)


# --- One rollout --------------------------------------------------------------------------------


class VerifiersEnvironment:
    """One rollout of a verifiers environment, as a heldout environment."""

    def __init__(self, vf: Any, env: Any, row: dict[str, Any], client: Any, model: str) -> None:
        self._vf, self._env, self._rubric, self._row = vf, env, env.rubric, row
        self._client, self._model = client, model
        self._state: Any = None
        self._prompt: list[Any] = []
        """The messages that the environment last made a prompt of, as verifiers' objects."""
        self._prompt_messages: tuple[Message, ...] = ()
        """The same as heldout's messages, converted before the environment could change them."""
        self._conversation: tuple[Message, ...] = ()
        """The conversation with the policy's turns as it wrote them."""
        self._completion: Completion | None = None
        self._deadline: float | None = None
        self._request_time = 0.0
        self._uncleaned: list[Any] = []

    @property
    def tools(self) -> Sequence[ToolSpec]:
        """Tools of the environment."""
        defined = (self._env.tool_defs if self._state is None else self._state["tool_defs"]) or ()
        return tuple(ToolSpec(t.name, t.description, dict(t.parameters)) for t in defined)

    async def opening(self) -> Sequence[Message]:
        """Set up the state, and return the environment's own prompt."""
        if sniffio.current_async_library() != "asyncio":
            raise InvalidInput(
                "verifiers needs asyncio; run this with asyncio.run or anyio.run, not under trio"
            )
        env = self._env
        with self._errors_described():
            self._state = state = await env.init_state(
                self._row, self._client, self._model, deepcopy(env.sampling_args)
            )
            self._uncleaned = [env, self._rubric]
            timing = state["timing"]
            timing.generation.start = timing.setup.start = time.time()
            if env.timeout_seconds is not None:
                self._deadline = asyncio.get_running_loop().time() + env.timeout_seconds
            limit = asyncio.timeout_at(self._deadline)
            try:
                async with limit:
                    self._state = state = await env.setup_state(state) or state
                    timing.setup.end = time.time()
                    self._check_state()
                    over = await env.is_completed(state)
                    if not over:
                        prompt = await env.get_prompt_messages(state)
                        self._check_state()
                        if state.get("final_env_response") is not None:
                            over = await env.is_completed(state)
            except TimeoutError:
                if not limit.expired():
                    raise
                raise EnvironmentFailed(
                    f"{type(env).__name__} was not ready after its timeout_seconds of "
                    f"{env.timeout_seconds:g}"
                ) from None
            if over:
                raise EnvironmentFailed(
                    f"{type(env).__name__} ended by {state['stop_condition']!r} before the first "
                    "model turn, so there is nothing to score"
                )
            self._set_prompt(prompt)
            self._conversation = self._prompt_messages
            return self._conversation

    def see_completion(self, completion: Completion) -> None:
        """Keep the completion for the environment's state."""
        self._completion = completion

    async def reply(self, messages: Sequence[Message]) -> Reply:
        """Add the model's turn to the state, and return the environment's reply."""
        if tuple(messages[:-1]) != self._conversation:
            raise InvalidInput(
                "this is not the conversation that the verifiers environment opened, which has "
                "its own prompt; pass prepare_messages=ev.prepare_messages"
            )
        env, state = self._env, self._state
        with self._errors_described():
            limit = asyncio.timeout_at(self._deadline)
            try:
                async with limit:
                    return await self._take_turn(messages[-1])
            except TimeoutError:
                if not limit.expired():
                    raise
                env.mark_timed_out(state)
            except self._vf.OverlongPromptError:  # which to verifiers is an end, not a failure
                state["prompt_too_long"] = state["is_truncated"] = True
                await env.is_completed(state)
            return Reply(done=True)

    async def _take_turn(self, message: Message) -> Reply:
        """Do what `MultiTurnEnv.rollout` does from one client response to the next request."""
        env, state = self._env, self._state
        id = f"heldout-{state['trajectory_id']}-{len(state['trajectory'])}"
        response = to_response(self._vf, message, self._completion, self._model, id)
        self._completion = None
        span = self._vf.TimeSpan
        state["timing"].model.spans.append(span(start=self._request_time, end=time.time()))
        env.increment_state_usage_from_response(state, response)
        await env.add_model_response(state, self._prompt, response)
        self._check_state()
        if await env.is_completed(state):
            return self._final_reply()
        completion = to_heldout_messages(state["trajectory"][-1]["completion"])
        before = (*self._prompt_messages, *completion)
        tools = self.tools
        started = time.time()
        prompt = await env.get_prompt_messages(state)
        state["timing"].env.spans.append(span(start=started, end=time.time()))
        self._check_state()
        if state.get("final_env_response") is not None:
            await env.is_completed(state)  # notes in the state why it ended
            return self._final_reply()
        self._set_prompt(prompt)
        new = self._prompt_messages[len(before) :]
        if self._prompt_messages[: len(before)] != before:
            raise EnvironmentFailed(
                f"{type(env).__name__} rewrote earlier messages. A conversation here only grows; "
                "run this environment with verifiers"
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
        self._conversation = (*self._conversation, message, *new)
        return Reply(new)

    def _final_reply(self) -> Reply:
        self._check_state()
        final = self._state.get("final_env_response") or ()
        return Reply(to_heldout_messages(normalize(final)), done=True)

    async def outcome(self) -> dict[str, Any]:
        """Clean up, which is what renders the completion, and score."""
        state = self._state
        with self._errors_described():
            if not state.get("is_completed"):
                state["is_completed"], state["stop_condition"] = True, "heldout_limit"
                state["is_truncated"] = state["is_truncated"] or any(
                    step["is_truncated"] for step in state["trajectory"]
                )
            await self._clean_up(self._env)
            self._check_state()
            calls: list[RewardCall] = []
            state["timing"].scoring.start = time.time()
            await strict_rubric(self._vf, self._rubric, calls).score_rollout(state)
            state["timing"].scoring.end = time.time()
            self._check_state()
            result = rubric_result(state, calls)
            await self._clean_up(self._rubric)
        return {
            **result,
            "stop_condition": state.get("stop_condition"),
            "is_truncated": bool(state.get("is_truncated")),
        }

    async def close(self) -> None:
        """Clean up the environment and its rubric."""
        with self._errors_described():
            try:
                await self._clean_up(self._env)
            finally:
                await self._clean_up(self._rubric)

    async def _clean_up(self, owner: Any) -> None:
        """Run the cleanup of the environment or the rubric, unless it has run or failed before."""
        if owner in self._uncleaned:
            self._uncleaned.remove(owner)
            await owner.cleanup(self._state)

    @contextmanager
    def _errors_described(self) -> Iterator[None]:
        """Name the causes of verifiers' errors, which often have no message of their own."""
        try:
            yield
        except self._vf.Error as problem:
            raise EnvironmentFailed(
                f"{type(self._env).__name__}: {error_chain(problem)}"
            ) from problem

    def _check_state(self) -> None:
        """Raise where the rollout has failed: verifiers would score it all the same."""
        error = self._state.get("error")
        if error is not None:
            reason = error_chain(error) if isinstance(error, BaseException) else repr(error)
            raise EnvironmentFailed(f"{type(self._env).__name__}: state['error'] is set: {reason}")

    def _set_prompt(self, prompt: Any) -> None:
        self._prompt = normalize(prompt)
        self._prompt_messages = to_heldout_messages(self._prompt)
        self._request_time = time.time()
