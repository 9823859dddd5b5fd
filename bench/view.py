"""`heldout view` of a million results in a real browser, with `inspect view` beside it.

Wants Playwright and a Chromium (HELDOUT_CHROMIUM, or one on the path). The peer is measured on its
own log format, of so many samples as it can show: 100,000 took it minutes.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from playwright.sync_api import Page, TimeoutError, sync_playwright

from common import emit, options, peer, say, scratch
from reports import write

FILTERS = ('kind:"kind 2"', "reward<0.5", 'subject:"subject 7" reward:1', "length>90", "id:9999")
TEXTS = {"in no row": "text:zebra", "in one row": 'text:"is 77777 +"', "in every row": "text:what"}
COUNTED = {"in every row": "text:what", "in the JSON of every row alone": "text:role"}
LISTED = 1_000
"""Runs of a list."""
SORTS = ("-reward", "length", "-page")
LOGS = {100: 60, 10_000: 240}
"""Samples of the peer's logs, and the seconds it may take."""


@contextmanager
def served(command: list[str | Path], ready: str) -> Iterator[tuple[str, float]]:
    """Run a server; give what `ready` matches in its output, or the seconds until it answers."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if match := re.search(ready, line):
                yield match[0], time.perf_counter() - start
                return
        sys.exit(f"{command} ended before it served")
    finally:
        process.terminate()
        process.wait()


class Meter:
    """A page whose bytes are counted."""

    def __init__(self, page: Page) -> None:
        self.page, self.bytes = page, 0
        session = page.context.new_cdp_session(page)
        session.send("Network.enable")
        session.on("Network.loadingFinished", self._count)

    def _count(self, event: dict[str, Any]) -> None:
        self.bytes += int(event["encodedDataLength"])

    def time_until(self, address: str, selector: str, limit: float = 600) -> float:
        start = time.perf_counter()
        self.page.goto(address)
        self.page.locator(selector).first.wait_for(timeout=limit * 1000)
        return time.perf_counter() - start

    def heap_mb(self) -> float:
        session = self.page.context.new_cdp_session(self.page)
        session.send("HeapProfiler.collectGarbage")
        return float(session.send("Runtime.getHeapUsage")["usedSize"]) / 1e6


def measure_heldout(browser: Any, folder: Path, count: int) -> None:
    command: list[str | Path] = [sys.executable, "-m", "heldout", "view", folder, "--no-browser"]
    large = f"{count:,} results"
    with served([*command, "--port", "8900"], r"http\S+") as (address, started):
        origin = address.partition("#")[0]
        emit("command to first answer", started, "s", target=1.0)
        meter = Meter(browser.new_page())
        seconds = meter.time_until(address, "table.runs a")
        emit("list of runs on screen", seconds, "s")
        emit("bytes of the first view", meter.bytes / 1000, "KB", target=60)
        rows, cell = f"{origin}#/run/run/samples", "[role=gridcell]"
        cold = meter.time_until(rows, f"{cell} >> text=sample-0")
        emit(f"rows of {large} on screen, cold", cold, "s", target=1.5)
        meter.page.goto(f"{origin}#/runs")
        meter.page.locator("table.runs").wait_for()
        meter.bytes = 0
        warm = meter.time_until(rows, f"{cell} >> text=sample-0")
        emit(f"rows of {large} on screen, warm", warm, "s", target=0.6)
        emit(f"bytes of rows of {large}", meter.bytes / 1000, "KB", target=80)
        measure_requests(meter.page)
        opened = []
        for sample in (count - 1, count // 2, 7):
            page = f"{origin}#/run/run/sample?id=sample-{sample}"
            opened.append(meter.time_until(page, ".turn .said"))
        emit(f"a conversation of {large} on screen", median(opened), "s")
        emit(f"browser heap after {large}", meter.heap_mb(), "MB", target=50)
        meter.page.close()


def measure_requests(page: Page) -> None:
    """Time requests as the page makes them, without what drawing takes."""
    script = """async (params) => {
        const api = await import("./api.js");
        const start = performance.now();
        await api.get("rows", { name: "run", limit: 100, ...params });
        return performance.now() - start;
    }"""
    filters = [page.evaluate(script, {"where": text}) / 1000 for text in FILTERS]
    emit("a new filter, first time", max(filters), "s")
    again = [
        page.evaluate(script, {"where": f"{text} length<{n}"}) / 1000
        for text in FILTERS
        for n in range(50, 58)
    ]
    emit("a new filter, p95", quantiles(again, n=20)[-1], "s", target=0.1)
    for where, text in TEXTS.items():
        seconds = page.evaluate(script, {"where": text, "quick": 1}) / 1000
        emit(f"a text search, {where}", seconds, "s", target=1.5)
    for where, text in COUNTED.items():
        seconds = page.evaluate(script, {"where": text}) / 1000
        emit(f"all rows with a text counted, {where}", seconds, "s")
    sorts = [page.evaluate(script, {"sort": sort}) / 1000 for sort in SORTS]
    emit("a new order", max(sorts), "s", target=0.3)


def measure_list(browser: Any, folder: Path) -> None:
    """Time the list of many runs, which no process has read before."""
    write(folder / "first", 100)
    for number in range(1, LISTED):
        shutil.copytree(folder / "first", folder / f"run-{number}")
    command: list[str | Path] = [sys.executable, "-m", "heldout", "view", folder, "--no-browser"]
    with served([*command, "--port", "8930"], r"http\S+") as (address, _):
        meter = Meter(browser.new_page())
        seconds = meter.time_until(address, "table.runs a")
        emit(f"list of {LISTED:,} runs on screen", seconds, "s", target=1.0)
        meter.page.close()


def measure_inspect(browser: Any, peers: Path, folder: Path, quick: bool) -> None:
    python = peer(peers, "inspect")
    maker = Path(__file__).parent / "peers" / "inspect_log.py"
    for count, limit in LOGS.items():
        if quick and count > 100:
            continue
        logs = folder / f"inspect-{count}"
        subprocess.run([python, maker, logs, str(count)], check=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command: list[str | Path] = [python.parent / "inspect", "view", "start"]
        options_ = ["--log-dir", logs, "--port", str(port)]
        with served([*command, *options_], r"Running on") as (_, started):
            emit("inspect view: command to first answer", started, "s")
            meter = Meter(browser.new_page())
            log = next(logs.glob("*.eval")).name
            page = f"http://127.0.0.1:{port}/#/logs/{log}/samples/"
            try:
                seconds = meter.time_until(page, "text=q000000", limit)
            except TimeoutError:
                say(f"inspect view with {count:,} samples showed no row in {limit} s")
                meter.page.close()
                continue
            emit(f"inspect view: rows of {count:,} samples on screen", seconds, "s")
            emit(f"inspect view: bytes with {count:,} samples", meter.bytes / 1000, "KB")
            emit(f"inspect view: browser heap with {count:,} samples", meter.heap_mb(), "MB")
            meter.page.close()


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--run", type=Path, help="a folder with a run called run, made before")
    parser.add_argument("--no-peer", action="store_true", help="without inspect view")
    arguments = parser.parse_args()
    count = 10_000 if arguments.quick else 1_000_000
    folder = arguments.run or scratch("view")
    if arguments.run is None:
        say(f"writing a run of {count:,} results")
        write(folder / "run", count)
    path = os.environ.get("HELDOUT_CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as playwright:
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=path, args=sandbox)
        measure_heldout(browser, folder, count)
        listed = scratch("view-list")
        measure_list(browser, listed)
        shutil.rmtree(listed)
        if not arguments.no_peer:
            measure_inspect(browser, arguments.peers_dir, folder, arguments.quick)
        browser.close()
    if arguments.run is None:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
