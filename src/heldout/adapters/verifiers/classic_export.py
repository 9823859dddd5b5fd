"""A heldout eval as a classic verifiers environment (0.3)."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any

from heldout._core.aio import settle
from heldout._core.chat.questions import question_of
from heldout._evals.rollout import (
    EnvironmentFactory,
    EvalDefinition,
    PrepareMessages,
    ScoreFn,
    turn_limit,
)
from heldout.adapters.verifiers.classic_messages import to_heldout_messages, to_verifiers_messages
from heldout.adapters.verifiers.classic_rubric import error_chain
from heldout.datasets import distinct
from heldout.environment import Environment, HasOutcome, Reply
from heldout.errors import InvalidInput
from heldout.scoring.grades import as_score
from heldout.types import Message, Sample, Stop, Trajectory, Usage


def to_classic(
    samples: Iterable[Sample] | EvalDefinition,
    score_fn: ScoreFn | None = None,
    *,
    prepare_messages: PrepareMessages | None = None,
    environment_factory: EnvironmentFactory | None = None,
    max_turns: int | None = None,
) -> Any:
    """Make a verifiers environment of a heldout eval, for trainers that take those.

    Its reward is `Score.reward`, and its metrics are the score's. Where the score function or the
    environment raises, `state["error"]` says so and the reward is 0.0, which is how verifiers
    marks a failed rollout: a trainer should leave those out.

    Args:
        samples: The samples, or an `EvalDefinition` in place of everything but `max_turns`.
        score_fn: Scores a finished rollout.
        prepare_messages: Makes a sample's opening messages; it cannot be async.
        environment_factory: Makes a sample's environment. Without it rollouts are single-turn.
        max_turns: The largest number of model turns; by default the eval's own limit, or 16.

    Returns:
        A `vf.SingleTurnEnv`, or a `vf.MultiTurnEnv` where there are environments. The samples are
        its training dataset.

    Raises:
        InvalidInput: The eval cannot be made an environment; the message says why.
    """
    vf: Any = import_module("verifiers")
    definition = EvalDefinition.of(samples, score_fn, prepare_messages, environment_factory)
    max_turns = turn_limit(max_turns, definition)
    if threading.current_thread() is not threading.main_thread():
        raise InvalidInput(
            "verifiers sets signal handlers when an environment is made, which only the main "
            "thread may do; call to_verifiers there"
        )
    prepare = partial(plain_prompt, prepare_messages=definition.prepare_messages)
    by_id = {s.id: s for s in distinct(definition.samples, wanted="to_verifiers takes Samples")}
    if not by_id:
        raise InvalidInput("there are no samples to make an environment of")
    rows = [_row(sample, i, prepare(sample)) for i, sample in enumerate(by_id.values())]
    dataset = import_module("datasets").Dataset.from_list(rows)
    if definition.environment_factory is None:
        env = _environment_class(vf, vf.SingleTurnEnv)(dataset=dataset)
    else:
        env = _environment_class(vf, vf.MultiTurnEnv)(dataset=dataset, max_turns=max_turns)
    env.heldout_samples = by_id
    env.heldout_prepare = prepare
    env.heldout_environment_factory = definition.environment_factory
    # Replaces the monitor that verifiers adds: it would be summed up with a metric of its name.
    env.rubric = _rubric_class(vf)(definition.score_fn, env)
    return env


def plain_prompt(sample: Sample, prepare_messages: PrepareMessages | None) -> list[Message]:
    """Make a sample's opening messages outside an event loop."""
    if prepare_messages is None:
        return question_of(sample).messages
    messages = prepare_messages(sample)
    if inspect.iscoroutine(messages):
        messages.close()
        raise InvalidInput(
            "to_verifiers takes a plain prepare_messages, not an async one: the dataset's "
            "prompts are made before any event loop runs"
        )
    return list(messages)


def _row(sample: Sample, position: int, prompt: Sequence[Message]) -> dict[str, Any]:
    """Make a dataset row. What a column cannot hold (parts, calls) is put in by setup_state."""
    answer = sample.ground_truth
    return {
        "example_id": position,
        "prompt": [{"role": m.role, "content": m.text} for m in prompt],
        "answer": answer if isinstance(answer, str) else json.dumps(answer, default=str),
        "info": json.dumps({"sample_id": sample.id}),
    }


@dataclass(slots=True)
class _VerifiersEpisode:
    """A heldout rollout as it runs inside verifiers' loop."""

    sample: Sample
    messages: list[Message]
    environment: Environment | None = None
    turns: int = 0
    reply: list[Any] = field(default_factory=list)
    stop: Stop | None = None
    outcome: dict[str, Any] | None = None


@contextmanager
def _errors_converted(vf: Any, sample: Sample, where: str) -> Iterator[None]:
    """Raise errors as vf.Error: verifiers records those in the state, others end its whole run."""
    try:
        yield
    except vf.Error:
        raise
    except Exception as problem:
        raise vf.Error(f"sample {sample.id!r}: {where}: {error_chain(problem)}") from problem


