"""A heldout eval as a taskset and a harness of verifiers v1 (0.4).

    HeldoutTaskset, HeldoutHarness = to_verifiers(samples, score_fn)
    __all__ = ["HeldoutTaskset", "HeldoutHarness"]       # what verifiers looks for in a module

The harness runs heldout's own turn loop in verifiers' rollout, with the model that verifiers calls
as the policy. The task's reward is the score function's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import httpx
import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire, parse_message

from heldout._core.aio import settle
from heldout._core.chat.messages import message_of, to_chat_api, tool_to_chat_api
from heldout._evals.rollout import Attempt, EvalDefinition, turn_limit
from heldout.adapters.verifiers.classic_export import plain_prompt
from heldout.adapters.verifiers.v1_chat import Post, model_requests
from heldout.datasets import distinct
from heldout.environment import Environment
from heldout.errors import ContextFull, EndpointError, InvalidInput
from heldout.scoring.grades import as_score
from heldout.types import Completion, Message, Score, Stop, ToolSpec, Trajectory, Usage

LIMITS = {"max_input_tokens": "token_budget", "max_output_tokens": "token_budget"}
"""Stop conditions of verifiers that are limits, by heldout's name."""


class V1Export(NamedTuple):
    """The classes that a module exports for verifiers to find."""

    taskset: Any
    harness: Any


class HeldoutData(vf.TaskData):  # type: ignore[misc]
    """A sample as the data of a task."""

    sample_id: str
    answer: Any = None


def to_v1(
    samples: Any, score_fn: Any = None, *, max_turns: int | None = None, **parts: Any
) -> V1Export:
    """Make a taskset class and a harness class of a heldout eval.

    The reward is `Score.reward`, and the metrics are the score's. Where the score function or the
    environment raises, the trace is not ok and has no reward.

    Args:
        samples: The samples, or an `EvalDefinition`.
        score_fn: Scores a finished rollout.
        max_turns: The largest number of model turns; by default the eval's own limit, or 16.
        **parts: `prepare_messages` and `environment_factory`.

    Returns:
        The two classes. A single-turn eval runs with another harness too.

    Raises:
        InvalidInput: There are no samples, or `prepare_messages` is async.
    """
    definition = EvalDefinition.of(samples, score_fn, **parts)
    prepare = partial(plain_prompt, prepare_messages=definition.prepare_messages)
    by_id = {s.id: s for s in distinct(definition.samples, wanted="to_verifiers takes Samples")}
    if not by_id:
        raise InvalidInput("there are no samples to make a taskset of")
    prompts = {sample.id: prepare(sample) for sample in by_id.values()}
    limit = turn_limit(max_turns, definition)
    # By the id of the trace, until it is scored.
    rollouts: dict[str, Trajectory] = {}
    scores: dict[str, Score] = {}

    async def score(trace: Any) -> Score:
        sample = by_id[trace.task.data.sample_id]
        trajectory = rollouts.pop(trace.id, None)
        if trajectory is None:
            if definition.environment_factory is not None:
                raise InvalidInput("this taskset has environments: run it with its own harness")
            trajectory = _read_trajectory(trace)
        if trace.is_timeout or trajectory.last_turn is None:
            raise InvalidInput(f"the rollout was not done: {trace.stop_condition}")
        return as_score(await settle(definition.score_fn(trajectory, sample)), definition.score_fn)

    class HeldoutTask(vf.Task[HeldoutData]):  # type: ignore[misc]
        @vf.metric  # type: ignore[untyped-decorator]
        async def metrics(self, trace: Any) -> dict[str, float]:  # called before the rewards
            scores[trace.id] = await score(trace)
            return {metric.name: metric.value for metric in scores[trace.id].metrics}

        @vf.reward  # type: ignore[untyped-decorator]
        async def reward(self, trace: Any) -> float:
            return scores.pop(trace.id).reward

    class HeldoutTaskset(vf.Taskset[HeldoutTask]):  # type: ignore[misc]
        def load(self) -> Iterator[Any]:
            for sample in by_id.values():
                prompt = [parse_message(to_chat_api(message)) for message in prompts[sample.id]]
                data = HeldoutData(
                    id=sample.id, prompt=prompt, sample_id=sample.id, answer=sample.ground_truth
                )
                yield HeldoutTask(data, self.config.task)

    class HeldoutHarness(vf.Harness[vf.HarnessConfig]):  # type: ignore[misc]
        APPENDS_SYSTEM_PROMPT = True
        EXECUTES_CODE = False
        NEEDS_CONTAINER = False

        async def launch(
            self,
            ctx: Any,
            trace: Any,
            runtime: Any,
            endpoint: str,
            secret: str,
            mcp_urls: dict[str, str],
            data: Any,
        ) -> Any:
            sample = by_id[data.sample_id]
            async with model_requests(endpoint, secret) as post:
                attempt = Attempt(sample, partial(_ask, post, trace), max_turns=limit)
                environment: Environment | None = None
                if definition.environment_factory is not None:
                    environment = await settle(definition.environment_factory(sample))
                trajectory = await attempt.roll_out(prompts[sample.id], environment)
            rollouts[trace.id] = _name_limit(trajectory, trace)
            return vf.ProgramResult(0, "", "")

    return V1Export(HeldoutTaskset, HeldoutHarness)


async def _ask(
    post: Post, trace: Any, messages: Sequence[Message], tools: Sequence[ToolSpec]
) -> Completion:
    """Make one turn with the model that verifiers calls."""
    body: dict[str, Any] = {"messages": [to_chat_api(message) for message in messages]}
    if tools:
        body["tools"] = [tool_to_chat_api(tool) for tool in tools]
    response = await post(body)
    if response.status_code != httpx.codes.OK:
        if trace.stop_condition is not None:
            raise ContextFull(f"verifiers has ended the rollout: {trace.stop_condition}")
        raise EndpointError(response.text[-2000:])
    reply = response.json()
    choice, used = reply["choices"][0], reply.get("usage")
    usage = used and Usage(used["prompt_tokens"], used["completion_tokens"])
    message = message_of(choice["message"], "the reply of verifiers")
    return Completion(message, choice.get("finish_reason"), usage or None)


def _name_limit(trajectory: Trajectory, trace: Any) -> Trajectory:
    """Name the limit of verifiers that ended a rollout, which `_ask` could not."""
    condition = trace.stop_condition
    if condition is None or trajectory.stop.limit != "context":
        return trajectory
    stop = replace(trajectory.stop, limit=LIMITS.get(condition, condition))
    return replace(trajectory, stop=stop)


def _read_trajectory(trace: Any) -> Trajectory:
    """Make the trajectory of a single turn that another harness has led."""
    nodes = trace.branches[-1].nodes if trace.branches else []
    messages = [
        message_of(message_to_wire(node.message), "a message of the trace") for node in nodes
    ]
    turns = tuple(i for i, node in enumerate(nodes) if node.sampled)
    call = trace.calls[-1] if trace.calls else None
    finish = call.finish_reason if call is not None else None
    used = trace.usage
    usage = used and Usage(used.input_tokens, used.completion_tokens)
    stop = Stop("no_reply", None, finish == "length", finish)
    return Trajectory(tuple(messages), stop, usage or None, model_turns=turns)


__all__ = ["V1Export", "to_v1"]
