"""Evals by likelihood: the policy rates given texts, and writes nothing.

    definition = likelihood_choices(samples, choices=["yes", "no"])
    heldout.run(definition, endpoint="hf:path/to/base-model")

A base model that cannot follow "answer with a letter" still finds the right text more likely than
the wrong ones. The likelihoods are stored (`trajectory.outcome["likelihoods"]`), so another way of
comparing them is a `rescore`, without the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from heldout._core.chat.messages import to_chat_api
from heldout._core.chat.questions import question_of, read_opening
from heldout._evals.rollout import EvalDefinition
from heldout.environment import Reply
from heldout.errors import InvalidInput
from heldout.scoring.choice import LETTERS
from heldout.types import Continuation, Likelihood, Message, Metric, Sample, Score, Trajectory

ChoiceMetric = Literal["acc", "acc_norm", "acc_bytes"]
_METRICS: tuple[ChoiceMetric, ...] = ("acc", "acc_norm", "acc_bytes")


class LikelihoodEnvironment:
    """Has given continuations rated."""

    tools = ()

    def __init__(self, continuations: Sequence[Continuation]) -> None:
        self._continuations = continuations

    def opening(self) -> Sequence[Message]:
        """Add nothing: `show_prompts` has the messages."""
        return ()

    def continuations(self) -> Sequence[Continuation]:
        """Return the texts to rate."""
        return self._continuations

    def reply(self, messages: Sequence[Message]) -> Reply:
        """Refuse: no turn is written."""
        raise AssertionError("continuations are rated, and no turn is replied to")

    def close(self) -> None:
        """Do nothing."""


class _LikelihoodFactory:
    """Makes `LikelihoodEnvironment`s; their samples' inputs say everything."""

    rates_continuations = True
    reads_metadata = False

    def __call__(self, sample: Sample) -> LikelihoodEnvironment:
        return LikelihoodEnvironment(continuations_of(sample))

    def identity(self) -> dict[str, Any]:
        """Identify it for a run's fingerprint."""
        return {"name": "LikelihoodEnvironment", "version": 1}


rate_continuations = _LikelihoodFactory()
"""The `environment_factory` of evals by likelihood."""


def continuations_of(sample: Sample) -> list[Continuation]:
    """Return the continuations in a sample's input, each with its prompt.

    The input has `continuations`, a list of texts, and a `prompt` that all of them continue, a text
    or a list of messages; or `prompts`, one for each.

    Raises:
        InvalidInput: It has not.
    """
    texts, prompts = sample.input.get("continuations"), _prompts_of(sample)
    if not isinstance(texts, list) or not texts or len(texts) != len(prompts):
        raise InvalidInput(
            f"sample {sample.id!r}: input['continuations'] is a list of texts, with a prompt "
            f"for all of them or one for each, got {sample.input!r:.200}"
        )
    return [Continuation(prompt, text) for prompt, text in zip(prompts, texts, strict=True)]


def _prompts_of(sample: Sample) -> list[str | tuple[Message, ...]]:
    given = sample.input
    if "prompts" in given:
        prompts = list(given["prompts"])
    else:
        prompts = [given.get("prompt")] * len(given.get("continuations") or ())
    where = f"sample {sample.id!r}: input['prompt']"
    return [p if isinstance(p, str) else tuple(read_opening(p, where)) for p in prompts]


def show_prompts(sample: Sample) -> list[Message]:
    """Return the prompts of a sample as messages, for the record: a text as the user's."""
    return _as_messages(_prompts_of(sample))


def show_prompts_of(continuations: Sequence[Continuation]) -> list[Message]:
    """Return the prompts of continuations as messages, for the record: a text as the user's."""
    return _as_messages([continuation.prompt for continuation in continuations])


def _as_messages(prompts: Iterable[str | tuple[Message, ...]]) -> list[Message]:
    messages: list[Message] = []
    shown: list[str | tuple[Message, ...]] = []
    for prompt in prompts:
        if prompt and prompt not in shown:
            shown.append(prompt)
            messages += [Message("user", prompt)] if isinstance(prompt, str) else prompt
    return messages


def likelihoods_of(trajectory: Trajectory) -> list[Likelihood]:
    """Return what a rated trajectory has stored.

    Raises:
        InvalidInput: It has no likelihoods: a policy has written turns.
    """
    stored = (trajectory.outcome or {}).get("likelihoods")
    if not isinstance(stored, list):
        raise InvalidInput("this trajectory has no likelihoods; its policy wrote a turn")
    return [Likelihood(**values) for values in stored]


# --- Multiple choice ----------------------------------------------------------------------------


