"""Whether training prompts are in the held-out set: such a curve rises and means nothing.

    check_no_overlap(train_prompts, held_out)      # raises, and names those in both

Prompts are compared as text: the messages that a conversation begins with, apart from the system's,
whatever their case and white space. Two samples with the same columns are compared by all of their
input instead, since it is not known what a prompt is made of. Text in other columns may be the
prompt, so it is refused until the caller names the columns to compare. A paraphrase is not found.
Only the held-out set is kept in memory; training prompts are read once, one at a time.
"""

from __future__ import annotations

import bisect
import inspect
import json
import logging
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from heldout._core.chat.messages import message_of, to_chat_api
from heldout._core.chat.questions import QUESTION_FIELDS, likely_question
from heldout._core.format import count
from heldout._evals.rollout import EvalDefinition, PrepareMessages
from heldout._live.isolation import untouched_random_state
from heldout.errors import InvalidInput
from heldout.store.jsonl import decode, encode
from heldout.types import Message, Sample

log = logging.getLogger("heldout")

PROMPT_COLUMNS = QUESTION_FIELDS
"""Fields that hold a prompt, in a row of a dataset and in a sample's input."""
INSTRUCTION, ITS_INPUT = "instruction", "input"
"""Columns that are one prompt together, as in Alpaca's rows."""
IMAGE_COLUMNS = ("image", "images")
NAMED = 5
"""Training prompts that an error names."""
LONGEST_NAME = 60
REASONS = {
    "input": "the same input as a held-out sample",
    "prompt": "the same prompt as a held-out sample",
    "id": "the id of a held-out sample, but another input (give them ids of their own)",
}
BATCH = 1000
"""Rows of a dataset that are read at once."""


class ColumnsNotCompared(InvalidInput):
    """A row has text, but not in a column that is known to hold its prompt."""

    def __init__(self, columns: Sequence[str]) -> None:
        super().__init__(f"the text in {', '.join(map(repr, columns))} is not compared")
        self.columns = columns


def check_no_overlap(
    train: Iterable[Any],
    held_out: Iterable[Sample] | EvalDefinition,
    *,
    prepare_messages: PrepareMessages | None = None,
    columns: Sequence[str] | None = None,
    tokenizer: Any = None,
    allow_overlap: bool = False,
) -> int:
    """Refuse training prompts that are in the held-out set.

    Args:
        train: Training prompts, read once: texts, lists of messages, rows with a `prompt`,
            `messages` or `question`, or samples.
        held_out: What is evaluated; or an `EvalDefinition`.
        prepare_messages: Makes a held-out sample's opening messages, as in the eval.
        columns: The columns of a row, or of a sample's input, that make its prompt, such as
            `["problem"]`; several are compared together. None: those above.
        tokenizer: Its chat template renders held-out prompts, to find training texts that it
            rendered, with or without an answer after them.
        allow_overlap: Whether to warn instead.

    Returns:
        How many training prompts are in the held-out set.

    Raises:
        InvalidInput: Some are, or have text in columns that are not compared, and `allow_overlap`
            is False.
    """
    prompts = HeldOutPrompts(columns)
    prompts.add(held_out, prepare_messages, tokenizer)
    return prompts.check(train, allow_overlap=allow_overlap)


