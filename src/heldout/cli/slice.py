"""`heldout slice RUN --by KEY`: the report for each value of a metadata key."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import click

# Words that have an order, though not that of the alphabet.
SCALES = (
    ("trivial", "very easy", "easy", "medium", "hard", "very hard", "expert"),
    ("beginner", "intermediate", "advanced", "expert"),
    ("very low", "low", "medium", "high", "very high"),
    ("tiny", "small", "medium", "large", "huge"),
    ("very short", "short", "medium", "long", "very long"),
)


@click.command("slice")
@click.argument("run")
@click.option(
    "--by", multiple=True, required=True, metavar="KEY", help="Metadata key; several combine."
)
@click.option("--cluster", metavar="KEY", help="Cluster error bars by this metadata key.")
@click.option("--where", metavar="SQL", help="Only results that meet a condition; see heldout sql.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON a slice.")
def command(
    run: str, by: tuple[str, ...], cluster: str | None, where: str | None, as_json: bool
) -> None:
    """Print a line for each value of KEY in RUN: a run directory, or a name under outputs/evals."""
    from heldout.cli._load import select_results
    from heldout.cli._tables import print_json, print_report
    from heldout.cli.compare import name_options_in_errors
    from heldout.cli.show import build_slices
    from heldout.errors import RunDirectoryError
    from heldout.store.report import EvalReport
    from heldout.store.run_dir import find_run

    path = find_run(run)
    if (path / "curve.jsonl").exists():
        raise RunDirectoryError(
            f"{path} is a curve; slice a point of it, one of the runs in {path / 'steps'}"
        )
    report = select_results(EvalReport.load(path), where, "--cluster" if cluster else None)
    with name_options_in_errors((), by, "--by"):
        if cluster is None:
            found, total = report.slices_and_total(*by)
        else:
            from heldout.analysis.passes import slices_and_total

            found, total = slices_and_total(report, *by, cluster=cluster)
            found = {values: report.mark_selected(part) for values, part in found.items()}
    slices = {values: found[values] for values in in_order(found)}
    if as_json:
        for values, summary in slices.items():
            print_json({"slice": dict(zip(by, values, strict=True)), **summary})
    else:
        print_report(build_slices(by, slices, total, report))
    if report.status == "failed":
        raise click.exceptions.Exit(2)  # as `heldout show` does


def in_order(keys: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Combinations of values as people order them: easy before hard, level 2 before level 10."""
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
