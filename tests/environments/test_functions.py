"""A function as a tool: the schema a model is shown, and what it may be called with."""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional, TypedDict

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from heldout.environments.tools import BadArguments, Function
from heldout.errors import InvalidInput

if TYPE_CHECKING:
    from nowhere import Database  # type: ignore[import-not-found]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: int
    y: int = 0


class Address(TypedDict):
    street: str


def schema_of(function: Callable[..., Any], injected: Sequence[str] = ()) -> dict[str, Any]:
    return Function(function, injected).spec.parameters


# --- The schema ---------------------------------------------------------------------------------


def test_a_signature_becomes_an_object_schema_with_its_defaults() -> None:
    def search(query: str, limit: int = 10, exact: bool = False) -> str:
        """Look something up."""
        return query

    tool = Function(search).spec
    assert (tool.name, tool.description) == ("search", "Look something up.")
    assert tool.parameters == {
        "type": "object",
        "properties": {
            "query": {"type": "string"},
            "limit": {"type": "integer", "default": 10},
            "exact": {"type": "boolean", "default": False},
        },
        "required": ["query"],
        "additionalProperties": False,
    }


def test_a_function_without_parameters_has_an_object_schema_too() -> None:
    def now() -> str:
        return ""

    schema = schema_of(now)
    assert (schema["type"], schema["properties"], schema["required"]) == ("object", {}, [])


@pytest.mark.parametrize(
    ("annotation", "shown"),
    [
        (int, {"type": "integer"}),
        (list[str], {"type": "array", "items": {"type": "string"}}),
        (dict[str, float], {"type": "object", "additionalProperties": {"type": "number"}}),
        (Literal["a", "b"], {"enum": ["a", "b"]}),
        (Optional[int], {"anyOf": [{"type": "integer"}, {"type": "null"}]}),  # noqa: UP045
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (Any, {}),
        (object, {}),
        ("list[int]", {"type": "array", "items": {"type": "integer"}}),
        (Annotated[int, msgspec.Meta(ge=0)], {"type": "integer", "minimum": 0}),
    ],
)
def test_annotations_become_json_schemas(annotation: Any, shown: dict[str, Any]) -> None:
    def tool(x):  # type: ignore[no-untyped-def]
        return x

    tool.__annotations__["x"] = annotation
    assert schema_of(tool)["properties"]["x"] == shown


def test_a_parameter_without_annotation_takes_anything() -> None:
    def tool(x, y=3):  # type: ignore[no-untyped-def]
        return x

    function = Function(tool)
    assert function.spec.parameters["properties"] == {"x": {}, "y": {"default": 3}}
    assert function.arguments('{"x": [1, {"a": null}]}') == {"x": [1, {"a": None}]}


def test_types_of_ones_own_are_kept_as_definitions_and_only_then() -> None:
    def paint(at: Point, colour: Colour = Colour.RED) -> str:
        return ""

    schema = schema_of(paint)
    assert schema["type"] == "object"
    assert schema["properties"]["at"] == {"$ref": "#/$defs/Point"}
    assert schema["properties"]["colour"]["default"] == "red"
    assert set(schema["$defs"]) == {"Point", "Colour"}
    assert Function(paint).arguments('{"at": {"x": 3}, "colour": "blue"}') == {
        "at": Point(3),
        "colour": Colour.BLUE,
    }

    def plain(x: int) -> str:
        return ""

    assert "$defs" not in schema_of(plain)


def test_a_default_of_none_lets_a_model_say_null() -> None:
    def tool(limit: int = None) -> str:  # type: ignore[assignment]  # noqa: RUF013
        return ""

    assert Function(tool).arguments('{"limit": null}') == {"limit": None}
    assert Function(tool).arguments("{}") == {}


def test_a_default_that_json_cannot_show_is_left_to_the_function() -> None:
    def tool(x: float = math.inf, y: Any = print) -> str:
        return ""

    assert schema_of(tool)["properties"] == {"x": {"type": "number"}, "y": {}}
    assert Function(tool).arguments("{}") == {}


def test_methods_are_tools_without_their_self() -> None:
    class Shop:
        def buy(self, item: str) -> str:
            return item

    assert list(schema_of(Shop().buy)["properties"]) == ["item"]


