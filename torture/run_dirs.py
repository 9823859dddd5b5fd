"""Run directories that are not what they should be: every command that reads one says so in a line.

Each case copies a good run (or curve), spoils one to three of its files, runs commands on it and
requests pages of the viewer. None may raise, hang, print what a terminal obeys, run code that is in
a file, or touch or show what is outside; one that refuses says so in one line. The suite runs a
hundred cases (`tests/cli/test_fuzzed_run_dirs.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import io
import json
import logging
import os
import pickle
import random
import shutil
import signal
import socket
import traceback
import unicodedata
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from heldout import EvalReport, EvalResult, Message, Metric, Sample, Score, Trajectory
from heldout.cli.main import run_cli
from heldout.errors import HeldoutError
from heldout.store.columns import summarize_results
from heldout.store.jsonl import read_whole
from heldout.store.report import finish
from heldout.store.run_dir import RunDir, RunInfo, now
from heldout.training.curve.points import (
    CurvePoint,
    CurveWriter,
    ItemOutcome,
    pending_point,
    request_stop,
)
from heldout.viewer.pages import Pages
from heldout.viewer.server import Viewer

OBEYED = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\x7f\r\n\x1b[1A"
"""Title, clear, colour, right-to-left, delete, and a line over the one before."""
LONGEST = 30.0
"""Seconds a command may take: more is a hang."""
SAID = ("Error: ", "Eval failed: ")
BESIDE = ("Results so far are saved to ", "Moved damaged ", "No process seems ", "Resuming ")
BESIDE_PARTS = ("damaged line", "cannot be read", ": the first item that errored: ")
"""How lines begin, and what is in lines, that may stand on stderr beside the one line."""
OUTSIDE = "outside"
"""A folder beside the run, which links lead to."""
SECRET = "what is outside is nobody's business"
OWNED = "owned"
"""A file that is there once code in a file was run."""
COMMANDS_PER_CASE, PAGES_PER_CASE = 1, 1
HOST = "127.0.0.1:8765"

EVAL = """
from heldout import EvalConfig, Metric, Sample, Score

config = EvalConfig(endpoint=lambda messages: "x", experiment_name="run", output_dir=".")

def load_dataset():
    return [Sample(f"q{i}", {"question": f"say {i}"}) for i in range(6)]

def score_fn(trajectory, sample):
    return Score((Metric("correct", 1.0, weight=1.0),))

def judge(messages):
    return '{"reasoning": "so", "verdict": "equal"}'
