"""`heldout show RUN`: the report of a run, its slices and conversations, or a training curve."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from heldout._format import count, interval, number, printable
from heldout.cli._curves import (
    CurveRun,
    build_curve_table,
    describe_status,
    group_by_label,
    judge_curve,
    point_as_dict,
    read_curve,
    training_state,
)
from heldout.cli._load import (
    describe_selection,
    find_curve,
    find_run_directory,
    find_step,
    list_result_steps,
    select_results,
)
from heldout.cli._tables import (
    PIPE_WIDTH,
    Block,
    Column,
    Line,
    Report,
    Span,
    Table,
    as_line,
    as_text,
    make_console,
    print_json,
    print_report,
)
from heldout.errors import InvalidInput
from heldout.store.runs import describe_model

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from heldout.stats.summary import Summary
    from heldout.store.report import EvalReport
    from heldout.store.run_dir import RunInfo
    from heldout.types import EvalResult, Message

MANY_ERRORS = 0.1
"""Share of errored items above which a report says what that does to its means."""
MESSAGE_CHARACTERS = 4000
"""Characters of a message that are shown; a model that never stopped would bury the rest."""
LABEL_WIDTH = 11
# Words that have an order, though not that of the alphabet.
SCALES = (
    ("trivial", "very easy", "easy", "medium", "hard", "very hard", "expert"),
    ("beginner", "intermediate", "advanced", "expert"),
    ("very low", "low", "medium", "high", "very high"),
    ("tiny", "small", "medium", "large", "huge"),
    ("very short", "short", "medium", "long", "very long"),
)


@click.command("show", short_help="Print the report of a run, or a training curve.")
@click.argument("run")
@click.option(
    "--by",
    multiple=True,
    metavar="KEY",
    help="One row per value of a metadata key; several combine.",
)
@click.option(
    "--failures",
    type=click.IntRange(1),
    metavar="N",
    help="N items that did not pass, those that errored first.",
)
@click.option("--passes", type=click.IntRange(1), metavar="N", help="N items that passed.")
@click.option("--sample", "samples", multiple=True, metavar="ID", help="The items of this sample.")
@click.option(
    "--pass-at",
    type=click.IntRange(1),
    multiple=True,
    metavar="K",
    help="Add pass@K and pass^K: one of K attempts passes, all of K do. Several are allowed.",
)
@click.option("--cluster", metavar="KEY", help="Cluster error bars by this metadata key.")
@click.option("--where", metavar="SQL", help="Only results that meet a condition; see heldout sql.")
@click.option("--repair", is_flag=True, hidden=True, help="Now `heldout repair`.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print JSON: one object, or one line per item or slice.",
)
@click.option("--markdown", is_flag=True, help="Print Markdown for GitHub.")
@click.option("--step", type=click.IntRange(0), metavar="N", help="Of a curve: the eval at step N.")
@click.option("--outcomes", is_flag=True, help="Of a curve, with --json: each item's reward, too.")
@click.option("--effect", type=float, help="Of a curve: the smallest gain worth having.")
@click.option("--alpha", type=float, help="Of a curve: false verdict rate, over all of it.")
@click.option(
    "--window", type=int, metavar="EVALS", help="Of a curve: evals that a verdict looks back."
)
def command(
    run: str,
    by: tuple[str, ...],
    failures: int | None,
    passes: int | None,
    samples: tuple[str, ...],
    pass_at: tuple[int, ...],
    cluster: str | None,
    where: str | None,
    repair: bool,
    as_json: bool,
    markdown: bool,
    step: int | None,
    outcomes: bool,
    effect: float | None,
    alpha: float | None,
    window: int | None,
) -> None:
    """Print the report of RUN: a run directory, or a name under outputs/evals.

    NAME is the latest run of that name, NAME@3 the third, NAME@2026-11-15 the latest of that day.

    For a training run, that is its curve, one line per point, and its verdict; --step prints the
    whole report of one point, as RUN@STEP does.
    """
    if as_json and markdown:
        raise click.UsageError("--json or --markdown, not both")
    selection = _Selection(failures, passes, samples)
    terms = {"effect": effect, "alpha": alpha, "window": window}
    verdicts = {name: value for name, value in terms.items() if value is not None}
    if by:
        _refuse_with_slices(selection, pass_at)
    curve = find_curve(run)
    options = {"--pass-at": pass_at, "--cluster": cluster, "--by": by}
    report_option = next((option for option, value in options.items() if value), None)
    if report_option and selection.option:
        raise InvalidInput(
            f"{report_option} is for the report, {selection.option} prints items: ask for one"
        )
    if curve is not None and (step is None or outcomes):
        if report_option or where is not None:
            raise InvalidInput(
                f"{report_option or '--where'} of which eval? {curve} is a curve of many: add "
                "--step N"
            )
        if repair:
            repair_run(curve)
        _show_curve(curve, selection, verdicts, step, outcomes, as_json=as_json, markdown=markdown)
        return
    if curve is None:
        path = find_run_directory(run)
        curve_options = [*(["step"] * (step is not None)), *(["outcomes"] * outcomes), *verdicts]
        for name in curve_options:
            raise InvalidInput(f"{path} has no curve.jsonl, so --{name} does not apply to it")
    else:
        path = find_step(curve, step)
    if repair:
        repair_run(path)
    if by:
        _show_slices(path, by, cluster, where, as_json=as_json, markdown=markdown)
    else:
        _show_run(path, selection, pass_at, cluster, where, as_json=as_json, markdown=markdown)


@click.command("slice", hidden=True)
@click.argument("run")
@click.option("--by", multiple=True, required=True, metavar="KEY", help="Metadata key.")
@click.option("--cluster", metavar="KEY", help="Cluster error bars by this metadata key.")
@click.option("--where", metavar="SQL", help="Only results that meet a condition; see heldout sql.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON per slice.")
def slice_command(
    run: str, by: tuple[str, ...], cluster: str | None, where: str | None, as_json: bool
) -> None:
    """Print a row for each value of KEY in RUN, as `heldout show RUN --by KEY` does."""
    _show_slices(find_run_directory(run), by, cluster, where, as_json=as_json, markdown=False)


def _refuse_with_slices(selection: _Selection, pass_at: Sequence[int]) -> None:
    option = selection.option or ("--pass-at" if pass_at else None)
    if option:
        raise InvalidInput(
            f"--by prints one row per slice, and {option} is of the whole: ask for one"
        )


class _Selection(NamedTuple):
    """Which conversations to show; at most one of these."""

    failures: int | None
    passes: int | None
    samples: tuple[str, ...]

    @property
    def option(self) -> str | None:
        """The option that selects; None for the report itself."""
        options = ("--failures", "--passes", "--sample")
        chosen = [option for option, value in zip(options, self, strict=True) if value]
        if len(chosen) > 1:
            raise click.UsageError("--failures, --passes and --sample print items: ask for one")
        return chosen[0] if chosen else None

    def select(self, report: EvalReport) -> list[EvalResult]:
        """Find the results of a report that are selected."""
        if self.failures:
            return _select_failures(report, self.failures)
        if self.passes:
            passed = (r for r in report.results if r.ok and r.score.reward >= report.pass_threshold)
            return list(islice(passed, self.passes))
        return _select_samples(report, self.samples)


def _select_failures(report: EvalReport, most: int) -> list[EvalResult]:
    """Select errored results first: they say nothing about the policy until they are repaired."""
    errored: list[EvalResult] = []
    wrong: list[EvalResult] = []
    for result in report.results:
        if not result.ok:
            errored.append(result)
        elif result.score.reward < report.pass_threshold and len(wrong) < most:
            wrong.append(result)
        has_all_errors = len(errored) == report.summary.get("n_errors")
        if len(errored) == most or (has_all_errors and len(errored) + len(wrong) >= most):
            break
    return [*errored, *wrong][:most]


def _select_samples(report: EvalReport, ids: tuple[str, ...]) -> list[EvalResult]:
    selected: dict[str, list[EvalResult]] = {id: [] for id in ids}
    others: dict[str, None] = {}
    for result in report.results:
        if result.sample_id in selected:
            selected[result.sample_id].append(result)
        else:
            others[result.sample_id] = None
    for id, results in selected.items():
        if not results:
            near = difflib.get_close_matches(id, list(others)[:10_000], n=1)
            hint = f"there is {', '.join(islice(others, 3))}, …"
            hint = f"did you mean {near[0]!r}?" if near else hint
            raise InvalidInput(f"{report.path} has no sample {id!r}; {hint}")
    return [result for results in selected.values() for result in results]


def _show_run(
    path: Path,
    selection: _Selection,
    pass_at: tuple[int, ...],
    cluster: str | None,
    where: str | None,
    *,
    as_json: bool,
    markdown: bool,
) -> None:
    from heldout.analysis.passes import summarize_report
    from heldout.store.report import EvalReport
    from heldout.store.run_dir import RunDir

    report_option = "--pass-at" if pass_at else "--cluster" if cluster is not None else None
    report = select_results(EvalReport.load(path), where, report_option)
    if selection.option:
        results = selection.select(report)
        if as_json:
            for result in results:
                print_json(_result_as_dict(result))
        else:
            print_results(results, report, passed=selection.passes is not None)
    else:
        info = RunDir(path).read_info()
        summary = report.summary
        if report.selection is None or not report.selection.by_outcome:
            summary = summarize_report(report, cluster=cluster, pass_at=pass_at)
        summary = report.mark_selected(summary)
        if as_json:
            print_json(_run_as_dict(report, info, summary))
        else:
            print_report(build_report(report, summary, info=info), markdown=markdown)
    _exit_if_failed(report)


def _exit_if_failed(report: EvalReport) -> None:
    if report.status == "failed":
        raise click.exceptions.Exit(4)  # as `heldout run` did: a script must not go on


def _show_slices(
    path: Path,
    by: tuple[str, ...],
    cluster: str | None,
    where: str | None,
    *,
    as_json: bool,
    markdown: bool,
) -> None:
    from heldout.cli.compare import name_options_in_errors
    from heldout.store.report import EvalReport

    report = select_results(EvalReport.load(path), where, "--cluster" if cluster else None)
    with name_options_in_errors((), by, "--by"):
        if cluster is None:
            slices, total = report.slices_and_total(*by)
        else:
            from heldout.analysis.passes import slices_and_total

            slices, total = slices_and_total(report, *by, cluster=cluster)
            slices = {values: report.mark_selected(part) for values, part in slices.items()}
    slices = {values: slices[values] for values in in_order(slices)}
    if as_json:
        for values, summary in slices.items():
            print_json({"slice": dict(zip(by, values, strict=True)), **summary})
    else:
        print_report(build_slices(by, slices, total, report), markdown=markdown)
    _exit_if_failed(report)


def repair_run(path: Path) -> list[int]:
    """Move damaged lines of a run aside, after which it is no longer complete.

    Args:
        path: The run directory, of a run or of a curve.

    Returns:
        Numbers of the lines that were moved.
    """
    from heldout.store.journal import repair
    from heldout.store.run_dir import RunDir, now
    from heldout.training.curve import repair_curve

    run = RunDir(path)
    if run.curve.exists():
        moved = repair_curve(run.curve)
        _report_repair(run.curve, moved)
        return moved
    moved = repair(run.journal) if run.journal.exists() else []
    _report_repair(run.journal, moved)
    if moved:
        info = run.read_info()
        info.status, info.finished = "interrupted", now()
        info.reason = f"{count(len(moved), 'damaged journal line')} moved aside"
        run.write_info(info)
    return moved


def _report_repair(path: Path, moved: Sequence[int]) -> None:
    text = f"{path} has no damaged line."
    if moved:
        lines = f"line{'s' * (len(moved) > 1)} {', '.join(map(str, moved))}"
        text = f"Moved damaged {lines} of {path} to {path.with_suffix('.damaged').name}."
    click.echo(printable(text), err=True)


# --- Report -------------------------------------------------------------------------------------


def _run_as_dict(report: EvalReport, info: RunInfo, summary: Summary) -> dict[str, Any]:
    import msgspec

    return {
        "kind": "run",
        "path": str(report.path),
        "status": report.status,
        "reason": info.reason,
        "config": report.config,
        "summary": summary,
        "usage": usage_as_dict(report),
        "started": info.started,
        "finished": info.finished,
        "git": msgspec.to_builtins(info.git),
        "command": info.command,
        "versions": info.versions,
    }


def usage_as_dict(report: EvalReport) -> dict[str, Any] | None:
    """Return tokens and cost of a run for JSON; None where no item reported its tokens.

    Args:
        report: The report of the run.
    """
    usage = report.usage
    if not usage.n:
        return None
    return {
        "n": usage.n,
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "cost": usage.cost,
    }


def describe_usage(report: EvalReport) -> str | None:
    """Return tokens and cost of a run in words; None where no item reported its tokens.

    Args:
        report: The report of the run.
    """
    usage = report.usage
    if not usage.n:
        return None
    text = f"tokens: {usage.prompt_tokens:,} in, {usage.completion_tokens:,} out"
    if usage.n < report.summary["n"]:
        text += f" ({usage.n} of {count(report.summary['n'], 'item')} report them)"
    return text if usage.cost is None else f"{text}; cost: {format_cost(usage.cost)}"


def format_cost(cost: float) -> str:
    """Return a cost with two decimals, or more where it is small; prices name no currency."""
    return f"{cost:,.2f}" if cost >= 1 or cost == 0 else f"{cost:.3g}"


def _describe_origin(info: RunInfo | None) -> list[Line]:
    """Say when, at which commit and with which tags and note a run was made."""
    if info is None:
        return []
    parts = [info.started.replace("T", " ").removesuffix("Z") + " UTC"]
    if info.git is not None:
        parts.append(f"commit {info.git.commit[:9]}" + ", with changes" * bool(info.git.dirty))
    tags, note = info.config.get("tags"), info.config.get("note")
    if isinstance(tags, list) and tags:
        parts.append(f"tags: {', '.join(map(str, tags))}")
    if isinstance(note, str):
        parts.append(f"note: {note}")
    return [Line("; ".join(parts), style="dim")]


def describe_report(report: EvalReport) -> Line:
    """Return the title of a report: its name, its model, and the run it is a rescoring of."""
    parts: list[Span] = [
        Span(str(report.config.get("experiment_name") or "report"), "bold", code=True)
    ]
    model = describe_model(report.config)
    if model is not None:
        parts.append(Span(f", model: {model}", "dim"))
    parent = report.config.get("parent")
    if isinstance(parent, Mapping):
        parts.append(Span(f"; trajectories of {parent.get('run')}, scored again", "dim"))
    return Line(*parts)


def build_report(
    report: EvalReport, summary: Summary | None = None, *, info: RunInfo | None = None
) -> Report:
    """Build what `heldout show` prints of a run.

    Args:
        report: The report of the run.
        summary: A summary of it that says more than its own (`heldout.analysis.passes`).
        info: Its run.json: when and at which commit it was made, and why it ended early.

    Returns:
        The report in rows.
    """
    from heldout.analysis.passes import summarize_report

    if summary is None:
        summary = summarize_report(report)
    blocks: list[Block] = [
        describe_report(report),
        *_describe_unfinished(report, info.reason if info else None),
        *_selection_lines(report),
        _build_summary_table(summary, report.pass_threshold),
        *_describe_three_way(report, summary),
        _describe_counts(summary),
        *_describe_clusters(summary),
        *(Line(note, style="yellow") for note in _make_notes(summary)),
    ]
    if summary["n_errors"]:
        run = "RUN" if report.path is None else shlex.quote(str(report.path))
        hint = f"`heldout show {run} --failures 5` shows why items errored"
        blocks.append(Line(hint, style="yellow", wrap=False))
    if tokens := describe_usage(report):
        blocks.append(Line(tokens, style="dim"))
    blocks += _describe_origin(info)
    if report.path is not None:
        blocks.append(Line(f"saved to {report.path}", style="dim", wrap=False))
    return Report(blocks)


def _build_summary_table(summary: Summary, pass_threshold: float) -> Table:
    # A reward that is 0 or 1 is also the pass rate and its only metric: one row says so.
    labels: dict[tuple[str, str, str], list[str]] = {}

    def add(label: str, key: str, interval_key: str, n: object) -> None:
        bounds = interval(summary[f"{interval_key}_low"], summary[f"{interval_key}_high"])
        numbers = (number(summary[key]), bounds, "–" if n is None else str(n))
        labels.setdefault(numbers, []).append(label)

    add("reward", "mean", "ci", summary["n"])
    if summary["n_errors"]:
        add("reward, scored only", "mean_scored", "ci_scored", summary["n_scored"])
    add(f"passed (≥ {pass_threshold:g})", "pass_rate", "pass_rate_ci", summary["n"])
    for key in _metric_keys(summary):
        add(key[len("metric_") :], key, f"{key}_ci", summary[f"{key}_n"])
    columns = [
        Column("", wrap=True),
        Column("mean", "right"),
        Column("95% interval"),
        Column("n", "right"),
    ]
    rows = [[" = ".join(names), *numbers] for numbers, names in labels.items()]
    return Table(columns, [*rows, *_build_pass_rates(summary)])


def _build_pass_rates(summary: Summary) -> Iterator[list[str]]:
    for key, label in _pass_rates(summary):
        bounds = interval(summary[f"{key}_ci_low"], summary[f"{key}_ci_high"])
        samples = summary[f"{key}_n"]
        n = "–" if samples is None else count(samples, "sample")
        yield [label, number(summary[key]), bounds, n]


def _pass_rates(summary: Summary) -> list[tuple[str, str]]:
    """Return key and label of each pass@k and pass^k in a summary."""
    matches = [(key, re.fullmatch("pass_(at|hat)_([0-9]+)", key)) for key in summary]
    return [(key, f"pass{'@' if m[1] == 'at' else '^'}{m[2]}") for key, m in matches if m]


def _metric_keys(summary: Summary) -> list[str]:
    keys = [key for key in summary if key.startswith(("metric_", "metric."))]
    parts = ("n", "stderr", "ci_low", "ci_high")
    return [key for key in keys if all(f"{key}_{part}" in summary for part in parts)]


def _describe_unfinished(report: EvalReport, reason: str | None) -> list[Line]:
    summary = report.summary
    if summary.get("complete") is not False:
        return []
    asked = summary.get("n_asked")
    done = f"{summary['n']} of {count(asked, 'item')}" if asked else count(summary["n"], "item")
    states = {
        "running": f"Still running: {done} so far",
        "complete": f"Its journal is not the one it was finished with: {done}",
    }
    state = states.get(report.status, f"Not finished: {report.status} after {done}")
    why = f" ({reason})" if reason else ""
    numbers = "the numbers are of these"
    if not summary["n_scored"]:
        numbers = "none of them has a score" if summary["n"] else "there are no numbers yet"
    return [Line(f"{state}{why}; {numbers}.", style="yellow")]


def _selection_lines(report: EvalReport) -> list[Line]:
    return [Line(describe_selection(report), style="yellow")] if report.selection else []


def _describe_three_way(report: EvalReport, summary: Summary) -> Iterator[Line]:
    from heldout.analysis.three_way import count_three_way, three_way_names

    for name in three_way_names(summary):
        try:
            counts = count_three_way(report, name, cluster=summary.get("clustered_by"))
        except InvalidInput:
            continue  # metrics of another origin that only have such names
        f1 = counts.f1
        bounds = interval(f1.interval.low, f1.interval.high) if f1.interval else "–"
        line = (
            f"correct {counts.correct}, incorrect {counts.incorrect}, not attempted "
            f"{counts.not_attempted} of {counts.n} scored; F1 {number(f1.value)} ({bounds})"
        )
        if counts.errored:
            line += f"; {counts.errored} errored, which are no attempts"
        yield Line(line if name == "correct" else f"{name}: {line}")


def _describe_counts(summary: Summary) -> Line:
    errors, truncated = summary["n_errors"], summary["n_truncated"]
    return Line(
        f"{count(summary['n'], 'item')}: {summary['n_scored']} scored, ",
        Span(f"{errors} errored", "red" if errors else ""),
        ", ",
        Span(f"{truncated} truncated", "yellow" if truncated else ""),
    )


def _make_notes(summary: Summary) -> Iterator[str]:
    """Yield what a reader of the table must know to read it right."""
    n, errors = summary["n"], summary["n_errors"]
    if unweighted := summary.get("n_unweighted"):
        yield (
            f"{count(unweighted, 'item')} without a metric of a weight above 0: their reward is 0 "
            "by definition, not by measurement"
        )
    if errors > MANY_ERRORS * n and summary["n_scored"]:
        yield (
            f"{errors} of {count(n, 'item')} errored, too many for either mean to say much about "
            "the policy: the first counts them as 0, the second leaves them out"
        )
    if errors and (summary["min"] or 0) < 0:
        yield (
            "errored items count as 0 in the reward, which is more than others scored: "
            "read the scored only"
        )
    for key, label in _pass_rates(summary):
        if short := summary.get(f"{key}_short"):
            k = key.rpartition("_")[2]
            have = "has" if short == 1 else "have"
            yield (
                f"no {label} and pass^{k} yet: {count(short, 'sample')} {have} fewer than {k} "
                "attempts"
            )


def _describe_clusters(summary: Summary, fewest: int | None = None) -> Iterator[Line]:
    """Say by what error bars are clustered, where it is not by sample; `fewest` in any slice."""
    from heldout.analysis.passes import FEW_CLUSTERS

    if "clustered_by" not in summary:
        if (distinct := summary.get("n_clusters")) is not None:
            yield Line(
                f"{distinct} distinct: samples of equal input and target are one cluster. Where "
                "they differ in metadata alone, --cluster KEY clusters by that instead",
                style="yellow",
            )
        return
    key, n, alone = (summary[k] for k in ("clustered_by", "n_clusters", "n_without_cluster"))
    line = f"error bars clustered by {key}: {count(n, 'cluster')}"
    if alone:
        line += f", {alone} of them samples without {key}, each on its own"
    yield Line(line)
    least = n if fewest is None else fewest
    if least == 1:
        yield Line(
            "one cluster does not show how clusters differ: intervals from it are a guess",
            style="yellow",
        )
    elif least < FEW_CLUSTERS:
        as_few = "as few as " if least < n else ""
        yield Line(f"intervals from {as_few}{least} clusters are rough", style="yellow")


def build_slices(
    by: Sequence[str],
    slices: Mapping[tuple[Any, ...], Summary],
    total: Summary,
    report: EvalReport,
) -> Report:
    """Build what `heldout show --by` prints.

    Args:
        by: The metadata keys.
        slices: A summary for each combination of their values.
        total: The summary of all.
        report: The report of the run.

    Returns:
        The report in rows.
    """
    clustered = "clustered_by" in total
    names = ["n", *(["clusters"] if clustered else []), "mean", "95% interval", "passed", "errors"]
    columns = [Column(Span(key, code=True), wrap=True) for key in by]
    columns += [Column(name, "left" if name == "95% interval" else "right") for name in names]

    def row(values: Sequence[object], summary: Summary) -> list[str | Span]:
        return [
            *("–" if value is None else str(value) for value in values),
            str(summary["n"]),
            *([str(summary["n_clusters"])] if clustered else []),
            number(summary["mean"]),
            interval(summary["ci_low"], summary["ci_high"]),
            number(summary["pass_rate"]),
            str(summary["n_errors"]),
        ]

    rows = [row(values, summary) for values, summary in slices.items()]
    all_values = ("all", *[""] * (len(by) - 1))
    fewest = None
    if clustered:
        fewest = min(summary["n_clusters"] for summary in (*slices.values(), total))
    return Report(
        [
            *_describe_unfinished(report, None),
            *_selection_lines(report),
            Table(columns, rows, [row(all_values, total)]),
            *_describe_clusters(total, fewest),
        ]
    )


def in_order(keys: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Sort combinations of values as people do: easy before hard, level 2 before level 10."""
    keys = list(keys)
    ranks = [_ranks(dict.fromkeys(column)) for column in zip(*keys, strict=True)]
    return sorted(
        keys, key=lambda key: [rank[value] for rank, value in zip(ranks, key, strict=True)]
    )


