"""`heldout agent ENV --policy P`: evaluate an agent over a fixed number of episodes.

Standard output is one line of JSON with stable keys in a stable order. Notes, and what policies and
environments print, go to standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import click

from heldout._core.format import count, number, printable
from heldout._live.isolation import untouched_random_state
from heldout.cli._load import (
    MissingDependency,
    add_working_directory,
    describe_error,
    import_extra,
    load_function,
    load_object,
    one_line,
    user_code,
)
from heldout.cli._options import parse_key_values
from heldout.cli._tables import decide, print_json
from heldout.errors import EvalFailed, HeldoutError, InvalidInput
from heldout.store.journal import storage_error
from heldout.store.run_dir import RunDir
from heldout.vector.evaluation import (
    SUCCESS_WORDS,
    FailedEpisode,
    SuccessFn,
    SuccessWord,
    evaluate_env,
    find_failed_episode,
)
from heldout.vector.report import VectorReport


@click.command("agent")
@click.argument("env")
@click.option(
    "--policy",
    required=True,
    metavar="P",
    help="module:function of a batch of observations, or sb3:PATH of a saved model (sb3:ppo:PATH "
    "names the algorithm). Loading either runs its code.",
)
@click.option(
    "--env-arg",
    "env_args",
    multiple=True,
    metavar="KEY=VALUE",
    help="An argument of ENV, or of gymnasium.make: --env-arg is_slippery=false.",
)
@click.option("--episodes", default=100, show_default=True, help="Exact number of episodes.")
@click.option("--num-envs", default=1, show_default=True, help="Environments stepped in parallel.")
@click.option("--seed", default=0, show_default=True, help="Episode i is seeded by (seed, i).")
@click.option("--max-steps", type=int, help="Truncate longer episodes.")
@click.option(
    "--success",
    metavar="M",
    help="What success is: terminated, is_success (of the info), or module:function (info, "
    "terminated, truncated, ret, steps) -> bool.",
)
@click.option("--vec-normalize", metavar="FILE", help="Statistics saved by VecNormalize, for sb3.")
@click.option(
    "--device",
    default="auto",
    show_default=True,
    help="cpu, cuda, mps …: where sb3 puts the policy; another one has to put itself there.",
)
@click.option(
    "--dump-trajectory", "trajectory", metavar="FILE", help="Write every step as a line of JSON."
)
@click.option("--save", metavar="RUN", help="Write a run directory that other commands read.")
@click.option(
    "--skip-missing",
    is_flag=True,
    help='Where a package or the --device is missing, print {"skipped": …} and exit with 0.',
)
@click.option("--json", "as_json", is_flag=True, hidden=True, help="It always prints JSON.")
def command(
    env: str,
    policy: str,
    env_args: tuple[str, ...],
    seed: int,
    success: str | None,
    vec_normalize: str | None,
    device: str,
    save: str | None,
    skip_missing: bool,
    as_json: bool,
    **settings: Any,
) -> None:
    """Evaluate a policy in ENV. Prints JSON.

    ENV is a Gymnasium id such as CartPole-v1, or module:function or file.py:function of what makes
    an environment, plain or batched.

    Without --success the environment says which episodes succeeded (is_success in the info of the
    last step). Where it does not, success is null, and a saved run is compared by its returns.
    """
    asked: dict[str, Any] = {
        **{"env": env, "policy": policy, "seed": seed, "env_args": None, "success": success},
        **{name: settings[name] for name in ("episodes", "num_envs", "max_steps")},
        **{"vec_normalize": vec_normalize, "device": device},
    }
    try:
        arguments = asked["env_args"] = parse_key_values(env_args, "--env-arg")
        directory = None if save is None else Path(save).absolute()  # a policy may change directory
        if directory is not None:
            _check_writable(directory)
        with redirect_stdout(sys.stderr):
            # Seeded: a policy may draw its weights where its module is imported.
            with untouched_random_state(seed=seed):
                # Modules of environments and of saved models are found here, too.
                add_working_directory()
                _check_device(device)
                policy_fn = _load_policy(policy, device, vec_normalize)
                success_fn = _load_success(success)
                # Last: the modules just imported may register the environment.
                make_env = _find_environment(env, arguments)
            report = evaluate_env(make_env, policy_fn, seed=seed, success=success_fn, **settings)
    except (Exception, SystemExit) as problem:
        if skip_missing and isinstance(problem, MissingDependency):
            print_json(decide("skipped", str(problem), {"skipped": str(problem)}), "agent-skipped")
            return
        failed = find_failed_episode(problem)
        place = _describe_place(asked, failed)
        if isinstance(problem, HeldoutError):
            problem.about = place
        if isinstance(problem, HeldoutError | click.ClickException):
            raise
        text = f"{describe_error(problem)}{_name_episodes(failed)}; there is no number to report"
        failure = EvalFailed(text)
        failure.about = place
        raise failure from problem
    about: dict[str, Any] = {"env": env, "policy": policy}
    if arguments:
        about["env_args"] = arguments
    loss = None
    try:
        if directory is not None:
            report.config["policy"] = policy
            report.save(directory)
    except (HeldoutError, OSError) as problem:  # the numbers are printed first
        loss = (
            "all episodes ran, and the numbers are printed, but not saved: "
            f"{describe_error(problem)}. For a run directory, evaluate again with --save to "
            "another path"
        )
        error = {"kind": "not_saved", "message": loss, "hint": None}
        about["error"] = {**error, **_describe_place(asked, FailedEpisode())}
    print_json(decide(*_conclude(report, loss), {**about, **report.summary}), "agent")
    notes = list(report.notes)
    if success is None and report.summary["success_is"] is None:
        notes.append("nothing says which episodes succeeded, so that is null; --success says it")
    for note in notes:
        click.echo(f"Note: {note}", err=True)
    if loss is not None:
        click.echo(printable(f"Eval failed: {loss}"), err=True)
        raise click.exceptions.Exit(4)


def _name_episodes(failed: FailedEpisode) -> str:
    if failed.episode is not None:
        return f", in episode {failed.episode}"
    several = ", ".join(map(str, failed.in_flight))
    return f", with episodes {several} in flight" if several else ""


def _describe_place(asked: dict[str, Any], failed: FailedEpisode) -> dict[str, Any]:
    """Say what was run, for running it again, and where it failed."""
    return {**asked, "episode": failed.episode, "episodes_in_flight": list(failed.in_flight)}


def _check_writable(path: Path) -> None:
    """Refuse a run directory that cannot be written, before hours are spent on what goes there."""
    if RunDir(path).exists():
        raise InvalidInput(f"{path} already holds a run; save to another path")
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    try:
        # Permissions alone do not tell (root, read-only disks, quotas).
        with TemporaryFile(dir=existing):
            pass
    except OSError as problem:
        raise storage_error(
            path, problem, "; no episode was run. --save to another path"
        ) from problem


def _check_device(device: str) -> None:
    """Refuse a device that is not here.

    Where it is missing, stable-baselines3 takes the CPU, or fails in torch's words.
    """
    kind = device.partition(":")[0]
    if kind not in ("cuda", "mps"):
        return
    torch = import_extra("torch", f"--device {device} needs torch", "sb3")
    available = torch.cuda if kind == "cuda" else torch.backends.mps
    if not available.is_available():
        raise MissingDependency(f"there is no {kind.upper()} device here, and --device is {device}")


def _find_environment(env: str, arguments: dict[str, Any]) -> Callable[[], Any]:
    """Return what makes the environment: a function of a module or file, else Gymnasium's id."""
    module, _, name = env.rpartition(":")
    function = load_object(env, "ENV") if ":" in env else None
    values = [f"{key}={value!r}" for key, value in arguments.items()]
    if function is not None:
        if not callable(function):
            raise InvalidInput(
                f"{env} is a {type(function).__qualname__}, and ENV names a function that makes "
                "an environment at every call"
            )
        call = f"{env}({', '.join(values)})"
    else:
        gymnasium = import_extra("gymnasium", "environments need gymnasium", "gymnasium")
        registered = name if module.endswith(".py") else env
        function = partial(gymnasium.make, registered)
        call = f"gymnasium.make({', '.join([repr(registered), *values])})"
        if module and name.isidentifier():
            call = f"{module} has no function {name!r}, so {call}"
    hint = "" if arguments else " (--env-arg KEY=VALUE gives it arguments)"
    return partial(_make_environment, function, arguments, env, f"{call} has to work{hint}")


