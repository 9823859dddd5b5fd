"""What programs in a bubblewrap sandbox see of the host: a system, a Python, and no more."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from heldout.errors import InvalidInput, SandboxError
from heldout.sandbox.python_files import find_python_files
from heldout.sandbox.seccomp import build_filter
from heldout.sandbox.values import SandboxLimits

INSTALL = (
    "install bubblewrap (`apt install bubblewrap`, `dnf install bubblewrap`), or Docker or Podman; "
    "docs/sandbox.md has the setup"
)
TOP = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
"""Folders of a system that are links into /usr today."""
HIDDEN = ("/usr/local", "/usr/src")
"""Where a machine's owner installs things."""
ETC = ("alternatives", "ld.so.cache", "localtime")
ETC_NETWORK = ("resolv.conf", "hosts", "ssl", "ca-certificates", "nsswitch.conf", "services")
OWN = ("/work", "/tmp", "/proc", "/dev", "/etc", "/sys")
"""Folders of the sandbox itself."""
FILES = {
    "passwd": "root:x:0:0::/root:/usr/sbin/nologin\nuser:x:1000:1000::/work:/bin/bash\n",
    "group": "root:x:0:\nuser:x:1000:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "hostname": "sandbox\n",
}
PYTHON = "/sandbox/bin/python"
"""A link to the Python that programs have, whatever its name on the host."""
PATH = "/sandbox/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


def find_bubblewrap() -> str | None:
    """Return the path of bubblewrap, if it is installed."""
    return shutil.which("bwrap")


@cache
def find_interpreter() -> tuple[str, str]:
    """Return the folder of the Python that heldout runs on, not its venv's, and its binary's name.

    Raises:
        SandboxError: There is none where Python says.
    """
    prefix = Path(sys.base_prefix)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for name in (version, "python3", "python"):
        if (prefix / "bin" / name).is_file():
            return str(prefix), name
    raise SandboxError(
        f"there is no Python for programs in the sandbox: {prefix}/bin has no {version}",
        hint="run heldout with a Python that is installed as usual (python.org, apt, uv, pyenv)",
    )


def interpreter_folder() -> str:
    """Return where programs find that Python: where it is, or where it hides no files of theirs."""
    prefix, _ = find_interpreter()
    return "/python" if _is_taken(prefix) else prefix


def make_settings(
    limits: SandboxLimits, *, network: bool, readable: Sequence[tuple[str, str]]
) -> dict[str, Any]:
    """Return what the supervisor has to know.

    Args:
        limits: Of the sandbox.
        network: Whether programs may use the host's network.
        readable: More paths of the host that programs may read, each with its path in the sandbox.

    Raises:
        SandboxError: Bubblewrap is missing, or Python.
    """
    binary = find_bubblewrap()
    if binary is None:
        raise SandboxError("bubblewrap is not installed", hint=INSTALL)
    prefix, name = find_interpreter()
    folder = interpreter_folder()
    python = f"{folder}/bin/{name}"
    system = ["/usr", *(f"/{name}" for name in TOP if _is_folder(name))]
    links = [(str(Path(f"/{name}").readlink()), f"/{name}") for name in TOP if _is_link(name)]
    names = (*ETC, *(ETC_NETWORK if network else ()))
    etc = [f"/etc/{name}" for name in names if Path(f"/etc/{name}").exists()]
    # Later ones hide earlier ones; nothing, "", hides what is there.
    binds = [("", path) for path in HIDDEN if Path(path).is_dir()]
    binds += [("", path) for path in _find_packages("/usr")]
    if not _is_in(prefix, "/usr") or _is_in(prefix, "/usr/local"):
        files = find_python_files(Path(prefix), Path(prefix) / "bin" / name)
        packages = [path for path in _find_packages(prefix) if Path(path).parent in files]
        for source in [*map(str, files), *packages]:
            target = source.replace(prefix, folder, 1)
            binds.append(("" if source in packages else str(Path(source).resolve()), target))
    return {
        "backend": "bubblewrap",
        "bubblewrap": binary,
        "network": network,
        "disk": limits.disk,
        "files": limits.files,
        "filter": build_filter().hex(),
        "binds": [*((path, path) for path in (*system, *etc)), *binds, *readable],
        "links": [*links, (python, PYTHON), (python, f"{PYTHON}3")],
        "etc": {name: text for name, text in FILES.items() if f"/etc/{name}" not in etc},
    }


def check_readable(
    readable: Sequence[str | Path] | Mapping[str, str | Path],
) -> tuple[tuple[str, str], ...]:
    """Return paths of the host with their paths in the sandbox.

    Raises:
        InvalidInput: One is not there, or would hide what the sandbox needs.
    """
    if isinstance(readable, str | Path):
        raise InvalidInput(f"readable is a list of paths, not {readable!r}")
    if isinstance(readable, Mapping):
        pairs = [(str(Path(source).absolute()), target) for target, source in readable.items()]
    else:
        pairs = [(str(Path(path).absolute()),) * 2 for path in readable]
    for source, target in pairs:
        if not Path(source).exists():
            raise InvalidInput(f"{source} was to be readable in the sandbox, and is not there")
        if not target.startswith("/") or target == "/" or ".." in target or _is_taken(target):
            raise InvalidInput(
                f"{source} cannot be {target} in the sandbox, whose own files are there",
                hint='give it another path: readable={"/packages": SOURCE}',
            )
    return tuple(pairs)


def make_unsafe_settings(limits: SandboxLimits) -> dict[str, Any]:
    """Return what a supervisor without namespaces has to know."""
    return {
        "backend": "unsafe",
        "filter": "",
        "disk": limits.disk,
        "folder": tempfile.gettempdir(),
    }


def default_environment() -> dict[str, str]:
    """Return the environment that programs have: nothing of the host's."""
    return {
        "PATH": PATH,
        "HOME": "/work",
        "LANG": "C.UTF-8",
        "TMPDIR": "/tmp",
        "USER": "user",
    }


def _is_in(path: str, folder: str) -> bool:
    return Path(path).is_relative_to(folder)


def _is_taken(path: str) -> bool:
    return any(_is_in(path, folder) for folder in OWN)


def _find_packages(prefix: str) -> list[str]:
    """Return the folders of packages that were installed for a Python."""
    found = Path(prefix).glob("lib*/python3*/*-packages")
    return [str(path) for path in found if path.name in ("site-packages", "dist-packages")]


def _is_link(name: str) -> bool:
    return Path(f"/{name}").is_symlink()


def _is_folder(name: str) -> bool:
    return Path(f"/{name}").is_dir() and not _is_link(name)
