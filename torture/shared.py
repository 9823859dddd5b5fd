"""Two processes on one response cache, one run, one curve: a second writer is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path

from heldout.errors import HeldoutError
from torture.answering import serving
from torture.children import Child, Ended, ask_child, run_child
from torture.kills import MODES, Attacks, Mode, cached_run, facts_of_run
from torture.trials import Finding, Journal, Trial, scratch

PART, COUNT = "shared", 30
SECONDS = 180.0
BUSY = "is being written by another process"
CACHE, RUN, CURVE = "two runs on one response cache", "two on one run", "two on one training curve"
CHECKPOINTS = "TORTURE_CHECKPOINTS"
OF_MODE = {CACHE: "run --cache", RUN: "run --resume", CURVE: "training, evals inline"}


def make_trials(scale: float, journal: Journal) -> Iterator[Trial]:
    """Yield the trials of the three."""
    modes = {mode.name: mode for mode in MODES}
    attempts = {CACHE: try_cache, RUN: try_run, CURVE: try_curve}
    for case, attempt in attempts.items():
        with scratch("shared") as folder, ExitStack() as stack:

            @cache
            def make(case: str, folder: Path, stack: ExitStack) -> Attacks:
                url = stack.enter_context(serving(folder / "server")) if case == CACHE else ""
                return Attacks(modes[OF_MODE[case]], folder / "mode", url)

            for number in range(max(1, round(COUNT * scale))):
                start = partial(make, case, folder, stack)
                yield Trial(PART, case, number, partial(_try, attempt, start))


def _try(
    attempt: Callable[[Attacks, Path, Finding], None], start: Callable[[], Attacks]
) -> Finding:
    attacks, finding = start(), Finding()
    attempt(attacks, attacks.fresh("trial"), finding)
    return finding


def _both(calls: list[Child], finding: Finding) -> list[Ended]:
    ended = [child.wait(SECONDS) for child in calls]
    for one in ended:
        if one.hung:
            finding.add("hang", one.explain())
        elif "Traceback" in one.err:
            finding.add("traceback", one.explain())
    return ended


def try_cache(attacks: Attacks, folder: Path, finding: Finding) -> None:
    """Both get their answers, and a third run gets all of them from the cache."""
    children = [Child(partial(cached_run, "--name", name), folder) for name in ("run", "other")]
    for one in _both(children, finding):
        attacks.blame(one, "one of two", finding)
    third = run_child(partial(cached_run, "--name", "again"), folder, seconds=SECONDS)
    attacks.blame(third, "the third", finding)
    attacks.compare(folder, finding)
    others = ask_child(lambda: facts_of_run("other"), folder, seconds=SECONDS)
    if others["rows"] != attacks.expected["rows"]:
        finding.add("other", f"the other run has {str(others['rows'])[:500]}")


def try_run(attacks: Attacks, folder: Path, finding: Finding) -> None:
    """One of them finishes the run; the other is refused, or finds it finished."""
    ended = _both([Child(attacks.mode.attack, folder) for _ in range(2)], finding)
    _judge_refusals(ended, finding)
    attacks.compare(folder, finding)


def try_curve(attacks: Attacks, folder: Path, finding: Finding) -> None:
    """One of them writes the curve; the other is refused before it trains."""

    def train(mode: Mode) -> int | None:
        try:
            return mode.attack()
        except HeldoutError as problem:
            print(f"refused: {problem}")
            return 2

    places = [{}, {CHECKPOINTS: "other"}]
    children = [Child(partial(train, attacks.mode), folder, environment=more) for more in places]
    ended = _both(children, finding)
    _judge_refusals(ended, finding)
    if ended[0].code != 0 and (folder / "other").exists():  # the second one was first
        (folder / "checkpoints").exists() and (folder / "checkpoints").rename(folder / "refused")
        (folder / "other").rename(folder / "checkpoints")
    attacks.compare(folder, finding)


def _judge_refusals(ended: list[Ended], finding: Finding) -> None:
    refused = [one for one in ended if one.code == 2]
    for one in ended:
        if one.code not in (0, 2):
            finding.add("other", one.explain())
    if len(refused) == 2:
        finding.add("lost", f"both were refused: {refused[0].explain()}{refused[1].explain()}")
    for one in refused:
        finding.marks.append("refused")
        if BUSY not in one.out + one.err:
            finding.add("other", f"refused for another reason: {one.explain()}")