"""
EVALS = """
show run | show run --json | show run --failures 3 | show run --failures 3 --json
show run --passes 3 | show run --sample q1 | show run --pass-at 2 | show run --cluster topic
repair run | list --output-dir .
list --output-dir . --json | show run --by topic | show run --by topic --cluster level --json
show run --by ended_by --by topic | compare run good --allow incomplete
sql run from/**/results | sql run select/**/sample_id,answer,metadata/**/from/**/results --json
show run --where sample_id<>'q0' | show run --by topic --where reward=1 --json
compare good run --by topic --flips 3 --json | compare good run --markdown
compare run good --metric pass@2 | compare run good --metric correct --cluster topic
gate run --baseline good --no-worse-than 0.1 | gate run --min-mean 0.5 --json
gate good --baseline run --no-worse-than 0.1 --by topic --markdown
power run --detect 0.1 | power good --baseline run --detect 0.1 --json
aggregate run good --repetitions 20 | aggregate run --runs level --tasks topic --repetitions 20
rescore run --scorer eval.py:score_fn --name again | run eval.py --resume
tool-calls requests.jsonl --model openai:m@http://127.0.0.1:9/v1 --baseline run
check judge labels.jsonl --judge eval.py:judge --epochs 1 --cache run/verdicts.db
view run --export out.html --with-secrets | view run good --export out.html --samples all
"""
CURVES = """
show run | show run --json | show run@last | show run --step 50 | repair run
show run --step 50 --failures 2 | compare run@0 run@last --allow incomplete | show run --by topic
gate run@last --min-mean 0.2 | gate run@last --baseline run@0 --no-worse-than 0.1 | curve flips run
curve flips run --json | curve flips run --from 0 --to 50 | curve watch run --once
curve watch run --once --metric correct
curve plot run -o out.svg | curve stop run
curve watch run --once --json | power run@last --detect 0.1
rescore run@last --scorer eval.py:score_fn --name again | aggregate run@0 run@last --repetitions 20
show run/steps/00000050 --by topic | curve show run | curve show run --step 50 --failures 2
sql run@50 from/**/results | list --output-dir . --json
view run --export out.html --with-secrets --samples all
"""
EVAL_PAGES = """
runs | run?name=run | slices?name=run&by=topic | slices?name=run&by=key | sample?name=run&id=q1
rows?name=run&limit=50 | rows?name=run&where=failed&sort=-reward&limit=50&cols=topic&cols=level
rows?name=run&where=topic:t1&sort=seconds&offset=2&limit=3 | record?name=run&id=q1&repeat=1
rows?name=run&where=answer:x&limit=5 | notes?name=run | compare?a=good&b=run
position?name=run&where=failed:yes&id=q1 | table-file?name=run&format=csv | export?name=run
several?name=run&name=good&name=run&allow=incomplete&allow=samples
compare?a=run&b=good&by=topic&metric=correct&allow=incomplete&allow=samples
pairs?a=good&b=run&limit=50 | pairs?a=run&b=good&where=lost:yes&allow=samples&limit=5
history?name=run&id=q1 | curve?name=run | run?name=..%2Foutside
events?name=run
"""
CURVE_PAGES = """
runs | curve?name=run | curve?name=run&metric=correct | curve?name=run&label=l | run?name=run
curve-flips?name=run&label=l&from_step=0&to_step=50 | strip?name=run&label=l | run?name=run@50
history?name=run&label=l&id=q1 | sample?name=run@0&id=q1 | rows?name=run@last&limit=5
compare?a=run@0&b=run@150&allow=incomplete&allow=samples | slices?name=run@50&by=topic
pairs?a=run@0&b=run@150&allow=incomplete&allow=samples&limit=9 | events?name=run
curves?name=run&label=l | export?name=run | notes?name=run@50
"""


# --- Good runs ----------------------------------------------------------------------------------


def results(odd: str) -> list[EvalResult]:
    found = []
    for i in range(6):
        metadata = {"topic": f"t{i % 2}{odd}", "level": i % 3, f"key{odd}": odd or None}
        asked = [{"role": "user", "content": f"say {i}{odd}"}]
        sample = Sample(
            f"q{i}{odd}", {"question": f"say {i}{odd}", "messages": asked}, f"x{odd}", metadata
        )
        for repeat in range(2):
            said = Message("assistant", f"x{odd}", reasoning=f"why{odd}")
            seen = {"extracted": f"x{odd}", "note": f"n{odd}", "reply": f"r{odd}"}
            metrics = (
                Metric("correct", float(i % 2), weight=1.0, metadata=seen),
                Metric(f"length{odd}", 3.0 + i),
            )
            error = f"it broke{odd}" if i == 5 else None
            messages = (Message("user", f"say {i}{odd}"), said)
            score = Score(metrics) if error is None else Score()
            found.append(
                EvalResult(
                    sample.id, sample, Trajectory(messages), score, repeat=repeat, error=error
                )
            )
    return found


def make_run(path: Path, odd: str = "") -> None:
    given = results(odd)
    config = {
        "experiment_name": f"run{odd}",
        "repeats": 2,
        "endpoint": {"kind": "function", "model": f"m{odd}", "base_url": f"http://{odd}"},
        "pass_threshold": 0.5,
        "parent": {"run": f"p{odd}"} if odd else None,
    }
    EvalReport(given, summarize_results(given), config).save(path)


def make_curve(path: Path, odd: str = "") -> None:
    path.mkdir()
    info = RunInfo.new({"kind": "midrun", "label": f"l{odd}", "every_steps": 50}, {})
    info.status, info.reason = "interrupted", f"why{odd}"
    RunDir(path).write_info(info)
    writer = CurveWriter(path / "curve.jsonl")
    for step in (0, 50, 100, 150):
        outcomes = tuple(ItemOutcome(f"q{i}{odd}", float((i + step) % 3 > 0)) for i in range(8))
        skip = step == 100
        summary: dict[str, int | float | bool | None] = {
            "n": 8,
            "n_errors": 0,
            "mean": 0.5,
            "mean_scored": 0.5,
            "ci_low": 0.1,
        }
        summary |= {"ci_high": 0.9, "pass_rate": 0.5, "metric_correct": 0.5, f"metric_{odd}x": 1.0}
        name = f"steps/{step:08d}"
        writer.append(
            CurvePoint(
                label=f"l{odd}",
                step=step,
                session=f"one{odd}",
                time=now(),
                seconds=1.0,
                summary=None if skip else summary,
                skipped=f"no memory{odd}" if skip else None,
                partial=f"late{odd}" if step == 50 else None,
                outcomes=() if skip else outcomes,
                asked=8,
                of=8,
                run=None if skip else name,
                decoding={"dtype": f"d{step}{odd}"},
                stop=f"stop{odd}" if step == 150 else None,
            )
        )
        if not skip:
            make_run(path / name, odd)
    pending = pending_point("e", 200, f"one{odd}", saved_at="/x")
    writer.append(msgspec.structs.replace(pending, label=f"l{odd}", saved_at=f"/x{odd}"))
    writer.close()
    request_stop(path, f"enough{odd}")


def make_all(folder: Path) -> None:
    for name, odd in (("plain", ""), ("odd", OBEYED)):
        make_run(folder / f"eval-{name}", odd)
        make_curve(folder / f"curve-{name}", odd)
        failed = folder / f"failed-{name}"
        make_run(failed, odd)
        info = RunDir(failed).read_info()
        info.status, info.reason, info.journal_bytes = "failed", f"why{odd}", None
        RunDir(failed).write_info(info)
    make_run(folder / "good")
    finish(RunDir(folder / "good"), RunDir(folder / "good").read_info(), 12)
    outside = folder / OUTSIDE
    make_run(outside)
    (outside / "secret.txt").write_text(SECRET)
    (folder / "eval.py").write_text(EVAL)
    request = {"messages": [{"role": "user", "content": "another"}]}
    (folder / "requests.jsonl").write_text(json.dumps(request) + "\n")
    label = {"question": "q", "answer": "a", "ground_truth": "a", "label": True}
    (folder / "labels.jsonl").write_text(json.dumps(label) + "\n")
    with quiet(Stream(), Stream()), contextlib.chdir(folder):
        check = "check judge labels.jsonl --judge eval.py:judge --epochs 1 --cache verdicts.db"
        assert run_cli(check.split()) == 0


# --- Spoiling -----------------------------------------------------------------------------------


def deep(rng: random.Random) -> str:
    depth = rng.choice([50, 200, 900, 3000, 100_000])
    begin, end = rng.choice([("[", "]"), ('{"a":', "}")])
    return begin * depth + "1" + end * depth


HOSTILE = [
    "<script>alert(1)</script>",
    f"'; COPY (SELECT 1) TO '{OWNED}'; --",
    f"__import__('os').system('touch {OWNED}')",
    f"$(touch {OWNED})",
    f"../{OUTSIDE}",
    f"/proc/self/cwd/{OUTSIDE}/secret.txt",
    f"file.py:touch {OWNED}",
    "{{7*7}}",
    "@everyone ![x](http://127.0.0.1:9/x)",
    "=cmd|'/c calc'!A1",
    "smollm2",
    "inf",
    "-",
    ".",
]
ODD: list[Callable[[random.Random], Any]] = [
    lambda rng: None,
    lambda rng: rng.random() < 0.5,
    lambda rng: rng.choice([0, -1, 1, 7, 2**31, 2**53, 2**63, 2**64, -(2**63), 10**30]),
    lambda rng: rng.choice([0.5, -1.5, 1e300, -1e308, 1e-320, 5e15]),
    lambda rng: rng.choice(["", "x", "true", "1", "\ud800", "../../x", "q0", "a" * 100_000]),
    lambda rng: rng.choice([OBEYED, f"x{OBEYED}", "[red]x[/red]", "%s{}", "\u0000"]),
    lambda rng: rng.choice(HOSTILE),
    lambda rng: [],
    lambda rng: {},
    lambda rng: [[1], {"a": OBEYED}],
    lambda rng: {OBEYED: OBEYED, "format": 1},
]


LITERALS = {"HUGE": "1" * 5000, "EXPONENT": "1e400", "NAN": "NaN", "INFINITE": "-Infinity"}
"""Numbers that JSON texts may have and Python would not write."""


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of everything in a JSON value, which may be nested deeply."""
    pending = [value]
    while pending:
        value = pending.pop()
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        for key, one in list(inner):
            yield value, key
            if isinstance(one, dict | list):
                pending.append(one)


