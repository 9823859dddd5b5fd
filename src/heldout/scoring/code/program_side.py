"""The process in which a program's functions are called. Standard library alone.

It runs in a sandbox, together with the program and nothing else: neither the tests nor what they
expect are in it. The program may change whatever it likes in here, this code included, since all
that leaves the process is data: what a function returned, or the name of what it raised.
"""

from __future__ import annotations

import builtins
import collections
import io
import linecache
import os
import sys
import types

from heldout.scoring.code import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

PRINTED = 65_536
"""Characters printed during a call that the tests get to see."""
CONTAINERS = (list, dict, set, collections.deque)
DATA_MODULES = ("builtins", "collections")


class ProgramServer:
    """Answers what the tests ask of the program."""

    def __init__(self, channel: wire.Channel) -> None:
        self.channel = channel
        self.objects: dict[int, Any] = {}
        self.module = types.ModuleType("program")
        self.loop: Any = None

    def serve(self) -> NoReturn:
        """Answer until the other side is gone."""
        while True:
            try:
                request = self.channel.receive()
            except EOFError:
                os._exit(0)
            self.channel.send(self.answer(request))

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what a request says; the answer has a value, or what was raised."""
        printed = sys.stdout = io.StringIO()
        try:
            reply: dict[str, Any] = getattr(self, "do_" + request["do"])(request)
        except BaseException as problem:  # noqa: BLE001 - sent to the tests, which raise it
            reply = {"raised": self.describe(problem)}
        text = printed.getvalue()
        return {**reply, "printed": text[:PRINTED]} if text else reply

    def do_load(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run the program's top level."""
        source = request["program"]
        if request["files"]:
            sys.path.insert(0, os.getcwd())  # noqa: PTH109 - of an untrusted process
        linecache.cache["program.py"] = (len(source), None, source.splitlines(True), "program.py")
        sys.modules["program"] = self.module
        # Without this file's own `from __future__`: annotations are evaluated.
        code = compile(source, "program.py", "exec", dont_inherit=True)
        exec(code, vars(self.module))
        return {"value": None}

    def do_find(self, request: dict[str, Any]) -> dict[str, Any]:
        """Find a name of the program, or the method of a class `Solution`."""
        first, *rest = request["name"].split(".")
        scope = vars(self.module)
        # Before a global name, which may be from the imports that a prompt has.
        if isinstance(scope.get("Solution"), type) and hasattr(scope["Solution"], first):
            first, rest = "Solution", [first, *rest]
        if first not in scope:
            return {"missing": True}
        value = scope[first]
        if rest and isinstance(value, type):
            value = value()
        for name in rest:
            value = getattr(value, name)
        return {"value": self.encode(value)}

    def do_call(self, request: dict[str, Any]) -> dict[str, Any]:
        """Call an object; where it returns None, arguments that it has changed come back."""
        function = self.objects[request["object"]]
        args = [self.decode(value) for value in request["args"]]
        kwargs = {name: self.decode(value) for name, value in request["kwargs"].items()}
        result = function(*args, **kwargs)
        if request.get("in_place"):
            return {"value": self.encode(args[0])}
        # What a class makes has that class's methods, even where it is a list or a dict.
        is_made = isinstance(function, type) and function.__module__ not in DATA_MODULES
        is_own = is_made and isinstance(result, CONTAINERS)
        reply = {"value": self.refer(result) if is_own else self.encode(result)}
        if result is None:
            reply["changed"] = [
                [index, changed]
                for index, (value, sent) in enumerate(zip(args, request["args"], strict=True))
                if isinstance(value, (list, dict, set, bytearray))
                if (changed := self.encode(value)) != sent
            ]
        return reply

    def do_method(self, request: dict[str, Any]) -> dict[str, Any]:
        """Call one of the methods behind Python's operators and functions."""
        target = self.objects[request["object"]]
        args = [self.decode(value) for value in request["args"]]
        operations: dict[str, Callable[..., Any]] = {
            "getattr": getattr,
            "setattr": setattr,
            "iter": iter,
            "next": next,
            "len": len,
            "bool": bool,
            "str": str,
            "repr": repr,
            "int": int,
            "float": float,
            "getitem": lambda value, key: value[key],
            "setitem": lambda value, key, item: value.__setitem__(key, item),
            "delitem": lambda value, key: value.__delitem__(key),
            "enter": lambda value: value.__enter__(),
            "exit": lambda value: value.__exit__(None, None, None),
            "await": self.wait_for,
            "aiter": lambda value: value.__aiter__(),
            "anext": lambda value: self.wait_for(value.__anext__()),
            "aenter": lambda value: self.wait_for(value.__aenter__()),
            "aexit": lambda value: self.wait_for(value.__aexit__(None, None, None)),
            "data": lambda value: value,
            "isinstance": lambda value, other: isinstance(other, value),
            "issubclass": lambda value, other: issubclass(other, value),
        }
        return {"value": self.encode(operations[request["method"]](target, *args))}

    def wait_for(self, awaitable: Any) -> Any:
        """Run a coroutine to its end, in one event loop for all of them."""
        import asyncio  # it takes long to import

        async def wait() -> Any:
            return await awaitable

        if self.loop is None:
            self.loop = asyncio.new_event_loop()
        return self.loop.run_until_complete(wait())

    def encode(self, value: Any) -> Any:
        """Make JSON values of a value."""
        return wire.encode(value, self.refer)

    def refer(self, value: Any) -> Any:
        """Make a reference to an object that is not data."""
        self.objects[id(value)] = value
        if isinstance(value, type) and issubclass(value, BaseException):
            return {"t": "exception", "v": self.lineage(value)}
        return {"t": "object", "v": [id(value), type(value).__qualname__[:100]]}

    def decode(self, value: Any) -> Any:
        """Make the value of JSON values."""
        return wire.decode(value, self.find)

    def find(self, tag: Any, content: Any) -> Any:
        """Find what a reference of the tests means."""
        if tag == "object":
            return self.objects[content]
        if tag == "builtin":
            return getattr(builtins, content)
        if tag == "callback":
            return Callback(self, content)
        raise wire.BadMessage(f"no tag {tag!r}")

    def describe(self, problem: BaseException) -> dict[str, Any]:
        """Describe an exception: its class, and what it was given."""
        try:
            arguments = [wire.encode(argument, repr) for argument in problem.args]
        except Exception:  # noqa: BLE001 - of the program's own class
            arguments = []
        try:
            text = str(problem)[:2000]
        except Exception:  # noqa: BLE001 - of the program's own class
            text = ""
        return {"class": self.lineage(type(problem)), "args": arguments, "text": text}

    def lineage(self, kind: type[BaseException]) -> list[Any]:
        """List an exception's class and those it is derived from, up to the first built-in one."""
        line = []
        for base in kind.__mro__:
            line.append([id(base), base.__name__])
            if base.__module__ == "builtins":
                break
            self.objects[id(base)] = base
        return line


class Callback:
    """A function of the tests, which the program may call and nothing else."""

    def __init__(self, server: ProgramServer, number: int) -> None:
        self._server, self._number = server, number

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Have the tests call it."""
        server = self._server
        server.channel.send(
            {
                "callback": self._number,
                "args": [server.encode(value) for value in args],
                "kwargs": {name: server.encode(value) for name, value in kwargs.items()},
            }
        )
        while True:
            message = server.channel.receive()
            if "do" in message:  # the function has called the program in turn
                server.channel.send(server.answer(message))
            elif "failed" in message:
                raise getattr(builtins, message["failed"])(message["text"])
            else:
                return server.decode(message["value"])


if __name__ == "__main__":
    ProgramServer(wire.Channel()).serve()
