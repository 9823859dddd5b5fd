import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heldout.errors import InvalidInput
from heldout.scoring.calls import ResponseCalls, compare_calls, read_calls, same_calls
from heldout.stats import wilson
from heldout.types import Completion, Message, ToolCall, ToolSpec
from tests.scoring.examples.calls import PARAMETERS, SAME, TOOL, VALID

pytest.importorskip("jsonschema_rs")

TOOLS = (ToolSpec(TOOL, parameters=PARAMETERS), ToolSpec("stop"))


def call(arguments="{}", name=TOOL):
    return ToolCall("call_1", name, arguments)


def response(*calls, reason="tool_calls", tools=TOOLS):
    return read_calls(Completion(Message("assistant", "", tuple(calls)), reason), tools)


GOOD, BAD, SILENT = (
    response(call('{"city": "Oslo"}')),
    response(call("{}")),
    response(reason="stop"),
)


@pytest.mark.parametrize("example", VALID, ids=lambda e: e.answer)
def test_the_examples_of_valid_calls_hold(example):
    seen = response(call(example.answer), tools=[ToolSpec(TOOL, parameters=example.target)])
    assert seen.valid == bool(example.value)
    assert seen.tools == (example.extracted,)
    assert bool(seen.problems) != seen.valid


@pytest.mark.parametrize("example", SAME, ids=lambda e: e.answer)
def test_the_examples_of_equal_arguments_hold(example):
    ours, theirs = [call(example.answer)], [call(example.target)]
    assert same_calls(ours, theirs) == same_calls(theirs, ours) == bool(example.value)


def test_bad_json_an_unknown_tool_and_an_empty_list_are_invalid():
    assert response(call("{")).valid is False
    assert response(call('{"city": "Oslo"}', "wether")).problems == ("wether: no such tool",)
    assert response().valid is False


def test_one_bad_call_among_good_ones_makes_the_response_invalid():
    seen = response(call('{"city": "Oslo"}'), call("{}"), call(name="stop"))
    assert seen.valid is False
    assert len(seen.problems) == 1
    assert seen.tools == (TOOL, TOOL, "stop")


def test_positive_is_what_the_finish_reason_says_and_nothing_else():
    spoken = response(call('{"city": "Oslo"}'), reason="stop")
    assert not spoken.positive
    assert spoken.valid is None
    assert spoken.tools == (TOOL,)
    assert response().positive
    assert not response(reason=None).positive


def test_two_tools_of_one_name_are_refused_unless_they_are_the_same():
    with pytest.raises(InvalidInput, match="two tools"):
        response(tools=[ToolSpec("a"), ToolSpec("a", parameters={})])
    response(tools=[ToolSpec("a"), ToolSpec("a", "said otherwise")])


def test_the_order_of_calls_counts_only_when_asked():
    a, b = call('{"city": "A"}'), call('{"city": "B"}')
    assert same_calls([a, b], [b, a])
    assert not same_calls([a, b], [b, a], ordered=True)
    assert same_calls([a, b], [a, b], ordered=True)
    assert not same_calls([a, a, b], [a, b, b])
    assert not same_calls([a], [a, a])
    assert not same_calls([call("{}")], [call("{}", "stop")])
    assert same_calls([], [])


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda x: st.lists(x) | st.dictionaries(st.text(), x),
)


@given(values)
def test_arguments_equal_themselves_with_their_keys_in_any_order(value):
    def turned(value):
        if isinstance(value, dict):
            return {k: turned(v) for k, v in reversed(value.items())}
        if isinstance(value, list):
            return [turned(v) for v in value]
        whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53
        return float(value) if whole else value

    assert same_calls([call(json.dumps(value))], [call(json.dumps(turned(value)))])
    assert not same_calls([call(json.dumps(value))], [call(json.dumps([value]))])


def test_deep_arguments_are_invalid_and_equal_nothing():
    deep = call("[" * 100_000 + "]" * 100_000)
    assert response(deep).valid is False
    assert not same_calls([deep], [deep])


