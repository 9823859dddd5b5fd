"""Examples of tool calls.

Of VALID and SAME the answer is one call's arguments, as the model wrote them. Of VALID the target
is the tool's parameters (a JSON schema), of SAME the arguments of the reference's call; what is
extracted is the tool called. Of GRADED the answer is all calls of a turn, and the target what
`grade_calls` gets as ground truth.
"""

from __future__ import annotations

import json
from typing import Any

from tests.scoring.examples import Example

TOOL = "weather"
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}

VALID = (
    Example('{"city": "Oslo", "days": 2}', PARAMETERS, TOOL, 1.0),
    Example('{"city": "Oslo", "days": 2.0}', PARAMETERS, TOOL, 1.0, "2.0 is an integer"),
    Example('{"city": "Oslo", "days": "2"}', PARAMETERS, TOOL, 0.0, '"2" is none'),
    Example('{"days": 2}', PARAMETERS, TOOL, 0.0, "a required argument is missing"),
    Example('{"city": "Oslo"', PARAMETERS, TOOL, 0.0, "bad JSON"),
    Example("", PARAMETERS, TOOL, 0.0, "nothing is bad JSON too"),
    Example('["Oslo"]', PARAMETERS, TOOL, 0.0, "not an object"),
    Example('"{\\"city\\": \\"Oslo\\"}"', PARAMETERS, TOOL, 0.0, "JSON within a JSON string"),
    Example("null", {}, TOOL, 1.0, "a schema without demands has none"),
)

SAME = (
    Example(
        '{"city": "Oslo", "days": 2}',
        '{"days": 2, "city": "Oslo"}',
        TOOL,
        1.0,
        "the order of keys does not count",
    ),
    Example('{"days": 2}', '{"days": 2.0}', TOOL, 1.0, "2 is 2.0"),
    Example('{"days": 1}', '{"days": true}', TOOL, 0.0, "1 is not true"),
    Example('{"days": "1"}', '{"days": 1}', TOOL, 0.0, "nor is it text"),
    Example('{"at": [1, 2]}', '{"at": [2, 1]}', TOOL, 0.0, "the order of a list does count"),
    Example('{"days": null}', "{}", TOOL, 0.0, "null is not nothing"),
    Example('{"n": 9007199254740993}', '{"n": 9007199254740992.0}', TOOL, 0.0, "compared exactly"),
    Example("{", "{", TOOL, 0.0, "bad JSON equals nothing"),
)

OSLO = {"name": TOOL, "arguments": '{"city": "Oslo"}'}
ROME = {"name": TOOL, "arguments": '{"city": "Rome"}'}
ACCEPTS = {TOOL: {"city": ["Oslo", "Oslo, Norway"], "days": [1, 2, ""]}}

GRADED = (
    Example(
        json.dumps([OSLO]),
        [{"name": TOOL, "arguments": {"city": "Oslo"}}],
        'weather({"city": "Oslo"})',
        1.0,
        "arguments as they are",
    ),
    Example(
        json.dumps([OSLO]),
        [{"id": "1", "type": "function", "function": OSLO}],
        'weather({"city": "Oslo"})',
        1.0,
        "as chat APIs have calls",
    ),
    Example(
        json.dumps([OSLO, ROME]),
        {"role": "assistant", "tool_calls": [{"function": ROME}, {"function": OSLO}]},
        'weather({"city": "Oslo"}); weather({"city": "Rome"})',
        1.0,
        "a whole message; the order does not count",
    ),
    Example(json.dumps([ROME]), [OSLO], 'weather({"city": "Rome"})', 0.0, "other arguments"),
    Example(
        json.dumps([OSLO, OSLO]),
        [OSLO],
        'weather({"city": "Oslo"}); weather({"city": "Oslo"})',
        0.0,
        "twice is not once",
    ),
    Example(
        json.dumps([{"name": "wether", "arguments": "{}"}]),
        [{"name": TOOL, "arguments": {}}],
        "wether({})",
        0.0,
        "another tool",
    ),
    Example(json.dumps([]), [OSLO], None, 0.0, "no call where there should be one"),
    Example(json.dumps([OSLO]), [], 'weather({"city": "Oslo"})', 0.0, "it should not have called"),
    Example(json.dumps([]), [], None, 1.0, "nor did it"),
    Example(json.dumps([{"name": TOOL, "arguments": "{"}]), [OSLO], "weather({)", 0.0, "bad JSON"),
    Example(json.dumps([OSLO]), [ACCEPTS], 'weather({"city": "Oslo"})', 1.0, "an accepted value"),
    Example(
        json.dumps([{"name": TOOL, "arguments": '{"city": "Oslo, Norway", "days": 1}'}]),
        [ACCEPTS],
        'weather({"city": "Oslo, Norway", "days": 1})',
        1.0,
        "another one, and an optional argument",
    ),
    Example(json.dumps([ROME]), [ACCEPTS], 'weather({"city": "Rome"})', 0.0, "not accepted"),
    Example(
        json.dumps([{"name": TOOL, "arguments": '{"city": "Oslo", "days": 3}'}]),
        [ACCEPTS],
        'weather({"city": "Oslo", "days": 3})',
        0.0,
        "an optional argument with another value",
    ),
    Example(
        json.dumps([{"name": TOOL, "arguments": '{"days": 1}'}]),
        [ACCEPTS],
        'weather({"days": 1})',
        0.0,
        "only what is optional may be left out",
    ),
    Example(
        json.dumps([{"name": TOOL, "arguments": '{"city": "Oslo", "unit": "C"}'}]),
        [ACCEPTS],
        'weather({"city": "Oslo", "unit": "C"})',
        0.0,
        "an argument that the target does not name",
    ),
)

