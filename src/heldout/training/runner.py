"""How the policy is run and scored at a point of the curve.

A runner builder is a function `(model) -> Runner`, called at each eval. `live_model` makes one for
a transformers model, `from_functions` one from a render and a generate function. A `Runner` holds
what `heldout.evaluate` takes: the eval's score function, messages and environments.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import anyio

from heldout._core.aio import settle
from heldout._core.checks import check_count, check_number, check_text, refuse_unknown
from heldout._core.config import (
    LOCAL_MAX_TOKENS,
    MAX_ERROR_RATE,
    MAX_TURNS,
    Sampling,
    check_sampling,
)
from heldout._evals.rollout import (
    EnvironmentFactory,
    EvalDefinition,
    PrepareMessages,
    ScoreFn,
    check_questions,
    check_score_fn,
    merge_sampling,
    own_pass_threshold,
    turn_limit,
)
from heldout._live.isolation import untouched_random_state
from heldout._live.rendering.chat_templates import ChatFormat
from heldout._live.weights import explain_sharding, sharding_way
from heldout._reasoning import opened_reasoning, without_reasoning
from heldout.datasets import distinct
from heldout.environment import rates_continuations
from heldout.errors import InvalidInput
from heldout.models.batch import Answered, Request
from heldout.scoring.grades import as_score
from heldout.scoring.rubric import Rubric
from heldout.store.fingerprint import (
    PARTS,
    describe_callable,
    describe_parts,
    describe_template,
    describe_tokenizer,
    set_known_as,
)
from heldout.store.report import EvalReport
from heldout.store.resume import as_stored
from heldout.training import reasons
from heldout.training.ranks import Ranks
from heldout.training.settings import EnvironmentSettings, TrainerSettings
from heldout.training.sharding import ShardedModel
from heldout.types import Message, Sample, Score, Trajectory

if TYPE_CHECKING:
    from heldout._live.decoding.memory import KeepCache

KeepGoing = Callable[[], bool]
StoppableBatchFn = Callable[[Sequence[Request], KeepGoing], Sequence[Answered]]
AnswerFilter = Callable[[str], str]

log = logging.getLogger("heldout")


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Runner:
    """How the policy is run on samples, and scored."""

    answer: StoppableBatchFn
    """Answers a batch, in the trainer's thread. Calls `keep_going` now and then, which also counts
    as progress; returns None for what it has not answered when that returns False."""
    score_fn: ScoreFn
    prepare_messages: PrepareMessages | None = None
    environment_factory: EnvironmentFactory | None = None
    answer_filter: AnswerFilter | None = without_reasoning
    """Applied to the model's last turn before scoring. The stored turn is unchanged."""
    sampling: Sampling = field(default_factory=Sampling)
    rows: int = 32
    """Items in flight at once: the largest batch."""
    repeats: int = 1
    max_turns: int = MAX_TURNS
    token_budget: int | None = None
    timeout: float | None = 600.0
    """Seconds that one item may spend in its environment, tools and scoring. Waiting for the model
    does not count."""
    max_error_rate: float | None = MAX_ERROR_RATE
    """Above this share of errored items an eval is a skip, without a mean; 1 accepts any."""
    own_random: bool = False
    """Whether `answer` draws only from its own generators. If not, torch's global random state is
    guarded while an eval runs in the background, which takes time."""
    describe: Callable[[], dict[str, Any]] = dict
    """Returns what to record about decoding: batch shape, kernels. A `way` of "captured" means that
    a batch costs the same if it is not full."""
    release: Callable[[], None] = _nothing
    """Called at the end of an eval while which training waited: frees memory of the GPU."""
    identity: Mapping[str, Any] = field(default_factory=dict)
    """What else determines the results, such as the chat template and the tokenizer. A curve is
    continued only if it has not changed."""
    rates: bool = False
    """Whether `answer` rates a request's `continuations`, where it has any."""

    def __post_init__(self) -> None:
        check_score_fn(self.score_fn)
        check_sampling(self.sampling)
        for count in ("rows", "repeats", "max_turns"):
            check_count(count, getattr(self, count), low=1)
        check_count("token_budget", self.token_budget, low=1, optional=True)
        check_number("timeout", self.timeout, low=0, optional=True)
        check_number("max_error_rate", self.max_error_rate, low=0, high=1, optional=True)
        if rates_continuations(self.environment_factory) and not self.rates:
            raise InvalidInput(
                "this eval compares the likelihoods of given texts, and this runner writes turns "
                "only; live_model(tokenizer, definition) runs it"
            )

    def scoring(self) -> ScoreFn:
        """Return the score function, applied to what `answer_filter` leaves of an answer."""
        answer_filter = self.answer_filter or str
        if isinstance(self.score_fn, Rubric) and answer_filter is without_reasoning:
            answer_filter = str  # it does so itself, and has parts that look at the reasoning
        return filtered(self.score_fn, answer_filter)


