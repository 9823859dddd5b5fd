"""The tests that code defines, as unittest and pytest find them. Standard library alone.

It runs in the tests' sandbox, and is sent there with `wire.py`. What is collected is run, and what
is written and was not run is no test: functions `test…` and functions with assertions have to have
begun once all is done, whether they were collected or called by other code.
"""

from __future__ import annotations

import _ast
import sys
from types import FunctionType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType
    from typing import Any

    Place = tuple[str, int]
    """The name of a function, and its first line."""

PREFIX = "test"
BEGAN = "__heldout_began__"
"""What functions of the test call first."""
FUNCTIONS = (_ast.FunctionDef, _ast.AsyncFunctionDef)
EXPECTING = (_ast.With, _ast.AsyncWith, _ast.Try)
SCOPES: tuple[type[Any], ...] = (*FUNCTIONS, _ast.Lambda, _ast.ClassDef)


class TestIsWrong(BaseException):
    """The test cannot be run with any program."""


class WrittenTest:
    """The code of a test, and which of its functions have begun."""

    def __init__(self, source: str) -> None:
        tree: Any = compile(source, "test", "exec", _ast.PyCF_ONLY_AST, dont_inherit=True)
        self.problem = next(find_problems(tree), None)
        """What is wrong with it whatever the program does."""
        self.places: set[Place] = set()
        self.begun: set[Place] = set()
        for node in descend(tree):
            if isinstance(node, FUNCTIONS) and (
                node.name.startswith(PREFIX) or has_assertions(node)
            ):
                self.watch(node)
        self.code: CodeType = compile(tree, "test", "exec", dont_inherit=True)

    def watch(self, node: Any) -> None:
        """Have a function say that it has begun."""
        first = min([node, *node.decorator_list], key=lambda part: int(part.lineno))
        place = (node.name, first.lineno)
        self.places.add(place)
        body = node.body
        has_docstring = isinstance(body[0], _ast.Expr) and isinstance(body[0].value, _ast.Constant)
        position = {
            name: getattr(body[0], name)
            for name in ("lineno", "col_offset", "end_lineno", "end_col_offset")
        }
        arguments: list[Any] = [
            _ast.Constant(value=value, kind=None, **position) for value in place
        ]
        name = _ast.Name(id=BEGAN, ctx=_ast.Load(), **position)
        call = _ast.Call(func=name, args=arguments, keywords=[], **position)
        body.insert(int(has_docstring), _ast.Expr(value=call, **position))

    def begin(self, name: str, line: int) -> None:
        """Take note of a function that has begun."""
        self.begun.add((name, line))

    def excuse(self, function: Any) -> None:
        """Take note of a function that is skipped."""
        self.begun.add(place_of(function))

    def require_all(self) -> None:
        """Raise if there are functions that have not begun."""
        missing = sorted(self.places - self.begun, key=lambda place: place[1])
        if missing:
            listed = ", ".join(f"{name} (line {line})" for name, line in missing[:5])
            raise TestIsWrong(f"the test never runs {listed}")


