"""`kill -9` at random moments: what was begun is finished to the same report, whatever it was.

A mode prepares a folder, says what is killed and what finishes it, and which facts must then be the
same as those of a run that nobody disturbed.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from heldout.cli.main import run_cli
from torture import evals, training
from torture.answering import serving
from torture.children import Child, Ended, ask_child, run_child
from torture.trials import Finding, Journal, Trial, scratch

PART, COUNT, SEED = "kills", 100, 7
HANG_SECONDS = 180.0
BEGUN = training.BEGUN
"""What a process prints from which on moments are counted."""
KILLED = "killed"
"""A file that tells a reader that the run it reads was killed."""

Call = Callable[[], "int | None"]


@dataclass(frozen=True, slots=True)
class Mode:
    """Something that may be killed."""

    name: str
    prepare: Call
    """Makes what the folder holds before."""
    attack: Call
    """What is killed."""
    finish: Call
    """What is done afterwards, by which all ends as if nobody had been killed."""
    facts: Callable[[], dict[str, Any]]
    """What must be the same. Under "keys": how often each item is there."""
    after_kill: Call | None = None
    """What must hold right after the kill: it returns 0."""
    marks: Callable[[], list[str]] | None = None
    """What is worth counting, right after the kill."""
    beside: Call | None = None
    """What runs at the same time; every other kill is of this one."""
    announces: bool = False
    """Whether it prints `BEGUN`."""
    starts_server: bool = False
    seconds: float = HANG_SECONDS


# --- Evals --------------------------------------------------------------------------------------


def heldout(*arguments: str) -> int:
    """Run a command of heldout in this process, and return its exit code."""
    return run_cli([*arguments])


def _prepare_eval() -> None:
    Path("eval.py").write_text(Path(evals.__file__).read_text())


def _prepare_half() -> None:
    _prepare_eval()
    child = Child(partial(heldout, "run", "eval.py", "--name", "run"), Path.cwd())
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and journal_lines(Path()) < 30:
        time.sleep(0.002)
    child.kill()
    child.wait(10)


def journal_lines(folder: Path) -> int:
    """Count the lines in the journal of the run, the header included."""
    journals = [*folder.glob("outputs/evals/run/*/results.jsonl")]
    return journals[0].read_bytes().count(b"\n") if journals else 0


def _prepare_finished() -> int:
    _prepare_eval()
    return heldout("run", "eval.py", "--name", "run", "--max-concurrent", "40")


GARBAGE = [b'{"sample": "half a li', b"\x00\xff\x00", b"[" * 5000, b'{"format": 7}']


def _prepare_damaged() -> None:
    _prepare_eval()
    more = ["-T", "count=2000", "--set", "repeats=1", "--max-concurrent", "100"]
    heldout("run", "eval.py", "--name", "run", *more)
    [journal] = Path("outputs/evals/run").glob("*/results.jsonl")
    header, *lines = journal.read_bytes().splitlines(keepends=True)
    for i, bad in enumerate(GARBAGE):
        lines.insert(300 * (i + 1), bad + b"\n")
    journal.write_bytes(header + b"".join(lines))


def facts_of_run(name: str) -> dict[str, Any]:
    """The items, the report and the summary of the only run of a name.

    Which turns came from a cache is left out: those of an item that was killed do, later.
    """
    from heldout.store.report import EvalReport

    [path] = [file.parent for file in Path("outputs/evals", name).glob("*/run.json")]
    keys: Counter[str] = Counter()
    for line in (path / "results.jsonl").read_bytes().splitlines()[1:]:
        record = json.loads(line)
        if record.get("error") is None:
            keys[f"{record['sample']['id']}:{record.get('repeat', 0)}"] += 1
    report = EvalReport.load(path)
    return {
        "keys": keys,
        "status": report.status,
        "summary": {
            name: value
            for name, value in json.loads((path / "summary.json").read_text())["summary"].items()
            if "cached" not in name
        },
        "rows": [
            [r.sample_id, r.repeat, r.score.reward, r.trajectory.answer, r.error]
            for r in report.results
        ],
        "columns": hashlib.sha256(_stable_columns(path)).hexdigest(),
    }


def _stable_columns(path: Path) -> bytes:
    """The columns that say what was measured, not how long it took."""
    import duckdb

    table = duckdb.from_parquet(str(path / "results.parquet"))
    left_out = ("second", "timing", "cached")
    names = [name for name in table.columns if not any(word in name for word in left_out)]
    return repr(table.select(*[f'"{name}"' for name in names]).fetchall()).encode()


def _facts_with_damaged() -> dict[str, Any]:
    [damaged] = Path("outputs/evals/run").glob("*/results.damaged")
    lines = set(damaged.read_bytes().splitlines())
    missing = [repr(bad[:40]) for bad in GARBAGE if bad not in lines]
    return {**facts_of_run("run"), "damaged lines that are gone": missing}


def cached_run(*more: str) -> int:
    return heldout(
        "run", "eval.py", "--model", f"openai:m@{os.environ['TORTURE_URL']}", "--cache", *more
    )


def _finish_cached() -> int:
    code = cached_run("--name", "run", "--resume")
    return code or cached_run("--name", "again", "--resume")


def _facts_cached() -> dict[str, Any]:
    from heldout.store.report import EvalReport

    cached = EvalReport.load("again").summary.get("n_cached")
    return {**facts_of_run("run"), "cached": cached, "again": facts_of_run("again")["rows"]}


def _read_on() -> int:
    """Read a run that grows, until it is finished or killed."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for arguments in (
            "show run --json",
            "sql run from/**/results",
            "list --json",
            "show run --failures 3",
        ):
            code = heldout(*(part.replace("/**/", " ") for part in arguments.split()))
            if code not in (0, 2, 4):  # 2: it is not there yet
                return code
        if any(Path("outputs/evals/run").glob("*/summary.json")) or Path(KILLED).exists():
            break
    return 0


