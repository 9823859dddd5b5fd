"""`heldout env ENV --policy P`: play exactly so many episodes and report on all of them.

Standard output is one line of JSON with stable keys in a stable order; what is for people goes to
standard error, and so does what policies and environments print.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

import click

from heldout.cli.imported import (
    Missing,
    blame,
    imported,
    look_here_too,
    not_found,
    one_line,
    package,
)
from heldout.errors import EvalFailed, HeldoutError, InvalidInput

if TYPE_CHECKING:
    from heldout.vector import VectorReport


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
@click.option("--device", default="auto", show_default=True, help="For sb3: cpu, cuda, mps …")
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
    from heldout.isolation import untouched_random_state

    with _place_for(save) as target:
        try:
            # What others print must not come between the reader and the one line of JSON.
            with redirect_stdout(sys.stderr):
                # Seeded: a policy may draw its weights where its module is imported.
                with untouched_random_state(seed=seed):
                    make_env, policy_fn, succeeded = _loaded(
                        env, policy, success, device, vec_normalize
                    )
                report = _played(
                    make_env,
                    policy_fn,
                    episodes,
                    num_envs=num_envs,
                    seed=seed,
                    max_steps=max_steps,
                    success=succeeded,
                    trajectory=dump_trajectory,
                )
        except Missing as missing:
            if not skip_missing:
                raise
            print_json({"skipped": str(missing)})
            return
        except SystemExit as left:
            # Let through, it would end this process with a code of its own: 0, as if all were well.
            raise EvalFailed(
                f"the policy or the environment left the program: {blame(left)}; there is no "
                "number to report. Take that exit out, or let only __main__ reach it"
            ) from left
        try:
            print_json({"env": env, "policy": policy, **report.summary})
            for note in report.notes:
                click.echo(f"Note: {note}", err=True)
        finally:  # where nobody reads on (a closed pipe), too
            if target is not None:
                _save(report, target)


@contextmanager
def _place_for(save: str | None) -> Iterator[Path | None]:
    """The run directory to save to, made and tried before hours are spent on what goes there."""
    if save is None:
        yield None
        return
    from heldout.store.journal import storage_error
    from heldout.store.run_dir import RunDir

    path = Path(save).absolute()  # a policy may change the working directory
    made: list[Path] = []
    try:
        try:
            if RunDir(path).exists():
                raise InvalidInput(f"{save} already holds a run; save to another path")
            made += [folder for folder in (path, *path.parents) if not folder.exists()]
            path.mkdir(parents=True, exist_ok=True)
            # By writing: permissions alone do not tell (root, read-only disks, quotas).
            with TemporaryFile(dir=path):
                pass
        except OSError as problem:
            raise storage_error(
                path, problem, "; nothing was played. --save to another path"
            ) from problem
        yield path
    finally:
        for folder in made:
            with suppress(OSError):  # something was saved there, or it was never made
                folder.rmdir()


def _save(report: VectorReport, path: Path) -> None:
    try:
        report.save(path)
    except Exception as problem:
        raise EvalFailed(
            f"all episodes were played, and the numbers printed, but not saved: {blame(problem)}. "
            "Keep what was printed; for a run directory, evaluate again with --save to another path"
        ) from problem


def _loaded(
    env: str, policy: str, success: str | None, device: str, vec_normalize: str | None
) -> tuple[Callable[[], Any], Callable[[Any], Any], Callable[..., Any] | None]:
    """What makes the environment, the policy, and what success is."""
    gymnasium = package("gymnasium", "environments need gymnasium", "gymnasium")
    # For the modules of environments and of saved models as much as for those named here.
    look_here_too()
    policy_fn = _policy(policy, device, vec_normalize)
    succeeded = None if success is None else imported(success, "--success")
    # Last: the modules just imported may be what registers the environment.
    return _maker(gymnasium, env), policy_fn, succeeded


def _played(
    make_env: Callable[[], Any], policy_fn: Callable[[Any], Any], episodes: int, **options: Any
) -> VectorReport:
    from heldout.vector import evaluate_env

    try:
        return evaluate_env(make_env, policy_fn, episodes, **options)
    except HeldoutError:
        raise
    except Exception as problem:
        raise EvalFailed(f"{blame(problem)}; there is no number to report") from problem


def _maker(gymnasium: Any, env: str) -> Callable[[], Any]:
    try:
        gymnasium.make(env).close()
    except HeldoutError:
        raise
    except ModuleNotFoundError as problem:
        raise not_found(problem, env.rpartition(":")[0], env) from None
    except gymnasium.error.UnregisteredEnv as problem:
        raise InvalidInput(
            f"there is no environment {env!r}: {one_line(problem)}. One of your own is "
            "module:ID, of the module that registers it"
        ) from None
    except Exception as problem:
        why: BaseException = problem
        if isinstance(problem, gymnasium.error.DependencyNotInstalled):
            # Environments say so of every ImportError, of packages that are there and broken too.
            why = problem.__cause__ or problem.__context__ or problem
            if not isinstance(why, ImportError) or isinstance(why, ModuleNotFoundError):
                raise Missing(
                    f"{env} needs a package that is missing: {one_line(problem)}"
                ) from None
        raise InvalidInput(
            f"the environment {env!r} could not be made: {blame(why)}; "
            f"gymnasium.make({env!r}) has to work without arguments"
        ) from problem
    return partial(gymnasium.make, env)


def _policy(given: str, device: str, vec_normalize: str | None) -> Callable[[Any], Any]:
    kind, _, rest = given.partition(":")
    if kind != "sb3":
        if vec_normalize is not None:
            raise InvalidInput("--vec-normalize is for policies of stable-baselines3 (sb3:PATH)")
        if device != "auto":
            raise InvalidInput(
                "--device is for policies of stable-baselines3 (sb3:PATH); a function of your own "
                f"chooses its device itself, so leave out --device {device}"
            )
        return imported(given, "--policy")
    torch = package("torch", "sb3: needs stable-baselines3", "sb3")
    # Asked for what is not there, stable-baselines3 takes the CPU, or fails with torch's words.
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise Missing(f"there is no CUDA device here, and --device is {device}")
    if device.startswith("mps") and not torch.backends.mps.is_available():
        raise Missing(f"there is no MPS device here, and --device is {device}")
    ours = package("heldout.integrations.stable_baselines3", "sb3: needs stable-baselines3", "sb3")
    loaded: Callable[[Any], Any] = ours.load_policy(
        rest, device=device, vec_normalize=vec_normalize
    )
    return loaded
