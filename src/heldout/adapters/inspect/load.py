"""A task of Inspect as a heldout eval.

Its solvers, tools and scorers run as they are, in Inspect's own `eval_async` (session.py); the
policy is called by heldout. What Inspect would make a number of without saying so is an error here
(values.py), and what cannot be honoured is refused before anything runs.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir
from copy import copy
from importlib.metadata import version
from pathlib import Path
from typing import Any

from heldout._core.chat.messages import to_chat_api
from heldout._core.code import import_file
from heldout._core.config import NO_TURN_LIMIT
from heldout._evals.rollout import EvalDefinition
from heldout.adapters.inspect.installed import (
    has_docker,
    list_inspect_downloads,
    list_inspect_tasks,
    owners_of,
)
from heldout.adapters.inspect.metrics import (
    ScorerRules,
    declared_keys,
    describe_others,
    describe_reducers,
    metrics_of,
    rules_of,
    short_name,
)
from heldout.adapters.inspect.published import describe_task
from heldout.adapters.inspect.values import score_outcome
from heldout.adapters.seam import AdaptedEval, Row, TaskAdapter
from heldout.errors import InvalidInput
from heldout.store.fingerprint import describe_callable
from heldout.types import Sample, Score, Trajectory

log = logging.getLogger("heldout")

NEEDS_GRADER = ("model_graded_qa", "model_graded_fact")


def from_inspect(
    task: Any,
    *,
    reward: str | None = None,
    model_roles: Mapping[str, Any] | None = None,
    sandbox: Any = None,
    **parameters: Any,
) -> EvalDefinition:
    """Make an eval of an Inspect task.

    Args:
        task: A `Task`, a function that `@task` decorates, or the name that Inspect has for one:
            "inspect_evals/gsm8k", "evals/arithmetic.py@addition".
        reward: The score that is the reward: SCORER, or SCORER.KEY where its value is a dict. By
            default that of the task's `headline_metric`, else the first scorer's (and the first
            key that its metrics name).
        model_roles: Models that the task's code asks for by role, such as
            {"grader": "openai/gpt-5-mini"}: names, or Inspect's models. A grader that would be the
            policy itself is refused.
        sandbox: Where the task's sandboxes run, instead of where it says. "local" runs what the
            model does on this machine, unprotected.
        **parameters: The task's own.

    Returns:
        The eval. Sampling is heldout's: what a task asks of it is in the outcome's
        `ignored_settings`.

    Raises:
        InvalidInput: There is no such task or parameter, or it cannot be adapted.
    """
    ADAPTER.check()
    from heldout.adapters.inspect.session import InspectSessions, scorer_names

    given, task = task, _find_task(task, parameters)
    roles = {**(task.model_roles or {}), **(model_roles or {})}
    _check_adaptable(task, roles)
    task, rows = _with_sandbox(task, sandbox)
    task = _without_early_stopping(task)
    names = scorer_names(task.scorer)
    reward = _choose_reward(task, names, reward)
    rules = rules_of(task, names)
    _warn_of_differences(task, reward, rules)
    owners = [entry.dist for entry in owners_of(task.registry_name) if entry.dist]
    published = describe_task(given, task, owners, parameters, roles, names, reward)
    made = InspectEval(task, rows, InspectSessions(task, roles), reward)
    made.source = {"task": _fingerprint(task, rows, roles, rules)}
    if published:
        made.source["published"] = published
    return made.definition()


class InspectEval(AdaptedEval):
    """A task, whose samples are run by Inspect and asked of the policy."""

    package = "inspect-ai"
    max_turns = NO_TURN_LIMIT  # the task's own limits are for Inspect to keep
    reads_metadata = True
    source: dict[str, Any]
    """What a resumed run must share; of a published task, what its logs name, too."""

    def __init__(self, task: Any, samples: Sequence[Any], sessions: Any, reward: str) -> None:
        self.name = f"inspect:{task.name}"
        self._rows, self._sessions, self._reward = samples, sessions, reward

    def rows(self) -> Iterator[Row]:
        """Return the task's samples."""
        return map(_to_row, self._rows)

    def environment(self, sample: Sample) -> Any:
        """Make the environment of a sample, which is one of the task's own."""
        from heldout.adapters.inspect.session import InspectEnvironment

        return InspectEnvironment(self.source_of(sample), self._sessions)

    def score(self, trajectory: Trajectory, sample: Sample) -> Score:
        """Return the scores that Inspect's scorers gave."""
        return score_outcome(trajectory, reward=self._reward)

    def identity(self) -> dict[str, Any]:
        """Return the fingerprint of the task."""
        return {"reward": self._reward, **self.source}

    async def end_run(self) -> None:
        """End Inspect's eval, where no other run goes on with it."""
        await self._sessions.end()


# --- Finding the task ---------------------------------------------------------------------------


