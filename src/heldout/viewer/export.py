"""One HTML file with some runs in it: it opens from disk, needs no server and fetches nothing.

The page is the one that the server sends, its script included; the answers to its requests are
embedded as base64 of gzip. The same runs give the same bytes, so nothing in the file
depends on when or where it was made. Texts that look like keys stop the export.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from heldout._core.secrets import IS_KEY, REDACTED
from heldout._core.version import __version__
from heldout.errors import HeldoutError, InvalidInput
from heldout.reporting.names import explain_empty
from heldout.store.columns import METADATA, METRIC
from heldout.viewer.assets import BUNDLE, BUNDLES, MARKDOWN_BUNDLE, read_assets
from heldout.viewer.fields import RunFields
from heldout.viewer.filter import FilterColumn
from heldout.viewer.notebook import render_block
from heldout.viewer.pages import Pages, scan_runs

MOST_RUNS = 12
MOST_ROWS = 100_000
MOST_BYTES = 20_000_000
CONVERSATIONS = 1_000
"""Conversations of a run that are inside by default: those that failed first."""
FLIPS = 50
"""Samples each way whose conversations are inside because they flipped between two runs."""
PAIR_ROWS = 2_000
"""Samples of two runs in a table of both: those that flipped first."""
CHOSEN_FROM = 4
"""How many runs, or curves: every choice of them is compared, or drawn together."""
STEP_PAIRS = 300

Answers = dict[str, Any]


class ExportedFile(NamedTuple):
    """The HTML file, and what is in it."""

    page: bytes
    names: list[str]
    inside: int
    """Conversations in it."""
    whole: int
    """Conversations that its runs have."""


def export_runs(
    roots: Sequence[Path],
    *,
    samples: str = "failures",
    redact: Sequence[str] = (),
    allow_secrets: bool = False,
) -> bytes:
    """Make the HTML file of run directories, or folders of them; arguments as `export_pages`."""
    names = list(scan_runs(roots))
    if not names:
        raise InvalidInput(explain_empty(*roots))
    pages = Pages(roots)
    made = export_pages(pages, names, samples=samples, redact=redact, allow_secrets=allow_secrets)
    return made.page


def export_pages(
    pages: Pages,
    names: Sequence[str],
    *,
    samples: str = "failures",
    redact: Sequence[str] = (),
    allow_secrets: bool = False,
) -> ExportedFile:
    """Make the HTML file of some runs.

    Args:
        pages: What answers the requests of the page.
        names: The runs.
        samples: Whose conversations are inside: "all", "failures" (and flips), or a number.
        redact: Keys of inputs, metadata and settings whose values are left out.
        allow_secrets: Whether texts that look like keys are let through.
    """
    if len(names) > MOST_RUNS:
        raise InvalidInput(
            f"there are {len(names)} runs, and a file holds {MOST_RUNS}: name those to export"
        )
    collected = _Collector(pages, names, samples, frozenset(redact))
    answers = _redact(collected.answers, frozenset(redact))
    data = msgspec.json.encode(answers)
    if not allow_secrets:
        _refuse_secrets(data)
    page = _make_page(data, answers, collected.inside, collected.whole)
    if len(page) > MOST_BYTES:
        raise InvalidInput(
            f"the file would have {len(page) // 1_000_000} MB, and {MOST_BYTES // 1_000_000} are "
            "the most: name fewer runs, or fewer conversations with --samples N"
        )
    return ExportedFile(page, list(names), collected.inside, collected.whole)


# --- Answers ------------------------------------------------------------------------------------


class _Collector:
    """Answers to the requests that the page can make of some runs."""

    def __init__(
        self, pages: Pages, names: Sequence[str], samples: str, redact: frozenset[str]
    ) -> None:
        self._pages, self._samples, self._redact = pages, samples, redact
        self.answers: Answers = {}
        self.inside = self.whole = 0
        rows = {row["name"]: row for row in pages.runs()["runs"]}
        listed = [
            row | {"settings": _without(row["settings"], redact)}
            for name, row in rows.items()
            if name in names
        ]
        self.answers["runs"] = {"runs": listed, "roots": [], "state": ""}
        runs = [row["name"] for row in listed if row["kind"] != "curve" and "problem" not in row]
        pairs = [*combinations(reversed(runs), 2)]  # the older one is A
        flipped = self._find_flips(pairs)
        for name in runs:
            self._add_run(name, flipped.get(name, set()))
        for a, b in pairs:
            with suppress(HeldoutError):  # not comparable
                self._add_comparison(a, b)
        curves = [row["name"] for row in listed if row["kind"] == "curve"]
        for name in curves:
            self._add_curve(name)
        for chosen in _choices(runs[::-1], at_least=3):
            self._add_several(chosen)
        for chosen in _choices(curves[::-1], at_least=2):
            self._add_overlay(chosen)

    def _add(self, path: str, answer: Any, **params: object) -> None:
        pairs = [f"{key}={value}" for key, value in sorted(params.items()) if value not in ("", 0)]
        self.answers["\n".join([path, *pairs])] = answer

    def _find_flips(self, pairs: Sequence[tuple[str, str]]) -> dict[str, set[str]]:
        """Find the samples of each run that flip between it and another."""
        flipped: dict[str, set[str]] = {}
        for names in pairs:
            with suppress(HeldoutError):  # not comparable, or not by sample
                table = self._pages.pair_table(*names, "", [])
                for change in ("lost", "gained"):
                    rows = np.flatnonzero(table.changes[change])[:FLIPS].tolist()
                    for name in names:
                        flipped.setdefault(name, set()).update(table.row(r)["id"] for r in rows)
        return flipped

    def _add_run(self, name: str, flipped: set[str]) -> None:
        run = self._pages.run(name)
        config = {key: value for key, value in run["config"].items() if key != "output_dir"}
        self._add("run", {**run, "path": "", "config": config, "state": ""}, name=name)
        for key in run.get("keys", ())[:20]:
            slices = self._pages.slices(name, key)
            if slices["total"] <= 100:
                self._add("slices", slices, name=name, by=key)
        if not run["summary"]["n"]:
            return
        notes = self._pages.notes(name)
        if notes["total"]:
            self._add("notes", notes, name=name)
        viewed = self._pages.open(name)
        count = len(viewed.rows)
        if count > MOST_ROWS:
            raise InvalidInput(f"{name} has {count:,} results; a file holds {MOST_ROWS:,}")
        rows = self._pages.rows(name, "", "", [], 0, MOST_ROWS)
        inside = {(row["id"], row["repeat"]) for row in self._choose(rows["rows"])}
        for row in rows["rows"]:
            row["inside"] = (row["id"], row["repeat"]) in inside or row["id"] in flipped
        chosen = [row for row in rows["rows"] if row["inside"]]
        columns = _plain_columns(viewed.fields, self._redact)
        still = {"generation": "", "completions": [], "inside": len(chosen)}
        self._add("rows", {**rows, **columns, **still}, name=name)
        self.whole += count
        for row in chosen:
            self._add_sample(name, row["id"], row["repeat"])

    def _choose(self, rows: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
        if self._samples == "all":
            return rows
        if self._samples != "failures":
            if not self._samples.isdecimal():
                raise InvalidInput(
                    f"--samples must be all, failures or a number, got {self._samples!r:.40}"
                )
            return rows[: int(self._samples)]
        return [row for row in rows if row["outcome"] != "passed"][:CONVERSATIONS]

    def _add_sample(self, name: str, id: str, repeat: int) -> None:
        sample = self._pages.sample(name, id, repeat)
        if sample["tools"]:  # once for all samples that have them
            key = "tools\n" + hashlib.sha256(msgspec.json.encode(sample["tools"])).hexdigest()
            self.answers[key], sample["tools"] = sample["tools"], key
        self._add("sample", sample, name=name, id=id, repeat=repeat)
        self.inside += 1

    def _add_comparison(self, a: str, b: str) -> None:
        for first, second in ((a, b), (b, a)):
            comparison = self._pages.compare(first, second, "", "", [])
            self._add("compare", comparison, a=first, b=second)
            for key in comparison["keys"][:12]:
                with suppress(HeldoutError):  # repeats that differ in it
                    sliced = self._pages.compare(first, second, key, "", [])
                    if len(sliced["slices"]) <= 100:
                        self._add("compare", sliced, a=first, b=second, by=key)
            if comparison["paired"]:
                self._add_pairs(first, second)

    def _add_several(self, names: Sequence[str]) -> None:
        """Add the table of several runs, with each of them as the one to compare with."""
        for base in names:
            ordered = [base, *(name for name in names if name != base)]
            with suppress(HeldoutError):  # not comparable
                answer = self._pages.several(ordered, "", [])
                key = "\n".join(["several", *(f"name={name}" for name in ordered)])
                self.answers[key] = answer | {"others": []}

    def _add_overlay(self, names: Sequence[str]) -> None:
        """Add the chart of several curves, of their first evals."""
        with suppress(HeldoutError):  # too many for one chart
            first = self._pages.curves(names, [], "")
            metrics = [m for m in first["metrics"] if m in (first["metric"], "pass_rate")]
            for metric in metrics or [first["metric"]]:
                # Without a metric in the address it is the first one.
                given = [f"metric={metric}"] if metric != first["metric"] else []
                answer = self._pages.curves(names, [], metric)
                key = "\n".join(["curves", *given, *(f"name={name}" for name in names)])
                self.answers[key] = answer | {"others": [], "metrics": metrics, "state": ""}

    def _add_pairs(self, a: str, b: str) -> None:
        """Add the table of the samples that two runs share; those that flipped come first."""
        table = self._pages.pair_table(a, b, "", [])
        has_flipped = table.changes["lost"] | table.changes["gained"]
        rows = np.argsort(~has_flipped, kind="stable")[:PAIR_ROWS]
        columns = {
            field: _plain_column(_take(table.column(field), rows))
            for field in table.fields
            if field not in self._redact
        }
        described = [table.row(row) for row in rows.tolist()]
        for row in described:
            row["inside"] = all(f"sample\nid={row['id']}\nname={n}" in self.answers for n in (a, b))
        answer = {
            "of": len(rows),
            "left_out": len(table) - len(rows),
            "columns": columns,
            "fields": {field: field for field in columns},
            "counts": {name: int(held.sum()) for name, held in table.changes.items()},
            "rows": described,
        }
        self._add("pairs", answer, a=a, b=b)

    def _add_curve(self, name: str) -> None:
        overview = self._pages.curve(name, "", "")
        for label in overview["labels"] or [""]:
            param = label if len(overview["labels"]) > 1 else ""
            metrics = self._pages.curve(name, label, "")["metrics"]
            for metric in ("", *metrics[1:14]):
                curve = self._pages.curve(name, label, metric)
                status = {"line": f"{len(curve['points'])} points", "style": ""}
                still = {"status": status, "live": False, "state": "", "path": "", "others": []}
                # Without a label in the address it is the first one's.
                for shown in {param, "" if label == overview["label"] else param}:
                    self._add("curve", curve | still, name=name, label=shown, metric=metric)
            strip = self._pages.strip(name, label)
            self._add("strip", strip, name=name, label=param)
            steps = strip["steps"]
            pairs = list(combinations(steps, 2))
            for first, last in pairs if len(pairs) <= STEP_PAIRS else [(steps[0], steps[-1])]:
                flips = self._pages.curve_flips(name, label, first, last)
                self._add(
                    "curve-flips", flips, name=name, label=param, from_step=first, to_step=last
                )
            for row in strip["rows"]:
                history = self._pages.history(name, label, row["id"])
                self._add("history", history, name=name, label=param, id=row["id"])


def _choices(names: Sequence[str], *, at_least: int) -> Iterator[tuple[str, ...]]:
    """Yield what is marked together of some runs, the oldest first: of many, only all of them."""
    fewest = at_least if len(names) <= CHOSEN_FROM else len(names)
    for count in range(fewest, len(names) + 1):
        yield from combinations(names, count) if count >= at_least else ()


def _without(settings: Answers, keys: frozenset[str]) -> Answers:
    """Leave out settings of some keys, "sampling.seed" for "seed" included."""
    return {name: value for name, value in settings.items() if not keys & {*name.split("."), name}}


def _plain_columns(fields: RunFields, redact: frozenset[str]) -> Answers:
    """Give the columns that a filter can name as plain lists: the page filters by them itself."""
    hidden = {prefix + key for key in redact for prefix in ("", METADATA, METRIC)}
    shown = {field: name for field, name in fields.names.items() if name not in hidden}
    columns: Answers = {}
    for field, name in shown.items():
        if name not in columns:
            columns[name] = _plain_column(fields.column(field))
    inputs = [field for field in shown if fields.is_input(field)]
    return {"columns": columns, "fields": shown, "inputs": inputs}


def _take(column: FilterColumn, rows: NDArray[np.int64]) -> FilterColumn:
    """Return some rows of a column, with the values that they have."""
    if column.numbers is not None:
        return FilterColumn(numbers=column.numbers[rows])
    assert column.codes is not None
    used, codes = np.unique(column.codes[rows], return_inverse=True)
    shift = int(used[0] < 0)  # -1 is no value
    values = [column.values[code] for code in used[shift:].tolist()]
    return FilterColumn(codes=(codes - shift).astype(np.int32), values=values)


def _plain_column(column: FilterColumn) -> Answers:
    if column.numbers is not None:
        return {"numbers": [None if n != n else n for n in column.numbers.tolist()]}
    assert column.codes is not None
    # In order, so that the codes sort as the values do.
    values = sorted(column.values)
    ranks = np.full(len(values) + 1, -1)
    ranks[np.argsort(np.array(column.values, dtype=object), kind="stable")] = np.arange(len(values))
    return {"codes": ranks[column.codes].tolist(), "values": values}


def _redact(value: Any, keys: frozenset[str]) -> Any:
    """Leave out the values of some keys, wherever they are."""
    if not keys:
        return value
    if isinstance(value, dict):
        plain: Answers = {k: REDACTED if k in keys else _redact(v, keys) for k, v in value.items()}
        hidden = [i for i, field in enumerate(plain.get("extra") or ()) if field in keys]
        if hidden and isinstance(plain.get("rows"), list):  # a table of samples
            for row in plain["rows"]:
                row["extra"] = [REDACTED if i in hidden else v for i, v in enumerate(row["extra"])]
        return plain if plain.get("by") not in keys else {**plain, "rows": [], "slices": []}
    if isinstance(value, list | tuple):
        return [_redact(part, keys) for part in value]
    return value


def _refuse_secrets(data: bytes) -> None:
    texts = [match[0] for match in IS_KEY.finditer(data.decode("utf-8", "replace"))]
    if texts:
        shown = ", ".join(dict.fromkeys(f"{text[:6]}…{text[-2:]}" for text in texts[:5]))
        raise InvalidInput(
            f"{len(texts)} texts look like keys ({shown}): nothing was written. Leave them out "
            "with --redact KEY, or say --with-secrets if they are none"
        )


# --- The file -----------------------------------------------------------------------------------


def _make_page(data: bytes, answers: Answers, inside: int, whole: int) -> bytes:
    assets = {path: asset.body.decode() for path, asset in read_assets().items()}
    if BUNDLE not in assets:
        raise HeldoutError(f"{BUNDLE} of this checkout is not current: run `make bundle`")
    scripts = {path: _inline(assets[path]) for path in BUNDLES}
    style = "\n" + assets["app.css"]
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {' '.join(map(_hash, scripts.values()))}",
            f"style-src {_hash(style)}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )
    made = f"Made by heldout {__version__}; {inside:,} of {whole:,} conversations inside."
    packed = base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()
    title = ", ".join(row["name"] for row in answers["runs"]["runs"])
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<meta name="made" content="{html.escape(made)}">
<title>{html.escape(title)}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<div id="app"></div>
<noscript>
{"".join(_plain_summary(answers))}<p>{html.escape(made)}</p>
</noscript>
<script type="application/octet-stream" id="data">{packed}</script>
<script>{scripts[MARKDOWN_BUNDLE]}</script>
<script>{scripts[BUNDLE]}</script>
</body>
</html>
""".encode()


def _inline(script: str) -> str:
    """Write a script so that it can stand in a page."""
    # Inside literals alone, where the escape means the same and does not end the script.
    script = "\n" + script.replace("<!--", r"\x3c!--") + "\n"
    if "</script" in script.lower() or "<!--" in script:
        raise AssertionError("the script would end too early")
    return script


def _hash(text: str) -> str:
    """Return what a policy names a script or a style by."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _plain_summary(answers: Answers) -> Iterator[str]:
    """The summaries as tables, for readers without script."""
    for key, answer in answers.items():
        if not key.startswith("run\n"):
            continue
        yield f"<h2>{html.escape(answer['name'])}</h2>\n{render_block(answer['table'])}\n"
