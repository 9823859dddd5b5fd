import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heldout.errors import InvalidInput
from heldout.scoring import formats
from heldout.scoring.formats import NotJSON, has_length, has_tags, parse_json
from tests.scoring.examples import wrong_rows
from tests.scoring.examples.formats import EXAMPLES


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_hold(name):
    grader = getattr(formats, name)
    assert wrong_rows(EXAMPLES[name], lambda answer, how: grader(answer, **how), noted=True) == []


@settings(max_examples=40)
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.text()
        | st.floats(allow_nan=False, allow_infinity=False),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    )
)
def test_what_json_writes_is_read_back(value):
    assert parse_json(json.dumps(value)) == value


@pytest.mark.parametrize(
    "text",
    [
        "[" * 1_000_000,
        '{"a":' * 200_000,
        "9" * 1_000_000,
        '"\\ud800"',
        '"\ud800"',
        "1e999",
        "\ufeff1",
        "[1] x",
        "\x00",
    ],
    ids=lambda x: ascii(x[:8]),
)
def test_hostile_json_is_refused(text):
    with pytest.raises(NotJSON):
        parse_json(text)


@given(
    st.lists(
        st.sampled_from(["```", "~~~", "\n", "a", " ", "\\boxed{", "}", "<t>", "</t>", "\ud800"])
    ).map("".join)
)
def test_any_text_gets_a_grade_with_what_it_saw_from_the_text(text):
    for check in (formats.has_code_block, formats.has_boxed, formats.is_one_line):
        grade = check(text)
        assert grade.extracted is None or grade.extracted in text


def test_options_that_mean_nothing_are_refused():
    with pytest.raises(InvalidInput, match="at least 3 and at most 2"):
        has_length("a", at_least=3, at_most=2)
    with pytest.raises(InvalidInput, match="unit"):
        has_length("a", unit="tokens")
    for tags in ("think", [], ["<think>"]):
        with pytest.raises(InvalidInput, match="tags must be names"):
            has_tags("a", tags=tags)


@pytest.mark.parametrize("inside", ["", " ", "{}", "{{}}", "~", r"\text{}", r"\,\quad", "\ufeff"])
def test_a_box_that_shows_nothing_is_empty(inside):
    assert formats.has_boxed(rf"\boxed{{{inside}}}").note == r"the last \boxed{} is empty"
