"""The report of one run, and its slices, in tables and sentences."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from heldout._core.config import MAX_ERROR_RATE, count_equal_attempts
from heldout._core.format import (
    count,
    cut,
    describe_weight_versions,
    duration,
    interval,
    list_some,
    number,
    pass_rate_keys,
    percent,
)
from heldout._finish_reasons import is_known_finish_reason
from heldout.errors import InvalidInput, RunDirectoryError
from heldout.reporting.blocks import Block, Column, Line, Report, Span, Table, code, name
from heldout.store.error_counts import list_errors
from heldout.store.remote import lasting_name
from heldout.store.runs import describe_model
from heldout.store.settled import Settled

if TYPE_CHECKING:
    from heldout.stats.summary import Summary
    from heldout.store.report import EvalReport
    from heldout.store.run_dir import ModelUsage, RunInfo

LABELS_NAMED = 5
ENTRIES_NAMED = 3
DIFFERENCES_NAMED = 5
"""Labels of notes that are counted one by one."""
REASONS_NAMED = 3
"""Unknown finish reasons that are named."""
# Words that have an order, though not that of the alphabet.
SCALE = (
    *("trivial", "tiny", "beginner", "very-easy", "very-low", "very-short"),
    *("easy", "low", "small", "short", "intermediate", "medium", "hard", "high", "large", "long"),
    *("advanced", "very-hard", "very-high", "very-long", "huge", "expert"),
)


def describe_selection(report: EvalReport) -> str:
    """Say which results of a run a report holds, and by what they were picked."""
    selection = report.selection
    if selection is None:
        return f"all {report.summary['n']} results"
    picked = f"only results where {selection.condition}: {report.summary['n']} of {selection.of}"
    if selection.by_outcome:
        picked += ", picked by what came out, so that their means have no intervals"
    return picked


def describe_report(report: EvalReport) -> Line:
    """Return the title of a report: its name, its model, and the run it is a rescoring of."""
    title = [name(report.config.get("experiment_name") or "report")]
    environment = report.config.get("env")
    if isinstance(environment, str):
        title.append(Span(f", environment: {environment}", "dim"))
    model = describe_model(report.config)
    if model is not None:
        title.append(Span(f", model: {model}", "dim"))
    fields = report.config.get("question_fields")
    if isinstance(fields, list) and fields:
        title.append(Span(f", question from {' or '.join(map(str, fields))}", "dim"))
    parent = report.config.get("parent")
    if isinstance(parent, Mapping):
        title.append(Span(f"; trajectories of {parent.get('run')}, scored again", "dim"))
    return Line(*title)


def conclude_report(report: EvalReport, summary: Summary) -> str:
    """Return a run's mean, denominator and state as one sentence, or what it has settled."""
    if report.settled is not None and report.selection is None:
        return report.settled.sentence
    label = str(report.config.get("experiment_name") or "report")
    state = "" if report.status == "complete" else f" It is {report.status}."
    return conclude_summary(label, summary) + state


def _describe_settled(report: EvalReport) -> Iterator[Line]:
    """Say what the claim of a run with `until` came to, and what the run's numbers are of."""
    settled = report.settled
    if settled is None:
        return
    colours = {"true": "bold green", "false": "bold red", "inconclusive": "bold yellow"}
    yield Line(settled.sentence, style=colours[settled.decision])
    parent = report.config.get("parent")
    if isinstance(parent, Mapping):  # whose own rule and level these scores have no part in
        yield Line(
            f"The numbers below are of the {settled.part} that it stopped at; ordinary intervals "
            f"of them would not hold. Finish {parent.get('run')} (`--resume --until none`) and "
            "score it again.",
            style="yellow",
        )
        return
    what = settled.claim if settled.stopped_by == "a race" else f"until {settled.claim}"
    error = f"wrong in at most {percent(settled.level)} of such runs"
    yield Line(
        f"sequential: {what}; {settled.rule}, {error}; "
        f"{_describe_looks(settled)}; decided on {settled.part}, {settled.n_spent:,} run",
        style="dim",
    )
    if settled.scope is not None:
        yield Line(settled.scope, style="dim")
    if not settled.is_early:
        return
    has_baseline = settled.baseline is not None
    plain = settled.difference if has_baseline else settled.mean
    why = ""
    if plain is not None and not settled.claim.startswith("±"):
        what = "difference" if has_baseline else "mean"
        plain_number = number(plain, sign=has_baseline)
        why = f"The plain {what}, {plain_number}, is biased: the run was stopped for it. "
    rest = "runs the rest of the stream" if settled.n_asked is None else "finishes the set"
    yield Line(
        f"{why}The numbers below are of the items that it stopped at; ordinary intervals of them "
        f"would not hold. `--resume --until none` {rest}.",
        style="yellow",
    )


