"""Whether training prompts are in the held-out set: such a curve rises and means nothing.

    check_no_overlap(train_prompts, held_out)      # raises, and names those in both

Prompts are compared as text: the messages that a conversation begins with, apart from the system's,
whatever their case and white space. Two samples are compared by all of their input instead, since
it is not known what a prompt is made of. A paraphrase is not found. Only the held-out set is kept
in memory; training prompts are read once, one at a time.
"""

from __future__ import annotations

import inspect
import json
import logging
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from heldout.chat.messages import message_of, messages_of
from heldout.errors import InvalidInput
from heldout.isolation import untouched_random_state
from heldout.rollout import EvalDefinition, PrepareMessages
from heldout.store.jsonl import decode, encode
from heldout.types import Message, Sample

log = logging.getLogger("heldout")

PROMPT_COLUMNS = ("messages", "prompt", "question")
"""Fields that hold a prompt, in a row of a dataset and in a sample's input."""
IMAGE_COLUMNS = ("image", "images")
NAMED = 5
"""Training prompts that an error names."""
LONGEST_NAME = 60
REASONS = {
    "input": "the input of a held-out one",
    "prompt": "the prompt of a held-out one",
    "id": "the id of a held-out one, though another input (give them ids of their own)",
}
BATCH = 1000
"""Rows of a dataset that are read at once."""


def check_no_overlap(
    train: Iterable[Any],
    held_out: Iterable[Sample] | EvalDefinition,
    *,
    prepare_messages: PrepareMessages | None = None,
    allow_overlap: bool = False,
) -> int:
    """Refuse training prompts that are in the held-out set.

    Args:
        train: Training prompts, read once: texts, lists of messages, rows with a `prompt`,
            `messages` or `question`, or samples.
        held_out: What is evaluated; or an `EvalDefinition`.
        prepare_messages: Makes a held-out sample's opening messages, as in the eval.
        allow_overlap: Whether to warn instead.

    Returns:
        How many training prompts are in the held-out set.

    Raises:
        InvalidInput: Some are, and `allow_overlap` is False.
    """
    prompts = HeldOutPrompts()
    prompts.add(held_out, prepare_messages)
    return prompts.check(train, allow_overlap=allow_overlap)


