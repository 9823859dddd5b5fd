"""The server: who is answered, with which headers, and that nothing else can be reached."""

from __future__ import annotations

import asyncio
import gzip
import json
import shutil
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiohttp import ClientSession, web
from yarl import URL

from heldout.viewer import server
from heldout.viewer.assets import BUNDLE, read_assets
from heldout.viewer.pages import Pages
from heldout.viewer.search import abandoned
from heldout.viewer.server import HEADERS, PAGES, Viewer, bind, serve
from tests.viewer.conftest import HOSTILE
from tests.viewer.runs import make_curve

TOKEN = "a-token"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


class Answer(NamedTuple):
    status: int
    headers: Any
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@asynccontextmanager
async def running(
    pages: Pages, token: str | None = TOKEN, code: str | None = None
) -> AsyncIterator[str]:
    """The server on a free port; gives its address."""
    bound = bind("127.0.0.1", 0)
    port = bound.getsockname()[1]
    viewer = Viewer(pages, token=token, hosts=frozenset({f"127.0.0.1:{port}"}), code=code)
    runner = viewer.runner()
    await runner.setup()
    await web.SockSite(runner, bound).start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


def ask(
    pages: Pages,
    path: str,
    *,
    method: str = "GET",
    headers: dict[str, str] | None = None,
    token: str | None = TOKEN,
) -> Answer:
    """One request; the path is sent as it is."""

    async def request() -> Answer:
        async with running(pages, token) as address, ClientSession() as session:
            url = URL(address + path, encoded=True)
            sent = BEARER if headers is None else headers
            async with session.request(method, url, headers=sent) as response:
                return Answer(response.status, response.headers, await response.read())

    return asyncio.run(request())


REQUESTS = {
    "runs": "",
    "run": "name=shop-base",
    "slices": "name=shop-base&by=level",
    "rows": "name=shop-base&limit=100",
    "table-file": "name=shop-base&where=level:hard&format=csv",
    "position": "name=shop-base&id=price-000&where=level:hard",
    "sample": "name=shop-base&id=price-000",
    "record": "name=shop-base&id=price-000",
    "compare": "a=shop-base&b=shop-tuned&by=level",
    "pairs": "a=shop-base&b=shop-tuned&where=gained:yes&limit=100",
    "several": "name=shop-base&name=shop-tuned",
    "curve": "name=grpo-shop",
    "curves": "name=grpo-shop",
    "curve-flips": "name=grpo-shop&from_step=0&to_step=120",
    "strip": "name=grpo-shop",
    "history": "name=grpo-shop&id=price-000",
    "notes": "name=shop-base",
    "export": "name=shop-base",
}


@pytest.mark.parametrize("page", REQUESTS)
def test_every_request_is_answered(pages: Pages, page: str) -> None:
    assert {*PAGES} == {*REQUESTS, "exported"}
    answer = ask(pages, f"/api/{page}?{REQUESTS[page]}")
    assert answer.status == 200, answer.body
    assert answer.headers["Content-Type"] == "application/json; charset=utf-8"
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.json


# --- Who is answered ----------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/app.js", "/api/runs", "/api/events", "/nothing"])
@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "localhost:1", "", "127.0.0.1:1"])
def test_another_host_name_is_refused(pages: Pages, path: str, host: str) -> None:
    answer = ask(pages, path, headers={**BEARER, "Host": host})
    assert answer.status == 421
    assert b"shop" not in answer.body


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_requests_of_other_sites_are_refused(pages: Pages, site: str) -> None:
    for path in ("/", "/api/runs"):
        assert ask(pages, path, headers={**BEARER, "Sec-Fetch-Site": site}).status == 403
    assert (
        ask(pages, "/api/runs", headers={**BEARER, "Sec-Fetch-Site": "same-origin"}).status == 200
    )


async def send(pages: Pages, head: bytes, body: bytes = b"", code: str | None = None) -> int:
    """Send a request byte by byte as it is, with the server's address for HOST; its status."""
    async with running(pages, code=code) as address:
        host = URL(address).authority
        reader, writer = await asyncio.open_connection(*host.split(":"))
        length = b"Content-Length: %d\r\nConnection: close\r\n" % len(body)
        writer.write(head.replace(b"HOST", host.encode()) + length + b"\r\n" + body)
        status = await reader.readline()
        writer.close()
        return int(status.split()[1])