def spoil_json(rng: random.Random, raw: bytes) -> bytes:
    lines = raw.splitlines() if raw.count(b'"format"') and raw.count(b"\n") > 1 else [raw]
    whole = raw.startswith(b"{\n")  # an indented document
    if whole:
        lines = [raw]
    which = rng.randrange(len(lines))
    try:
        value = json.loads(lines[which])
    except (ValueError, RecursionError):
        return raw
    if not isinstance(value, dict | list) or not value:
        return raw
    for _ in range(rng.choice([1, 1, 1, 3])):
        found = list(places(value))
        if not found:
            break
        container, key = rng.choice(found)
        act = rng.random()
        if act < 0.15:
            del container[key]
        elif act < 0.25 and isinstance(container, dict):
            container[f"{key}{OBEYED}"] = container.pop(key)
        elif act < 0.3:
            container[key] = "DEEP"
        else:
            container[key] = rng.choice(ODD)(rng)
    try:
        text = json.dumps(value)
    except RecursionError:  # it was nested deeply before
        return raw
    for mark, literal in LITERALS.items():
        if rng.random() < 0.05:
            text = text.replace("1.0", mark, 1).replace(mark, literal, 1)
    if '"DEEP"' in text:
        text = text.replace('"DEEP"', deep(rng))
    lines[which] = text.encode()
    if not whole and rng.random() < 0.1:
        lines.insert(which, lines[which])
    return b"\n".join(lines) + b"\n"