class HeldOutPrompts:
    """The prompts of held-out samples, to look up training prompts in."""

    def __init__(self) -> None:
        self._ids: set[str] = set()
        self._by_input: dict[str, str] = {}
        self._by_prompt: dict[str, str] = {}
        """Sample id by normalised text: of the whole prompt, or rendered by a chat template."""
        self._by_question: dict[str, str] = {}
        """By the text of the last message alone, where few-shot examples come before it."""

    def add(
        self,
        samples: Iterable[Sample] | EvalDefinition,
        prepare_messages: PrepareMessages | None = None,
        render: Callable[[list[Message]], str] | None = None,
    ) -> None:
        """Add held-out samples.

        Args:
            samples: The samples, or the eval that has them and its own `prepare_messages`.
            prepare_messages: Makes their opening messages. One that is async is not called: the
                sample's input is the prompt then.
            render: Applies the trainer's chat template, which a dataset of texts may have applied.
        """
        if isinstance(samples, EvalDefinition):
            prepare_messages = samples.prepare_messages
            samples = samples.samples
        for sample in samples:
            self._ids.add(sample.id)
            by_input = _normalise_input(sample)
            if by_input is None:
                continue  # it holds an image, say: equal words do not make it the same
            self._by_input.setdefault(by_input, sample.id)
            opening = _opening_of(sample, prepare_messages)
            try:
                whole, question = _normalise_prompt(opening)
            except InvalidInput:
                continue  # an image: no text is the same
            if render is not None and opening:
                self._by_prompt.setdefault(normalise(render(opening)), sample.id)
            self._by_prompt.setdefault(whole, sample.id)
            if question != whole:
                self._by_question.setdefault(question, sample.id)
        for index in (self._by_prompt, self._by_question):
            index.pop("", None)

    def find(self, prompt: Any) -> str | None:
        """Return the id of the held-out sample with this prompt, or None.

        Args:
            prompt: A text, a list of messages, a row with one of them, or a sample.

        Raises:
            InvalidInput: It is not text, or none of these.
        """
        if isinstance(prompt, Sample):
            twin = self._by_input.get(_normalise_input(prompt) or "")
            if twin is not None or not set(prompt.input) < set(PROMPT_COLUMNS):
                return twin
        whole, question = _normalise_prompt(prompt)
        # Not question by question: "go on" ends many conversations.
        return (
            self._by_prompt.get(whole)
            or self._by_question.get(whole)
            or self._by_prompt.get(question)
        )

    def check(self, train: Iterable[Any], *, allow_overlap: bool | None = None) -> int:
        """Look up training prompts, as `check_no_overlap` does. Warns of those it cannot read.

        Args:
            train: The training prompts.
            allow_overlap: As for `check_no_overlap`; None: the caller has no such argument.

        Returns:
            How many are in the held-out set.

        Raises:
            InvalidInput: Some are, and `allow_overlap` is not True.
        """
        counts: Counter[str] = Counter()
        named: dict[str, list[str]] = {kind: [] for kind in REASONS}
        unread, problem = 0, ""
        for prompt in train if self._ids else ():
            try:
                found = self._describe_overlap(prompt)
            except InvalidInput as raised:
                unread, problem = unread + 1, str(raised)
                continue
            if found is not None:
                kind, name = found
                counts[kind] += 1
                if counts[kind] <= NAMED:
                    named[kind].append(name)
        if unread:
            message = "heldout: %s training prompts were not compared with the held-out set: %s"
            log.warning(message, unread, problem)
        if not counts:
            return 0
        reasons = [
            f"{counts[kind]} with {REASONS[kind]}: {', '.join(names)}"
            + f" and {counts[kind] - NAMED} more" * (counts[kind] > NAMED)
            for kind, names in named.items()
            if names
        ]
        text = f"training samples are in the held-out set: {'; '.join(reasons)}"
        if not allow_overlap:
            hint = "" if allow_overlap is None else ", or pass allow_overlap=True"
            raise InvalidInput(f"{text}. Leave them out of one of the two{hint}")
        log.warning("heldout: %s; allow_overlap=True, so training goes on", text)
        return counts.total()

    def _describe_overlap(self, prompt: Any) -> tuple[str, str] | None:
        """Return one of REASONS that a training prompt is refused for, and its name; else None."""
        twin = self.find(prompt)
        if not isinstance(prompt, Sample):
            if twin is None:
                return None
            return "prompt", f"{_describe(prompt)} (held out as {twin!r})"
        if twin is not None:
            held_out_as = "" if twin == prompt.id else f" (held out as {twin!r})"
            return "input", f"{prompt.id!r}{held_out_as}"
        return ("id", repr(prompt.id)) if prompt.id in self._ids else None

    def check_dataset(self, dataset: Any, *, allow_overlap: bool = False) -> int | None:
        """Look up the prompts of a trainer's dataset.

        Args:
            dataset: A `datasets.Dataset`, or a sequence of rows.
            allow_overlap: As for `check_no_overlap`.

        Returns:
            How many are in the held-out set; None, with a warning, if they could not be read.
        """
        if not self._ids:
            return 0
        with untouched_random_state():
            rows = _read_rows(dataset)
            if isinstance(rows, str):
                log.warning(
                    "heldout: whether training prompts are in the held-out set was not checked: "
                    "%s; heldout.training.check_no_overlap(prompts, held_out) checks them",
                    rows,
                )
                return None
            return self.check(rows, allow_overlap=allow_overlap)


def normalise(text: str) -> str:
    """Return a text with case and white space normalised."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _describe(prompt: Any) -> str:
    """Return the beginning of a prompt's last message."""
    content = _content_of(prompt)
    if not isinstance(content, str):
        content = _text_of(_asked(content)[-1])
    text = " ".join(content.split())
    return repr(text if len(text) <= LONGEST_NAME else f"{text[: LONGEST_NAME - 1]}…")


# --- Prompts as text ------------------------------------------------------------------------------


