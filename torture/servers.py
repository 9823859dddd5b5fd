"""Servers that do not do what they should: each item gets a clear error, or a valid answer.

The model's name says how the server behaves. Nothing that it sends may make a run hang, fill the
memory, end in a traceback, or get the key to anybody else, to the disk or into the output.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import re
import zlib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import Any

from torture import evals
from torture.answering import completion, http, serving
from torture.children import run_child
from torture.kills import heldout
from torture.trials import Finding, Journal, Trial, scratch

PART, CASE = "servers", "a server that misbehaves in its own way, 3 items"
KEY = "sk-torture-0123456789abcdefghij/ABC"
ITEMS = 3
TIMEOUT = 4.0
HANG_SECONDS = 120.0
PEAK_MB = 900.0
INTERNAL = re.compile(
    r"(Attribute|Key|Type|Index|Value|Recursion|Overflow|UnicodeDecode|Assertion|Memory)Error\b"
)
"""Names of exceptions that say something to programmers only, at the beginning of an error."""
WORDS = {f"word{i}" for i in range(ITEMS)}

Behave = Callable[[str, asyncio.StreamWriter], Awaitable[bool]]


# --- What servers do ----------------------------------------------------------------------------


def says(make: Callable[[str], bytes], *, stays: bool = True) -> Behave:
    """A server that writes these bytes; `make` gets the word that is asked for."""

    async def behave(word: str, writer: asyncio.StreamWriter) -> bool:
        writer.write(make(word))
        return stays

    return behave


def status(line: str, headers: str = "", body: bytes = b'{"error": {"message": "no"}}') -> Behave:
    return says(lambda word: http(body, line, headers))


def json_body(change: Callable[[dict[str, Any], str], Any]) -> Behave:
    """A completion with a change."""

    def make(word: str) -> bytes:
        reply = completion(word)
        changed = change(reply, word)
        return http(json.dumps(reply if changed is None else changed).encode())

    return says(make)


def raw_body(body: bytes, headers: str = "") -> Behave:
    return says(lambda word: http(body, headers=headers))


def message(**fields: Any) -> Behave:
    return json_body(lambda reply, word: reply["choices"][0]["message"].update(fields))


def choice(**fields: Any) -> Behave:
    return json_body(lambda reply, word: reply["choices"][0].update(fields))


def reply_with(**fields: Any) -> Behave:
    return json_body(lambda reply, word: reply.update(fields))


def events(make: Callable[[str], list[Any]], *, end: bytes = b"\n\n", done: bool = True) -> Behave:
    """A stream of events, each a value or bytes."""

    def write(word: str) -> bytes:
        lines = [
            e if isinstance(e, bytes) else b"data: " + json.dumps(e).encode() for e in make(word)
        ]
        lines += [b"data: [DONE]"] if done else []
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
        return head + b"".join(line + end for line in lines)

    return says(write, stays=False)


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def zipped(body: bytes) -> Behave:
    return raw_body(body, "content-encoding: gzip\r\n")


@cache
def bomb() -> bytes:
    """A gigabyte of spaces, as gzip."""
    pack = zlib.compressobj(9, wbits=31)
    return b"".join([*(pack.compress(b" " * 2**20) for _ in range(1000)), pack.flush()])


CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"


def endless(head: bytes, piece: bytes, pause: float = 0.0) -> Behave:
    async def behave(word: str, writer: asyncio.StreamWriter) -> bool:
        writer.write(head)
        while True:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause)

    return behave


async def never(word: str, writer: asyncio.StreamWriter) -> bool:
    await asyncio.sleep(3600)
    return False


async def reset(word: str, writer: asyncio.StreamWriter) -> bool:
    writer.transport.abort()
    return False


async def slow(word: str, writer: asyncio.StreamWriter) -> bool:
    for byte in http(json.dumps(completion(word)).encode()):
        writer.write(bytes([byte]))
        await asyncio.sleep(0.001)
    return True


async def reset_in_body(word: str, writer: asyncio.StreamWriter) -> bool:
    writer.write(http(json.dumps(completion(word)).encode())[:-20])
    await writer.drain()
    await asyncio.sleep(0.05)
    writer.transport.abort()
    return False


def half(word: str) -> bytes:
    whole = http(json.dumps(completion(word)).encode())
    return whole[: len(whole) - 30]


def escape(text: str) -> str:
    return "".join(f"\\u{ord(c):04x}" for c in text)


def good_gzip(word: str) -> bytes:
    body = gzip.compress(json.dumps(completion(word)).encode())
    return http(body, headers="content-encoding: gzip\r\n")


def parts(word: str) -> list[Any]:
    return [delta(content=word[:2]), delta(content=word[2:]), delta("stop")]


def with_length(value: str) -> Behave:
    return says(
        lambda word: (
            f"HTTP/1.1 200 OK\r\ncontent-length: {value}\r\n\r\n".encode()
            + json.dumps(completion(word)).encode()
        ),
        stays=False,
    )


def call(**fields: Any) -> list[dict[str, Any]]:
    return [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}", **fields}}
    ]


def redirect(code: int) -> Behave:
    return status(f"{code} Moved", "location: THIEF/steal\r\n")


_OF_STATUS = (
    *(400, 401, 402, 403, 404, 405, 408, 409, 410, 413, 418, 422, 425, 429, 431, 451),
    *(500, 501, 502, 503, 504, 520, 524, 529, 599, 204, 206, 304),
)
SERVERS: dict[str, Behave] = {
    **{f"status-{code}": status(f"{code} Status") for code in _OF_STATUS},
    **{f"redirect-{code}": redirect(code) for code in (301, 302, 303, 307, 308)},
    "status-999": status("999 Unknown"),
    "status-none": says(lambda word: b"HTTP/1.1\r\n\r\n", stays=False),
    "status-continue": says(lambda word: b"HTTP/1.1 100 Continue\r\n\r\n" + good_gzip(word)),
    "status-endless-100": endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "status-switching": status("101 Switching Protocols", "upgrade: x\r\nconnection: upgrade\r\n"),
    **{
        f"retry-after-{value[:12].strip()}": status("429 Later", f"retry-after: {value}\r\n")
        for value in (
            "nan",
            "inf",
            "-5",
            "1e9",
            "soon",
            "Wed, 21 Oct 2015 07:28:00 GMT",
            "9" * 5000,
        )
    },
    # Connections.
    "closes": says(lambda word: b"", stays=False),
    "resets": reset,
    "resets-in-body": reset_in_body,
    "never-answers": never,
    "half-a-head": says(lambda word: b"HTTP/1.1 200 OK\r\ncontent-le", stays=False),
    "half-a-body": says(half, stays=False),
    "slow-bytes": slow,
    "no-http": says(lambda word: b"SSH-2.0-OpenSSH_9.6\r\n", stays=False),
    "binary": says(lambda word: bytes(range(256)) * 4, stays=False),
    "http-0.9": says(lambda word: b'{"choices": []}', stays=False),
    "key-as-status": says(lambda word: f"HTTP/1.1 200 {KEY}\r\n\r\n".encode(), stays=False),
    "key-as-no-http": says(lambda word: f"{KEY} {KEY}\r\n\r\n".encode(), stays=False),
    "header-of-1-mb": status("200 OK", f"x-long: {'x' * 2**20}\r\n"),
    "header-of-nul": status("200 OK", "x-bad: a\0b\r\n"),
    "headers-without-end": endless(b"HTTP/1.1 200 OK\r\n", b"x-a: b\r\n"),
    "length-too-long": with_length("100000"),
    "length-too-short": with_length("20"),
    "length-negative": with_length("-1"),
    "length-no-number": with_length("many"),
    "length-twice": with_length("20\r\ncontent-length: 30"),
    "length-of-exabytes": with_length("9" * 18),
    "chunks-without-end": endless(CHUNKED, b"10000\r\n" + b"x" * 0x10000 + b"\r\n"),
    "chunks-of-spaces": endless(CHUNKED, b"1\r\n \r\n", 0.01),
    "chunks-bad": says(lambda word: CHUNKED + b"zz\r\nx\r\n", stays=False),
    "chunks-huge": says(lambda word: CHUNKED + b"f" * 15 + b"\r\nx", stays=False),
    # Bodies.
    "body-empty": raw_body(b""),
    "body-null": raw_body(b"null"),
    "body-list": raw_body(b"[]"),
    "body-text": raw_body(b'"hello"'),
    "body-html": raw_body(b"<html><script>alert(1)</script></html>"),
    "body-torn": raw_body(b'{"choices": [{"message": {"con'),
    "body-nan": raw_body(b'{"choices": NaN}'),
    "body-deep": raw_body(b"[" * 100_000),
    "body-deep-choice": raw_body(b'{"choices": ' + b'{"a":' * 50_000),
    "body-bom": says(lambda w: http(b"\xef\xbb\xbf" + json.dumps(completion(w)).encode())),
    "body-utf-16": says(lambda w: http(json.dumps(completion(w)).encode("utf-16"))),
    "body-not-utf-8": raw_body(b'{"choices": [{"message": {"content": "\xff\xfe"}}]}'),
    "body-of-65-mb": raw_body(b'{"x": "' + b"x" * 65_000_000 + b'"}'),
    "body-numbers": raw_body(b'{"choices": ' + b"1" * 5000 + b"}"),
    "choices-missing": reply_with(choices=None),
    "choices-empty": reply_with(choices=[]),
    "choices-dict": reply_with(choices={"0": 1}),
    "choices-null": reply_with(choices=[None]),
    "choices-twice": json_body(lambda r, w: r["choices"].append(dict(r["choices"][0], index=1))),
    "choices-100000": json_body(lambda r, w: r["choices"].extend([r["choices"][0]] * 100_000)),
    "message-null": choice(message=None),
    "message-text": choice(message="hello"),
    "content-null": message(content=None),
    "content-number": message(content=5),
    "content-parts": message(content=[{"type": "text", "text": "word0"}, {"type": 5}, {}]),
    "content-part-null": message(content=[None]),
    "content-surrogate": raw_body(b'{"choices": [{"message": {"content": "\\ud800"}}]}'),
    "content-controls": message(content="\x00\x1b]0;owned\x07\x1b[2J\u202e"),
    "content-of-10-mb": message(content="x" * 10_000_000),
    "calls-wrong": message(tool_calls=[{"function": {"name": 5}}]),
    "calls-unasked": message(tool_calls=call()),
    "calls-deep": message(tool_calls=call(arguments="[" * 100_000)),
    "calls-no-function": message(tool_calls=[{}]),
    "reasoning-number": message(reasoning_content=7),
    "finish-number": choice(finish_reason=7),
    "finish-unknown": choice(finish_reason="because"),
    "finish-error": choice(finish_reason="error"),
    "finish-filter": choice(finish_reason="content_filter"),
    "usage-negative": reply_with(usage={"prompt_tokens": -1, "completion_tokens": 5}),
    "usage-huge": reply_with(usage={"prompt_tokens": 2**63, "completion_tokens": 2**64}),
    "usage-text": reply_with(usage={"prompt_tokens": "8", "completion_tokens": "2"}),
    "usage-null": reply_with(usage=None),
    "usage-fraction": reply_with(usage={"prompt_tokens": 8.5, "completion_tokens": 2}),
    "error-with-200": raw_body(b'{"error": {"message": "no", "code": 503}}'),
    "error-text": raw_body(b'{"error": "no"}'),
    "error-number": raw_body(b'{"error": 5}'),
    "error-code-of-5000-digits": raw_body(b'{"error": {"code": "' + b"9" * 5000 + b'"}}'),
    "error-code-superscript": raw_body('{"error": {"code": "²"}}'.encode()),
    "error-message-list": status("400 No", body=b'{"error": {"message": [1, {}]}}'),
    "error-of-1-mb": status("400 No", body=b'{"error": {"message": "' + b"x" * 2**20 + b'"}}'),
    # Compression.
    "gzip": says(good_gzip),
    "gzip-bomb": says(lambda word: http(bomb(), headers="content-encoding: gzip\r\n")),
    "gzip-torn": says(
        lambda word: http(
            good_gzip(word).partition(b"\r\n\r\n")[2][:-12], headers="content-encoding: gzip\r\n"
        )
    ),
    "gzip-of-nothing": zipped(b""),
    "gzip-not": zipped(b"this is no gzip"),
    "gzip-twice": zipped(gzip.compress(gzip.compress(b"{}"))),
    "brotli": raw_body(b"\x0b\x02\x80", "content-encoding: br\r\n"),
    "encoding-unknown": raw_body(b"{}", "content-encoding: gzip, gzip\r\n"),
    # The key.
    "key-in-answer": message(content=f"your key is {KEY}"),
    "key-in-error": status(
        "400 No", body=json.dumps({"error": {"message": f"bad {KEY}"}}).encode()
    ),
    "key-escaped": raw_body(
        f'{{"choices": [{{"message": {{"content": "{escape(KEY)}"}}}}]}}'.encode()
    ),
    "key-slash-escaped": raw_body(
        '{"choices": [{"message": {"content": "KEY"}}]}'.replace(
            "KEY", KEY.replace("/", "\\/")
        ).encode()
    ),
    "key-in-call": message(tool_calls=call(arguments=json.dumps({"a": KEY}))),
    "key-in-reasoning": message(reasoning_content=KEY),
    "key-in-finish": choice(finish_reason=KEY),
    "key-in-401": status("401 No", body=f"wrong key {KEY}".encode()),
    "key-in-encoding": raw_body(b"{}", f"content-encoding: {KEY}\r\n"),
    "key-in-retry-after": status("429 No", f"retry-after: {KEY}\r\n"),
    "key-in-location": status("302 No", f"location: http://127.0.0.1:9/{KEY}\r\n"),
    "key-in-call-id": message(tool_calls=[{**call()[0], "id": KEY}]),
    # Streams.
    "events": events(parts),
    "events-crlf": events(parts, end=b"\r\n\r\n"),
    "events-cr": events(parts, end=b"\r\r"),
    "events-no-done": events(parts, done=False),
    "events-no-finish": events(lambda w: [delta(content=w)], done=False),
    "events-torn": events(lambda w: [delta(content=w), b'data: {"choices": [{"de'], done=False),
    "events-error": events(lambda w: [delta(content=w), {"error": {"message": "no"}}]),
    "events-error-number": events(lambda w: [{"error": 5}]),
    "events-wrong-types": events(
        lambda w: [{"choices": [{"delta": {"content": 5}}]}, delta("stop")]
    ),
    "events-delta-null": events(lambda w: [{"choices": [{"delta": None}]}, *parts(w)]),
    "events-choices-dict": events(lambda w: [{"choices": {"a": 1}}]),
    "events-no-json": events(lambda w: [b"data: hello"]),
    "events-comments": events(lambda w: [b": still here", *parts(w)]),
    "events-calls-wrong": events(lambda w: [delta("stop", tool_calls=[5])]),
    "events-call-index-text": events(
        lambda w: [delta(tool_calls=[{"index": "a"}]), delta("stop", tool_calls=[{"index": 0}])]
    ),
    "events-key-in-parts": events(
        lambda w: [delta(content=KEY[:9]), delta("stop", content=KEY[9:])]
    ),
    "events-without-end": endless(
        CHUNKED, b"27\r\n" + b'data: {"choices": [{"delta": {}}]}'.ljust(37) + b"\n\n\r\n"
    ),
    "events-one-long-line": events(lambda w: [b"data: " + b"x" * 65_000_000]),
}


class Misbehaving:
    """Answers as the model's name says; redirects lead to `thief`."""

    def __init__(self, thief: str) -> None:
        self._thief = thief.encode()

    async def __call__(
        self, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        request = json.loads(body)
        word = str(request["messages"][-1]["content"]).split()[-1]
        behave = SERVERS[request["model"]]
        redirects = request["model"].startswith("redirect-")
        return await behave(word, _Redirecting(writer, self._thief) if redirects else writer)  # type: ignore[arg-type]


class _Redirecting:
    def __init__(self, writer: asyncio.StreamWriter, thief: bytes) -> None:
        self._writer, self._thief = writer, thief

    def write(self, data: bytes) -> None:
        self._writer.write(data.replace(b"THIEF", self._thief))


class Thief:
    """Writes down that somebody came."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def __call__(
        self, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        self._path.touch()
        writer.write(http(json.dumps(completion("stolen")).encode()))
        return False


# --- Trials -------------------------------------------------------------------------------------


def make_trials(scale: float, journal: Journal) -> Iterator[Trial]:
    """Yield a trial per server."""
    names = list(SERVERS)[: max(1, round(len(SERVERS) * scale))]
    with scratch("servers") as folder, ExitStack() as stack:

        @cache
        def start() -> str:
            visited = folder / "visited"
            thief = stack.enter_context(serving(folder / "thief", Thief(visited)))
            return stack.enter_context(serving(folder / "server", Misbehaving(thief)))

        for number, name in enumerate(names):
            yield Trial(PART, CASE, number, partial(try_server, name, folder, start))


def try_server(name: str, folder: Path, start: Callable[[], str]) -> Finding:
    """Run an eval against a server, and look at what is left of it."""
    url, finding = start(), Finding()
    place = folder / name
    place.mkdir()
    (place / "eval.py").write_text(Path(evals.__file__).read_text())

    def run() -> int:
        os.environ["OPENAI_API_KEY"] = KEY
        settings = {"retries": 1, "timeout": TIMEOUT, "max_error_rate": 1, "repeats": 1}
        given = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        model = f"openai:{name}@{url}"
        code = heldout("run", "eval.py", "--model", model, "--limit", str(ITEMS), "--cache", *given)
        heldout("show", "eval", "--failures", str(ITEMS))
        return code

    cache_folder = {"HELDOUT_CACHE": str(place / "cache"), "COLUMNS": "100"}
    ended = run_child(run, place, seconds=HANG_SECONDS, environment=cache_folder)
    if ended.hung:
        finding.add("hang", f"{name}: {ended.explain()}")
    elif "Traceback" in ended.err or ended.code not in (0, 2, 4):
        finding.add("traceback", f"{name}: {ended.explain()}")
    if ended.peak_mb > PEAK_MB:
        finding.add("other", f"{name}: {ended.peak_mb:.0f} MB of memory")
    if (folder / "visited").exists():
        (folder / "visited").unlink()
        finding.add("other", f"{name}: the redirect was followed")
    finding.figures = {"peak MB": ended.peak_mb}
    _check_items(name, place, finding, failed=ended.code != 0)
    _check_key(name, place, finding)
    return finding


def _check_items(name: str, place: Path, finding: Finding, *, failed: bool) -> None:
    journals = [*place.glob("outputs/evals/eval/*/results.jsonl")]
    records = [json.loads(line) for path in journals for line in path.read_bytes().splitlines()[1:]]
    ids = [record["sample"]["id"] for record in records]
    if not failed and len(set(ids)) < ITEMS:
        finding.add("lost", f"{name}: there are only {ids}")
    if len(set(ids)) < len(ids):
        finding.add("doubled", f"{name}: there are {ids}")
    for record in records:
        error = record.get("error")
        if error is not None and (not error.strip() or INTERNAL.match(error.rpartition(": ")[0])):
            finding.add("other", f"{name}: the error is not clear: {error[:300]}")
        if error is None:
            finding.marks.append("items with an answer")
        else:
            finding.marks.append("items with an error")


def _check_key(name: str, place: Path, finding: Finding) -> None:
    """Find the key, or most of it, in any form that is easily read."""
    for path in place.rglob("*"):
        if path.is_file() and path.suffix != ".py":
            content = path.read_bytes()
            plain = re.sub(rb"\\+u00([0-9a-fA-F]{2})", lambda m: bytes([int(m[1], 16)]), content)
            if KEY[:24].encode() in plain.replace(b"\\/", b"/"):
                finding.add("other", f"{name}: the key is in {path.name}")
