"""The seam that other packages' evals are adapted on: here, and in plugins.

    class SpellingBee(AdaptedEval):
        name, package = "spelling:bee", "spelling-bee"

        def rows(self):
            return [Row({"question": f"Spell {word}."}, word) for word in spelling_bee.WORDS]

        def score(self, trajectory, sample):
            return Score((Metric("correct", trajectory.answer == sample.ground_truth, 1.0),))

    ADAPTER = TaskAdapter("spelling", "spelling-bee", ">=1", names, load)

An adapter says what its package knows: its rows, how one is run, how an outcome is read as a score,
and what identifies it. A row is asked in one model turn, unless the eval also fills one of three
protocols: `Converses` (the package's code asks the policy), `Steps` (an environment with reset and
step), `Rates` (given texts are rated). Ids, factories, fingerprints, pickling and refusals of
samples that are not the eval's are here, once.
"""

from __future__ import annotations

import functools
import hashlib
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar, Protocol, runtime_checkable

from heldout._core.chat.questions import question_of
from heldout._core.config import Sampling
from heldout._core.versions import check_version
from heldout._evals.rollout import EvalDefinition, PrepareMessages
from heldout.environment import Environment
from heldout.environments.driven import Driven, DrivenConversation, TurnsUsedUp
from heldout.environments.likelihood import LikelihoodEnvironment, show_prompts_of
from heldout.environments.stepped import StepEnvironment, StepSettings
from heldout.errors import InvalidInput
from heldout.store.fingerprint import describe_callable
from heldout.types import Continuation, Message, Sample, Score, Trajectory

Conversation = DrivenConversation
"""Where a package's code asks the policy: `await conversation.ask(messages, tools)`."""
LoadTask = Callable[..., "AdaptedEval | EvalDefinition"]


@dataclass(frozen=True, slots=True)
class Row:
    """A sample as its package has it.

    Attributes:
        input: What is asked; see `Sample`.
        ground_truth: The right answer, where there is one.
        metadata: What results are sliced by.
        id: The package's own name for it. None: `stem` and a hash of `content`.
        stem: What such an id begins with; the eval's name by default.
        content: What makes it the question that it is, a text or JSON values; its input by default.
        source: The package's own object, for `AdaptedEval.source_of`. It is not stored.
    """

    input: dict[str, Any]
    ground_truth: Any = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    id: str | None = None
    stem: str | None = None
    content: Any = None
    source: Any = None


@runtime_checkable
class Converses(Protocol):
    """An eval whose own code asks the policy: a solver, a harness, an agent."""

    async def converse(self, sample: Sample, conversation: Conversation) -> Mapping[str, Any]:
        """Run a row, and return what came of it, which becomes `trajectory.outcome`.

        Args:
            sample: The row, as a sample.
            conversation: Where the policy is asked. A conversation only grows.
        """
        ...


@runtime_checkable
class Steps(Protocol):
    """An eval of environments with reset and step.

    Their rewards are in `trajectory.outcome`; `score_rewards` reads them.
    """

    def make_env(self, sample: Sample) -> Any:
        """Make the environment of a row, in the event loop that plays it."""
        ...


@runtime_checkable
class Replies(Protocol):
    """An eval with environments in heldout's own sense, where none of the other three fits."""

    def environment(self, sample: Sample) -> Environment:
        """Make the environment of a row."""
        ...


@runtime_checkable
class Rates(Protocol):
    """An eval that has the policy rate given texts, where others have it write."""

    def continuations(self, sample: Sample) -> Sequence[Continuation]:
        """Return the texts of a row, each with the prompt that it continues."""
        ...


WAYS = (Converses, Steps, Rates, Replies)


