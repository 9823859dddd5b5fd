"""How the policy is run and scored at a point of the curve.

A runner builder is a function of the model as it is at that moment: `(model) -> Runner`.
`live_model` makes one for a transformers model, `functions` one of your own render and generate.
What a `Runner` holds is what `heldout.evaluate` takes: the eval's own score function, messages and
environments, single- or multi-turn.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import anyio

from heldout.concurrency import settle
from heldout.config import Sampling
from heldout.endpoints.batch import Answered, Request
from heldout.errors import InvalidInput
from heldout.items import EnvironmentFactory, PrepareMessages, ScoreFn
from heldout.midrun.settings import Settings
from heldout.reasoning import without_reasoning
from heldout.scoring.rubrics import Rubric
from heldout.types import Message, Metric, Sample, Score, Trajectory
from heldout.weights import why_not_whole

KEPT_MODELS = 4
"""Models whose decoders, with what is prepared for them, are kept from one eval to the next."""

KeepGoing = Callable[[], bool]
Answer = Callable[[Sequence[Request], KeepGoing], Sequence[Answered]]
AnswerFilter = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Runner:
    answer: Answer
    """Answers a batch, in the thread that trains. Asks now and then whether to keep going, which
    is also a sign of life; answers None where it was told not to."""
    score_fn: ScoreFn
    prepare_messages: PrepareMessages | None = None
    environment_factory: EnvironmentFactory | None = None
    answer_filter: AnswerFilter | None = without_reasoning
    """What a score function gets to see of the model's last turn. The stored one stays whole."""
    sampling: Sampling = field(default_factory=Sampling)
    rows: int = 32
    """Items under way at once: the largest batch."""
    repeats: int = 1
    max_turns: int = 16
    token_budget: int | None = None
    timeout: float | None = 600.0
    """Seconds that one item may take for itself: its environment, tools and scoring. Waiting for
    the model, which answers all items of a batch at once, does not count."""
    own_random: bool = False
    """Whether `answer` draws from generators of its own alone. Where it is not known to, torch's
    global state is guarded while an eval runs beside the training, which takes time."""
    describe: Callable[[], dict[str, Any]] = dict
    """What to record of how answers were made: batch shape, kernels. A `way` of "captured" means
    that a batch costs the same when it is not full."""

    def scoring(self) -> ScoreFn:
        answer_filter = self.answer_filter or str
        if isinstance(self.score_fn, Rubric) and answer_filter is without_reasoning:
            answer_filter = str  # it does so itself, and has parts that look at the reasoning
        return filtered(self.score_fn, answer_filter)


RunnerBuilder = Callable[[Any], Runner]


def filtered(score_fn: ScoreFn, answer_filter: AnswerFilter) -> ScoreFn:
    """The score function, which sees the last turn of the model as the filter leaves it."""

    turns = anyio.Lock()

    async def score(trajectory: Trajectory, sample: Sample) -> Score:
        # All items of a batch are answered at once, and would be scored in one go. One by one,
        # those that have not begun when time is up can be left out.
        async with turns:
            given = score_fn(_seen_through(trajectory, answer_filter), sample)
        return await settle(given)

    # What a report stores as its scorer is the eval's own.
    score.__wrapped__ = score_fn  # type: ignore[attr-defined]
    return score


def _seen_through(trajectory: Trajectory, answer_filter: AnswerFilter) -> Trajectory:
    messages = list(trajectory.messages)
    for place in range(len(messages) - 1, -1, -1):
        message = messages[place]
        if message is trajectory.last_turn:
            if isinstance(message.content, str):
                messages[place] = replace(message, content=answer_filter(message.content))
            break
    return replace(trajectory, messages=tuple(messages))


Judgement = Score | float | bool | Mapping[str, float]


def score_answer(
    judge: Callable[[str, Sample], Judgement | Awaitable[Judgement]],
) -> ScoreFn:
    """A score function of a function of the answer's text and the sample.

    It returns a Score, a number (the reward), or numbers by name: `reward` counts, the others
    are tracked beside it.
    """

    async def score(trajectory: Trajectory, sample: Sample) -> Score:
        return as_score(await settle(judge(trajectory.answer, sample)))

    score.__wrapped__ = judge  # type: ignore[attr-defined]
    return score


