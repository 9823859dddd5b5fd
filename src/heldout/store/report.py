"""EvalReport: a finished or unfinished run as a value. Results are loaded on demand."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from heldout._core.format import printable
from heldout._core.html import as_html
from heldout._core.prices import Price, find_price
from heldout._core.providers import model_name
from heldout.errors import InvalidInput, RunDirectoryError, RunExists, RunReplaced
from heldout.stats.summary import (
    EMPTY_SUMMARY,
    Summary,
    has_mean,
    without_intervals,
    without_means,
)
from heldout.store.ahead import ahead_path
from heldout.store.columns import derive, read_columns, summarize_results, write_parquet
from heldout.store.database import select_items
from heldout.store.error_counts import ErrorCount, count_errors, list_errors
from heldout.store.frames import import_package, make_columns
from heldout.store.journal import JournalWriter
from heldout.store.jsonl import open_to_read, replace_file
from heldout.store.results import Results, Selection, rows_of
from heldout.store.run_config import repeats_of, threshold_of
from heldout.store.run_dir import (
    SUMMARY_FORMAT,
    SUMMARY_VERSION,
    ModelUsage,
    RunDir,
    RunInfo,
    RunUsage,
    SummaryFile,
    hash_ends,
    now,
)
from heldout.store.runs import find_run
from heldout.store.settled import Settled
from heldout.store.tables import group_results, slice_summaries, summarize_table, table_of
from heldout.store.token_counts import TOKENS, count_tokens
from heldout.store.tools import tools_path
from heldout.types import EvalResult

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

NO_LIMIT = ("environment", "no_reply", "error", "timeout")
"""Ends that are none at a limit, and a time limit, which is an error."""


@dataclass(frozen=True, slots=True)
class EvalReport:
    """The report of an eval. `path` is its run directory, if it has one."""

    results: Sequence[EvalResult]
    summary: Summary
    config: dict[str, Any]
    path: Path | None = None
    status: str = "complete"
    selection: Selection | None = field(default=None, compare=False)
    """Which results of the run these are, where `where` has picked some."""
    info: RunInfo | None = field(default=None, compare=False)
    """What run.json said when the report was loaded."""

    def __repr__(self) -> str:
        where = f", path={str(self.path)!r}" if self.path is not None else ""
        numbers = {key: self.summary.get(key) for key in ("n", "n_errors", "mean")}
        lines = list_errors(self.errors, self.summary.get("n_errors") or 0)
        errors = f", errors={[printable(line) for line in lines]}" if lines else ""
        return f"EvalReport({numbers}, status={self.status!r}{errors}{where})"

    def _repr_html_(self) -> str:
        return as_html("report", self)

    @classmethod
    def load(cls, path: str | Path) -> EvalReport:
        """Open a run directory. Runs no code from it and follows no path in it (clause 19).

        A run that is still being written, or was stopped, loads too: its summary is of what has
        finished so far, with `complete: False` and `n_asked` beside it.

        Args:
            path: The directory, as a `Path` or a text with a slash; or a name under outputs/evals:
                NAME is the latest run of that name, NAME@3 its third, NAME@2026-11-15 the latest of
                that day.

        Raises:
            RunDirectoryError: There is no such run, or it cannot be read.
            InvalidInput: The path is that of a file.
        """
        if Path(path).is_file():
            raise InvalidInput(
                f"{path} is a file; EvalReport.load takes the run directory, {Path(path).parent}"
            )
        try:
            return cls._load(find_run(path))
        except RunReplaced:
            return cls._load(find_run(path))

    @classmethod
    def _load(cls, path: Path) -> EvalReport:
        run = RunDir(path)
        info = run.read_info()
        if info.status == "running" and not run.may_be_running():
            info = run.read_info()  # it may have finished just now
            if info.status == "running":
                info.status = "interrupted"  # kill -9 leaves no time to write that down
        summary = _summary(run, info)
        run.refuse_replaced(info)
        return cls(Results(run, info), summary, info.config, run.path, info.status, info=info)

    def save(self, path: str | Path, *, parquet_from: int = 0) -> None:
        """Write a run directory; nothing is done where the report already is.

        Args:
            path: The directory.
            parquet_from: Results from which it gets a results.parquet.

        Raises:
            RunDirectoryError: It cannot be written.
            RunExists: It holds a run already.
            InvalidInput: The results were picked by what came out: saved as a run, they would lose
                the record that they were selected.
        """
        if self.selection is not None and self.selection.by_outcome:
            raise InvalidInput(
                f"results picked by what came out ({self.selection.condition}) are no run; "
                "to_parquet, to_pandas or to_polars keep them"
            )
        target = RunDir(Path(path))
        if self.path is not None and target.path.resolve() == self.path.resolve():
            return
        if target.exists():
            raise RunExists(f"{target.path} already holds a run; save to another path")
        target.make()
        if self.path is not None and self.selection is None:
            source = RunDir(self.path)
            for file in (source.journal, source.run):
                _copy_file(file, target.path / file.name)
            others = source.columns, source.summary, tools_path(source.journal)
            for file in (*others, ahead_path(source.journal)):
                with suppress(FileNotFoundError, RunDirectoryError):  # no result: passed over
                    _copy_file(file, target.path / file.name)
            return
        index: dict[str, int] = {}
        for result in self.results:
            index.setdefault(result.sample_id, len(index))
        journal = JournalWriter(target.journal)
        for result in sorted(self.results, key=lambda r: (index[r.sample_id], r.repeat)):
            journal.append(index[result.sample_id], result)
        journal.close()
        info = RunInfo.new(self.config, {})
        info.settled, info.usage_ahead = self.settled, self.usage_ahead
        finish(target, info, journal.written, parquet_from)
        if self.summary.get("complete") is False:
            info.status, info.asked = "interrupted", self.summary.get("n_asked")
            target.write_info(info)

    def to_parquet(self, path: str | Path) -> None:
        """Write the results as a Parquet file, one row per item, in dataset order.

        Args:
            path: The file to write, replaced where it is there.

        Raises:
            InvalidInput: There are no results, or their metadata needs too many columns.
            RunDirectoryError: It cannot be written.
        """
        file = write_parquet(lambda: rows_of(self.results), Path(path))
        if file is None:
            raise InvalidInput("there are no results, or more columns than a table holds")
        file.close()

    def where(self, condition: str) -> EvalReport:
        """Pick the results for which a condition holds.

        Args:
            condition: SQL over the columns of `heldout sql`, such as "metadata.level = 'hard'".

        Returns:
            A report of these. Its summary has the condition as `where`, and as `n_of` how many
            results there were to pick from. Where the condition looks at what came out (`reward =
            1`), it has no standard errors and no intervals: they would say nothing.

        Raises:
            InvalidQuery: The condition is not one, or no result meets it.
        """
        if self.selection is not None:
            raise InvalidInput("these results are picked already; join the conditions with AND")
        selection = select_items(self.results, condition, self.pass_threshold)
        results: Sequence[EvalResult] = (
            [*compress(self.results, selection.items)]
            if self.path is None
            else Results(RunDir(self.path), self.info, selection)
        )
        picked = replace(self, results=results, selection=selection)
        summary = summarize_table(table_of(results), self.pass_threshold)
        progress: Summary = {
            key: self.summary[key] for key in ("complete", "n_asked") if key in self.summary
        }
        return replace(picked, summary=picked.mark_selected({**summary, **progress}))

    def mark_selected(self, summary: Summary) -> Summary:
        """Say in a summary of these results that they were picked, and by what.

        Args:
            summary: A summary of these results, or of some of them.

        Returns:
            The summary, without errors and intervals where the results were picked by outcome, and
            without means where the run has none.
        """
        if self.lacks_mean:
            summary = without_means(summary)
        summary = mark_stopped(summary, self.settled)
        if self.selection is None:
            return summary
        if self.selection.by_outcome:
            summary = without_intervals(summary)
        return {**summary, "where": self.selection.condition, "n_of": self.selection.of}

    @property
    def settled(self) -> Settled | None:
        """How the claim of a run with `until` was settled; None of other runs."""
        return None if self.info is None else self.info.settled

    @property
    def usage_ahead(self) -> RunUsage | None:
        """What the items of a stopped run took that were run beyond the stop: no part of `usage`.

        None where there are none.
        """
        return None if self.info is None else self.info.usage_ahead

    @property
    def run_dir(self) -> RunDir | None:
        """The run directory that its results are read from; None where they are in memory."""
        return self.results.run if isinstance(self.results, Results) else None

    @property
    def repeats(self) -> int:
        """Attempts per sample."""
        return repeats_of(self.config)

    @property
    def pass_threshold(self) -> float | None:
        """The reward from which an item counts as passed; None if nothing says so."""
        return threshold_of(self.config)

    @property
    def usage(self) -> RunUsage:
        """What the run took: tokens and, where models have prices, cost.

        `models` has the shares: the policy's, those of judges and of simulated users.
        """
        if self.path is not None and self.selection is None:
            run = RunDir(self.path)
            stored = run.read_summary(self.info or run.read_info())
            if stored is not None and stored.usage is not None:
                run.refuse_replaced(self.info)
                return add_cost(stored.usage, self.config)
        return add_cost(count_tokens(read_columns(self.results, TOKENS)), self.config)

    @property
    def errors(self) -> list[ErrorCount]:
        """The commonest errors, by their first line, with the number of items each has ended."""
        if not self.summary.get("n_errors"):
            return []
        columns = read_columns(self.results, ["sample_id", "error"])
        # Masked, so None, where there is none.
        ids, errors = columns["sample_id"].tolist(), columns["error"].tolist()
        return count_errors(zip(ids, errors, strict=True))

    @property
    def is_imported(self) -> bool:
        """Whether another package ran the items, so that none of them can be run again here."""
        return "imported" in self.config and "parent" not in self.config

    @property
    def lacks_mean(self) -> bool:
        """Whether the run failed because too many of its items errored (clause 3)."""
        return self.status == "failed" and self.summary.get("mean") is None

    @property
    def is_finished(self) -> bool:
        """Whether all items are there, also where too many of them errored for a mean."""
        summary = self.summary
        has_all = summary.get("n") is not None and summary.get("n") == summary.get("n_asked")
        return summary.get("complete") is not False or (self.status == "failed" and has_all)

    @property
    def finish_reasons(self) -> dict[str, int]:
        """How many items' last model turns ended in which way, the most frequent first."""
        return self._count("finish_reason")

    @property
    def limits(self) -> dict[str, int]:
        """How many items a limit ended, by its name; a time limit is an error, and not here."""
        ends = self._count("ended_by").items()
        return {limit: n for limit, n in ends if limit not in NO_LIMIT}

    def _count(self, column: str) -> dict[str, int]:
        """Count the texts of a column, the most frequent first, equals by name."""
        counts = Counter(read_columns(self.results, [column])[column].tolist())
        named = {value: n for value, n in counts.items() if value}
        return dict(sorted(named.items(), key=lambda item: (-item[1], item[0])))

    def summarize(
        self, by: str | Sequence[str] | Callable[[EvalResult], Any]
    ) -> dict[Any, Summary]:
        """Summarize the results for each value of a key; `summary` is that of all.

        Args:
            by: A metadata key or a column such as `truncated`; several of them; or a function of a
                result.

        Returns:
            A summary by value, in sorted order; None stands for results without the key. For
            several keys, by a tuple of their values.

        Raises:
            InvalidInput: There is no such key; the message names those that there are.
        """
        if callable(by):
            return {
                value: self._mark(summarize_results(group, self.pass_threshold))
                for value, group in group_results(self.results, by).items()
            }
        keys = (by,) if isinstance(by, str) else tuple(by)
        if not keys:
            raise InvalidInput("summarize by what? Name at least one key")
        slices, _ = self.slices_and_total(*keys)
        return {values[0]: s for values, s in slices.items()} if isinstance(by, str) else {**slices}

    def slices_and_total(
        self, *by: str, cluster: str | None = None
    ) -> tuple[dict[tuple[Any, ...], Summary], Summary]:
        """Summarize slices and all results from one reading: a live run grows between two.

        Args:
            *by: Metadata keys, or names of columns.
            cluster: Metadata key to cluster error bars by.

        Returns:
            A summary by the values of the keys, and that of all results.

        Raises:
            InvalidInput: Error bars were asked for of results that were picked by what came out.
        """
        if cluster is not None:
            refuse_selected(self)
        slices, total = slice_summaries(self.results, by, self.pass_threshold, cluster)
        return {values: self._mark(s) for values, s in slices.items()}, self._mark(total)

    def _mark(self, summary: Summary) -> Summary:
        """Say in a summary whether results were picked, and whether more are to come."""
        summary = self.mark_selected(summary)
        return {**summary, "complete": False} if self.summary.get("complete") is False else summary

    def to_pandas(self) -> pandas.DataFrame:
        """Make a pandas DataFrame: a row per attempt, as `heldout.store.frames` describes it.

        `attrs["heldout"]` says of which run the rows are, how many, and whether these are all.

        Raises:
            InvalidInput: pandas is not installed.
        """
        columns = make_columns(self.results, self.pass_threshold)
        frame: pandas.DataFrame = import_package("pandas").DataFrame(columns)
        frame.attrs["heldout"] = self._describe_rows()
        return frame

    def to_polars(self) -> polars.DataFrame:
        """Make a polars DataFrame: a row per attempt, as `heldout.store.frames` describes it.

        Raises:
            InvalidInput: polars is not installed.
        """
        columns = make_columns(self.results, self.pass_threshold)
        frame: polars.DataFrame = import_package("polars").DataFrame(
            columns, infer_schema_length=None
        )
        return frame

    def to_arrow(self) -> pyarrow.Table:
        """Make a pyarrow Table: a row per attempt, as `heldout.store.frames` describes it.

        The schema's metadata have as `heldout`, in JSON, what a pandas frame has in `attrs`.

        Raises:
            InvalidInput: pyarrow is not installed.
        """
        columns = make_columns(self.results, self.pass_threshold)
        table: pyarrow.Table = import_package("pyarrow").table(columns)
        about = msgspec.json.encode(self._describe_rows())
        return table.replace_schema_metadata({"heldout": about})

    def _describe_rows(self) -> dict[str, Any]:
        """Say what the rows of a frame are: of an unfinished run, the finished part."""
        summary = self.summary
        described: dict[str, Any] = {
            "run": self.config.get("experiment_name"),
            "n": summary.get("n"),
            "complete": self.is_finished,
        }
        names = ("n_asked", "stopped", "where", "n_of")
        kept = {key: summary[key] for key in names if key in summary}
        if self.settled is not None:
            kept["settled"] = msgspec.to_builtins(self.settled)
        return described | kept