def test_the_table_is_as_the_verifier_defines_it():
    candidate = {"a": GOOD, "b": BAD, "c": GOOD, "d": SILENT, "e": SILENT, "f": GOOD, "x": BAD}
    reference = {"a": GOOD, "b": GOOD, "c": SILENT, "d": GOOD, "e": SILENT, "f": GOOD, "y": GOOD}
    report = compare_calls(candidate, reference)
    trigger = report.trigger
    assert (trigger.both, trigger.only_ours, trigger.only_theirs, trigger.neither) == (3, 1, 1, 1)
    assert (trigger.precision.numerator, trigger.precision.denominator) == (3, 4)
    assert (trigger.recall.numerator, trigger.recall.denominator) == (3, 4)
    assert trigger.f1.value == 0.75
    assert (trigger.same.numerator, trigger.same.denominator) == (2, 3)
    assert (report.schema_accuracy.numerator, report.schema_accuracy.denominator) == (3, 5)
    assert report.finish_reasons == {"tool_calls": 5, "stop": 2}
    assert (report.responses, report.unmatched) == (7, 2)
    assert report.reference_with_itself is None


def test_the_reference_is_held_against_itself():
    reference = {"a": GOOD, "b": GOOD, "c": SILENT}
    again = {"a": GOOD, "b": SILENT, "c": SILENT}
    report = compare_calls(reference, reference, reference_again=again)
    assert report.trigger.f1.value == 1.0
    assert report.reference_with_itself.f1.value == pytest.approx(2 / 3)
    assert report.reference_with_itself.only_theirs == 1


def test_a_ratio_of_nothing_is_none_and_not_0():
    report = compare_calls({"a": SILENT}, {"a": SILENT})
    ratios = (
        report.schema_accuracy,
        report.trigger.precision,
        report.trigger.recall,
        report.trigger.f1,
    )
    assert [(r.value, r.denominator, r.interval) for r in ratios] == [(None, 0, None)] * 4
    assert compare_calls({}, {}).trigger.same.value is None


def test_a_candidate_that_never_calls_has_no_precision_and_an_f1_of_0():
    trigger = compare_calls({"a": SILENT}, {"a": GOOD}).trigger
    assert (trigger.precision.value, trigger.recall.value, trigger.f1.value) == (None, 0.0, 0.0)


def test_a_missing_finish_reason_is_counted_as_none():
    assert compare_calls({"a": response(reason=None)}, {}).finish_reasons == {"(none)": 1}


def test_a_confidence_is_between_0_and_1():
    with pytest.raises(InvalidInput, match="confidence"):
        compare_calls({}, {}, confidence=95)


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 30))
def test_f1_is_the_harmonic_mean_and_lies_in_its_interval(both, ours, theirs):
    kinds = [(GOOD, GOOD)] * both + [(GOOD, SILENT)] * ours + [(SILENT, GOOD)] * theirs
    pairs = {str(i): pair for i, pair in enumerate(kinds)}
    trigger = compare_calls(
        {key: pair[0] for key, pair in pairs.items()}, {key: pair[1] for key, pair in pairs.items()}
    ).trigger
    p, r, f1 = trigger.precision, trigger.recall, trigger.f1
    if p.value and r.value:
        assert f1.value == pytest.approx(2 * p.value * r.value / (p.value + r.value))
        assert p.interval == wilson(p.value, p.denominator)
    if f1.value is not None:
        assert 0 <= f1.interval.low <= f1.value + 1e-12
        assert f1.value - 1e-12 <= f1.interval.high <= 1
        rate = wilson(both / (both + ours + theirs), both + ours + theirs)
        assert math.isclose(f1.interval.low, 2 * rate.low / (1 + rate.low))


def test_a_response_can_be_made_by_hand():
    assert ResponseCalls("tool_calls", (call(),), ()).valid is True
