"""A chat-completions server that answers every request with the same words, as fast as it can.

    python bench/server.py

Prints its port on standard output and serves until standard input ends, so that it cannot
outlive whoever started it.
"""

from __future__ import annotations

import asyncio
import sys

BODY = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":0,"model":"bench","choices":'
    b'[{"index":0,"message":{"role":"assistant","content":"Fifty."},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":8,"completion_tokens":2,"total_tokens":10}}'
)
ANSWER = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(BODY)
) + BODY
EVENTS = (
    b"data: "
    + BODY.replace(b'"message"', b'"delta"').replace(b".completion", b".completion.chunk")
    + b"\n\ndata: [DONE]\n\n"
)
STREAM = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n"
    % len(EVENTS)
) + EVENTS


class Server(asyncio.Protocol):
    """Reads just enough of HTTP to know where a request ends."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport, self.buffer = transport, b""

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = self.buffer[:end].lower()
            start = head.find(b"content-length:")
            size = int(head[start + 15 :].split(b"\r\n", 1)[0]) if start >= 0 else 0
            if len(self.buffer) < end + 4 + size:
                return
            body, self.buffer = self.buffer[end + 4 :][:size], self.buffer[end + 4 + size :]
            self.transport.write(STREAM if b'"stream":true' in body else ANSWER)


async def serve() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Server, "127.0.0.1", 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(serve())