ReportOrResults = EvalReport | Iterable[EvalResult]


def refuse_selected(results: ReportOrResults, name: str = "this report") -> None:
    """Refuse results selected by outcome: they only describe the selection.

    That is a report that `where` picked so, and one that holds fewer results than it was made with.
    For a plain list of results this cannot be known.

    Args:
        results: A report, or results.
        name: What to call it.

    Raises:
        InvalidInput: They were.
    """
    if (selection := outcome_selection(results)) is not None:
        raise InvalidInput(
            f"{name} holds results picked by what came out ({selection.condition}), so an interval "
            "or a comparison says nothing of them; pick by metadata"
        )
    if not isinstance(results, EvalReport) or results.run_dir is not None or results.selection:
        return
    counts = [results.summary.get("n")]
    if results.info is not None and results.info.status == "complete":
        counts.append(results.info.asked)
    for count in counts:
        if count is not None and count != len(results.results):
            raise InvalidInput(
                f"{name} holds {len(results.results)} results where it was made of {count}; "
                "report.where(…) picks by metadata, and says that it did"
            )


def outcome_selection(results: ReportOrResults) -> Selection | None:
    """Return how results were selected by outcome; None if they were not, as far as is known."""
    if not isinstance(results, EvalReport | Results) or results.selection is None:
        return None
    return results.selection if results.selection.by_outcome else None


