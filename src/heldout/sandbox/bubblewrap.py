"""What programs in a bubblewrap sandbox see of the host: a system, a Python, and no more."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from heldout.errors import SandboxError
from heldout.sandbox.seccomp import build_filter
from heldout.sandbox.values import SandboxLimits

INSTALL = (
    "install bubblewrap (`apt install bubblewrap`, `dnf install bubblewrap`), or Docker or Podman; "
    "docs/sandbox.md has the setup"
)
TOP = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
"""Folders of a system that are links into /usr today."""
ETC = ("alternatives", "ld.so.cache", "localtime")
ETC_NETWORK = ("resolv.conf", "hosts", "ssl", "ca-certificates", "nsswitch.conf", "services")
FILES = {
    "passwd": "root:x:0:0::/root:/usr/sbin/nologin\nuser:x:1000:1000::/work:/bin/bash\n",
    "group": "root:x:0:\nuser:x:1000:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "hostname": "sandbox\n",
}
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


def find_bubblewrap() -> str | None:
    """Return the path of bubblewrap, if it is installed."""
    return shutil.which("bwrap")


@cache
def find_interpreter() -> tuple[str, str]:
    """Return the folder of the Python that heldout runs on, without its venv, and its binary.

    Raises:
        SandboxError: There is none where Python says.
    """
    prefix = Path(sys.base_prefix)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for name in (version, "python3", "python"):
        binary = prefix / "bin" / name
        if binary.is_file():
            return str(prefix), str(binary)
    raise SandboxError(
        f"there is no Python for programs in the sandbox: {prefix}/bin has no {version}",
        hint="run heldout with a Python that is installed as usual (python.org, apt, uv, pyenv)",
    )


def make_settings(
    limits: SandboxLimits, *, network: bool, readable: Sequence[str]
) -> dict[str, Any]:
    """Return what the supervisor has to know.

    Args:
        limits: Of the sandbox.
        network: Whether programs may use the host's network.
        readable: More paths of the host that programs may read.

    Raises:
        SandboxError: Bubblewrap is missing, or Python, or a path.
    """
    binary = find_bubblewrap()
    if binary is None:
        raise SandboxError("bubblewrap is not installed", hint=INSTALL)
    prefix, _ = find_interpreter()
    for path in readable:
        if not Path(path).exists():
            raise SandboxError(f"{path} was to be readable in the sandbox, and is not there")
    etc = {} if network else FILES
    etc_binds = [
        path
        for path in (Path("/etc") / name for name in (*ETC, *(ETC_NETWORK if network else ())))
        if path.exists()
    ]
    given = {path.name for path in etc_binds}
    binds = [] if _is_in(prefix, "/usr") and not _is_in(prefix, "/usr/local") else [prefix]
    binds += [path for path in readable if path not in binds]
    return {
        "backend": "bubblewrap",
        "bubblewrap": binary,
        "network": network,
        "disk": limits.disk,
        "files": limits.files,
        "filter": build_filter().hex(),
        "system": ["/usr", *(f"/{n}" for n in TOP if _is_folder(n))],
        "links": [(str(Path(f"/{n}").readlink()), f"/{n}") for n in TOP if _is_link(n)],
        "hidden": [path for path in ("/usr/local", "/usr/src") if Path(path).is_dir()]
        + [str(path) for path in Path("/usr/lib").glob("python3*/dist-packages")],
        "binds": [(path, path) for path in binds],
        "hidden_in_binds": [
            str(path)
            for path in Path(prefix).glob("lib*/python3*/*-packages")
            if path.name in ("site-packages", "dist-packages") and binds and binds[0] == prefix
        ],
        "etc": {n: text for n, text in (etc or FILES).items() if n not in given},
        "etc_binds": [str(path) for path in etc_binds],
    }


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
    prefix, _ = find_interpreter()
    return {
        "PATH": f"{prefix}/bin:{PATH}",
        "HOME": "/work",
        "LANG": "C.UTF-8",
        "TMPDIR": "/tmp",
        "USER": "user",
    }


def _is_in(path: str, folder: str) -> bool:
    return Path(path).is_relative_to(folder)


def _is_link(name: str) -> bool:
    return Path(f"/{name}").is_symlink()


def _is_folder(name: str) -> bool:
    return Path(f"/{name}").is_dir() and not _is_link(name)
