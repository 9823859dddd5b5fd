"""Values as JSON, between a program, the tests and the grader. Standard library alone.

This file is sent into sandboxes with `program_side.py` and `tests_side.py`, and is imported by
the grader. What is data (numbers, texts, containers of them) crosses as data, and arrives as
exactly the built-in type: a subclass of `int` or `str` is its value, and methods stay behind. What
is not data is left to `other`, which makes a reference of it or refuses it.

A list is a JSON list, and plain values are themselves; all else is `{"t": tag, "v": content}`.
"""

from __future__ import annotations

import collections
import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing`, like some others, takes longer to import than a test to run
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    Inner = Callable[[Any], Any]
    Writer = Callable[[Any, Inner], Any]

DEPTH = 200
"""How deeply values may be nested."""
MOST_ITEMS = 2_000_000
"""Items of a message; each takes many times as much memory as its text."""


class NotData(Exception):
    """A value cannot cross."""


class BadMessage(Exception):
    """What arrived is no message of this protocol."""


def encode(value: Any, other: Callable[[Any], Any], depth: int = 0) -> Any:
    """Make JSON values of a value.

    Args:
        value: Anything.
        other: Makes JSON values of what is not data, or raises NotData.
        depth: How deeply it is nested.
    """
    if depth > DEPTH:
        raise NotData(f"a value that is nested more than {DEPTH} deep")
    kind = type(value)
    if value is None or kind is bool:
        return value
    for base, write in _WRITERS:
        if isinstance(value, base):
            return write(value, lambda inner: encode(inner, other, depth + 1))
    for module, name, write in _LATE_WRITERS:
        if module in sys.modules and isinstance(value, getattr(sys.modules[module], name)):
            return write(value, lambda inner: encode(inner, other, depth + 1))
    if (
        kind.__module__ == "numpy"
        and getattr(value, "shape", None) == ()
        and hasattr(value, "item")
    ):
        return encode(value.item(), other, depth + 1)
    return other(value)


def _write_int(value: int, _: Inner) -> Any:
    number = int.__int__(value)
    return number if -(2**53) < number < 2**53 else {"t": "int", "v": hex(number)}


def _write_float(value: float, _: Inner) -> Any:
    number = float.__pos__(value)
    if number - number == 0.0:
        return number
    return {"t": "float", "v": float.__repr__(number)}


def _write_dict(tag: str) -> Writer:
    def write(value: dict[Any, Any], inner: Inner) -> Any:
        return {"t": tag, "v": [[inner(k), inner(v)] for k, v in dict.items(value)]}

    return write


def _write_many(tag: str, iterate: Callable[[Any], Iterator[Any]]) -> Writer:
    def write(value: Any, inner: Inner) -> Any:
        items = [inner(item) for item in iterate(value)]
        return items if tag == "list" else {"t": tag, "v": items}

    return write


def _write_tuple(value: tuple[Any, ...], inner: Inner) -> Any:
    items = [inner(item) for item in tuple.__iter__(value)]
    fields = getattr(value, "_fields", None)
    if not isinstance(fields, tuple) or len(fields) != len(items):
        return {"t": "tuple", "v": items}
    return {"t": "namedtuple", "v": [items, [str(name) for name in fields]]}


class NamedItems(tuple):  # type: ignore[type-arg]
    """A tuple whose items have names, as those of collections.namedtuple."""

    _fields: tuple[str, ...] = ()

    def __getattr__(self, name: str) -> Any:
        """Return the item of this name."""
        if name not in self._fields:
            raise AttributeError(f"the tuple has no {name!r:.100}")
        return self[self._fields.index(name)]


def _write_text(tag: str, text: Callable[[Any], str]) -> Writer:
    return lambda value, _: {"t": tag, "v": text(value)}


_WRITERS: tuple[tuple[type, Writer], ...] = (
    (int, _write_int),
    (float, _write_float),
    (str, lambda value, _: str.__str__(value)),
    (list, _write_many("list", list.__iter__)),
    (tuple, lambda value, inner: _write_tuple(value, inner)),
    (collections.Counter, _write_dict("Counter")),
    (collections.OrderedDict, _write_dict("OrderedDict")),
    (collections.defaultdict, _write_dict("defaultdict")),
    (dict, _write_dict("dict")),
    (set, _write_many("set", set.__iter__)),
    (frozenset, _write_many("frozenset", frozenset.__iter__)),
    (collections.deque, _write_many("deque", collections.deque.__iter__)),
    (bytes, _write_text("bytes", bytes.hex)),
    (bytearray, _write_text("bytearray", bytearray.hex)),
    (complex, lambda value, inner: {"t": "complex", "v": [inner(value.real), inner(value.imag)]}),
    (range, lambda value, inner: {"t": "range", "v": [value.start, value.stop, value.step]}),
)
_LATE_WRITERS: tuple[tuple[str, str, Writer], ...] = (
    ("decimal", "Decimal", _write_text("Decimal", str)),
    ("fractions", "Fraction", _write_text("Fraction", str)),
    ("datetime", "datetime", _write_text("datetime", lambda value: str(value.isoformat()))),
    ("datetime", "date", _write_text("date", lambda value: str(value.isoformat()))),
    ("datetime", "time", _write_text("time", lambda value: str(value.isoformat()))),
    (
        "datetime",
        "timedelta",
        lambda v, _: {"t": "timedelta", "v": [v.days, v.seconds, v.microseconds]},
    ),
)
"""Of types whose values exist only once their module is imported."""


def decode(value: Any, other: Callable[[Any, Any], Any]) -> Any:
    """Make the value of JSON values; its types are built-in ones and those of this module alone.

    Args:
        value: What `encode` made, or what somebody pretends it made.
        other: Gets tag and content of what is not data.

    Raises:
        BadMessage: It is none.
    """
    try:
        return _decode(value, other)
    except (TypeError, ValueError, ArithmeticError, KeyError, RecursionError) as problem:
        raise BadMessage(f"{type(problem).__name__}: {problem}") from None


def _decode(value: Any, other: Callable[[Any, Any], Any]) -> Any:
    if isinstance(value, list):
        return [_decode(item, other) for item in value]
    if not isinstance(value, dict):
        return value
    tag, content = value["t"], value["v"]
    if tag in _READ_ITEMS:
        items = [_decode(item, other) for item in content]
        if tag in ("set", "frozenset"):
            _refuse_collisions(items)
        return _READ_ITEMS[tag](items)
    if tag in _READ_PAIRS:
        pairs = [(_decode(key, other), _decode(inner, other)) for key, inner in content]
        _refuse_collisions([key for key, _ in pairs])
        return _READ_PAIRS[tag](pairs)
    if tag in _READ_CONTENT:
        return _READ_CONTENT[tag](content)
    return other(tag, content)


def _refuse_collisions(keys: list[Any]) -> None:
    """Refuse keys of the same hash: to make a set of them takes time quadratic in their number."""
    if len(keys) > 1000 and len(set(map(hash, keys))) < len(keys) // 2:
        raise ValueError("keys whose hashes are the same")


_READ_ITEMS: dict[str, Callable[[Iterable[Any]], Any]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": collections.deque,
    "complex": lambda items: complex(*items),
    "namedtuple": lambda items: _name_items(*items),
}
_READ_PAIRS: dict[str, Callable[[list[tuple[Any, Any]]], Any]] = {
    "dict": dict,
    "Counter": lambda pairs: collections.Counter(dict(pairs)),
    "OrderedDict": collections.OrderedDict,
    "defaultdict": lambda pairs: collections.defaultdict(None, pairs),
}
_READ_CONTENT: dict[str, Callable[[Any], Any]] = {
    "int": lambda content: int(content, 16),
    "float": float,
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
    "range": lambda content: range(*content),
    "Decimal": lambda content: _find_class("decimal", "Decimal")(content),
    "Fraction": lambda content: _read_fraction(content),
    "datetime": lambda content: _find_class("datetime", "datetime").fromisoformat(content),
    "date": lambda content: _find_class("datetime", "date").fromisoformat(content),
    "time": lambda content: _find_class("datetime", "time").fromisoformat(content),
    "timedelta": lambda content: _find_class("datetime", "timedelta")(*content),
}


def _name_items(items: list[Any], fields: list[str]) -> NamedItems:
    named = NamedItems(items)
    named._fields = tuple(map(str, fields))
    if len(named._fields) != len(named):
        raise ValueError("a tuple with more names than items, or less")
    return named


def _read_fraction(content: Any) -> Any:
    if "e" in str(content).lower():  # 1e999999999 would take hours
        raise ValueError("a fraction with an exponent")
    return _find_class("fractions", "Fraction")(content)


def _find_class(module: str, name: str) -> Any:
    return getattr(__import__(module), name)


def dump(message: Any) -> bytes:
    """Write a message as one line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def load(line: bytes) -> dict[str, Any]:
    """Read a message, which is an object.

    Raises:
        BadMessage: The line is none.
    """
    if line.count(b",") > MOST_ITEMS:
        raise BadMessage(f"more than {MOST_ITEMS:,} items")
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as problem:
        raise BadMessage(f"{type(problem).__name__}: {problem}") from None
    if not isinstance(message, dict):
        raise BadMessage(f"a message must be an object, got {type(message).__name__}")
    return message


class Channel:
    """The other side, at the standard input and output with which this process was started.

    Afterwards both are /dev/null: what is printed does not get between messages.
    """

    def __init__(self) -> None:
        self._in = os.fdopen(os.dup(0), "rb")
        self._out = os.fdopen(os.dup(1), "wb")
        nothing = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(nothing, standard)
        os.close(nothing)
        self.send({"ready": True})

    def send(self, message: dict[str, Any]) -> None:
        """Send a message."""
        self._out.write(dump(message))
        self._out.flush()

    def receive(self) -> dict[str, Any]:
        """Wait for a message; raises EOFError where the other side is gone."""
        line = self._in.readline()
        if not line:
            raise EOFError("the other side is gone")
        return load(line)
