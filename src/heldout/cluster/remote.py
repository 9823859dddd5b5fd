"""run_remote: a script as a Ray job on another machine, and its run directories copied back.

    if args.remote or args.gpu_id:
        run_remote(__file__, address=args.remote, gpu_id=args.gpu_id)
    else:
        main()

Everything goes through Ray's job API, which is what a cluster shows to the outside: the port of its
dashboard is all that has to be reachable. A connection that breaks is made again; the job does not
depend on it.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import os
import re
import secrets
import shlex
import shutil
import socket
import sys
import tempfile
import time
import urllib.parse
import zipfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TextIO, TypeVar

from heldout._core.aio import Threads
from heldout._core.extras import missing_extra
from heldout._core.temporary import TemporaryFolder
from heldout.cluster._ray import PROBE_SECONDS, find_token
from heldout.cluster.job import CONTENT, END, NO_RUN, STDOUT, find_runs, list_run
from heldout.cluster.packaging import find_project, zip_folder
from heldout.errors import EvalFailed, HeldoutError, InvalidInput
from heldout.store.run_dir import RunDir

log = logging.getLogger("heldout")

INSIDE_JOB = "HELDOUT_REMOTE_JOB"
"""Set where `run_remote` has a script run: in a job, or (LOCAL) on a GPU of this machine. There it
does nothing."""
LOCAL = "local"
OWN_OPTIONS = ("--remote", "--gpu-id", "--gpu_id")
"""Options of a script that say where it runs: the job does not get them."""
JOB = "heldout.cluster.job"
DASHBOARD = "http://127.0.0.1:8265"
NODE_LABEL = "ray.io/node-id"
STOP_SECONDS = 30.0
START_SECONDS = 60.0
POLL_SECONDS = 0.5
MAX_POLL_SECONDS = 30.0
REQUEST_SECONDS = 120.0
"""How long one request may take."""
GIVE_UP_SECONDS = 600.0
"""How long the cluster may be out of reach."""
SILENT_SECONDS = 60.0
"""How long a job may print nothing before its output is asked for over a new connection, since the
old one may be dead; twice as long the next time."""
MAX_SILENT_SECONDS = 600.0
TRANSFERS = 3

T = TypeVar("T")


def run_remote(
    script_path: str | Path,
    *,
    address: str | None = None,
    gpu_id: str | int | None = None,
    keep_alive: bool = False,
    pip: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    arguments: Sequence[str] | None = None,
    working_dir: str | Path | None = None,
) -> None:
    """Run this script on a cluster, or on a GPU of this machine, and end with its exit code.

    On a cluster the script is submitted with its project, and its output is shown. On Ctrl-C it is
    stopped. However it ends, its run directories are copied back, below the current directory.
    Wherever it is run, it gets its arguments without the options that brought it here; where it
    calls this once more all the same, this does nothing.

    Args:
        script_path: The script: `__file__`.
        address: The cluster's dashboard, http://HOST:8265; by default RAY_API_SERVER_ADDRESS, or
            that on this machine.
        gpu_id: A node (its name, address or id) or an accelerator type of the cluster whose GPU to
            use, or "any". A number, where neither an address nor --remote is given, is a GPU of
            this machine: the script is started again, in place of this process, and sees that GPU
            alone.
        keep_alive: Leave the job running on Ctrl-C.
        pip: Packages to install for the script.
        environment: Environment variables of the script. Ray shows them in its dashboard.
        arguments: The script's arguments; by default those of this process without --remote and
            --gpu-id, and without an option of another name whose value is `address`, or is
            `gpu_id` while its name has "gpu" in it.
        working_dir: The folder that is submitted, in which the script runs and from which it may
            import; by default the nearest folder above the script that has a pyproject.toml or a
            .git, else the script's own.

    Raises:
        SystemExit: With the script's exit code, once it has ended; 4 where that is 0 and there is
            no run.
        InvalidInput: The script is no file, or not in `working_dir`; there is no cluster at the
            address, or no such GPU; it is to run on a GPU of this machine, and is not what this
            process runs.
        EvalFailed: The cluster refuses the job, or cannot be reached any more.
    """
    script = Path(script_path)
    gpu_id = None if gpu_id is None else str(gpu_id)
    if not script.is_file():
        raise InvalidInput(f"the script to run remotely is a file, and {script} is none")
    if INSIDE_JOB in os.environ:
        if os.environ[INSIDE_JOB] == LOCAL:
            # Of a job it is noticed that it wrote no run; of this process nobody would say it.
            _say(
                "run_remote does nothing here: the script was started again on the GPU, and goes "
                "on. If its work is in an else of this call, leave the option that leads here out "
                "of run_remote(arguments=[…])"
            )
        return
    if arguments is None:
        arguments = drop_own_options(sys.argv[1:], address, gpu_id)
    is_elsewhere = address or default_address() or "--remote" in sys.argv[1:]
    if gpu_id is not None and gpu_id.isdigit() and not is_elsewhere:
        _restart_on_gpu(int(gpu_id), script, arguments, environment or {})
    path = script.parent.resolve() / script.name
    folder = find_project(path) if working_dir is None else Path(working_dir).resolve()
    if not path.is_relative_to(folder):
        raise InvalidInput(f"the script {script} is not in working_dir, {folder}")
    command = ["python", path.relative_to(folder).as_posix(), *arguments]
    code = submit(
        command,
        folder,
        address,
        gpu_id=gpu_id,
        keep_alive=keep_alive,
        pip=pip,
        environment=environment,
    )
    raise SystemExit(code)


def attach_remote(name: str, *, address: str | None = None, keep_alive: bool = False) -> None:
    """Reattach to a job that was left running: show its output and fetch its runs.

    Args:
        name: The job's id.
        address: The cluster's dashboard, as for `run_remote`.
        keep_alive: Leave the job running on Ctrl-C.

    Raises:
        SystemExit: With the script's exit code, once it has ended.
        InvalidInput: There is no cluster at the address.
        EvalFailed: The cluster does not know the job, or cannot be reached any more.
    """
    client = _connect(address or default_address() or DASHBOARD)
    raise SystemExit(_RemoteJob(client, name).follow(keep_alive=keep_alive))


def drop_own_options(
    words: Sequence[str], address: str | None, gpu_id: str | None = None
) -> list[str]:
    """Return a script's arguments without those that say where it runs.

    Args:
        words: The arguments.
        address: The value of one of these options, whatever its name is.
        gpu_id: The value of another one, if there is no --gpu-id: of one whose name has "gpu" in
            it and not "gpus", since a number may be the value of any option.
    """
    kept: list[str] = []
    rest = list(words)
    if any(word.partition("=")[0] in OWN_OPTIONS[1:] for word in words):
        gpu_id = None
    while rest:
        word = rest.pop(0)
        if word == "--":
            return [*kept, word, *rest]
        option, has_value, value = word.partition("=")
        if not has_value and rest and not rest[0].startswith("-"):
            value = rest[0]
        is_gpu = value == gpu_id and re.search("gpu(?!s)", option, re.I) is not None
        is_own = bool(value) and (value == address or is_gpu)
        if option not in OWN_OPTIONS and not (is_own and option.startswith("-")):
            kept.append(word)
        elif not has_value and value and (option != "--remote" or value in (address or "")):
            rest.pop(0)  # while what follows a --remote that takes no value is an argument
    return kept


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
    visible = _find_local_gpu(number)
    if sys.modules["torch"].cuda.is_initialized():
        raise InvalidInput(f"this process uses a GPU already, so GPU {number} is chosen too late")
    os.environ["CUDA_VISIBLE_DEVICES"] = visible


def _find_local_gpu(number: int) -> str:
    """Return what CUDA_VISIBLE_DEVICES must be for one GPU of this machine."""
    try:
        import torch
    except ImportError:
        raise missing_extra("choosing a GPU needs torch", "local") from None
    count = torch.cuda.device_count()
    if number >= count:
        raise InvalidInput(
            f"there is no GPU {number}: this machine has {count or 'none'}"
            + (f", 0 to {count - 1}" if count else "")
        )
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",")[number] if visible else str(number)


def _restart_on_gpu(
    number: int, script: Path, arguments: Sequence[str], environment: Mapping[str, str]
) -> NoReturn:
    """Start the script again in place of this process, with one GPU of this machine.

    Not a child process: signals, standard streams and the exit code are those of the script. But
    what is replaced must be the script, or a notebook's process would be gone.
    """
    visible = _find_local_gpu(number)
    main = getattr(sys.modules["__main__"], "__file__", None)
    if main is None or not script.samefile(main):
        raise InvalidInput(
            f"gpu_id={number} without an address is a GPU of this machine, and the script is "
            f"started again with it: {script} is not what this process runs. Pass __file__, start "
            f"it with CUDA_VISIBLE_DEVICES={visible}, or give the address of a cluster"
        )
    given = len(sys.argv) - 1
    launch = sys.orig_argv[1 : len(sys.orig_argv) - given]  # python's own options, -m with a name
    if sys.orig_argv[1 + len(launch) :] != sys.argv[1:]:  # the script has changed its arguments
        launch = [main]
    command = [sys.executable, *launch, *arguments]
    _say(f"On GPU {number} of this machine: {shlex.join(['python', *command[1:]])}")
    sys.stdout.flush()
    own = {"CUDA_VISIBLE_DEVICES": visible, INSIDE_JOB: LOCAL}
    os.execve(sys.executable, command, {**os.environ, **environment, **own})


def submit(
    command: Sequence[str],
    folder: Path,
    address: str | None = None,
    *,
    gpu_id: str | None = None,
    keep_alive: bool = False,
    pip: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    print_json: Callable[[str], object] | None = None,
) -> int:
    """Run a command on a cluster, in a copy of a folder, and fetch its run directories.

    Args:
        command: The command. With --resume, unfinished runs below the current directory are
            sent with it. With --json, its standard output is fetched apart from its log.
        folder: What is sent; the command is run in it.
        address: The cluster's dashboard.
        gpu_id: Which GPU; see `run_remote`.
        keep_alive: Leave the job running on Ctrl-C.
        pip: Packages to install for it.
        environment: Environment variables of it.
        print_json: Takes what a command with --json has printed; by default it is printed here.

    Returns:
        Its exit code; 130 where it was stopped by Ctrl-C; 4 where it was 0 and there is no run, or
        the run directories could not be fetched.

    Raises:
        InvalidInput: There is no cluster at the address, or no such GPU.
        EvalFailed: The cluster refuses the job, or cannot be reached any more.
    """
    client = _connect(address or default_address() or DASHBOARD)
    where = _find_gpu(client, gpu_id)
    name = f"heldout-{secrets.token_hex(6)}"
    runtime_env: dict[str, Any] = {"env_vars": {**(environment or {}), INSIDE_JOB: "1"}}
    if pip:
        runtime_env["pip"] = list(pip)
    entry = ["python", "-u", "-m", JOB, "run", name, "--", *command]
    with TemporaryFolder("submit") as temporary:
        archive = Path(temporary, "folder.zip")
        archive.write_bytes(zip_folder(folder))
        _say(f"Sending {folder}, where the job runs")
        if "--resume" in command:
            _add_unfinished(archive)
        runtime_env["working_dir"] = str(archive)
        _submit(client, entry, submission_id=name, runtime_env=runtime_env, **where)
    return _RemoteJob(client, name).follow(keep_alive=keep_alive, print_json=print_json)


# --- The cluster --------------------------------------------------------------------------------


def _connect(address: str) -> Any:
    try:
        from ray.exceptions import AuthenticationError
        from ray.job_submission import JobSubmissionClient
    except ImportError as missing:
        raise missing_extra(
            f"running a script remotely needs Ray ({missing.name} is missing)", "ray"
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
    """Return the Ray resource request for a GPU."""
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
    """Include runs that are to be resumed."""
    home = Path.cwd()
    with zipfile.ZipFile(archive, "a", zipfile.ZIP_DEFLATED) as packed:
        for run in find_runs(home / "outputs"):
            if RunDir(run).exists() and RunDir(run).read_info().status != "complete":
                for file in list_run(run):
                    packed.write(file, file.relative_to(home).as_posix())


# --- The job ------------------------------------------------------------------------------------


class _RemoteJob:
    """A job that was submitted."""

    def __init__(self, client: Any, name: str) -> None:
        self._client, self._name, self._threads = client, name, Threads()

    def follow(
        self, *, keep_alive: bool = False, print_json: Callable[[str], object] | None = None
    ) -> int:
        """Show the job's output until it ends, fetch its runs, and return its exit code."""
        try:
            code = asyncio.run(self._watch())
        except KeyboardInterrupt:
            if keep_alive:
                _say(f"The job goes on. {self._how_to_attach()}")
                return 130
            asyncio.run(self._stop())
            code = 130
        try:
            printed = asyncio.run(self._bring_home())
        except EvalFailed as problem:
            _say(f"Error: {problem}")
            return code or NO_RUN
        (print_json or sys.stdout.write)(printed)
        return code

    async def _watch(self) -> int:
        """Show the output until the job ends, and return its exit code."""
        info = await self._ask(self._client.get_job_info, self._name)
        # With --json, standard output is for what is fetched with the runs.
        has_json = "--json" in shlex.split(info.entrypoint)
        await self._show_output(sys.stderr if has_json else sys.stdout)
        info = await self._ask(self._client.get_job_info, self._name)
        if info.status == "SUCCEEDED":
            return 0
        if info.driver_exit_code is None:  # it never began
            _say(f"{self._name}: {info.message}")
        return info.driver_exit_code or 1

    async def _show_output(self, output: TextIO) -> None:
        """Print what the job prints until it ends, however often the connection breaks."""
        from aiohttp import ClientError

        shown, silence, delay = 0, SILENT_SECONDS, POLL_SECONDS
        while True:
            seen, is_whole = 0, False
            try:
                async for text in self._tail(self._name, silence):
                    seen += len(text)
                    if seen > shown:
                        output.write(text[max(0, len(text) - (seen - shown)) :])
                        output.flush()
                        shown, silence, delay = seen, SILENT_SECONDS, POLL_SECONDS
                is_whole = True
            except TimeoutError:
                silence = min(2 * silence, MAX_SILENT_SECONDS)
            except (RuntimeError, OSError, ClientError) as problem:
                log.warning("the output of %s was cut off: %s", self._name, problem)
            if await self._has_ended():
                if not is_whole:
                    rest = await self._ask(self._client.get_job_logs, self._name)
                    output.write(rest[shown:])
                return
            await asyncio.sleep(delay)
            delay = min(2 * delay, MAX_POLL_SECONDS)

    async def _tail(self, name: str, silence: float) -> AsyncIterator[str]:
        """Yield a job's output from its beginning; TimeoutError if there is none for too long."""
        texts = self._client.tail_job_logs(name)
        while True:
            try:
                async with asyncio.timeout(silence):
                    text = await anext(texts)
            except StopAsyncIteration:
                return
            yield text

    async def _has_ended(self) -> bool:
        status = await self._ask(self._client.get_job_status, self._name)
        return bool(status.is_terminal())

    async def _stop(self) -> None:
        await self._ask(self._client.stop_job, self._name)
        deadline = time.monotonic() + STOP_SECONDS
        while not await self._has_ended() and time.monotonic() < deadline:
            await asyncio.sleep(POLL_SECONDS)

    async def _ask(self, request: Callable[..., T], *arguments: Any) -> T:
        """Make a request to the cluster, again and again while it cannot be reached."""
        delay, deadline = POLL_SECONDS, time.monotonic() + GIVE_UP_SECONDS
        while True:
            try:
                # Ray's client would wait for ever, and in this thread so would Ctrl-C.
                async with asyncio.timeout(REQUEST_SECONDS):
                    answer: T = await self._threads.run(request, *arguments)
                    return answer
            except (RuntimeError, OSError) as problem:
                reason = " ".join(str(problem).split())[:300] or "no answer"
                if isinstance(problem, RuntimeError) and "status code 404" in reason:
                    raise EvalFailed(f"the cluster does not know {self._name}: {reason}") from None
                if time.monotonic() > deadline:
                    raise EvalFailed(
                        f"the cluster has been out of reach for {GIVE_UP_SECONDS / 60:g} minutes, "
                        f"but the job may go on: {reason}. {self._how_to_attach()}"
                    ) from None
            await asyncio.sleep(delay)
            delay = min(2 * delay, MAX_POLL_SECONDS)

    def _how_to_attach(self) -> str:
        address = self._client.get_address()
        call = f"attach_remote({self._name!r}, address={address!r})"
        return f'Go on with it: python -c "from heldout.cluster import attach_remote; {call}"'

    # --- The run directories ---

    async def _bring_home(self) -> str:
        """Fetch the run directories of the job from the node that it ran on.

        Returns:
            What the job has printed, if that comes with its runs.
        """
        info = await self._ask(self._client.get_job_info, self._name)
        node = info.driver_node_id
        if node is None:
            return ""  # it never began
        there = {"entrypoint_label_selector": {NODE_LABEL: node}}
        with tempfile.TemporaryDirectory(prefix=".heldout-", dir=Path.cwd()) as temporary:
            folder = Path(temporary)
            try:
                await self._receive(there, folder)
            except (EvalFailed, OSError) as problem:
                raise EvalFailed(
                    f"the run directories of {self._name} could not be fetched from node "
                    f"{node}: {problem}. They are there in heldout-job-*-{self._name}/work below "
                    f"its temporary folder. {self._how_to_attach()}"
                ) from problem
            for run in find_runs(folder):
                _put_in_place(run, Path.cwd() / run.relative_to(folder), self._name)
            printed = folder / STDOUT
            text = printed.read_text(errors="replace") if printed.exists() else ""
        try:
            _submit(self._client, ["python", "-m", JOB, "drop", self._name], **there)
        except (EvalFailed, OSError) as problem:  # all is home; only its copy is left
            log.warning("the folder of %s stays on node %s: %s", self._name, node, problem)
        return text

    async def _receive(self, there: dict[str, Any], folder: Path) -> None:
        """Receive the job's files, again from the beginning where the connection breaks."""
        from aiohttp import ClientError

        client, command = self._client, ["python", "-u", "-m", JOB, "pack", self._name]
        for transfer in range(1, TRANSFERS + 1):
            packer = await self._ask(partial(_submit, client, command, **there))
            deadline = time.monotonic() + START_SECONDS
            while await self._ask(client.get_job_status, packer) == "PENDING":
                if time.monotonic() > deadline:
                    client.stop_job(packer)
                    raise EvalFailed(
                        f"the node has not answered in {START_SECONDS:g} s; it may be gone"
                    )
                await asyncio.sleep(POLL_SECONDS)
            receiver, rest = Receiver(folder), ""
            try:
                async for text in self._tail(packer, SILENT_SECONDS):
                    *lines, rest = (rest + text).split("\n")
                    for line in lines:
                        receiver.feed(line)
                receiver.unpack()
                return
            except (EvalFailed, RuntimeError, OSError, ClientError) as problem:
                if transfer == TRANSFERS:
                    raise EvalFailed(f"{problem}, {TRANSFERS} times") from problem


def _say(text: str) -> None:
    print(text, file=sys.stderr)  # noqa: T201


# --- The run directories ------------------------------------------------------------------------


class Receiver:
    """Reads what `heldout.cluster.job` prints, and unpacks the archive in it.

    Args:
        folder: Where the files go.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._archive = folder, folder / "runs.zip"
        self._archive.unlink(missing_ok=True)  # of a transfer that broke off
        self._digest = hashlib.sha256()
        self._sent_digest = ""

    def feed(self, line: str) -> None:
        """Process a line of output; lines that are not part of the archive are skipped."""
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
            EvalFailed: It is incomplete.
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
            _say(f"{target} holds another run; the new one is {other}")
            target = other
        else:
            replaced = target.with_name(f".{target.name}.{name}")
            target.rename(replaced)
            run.rename(target)
            shutil.rmtree(replaced, ignore_errors=True)
            return
    target.parent.mkdir(parents=True, exist_ok=True)
    run.rename(target)
    _say(f"Run directory: {_shown(target)}")


def _shown(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _continues(run: Path, target: Path) -> bool:
    """Return whether a run is a resumption of the one that is there."""
    with suppress(HeldoutError):
        return RunDir(run).read_info().id == RunDir(target).read_info().id
    return False
