"""The metrics of a task's scorers, with their parameters: which are reported, and which are not.

`accuracy(to_float=…)` and `mean(to_float=…)` make numbers of values by a rule of the task's own: a
rating of 1 to 10 as a share, say. That rule is applied to each answer, where Inspect applies it:
behind the mean over epochs, which has made numbers of letters before. A rule about letters has its
say only where a task turns that mean off. What changes a number in any other way is named in a
warning.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from heldout.adapters.inspect.values import LETTERS, to_number
from heldout.errors import InvalidInput, ScoringFailed, printable_error

MEANS = ("accuracy", "mean")
SPREADS = {"stderr", "std", "var", "bootstrap_stderr", "ci", "count"}
"""Metrics of Inspect's that say how sure a mean is; heldout's summary has its own."""
OWN = "inspect_ai/"
DEFAULT = {"correct": "C", "incorrect": "I", "partial": "P", "noanswer": "N"}
"""What Inspect's `value_to_float` takes for its words, where it is not told otherwise."""
Rule = Callable[[Any], Any]


def metrics_of(scorer: Any) -> Any:
    """Return the metrics of a scorer: a list, or a dict by the keys of its value."""
    return scorer.__registry_info__.metadata.get("metrics", ())


def declared_keys(metrics: Any) -> Iterator[str]:
    """Yield the keys of a value that metrics are declared for."""
    if isinstance(metrics, Mapping):
        yield from metrics
    else:
        for part in metrics:
            if isinstance(part, Mapping):
                yield from part


def name_of(thing: Any) -> str:
    """Return the name of a metric, scorer or reducer; Inspect's own begin with `inspect_ai/`."""
    info = getattr(thing, "__registry_info__", None)
    return str(info.name if info else getattr(thing, "__name__", "?"))


def short_name(thing: Any) -> str:
    """Return its name without its package."""
    return name_of(thing).rpartition("/")[2]


def _by_key(metrics: Any) -> Iterator[tuple[str | None, Any]]:
    """Yield each metric with the key, or pattern of keys, that it is for; None for the value."""
    if isinstance(metrics, Mapping):
        for key, parts in metrics.items():
            for _, metric in _by_key(parts):
                yield key, metric
        return
    for part in metrics:
        if isinstance(part, Mapping | list | tuple):
            yield from _by_key(part)
        else:
            yield None, part


def _is_mean(metric: Any) -> bool:
    return name_of(metric) in {f"{OWN}{name}" for name in MEANS}


class ScorerRules:
    """The rules by which a scorer's means make numbers of its values, where they are its own."""

    def __init__(self, scorer: str, metrics: Any, preferred: str | None, *, reduced: bool) -> None:
        """Find them.

        Args:
            scorer: Its name.
            metrics: Its metrics.
            preferred: The metric that is the headline, if the task names one.
            reduced: Whether the rules are given what epochs were reduced to, a number.

        Raises:
            InvalidInput: A mean has a rule that cannot be found.
        """
        self.scorer, self._reduced = scorer, reduced
        self._rules: dict[str | None, Rule | None] = {}
        self.unused: list[str] = []
        """Means by another rule than the one that is applied."""
        means = [(key, metric) for key, metric in _by_key(metrics) if _is_mean(metric)]
        means.sort(key=lambda pair: short_name(pair[1]) != preferred)  # as they are otherwise
        chosen: dict[str | None, Any] = {}
        for key, metric in means:
            rule = _own_rule(metric, scorer)
            if key not in chosen:
                chosen[key] = metric
                self._rules[key] = rule
            elif not _is_same(rule, self._rules[key]):
                self.unused.append(describe_metric(metric))

    @property
    def own(self) -> list[Rule]:
        """The rules, without Inspect's default."""
        return [rule for rule in self._rules.values() if rule is not None]

    def _find(self, key: str | None) -> Rule | None:
        if key is None or key in self._rules:
            return self._rules.get(key)
        patterns = (name for name in self._rules if name is not None and fnmatchcase(key, name))
        pattern = next(patterns, None)
        return None if pattern is None else self._rules[pattern]

    def read(self, value: Any) -> dict[str, dict[str, Any]]:
        """Return what its own rules make of a score's values, by their names.

        That is a `value`, a number or one of Inspect's letters, or the `problem` why there is none.
        """
        found: dict[str, Any] = {}
        parts: dict[str | None, Any] = {None: value}
        if isinstance(value, Mapping):
            parts |= {str(key): part for key, part in value.items()}
        for key, part in parts.items():
            rule = self._find(key)
            if rule is None or part is None or _is_nan(part):  # unscored: no rule is asked
                continue
            name = self.scorer if key is None else f"{self.scorer}.{key}"
            try:
                given = _as_numbers(part) if self._reduced else part
                found[name] = {"value": _apply(rule, given)}
            except ScoringFailed as problem:
                found[name] = {"problem": str(problem)}
        return found