def likelihood_choices(
    samples: Iterable[Sample],
    choices: Sequence[str] | str = "choices",
    *,
    chat: bool = False,
    delimiter: str | None = None,
    reward: ChoiceMetric = "acc",
) -> EvalDefinition:
    """Make a multiple-choice eval in which the most likely choice counts as the answer.

    Args:
        samples: Each has a question, as for any eval, and as its ground truth the right choice: its
            text, its letter, or its index from 0.
        choices: The texts to choose from, the same for all samples; or the key of a list of them in
            the samples' metadata.
        chat: Whether the question is rendered by the model's chat template; without, the model
            continues its text, as a base model does, and it should end where an answer begins,
            with "Answer:" say.
        delimiter: What stands between a text and a choice: a space, or nothing where `chat` is on.
        reward: What counts: "acc" the sum of the choice's log-probabilities, "acc_norm" divided
            by its length in characters, "acc_bytes" in bytes. The others are metrics beside it.

    Raises:
        InvalidInput: A sample's choices or ground truth cannot be read.
    """
    if reward not in _METRICS:
        raise InvalidInput(f"reward must be one of {', '.join(_METRICS)}, got {reward!r}")
    between = delimiter if delimiter is not None else "" if chat else " "
    made = [_choice_sample(sample, choices, chat, between) for sample in samples]
    return EvalDefinition(made, ChoiceScore(reward), show_prompts, rate_continuations)


def _choice_sample(
    sample: Sample, choices: Sequence[str] | str, chat: bool, delimiter: str
) -> Sample:
    where = f"sample {sample.id!r}"
    given = sample.metadata.get(choices) if isinstance(choices, str) else choices
    texts = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else []
    if len(texts) < 2 or not all(isinstance(text, str) and text for text in texts):
        if not isinstance(choices, str):
            raise InvalidInput(f"choices must be two or more texts, got {choices!r:.200}")
        raise InvalidInput(
            f"{where} has no list of two or more choices in metadata[{choices!r}], got "
            f"{given!r:.200}"
        )
    messages = question_of(sample).messages
    if not chat and (len(messages) != 1 or not isinstance(messages[0].content, str)):
        raise InvalidInput(
            f"{where} has {len(messages)} messages; without chat=True its input is one text, which "
            "the choices continue"
        )
    prompt = [to_chat_api(message) for message in messages] if chat else messages[0].content
    right = _find_choice(sample.ground_truth, texts, where)
    return replace(
        sample,
        input={"prompt": prompt, "continuations": [delimiter + text for text in texts]},
        ground_truth=texts[right],
        metadata={**sample.metadata, "choices": texts, "right_choice": right},
    )


def _find_choice(truth: Any, texts: Sequence[str], where: str) -> int:
    if isinstance(truth, int) and not isinstance(truth, bool) and 0 <= truth < len(texts):
        return truth
    if isinstance(truth, str) and truth in texts:
        return texts.index(truth)
    if isinstance(truth, str) and len(truth) == 1 and truth in LETTERS[: len(texts)]:
        return LETTERS.index(truth)
    raise InvalidInput(
        f"{where}: the ground truth is {truth!r:.100}, which is not the text, the letter or the "
        f"index of one of its {len(texts)} choices"
    )


@dataclass(frozen=True)
class ChoiceScore:
    """Scores a rated multiple-choice sample by its most likely choice."""

    reward: ChoiceMetric = "acc"

    def __call__(self, trajectory: Trajectory, sample: Sample) -> Score:
        """Compare the choices by each metric; of several that are equal the first is taken."""
        texts: list[str] = sample.metadata["choices"]
        logprobs = [likelihood.logprob for likelihood in likelihoods_of(trajectory)]
        lengths: Mapping[ChoiceMetric, list[int]] = {
            "acc": [1] * len(texts),
            "acc_norm": [len(text) for text in texts],
            "acc_bytes": [len(text.encode()) for text in texts],
        }
        metrics = []
        for name in _METRICS:
            rates = [sum_ / size for sum_, size in zip(logprobs, lengths[name], strict=True)]
            best = rates.index(max(rates))
            right = best == sample.metadata["right_choice"]
            weight = float(name == self.reward)
            metrics.append(Metric(name, right, weight, {"extracted": texts[best]}))
        return Score(tuple(metrics))

    def identity(self) -> dict[str, Any]:
        """Identify it for a run's fingerprint."""
        return {"name": "ChoiceScore", "version": 1, "reward": self.reward}


__all__ = [
    "ChoiceScore",
    "LikelihoodEnvironment",
    "continuations_of",
    "likelihood_choices",
    "likelihoods_of",
    "rate_continuations",
    "show_prompts",
    "show_prompts_of",
]
