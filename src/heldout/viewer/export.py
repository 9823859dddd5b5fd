"""One HTML file with some runs in it: it opens from disk, needs no server and fetches nothing.

The page is the one that the server sends, its modules joined to one script; the answers to its
requests are embedded as base64 of gzip. The same runs give the same bytes, so nothing in the file
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
from typing import Any

import msgspec

from heldout import __version__
from heldout._secrets import IS_KEY, REDACTED
from heldout.errors import HeldoutError, InvalidInput
from heldout.viewer.assets import BUNDLE, read_assets
from heldout.viewer.notebook import render_block
from heldout.viewer.pages import FLIPS, Pages, scan_runs

MOST_RUNS = 12
MOST_ROWS = 100_000
MOST_BYTES = 20_000_000
CONVERSATIONS = 1_000
"""Conversations of a run that are inside by default: those that failed first."""
STEP_PAIRS = 300

Answers = dict[str, Any]


def export_runs(
    roots: Sequence[Path],
    *,
    samples: str = "failures",
    redact: Sequence[str] = (),
    allow_secrets: bool = False,
) -> bytes:
    """Make the HTML file.

    Args:
        roots: Run directories, or folders of them.
        samples: Whose conversations are inside: "all", "failures" (and flips), or a number.
        redact: Keys of inputs, metadata and settings whose values are left out.
        allow_secrets: Whether texts that look like keys are let through.
    """
    names = list(scan_runs(roots))
    if not names:
        raise InvalidInput(f"there are no runs in {', '.join(map(str, roots))}")
    if len(names) > MOST_RUNS:
        raise InvalidInput(
            f"there are {len(names)} runs, and a file holds {MOST_RUNS}: name those to export"
        )
    collected = _Collector(Pages(roots), names, samples)
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
    return page


# --- Answers ------------------------------------------------------------------------------------


class _Collector:
    """Answers to the requests that the page can make of some runs."""

    def __init__(self, pages: Pages, names: Sequence[str], samples: str) -> None:
        self._pages, self._samples = pages, samples
        self.answers: Answers = {}
        self.inside = self.whole = 0
        rows = {row["name"]: row for row in pages.runs()["runs"]}
        listed = [row for name, row in rows.items() if name in names]
        self.answers["runs"] = {"runs": listed, "roots": [], "state": ""}
        runs = [row["name"] for row in listed if row["kind"] != "curve" and "problem" not in row]
        for name in runs:
            self._add_run(name)
        for a, b in combinations(reversed(runs), 2):  # the older one is A
            with suppress(HeldoutError):  # not comparable
                self._add_comparison(a, b)
        for row in listed:
            if row["kind"] == "curve":
                self._add_curve(row["name"])

    def _add(self, path: str, answer: Any, **params: object) -> None:
        pairs = [f"{key}={value}" for key, value in sorted(params.items()) if value not in ("", 0)]
        self.answers["\n".join([path, *pairs])] = answer

    def _add_run(self, name: str) -> None:
        run = self._pages.run(name)
        config = {key: value for key, value in run["config"].items() if key != "output_dir"}
        self._add("run", {**run, "path": "", "config": config, "state": ""}, name=name)
        for key in run.get("keys", ())[:20]:
            slices = self._pages.slices(name, key)
            if slices["total"] <= 100:
                self._add("slices", slices, name=name, by=key)
        if not run["summary"]["n"]:
            return
        table = self._pages.table(name)
        if len(table) > MOST_ROWS:
            raise InvalidInput(f"{name} has {len(table):,} results; a file holds {MOST_ROWS:,}")
        rows = self._pages.rows(name, "", "", [], 0, MOST_ROWS)
        self._add("rows", {**rows, "generation": "", "completions": []}, name=name)
        self.whole += len(table)
        for row in self._choose(rows["rows"]):
            self._add_sample(name, row["id"], row["repeat"])

    def _choose(self, rows: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
        if self._samples == "all":
            return rows
        if self._samples != "failures":
            if not self._samples.isdecimal():
                raise InvalidInput(
                    f"--samples is all, failures or a number, got {self._samples!r:.40}"
                )
            return rows[: int(self._samples)]
        return [row for row in rows if row["outcome"] != "passed"][:CONVERSATIONS]

    def _add_sample(self, name: str, id: str, repeat: int) -> None:
        sample = self._pages.sample(name, id, repeat)
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
            for kind in ("lost", "gained"):
                flips = self._pages.flips(first, second, kind, "", [], 0)
                flips["total"] = min(flips["total"], FLIPS)
                self._add("flips", flips, a=first, b=second, kind=kind)
                for row in flips["rows"]:
                    pair = self._pages.pair(first, second, row["id"])
                    self._add("pair", pair, a=first, b=second, id=row["id"])

    def _add_curve(self, name: str) -> None:
        overview = self._pages.curve(name, "", "")
        for label in overview["labels"] or [""]:
            param = label if len(overview["labels"]) > 1 else ""
            for metric in ("", "pass_rate", *overview["metrics"][:12]):
                curve = self._pages.curve(name, label, metric)
                status = {"line": f"{len(curve['points'])} points", "style": ""}
                still = {"status": status, "live": False, "state": "", "path": ""}
                for shown in {param, label if param else ""}:
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
    script = "\n" + assets[BUNDLE] + "\n"
    if "</script" in script.lower() or "<!--" in script:
        raise AssertionError("the joined script would end too early")
    style = "\n" + assets["app.css"]
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src '{_hash(script)}'",
            f"style-src '{_hash(style)}'",
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
<script>{script}</script>
</body>
</html>
""".encode()


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _plain_summary(answers: Answers) -> Iterator[str]:
    """The summaries as tables, for readers without script."""
    for key, answer in answers.items():
        if not key.startswith("run\n"):
            continue
        yield f"<h2>{html.escape(answer['name'])}</h2>\n{render_block(answer['table'])}\n"
