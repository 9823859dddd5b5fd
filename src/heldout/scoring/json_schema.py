"""JSON checked against a schema by `jsonschema-rs` (extra `schemas`), compiled once.

`compiled(schema)` keeps the last few hundred schemas by their content, so it may be called for
every answer. A $ref to anything outside the schema is refused; nothing is ever fetched. A `pattern`
runs on a linear engine; with look-around, up to a number of steps.

Formats such as "email" are annotations, as the specification has it from 2019 on. The draft is the
one that `$schema` names, else 2020-12.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import msgspec

from heldout._core.extras import missing_extra
from heldout._core.format import cut
from heldout._reasoning import fenced
from heldout.errors import InvalidInput
from heldout.scoring.answers import answer_text
from heldout.scoring.formats import NotJSON, parse_json
from heldout.scoring.grades import NO_ANSWER, Grade, grader

PATTERN_STEPS = 100_000  # of backtracking, for a `pattern` with look-around or back-references


@dataclass(frozen=True, slots=True, eq=False)
class Schema:
    """A compiled schema. Made by `compiled`."""

    _validator: Any = field(repr=False)
    _invalid: type[Exception] = field(repr=False)

    def accepts(self, value: Any) -> bool:
        """Return whether a value is valid."""
        try:
            return bool(self._validator.is_valid(value))
        except ValueError:  # half of a surrogate pair in a value that was never JSON, or too deep
            return False

    def problem(self, value: Any) -> str | None:
        """Describe the first violation and where it is; None if the value is valid."""
        try:
            self._validator.validate(value)
        except self._invalid as error:
            where: Any = error
            if where.kind.name == "BacktrackLimitExceeded" or "backtracking" in where.message[:99]:
                raise InvalidInput(
                    f"a pattern of the schema, at {_path(where.schema_path)}, takes more than "
                    f"{PATTERN_STEPS} steps on this value; write it without look-around"
                ) from None
            return f"{_path(where.instance_path)}: {_short(where.message)}"
        except ValueError as error:
            return _short(str(error))
        return None


def compiled(schema: Mapping[str, Any] | bool) -> Schema:
    """Compile a schema; the same content is compiled once.

    Raises:
        InvalidInput: It is not a schema, or refers to something outside it.
    """
    try:
        content = msgspec.json.encode(schema)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise InvalidInput(f"not a JSON schema: {_short(str(error))}") from None
    return _compiled(content)


@lru_cache(maxsize=512)
def _compiled(content: bytes) -> Schema:
    try:
        import jsonschema_rs
    except ImportError as problem:
        raise missing_extra(
            f"checking JSON against a schema needs the package jsonschema-rs ({problem})", "schemas"
        ) from None
    schema = msgspec.json.decode(content)
    try:
        validator = jsonschema_rs.validator_for(
            schema,
            validate_formats=False,
            pattern_options=jsonschema_rs.FancyRegexOptions(backtrack_limit=PATTERN_STEPS),
            offline=True,
        )
    except ValueError as error:  # jsonschema_rs.ValidationError is one
        hint = "; nothing is fetched: put what a $ref names under $defs" * (b'"$ref"' in content)
        raise InvalidInput(
            f"not a JSON schema: {_short(getattr(error, 'message', str(error)))}{hint}; "
            f"it is {_short(content.decode())}"
        ) from None
    return Schema(validator, jsonschema_rs.ValidationError)


def _check(*, schema: Mapping[str, Any] | bool | Schema | None = None) -> None:
    if schema is not None and not isinstance(schema, Schema):
        compiled(schema)


@grader(version=1, check=_check)
def grade_json(answer: str | None, *, schema: Mapping[str, Any] | bool | Schema) -> Grade:
    """Grade 1 if the answer is JSON that is valid under the schema.

    Reads the whole answer, or else its last code block, which must be closed.

    Args:
        answer: The reply; its reasoning is not read.
        schema: A JSON schema, or a compiled one.

    Returns:
        The grade, with the JSON text and what is wrong with it.

    Raises:
        InvalidInput: The schema cannot be used.
    """
    if not isinstance(schema, Schema):
        schema = compiled(schema)
    text = answer_text(answer)
    if text is None:
        return NO_ANSWER
    try:
        value = parse_json(text)
    except NotJSON as problem:
        blocks = list(fenced(text))
        if not blocks:
            return Grade(0.0, None, str(problem))
        if not blocks[-1].closed:
            return Grade(0.0, None, "the last code block never closes")
        text = text[blocks[-1].inner : blocks[-1].inner_end].strip()
        try:
            value = parse_json(text)
        except NotJSON as inside:
            return Grade(0.0, None, f"the last code block is not JSON: {inside}")
    if schema.accepts(value):
        return Grade(1.0, text)
    return Grade(0.0, text, schema.problem(value) or "the schema does not accept it")


def _path(parts: list[str | int]) -> str:
    return _short("$" + "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in parts))


def _short(text: str) -> str:
    return cut(text, 200)