def _opening_of(sample: Sample, prepare_messages: PrepareMessages | None) -> list[Message]:
    """Return the opening messages of a held-out conversation; none if they are not known."""
    if prepare_messages is not None:
        opening: Any = prepare_messages(sample)
        if inspect.iscoroutine(opening):
            opening.close()
        elif opening:
            return list(opening)
    try:
        return messages_of(sample.input)
    except InvalidInput:  # any input will do for an environment that reads it itself
        return []


def _content_of(prompt: Any) -> Any:
    """Return the text or the messages of a prompt, a row or a sample."""
    if isinstance(prompt, Sample):
        prompt = prompt.input
    if isinstance(prompt, Mapping):
        return next((prompt[name] for name in PROMPT_COLUMNS if prompt.get(name) is not None), "")
    return prompt


def _normalise_prompt(prompt: Any) -> tuple[str, str]:
    """Return the normalised text of a prompt, and that of its last message.

    The system's messages are left out, since all prompts share them.

    Raises:
        InvalidInput: It holds an image, say, or is no prompt.
    """
    content = _content_of(prompt)
    if isinstance(content, str):
        text = normalise(content)
        return text, text
    texts = [_text_of(message) for message in _asked(content) if message.role != "system"]
    return normalise("\n".join(texts)), normalise(texts[-1]) if texts else ""


def _asked(messages: Any) -> list[Message]:
    """Return the messages of a prompt, without an answer at the end, as fine-tuning has it."""
    if not isinstance(messages, Iterable):
        raise InvalidInput(f"a prompt is a text or a list of messages, got {messages!r:.100}")
    asked = [message_of(message, "a training prompt") for message in messages]
    while asked and asked[-1].role == "assistant":
        asked.pop()
    return asked


def _text_of(message: Message) -> str:
    if isinstance(message.content, str):
        return message.content
    parts = message.content if isinstance(message.content, list | tuple) else [None]
    texts = [part.get("text") for part in parts if isinstance(part, Mapping)]
    if len(texts) < len(parts) or not all(isinstance(text, str) for text in texts):
        raise InvalidInput("a message holds more than text")
    return "\n".join(map(str, texts))


def _normalise_input(sample: Sample) -> str | None:
    """Return a sample's whole input, normalised, in any order of keys; None if JSON cannot hold it.

    Two questions about two images are not the same for being worded alike.
    """
    try:
        input = decode(encode(sample.input, "sample", sample.id), dict[str, Any])
    except InvalidInput:
        return None
    return json.dumps(_normalise_value(input), sort_keys=True)


def _normalise_value(value: Any) -> Any:
    if isinstance(value, str):
        return normalise(value)
    if isinstance(value, Mapping):
        return {key: _normalise_value(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_normalise_value(part) for part in value]
    return value


# --- Datasets of trainers -------------------------------------------------------------------------


def _read_rows(dataset: Any) -> Iterator[Any] | str:
    """Return the rows of a dataset that have prompts; or why they cannot be read, as a text."""
    if dataset is None:
        return "the trainer has no training dataset"
    if isinstance(dataset, Mapping):
        return f"it is a dict of {', '.join(map(str, dataset))}"
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        return f"a {type(dataset).__name__} is a stream, which reading would use up"
    if not len(dataset):
        return iter(())
    columns: Sequence[str] | None = getattr(dataset, "column_names", None)
    first = dict.fromkeys(columns) if columns else dataset[0]
    if not isinstance(first, Mapping):
        return f"its rows are {type(first).__name__}s, not dicts"
    names = [name for name in PROMPT_COLUMNS if name in first]
    if not names:
        return f"it has no messages, prompt or question, only {', '.join(map(str, first))}"
    if any(name in first for name in IMAGE_COLUMNS):
        return "it has images, and equal words about two of them are not the same prompt"
    if columns and hasattr(dataset, "select_columns"):
        return _read_batches(dataset.select_columns(names[:1]), names[0])
    return (dataset[i] for i in range(len(dataset)))


def _read_batches(dataset: Any, name: str) -> Iterator[Any]:
    for batch in dataset.iter(batch_size=BATCH):
        yield from batch[name]


__all__ = ["HeldOutPrompts", "check_no_overlap", "normalise"]
