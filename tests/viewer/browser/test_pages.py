"""Every page in a real browser: what it shows, its keys, both themes, several widths, axe."""

from __future__ import annotations

import csv
import json
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

import heldout
from heldout import EvalResult, Message, Metric, Score, ToolCall, Trajectory
from heldout._core.format import number
from heldout.store.journal import JournalWriter
from heldout.store.notes import read_notes
from heldout.store.run_dir import RunDir, RunInfo
from heldout.viewer import export
from heldout.viewer.export import _plain_columns, export_runs
from heldout.viewer.filter import BadFilter, parse, picked_by
from heldout.viewer.pages import Pages
from tests.viewer.browser.conftest import SIZE, Open, Server
from tests.viewer.conftest import HOSTILE
from tests.viewer.runs import (
    make_curve,
    make_metrics_only,
    make_questions,
    make_two_evals,
    save_results,
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.integration

ROUTES = {
    "runs": "#/runs",
    "run": "#/run/shop-base?by=level",
    "unfinished": "#/run/shop-killed",
    "samples": "#/run/shop-base/samples?where=level:hard",
    "sample": "#/run/shop-base/sample?id=price-000",
    "attempt": "#/run/arithmetic/sample?id=sum-03&repeat=2",
    "episode": "#/run/cartpole/sample?id=episode-3",
    "compare": "#/compare/shop-base/shop-tuned?by=level",
    "refused": "#/compare/shop-base/arithmetic",
    "pair": "#/compare/shop-base/shop-tuned/sample?id=price-000",
    "several": "#/several?run=shop-base&run=shop-tuned&run=shop-base-strict",
    "curve": "#/curve/grpo-shop?from=0&to=120",
    "history": "#/curve/grpo-shop/sample?id=price-000",
}


def see(page: Page, text: str | re.Pattern[str]) -> None:
    """Wait until a text is on the page."""
    page.get_by_text(text).first.wait_for()


def shown(page: Page) -> str:
    return page.locator("main").inner_text()


def module(page: Page, path: str, expression: str, argument: Any = None) -> Any:
    """Evaluate an expression over what a module of the page exports."""
    script = f"async (a) => {{ const m = await import('./{path}'); return {expression}; }}"
    return page.evaluate(script, argument)


# --- All pages ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ROUTES)
def test_a_page_is_accessible_in_both_themes_and_fits_every_window(
    one_page: Page, server: Server, name: str
) -> None:
    one_page.goto(server.origin + ROUTES[name])
    settle(one_page, name)
    check_accessible(one_page)


def check_accessible(page: Page) -> None:
    """Assert that axe finds nothing on a page, in both themes, and that it fits three sizes."""
    if not page.evaluate("'axe' in window"):
        axe = resources.files("axe_playwright_python").joinpath("axe.min.js")
        page.evaluate(axe.read_text())

    def check(what: object, rules: str = "") -> None:
        found = page.evaluate(f"axe.run({{ {rules}resultTypes: ['violations'] }})")
        assert [
            (what, v["id"], [node["html"][:120] for node in v["nodes"][:3]])
            for v in found["violations"]
        ] == []

    page.emulate_media(color_scheme="dark", reduced_motion="reduce")
    check("dark", "runOnly: 'color-contrast', ")
    page.emulate_media(color_scheme="light")
    check("light")
    for width in (390, 1024, 1600):
        page.set_viewport_size({"width": width, "height": 800})
        sizes = page.evaluate(
            "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        )
        assert sizes[0] <= sizes[1], width
        check(width, "runOnly: ['scrollable-region-focusable'], ")
        check_nothing_spills(page)
    page.set_viewport_size(SIZE)


def check_nothing_spills(page: Page) -> None:
    """Assert that no text is drawn beyond its box, over what stands below it."""
    spilled = page.evaluate(
        """[...document.querySelectorAll("main *")]
        .filter((box) => {
            const { display, overflowY } = getComputedStyle(box);
            const hasText = [...box.childNodes].some((node) => node.data?.trim());
            const { scrollHeight: drawn, clientHeight: own } = box;
            const isBox = box instanceof HTMLElement && display !== "inline" && own > 0;
            return isBox && hasText && overflowY === "visible" && drawn > own + 8;
        })
        .map((box) => [box.tagName, box.className, box.scrollHeight, box.clientHeight])"""
    )
    assert spilled == []


def settle(page: Page, name: str) -> None:
    """Wait for what a page loads last, and no other page has."""
    headings = {"sample": "price-000", "attempt": "sum-03", "episode": "episode-3"}
    texts = {
        "runs": "of 9 runs",
        "run": "slices looked at",
        "unfinished": "of what finished first",
        "samples": "of 120 rows",
        "compare": "What differs in the settings",
        "refused": "although these differ",
        "pair": "Answer, from shop-base to shop-tuned",
        "several": "2 comparisons, corrected for their number",
        "curve": "Samples by step",
        "history": "across steps",
    }
    if name in headings:
        page.locator("h1", has_text=headings[name]).wait_for()
    else:
        see(page, texts[name])


def test_the_token_leaves_the_address_and_is_kept(open_page: Open) -> None:
    page = open_page(color_scheme="light")
    assert "token" not in page.url
    page.reload()
    see(page, "of 9 runs")
    page.evaluate("localStorage.clear()")
    page.reload()
    see(page, "the token is missing or old")


def test_the_link_that_the_browser_is_started_with_opens_the_page_once(
    browser: Browser, folder: Path
) -> None:
    server = Server(folder)  # its own, as the link is good for a time only
    page = browser.new_page()
    page.goto(server.link)
    see(page, "of 9 runs")
    assert "code" not in page.url
    page.reload()
    see(page, "of 9 runs")
    page.close()
    server.close()


# --- Runs ---------------------------------------------------------------------------------------


def test_runs_are_marked_and_compared_by_keys(open_page: Open) -> None:
    page = open_page("#/runs?where=shop-")
    see(page, "4 of 9 runs")
    names = page.locator("table.runs tbody td:nth-child(2) a").all_inner_texts()
    for name in ("shop-base", "shop-tuned"):
        page.keyboard.press("Home")
        for _ in range(names.index(name)):
            page.keyboard.press("j")
        page.keyboard.press("x")
    see(page, re.compile("marked: shop-.* and shop-"))
    page.keyboard.press("c")
    see(page, "shop-tuned is better than shop-base")
    assert page.url.endswith("#/compare/shop-base/shop-tuned")
    page.keyboard.press("w")
    see(page, "shop-base is worse than shop-tuned")
    page.keyboard.press("Escape")
    see(page, "of 9 runs")


def test_runs_are_sorted_grouped_and_marked_in_the_address(open_page: Open) -> None:
    page = open_page("#/runs?where=shop-")
    see(page, "4 of 9 runs")
    names = page.locator("table.runs tbody td:nth-child(2) a")
    page.get_by_role("button", name="mean").click()
    page.locator("th[aria-sort=descending]", has_text="mean").wait_for()
    assert names.first.inner_text() in ("shop-tuned", "shop-killed")
    page.get_by_text("columns", exact=True).click()
    page.get_by_label("sampling.max_tokens").check()
    page.locator("td.setting", has_text="256").first.wait_for()
    page.get_by_label("group by").select_option("eval")
    page.locator("tr.group", has_text="shop-base").first.wait_for()
    page.get_by_label("mark shop-base", exact=True).check()
    page.get_by_label("mark shop-tuned").check()
    page.reload()
    see(page, "marked: shop-base and shop-tuned")
    assert page.locator("td.setting").count() == 4
    page.get_by_role("button", name="Compare the 2 marked").click()
    see(page, "shop-tuned is better")
    page.go_back()
    page.get_by_label("mark shop-killed").check()
    page.get_by_role("button", name="Compare the 3 marked").click()
    page.wait_for_url("**#/several?**")
    page.go_back()
    page.get_by_label("Filter by name, model or status").fill("")
    page.get_by_label("mark grpo-shop").check()
    see(page, "marked: grpo-shop")


def test_back_finds_the_page_as_it_was_left(open_page: Open) -> None:
    page = open_page("#/run/shop-base", viewport={"width": 1280, "height": 400})
    assert page.title() == "shop-base · heldout"
    link = page.get_by_role("link", name="Failures")
    link.scroll_into_view_if_needed()
    page.evaluate("scrollTo(0, 120)")
    link.click()
    see(page, "picked by their result")
    assert page.title() == "samples · shop-base · heldout"
    assert page.evaluate("[scrollY, document.activeElement.id]") == [0, "main"]
    page.go_back()
    page.locator("a:focus", has_text="Failures").wait_for()
    assert page.evaluate("scrollY") == 120


def test_after_a_restart_one_tab_with_the_new_link_is_enough(
    browser: Browser, folder: Path
) -> None:
    old, context = Server(folder), browser.new_context(viewport=SIZE)
    page = context.new_page()
    page.goto(old.address)
    see(page, "of 9 runs")
    old.close()
    new = Server(folder)
    assert new.origin == old.origin  # the port is free again
    page.reload()
    see(page, "the token is missing or old")
    context.new_page().goto(new.address)
    see(page, "of 9 runs")
    context.close()
    new.close()


def test_there_is_one_stream_after_the_server_was_away(one_page: Page, server: Server) -> None:
    one_page.goto(f"{server.origin}#/run/shop-base")  # which follows nothing itself
    see(one_page, "About this run")
    script = """(async () => {
        let open = 0, isDown = true, isHidden = false;
        const answer = window.fetch, delay = window.setTimeout;
        Object.defineProperty(document, "hidden", { get: () => isHidden, configurable: true });
        window.setTimeout = (act, time) => delay(act, time > 30_000 ? time : 5);
        window.fetch = (url, { signal }) => new Promise((_, reject) => {
            if (isDown) return reject(new TypeError("down"));
            open++;
            signal.addEventListener("abort", () => { open--; reject(signal.reason); });
        });
        const end = m.follow([], "", () => {}, () => {});
        for (let i = 0; i < 6; i++) {
            isHidden = !isHidden;
            document.dispatchEvent(new Event("visibilitychange"));
        }
        isDown = false;
        await new Promise((resolve) => delay(resolve, 300));
        const count = open;
        end();
        Object.assign(window, { fetch: answer, setTimeout: delay });
        delete document.hidden;
        return count;
    })()"""
    assert module(one_page, "api.js", f"await {script}") == 1


def test_a_curve_of_several_evals_shows_the_worst_first(open_page: Open, tmp_path: Path) -> None:
    make_two_evals(tmp_path)
    server = Server(tmp_path)
    page = open_page(on=server)
    badges = page.locator("tr", has_text="two-evals").locator(".badge")
    badges.nth(1).wait_for()
    assert badges.all_inner_texts() == ["safety: regressing", "math: improving"]
    page.get_by_role("link", name="two-evals").click()
    see(page, "Samples by step")
    server.close()


def test_a_damaged_run_is_a_row_with_its_reason(open_page: Open) -> None:
    page = open_page()
    row = page.locator("tr", has_text="damaged")
    assert "cannot be read" in row.inner_text()


def test_help_theme_and_keys_off(open_page: Open) -> None:
    page = open_page(color_scheme="light")
    page.keyboard.press("?")
    see(page, "mark a run; compare those marked")
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.keyboard.press("t")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.keyboard.press("?")
    page.get_by_label("keys are on").uncheck()
    page.keyboard.press("t")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_nothing_under_the_roots_says_how_to_make_a_run(open_page: Open, tmp_path: Path) -> None:
    empty = Server(tmp_path)
    page = open_page(on=empty)
    see(page, "No runs under")
    see(page, "heldout run heldout.examples.capitals")
    see(page, "heldout run FILE --model MODEL")
    empty.close()


# --- One run ------------------------------------------------------------------------------------


def test_a_run_shows_the_numbers_of_the_summary(open_page: Open, pages: Pages) -> None:
    page = open_page("#/run/shop-base")
    see(page, "About this run")
    text = shown(page)
    for row in pages.run("shop-base")["table"]["rows"]:
        assert all(cell in text for cell in row)
    assert "errored, counted as 0" in text
    page.get_by_label("by").select_option("level")
    see(page, "slices looked at")
    page.locator("tr", has_text="hard").last.click()
    see(page, re.compile("of 120 rows"))
    assert "where=level%3Ahard" in page.url


def test_an_unfinished_run_says_that_its_mean_is_of_what_finished_first(open_page: Open) -> None:
    page = open_page("#/run/shop-killed")
    see(page, "of what finished first")
    see(page, "Not finished: interrupted after 37 of 60 items")


def test_the_page_of_a_running_eval_follows_it(open_page: Open, tmp_path: Path) -> None:
    journal, results = begin_run(tmp_path, 4)
    journal.append(0, results[0])
    server = Server(tmp_path)
    page = open_page("#/run/live", on=server)
    see(page, "n 1 of 9")
    page.clock.install()
    page.reload()
    see(page, "time left: not known yet")
    for i in (1, 2, 3):
        journal.append(i, results[i])
        page.clock.fast_forward(2_000)
        see(page, f"n {i + 1} of 9")
    see(page, re.compile(r"about \d+\.\d s left"))
    journal.close()
    server.close()


def test_a_running_eval_is_followed_however_slow_its_answers_are(
    open_page: Open, tmp_path: Path
) -> None:
    journal, results = begin_run(tmp_path, 3)
    for i, result in enumerate(results):
        journal.append(i, result)
    server = Server(tmp_path)
    page = open_page("#/run/live", on=server)
    see(page, "n 3 of 9")
    events: list[Any] = []
    held: list[Any] = []

    def send_event(route: Any) -> None:
        """One event; the page comes back for the next one after a second of its clock."""
        events.append(route)
        body = f"id: {len(events)}\nevent: changed\ndata: {{}}\n\n"
        route.fulfill(headers={"Content-Type": "text/event-stream"}, body=body)

    page.route("**/api/events*", send_event)
    page.route("**/api/run?*", lambda route: held.append(route))
    page.clock.install(time=0)
    page.reload()
    page.clock.pause_at(1_000)
    wait_for(page, lambda: len(held) == 1)
    page.clock.run_for(1_000)
    held[0].continue_()  # the answer took a second of the page's clock
    wait_for(page, lambda: page.locator("h1", has_text="live").count() == 1)

    def pass_seconds(count: int) -> None:
        """An event comes in each of them, as of an eval that writes all the time.

        The page sets its second when it has seen the last event, which may be after ours began:
        one second of the clock is then not enough.
        """
        for _ in range(count):
            before = len(events)
            page.clock.run_for(1_000)
            for _ in range(500):
                page.wait_for_timeout(20)
                if len(events) > before:
                    break
                page.clock.run_for(100)
            assert len(events) > before, "the page came to a standstill"

    pass_seconds(12)
    assert len(held) == 2  # after a rest of ten seconds at most, and once while it is under way
    pass_seconds(3)
    assert len(held) == 2
    held[1].continue_()
    pass_seconds(12)
    assert len(held) == 3
    held[2].continue_()
    journal.close()
    server.close()


def begin_run(folder: Path, n: int) -> tuple[JournalWriter, list[EvalResult]]:
    """An eval of 9 items that is running, its journal still open; and n results to write."""
    run = RunDir(folder / "live")
    run.make()
    run.write_info(RunInfo.new({"experiment_name": "live", "repeats": 1}, {}, asked=9))
    score = Score((Metric("m", 1.0, 1.0),))
    results = [EvalResult(one.id, one, Trajectory(()), score) for one in make_questions(n)]
    return JournalWriter(run.journal), results


def wait_for(page: Page, holds: Callable[[], bool]) -> None:
    """Let a page go on whose clock stands still until something holds."""
    for turn in range(5_000):  # on a busy machine it takes long, and hardly any of the page's time
        if holds():
            return
        if turn % (1 if turn < 100 else 50) == 0:
            page.clock.run_for(1)
        page.wait_for_timeout(20)
    raise AssertionError("the page came to a standstill")


def wait_to_be_asked(page: Page, holds: Callable[[], bool]) -> None:
    """A page shows "saving…" before its request has come: wait for that one, too."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, "the request never came"
        page.wait_for_timeout(20)


# --- Samples ------------------------------------------------------------------------------------


def test_samples_are_filtered_sorted_and_opened(open_page: Open, pages: Pages) -> None:
    page = open_page("#/run/shop-base/samples")
    see(page, "120 of 120 rows")
    page.keyboard.press("/")
    page.keyboard.type("level:hard")
    expected = pages.rows("shop-base", "level:hard", "", [], 0, 1)
    see(page, f"{expected['total']} of 120 rows")
    mean = expected["mean"]
    assert f"{number(mean['mean'])} ({number(mean['low'])} … {number(mean['high'])})" in shown(page)
    page.keyboard.press("Escape")
    page.keyboard.press("f")
    see(page, "picked by their result")
    assert "mean reward" not in page.locator(".counts").inner_text()
    page.get_by_role("button", name="tokens").click()
    top = pages.rows("shop-base", "level:hard failed:yes", "-tokens", [], 0, 3)["rows"]
    first = page.locator("[role=row][aria-rowindex='1']")
    first.get_by_text(top[0]["id"]).wait_for()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name=top[1]["id"]).wait_for()
    page.keyboard.press("n")
    page.get_by_role("heading", name=top[2]["id"]).wait_for()
    page.keyboard.press("p")
    page.get_by_role("heading", name=top[1]["id"]).wait_for()
    page.keyboard.press("Escape")
    see(page, "picked by their result")
    assert page.locator("[role=row][aria-selected=true]").get_attribute("aria-rowindex") == "2"


def test_views_are_saved_opened_and_deleted_by_name_with_keys_alone(open_page: Open) -> None:
    page = open_page("#/run/shop-base/samples?where=level:hard&sort=-tokens&cols=topic")
    see(page, "40 of 120 rows")
    views, name = page.get_by_text("views", exact=True), page.get_by_label("name of this view")
    views.focus()
    page.keyboard.press("Enter")
    for typed in ("long, hard", "other", "  ", "long, hard"):  # the last one replaces the first
        name.focus()
        page.keyboard.type(typed)
        page.keyboard.press("Enter")
    assert page.locator(".views a").all_inner_texts() == ["other", "long, hard"]
    check_accessible(page)
    for width in (390, 1024):
        page.set_viewport_size({"width": width, "height": 800})
        box = page.locator(".views > div").bounding_box()
        assert box
        assert 0 <= box["x"] <= width - box["width"]
    page.set_viewport_size(SIZE)
    # They are of no run, and outlast the page.
    page.goto(page.url.partition("#")[0] + "#/run/shop-tuned/samples")
    page.reload()
    see(page, "120 of 120 rows")
    views.focus()
    page.keyboard.press("Enter")
    page.get_by_role("link", name="long, hard").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**#/run/shop-tuned/samples?where=level%3Ahard&sort=-tokens&cols=topic")
    see(page, "40 of 120 rows")
    assert not name.is_visible()
    views.focus()
    page.keyboard.press("Enter")
    assert page.locator(".views a[aria-current]").count() == 2
    page.get_by_role("button", name="delete other").focus()
    page.keyboard.press("Enter")
    see(page, "deleted other")
    assert page.evaluate("document.activeElement.innerText") == "views"
    assert page.locator(".views a").all_inner_texts() == ["long, hard"]
    page.evaluate("localStorage.setItem('heldout-views', '{\"no\": \"list\"}')")
    page.reload()
    see(page, "40 of 120 rows")
    assert page.locator(".views a").count() == 0


def test_enter_is_left_to_the_control_that_has_the_focus(open_page: Open) -> None:
    page = open_page("#/run/shop-base/samples")
    see(page, "120 of 120 rows")
    page.get_by_role("button", name="reward").focus()
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("sort=-reward"))
    page.get_by_role("button", name="errored").focus()
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("errored%3Ayes"))
    page.get_by_text("columns", exact=True).focus()
    page.keyboard.press("Enter")
    page.get_by_label("metric.brief").wait_for()
    assert "/samples" in page.url
    page.get_by_role("link", name="shop-base").focus()
    page.keyboard.press("Enter")
    see(page, "About this run")
    page.goto(page.url.partition("#")[0] + "#/runs?where=shop-tuned")
    see(page, "1 of 9 runs")
    page.get_by_label("light or dark").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowDown")  # takes the focus to the list
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="shop-tuned").wait_for()


def test_a_filter_that_was_only_typed_through_is_no_slice_looked_at(
    open_page: Open, pages: Pages
) -> None:
    page = open_page("#/run/shop-base/samples", color_scheme="light")  # whose clock is its own
    see(page, "120 of 120 rows")
    page.clock.install()
    page.clock.pause_at(time.time() + 60)
    counts = page.locator(".counts")
    for text in ("items<5", "items<50", "items<500"):  # each is asked for, and none stays
        page.get_by_label("Filter").fill(text)
        page.clock.run_for(300)
        counts.get_by_text("mean reward").wait_for()
    page.clock.run_for(2_000)
    page.get_by_label("Filter").fill("level:hard")
    page.clock.run_for(300)
    hard = pages.rows("shop-base", "level:hard", "", [], 0, 1)["total"]
    see(page, f"{hard} of 120 rows")
    page.clock.run_for(2_000)
    counts.get_by_text("2 slices looked at").wait_for()


def test_rows_selected_by_outcome_have_no_mean_and_neither_has_a_filter_that_is_wrong(
    open_page: Open,
) -> None:
    page = open_page("#/run/shop-base/samples?where=ok:true")
    see(page, "picked by their result")
    page.get_by_label("Filter").fill("level:hard")
    see(page, "mean reward")
    page.get_by_label("Filter").fill("level:hard nope:1")
    see(page, "The rows are those of the last filter")
    assert "mean reward" not in shown(page)
    page.locator("[role=row][aria-rowindex='2']").click()
    assert "/samples" in page.url  # a row of the old filter is not what was asked for


def test_half_a_field_is_not_searched_and_rows_of_the_last_filter_are_not_opened(
    open_page: Open, pages: Pages
) -> None:
    page = open_page("#/run/shop-base/samples")
    see(page, "120 of 120 rows")
    asked: list[str] = []
    held = []

    def hold(route: Any) -> None:
        asked.append(route.request.url)
        if "where=level" in route.request.url:
            held.append(route)
        else:
            route.continue_()

    page.route("**/api/rows*", hold)
    page.keyboard.press("/")
    page.keyboard.type("level")
    see(page, "Enter searches for the text")
    page.keyboard.type(":hard")
    page.locator(".busy").wait_for()
    page.locator(".grid.stale").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    assert "/samples" in page.url
    wait_to_be_asked(page, lambda: len(held) > 0)
    assert [url.partition("where=")[2] for url in asked] == ["level%3Ahard"]
    held[0].continue_()
    total = pages.rows("shop-base", "level:hard", "", [], 0, 1)["total"]
    see(page, f"{total} of 120 rows")
    assert not page.locator(".busy").is_visible()


def test_rows_with_a_common_text_are_there_before_they_are_counted(
    open_page: Open, pages: Pages
) -> None:
    page = open_page("#/run/shop-base/samples")
    see(page, "120 of 120 rows")
    held: list[Any] = []

    def hold(route: Any) -> None:
        held.append(route)

    page.route(re.compile("/api/rows(?!.*quick)"), hold)
    page.get_by_label("Filter").fill("text:e")
    see(page, "at least 100 of 120 rows")
    see(page, "counting…")
    page.get_by_role("grid").focus()
    page.keyboard.press("j")
    second = page.locator("[role=row][aria-rowindex='2'][aria-selected=true]")
    second.wait_for()
    wait_to_be_asked(page, lambda: len(held) > 0)
    held[0].continue_()
    total = pages.rows("shop-base", "text:e", "", [], 0, 1)["total"]
    assert total > 100
    see(page, f"{total} of 120 rows")
    assert second.count() == 1
    page.keyboard.press("End")
    page.locator(f"[role=row][aria-rowindex='{total}']").wait_for()


def test_a_filter_that_cannot_be_read_leaves_the_rows(open_page: Open) -> None:
    page = open_page("#/run/shop-base/samples")
    see(page, "120 of 120 rows")
    page.get_by_label("Filter").fill("level:HARD")
    page.get_by_role("button", name="level:hard").click()  # did you mean
    page.wait_for_url(re.compile("level%3Ahard"))
    page.get_by_label("Filter").fill("level:hard nope:1")
    see(page, re.compile("has no key 'nope'"))
    assert page.locator("[role=alert] mark").inner_text() == "nope:1"
    assert page.locator("[role=gridcell]").count() > 50


def test_columns_can_be_chosen(open_page: Open) -> None:
    page = open_page("#/run/shop-base/samples")
    page.get_by_text("columns", exact=True).click()
    page.get_by_label("metric.brief").check()
    page.get_by_role("columnheader", name="brief").wait_for()
    assert "cols=metric.brief" in page.url
    page.reload()
    page.get_by_role("columnheader", name="brief").wait_for()


def test_a_large_table_has_few_rows_in_the_document(open_page: Open, tmp_path: Path) -> None:
    sample = make_questions(1)[0]
    results = [
        EvalResult(f"q{i:05d}", replace(sample, id=f"q{i:05d}", input={"i": i}),
                   Trajectory(()), Score((Metric("m", i % 7 / 7, 1.0),)))
        for i in range(5_000)
    ]  # fmt: skip
    save_results(tmp_path / "large", results)
    server = Server(tmp_path)
    page = open_page("#/run/large/samples", on=server)
    see(page, "5,000 of 5,000 rows")
    assert page.locator("[role=row]").count() < 60
    page.keyboard.press("End")
    see(page, "q04999")
    page.keyboard.press("PageUp")
    page.keyboard.press("Home")
    see(page, "q00000")
    page.locator(".grid").evaluate("box => { box.scrollTop = box.scrollHeight / 2; }")
    see(page, re.compile("^q025"))
    server.close()


def test_rows_that_cannot_be_loaded_are_asked_for_again_after_longer_and_longer_pauses(
    open_page: Open, tmp_path: Path
) -> None:
    score = Score((Metric("m", 1.0, 1.0),))
    results = [EvalResult(q.id, q, Trajectory(()), score) for q in make_questions(300)]
    save_results(tmp_path / "many", results)
    server = Server(tmp_path)
    page = open_page("#/run/many/samples", on=server)
    see(page, "300 of 300 rows")
    asked: list[str] = []

    def refuse(route: Any) -> None:
        asked.append(route.request.url)
        route.abort("connectionrefused")

    page.route("**/api/rows*offset=*", refuse)
    page.clock.install(time=0)
    page.clock.pause_at(1_000)
    page.locator(".grid").evaluate("box => { box.scrollTop = box.scrollHeight; }")
    alert = page.get_by_role("alert")
    seconds = 1
    for count in (1, 2, 3, 4):
        again = f"They are asked for again in {seconds} s."
        wait_for(page, lambda again=again: alert.filter(has_text=again).count() == 1)
        wait_for(page, lambda count=count: len(asked) == count)
        page.clock.run_for(800 * seconds)
        assert len(asked) == count  # not asked again before its time
        page.clock.run_for(200 * seconds)
        seconds *= 2
    wait_for(page, lambda: alert.filter(has_text="again in 16 s.").count() == 1)
    page.unroute("**/api/rows*offset=*")
    alert.get_by_role("button", name="Try again").click()
    wait_for(page, lambda: page.locator("[role=row]", has_text="refund-299").count() == 1)
    assert alert.count() == 0
    server.close()


# --- One sample ---------------------------------------------------------------------------------


def test_a_sample_shows_what_the_grader_extracted_where_it_stands(
    open_page: Open, pages: Pages
) -> None:
    row = next(
        r
        for r in pages.rows("shop-base", "passed:yes", "", [], 0, 50)["rows"]
        if "|" in r["answer"]
    )
    page = open_page(f"#/run/shop-base/sample?id={row['id']}")
    assert page.locator("mark").inner_text() == row["extracted"]
    see(page, re.compile(r"^\d+ ms · reply \d+ ms$"))
    page.get_by_text("Tools (1)").click()
    see(page, "Look up the price of an item.")
    check_accessible(page)
    see(page, re.compile(r'^look_up\(\{"item"'))
    thought = page.get_by_text("I should look up the price first")
    assert not thought.is_visible()
    page.keyboard.press("e")
    thought.wait_for()
    page.keyboard.press("s")
    see(page, '"sample_id":')
    page.keyboard.press("s")
    page.keyboard.press("m")
    see(page, "One")
    page.keyboard.press("Escape")
    see(page, "of 120 rows")


def test_a_sample_of_a_link_knows_its_place_in_the_list(open_page: Open, pages: Pages) -> None:
    rows = pages.rows("shop-base", "failed:yes", "-tokens", [], 0, 9)
    page = open_page(
        f"#/run/shop-base/sample?id={rows['rows'][4]['id']}&where=failed:yes&sort=-tokens"
    )
    see(page, re.compile(f"^5 of {rows['total']}"))
    page.keyboard.press("n")
    page.get_by_role("heading", name=rows["rows"][5]["id"]).wait_for()
    see(page, re.compile(f"^6 of {rows['total']}"))
    see(page, "failed:yes")
    page.get_by_text("Input", exact=True).click()
    see(page, "question")
    turn = page.locator("article.turn").first
    said = turn.locator(".said")
    said.wait_for()
    turn.locator("summary").click()
    assert not said.is_visible()


def test_a_tool_that_failed_is_marked(open_page: Open, tmp_path: Path) -> None:
    call = ToolCall("c", "look_up", "{}")
    messages = (
        Message("user", "?"),
        Message("assistant", "", (call,)),
        Message("tool", "Error: there is no tool", tool_call_id="c"),
    )
    save_results(
        tmp_path / "tools",
        [EvalResult("q", replace(make_questions(1)[0], id="q"), Trajectory(messages))],
    )
    server = Server(tmp_path)
    page = open_page("#/run/tools/sample?id=q", on=server)
    page.locator(".result.errored", has_text="the tool failed").wait_for()
    server.close()


def test_filtered_rows_are_saved_as_a_file(open_page: Open, pages: Pages) -> None:
    page = open_page("#/run/shop-base/samples?where=level:hard failed:yes&sort=-tokens")
    expected = pages.rows("shop-base", "level:hard failed:yes", "-tokens", [], 0, 100)["rows"]
    for format in ("csv", "jsonl"):
        with page.expect_download() as download:
            page.get_by_role("button", name=format, exact=True).click()
        assert download.value.suggested_filename == f"shop-base.{format}"
        text = download.value.path().read_text()
        found = (
            [row["id"] for row in csv.DictReader(text.splitlines())]
            if format == "csv"
            else [json.loads(line)["id"] for line in text.splitlines()]
        )
        assert found == [row["id"] for row in expected]


def test_attempts_are_turned_by_brackets(open_page: Open) -> None:
    page = open_page("#/run/arithmetic/sample?id=sum-03")
    current = page.locator(".tabs [aria-current]")
    assert "attempt 1" in current.inner_text()
    page.keyboard.press("]")
    page.locator(".tabs [aria-current]", has_text="attempt 2").wait_for()
    page.keyboard.press("[")
    page.locator(".tabs [aria-current]", has_text="attempt 1").wait_for()


def test_a_sample_that_is_not_there_names_near_ones(open_page: Open) -> None:
    page = open_page()
    page.goto(page.url.partition("#")[0] + "#/run/shop-base/sample?id=price-00")
    see(page, "near it are price-")


# --- Two runs -----------------------------------------------------------------------------------


def test_a_comparison_shows_verdict_samples_and_both_conversations(
    open_page: Open, pages: Pages
) -> None:
    page = open_page("#/compare/shop-base/shop-tuned")
    see(page, pages.compare("shop-base", "shop-tuned", "", "", [])["sentence"])
    answers = page.get_by_role("region", name="both answers")
    worst = pages.pairs("shop-base", "shop-tuned", "", [], "", "difference", 0, 2)["rows"]
    answers.get_by_role("link", name=worst[0]["id"]).wait_for()
    page.keyboard.press("j")
    answers.get_by_role("link", name=worst[1]["id"]).wait_for()
    page.get_by_role("button", name="equal").click()
    equal = pages.pairs("shop-base", "shop-tuned", "", [], "equal:yes", "-id", 0, 9)
    see(page, f"{equal['total']} of 120 samples")
    page.get_by_role("button", name="sample").click()
    answers.get_by_role("link", name=equal["rows"][0]["id"]).wait_for()
    page.get_by_label("Filter samples").fill("gained:yes level:hard")
    gained = pages.pairs("shop-base", "shop-tuned", "", [], "gained:yes level:hard", "-id", 0, 9)
    see(page, f"{gained['total']} of 120 samples")
    answers.locator("ins").first.wait_for()
    page.get_by_label("slices by").select_option("level")
    see(page, "p adjusted by Holm")
    page.get_by_label("metric").select_option("brief")
    see(page, "shop-tuned − shop-base, brief")
    page.get_by_label("metric").select_option("reward")
    see(page, "shop-tuned − shop-base, reward")
    see(page, f"{gained['total']} of 120 samples")
    page.locator(".pairs [role=grid][aria-busy=false]").wait_for()  # rows of "brief" do not open
    page.locator(".pairs [role=row][aria-selected=true]").click()  # once more opens it
    page.get_by_role("heading", name=gained["rows"][0]["id"], exact=True, level=1).wait_for()
    see(page, "the same in both")
    page.keyboard.press("Escape")
    see(page, "Sample by sample")


def test_all_attempts_of_a_pair_can_be_seen_and_runs_are_compared_in_one_table(
    open_page: Open, folder: Path, tmp_path: Path, pages: Pages
) -> None:
    for name in ("first", "second", "third"):
        shutil.copytree(folder / "arithmetic", tmp_path / name)
    server = Server(tmp_path)
    page = open_page("#/compare/first/second/sample?id=sum-03", on=server)
    page.get_by_role("heading", name="sum-03").wait_for()
    attempts = page.get_by_role("group", name="attempts of second").get_by_role("button")
    attempts.nth(3).wait_for()
    attempts.nth(2).click()
    page.keyboard.press("]")
    page.wait_for_url(re.compile(r"[?&]a=1&b=3|[?&]b=3&a=1"))
    page.keyboard.press("Escape")
    page.get_by_role("link", name="Compare with more runs").click()
    page.get_by_label("add").select_option("third")
    see(page, "2 comparisons, corrected for their number")
    page.get_by_label("compare with").select_option("third")
    page.get_by_role("heading", name="compared with third").wait_for()
    server.close()


def test_long_answers_beside_the_samples_are_cut_and_not_drawn_over_each_other(
    open_page: Open, tmp_path: Path
) -> None:
    for name, reward in (("first", 0.0), ("second", 1.0)):
        text = "\n\n".join(f"{name} paragraph {i}: " + "words and " * 30 for i in range(40))
        score = Score((Metric("m", reward, 1.0),))
        results = [
            EvalResult(q.id, q, Trajectory((Message("assistant", text),)), score)
            for q in make_questions(8)
        ]
        save_results(tmp_path / name, results)
    server = Server(tmp_path)
    page = open_page("#/compare/first/second", on=server)
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 800})
        see(page, "from A to B")
        check_nothing_spills(page)
        tall = [box.bounding_box() for box in page.locator(".answers .clamp").all()]
        assert [box is not None and box["height"] < 160 for box in tall] == [True] * 2  # six lines
    server.close()


def test_a_chip_keeps_a_filter_that_was_just_typed(open_page: Open) -> None:
    page = open_page("#/compare/shop-base/shop-tuned", color_scheme="light")  # of its own
    see(page, "120 of 120 samples")
    page.clock.install(time=0)
    page.clock.pause_at(1_000)  # no pause in typing ends
    page.get_by_label("Filter samples").fill("level:hard")
    page.get_by_role("button", name="gained").click()
    wait_for(page, lambda: "level%3Ahard+gained%3Ayes" in page.url)


def test_runs_that_differ_are_compared_only_when_it_is_allowed(open_page: Open) -> None:
    page = open_page("#/compare/shop-base/arithmetic")
    see(page, "Not compared")
    for kind in ("samples", "scorer", "environment"):
        assert page.locator(".forest").count() == 0
        page.get_by_label(kind).check()
    see(page, "allowed to differ: scorer")
    assert page.url.count("allow=") == 3


# --- Curves -------------------------------------------------------------------------------------


def test_two_points_of_a_curve_show_what_flipped(open_page: Open, pages: Pages) -> None:
    page = open_page("#/curve/grpo-shop")
    curve = pages.curve("grpo-shop", "", "")
    see(page, curve["verdict"]["sentence"])
    see(page, curve["best"]["sentence"])
    page.get_by_role("button", name="step 0, mean").click()
    see(page, "step 0 is chosen")
    page.get_by_role("button", name="step 120, mean").press("Enter")
    see(page, "From step 0 to step 120")
    see(page, "These two were picked by looking")
    page.keyboard.press("[")
    see(page, "From step 0 to step 100")
    page.get_by_text("All points").click()
    assert "without errored items" in shown(page)
    page.get_by_label("metric").select_option("brief")
    see(page, "brief, without an interval")  # every value is 1, so there is none


def test_flips_of_a_curve_are_gone_through_and_none_is_out_of_sight(
    open_page: Open, pages: Pages
) -> None:
    page = open_page("#/curve/grpo-shop?from=0&to=120")
    see(page, "From step 0 to step 120")
    flips = pages.curve_flips("grpo-shop", "", 0, 120)
    ids = [row["id"] for row in (*flips["lost"]["rows"], *flips["gained"]["rows"])]
    wide = "all => all.filter((list) => list.scrollWidth > list.clientWidth).length"
    page.locator(".flips li").nth(len(ids) - 1).wait_for()
    assert page.locator(".flips").evaluate_all(wide) == 0
    for place in (0, 1):
        page.keyboard.press("n")
        page.get_by_role("heading", name=ids[place]).wait_for()
        see(page, f"{place + 1} of {len(ids)} flips from step 0 to 120")
    page.keyboard.press("p")
    page.get_by_role("heading", name=ids[0]).wait_for()
    page.keyboard.press("Escape")
    see(page, "From step 0 to step 120")


def test_a_curve_of_two_evals_says_where_an_attempt_resumed_and_compares_evals_that_were_saved(
    open_page: Open, tmp_path: Path
) -> None:
    make_two_evals(tmp_path)
    server = Server(tmp_path)
    page = open_page("#/curve/two-evals?label=safety&from=0&to=10", on=server)
    see(page, "From step 0 to step 10")
    assert page.get_by_role("link", name="Compare the two evals").count() == 0
    see(page, "attempt 2")
    page.keyboard.press("]")
    page.get_by_role("link", name="Compare the two evals").click()
    see(page, "two-evals@safety:20")
    see(page, "Sample by sample")
    server.close()


def test_curves_are_drawn_together_with_a_crosshair_and_a_band_over_training_runs(
    open_page: Open, browser: Browser, tmp_path: Path
) -> None:
    def make() -> None:  # in a thread: this one has Playwright's event loop
        for i in range(3):
            make_curve(tmp_path, 40, samples=16, name=f"seed-{i}", ahead=30 * i)
        make_curve(tmp_path, 40, samples=12, name="fewer")

    making = threading.Thread(target=make)
    making.start()
    making.join(120)
    server = Server(tmp_path)
    page = open_page("#/curve/seed-0", on=server)
    page.get_by_label("draw together with").select_option("seed-1")
    page.get_by_role("heading", name="2 curves").wait_for()
    page.get_by_label("add").select_option("seed-2")
    page.get_by_role("heading", name="3 curves").wait_for()
    found = Pages([tmp_path]).curves(["seed-0", "seed-1", "seed-2"], [], "")
    readout = page.locator(".readout")
    for step, key in ((40, ""), (20, "ArrowLeft"), (0, "ArrowLeft")):
        if key:
            page.keyboard.press(key)
        readout.get_by_text(f"step {step}", exact=True).wait_for()
        mean = next(point for point in found["over_runs"] if point["step"] == step)
        for text in (mean["text"]["mean"], mean["text"]["interval"], "3 runs"):
            readout.get_by_text(text).last.wait_for()
    page.mouse.move(*(side / 2 for side in SIZE.values()))
    page.locator("svg.curve").hover(position={"x": 1190, "y": 100})
    readout.get_by_text("step 40", exact=True).wait_for()
    see(page, "each run's mean is one value, n is 3")
    check_accessible(page)
    page.get_by_label("mean over 3 training runs").focus()
    page.keyboard.press(" ")
    see(page, "one curve's own mean, over its samples")
    check_accessible(page)
    page.get_by_label("add").select_option("fewer")
    see(page, "seed-0 and fewer differ in samples, n")
    server.close()


def test_a_sample_is_followed_across_steps(open_page: Open, pages: Pages) -> None:
    page = open_page("#/curve/grpo-shop")
    flipped = pages.strip("grpo-shop", "")["rows"][0]["id"]
    page.locator(".heat a").first.click()
    page.get_by_role("heading", name=flipped).wait_for()
    steps = page.locator(".strip button")
    assert steps.count() == 7
    page.keyboard.press("[")
    page.get_by_role("heading", name="Step 100").wait_for()
    page.get_by_role("button", name="only where the answer changed").click()
    changed = [s for s in pages.history("grpo-shop", "", flipped)["steps"] if s["changed"]]
    page.locator(f".strip button >> nth={len(changed) - 1}").wait_for()
    assert steps.count() == len(changed)
    page.keyboard.press("Escape")
    see(page, "Samples by step")


def test_points_appear_while_a_training_run_writes_them(open_page: Open, tmp_path: Path) -> None:
    begun, go_on = threading.Event(), threading.Semaphore(0)

    def train() -> None:
        evals = make_curve(tmp_path, 20, samples=16)
        begun.set()
        for step in (40, 60):
            go_on.acquire()
            evals.maybe_run(step)

    training = threading.Thread(target=train)
    training.start()
    assert begun.wait(60)
    server = Server(tmp_path)
    page = open_page("#/curve/grpo-shop", on=server)
    page.get_by_role("button", name="step 20, mean").wait_for()
    see(page, "live")
    for step in (40, 60):
        go_on.release()
        page.get_by_role("button", name=f"step {step}, mean").wait_for()
    training.join(60)
    server.close()
    see(page, "lost")


def test_a_curve_without_rewards_opens_on_a_metric_that_it_has(
    open_page: Open, browser: Browser, tmp_path: Path
) -> None:
    make_metrics_only(tmp_path)
    server = Server(tmp_path)
    page = open_page("#/curve/metrics-only", on=server)
    see(page, "no verdict: these evals have no reward")
    assert page.locator("circle.dot").count() == 9
    assert page.get_by_label("metric").locator("option").all_inner_texts() == ["accuracy", "late"]
    assert "skipped or in flight" not in shown(page)
    page.get_by_label("metric").select_option("late")  # which the last four have
    wait_for_dots(page, 4)
    see(page, "an eval without late")
    assert page.locator("line.missed.unmeasured").count() == 5
    assert "skipped or in flight" not in shown(page)
    server.close()
    out = tmp_path / "out.html"
    out.write_bytes(export_runs([tmp_path / "metrics-only"]))
    shared = browser.new_page()
    shared.goto(f"{out.as_uri()}#/curve/metrics-only")
    wait_for_dots(shared, 9)
    shared.get_by_label("metric").select_option("late")
    wait_for_dots(shared, 4)
    shared.close()


def wait_for_dots(page: Page, count: int) -> None:
    page.locator(f"circle.dot >> nth={count - 1}").wait_for()
    page.locator(f"circle.dot >> nth={count}").wait_for(state="detached")


# --- Notes --------------------------------------------------------------------------------------


@pytest.fixture
def noted(folder: Path, tmp_path: Path) -> Iterator[Server]:
    """A server that takes notes on attempts of `arithmetic`, a copy of it."""
    shutil.copytree(folder / "arithmetic", tmp_path / "arithmetic")
    server = Server(tmp_path, takes_notes=True)
    yield server
    server.close()


ATTEMPT = "#/run/arithmetic/sample?id=sum-03&repeat=1"


def saved_note(folder: Path) -> str:
    note = read_notes(RunDir(folder / "arithmetic")).get(("sum-03", 1))
    return "" if note is None else note.text


def test_a_remark_and_a_label_right_after_it_are_one_note(
    open_page: Open, noted: Server, tmp_path: Path
) -> None:
    page = open_page(ATTEMPT, on=noted)
    asked: list[Any] = []

    def hold_first(route: Any) -> None:
        asked.append(route)
        if len(asked) > 1:
            route.continue_()

    page.route("**/api/note", hold_first)
    page.get_by_label("remark").fill("forgets to carry")
    page.get_by_role("button", name="incorrect", exact=True).click()
    page.get_by_role("button", name="not_attempted", exact=True).click()
    see(page, "saving…")
    wait_to_be_asked(page, lambda: len(asked) > 0)
    assert len(asked) == 1  # the next one waits for it
    asked[0].continue_()
    see(page, "written just now")
    assert len(asked) == 2
    assert saved_note(tmp_path) == "not_attempted: forgets to carry"


def test_an_answer_leaves_what_is_being_typed_as_it_is(
    open_page: Open, noted: Server, tmp_path: Path
) -> None:
    page = open_page(ATTEMPT, on=noted)
    asked: list[Any] = []
    page.route("**/api/note", lambda route: asked.append(route))
    page.get_by_role("button", name="incorrect", exact=True).click()
    see(page, "saving…")
    page.keyboard.press("r")
    page.keyboard.type("forgets to ")
    wait_to_be_asked(page, lambda: len(asked) == 1)
    asked[0].continue_()
    see(page, "not saved yet")
    assert len(asked) == 1  # half a remark is not sent
    page.keyboard.type("carry ")
    page.keyboard.press("Escape")
    see(page, "saving…")
    page.keyboard.press("r")
    wait_to_be_asked(page, lambda: len(asked) == 2)
    asked[1].continue_()
    see(page, "written just now")
    assert page.get_by_label("remark").input_value() == "forgets to carry"
    assert saved_note(tmp_path) == "incorrect: forgets to carry"


def test_a_note_that_could_not_be_written_stays_visible_until_it_is(
    open_page: Open, noted: Server, tmp_path: Path
) -> None:
    page = open_page(ATTEMPT, on=noted)
    page.route("**/api/note", lambda route: route.abort("connectionrefused"))
    page.get_by_label("remark").fill("forgets to carry")
    page.get_by_role("button", name="incorrect", exact=True).click()
    alert = page.get_by_role("alert")
    alert.filter(has_text="The note on sum-03 is not saved.").wait_for()
    check_accessible(page)
    page.get_by_role("link", name="heldout").click()
    see(page, "of 1 runs")
    assert "incorrect forgets to carry" in alert.inner_text()
    page.unroute("**/api/note")
    alert.get_by_role("link", name="sum-03").click()
    page.locator("button[aria-pressed=true]", has_text="incorrect").wait_for()
    assert page.get_by_label("remark").input_value() == "forgets to carry"
    alert.get_by_role("button", name="Try again").click()
    alert.wait_for(state="detached")
    assert saved_note(tmp_path) == "incorrect: forgets to carry"


def test_a_remark_is_written_when_its_page_is_left(
    open_page: Open, noted: Server, tmp_path: Path
) -> None:
    page = open_page(ATTEMPT, on=noted)
    page.get_by_label("remark").fill("half a thought")
    with page.expect_response("**/api/note"):
        page.evaluate("location.hash = '#/runs'")
    assert saved_note(tmp_path) == "half a thought"


def test_a_note_that_somebody_else_changed_is_not_written_over_without_a_word(
    open_page: Open, noted: Server, tmp_path: Path
) -> None:
    page, other = (open_page(ATTEMPT, on=noted) for _ in range(2))
    other.get_by_role("button", name="correct", exact=True).click()
    see(other, "written just now")
    page.get_by_role("button", name="incorrect", exact=True).click()
    alert = page.get_by_role("alert")
    alert.filter(has_text="It is now: correct").wait_for()
    assert saved_note(tmp_path) == "correct"
    alert.get_by_role("button", name="Write mine over it").click()
    see(page, "written just now")
    assert saved_note(tmp_path) == "incorrect"
    other.get_by_role("button", name="not_attempted", exact=True).click()
    other.get_by_role("button", name="Discard mine").click()
    other.locator("button[aria-pressed=true]", has_text="incorrect").wait_for()
    assert saved_note(tmp_path) == "incorrect"


def test_a_reviewer_marks_samples_and_the_exported_file_has_the_notes(
    open_page: Open, browser: Browser, folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder / "arithmetic", tmp_path / "arithmetic")
    server = Server(tmp_path, takes_notes=True)
    page = open_page("#/run/arithmetic/sample?id=sum-03&repeat=1", on=server)
    page.get_by_role("button", name="incorrect", exact=True).click()
    page.locator("button[aria-pressed=true]", has_text="incorrect").wait_for()
    page.keyboard.press("r")
    page.keyboard.type("forgets to carry <b>")
    page.keyboard.press("Escape")
    see(page, "written just now")
    check_accessible(page)
    page.reload()
    assert page.get_by_label("remark").input_value() == "forgets to carry <b>"
    page.goto(f"{server.origin}#/run/arithmetic")
    see(page, "1 of reviewers: 1 incorrect")
    see(page, "1 note of reviewers: 1 incorrect")
    check_accessible(page)
    server.close()
    out = tmp_path / "out.html"
    out.write_bytes(export_runs([tmp_path / "arithmetic"], samples="all"))
    shared = browser.new_page()
    shared.set_default_timeout(20_000)
    shared.goto(f"{out.as_uri()}#/run/arithmetic")
    shared.get_by_role("link", name="sum-03").click()
    see(shared, "forgets to carry <b>")
    assert shared.get_by_label("remark").count() == 0
    shared.close()


# --- Text ---------------------------------------------------------------------------------------


def marked(text: str) -> str:
    """The text as the page shows it: characters that hide or reorder others as marks."""
    hidden = re.compile(
        "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]"
    )
    return hidden.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", text)


@pytest.mark.parametrize("place", range(len(HOSTILE)))
def test_hostile_text_is_shown_and_never_obeyed(open_page: Open, place: int) -> None:
    text = HOSTILE[place]
    page = open_page(f"#/run/hostile/sample?id={quote(text, safe='')}")
    page.get_by_role("heading", name="Score").wait_for()
    said = page.locator(".turn .said").all_inner_texts()
    assert marked(text) in said
    page.keyboard.press("e")
    page.keyboard.press("m")
    page.locator(".markdown").first.wait_for()
    assert page.locator("main img, main script, main iframe, main object").count() == 0
    for target in page.locator("main .markdown a").all():
        assert target.get_attribute("href").startswith(("http://", "https://"))
    page.keyboard.press("s")
    see(page, "sample_id")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\U000e0041\U000e007f b", "a⟨U+E0041⟩⟨U+E007F⟩ b"),
        ("\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f", None),
        ("\U0001f3f4\U000e0068\U000e0069\U000e007f", "\U0001f3f4⟨U+E0068⟩⟨U+E0069⟩⟨U+E007F⟩"),
        ("\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f\u200d\U0001f525", None),
        ("می\u200cخواهم क्\u200dष", None),
        ("pass\u200cword \u200d\u200b", "pass⟨U+200C⟩word ⟨U+200D⟩⟨U+200B⟩"),
        ("a\ufe0f\u3164", "a⟨U+FE0F⟩⟨U+3164⟩"),
        ("x\U000e0101 \u034f\ufff9", "x⟨U+E0101⟩ ⟨U+034F⟩⟨U+FFF9⟩"),
    ],
)  # fmt: skip
def test_what_hides_is_marked_and_what_shapes_its_neighbours_is_not(
    one_page: Page, server: Server, text: str, expected: str | None
) -> None:
    one_page.goto(server.address)
    assert module(one_page, "text.js", "m.visible(a)", text) == (expected or text)


def test_hostile_text_in_lists_is_shown_too(open_page: Open) -> None:
    page = open_page("#/run/hostile/samples")
    see(page, "7 of 7 rows")
    assert "<img src=x onerror=alert(1)>" in shown(page)
    page.goto(page.url.partition("#")[0] + "#/run/hostile?by=kind")
    see(page, "slices looked at")
    assert page.locator("main img").count() == 0
    page.goto(page.url.partition("#")[0] + f"#/run/{quote(HOSTILE[5], safe='')}")
    see(page, "there is no run")


MARKDOWN = """\
# Sum

> a quote
> > inside

1. one
   - **nested** ~~gone~~
2. two

---

| many | columns |
|:--|--:|
| `a` | 2 |

<b>bold</b> ![picture](https://example.com/x.png) [bad](javascript:alert(1)) [web](https://a.example)

```python
x = "a <b>"  # 1 // 2
return 7 // 2
```

The answer is **42**.
"""


CODE = {
    "comment": ["# 1 // 2"],
    "string": ['"a <b>"'],
    "number": ["7", "2"],
    "keyword": ["return"],
}


def test_images_inside_a_message_are_shown_and_no_others(open_page: Open, tmp_path: Path) -> None:
    pixel = (
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5E"
        "rkJggg=="
    )
    urls = [
        f"data:image/png;base64,{pixel}",
        "https://example.com/x.png",
        "data:image/svg+xml;base64,PHN2Zy8+",
        "data:text/html,<script>alert(1)</script>",
        "javascript:alert(1)",
    ]
    content = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    anthropic = {"type": "base64", "media_type": "image/png", "data": pixel}
    content += [{"type": "image", "source": anthropic}, {"type": "text", "text": "What is it?"}]
    result = EvalResult("q", replace(make_questions(1)[0], id="q"),
                        Trajectory((Message("user", content), Message("assistant", "A pixel."))),
                        Score((Metric("m", 1.0, 1.0),)))  # fmt: skip
    save_results(tmp_path / "images", [result])
    server = Server(tmp_path)
    page = open_page("#/run/images/sample?id=q", on=server)
    see(page, "What is it?")
    assert page.locator(".turn img").evaluate_all("all => all.map((i) => i.naturalWidth)") == [1, 1]
    server.close()


def test_markdown_is_rendered_where_the_answer_is_marked_and_stays_harmless(
    open_page: Open, tmp_path: Path
) -> None:
    texts = {"inside": MARKDOWN, "across": "It is **4**2.", "lost": "It is *4*&#50;."}
    results = [
        EvalResult(id, replace(make_questions(1)[0], id=id),
                   Trajectory((Message("user", "?"), Message("assistant", text))),
                   Score((Metric("m", 1.0, 1.0, {"extracted": extracted}),)))
        for (id, text), extracted in zip(texts.items(), ("42", "**4**2", "4*&#50;"), strict=True)
    ]  # fmt: skip
    save_results(tmp_path / "markdown", results)
    server = Server(tmp_path)
    page = open_page("#/run/markdown/sample?id=inside", on=server)
    assert page.locator("mark").inner_text() == "42"
    page.keyboard.press("m")
    shown = page.locator(".turn.assistant .markdown")
    assert shown.locator("strong mark").inner_text() == "42"
    for selector in ("blockquote blockquote", "ol > li > ul > li > strong", "s", "hr", "h4"):
        shown.locator(selector).wait_for()
    assert shown.locator(".scroll td").all_inner_texts()[1] == "2"
    assert "<b>bold</b>" in shown.inner_text()
    assert "picture (https://example.com/x.png)" in shown.inner_text()
    assert shown.locator("a").evaluate_all("all => all.map((a) => a.href)") == [
        "https://a.example/"
    ]
    assert shown.locator("img, script, b").count() == 0
    for kind, texts in CODE.items():
        assert shown.locator(f"pre .code-{kind}").all_inner_texts() == texts
    for id in ("across", "lost"):  # what is not in the rendered text is shown below it
        page.goto(f"{server.origin}#/run/markdown/sample?id={id}")
        page.get_by_role("heading", name=id).wait_for()
        extracted = {"across": "**4**2", "lost": "4*&#50;"}[id]
        page.locator(".turn.assistant mark", has_text=extracted).wait_for()
    server.close()


FORMULAS = {
    r"x_1^2": "<msubsup><mi>x</mi><mn>1</mn><mn>2</mn></msubsup>",
    r"\frac{a}{2}": "<mfrac><mi>a</mi><mn>2</mn></mfrac>",
    r"\sqrt[3]{x}": "<mroot><mi>x</mi><mrow><mn>3</mn></mrow></mroot>",
    r"\alpha \le 3.5": "<mi>α</mi><mo>≤</mo><mn>3.5</mn>",
    r"f'(x)": "<msup><mi>f</mi><mo>′</mo></msup><mo>(</mo><mi>x</mi><mo>)</mo>",
    r"\sum_{i}^n": "<munderover><mo>∑</mo><mi>i</mi><mi>n</mi></munderover>",
    r"\text{a < b}": "<mtext>a &lt; b</mtext>",
    r"\left(x\right.": '<mrow><mo stretchy="true">(</mo><mrow><mi>x</mi></mrow></mrow>',
    r"\begin{matrix}a&b\\c\end{matrix}": (
        "<mtable><mtr><mtd><mi>a</mi></mtd><mtd><mi>b</mi></mtd></mtr>"
        "<mtr><mtd><mi>c</mi></mtd></mtr></mtable>"
    ),
    r"\href{javascript:alert(1)}": r"<mtext>\href</mtext>",  # not known: it stays text
    r"x^": None,
    r"\frac{1": None,
    r"\begin{matrix}a": None,
    "{" * 300: None,
}


def test_a_formula_is_mathml_or_cannot_be_read(one_page: Page, server: Server) -> None:
    one_page.goto(server.address)
    script = """a.map((tex) => { try { return m.build(m.parse(tex)).outerHTML; }
        catch { return null; } })"""
    for (tex, wanted), found in zip(
        FORMULAS.items(), module(one_page, "math.js", script, list(FORMULAS)), strict=True
    ):
        assert (found is None) == (wanted is None), tex
        assert wanted is None or wanted in found


def test_formulas_of_a_text_are_shown_and_prices_are_none(open_page: Open, tmp_path: Path) -> None:
    texts = {
        "maths": "So $x^2 = 4$ and\n\n$$\\frac{1}{2}$$\n\nor \\(y_1\\), for $5 or $6.",
        "marked": "It is $x = 42$.",
    }
    results = [
        EvalResult(id, replace(make_questions(1)[0], id=id),
                   Trajectory((Message("user", "?"), Message("assistant", text))),
                   Score((Metric("m", 1.0, 1.0, {"extracted": "42"}),)))
        for id, text in texts.items()
    ]  # fmt: skip
    save_results(tmp_path / "maths", results)
    server = Server(tmp_path)
    page = open_page("#/run/maths/sample?id=maths", on=server)
    page.keyboard.press("m")
    page.locator(".turn.assistant math").nth(2).wait_for()
    shown = page.locator(".turn.assistant .markdown")
    assert shown.locator("math").count() == 3
    assert shown.locator("math[display=block] mfrac").count() == 1
    assert "for $5 or $6." in shown.inner_text()
    page.goto(f"{server.origin}#/run/maths/sample?id=marked")
    page.locator(".turn.assistant mark", has_text="42").wait_for()
    server.close()
    out = tmp_path / "out.html"
    out.write_bytes(export_runs([tmp_path / "maths"], samples="all"))
    page.goto(f"{out.as_uri()}#/run/maths/sample?id=maths")
    page.locator(".turn.assistant").wait_for()
    page.keyboard.press("m")
    page.locator(".turn.assistant math").nth(2).wait_for()


@pytest.mark.parametrize("text", ["[" * 50_000, "> " * 20_000, "*a " * 30_000, "- " * 30_000])
def test_markdown_that_is_hard_to_read_is_rendered_or_shown_as_it_is(
    one_page: Page, server: Server, text: str
) -> None:
    one_page.goto(server.address)
    script = """import('./vendor/preact-htm.js').then(({ html }) => { m.setElements(html);
        return typeof m.Markdown({ text: a }); })"""
    assert module(one_page, "markdown.js", f"await {script}", text) == "object"


def test_scrolling_reaches_every_row(open_page: Open) -> None:
    page = open_page()
    script = """a.map(([total, visible]) => {
        const view = visible * m.ROW, spacer = Math.min(6_000_000, total * m.ROW) + m.ROW;
        const size = [total, visible, spacer, view];
        const at = (first) => m.firstRow(m.scrollFor(first, ...size), ...size);
        const last = Math.max(0, total - visible);
        return [at(0), at(last), at(Math.floor(last / 2)), last];
    })"""
    sizes = [[10, 40], [1_000, 40], [214_000, 40], [215_000, 40], [1_000_000, 30]]
    for (total, _), (first, end, middle, last) in zip(
        sizes, module(page, "grid.js", script, sizes), strict=True
    ):
        assert (first, end) == (0, last)
        assert abs(middle - last // 2) <= max(1, total // 6_000_000)


def test_a_difference_of_words_has_both_texts(open_page: Open) -> None:
    page = open_page()
    pairs = [["a b c", "a x c"], ["", "new"], ["old", ""], ["same", "same"], ["a  b\nc", "b\nc d"],
             ["x " * 3_000, "y " * 3_000], ["one two three", "three two one"]]  # fmt: skip
    for (before, after), parts in zip(
        pairs, module(page, "text.js", "a.map(([x, y]) => m.wordDiff(x, y))", pairs), strict=True
    ):
        assert "".join(text for kind, text in parts if kind != "new") == before
        assert "".join(text for kind, text in parts if kind != "gone") == after


# --- Export -------------------------------------------------------------------------------------


def test_an_exported_file_opens_from_disk(
    browser: Browser, folder: Path, tmp_path: Path, pages: Pages
) -> None:
    out = tmp_path / "out.html"
    names = ("shop-base", "shop-tuned", "grpo-shop", "hostile")
    out.write_bytes(export_runs([folder / name for name in names]))
    context = browser.new_context(offline=True)
    context.set_default_timeout(20_000)
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
    page.on("dialog", lambda dialog: problems.append(dialog.message))
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto(out.as_uri())
    see(page, "4 of 4 runs")
    see(page, "conversations inside")
    sentence = pages.compare("shop-base", "shop-tuned", "", "", [])["sentence"]
    verdict = pages.curve("grpo-shop", "", "")["verdict"]["sentence"]
    hostile = quote(HOSTILE[0], safe="")
    for route, text in (
        ("#/run/shop-base?by=level", "slices looked at"),
        ("#/run/shop-base/samples?where=failed:yes", "picked by their result"),
        ("#/compare/shop-base/shop-tuned", sentence),
        ("#/compare/shop-tuned/shop-base?by=level", "p adjusted by Holm"),
        ("#/curve/grpo-shop?from=0&to=120", verdict),
        ("#/curve/grpo-shop/sample?id=price-000", "across steps"),
        (f"#/run/hostile/sample?id={hostile}", "alert(1)"),
        (f"#/run/hostile/sample?id={hostile}", "Tools (1)"),
        ("#/run/shop-base/sample?id=nope", "not in the exported file"),
    ):
        page.goto(out.as_uri() + route)
        see(page, text)
    failed = pages.rows("shop-base", "failed:yes", "", [], 0, 1)["total"]
    page.goto(out.as_uri() + "#/run/shop-base/samples?where=failed:yes")
    see(page, f"{failed} of 120 rows")
    page.get_by_text("views", exact=True).wait_for()
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Score").wait_for()
    assert {url for url in requests if not url.startswith(("file:", "data:"))} == set()
    assert problems == []
    context.close()


def test_an_export_says_what_is_in_the_file_before_it_is_saved(
    open_page: Open, folder: Path
) -> None:
    page = open_page("#/run/arithmetic")
    page.get_by_text("Export as one file").click()
    page.get_by_label("conversations").select_option("all")
    page.get_by_role("button", name="What will be in it?").click()
    whole = export_runs([folder / "arithmetic"], samples="all")
    see(page, f"160 of 160 conversations: {-(-len(whole) // 1000)} KB")
    with page.expect_download() as download:
        page.get_by_role("button", name="Save").click()
    assert download.value.suggested_filename == "arithmetic.html"
    assert download.value.path().read_bytes() == whole


FILTERS = (
    *("", "level:hard", "level!=hard", "reward<0.5", "reward>=0.5", "tokens>200", "-failed:yes"),
    *("id:price-01", "id=price-000", "ID:price", "error:CLOSED", "-error:closed", "items>1_0"),
    *("metric.brief:1", "brief:0", "metadata.level:easy level:easy", 'topic:"refund"', "ok:true"),
    *("passed:no", "errored:yes", "truncated:no", "seconds<inf", "repeat:0", "index<1e1"),
    *(
        "level:hard OR level:easy reward:1",
        "reward:0.5..",
        "tokens:..60 OR id:price-00",
        "items!=5..9",
    ),
    *("ground_truth:12", "ground_truth=4320", "extracted:5", "-extracted:5", "OR a:1", "reward:.."),
    *("reward:high", "level<b", "nope:1", 'level:"hard', "level:", "passed:maybe", "reward!=nan"),
)


def test_a_filter_means_the_same_in_an_exported_file(open_page: Open, pages: Pages) -> None:
    page = open_page()
    run = pages.open("shop-base")
    exported = {**_plain_columns(run.fields, frozenset()), "of": len(run.rows)}
    script = """a.filters.map(([where, sort]) => { try { const terms = m.parse(where);
        return [m.pickedBy(terms, a.table.inputs), m.select(a.table, terms, sort)];
    } catch (problem) { return problem.at; } })"""
    filters = [(where, sort) for where in FILTERS for sort in ("", "-tokens", "level", "-id")]
    found = module(page, "filter.js", script, {"table": exported, "filters": filters})
    for (where, sort), rows in zip(filters, found, strict=True):
        expected: object
        try:
            expected = [
                picked_by(parse(where), run.fields.is_input),
                run.rows.select(where, sort).tolist(),
            ]
        except BadFilter as problem:
            expected = problem.at
        assert rows == expected, where


def test_an_exported_file_says_what_it_does_not_have(
    browser: Browser, folder: Path, tmp_path: Path, pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "FLIPS", 3)
    monkeypatch.setattr(export, "PAIR_ROWS", 80)
    make_two_evals(tmp_path)
    out = tmp_path / "out.html"
    roots = [folder / "shop-base", folder / "shop-tuned", tmp_path / "two-evals"]
    out.write_bytes(export_runs(roots))
    page = browser.new_page(viewport=SIZE)
    page.set_default_timeout(20_000)
    hard = pages.rows("shop-base", "level:hard", "", [], 0, 1)["total"]
    page.goto(f"{out.as_uri()}#/run/shop-base?by=level")
    page.locator("tr", has_text="hard").last.click()
    see(page, f"{hard} of 120 rows")
    see(page, "an exported file has no mean of some of the rows")
    see(page, "conversations are in this file; other rows are grey")
    passed = pages.rows("shop-base", "level:hard passed:yes", "", [], 0, 1)["total"]
    page.get_by_label("Filter").fill("level:hard passed:yes")
    see(page, f"{passed} of 120 rows")
    assert page.locator(".line.absent").count() == passed
    page.keyboard.press("Enter")  # asks at once; a row is opened by a click
    page.locator(".line.absent").first.click()
    see(page, "not in the exported file")
    page.goto(f"{out.as_uri()}#/run/shop-base/samples?where=refund")
    see(page, "an exported file has no search of conversations")
    page.goto(f"{out.as_uri()}#/compare/shop-base/shop-tuned?where=level:hard")
    see(page, "; 40 more are not in the exported file")
    page.locator(".pairs .line.absent").first.wait_for()
    page.goto(f"{out.as_uri()}#/curve/two-evals?from=0&to=20")
    see(page, "Samples by step")
    see(page, "From step 0 to step 20")
    page.locator(".heat a").first.click()
    see(page, "across steps")
    page.close()


def test_the_frame_of_a_notebook_works_without_an_origin(
    browser: Browser, folder: Path, tmp_path: Path
) -> None:
    shown = heldout.view(heldout.EvalReport.load(folder / "arithmetic"))._repr_html_()
    outer = tmp_path / "notebook.html"
    outer.write_text(f"<!doctype html><meta charset='utf-8'>{shown}")
    page = browser.new_page()
    page.goto(outer.as_uri())
    frame = page.frame_locator("iframe")
    frame.get_by_role("link", name="arithmetic").click()
    frame.get_by_text("About this run").wait_for()
    frame.get_by_role("link", name="Failures").click()
    frame.get_by_text("picked by their result").wait_for()
    assert frame.locator(".views").count() == 0  # which it could not keep
    page.close()