def test_injected_parameters_are_not_shown_and_need_no_schema() -> None:
    def look(where: str, database: Database) -> str:
        return where

    function = Function(look, ["database"])
    assert list(function.spec.parameters["properties"]) == ["where"]
    assert function.injected == ["database"]


# --- Docstrings ---------------------------------------------------------------------------------


def google(city: str, days: int, unit: str, other: str) -> str:
    """Tell the weather
    of a city.

    It is a forecast.

    Args:
        city: Which city; written
            out in full.
        days (int, optional): How far ahead: at most 7.
        unit: C or F.

    Returns:
        other: not an argument.
    """
    return ""


def numpy(city: str, days: int, unit: str, other: str) -> str:
    """Tell the weather of a city.

    Parameters
    ----------
    city : str
        Which city; written
        out in full.
    days : int, optional
        How far ahead: at most 7.
    unit
        C or F.

    Returns
    -------
    other : str
        Not an argument.
    """
    return ""


def sphinx(city: str, days: int, unit: str, other: str) -> str:
    """Tell the weather of a city.

    :param city: Which city; written
        out in full.
    :param int days: How far ahead: at most 7.
    :type days: int
    :param unit: C or F.
    :returns: other: not an argument
    """
    return ""


@pytest.mark.parametrize("style", [google, numpy, sphinx])
def test_arguments_are_described_from_the_docstring(style: Callable[..., str]) -> None:
    tool = Function(style).spec
    assert tool.description == "Tell the weather of a city."
    described = {
        name: shown.get("description") for name, shown in tool.parameters["properties"].items()
    }
    assert described == {
        "city": "Which city; written out in full.",
        "days": "How far ahead: at most 7.",
        "unit": "C or F.",
        "other": None,
    }


def test_several_numpy_arguments_may_share_a_description() -> None:
    def move(x: int, y: int) -> str:
        """Move.

        Parameters
        ----------
        x, y : int
            Where to.
        """
        return ""

    properties = schema_of(move)["properties"]
    assert properties["x"]["description"] == properties["y"]["description"] == "Where to."


def test_a_description_in_the_annotation_wins() -> None:
    def tool(x: Annotated[int, msgspec.Meta(description="mine")]) -> str:
        """Do.

        Args:
            x: other
        """
        return ""

    assert schema_of(tool)["properties"]["x"]["description"] == "mine"


@given(st.text(alphabet="Args: \n-Parameters(x)y,:param", max_size=200))
@example(": :")
def test_no_docstring_is_too_odd(text: str) -> None:
    def tool(x: int) -> str:
        return ""

    tool.__doc__ = text
    assert Function(tool).spec.parameters["required"] == ["x"]


# --- What cannot be a tool ----------------------------------------------------------------------


def positional(a: int, /) -> str:
    return ""


def star(*numbers: int) -> str:
    return ""


def keywords(**options: int) -> str:
    return ""


def inexpressible(x: complex) -> str:
    return ""


def ambiguous(x: list[int] | set[int]) -> str:
    return ""


def unknown_name(x: Database) -> str:
    return ""


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (positional, "by name, which a does not allow.*without /"),
        (star, r"by name, which \*numbers does not allow; write out"),
        (keywords, r"by name, which \*\*options does not allow; write out"),
        (inexpressible, "'x' is annotated complex.*use str, int"),
        (ambiguous, r"annotated list\[int\] \| set\[int\].*more than one array-like"),
        (unknown_name, "'x' is annotated Database.*not defined.*or inject it"),
        (lambda x: x, "no name.*with def"),
        (partial(print), "no name.*with def"),
        ("print", "a tool must be a function, got 'print'"),
        (int, "a tool must be a function"),
        (None, "a tool must be a function"),
    ],
)
def test_what_cannot_be_a_tool_is_refused_with_what_to_do(function: Any, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        Function(function)


# --- Arguments ----------------------------------------------------------------------------------


def book(city: str, nights: int, guests: list[str] | None = None, *, late: bool = False) -> str:
    return ""


BOOK = Function(book)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ('{"city": ', "Input data was truncated"),
        ("city=Rome", "JSON is malformed.*with city, nights, guests (optional), late (optional)"),
        ("[1]", "Expected `object`, got `array`"),
        ("null", "Expected `object`, got `null`"),
        ("{}", "missing required field `city`; book takes a JSON object with city, nights"),
        ('{"city": "Rome", "nights": "2"}', "Expected `int`, got `str` - at `$.nights`"),
        ('{"city": "Rome", "nights": 2, "town": 1}', "unknown field `town`"),
        ('{"city": "a", "nights": 2, "guests": ["a", 1]}', "got `int` - at `$.guests[1]`"),
        ("[" * 100_000, "Expected `object`, got `array`"),
        ('{"city": "a", "nights": 1, "guests": ' + "[" * 100_000, "do not fit"),
        ('{"city": "\ud800"}', "do not fit"),
        ('{"city": "a", "nights": ' + "9" * 5000 + "}", "Integer value out of range"),
    ],
)
def test_a_model_is_told_what_is_wrong_with_its_arguments(arguments: str, said: str) -> None:
    with pytest.raises(BadArguments) as caught:
        BOOK.arguments(arguments)
    assert str(caught.value).startswith("the arguments of book do not fit: ")
    assert all(part in str(caught.value) for part in said.split(".*")), str(caught.value)
    assert len(str(caught.value)) < 500