class HeldOutPrompts:
    """The prompts of held-out samples, to look up training prompts in.

    Args:
        columns: The columns that make the prompt of a row or of a sample's input; None: those of
            PROMPT_COLUMNS.
    """

    def __init__(self, columns: Sequence[str] | None = None) -> None:
        if isinstance(columns, str) or (columns is not None and not columns):
            raise InvalidInput(
                f"columns must be a list of names such as ['problem'], got {columns!r}"
            )
        self._columns = None if columns is None else tuple(columns)
        self._ids: set[str] = set()
        self._by_input: dict[str, str] = {}
        self._input_columns: set[frozenset[str]] = set()
        """The columns of each kind of input: whole inputs are compared among their like."""
        self._by_prompt: dict[str, str] = {}
        """Sample id by normalised text: of the whole prompt, or rendered by a chat template."""
        self._by_question: dict[str, str] = {}
        """By the text of the last message alone, where few-shot examples come before it."""
        self._openings: list[str] | None = None
        """Rendered prompts in order, after which an answer may follow; None: to be sorted."""
        self._by_opening: dict[str, str] = {}

    def add(
        self,
        samples: Iterable[Sample] | EvalDefinition,
        prepare_messages: PrepareMessages | None = None,
        tokenizer: Any = None,
    ) -> None:
        """Add held-out samples, as their inputs have them and as the eval asks them.

        Args:
            samples: The samples, or the eval that has them and its own `prepare_messages`.
            prepare_messages: Makes their opening messages. One that is async is not called: the
                sample's input is the prompt then.
            tokenizer: Its chat template, if it has one, is applied to them, too: a dataset of texts
                may have applied it.
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
            self._input_columns.add(frozenset(_rename_columns(sample.input)))
            if (named := self._read_columns(sample.input)) is not None:
                self._by_prompt.setdefault(named, sample.id)
            elif (raw := _given_prompt(sample.input)) is not None:
                self._add_prompt(raw, sample.id)
            opening = _opening_of(sample, prepare_messages)
            if not self._add_prompt(opening, sample.id) or not opening:
                continue
            for text, ends_with_reply in _render(tokenizer, opening):
                self._by_prompt.setdefault(normalise(text), sample.id)
                if ends_with_reply:
                    self._by_opening.setdefault(normalise(text), sample.id)
        for index in (self._by_prompt, self._by_question, self._by_opening):
            index.pop("", None)
        self._openings = None

    def _add_prompt(self, prompt: Any, id: str) -> bool:
        """Add a prompt of a held-out sample; False where it is more than text."""
        try:
            whole, question = _normalise_prompt(prompt)
        except InvalidInput:
            return False  # an image: no text is the same
        self._by_prompt.setdefault(whole, id)
        if question != whole:
            self._by_question.setdefault(question, id)
        return True

    def find(self, prompt: Any) -> str | None:
        """Return the id of the held-out sample with this prompt, or None.

        Args:
            prompt: A text, a list of messages, a row with one of them, or a sample.

        Raises:
            ColumnsNotCompared: It has text in columns that nobody has named.
            InvalidInput: It is not text, or none of these.
        """
        if isinstance(prompt, Sample):
            by_input = _normalise_input(prompt)
            if by_input is None and self._columns is None:
                raise InvalidInput("an input holds what JSON cannot")
            twin = self._by_input.get(by_input or "")
            names = frozenset(_rename_columns(prompt.input))
            whole_inputs = self._columns is None and names in self._input_columns
            if twin is not None or (whole_inputs and not names <= set(PROMPT_COLUMNS)):
                return twin
        if isinstance(prompt, Sample | Mapping):
            row = prompt.input if isinstance(prompt, Sample) else prompt
            if self._columns is not None:
                return self._find_by_columns(row)
            _refuse_unknown_text(row, others_count=isinstance(prompt, Sample))
        whole, question = _normalise_prompt(prompt)
        # Not question by question: "go on" ends many conversations.
        return (
            self._by_prompt.get(whole)
            or self._by_question.get(whole)
            or self._by_prompt.get(question)
            or self._find_opening(whole)
        )

    def _read_columns(self, row: Mapping[str, Any]) -> str | None:
        """Return the normalised text of the named columns together; None if it lacks one."""
        if self._columns is None or not all(name in row for name in self._columns):
            return None
        return _join_columns(row, self._columns)

    def _find_by_columns(self, row: Mapping[str, Any]) -> str | None:
        assert self._columns is not None
        if not any(name in row for name in self._columns):
            raise ColumnsNotCompared([name for name in row if _is_text(row[name])] or [*row])
        present = [name for name in self._columns if _is_given(row.get(name))]
        text = _join_columns(row, present)
        if len(present) == 1 and (content := row[present[0]]) and not isinstance(content, str):
            whole, question = _normalise_prompt(content)  # a conversation
            return self._by_prompt.get(whole) or self._by_prompt.get(question)
        return self._by_prompt.get(text) or self._by_question.get(text) or self._find_opening(text)

    def _find_opening(self, text: str) -> str | None:
        """Return the sample whose rendered prompt a text begins with."""
        if self._openings is None:
            self._openings = sorted(self._by_opening)
        while text:
            place = bisect.bisect_right(self._openings, text)
            if place == 0:
                return None
            before = self._openings[place - 1]
            if text.startswith(before):
                return self._by_opening[before]
            # What the text begins with sorts before it, and so begins this neighbour, too.
            text = text[: _shared_length(before, text)]
        return None

    def check(self, train: Iterable[Any], *, allow_overlap: bool | None = None) -> int:
        """Look up training prompts, as `check_no_overlap` does. Warns of those it cannot read.

        Args:
            train: The training prompts.
            allow_overlap: As for `check_no_overlap`; None: the caller has no such argument.

        Returns:
            How many are in the held-out set.

        Raises:
            InvalidInput: Some are, or have text in columns that are not compared, and
                `allow_overlap` is not True.
        """
        counts: Counter[str] = Counter()
        named: dict[str, list[str]] = {kind: [] for kind in REASONS}
        unread, problem = 0, ""
        unknown: Counter[str] = Counter()
        not_compared = 0
        for prompt in train if self._ids else ():
            try:
                found = self._describe_overlap(prompt)
            except ColumnsNotCompared as raised:
                not_compared += 1
                unknown.update(raised.columns)
                continue
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
        if not_compared:
            _refuse_columns(not_compared, unknown, allow_overlap)
        if not counts:
            return 0
        reasons = [
            f"{count(counts[kind], 'training sample')} {'has' if counts[kind] == 1 else 'have'} "
            f"{REASONS[kind]}: {', '.join(names)}"
            + f" and {counts[kind] - NAMED} more"
            * (counts[kind] > NAMED)
            for kind, names in named.items()
            if names
        ]
        text = "; ".join(reasons)
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
            rows = _read_rows(dataset, self._columns)
            if isinstance(rows, str):
                log.warning(
                    "heldout: whether training prompts are in the held-out set was not checked: "
                    "%s; heldout.rollouts.check_no_overlap(prompts, held_out) checks them",
                    rows,
                )
                return None
            return self.check(rows, allow_overlap=allow_overlap)


def _refuse_columns(prompts: int, unknown: Counter[str], allow_overlap: bool | None) -> None:
    """Refuse training prompts with text in columns that nobody has named."""
    names = [name for name, _ in unknown.most_common()]
    listed = ", ".join(f"{name!r}" for name in names[:NAMED]) + ", …" * (len(names) > NAMED)
    several = "s have" if prompts > 1 else " has"
    text = (
        f"{prompts} training prompt{several} text in columns that are not compared with the "
        f"held-out set ({listed})"
    )
    if not allow_overlap:
        raise InvalidInput(
            f"{text}: name the columns that make the prompt, such as columns={names[:1]!r}"
        )
    log.warning("heldout: %s; allow_overlap=True, so training goes on", text)


def normalise(text: str) -> str:
    """Return a text with case and white space normalised."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _describe(prompt: Any) -> str:
    """Return the beginning of a prompt's last message."""
    content = _content_of(prompt)
    if not _is_given(content) and isinstance(prompt, Sample | Mapping):
        row = prompt.input if isinstance(prompt, Sample) else prompt
        content = next((text for text in row.values() if isinstance(text, str)), "")
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
    with_input = _join_instruction(_rename_columns(sample.input))
    return likely_question(sample) if with_input is None else [Message("user", with_input)]