def as_score(given: Any) -> Score:
    if isinstance(given, Score):
        return given
    if isinstance(given, Mapping):
        if "reward" not in given:
            raise InvalidInput(f"a score by name has a 'reward', got {sorted(map(str, given))}")
        metrics = [Metric(n, v, float(n == "reward")) for n, v in given.items()]
        return Score(tuple(metrics))
    if isinstance(given, bool | int | float):
        return Score((Metric("reward", float(given), 1.0),))
    raise InvalidInput(f"a score is a Score, a number, or numbers by name, got {given!r:.100}")


# --- Builders -----------------------------------------------------------------------------------


def functions(
    render: Callable[[Sequence[Message]], Any],
    generate: Callable[[Any, list[Any], int], Sequence[str | Message]],
    score_fn: ScoreFn,
    *,
    max_new: int | None = None,
    **settings: Any,
) -> RunnerBuilder:
    """A builder of two functions: `render(messages)` gives a prompt of whatever kind,
    `generate(model, prompts, max_new)` the turn for each, in order. The rest is `Runner`'s."""
    sampling = _limited(settings.pop("sampling", None) or Sampling(), max_new)

    def build(model: Any) -> Runner:
        def answer(requests: Sequence[Request], keep_going: KeepGoing) -> Sequence[Answered]:
            prompts: list[Any] = []
            answers: list[Answered] = [None] * len(requests)
            rendered: list[int] = []
            for place, request in enumerate(requests):
                try:
                    prompts.append(render(list(request.messages)))
                    rendered.append(place)
                except Exception as problem:  # noqa: BLE001 - the error of this item
                    answers[place] = problem
            assert sampling.max_tokens is not None
            turns = list(generate(model, prompts, sampling.max_tokens)) if prompts else []
            if len(turns) != len(prompts):
                raise InvalidInput(
                    f"generate was given {len(prompts)} prompts and returned {len(turns)} turns"
                )
            for place, turn in zip(rendered, turns, strict=True):
                answers[place] = turn
            return answers

        return Runner(answer, score_fn, sampling=sampling, **settings)

    return build


def _limited(sampling: Sampling, max_new: int | None) -> Sampling:
    """With a longest turn: as given here, or there, or by the environment."""
    if max_new is None and sampling.max_tokens is not None:
        return sampling
    limit = Settings.from_environment().max_new if max_new is None else max_new
    return replace(sampling, max_tokens=limit)


def live_model(
    tokenizer: Any,
    score_fn: ScoreFn,
    *,
    max_new: int | None = None,
    rows: int = 32,
    graphs: bool | None = None,
    **settings: Any,
) -> RunnerBuilder:
    """A builder for the transformers model that is being trained, greedy unless `sampling` says
    otherwise. The rest is `Runner`'s.

    What is prepared for the model (captured graphs on a GPU) is kept from one eval to the next.
    """
    from heldout.decoding import Decoder
    from heldout.decoding.chat import ChatModel, answer_all

    sampling = _limited(settings.pop("sampling", None) or Sampling(), max_new)
    kept: list[tuple[Any, ChatModel, Decoder]] = []
    """For the models met last: the one in training, and shadows of it."""
    finding = threading.Lock()

    def build(model: Any) -> Runner:
        if (reason := why_not_whole(model)) is not None:
            raise InvalidInput(reason)
        with finding:
            found = next((each for each in kept if each[0] is model), None)
            if found is None:
                chat = ChatModel(model, tokenizer, "the model in training")
                found = (model, chat, Decoder(model, tokenizer, rows=rows, graphs=graphs))
            kept[:] = [found, *(each for each in kept if each is not found)][:KEPT_MODELS]
        _, chat, decoder = found

        def answer(requests: Sequence[Request], keep_going: KeepGoing) -> Sequence[Answered]:
            answers: list[Answered] = [None] * len(requests)
            answer_all(chat, decoder, requests, answers.__setitem__, keep_going=keep_going)
            return answers

        return Runner(
            answer,
            score_fn,
            sampling=sampling,
            rows=rows,
            own_random=True,
            describe=decoder.describe,
            **settings,
        )

    return build


__all__ = [
    "Answered",
    "Request",
    "Runner",
    "RunnerBuilder",
    "functions",
    "live_model",
    "score_answer",
    "without_reasoning",
]
