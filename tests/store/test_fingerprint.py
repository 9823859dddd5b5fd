"""What makes another scorer, and what does not."""

from __future__ import annotations

import importlib.util
import linecache
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from heldout.store.fingerprint import describe_callable

SCORER = '''
import re

TOLERANCE = 0.3
LIMITS = {"t": 0.5, "more": [1, (2, 3)]}
UNITS = {"m", "km", "mm", "nm"}
PATTERN = re.compile("a+")
names = ("a", ("b", 1))
kinds = frozenset({"x", "y"})
cache = {"seen": 1}
log = [1]
calls = 0
unused = 1


def answer(messages):
    return "one"


def helper(text):
    """Whether it is a name."""
    return text in names


class Judge:
    """Who decides."""

    bar = 7
    """In points."""

    def verdict(self, text):
        return PATTERN.match(text)


def score(trajectory, sample):
    # The last turn is what counts.
    global calls
    calls += 1
    cache[calls] = log
    close = [abs(float(trajectory.answer) - 1) < TOLERANCE for unit in UNITS if unit in kinds]

    def inner():
        class Inner:
            limit = LIMITS["t"]

        return Inner.limit, sample.unused

    return close and helper('a') and inner() and Judge().verdict("a")


def sorted_in(texts):
    return """
  One
    Two""", sorted(texts)
'''