@functools.cache
def _environment_class(vf: Any, base: Any) -> Any:
    class HeldoutEnv(base):  # type: ignore[misc]
        """A heldout environment, or a single turn, in verifiers' loop."""

        heldout_samples: dict[str, Sample]
        heldout_prepare: Callable[[Sample], list[Message]]
        heldout_environment_factory: EnvironmentFactory | None

        async def setup_state(self, state: Any) -> Any:
            sample = self.heldout_samples[state["info"]["sample_id"]]
            with _errors_converted(vf, sample, "prepare_messages"):
                episode = _VerifiersEpisode(sample, self.heldout_prepare(sample))
            state["heldout"] = episode
            if self.heldout_environment_factory is not None:
                with _errors_converted(vf, sample, "environment"):
                    environment = await settle(self.heldout_environment_factory(sample))
                    episode.environment = environment
                    episode.messages.extend(await settle(environment.opening()))
                    state["tool_defs"] = [
                        vf.Tool(name=t.name, description=t.description, parameters=t.parameters)
                        for t in environment.tools
                    ]
            state["prompt"] = to_verifiers_messages(episode.messages)
            return state

        async def add_model_response(self, state: Any, prompt_messages: Any, response: Any) -> None:
            await super().add_model_response(state, prompt_messages, response)
            step, episode = state["trajectory"][-1], state["heldout"]
            episode.messages.extend(to_heldout_messages(step["completion"]))
            episode.turns += 1
            if episode.environment is None:
                episode.stop = _stop("no_reply", step)
                return
            # Here and not in env_response, which verifiers leaves out after the last turn: every
            # turn reaches the environment.
            with _errors_converted(vf, episode.sample, "environment"):
                reply = await settle(episode.environment.reply(tuple(episode.messages)))
                if not isinstance(reply, Reply):
                    raise TypeError(f"an environment's reply must be a Reply, got {reply!r:.200}")
            episode.messages.extend(reply.messages)
            episode.reply = to_verifiers_messages(reply.messages)
            if reply.done:
                episode.stop = _stop("environment", step)
            elif not reply.messages:
                episode.stop = _stop("no_reply", step)
            elif episode.turns >= self.max_turns > 0:
                episode.stop = _stop("limit", step, "max_turns")
            if episode.stop is not None:
                state["final_env_response"] = episode.reply

        async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
            return state["heldout"].reply

        @vf.cleanup  # type: ignore[untyped-decorator]
        async def heldout_end(self, state: Any) -> None:
            episode = state.get("heldout")
            if episode is None:
                return
            if state.get("error") is None:
                state["error"] = _unfinished(vf, state)
            if episode.stop is None and state["trajectory"]:
                condition = state.get("stop_condition") or "unknown"
                limit = _LIMITS.get(condition, condition)
                episode.stop = _stop("limit", state["trajectory"][-1], limit)
            environment, sample = episode.environment, episode.sample
            if environment is None:
                return
            try:
                if state.get("error") is None and isinstance(environment, HasOutcome):
                    with _errors_converted(vf, sample, "environment"):
                        episode.outcome = await settle(environment.outcome())
            except vf.Error as problem:
                state["error"] = problem
            finally:
                try:
                    with _errors_converted(vf, sample, "environment"):
                        await settle(environment.close())
                except vf.Error as problem:
                    state["error"] = state.get("error") or problem

    return HeldoutEnv


_LIMITS = {
    "max_turns_reached": "max_turns",
    "prompt_too_long": "context",
    "max_total_completion_tokens_reached": "token_budget",
}
"""Stop conditions of verifiers that are limits, by heldout's name."""


def _unfinished(vf: Any, state: Any) -> Any:
    """Return an error where heldout has one and verifiers would score an unfinished rollout."""
    if state.get("timed_out"):
        return vf.Error("the rollout was not done after timeout_seconds")
    if not state["trajectory"]:
        return vf.Error(f"there was no model turn ({state.get('stop_condition')})")
    return None


def _stop(ended_by: Any, step: Any, limit: str | None = None) -> Stop:
    """Make a Stop of how verifiers' last step ended."""
    message = getattr(step.get("response"), "message", None)
    finish_reason = getattr(message, "finish_reason", None)
    truncated = bool(step["is_truncated"])
    return Stop(ended_by, limit, truncated=truncated, finish_reason=finish_reason)


@functools.cache
def _rubric_class(vf: Any) -> Any:
    class HeldoutRubric(vf.Rubric):  # type: ignore[misc]
        """A heldout score function as a rubric."""

        def __init__(self, score_fn: ScoreFn, env: Any) -> None:
            super().__init__()
            self.score_fn, self.env = score_fn, env

        async def score_rollout(self, state: Any) -> None:
            state["reward"], state["metrics"] = 0.0, {}
            if state.get("error") is not None:
                return
            episode = state["heldout"]
            used = self.env.get_state_usage(state)
            usage = used and Usage(int(used["input_tokens"]), int(used["output_tokens"]))
            trajectory = Trajectory(
                tuple(episode.messages), episode.stop, usage, outcome=episode.outcome
            )
            try:
                with _errors_converted(vf, episode.sample, "score_fn"):
                    returned = await settle(self.score_fn(trajectory, episode.sample))
                    score = as_score(returned, self.score_fn)
            except vf.Error as problem:
                state["error"] = problem
                return
            state["reward"] = score.reward
            state["metrics"] = {metric.name: metric.value for metric in score.metrics}

        async def score_group(self, states: list[Any]) -> None:
            """Score each rollout; advantages are relative to those with a score."""
            await asyncio.gather(*(self.score_rollout(state) for state in states))
            scored = [state["reward"] for state in states if state.get("error") is None]
            for state in states:
                failed = state.get("error") is not None
                state["advantage"] = 0.0 if failed else state["reward"] - sum(scored) / len(scored)
                for step in state["trajectory"]:
                    for key in ("reward", "advantage"):
                        if step[key] is None:
                            step[key] = state[key]

    return HeldoutRubric
