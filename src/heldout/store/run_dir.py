"""A run directory: its files, its run.json, and the rules for entering it.

A directory is never overwritten silently: a new run refuses one that holds a run already, a
resumed one goes on only if config and functions say that the results belong together. No path
in any of its files is ever followed: where things are is decided here alone (clause 19).
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from heldout._core.config import result_changing
from heldout._core.format import cut
from heldout._core.secrets import REDACTED, is_secret_name, redact_text
from heldout._core.version import __version__
from heldout.errors import (
    ResumeMismatch,
    RunDirectoryError,
    RunExists,
    RunReplaced,
    UnknownFormat,
)
from heldout.store.ahead import ahead_path
from heldout.store.fingerprint import PARTS, name_changes
from heldout.store.journal import JournalWriter, RecordKey, records, storage_error
from heldout.store.jsonl import (
    has_writer,
    link_error,
    open_to_read,
    packed_path,
    read_document,
    read_whole,
    replace_file,
)
from heldout.store.numbers import TIMESTAMP, draw_number
from heldout.store.settled import Settled

FORMAT = "heldout.run"
VERSION = 2
"""Of a run that was stopped early by `until`, which an earlier version would take for an ordinary
one; others are written as version 1, which all read."""
SUMMARY_FORMAT = "heldout.summary"
SUMMARY_VERSION = 2
"""1 took samples of equal content for independent, and any metric that was always 1 for a rate."""

HASHED_BYTES = 2**16
LEFTOVER = re.compile(
    r"\.(run\.json|summary\.json|results\.(parquet|jsonl(\.gz)?)|\d+-\d+\.json)"
    r"\.[0-9a-f]{16}\.tmp"
)
"""What a killed process leaves of a file that it was writing (`temporary_name`)."""
COPIED = ".copied"
"""In a copy of a run at a URL: when it was made. Who writes the original cannot be known here."""

RunStatus = Literal["running", "complete", "interrupted", "failed"]


class GitState(msgspec.Struct, frozen=True):
    """The state of a git repository."""

    commit: str
    dirty: bool | None = None
    """Whether tracked files differ from the commit."""


class RunInfo(msgspec.Struct):
    """run.json."""

    format: str
    version: int
    status: RunStatus
    config: dict[str, Any]
    functions: dict[str, Any]
    """Name and source fingerprint of the functions whose change would change results."""
    asked: int | None
    """Items asked for, samples x repeats; None until a stream of unknown length has ended."""
    versions: dict[str, str]
    started: str
    finished: str | None = None
    reason: str | None = None
    """Why it did not complete."""
    journal_bytes: int | None = None
    """Size of the journal that the derived files were made of; None while there are none."""
    journal_hash: str | None = None
    """Size and hash of that journal (`hash_ends`); for any other journal the rest is void."""
    summary_hash: str | None = None
    """The same of summary.json: another file is not read. Both are None where an earlier version
    wrote it."""
    columns_hash: str | None = None
    """Size and hash of results.parquet: another file is not read; None where there is none."""
    id: str | None = None
    """Unique id of this run; None if an earlier version wrote it."""
    git: GitState | None = None
    """The commit of the working directory; None outside a repository."""
    command: list[str] | None = None
    """The command line, without keys; None where an earlier version wrote it."""
    ended: int | None = None
    """Of a run that was stopped: items that ended before. None where an earlier version wrote it,
    or the process was killed."""
    errors: int | None = None
    """How many of these errored."""
    number: int | None = None
    """Among the runs of its name (numbers.py); 0 where it has none yet, or is the only one. None
    where an earlier version wrote it."""
    weight_versions: list[str] = []
    """The versions of weights that a server said it answered with, in the order seen."""
    settled: Settled | None = None
    """How its claim was settled; None of a run without `until`, or that goes on."""
    usage_ahead: RunUsage | None = None
    """What the items took that were run beyond the stop; no part of any number of the run."""

    @classmethod
    def new(
        cls, config: dict[str, Any], functions: dict[str, Any], asked: int | None = None
    ) -> RunInfo:
        """Describe a run that begins now."""
        return cls(
            FORMAT,
            1,
            "running",
            config,
            functions,
            asked,
            package_versions(),
            now(),
            id=secrets.token_hex(8),
            git=read_git_state(),
            command=redact_command(sys.orig_argv[1:]),
            number=0,
        )

    @property
    def run_arguments(self) -> list[str] | None:
        """What followed `heldout run` on its command line; None where something else began it."""
        command = self.command or []
        for position, (program, name) in enumerate(pairwise(command)):
            if name == "run" and re.fullmatch(r"(.*[/\\])?heldout(\.exe|/__main__\.py)?", program):
                return command[position + 2 :]
        return None

    def is_same_run(self, other: RunInfo) -> bool:
        """Return whether both are of one run, before and after it went on."""
        if self.id is None:
            return other.id is None and self.started == other.started
        return self.id == other.id

    def keep_origin(self, first: RunInfo) -> None:
        """Keep the time, commit and command of the run that is resumed."""
        self.started, self.id, self.versions = first.started, first.id, first.versions
        self.git, self.command, self.number = first.git, first.command, first.number
        self.weight_versions = [*first.weight_versions]


class ModelUsage(msgspec.Struct, frozen=True):
    """What one model took in a run, in one role.

    Attributes:
        role: "policy", "judge" or "user".
        model: Its name; None of the policy, which the config describes.
        n: Attempts for which it reported its tokens, which are those of these attempts alone.
        unknown: Attempts in which it was asked and did not report them.
        prompt_tokens: Tokens that it read.
        completion_tokens: Tokens that it wrote.
        cost: What these cost, those of cached turns and verdicts included; None where there is no
            price, or no count.
    """

    role: Literal["policy", "judge", "user"]
    model: str | None = None
    n: int = 0
    unknown: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = None


class RunUsage(msgspec.Struct, frozen=True):
    """What a run took.

    Attributes:
        n: Attempts with tokens, of the model that reported them for the most.
        prompt_tokens: Tokens that all models read.
        completion_tokens: Tokens that they wrote.
        cost: What these cost; None where a model has no price, or did not report its tokens.
        models: The share of each: the policy, judges, simulated users. Empty where an earlier
            version wrote it: then it is the policy's share alone.
    """

    n: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = None
    models: tuple[ModelUsage, ...] = ()

    @classmethod
    def of(cls, models: Iterable[ModelUsage]) -> RunUsage:
        """Add up the shares of all models that were asked."""
        asked = [model for model in models if model.n or model.unknown]
        costs = [model.cost for model in asked]
        known = [cost for cost in costs if cost is not None]
        return cls(
            max((model.n for model in asked), default=0),
            sum(model.prompt_tokens for model in asked),
            sum(model.completion_tokens for model in asked),
            sum(known) if known and len(known) == len(costs) else None,
            tuple(asked),
        )

    def is_possible(self) -> bool:
        """Return whether these can be sums of counts."""
        counts = [self.n, self.prompt_tokens, self.completion_tokens]
        for model in self.models:
            counts += [model.n, model.prompt_tokens, model.completion_tokens]
        return all(0 <= n < 2**63 for n in counts)


class SummaryFile(msgspec.Struct):
    """summary.json."""

    format: str
    version: int
    summary: dict[str, Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)] | float | bool | None]
    usage: RunUsage | None = None


class RunDir:
    """The files of a run directory, and the rules for entering it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def run(self) -> Path:
        """Config, versions and status; replaced atomically."""
        return self.path / "run.json"

    @cached_property
    def journal(self) -> Path:
        """One line per result, in the order they finished.

        That of a point of a training run is packed: see `has_journal` and `journal_size`.
        """
        return self.path / "results.jsonl"

    @property
    def has_journal(self) -> bool:
        """Whether there is a journal, packed or not."""
        return self.journal.exists() or packed_path(self.journal).exists()

    def journal_size(self) -> int:
        """Bytes of the journal, unpacked."""
        with open_to_read(self.journal) as file:
            return os.fstat(file.fileno()).st_size

    @cached_property
    def columns(self) -> Path:
        """The results as columns; small points of a training run have none."""
        return self.path / "results.parquet"

    @cached_property
    def summary(self) -> Path:
        """The summary of a complete run."""
        return self.path / "summary.json"

    @cached_property
    def curve(self) -> Path:
        """The points of an eval during training."""
        return self.path / "curve.jsonl"

    @cached_property
    def notes(self) -> Path:
        """What reviewers say of single answers; no part of the results."""
        return self.path / "notes.jsonl"

    @cached_property
    def turns(self) -> Path:
        """Holds the turns of items in flight, if they are saved."""
        return self.path / "turns"

    def exists(self) -> bool:
        """Return whether the directory holds a run."""
        return self.run.exists() or self.has_journal

    def has_own_journal(self, info: RunInfo) -> bool:
        """Return whether the journal is the one that a complete run was finished with."""
        try:
            if info.journal_hash is not None:
                return hash_ends(self.journal) == info.journal_hash
            return self.journal_size() == info.journal_bytes
        except (OSError, RunDirectoryError):
            return False

    def derived_are_current(self, info: RunInfo) -> bool:
        """Whether summary and columns still say what the journal says."""
        return info.status == "complete" and self.has_own_journal(info)

    def may_be_running(self) -> bool:
        """Return whether a process may be writing the run; of a copy, that cannot be known."""
        return self.copied_at is not None or has_writer(
            self.curve if self.curve.exists() else self.journal
        )

    @property
    def copied_at(self) -> str | None:
        """When this copy of a run at a URL was made, in UTC; None where it is no copy."""
        try:
            content = read_whole(self.path / COPIED)
        except (OSError, RunDirectoryError):
            return None
        return content.decode() if re.fullmatch(rb"[0-9TZ:-]{1,20}", content) else None

    def refuse_replaced(self, info: RunInfo | None) -> None:
        """Raise RunDirectoryError where the directory no longer holds the run of this run.json.

        Called after other files were read: what they said was of that run, or nothing is said.
        """
        if info is None:
            return
        if not self.run.exists() or not self.read_info().is_same_run(info):
            raise RunReplaced(
                f"{self.path} was replaced by another run while it was read; load it again"
            )

    def origin(self, info: RunInfo) -> dict[str, Any]:
        """Which trajectories it holds: its own, or, where it scored others again, whose."""
        parent = info.config.get("parent")
        if isinstance(parent, dict):
            return {key: parent.get(key) for key in ("id", "journal_bytes")}
        size = self.journal_size() if self.has_journal else None
        return {"id": info.id, "journal_bytes": size}

    # --- run.json ---

    def read_info(self) -> RunInfo:
        """Read run.json; RunDirectoryError where there is none, or it cannot be read."""
        try:
            return read_document(self.run, RunInfo, FORMAT, VERSION)
        except FileNotFoundError:
            raise RunDirectoryError(
                f"{self.path} is not a run directory: it has no run.json"
            ) from None

    def write_info(self, info: RunInfo) -> None:
        """Replace run.json; a complete run has a number."""
        if info.status == "complete":
            self.draw_number(info)
        info.version = VERSION if info.settled is not None and info.settled.is_early else 1
        replace_file(self.run, msgspec.json.format(msgspec.json.encode(info)) + b"\n")

    def draw_number(self, info: RunInfo) -> bool:
        """Draw the run's number among those of its name; False if it has one, or needs none."""
        if info.number != 0 or not TIMESTAMP.fullmatch(self.path.name):
            return False
        folder = self.path.parent
        runs = [path for path in folder.iterdir() if TIMESTAMP.fullmatch(path.name)]
        others = [path for path in (*runs, folder) if (path / "run.json").exists()]
        info.number = draw_number(self.path, others)
        return True

    def read_summary(self, info: RunInfo) -> SummaryFile | None:
        """Read summary.json; None where it is not one of the journal as it is now."""
        if not self.derived_are_current(info):
            return None
        try:
            file = read_document(self.summary, SummaryFile, SUMMARY_FORMAT, SUMMARY_VERSION)
            is_own = info.summary_hash in (None, hash_ends(self.summary))
        except UnknownFormat:
            raise
        except (FileNotFoundError, RunDirectoryError):
            return None
        if not is_own or file.version != SUMMARY_VERSION:
            return None
        if file.usage is not None and not file.usage.is_possible():
            file.usage = None
        return file

    # --- Entering ---

    def claim(self) -> JournalWriter:
        """Make the directory and its journal, which must not be there yet, and lock it."""
        if self.exists():
            raise self.refusal()
        self.make()
        try:
            return JournalWriter(self.journal, new=True)
        except FileExistsError:
            raise self.refusal() from None

    def refusal(self) -> RunExists:
        """Say that a new run cannot be made here, and the ways on."""
        return RunExists(
            f"{self.path} already holds a run. Go on with it (EvalConfig(resume=True), --resume), "
            "choose another experiment_name, or remove it: "
            f"heldout rm {shlex.quote(str(self.path))}"
        )

    def holds_no_result(self) -> bool:
        """Return whether a run ended here without a score, an answer to score, or a saved turn."""
        try:
            if self.read_info().status == "complete" or has_writer(self.journal):
                return False
            journals = [self.journal, ahead_path(self.journal)]
            return not self.has_saved_turns() and all(
                record.is_empty()
                for journal in journals
                if journal.exists() or journal == self.journal
                for record in records(journal, RecordKey)
            )
        except (RunDirectoryError, OSError):  # what cannot be read may well hold results
            return False

    def has_saved_turns(self) -> bool:
        """Return whether there are turns of items that have not ended."""
        return any(self.turns.glob("*.json"))

    def make(self) -> None:
        """Make the directory, with those above it."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise storage_error(self.path, problem) from problem

    def make_turns(self) -> None:
        """Make the folder of saved turns; RunDirectoryError where it is a link."""
        if self.turns.is_symlink():
            raise link_error(self.turns)
        self.turns.mkdir(exist_ok=True)

    def remove_leftovers(self) -> None:
        """Remove half-written files of a killed process; for whoever holds the journal's lock."""
        for directory in (self.path, self.turns):
            if directory == self.turns and (not directory.is_dir() or directory.is_symlink()):
                continue
            for entry in os.scandir(directory):
                if LEFTOVER.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                    Path(entry.path).unlink(missing_ok=True)

    def remove_empty(self) -> None:
        """Remove a directory in which nothing was run."""
        self.journal.unlink(missing_ok=True)
        self.run.unlink(missing_ok=True)
        with suppress(OSError):  # it holds something that is not ours
            self.path.rmdir()

    def check_resumable(
        self, info: RunInfo, config: dict[str, Any], functions: dict[str, Any]
    ) -> None:
        """Refuse to resume a run whose results would not be comparable with new ones."""
        imported = info.config.get("imported")
        if isinstance(imported, dict):
            raise ResumeMismatch(
                f"{self.path} cannot be resumed: it was imported from {imported.get('file')}, and "
                "another package ran its items",
                remedy="",
            )
        described: list[Any] = [info.functions, functions]
        if "parent" not in config:  # else nobody is asked
            described += [info.config.get("endpoint"), config.get("endpoint")]
        unknown = _unknown_in(described)
        if unknown:
            raise ResumeMismatch(
                f"{self.path} cannot be resumed, since nothing tells whether the same model would "
                f"go on with it: {'; '.join(dict.fromkeys(unknown))}",
                remedy="",
            )
        different = [
            *_differences(_without_longer(info.config, config), result_changing(config)),
            *_differences(info.functions, functions),
        ]
        if different:
            raise ResumeMismatch(
                f"{self.path} cannot be resumed, since its results would not belong together: "
                + "; ".join(different),
                self._remedy(info, functions),
            )

    def _remedy(self, info: RunInfo, functions: dict[str, Any]) -> str:
        """Say what to do about a change that keeps a run from being resumed."""
        if info.functions.get("score_fn") == functions.get("score_fn"):
            return "Undo the change"
        rescore = f"`heldout rescore {shlex.quote(str(self.path))} --scorer FILE.py:score_fn`"
        if info.status != "complete":
            rescore = f"finish it as it was and then have {rescore}"
        else:
            rescore = f"have {rescore}"
        return f"Undo the change; {rescore} score the saved answers with the new function"