def _describe_looks(settled: Settled) -> str:
    if settled.looks_planned is None:
        return count(settled.looks_used, "look")
    return f"{settled.looks_used} of {count(settled.looks_planned, 'look')}"


def conclude_summary(label: str, summary: Summary) -> str:
    """Return the mean of a run or a slice as one sentence, with its denominator and errors."""
    of = f"{count(summary['n'], 'item')}, {summary['n_errors']} errored"
    if summary["mean"] is None:
        return f"{label}: no mean, {of}."
    around = interval(summary["ci_low"], summary["ci_high"])
    return f"{label}: mean reward {number(summary['mean'])} ({around}), {of}."


def build_report(
    report: EvalReport, summary: Summary | None = None, *, info: RunInfo | None = None
) -> Report:
    """Build what `heldout show` prints of a run.

    Args:
        report: The run.
        summary: One that says more than the report's own (`heldout.analysis.passes`).
        info: Its run.json: when and at which commit it was made, and why it ended early.
    """
    from heldout.analysis.passes import summarize_report

    if summary is None:
        summary = summarize_report(report)
    errors = summary["n_errors"]
    blocks: list[Block] = [
        describe_report(report),
        *_describe_settled(report),
        *_describe_state(report, info.reason if info else None),
        _build_summary_table(summary, report.pass_threshold),
        *_describe_three_way(report, summary),
        Line(
            f"{count(summary['n'], 'item')}: {summary['n_scored']} scored, ",
            Span(f"{errors} errored", "red" if errors else ""),
            f", {summary['n_truncated']} truncated",
        ),
        *_describe_clusters(summary),
        *(Line(note, style="yellow") for note in _make_notes(summary)),
        *(Line(note, style="yellow") for note in _describe_equal_attempts(report)),
        *(Line(note, style="yellow") for note in _describe_limits(report)),
        *(Line(note, style="yellow") for note in _describe_finish_reasons(report)),
        *(Line(note, style="yellow") for note in describe_own_results(report)),
        *(Line(note, style="yellow") for note in _describe_weights(report)),
    ]
    blocks += _describe_notes(report)
    blocks += [Line(line, style="red") for line in list_errors(report.errors, errors)]
    if errors:
        run = "RUN" if report.path is None else shlex.quote(lasting_name(report.path))
        hint = f"`heldout show {run} --failures 5` shows why items errored"
        blocks.append(Line(hint, style="yellow", wrap=False))
    if tokens := describe_usage(report):
        blocks.append(Line(tokens + _describe_spare(report), style="dim"))
    if info is not None:
        blocks.append(Line(_describe_origin(info), style="dim"))
    if report.path is not None:
        blocks.append(Line(f"saved to {lasting_name(report.path)}", style="dim", wrap=False))
    return Report(blocks)


def _describe_notes(report: EvalReport) -> Iterator[Line]:
    """Say how many answers have a reviewer's note, by label."""
    from heldout.store.notes import count_labels, read_notes
    from heldout.store.run_dir import RunDir

    if report.path is None:
        return
    try:
        notes = read_notes(RunDir(report.path))
    except RunDirectoryError as problem:
        yield Line(f"the notes cannot be read: {problem}", style="yellow")
        return
    if notes:
        counts = count_labels(notes.values())
        labels = [f"{n} {label or 'without a label'}" for label, n in counts.items()]
        yield Line(f"{count(len(notes), 'note')} of reviewers: {list_some(labels, LABELS_NAMED)}")