@pytest.mark.parametrize("given", [b"\xff", b"\xed\xa0\x80", b"", b"\xff \xff"])
@pytest.mark.parametrize(("path", "scheme"), [("runs", b"Bearer"), ("token", b"Code")])
def test_a_secret_that_is_no_text_is_the_wrong_one(
    pages: Pages, path: str, scheme: bytes, given: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    head = b"GET /api/%b HTTP/1.1\r\nHost: HOST\r\nAuthorization: %b %b\r\n"
    request = head % (path.encode(), scheme, given)
    assert asyncio.run(send(pages, request, code="a-code")) == 401
    assert caplog.records == []


@pytest.mark.parametrize(
    "header",
    [
        "Last-Event-ID",
        "Accept-Encoding",
        "Origin",
        "Cookie",
        "Range",
        "If-None-Match",
        "Content-Type",
    ],
)
@pytest.mark.parametrize("path", ["/", "/api/runs", "/api/events"])
def test_headers_may_have_any_bytes(
    pages: Pages, header: str, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    head = f"GET {path} HTTP/1.1\r\nHost: HOST\r\nAuthorization: Bearer {TOKEN}\r\n{header}: "
    assert asyncio.run(send(pages, head.encode() + b"\xff\xed\xa0\x80\r\n")) == 200
    assert caplog.records == []


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"", b""),
        (b"\xff", b""),
        (b'{"name": "\xff"}', b""),
        (b'{"name": "\\ud800"}', b""),
        (b"[" * 60_000, b""),
        (b"{}", b"Content-Encoding: gzip\r\n"),
        (b"{}", b"Content-Encoding: deflate\r\n"),
    ],
)
def test_a_note_may_be_any_bytes_and_is_refused(
    folder: Path, body: bytes, headers: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    head = (
        b"POST /api/note HTTP/1.1\r\nHost: HOST\r\nOrigin: http://HOST\r\n"
        b"Content-Type: application/json\r\nAuthorization: Bearer %b\r\n"
    ) % TOKEN.encode()
    pages = Pages([folder], takes_notes=True)
    assert asyncio.run(send(pages, head + headers, body)) == 400
    assert caplog.records == []


def test_a_stream_of_events_that_fails_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, folder: Path
) -> None:
    def fail(self: Pages, names: list[str], seen: str) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Pages, "events", fail)
    answer = ask(Pages([folder]), "/api/events")
    assert (answer.status, answer.body) == (200, b"")
    assert "ZeroDivisionError" in caplog.text


def test_what_goes_wrong_anywhere_is_one_line_for_the_page_and_a_traceback_for_the_terminal(
    pages: Pages, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Viewer, "_exchange", fail)
    answer = ask(pages, "/api/token")
    assert answer.status == 500
    assert "the terminal says which" in answer.json["error"]
    assert answer.headers["Content-Security-Policy"]
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer"},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Cookie": f"token={TOKEN}"},
        {"Authorization": "Bearer ü"},
    ],
)
def test_data_needs_the_token_and_assets_do_not(pages: Pages, headers: dict[str, str]) -> None:
    for page in ("runs", "run?name=shop-base", "events", "nothing"):
        answer = ask(pages, f"/api/{page}", headers=headers)
        assert answer.status == 401
        assert set(answer.json) == {"error", "hint"}
    assert ask(pages, f"/api/runs?token={TOKEN}", headers=headers).status == 401
    assert ask(pages, "/app.js", headers=headers).status == 200
    assert ask(pages, "/api/runs", headers=headers, token=None).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
def test_nothing_can_be_changed(pages: Pages, method: str) -> None:
    for path in ("/", "/api/runs", "/api/run?name=shop-base"):
        assert ask(pages, path, method=method).status == 405


NONE = {"label": "", "remark": ""}
NOTE = {
    **{"name": "arithmetic", "id": "sum-03", "repeat": 2, "label": "correct", "remark": "fine"},
    "was": NONE,
}
JSON_TYPE = {"Content-Type": "application/json"}
NO_PAGE = {"Origin": "http://evil.example"}


