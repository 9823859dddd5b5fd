"""The values everything else is made of: frozen, plain, encodable as JSON.

A `Sample` is what is asked, a `Trajectory` what the policy did, a `Score` what that was worth,
an `EvalResult` all three together. They are ordinary frozen dataclasses, so
`dataclasses.replace` works on them, and the same ones serve an eval and a training loop.
What could not be meant (a NaN metric, a negative weight, two metrics of one name) is refused
where it is made.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from itertools import takewhile
from operator import index
from typing import Any, Literal, Self

from heldout._finish_reasons import normalize_finish_reason
from heldout._reasoning import without_reasoning
from heldout.errors import InvalidInput

Role = Literal["system", "user", "assistant", "tool"]
ContentPart = dict[str, Any]
"""A part of a message as chat APIs have it: text, an image, a sound or a file."""


def refuse_nonfinite(value: Any, where: str) -> None:
    """Refuse NaN and infinities anywhere in a value, which JSON would store as null."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidInput(
                f"{where} is {value}, which JSON cannot hold",
                hint=f"write None, or a text such as '{value}'",
            )
    elif isinstance(value, dict):
        for key, part in value.items():
            refuse_nonfinite(part, f"{where}[{key!r}]")
    elif isinstance(value, list | tuple | set | frozenset):
        for position, part in enumerate(value):
            refuse_nonfinite(part, f"{where}[{position}]")
    elif callable(getattr(value, "tolist", None)):  # numpy's and torch's
        refuse_nonfinite(value.tolist(), where)
    elif is_dataclass(value) and not isinstance(value, type):
        for attribute in fields(value):
            refuse_nonfinite(getattr(value, attribute.name), f"{where}.{attribute.name}")


@dataclass(frozen=True, slots=True)
class Sample:
    """One held-out item. `id` is unique in an eval; `input` holds what the policy is asked."""

    id: str
    input: dict[str, Any]
    ground_truth: Any = None
    metadata: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not self.id:
            raise InvalidInput(
                f"a sample id must be a non-empty string, got {self.id!r} "
                f"({type(self.id).__name__}); str(...) makes one of a number"
            )
        if not isinstance(self.input, dict):
            raise InvalidInput(
                f"sample {self.id!r}: input is a dict such as {{'question': '…'}}, "
                f"got {type(self.input).__name__}"
            )
        if not isinstance(self.metadata, dict):
            raise InvalidInput(
                f"sample {self.id!r}: metadata must be a dict, got {type(self.metadata).__name__}"
            )


@dataclass(frozen=True, slots=True)
class Metric:
    """A named number. Weight 0 is tracked only; weight > 0 counts towards the reward.

    `rate` says that it is 0 or 1, or between, by nature, as a bool is. Without it a tracked metric
    that is 1 everywhere may be a count, and has no interval.
    """

    name: str
    value: float
    weight: float = 0.0
    metadata: dict[str, Any] = field(default_factory=dict)
    rate: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        if not self.name:
            raise InvalidInput("a metric's name must be a non-empty string, got ''")
        if type(self.rate) is not bool:
            object.__setattr__(self, "rate", bool(self.rate))
        if type(self.value) is not float:
            if type(self.value).__name__ in ("bool", "bool_"):  # numpy's has either name
                object.__setattr__(self, "rate", True)
            self._convert("value")
        if type(self.weight) is not float:
            self._convert("weight")
        if not math.isfinite(self.value):
            raise InvalidInput(
                f"metric {self.name!r}: value is {self.value}; a metric is a finite number. "
                "Where there is nothing to measure, leave the metric out or raise"
            )
        if self.rate and not 0 <= self.value <= 1:
            raise InvalidInput(
                f"metric {self.name!r}: value is {self.value}; a rate is between 0 and 1"
            )
        if not 0 <= self.weight < math.inf:
            raise InvalidInput(
                f"metric {self.name!r}: weight is {self.weight}; a weight is finite and >= 0 "
                "(0 = tracked only)"
            )
        if not isinstance(self.metadata, dict):
            raise InvalidInput(
                f"metric {self.name!r}: metadata must be a dict, got {type(self.metadata).__name__}"
            )
        if self.metadata:
            refuse_nonfinite(self.metadata, f"metric {self.name!r}: metadata")

    def _convert(self, attribute: str) -> None:
        number = getattr(self, attribute)
        try:
            object.__setattr__(self, attribute, float(number))
        except (TypeError, ValueError):
            raise InvalidInput(
                f"metric {self.name!r}: {attribute} must be a number, got {number!r}"
            ) from None


METRIC_SUFFIXES = ("_n", "_stderr", "_ci_low", "_ci_high")
"""What a summary puts behind `metric_<name>`."""


