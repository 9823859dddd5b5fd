"""The process in which a dataset's tests run. Standard library alone.

It runs in a sandbox of its own, without the program: `candidate` and the program's other names are
`Remote` objects, whose calls are messages. What comes back is data of built-in types, or a
reference. A reference is never compared, since the program would do the comparing, and would be
shown what is expected.
"""

from __future__ import annotations

import builtins
import os
import symtable
import sys

from heldout.scoring.code import collection, wire
from heldout.scoring.code.collection import TestIsWrong, WrittenTest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

LONGEST = 2000
"""Characters of a reason."""


class Unusable(BaseException):
    """The program ended, or gave what is not data; no `except Exception` of a test hides it."""


class Connection:
    """The program, as the tests see it."""

    def __init__(self, channel: wire.Channel) -> None:
        self.channel = channel
        self.problem: str | None = None
        self.used = 0
        self.taken: list[str] = []
        self.remotes: dict[Any, Remote] = {}
        self.callbacks: list[Callable[..., Any]] = []
        self.classes: dict[Any, type[BaseException]] = {}
        self.raised: list[BaseException] = []

    @property
    def is_unused(self) -> bool:
        """Whether a test has done nothing with the program, and has no data of it either."""
        return self.used == 0 and not self.taken

    def fail(self, reason: str) -> NoReturn:
        """Fail the test, whatever it makes of the exception."""
        self.problem = self.problem or reason
        raise Unusable(reason)

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Ask the program, and return its reply; raise what it raised."""
        self.channel.send(request)
        while True:
            try:
                reply = self.channel.receive()
            except wire.BadMessage as problem:
                self.fail(f"the program's process sent what is no reply ({problem})")
            if "gone" in reply:
                self.fail(str(reply["gone"]))
            if "callback" not in reply:
                try:
                    return self.take(reply)
                except StopIteration:
                    if request.get("method") == "next":
                        raise
                    # `all(map(check, cases))` would take it for the end of the cases.
                    self.fail("the program raised StopIteration, which is for iterators")
            self.channel.send(self.call_back(reply))

    def take(self, reply: dict[str, Any]) -> dict[str, Any]:
        """Check a reply, and print what the program has printed."""
        try:
            if "raised" in reply:
                problem = self.make_exception(reply["raised"])
            elif "value" not in reply and "missing" not in reply:
                raise wire.BadMessage("it has no value")
            else:
                problem = None
            sys.stdout.write(str(reply.get("printed", "")))
        except (wire.BadMessage, TypeError, ValueError, KeyError) as broken:
            self.fail(f"the program's process sent what is no reply ({broken})")
        if problem is not None:
            self.raised.append(problem)
            raise problem
        return reply

    def value(self, reply: dict[str, Any]) -> Any:
        """Return the value of a reply."""
        try:
            return wire.decode(reply["value"], self.refer)
        except wire.BadMessage as broken:
            self.fail(f"the program's process sent what is no value ({broken})")

    def refer(self, tag: Any, content: Any) -> Any:
        """Make what stands for something that is not data."""
        if tag == "exception":
            return self.exception_class(content)
        if tag != "object":
            raise wire.BadMessage(f"no tag {tag!r}"[:200])
        number, kind = content
        # One object is one here, too: tests use `is`.
        return self.remotes.setdefault(number, Remote(self, number, str(kind)))

    def encode(self, value: Any) -> Any:
        """Make JSON values of what a test passes to the program."""
        return wire.encode(value, self.pass_on)

    def pass_on(self, value: Any) -> Any:
        """Make a reference of what a test passes to the program."""
        if isinstance(value, Remote):
            return {"t": "object", "v": value._number}
        for number, known in self.classes.items():
            if value is known:
                return {"t": "object", "v": number}
        name = getattr(value, "__name__", "")
        if isinstance(value, type) and getattr(builtins, name, None) is value:
            return {"t": "builtin", "v": name}
        if callable(value) and not isinstance(value, type):
            self.callbacks.append(value)
            return {"t": "callback", "v": len(self.callbacks) - 1}
        if value is Remote or isinstance(value, BaseException):  # which only a program brings up
            self.fail(f"the test passes the program {value!r:.100}, which is not data")
        raise TestIsWrong(
            f"the test passes the program a {type(value).__qualname__}, which is neither data nor "
            "a function"
        )

    def call_back(self, message: dict[str, Any]) -> dict[str, Any]:
        """Call a function of the tests for the program."""
        try:
            function = self.callbacks[message["callback"]]
            args = [wire.decode(value, self.refer) for value in message["args"]]
            kwargs = {k: wire.decode(v, self.refer) for k, v in message["kwargs"].items()}
        except (wire.BadMessage, TypeError, ValueError, LookupError, AttributeError) as broken:
            self.fail(f"the program's process sent what is no call ({broken})")
        try:
            return {"value": self.encode(function(*args, **kwargs))}
        except Exception as problem:  # noqa: BLE001 - raised in the program, which called it
            known = next(kind for kind in type(problem).__mro__ if kind.__module__ == "builtins")
            return {"failed": known.__name__, "text": str(problem)}

    def make_exception(self, description: dict[str, Any]) -> BaseException:
        """Make the exception that the program raised."""
        kind = self.exception_class(description["class"])
        arguments = [wire.decode(value, self.refer) for value in description["args"]]
        for given in (arguments, [str(description["text"])], []):
            try:
                return kind(*given)
            except Exception:  # noqa: BLE001 - a class that takes other arguments
                continue
        raise wire.BadMessage("an exception that cannot be made")

    def exception_class(self, lineage: Any) -> type[BaseException]:
        """Make the class of an exception: a built-in one, or one derived from it."""
        (number, name), *bases = lineage
        if not bases:
            kind = getattr(builtins, str(name), None)
            if isinstance(kind, type) and issubclass(kind, BaseException):
                return kind
            return Exception
        if number not in self.classes:
            base = self.exception_class(bases)
            self.classes[number] = type(str(name), (base,), {})
        return self.classes[number]


class Remote:
    """An object of the program that is not data."""

    __slots__ = ("_connection", "_kind", "_number")

    _connection: Connection
    _kind: str
    _number: int

    def __init__(self, connection: Connection, number: int, kind: str) -> None:
        for attribute, value in (
            ("_connection", connection),
            ("_number", number),
            ("_kind", kind),
        ):
            object.__setattr__(self, attribute, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Have the program call it; where it returns None, changed arguments are changed here."""
        connection = self._connection
        connection.used += 1
        request = {
            "do": "call",
            "object": self._number,
            "args": [connection.encode(value) for value in args],
            "kwargs": {name: connection.encode(value) for name, value in kwargs.items()},
        }
        reply = connection.ask(request)
        try:
            for index, changed in reply.get("changed", ()) if reply["value"] is None else ():
                replace(args[index], wire.decode(changed, connection.refer))
        except (wire.BadMessage, TypeError, ValueError, LookupError) as broken:
            connection.fail(f"the program's process sent what is no argument ({broken})")
        return connection.value(reply)

    def _method(self, method: str, *args: Any) -> Any:
        connection = self._connection
        connection.used += 1
        request = {"do": "method", "object": self._number, "method": method}
        return connection.value(
            connection.ask({**request, "args": [connection.encode(value) for value in args]})
        )

    def __getattr__(self, name: str) -> Any:
        return self._method("getattr", name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._method("setattr", name, value)

    def __iter__(self) -> Any:
        return self._method("iter")

    def __next__(self) -> Any:
        return self._method("next")

    def __getitem__(self, key: Any) -> Any:
        return self._method("getitem", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._method("setitem", key, value)

    def __delitem__(self, key: Any) -> None:
        self._method("delitem", key)

    def __await__(self) -> Any:
        return self._method("await")
        yield  # which makes it an iterator, as has to be

    def __aiter__(self) -> Any:
        return self._method("aiter")

    async def __anext__(self) -> Any:
        return self._method("anext")

    async def __aenter__(self) -> Any:
        return self._method("aenter")

    async def __aexit__(self, *exception: object) -> None:
        self._method("aexit")

    def __enter__(self) -> Any:
        return self._method("enter")

    def __exit__(self, *exception: object) -> None:
        self._method("exit")

    def _plain(self, method: str, kind: type) -> Any:
        value = self._method(method)
        if type(value) is not kind:
            self._connection.fail(f"{method}() of the program's {self._kind} is no {kind.__name__}")
        return value

    def __len__(self) -> int:
        return int(self._plain("len", int))

    def __bool__(self) -> bool:
        return bool(self._plain("bool", bool))

    def __str__(self) -> str:
        return str(self._plain("str", str))

    def __int__(self) -> int:
        return int(self._plain("int", int))

    def __float__(self) -> float:
        return float(self._plain("float", float))

    def __repr__(self) -> str:
        return str(self._plain("repr", str))

    def __instancecheck__(self, value: object) -> bool:
        return isinstance(value, Remote) and bool(self._method("isinstance", value))

    def __subclasscheck__(self, value: object) -> bool:
        return isinstance(value, Remote) and bool(self._method("issubclass", value))

    def _refuse(self, *_: object) -> NoReturn:
        self._connection.fail(
            f"the test compares a {self._kind} of the program, which is not data: the program "
            "would decide whether it is equal"
        )

    def _data(self) -> Any:
        """Return the data that it is, as of now: that of a list with methods of its own."""
        value = self._method("data")
        if isinstance(value, Remote):
            self._refuse()
        return value

    def __eq__(self, other: object) -> bool:
        return bool(self._data() == other)

    def __contains__(self, item: object) -> bool:
        return item in self._data()

    __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __reduce_ex__ = _refuse

    def __hash__(self) -> int:
        return id(self) if self._kind == "coroutine" else self._refuse()  # as `asyncio.gather` does


def replace(old: Any, new: Any) -> None:
    """Make an argument of a test what the program has made of it."""
    if type(old) is not type(new):
        raise TypeError(f"a {type(old).__name__} has become a {type(new).__name__}")
    if isinstance(old, (list, bytearray)):
        old[:] = new
    else:
        old.clear()
        old.update(new)


# --- A test -------------------------------------------------------------------------------------


def free_names(source: str, filename: str) -> tuple[list[str], bool]:
    """List the names that code uses and does not define, in order; and whether it imports `*`."""
    used: dict[str, None] = {}
    bound: set[str] = set()

    def walk(table: symtable.SymbolTable, *, is_module: bool) -> None:
        for symbol in table.get_symbols():
            name = symbol.get_name()
            is_bound = symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()
            if (is_module or symbol.is_declared_global()) and is_bound:
                bound.add(name)
            if symbol.is_referenced() and (is_module or symbol.is_global()):
                used[name] = None
        for child in table.get_children():
            walk(child, is_module=False)

    walk(symtable.symtable(source, filename, "exec"), is_module=True)
    free = [name for name in used if name not in bound and not hasattr(builtins, name)]
    return free, "import *" in source


def forgotten_modules(source: str, names: list[str]) -> dict[str, Any]:
    """Import those of the names that are modules of Python's library, used as such.

    A program's own `math` would be shown what is expected, and could say that all is close to it.
    """
    if not any(name in sys.stdlib_module_names for name in names):
        return {}
    import ast  # it takes long, and is seldom needed

    nodes = list(ast.walk(ast.parse(source)))
    attributes = {id(node.value): node.attr for node in nodes if isinstance(node, ast.Attribute)}
    found = {}
    for name in names:
        uses = [attributes.get(id(n)) for n in nodes if isinstance(n, ast.Name) and n.id == name]
        if name in sys.stdlib_module_names and None not in uses:
            try:
                module = __import__(name)
            except ImportError:  # of another platform
                continue
            if all(hasattr(module, str(use)) for use in uses):
                found[name] = module
    return found


def run_test(connection: Connection, given: dict[str, Any]) -> dict[str, Any]:
    """Run one test; returns what came of it."""
    setup, test, entry_points = given["setup"], given["test"], given["entry_points"]
    try:
        setup_code = compile(setup, "setup", "exec", dont_inherit=True)
        written = WrittenTest(test)
        names, has_star = free_names(test, "test")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as problem:
        return {"error": f"the tests cannot be compiled: {describe(problem)}"}
    if written.problem:
        return {"error": written.problem}
    scope: dict[str, Any] = {"__name__": "tests", collection.BEGAN: written.begin}
    if given["files"]:
        sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as in program_side.py
    try:
        exec(setup_code, scope)
    except BaseException as problem:  # noqa: BLE001 - whatever it is, the setup is to blame
        return {"error": f"the tests' setup failed: {describe(problem)}"}
    names = [name for name in names if name not in scope and name != "candidate"]
    scope |= forgotten_modules(test, [name for name in names if name not in entry_points])
    names = [name for name in names if name not in scope]
    unknown = [name for name in names if name not in entry_points]
    if entry_points and unknown and not has_star:
        return {
            "error": f"the test uses {', '.join(unknown)}, which neither it nor its setup defines; "
            f"of the program it has {', '.join(entry_points)} alone"
        }
    missing: set[str] = set()
    try:
        load = {"do": "load", "program": given["program"], "files": given["files"]}
        connection.ask(load)
        for name in dict.fromkeys([*entry_points, *names]):
            reply = connection.ask({"do": "find", "name": name})
            if "missing" in reply:
                missing.add(name)
            else:
                value = scope[name.rpartition(".")[2]] = connection.value(reply)
                if not isinstance(value, Remote):
                    connection.taken.append(name)
        for name in entry_points:
            if name in missing:
                return {"failed": f"the program does not define {name}"}
            value = scope[name.rpartition(".")[2]]
            if name in connection.taken and not isinstance(value, type):
                return {"failed": f"{name} of the program is neither a function nor a class"}
    except BaseException as problem:  # noqa: BLE001 - what the program raised
        return {"failed": connection.problem or f"when it is loaded: {describe(problem)}"}
    if entry_points:
        scope["candidate"] = scope[entry_points[0].rpartition(".")[2]]
    return judge(connection, written, scope, missing)


def judge(
    connection: Connection, written: WrittenTest, scope: dict[str, Any], missing: set[str]
) -> dict[str, Any]:
    """Run the code of a test, and say whether it passed, failed or is no test."""
    reason = None
    try:
        exec(written.code, scope)
        own = {name: value for name, value in scope.items() if not isinstance(value, Remote)}
        collection.run_collected(written, own, lambda: connection.used)
    except TestIsWrong as problem:
        return {"error": str(problem)}
    except BaseException as problem:  # noqa: BLE001 - the test did not pass
        reason = describe(problem)
        is_own = not any(problem is raised for raised in connection.raised)
        if isinstance(problem, NameError) and getattr(problem, "name", None) in missing:
            reason, is_own = f"the program does not define {problem.name}", False
        is_broken = isinstance(problem, ImportError) or type(problem) is NameError
        is_broken = is_broken and not is_evaluated(problem)
        is_before = connection.is_unused and not isinstance(problem, AssertionError)
        is_broken = is_broken or is_early_end(problem)
        if is_own and connection.problem is None and (is_broken or is_before):
            return {"error": f"the test is wrong: {reason}"}
    if connection.problem is not None:
        return {"failed": connection.problem}
    if reason is not None:
        return {"failed": reason}
    if connection.is_unused:
        return {"error": "the test does not use the program: any program would pass it"}
    return {"passed": True}


def is_early_end(problem: BaseException) -> bool:
    """Return whether an exception leaves out the rest of the tests, and is no failure."""
    is_exit = isinstance(problem, SystemExit) and not problem.code
    return is_exit or type(problem).__name__ in ("SkipTest", "Skipped")


def is_evaluated(problem: BaseException) -> bool:
    """Return whether an exception is from a text that was evaluated, perhaps the program's."""
    frames = problem.__traceback__
    while frames is not None and frames.tb_next is not None:
        frames = frames.tb_next
    return frames is not None and frames.tb_frame.f_code.co_filename == "<string>"


def describe(problem: BaseException) -> str:
    """Describe an exception: what it says, and the line of the test it is from."""
    lines = []
    frames = problem.__traceback__
    while frames is not None:
        filename = frames.tb_frame.f_code.co_filename
        if filename in ("test", "setup"):
            lines.append(f"{filename} line {frames.tb_lineno}")
        frames = frames.tb_next
    try:
        text = str(problem)
    except Exception:  # noqa: BLE001 - a class of the test's own
        text = "(its message cannot be had)"
    said = f"{type(problem).__name__}: {text}" if text else type(problem).__name__
    return (said[:LONGEST] + (f" ({lines[-1]})" if lines else ""))[:LONGEST]


def main() -> None:
    """Run the test that arrives, and send what came of it."""
    channel = wire.Channel()
    given = channel.receive()
    channel.send({"outcome": run_test(Connection(channel), given)})


if __name__ == "__main__":
    main()
