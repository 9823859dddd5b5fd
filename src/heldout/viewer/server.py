"""The server of `heldout view`: loopback, a token for every answer, read only but for notes.

This is the only file that knows HTTP. `pages.Pages` computes what is sent, in threads, two at a
time. No request text is ever joined to a path: runs are named by keys of a scan, assets are a dict
that is read at the start.
"""

from __future__ import annotations

import asyncio
import hmac
import inspect
import logging
import secrets
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Annotated, Any

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from multidict import MultiMapping

from heldout.errors import UNREADABLE, HeldoutError, RunReplaced
from heldout.viewer.assets import read_assets
from heldout.viewer.filter import BadFilter
from heldout.viewer.item_lines import RunChanged
from heldout.viewer.note_page import NoteConflict
from heldout.viewer.pages import NotComparable, Pages, UnknownRun
from heldout.viewer.search import abandoned

log = logging.getLogger("heldout")
http_log = logging.getLogger("heldout.http")
http_log.addFilter(
    # A request that cannot be read is its client's mistake, which is told so: no traceback here.
    lambda record: (
        not isinstance(
            (record.exc_info or (None, None))[1], HttpProcessingError | web.RequestPayloadError
        )
    )
)

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
NOTE = "/api/note"
LARGEST_REQUEST = 2**16
"""Bytes of a request's body, which only a note has."""
POLL_SECONDS = 1.0
KEEP_ALIVE_SECONDS = 15.0
TRIES = 4
"""How often a run is read that is written to at the same time."""
CODE_SECONDS = 120.0
"""How long a browser may take to start."""