TRIP = [
    {
        "book": {
            "city": ["Oslo", "Oslo, Norway"],
            "room": [{"beds": [1, 2], "view": ["sea", ""]}],
            "paid": [{"amount": 90, "currency": "EUR"}, ""],
            "guests": [[{"name": ["Ann"]}, {"name": ["Bo", "Bob"]}]],
            "days": [3, ""],
        }
    }
]


def _book(**arguments: Any) -> tuple[str, str]:
    """The calls of a turn, and what is extracted of them."""
    written = json.dumps(arguments)
    return json.dumps([{"name": "book", "arguments": written}]), f"book({written})"


def _bfcl(value: float, why: str, **arguments: Any) -> Example:
    answer, extracted = _book(**arguments)
    return Example(answer, TRIP, extracted, value, why)


GUESTS = [{"name": "Ann"}, {"name": "Bob"}]
BFCL = (
    _bfcl(1.0, "an accepted value of each", city="Oslo", room={"beds": 2}, guests=GUESTS),
    _bfcl(
        1.0,
        "optional ones as well",
        city="Oslo",
        room={"beds": 1, "view": "sea"},
        guests=GUESTS,
        days=3,
    ),
    _bfcl(
        0.0,
        "in an object, too, a value has to be accepted",
        city="Oslo",
        room={"beds": 3},
        guests=GUESTS,
    ),
    _bfcl(
        0.0,
        "what is not optional is missing in an object",
        city="Oslo",
        room={"view": "sea"},
        guests=GUESTS,
    ),
    _bfcl(
        1.0,
        "a plain value in an object",
        city="Oslo",
        room={"beds": 1},
        guests=GUESTS,
        paid={"amount": 90, "currency": "EUR"},
    ),
    _bfcl(
        0.0,
        "a plain value that is another",
        city="Oslo",
        room={"beds": 1},
        guests=GUESTS,
        paid={"amount": 91, "currency": "EUR"},
    ),
    _bfcl(
        0.0,
        "a plain value that is missing",
        city="Oslo",
        room={"beds": 1},
        guests=GUESTS,
        paid={"currency": "EUR"},
    ),
    _bfcl(0.0, "what is not named", city="Oslo", room={"beds": 1, "bath": 1}, guests=GUESTS),
    _bfcl(0.0, "a list in another order", city="Oslo", room={"beds": 1}, guests=GUESTS[::-1]),
    _bfcl(0.0, "an argument is missing", room={"beds": 1}, guests=GUESTS),
)

FOLDED = (
    Example(
        json.dumps([{"name": TOOL, "arguments": '{"city": "OSLO"}'}]),
        [ACCEPTS],
        'weather({"city": "OSLO"})',
        1.0,
        "case does not count in arguments",
    ),
    Example(
        json.dumps([{"name": "Weather", "arguments": '{"city": "Oslo"}'}]),
        [OSLO],
        'Weather({"city": "Oslo"})',
        0.0,
        "but it does in names",
    ),
)

EXAMPLES = GRADED
