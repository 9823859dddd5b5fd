"""`heldout.race`: several models raced as a plain call, each in a run of its own.

What decides is in `racing.py`; here models get names, and their runs directories.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from heldout._core.aio import CallerThread, run_in_loop_thread
from heldout._core.config import DEFAULT_LEVEL, EvalConfig, base_config, resolve_aliases
from heldout._evals.racing import RaceReport, run_race
from heldout._evals.rollout import EnvironmentFactory, EvalDefinition, PrepareMessages, ScoreFn
from heldout._evals.run import configure_call
from heldout.errors import HeldoutError, InvalidInput
from heldout.models import AnswerFn, Endpoint
from heldout.store.runs import allowed_name, run_directory
from heldout.types import Sample

Model = str | AnswerFn | Endpoint


def race(
    samples: Iterable[Sample] | EvalDefinition,
    score_fn: ScoreFn | None = None,
    *,
    models: Sequence[str] | Mapping[str, Model],
    experiment_name: str | None = None,
    prepare_messages: PrepareMessages | None = None,
    environment_factory: EnvironmentFactory | None = None,
    config: EvalConfig = base_config,
    level: float = DEFAULT_LEVEL,
    keep_power: bool = False,
    cluster: str | None = None,
    max_cost: float | None = None,
    **settings: Any,
) -> RaceReport:
    """Run several models on the same samples until the best is known: the losers stop costing.

    Works in a script, in a thread, and where an event loop is running, as in a notebook.

    Args:
        samples: The samples, or an `EvalDefinition` in place of samples, score function, messages
            and environments.
        score_fn: Scores a trajectory; rewards must lie between 0 and 1.
        models: The models, such as "openai:gpt-4o-mini"; those that are functions or endpoints by
            a name of one's own.
        experiment_name: What the race is called, "run" by default. Each model has a run of its
            own, NAME-MODEL.
        prepare_messages: Makes a sample's opening messages; without it the sample's input does.
        environment_factory: Makes a sample's environment; without it there is one model turn.
        config: Where settings come from that are not passed.
        level: How often a best model may be dropped.
        keep_power: Stop later, and tell nearly as much apart as the full set would.
        cluster: A metadata key: samples that share its value are not independent.
        max_cost: Cost of all models at which the race ends, looked at where they are compared.
        **settings: Fields of `EvalConfig` and `Sampling` by name, as for `run`: `max_samples=500`,
            `resume=True` (to go on with the latest race of that name and these models), …

    Returns:
        Who is left, and how the others were beaten.

    Raises:
        InvalidInput: An argument, a setting or a sample is refused.
        EvalFailed: The run of a model failed; all of them can be resumed.
    """
    call = partial(
        arace,
        samples,
        score_fn,
        models=models,
        experiment_name=experiment_name,
        prepare_messages=prepare_messages,
        environment_factory=environment_factory,
        config=config,
        level=level,
        keep_power=keep_power,
        cluster=cluster,
        max_cost=max_cost,
        **settings,
    )

    async def main(caller_thread: CallerThread) -> RaceReport:
        return await call()

    try:
        report = run_in_loop_thread(main)
    except HeldoutError as problem:
        # Here, as in `run`: raised in a function that both call, its frame would be shown, too.
        raise problem.with_traceback(None)  # noqa: B904
    assert report is not None  # None is for what was cancelled, and Ctrl-C has been raised
    return report


async def arace(
    samples: Iterable[Sample] | EvalDefinition,
    score_fn: ScoreFn | None = None,
    *,
    models: Sequence[str] | Mapping[str, Model],
    experiment_name: str | None = None,
    prepare_messages: PrepareMessages | None = None,
    environment_factory: EnvironmentFactory | None = None,
    config: EvalConfig = base_config,
    level: float = DEFAULT_LEVEL,
    keep_power: bool = False,
    cluster: str | None = None,
    max_cost: float | None = None,
    **settings: Any,
) -> RaceReport:
    """Race models in the running event loop, under asyncio or trio; takes what `race` takes."""
    settings = resolve_aliases(settings, "race")
    if "endpoint" in settings:
        raise InvalidInput("a race has several models: give models=[…], not endpoint")
    config = configure_call(config, experiment_name or "run", settings, function="race")
    definition = EvalDefinition.of(samples, score_fn, prepare_messages, environment_factory)
    with ExitStack() as directories:
        configs = {}
        for name, own in entrants(models, config).items():
            assert own.experiment_name is not None
            path = directories.enter_context(
                run_directory(own.output_dir, own.experiment_name, resume=own.resume)
            )
            run_name = str(path.relative_to(own.output_dir))
            configs[name] = replace(own, experiment_name=run_name)
        return await run_race(
            definition,
            configs,
            level=level,
            keep_power=keep_power,
            cluster=cluster,
            max_cost=max_cost,
        )


def entrants(
    models: Sequence[str] | Mapping[str, Model], config: EvalConfig
) -> dict[str, EvalConfig]:
    """Return how each model of a race is run, by its name in the race.

    Args:
        models: As for `race`.
        config: What they share; its name is the race's.

    Raises:
        InvalidInput: There are fewer than two models, or two whose runs would have one name.
    """
    if not isinstance(models, Mapping):
        if isinstance(models, str) or not all(isinstance(model, str) for model in models):
            raise InvalidInput(
                "models are a list of names such as openai:gpt-4o-mini, or a dict that names "
                f"functions and endpoints; got {models!r:.200}"
            )
        twice = [model for model in models if list(models).count(model) > 1]
        if twice:
            raise InvalidInput(f"{twice[0]} is in the race twice")
        models = {model: model for model in models}
    if len(models) < 2:
        raise InvalidInput("a race is between two models or more")
    configs = {
        name: replace(
            config,
            endpoint=model,
            experiment_name=allowed_name(f"{config.experiment_name}-{name}"),
        )
        for name, model in models.items()
    }
    names = [own.experiment_name for own in configs.values()]
    for name, own in configs.items():
        if names.count(own.experiment_name) > 1:
            raise InvalidInput(
                f"the run of {name} would be called {own.experiment_name}, and that of another "
                "model, too: name them apart, models={'NAME': MODEL, …}"
            )
    return configs