def _find_task(task: Any, parameters: Mapping[str, Any]) -> Any:
    from inspect_ai import Task
    from inspect_ai.util import registry_create

    if isinstance(task, Task):
        if parameters:
            raise InvalidInput(
                f"a Task is made already and takes no {', '.join(parameters)}; pass the function "
                "that makes it"
            )
        return task
    if isinstance(task, str):
        path, _, name = task.partition("@")
        if path.endswith(".py"):
            with chdir(Path(path).resolve().parent):
                return _make(_task_in_file(Path(path).name, name), parameters)
        try:
            # Without its return annotation, what is registered is returned as it is.
            return _made(registry_create("task", task, **parameters), task)
        except LookupError as problem:
            if type(problem) is not LookupError:  # a KeyError, say, of the task's own code
                raise
            raise InvalidInput(
                f"Inspect has no task {task!r}; `heldout tasks inspect` lists them, and a task in "
                "a file is PATH.py@NAME"
            ) from None
        except TypeError as problem:
            raise InvalidInput(f"{task}: {problem}") from problem
    if callable(task):
        return _make(task, parameters)
    raise InvalidInput(f"from_inspect takes a Task, a @task function or a name, got {task!r:.200}")


def _task_in_file(path: str, name: str) -> Callable[..., Any]:
    module = import_file(Path(path))
    tasks = {
        key: value
        for key, value in vars(module).items()
        if getattr(getattr(value, "__registry_info__", None), "type", None) == "task"
    }
    if not name and len(tasks) == 1:
        return tasks.popitem()[1]  # type: ignore[no-any-return]
    if name not in tasks:
        found = ", ".join(f"{path}@{key}" for key in tasks) or "none"
        raise InvalidInput(f"{path} has no task {name!r}; it has {found}")
    return tasks[name]  # type: ignore[no-any-return]


def _make(function: Callable[..., Any], parameters: Mapping[str, Any]) -> Any:
    name = getattr(function, "__name__", "the task")
    try:
        inspect.signature(function).bind(**parameters)
    except TypeError as problem:
        own = ", ".join(inspect.signature(function).parameters) or "none"
        raise InvalidInput(f"{name}: {problem}; its parameters are {own}") from None
    return _made(function(**parameters), name)


def _made(value: Any, name: str) -> Any:
    from inspect_ai import Task

    if not isinstance(value, Task):
        raise InvalidInput(f"{name} makes a {type(value).__name__}, and not a Task")
    return value


# --- What cannot be an eval ---------------------------------------------------------------------


def _check_adaptable(task: Any, roles: Mapping[str, Any]) -> None:
    refused = {
        "sample_source": "it makes its samples while it runs; an eval has a fixed set",
        "approval": "its tool calls are approved by somebody, which is not supported",
        "review": "its tool results are reviewed by somebody, which is not supported",
        "sentinel": "it has a sentinel, which is not supported",
        "cost_limit": "it has a cost limit, and what heldout's policy costs Inspect does not know",
    }
    for attribute, why in refused.items():
        if getattr(task, attribute, None) is not None:
            raise InvalidInput(f"the Inspect task {task.name} cannot be an eval: {why}")
    if not task.scorer:
        raise InvalidInput(f"the Inspect task {task.name} has no scorer, so there is no reward")
    for scorer in task.scorer:
        name = short_name(scorer)
        arguments = getattr(scorer, "__registry_params__", {})
        role = arguments.get("model_role", "grader")
        if name in NEEDS_GRADER and arguments.get("model") is None and role not in roles:
            raise InvalidInput(
                f"the scorer {name} asks a model to grade, and without one the evaluated model "
                f"grades itself; name it: model_roles={{{role!r}: 'openai/gpt-5-mini'}}"
            )


def _with_sandbox(task: Any, sandbox: Any) -> tuple[Any, list[Any]]:
    """Return the task and its samples with the sandboxes that are asked for, if they can run."""
    from inspect_ai import task_with

    rows = list(task.dataset)
    for number, row in enumerate(rows, 1):
        if row.id is None:
            row.id = number  # as Inspect does
    if sandbox is not None:
        task = task_with(copy(task), sandbox=sandbox)
        rows = [row.model_copy(update={"sandbox": None}) for row in rows]
    kinds = {place.type for place in [task.sandbox, *(row.sandbox for row in rows)] if place}
    for kind in sorted(kinds):
        if why := _why_no_sandbox(kind, asked=sandbox is not None):
            raise InvalidInput(f"the Inspect task {task.name} runs in a sandbox: {why}")
    return task, rows


def _without_early_stopping(task: Any) -> Any:
    """Return the task as one that runs all of its samples.

    Which samples are left out would depend on the answers to others, so that two policies would be
    measured on different ones.
    """
    from inspect_ai import task_with

    if getattr(task, "early_stopping", None) is None:
        return task
    log.warning(
        "%s stops early in Inspect, at samples that the answers decide; heldout runs all of them",
        task.name,
    )
    return task_with(copy(task), early_stopping=None)