def _content_of(prompt: Any) -> Any:
    """Return the text or the messages of a prompt, a row or a sample."""
    if isinstance(prompt, Sample):
        prompt = prompt.input
    if isinstance(prompt, Mapping):
        given = _given_prompt(prompt)
        return "" if given is None else given
    return prompt


def _shared_length(a: str, b: str) -> int:
    """Return how many characters two texts begin with alike."""
    pairs = zip(a, b, strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))


def _given_prompt(row: Mapping[str, Any]) -> Any:
    """Return the text or the messages in the first of PROMPT_COLUMNS that a row fills, or None."""
    row = _rename_columns(row)
    filled = next((name for name in PROMPT_COLUMNS if _is_given(row.get(name))), None)
    if filled is None:
        return None
    with_input = _join_instruction(row) if filled == INSTRUCTION else None
    return row[filled] if with_input is None else with_input


def _rename_columns(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row with the names of known columns in small letters: `Problem`, `PROMPT`."""
    renamed: dict[str, Any] = {}
    for name, value in row.items():
        small = str(name).lower()
        known = small in (*PROMPT_COLUMNS, ITS_INPUT)
        renamed.setdefault(small if known and (small == name or small not in row) else name, value)
    return renamed


def _join_instruction(row: Mapping[str, Any]) -> str | None:
    """Return an instruction and the input that it is about as one text; None without either."""
    texts = [row.get(INSTRUCTION), row.get(ITS_INPUT)]
    together = [text for text in texts if isinstance(text, str) and text.strip()]
    return "\n".join(together) if len(together) == len(texts) else None


def _is_given(value: Any) -> bool:
    return value is not None and not (isinstance(value, str | list | tuple) and not value)


def _is_text(value: Any) -> bool:
    """Return whether a value is a text, or may be a conversation under another name."""
    if isinstance(value, list | tuple):
        return any(
            isinstance(part, Mapping) and any(map(_is_text, part.values())) for part in value
        )
    return isinstance(value, str) and bool(value.strip())


def _refuse_unknown_text(row: Mapping[str, Any], *, others_count: bool) -> None:
    """Refuse a row whose text may be a prompt, though not in one of PROMPT_COLUMNS.

    Args:
        row: The row, or a sample's input.
        others_count: Whether text beside a prompt makes it another one, as in a sample's input. In
            a dataset's row it is an answer, a source or the like.
    """
    if not others_count and _given_prompt(row) is not None:
        return
    known = _rename_columns(row)
    compared = [*PROMPT_COLUMNS, *([ITS_INPUT] if _join_instruction(known) is not None else [])]
    texts = [name for name, value in known.items() if name not in compared and _is_text(value)]
    if texts:
        raise ColumnsNotCompared(texts)
    if row and _given_prompt(row) is None and not any(name in known for name in PROMPT_COLUMNS):
        raise InvalidInput(f"a prompt is text, and there is none in {', '.join(map(str, row))}")


def _join_columns(row: Mapping[str, Any], names: Iterable[str]) -> str:
    return normalise("\n".join(text for name in names if isinstance(text := row.get(name), str)))


def _render(tokenizer: Any, opening: list[Message]) -> Iterator[tuple[str, bool]]:
    """Yield what a chat template makes of a prompt, and whether a reply must follow that text."""
    if not getattr(tokenizer, "chat_template", None):
        return
    try:
        chat = [to_chat_api(message) for message in opening]
        plain, asking = (
            str(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=asks))
            for asks in (False, True)
        )
    except Exception as problem:  # templates raise what they like
        log.debug("a held-out prompt does not fit the chat template", exc_info=problem)
        return
    yield plain, False
    # Where nothing marks the end of the question, a longer one would begin with the same text.
    yield asking, normalise(asking) != normalise(plain)


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
        raise InvalidInput(f"a prompt must be a text or a list of messages, got {messages!r:.100}")
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
    return json.dumps(_normalise_value(_rename_columns(input)), sort_keys=True)


def _normalise_value(value: Any) -> Any:
    if isinstance(value, str):
        return normalise(value)
    if isinstance(value, Mapping):
        return {key: _normalise_value(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_normalise_value(part) for part in value]
    return value


# --- Datasets of trainers -------------------------------------------------------------------------


def _read_rows(dataset: Any, named: Sequence[str] | None) -> Iterator[Any] | str:
    """Return the rows of a dataset; or why they cannot be read, as a text."""
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
    if any(str(name).lower() in IMAGE_COLUMNS for name in first):
        return "it has images, and equal words about two of them are not the same prompt"
    known = (*PROMPT_COLUMNS, ITS_INPUT)
    names = [name for name in first if (name in named if named else str(name).lower() in known)]
    if not any(name in named if named else str(name).lower() in PROMPT_COLUMNS for name in names):
        names = []
    if not names and not any(map(_is_text, dataset[0].values())):
        return f"it has no messages, prompt or question, only {', '.join(map(str, first))}"
    if columns and hasattr(dataset, "select_columns"):
        return _read_batches(dataset.select_columns(names) if names else dataset)
    return (dataset[i] for i in range(len(dataset)))


def _read_batches(dataset: Any) -> Iterator[Any]:
    for batch in dataset.iter(batch_size=BATCH):
        for values in zip(*batch.values(), strict=True):
            yield dict(zip(batch, values, strict=True))


__all__ = ["HeldOutPrompts", "check_no_overlap", "normalise"]
