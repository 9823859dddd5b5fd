"""An eval as an environment of theirs."""

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

from heldout.chat import messages_of
from heldout.concurrency import settle
from heldout.environment import Environment, HasOutcome, Reply
from heldout.errors import DuplicateSampleId, InvalidInput
from heldout.integrations.verifiers.messages import ours, theirs
from heldout.integrations.verifiers.package import verifiers_package
from heldout.integrations.verifiers.scoring import error_chain
from heldout.items import EnvironmentFactory, EvalDefinition, PrepareMessages, ScoreFn
from heldout.types import (
    Message,
    Sample,
    Score,
    Stop,
    Trajectory,
    Usage,
)


@dataclass(slots=True)
class _Episode:
    """A heldout rollout as it runs inside verifiers' loop."""

    sample: Sample
    messages: list[Message]
    environment: Environment | None = None
    turns: int = 0
    reply: list[Any] = field(default_factory=list)
    stop: Stop | None = None
    outcome: dict[str, Any] | None = None


def to_verifiers(
    samples: Iterable[Sample] | EvalDefinition,
    score_fn: ScoreFn | None = None,
    *,
    prepare_messages: PrepareMessages | None = None,
    environment_factory: EnvironmentFactory | None = None,
    max_turns: int | None = None,
) -> Any:
    """A heldout eval as a verifiers environment, for trainers that take those.

    Its reward is `Score.reward`, and its metrics are the score's. Where the score function or the
    environment raises, `state["error"]` says so and the reward is 0.0, which is how verifiers
    marks a failed rollout: a trainer is to leave those out.
    """
    vf = verifiers_package()
    given = EvalDefinition.of(samples, score_fn, prepare_messages, environment_factory)
    prepare_messages, environment_factory = given.prepare_messages, given.environment_factory
    if max_turns is None:
        max_turns = given.max_turns or 16
    if threading.current_thread() is not threading.main_thread():
        raise InvalidInput(
            "verifiers sets signal handlers when an environment is made, which only the main "
            "thread may do; call to_verifiers there"
        )
    if isinstance(max_turns, bool) or not isinstance(max_turns, int) or max_turns < 1:
        raise InvalidInput(f"max_turns is a whole number >= 1, got {max_turns!r}")
    by_id: dict[str, Sample] = {}
    rows = []
    for position, sample in enumerate(given.samples):
        if sample.id in by_id:
            raise DuplicateSampleId(sample.id, position)
        by_id[sample.id] = sample
        rows.append(_row(sample, position, _prepared(sample, prepare_messages)))
    if not rows:
        raise InvalidInput("there are no samples to make an environment of")
    single = environment_factory is None
    made = _environment_class(vf, vf.SingleTurnEnv if single else vf.MultiTurnEnv)(
        dataset=import_module("datasets").Dataset.from_list(rows),
        **({} if single else {"max_turns": max_turns}),
    )
    made.heldout_samples = by_id
    made.heldout_prepare = partial(_prepared, prepare_messages=prepare_messages)
    made.heldout_environment_factory = environment_factory
    # Without the monitor that verifiers adds: it would be summed up with a metric of its name.
    made.rubric = _rubric_class(vf)(given.score_fn, made)
    return made


def _prepared(sample: Sample, prepare_messages: PrepareMessages | None) -> list[Message]:
    if prepare_messages is None:
        return messages_of(sample.input, f"sample {sample.id!r}: input")
    messages = prepare_messages(sample)
    if inspect.isawaitable(messages):
        if inspect.iscoroutine(messages):
            messages.close()
        raise InvalidInput(
            "to_verifiers takes a plain prepare_messages, not an async one: the dataset's "
            "prompts are made before any event loop runs"
        )
    return list(messages)


def _row(sample: Sample, position: int, prompt: Sequence[Message]) -> dict[str, Any]:
    """A dataset row. What a column cannot hold (content parts, calls) is put in by setup_state."""
    answer = sample.ground_truth
    return {
        "example_id": position,
        "prompt": [{"role": m.role, "content": m.text} for m in prompt],
        "answer": answer if isinstance(answer, str) else json.dumps(answer, default=str),
        "info": json.dumps({"sample_id": sample.id}),
    }


@contextmanager
def _as_theirs(vf: Any, where: str) -> Iterator[None]:
    """Their loop records its own errors in the state, and lets any other end the whole run."""
    try:
        yield
    except vf.Error:
        raise
    except Exception as problem:
        raise vf.Error(f"{where}: {error_chain(problem)}") from problem