@pytest.fixture
def described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Describes a hook of a module of this text, each in a directory of its own."""
    count = 0

    def describe(text: str, hook: str = "score", module_name: str = "a_scorer") -> Any:
        nonlocal count
        count += 1
        path = tmp_path / str(count) / f"{module_name}.py"
        path.parent.mkdir()
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(module_name, path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, module_name, module)
        spec.loader.exec_module(module)
        return describe_callable(attrgetter(hook)(module))

    return describe


CHANGES = [
    ("TOLERANCE = 0.3", "TOLERANCE = 0.8"),
    ('{"t": 0.5', '{"t": 0.9'),
    ("(2, 3)", "(2, 4)"),
    ('"km"', '"cm"'),
    ('"a+"', '"b+"'),
    ('"a+")', '"a+", re.IGNORECASE)'),
    ('("b", 1)', '("b", True)'),
    ('{"x", "y"}', '{"x", "z"}'),
    ("text in names", "text not in names"),
    ("bar = 7", "bar = 8"),
    ("PATTERN.match", "PATTERN.search"),
    ("helper('a')", "helper('b')"),
    ('LIMITS["t"]', 'LIMITS["u"]'),
    ("- 1)", "- 2)"),
]


def test_a_change_that_may_change_scores_makes_another_scorer(described: Any) -> None:
    unchanged = described(SCORER)
    for before, after in CHANGES:
        assert SCORER.count(before) == 1
        assert described(SCORER.replace(before, after)) != unchanged, after


NO_CHANGES = [
    ('return "one"', 'return "two"'),  # `trajectory.answer` is not the function `answer`
    ("unused = 1", "unused = 2"),
    ("calls = 0", "calls = 5"),
    ('"seen": 1', '"seen": 2'),
    ("log = [1]", "log = [1, 2]"),
    ("    # The last turn is what counts.\n", ""),
    ("calls += 1", "calls  +=  1  # one more"),
    ('    """Whether it is a name."""\n', ""),
    ('    """Who decides."""\n', ""),
    ("In points.", "Points."),
    ("helper('a')", 'helper(\n        "a",\n    )'),
    ('"mm", "nm"}', '"nm", "mm"}'),
    ("import re\n", "import re\n\n\n"),
]


def test_a_change_that_cannot_change_scores_leaves_the_scorer_what_it_was(described: Any) -> None:
    unchanged = described(SCORER)
    for before, after in NO_CHANGES:
        assert SCORER.count(before) == 1
        assert described(SCORER.replace(before, after)) == unchanged, after


def test_a_scorer_is_the_same_in_every_process(tmp_path: Path) -> None:
    (tmp_path / "scorer.py").write_text(SCORER)
    command = (
        "import scorer, heldout.store.fingerprint as c; print(c.describe_callable(scorer.score))"
    )
    found = {
        subprocess.check_output(
            [sys.executable, "-c", command],
            cwd=tmp_path,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONDONTWRITEBYTECODE": "1"},
        )
        for seed in ("1", "2", "3")
    }
    assert len(found) == 1


def test_the_module_of_a_function_and_its_place_are_no_part_of_it(described: Any) -> None:
    uses_path = SCORER.replace("global calls", "global calls\n    print(__file__, __name__)")
    assert described(uses_path) == described(uses_path, module_name="another")
    bound = SCORER + "\nimport functools\nbound = functools.partial(score, Judge())\n"
    assert described(bound, "bound") == described(bound, "bound", "another")


@pytest.mark.parametrize("import_", ["from grading import grade", "import grading"])
def test_a_helper_in_another_file_of_the_users_is_part_of_it(described: Any, import_: str) -> None:
    call = "grade" if import_.startswith("from") else "grading.grade"
    scorer = f"{import_}\ndef score(t, s):\n    return {call}(t)\n"
    found = []
    for value in ("0.0", "1.0", "1.0  # a comment"):
        described(f"def grade(t):\n    return {value}\n", "grade", "grading")
        found.append(described(scorer))
    assert found[0] != found[1] == found[2]


def test_lines_of_a_text_are_no_layout(described: Any) -> None:
    nested = "def outer():\n" + "\n".join(
        f"    {line}" for line in SCORER[SCORER.index("def sorted_in") :].splitlines()
    )
    nested += "\n    return sorted_in\nscore = outer()\n"
    assert described(nested) != described(nested.replace("  Two", " Two"))
    loose = nested.replace("    \n", "\n").replace("      One", "One")
    assert described(loose) == described(loose.replace("texts):", "texts):  # all of them"))


def test_docstrings_count_where_a_model_reads_them() -> None:
    def tool() -> None:
        """Adds."""

    first = describe_callable(tool, docstrings=True)
    plain = describe_callable(tool)

    def tool() -> None:
        """Subtracts."""

    assert describe_callable(tool, docstrings=True) != first
    assert describe_callable(tool) == plain


def near(tolerance: Any, strict: bool = False) -> Any:
    def score(trajectory: Any, sample: Any) -> Any:
        return trajectory.answer < tolerance, strict

    return score


def test_what_a_closure_holds_is_part_of_it() -> None:
    assert describe_callable(near(0.3)) == describe_callable(near(0.3))
    assert describe_callable(near(0.3)) != describe_callable(near(0.8))
    assert describe_callable(near(1)) != describe_callable(near(1, strict=True))
    assert describe_callable(near((1, 2))) != describe_callable(near((1, 3)))
    assert describe_callable(near([1])) == describe_callable(near([2]))
    assert describe_callable(near(near(0.3))) != describe_callable(near(near(0.8)))


def test_two_helpers_of_one_factory_are_told_apart() -> None:
    def both(first: Any, second: Any) -> Any:
        return lambda trajectory, sample: first(trajectory, sample) and not second(sample, 0)

    there, back = both(near(0.3), near(0.8)), both(near(0.8), near(0.3))
    assert describe_callable(there) != describe_callable(back)


def test_a_counter_in_a_closure_is_no_part_of_it() -> None:
    calls, hidden, limit, judge = 0, 0, 0, None

    def score(trajectory: Any, sample: Any) -> Any:
        nonlocal calls, judge
        calls += 1
        judge = judge or len

        def count() -> Any:
            nonlocal hidden
            hidden += 1

        return count(), limit

    before = describe_callable(score)
    score(None, None)
    score(None, None)
    assert (calls, hidden) == (2, 2)
    assert describe_callable(score) == before
    limit = 1
    assert describe_callable(score) != before


def test_defaults_are_part_of_a_function_and_its_caches_are_not() -> None:
    scorers = [
        describe_callable(lambda t, s, tolerance=tolerance, cache={}, *, low=low: t)
        for tolerance, low in ((0.3, 1), (0.3, 1), (0.8, 1), (0.3, 2))
    ]
    assert scorers[0] == scorers[1]
    assert len({str(scorer) for scorer in scorers}) == 3

    def caching(value: Any, cache: dict[Any, Any] = {}) -> Any:  # noqa: B006
        return cache.setdefault(value, value)

    before = describe_callable(caching)
    caching(1)
    assert describe_callable(caching) == before


def test_a_partial_is_told_apart_by_the_constants_and_functions_it_binds() -> None:
    def scorer(**bound: Any) -> Any:
        return describe_callable(partial(near, **bound))

    assert scorer(tolerance=(0.3, 1)) == scorer(tolerance=(0.3, 1))
    assert scorer(tolerance=(0.3, 1)) != scorer(tolerance=(0.8, 1))
    assert scorer(tolerance=near(1)) == scorer(tolerance=near(1))
    assert scorer(tolerance=near(1)) != scorer(tolerance=near(2))
    assert scorer(tolerance=1, strict=True) == scorer(strict=True, tolerance=1)
    assert scorer(tolerance=[1]) == scorer(tolerance=[2]) != scorer(tolerance={1})
    assert scorer(tolerance={"t": 1}) == scorer(tolerance={"t": 1}) != scorer(tolerance={"t": 2})


@pytest.mark.parametrize("hook", ["Scorer.by_method", "method", "instance"])
def test_methods_and_callable_objects_are_their_class(described: Any, hook: str) -> None:
    text = """