def _unknown_in(described: Any) -> list[str]:
    """Find the reason in a description, if any, why a model cannot be identified."""
    if isinstance(described, dict):
        reason = described.get("unknown")
        return [reason] if isinstance(reason, str) else _unknown_in([*described.values()])
    if isinstance(described, list):
        return [reason for part in described for reason in _unknown_in(part)]
    return []


def _without_longer(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Return what a resumed run must share; a longer selection of the same order goes on."""
    shared = result_changing(before)
    if "order" in before:  # a longer selection is in another order
        return shared
    was, wanted = before.get("max_samples"), now.get("max_samples")
    if isinstance(was, int) and (wanted is None or wanted > was):
        shared["max_samples"] = wanted
    return shared


def _differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    different = []
    for key in {**before, **now}:
        was, is_now = before.get(key), now.get(key)
        if was == is_now or key == PARTS:
            continue
        if key == "endpoint.source":
            different.append("the model function, or the model in it, has changed")
        elif key == "endpoint.version":
            different.append(f"the model has changed (version {was}, now {is_now})")
        elif (
            "." not in key  # a function, not a setting
            and isinstance(was, dict)
            and isinstance(is_now, dict)
            and was.get("name") == is_now.get("name")
        ):
            name = was.get("name")
            function = key if name in (None, key) else f"{name} ({key})"
            parts = [(functions.get(PARTS) or {}).get(key) for functions in (before, now)]
            changes = name_changes(*parts)
            different.append(
                f"the code of {function}, or of something it uses, has changed"
                + (f": {changes}" if changes else "")
            )
        else:
            different.append(f"{key} was {_short(was)}, is now {_short(is_now)}")
    return different


def _short(value: Any) -> str:
    if isinstance(value, dict):
        value = value.get("name", value)
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"


def unused_name(output_dir: Path) -> str:
    """A name for a run whose user did not choose one."""
    base = time.strftime("eval-%Y%m%d-%H%M%S", time.gmtime())
    name, number = base, 2
    while RunDir(output_dir / name).exists():
        name, number = f"{base}-{number}", number + 1
    return name


def hash_ends(path: Path) -> str:
    """Return the size of an ordinary file, a colon, and a hash of its first and last 64 KiB.

    Files of two runs differ there, since every result has the time that it took; a journal of
    gigabytes takes no longer than a short one.
    """
    with open_to_read(path) as file:
        size = os.fstat(file.fileno()).st_size
        digest = hashlib.blake2b(file.read(HASHED_BYTES), digest_size=16)
        file.seek(max(file.tell(), size - HASHED_BYTES))
        digest.update(file.read(HASHED_BYTES))
    return f"{size}:{digest.hexdigest()}"


def now() -> str:
    """Return the time in UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


# --- Provenance ---------------------------------------------------------------------------------

ALWAYS_RECORDED = ("numpy", "torch", "transformers")
RECORDED_IF_IMPORTED = (
    "accelerate", "anthropic", "datasets", "gymnasium", "litellm", "math_verify", "mujoco",
    "openai", "peft", "ray", "sglang", "stable_baselines3", "tinker", "trl", "verifiers", "vllm",
)  # fmt: skip
"""Packages, by the name of their module, that can change a result."""
GIT_SECONDS = 2.0
"""Time that git may take: a repository on a slow disk must not hold up an eval."""
ARGUMENT_CHARACTERS = 1000
"""Characters of an argument that are kept: `python -c` has a whole program in one."""


def package_versions() -> dict[str, str]:
    """Look up versions: heldout, Python, NumPy, torch, transformers, and others if imported."""
    versions = {"heldout": __version__, "python": platform.python_version()}
    imported = [name for name in RECORDED_IF_IMPORTED if name in sys.modules]
    for name in (*ALWAYS_RECORDED, *imported):
        installed = _package_version(name)
        if installed is not None:
            versions[name] = installed
    return versions


@cache
def _package_version(name: str) -> str | None:
    """Return the version of a package; cached, since each look reads the package's metadata."""
    try:
        return version(name)
    except PackageNotFoundError:
        # vLLM for a CPU is another distribution with the same module.
        own = getattr(sys.modules.get(name), "__version__", None)
        return own if isinstance(own, str) else None


def read_git_state() -> GitState | None:
    """Read commit and dirtiness of the working directory when this process first asked."""
    return _git_state_of(Path.cwd())


@cache
def _git_state_of(directory: Path) -> GitState | None:
    command = ["git", "-c", "core.fsmonitor=false", "status", "--porcelain=v2", "--branch"]
    try:
        status = subprocess.run(
            [*command, "--untracked-files=no"],
            cwd=directory,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=GIT_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    lines = status.stdout.decode(errors="replace").splitlines()
    commit = next((line.split()[2] for line in lines if line.startswith("# branch.oid ")), "")
    if not re.fullmatch("[0-9a-f]{40,64}", commit):  # "(initial)": there is no commit yet
        return None
    return GitState(commit, any(not line.startswith("#") for line in lines))


def redact_command(arguments: Sequence[str]) -> list[str]:
    """Replace keys in a command line by "[redacted]".

    That is the value of an option or setting named like a key, what looks like a key, a password in
    a URL, and what a variable such as OPENAI_API_KEY holds.
    """
    redacted: list[str] = []
    for i, argument in enumerate(arguments):
        name, equals, _ = argument.partition("=")
        if equals and is_secret_name(name):
            argument = f"{name}={REDACTED}"
        elif i and arguments[i - 1].startswith("-") and is_secret_name(arguments[i - 1]):
            argument = REDACTED
        redacted.append(cut(redact_text(argument), ARGUMENT_CHARACTERS))
    return redacted
