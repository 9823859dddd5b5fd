"""run_remote: a script as a Ray job on another machine, and its run directories back home.

    if args.remote or args.gpu_id:
        run_remote(__file__, address=args.remote, gpu_id=args.gpu_id)

Everything goes through Ray's job API, which is what a cluster shows to the outside: the port of its
dashboard is all that has to be reachable.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import os
import secrets
import shlex
import shutil
import socket
import sys
import tempfile
import time
import urllib.parse
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from heldout.cluster._ray import PROBE_SECONDS, find_token
from heldout.cluster.job import CONTENT, END, find_runs, list_run
from heldout.cluster.travel import zip_folder
from heldout.errors import EvalFailed, HeldoutError, InvalidInput
from heldout.store.run_dir import RunDir

log = logging.getLogger("heldout")

INSIDE_JOB = "HELDOUT_REMOTE_JOB"
"""Set in a job, in which run_remote does nothing."""
JOB = "heldout.cluster.job"
DASHBOARD = "http://127.0.0.1:8265"
NODE_LABEL = "ray.io/node-id"
STOP_SECONDS = 30.0
START_SECONDS = 60.0
POLL_SECONDS = 0.5
RETRIES = 5


def run_remote(
    script_path: str | Path,
    *,
    address: str | None = None,
    gpu_id: str | None = None,
    keep_alive: bool = False,
    pip: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    arguments: Sequence[str] | None = None,
) -> None:
    """Run this script on a cluster instead, and end with its exit code.

    The script is submitted with its folder, and its output is shown. On Ctrl-C it is stopped. Its
    run directories come home however it ends, below the current directory. On the cluster, where
    the script calls this once more, it does nothing.

    Args:
        script_path: The script: `__file__`.
        address: The cluster's dashboard, http://HOST:8265; by default RAY_API_SERVER_ADDRESS, or
            that on this machine.
        gpu_id: A node (its name, address or id) or an accelerator type of the cluster whose GPU to
            use, or "any". A number, where no address is given, is a GPU of this machine: the
            script goes on here, with that GPU.
        keep_alive: Leave the job running on Ctrl-C.
        pip: Packages to install for the script.
        environment: Environment variables of the script. Ray shows them in its dashboard.
        arguments: The script's arguments; by default those of this process.

    Raises:
        SystemExit: With the script's exit code, once it has ended.
        InvalidInput: The script is no file, there is no cluster at the address, or no such GPU.
    """
    script = Path(script_path)
    if not script.is_file():
        raise InvalidInput(f"the script to run remotely is a file, and {script} is none")
    if INSIDE_JOB in os.environ:
        return
    if gpu_id is not None and gpu_id.isdigit() and address is None and not default_address():
        choose_local_gpu(int(gpu_id))
        return
    command = ["python", script.name, *(sys.argv[1:] if arguments is None else arguments)]
    code = submit(
        command,
        script.parent,
        address,
        gpu_id=gpu_id,
        keep_alive=keep_alive,
        pip=pip,
        environment=environment,
    )
    raise SystemExit(code)


def default_address() -> str | None:
    """Return the address of a dashboard that the environment names."""
    own = os.environ.get("RAY_API_SERVER_ADDRESS") or os.environ.get("RAY_ADDRESS", "")
    return own if own.startswith("http") else None


def choose_local_gpu(number: int) -> None:
    """Have this process use one GPU of this machine, for `hf:` endpoints and whatever else.

    Args:
        number: Which, from 0.

    Raises:
        InvalidInput: There is no such GPU, or another one is in use already.
    """
    try:
        import torch
    except ImportError:
        raise InvalidInput("choosing a GPU needs torch: pip install 'heldout[local]'") from None
    count = torch.cuda.device_count()
    if number >= count:
        raise InvalidInput(
            f"there is no GPU {number}: this machine has {count or 'none'}"
            + (f", 0 to {count - 1}" if count else "")
        )
    if torch.cuda.is_initialized():
        raise InvalidInput(f"this process uses a GPU already, so GPU {number} is chosen too late")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[number] if visible else str(number)


def submit(
    command: Sequence[str],
    folder: Path,
    address: str | None = None,
    *,
    gpu_id: str | None = None,
    keep_alive: bool = False,
    pip: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    resumes: bool | None = None,
) -> int:
    """Run a command on a cluster, in a copy of a folder, and bring its run directories home.

    Args:
        command: The command.
        folder: What travels; the command is run in it.
        address: The cluster's dashboard.
        gpu_id: Which GPU; see `run_remote`.
        keep_alive: Leave the job running on Ctrl-C.
        pip: Packages to install for it.
        environment: Environment variables of it.
        resumes: Whether unfinished runs below the current directory travel, too; by default where
            `--resume` is one of the arguments.

    Returns:
        Its exit code; 130 where it was stopped by Ctrl-C; 1 where it was 0 and the run directories
        could not be brought home.

    Raises:
        InvalidInput: There is no cluster at the address, or no such GPU.
        EvalFailed: The cluster refuses the job.
    """
    client = _connect(address or default_address() or DASHBOARD)
    where = _find_gpu(client, gpu_id)
    name = f"heldout-{secrets.token_hex(6)}"
    runtime_env: dict[str, Any] = {"env_vars": {**(environment or {}), INSIDE_JOB: "1"}}
    if pip:
        runtime_env["pip"] = list(pip)
    entry = ["python", "-u", "-m", JOB, "run", name, "--", *command]
    with tempfile.TemporaryDirectory(prefix="heldout-") as temporary:
        archive = Path(temporary, "folder.zip")
        archive.write_bytes(zip_folder(folder))
        if "--resume" in command if resumes is None else resumes:
            _add_unfinished(archive)
        runtime_env["working_dir"] = str(archive)
        _submit(client, entry, submission_id=name, runtime_env=runtime_env, **where)
    try:
        asyncio.run(_show_output(client, name))
        code = _exit_code(client, name)
    except KeyboardInterrupt:
        if keep_alive:
            print(f"The job goes on as {name}: ray job logs --follow {name}", file=sys.stderr)  # noqa: T201
            return 130
        client.stop_job(name)
        _wait(client, name, STOP_SECONDS)
        code = 130
    try:
        _bring_home(client, name)
    except EvalFailed as problem:
        print(f"Error: {problem}", file=sys.stderr)  # noqa: T201
        return code or 1
    return code


# --- The cluster --------------------------------------------------------------------------------


def _connect(address: str) -> Any:
    try:
        from ray.exceptions import AuthenticationError
        from ray.job_submission import JobSubmissionClient
    except ImportError as missing:
        raise InvalidInput(
            f"running a script remotely needs Ray ({missing.name} is missing): "
            "pip install 'heldout[ray]'"
        ) from None
    url = address if "://" in address else f"http://{address}"
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidInput(
            f"a script is run remotely through the cluster's dashboard, http://HOST:8265, "
            f"got {address!r}"
        )
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname, port), PROBE_SECONDS).close()
        with _without_ray_address():
            client = JobSubmissionClient(url, headers=_auth_headers())
    except AuthenticationError as problem:
        raise InvalidInput(f"{url} refuses this user: {' '.join(str(problem).split())}") from None
    except (OSError, RuntimeError) as problem:
        reason = " ".join(str(problem).split())
        raise InvalidInput(f"there is no Ray dashboard at {url}: {reason[:300]}") from None
    for module in ("dashboard_sdk", "job.sdk"):  # which tell of each upload and connection
        logging.getLogger(f"ray.dashboard.modules.{module}").setLevel(logging.WARNING)
    return client


def _auth_headers() -> dict[str, str] | None:
    token = find_token()
    return {"Authorization": f"Bearer {token}"} if token else None


@contextmanager
def _without_ray_address() -> Iterator[None]:
    """Hide RAY_ADDRESS, which Ray would prefer to the address that it is given."""
    hidden = os.environ.pop("RAY_ADDRESS", None)
    try:
        yield
    finally:
        if hidden is not None:
            os.environ["RAY_ADDRESS"] = hidden


def _find_gpu(client: Any, gpu_id: str | None) -> dict[str, Any]:
    """Return what to ask of Ray to get a GPU."""
    if gpu_id is None:
        return {}
    from ray.util.state import StateApiClient
    from ray.util.state.common import ListApiOptions, StateResource

    options = ListApiOptions(limit=10_000, filters=[("state", "=", "ALIVE")])
    with _without_ray_address():
        state = StateApiClient(client.get_address(), headers=_auth_headers())
        nodes = state.list(StateResource.NODES, options, raise_on_missing_output=False)
    with_gpu = [node for node in nodes if node.resources_total.get("GPU", 0) >= 1]
    if gpu_id == "any" and with_gpu:
        return {"entrypoint_num_gpus": 1}
    types = set()
    for node in with_gpu:
        names = (node.node_name, node.node_ip, node.node_id)
        if gpu_id in names or (len(gpu_id) >= 8 and node.node_id.startswith(gpu_id)):
            return {
                "entrypoint_num_gpus": 1,
                "entrypoint_label_selector": {NODE_LABEL: node.node_id},
            }
        prefix = "accelerator_type:"
        types |= {n.removeprefix(prefix) for n in node.resources_total if n.startswith(prefix)}
    for kind in types:
        if kind.lower() == gpu_id.lower():
            return {
                "entrypoint_num_gpus": 1,
                "entrypoint_resources": {f"accelerator_type:{kind}": 0.001},
            }
    has = ", ".join(f"{node.node_ip} ({node.resources_total['GPU']:g})" for node in with_gpu)
    of_types = f"; accelerator types: {', '.join(sorted(types))}" if types else ""
    raise InvalidInput(
        f"gpu_id={gpu_id!r}: no such GPU in the cluster, which has "
        + (f"GPUs on {has}{of_types}" if has else f"none on its {len(nodes)} nodes")
    )


def _submit(client: Any, command: Sequence[str], **options: Any) -> str:
    """Submit a job, also to a cluster that has just been started."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            return str(client.submit_job(entrypoint=shlex.join(command), **options))
        except RuntimeError as problem:
            if "No available agent" not in str(problem) or time.monotonic() > deadline:
                raise EvalFailed(f"the cluster refuses the job: {problem}") from None
            time.sleep(1.0)


