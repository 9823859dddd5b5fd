"""`heldout.run`: an eval as a plain call, for scripts and notebooks.

The engine runs in an event loop in a thread of its own, so that a notebook's running loop is no
hindrance. Ctrl-C ends it as it ends `heldout run`: what is finished stays, and can be resumed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

from heldout._core.aio import CallerThread, run_in_loop_thread
from heldout._core.checks import refuse_unknown
from heldout._core.config import SAMPLING_FIELDS, EvalConfig, base_config, resolve_aliases
from heldout._evals.engine import Executor, evaluate
from heldout._evals.rollout import EnvironmentFactory, EvalDefinition, PrepareMessages, ScoreFn
from heldout.errors import HeldoutError
from heldout.models import AnswerFn, Endpoint
from heldout.store.report import EvalReport
from heldout.store.runs import run_directory
from heldout.types import Sample

_SAMPLING = {field.name for field in SAMPLING_FIELDS}
_SETTINGS = {field.name for field in fields(EvalConfig)} - {"experiment_name"}
_OTHER_NAMES = {"max_connections": "max_concurrent", "scorer": "score_fn"}
"""What other tools call settings."""


def run(
    samples: Iterable[Sample] | EvalDefinition,
    score_fn: ScoreFn | None = None,
    *,
    endpoint: str | AnswerFn | Endpoint | None = None,
    experiment_name: str | None = None,
    prepare_messages: PrepareMessages | None = None,
    environment_factory: EnvironmentFactory | None = None,
    config: EvalConfig = base_config,
    executor: Executor | None = None,
    **settings: Any,
) -> EvalReport:
    """Run every sample and score what came of it: `evaluate` as a plain call.

    Works in a script, in a thread, and where an event loop is running, as in a notebook.

    Args:
        samples: The samples, or an `EvalDefinition` in place of samples, score function, messages
            and environments.
        score_fn: Scores a trajectory: `score_fn(trajectory, sample)` returns a number, a bool or a
            `Score`.
        endpoint: A model such as "openai:gpt-4o-mini", or a function of the messages; the config's
            by default.
        experiment_name: What the run is called, "run" by default. Every call makes a run directory
            of its own under it, `outputs/evals/NAME/TIME`; `EvalReport.load(NAME)` loads the
            latest.
        prepare_messages: Makes a sample's opening messages; without it the sample's input does.
        environment_factory: Makes a sample's environment; without it there is one model turn.
        config: Where settings come from that are not passed.
        executor: Runs the items elsewhere, as `heldout.cluster.RayExecutor` does.
        **settings: Fields of `EvalConfig` and `Sampling` by name: `max_concurrent=32`,
            `max_tokens=64`, `resume=True` (to go on with the latest run of that name, if there is
            one), …

    Raises:
        InvalidInput: An argument, a setting or a sample is refused.
        RunDirectoryError: The run directory cannot be used.
        SystemicFailure: There is no honest number to report: every item errored, or more than
            `max_error_rate`.
        ItemFailed: An item errored under `on_error="raise"`.
    """
    named = {"endpoint": endpoint, "experiment_name": experiment_name}
    given = {name: value for name, value in named.items() if value is not None}
    settings = resolve_aliases({**given, **settings}, "run")
    if settings.get("endpoint", config) is None:
        del settings["endpoint"]
    experiment_name = settings.pop("experiment_name", None) or "run"
    config = configure_call(config, experiment_name, settings, function="run")
    definition = EvalDefinition.of(samples, score_fn, prepare_messages, environment_factory)
    with run_directory(config.output_dir, experiment_name, resume=config.resume) as path:
        run_name = str(path.relative_to(config.output_dir))

        async def main(caller_thread: CallerThread) -> EvalReport:
            run_config = replace(config, experiment_name=run_name)
            return await evaluate(definition, run_config, executor=executor)

        try:
            report = run_in_loop_thread(main)
        except HeldoutError as problem:
            # Its message says what to do; forty lines of the engine's frames would only hide it.
            raise problem.with_traceback(None)  # noqa: B904
    assert report is not None  # None is for what was cancelled, and Ctrl-C has been raised
    return report


def configure_call(
    config: EvalConfig, experiment_name: str, settings: dict[str, Any], *, function: str
) -> EvalConfig:
    """Apply settings by their plain names, all at once: some are valid only together.

    Args:
        config: Where settings come from that are not passed.
        experiment_name: What the run is called.
        settings: By their names in Python.
        function: What was called, for a message.

    Raises:
        InvalidInput: There is no such setting, or a value is refused.
    """
    for key in settings:
        if key not in _SETTINGS | _SAMPLING:
            known = sorted(_SETTINGS | _SAMPLING)
            refuse_unknown(key, known, function=function, other_names=_OTHER_NAMES)
    sampling = {key: settings.pop(key) for key in [*settings] if key in _SAMPLING}
    if sampling:
        settings["sampling"] = settings.get("sampling", config.sampling).having(**sampling)
    return replace(config, experiment_name=experiment_name, **settings)
