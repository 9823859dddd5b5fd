"""The filter of a table: what it reads, and which rows it holds for."""

from __future__ import annotations

import operator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heldout.errors import InvalidInput
from heldout.viewer.filter import (
    BadFilter,
    FilterColumn,
    Term,
    evaluate,
    parse,
    picked_by,
    quote,
)

REWARDS = [0.0, 1.0, None, 0.5, 1.0]
KINDS = ["a", None, "a b", "c:d", 'say "x"']
COLUMNS = {
    "reward": FilterColumn(numbers=np.array([np.nan if r is None else r for r in REWARDS])),
    "kind": FilterColumn(
        codes=np.array([0, -1, 1, 2, 3], dtype=np.int32), values=["a", "a b", "c:d", 'say "x"']
    ),
}
TEXTS = ["refund", "price", "Refund me", "", "price refund"]


def get_column(name: str) -> FilterColumn:
    if name not in COLUMNS:
        raise InvalidInput(f"there is no column {name}")
    return COLUMNS[name]


def search(term: Term) -> np.ndarray | None:
    if term.field != "text":
        return None
    return np.array([term.value.lower() in t.lower() for t in TEXTS])


def rows(text: str) -> list[int]:
    return np.flatnonzero(evaluate(parse(text), 5, get_column, search)).tolist()


def test_terms_are_joined_by_and() -> None:
    assert rows("") == [0, 1, 2, 3, 4]
    assert rows("reward>=0.5") == [1, 3, 4]
    assert rows("reward>=0.5 text:refund") == [4]
    assert rows('kind:"a b"') == [2]
    assert rows('refund kind:"a b"') == [2]


def test_a_minus_negates_one_term() -> None:
    assert rows("-reward:1") == [0, 2, 3]
    assert rows("-text:price reward<1") == [0, 3]


def test_a_row_without_a_value_satisfies_no_condition_but_a_negated_one() -> None:
    assert rows("reward!=1") == [0, 3]
    assert rows("kind!=a") == [2, 3, 4]
    assert 2 in rows("-reward:1")


def test_what_cannot_be_read_names_its_place() -> None:
    with pytest.raises(BadFilter, match="close the quotes") as problem:
        parse('reward>1 kind:"a')
    assert problem.value.at == 9
    with pytest.raises(BadFilter, match="reward>= has no value"):
        parse("kind:a reward>=")
    with pytest.raises(BadFilter, match="no column nope") as problem:
        rows("reward>0 nope:1")
    assert problem.value.at == 9
    with pytest.raises(BadFilter, match="compared with a number, got 'high'"):
        rows("reward>high")
    with pytest.raises(BadFilter, match="compared with a number, got 'nan'"):
        rows("reward!=nan")
    with pytest.raises(BadFilter, match="texts; compare them with : or !="):
        rows("kind<b")


def test_rows_picked_by_what_came_out_are_known_as_such() -> None:
    inputs = {"kind", "id"}
    assert picked_by(parse(""), inputs.__contains__) == "all"
    assert picked_by(parse("kind:a -id:q1"), inputs.__contains__) == "metadata"
    assert picked_by(parse("kind:a text:x"), inputs.__contains__) == "outcome"
    assert picked_by(parse("word"), inputs.__contains__) == "outcome"


@given(st.text(max_size=40), st.text(max_size=40), st.booleans())
def test_what_is_quoted_is_read_back(field: str, value: str, negated: bool) -> None:
    text = f"{'-' * negated}{quote(field)}:{quote(value)}"
    terms = parse(text)
    assert [(t.field, t.op, t.value, t.negated) for t in terms] == [(field, ":", value, negated)]


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        places = [term.start for term in parse(text)]
    except BadFilter as problem:
        places = [problem.at]
    assert all(0 <= place <= len(text) for place in places)


OPERATORS = {
    ":": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@given(
    st.lists(
        st.tuples(st.sampled_from([*OPERATORS]), st.sampled_from([0, 0.5, 1]), st.booleans()),
        max_size=4,
    )
)
def test_numbers_are_compared_as_python_compares_them(
    conditions: list[tuple[str, float, bool]],
) -> None:
    terms = [Term("reward", op, str(value), negated, 0) for op, value, negated in conditions]
    expected = [
        place
        for place, reward in enumerate(REWARDS)
        if all(
            (reward is not None and OPERATORS[op](reward, value)) is not negated
            for op, value, negated in conditions
        )
    ]
    assert np.flatnonzero(evaluate(terms, 5, get_column, search)).tolist() == expected