def describe_usage(report: EvalReport) -> str | None:
    """Return tokens and cost of a run in words; None where no item reported its tokens."""
    usage = report.usage
    if not usage.n:
        return None
    text = f"tokens: {usage.prompt_tokens:,} in, {usage.completion_tokens:,} out"
    if len(usage.models) == 1 and usage.models[0].role == "policy":
        if usage.n < report.summary["n"]:
            text += f" ({usage.n} of {count(report.summary['n'], 'item')} report them)"
        return text if usage.cost is None else f"{text}; cost: {format_cost(usage.cost)}"
    if usage.cost is not None:
        text += f"; cost: {format_cost(usage.cost)}"
    return f"{text} ({'; '.join(_describe_share(model) for model in usage.models)})"


def _describe_spare(report: EvalReport) -> str:
    """Say what the tokens of a stopped run leave out; nothing of other runs."""
    settled = report.settled
    spare = 0 if settled is None else settled.n_spent - settled.n_decided
    if not spare:
        return ""
    said = f"; without the {count(spare, 'item')} run beyond the stop"
    took = report.usage_ahead
    if took is None or not took.n:
        return said
    said += f": {took.prompt_tokens:,} in, {took.completion_tokens:,} out"
    return said if took.cost is None else f"{said}, cost {format_cost(took.cost)}"


def _describe_share(model: ModelUsage) -> str:
    """Return what one of several models took in words."""
    named = model.role if model.model is None else f"{model.role} {model.model}"
    if not model.n:
        return f"{named}: not reported"
    text = f"{named}: {model.prompt_tokens:,} in, {model.completion_tokens:,} out"
    if model.unknown:
        text += f", {model.n} of {count(model.n + model.unknown, 'item')} report them"
    return f"{text}, {'no price' if model.cost is None else f'cost {format_cost(model.cost)}'}"


def format_cost(cost: float) -> str:
    """Return a cost with two decimals, or more where it is small; prices name no currency."""
    return f"{cost:,.2f}" if cost >= 1 or cost == 0 else f"{cost:.3g}"


def _describe_time(info: RunInfo) -> str:
    """Say when a run started and ended, and how long that took; breaks before a resume count."""
    start = info.started.replace("T", " ").removesuffix("Z") + " UTC"
    if info.finished is None:
        return f"started {start}, not ended"
    end = info.finished.replace("T", " ").removesuffix("Z")
    if end[:10] == start[:10]:
        end = end[11:]
    text = f"started {start}, ended {end}"
    try:
        took = datetime.fromisoformat(info.finished) - datetime.fromisoformat(info.started)
    except (TypeError, ValueError):  # of another program
        return text
    return f"{text}, duration {duration(took.total_seconds())}"


def _describe_origin(info: RunInfo) -> str:
    """Say when and for how long, at which commit and with which tags and note a run was made."""
    parts = [_describe_time(info)]
    if info.git is not None:
        parts.append(f"commit {info.git.commit[:9]}" + ", with changes" * bool(info.git.dirty))
    if info.config.get("tags"):
        parts.append(f"tags: {', '.join(info.config['tags'])}")
    if info.config.get("note") is not None:
        parts.append(f"note: {info.config['note']}")
    imported = info.config.get("imported")
    if isinstance(imported, Mapping):
        packages = [f"{k} {v}" for k, v in info.versions.items() if k != "heldout"]
        by = ", ".join(packages) or str(imported.get("format"))
        own = imported.get("own_results")
        compared = own.get("compared") if isinstance(own, Mapping) else None
        checked = f", {count(compared, 'result')} of its own compared" if compared else ""
        parts.append(f"imported from {imported.get('file')} ({by}{checked})")
    return "; ".join(parts)


def _describe_weights(report: EvalReport) -> Iterator[str]:
    if report.info is not None and len(report.info.weight_versions) > 1:
        yield describe_weight_versions(report.info.weight_versions)