@dataclass(frozen=True, slots=True)
class EpisodeRunner:
    """Plays the episodes of an agent, which are the samples of its evals (`heldout.vector`)."""

    play: Callable[[], EvalReport]
    """Plays all episodes, and returns a report with one result for each."""
    identity: Mapping[str, Any] = field(default_factory=dict)
    """What determines the results, apart from the weights: environment and rule for success."""
    has_passes: bool = True
    """Whether the reward is success. Returns have no pass rate."""


RunnerBuilder = Callable[[Any], Runner | EpisodeRunner]


def describe_runner(runner: Runner | EpisodeRunner) -> dict[str, Any]:
    """Describe what determines a runner's results, apart from weights and samples.

    Args:
        runner: The runner, with or without a model.

    Returns:
        Parts by name, as JSON. Runners that differ in a part do not share a curve.
    """
    if isinstance(runner, EpisodeRunner):
        return dict(runner.identity)
    functions = ("score_fn", "prepare_messages", "environment_factory", "answer_filter")
    called = {name: getattr(runner, name) for name in functions}
    documented = ["environment_factory"]  # a model is shown the docstrings of its tools
    return {
        **{n: describe_callable(fn, docstrings=n in documented) for n, fn in called.items()},
        PARTS: describe_parts(called, docstrings=documented),
        **runner.identity,
        "settings": {
            "repeats": runner.repeats,
            "max_turns": runner.max_turns,
            "token_budget": runner.token_budget,
            "temperature": runner.sampling.temperature,
            "top_p": runner.sampling.top_p,
            "max_tokens": runner.sampling.max_tokens,
            "stop": list(runner.sampling.stop),
            "seed": runner.sampling.seed,
        },
    }


@dataclass(eq=False, slots=True)
class KnownBuilder:
    """A runner builder whose runners can be described before there is a model."""

    prototype: Runner
    """The runner without its model."""
    bind: Callable[[Any, ChatFormat], dict[str, Any]]
    """Given the model, and how to render prompts, returns the fields of the runner that depend on
    them."""
    functions: Mapping[str, Any] = field(default_factory=dict)
    """Fingerprints of the functions that `bind` calls."""
    pass_threshold: float | None = None
    """The reward that passes, of the `EvalDefinition` that it was made of; None without one."""
    chat: ChatFormat = field(default_factory=ChatFormat)
    """How prompts are rendered, as far as the code says it."""
    encode: Callable[..., list[int]] | None = None
    """`encode(messages, chat=…)` returns a prompt's tokens; None: the user's function does."""
    _own: Runner = field(init=False, repr=False)
    """The prototype as the code has it."""
    _trainer: TrainerSettings = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._own, self._trainer = self.prototype, TrainerSettings()

    def __call__(self, model: Any) -> Runner:
        runner = replace(self.prototype, **self.bind(model, self.format))
        if runner.sampling.max_tokens is None:
            sampling = replace(runner.sampling, max_tokens=LOCAL_MAX_TOKENS)
            runner = replace(runner, sampling=sampling)
        return runner

    @property
    def format(self) -> ChatFormat:
        """How prompts are rendered: as the code says, else as the trainer does."""
        trainers = self._trainer.chat
        return ChatFormat(
            self.chat.template or trainers.template, self.chat.kwargs or trainers.kwargs
        )

    def use_trainer(self, trainer: TrainerSettings) -> None:
        """Have the model answer as the trainer does, where the code says nothing else."""
        self._trainer, own = trainer, self._own
        sampling, identity = own.sampling, own.identity
        if sampling.max_tokens is None:
            sampling = replace(sampling, max_tokens=trainer.max_new)
        if self.encode is not None:
            # Under a name of its own: what the code says is compared before there is a trainer.
            named = describe_template(self.format.template, self.format.kwargs)
            is_own = self.format == self.chat or named == identity["chat_template"]
            identity = {**identity, "chat_template_of_trainer": None if is_own else named}
        self.prototype = replace(own, sampling=sampling, identity=identity)