class Viewer:
    """The server.

    Args:
        pages: What there is to see.
        token: What requests have to bring; None for no token.
        hosts: Names that the Host header may have.
        code: What the token is given for, once.
    """

    def __init__(
        self, pages: Pages, *, token: str | None, hosts: frozenset[str], code: str | None = None
    ) -> None:
        self._pages, self._token, self._hosts, self._code = pages, token, hosts, code
        self._code_ends = time.monotonic() + CODE_SECONDS
        self._code_is_used = False
        self._assets = read_assets()
        self._workers = asyncio.Semaphore(2)

    def app(self) -> web.Application:
        """Make the application that aiohttp runs."""
        app = web.Application(middlewares=[self._guard], client_max_size=LARGEST_REQUEST)
        app.router.add_get("/api/token", self._exchange)
        app.router.add_get("/api/events", self._events)
        app.router.add_post(NOTE, self._write_note)
        app.router.add_get("/api/{page}", self._answer)
        app.router.add_get("/{path:.*}", self._asset)
        return app

    def runner(self) -> web.AppRunner:
        """Make what runs it: a request that its client gave up is cancelled."""
        return web.AppRunner(
            self.app(),
            access_log=None,
            logger=http_log,
            shutdown_timeout=1.0,
            handler_cancellation=True,
        )

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        response: web.StreamResponse
        try:
            response = self._refuse(request) or await handler(request)
        except web.HTTPException as problem:
            response = _error(problem.status, problem.reason)
        except web.RequestPayloadError:
            response = _error(400, "the request's body cannot be read")
        except Exception:
            log.exception("heldout view could not answer %s", request.path)
            response = _error(500, "heldout made a mistake; the terminal says which")
        if not response.prepared:
            response.headers.update(HEADERS)
        return response

    def _refuse(self, request: web.Request) -> web.Response | None:
        takes_notes = self._pages.takes_notes and self._token is not None
        is_note = takes_notes and request.method == "POST" and request.path == NOTE
        if request.method not in ("GET", "HEAD") and not is_note:
            return _error(405, "nothing can be changed here")
        if request.headers.get("Host", "").lower() not in self._hosts:
            return _error(421, "this server answers to its own address only")
        if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            return _error(403, "requests of other sites are not answered")
        if is_note and not _is_own_request(request):
            return _error(403, "notes are written by this server's own page alone")
        if not request.path.startswith("/api/") or self._token is None:
            return None
        if request.path == "/api/token":  # which asks for the code instead
            return None
        if _is_authorized(request, "Bearer", self._token):
            return None
        return _error(
            401, "the token is missing or old", "Open the address that `heldout view` printed."
        )

    async def _exchange(self, request: web.Request) -> web.Response:
        """Exchange the code for the token, once.

        Other users can see the code in the browser's arguments. If somebody was faster than the
        browser, the second use of the code revokes the token.
        """
        if (
            self._code is None
            or not _is_authorized(request, "Code", self._code)
            or time.monotonic() > self._code_ends
        ):
            return _error(401, "the link is old", "Open the address that `heldout view` printed.")
        if self._code_is_used:
            self._token = secrets.token_urlsafe(18)
            log.warning(
                "the link that was given to the browser was used twice: someone else may have "
                "read it, so nobody is answered any more. Start `heldout view --no-browser`, and "
                "open the address it prints"
            )
            return _error(401, "the link was used before", "The terminal says what to do.")
        self._code_is_used = True
        return _respond(msgspec.json.encode({"token": self._token}))

    async def _asset(self, request: web.Request) -> web.Response:
        asset = self._assets.get(request.match_info["path"] or "index.html")
        if asset is None:
            return _error(404, "there is no such page")
        return _respond(asset.body, asset.content_type)

    async def _answer(self, request: web.Request) -> web.Response:
        if request.match_info["page"] not in PAGES:
            return _error(404, "there is no such request")
        method = getattr(self._pages, request.match_info["page"].replace("-", "_"))
        try:
            arguments = _read_parameters(method, request.query)
        except ValueError as problem:
            return _error(400, f"a parameter is wrong: {problem}")
        return await self._call(request, method, arguments)

    async def _write_note(self, request: web.Request) -> web.Response:
        """Write a note: the one thing that a request can change."""
        try:
            note = msgspec.json.decode(await request.read(), type=_NoteRequest)
        except UNREADABLE as problem:
            return _error(400, f"this is no note: {problem}")
        arguments = msgspec.structs.asdict(note) | {"was": (note.was.label, note.was.remark)}
        return await self._call(request, self._pages.write_note, arguments)

    async def _call(
        self, request: web.Request, method: Callable[..., Any], arguments: dict[str, Any]
    ) -> web.Response:
        try:
            body = await self._compute(method, arguments)
        except UnknownRun as problem:
            return _error(404, str(problem))
        except BadFilter as problem:
            return _error(400, str(problem), kind="filter", at=problem.at)
        except NoteConflict as problem:
            return _error(409, str(problem), kind="changed", answer=problem.answer)
        except NotComparable as problem:
            return _error(409, str(problem), kind="differs", kinds=problem.kinds)
        except HeldoutError as problem:
            return _error(422, str(problem))
        except OSError as problem:
            return _error(422, f"cannot read a file of the run: {problem.strerror}")
        if isinstance(body, bytes):  # an exported file, which the page saves
            return _respond(body, "application/octet-stream")
        return _respond(msgspec.json.encode(body))

    async def _compute(self, method: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        """Call a method in a thread; what it searches ends when the client has gone."""
        stop = threading.Event()
        async with self._workers:
            abandoned.set(stop)  # of this request, whose context the thread gets
            try:
                for _ in range(TRIES - 1):
                    with suppress(RunChanged, RunReplaced):
                        return await asyncio.to_thread(method, **arguments)
                return await asyncio.to_thread(method, **arguments)
            finally:
                stop.set()

    # --- Events ---

    async def _events(self, request: web.Request) -> web.StreamResponse:
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        response = web.StreamResponse(headers={**HEADERS, **headers, "X-Accel-Buffering": "no"})
        await response.prepare(request)
        names = request.query.getall("name", [])
        seen = request.headers.get("Last-Event-ID", "")
        quiet = 0.0
        try:
            while True:
                events, seen = await asyncio.to_thread(self._pages.events, names, seen)
                for name, data in events:
                    await response.write(_event(name, data, seen))
                quiet = 0.0 if events else quiet + POLL_SECONDS
                if quiet >= KEEP_ALIVE_SECONDS:
                    quiet = 0.0
                    await response.write(b": still here\n\n")
                await asyncio.sleep(POLL_SECONDS)
        except (ConnectionResetError, asyncio.CancelledError):
            pass  # the page was left
        except Exception:  # the answer has begun: its end is what the page sees, and comes back
            log.exception("heldout view could not follow %s", ", ".join(names) or "the runs")
        return response


class _NoteText(msgspec.Struct, forbid_unknown_fields=True):
    label: str
    remark: str


class _NoteRequest(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    id: str
    repeat: Annotated[int, msgspec.Meta(ge=0)]
    label: str
    remark: str
    was: _NoteText
    """What the page showed before it was changed there."""


def _is_authorized(request: web.Request, scheme: str, secret: str) -> bool:
    """Say whether a request brings a secret; its header may have any bytes."""
    given_scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    return given_scheme == scheme and hmac.compare_digest(
        given.encode("utf-8", "surrogateescape"), secret.encode()
    )


def _is_own_request(request: web.Request) -> bool:
    """Say whether a request comes from this server's page.

    A page of another site may send a form without asking, so the type is one that it may not.
    """
    own = f"{request.scheme}://{request.headers.get('Host', '')}"
    return request.headers.get("Origin") == own and request.content_type == "application/json"


def _event(name: str, data: Any, id: str) -> bytes:
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (
        id.encode(),
        name.encode(),
        msgspec.json.encode(data),
    )


def _error(status: int, message: str, hint: str = "", **more: Any) -> web.Response:
    return web.json_response(
        {"error": message, "hint": hint, **more},
        status=status,
        headers={"Cache-Control": "no-store"},
    )


def _respond(body: bytes, content_type: str = "application/json") -> web.Response:
    headers = {"Cache-Control": "no-store", "Vary": "Accept-Encoding"}
    response = web.Response(body=body, headers=headers, content_type=content_type, charset="utf-8")
    response.enable_compression()
    return response


# --- Requests -----------------------------------------------------------------------------------

PAGES = (
    *("runs", "run", "slices", "rows", "table-file", "position", "sample", "record"),
    *("compare", "pairs", "several", "curve", "curves", "curve-flips", "strip", "history"),
    *("notes", "export", "exported"),
)
"""Requests: methods of `Pages`, with their parameters by name."""
MOST_ROWS = 200


def _read_parameters(method: Callable[..., Any], query: MultiMapping[str]) -> dict[str, Any]:
    """Read the arguments of a method by their types; ValueError if a number is none."""
    arguments: dict[str, Any] = {}
    for name, parameter in inspect.signature(method, eval_str=True).parameters.items():
        values = query.getall(name, [])
        if parameter.annotation is str:
            arguments[name] = values[0] if values else ""
        elif parameter.annotation is int:
            number = int(values[0] or 0) if values else 0
            if not 0 <= number < 2**53:
                raise ValueError("numbers are from 0 on")
            arguments[name] = min(number, MOST_ROWS) if name == "limit" else number
        else:
            arguments[name] = values[:20]
    return arguments


# --- Serving ------------------------------------------------------------------------------------


def bind(host: str, port: int) -> socket.socket:
    """Bind to a port, or to the next one that is free; OSError if none of twenty is."""
    for candidate in range(port, port + 20):
        bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((host, candidate))
        except OSError:
            bound.close()
            continue
        return bound
    raise OSError(f"no port from {port} to {port + 19} is free on {host}; give another with --port")


async def serve(
    pages: Pages,
    *,
    host: str = "127.0.0.1",
    port: int = 8765,
    token: bool = True,
    allow_hosts: tuple[str, ...] = (),
    on_ready: Callable[[str], None],
    open_browser: Callable[[str], object] | None = None,
) -> None:
    """Serve until cancelled.

    Args:
        pages: What there is to see.
        host: Address to bind to.
        port: Port, or the first one to try.
        token: Whether requests need a token.
        allow_hosts: Further names that the Host header may have.
        on_ready: Called with the address to open.
        open_browser: Called with an address that opens it once, and may be seen by others.
    """
    bound = bind(host, port)
    actual = bound.getsockname()[1]
    names = {"127.0.0.1", "localhost", "[::1]", *allow_hosts}
    hosts = frozenset(f"{name}:{actual}".lower() for name in names) | {
        n.lower() for n in allow_hosts
    }
    secret = secrets.token_urlsafe(18) if token else None
    code = secrets.token_urlsafe(18) if token and open_browser else None
    viewer = Viewer(pages, token=secret, hosts=hosts, code=code)
    runner = viewer.runner()
    await runner.setup()
    site = web.SockSite(runner, bound)
    await site.start()
    shown = allow_hosts[0] if allow_hosts else f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{actual}/"
    on_ready(address + (f"#token={secret}" if secret else ""))
    threading.Thread(target=pages.warm_up, daemon=True).start()
    if open_browser is not None:
        open_browser(address + (f"#code={code}" if code else ""))
    try:
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
