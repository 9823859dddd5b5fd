import socket
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heldout.errors import InvalidInput
from heldout.scoring import json_schema
from heldout.scoring.json_schema import compiled, grade_json
from tests.scoring.examples import wrong_rows
from tests.scoring.examples.json_schema import CITY, EXAMPLES


def test_the_examples_hold():
    grade = lambda answer, schema: grade_json(answer, schema=schema)  # noqa: E731
    assert wrong_rows(EXAMPLES, grade, noted=True) == []


def test_a_schema_is_compiled_once_by_its_content():
    assert compiled(CITY) is compiled(dict(CITY))


def test_a_schema_changed_after_it_was_compiled_is_another():
    schema = {"type": "string"}
    assert compiled(schema).accepts("a")
    schema["type"] = "number"
    assert not compiled(schema).accepts("a")


def test_the_first_problem_is_said_with_its_place():
    assert grade_json('{"city": 7}', schema=CITY).note == '$.city: 7 is not of type "string"'


def test_a_problem_with_a_megabyte_is_said_briefly():
    note = grade_json('{"city": "O", "people": "' + "x" * 1_000_000 + '"}', schema=CITY).note
    assert len(note) < 300


@pytest.mark.parametrize(
    "ref",
    ["https://example.com/a.json", "file:///etc/hostname", "other.json", "#/nowhere", "//host/x"],
)
def test_a_reference_outside_the_schema_is_refused_and_never_fetched(ref, monkeypatch):
    monkeypatch.setattr(socket, "socket", None)
    with pytest.raises(InvalidInput, match="nothing is fetched"):
        compiled({"properties": {"a": {"$ref": ref}}})


def test_references_within_the_schema_work():
    tree = {"type": "object", "properties": {"children": {"items": {"$ref": "#"}}}}
    assert compiled(tree).accepts({"children": [{"children": []}]})
    assert not compiled(tree).accepts({"children": [{"children": [1]}]})
    for ref in ("#/$defs/a~1b", "#/$defs/a%7E1b", "#named", "https://x/y#/$defs/a~1b"):
        defs = {"a/b": {"$anchor": "named", "type": "string"}}
        schema = compiled({"$id": "https://x/y", "$ref": ref, "$defs": defs})
        assert schema.accepts("a")
        assert not schema.accepts(1)


def test_a_reference_to_itself_ends():
    assert compiled({"$ref": "#"}).accepts(1)
    assert compiled({"allOf": [{"$ref": "#"}]}).accepts({"a": 1})


@pytest.mark.parametrize("depth", [200, 400, 900, 5000])
def test_a_deep_schema_is_compiled_or_refused(depth):
    schema = {}
    for _ in range(depth):
        schema = {"items": schema}
    try:
        assert compiled(schema).accepts(1)
    except InvalidInput:
        assert depth > 200


@pytest.mark.parametrize(
    "schema", [{"type": "dict"}, {"pattern": "("}, [1], {"enum": 1}, {"minimum": object()}]
)
def test_what_is_not_a_schema_is_refused(schema):
    with pytest.raises(InvalidInput, match="JSON schema"):
        compiled(schema)


def test_a_pattern_with_nested_quantifiers_is_linear():
    started = time.perf_counter()
    assert grade_json('"' + "a" * 1_000_000 + '!"', schema={"pattern": "^(a+)+$"}).value == 0.0
    assert time.perf_counter() - started < 60


def test_a_pattern_with_look_around_that_explodes_is_an_error_and_not_a_0():
    with pytest.raises(InvalidInput, match="steps"):
        grade_json('"x' + "a" * 100_000 + 'b"', schema={"pattern": "(?<=x)(a|aa)+$"})


def test_a_bomb_is_a_0_in_bounded_time():
    schema = {"items": {"type": "array"}, "uniqueItems": True, "maxItems": 3}
    started = time.perf_counter()
    for text in ("[" * 1_000_000, "[" + "[]," * 200_000 + "1]", "9" * 1_000_000):
        assert grade_json(text, schema=schema).value == 0.0
    assert time.perf_counter() - started < 60


def test_a_value_that_was_never_json_is_not_accepted():
    schema = compiled({"type": "string"})
    assert not schema.accepts("\ud800")
    assert schema.problem("\ud800")


def test_formats_are_not_checked():
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "format": "email"}
    assert compiled(schema).accepts("x")


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda x: st.lists(x) | st.dictionaries(st.text(), x),
)


@settings(max_examples=40)
@given(values)
def test_a_schema_accepts_exactly_what_has_no_problem(value):
    for schema in (CITY, {"type": "array"}, True, False, {"not": {"type": "object"}}):
        assert compiled(schema).accepts(value) == (compiled(schema).problem(value) is None)


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    json_schema._compiled.cache_clear()
    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
    with pytest.raises(InvalidInput, match="pip install 'jsonschema-rs>="):
        compiled({})


def test_what_is_not_json_is_said_once():
    note = grade_json('Sure: {"a": 1}', schema=True).note
    assert note.lower().count("json") == 1
