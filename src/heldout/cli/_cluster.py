"""Options of `heldout run` for other machines: a cluster, a remote job, another GPU, a copy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from heldout._core.format import printable
from heldout.cli._options import Command, parse_key_values
from heldout.errors import EvalFailed, InvalidInput
from heldout.store.remote import check_target, copy_run

if TYPE_CHECKING:
    from heldout.cluster import RayExecutor

OPTIONS = (
    click.option(
        "--on",
        metavar="ADDRESS",
        help="Run items on a Ray cluster: HOST:PORT, ray://HOST:PORT, auto or local "
        "(docs/cluster.md).",
    ),
    click.option("--workers", type=int, metavar="N", help="With --on: how many workers."),
    click.option(
        "--gpus-per-worker", type=float, metavar="G", help="With --on: GPUs of each worker."
    ),
    click.option(
        "--cpus-per-worker", type=float, metavar="C", help="With --on: CPUs of each worker."
    ),
    click.option(
        "--resources",
        multiple=True,
        metavar="NAME=N",
        help="With --on: N of a custom Ray resource for each worker.",
    ),
    click.option(
        "--remote",
        metavar="ADDRESS",
        help="Run this command as a job of a Ray cluster, http://HOST:8265, and fetch the run.",
    ),
    click.option(
        "--gpu-id",
        metavar="ID",
        help="A GPU of this machine: 0, 1 … With --remote: a node, an accelerator type, or any.",
    ),
    click.option(
        "--working-dir",
        metavar="FOLDER",
        type=click.Path(exists=True, file_okay=False),
        help="With --remote: the folder that is sent and run in; by default FILE's project "
        "(pyproject.toml, .git), else its folder.",
    ),
    click.option(
        "--copy-to", metavar="URL", help="Copy the run there at the end: s3://…, gs://…, a folder."
    ),
)


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Where to run, as given on the command line."""

    on: str | None
    workers: int | None
    gpus_per_worker: float | None
    cpus_per_worker: float | None
    resources: tuple[str, ...]
    remote: str | None = None
    gpu_id: str | None = None
    working_dir: str | None = None
    copy_to: str | None = None

    @property
    def executor(self) -> RayExecutor | None:
        """What runs the items; None for this process."""
        if self.on is None:
            return None
        from heldout.cluster import RayExecutor

        cpus = 1.0 if self.cpus_per_worker is None else self.cpus_per_worker
        resources = parse_key_values(self.resources, "--resources")
        for name, amount in resources.items():
            if not isinstance(amount, int | float):
                raise InvalidInput(f"--resources takes NAME=N, got {name}={amount}")
        return RayExecutor(self.on, self.workers, self.gpus_per_worker, cpus, resources)

    def check(self) -> None:
        """Refuse options that do not go together, and choose a GPU of this machine."""
        workers = (self.workers, self.gpus_per_worker, self.cpus_per_worker, self.resources or None)
        if self.on is None and any(value is not None for value in workers):
            raise click.UsageError(
                "--workers, --gpus-per-worker, --cpus-per-worker and --resources go with --on, "
                "which names the cluster"
            )
        if self.on is not None and (self.remote is not None or self.gpu_id is not None):
            other = "--remote" if self.remote is not None else "--gpu-id"
            raise click.UsageError(f"--on runs items on a cluster, {other} the whole command")
        if self.working_dir is not None and self.remote is None:
            raise click.UsageError("--working-dir goes with --remote, which sends it")
        if self.gpu_id is not None and self.remote is None:
            from heldout.cluster.remote import choose_local_gpu

            if not self.gpu_id.isdigit():
                raise click.UsageError(
                    "--gpu-id is the number of a GPU of this machine; with --remote it names one "
                    "of a cluster"
                )
            choose_local_gpu(int(self.gpu_id))
        if self.copy_to is not None:
            if self.copy_to.startswith("memory:"):
                raise InvalidInput(
                    f"--copy-to {self.copy_to}: what is in memory ends with this process; name a "
                    "folder, s3://… or gs://…"
                )
            check_target(self.copy_to)

    def copy(self, run_dir: Path | None) -> None:
        """Copy a finished run to `copy_to`, if given."""
        if self.copy_to is not None and run_dir is not None:
            copy_run(run_dir, self.copy_to)
            click.echo(printable(f"Copied to {self.copy_to}"), err=True)


def cluster_options(command: Command) -> Command:
    """Add the options, which are the fields of `ClusterOptions`."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def executor_options(command: Command) -> Command:
    """Add only the options that say on which cluster items run."""
    for option in reversed(OPTIONS[:5]):
        command = option(command)
    return command


def run_as_job(cluster: ClusterOptions, file: Path) -> None:
    """Run this command on a cluster instead, and end with its exit code."""
    from heldout.cluster.packaging import find_project
    from heldout.cluster.remote import submit

    if not file.is_file():
        raise InvalidInput(f"{file} is no file, and only files are run as a job")
    path, printed = file.parent.resolve() / file.name, list[str]()
    folder = Path(cluster.working_dir).resolve() if cluster.working_dir else find_project(path)
    if not path.is_relative_to(folder):
        raise InvalidInput(f"{file} is not in --working-dir, {folder}")
    context, inside = click.get_current_context(), path.relative_to(folder).as_posix()
    command = ["python", "-m", "heldout", "run", inside, *_given_options(context, folder)]
    code = submit(command, folder, cluster.remote, gpu_id=cluster.gpu_id, print_json=printed.append)
    if code == 130:
        raise click.exceptions.Abort
    if context.params["as_json"] and not any(printed):
        raise EvalFailed(f"the job ended with exit code {code} and printed no JSON")
    click.echo("".join(printed), nl=False)
    raise click.exceptions.Exit(code)


def _given_options(context: click.Context, folder: Path) -> list[str]:
    """Return the options given on the command line, without those that concern this machine.

    Paths of files are those in the folder that is sent.
    """
    words: list[str] = []
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        own = parameter.name in ("files", "remote", "gpu_id", "working_dir", "copy_to")
        if own or source is not click.core.ParameterSource.COMMANDLINE:
            continue
        value = context.params[parameter.name or ""]
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, Path) and item.is_file():
                if not item.resolve().is_relative_to(folder):
                    raise InvalidInput(
                        f"{parameter.opts[-1]} {item} is not in {folder}, which is the folder that "
                        "is sent; --working-dir names another"
                    )
                item = item.resolve().relative_to(folder)
            words += [parameter.opts[0]] if item is True else [parameter.opts[0], str(item)]
    return words