def _add_unfinished(archive: Path) -> None:
    """Have runs that are to be resumed travel, too."""
    home = Path.cwd()
    with zipfile.ZipFile(archive, "a", zipfile.ZIP_DEFLATED) as packed:
        for run in find_runs(home / "outputs"):
            if RunDir(run).exists() and RunDir(run).read_info().status != "complete":
                for file in list_run(run):
                    packed.write(file, file.relative_to(home).as_posix())


async def _show_output(client: Any, name: str) -> None:
    """Print what the job prints until it ends, however often the connection breaks."""
    shown = 0
    for _ in range(RETRIES):
        seen = 0
        try:
            async for text in client.tail_job_logs(name):
                seen += len(text)
                if seen > shown:
                    sys.stdout.write(text[max(0, len(text) - (seen - shown)) :])
                    sys.stdout.flush()
                    shown = seen
        except (RuntimeError, OSError) as problem:
            log.warning("the output of %s was cut off: %s", name, problem)
        if _has_ended(client, name):
            return
        await asyncio.sleep(1)


def _has_ended(client: Any, name: str) -> bool:
    return bool(client.get_job_status(name).is_terminal())


def _wait(client: Any, name: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not _has_ended(client, name) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)


def _exit_code(client: Any, name: str) -> int:
    while not _has_ended(client, name):
        time.sleep(POLL_SECONDS)
    info = client.get_job_info(name)
    if info.status == "SUCCEEDED":
        return 0
    if info.driver_exit_code is None:  # it never began
        print(f"{name}: {info.message}", file=sys.stderr)  # noqa: T201
    return info.driver_exit_code or 1


