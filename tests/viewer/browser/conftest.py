"""Shared by the tests in a real browser: a Chromium, the server in a thread, and a careful page."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from heldout.viewer.pages import Pages
from heldout.viewer.server import serve
from tests.system import chromium, require

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page


@pytest.fixture(scope="module")
def browser(folder: Path) -> Iterator[Browser]:
    """A Chromium, for one module: while Playwright runs, this thread has an event loop of its own.

    So runs are made first, and tests of other modules, which start loops, come after its end.
    """
    require("Chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Root has no sandbox to give.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=chromium(), args=arguments)
        yield browser
        browser.close()


class Server:
    """`heldout view` of some folders, in a thread."""

    def __init__(self, *roots: Path, takes_notes: bool = False) -> None:
        self._ready = threading.Event()
        self._pages = Pages(roots, takes_notes=takes_notes)
        self.address = self.link = ""
        """What is printed, and what the browser is started with."""
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        assert self._ready.wait(30)
        self.origin, _, self.token = self.address.partition("#token=")

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        call = serve(self._pages, port=8800, on_ready=self._on_ready, open_browser=self._open)
        task = asyncio.create_task(call)
        await self._end.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def _on_ready(self, address: str) -> None:
        self.address = address

    def _open(self, link: str) -> None:
        self.link = link
        self._ready.set()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(30)


@pytest.fixture(scope="session")
def server(folder: Path) -> Iterator[Server]:
    server = Server(folder)
    yield server
    server.close()


EXPECTED = (
    "Failed to load resource: the server responded with",  # a refusal that the page shows
    "Failed to load resource: net::ERR_INCOMPLETE_CHUNKED_ENCODING",  # a server that was closed
    "Failed to load resource: net::ERR_CONNECTION_REFUSED",
)
Open = Callable[..., "Page"]


SIZE = {"width": 1280, "height": 860}


@pytest.fixture(scope="module")
def context(browser: Browser) -> Iterator[BrowserContext]:
    """What pages of most tests share: the cache, and the token of the server."""
    with browser.new_context(viewport=SIZE, reduced_motion="reduce") as context:
        context.set_default_timeout(20_000)
        yield context


@pytest.fixture
def open_page(browser: Browser, context: BrowserContext, server: Server) -> Iterator[Open]:
    """Opens a page of the viewer; at the end nothing may have gone wrong in it."""
    problems: list[str] = []
    pages = []

    def open_page(route: str = "#/runs", *, on: Server | None = None, **options: Any) -> Page:
        at = on or server
        if on is None and not options:
            page = context.new_page()
        else:  # closed with its page
            page = browser.new_page(**{"viewport": SIZE, **options})
            page.set_default_timeout(20_000)
        pages.append(page)
        watch(page, problems, at)
        page.goto(f"{at.address}{route.removeprefix('#')}")
        page.locator("h1").first.wait_for()
        return page

    yield open_page
    for page in pages:
        page.close()
    assert problems == []


def watch(page: Page, problems: list[str], at: Server) -> None:
    """Note what goes wrong in a page: errors, dialogs, requests that leave or have the token."""

    def check_request(url: str) -> None:
        if not url.startswith((at.origin, "data:", "file:")):
            problems.append(f"a request left: {url}")
        if at.token in url.partition("#")[0]:
            problems.append("the token is in a request")

    page.on("request", lambda request: check_request(request.url))
    page.on("dialog", lambda dialog: problems.append(f"a dialog: {dialog.message}"))
    page.on("pageerror", lambda error: problems.append(f"an error: {error}"))
    page.on(
        "console",
        lambda message: (
            problems.append(message.text)
            if message.type == "error" and not message.text.startswith(EXPECTED)
            else None
        ),
    )


@pytest.fixture(scope="module")
def one_page(context: BrowserContext, server: Server) -> Iterator[Page]:
    """A page that tests go through one after the other; nothing may have gone wrong in it."""
    problems: list[str] = []
    page = context.new_page()
    watch(page, problems, server)
    page.goto(server.address)
    yield page
    page.close()
    assert problems == []