def _why_no_sandbox(kind: str, *, asked: bool) -> str | None:
    if kind == "local" and not asked:
        return (
            "'local' is this machine, unprotected from what the model does; ask for it by name: "
            "sandbox='local'"
        )
    if kind == "docker" and not has_docker():
        return "there is no docker that runs here"
    return None


# --- Reward -------------------------------------------------------------------------------------


def _choose_reward(task: Any, names: Sequence[str], reward: str | None) -> str:
    if reward is not None:
        if not any(reward == name or reward.startswith(f"{name}.") for name in names):
            raise InvalidInput(f"reward names a scorer, one of {', '.join(names)}; got {reward!r}")
        return reward
    headline = task.headline_metric
    name = (headline and headline.scorer) or names[0]
    if name not in names:
        raise InvalidInput(
            f"the task's headline metric is of a scorer {name!r}, which it has not; it has "
            f"{', '.join(names)}. Name one: reward="
        )
    key = headline and headline.score
    if key is None:
        keys = declared_keys(metrics_of(task.scorer[names.index(name)]))
        key = next((key for key in keys if "*" not in key), None)
    return name if key is None else f"{name}.{key}"


def _warn_of_differences(task: Any, reward: str, rules: Mapping[str, ScorerRules]) -> None:
    if others := describe_others(task, rules):
        log.warning(
            "%s has the metrics %s over all samples; heldout reports the mean of %s",
            *(task.name, ", ".join(others), reward),
        )
    if reducers := describe_reducers(task):
        log.warning(
            "%s reduces its epochs by %s; heldout reports the mean over all repeats",
            *(task.name, ", ".join(reducers)),
        )
    if (task.epochs or 1) > 1:
        log.warning(
            "%s asks for %d epochs; heldout makes as many repeats as it is told to (repeats=%d, "
            "--epochs %d)",
            *(task.name, task.epochs, task.epochs, task.epochs),
        )


# --- Samples and identity -----------------------------------------------------------------------


def _to_row(row: Any) -> Row:
    from pydantic_core import to_jsonable_python

    from heldout.adapters.inspect.messages import to_heldout_messages

    if isinstance(row.input, str):
        asked: dict[str, Any] = {"question": row.input}
    else:
        messages = to_heldout_messages(row.input)
        asked = {"messages": [to_chat_api(message) for message in messages]}
    if row.choices:
        asked["choices"] = list(row.choices)
    metadata = to_jsonable_python(row.metadata or {}, fallback=repr, inf_nan_mode="strings")
    return Row(asked, row.target, metadata, str(row.id), source=row)


def _fingerprint(
    task: Any,
    rows: Sequence[Any],
    roles: Mapping[str, Any],
    rules: Mapping[str, ScorerRules],
) -> str:
    """Return a fingerprint of everything that decides the scores beside the samples' questions."""
    packages = {"inspect-ai"}
    packages |= {entry.dist.name for entry in owners_of(task.registry_name) if entry.dist}
    setup = task.setup if isinstance(task.setup, list | tuple) else [task.setup]
    own = [rule for each in rules.values() for rule in each.own]
    code = [*setup, task.solver, *task.scorer, task.cleanup, *own]
    limits = [
        *(task.message_limit, task.token_limit, str(task.token_limit_type), task.turn_limit),
        *(task.time_limit, task.working_limit),
    ]
    places = [[row.files, row.setup, str(row.sandbox)] for row in rows if row.files or row.setup]
    parts = [
        {name: version(name) for name in sorted(packages)},
        *(task.name, str(task.version), repr(getattr(task, "__registry_params__", {}))),
        task.config.model_dump(mode="json", exclude_none=True),
        *(limits, str(task.sandbox), {role: str(roles[role]) for role in sorted(roles)}),
        [_describe_code(part) for part in code if part is not None],
        places,
    ]
    content = json.dumps(parts, sort_keys=True, default=repr)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _describe_code(code: Any, depth: int = 0) -> list[Any]:
    """Describe a solver, a scorer or a tool, and those that it was made of."""
    if isinstance(code, Mapping):
        code = list(code.values())
    if isinstance(code, Sequence) and not isinstance(code, str):
        return [part for inner in code for part in _describe_code(inner, depth)]
    if not callable(code) or depth > 4:
        return []
    parts: list[Any] = [describe_callable(code, docstrings=True)]
    for cell in getattr(code, "__closure__", None) or ():
        try:
            held = cell.cell_contents
        except ValueError:  # not filled yet
            continue
        if isinstance(held, list | tuple | dict):  # of solvers, or tools
            parts += _describe_code(held, depth + 1)
    return parts


# --- By name ------------------------------------------------------------------------------------

ADAPTER = TaskAdapter(
    "inspect",
    "inspect-ai",
    ">=0.3.285,<0.4",
    from_inspect,
    list_inspect_tasks,
    list_inspect_downloads,
    why="it is built on calls that older ones lack",
)

__all__ = ["ADAPTER", "from_inspect"]