# --- The run directories ------------------------------------------------------------------------


def _bring_home(client: Any, name: str) -> None:
    """Fetch the run directories of a job that has ended, from the node that it ran on."""
    node = client.get_job_info(name).driver_node_id
    if node is None:
        return  # it never began
    there = {"entrypoint_label_selector": {NODE_LABEL: node}}
    packer = _submit(client, ["python", "-u", "-m", JOB, "pack", name], **there)
    with tempfile.TemporaryDirectory(prefix=".heldout-", dir=Path.cwd()) as temporary:
        try:
            asyncio.run(_receive(client, packer, Path(temporary)))
        except (EvalFailed, OSError, RuntimeError) as problem:
            raise EvalFailed(
                f"the run directories of {name} could not be brought home from node {node}: "
                f"{problem}. They are there in heldout-job-*-{name}/work below its temporary folder"
            ) from problem
        for run in find_runs(Path(temporary)):
            _put_in_place(run, Path.cwd() / run.relative_to(temporary), name)
    _submit(client, ["python", "-m", JOB, "drop", name], **there)


async def _receive(client: Any, packer: str, folder: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while client.get_job_status(packer) == "PENDING":
        if time.monotonic() > deadline:
            client.stop_job(packer)
            raise EvalFailed(f"the node has not answered in {START_SECONDS:g} s; it may be gone")
        await asyncio.sleep(POLL_SECONDS)
    receiver, rest = Receiver(folder), ""
    async for text in client.tail_job_logs(packer):
        *lines, rest = (rest + text).split("\n")
        for line in lines:
            receiver.take(line)
    receiver.unpack()


class Receiver:
    """Reads what `heldout.cluster.job` prints, and unpacks the archive in it.

    Args:
        folder: Where the files go.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._archive = folder, folder / "runs.zip"
        self._digest = hashlib.sha256()
        self._sent_digest = ""

    def take(self, line: str) -> None:
        """Take a line of output; one that is not part of the archive is passed over."""
        if line.startswith(CONTENT):
            content = base64.b64decode(line.removeprefix(CONTENT))
            self._digest.update(content)
            with self._archive.open("ab") as file:
                file.write(content)
        elif line.startswith(END):
            self._sent_digest = line.removeprefix(END)

    def unpack(self) -> None:
        """Unpack the archive.

        Raises:
            EvalFailed: It is not whole.
        """
        if self._digest.hexdigest() != self._sent_digest:
            raise EvalFailed("the transfer broke off, or changed on the way")
        with zipfile.ZipFile(self._archive) as packed:
            packed.extractall(self._folder)


def _put_in_place(run: Path, target: Path, name: str) -> None:
    """Move a run directory to where the script would have written it here."""
    if target.exists():
        if not _continues(run, target):
            other = target.with_name(f"{target.name}-{name}")
            print(f"{target} holds another run; the new one is {other}", file=sys.stderr)  # noqa: T201
            target = other
        else:
            replaced = target.with_name(f".{target.name}.{name}")
            target.rename(replaced)
            run.rename(target)
            shutil.rmtree(replaced, ignore_errors=True)
            return
    target.parent.mkdir(parents=True, exist_ok=True)
    run.rename(target)
    print(f"Run directory: {_shown(target)}", file=sys.stderr)  # noqa: T201


def _shown(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _continues(run: Path, target: Path) -> bool:
    """Tell whether a run is a resumption of the one that is there."""
    with suppress(HeldoutError):
        return RunDir(run).read_info().id == RunDir(target).read_info().id
    return False