def describe_own_results(report: EvalReport) -> Iterator[str]:
    """Say where an imported log contradicts itself, or counts otherwise than its run."""
    imported = report.config.get("imported")
    if not isinstance(imported, Mapping) or "parent" in report.config:
        return
    repeated = imported.get("repeated_entries")
    if isinstance(repeated, list) and repeated:
        are = "is" if len(repeated) == 1 else "are"
        yield (
            f"{count(len(repeated), 'attempt')} {are} in the log more than once, with different "
            f"content ({list_some(repeated, ENTRIES_NAMED)}); the last one counts, as in Inspect"
        )
    own = imported.get("own_results")
    differ = own.get("differ") if isinstance(own, Mapping) else None
    sentences = []
    for one in differ if isinstance(differ, list) else ():
        match one:  # a run directory may come from anywhere
            case {"name": name, "log": int() | float() as there, "run": int() | float() as here}:
                numbers = f"{_any_number(there)}, here it is {_any_number(here)}"
                sentences.append(f"the log itself reports {name} {numbers}: {one.get('why')}")
    yield from sentences[:DIFFERENCES_NAMED]
    if len(sentences) > DIFFERENCES_NAMED:
        more = count(len(sentences) - DIFFERENCES_NAMED, "more result")
        yield f"{more} of the log's own differ; run.json has them under imported.own_results"


def _any_number(value: int | float) -> str:
    return str(value) if isinstance(value, int) else number(value)


def _build_summary_table(summary: Summary, pass_threshold: float | None) -> Table:
    # Label, key of the mean, prefix of the interval's keys, and what it is the mean of.
    rows = [("reward", "mean", "ci", str(summary["n"]))]
    if summary["n_errors"]:
        rows.append(("reward, scored only", "mean_scored", "ci_scored", str(summary["n_scored"])))
    if pass_threshold is not None:
        passed = f"passed (≥ {pass_threshold:g})"
        rows.append((passed, "pass_rate", "pass_rate_ci", str(summary["n"])))
    for key in summary:
        is_metric = key.startswith(("metric_", "metric."))
        if is_metric and f"{key}_n" in summary and f"{key}_ci_low" in summary:
            rows.append((key[len("metric_") :], key, f"{key}_ci", str(summary[f"{key}_n"])))
    for label, key in pass_rate_keys(summary).items():
        n = summary[f"{key}_n"]
        rows.append((label, key, f"{key}_ci", "–" if n is None else count(n, "sample")))
    # A reward that is 0 or 1 is also the pass rate and its only metric: one row says so.
    labels: dict[tuple[str, str, str], list[str]] = {}
    for label, key, prefix, of in rows:
        bounds = interval(summary[f"{prefix}_low"], summary[f"{prefix}_high"])
        labels.setdefault((number(summary[key]), bounds, of), []).append(label)
    cells = [[" = ".join(names), *numbers] for numbers, names in labels.items()]
    return Table([Column("", wrap=True), "mean", Column("95% interval"), "n"], cells)


def _describe_state(report: EvalReport, reason: str | None) -> Iterator[Line]:
    """Say whether a run is not finished, and whether its results are a selection."""
    summary = report.summary
    asked = summary.get("n_asked")
    if report.lacks_mean and summary["n_scored"] and summary["n"] == asked:
        why = reason or "too many items errored for a mean"
        yield Line(f"Failed: {why}.", style="yellow")
    elif summary.get("complete") is False:
        done = f"{summary['n']} of {count(asked, 'item')}" if asked else count(summary["n"], "item")
        as_of = None if report.run_dir is None else report.run_dir.copied_at
        states = {
            "running": f"Running as of {as_of}: {done}"
            if as_of
            else f"Still running: {done} so far",
            "complete": f"Its journal is not the one it was finished with: {done}",
        }
        state = states.get(report.status, f"Not finished: {report.status} after {done}")
        why = f" ({reason})" if reason else ""
        numbers = "the numbers are of these"
        if not summary["n_scored"]:
            numbers = "none of them has a score" if summary["n"] else "there are no numbers yet"
        elif report.lacks_mean:
            numbers = "too many of these errored for a mean"
        yield Line(f"{state}{why}; {numbers}.", style="yellow")
    if report.selection is not None:
        yield Line(describe_selection(report), style="yellow")