class AdaptedEval(ABC):
    """An eval of another package. `definition` makes it one that heldout runs."""

    name: str = ""
    """What it is called in runs' records: PREFIX:TASK, as `heldout run` takes it."""
    package: str | None = None
    """The package whose version decides the scores, as pip knows it; None for none."""
    max_turns: int | None = None
    """Its own limit of model turns, where it has one."""
    sampling: Sampling | None = None
    """How it has turns sampled, where it says."""
    pass_threshold: float | None = None
    """The reward that passes, where it is not heldout's default."""
    reads_metadata: ClassVar[bool] = False
    """Whether how a row is run depends on its metadata."""
    copies: ClassVar[str] = "-"
    """What precedes the number of a copy, in its id."""

    @abstractmethod
    def rows(self) -> Iterable[Row]:
        """Return the rows, in order: always the same for the same arguments."""

    @abstractmethod
    def score(self, trajectory: Trajectory, sample: Sample) -> Score | Awaitable[Score]:
        """Read what came of a row as a score.

        What the model did wrong is scored; what the package failed at is raised, never a 0.
        """

    def identity(self) -> dict[str, Any]:
        """Return what decides the scores beside version and samples; a resumed run must share it.

        By default that is the code of the class.
        """
        return {"code": describe_callable(type(self))}

    def opening(self, sample: Sample) -> Sequence[Message]:
        """Return the messages that a row opens with: what its input says, unless overridden."""
        return question_of(sample).messages

    def reference(self, sample: Sample) -> Any:
        """Return a row's right answer as the policy would give it, which `check_eval` answers back.

        A text, a `Message`, or a list of these, one for each model turn; None where it is unknown.
        By default that is the ground truth.
        """
        return sample.ground_truth

    def limit_error(self) -> Exception:
        """Make what the package's code knows as its own limit, for when no turns are left."""
        return TurnsUsedUp()

    def step_settings(self) -> StepSettings:
        """Return how the turns of an eval that `Steps` become actions."""
        return StepSettings()

    async def end_run(self) -> None:  # noqa: B027 - most share nothing
        """End what rollouts share, at the end of a run."""

    # --- Written once ---

    @functools.cached_property
    def samples(self) -> list[Sample]:
        """The rows as samples, with ids of their own."""
        samples: list[Sample] = []
        sources: dict[str, tuple[str, Any]] = {}
        taken: Counter[str] = Counter()
        for row in self.rows():
            id = row.id
            if id is None:
                content = row.input if row.content is None else row.content
                text = content if isinstance(content, str) else _as_json(content)
                stem = row.stem or self.name.rpartition(":")[2] or type(self).__name__
                id = f"{stem}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
            taken[id] += 1
            if taken[id] > 1:
                id = f"{id}{self.copies}{taken[id]}"
            samples.append(Sample(id, row.input, row.ground_truth, dict(row.metadata)))
            sources[id] = _as_json(row.input), row.source
        if not samples:
            raise InvalidInput(f"{self.name or type(self).__name__} has no samples")
        self._sources = sources
        return samples

    def source_of(self, sample: Sample) -> Any:
        """Return the package's own object of a sample.

        Raises:
            InvalidInput: The sample is not one of this eval's.
        """
        self.samples  # noqa: B018 - which reads the rows
        known, source = self._sources.get(sample.id, (None, None))
        if known != _as_json(sample.input):
            raise InvalidInput(
                f"sample {sample.id!r} is not one of {self.name or type(self).__name__}'s: its "
                "rows have another id or another question"
            )
        return source

    def definition(self) -> EvalDefinition:
        """Return the eval as heldout runs it.

        Raises:
            InvalidInput: It has no rows, or fills several of the protocols.
        """
        ways = [way.__name__ for way in WAYS if isinstance(self, way)]
        if len(ways) > 1:
            raise InvalidInput(
                f"{type(self).__name__} fills {' and '.join(ways)}: a row is run in one way"
            )
        factory = AdaptedEnvironments(self) if ways else None
        prepare: PrepareMessages | None = None
        if type(self).opening is not AdaptedEval.opening or isinstance(self, Rates):
            prepare = AdaptedOpening(self)
        elif ways:
            prepare = _no_messages  # their own code opens the conversation
        return EvalDefinition(
            self.samples,
            AdaptedScore(self),
            prepare,
            factory,
            self.max_turns,
            self.sampling,
            self.pass_threshold,
            None if type(self).reference is AdaptedEval.reference else self.reference,
        )

    def describe(self, part: str) -> dict[str, Any]:
        """Return the identity of the eval's functions, as runs record it."""
        named: dict[str, Any] = {"name": f"{self.name or type(self).__name__} {part}"}
        if self.package is not None:
            try:
                named["package"] = f"{self.package} {version(self.package)}"
            except PackageNotFoundError:  # of tests, or of a module beside the eval
                named["package"] = self.package
        return named | self.identity()