def _ranks(values: Iterable[Any]) -> dict[Any, tuple[Any, ...]]:
    """What each value of one key sorts by. Missing values come last."""
    words = {v: re.sub(r"[\s_-]+", " ", v.lower()) for v in values if isinstance(v, str)}
    scale = next((s for s in SCALES if words and {*words.values()} <= {*s}), None)
    ranks: dict[Any, tuple[Any, ...]] = {}
    for value in values:
        if value is None:
            ranks[value] = (2,)
        elif not isinstance(value, str):
            ranks[value] = (0, value)
        elif scale:
            ranks[value] = (1, scale.index(words[value]), value)
        else:
            ranks[value] = (1, _natural(value), value)
    return ranks


def _natural(text: str) -> list[tuple[int, int, str]]:
    """Texts and numbers in turn; a number sorts by its length first, however long it is."""
    pieces = re.split(r"([0-9]+)", text.lower())
    texts = [(1, 0, piece) for piece in pieces[::2]]
    numbers = [(0, len(n), n) for n in (piece.lstrip("0") for piece in pieces[1::2])]
    return [part for pair in zip(texts, [*numbers, (0, 0, "")], strict=True) for part in pair]


# --- Conversations ------------------------------------------------------------------------------


def print_results(
    results: Sequence[EvalResult], report: EvalReport, *, passed: bool = False
) -> None:
    """Print conversations with their scores and what graders extracted.

    Args:
        results: The results to print.
        report: The report they are of.
        passed: Whether they were selected for having passed.
    """
    from rich.text import Text

    console = make_console()
    if not results:
        console.print(_explain_no_results(report, passed=passed))
    for i, result in enumerate(results):
        if i:
            console.print()
        title = as_line(result.sample_id, "bold")
        if result.repeat or report.config.get("repeats") != 1:
            title.append(f", repeat {result.repeat}")
        console.print(Text("── ", "dim") + title, soft_wrap=True)
        if result.error is not None:
            print_labelled(console, "error", as_text(result.error, "red"), "bold red")
        else:
            print_labelled(console, "reward", _format_score(result))
            for label, text in _explain_score(result):
                print_labelled(console, label, as_text(text, "dim"))
        for message in result.trajectory.messages:
            for label, text in _split_message(message):
                style = "dim" if label == "reasoning" else ""
                print_labelled(console, label, as_text(shorten(text), style), "bold cyan")
        if result.sample.ground_truth is not None:
            target = as_text(shorten(result.sample.ground_truth))
            print_labelled(console, "target", target, "bold green")
        if result.trajectory.stop.truncated:
            print_labelled(console, "", as_text("The last turn was truncated.", "yellow"))


