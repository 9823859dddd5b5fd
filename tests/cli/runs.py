"""Runs and curves that several tests of the command line read, and a terminal to show them on."""

from __future__ import annotations

import asyncio
import codecs
import os
import re
import select
import shutil
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

from heldout import (
    EvalConfig,
    EvalReport,
    EvalResult,
    Message,
    Metric,
    Sample,
    Score,
    Stop,
    Trajectory,
    evaluate,
)
from heldout.store.columns import summarize_results
from heldout.store.run_dir import RunDir, now
from heldout.training.curve.points import CurvePoint, CurveWriter, ItemOutcome

LEVELS = ("hard", "easy", "medium")


BROKEN = "broken"


A = [1.0, 0.0, 0.0, 0.0] * 15


BETTER = [1.0, 1.0, 1.0, 0.0] * 14 + [0.0, 0.0, 0.0, 1.0]


SIMILAR = [1.0, 0.0, 0.0, 0.0] * 14 + [0.0, 1.0, 0.0, 0.0]


def score_fn(trajectory: Trajectory, sample: Sample) -> Score:
    return Score(
        (Metric("right", float(trajectory.answer), weight=1.0), Metric("size", len(sample.id)))
    )


def other_score_fn(trajectory: Trajectory, sample: Sample) -> Score:
    return Score((Metric("right", float(trajectory.answer) / 2, weight=1.0),))