def test_no_text_at_all_is_a_call_without_arguments() -> None:
    def now(zone: str = "UTC") -> str:
        return ""

    assert Function(now).arguments("") == Function(now).arguments(" ") == {}


def test_a_tool_that_takes_nothing_says_so() -> None:
    def now() -> str:
        return ""

    with pytest.raises(BadArguments, match=r"unknown field `x`; now takes no arguments: give {}"):
        Function(now).arguments('{"x": 1}')


def allows(schema: Any, value: Any) -> bool:
    """What JSON schema says, for the keywords that these annotations come to."""
    if "anyOf" in schema:
        return any(allows(inner, value) for inner in schema["anyOf"])
    if "enum" in schema:
        return value in schema["enum"] and not isinstance(value, bool)
    match schema.get("type"):
        case "string":
            return isinstance(value, str)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
        case "array":
            return isinstance(value, list) and all(allows(schema["items"], v) for v in value)
        case "object" if "properties" in schema:
            return (
                isinstance(value, dict)
                and set(schema["required"]) <= set(value) <= set(schema["properties"])
                and all(allows(schema["properties"][k], v) for k, v in value.items())
            )
        case "object":
            values = schema.get("additionalProperties", {})
            return isinstance(value, dict) and all(allows(values, v) for v in value.values())
    assert schema.keys() <= {"default"}
    return True


ANNOTATIONS: list[Any] = [
    str, int, float, bool, Any, None, list[int], dict[str, float], list[dict[str, bool]],
    int | None, str | int, list[str] | bool | None, Literal["a", "b"], list[Literal["x"]],
]  # fmt: skip
# Whole numbers written as 1.0 are left out: JSON schema calls them integers, msgspec floats.
VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-10, 10),
        st.sampled_from([0.5, -1.25]),
        st.sampled_from(["", "a", "b", "x", "1"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("abk"), inner, max_size=3)
    ),
    max_leaves=5,
)


@given(
    st.lists(st.tuples(st.sampled_from(ANNOTATIONS), st.booleans()), max_size=3),
    st.dictionaries(st.sampled_from(["p0", "p1", "p2", "q"]), VALUES, max_size=4),
)
def test_what_the_schema_allows_is_what_is_accepted(
    parameters: list[tuple[Any, bool]], arguments: dict[str, Any]
) -> None:
    listed = [f"p{i}" + ("=...") * optional for i, (_, optional) in enumerate(parameters)]
    space: dict[str, Any] = {}
    signature = ", ".join(["*", *listed]) if listed else ""
    exec(f"def tool({signature}): pass", space)
    tool = space["tool"]
    tool.__annotations__ = {f"p{i}": a for i, (a, _) in enumerate(parameters)}
    function = Function(tool)
    allowed = allows(function.spec.parameters, arguments)
    try:
        accepted = function.arguments(json.dumps(arguments)) == arguments
    except BadArguments:
        accepted = False
    assert accepted == allowed


@given(st.text(alphabet='{}[]":,abcitynghs012.-e\\u \n\0é漢🙂\ud800', max_size=60))
def test_no_text_of_a_model_is_anything_but_accepted_or_explained(text: str) -> None:
    try:
        taken = set(BOOK.arguments(text))
    except BadArguments:
        return
    assert {"city", "nights"} <= taken <= {"city", "nights", "guests", "late"}