def describe_builder(builder: RunnerBuilder) -> dict[str, Any]:
    """Describe a builder's runners before there is a model.

    Args:
        builder: The runner builder.

    Returns:
        `describe_runner` of what it will make, for a builder that can tell (those of `live_model`,
        `from_functions` and `in_rollout_phase`); of any other the fingerprint of its code.
    """
    prototype = getattr(builder, "prototype", None)
    if isinstance(prototype, EpisodeRunner):
        return describe_runner(prototype)
    if not isinstance(prototype, Runner):
        return {"runner_builder": describe_callable(builder)}
    described = {**describe_runner(prototype), **getattr(builder, "functions", {})}
    for name in ("max_tokens", "stop"):  # where they are not set, the trainer's are taken
        if not described["settings"][name]:
            del described["settings"][name]
    return described


def check_same_eval(definition: EvalDefinition, builder: RunnerBuilder | None) -> None:
    """Refuse a builder that would run another eval than the definition that samples come from."""
    runner = getattr(builder, "prototype", None)
    if not isinstance(runner, Runner):
        return
    for name in ("score_fn", "prepare_messages", "environment_factory"):
        if getattr(runner, name) is not getattr(definition, name):
            raise InvalidInput(
                f"the runner builder has not the {name} of the EvalDefinition that the samples are "
                "of: pass it the definition, too, as in live_model(tokenizer, definition); or pass "
                "definition.samples to take the samples alone"
            )


def find_threshold(samples: object, builder: RunnerBuilder | None) -> float:
    """Return the reward that passes of the eval that samples or their runner are made of."""
    if isinstance(samples, EvalDefinition):
        return own_pass_threshold(None, samples)
    return own_pass_threshold(getattr(builder, "pass_threshold", None))


def check_runner(runner_builder: Any, worker: Any) -> None:
    """Refuse what cannot run an eval: it takes a runner builder or a worker."""
    if worker is not None:
        if runner_builder is not None:
            raise InvalidInput("an EvalWorker has its own runner: leave out runner_builder")
        if not hasattr(worker, "try_snapshot"):
            raise InvalidInput(f"worker must be an EvalWorker, got {worker!r:.100}")
    elif hasattr(runner_builder, "try_snapshot"):
        raise InvalidInput("pass an EvalWorker as worker=, without a runner_builder")
    elif not callable(runner_builder):
        raise InvalidInput(
            f"runner_builder must be a function (model) -> Runner, got {runner_builder!r:.100}"
        )


def no_model(requests: Sequence[Request], keep_going: KeepGoing) -> Sequence[Answered]:
    """Raise: the `answer` of a prototype, which has no model."""
    raise AssertionError("a prototype has no model")


def filtered(score_fn: ScoreFn, answer_filter: AnswerFilter) -> ScoreFn:
    """Return the score function, applied to the model's last turn after the filter."""
    turns = anyio.Lock()

    async def score_seen(trajectory: Trajectory, sample: Sample) -> Score:
        # All items of a batch are answered at once, and would be scored in one go. One by one,
        # those that have not begun when time is up can be left out.
        async with turns:
            score = score_fn(_seen_through(trajectory, answer_filter), sample)
        return as_score(await settle(score), score_fn)  # a number's metric has its name

    set_known_as(score_seen, score_fn)  # what a report stores as its scorer is the eval's own
    return score_seen


def _seen_through(trajectory: Trajectory, answer_filter: AnswerFilter) -> Trajectory:
    last = trajectory.last_turn
    messages = [
        replace(message, content=answer_filter(message.content))
        if message is last and isinstance(message.content, str)
        else message
        for message in trajectory.messages
    ]
    return replace(trajectory, messages=tuple(messages))


