import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heldout.errors import InvalidInput
from heldout.scoring.tool_calls import (
    ResponseCalls,
    compare_calls,
    finish_reasons,
    grade_calls,
    read_calls,
    same_calls,
    schema_accuracy,
    score_calls,
    tools_of,
)
from heldout.stats import wilson
from heldout.store.fingerprint import version_of
from heldout.types import Completion, Message, Sample, Stop, ToolCall, ToolSpec, Trajectory
from tests.scoring.examples import wrong_rows
from tests.scoring.examples.tool_calls import BFCL, FOLDED, GRADED, PARAMETERS, SAME, TOOL, VALID

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


def test_the_examples_of_valid_calls_hold():
    for example in VALID:
        seen = response(call(example.answer), tools=[ToolSpec(TOOL, parameters=example.target)])
        assert (seen.valid, seen.tools) == (bool(example.value), (example.extracted,)), example
        assert bool(seen.problems) != seen.valid, example


def test_the_examples_of_equal_arguments_hold():
    for example in SAME:
        ours, theirs = [call(example.answer)], [call(example.target)]
        assert same_calls(ours, theirs) == same_calls(theirs, ours) == bool(example.value), example


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


def test_the_order_of_calls_does_not_count():
    a, b = call('{"city": "A"}'), call('{"city": "B"}')
    assert same_calls([a, b], [b, a])
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
    lambda x: st.lists(x, max_size=4) | st.dictionaries(st.text(max_size=4), x, max_size=4),
    max_leaves=10,
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
    trigger = compare_calls(candidate, reference)
    assert (trigger.both, trigger.only_ours, trigger.only_theirs, trigger.neither) == (3, 1, 1, 1)
    assert (trigger.precision.count, trigger.precision.n) == (3, 4)
    assert (trigger.recall.count, trigger.recall.n) == (3, 4)
    assert trigger.f1.value == 0.75
    assert (trigger.same.count, trigger.same.n) == (2, 3)
    assert (trigger.matched, trigger.unmatched) == (6, 2)
    accuracy = schema_accuracy(candidate.values())
    assert (accuracy.count, accuracy.n) == (3, 5)
    assert finish_reasons(candidate.values()) == {"tool_calls": 5, "stop": 2}


def test_a_ratio_of_nothing_is_none_and_not_0():
    trigger = compare_calls({"a": SILENT}, {"a": SILENT})
    ratios = (schema_accuracy([SILENT]), trigger.precision, trigger.recall, trigger.f1)
    assert [(r.value, r.n, r.interval) for r in ratios] == [(None, 0, None)] * 4
    assert compare_calls({}, {}).same.value is None


def test_a_candidate_that_never_calls_has_no_precision_and_an_f1_of_0():
    trigger = compare_calls({"a": SILENT}, {"a": GOOD})
    assert (trigger.precision.value, trigger.recall.value, trigger.f1.value) == (None, 0.0, 0.0)


def test_a_missing_finish_reason_is_counted_as_none():
    assert finish_reasons([response(reason=None)]) == {"(none)": 1}


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 30))
def test_f1_is_the_harmonic_mean_and_lies_in_its_interval(both, ours, theirs):
    kinds = [(GOOD, GOOD)] * both + [(GOOD, SILENT)] * ours + [(SILENT, GOOD)] * theirs
    pairs = {str(i): pair for i, pair in enumerate(kinds)}
    trigger = compare_calls(
        {key: pair[0] for key, pair in pairs.items()}, {key: pair[1] for key, pair in pairs.items()}
    )
    p, r, f1 = trigger.precision, trigger.recall, trigger.f1
    if p.value and r.value:
        assert f1.value == pytest.approx(2 * p.value * r.value / (p.value + r.value))
        assert p.interval == wilson(p.value, p.n)
    if f1.value is not None:
        assert 0 <= f1.interval.low <= f1.value + 1e-12
        assert f1.value - 1e-12 <= f1.interval.high <= 1
        rate = wilson(both / (both + ours + theirs), both + ours + theirs)
        assert math.isclose(f1.interval.low, 2 * rate.low / (1 + rate.low))


def test_a_response_can_be_made_by_hand():
    assert ResponseCalls("tool_calls", (call(),), ()).valid is True


# --- As a score and as a grade ------------------------------------------------------------------


def trajectory(*calls, reason="tool_calls"):
    said = Message("assistant", "", tuple(calls))
    earlier = Message("assistant", "", (call("{", "earlier"),))
    return Trajectory((earlier, Message("user", "weather?"), said), Stop(finish_reason=reason))


def asked(*tools):
    functions = [{"type": "function", "function": tool} for tool in tools]
    return Sample("s", {"messages": [{"role": "user", "content": "?"}], "tools": functions})


WEATHER = asked({"name": TOOL, "parameters": PARAMETERS})


def metrics(*calls, reason="tool_calls", sample=WEATHER):
    score = score_calls(trajectory(*calls, reason=reason), sample)
    return {metric.name: metric for metric in score.metrics}, score.reward


def test_valid_is_reported_only_where_the_response_calls():
    good, reward = metrics(call('{"city": "Oslo"}'))
    assert (good["calls"].value, good["valid"].value, reward) == (1.0, 1.0, 1.0)
    assert good["valid"].metadata == {}
    for silent, reward in (
        metrics(reason="stop"),
        metrics(call('{"city": "Oslo"}'), reason="stop"),
        metrics(call("{"), reason=None),
    ):
        assert "valid" not in silent
        assert (silent["calls"].value, silent["sound"].value, reward) == (0.0, 1.0, 1.0)


