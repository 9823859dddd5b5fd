"""Which tasks lm-eval has, in a second or two: its own index reads 14,000 YAML files in fifteen.

Only a few keys at the beginning of a line are read, and those of included files. lm-eval itself
reads the files of a task that is run.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from heldout.integrations.hub import address_of_dataset, is_cached

_LINE = re.compile(
    r"^[\"']?(task|group|include|output_type|repeats|unsafe_code|gen_prefix|class|doc_to_image|"
    r"doc_to_audio|dataset_path)[\"']?[ \t]*:(.*)$",
    re.MULTILINE,
)
_COMMENT = re.compile(r"\s#.*")
_INCLUDES = re.compile(r"^[\"']?include[\"']?[ \t]*:\s*\n((?:\s*-.*\n)+)", re.MULTILINE)
_DATA_FILES = re.compile(r"data_files:[^#]*?\b((?:hf|https?|s3)://[^\s\"',\]}]+)")
_IGNORED = {"__pycache__", ".ipynb_checkpoints"}
MAX_YAML_BYTES = 4_000_000
MAX_INCLUDES = 16
FILE_FORMATS = {"json", "csv", "text", "parquet", "arrow", "pandas", "imagefolder", "audiofolder"}
"""What may stand in place of a dataset's name: then `data_files` says where it is."""
QUOTES = "\"' "


@dataclass(frozen=True, slots=True)
class TaskFile:
    """A task or a group, and the YAML file that defines it."""

    name: str
    path: Path
    is_group: bool
    keys: Mapping[str, str]
    """Its keys that say whether it can run, as texts."""


def installed_folder() -> Path:
    """Return the folder of the tasks that come with the package, without importing it."""
    spec = find_spec("lm_eval")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "tasks"


def find_task_files(include_path: Sequence[Path] = ()) -> dict[str, TaskFile]:
    """Find tasks and groups by name.

    Args:
        include_path: Folders with YAML files of one's own. Theirs win over installed ones.
    """
    found = dict(_scan(installed_folder()))
    for folder in include_path:
        found |= dict(_read_folder(folder))
    return found


@functools.cache
def _scan(folder: Path) -> dict[str, TaskFile]:
    return dict(_read_folder(folder))


def _read_folder(folder: Path) -> Iterator[tuple[str, TaskFile]]:
    seen: set[str] = set()
    read = functools.cache(_read_keys)
    for path in sorted(_yaml_files(folder)):
        try:
            keys = _with_includes(path, read)
        except (OSError, ValueError):  # lm-eval leaves out what it cannot read, too
            continue
        is_group = "group" in keys and "class" not in keys
        name = keys.get("group" if is_group else "task", "")
        if name and name not in seen:
            seen.add(name)
            yield name, TaskFile(name, Path(path), is_group, keys)


def _yaml_files(folder: Path) -> Iterator[str]:
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in _IGNORED]
        yield from (f"{parent}/{name}" for name in files if name.endswith(".yaml"))


def _read_keys(path: str) -> dict[str, str]:
    with open(path, "rb") as file:  # noqa: PTH123 - 14,000 Paths take as long as the files
        text = file.read(MAX_YAML_BYTES).decode("utf-8-sig")
    found = ((match[1], _COMMENT.sub("", match[2]).strip()) for match in _LINE.finditer(text))
    # What begins on the next line has a value, too.
    keys = {key: value.strip("\"'") or "…" for key, value in found}
    if keys.get("include") == "…" and (several := _INCLUDES.search(text)):
        keys["include"] = ",".join(re.findall(r"-\s*(.*\S)", several[1]))
    if url := _DATA_FILES.search(text):
        keys["data_files"] = url[1]
    return keys


def _with_includes(path: str, read: Any, depth: int = 0) -> dict[str, str]:
    keys: dict[str, str] = dict(read(path))
    include = keys.pop("include", None)
    if not include or depth >= MAX_INCLUDES:
        return keys
    merged: dict[str, str] = {}
    for name in re.split(r",\s*", include.strip("[]")):
        folder = path.rpartition("/")[0]
        included = os.path.normpath(f"{folder}/{name.strip(QUOTES)}")
        merged |= _with_includes(included, read, depth + 1)
    return merged | keys


def refusal(keys: Mapping[str, Any], *, unsafe_code: bool = False) -> str | None:
    """Say why a task cannot be an eval; None if nothing is against it.

    Args:
        keys: The task's config, or what `TaskFile` has of it.
        unsafe_code: Whether the user lets it run code that the model writes.
    """
    if keys.get("class"):
        return "it is a Python class with a loop of its own"
    if keys.get("output_type") == "loglikelihood_rolling":
        return "its perplexity is of all documents together, and has no value for one"
    if keys.get("gen_prefix"):
        return "gen_prefix begins the model's turn for it, which endpoints cannot do"
    if str(keys.get("repeats") or "1") != "1":
        return (
            "it takes several answers to a document (repeats); where they are independent, set "
            "repeats of the run"
        )
    if keys.get("doc_to_image") or keys.get("doc_to_audio"):
        return "it shows images or plays sounds"
    if str(keys.get("unsafe_code") or "false").lower() != "false" and not unsafe_code:
        return "it runs code that the model writes, on this machine; unsafe_code=True lets it"
    return None


def addresses(file: TaskFile) -> tuple[str, ...]:
    """Return what a task downloads, unless the hub's cache has it; of a group, that its tasks do.

    A task without a dataset, or with one made of files here, is not known to download anything.
    """
    if file.is_group:
        return ("the datasets of its tasks",)
    dataset = file.keys.get("dataset_path", "")
    if dataset in FILE_FORMATS:
        return (file.keys["data_files"],) if "data_files" in file.keys else ()
    is_on_hub = re.fullmatch(r"[\w.-]+(/[\w.-]+)?", dataset)
    if not is_on_hub or is_cached(dataset) or Path(dataset).exists():
        return ()
    return (address_of_dataset(dataset),)
