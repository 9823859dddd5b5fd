"""Fingerprints of functions: enough to notice that a function has changed."""

from __future__ import annotations

import ast
import dis
import functools
import hashlib
import inspect
import json
import re
import sys
import sysconfig
import threading
import tokenize
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

PARTS = "parts"
"""Where descriptions of functions hold what each is made of; it names changes, and decides none."""
_VERSION = "__heldout_version__"
_KNOWN_AS = "__heldout_known_as__"


def set_version(function: Callable[..., Any], version: int | str | Callable[[], int | str]) -> None:
    """Identify a function by name and version (or a function that returns it), not by its code."""
    setattr(function, _VERSION, version)


def version_of(function: Any) -> int | str | None:
    """Return the version that `set_version` gave a function, or None."""
    version = getattr(function, _VERSION, None)
    # functools.wraps copies attributes: the version is that of the function inside.
    if getattr(getattr(function, "__wrapped__", None), _VERSION, None) is version:
        return None
    version = version() if callable(version) else version
    return version if isinstance(version, int | str) else None


def set_known_as(function: Callable[..., Any], other: Callable[..., Any]) -> None:
    """Identify one of heldout's functions by the user's function that it calls."""
    setattr(function, _KNOWN_AS, other)


def describe_callable(
    function: Callable[..., Any] | None, *, docstrings: bool = False, weights: bool = False
) -> dict[str, Any] | None:
    """Describe a function by name and fingerprint: enough to notice that it is another one.

    The fingerprint covers its source, that of functions and classes that it uses, of the same
    module and of others that are not installed packages, and the constants, so that a changed
    helper or threshold is noticed too. A decorated function is its wrapper, with what that closes
    over, and the function inside. Comments and layout do not count, nor what a function
    rebinds itself, which is a counter or a cache. Docstrings count where functions are tools, which
    a model reads, and `weights` of torch models where a function answers; `unknown` names those
    that cannot be read. An object may have `identity()` instead.
    """
    if function is None:
        return None
    function = getattr(function, _KNOWN_AS, function)
    content = identity_of(function)
    if content is not None:
        known = json.loads(content)
        name = known.get("name", type(function).__qualname__)
        return {**known, "name": name, "source": _digest([content])}
    search = _Search(docstrings, weights)
    search.add_callable(function)
    inner = function.func if isinstance(function, functools.partial) else function
    description = {"name": getattr(inner, "__qualname__", type(inner).__qualname__)}
    if search.parts:
        description["source"] = _digest(search.parts)
    if search.unknown:
        description["unknown"] = f"the weights of {', '.join(search.unknown)} cannot be read"
    return description


def describe_parts(
    functions: Mapping[str, Callable[..., Any] | None], *, docstrings: Collection[str] = ()
) -> dict[str, dict[str, str]]:
    """Hash what each function uses, one by one, so that a change can be named.

    Args:
        functions: Functions by what they are for; None is left out.
        docstrings: Those whose docstrings count.

    Returns:
        Of each function, hashes by name: of functions, classes and constants with their file.
    """
    described: dict[str, dict[str, str]] = {}
    for key, function in functions.items():
        if function is None:
            continue
        function = getattr(function, _KNOWN_AS, function)
        search = _Search(key in docstrings, weights=False)
        if (content := identity_of(function)) is not None:
            search.add_identity("", content)
        else:
            search.add_callable(function)
        described[key] = {label: _digest(texts) for label, texts in sorted(search.by_label.items())}
    return described


def name_changes(was: Mapping[str, str] | None, now: Mapping[str, str] | None) -> str:
    """Name the parts of a function that differ; "" where that is not known."""
    if not was or not now:
        return ""
    names = [name for name in {**was, **now} if was.get(name) != now.get(name)]
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more