def _as_numbers(value: Any) -> Any:
    """Return the numbers that Inspect's mean over epochs makes of a value."""
    if isinstance(value, Mapping):
        return {key: None if v is None else _as_numbers(v) for key, v in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_as_numbers(part) for part in value]
    return to_number(value).value


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _apply(rule: Rule, value: Any) -> float | str:
    """Return the number that a rule makes of a value, or the letter that its word stands for.

    Raises:
        ScoringFailed: It makes none. Inspect's own rule would make 0 of it, with a warning.
    """
    words = _words(rule)
    if words is not None:
        for name in ("correct", "partial", "incorrect", "noanswer"):  # as it compares them
            if value == words[name]:
                return DEFAULT[name]
        if isinstance(value, str) and value in LETTERS:
            known = ", ".join(f"{name}={word!r}" for name, word in words.items())
            raise ScoringFailed(f"the score is {value!r}, which value_to_float({known}) lacks")
        return to_number(value).value
    try:
        number = float(rule(value))
    except Exception as problem:  # noqa: BLE001 - the task's own code
        raise ScoringFailed(
            f"to_float of its metric failed for {value!r:.100}: {printable_error(problem)[:300]}"
        ) from None
    if not math.isfinite(number):
        raise ScoringFailed(f"to_float of its metric makes {number} of {value!r:.100}")
    return number


def _own_rule(metric: Any, scorer: str) -> Rule | None:
    """Return the `to_float` of a mean; None for Inspect's default."""
    rule: Rule | None = inspect.getclosurevars(inspect.unwrap(metric)).nonlocals.get("to_float")
    if rule is None:
        if "to_float" in getattr(metric, "__registry_params__", {}):
            raise InvalidInput(
                f"{describe_metric(metric)} of the scorer {scorer} makes numbers of values by a "
                "rule that this version of Inspect does not show; have the scorer return numbers"
            )
        return None
    return None if _words(rule) == DEFAULT else rule


def _words(rule: Rule) -> dict[str, Any] | None:
    """Return what a rule of `value_to_float` takes for which number; None for other rules."""
    if getattr(rule, "__qualname__", "") != "value_to_float.<locals>.to_float":
        return None
    given = inspect.getclosurevars(rule).nonlocals
    return {name: given[name] for name in DEFAULT} if DEFAULT.keys() <= given.keys() else None


def _is_same(one: Rule | None, other: Rule | None) -> bool:
    if one is None or other is None:
        return one is other
    words = _words(one)
    return one is other or (words is not None and words == _words(other))


def describe_metric(metric: Any) -> str:
    """Return a metric as it is called, with the parameters that it was given."""
    given = getattr(metric, "__registry_params__", {})
    return f"{short_name(metric)}({', '.join(f'{name}={value}' for name, value in given.items())})"


def rules_of(task: Any, names: Sequence[str]) -> dict[str, ScorerRules]:
    """Return the rules of a task's scorers, by the names of these."""
    preferred = task.headline_metric and task.headline_metric.metric
    reduced = task.epochs_reducer is None or bool(task.epochs_reducer)
    return {
        name: ScorerRules(name, metrics_of(scorer), preferred, reduced=reduced)
        for name, scorer in zip(names, task.scorer, strict=True)
    }


def describe_others(task: Any, rules: Mapping[str, ScorerRules]) -> list[str]:
    """Name the metrics of a task that are no mean of an answer's numbers, and so not reported."""
    found = [name for each in rules.values() for name in each.unused]
    for scorer in task.scorer:
        for _, metric in _by_key(metrics_of(scorer)):
            own = name_of(metric).removeprefix(OWN)
            clustered = getattr(metric, "__registry_params__", {}).get("cluster")
            if _is_mean(metric) or (own in SPREADS and not clustered):
                continue
            found.append(describe_metric(metric) if clustered else short_name(metric))
    return sorted({*found})


def describe_reducers(task: Any) -> list[str]:
    """Name the ways in which a task reduces its epochs that are no plain mean."""
    found = []
    for reducer in task.epochs_reducer or ():
        given = getattr(reducer, "__registry_params__", {})
        name = short_name(reducer)
        if name not in ("mean", "mean_score") or given:
            found.append(name)
    return found