LIMIT = 1
def answer(messages): return 1
class Scorer:
    def __call__(self, trajectory, sample):
        return self.by_method(trajectory, sample)
    @staticmethod
    def by_method(trajectory, sample):
        '''How it is done.'''
        return trajectory.answer == LIMIT
    method = by_method
instance = Scorer()
method = Scorer().__call__
"""
    first = described(text, hook)
    assert first == described(text.replace("return 1", "return 2"), hook)
    assert first == described(text.replace("How it is", "# what is"), hook)
    assert first != described(text.replace("LIMIT = 1", "LIMIT = 2"), hook)
    assert first != described(text.replace("== LIMIT", "!= LIMIT"), hook)


@pytest.mark.parametrize("hook", ["factory", "World", "World.for_sample"])
def test_a_class_is_what_its_bases_and_methods_use(described: Any, hook: str) -> None:
    text = """
LIMIT = 3
class Base:
    def reply(self, messages): return helper(messages)
def helper(messages): return "BASE"
class World(Base):
    def outcome(self): return {"limit": LIMIT}
    @classmethod
    def for_sample(cls, sample): return cls()
def factory(sample): return World()
"""
    assert described(text, hook) == described(text, hook)
    for before, after in (("BASE", "TOP"), ('limit"', 'bound"'), ("= 3", "= 4")):
        assert described(text, hook) != described(text.replace(before, after), hook)


def test_what_is_built_in_is_known_by_its_name_and_what_is_bound() -> None:
    assert describe_callable(len) == {"name": "len"}
    binary, other = (describe_callable(partial(int, base=base)) for base in (2, 3))
    assert binary == describe_callable(partial(int, base=2)) != other


def test_functions_without_a_source_are_told_apart_by_their_code() -> None:
    def typed(text: str) -> Any:
        space: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(text, "<stdin>", "exec"), space)
        return describe_callable(space["score"])

    text = """