@dataclass(frozen=True, slots=True)
class Score:
    """What a trajectory was worth: its metrics, and the reward they amount to."""

    metrics: tuple[Metric, ...] = ()

    def __post_init__(self) -> None:
        if type(self.metrics) is not tuple:
            if not isinstance(self.metrics, Sequence):
                raise InvalidInput(
                    f"Score takes a tuple or list of Metric, got {type(self.metrics).__name__}"
                )
            object.__setattr__(self, "metrics", tuple(self.metrics))
        for metric in self.metrics:
            if not isinstance(metric, Metric):
                raise InvalidInput(f"Score takes Metrics, got {metric!r}")
        if len(self.metrics) > 1:
            self._check_names()
        if not math.isfinite(self.reward):
            raise InvalidInput("the weighted mean of the metrics is too large a number")

    def _check_names(self) -> None:
        names: set[str] = set()
        for metric in self.metrics:
            if metric.name in names:
                raise InvalidInput(f"two metrics are named {metric.name!r}; names are unique")
            names.add(metric.name)
        for name in names:
            for suffix in METRIC_SUFFIXES:
                if name.endswith(suffix) and name.removesuffix(suffix) in names:
                    raise InvalidInput(
                        f"a metric named {name!r} would be taken for what a summary says of "
                        f"{name.removesuffix(suffix)!r}; rename one of the two"
                    )

    @property
    def reward(self) -> float:
        """The weighted mean of the metrics with weight > 0; 0.0 if there is none."""
        total = weight = 0.0
        for metric in self.metrics:
            if metric.weight:
                total += metric.value * metric.weight
                weight += metric.weight
        return total / weight if weight else 0.0

    def __contains__(self, name: object) -> bool:
        return any(metric.name == name for metric in self.metrics)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the metrics, as a dict does."""
        return (metric.name for metric in self.metrics)

    def __getitem__(self, name: str) -> float:
        for metric in self.metrics:
            if metric.name == name:
                return metric.value
        raise KeyError(f"no metric {name!r}; there are {[m.name for m in self.metrics]}")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as the model wrote it: `arguments` is its JSON text, parsed by the environment."""

    id: str
    name: str
    arguments: str = "{}"

    def __post_init__(self) -> None:
        for name, value in (("id", self.id), ("name", self.name)):
            if type(value) is not str:
                raise InvalidInput(f"a tool call's {name} must be text, got {type(value).__name__}")
        if type(self.arguments) is not str:
            raise InvalidInput(
                f"a tool call's arguments must be JSON text, got {type(self.arguments).__name__}; "
                "json.dumps(…) makes it of a dict"
            )


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message; `content` is text, or a list of content parts as chat APIs have them.

    `api_turn` is what the API that made a turn needs to get back with it, such as signed reasoning:
    JSON values that only the endpoint reads. Messages that differ in it alone say the same.
    """

    role: Role
    content: str | list[ContentPart]
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    reasoning: str | None = None
    api_turn: dict[str, Any] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.role not in ("system", "user", "assistant", "tool"):
            raise InvalidInput(
                f"a message's role must be system, user, assistant or tool, got {self.role!r}"
            )
        if not isinstance(self.content, str) and not _is_list_of_parts(self.content):
            raise InvalidInput(
                "a message's content must be text or a list of parts, which are dicts; got "
                f"{self.content!r:.200}"
            )
        if self.tool_call_id is not None or self.reasoning is not None:
            for text in (self.tool_call_id, self.reasoning):
                if not isinstance(text, str | None):
                    raise InvalidInput(
                        f"a message's tool_call_id and reasoning must be texts, got {text!r:.200}"
                    )
        if self.api_turn is not None and not isinstance(self.api_turn, dict):
            raise InvalidInput(f"a message's api_turn must be a dict, got {self.api_turn!r:.200}")
        if type(self.tool_calls) is not tuple:
            object.__setattr__(self, "tool_calls", tuple(self.tool_calls))
        for call in self.tool_calls:
            if not isinstance(call, ToolCall):
                raise InvalidInput(f"a message's tool_calls must be ToolCalls, got {call!r:.200}")

    @property
    def text(self) -> str:
        """The content as text: its text parts joined, other parts left out."""
        if isinstance(self.content, str):
            return self.content
        return "".join(str(p.get("text", "")) for p in self.content if p.get("type") == "text")


def _is_list_of_parts(content: Any) -> bool:
    return isinstance(content, list) and all(isinstance(part, dict) for part in content)


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """What a policy is told of a tool: `parameters` is a JSON schema."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=lambda: {"type": "object"})


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a trajectory ended. Three signals that must not be mixed up.

    `ended_by` says who ended it: the environment, a limit (`limit` names which), no reply to the
    model's turn, or an error in the middle. `truncated` says, apart from that, that the model's
    last turn was cut off (finish reason `length`). `finish_reason` is that turn's, as its
    `Completion` had it; None where the endpoint said nothing.
    """

    ended_by: Literal["environment", "limit", "no_reply", "error"] = "no_reply"
    limit: str | None = None
    truncated: bool = False
    finish_reason: str | None = None

    def __post_init__(self) -> None:
        if self.finish_reason is not None and not isinstance(self.finish_reason, str):
            raise InvalidInput(f"a finish reason must be a text, got {self.finish_reason!r:.200}")


MOST_TOKENS = 2**53
"""Larger counts are not token counts, and would fit neither columns nor JavaScript numbers."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that model turns took, as the endpoint reports them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    def __post_init__(self) -> None:
        for name in ("prompt_tokens", "completion_tokens"):
            count = getattr(self, name)
            if type(count) is not int:
                try:
                    count = index(count)  # a NumPy integer, say
                except TypeError:
                    raise InvalidInput(
                        f"{name} must be a whole number, got {count!r:.200}"
                    ) from None
                object.__setattr__(self, name, count)
            if not 0 <= count <= MOST_TOKENS:
                raise InvalidInput(f"{name} must be from 0 to 2^53, got {count}")

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
        )