def _explain_no_results(report: EvalReport, *, passed: bool) -> str:
    threshold = report.pass_threshold
    if passed:
        return f"No item has reward ≥ {threshold:g}."
    done = "every item"
    if report.summary.get("complete") is False:
        if not report.summary["n"]:
            return "No failures, since no item is done."
        done = f"each of the {count(report.summary['n'], 'item')} done so far"
    return f"No failures: {done} is scored and has reward ≥ {threshold:g}."


def _format_score(result: EvalResult) -> Text:
    from rich.text import Text

    line = Text(number(result.score.reward))
    for metric in result.score.metrics:
        weight = f" (weight {metric.weight:g})" if metric.weight else ""
        line.append(printable(f"   {metric.name} {number(metric.value)}{weight}"), "dim")
    return line


def _explain_score(result: EvalResult) -> Iterator[tuple[str, str]]:
    """Yield what graders extracted from the answer, and what judges wrote."""
    for metric in result.score.metrics:
        metadata = metric.metadata
        if "extracted" in metadata or "note" in metadata:
            extracted = metadata.get("extracted")
            value = "nothing" if extracted is None else repr(shorten(extracted))
            note = f" ({metadata['note']})" if metadata.get("note") else ""
            yield "extracted", f"{metric.name}: {value}{note}"
        if isinstance(metadata.get("reply"), str):
            yield "judge", f"{metric.name}: {shorten(metadata['reply'])}"