def descend(node: Any, without: Any = ()) -> Iterator[Any]:
    """Yield a node and all below it, but for nodes of some types and what is below them."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, without):
            yield node
            waiting += children(node)


def children(node: Any) -> Iterator[Any]:
    """Yield the nodes of a node."""
    for field in node._fields:
        value = getattr(node, field, None)
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, _ast.AST):
                yield part


def has_assertions(node: Any) -> bool:
    """Return whether the code of a function, without those in it, has an assertion."""
    return any(
        isinstance(part, _ast.Assert)
        for statement in node.body
        for part in descend(statement, without=SCOPES)
    )


def find_problems(tree: Any) -> Iterator[str]:
    """Yield what any program would pass."""
    for node in descend(tree):
        line = f"line {getattr(node, 'lineno', 0)} of the test"
        if isinstance(node, _ast.Assert) and isinstance(node.test, _ast.Tuple) and node.test.elts:
            yield f"{line} asserts a tuple, which is always true: write it without parentheses"
        elif isinstance(node, _ast.If) and is_main_guard(node.test) and has_assertions(node):
            yield f'{line} has assertions under `if __name__ == "__main__"`, which never run'
    # Where an exception is expected, a comparison may be what raises it.
    for node in descend(tree, without=EXPECTING):
        if isinstance(node, _ast.Expr) and isinstance(node.value, _ast.Compare):
            yield f"line {node.lineno} of the test compares, and asserts nothing"


def is_main_guard(node: Any) -> bool:
    """Return whether a condition is that the test is run as a script."""
    return (
        isinstance(node, _ast.Compare)
        and isinstance(node.left, _ast.Name)
        and node.left.id == "__name__"
    )


def place_of(function: Any) -> Place:
    """Return the name and first line of a function of the test, below what decorates it."""
    function = getattr(function, "__func__", function)
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code = getattr(function, "__code__", None)
    return (code.co_name, code.co_firstlineno) if code is not None else ("", 0)


# --- Running ------------------------------------------------------------------------------------


def run_collected(
    written: WrittenTest, scope: dict[str, Any], count_uses: Callable[[], int]
) -> None:
    """Run what a test defines for unittest or pytest; what is raised is raised.

    Args:
        written: The test.
        scope: Its names, those of the program aside.
        count_uses: Says how often the program has been used.
    """
    collected = [
        (name, value)
        for name, value in scope.items()
        if isinstance(value, type) or (name.startswith(PREFIX) and callable(value))
    ]
    with_fixtures(scope.get, "setUpModule", "setup_module")
    cases: list[Any] = []
    for name, value in collected:
        if isinstance(value, type):
            run_class(value, written, cases, scope)
        elif place_of(value) not in written.begun:
            run_function(name, value, scope)
    run_cases(cases, written, count_uses)
    with_fixtures(scope.get, "tearDownModule", "teardown_module")
    written.require_all()


def run_function(name: str, function: Any, scope: dict[str, Any]) -> None:
    """Run a function, where it needs no arguments; else other code has to."""
    if count_required(function) > 0:
        if not isinstance(function, FunctionType):
            raise TestIsWrong(f"the test never runs {name}, which takes arguments")
        return
    with_fixtures(scope.get, "setup_function", arguments=(function,))
    try:
        run_to_end(name, function)
    finally:
        with_fixtures(scope.get, "teardown_function", arguments=(function,))


def run_class(
    kind: Any, written: WrittenTest, cases: list[Any], scope: dict[str, Any], depth: int = 0
) -> None:
    """Run a class of tests for pytest, and collect those for unittest, in classes as well."""
    unittest: Any = sys.modules.get("unittest")  # it takes long to import: only tests do
    if kind.__module__.partition(".")[0] == "unittest" or depth > 10:
        return
    if getattr(kind, "__test__", True) is False:
        for function in vars(kind).values():
            written.excuse(function)
        return
    if unittest and issubclass(kind, unittest.TestCase):
        cases.extend(unittest.defaultTestLoader.loadTestsFromTestCase(kind))
    elif kind.__name__.startswith("Test") and count_required(kind.__init__) <= 1:
        run_methods(kind)
    for value in list(vars(kind).values()):
        if isinstance(value, type) and value.__qualname__.startswith(f"{kind.__qualname__}."):
            run_class(value, written, cases, scope, depth + 1)


def run_methods(kind: Any) -> None:
    """Run the methods of a class for pytest, each with an instance of its own."""
    names = {name: None for base in reversed(kind.__mro__) for name in vars(base)}
    names = {n: None for n in names if n.startswith(PREFIX) and callable(getattr(kind, n))}
    if not names:
        return
    with_fixtures(find_in(kind), "setup_class")
    for name in names:
        instance = kind()
        method = getattr(instance, name)
        if isinstance(method, type) or count_required(method) > 0:
            continue
        with_fixtures(find_in(instance), "setup_method", "setup", arguments=(method,))
        try:
            run_to_end(f"{kind.__name__}.{name}", method)
        finally:
            with_fixtures(find_in(instance), "teardown_method", "teardown", arguments=(method,))
    with_fixtures(find_in(kind), "teardown_class")


def find_in(owner: Any) -> Callable[[str], Any]:
    """Return what finds an attribute, or None."""
    return lambda name: getattr(owner, name, None)


def with_fixtures(find: Callable[[str], Any], *names: str, arguments: tuple[Any, ...] = ()) -> None:
    """Call the functions of these names that there are, with the argument if they take one."""
    for name in names:
        function = find(name)
        if isinstance(getattr(function, "__func__", function), FunctionType):
            given = arguments or (None,)
            run_to_end(name, function, *given[: max(0, count_required(function))])


def run_to_end(name: str, function: Any, *arguments: Any) -> None:
    """Run a function, or the coroutine that it returns."""
    result = function(*arguments)
    if hasattr(type(result), "__await__") and hasattr(type(result), "send"):
        import asyncio  # it takes long to import

        result = asyncio.run(result)
    if hasattr(type(result), "__next__") or hasattr(type(result), "__anext__"):
        raise TestIsWrong(f"{name} is a generator, whose code does not run")
    if result is False:
        raise AssertionError(f"{name} returned False")


def count_required(function: Any) -> int:
    """Return how many arguments a function has to be given."""
    if hasattr(function, "func") and hasattr(function, "keywords"):  # a partial
        names = function.func.__code__.co_varnames if hasattr(function.func, "__code__") else ()
        named = len([name for name in function.keywords if name in names])
        return count_required(function.func) - len(function.args) - named
    is_bound = getattr(function, "__self__", None) is not None
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    if code is None:
        return 0
    optional = len(function.__defaults__ or ()) + len(function.__kwdefaults__ or ())
    return int(code.co_argcount) + int(code.co_kwonlyargcount) - optional - is_bound


def run_cases(cases: list[Any], written: WrittenTest, count_uses: Callable[[], int]) -> None:
    """Run the methods of TestCases, with what is set up for their classes."""
    if not cases:
        return
    unittest: Any = sys.modules["unittest"]
    used = 0

    class Result(unittest.TestResult):  # type: ignore[misc]
        def startTest(self, case: Any) -> None:
            nonlocal used
            used = count_uses()
            super().startTest(case)

        def addError(self, _: Any, problem: Any) -> None:
            raise problem[1]

        addFailure = addError

        def addSubTest(self, _: Any, subtest: Any, problem: Any) -> None:
            if problem is not None:
                raise problem[1]

        def addUnexpectedSuccess(self, case: Any) -> None:
            raise AssertionError(f"{case.id()} was expected to fail")

        def addSkip(self, case: Any, reason: str) -> None:
            case = getattr(case, "test_case", case)
            if not isinstance(case, unittest.TestCase):  # a class, in its setUpClass
                names = [
                    name for name in cases if f"({unittest.util.strclass(type(name))})" in str(case)
                ]
            elif count_uses() > used:
                raise TestIsWrong(
                    f"{case.id()} is skipped after it has used the program, which so has a say in "
                    f"it: {reason}"
                )
            else:
                names = [case]
            for skipped in names:
                written.excuse(getattr(type(skipped), skipped._testMethodName))

    unittest.TestSuite(cases).run(Result())
