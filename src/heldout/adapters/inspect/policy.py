"""One attempt at a sample of an Inspect task, and the policy that its code asks as a model."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import anyio
from inspect_ai.model import Model, ModelAPI, modelapi

from heldout._core.aio import as_error
from heldout.adapters.inspect.messages import to_heldout_messages, to_model_output, to_tool_specs
from heldout.environments.driven import DrivenConversation
from heldout.errors import EnvironmentFailed
from heldout.types import Completion

UNLIMITED = 100_000
"""Inspect's own limits of samples and connections: heldout limits what is in flight."""
POLICY = "heldout/policy"
_HONOURED = {
    *("system_message", "max_tool_output", "reasoning_history", "stop_seqs"),  # by Inspect, or here
    *("max_connections", "adaptive_connections", "max_retries", "timeout", "attempt_timeout"),
    *("stream_idle_timeout", "batch", "cache_prompt", "extra_headers", "fallback_models"),
}
"""Settings of a request that are honoured, or that change no answer."""

_item: contextvars.ContextVar[InspectItem | None] = contextvars.ContextVar("item", default=None)
"""The item whose solver or scorer runs."""
_in_scorer: contextvars.ContextVar[bool] = contextvars.ContextVar("in_scorer", default=False)


# --- One item -----------------------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class InspectItem:
    """One attempt at a sample: what both event loops know of it."""

    sample: Any
    conversation: DrivenConversation
    loop: asyncio.AbstractEventLoop
    """The loop of its run."""
    epoch: int = 0
    """Inspect's: one for each attempt at a sample in a session."""
    ignored: dict[str, Any] = field(default_factory=dict)
    """Settings that its code asked for, and that are not honoured."""
    missing: list[str] = field(default_factory=list)
    """Scorers that returned no score."""
    scope: anyio.CancelScope | None = None
    has_ended: bool = False

    def finish(self, outcome: dict[str, Any]) -> None:
        """Say in the run's loop what came of it."""
        self._call(self.conversation.finish, outcome)

    def fail(self, problem: Exception) -> None:
        """Say in the run's loop that it failed."""
        self._call(self.conversation.fail, problem)

    def cancel(self) -> None:
        """End its solver or scorer. Called in Inspect's loop."""
        self.has_ended = True
        if self.scope is not None:
            self.scope.cancel()

    async def ask(self, messages: list[Any], tools: list[Any]) -> Completion:
        """Have the policy make a turn, in the run's loop."""
        asked = self.conversation.ask(to_heldout_messages(messages), to_tool_specs(tools))
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asked, self.loop))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let `cancel` end what runs here, and make an error of what would end more, or nothing.

        Inspect would log an unhandled `TimeoutError`, and score what there is; a `SystemExit` would
        end its whole eval.
        """
        token = _item.set(self)
        try:
            with anyio.CancelScope() as self.scope:
                if self.has_ended:
                    self.scope.cancel()
                yield
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as problem:
            cause = as_error(problem)
            if isinstance(cause, TimeoutError):
                raise EnvironmentFailed(f"its code let a TimeoutError out: {cause}") from problem
            if isinstance(problem, Exception):  # a limit, say
                raise
            raise EnvironmentFailed(f"its code ended with {cause}") from problem
        finally:
            self.scope = None
            _item.reset(token)
        if self.has_ended:
            raise EnvironmentFailed("the item has ended")

    def _call(self, function: Callable[..., None], *args: Any) -> None:
        with suppress(RuntimeError):  # that loop is closed: nobody waits for it any more
            self.loop.call_soon_threadsafe(function, *args)

    @contextmanager
    def in_scorer(self) -> Iterator[None]:
        """Let a scorer run, which must not ask the policy to grade itself."""
        token = _in_scorer.set(True)
        try:
            with self.running():
                yield
        finally:
            _in_scorer.reset(token)


# --- The policy, as a model of Inspect ----------------------------------------------------------


class PolicyModel(Model):  # type: ignore[misc]
    """The policy. Its turns are never taken from Inspect's cache, which knows no weights."""

    async def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Ask the policy."""
        return await super().generate(*args, **{**kwargs, "cache": False})


@modelapi(name=POLICY.partition("/")[0])
class PolicyAPI(ModelAPI):  # type: ignore[misc]
    """Passes what solvers ask to the conversation of their item."""

    def __init__(self, counts_tokens: bool) -> None:
        super().__init__(POLICY.partition("/")[2])
        self._counts_tokens = counts_tokens

    async def generate(self, input: Any, tools: Any, tool_choice: Any, config: Any) -> Any:
        """Have the policy make a turn."""
        item = _item.get()
        if item is None:
            raise EnvironmentFailed("the policy is asked outside of a sample's solvers")
        try:
            _check_request(config)
        except EnvironmentFailed as problem:
            item.fail(problem)
            raise
        _note_ignored(item, config, tools, tool_choice)
        completion = await item.ask(input, tools)
        try:
            if self._counts_tokens and completion.usage is None:
                raise EnvironmentFailed(
                    "the task has a token_limit, and the endpoint does not say how many it used"
                )
            text = _cut(completion, config.stop_seqs or ())
        except EnvironmentFailed as problem:
            item.fail(problem)
            raise
        return to_model_output(completion, POLICY, text)

    def max_connections(self) -> int:
        """Leave it to heldout."""
        return UNLIMITED

    def should_retry(self, ex: Any) -> bool:
        """Leave it to heldout."""
        return False


def _check_request(config: Any) -> None:
    if _in_scorer.get():
        raise EnvironmentFailed(
            "a scorer asks the evaluated model, which would grade itself; name a grader: "
            "from_inspect(…, model_roles={'grader': 'openai/gpt-5-mini'})"
        )
    if (config.num_choices or 1) > 1 or (config.best_of or 1) > 1:
        raise EnvironmentFailed("a solver asks for several choices, and a policy's turn is one")


def _note_ignored(item: InspectItem, config: Any, tools: Any, tool_choice: Any) -> None:
    asked = config.model_dump(mode="json", exclude_none=True, exclude=_HONOURED | {"cache"})
    if tools and tool_choice != "auto":
        asked["tool_choice"] = tool_choice if isinstance(tool_choice, str) else tool_choice.name
    item.ignored.update(asked)


def _cut(completion: Completion, stops: Sequence[str]) -> str:
    """Return a turn's text up to the first stop sequence."""
    text = completion.message.text
    ends = [at for stop in stops if stop and (at := text.find(stop)) >= 0]
    if ends and completion.message.tool_calls:
        raise EnvironmentFailed(
            "a turn has tool calls and a stop sequence: where it ends is unknown"
        )
    return text[: min(ends)] if ends else text