def _describe_three_way(report: EvalReport, summary: Summary) -> Iterator[Line]:
    from heldout.analysis.three_way import count_three_way, three_way_names

    for metric in three_way_names(summary):
        try:
            counts = count_three_way(report, metric, cluster=summary.get("clustered_by"))
        except InvalidInput:
            continue  # metrics of another origin that only have such names
        f1 = counts.f1
        bounds = interval(f1.interval.low, f1.interval.high) if f1.interval else "–"
        text = "" if metric == "correct" else f"{metric}: "
        text += (
            f"correct {counts.correct}, incorrect {counts.incorrect}, not attempted "
            f"{counts.not_attempted} of {counts.n} scored; F1 {number(f1.value)} ({bounds})"
        )
        if counts.errored:
            text += f"; {counts.errored} errored, which are no attempts"
        yield Line(text)


def _describe_equal_attempts(report: EvalReport) -> Iterator[str]:
    functions = report.info.functions if report.info is not None else {}
    if equal := count_equal_attempts(report.config, functions):
        yield (
            f"{equal} attempts at each sample are the same request, made again: at temperature 0 "
            f"nothing else differs, so pass@{equal} and pass^{equal} say no more than one attempt"
        )


def _make_notes(summary: Summary) -> Iterator[str]:
    """Yield what a reader of the table must know to read it right."""
    n, errors = summary["n"], summary["n_errors"]
    if unweighted := summary.get("n_unweighted"):
        yield (
            f"{count(unweighted, 'item')} without a metric of a weight above 0: their reward is 0 "
            "by definition, not by measurement"
        )
    if turns := summary.get("cached_turns"):
        cached = summary["n_cached"]
        items = "no item" if cached == n else f"{n - cached} of {count(n, 'item')}"
        yield (
            f"{count(turns, 'model turn')} came from the response cache: {items} "
            f"{'has' if cached == n or n - cached == 1 else 'have'} a new one"
        )
    if errors > MAX_ERROR_RATE * n and summary["mean"] is not None:
        yield (
            f"{errors} of {count(n, 'item')} errored, too many for either mean to say much about "
            "the policy: the first counts them as 0, the second leaves them out"
        )
    if errors and (summary["min"] or 0) < 0:
        yield (
            "errored items count as 0 in the reward, which is more than others scored: "
            "read the scored only"
        )
    for label, key in pass_rate_keys(summary).items():
        if short := summary.get(f"{key}_short"):
            k = key.rpartition("_")[2]
            have = "has" if short == 1 else "have"
            samples = f"{count(short, 'sample')} {have} fewer than {k} attempts"
            yet = " yet" if summary.get("complete") is False else ""
            yield f"no {label} and pass^{k}{yet}: {samples}"


def _describe_limits(report: EvalReport) -> Iterator[str]:
    """Say how many items a limit ended, and how to lift those that are heldout's."""
    if limits := report.limits:
        ended = [f"{cut(limit, 40)} ({n})" for limit, n in limits.items()]
        own = [(name, report.config.get(name)) for name in ("max_turns", "token_budget")]
        lifted = [
            f"; {name} was {value}, `--set {name}=N` sets another"
            for name, value in own
            if name in limits and value is not None
        ]
        yield (
            f"{sum(limits.values())} of {count(report.summary['n'], 'item')} ended at a limit, and "
            f"what there was is scored: {list_some(ended, REASONS_NAMED, ', ')}{''.join(lifted)}"
        )


def _describe_finish_reasons(report: EvalReport) -> Iterator[str]:
    """Name the finish reasons that may or may not mean a truncated turn."""
    reasons = report.finish_reasons.items()
    unknown = [f"{cut(r, 40)!r} ({n})" for r, n in reasons if not is_known_finish_reason(r)]
    if unknown:
        listed = list_some(unknown, REASONS_NAMED, ", ")
        yield (
            f"finish reasons that heldout does not know: {listed}; it is not known whether those "
            "turns were truncated, and they are not counted as such"
        )