def _export() -> int:
    return heldout("view", "outputs/evals", "--export", "out.html", "--samples", "all")


def _check_export() -> int:
    whole = Path("out.html")
    return int(whole.exists() and not whole.read_bytes().rstrip().endswith(b"</html>"))


def _facts_of_export() -> dict[str, Any]:
    return {"page": hashlib.sha256(Path("out.html").read_bytes()).hexdigest()}


# --- Agents -------------------------------------------------------------------------------------


def _agent() -> int:
    return heldout(
        *("agent", "CartPole-v1", "--policy", "eval.py:act", "--episodes", "40"),
        *("--num-envs", "4", "--save", "outputs/evals/run/1"),
    )


def _finish_agent() -> int:
    from heldout.errors import HeldoutError
    from heldout.vector.report import VectorReport

    path = Path("outputs/evals/run/1")
    if path.exists():
        try:
            VectorReport.load(path)
        except HeldoutError:  # the kill came while it was saved: it says so, and is removed
            shutil.rmtree(path)
        else:
            return 0
    return _agent()


# --- All modes ----------------------------------------------------------------------------------

_run = partial(heldout, "run", "eval.py", "--name", "run")
_resume = partial(heldout, "run", "eval.py", "--name", "run", "--resume")
_rescore = partial(heldout, "rescore", "run", "--scorer", "eval.py:slow_score", "--name", "again")
_facts = partial(facts_of_run, "run")