@functools.cache
def _environment_class(vf: Any, base: Any) -> Any:
    class HeldoutEnv(base):  # type: ignore[misc]
        """A heldout environment, or a single turn, in verifiers' loop."""

        heldout_samples: dict[str, Sample]
        heldout_prepare: Callable[[Sample], list[Message]]
        heldout_environment_factory: EnvironmentFactory | None

        async def setup_state(self, state: Any) -> Any:
            sample = self.heldout_samples[state["info"]["sample_id"]]
            with _as_theirs(vf, f"sample {sample.id!r}: prepare_messages"):
                episode = _Episode(sample, self.heldout_prepare(sample))
            state["heldout"] = episode
            if self.heldout_environment_factory is not None:
                with _as_theirs(vf, f"sample {sample.id!r}: environment"):
                    environment = await settle(self.heldout_environment_factory(sample))
                    episode.environment = environment
                    episode.messages.extend(await settle(environment.opening()))
                    state["tool_defs"] = [
                        vf.Tool(name=t.name, description=t.description, parameters=t.parameters)
                        for t in environment.tools
                    ]
            state["prompt"] = theirs(episode.messages)
            return state

        async def add_model_response(self, state: Any, prompt_messages: Any, response: Any) -> None:
            await super().add_model_response(state, prompt_messages, response)
            step, episode = state["trajectory"][-1], state["heldout"]
            episode.messages.extend(ours(step["completion"]))
            episode.turns += 1
            end = _end(step)
            if episode.environment is None:
                episode.stop = Stop("no_reply", **end)
                return
            # Here and not in env_response, which verifiers leaves out after the last turn: every
            # turn reaches the environment.
            with _as_theirs(vf, f"sample {episode.sample.id!r}: environment"):
                reply = await settle(episode.environment.reply(tuple(episode.messages)))
                if not isinstance(reply, Reply):
                    raise TypeError(f"an environment's reply is a Reply, got {reply!r:.200}")
            episode.messages.extend(reply.messages)
            episode.reply = theirs(reply.messages)
            if reply.done:
                episode.stop = Stop("environment", **end)
            elif not reply.messages:
                episode.stop = Stop("no_reply", **end)
            elif episode.turns >= self.max_turns > 0:
                episode.stop = Stop("limit", "max_turns", **end)
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
            if episode.stop is None:
                episode.stop = _limit(state)
            environment = episode.environment
            try:
                if state.get("error") is None and isinstance(environment, HasOutcome):
                    with _as_theirs(vf, f"sample {episode.sample.id!r}: environment"):
                        episode.outcome = await settle(environment.outcome())
            except vf.Error as problem:
                state["error"] = problem
            finally:
                if environment is not None:
                    try:
                        with _as_theirs(vf, f"sample {episode.sample.id!r}: environment"):
                            await settle(environment.close())
                    except vf.Error as problem:
                        state["error"] = state.get("error") or problem

    return HeldoutEnv


def _unfinished(vf: Any, state: Any) -> Any:
    """An error where heldout has one and verifiers would score what there is."""
    if state.get("timed_out"):
        return vf.Error("the rollout was not done after timeout_seconds")
    if not state["trajectory"]:
        return vf.Error(f"there was no model turn ({state.get('stop_condition')})")
    return None


def _limit(state: Any) -> Stop:
    """A limit of verifiers that ended the rollout, in heldout's words."""
    condition = state.get("stop_condition") or "unknown"
    known = {
        "max_turns_reached": "max_turns",
        "prompt_too_long": "context",
        "max_total_completion_tokens_reached": "token_budget",
    }
    end = _end(state["trajectory"][-1]) if state["trajectory"] else {}
    return Stop("limit", known.get(condition, condition), **end)


def _end(step: Any) -> dict[str, Any]:
    """What a Stop says of how the last model turn ended."""
    said = getattr(getattr(step.get("response"), "message", None), "finish_reason", None)
    return {"truncated": bool(step["is_truncated"]), "finish_reason": said}


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
                with _as_theirs(vf, f"sample {episode.sample.id!r}: score_fn"):
                    score = await settle(self.score_fn(trajectory, episode.sample))
                    if not isinstance(score, Score):
                        raise TypeError(f"score_fn returns a Score, got {score!r:.200}")
            except vf.Error as problem:
                state["error"] = problem
                return
            state["reward"] = score.reward
            state["metrics"] = {metric.name: metric.value for metric in score.metrics}

        async def score_group(self, states: list[Any]) -> None:
            """Each by itself; its advantage is over those of the group that have a score."""
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
