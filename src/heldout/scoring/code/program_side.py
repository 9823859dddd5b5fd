"""The process in which a program's functions are called. Standard library alone.

It runs in a sandbox, together with the program and nothing else: neither the tests nor what they
expect are in it. The program may change whatever it likes in here, this code included, since all
that leaves the process is data: what a function returned, or the name of what it raised.
"""

import builtins
import io
import linecache
import os
import sys
import types

import wire

PRINTED = 65_536
"""Characters printed during a call that the tests get to see."""


class Server:
    """Answers what the tests ask of the program."""

    def __init__(self, channel):
        self.channel = channel
        self.objects = {}
        self.module = types.ModuleType("program")

    def serve(self):
        """Answer until the other side is gone."""
        while True:
            try:
                request = self.channel.receive()
            except EOFError:
                os._exit(0)
            self.channel.send(self.answer(request))

    def answer(self, request):
        """Do what a request says; the answer has a value, or what was raised."""
        printed = sys.stdout = io.StringIO()
        try:
            reply = getattr(self, "do_" + request["do"])(request)
        except BaseException as problem:
            reply = {"raised": self.describe(problem)}
        text = printed.getvalue()
        return {**reply, "printed": text[:PRINTED]} if text else reply

    def do_load(self, request):
        """Run the program's top level."""
        source = request["program"]
        if request["files"]:
            sys.path.insert(0, os.getcwd())
        linecache.cache["program.py"] = (len(source), None, source.splitlines(True), "program.py")
        sys.modules["program"] = self.module
        exec(compile(source, "program.py", "exec"), vars(self.module))
        return {"value": None}

    def do_find(self, request):
        """Find a name of the program, or the method of a class `Solution`."""
        first, *rest = request["name"].split(".")
        scope = vars(self.module)
        if first not in scope and isinstance(scope.get("Solution"), type):
            first, rest = "Solution", [first, *rest]
        if first not in scope:
            return {"missing": True}
        value = scope[first]
        if rest and isinstance(value, type):
            value = value()
        for name in rest:
            value = getattr(value, name)
        return {"value": self.encode(value)}

    def do_call(self, request):
        """Call an object; where it returns None, arguments that it has changed come back."""
        function = self.objects[request["object"]]
        args = [self.decode(value) for value in request["args"]]
        kwargs = {name: self.decode(value) for name, value in request["kwargs"].items()}
        result = function(*args, **kwargs)
        if request.get("in_place"):
            return {"value": self.encode(args[0])}
        reply = {"value": self.encode(result)}
        if result is None:
            reply["changed"] = [
                [index, changed]
                for index, (value, sent) in enumerate(zip(args, request["args"]))
                if isinstance(value, (list, dict, set, bytearray))
                if (changed := self.encode(value)) != sent
            ]
        return reply

    def do_method(self, request):
        """Call one of the methods behind Python's operators and functions."""
        target = self.objects[request["object"]]
        args = [self.decode(value) for value in request["args"]]
        operation = {
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
        }[request["method"]]
        return {"value": self.encode(operation(target, *args))}

    def encode(self, value):
        return wire.encode(value, self.refer)

    def refer(self, value):
        """Make a reference to an object that is not data."""
        self.objects[id(value)] = value
        if isinstance(value, type) and issubclass(value, BaseException):
            return {"t": "exception", "v": self.lineage(value)}
        name = getattr(value, "__qualname__", None)
        said = name if isinstance(name, str) else type(value).__qualname__
        return {"t": "object", "v": [id(value), type(value).__qualname__[:100], said[:100]]}

    def decode(self, value):
        return wire.decode(value, self.find)

    def find(self, tag, content):
        """Find what a reference of the tests means."""
        if tag == "object":
            return self.objects[content]
        if tag == "builtin":
            return getattr(builtins, content)
        if tag == "callback":
            return Callback(self, content)
        raise wire.BadMessage(f"no tag {tag!r}")

    def describe(self, problem):
        """Describe an exception: its class, and what it was given."""
        try:
            arguments = [wire.encode(argument, repr) for argument in problem.args]
        except Exception:
            arguments = []
        try:
            text = str(problem)[:2000]
        except Exception:
            text = ""
        return {"class": self.lineage(type(problem)), "args": arguments, "text": text}

    def lineage(self, kind):
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

    def __init__(self, server, number):
        self._server, self._number = server, number

    def __call__(self, *args, **kwargs):
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
                raise RuntimeError(message["failed"])
            else:
                return server.decode(message["value"])


if __name__ == "__main__":
    Server(wire.Channel()).serve()