LIMITS = [1]
def answer(messages): return 1
def helper(text): return text in ("a", "b")
def score(trajectory, sample): return helper(trajectory.answer) or LIMITS
"""
    first = typed(text)
    assert first == typed(text.replace("\ndef", "\n# as before\ndef"))
    assert first == typed(text.replace("return 1", "return 2"))
    assert first != typed(text.replace('"b")', '"c")'))
    assert first != typed(text.replace("[1]", "[2]"))
    assert first != typed(text.replace("or LIMITS", "and LIMITS"))


def test_lists_that_are_large_or_turn_in_circles_are_data_and_no_constants(described: Any) -> None:
    text = "WORDS = {words}\nWORDS[0] = {first}\ndef score(trajectory, sample): return WORDS"

    def of(words: str, first: str) -> Any:
        return described(text.format(words=words, first=first))

    assert of("[0] * 1000", "1") != of("[0] * 1000", "2")
    assert of("[0] * 1001", "1") == of("[0] * 1001", "2")
    assert of("[[0] * 999]", "[0] * 1001") == of("[[0] * 999]", "[1] * 1001")
    assert of("[0]", "WORDS") == of("[0]", "WORDS")
    assert of("[0, 1]", "object()") == of("[0, 1]", "object()")


def test_a_file_that_is_edited_after_its_import_is_not_what_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "edited.py"
    path.write_text(SCORER)
    spec = importlib.util.spec_from_file_location("edited", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "edited", module)
    spec.loader.exec_module(module)
    before = describe_callable(module.score)
    path.write_text("# a line more\n" + SCORER.replace("- 1)", "- 2)"))
    assert describe_callable(module.score) == before


@pytest.mark.parametrize("source", ["def score(t, s) return 1\n", "def score(t, s: return 1\n"])
def test_a_source_that_is_no_longer_python_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    monkeypatch.setitem(linecache.cache, "<typed>", (len(source), None, [source], "<typed>"))

    def typed(text: str) -> Any:
        space: dict[str, Any] = {}
        exec(compile(text, "<typed>", "exec"), space)
        return describe_callable(space["score"])

    text = "def score(t, s): return LIMIT\nLIMIT = 1"
    assert typed(text) == typed(text)
    assert typed(text) != typed(text.replace("1", "2"))


def test_functions_of_equal_code_and_other_decorators_are_told_apart(described: Any) -> None:
    text = "def a(f): return f\ndef b(f): return f\n@a\ndef score(trajectory, sample): return 1"
    assert described(text) != described(text.replace("@a", "@b"))


class Within:
    """A scorer with a tolerance, that counts its calls and keeps what it has seen."""

    def __init__(self, tolerance: float) -> None:
        self.tolerance, self.calls = tolerance, 0
        self.seen: dict[Any, float] = {}

    def __call__(self, trajectory: Any, sample: Any) -> float:
        self.calls += 1
        self.seen[sample] = self.tolerance
        return self.tolerance

    def score(self, trajectory: Any, sample: Any) -> float:
        return self(trajectory, sample)


def test_what_an_object_was_made_with_is_part_of_it_and_what_it_counts_is_not() -> None:
    used = Within(0.3)
    used(None, "s0")
    assert describe_callable(used) == describe_callable(Within(0.3))
    assert describe_callable(used) != describe_callable(Within(0.8))
    assert describe_callable(used.score) == describe_callable(Within(0.3).score)
    assert describe_callable(used.score) != describe_callable(Within(0.8).score)


def test_a_number_that_a_function_counts_up_in_an_object_is_no_part_of_it() -> None:
    used = Within(0.3)

    def score(trajectory: Any, sample: Any) -> float:
        used.tolerance += 1
        return used(trajectory, sample)

    before = describe_callable(score)
    score(None, "s0")
    assert describe_callable(score) == before


def test_slots_of_an_object_count_likewise() -> None:
    @dataclass(frozen=True, slots=True)
    class Least:
        value: float

        def __call__(self, trajectory: Any, sample: Any) -> float:
            return self.value

    assert describe_callable(Least(1.0)) == describe_callable(Least(1.0))
    assert describe_callable(Least(1.0)) != describe_callable(Least(2.0))


def test_lambdas_are_told_apart_by_their_code() -> None:
    one, other = lambda t, s: t.answer in {"a", "b"}, lambda t, s: t.answer in {"a", "c"}
    again, field = lambda t, s: t.answer in {"a", "b"}, lambda t, s: t.other in {"a", "b"}
    assert describe_callable(one) == describe_callable(again)
    assert describe_callable(one) != describe_callable(other)
    assert describe_callable(one) != describe_callable(field)


WRAPPED = '''
import functools
from functools import cached_property, lru_cache, partial
from heldout.scoring import Rubric, grade_exact, grade_number, part

FACTOR = 2


def scale(value):
    return value * FACTOR


def doubling(fn, by=1):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        return by * scale(fn(*args, **kwargs))

    return wrapper


class Halving:
    """Decorates."""

    def __init__(self, fn):
        functools.update_wrapper(self, fn)
        self.fn, self.part = fn, 0.5

    def __call__(self, *args):
        return self.fn(*args) * self.part


def base(trajectory, sample):
    return 0.25


class Grader:
    weight = 3

    @doubling
    def score(self, trajectory, sample):
        return self.weight

    @lru_cache
    def cached(self, trajectory, sample):
        return scale(1)


def uses(helper):
    def score(trajectory, sample):
        return helper(trajectory, sample)

    return score


wrapped = doubling(base)
object = Halving(base)
cached = lru_cache(base)
bound = partial(doubling(base), sample=1)
method = Grader().score
cached_method = Grader().cached
rubric = doubling(Rubric(part(grade_exact, weight=1.0)))
grader = doubling(grade_number)
helper_wrapped = uses(doubling(base))
helper_object = uses(Halving(base))
helper_cached = uses(lru_cache(base))
helper_partial = uses(partial(base, sample=1))
helper_method = uses(Grader().score)
helper_rubric = uses(Rubric(part(grade_exact, weight=1.0)))
'''


WRAPPED_CHANGES = [
    ("wrapped bound method rubric grader helper_wrapped helper_method", "by * scale", "scale"),
    ("wrapped bound method rubric grader helper_wrapped helper_method", "by=1", "by=3"),
    ("wrapped bound method cached_method helper_wrapped", "FACTOR = 2", "FACTOR = 5"),
    ("wrapped object cached bound helper_wrapped helper_object", "0.25", "0.75"),
    ("helper_cached helper_partial", "0.25", "0.75"),
    ("object helper_object", "self.part = fn, 0.5", "self.part = fn, 0.1"),
    ("object helper_object", "* self.part", "+ self.part"),
    ("method helper_method", "weight = 3", "weight = 4"),
    ("bound helper_partial", "sample=1", "sample=2"),
    ("rubric helper_rubric", "grade_exact, weight=1.0", "grade_number, weight=1.0"),
]


def test_a_wrapper_is_its_own_code_and_what_it_closes_over(described: Any) -> None:
    for hooks, before, after in WRAPPED_CHANGES:
        changed = WRAPPED.replace(before, after)
        assert changed != WRAPPED
        for hook in hooks.split():
            assert described(WRAPPED, hook)["source"] != described(changed, hook)["source"], hook
    other_words = WRAPPED.replace("Decorates.", "Decorates a function.")
    for hook in ("wrapped", "object", "helper_object", "method"):
        assert described(WRAPPED, hook) == described(other_words, hook)


def test_a_wrapper_in_circles_and_an_object_that_holds_itself_are_described() -> None:
    def score(trajectory: Any, sample: Any) -> float:
        return 1.0

    score.__wrapped__ = score
    held = Within(0.3)
    held.again = held.score
    for function in (score, held, lambda trajectory, sample: held(trajectory, sample)):
        assert describe_callable(function) == describe_callable(function)
