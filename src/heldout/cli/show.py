"""`heldout show RUN`: the report of a run, finished or not, and what failed in it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from heldout.cli.curves import CurveRun
    from heldout.store.report import EvalReport
    from heldout.types import EvalResult

MOST_NAMES = 10_000
"""Ids among which a misspelt one is looked for."""


@click.command("show")
@click.argument("run")
@click.option(
    "--failures",
    type=click.IntRange(1),
    metavar="N",
    help="N items that did not pass, those that errored first.",
)
@click.option("--passes", type=click.IntRange(1), metavar="N", help="N items that passed.")
@click.option(
    "--sample", "samples", multiple=True, metavar="ID", help="The items of this sample, by its id."
)
@click.option(
    "--pass-at",
    type=click.IntRange(1),
    multiple=True,
    metavar="K",
    help="Add pass@K and pass^K: one of K attempts passes, all of K do. Several are allowed.",
)
@click.option("--cluster", metavar="KEY", help="Cluster error bars by this metadata key.")
@click.option("--repair", is_flag=True, help="Move damaged journal lines aside first.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON: a summary, or a line an item or point."
)
@click.option("--step", type=click.IntRange(0), metavar="N", help="Of a curve: the eval at step N.")
@click.option("--outcomes", is_flag=True, help="With --json, of a curve: every item's reward, too.")
@click.option("--effect", type=float, help="Of a curve: the gain over a window worth having.")
@click.option("--alpha", type=float, help="Of a curve: the chance of a false verdict, over all.")
@click.option("--window", type=int, metavar="EVALS", help="Of a curve: how far verdicts look back.")
def command(
    run: str,
    failures: int | None,
    passes: int | None,
    samples: tuple[str, ...],
    pass_at: tuple[int, ...],
    cluster: str | None,
    repair: bool,
    as_json: bool,
    step: int | None,
    outcomes: bool,
    effect: float | None,
    alpha: float | None,
    window: int | None,
) -> None:
    """Print the report of RUN: a run directory, or a name under outputs/evals.

    Of a run that was evaluated during training, that is its curve, a line a point, and what it
    allows one to say; --step prints the whole report of one, as RUN@STEP does.
    """
    from heldout.cli.curves import find_curve
    from heldout.cli.named import find_named, step_directory
    from heldout.errors import InvalidInput

    which = _Which(failures, passes, samples)
    terms = {"effect": effect, "alpha": alpha, "window": window}
    curve = find_curve(run)
    of_report = "--pass-at" if pass_at else "--cluster" if cluster is not None else None
    if of_report and which.option:
        raise InvalidInput(
            f"{of_report} is of the report, {which.option} prints items: ask for one"
        )
    if curve is None:
        path = find_named(run)
        for asked, given in {"step": step, "outcomes": outcomes or None, **terms}.items():
            if given is not None:
                raise InvalidInput(f"{path} has no curve.jsonl, so --{asked} says nothing of it")
        _show_run(path, which, repair=repair, as_json=as_json, pass_at=pass_at, cluster=cluster)
    elif step is not None and not outcomes:
        path = step_directory(curve, step)
        _show_run(path, which, repair=repair, as_json=as_json, pass_at=pass_at, cluster=cluster)
    elif of_report:
        raise InvalidInput(f"{of_report} of which eval? {curve} is a curve of many: add --step N")
    else:
        _show_curve(
            curve,
            which,
            repair=repair,
            as_json=as_json,
            outcomes=outcomes,
            step=step,
            terms=terms,
        )


@dataclass(frozen=True, slots=True)
class _Which:
    """Which items are to be shown, if any: what did not pass, what did, or samples by their ids."""

    failures: int | None
    passes: int | None
    samples: tuple[str, ...]

    def __post_init__(self) -> None:
        given = [self.failures is not None, self.passes is not None, bool(self.samples)]
        if sum(given) > 1:
            raise click.UsageError("--failures, --passes and --sample print items: ask for one")

    @property
    def option(self) -> str | None:
        if self.failures is not None:
            return "--failures"
        if self.passes is not None:
            return "--passes"
        return "--sample" if self.samples else None

    def of(self, report: EvalReport) -> list[EvalResult]:
        if self.failures is not None:
            return _failures(report, self.failures)
        if self.passes is not None:
            passed = (r for r in report.results if r.ok and r.score.reward >= report.pass_threshold)
            return list(islice(passed, self.passes))
        return _of_samples(report, self.samples)


def _of_samples(report: EvalReport, ids: tuple[str, ...]) -> list[EvalResult]:
    import difflib

    from heldout.errors import InvalidInput

    found: dict[str, list[EvalResult]] = {id: [] for id in ids}
    others: list[str] = []
    for result in report.results:
        if result.sample_id in found:
            found[result.sample_id].append(result)
        elif len(others) < MOST_NAMES:
            others.append(result.sample_id)
    for id, results in found.items():
        if not results:
            near = difflib.get_close_matches(id, others, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there is {', '.join(others[:3])}, …"
            raise InvalidInput(f"{report.path} has no sample {id!r}; {hint}")
    return [result for results in found.values() for result in results]


def _show_run(
    path: Path,
    which: _Which,
    *,
    repair: bool,
    as_json: bool,
    pass_at: tuple[int, ...],
    cluster: str | None,
) -> None:
    from heldout.analysis.single import summary_of
    from heldout.cli.main import writing
    from heldout.cli.render import (
        print_items,
        print_json,
        print_report,
        result_as_dict,
    )
    from heldout.store.report import EvalReport
    from heldout.store.run_dir import RunDir

    if repair:
        _repair(path)
    report = EvalReport.load(path)
    if which.option is None:
        reason = RunDir(path).read_info().reason
        summary = summary_of(report, cluster=cluster, pass_at=pass_at)
        with writing():
            if as_json:
                about = {"status": report.status, "reason": reason}
                print_json({**about, "config": report.config, "summary": summary})
            else:
                print_report(report, reason, summary=summary)
    else:
        shown = which.of(report)
        with writing():
            if as_json:
                for result in shown:
                    print_json(result_as_dict(result))
            else:
                print_items(shown, report, passed=which.passes is not None)
    if report.status == "failed":
        raise click.exceptions.Exit(2)  # as `heldout run` did: a script must not go on


def _failures(report: EvalReport, count: int) -> list[EvalResult]:
    """What errored first: it says nothing about the policy until it is mended."""
    errored: list[EvalResult] = []
    wrong: list[EvalResult] = []
    for result in report.results:
        if not result.ok:
            errored.append(result)
        elif result.score.reward < report.pass_threshold and len(wrong) < count:
            wrong.append(result)
        every = len(errored) == report.summary.get("n_errors")
        if len(errored) == count or (every and len(errored) + len(wrong) >= count):
            break
    return [*errored, *wrong][:count]


def _repair(path: Path) -> None:
    from heldout.cli.run import repair_run
    from heldout.store.run_dir import RunDir, now

    moved = repair_run(path)
    if moved:
        # It lacks results now, so it is not complete any more, and says so.
        run = RunDir(path)
        info = run.read_info()
        info.status, info.finished = "interrupted", now()
        info.reason = f"{moved} damaged journal line{'s' * (moved > 1)} moved aside"
        run.write_info(info)


# --- Curves -------------------------------------------------------------------------------------


def _show_curve(
    path: Path,
    which: _Which,
    *,
    repair: bool,
    as_json: bool,
    outcomes: bool,
    step: int | None,
    terms: dict[str, Any],
) -> None:
    from heldout.cli.curves import asked_terms, by_label, judged, point_as_dict, read_curve
    from heldout.cli.named import steps_of
    from heldout.cli.render import print_json
    from heldout.errors import InvalidInput

    if repair:
        _repair_curve(path)
    run = read_curve(path)
    if which.option:
        raise InvalidInput(f"{which.option} of which eval? Add --step N: {steps_of(run)}")
    if outcomes and not as_json:
        raise InvalidInput("--outcomes goes with --json: there are too many for a table")
    if as_json:
        points = run.points
        anew = any(value is not None for value in terms.values())
        if anew or any(point.has_result and point.verdict is None for point in points):
            points = [
                point
                for of_one in by_label(points).values()
                for point in judged(of_one, asked_terms(of_one, **terms), anew=anew).points
            ]
        points = [point for point in points if step in (None, point.step)]
        if step is not None and not points:
            raise InvalidInput(f"{path} has no eval at step {step}; {steps_of(run)}")
        for point in points:
            print_json(point_as_dict(point, outcomes=outcomes))
    else:
        _print_curve(run, terms)


def _print_curve(run: CurveRun, terms: dict[str, Any]) -> None:
    from heldout.cli.curves import asked_terms, by_label, curve_table, judged, status_text
    from heldout.cli.render import as_line, make_console

    console = make_console()
    labels = by_label(run.points)
    config = run.info.config if run.info else {}
    asked = {label: asked_terms(points, **terms) for label, points in labels.items()}
    for label, points in labels.items():
        title = as_line(label, "bold")
        if run.path.name not in labels:
            title.append(as_line(f" in {run.path.name}", "not bold"))
        if isinstance(config.get("every_steps"), int) and label == config.get("label"):
            title.append(as_line(f", every {config['every_steps']} steps", "not bold dim"))
        console.print(title)
        anew = any(value is not None for value in terms.values())
        found = judged(points, asked[label], anew=anew)
        curve_table(found.points, console.width).print(console)
        for line in found.lines:
            console.print(line)
    if run.no_results is not None:
        text = "the last attempt has no results; these are of earlier ones. Its last skip: "
        text += run.no_results
        console.print(as_line(text, "yellow"), soft_wrap=True)
    if run.left_out:
        count = "1 result" if run.left_out == 1 else f"{run.left_out} results"
        text = f"{count} left out: the training was restarted from before, and went another way."
        console.print(as_line(text, "yellow"))
    console.print(status_text(run))
    console.print(as_line(f"kept in {run.path}", "dim"), soft_wrap=True)


def _repair_curve(path: Path) -> None:
    from heldout.cli.text import printable
    from heldout.training.curve import CURVE_NAME, repair_curve

    curve = path / CURVE_NAME
    moved = repair_curve(curve)
    text = f"{curve} has no damaged line."
    if moved:
        which = f"line{'s' * (len(moved) > 1)} {', '.join(map(str, moved))}"
        text = f"Moved damaged {which} of {curve} to {curve.with_suffix('.damaged').name}."
    click.echo(printable(text), err=True)