def _make_environment(
    function: Callable[..., Any], arguments: dict[str, Any], env: str, subject: str
) -> Any:
    with user_code(subject, module=env.rpartition(":")[0]):
        try:
            return function(**arguments)
        except Exception as problem:
            gymnasium = sys.modules.get("gymnasium")
            if gymnasium and isinstance(problem, gymnasium.error.DependencyNotInstalled):
                raise MissingDependency(
                    f"{env} needs a package that is missing: {one_line(problem)}"
                ) from None
            raise


def _load_success(spec: str | None) -> SuccessFn | SuccessWord | None:
    word = next((word for word in SUCCESS_WORDS if word == spec), None)
    if spec is None or word is not None:
        return word
    if ":" not in spec:
        words = ", ".join(SUCCESS_WORDS)
        raise InvalidInput(f"--success must be {words} or module:function, got {spec!r}")
    return load_function(spec, "--success")


def _load_policy(spec: str, device: str, vec_normalize: str | None) -> Callable[[Any], Any]:
    kind, _, path = spec.partition(":")
    if kind != "sb3":
        if vec_normalize is not None or device != "auto":
            option = "--device" if vec_normalize is None else "--vec-normalize"
            raise InvalidInput(
                f"{option} is for policies of stable-baselines3 (sb3:PATH); a function of your own "
                "chooses its device, and normalizes, itself"
            )
        return load_function(spec, "--policy")
    need = "sb3: needs stable-baselines3"
    import_extra("torch", need, "sb3")
    integration = import_extra("heldout.integrations.stable_baselines3", need, "sb3")
    policy: Callable[[Any], Any] = integration.load_policy(
        path, device=device, vec_normalize=vec_normalize
    )
    return policy


def _conclude(report: VectorReport, loss: str | None) -> tuple[str, str]:
    """Return whether the episodes were saved where that was asked for, and their numbers."""
    summary = report.summary
    text = f"{count(summary['episodes'], 'episode')}: mean return {number(summary['mean_return'])}"
    if summary["success_rate"] is not None:
        text += f", success rate {number(summary['success_rate'])}"
    return ("complete", f"{text}.") if loss is None else ("not_saved", f"{text}; not saved.")
