"""A chat-completions server in a process of its own, which answers each prompt by its last word.

Which faults it has is a function of the prompt and of how often it came (`Faults`).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torture.children import Child

Handle = Callable[[bytes, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bool]]
"""Answers a request with this body; whether the connection stays open."""
START_SECONDS = 30.0


def completion(text: str, **changes: Any) -> dict[str, Any]:
    """A reply that says this."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": "stop",
    }
    usage = {"prompt_tokens": 8, "completion_tokens": 2, "total_tokens": 10}
    reply = {"id": "c", "object": "chat.completion", "created": 0, "model": "m"}
    return {**reply, "choices": [choice], "usage": usage, **changes}


def last_word(body: bytes) -> str:
    """The last word of the last message of a request."""
    return str(json.loads(body)["messages"][-1]["content"]).split()[-1]


def http(body: bytes, status: str = "200 OK", headers: str = "") -> bytes:
    """A whole response."""
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{headers}"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def answer_word(
    body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> bool:
    """Answer with the last word, after a moment."""
    await asyncio.sleep(0.005)
    writer.write(http(json.dumps(completion(last_word(body))).encode()))
    return True


async def _serve(handle: Handle, port_file: Path) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = head.decode("latin-1").lower().split("\r\n")
                sizes = [line[15:] for line in lines if line.startswith("content-length:")]
                body = await reader.readexactly(int(sizes[0]) if sizes else 0)
                if not await handle(body, reader, writer):
                    break
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, backlog=2048)
    port_file.with_suffix(".tmp").write_text(str(server.sockets[0].getsockname()[1]))
    port_file.with_suffix(".tmp").rename(port_file)
    parent = os.getppid()
    while os.getppid() == parent:  # it does not outlive who started it
        await asyncio.sleep(0.5)


@contextmanager
def serving(folder: Path, handle: Handle = answer_word) -> Iterator[str]:
    """The address of a server, while it runs."""
    folder.mkdir(parents=True, exist_ok=True)
    port_file = folder / "port"
    port_file.unlink(missing_ok=True)
    child = Child(lambda: asyncio.run(_serve(handle, port_file)), folder)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not port_file.exists():
            if time.monotonic() > deadline:
                raise RuntimeError(f"the server did not start: {child.wait(0).explain()}")
            time.sleep(0.01)
        yield f"http://127.0.0.1:{port_file.read_text()}/v1"
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait(10)