def make_run(
    name: str,
    answers: Sequence[float | str],
    *,
    ids: Sequence[str] | None = None,
    metadata: Sequence[Mapping[str, object]] | None = None,
    score: Any = score_fn,
    output_dir: str = "outputs/evals",
    repeats: int = 1,
) -> None:
    """A run whose model gives these answers, one a sample; "broken" is one that never comes."""
    names = ids or [f"q{i}" for i in range(len(answers))]
    about = metadata or [{"difficulty": LEVELS[i % 3], "book": i // 2} for i in range(len(answers))]
    samples = [
        Sample(id, {"question": f"{i}"}, metadata=dict(data))
        for i, (id, data) in enumerate(zip(names, about, strict=True))
    ]

    def model(messages: Sequence[Message]) -> str:
        answer = answers[int(messages[-1].text)]
        if answer == BROKEN:
            raise ValueError("it broke")
        return str(answer)

    config = EvalConfig(
        endpoint=model,
        experiment_name=name,
        output_dir=output_dir,
        progress=False,
        retries=0,
        repeats=repeats,
        max_error_rate=1,
    )
    asyncio.run(evaluate(samples, config, score))


def copy_runs(saved: Path) -> None:
    """Copy the runs before, after and similar into outputs/evals, after making them once."""
    if not (saved / "compared").exists():
        for name, answers in (("before", A), ("after", BETTER), ("similar", SIMILAR)):
            make_run(name, answers, output_dir=str(saved / "compared"))
    shutil.copytree(saved / "compared", "outputs/evals")


def save(*results: EvalResult, path: str = "outputs/evals/made", **config: object) -> None:
    whole = {"experiment_name": "made", "repeats": 1, **config}
    EvalReport(results, summarize_results(results), whole).save(path)


def result(
    id: str = "q",
    *messages: Message,
    truth: object = None,
    error: str | None = None,
    metric: str = "correct",
    metadata: dict[str, object] | None = None,
    repeat: int = 0,
    truncated: bool = False,
    value: float = 0.0,
) -> EvalResult:
    return EvalResult(
        id,
        Sample(id, {"question": f"{id}?"}, truth, metadata or {}),
        Trajectory(messages or (Message("user", "?"),), Stop(truncated=truncated)),
        Score() if error else Score((Metric(metric, value, weight=1.0),)),
        repeat=repeat,
        error=error,
    )


# --- Curves

CURVE_RUN = Path("outputs/evals/rl_eval")


CURVE = CURVE_RUN / "curve.jsonl"


CONFIG: dict[str, Any] = {
    "kind": "midrun",
    "label": "rl_eval",
    "every_steps": 50,
    "pass_threshold": 0.5,
}


def point(step: int, *rewards: float | None, **changed: Any) -> CurvePoint:
    """A point of samples a, b, c … with these rewards; without any, a skip."""
    outcomes = tuple(
        ItemOutcome(chr(97 + i), reward, error="it broke" if reward is None else None)
        for i, reward in enumerate(rewards)
    )
    scored = [reward for reward in rewards if reward is not None]
    summary: dict[str, Any] = {
        "n": len(rewards),
        "n_errors": len(rewards) - len(scored),
        "mean": sum(scored) / max(1, len(rewards)),
        "mean_scored": sum(scored) / max(1, len(scored)),
        "ci_low": 0.1,
        "ci_high": 0.9,
        "pass_rate": 0.5,
        "metric_length": 12.0,
        "metric_length_n": len(scored),
        "metric_length_stderr": 1.0,
    }
    given: dict[str, Any] = {
        "label": "rl_eval",
        "step": step,
        "session": "one",
        "time": now(),
        "seconds": 2.0,
        "summary": summary if rewards else None,
        "skipped": None if rewards else "no memory left",
        "outcomes": outcomes,
        "asked": len(rewards),
        "of": len(rewards),
    }
    return CurvePoint(**{**given, **changed})


POINTS = (
    point(0, 0.0, 0.0, 1.0, None),
    point(50, 1.0, 0.0, 1.0, 1.0),
    point(100),
    point(150, 1.0, 1.0, 0.0, 1.0, final=True),
)


def append(*points: CurvePoint) -> None:
    writer = CurveWriter(CURVE)
    for one in points:
        writer.append(one)
    writer.close()


# --- What is printed


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


def command_of(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "heldout", *arguments]


def rows(out: str) -> list[list[str]]:
    """The cells of each line."""
    return [re.split(r" {2,}", line.strip()) for line in out.splitlines() if line.strip(" ─")]


HOSTILE = (
    "a | b",
    "\\| x",
    "`code` ```",
    "<img src=x onerror=alert(1)> <!-- </code></details>",
    "[link](https://e.com) ![image](x) <https://e.com>",
    "https://e.com www.e.com WWW.e.com",
    "@user someone@e.com",
    "#12 owner/repo#12 GH-12",
    "**bold** _it_ ~~gone~~ $x^2$ $$y$$",
    ":boom: &amp; &lt;b&gt; &#64;user",
    "a\nb\r\n# c\n\n| d | e |",
    "- list",
    "1. list",
    "---",
    "===",
    "    code",
    "> quote",
    "\x1b[2J\u202eright\u2028\x00",
)


class Page(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self, markdown: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.feed(MarkdownIt("commonmark").enable("table").render(markdown))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert all(name == "style" and str(v).startswith("text-align") for name, v in attrs)
        self.tags.append(tag)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def make_hostile() -> None:
    ids = [f"{i} {value}" for i, value in enumerate(HOSTILE)]
    about = [{"key | `x` @user": value} for value in HOSTILE]
    for name, answers in (("a", [0.0, 1.0]), ("b", [1.0, 0.0])):
        make_run(name, answers * (len(ids) // 2), ids=ids, metadata=about)
        run = RunDir(Path("outputs/evals") / name)
        info = run.read_info()
        info.config["experiment_name"] = f"<b>@{name}</b> | \x1b[31m"
        info.config["endpoint"] = {"model": "[x](https://e.com)\n| @user |"}
        run.write_info(info)


def check_markdown(outcome: Outcome, tables: int) -> None:
    assert outcome.code in (0, 1, 2, 3), outcome.err
    page = Page(outcome.out)
    known = "h3 ul li p code span table thead tr th tbody td details summary"
    assert {*page.tags} <= {*known.split()}
    assert page.tags.count("table") == tables
    widths = {line.count("|") for line in outcome.out.splitlines() if line.startswith("| <code>")}
    assert len(widths) <= 2, widths
    for piece in page.texts:
        assert not re.search(r"@\w|https?:|<b>@", piece)


class Terminal:
    """A command with a terminal of its own as its stdout and stderr, and what it wrote there."""

    def __init__(self, *arguments: str, columns: int = 100) -> None:
        self._ours, theirs = os.openpty()
        termios.tcsetwinsize(theirs, (40, columns))
        self.written = ""
        # A character may come in two parts, and an interrupt may cut one off.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.process = subprocess.Popen(
            command_of(*arguments),
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            env=os.environ | {"TERM": "xterm-256color"},
        )
        os.close(theirs)

    def read_until(self, text: str) -> None:
        while text not in self.written:
            if not self._read():
                self.process.kill()  # it may wait for a word that will not come
                self.process.wait()
                raise AssertionError(f"{text!r} did not come: {self.written!r}")

    def read_all(self) -> int:
        while self._read():
            pass
        os.close(self._ours)
        return self.process.wait(timeout=20)

    def _read(self) -> bool:
        if not select.select([self._ours], [], [], 10)[0]:
            return False
        try:
            chunk = os.read(self._ours, 65_536)
        except OSError:  # how Linux says that nobody has the other end any more
            return False
        self.written += self._decoder.decode(chunk)
        return bool(chunk)


def wait_for(what: Callable[[], object], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 20
    while not what():
        assert process.poll() is None, f"ended early: {process.communicate()}"
        assert time.monotonic() < deadline
        time.sleep(0.005)


def lines_of_journal(name: str) -> int:
    """Of the run of this name, or of the only one under it."""
    journals = [*Path("outputs/evals", name).glob("**/results.jsonl")]
    return journals[0].read_bytes().count(b"\n") if journals else 0
