"""`heldout check eval FILE`: do its reference answers pass, and does nothing else?"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from heldout._core.format import count
from heldout.cli._options import count_option, json_option, parameters_option, parse_key_values
from heldout.cli._tables import decide, print_json, print_report
from heldout.reporting.blocks import Block, Cell, Column, Line, Report, Table, code

if TYPE_CHECKING:
    from heldout.analysis.eval_check import EvalCheck

SHOWN = 10
"""Findings of a kind that are listed."""


@click.command("eval", short_help="Answer an eval's own references back: they must pass.")
@click.argument("file", type=click.Path(path_type=Path))
@count_option("-n", "--limit", "max_samples", help="Only the first N samples.")
@parameters_option
@click.option(
    "--train",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Training prompts (JSONL, CSV or Parquet) that must not be in the eval.",
)
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings, too.")
@count_option("--max-concurrent", default=16, help="Samples that are scored at once.")
@json_option
def eval_command(
    file: Path,
    max_samples: int | None,
    parameters: tuple[str, ...],
    train: Path | None,
    strict: bool,
    max_concurrent: int,
    as_json: bool,
) -> None:
    """Check an eval before a model is asked.

    FILE is what `heldout run` takes. The reference of each sample is answered back and scored by
    the eval itself: reference(sample) of FILE, or reference, canonical_solution or solution of the
    metadata, or the ground truth. One that does not pass is a broken grader or a wrong label: exit
    code 1.

    An empty answer and an unrelated word that pass are warnings, and so are copies, questions with
    two truths, empty prompts, samples without a reference, and prompts of the training file.
    """
    from heldout.analysis.eval_check import check_eval
    from heldout.cli.run import load_eval_file, stdout_for_json

    with stdout_for_json(as_json):
        definition = load_eval_file(file).define(parse_key_values(parameters, "-T"))
        check = asyncio.run(
            check_eval(
                definition,
                train=() if train is None else _read_rows(train),
                max_samples=max_samples,
                max_concurrent=max_concurrent,
            )
        )
    if as_json:
        print_json(decide(*_conclude(check), _describe(check)), "check eval")
    else:
        print_report(_build_report(check))
    if check.problems or (strict and check.warnings):
        raise click.exceptions.Exit(1)


def _conclude(check: EvalCheck) -> tuple[str, str]:
    from heldout.analysis.eval_check import conclude_check

    return conclude_check(check)


def _read_rows(path: Path) -> Sequence[object]:
    from heldout.datasets import read_csv, read_jsonl, read_parquet

    readers = {".csv": read_csv, ".parquet": read_parquet}
    return readers.get(path.suffix, read_jsonl)(path)


def _describe(check: EvalCheck) -> dict[str, object]:
    from dataclasses import asdict

    return {**asdict(check), "findings": [asdict(finding) for finding in check.findings]}


def _build_report(check: EvalCheck) -> Report:
    from heldout.analysis.eval_check import MEANINGS

    blocks: list[Block] = []
    rows: list[list[Cell]] = []
    for kind, meaning in MEANINGS.items():
        found = [finding for finding in check.findings if finding.kind == kind]
        for finding in found[:SHOWN]:
            rows.append([code(finding.sample_id), meaning, finding.detail])
        if len(found) > SHOWN:
            rows.append(["", f"… and {count(len(found) - SHOWN, 'more sample')}: {meaning}", ""])
    if rows:
        columns = [Column("sample"), Column("", wrap=True), Column("", wrap=True)]
        blocks.append(Table(columns, rows))
    if check.form not in (None, "as it is"):
        blocks.append(Line(f"References were answered as {check.form}", style="dim"))
    decision, text = _conclude(check)
    style = "bold red" if decision == "unfit" else "bold"
    return Report([*blocks, Line(text[0].upper() + text[1:], style=style)])


__all__ = ["eval_command"]
