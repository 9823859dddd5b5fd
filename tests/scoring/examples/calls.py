"""Examples of tool calls: the answer is one call's arguments, as the model wrote them.

Of VALID the target is the tool's parameters (a JSON schema), of SAME the arguments of the
reference's call. What is extracted is the tool called.
"""

from __future__ import annotations

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

EXAMPLES = VALID