def build_runner(builder: RunnerBuilder | None, model: Any) -> Runner | EpisodeRunner:
    """Make the runner of a model.

    Args:
        builder: The runner builder.
        model: The model.

    Raises:
        InvalidInput: The builder fails, or returns something else.
    """
    assert builder is not None
    try:
        runner = builder(model)
    except Exception as problem:
        raise InvalidInput(f"runner_builder: {reasons.describe(problem)}") from problem
    if not isinstance(runner, Runner | EpisodeRunner):
        raise InvalidInput(f"runner_builder returns a heldout.training.Runner, got {runner!r:.100}")
    return runner


# --- The model in training ----------------------------------------------------------------------


class LivePolicy:
    """The model of one eval, which is asked for once, where it is needed.

    Args:
        get_model: Returns the model, or raises.
        ranks: The processes that its weights may be spread over, where that is not known yet.
    """

    def __init__(self, get_model: Callable[[], Any], ranks: Ranks | None = None) -> None:
        self._get_model, self._ranks = get_model, ranks

    @cached_property
    def _found(self) -> Any:
        with untouched_random_state():
            return self._get_model()

    @property
    def model(self) -> Any:
        """The model; a sharded one, which can be gathered once, is a new `ShardedModel` each time.

        Raises:
            Exception: What `get_model` raises.
        """
        found = self._found
        if self._ranks is None or sharding_way(found) is None:
            return found
        return ShardedModel(found, self._ranks)


# --- The held-out samples -----------------------------------------------------------------------


def check_samples(
    samples: Iterable[Sample] | EvalDefinition,
    builder: RunnerBuilder | None = None,
    *,
    may_be_empty: bool = False,
) -> list[Sample]:
    """Return the held-out samples as a run directory stores them.

    Args:
        samples: The samples, or the eval that has them.
        builder: Makes the runner that asks them, where it is known. One that cannot be described
            before there is a model may have a `prepare_messages` of its own.
        may_be_empty: Whether there may be none.

    Raises:
        InvalidInput: There are none, or one of them cannot be stored or asked.
    """
    runner: EvalDefinition | Runner | None = getattr(builder, "prototype", None)
    if isinstance(samples, EvalDefinition):
        runner, samples = samples, samples.samples
    checked = [as_stored(s) for s in distinct(samples, wanted="held-out samples are Samples")]
    if not checked and not may_be_empty:
        raise InvalidInput("there are no samples to evaluate")
    if isinstance(runner, EvalDefinition | Runner):
        check_questions(checked, runner.prepare_messages)
    return checked


# --- Builders -----------------------------------------------------------------------------------


_OTHER_NAMES = {
    "template": "chat_template",
    "template_kwargs": "chat_template_kwargs",
    **{setting.name: f"sampling=Sampling({setting.name}=…)" for setting in fields(Sampling)},
    **dict.fromkeys(("max_tokens", "max_new_tokens", "max_completion"), "max_new"),
    "graded_text": "answer_filter",
    "batch_size": "rows",
}
"""What settings of a runner are called where they are not its own, or by other tools."""


def threshold_of(score_fn: ScoreFn | EvalDefinition) -> float | None:
    """Return the reward that passes, where an eval says it."""
    return score_fn.pass_threshold if isinstance(score_fn, EvalDefinition) else None


def _with_definition(
    score_fn: ScoreFn | EvalDefinition, settings: dict[str, Any], *, function: str
) -> tuple[ScoreFn, dict[str, Any]]:
    """Return the score function, and the settings of `Runner` with the rest of the definition."""
    known = [setting.name for setting in fields(Runner)]
    for name in settings:
        if name not in known:
            refuse_unknown(name, known[2:], function=function, other_names=_OTHER_NAMES)
    if settings.get("sampling") is None:
        settings["sampling"] = Sampling()
    check_sampling(settings["sampling"])
    if not isinstance(score_fn, EvalDefinition):
        return score_fn, settings
    both = sorted({"prepare_messages", "environment_factory"} & settings.keys())
    if both:
        raise InvalidInput(f"an EvalDefinition has its own {both[0]}: pass it alone")
    settings = {
        **settings,
        "prepare_messages": score_fn.prepare_messages,
        "environment_factory": score_fn.environment_factory,
        "max_turns": turn_limit(settings.get("max_turns"), score_fn),
        "sampling": merge_sampling(settings["sampling"], score_fn),
    }
    return score_fn.score_fn, settings