@dataclass(frozen=True, slots=True)
class OtherUsage:
    """Tokens that a judge or a simulated user took in one attempt; None where it does not say."""

    role: Literal["judge", "user"]
    model: str
    usage: Usage | None

    @classmethod
    def merge(cls, parts: Iterable[OtherUsage]) -> tuple[OtherUsage, ...]:
        """Add up what each model took in each role; unknown where a part of it is."""
        merged: dict[tuple[Any, str], OtherUsage] = {}
        for part in parts:
            key = part.role, part.model
            before = merged.get(key)
            if before is not None:
                usage = before.usage and part.usage and before.usage + part.usage
                part = cls(part.role, part.model, usage)
            merged[key] = part
        return tuple(merged[key] for key in sorted(merged))


@dataclass(frozen=True, slots=True)
class Timing:
    """Wall seconds of the item, scoring included, and how many requests it took, with retries.

    `restored_turns` are the model turns that a run had made before it was stopped, and that a
    resumed one has taken from what was saved (`save_turns`); seconds and requests include them.
    `cached_turns` came from the response cache, without a request.

    `turn_seconds` are those of each model turn, from when it was asked for until it was there, so
    with retries and waiting for others of its batch; `reply_seconds` those of the environment's
    reply to each. None where that was not measured: nowhere, or for one turn.

    `retry_seconds` are the part of `turn_seconds` that went into requests which failed and were
    made again, with the waits between them; `score_seconds` those of the score function, its judges
    included. None where that was not measured.

    `queue_seconds` are those in which the item waited for a slot or for its turn: for a batch to
    begin, for a judge, a sandbox, a worker, another eval. They are named by the stage that they are
    part of (model, environment, scoring, other), and one without a wait is left out. None where
    that was not measured.
    """

    seconds: float
    requests: int = 1
    restored_turns: int = 0
    cached_turns: int = 0
    turn_seconds: tuple[float | None, ...] | None = None
    reply_seconds: tuple[float | None, ...] | None = None
    retry_seconds: float | None = None
    score_seconds: float | None = None
    queue_seconds: dict[str, float] | None = None


@dataclass(frozen=True, slots=True)
class TokenTrace:
    """The same rollout in tokens: the prompt, then everything after it, interleaved.

    `env_mask` is 1 for the model's own tokens and 0 for the environment's, whose `logprobs` are
    0.0. An engine that gives no logprobs leaves None instead of made-up ones.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    env_mask: tuple[int, ...]

    def __post_init__(self) -> None:
        for name in ("prompt_ids", "completion_ids", "logprobs", "env_mask"):
            value = getattr(self, name)
            if value is not None and type(value) is not tuple:
                object.__setattr__(self, name, tuple(value))
        n, mask = len(self.completion_ids), len(self.env_mask)
        logprobs = n if self.logprobs is None else len(self.logprobs)
        if not n == logprobs == mask:
            raise InvalidInput(
                "completion_ids, logprobs and env_mask must align, got lengths "
                f"{n}, {logprobs} and {mask}"
            )


@dataclass(frozen=True, slots=True)
class Trajectory:
    """What happened: the whole conversation, why it ended, and what came of it.

    `outcome` is what the environment says of its final state, as plain JSON values, for score
    functions that judge the state and not the words; None where it says nothing. `model_turns` are
    the positions in `messages` of the model's own; None where that is every assistant's message.
    `reads_metadata` says that an environment took part that may depend on the sample's metadata.
    """

    messages: tuple[Message, ...]
    stop: Stop = field(default_factory=Stop)
    usage: Usage | None = None
    tokens: TokenTrace | None = None
    timing: Timing | None = None
    outcome: dict[str, Any] | None = None
    model_turns: tuple[int, ...] | None = None
    reads_metadata: bool = False

    def __post_init__(self) -> None:
        if type(self.messages) is not tuple:
            object.__setattr__(self, "messages", tuple(self.messages))

    @property
    def opening(self) -> tuple[Message, ...]:
        """The messages before the model's first turn; all of them where it said nothing."""
        if self.model_turns is not None:
            return self.messages[: self.model_turns[0]] if self.model_turns else self.messages
        return (*takewhile(lambda message: message.role != "assistant", self.messages),)

    @property
    def last_turn(self) -> Message | None:
        """What the model said last; None where it said nothing."""
        if self.model_turns is not None:
            return self.messages[self.model_turns[-1]] if self.model_turns else None
        for message in reversed(self.messages):
            if message.role == "assistant":
                return message
        return None

    @property
    def answer(self) -> str:
        """The last model turn without its reasoning: "" if it has none, or never got out of it."""
        turn = self.last_turn
        return "" if turn is None else without_reasoning(turn.text)