class _Part:
    """One of the functions of an adapted eval, in a run's fingerprint."""

    part = ""

    def __init__(self, adapted: AdaptedEval) -> None:
        self.adapted = adapted

    def identity(self) -> dict[str, Any]:
        """Identify it: the package's version, and what the eval says of itself."""
        return self.adapted.describe(self.part)


class AdaptedScore(_Part):
    """The score function of an adapted eval."""

    part = "score"

    def __call__(self, trajectory: Trajectory, sample: Sample) -> Score | Awaitable[Score]:
        """Score a trajectory."""
        return self.adapted.score(trajectory, sample)


class AdaptedOpening(_Part):
    """Makes the opening messages of an adapted eval; of given texts, it shows their prompts."""

    part = "opening"

    def __call__(self, sample: Sample) -> list[Message]:
        """Return the messages that a row opens with."""
        if isinstance(self.adapted, Rates):
            return show_prompts_of(self.adapted.continuations(sample))
        return list(self.adapted.opening(sample))


class AdaptedEnvironments(_Part):
    """Makes the environments of an adapted eval, in whichever way its rows are run."""

    part = "environment"

    def __init__(self, adapted: AdaptedEval) -> None:
        super().__init__(adapted)
        self.reads_metadata = adapted.reads_metadata
        self.rates_continuations = isinstance(adapted, Rates)

    def __call__(self, sample: Sample) -> Environment:
        """Make the environment of a sample."""
        adapted = self.adapted
        if isinstance(adapted, Converses):
            return Driven.of(functools.partial(adapted.converse, sample), self.adapted.limit_error)
        if isinstance(adapted, Rates):
            return LikelihoodEnvironment(adapted.continuations(sample))
        if isinstance(adapted, Replies):
            return adapted.environment(sample)
        assert isinstance(adapted, Steps)
        return StepEnvironment(adapted.make_env, adapted.step_settings(), sample)

    async def end_run(self) -> None:
        """End what rollouts share."""
        await self.adapted.end_run()


def _as_json(value: Any) -> str:
    """Return a value as one text, the same before it was stored and after."""
    return json.dumps(value, sort_keys=True, default=str)


def _no_messages(sample: Sample) -> list[Message]:
    return []


@dataclass(frozen=True, slots=True)
class TaskAdapter:
    """A package's tasks by name: what an entry point of the group `heldout.tasks` holds.

    Attributes:
        prefix: What precedes the colon in `heldout run PREFIX:NAME`; the entry point's name.
        package: The package, as pip knows it.
        supported: The range of its versions, as pip reads it; "" takes all.
        load: Makes the eval of a name and parameters.
        names: Returns the tasks that are there, each with the reason why it cannot run here, or
            None.
        downloads: Returns what tasks download and is not here yet, by task; None where that is not
            known.
        why: Why other versions are refused.
    """

    prefix: str
    package: str
    supported: str
    load: LoadTask
    names: Callable[[], Mapping[str, str | None]]
    downloads: Callable[[], Mapping[str, tuple[str, ...]]] | None = None
    why: str = "others may score otherwise"

    def check(self) -> str:
        """Return the installed version of the package.

        Raises:
            InvalidInput: It is not installed, or its version is not supported.
        """
        return check_version(self.package, self.supported, why=self.why)

    def define(self, name: str, **parameters: Any) -> EvalDefinition:
        """Make the eval of a task.

        Raises:
            InvalidInput: The package is missing, there is no such task or parameter, or it cannot
                be an eval.
        """
        self.check()
        loaded = self.load(name, **parameters)
        definition = loaded.definition() if isinstance(loaded, AdaptedEval) else loaded
        if not isinstance(definition, EvalDefinition):
            raise InvalidInput(
                f"load of the adapter {self.prefix!r} returns an AdaptedEval or an EvalDefinition, "
                f"got {definition!r:.200}"
            )
        return definition


__all__ = [
    "AdaptedEnvironments",
    "AdaptedEval",
    "AdaptedScore",
    "Conversation",
    "Converses",
    "Rates",
    "Replies",
    "Row",
    "Steps",
    "TaskAdapter",
]