@pytest.mark.parametrize(
    ("headers", "body", "takes", "status"),
    [
        ({}, NOTE, True, 200),
        ({}, NOTE, False, 405),
        ({"Authorization": "Bearer x"}, NOTE, True, 401),
        ({"Host": "evil.example"}, NOTE, True, 421),
        ({"Sec-Fetch-Site": "cross-site"}, NOTE, True, 403),
        (NO_PAGE, NOTE, True, 403),
        ({"Origin": "null"}, NOTE, True, 403),
        ({"Origin": ""}, NOTE, True, 403),
        ({"Content-Type": "text/plain"}, NOTE, True, 403),
        ({}, {**NOTE, "id": "nope"}, True, 404),
        ({}, {**NOTE, "name": "../arithmetic"}, True, 404),
        ({}, {**NOTE, "repeat": 9}, True, 404),
        ({}, {**NOTE, "repeat": -1}, True, 400),
        ({}, {**NOTE, "path": "/etc/passwd"}, True, 400),
        ({}, {**NOTE, "was": {"label": "incorrect", "remark": ""}}, True, 409),
        ({}, {**NOTE, "label": "x" * 65}, True, 422),
        ({}, {**NOTE, "remark": "x" * 4001}, True, 422),
        ({}, {**NOTE, "remark": "x" * 70_000}, True, 413),
    ],
)
def test_a_note_is_written_by_the_own_page_alone_and_nothing_else_is(
    folder: Path,
    tmp_path: Path,
    headers: dict[str, str],
    body: dict[str, Any],
    takes: bool,
    status: int,
) -> None:
    shutil.copytree(folder / "arithmetic", tmp_path / "arithmetic")
    before = {path.name: path.read_bytes() for path in (tmp_path / "arithmetic").iterdir()}

    async def main() -> int:
        pages = Pages([tmp_path], takes_notes=takes)
        async with running(pages) as address, ClientSession() as session:
            sent = {**BEARER, **JSON_TYPE, "Origin": address, **headers}
            url = f"{address}/api/note"
            async with session.post(url, data=json.dumps(body), headers=sent) as response:
                return response.status

    assert asyncio.run(main()) == status
    after = {path.name: path.read_bytes() for path in (tmp_path / "arithmetic").iterdir()}
    written = after.pop("notes.jsonl", b"")
    assert after == before
    assert (b"fine" in written) == (status == 200)


# --- Headers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/", None),
        ("/app.css", None),
        ("/vendor/preact-htm.js", None),
        ("/api/runs", None),
        ("/api/nothing", None),
        ("/api/run?name=nope", None),
        ("/nothing", None),
        ("/api/runs", {}),
        ("/", {"Host": "evil.example"}),
    ],
)
def test_every_answer_has_the_security_headers_and_no_cors(
    pages: Pages, path: str, headers: dict[str, str] | None
) -> None:
    answer = ask(pages, path, headers=headers)
    for name, value in HEADERS.items():
        assert answer.headers[name] == value
    assert not [name for name in answer.headers if name.lower().startswith("access-control")]
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "require-trusted-types-for 'script'" in policy


def test_the_page_has_no_inline_script_or_style() -> None:
    index = read_assets()["index.html"].body.decode()
    assert "<style" not in index
    assert " style=" not in index
    assert index.count("<script") == index.count('<script type="module" src=')


def test_what_is_sent_is_packed(pages: Pages) -> None:
    plain = ask(pages, "/app.js", headers={"Accept-Encoding": "identity"})
    assert "Content-Encoding" not in plain.headers
    assert ask(pages, "/app.js", headers={}).headers["Content-Encoding"]
    assets = read_assets()
    loaded = b"".join(assets[path].body for path in ("index.html", "app.css", BUNDLE))
    assert len(gzip.compress(loaded)) < 60_000


# --- What can be reached ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/../server.py",
        "/..%2f..%2fserver.py",
        "/%2e%2e/%2e%2e/pages.py",
        "/vendor/../../pages.py",
        "//etc/passwd",
        "/etc/passwd",
        "/app.js%00.html",
        "/static/app.js",
        "/vendor",
        "/vendor/",
        "/vendor/VENDOR.toml",
        "/C:%5cwindows",
    ],
)
def test_only_the_files_of_the_page_are_assets(pages: Pages, path: str) -> None:
    answer = ask(pages, path)
    assert answer.status in (404, 400)
    assert b"import" not in answer.body
    assert b"root:" not in answer.body