def finish(run: RunDir, info: RunInfo, asked: int, parquet_from: int = 0) -> Summary:
    """Derive what is derived from a journal that has every item, and call the run complete.

    Of fewer than `parquet_from` results there is no results.parquet. RunDirectoryError says that
    the journal does not have as many items as were asked for, or that a file cannot be written.
    """
    parquet = asked >= parquet_from
    if not parquet:
        run.columns.unlink(missing_ok=True)
    summary, usage, columns_hash = derive(
        run, repeats_of(info.config), threshold_of(info.config), parquet=parquet
    )
    summary = mark_stopped(summary, info.settled)
    if summary["n"] != asked:
        raise RunDirectoryError(
            f"{run.journal} has {summary['n']} results where {asked} were asked for; was it "
            "changed from outside?"
        )
    content = SummaryFile(SUMMARY_FORMAT, SUMMARY_VERSION, summary, add_cost(usage, info.config))
    replace_file(run.summary, msgspec.json.format(msgspec.json.encode(content)) + b"\n")
    info.status, info.asked, info.finished = "complete", summary["n"], now()
    info.journal_bytes = run.journal.stat().st_size
    info.journal_hash, info.summary_hash = hash_ends(run.journal), hash_ends(run.summary)
    info.columns_hash = columns_hash or None
    run.write_info(info)
    return summary