def _split_message(message: Message) -> Iterator[tuple[str, str]]:
    if message.reasoning:
        yield "reasoning", message.reasoning
    if message.text or not message.tool_calls:
        yield message.role, message.text
    for call in message.tool_calls:
        yield "tool call", f"{call.name}({call.arguments})"


def shorten(value: object) -> str:
    """Return a value as text, with the middle of a very long one left out."""
    text = str(value)
    omitted, half = len(text) - MESSAGE_CHARACTERS, MESSAGE_CHARACTERS // 2
    if omitted <= 0:
        return text
    return f"{text[:half]}\n… {omitted} characters left out; --json has all …\n{text[-half:]}"


def print_labelled(console: Console, label: str, content: Text, style: str = "bold") -> None:
    """Print text with a label on its left, wrapped in a column of its own.

    Args:
        console: The console.
        label: The label.
        content: The text.
        style: The label's style.
    """
    from rich.text import Text

    lines = content.split("\n", allow_blank=True)
    if console.width < PIPE_WIDTH:
        lines = content.wrap(console, max(20, console.width - LABEL_WIDTH))
    margin = as_text(f"{label:<{LABEL_WIDTH}}", style)
    for line in lines:
        line.rstrip()
        console.print(Text.assemble(margin, line), soft_wrap=True)
        margin = Text(" " * LABEL_WIDTH)


