"""The documents of a task, all of them, each with the requests and examples of its prompt.

lm-eval keeps requests: a document that it makes no request of is in none of its denominators. It
writes "None" where a document has no question, and draws examples from whatever file it is told to.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from heldout.errors import InvalidInput

ADVICE = "mend it, or leave it out with process_docs in a config of your own"


@dataclass(frozen=True, slots=True)
class Document:
    """A document that is asked."""

    number: int
    doc: Mapping[str, Any]
    examples: Sequence[Mapping[str, Any]]
    """What its prompt shows with answers."""
    requests: Sequence[Any]
    """lm-eval's instances; none where there is nothing to rate."""


def build_documents(task: Any, **how: Any) -> list[Document]:
    """Have lm-eval build the prompts of all documents.

    Args:
        task: The task.
        **how: Arguments of its `build_all_requests`.
    """
    built: list[Document] = []
    drawn: list[Any] = []
    construct = task.construct_requests
    sampler = getattr(task, "sampler", None)
    draw: Any = getattr(sampler, "sample", None)

    def watch_draws(*args: Any, **given: Any) -> Any:
        examples = draw(*args, **given)
        drawn.extend(examples)
        return examples

    def watch_requests(*, doc: Any, metadata: tuple[Any, ...], **given: Any) -> Any:
        made = construct(doc=doc, metadata=metadata, **given)
        requests = made if isinstance(made, list) else [made]
        built.append(Document(metadata[1], doc, [*drawn], requests))
        drawn.clear()
        return made

    task.construct_requests = watch_requests
    if sampler is not None:
        sampler.sample = watch_draws
    try:
        task.build_all_requests(**how)
    finally:
        del task.construct_requests
        if sampler is not None:
            del sampler.sample
    return built


def check_documents(name: str, task: Any, documents: Sequence[Document]) -> str | None:
    """Refuse documents that lm-eval would leave out, or ask in a form that makes no sense.

    Returns:
        What is to be said of the examples; None where nothing is.

    Raises:
        InvalidInput: A document has nothing to rate or no question, or is in its own prompt.
    """
    for document in documents:
        where = f"{name}, document {document.number}"
        if not document.requests:
            raise InvalidInput(
                f"{where} has no choices, and lm-eval would leave it out of every number; {ADVICE}"
            )
        if (missing := _find_missing(task, document.doc)) is not None:
            raise InvalidInput(
                f"{where} has no value for {missing}, and lm-eval would write 'None'; {ADVICE}"
            )
    return _check_examples(name, task, documents)


# --- Nothing to ask -----------------------------------------------------------------------------


def _find_missing(task: Any, doc: Mapping[str, Any]) -> str | None:
    """Return the first field without a value that a question, choice or answer writes out."""
    parts: list[Callable[[Any], Any]] = [task.doc_to_text]
    if task.config.doc_to_choice is not None:
        parts.append(task.doc_to_choice)
    if not callable(task.config.process_results):  # which need not read it
        parts.append(task.doc_to_target)
    for field, value in doc.items():
        marked = _mark_missing(value)
        if marked is not value and any(_writes(part, doc, field, marked) for part in parts):
            return field
    return None


_MARK = "\N{REPLACEMENT CHARACTER}nothing\N{REPLACEMENT CHARACTER}"


def _mark_missing(value: Any) -> Any:
    """Return a value with a mark in place of each None; itself where it has none."""
    if value is None:
        return _MARK
    if isinstance(value, Mapping):
        parts = {key: _mark_missing(part) for key, part in value.items()}
        return parts if any(parts[key] is not value[key] for key in parts) else value
    if isinstance(value, list):
        marked = [_mark_missing(part) for part in value]
        return marked if any(a is not b for a, b in zip(marked, value, strict=True)) else value
    return value


def _writes(part: Callable[[Any], Any], doc: Mapping[str, Any], field: str, marked: Any) -> bool:
    """Return whether a part of the prompt writes the missing value of a field.

    A template may well ask whether there is one. So "None" must be there, and be this field's.
    """
    if "None" not in str(part(doc)):
        return False
    try:
        return _MARK in str(part({**deepcopy(dict(doc)), field: marked}))
    except Exception:  # noqa: BLE001 - it makes something of it that a text cannot be
        return False


# --- Examples -----------------------------------------------------------------------------------


def _check_examples(name: str, task: Any, documents: Sequence[Document]) -> str | None:
    fields = _fields_used(task)

    def content(doc: Mapping[str, Any]) -> str:
        used = {field: doc.get(field) for field in fields or sorted(doc)}
        return json.dumps(used, sort_keys=True, default=str)

    asked = {content(document.doc) for document in documents}
    in_own, shown = [], set[str]()
    for document in documents:
        examples = {content(example) for example in document.examples}
        if content(document.doc) in examples:
            in_own.append(document.number)
        shown |= examples & asked
    if in_own:
        raise InvalidInput(
            f"{name}: the few-shot examples are, in part, the documents that are asked, and "
            f"{len(in_own)} of {len(documents)} would have a prompt with their own answer in it "
            f"(document {in_own[0]}, say); set num_fewshot=0, another fewshot_seed, or a "
            "fewshot_split in a config of your own"
        )
    if shown:
        return (
            f"{len(shown)} of the documents that are asked are few-shot examples in the prompts of "
            "others, with their answers"
        )
    return None


def _fields_used(task: Any) -> set[str]:
    """Return the fields that templates read; none where a function may read any."""
    from jinja2 import meta
    from lm_eval.utils import env

    used: set[str] = set()
    config = task.config
    for part in (config.doc_to_text, config.doc_to_choice, config.doc_to_target):
        if callable(part) or task.prompt is not None:
            return set()
        if isinstance(part, str):
            is_field = part in task.features
            used |= {part} if is_field else meta.find_undeclared_variables(env.parse(part))
    return used


__all__ = ["Document", "build_documents", "check_documents"]