def spoil_bytes(rng: random.Random, raw: bytes) -> bytes:
    act, place = rng.random(), rng.randrange(len(raw) + 1)
    if act < 0.3:
        return raw[:place]
    if act < 0.6:
        changed = bytearray(raw)
        for _ in range(rng.choice([1, 3, 30])):
            if changed:
                changed[rng.randrange(len(changed))] = rng.randrange(256)
        return bytes(changed)
    if act < 0.8:
        return raw[:place] + rng.randbytes(rng.choice([1, 10, 5000])) + raw[place:]
    if act < 0.9:
        return raw[:place] + raw[rng.randrange(len(raw) + 1) :]
    return rng.choice([b"", b"\n", b"{}", b"[]", b"null", b"[" * 100_000, rng.randbytes(200)])


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


KINDS = ("fifo", "loop", "dangling", "device", "folder", "socket", "gone", "outside", "hole")


def replace_by_special(rng: random.Random, path: Path) -> None:
    """Whatever else a name can stand for."""
    remove(path)
    kind = rng.choice(KINDS)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "dangling":
        path.symlink_to("nowhere")
    elif kind == "device":
        path.symlink_to(rng.choice(["/dev/zero", "/dev/full", "/dev/stdin", "/proc/self/mem"]))
    elif kind == "outside":
        same = Path(OUTSIDE, path.name)
        path.symlink_to((same if same.exists() else Path(OUTSIDE, "secret.txt")).absolute())
    elif kind == "hole":
        path.touch()
        os.truncate(path, rng.choice([2**20, 2**28, 10 * 2**30]))
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound, contextlib.chdir(path.parent):
            bound.bind(path.name)