MODES = [
    Mode("run", _prepare_eval, _run, _resume, _facts),
    Mode("run --resume", _prepare_half, _resume, _resume, _facts),
    Mode(
        "run --cache",
        _prepare_eval,
        partial(cached_run, "--name", "run"),
        _finish_cached,
        _facts_cached,
        starts_server=True,
    ),
    Mode(
        "rescore",
        _prepare_finished,
        _rescore,
        partial(_rescore, "--resume"),
        partial(facts_of_run, "again"),
    ),
    Mode("view --export", _prepare_finished, _export, _export, _facts_of_export, _check_export),
    Mode(
        "repair",
        _prepare_damaged,
        partial(heldout, "repair", "run"),
        partial(heldout, "repair", "run"),
        _facts_with_damaged,
    ),
    Mode(
        "a run that show, sql and list read", _prepare_eval, _run, _resume, _facts, beside=_read_on
    ),
    Mode("agent", _prepare_eval, _agent, _finish_agent, _facts),
    *(
        Mode(
            f"training, evals {how}",
            training.prepare,
            partial(training.train, how),
            partial(training.train, how),
            training.facts,
            marks=training.marks,
            announces=True,
        )
        for how in training.WAYS
    ),
]


class Attacks:
    """The trials of one mode, in copies of a folder that is prepared once.

    Args:
        mode: What is killed.
        folder: Where.
        url: The address of a server, where it needs one.
        disturb: Called with a seed in each process of a trial, before anything else.
    """

    def __init__(
        self, mode: Mode, folder: Path, url: str, disturb: Callable[[float], None] | None = None
    ) -> None:
        self.mode, self.folder, self._disturb = mode, folder, disturb
        self._rng = random.Random(SEED)
        os.environ["TORTURE_URL"] = url
        os.environ["HELDOUT_CACHE"] = "cache"
        self._start = folder / "start"
        self._start.mkdir(parents=True)
        self._run(mode.prepare, self._start)
        whole = self.fresh("whole")
        begun = time.monotonic()
        child = Child(mode.attack, whole)
        self._await_begin(child)
        begun = time.monotonic() if mode.announces else begun
        ended = child.wait(mode.seconds)
        if ended.code != 0:
            raise RuntimeError(f"undisturbed: {ended.explain()}")
        self.took = time.monotonic() - begun
        if mode.starts_server:
            self._run(mode.finish, whole)
        self.expected = ask_child(mode.facts, whole, seconds=mode.seconds)

    def _run(self, call: Call, folder: Path) -> None:
        ended = run_child(call, folder, seconds=self.mode.seconds)
        if ended.code != 0:
            raise RuntimeError(f"prepared: {ended.explain()}")

    def fresh(self, name: str) -> Path:
        """Copy what was prepared."""
        path = self.folder / name
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(self._start, path)
        return path

    def _await_begin(self, child: Child) -> None:
        deadline = time.monotonic() + self.mode.seconds
        while self.mode.announces and BEGUN not in child.lines_out and time.monotonic() < deadline:
            if os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                break
            time.sleep(0.005)

    def _disturbed(self, call: Call, folder: Path) -> Child:
        seed = self._rng.random()

        def begin() -> int | None:
            if self._disturb is not None:
                self._disturb(seed)
            return call()

        return Child(begin, folder)

    def kill_one(self, number: int) -> Finding:
        """Kill it once, or twice, and finish it."""
        self._rng = rng = random.Random(f"{SEED}:{self.mode.name}:{number}")
        finding, moment = Finding(), rng.random()
        of_reader = self.mode.beside is not None and number % 2 == 1
        for _ in range(6):
            folder = self.fresh("trial")
            if self._attack(folder, moment * self.took, finding, of_reader=of_reader):
                break
            moment *= 0.6  # it was done before: that is no kill
        else:
            finding.marks.append("done before the kill")
        if rng.random() < 0.3 and not of_reader:
            child = self._disturbed(self.mode.finish, folder)
            self._await_begin(child)
            time.sleep(rng.random() * self.took)
            if self._end(child, "killed again", finding).code == -signal.SIGKILL:
                finding.marks.append("killed twice")
        self._judge(folder, finding)
        return finding

    def _attack(self, folder: Path, seconds: float, finding: Finding, *, of_reader: bool) -> bool:
        child = self._disturbed(self.mode.attack, folder)
        beside = Child(self.mode.beside, folder) if self.mode.beside else None
        self._await_begin(child)
        time.sleep(seconds)
        if beside is not None and of_reader:
            killed = self._end(beside, "the reader", finding, child)
            ended = child.wait(self.mode.seconds)
            self.blame(ended, "the run beside a killed reader", finding)
        else:
            killed = self._end(child, "the victim", finding, beside)
            if beside is not None:
                (folder / KILLED).touch()
                read = beside.wait(self.mode.seconds)
                self.blame(read, "readers", finding)
        return killed.code == -signal.SIGKILL

    def _end(self, child: Child, what: str, finding: Finding, beside: Child | None = None) -> Ended:
        child.kill()
        ended = child.wait(self.mode.seconds)
        if "Traceback" in ended.err:
            finding.add("traceback", f"{what}: {ended.explain()}")
        if left := child.leftovers(frozenset({beside.pid} if beside else ())):
            finding.add("hang", f"{what}: its processes {left} outlive it")
        return ended

    def blame(self, ended: Ended, what: str, finding: Finding) -> None:
        """Add what is wrong with the end of a process that should have succeeded."""
        if ended.hung:
            finding.add("hang", f"{what}: {ended.explain()}")
        elif "Traceback" in ended.err:
            finding.add("traceback", f"{what}: {ended.explain()}")
        elif ended.code != 0:
            finding.add("other", f"{what}: {ended.explain()}")

    def _judge(self, folder: Path, finding: Finding) -> None:
        mode = self.mode
        if mode.after_kill is not None:
            checked = run_child(mode.after_kill, folder, seconds=mode.seconds)
            self.blame(checked, "right after the kill", finding)
        if mode.marks is not None:
            finding.marks += ask_child(mode.marks, folder, seconds=mode.seconds)
        ended = self._disturbed(mode.finish, folder).wait(mode.seconds)
        self.blame(ended, "finishing", finding)
        self.compare(folder, finding)

    def compare(self, folder: Path, finding: Finding) -> None:
        """Compare the facts with those of a run that nobody disturbed."""
        try:
            facts = ask_child(self.mode.facts, folder, seconds=self.mode.seconds)
        except RuntimeError as problem:
            finding.add("lost", f"there is nothing to compare: {problem}")
            return
        keys, expected = facts.get("keys", {}), self.expected.get("keys", {})
        if lost := sorted(expected.keys() - keys.keys()):
            finding.add("lost", f"{len(lost)} items: {lost[:5]}")
        if doubled := [key for key, times in keys.items() if times > expected.get(key, 0)]:
            finding.add("doubled", f"{len(doubled)} items: {doubled[:5]}")
        for name, value in self.expected.items():
            if name != "keys" and facts.get(name) != value:
                found, wanted = str(facts.get(name)), str(value)
                finding.add("other", f"{name} is {found[:600]}, undisturbed {wanted[:600]}")


def make_trials(scale: float, journal: Journal) -> Iterator[Trial]:
    """Yield the trials of all modes."""
    return trials_of(PART, MODES, max(1, round(COUNT * scale)))


def trials_of(
    part: str, modes: Iterable[Mode], count: int, disturb: Callable[[float], None] | None = None
) -> Iterator[Trial]:
    """Yield so many trials of each mode; what they need is made when the first of them runs."""
    for mode in modes:
        with scratch(part) as folder, ExitStack() as stack:

            @cache
            def make_attacks(mode: Mode, folder: Path, stack: ExitStack) -> Attacks:
                url = stack.enter_context(serving(folder / "server")) if mode.starts_server else ""
                return Attacks(mode, folder / "mode", url, disturb)

            start = partial(make_attacks, mode, folder, stack)
            for number in range(count):
                yield Trial(part, mode.name, number, partial(_kill_one, start, number))


def _kill_one(start: Callable[[], Attacks], number: int) -> Finding:
    return start().kill_one(number)