def from_functions(
    render: Callable[[Sequence[Message]], Any],
    generate: Callable[[Any, list[Any], int], Sequence[str | Message]],
    score_fn: ScoreFn | EvalDefinition,
    *,
    max_new: int | None = None,
    **settings: Any,
) -> RunnerBuilder:
    """Make a runner builder from two functions.

    Args:
        render: `render(messages)` returns a prompt of any type.
        generate: `generate(model, prompts, max_new)` returns a turn for each prompt, in order.
        score_fn: The score function, or an `EvalDefinition` with its messages and environments.
        max_new: Longest turn in tokens; by default the trainer's limit, or 512.
        settings: Fields of `Runner`.
    """
    threshold = threshold_of(score_fn)
    score_fn, settings = _with_definition(score_fn, settings, function="from_functions")
    sampling = _limited(settings.pop("sampling"), max_new)
    prototype = Runner(no_model, score_fn, sampling=sampling, **settings)
    called = {"render": describe_callable(render), "generate": describe_callable(generate)}

    def bind(model: Any, chat: ChatFormat) -> dict[str, Any]:
        shown: list[str] = []

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
            if not shown and prompts and isinstance(prompts[0], str):
                shown.append(prompts[0])
            limit = requests[0].sampling.max_tokens
            assert limit is not None
            turns = list(generate(model, prompts, limit)) if prompts else []
            if len(turns) != len(prompts):
                raise InvalidInput(
                    f"generate got {len(prompts)} prompts and returned {len(turns)} turns"
                )
            for place, prompt, turn in zip(rendered, prompts, turns, strict=True):
                if isinstance(prompt, str) and isinstance(turn, str):
                    turn = opened_reasoning(prompt) + turn
                answers[place] = turn
            return answers

        def describe() -> dict[str, Any]:
            return {**prototype.describe(), **({"prompt": shown[0]} if shown else {})}

        return {"answer": answer, "describe": describe}

    return KnownBuilder(prototype, bind, called, pass_threshold=threshold)


def _limited(sampling: Sampling, max_new: int | None) -> Sampling:
    """Set the longest turn: the environment variable, the argument, or that of `sampling`.

    Without any of them it is the trainer's, or 512.
    """
    check_count("max_new", max_new, low=1, optional=True)
    limit = EnvironmentSettings.from_environment().max_new or max_new or sampling.max_tokens
    return replace(sampling, max_tokens=limit)