def _result_as_dict(result: EvalResult) -> dict[str, Any]:
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(result)
    return {**plain, "reward": result.score.reward if result.ok else None}


# --- Curves -------------------------------------------------------------------------------------


def _show_curve(
    path: Path,
    selection: _Selection,
    verdicts: Mapping[str, Any],
    step: int | None,
    outcomes: bool,
    *,
    as_json: bool,
    markdown: bool,
) -> None:
    run = read_curve(path)
    steps = list_result_steps(run.points)
    if selection.option:
        raise InvalidInput(f"{selection.option} of which eval? Add --step N: {steps}")
    if outcomes and not as_json:
        raise InvalidInput("--outcomes goes with --json: there are too many for a table")
    if not as_json:
        width = PIPE_WIDTH if markdown else make_console().width
        print_report(_build_curve_report(run, verdicts, width), markdown=markdown)
        return
    points = run.points
    if verdicts or any(point.has_result and point.verdict is None for point in points):
        groups = group_by_label(points).values()
        points = [point for group in groups for point in judge_curve(group, verdicts)[0]]
    newest = {point.label: point for point in points if point.verdict is not None}
    points = [point for point in points if step in (None, point.step)]
    if step is not None and not points:
        raise InvalidInput(f"{path} has no eval at step {step}; {steps}")
    print_json(
        {
            "kind": "curve",
            "path": str(path),
            "training": training_state(run),
            "superseded": run.superseded,
            "verdicts": {
                label: {"step": point.step, **(point.verdict or {})}
                for label, point in newest.items()
            },
            "points": [point_as_dict(point, outcomes=outcomes) for point in points],
        }
    )


def _build_curve_report(run: CurveRun, verdicts: Mapping[str, Any], width: int) -> Report:
    groups = group_by_label(run.points)
    config = run.info.config if run.info else {}
    blocks: list[Block] = []
    for label, group in groups.items():
        title = [Span(label, "bold", code=True)]
        if run.path.name not in groups:
            title.append(Span(f" in {run.path.name}"))
        if isinstance(config.get("every_steps"), int) and label == config.get("label"):
            title.append(Span(f", every {config['every_steps']} steps", "dim"))
        points, conclusions = judge_curve(group, verdicts)
        blocks.append(Line(*title))
        blocks += [*build_curve_table(points, width), *conclusions]
    if run.last_skip is not None:
        text = "the last attempt has no results; these are of earlier ones. Its last skip: "
        blocks.append(Line(text + run.last_skip, style="yellow", wrap=False))
    if run.superseded:
        text = f"{count(run.superseded, 'result')} left out: superseded by a later attempt."
        blocks.append(Line(text, style="yellow"))
    blocks += [describe_status(run), Line(f"saved to {run.path}", style="dim", wrap=False)]
    return Report(blocks)
