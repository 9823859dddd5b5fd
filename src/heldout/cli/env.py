"""`heldout env ENV --policy P`: play exactly so many episodes and report on all of them.

Standard output is one line of JSON with stable keys in a stable order; what is for people goes to
standard error.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from heldout.errors import EvalFailed, HeldoutError, InvalidInput


class Missing(EvalFailed):
    """A package or a device that the evaluation needs is not here."""


@click.command("env")
@click.argument("env")
@click.option(
    "--policy",
    required=True,
    metavar="P",
    help="module:function of a batch of observations, or sb3:PATH of a saved model (sb3:ppo:PATH "
    "names the algorithm). Loading either runs its code.",
)
@click.option("--episodes", default=100, show_default=True, help="Episodes to play, exactly.")
@click.option("--num-envs", default=1, show_default=True, help="Environments side by side.")
@click.option("--seed", default=0, show_default=True, help="Episode i is seeded by (seed, i).")
@click.option("--max-steps", type=int, help="Truncate longer episodes.")
@click.option(
    "--success",
    metavar="M",
    help="module:function (info, terminated, truncated, ret, steps) -> bool that says what "
    "success is.",
)
@click.option("--vec-normalize", metavar="FILE", help="Statistics saved by VecNormalize, for sb3.")
@click.option("--device", default="auto", show_default=True, help="For sb3: cpu, cuda, cuda:1 …")
@click.option("--dump-trajectory", metavar="FILE", help="Write every step as a line of JSON.")
@click.option("--save", metavar="RUN", help="Write a run directory that the commands read.")
@click.option(
    "--skip-missing",
    is_flag=True,
    help='Where a package or device is missing, print {"skipped": …} and exit with 0.',
)
def command(
    env: str,
    policy: str,
    episodes: int,
    num_envs: int,
    seed: int,
    max_steps: int | None,
    success: str | None,
    vec_normalize: str | None,
    device: str,
    dump_trajectory: str | None,
    save: str | None,
    skip_missing: bool,
) -> None:
    """Play episodes of ENV, a Gymnasium id such as CartPole-v1, and print what came of them.

    A policy that terminates an episode may have failed it, as in CartPole: --success decides.
    """
    from heldout.cli.render import print_json
    from heldout.store.rundir import RunDir

    if save is not None and RunDir(Path(save)).exists():
        raise InvalidInput(f"{save} already holds a run; save to another path")
    try:
        make_env = _maker(env)
        policy_fn = _policy(policy, device, vec_normalize)
    except Missing as missing:
        if not skip_missing:
            raise
        print_json({"skipped": str(missing)})
        return
    from heldout.vector import evaluate_env

    succeeded = None if success is None else _imported(success, "--success")
    try:
        report = evaluate_env(
            make_env,
            policy_fn,
            episodes,
            num_envs=num_envs,
            seed=seed,
            max_steps=max_steps,
            success=succeeded,
            trajectory=dump_trajectory,
        )
    except HeldoutError:
        raise
    except Exception as problem:
        last = traceback.extract_tb(problem.__traceback__)[-1]
        raise EvalFailed(
            f"{type(problem).__name__}: {problem} ({Path(last.filename).name}, line "
            f"{last.lineno}); there is no number to report"
        ) from problem
    if save is not None:
        report.save(save)
    print_json({"env": env, "policy": policy, **report.summary})
    for note in report.notes:
        click.echo(f"Note: {note}", err=True)


def _maker(env: str) -> Callable[[], Any]:
    try:
        import gymnasium
    except ImportError as missing:
        raise Missing(
            f"environments need gymnasium ({missing.name} is missing): "
            "pip install 'heldout[gymnasium]'"
        ) from None
    try:
        gymnasium.spec(env)
        gymnasium.make(env).close()
    except gymnasium.error.DependencyNotInstalled as missing:
        raise Missing(f"{env} needs a package that is missing: {missing}") from None
    except ImportError as missing:
        raise Missing(f"{env} needs {missing.name}, which is missing") from None
    except gymnasium.error.Error as problem:
        raise InvalidInput(f"there is no environment {env!r}: {problem}") from None
    return partial(gymnasium.make, env)


def _policy(given: str, device: str, vec_normalize: str | None) -> Callable[[Any], Any]:
    kind, _, rest = given.partition(":")
    if kind != "sb3":
        if vec_normalize is not None:
            raise InvalidInput("--vec-normalize is for policies of stable-baselines3 (sb3:PATH)")
        return _imported(given, "--policy")
    try:
        import torch
        from stable_baselines3.common.base_class import BaseAlgorithm  # noqa: F401
    except ImportError as missing:
        raise Missing(
            f"sb3: needs stable-baselines3 ({missing.name} is missing): pip install 'heldout[sb3]'"
        ) from None
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise Missing(f"there is no CUDA device here, and --device is {device}")
    from heldout.integrations.stable_baselines3 import load_policy

    return load_policy(rest, device=device, vec_normalize=vec_normalize)


def _imported(given: str, option: str) -> Callable[..., Any]:
    """`module:function`, modules of the working directory included."""
    module, colon, name = given.partition(":")
    if not (module and colon and name):
        raise InvalidInput(f"{option} is module:function, got {given!r}")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = importlib.import_module(module)
    except ImportError as problem:
        if problem.name != module.partition(".")[0] and problem.name != module:
            raise Missing(f"{option}: {module} needs {problem.name}, which is missing") from None
        raise InvalidInput(
            f"{option}: there is no module {module!r} here or among the installed packages"
        ) from None
    except Exception as problem:
        raise InvalidInput(
            f"{option}: {module} could not be loaded: {type(problem).__name__}: {problem}"
        ) from problem
    function = found
    for part in name.split("."):
        function = getattr(function, part, None)  # type: ignore[assignment]
    if not callable(function):
        raise InvalidInput(f"{option}: {module} has no function {name!r}")
    return function