def _describe_clusters(summary: Summary, fewest: int | None = None) -> Iterator[Line]:
    """Say by what error bars are clustered, where it is not by sample; `fewest` in any slice."""
    from heldout.analysis.passes import FEW_CLUSTERS

    if summary.get("stopped"):
        return  # there are no error bars
    if "clustered_by" in summary:
        key, n, alone = (summary[k] for k in ("clustered_by", "n_clusters", "n_without_cluster"))
        of_alone = f", {alone} of them samples without {key}, each on its own" if alone else ""
        yield Line(f"error bars clustered by {key}: {count(n, 'cluster')}{of_alone}")
        least = n if fewest is None else fewest
        if least == 1:
            text = "one cluster does not show how clusters differ: intervals from it are a guess"
            yield Line(text, style="yellow")
        elif least < FEW_CLUSTERS:
            as_few = "as few as " if least < n else ""
            yield Line(f"intervals from {as_few}{least} clusters are rough", style="yellow")
    elif (distinct := summary.get("n_clusters")) is not None:
        text = (
            f"{distinct} distinct: samples of equal input and target are one cluster. If they are "
            "not copies, --cluster sample_id takes each for itself"
        )
        yield Line(text, style="yellow")


def build_slices(
    by: Sequence[str],
    slices: Mapping[tuple[Any, ...], Summary],
    total: Summary,
    report: EvalReport,
) -> Report:
    """Build what `heldout show --by` prints: a row for each combination of values, and for all."""
    clusters = ["clusters"] if "clustered_by" in total else []
    keys = [Column(code(key), wrap=True) for key in by]
    labelled = [*slices.items(), (("all", *[""] * (len(by) - 1)), total)]
    columns = [*zip(*slices, strict=True)] or [() for _ in by]
    rows = [
        [
            *(label_text(value, others) for value, others in zip(values, columns, strict=True)),
            str(summary["n"]),
            *(str(summary["n_clusters"]) for _ in clusters),
            number(summary["mean"]),
            interval(summary["ci_low"], summary["ci_high"]),
            number(summary["pass_rate"]),
            str(summary["n_errors"]),
        ]
        for values, summary in labelled
    ]
    fewest = min(summary["n_clusters"] for _, summary in labelled) if clusters else None
    table = Table(
        [*keys, "n", *clusters, "mean", Column("95% interval"), "passed", "errors"],
        rows[:-1],
        totals=rows[-1:],
    )
    state = [*_describe_settled(report), *_describe_state(report, None)]
    return Report([*state, table, *_describe_clusters(total, fewest)])


def label_text(value: Any, others: Collection[Any] = ()) -> str:
    """Return the value of a slice as a text, quoted where another value looks the same.

    Args:
        value: The value; None: there is none.
        others: The values of its key.
    """
    if value is None:
        return "–"
    is_ambiguous = isinstance(value, str) and any(
        not isinstance(other, str) and str(other) == value for other in others
    )
    return f'"{value}"' if is_ambiguous else str(value)


def in_order(labels: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Sort labels of slices as people do: easy before hard, level 2 before level 10."""
    return sorted(labels, key=label_order)


def label_order(label: Any) -> list[tuple[Any, ...]]:
    """Return what the label of a slice sorts by; missing values come last."""
    return [_value_order(value) for value in label]


def _value_order(value: Any) -> tuple[Any, ...]:
    if value is None:
        return (3,)
    if not isinstance(value, str):
        return (0, value)
    word = re.sub(r"[\s_-]+", "-", value.lower())
    if word in SCALE:
        return (1, SCALE.index(word), value)
    pieces = re.split(r"([0-9]+)", value.lower())  # texts and numbers in turn
    return (2, [int(piece) if i % 2 else piece for i, piece in enumerate(pieces)], value)