def test_a_call_that_does_not_validate_costs_the_reward_and_says_why():
    bad, reward = metrics(call("{}"))
    assert (bad["valid"].value, bad["sound"].value, reward) == (0.0, 0.0, 0.0)
    assert bad["valid"].metadata["note"] == 'weather: $: "city" is a required property'
    assert bad["calls"].metadata == {"finish_reason": "tool_calls", "tools": [TOOL]}
    nothing, reward = metrics()
    assert (nothing["valid"].metadata, reward) == ({"note": "it calls nothing"}, 0.0)


def test_what_a_metric_repeats_of_a_response_is_bounded():
    many, _ = metrics(*[call("x" * 10**6, "y" * 10**6)] * 1000)
    assert len(str(many["calls"].metadata)) + len(str(many["valid"].metadata)) < 10_000


def test_a_tool_without_parameters_takes_any_object():
    sample = asked({"name": "stop"}, {"name": "go", "parameters": None})
    assert metrics(call("{}", "stop"), call('{"a": 1}', "go"), sample=sample)[1] == 1.0
    assert metrics(call("[]", "stop"), sample=sample)[1] == 0.0
    assert metrics(reason="stop", sample=Sample("s", {"messages": []}))[1] == 1.0


@pytest.mark.parametrize("tool", [{"name": "a"}, {"function": {"name": 7}}, "a", None])
def test_a_tool_that_is_no_function_is_refused(tool):
    with pytest.raises(InvalidInput, match=r"tools\[0\] is no function"):
        tools_of({"tools": [tool]})


@pytest.mark.parametrize(
    ("table", "ignore_case"),
    [(GRADED, False), (BFCL, False), (FOLDED, True)],
    ids=["graded", "BFCL", "case folded"],
)
def test_the_examples_of_graded_calls_hold(table, ignore_case):
    def grade(answer, target):
        calls = (call(**given) for given in json.loads(answer))
        return grade_calls(trajectory(*calls), target, ignore_case=ignore_case)

    assert wrong_rows(table, grade) == []


def test_case_counts_unless_it_is_ignored():
    for example in FOLDED:
        calls = trajectory(*(call(**given) for given in json.loads(example.answer)))
        assert grade_calls(calls, example.target).value == 0.0


def test_calls_are_matched_to_targets_whichever_they_fit():
    """The first call fits both targets, the second only one of them: greedy would fail."""
    oslo, rome = call('{"city": "Oslo"}'), call('{"city": "Rome"}')
    either = {TOOL: {"city": ["Rome", "Oslo"]}}
    only_oslo = {TOOL: {"city": ["Oslo"]}}
    for calls in ((oslo, rome), (rome, oslo)):
        for target in ([either, only_oslo], [only_oslo, either]):
            assert grade_calls(trajectory(*calls), target).value == 1.0
    assert grade_calls(trajectory(rome, rome), [either, only_oslo]).value == 0.0
    ordered = trajectory(oslo, rome)
    assert grade_calls(ordered, [only_oslo, either], ordered=True).value == 1.0
    assert grade_calls(ordered, [either, only_oslo], ordered=True).value == 0.0


@pytest.mark.parametrize(
    "wrong",
    [
        {TOOL: {"city": "Oslo"}},
        {TOOL: ["Oslo"]},
        {"name": TOOL, "argumets": {"city": "Oslo"}},
        {"name": TOOL, "accepted": {"city": ["Oslo"]}},
    ],
)
def test_a_call_of_the_target_in_no_known_form_is_refused(wrong):
    with pytest.raises(InvalidInput, match="has a name and arguments, or"):
        grade_calls(trajectory(), [wrong])


def test_an_argument_for_which_no_value_is_accepted_is_refused_by_name():
    for accepted, where in (({"a": []}, "weather.a"), ({"a": [{"b": []}]}, "weather.a.b")):
        with pytest.raises(InvalidInput, match=rf"no value for {where},"):
            grade_calls(trajectory(), [{TOOL: accepted}])


def test_only_the_last_turn_is_graded_and_its_finish_reason_does_not_matter():
    target = [{"name": TOOL, "arguments": {"city": "Oslo"}}]
    one = call('{"city": "Oslo"}')
    assert grade_calls(trajectory(one, reason="stop"), target).value == 1.0
    assert grade_calls(trajectory(), target).note == "other tools: the target calls weather"
    assert grade_calls(trajectory(call("{}")), target).note.startswith("the same tools")
    two = [call('{"city": "A"}'), call('{"city": "B"}')]
    backwards = [{"name": TOOL, "arguments": c.arguments} for c in reversed(two)]
    assert grade_calls(trajectory(*two), backwards).value == 1.0
    assert grade_calls(trajectory(*two), backwards, ordered=True).value == 0.0


def test_a_target_may_be_a_message_or_calls():
    one = call('{"city": "Oslo"}')
    message = {"role": "assistant", "content": None, "tool_calls": None}
    for target in ((one,), Message("assistant", "", (one,))):
        assert grade_calls(trajectory(one), target).value == 1.0
    assert grade_calls(trajectory(), message).value == 1.0


@pytest.mark.parametrize(
    "target", [None, "weather", {}, [{"arguments": {}}], [{"name": "a", "arguments": "{"}]]
)
def test_a_target_that_is_none_is_an_error_and_not_a_zero(target):
    with pytest.raises(InvalidInput, match="target"):
        grade_calls(trajectory(call()), target)


def test_a_trajectory_without_a_model_turn_cannot_be_judged():
    with pytest.raises(InvalidInput, match="no model turn"):
        grade_calls(Trajectory((Message("user", "hi"),)), [])


def test_the_ready_made_ones_are_known_by_their_version():
    assert (version_of(grade_calls), version_of(score_calls)) == (5, 1)
