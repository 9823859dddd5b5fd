"""Which code is sent to the workers, and how it is loaded there.

Functions are sent by name, never as pickled closures: the folder of the file that defines them goes
as a zip through Ray's object store, and the worker loads the file as `heldout run` does. (Ray's own
`working_dir` is fixed when a process connects, so a second eval file could not have its own.) What
has no name that a worker could look up is refused before anything starts.
"""

from __future__ import annotations

import importlib
import io
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from heldout._core.code import PREFIX, find_attribute, import_file
from heldout._evals.rollout import EvalDefinition, functions_of
from heldout.errors import InvalidInput

MAX_BYTES = 100 * 2**20
SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules", "outputs"})
"""What no worker needs, beside hidden folders and virtual environments."""


class ImportPath(msgspec.Struct, frozen=True):
    """A name that a worker can look up."""

    source: str
    """A file below the folder sent to workers (its name ends in .py), or a module."""
    name: str
    """The name in it, with dots for attributes."""


class PackedFunctions(msgspec.Struct, frozen=True):
    """The functions of an eval as references, and the folder that they are in."""

    references: dict[str, ImportPath]
    """By role: score_fn, endpoint, …"""
    folder: Path | None
    """What is sent; None if everything is in installed packages."""


# --- On the driver ------------------------------------------------------------------------------


def pack_functions(functions: dict[str, Any], folder: Path | None = None) -> PackedFunctions:
    """Find names by which workers can look functions up.

    Args:
        functions: The functions and objects by role; None is left out.
        folder: The folder to send; by default that of the file that defines the first of them.

    Raises:
        InvalidInput: One of them has no name at the top level of a file, or is outside of the
            folder.
    """
    found_at = {
        role: (value, *_find_definition(role, value))
        for role, value in functions.items()
        if value is not None
    }
    if folder is None:
        files = [_own_file(module) for _, module, _ in found_at.values()]
        folder = next((file.parent for file in files if file is not None), None)
    references = {
        role: ImportPath(_source_of(role, module, folder), name)
        for role, (_, module, name) in found_at.items()
    }
    return PackedFunctions(references, folder)


def _find_definition(role: str, value: Any) -> tuple[ModuleType, str]:
    """Find the module and the name that refer to this very object."""
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    name = getattr(value, "__qualname__", "")
    if module is not None and name and find_attribute(module, name) is value:
        return module, name
    for module in _own_modules():
        name = _name_in(module, value)
        if name:
            return module, name
    owner = getattr(value, "__self__", None)
    if owner is not None and not isinstance(owner, ModuleType):  # a bound method
        module, name = _find_definition(role, owner)
        return module, f"{name}.{value.__name__}"
    described = getattr(value, "__qualname__", None) or f"a {type(value).__qualname__}"
    raise InvalidInput(
        f"{role} ({described}) cannot be sent to the workers of a cluster: they load the file and "
        "look the function up by its name. Define it at the top level of the eval file, or assign "
        f"it to a name there ({role} = …)"
    )


def _name_in(module: ModuleType, value: Any) -> str | None:
    for name, candidate in list(vars(module).items()):
        if candidate is value:
            return name
        if isinstance(candidate, EvalDefinition):
            for part, function in functions_of(candidate).items():
                if function is value:
                    return f"{name}.{part}"
    return None


def _own_modules() -> Iterator[ModuleType]:
    """Yield the modules that are files of the user's: the script first, then eval files."""
    modules = [module for module in list(sys.modules.values()) if _own_file(module) is not None]
    yield from sorted(
        modules,
        key=lambda module: (
            module.__name__ != "__main__",
            not module.__name__.startswith(PREFIX),
        ),
    )


def _own_file(module: ModuleType) -> Path | None:
    """Return the file of a module that is not installed."""
    file = getattr(module, "__file__", None)
    name = module.__name__.partition(".")[0]
    if file is None or not file.endswith(".py") or name in {"heldout", *sys.stdlib_module_names}:
        return None
    path = Path(file).resolve()
    is_installed = "site-packages" in path.parts or "dist-packages" in path.parts
    return None if is_installed or path.is_relative_to(sys.prefix) else path


