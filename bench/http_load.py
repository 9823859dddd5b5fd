"""Requests a second and CPU a request, 500 in flight, against a server that costs nothing.

heldout's HTTPEndpoint under asyncio and under trio, beside the openai package. (This file is not
called http.py, which would hide the standard library's module of that name.)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import anyio

from common import HERE, child, emit, middle, options, say

IN_FLIGHT = 500
QUESTION = "What is 25 + 25?"
ROUNDS = 3
CLIENTS = ("heldout-asyncio", "heldout-trio", "openai")

Ask = Callable[[], Awaitable[str]]


@contextmanager
def server() -> Iterator[str]:
    """Its address, while it runs."""
    command = [sys.executable, str(HERE / "server.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        process.stdin.close()


def heldout_client(url: str) -> tuple[Ask, Callable[[], Awaitable[None]]]:
    from heldout import Message, Sampling
    from heldout.models.http import HTTPEndpoint

    endpoint = HTTPEndpoint("bench", url, max_connections=IN_FLIGHT)
    messages, sampling = [Message("user", QUESTION)], Sampling()

    async def ask() -> str:
        return (await endpoint.complete(messages, sampling, ())).message.text

    return ask, endpoint.close


def openai_client(url: str) -> tuple[Ask, Callable[[], Awaitable[None]]]:
    import httpx2
    import openai

    limits = httpx2.Limits(max_connections=IN_FLIGHT, max_keepalive_connections=IN_FLIGHT)
    client = openai.AsyncOpenAI(
        base_url=url,
        api_key="none",
        http_client=openai.DefaultAsyncHttpxClient(limits=limits, timeout=None),
    )

    async def ask() -> str:
        answer = await client.chat.completions.create(
            model="bench", messages=[{"role": "user", "content": QUESTION}], temperature=0.0
        )
        return answer.choices[0].message.content or ""

    return ask, client.close


async def measure(client: str, url: str, count: int) -> dict[str, Any]:
    ask, close = (openai_client if client == "openai" else heldout_client)(url)

    async def run(requests: int) -> None:
        left = iter(range(requests))

        async def worker() -> None:
            for _ in left:
                if await ask() != "Fifty.":
                    sys.exit("wrong answer")

        async with anyio.create_task_group() as group:
            for _ in range(IN_FLIGHT):
                group.start_soon(worker)

    await run(2 * IN_FLIGHT)  # opens the connections, imports what is imported late
    wall, cpu = time.perf_counter(), time.process_time()
    await run(count)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    await close()
    return {"per_s": count / wall, "cpu_ms": 1000 * cpu / count}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--client", choices=CLIENTS, help="measure one alone")
    parser.add_argument("--url", help="the server it asks")
    args = parser.parse_args()
    count = 1000 if args.quick else 4000
    if args.client:
        backend = "trio" if args.client == "heldout-trio" else "asyncio"
        line = anyio.run(measure, args.client, args.url, count, backend=backend)
        print(json.dumps(line))
        return
    os.environ.pop("OPENAI_API_KEY", None)  # no header that only one of them would send
    rounds: dict[str, list[dict[str, Any]]] = {client: [] for client in CLIENTS}
    quick = ["--quick"] if args.quick else []
    with server() as url:
        for number in range(1 if args.quick else ROUNDS):
            for client in CLIENTS:
                say(f"http, {client}, {count:,} requests, round {number + 1}")
                command = [__file__, "--client", client, "--url", url, *quick]
                rounds[client].append(child(sys.executable, *command))
    base_rate = middle(rounds["heldout-asyncio"], "per_s")
    base_cpu = middle(rounds["heldout-asyncio"], "cpu_ms")
    names = {
        "heldout-asyncio": f"heldout, asyncio (aiohttp {version('aiohttp')})",
        "heldout-trio": "heldout, trio (aiohttp in a thread)",
        "openai": f"openai {version('openai')}, asyncio",
    }
    for client, name in names.items():
        rate, cpu = middle(rounds[client], "per_s"), middle(rounds[client], "cpu_ms")
        own = client == "heldout-asyncio"
        emit(f"{name}: requests a second", rate, "/s", ratio=None if own else rate / base_rate)
        emit(f"{name}: CPU a request", cpu, "ms", ratio=None if own else cpu / base_cpu)


if __name__ == "__main__":
    main()