class _Touches:
    """What leaves a file behind where it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, (OWNED,)


EXTRA = (
    *(
        "results.damaged",
        "results.repaired",
        ".results.parquet.tmp",
        "curve.damaged",
        "notes.jsonl",
    ),
    *("curve.repaired", "stop", "pending.json", "curve.jsonl", "verdicts.db", "steps"),
)


def spoil(rng: random.Random, run: Path) -> str:
    """Returns what was done."""
    ordinary = (path for path in run.rglob("*") if path.is_file() and not path.is_symlink())
    files = sorted(path for path in ordinary if path.stat().st_size < 2**24)  # no hole
    special = rng.random() < 0.25
    if special or not files:
        path = run / rng.choice(EXTRA) if rng.random() < 0.3 else rng.choice([*files, run])
        replace_by_special(rng, path)
        return f"special {path.name}"
    path = rng.choice(files)
    if rng.random() < 0.1:
        other = rng.choice(files)
        path.rename(path.with_name("swapped"))
        other = path.with_name("swapped") if other == path else other
        other.rename(path)
        path.with_name("swapped").exists() and path.with_name("swapped").rename(other)
        return f"swapped {path.relative_to(run)} and {other.relative_to(run)}"
    if rng.random() < 0.05:
        path.write_bytes(pickle.dumps(_Touches()))
        return f"pickle {path.relative_to(run)}"
    raw = path.read_bytes()
    json_like = path.suffix != ".parquet" and rng.random() < 0.7
    changed = spoil_json(rng, raw) if json_like else spoil_bytes(rng, raw)
    path.write_bytes(changed)
    if path.name == "results.jsonl" and rng.random() < 0.5:
        # A journal that run.json still calls the one that the other files were derived from.
        with contextlib.suppress(ValueError, OSError, TypeError, RecursionError, HeldoutError):
            info = json.loads(read_whole(path.parent / "run.json"))  # which may be spoiled, too
            info["journal_bytes"] = len(changed)
            (path.parent / "run.json").write_text(json.dumps(info))
    return f"{'json' if json_like else 'bytes'} {path.relative_to(run)}"


# --- Judging ------------------------------------------------------------------------------------


class Hang(BaseException):
    pass


class Stream(io.TextIOWrapper):
    def __init__(self, *, terminal: bool = False) -> None:
        self.terminal, self.bytes = terminal, io.BytesIO()
        super().__init__(self.bytes, encoding="utf-8", errors="replace")

    def isatty(self) -> bool:
        return self.terminal

    def text(self) -> str:
        self.flush()
        return self.bytes.getvalue().decode()


@contextlib.contextmanager
def quiet(out: Stream, err: Stream) -> Iterator[None]:
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield


def obeyed(text: str) -> set[str]:
    """Characters that a terminal would act on."""
    odd = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    return {c for c in set(text) - set("\n\t\u200c\u200d") if unicodedata.category(c) in odd}


def wrong_with(arguments: list[str], code: int, out: str, err: str) -> str | None:
    """What a command did that it must not; None where all is well."""
    if bad := obeyed(out + err):
        return f"printed {sorted(bad)!r}"
    if "Traceback" in err:
        return "printed a traceback"
    if SECRET in out + err:
        return "printed what is outside"
    if code not in ((0, 1, 2, 3, 4) if arguments[0] == "gate" else (0, 2, 4)):
        return f"exited {code}"
    said = [line for line in err.splitlines() if not line.startswith(BESIDE)]
    said = [line for line in said if not any(part in line for part in BESIDE_PARTS)]
    refused = [line for line in err.splitlines() if line.startswith(SAID)]
    failed = arguments[0] == "show" and code == 4  # a run that failed, perhaps without a result
    if code and not (out or failed) and len(refused) != 1:
        return f"exited {code} with {len(refused)} lines that say why"
    if len([line for line in said if line not in refused]):
        return "printed more than a line"
    return None


@contextlib.contextmanager
def deadline() -> Iterator[None]:
    """Raise Hang after a while, and end the process where that does not help."""

    def ring(*_: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, LONGEST)
    faulthandler.dump_traceback_later(4 * LONGEST, exit=True)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        faulthandler.cancel_dump_traceback_later()


def try_command(arguments: list[str], *, terminal: bool) -> str | None:
    """Run a command; what it did that it must not."""
    out, err = Stream(terminal=terminal), Stream()  # progress goes to a terminal's stderr
    try:
        with deadline(), quiet(out, err), warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", "verdicts of a judge cannot be kept")
            code = run_cli(arguments)
    except Hang:
        return "hangs\n" + traceback.format_exc(limit=-8)
    except BaseException:  # noqa: BLE001 - whatever it raises is the finding
        return "raised\n" + traceback.format_exc(limit=-6)
    found = wrong_with(arguments, code, out.text(), err.text())
    return found and f"{found}\nstdout: {out.text()[-600:]!a}\nstderr: {err.text()[-1500:]!a}"


class _Traces(logging.Handler):
    """Keeps the traces of what the server could not answer."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.texts.append("".join(traceback.format_exception(*record.exc_info)))