def _copy_file(file: Path, target: Path) -> None:
    with open_to_read(file) as source, target.open("xb") as copy:
        shutil.copyfileobj(source, copy)


def add_cost(usage: RunUsage, config: Mapping[str, Any]) -> RunUsage:
    """Add what tokens cost, by the price in the run's config or the user's file of prices."""
    models = usage.models or (
        ModelUsage("policy", None, usage.n, 0, usage.prompt_tokens, usage.completion_tokens),
    )
    priced = []
    for model in models:
        price = _policy_price(config) if model.role == "policy" else find_price(model.model or "")
        if model.n and model.cost is None and price is not None:
            cost = price.cost(model.prompt_tokens, model.completion_tokens)
            model = msgspec.structs.replace(model, cost=cost)
        priced.append(model)
    return RunUsage.of(priced)


def _policy_price(config: Mapping[str, Any]) -> Price | None:
    stored, endpoint = config.get("price"), config.get("endpoint")
    if isinstance(stored, Mapping):
        with suppress(TypeError, InvalidInput):  # a run directory may come from anywhere
            return Price(**stored)
    elif isinstance(endpoint, Mapping) and (model := model_name(endpoint)) is not None:
        return find_price(model)
    return None


def _summary(run: RunDir, info: RunInfo) -> Summary:
    stored = run.read_summary(info)
    if stored is not None and _is_whole(stored.summary):
        return stored.summary
    if not run.has_journal:
        raise RunDirectoryError(f"{run.path} has no {run.journal.name}: nothing was run yet")
    summary, _, _ = derive(run, repeats_of(info.config), threshold_of(info.config), parquet=False)
    if info.asked == summary["n"] and run.derived_are_current(info):
        return mark_stopped(summary, info.settled)
    limit = info.config.get("max_error_rate")
    rate = float(limit) if isinstance(limit, int | float) else None
    if info.status == "failed" and not has_mean(summary["n"], summary["n_errors"], rate):
        summary = without_means(summary)
    return {**summary, "complete": False, "n_asked": info.asked}


def _is_whole(summary: Summary) -> bool:
    """Counts have to be there; whatever else there is may be null."""
    counts = all(type(summary.get(k)) is int for k, v in EMPTY_SUMMARY.items() if v is not None)
    return counts and set(EMPTY_SUMMARY) <= set(summary)


def mark_stopped(summary: Summary, settled: Settled | None) -> Summary:
    """Say in a summary that its run was stopped early, and take its ordinary intervals away."""
    if settled is None or not settled.is_early:
        return summary
    return {**without_intervals(summary), "stopped": True, "n_asked": settled.n_asked}