@dataclass(frozen=True, slots=True)
class Continuation:
    """A given text, and what it would continue: a prompt as it is, or a conversation."""

    prompt: str | tuple[Message, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Likelihood:
    """How likely a model finds a given continuation: its log-probability, and what to divide by."""

    logprob: float
    """Sum over its tokens, natural logarithm."""
    greedy: bool
    """Whether greedy decoding would have written it."""
    tokens: int
    characters: int
    bytes: int

    @property
    def per_token(self) -> float:
        """The mean over its tokens."""
        return self.logprob / self.tokens

    @property
    def per_byte(self) -> float:
        """The sum divided by its length in UTF-8."""
        return self.logprob / self.bytes


@dataclass(frozen=True, slots=True)
class Rating:
    """The likelihoods of given continuations, in their order, as an endpoint returns them."""

    likelihoods: tuple[Likelihood, ...]
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class EvalResult:
    """One item of an eval, scored or errored. `metadata` includes its sample's."""

    sample_id: str
    sample: Sample
    trajectory: Trajectory
    score: Score = field(default_factory=Score)
    metadata: dict[str, Any] = field(default_factory=dict)
    repeat: int = 0
    error: str | None = None
    error_stage: str | None = None
    """What was being called when it errored: "endpoint", "environment", "score_fn", …"""
    other_usage: tuple[OtherUsage, ...] = ()
    """What judges and simulated users took; `trajectory.usage` is the policy's."""
    tools: tuple[ToolSpec, ...] = field(default=(), repr=False)
    """What the policy could call; none where an earlier version stored it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "metadata", {**self.sample.metadata, **self.metadata})
        if self.error is not None and self.score.metrics:
            raise InvalidInput(f"result {self.sample_id!r} has both an error and a score")

    @property
    def ok(self) -> bool:
        """Whether it was scored."""
        return self.error is None

    @property
    def question(self) -> str:
        """The last user message before the model's first turn, without few-shot examples.

        These end where the `question` of the sample's input begins. "" without a conversation.
        """
        opening = [message for message in self.trajectory.opening if message.role != "system"]
        asked = [message for message in opening if message.role == "user"] or opening
        text = asked[-1].text if asked else ""
        own = self.sample.input.get("question")
        if isinstance(own, str) and own.strip():
            text = text[max(0, text.rfind(own.strip())) :]
        return text


@dataclass(frozen=True, slots=True)
class Completion:
    """A policy's turn, as an endpoint returns it."""

    message: Message
    finish_reason: str | None = None
    """How it ended. What other APIs call `stop`, `length` and `tool_calls` becomes that."""
    usage: Usage | None = None
    cached: bool = False
    """Whether it came from the response cache, without a request."""
    weight_version: str | None = None
    """Which weights the server says it answered with; None where it says nothing."""

    def __post_init__(self) -> None:
        if isinstance(self.finish_reason, str):
            object.__setattr__(self, "finish_reason", normalize_finish_reason(self.finish_reason))

    @classmethod
    def of(cls, answer: str | Message | Completion) -> Self | Completion:
        """Make a completion of what an endpoint function returned."""
        if isinstance(answer, Completion):
            return answer
        if isinstance(answer, str):
            answer = Message("assistant", answer)
        if not isinstance(answer, Message):
            raise TypeError(
                "an endpoint function returns str, Message or Completion (which says how the turn "
                f"ended), got {type(answer).__name__}"
            )
        return cls(answer)


__all__ = [
    "Completion",
    "ContentPart",
    "Continuation",
    "EvalResult",
    "Likelihood",
    "Message",
    "Metric",
    "OtherUsage",
    "Rating",
    "Sample",
    "Score",
    "Stop",
    "Timing",
    "TokenTrace",
    "ToolCall",
    "ToolSpec",
    "Trajectory",
    "Usage",
]
