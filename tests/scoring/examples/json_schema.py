"""Examples of `grade_json`: the target is the schema."""

from __future__ import annotations

from typing import Any

from tests.scoring.examples import Example

CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "people": {"type": "integer", "minimum": 0}},
    "required": ["city"],
    "additionalProperties": False,
}

EXAMPLES = (
    Example('{"city": "Oslo"}', CITY, '{"city": "Oslo"}', 1.0),
    Example(
        '{"people": 709037.0, "city": "Oslo"}',
        CITY,
        '{"people": 709037.0, "city": "Oslo"}',
        1.0,
        "1.0 is an integer",
    ),
    Example(
        '{"city": "Oslo", "people": -1}',
        CITY,
        '{"city": "Oslo", "people": -1}',
        0.0,
        "below the minimum",
    ),
    Example('{"city": 7}', CITY, '{"city": 7}', 0.0, "of another type"),
    Example("{}", CITY, "{}", 0.0, "a required key is missing"),
    Example(
        '{"city": "Oslo", "mayor": "?"}',
        CITY,
        '{"city": "Oslo", "mayor": "?"}',
        0.0,
        "a key too many",
    ),
    Example(
        'Here it is:\n```json\n{"city": "Oslo"}\n```\n',
        CITY,
        '{"city": "Oslo"}',
        1.0,
        "in a code block",
    ),
    Example(
        '```json\n{"city": 7}\n```\nNo, sorry:\n```json\n{"city": "Oslo"}\n```',
        CITY,
        '{"city": "Oslo"}',
        1.0,
        "the last code block counts",
    ),
    Example(
        '```json\n{"city": "Oslo"}\n```\nor\n```json\n{"city": "Osl',
        CITY,
        None,
        0.0,
        "the last one is cut off",
    ),
    Example('```json\n{"city": "Oslo"}', CITY, None, 0.0, "never closes"),
    Example('The city is {"city": "Oslo"}.', CITY, None, 0.0, "JSON within a sentence is not JSON"),
    Example('{"city": "Oslo",}', CITY, None, 0.0, "a trailing comma"),
    Example("{'city': 'Oslo'}", CITY, None, 0.0, "Python is not JSON"),
    Example('{"city": "Oslo", "people": NaN}', CITY, None, 0.0, "nor is NaN"),
    Example("null", CITY, "null", 0.0, "not an object"),
    Example("", CITY, None, 0.0, "no answer"),
    Example("true", {"const": 1}, "true", 0.0, "true is not 1"),
    Example(
        '{"a": 1, "a": "x"}',
        {"properties": {"a": {"type": "string"}}},
        '{"a": 1, "a": "x"}',
        1.0,
        "of a key given twice, the last counts",
    ),
)
