"""An OpenAI-compatible server on loopback that misbehaves on request.

Real sockets, raw asyncio streams in a thread of its own: what is to go wrong is decided request
by request, by a function from the request to an `Action`.

    with FaultyServer() as server:
        server.script(status(503), drop("mid_body"), answer("four"))
        ... POST server.url + "/chat/completions" ...
        assert server.requests[0].headers["authorization"]
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self

import pytest

KEY = "sk-test-0123456789abcdefghij"


def nothing_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that is none, no proxy, no other address."""
    outside = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
    for name in (*outside, "OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


@dataclass(frozen=True)
class Request:
    method: str
    target: str
    headers: dict[str, str]
    raw: bytes
    connection: int
    """Which connection it came over, counted from 1."""
    attempt: int
    """How often this same text had been asked before."""

    @property
    def body(self) -> dict[str, Any]:
        return json.loads(self.raw)

    @property
    def text(self) -> str:
        """What the last message says."""
        return _text(self.raw)


Action = Callable[[Request, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bool]]
"""Answers, somehow; True keeps the connection."""


# --- What a server may do -----------------------------------------------------------------------


def status(code: int, body: Any = "", *, headers: dict[str, str] | None = None) -> Action:
    """That status, with that body: bytes or text as they are, anything else as JSON."""

    async def act(
        request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        given = body(request) if callable(body) else body
        content = given if isinstance(given, bytes) else _as_bytes(given)
        writer.write(_head(code, {"content-length": str(len(content)), **(headers or {})}))
        writer.write(content)
        await writer.drain()
        return True

    return act


def answer(
    content: str | Callable[[Request], str] | None = "ok",
    *,
    finish_reason: str | None = "stop",
    usage: dict[str, Any] | None = None,
    **message: Any,
) -> Action:
    """A proper chat completion; further fields go into its message."""

    def body(request: Request) -> dict[str, Any]:
        text = content(request) if callable(content) else content
        choice = {
            "index": 0,
            "finish_reason": finish_reason,
            "message": {"role": "assistant", "content": text, **message},
        }
        made = {"id": "x", "object": "chat.completion", "model": "m", "choices": [choice]}
        return made if usage is None else {**made, "usage": usage}

    return status(200, body)


def events(*data: Any, name: bool = False, done: bool = False) -> bytes:
    """Server-sent events: each as JSON, bytes as they are; `name` puts its type on a line."""
    lines: list[bytes] = []
    for event in data:
        if name:
            lines.append(b"event: " + event["type"].encode())
        lines += [b"data: " + (event if isinstance(event, bytes) else _as_bytes(event)), b""]
    return b"\n".join([*lines, *([b"data: [DONE]", b""] if done else []), b""])


def echo_key(code: int) -> Action:
    """An error that quotes the key it was sent, as some gateways do."""

    def body(request: Request) -> dict[str, Any]:
        key = request.headers.get("authorization") or request.headers.get("x-api-key")
        return {"error": {"message": f"bad key: {key}"}}

    return status(code, body)


def raw(content: bytes, *, keep: bool = False) -> Action:
    """These bytes, HTTP or not, and then the end of the connection unless kept."""

    async def act(
        request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        writer.write(content)
        await writer.drain()
        return keep

    return act


def drop(when: str) -> Action:
    """Breaks off: "before_headers", "in_headers", "after_headers", "mid_body", "mid_chunks"."""
    half = json.dumps({"choices": [{"message": {"content": "half"}}]}).encode()
    head = _head(200, {"content-length": str(2 * len(half))})
    sent = {
        "before_headers": b"",
        "in_headers": head[:-10],
        "after_headers": head,
        "mid_body": head + half,
        "mid_chunks": _head(200, {"transfer-encoding": "chunked"}) + b"%x\r\n" % 99 + half,
    }
    return raw(sent[when])


def hang(when: str = "before_headers") -> Action:
    """Takes the request and says nothing more, until the client goes away."""

    async def act(
        request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        if when == "after_headers":
            writer.write(_head(200, {"content-length": "1000"}) + b"{")
            await writer.drain()
        while await reader.read(65536):
            pass
        return False

    return act


def endless(
    chunk: bytes = b" " * 65536, *, pause: float = 0.0, sent: list[int] | None = None
) -> Action:
    """A body without end; `sent` notes the size of each piece that went out."""

    async def act(
        request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        writer.write(_head(200, {"transfer-encoding": "chunked"}))
        while True:  # until the client has closed, which `drain` raises
            writer.write(b"%x\r\n" % len(chunk) + chunk + b"\r\n")
            await writer.drain()
            if sent is not None:
                sent.append(len(chunk))
            await asyncio.sleep(pause)

    return act


def endless_headers() -> Action:
    async def act(
        request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            writer.write(b"x-more: " + b"y" * 1000 + b"\r\n")
            await writer.drain()
            await asyncio.sleep(0)

    return act


def together(number: int, then: Action) -> Action:
    """Holds requests back until so many are under way at once."""
    barrier = asyncio.Barrier(number)

    async def act(
        request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        await barrier.wait()
        return await then(request, reader, writer)

    return act


# --- The server ---------------------------------------------------------------------------------


class FaultyServer:
    def __init__(self) -> None:
        self.behave: Callable[[Request], Action] = lambda request: answer()
        self.requests: list[Request] = []
        self.connections = 0
        self.url = ""
        self._asked: Counter[str] = Counter()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="faulty-server", daemon=True)

    def script(self, *actions: Action, then: Action | None = None) -> None:
        """These, one a request; afterwards `then`, or the last of them again."""
        left = list(actions)
        last = then or actions[-1]
        self.behave = lambda request: left.pop(0) if left else last

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10), "the server did not start"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        assert not self._thread.is_alive(), "the server did not stop"

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        handlers: set[asyncio.Task[None]] = set()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.connections += 1
            task = asyncio.create_task(self._handle(reader, writer, self.connections))
            handlers.add(task)
            task.add_done_callback(handlers.discard)

        server = await asyncio.start_server(accept, "127.0.0.1", 0, backlog=1024)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        self._ready.set()
        await self._stop.wait()
        server.close()
        left = [*handlers]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _handle(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int
    ) -> None:
        try:
            while (request := await self._next(reader, connection)) is not None:
                if not await self.behave(request)(request, reader, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has gone, as it may
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _next(self, reader: asyncio.StreamReader, connection: int) -> Request | None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return None
        first, *rest = head.decode("latin-1").rstrip("\r\n").split("\r\n")
        method, target, _ = first.split(" ", 2)
        headers = {k.lower(): v.strip() for k, v in (line.split(":", 1) for line in rest)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        text = _text(body)
        request = Request(method, target, headers, body, connection, self._asked[text])
        self._asked[text] += 1
        self.requests.append(request)
        return request


@contextmanager
def closed_port() -> Iterator[int]:
    """A port that refuses: taken, so that nobody else gets it, and not listened on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def _text(body: bytes) -> str:
    try:
        content = json.loads(body)["messages"][-1]["content"]
    except (ValueError, KeyError, IndexError, TypeError):
        return ""
    return content if isinstance(content, str) else json.dumps(content)


def _head(code: int, headers: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {code} Whatever", "content-type: application/json"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def _as_bytes(body: Any) -> bytes:
    return body.encode() if isinstance(body, str) else json.dumps(body).encode()