def identity_of(thing: Any) -> str | None:
    """Return the identity that an object states for itself, as a rubric does, as JSON values."""
    identify = getattr(thing, "identity", None)
    if not callable(identify) or inspect.isclass(thing) or inspect.ismodule(thing):
        return None
    try:
        inspect.signature(identify).bind()
    except (TypeError, ValueError):  # another thing of that name
        return None
    identity = identify()
    if not isinstance(identity, dict):
        return None
    return json.dumps(identity, sort_keys=True, default=lambda value: type(value).__qualname__)


def describe_tokenizer(
    tokenizer: Any, template: str | None = None, template_kwargs: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Hash what decides which prompt a conversation becomes: `chat_template` and `tokenizer`.

    Args:
        tokenizer: The tokenizer.
        template: The chat template that is used instead of its own.
        template_kwargs: What the template is given besides the messages.
    """
    template = template or getattr(tokenizer, "chat_template", None)
    vocabulary = tokenizer.get_vocab() if hasattr(tokenizer, "get_vocab") else {}
    special = getattr(tokenizer, "special_tokens_map", None)
    return {
        "chat_template": describe_template(template, template_kwargs),
        "tokenizer": _digest([json.dumps([sorted(vocabulary.items()), special], default=str)]),
    }


def describe_template(template: Any, template_kwargs: Mapping[str, Any] | None = None) -> str:
    """Hash a chat template and what it is given besides the messages."""
    parts = [template, template_kwargs] if template_kwargs else [template]
    return _digest(json.dumps(part, sort_keys=True, default=str) for part in parts)


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "backslashreplace")).hexdigest()[:16]


class _Search:
    """Walks from a function to everything it uses, and collects the identity of each."""

    def __init__(self, docstrings: bool, weights: bool) -> None:
        self.parts: list[str] = []
        self.by_label: dict[str, list[str]] = {}
        """The same parts by what they are called."""
        self.unknown: list[str] = []
        self._docstrings, self._weights = docstrings, weights
        self._seen: set[int] = set()

    def add_identity(self, name: str, content: str) -> None:
        """Add what an object says of itself."""
        known = json.loads(content)
        for part in known.pop("parts", None) or ():
            if isinstance(part, dict):
                self._add(f"part {part.get('name')}", json.dumps(part, sort_keys=True))
        self._add(str(known.get("name") or name), f"{name} {json.dumps(known, sort_keys=True)}")

    def _add(self, label: str, text: str) -> None:
        self.parts.append(text)
        self.by_label.setdefault(label, []).append(text)

    def add_callable(self, value: Any, changed: Collection[str] = ()) -> None:
        """Add a function, a method, a partial, a class, or an object that can be called.

        `changed` are attributes that the function which uses it assigns: those of a counter.
        """
        if isinstance(value, functools.partial):
            self.add_callable(value.func)
            self._add_bound(value)
            return
        owner = getattr(value, "__self__", None)
        owner = value if owner is None or inspect.ismodule(owner) else owner
        if (identity := identity_of(owner)) is not None:
            label = json.loads(identity).get("name") or type(owner).__qualname__
            self._add(str(label), f"{getattr(value, '__name__', '')} {identity}")
            return
        if owner is not value:  # a method: its class is part of it
            self._add_owner(owner, changed)
        value = getattr(value, "__func__", value)
        if not inspect.isfunction(value):
            is_new = self._add_owner(value, changed)
        elif (version := version_of(value)) is not None:
            self._add(_label(value), f"{value.__module__}.{value.__qualname__} {version}")
            return
        elif is_new := self._enters(value):
            self._add_function(value)
        # The function inside a decorator, which a wrapper may hold where nothing else looks.
        if is_new and (inner := getattr(value, "__wrapped__", None)) is not None:
            self.add_callable(inner)

    def _add_bound(self, value: functools.partial[Any]) -> None:
        home = getattr(value.func, "__module__", None)
        for name, bound in [*enumerate(value.args), *sorted(value.keywords.items())]:
            count = len(self.parts)
            # A dict that is bound is a table of settings; a list may well be a log.
            self._add_used(str(name), bound, home, is_constant=isinstance(bound, dict))
            if len(self.parts) == count:
                self._add(f"argument {name}", f"{name}: {type(bound).__qualname__}")

    def _enters(self, thing: Any) -> bool:
        is_new = id(thing) not in self._seen
        self._seen.add(id(thing))
        return is_new

    def _add_function(self, function: FunctionType) -> None:
        code = function.__code__
        text, names = _read_once(code, self._docstrings, lambda: self._read_code(function))
        self._add(_label(function), text)
        used = {n: function.__globals__[n] for n in names.read if n in function.__globals__}
        for name, module in list(used.items()):
            if inspect.ismodule(module) and _is_of_the_user(module.__name__):
                attributes = [a for a in names.attributes if a in vars(module)]
                used.update({f"{name}.{a}": vars(module)[a] for a in attributes})
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            if name not in names.rebound:
                with suppress(ValueError):  # a cell that is not filled yet
                    used[name] = cell.cell_contents
        defaults = [*enumerate(function.__defaults__ or ())]
        for key, default in [*defaults, *(function.__kwdefaults__ or {}).items()]:
            used[f"default {key}"] = default
        for name, value in sorted(used.items(), key=lambda item: item[0]):
            self._add_used(name, value, function.__module__, changed=names.assigned_attributes)

    def _read_code(self, function: FunctionType) -> tuple[str, _Names]:
        return _describe_code(function, self._docstrings), _names_in(function.__code__)

    def _add_used(
        self,
        name: str,
        value: Any,
        home: str | None,
        *,
        is_constant: bool = False,
        changed: Collection[str] = (),
    ) -> None:
        # By convention: a list in capitals is a constant, any other a cache or a log as often as
        # not.
        constant = _constant(value, may_grow=not (is_constant or name.isupper()))
        if constant is not None:
            self._add(f"{name}{_file_of(home)}", f"{name}={constant}")
        elif _is_known(value, home):
            self._add("the names of what is used", f"{name}:")
            self.add_callable(value, changed)
        elif isinstance(value, functools.partial):  # of a function that is not the user's
            self._add(name, f"{name}: {getattr(value.func, '__qualname__', '')}")
            self._add_bound(value)
        elif not inspect.ismodule(value):
            self._add_weights(name, value)

    def _add_owner(self, owner: Any, changed: Collection[str] = ()) -> bool:
        """Add a class, or an object's class and constructor arguments. False if already added."""
        if inspect.isclass(owner):
            return self._add_class(owner)
        if not self._enters(owner):
            return False
        self._add_class(type(owner))
        self._add_weights("self", owner)
        kinds = [kind for kind in type(owner).__mro__ if kind is not object]
        # What other methods assign is a counter or a cache.
        rebound = {
            name
            for kind in kinds
            for method, member in vars(kind).items()
            if inspect.isfunction(member) and method not in ("__init__", "__post_init__", "__new__")
            for name in _names_in(member.__code__).assigned_attributes
        }.union(changed)
        names = {*getattr(owner, "__dict__", {})}
        names |= {slot for kind in kinds for slot in getattr(kind, "__slots__", ())}
        names = {name for name in names - rebound if not name.startswith("__")}
        for name in sorted(names):
            with suppress(AttributeError):  # a slot that is not filled
                self._add_used(name, getattr(owner, name), type(owner).__module__)
        return True

    def _add_class(self, kind: type) -> bool:
        if not self._enters(kind):
            return False
        source = _read_once(kind, self._docstrings, lambda: _read_source(kind, self._docstrings))
        if source is not None:  # built in, or typed at a prompt: then only its name
            self._add(_label(kind), source)
        for member in vars(kind).values():
            function = getattr(member, "__func__", member)
            is_code = inspect.isfunction(function) or hasattr(function, "__wrapped__")
            if is_code and function.__module__ == kind.__module__:
                self.add_callable(function)
        for base in kind.__bases__:
            if base.__module__ == kind.__module__:
                self._add_class(base)
        return True

    def _add_weights(self, name: str, value: Any) -> None:
        """Add the weights of a torch model, or of those that lists, dicts and objects hold."""
        torch: Any = sys.modules.get("torch")
        if not self._weights or not hasattr(torch, "nn"):
            return
        from heldout._live.weights import fingerprint

        models = dict(_models(value, (torch.nn.Module, torch.Tensor)))
        if models:
            version = fingerprint(models)
            if version is None:
                self.unknown.append(name)
            self._add(f"the weights of {name}", f"{name}: weights {version}")


def _label(code: Any) -> str:
    return f"{code.__qualname__}{_file_of(code.__module__)}"


def _file_of(module: str | None) -> str:
    """Return the file of a module in parentheses; "" where it has none."""
    file = getattr(sys.modules.get(module or ""), "__file__", None)
    return f" ({Path(file).name})" if file else ""


def _is_known(value: Any, home: str | None) -> bool:
    """Whether a value is code to follow: the user's, or code with a version or an identity."""
    if isinstance(value, functools.partial):
        return _is_known(value.func, home)
    owner = getattr(value, "__self__", None) if inspect.ismethod(value) else value
    is_code = inspect.isfunction(owner) or inspect.isclass(owner) or hasattr(owner, "__wrapped__")
    if not is_code:
        if type(owner).__module__.partition(".")[0] == "heldout":
            return hasattr(owner, "identity")
        torch: Any = sys.modules.get("torch")
        if not callable(value) or (hasattr(torch, "nn") and isinstance(owner, torch.nn.Module)):
            return False  # the weights of a model are looked at elsewhere
        owner = type(owner)
    module = getattr(owner, "__module__", None)
    return module == home or _is_of_the_user(module) or version_of(owner) is not None


_MAX_SIZE = 1000
"""Maximum size of a list, dict or set that counts as a constant or holds models; larger is data."""


def _models(value: Any, kinds: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Find the models in a value, and in what its lists, dicts and objects hold, four deep."""
    if isinstance(value, kinds):
        yield name, value
        return
    if isinstance(value, list | tuple):
        parts: Any = dict(enumerate(value))
    else:
        parts = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    is_code = inspect.ismodule(value) or inspect.isclass(value) or inspect.isfunction(value)
    if is_code or depth == 4 or len(parts) > _MAX_SIZE:
        return
    for key, part in list(parts.items()):
        yield from _models(part, kinds, f"{name}.{key}" if name else str(key), depth + 1)


def _constant(value: Any, *, may_grow: bool, depth: int = 0) -> str | None:
    """Return a constant as text; None for anything else, such as a list that may grow."""
    if isinstance(value, str | bytes | int | float | complex | None):
        return repr(value)
    if isinstance(value, re.Pattern):
        return f"re {value.pattern!r} {value.flags}"
    kinds = (tuple, frozenset) if may_grow else (tuple, frozenset, list, dict, set)
    kind = next((kind for kind in kinds if isinstance(value, kind)), None)
    if kind is None or len(value) > _MAX_SIZE or depth == 20:  # or it holds itself
        return None
    values = [part for pair in value.items() for part in pair] if kind is dict else [*value]
    texts = []
    for part in values:
        text = _constant(part, may_grow=may_grow, depth=depth + 1)
        if text is None:
            return None
        texts.append(text)
    if kind in (set, frozenset):
        texts.sort()
    return f"{kind.__name__}({', '.join(texts)})"


@functools.cache
def _is_of_the_user(module: str | None) -> bool:
    """Whether a module is the user's own: not Python's, not installed, not heldout's."""
    file = getattr(sys.modules.get(module or ""), "__file__", None)
    if file is None or str(module).partition(".")[0] == "heldout":
        return False
    installed = (
        sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")
    )
    path = Path(file).resolve()
    return not any(path.is_relative_to(Path(folder).resolve()) for folder in installed)


# --- Code ---------------------------------------------------------------------------------------


class _Names(NamedTuple):
    """Names in the code of a function, and of those inside it."""

    read: set[str]
    """Read from its module, and not assigned."""
    rebound: set[str]
    """Variables of enclosing functions that it assigns."""
    attributes: set[str]
    """Read of objects and modules."""
    assigned_attributes: set[str]


def _names_in(code: CodeType) -> _Names:
    by_operation: dict[str, set[str]] = {}
    for part in _codes(code):
        for step in dis.get_instructions(part):
            if isinstance(step.argval, str):
                by_operation.setdefault(step.opname, set()).add(step.argval)

    def names(*operations: str) -> set[str]:
        return {name for operation in operations for name in by_operation.get(operation, ())}

    # LOAD_NAME is the body of a class; the last one, from 3.12 on, of an annotation.
    read = names("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
    read -= names("STORE_GLOBAL", "DELETE_GLOBAL")
    return _Names(
        {name for name in read if not name.startswith("__")},  # __file__ differs by machine
        names("STORE_DEREF", "DELETE_DEREF"),
        names("LOAD_ATTR", "LOAD_METHOD"),
        names("STORE_ATTR", "DELETE_ATTR"),
    )


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _describe_code(function: FunctionType, docstrings: bool) -> str:
    # The source of a lambda is the line it stands in, whatever else is there.
    is_lambda = function.__code__.co_name == "<lambda>"
    # By its code: `inspect` would read the function inside a wrapper.
    thing = function.__code__ if hasattr(function, "__wrapped__") else function
    source = None if is_lambda else _read_source(thing, docstrings)
    if source is not None:
        return source
    lines = []
    for code in _codes(function.__code__):
        constants = [_constant(c, may_grow=True) for c in code.co_consts]
        lines.append(f"{code.co_code.hex()} {code.co_names!r} {constants!r}")
    return "\n".join(lines)


def _read_source(thing: Any, docstrings: bool) -> str | None:
    """Return the source normalised, whatever its layout; unchanged if it cannot be parsed."""
    try:
        source = inspect.getsource(thing)
    # The last two: the file was edited since, and is no longer Python.
    except (OSError, TypeError, SyntaxError, tokenize.TokenError):
        return None
    # Not dedented, which would change what is in strings of many lines.
    text = f"if True:\n{source}" if source[:1].isspace() else source
    try:
        with warnings.catch_warnings(action="ignore"):  # said when the module was compiled
            tree: Any = ast.parse(text)
    except (SyntaxError, ValueError):
        return source
    if not docstrings:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                node.body = [s for s in node.body if not _is_text(s)] or [ast.Pass()]
    return "\n".join(map(ast.unparse, tree.body if text is source else tree.body[0].body))


def _is_text(statement: Any) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(
        getattr(statement.value, "value", None), str
    )


_readings: dict[tuple[int, bool], tuple[Any, Any]] = {}
"""With the code object itself, so that its id is not reused."""
_reading = threading.RLock()
"""Held while source is parsed: `ast` of Python 3.11 counts its recursion once for all threads, and
raises SystemError where two of them parse at a time."""


def _read_once(thing: Any, docstrings: bool, read: Callable[[], Any]) -> Any:
    """Read code once: it takes milliseconds, and must not see edits made after the import.

    By identity: code objects are equal to others that differ in their decorators.
    """
    key = (id(thing), docstrings)
    with _reading:
        tries = 3
        while key not in _readings:
            tries -= 1
            try:
                _readings[key] = (thing, read())
            except SystemError:
                # The lock is heldout's own: a traceback that another thread formats is parsed, too.
                if tries == 0:
                    raise
        return _readings[key][1]
