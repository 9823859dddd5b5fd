"""Take the pictures of docs/view.md: `python -m tests.viewer.browser.screenshots docs/images`."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.system import chromium
from tests.viewer.browser.conftest import Server
from tests.viewer.runs import make_all

PAGES = {
    "runs": ("#/runs", 470, "table.runs"),
    "run": ("#/run/shop-base?by=level", 860, ".forest"),
    "samples": ("#/run/shop-base/samples?where=level:hard", 560, "[role=gridcell]"),
    "sample": ("#/run/shop-base/sample?id=discount-001", 620, ".turn"),
    "compare": ("#/compare/shop-base/shop-tuned?by=level", 900, ".pairs [role=gridcell]"),
    "curve": ("#/curve/grpo-shop", 780, ".heat"),
    "history": ("#/curve/grpo-shop/sample?id=delivery-002&step=60", 700, ".turn"),
}
"""Routes, the heights of the pictures, and what is drawn last."""


def take(folder: Path) -> None:
    """Write a picture of each page, and one of the curve in the dark.

    Args:
        folder: Where to.
    """
    with tempfile.TemporaryDirectory() as runs:
        pictures = folder.absolute()
        os.chdir(runs)  # so that no path of this machine is in a picture
        evals = Path("outputs/evals")
        make_all(evals)
        shutil.rmtree(evals / "damaged")
        server = Server(evals)
        with sync_playwright() as playwright:
            sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
            browser = playwright.chromium.launch(executable_path=chromium(), args=sandbox)
            for name, (route, height, last) in PAGES.items():
                for scheme in ("light", "dark") if name == "curve" else ("light",):
                    page = browser.new_page(
                        viewport={"width": 1240, "height": height}, color_scheme=scheme
                    )
                    page.goto(server.address)
                    page.locator("table.runs").wait_for()
                    page.goto(server.origin + route)
                    page.locator(last).first.wait_for()
                    dark = "-dark" if scheme == "dark" else ""
                    page.screenshot(path=pictures / f"view-{name}{dark}.png")
                    page.close()
            browser.close()
        server.close()


if __name__ == "__main__":
    take(Path(sys.argv[1]))