@pytest.mark.parametrize("page", [page for page in REQUESTS if page != "runs"])
@pytest.mark.parametrize(
    "name", ["..", "../../etc", "%2fetc%2fpasswd", "shop-base%2f..%2f..", "damaged%00", "", "%ff"]
)
def test_no_request_names_a_path(pages: Pages, page: str, name: str) -> None:
    query = (
        REQUESTS[page].replace("name=shop-base", f"name={name}").replace("a=shop-base", f"a={name}")
    )
    query = query.replace("name=grpo-shop", f"name={name}")
    answer = ask(pages, f"/api/{page}?{query}")
    assert answer.status == 404
    assert "there is no run" in answer.json["error"]


def test_hostile_ids_and_names_are_only_data(pages: Pages) -> None:
    for text in HOSTILE:
        query = URL.build(query={"name": "hostile", "id": text}).raw_query_string
        answer = ask(pages, f"/api/sample?{query}")
        assert answer.status == 200
        assert answer.json["id"] == text
        unknown = ask(pages, f"/api/run?{URL.build(query={'name': text}).raw_query_string}")
        assert unknown.status == 404
        assert unknown.headers["Content-Type"].startswith("application/json")


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("/api/rows?name=shop-base&offset=x", 400, "a parameter is wrong"),
        ("/api/rows?name=shop-base&offset=-1", 400, "from 0 on"),
        ("/api/rows?name=shop-base&offset=99999999999999999999", 400, "from 0 on"),
        ("/api/rows?name=shop-base&where=reward%3C", 400, "reward< has no value"),
        ("/api/rows?name=shop-base&sort=nope", 422, "has no key"),
        ("/api/slices?name=shop-base&by=nope", 422, "has no key"),
        ("/api/compare?a=shop-base&b=arithmetic", 409, "cannot be compared"),
        ("/api/run?name=damaged", 422, "cannot be read"),
        ("/api/run?name=grpo-shop", 422, "curve of many evals"),
        ("/api/rows?name=grpo-shop", 422, "curve of many evals"),
        ("/api/curve?name=shop-base", 422, "cannot read a file of the run"),
        ("/api/strip?name=shop-base", 422, "cannot read a file of the run"),
        ("/api/nothing", 404, "no such request"),
    ],
)
def test_what_is_wrong_is_said_in_json(pages: Pages, path: str, status: int, says: str) -> None:
    answer = ask(pages, path)
    assert answer.status == status
    assert says in answer.json["error"]


def test_a_filter_that_cannot_be_read_says_where(pages: Pages) -> None:
    answer = ask(pages, "/api/rows?name=shop-base&where=level:hard%20nope:1")
    assert (answer.json["kind"], answer.json["at"]) == ("filter", 11)
    refused = ask(pages, "/api/compare?a=shop-base&b=arithmetic").json
    assert refused["kinds"] == ["samples", "scorer", "environment"]


def test_a_page_of_rows_is_bounded(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_ROWS", 7)
    answer = ask(pages, "/api/rows?name=arithmetic&limit=100000")
    assert len(answer.json["rows"]) == 7


# --- Events -------------------------------------------------------------------------------------


def test_a_search_ends_when_its_client_has_gone() -> None:
    begun, ended = threading.Event(), threading.Event()

    class Searching(Pages):
        def runs(self) -> Any:
            stop = abandoned.get()
            assert stop is not None
            begun.set()
            if stop.wait(30):
                ended.set()

    async def main() -> None:
        async with running(Searching([])) as address, ClientSession(headers=BEARER) as session:
            request = asyncio.create_task(session.get(f"{address}/api/runs").__aenter__())
            await asyncio.to_thread(begun.wait, 30)
            request.cancel()
            await asyncio.to_thread(ended.wait, 30)

    asyncio.run(main())
    assert ended.is_set()


def test_a_new_point_reaches_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "POLL_SECONDS", 0.01)
    evals = make_curve(tmp_path, 20, samples=8)
    pages = Pages([tmp_path])

    async def follow() -> tuple[bytes, bytes]:
        async with running(pages) as address, ClientSession(headers=BEARER) as session:
            url = f"{address}/api/events?name=grpo-shop"
            state = pages.curve("grpo-shop", "", "")["state"]
            async with session.get(url, headers={"Last-Event-ID": state}) as stream:
                assert stream.headers["Content-Type"] == "text/event-stream"
                assert stream.headers["Content-Security-Policy"] == server.POLICY
                evals.run_final(30)
                first = await stream.content.readuntil(b"\n\n")
            # What happens while nobody listens is told when the stream is taken up again.
            evals.run_final(40)
            last = first.split(b"\n")[0].removeprefix(b"id: ").decode()
            async with session.get(url, headers={"Last-Event-ID": last}) as stream:
                return first, await stream.content.readuntil(b"\n\n")

    first, second = asyncio.run(asyncio.wait_for(follow(), 60))
    assert b'event: changed\ndata: {"name":"grpo-shop"' in first
    assert b"event: changed" in second
    assert first.split(b"\n")[0] != second.split(b"\n")[0]