def try_page(path: str) -> str | None:
    """Request a page of the viewer; what it did that it must not."""
    pages, traces = Pages([Path()]), _Traces()
    log = logging.getLogger("heldout")
    log.addHandler(traces)

    async def answer() -> tuple[int, bytes]:
        if path.startswith("events"):  # an endless stream: once what it polls
            events, _ = await asyncio.to_thread(pages.events, ["run"], "")
            return 200, msgspec.json.encode(events)
        app = Viewer(pages, token=None, hosts=frozenset({HOST})).app()
        app.freeze()
        request = make_mocked_request("GET", f"/api/{path}", headers={"Host": HOST}, app=app)
        response = await app._handle(request)
        assert isinstance(response, web.Response)
        assert isinstance(response.body, bytes)
        return response.status, response.body

    try:
        with deadline(), quiet(Stream(), Stream()), warnings.catch_warnings():
            warnings.simplefilter("error")
            status, body = asyncio.run(answer())
    except Hang:
        return "hangs\n" + traceback.format_exc(limit=-8)
    except BaseException:  # noqa: BLE001 - whatever it raises is the finding
        return "raised\n" + traceback.format_exc(limit=-6)
    finally:
        log.removeHandler(traces)
    if status >= 500:
        return f"answered {status}: a traceback\n{''.join(traces.texts)[-3000:]}"
    if SECRET.encode() in body:
        return "showed what is outside"
    try:
        json.loads(body)
    except ValueError as problem:
        return f"answered {status} with what is not JSON ({problem}): {body[:300]!a}"
    return None


def commands(text: str) -> list[list[str]]:
    return [part.split() for line in text.splitlines() for part in line.split("|") if part.split()]


OF_KIND = {
    "eval": (commands(EVALS), commands(EVAL_PAGES)),
    "failed": (commands(EVALS), commands(EVAL_PAGES)),
    "curve": (commands(CURVES), commands(CURVE_PAGES)),
}


def signature(folder: Path) -> dict[str, Any]:
    """What tells that a file was changed, added or removed."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        found[str(path)] = (status.st_mode, status.st_size, status.st_mtime_ns, status.st_ino)
    return found


def try_case(case: int, seed: int) -> list[str]:
    """Spoil a run and read it, in the working directory; problems, each with what was done."""
    rng = random.Random(f"{seed}:{case}")
    bases = sorted(path.name for path in Path().iterdir() if path.name.split("-")[0] in OF_KIND)
    base = rng.choice(bases)
    before = signature(Path(OUTSIDE))
    problems = []

    def tried(what: str, problem: str | None) -> None:
        if problem is None and signature(Path(OUTSIDE)) != before:
            problem = "touched what is outside"
        if problem is None and Path(OWNED).exists():
            remove(Path(OWNED))
            problem = "ran code that is in a file"
        if problem is not None:
            problems.append(f"case {seed}:{case}, {base}, {done}, {what}: {problem}")

    remove(Path("again"))
    remove(Path("run"))
    shutil.copytree(base, "run")
    shutil.copy("verdicts.db", "run/verdicts.db")
    done: list[str] = []
    for _ in range(rng.choice([1, 1, 2, 3])):
        done.append(spoil(rng, Path("run")))
        if not Path("run").is_dir() or Path("run").is_symlink():
            break
    reading, viewing = OF_KIND[base.split("-")[0]]
    for [page] in rng.sample(viewing, PAGES_PER_CASE):
        path = quote(page.replace("key", f"key{OBEYED}"), safe="/?&=@:%")
        tried(page, try_page(path))
    for arguments in rng.sample(reading, COMMANDS_PER_CASE):
        tried(" ".join(arguments), try_command(arguments, terminal=rng.random() < 0.3))
    return problems


def prepare(folder: Path) -> None:
    """Make the good runs in an empty folder, and set what terminals tell programs."""
    make_all(folder)
    os.environ |= {"TERM": "dumb", "COLUMNS": "100", "LINES": "40"}


def fuzz(cases: int, seed: int, folder: Path) -> Iterator[str]:
    """Problems, each with what was spoiled and the command; `folder` is empty."""
    prepare(folder)
    with contextlib.chdir(folder):
        for case in range(cases):
            yield from try_case(case, seed)
