"""Evals of `verifiers` as heldout evals, and heldout evals as those of `verifiers`.

    await evaluate(from_verifiers("gsm8k"), config)      # one that is installed, by its id
    await evaluate(from_verifiers(taskset), config)      # verifiers 0.4: a taskset, or an Env
    await evaluate(from_verifiers(vf_env), config)       # verifiers 0.3: an environment

    to_verifiers(samples, score_fn)

verifiers 0.4 replaced the environments and rubrics of 0.3 (`classic*.py`) by tasksets and harnesses
(`v1*.py`). The version that is installed decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any

from heldout._evals.rollout import EnvironmentFactory, EvalDefinition, PrepareMessages, ScoreFn
from heldout.adapters.seam import TaskAdapter
from heldout.types import Sample


def from_verifiers(source: Any, **arguments: Any) -> EvalDefinition:
    """Make an eval of a verifiers taskset or environment.

    Args:
        source: With verifiers 0.4 a `vf.Taskset` or `vf.Env`, with 0.3 a `vf.Environment`; or the
            id of an installed one, with its parameters among the arguments.
        **arguments: Those of `v1.from_v1` (`harness`, `limit`, `metadata`, `allow_code`) with 0.4,
            and of `classic.from_classic` (`split`, `metadata`, `client`, `model`) with 0.3.

    Returns:
        The eval. Its reward is the package's, bit for bit; every other number has weight 0.

    Raises:
        InvalidInput: It cannot be adapted; the message says why.
    """
    return _stack("from")(source, **arguments)  # type: ignore[no-any-return]


def to_verifiers(
    samples: Iterable[Sample] | EvalDefinition,
    score_fn: ScoreFn | None = None,
    *,
    prepare_messages: PrepareMessages | None = None,
    environment_factory: EnvironmentFactory | None = None,
    max_turns: int | None = None,
) -> Any:
    """Make what verifiers trains and evaluates on of a heldout eval.

    Args:
        samples: The samples, or an `EvalDefinition` in place of everything but `max_turns`.
        score_fn: Scores a finished rollout.
        prepare_messages: Makes a sample's opening messages; it cannot be async.
        environment_factory: Makes a sample's environment. Without it rollouts are single-turn.
        max_turns: The largest number of model turns; by default the eval's own limit, or 16.

    Returns:
        With verifiers 0.4 a taskset class and a harness class (`v1_export.to_v1`), with 0.3 a
        `vf.Environment` (`classic_export.to_classic`).

    Raises:
        InvalidInput: It cannot be made one; the message says why.
    """
    export = _stack("to")
    return export(
        samples,
        score_fn,
        prepare_messages=prepare_messages,
        environment_factory=environment_factory,
        max_turns=max_turns,
    )


def installed_ids() -> dict[str, str | None]:
    """Return the ids that are installed, with the reason where one cannot be an eval here."""
    module: Any = import_module("heldout.adapters.verifiers.installed")
    return module.list_v1() if _is_v1() else module.list_classic()  # type: ignore[no-any-return]


def _stack(direction: str) -> Any:
    """Return the function of the stack that is installed."""
    stack, suffix = "v1" if _is_v1() else "classic", "" if direction == "from" else "_export"
    module = import_module(f"heldout.adapters.verifiers.{stack}{suffix}")
    return getattr(module, f"{direction}_{stack}")


def _is_v1() -> bool:
    installed = ADAPTER.check()
    from packaging.version import Version  # which verifiers depends on

    return Version(installed).release >= (0, 4)


ADAPTER = TaskAdapter(
    "verifiers",
    "verifiers",
    ">=0.3,<0.4.1",
    from_verifiers,
    installed_ids,
    why="0.4.1 changes tasks and traces again",
)

__all__ = ["ADAPTER", "from_verifiers", "installed_ids", "to_verifiers"]