# --- The browser's link -------------------------------------------------------------------------


async def exchange(pages: Pages, *codes: str) -> list[int]:
    """Ask for the token with codes, then for data with the token that came; the statuses."""
    async with running(pages, code="a-code") as address, ClientSession() as session:
        statuses, token = [], "none"
        for code in codes:
            headers = {"Authorization": f"Code {code}"}
            async with session.get(f"{address}/api/token", headers=headers) as response:
                statuses.append(response.status)
                if response.ok:
                    token = (await response.json())["token"]
        headers = {"Authorization": f"Bearer {token}"}
        async with session.get(f"{address}/api/runs", headers=headers) as response:
            return [*statuses, response.status]


@pytest.mark.parametrize(
    ("codes", "statuses"),
    [
        (["a-code"], [200, 200]),
        (["another", "ü", "a-code"], [401, 401, 200, 200]),
        # Somebody was faster than the browser: then nobody is answered any more.
        (["a-code", "a-code"], [200, 401, 401]),
    ],
)
def test_the_code_of_the_browsers_link_is_good_for_the_token_once(
    pages: Pages, codes: list[str], statuses: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    assert asyncio.run(exchange(pages, *codes)) == statuses
    assert ("was used twice" in caplog.text) == (codes == ["a-code", "a-code"])


def test_an_old_code_is_refused(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "CODE_SECONDS", -1.0)
    assert asyncio.run(exchange(pages, "a-code")) == [401, 401]


def test_the_browser_is_started_without_the_token(pages: Pages) -> None:
    opened: list[str] = []

    async def run() -> None:
        ready = asyncio.Event()

        def open_browser(address: str) -> None:
            opened.append(address)
            ready.set()

        call = serve(pages, port=0, on_ready=opened.append, open_browser=open_browser)
        task = asyncio.create_task(call)
        await ready.wait()
        task.cancel()

    asyncio.run(run())
    printed, given = opened
    address, _, token = printed.partition("#token=")
    assert given.startswith(f"{address}#code=")
    assert token not in given


# --- Serving ------------------------------------------------------------------------------------


def test_the_address_has_the_token_in_its_fragment_and_a_port_that_is_free(pages: Pages) -> None:
    taken = bind("127.0.0.1", 0)
    taken.listen()
    port = taken.getsockname()[1]
    addresses: list[str] = []

    async def run() -> int:
        ready = asyncio.Event()

        def on_ready(address: str) -> None:
            addresses.append(address)
            ready.set()

        task = asyncio.create_task(serve(pages, port=port, on_ready=on_ready))
        await ready.wait()
        address, _, token = addresses[0].partition("#token=")
        async with ClientSession() as session:
            headers = {"Authorization": f"Bearer {token}"}
            async with session.get(f"{address}api/runs", headers=headers) as response:
                status = response.status
        task.cancel()
        return status

    assert asyncio.run(run()) == 200
    taken.close()
    address, _, token = addresses[0].partition("#token=")
    assert URL(address).port != port
    assert URL(address).host == "127.0.0.1"
    assert len(token) == 24


def test_where_no_port_is_free_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: socket.socket, address: Any) -> None:
        raise OSError("in use")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(OSError, match="no port from 8765 to 8784 is free"):
        bind("127.0.0.1", 8765)