def live_model(
    tokenizer: Any,
    score_fn: ScoreFn | EvalDefinition,
    *,
    max_new: int | None = None,
    rows: int = 32,
    graphs: bool | None = None,
    keep_cache: KeepCache = False,
    chat_template: str | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    **settings: Any,
) -> RunnerBuilder:
    """Make a runner builder for the transformers model that is being trained.

    Args:
        tokenizer: Its tokenizer, with a chat template.
        score_fn: The score function, or an `EvalDefinition` with its messages and environments.
        max_new: Longest turn in tokens; by default the trainer's limit, or 512.
        rows: Largest batch.
        graphs: Whether to capture CUDA graphs; by default if possible.
        keep_cache: Whether graphs and key-value caches stay on the GPU from one eval to the next;
            False captures anew, which takes 0.3 to 0.6 seconds. "auto" keeps them from the second
            eval on, while what training and evals have needed at their highest fits beside them
            with a tenth of the memory to spare; it looks at every step. Evals in the background
            keep theirs.
        chat_template: The text of a Jinja template to render prompts with; by default the
            trainer's, or else the tokenizer's own.
        chat_template_kwargs: What the template reads besides the messages, such as
            `enable_thinking`; by default the trainer's.
        settings: Fields of `Runner`. Decoding is greedy unless `sampling` is set.

    Raises:
        InvalidInput: An argument is invalid.
    """
    from heldout._live.decoding import Decoder
    from heldout._live.decoding.chat import ChatModel, answer_all
    from heldout._live.decoding.likelihood import LikelihoodModel
    from heldout._live.decoding.memory import KeptMemory, check_keep_cache
    from heldout._live.decoding.model import explain_not_finite

    check_keep_cache(keep_cache)
    check_text("chat_template", chat_template, optional=True)
    if chat_template_kwargs is not None and not isinstance(chat_template_kwargs, Mapping):
        raise InvalidInput(
            f"chat_template_kwargs must be a dict, got {chat_template_kwargs!r:.200}"
        )
    if not callable(getattr(tokenizer, "decode", None)):
        raise InvalidInput(f"tokenizer must be a tokenizer of transformers, got {tokenizer!r:.200}")
    own_chat = ChatFormat(chat_template, dict(chat_template_kwargs or {}))
    if own_chat != ChatFormat():
        own_chat.renderer(tokenizer)  # refuses what the template does not read
    threshold = threshold_of(score_fn)
    score_fn, settings = _with_definition(score_fn, settings, function="live_model")
    sampling = _limited(settings.pop("sampling"), max_new)
    prototype = Runner(
        no_model,
        score_fn,
        sampling=sampling,
        rows=rows,
        own_random=True,
        rates=True,
        identity=describe_tokenizer(tokenizer, own_chat.template, own_chat.kwargs),
        **settings,
    )
    if prototype.repeats > 1 and not sampling.temperature and prototype.environment_factory is None:
        log.warning(
            "%s attempts at each sample are the same, since decoding is greedy and nothing else "
            "differs: pass sampling=Sampling(temperature=…)",
            prototype.repeats,
        )
    finding, name = threading.Lock(), "the model in training"
    # By the live model and its copies, for as long as there are these.
    prepared: WeakKeyDictionary[Any, tuple[ChatModel, Decoder, LikelihoodModel, KeptMemory]]
    prepared = WeakKeyDictionary()

    def prepare(model: Any) -> tuple[ChatModel, Decoder, LikelihoodModel, KeptMemory]:
        """Return the decoder of a model, and what else is kept from one eval to the next."""
        if model not in prepared:
            held = weakref.ref(model)
            decoder = Decoder(held, tokenizer, rows=rows, graphs=graphs)
            prepared[model] = (
                ChatModel(held, tokenizer, name),
                decoder,
                LikelihoodModel(held, tokenizer, name, rows=rows),
                KeptMemory(decoder, held, keep_cache),
            )
        return prepared[model]

    def bind(model: Any, format: ChatFormat) -> dict[str, Any]:
        if (bind_runner := getattr(model, "bind_runner", None)) is not None:  # it is in an engine
            return dict(bind_runner(tokenizer, rows, format))
        if (reason := explain_sharding(model) or explain_not_finite(model)) is not None:
            raise InvalidInput(reason)
        with finding:
            chat, decoder, likelihoods, memory = prepare(model)
        chat.use_format(format)
        likelihoods.use_format(format)
        memory.begin_eval()
        asked, first = False, None

        def answer(
            requests: Sequence[Request], keep_going: KeepGoing, in_use: Any = model
        ) -> Sequence[Answered]:
            nonlocal asked, first
            first = first or requests[0]
            if any(request.continuations for request in requests):  # an eval has one of the two
                given = [request.continuations for request in requests]
                return likelihoods.rate(given, keep_going=keep_going)
            answers: list[Answered] = [None] * len(requests)
            answer_all(
                chat,
                decoder,
                requests,
                answers.__setitem__,
                keep_going=keep_going,
                same_weights=asked,  # within one eval
            )
            asked = True
            return answers

        def describe() -> dict[str, Any]:
            described = decoder.describe() or likelihoods.describe()
            prompt = chat.show(first) if first is not None and first.messages else None
            return {**described, "prompt": prompt} if prompt else described

        def release() -> None:
            nonlocal asked
            asked = False
            memory.end_eval()

        return {"answer": answer, "describe": describe, "release": release}

    def encode(messages: Sequence[Message], chat: ChatFormat) -> list[int]:
        return ChatModel(None, tokenizer, name, chat).encode(messages)

    return KnownBuilder(prototype, bind, pass_threshold=threshold, chat=own_chat, encode=encode)


__all__ = [
    "Answered",
    "Request",
    "Runner",
    "RunnerBuilder",
    "from_functions",
    "live_model",
    "without_reasoning",
]