def _source_of(role: str, module: ModuleType, folder: Path | None) -> str:
    file = _own_file(module)
    if module.__name__ == "__main__" and file is None:
        raise InvalidInput(
            f"{role} is defined in an interactive session, which the workers of a cluster cannot "
            "load: put it into a file"
        )
    if file is None or folder is None:
        return module.__name__
    if not file.is_relative_to(folder.resolve()):
        if module.__name__ == "__main__" or module.__name__.startswith(PREFIX):
            raise InvalidInput(
                f"{role} is defined in {file}, outside of {folder}, which is the folder that "
                "is sent to the workers (working_dir)"
            )
        return module.__name__  # the workers may have it installed
    inside = file.relative_to(folder.resolve())
    dotted = ".".join((inside.parent if inside.name == "__init__.py" else inside).parts)
    return module.__name__ if dotted.removesuffix(".py") == module.__name__ else inside.as_posix()


def find_project(file: Path) -> Path:
    """Return the folder to send with a script: its project, else the script's own folder.

    Args:
        file: The script. Its project is the nearest folder above it that has a pyproject.toml or
            a .git.
    """
    home = file.parent.resolve()
    for folder in (home, *home.parents):
        # A .git in the user's home is a repository of dotfiles, which is no project to send.
        is_repository = (folder / ".git").exists() and folder != Path.home()
        if is_repository or (folder / "pyproject.toml").is_file():
            return folder
    return home


def zip_folder(folder: Path) -> bytes:
    """Pack a folder for the workers.

    Args:
        folder: The folder. Hidden files, virtual environments and outputs/ are left out.

    Returns:
        A zip file; the same bytes for the same files.

    Raises:
        InvalidInput: It is larger than 100 MiB; the message names what is large in it.
    """
    files: list[Path] = []
    sizes: dict[str, int] = {}
    for file in list_files(folder):
        files.append(file)
        top = file.relative_to(folder).parts[0]
        sizes[top] = sizes.get(top, 0) + file.stat().st_size
        if sum(sizes.values()) > MAX_BYTES:
            largest = max(sizes, key=lambda name: sizes[name])
            raise InvalidInput(
                f"{folder} has more than {MAX_BYTES >> 20} MiB, too much to send to the workers "
                f"(most of it in {largest}): keep the eval file in a folder of its own and name "
                "that as working_dir (--working-dir with --remote)"
            )
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(files):
            entry = zipfile.ZipInfo(file.relative_to(folder).as_posix(), (1980, 1, 1, 0, 0, 0))
            entry.external_attr = (file.stat().st_mode & 0o777) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, file.read_bytes())
    return packed.getvalue()


def list_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder that are sent to workers.

    Args:
        folder: The folder.

    Yields:
        The files.
    """
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not _is_skipped(Path(root, name))]
        for name in names:
            path = Path(root, name)
            if not name.startswith(".") and path.is_file():
                yield path


def _is_skipped(folder: Path) -> bool:
    name = folder.name
    return name in SKIPPED_FOLDERS or name.startswith(".") or (folder / "pyvenv.cfg").exists()


# --- On a worker --------------------------------------------------------------------------------


def unpack_folder(archive: bytes) -> Path:
    """Unpack a folder, and make it the working directory and the first entry of sys.path.

    Args:
        archive: Made by `zip_folder`.

    Returns:
        The folder, which is this process's alone; `remove_folder` removes it.
    """
    folder = Path(tempfile.mkdtemp(prefix="heldout-worker-"))
    with zipfile.ZipFile(io.BytesIO(archive)) as packed:
        packed.extractall(folder)
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    return folder


def remove_folder() -> None:
    """Leave and remove the unpacked folder. Ray kills workers, so that no exit handler runs."""
    folder = Path.cwd()
    if folder.name.startswith("heldout-worker-"):
        os.chdir("/")
        shutil.rmtree(folder, ignore_errors=True)


def load_reference(reference: ImportPath, folder: Path | None) -> Any:
    """Look an object up by its name.

    Args:
        reference: The name.
        folder: Where the files are.

    Raises:
        InvalidInput: Its module does not load, or has no such name.
    """
    source, name = reference.source, reference.name
    try:
        if source.endswith(".py"):
            path = Path(folder or "", source)
            module = sys.modules.get(PREFIX + path.stem) or import_file(path)
        else:
            module = importlib.import_module(source)
    except Exception as problem:
        missing = isinstance(problem, ModuleNotFoundError)
        raise InvalidInput(
            f"{source} does not load: {type(problem).__name__}: {problem}",
            hint="install it on the nodes of the cluster, or name the folder that has it, which "
            "is then sent to them: working_dir=…"
            if missing
            else None,
        ) from problem
    value = find_attribute(module, name)
    if value is None:
        raise InvalidInput(f"{source} has no {name}")
    return value
