"""`--set KEY=VALUE`: the fields of EvalConfig and Sampling, read from text, and their help."""

from __future__ import annotations

import ast
import difflib
import inspect
import typing
from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any, Literal

import msgspec

from heldout.config import EvalConfig, Sampling, base_config
from heldout.errors import InvalidInput

Owner = type[EvalConfig] | type[Sampling]
_INSIDE = "sampling."
_EXTRA_BODY = "sampling.extra_body."


def with_settings(config: EvalConfig, settings: Iterable[str], given: dict[str, Any]) -> EvalConfig:
    """The config with `key=value` texts and then `given` applied.

    `sampling.temperature=0.7` reaches inside. All at once, since settings may only be valid
    together.
    """
    outer: dict[str, Any] = {}
    inner: dict[str, Any] = {}
    extra_body: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise InvalidInput(f"--set takes KEY=VALUE, got {setting!r}")
        key = key.strip()
        if key.startswith(_EXTRA_BODY):
            add_nested(extra_body, key.removeprefix(_EXTRA_BODY), text)
        elif key.startswith(_INSIDE):
            name = key.removeprefix(_INSIDE)
            inner[name] = _value(Sampling, name, text, key)
        else:
            outer[key] = _value(EvalConfig, key, text, key)
    if extra_body:
        inner["extra_body"] = {**(config.sampling.extra_body or {}), **extra_body}
    if inner:
        outer["sampling"] = replace(config.sampling, **inner)
    return replace(config, **{**outer, **given})


def add_nested(target: dict[str, Any], key: str, text: str) -> None:
    """Set a value by its dotted key.

    Args:
        target: The dict, which is changed.
        key: Names with dots between them: a.b is the key b of the dict a.
        text: The value: JSON, or else itself.

    Raises:
        InvalidInput: If a name before the last has a value of its own.
    """
    *outer, last = key.split(".")
    for name in outer:
        target = target.setdefault(name, {})
        if not isinstance(target, dict):
            raise InvalidInput(f"--set …{key}: {name} is set to a value, not to an object")
    try:
        target[last] = msgspec.json.decode(text)
    except msgspec.DecodeError:
        target[last] = text


def _value(owner: Owner, name: str, text: str, key: str) -> Any:
    kinds = settable(owner)
    if name not in kinds:
        every = [*settable(EvalConfig), *(_INSIDE + n for n in settable(Sampling))]
        near = [n for n in every if n.startswith(key)]  # sampling.temp
        near = near or difflib.get_close_matches(key, every, n=1, cutoff=0.6)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(every)}"
        raise InvalidInput(f"--set {key}: there is no such setting; {hint}")
    kind = kinds[name]
    if text.lower() in ("none", "null") and type(None) in typing.get_args(kind):
        return None
    try:
        if name == "extra_body":
            return msgspec.json.decode(text, type=kind)
        if typing.get_origin(kind) is tuple:
            # A list in JSON can hold what a list with commas cannot: a comma, a line break.
            if text.startswith("["):
                return msgspec.json.decode(text, type=kind)
            return tuple(text.split(",")) if text else ()
        return msgspec.convert(text, kind, strict=False)
    except msgspec.MsgspecError:
        raise InvalidInput(f"--set {key} takes {_in_words(kind)}, got {text!r}") from None


def settable(owner: Owner) -> dict[str, Any]:
    """Field names and types; the endpoint is text here, and sampling is set field by field."""
    hints = typing.get_type_hints(owner)
    kinds = {f.name: hints[f.name] for f in fields(owner) if f.name != "sampling"}
    if "endpoint" in kinds:
        kinds["endpoint"] = str
    return kinds


_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    type(None): "none",
}


def _in_words(kind: Any) -> str:
    if typing.get_origin(kind) is dict:
        return "a JSON object"
    if kind in _WORDS:
        return _WORDS[kind]
    if typing.get_origin(kind) is Literal:
        return " or ".join(typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        return "texts with commas between them, or a JSON list of texts"
    return " or ".join(_in_words(inner) for inner in typing.get_args(kind))


# --- Help ---------------------------------------------------------------------------------------


def help_rows() -> list[tuple[str, str]]:
    """(key, what it means and its default) of every setting."""
    rows = []
    owners: tuple[tuple[Owner, str, Any], ...] = (
        (EvalConfig, "", base_config),
        (Sampling, _INSIDE, base_config.sampling),
    )
    for owner, prefix, defaults in owners:
        texts = field_texts(owner)
        for name in settable(owner):
            default = _as_given(getattr(defaults, name))
            if name == "experiment_name":  # which load_eval_file fills in
                default = "the name of FILE"
            said = [texts.get(name, ""), f"[default: {default}]" if default else ""]
            rows.append((prefix + name, " ".join(filter(None, said))))
    return rows


def _as_given(default: Any) -> str:
    if default is None or isinstance(default, bool):
        return str(default).lower()
    return f"{default:g}" if isinstance(default, float) else str(default or default == 0 or "")


def field_texts(owner: type) -> dict[str, str]:
    """The text under each field of a class, which Python itself does not keep."""
    try:
        definition = ast.parse(inspect.getsource(owner)).body[0]
    except OSError:  # installed without its source
        return {}
    assert isinstance(definition, ast.ClassDef)
    texts = {}
    for statement, following in zip(definition.body, definition.body[1:], strict=False):
        match statement, following:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                texts[name] = " ".join(text.split())
    return texts
