"""What a request to the policy server costs, beside the same agent asking a plain server.

The agent is a function in this process that leads a conversation over HTTP. The plain server is
aiohttp alone: it reads the request and answers with a constant. Rounds alternate, the best of each
count. heldout's time includes its whole eval: conversation, turn loop, score, journal, report.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from typing import Any

import aiohttp
from aiohttp import web

from common import emit, options
from heldout import EvalConfig, Message, Sample, evaluate
from heldout.environments.served import PolicyAccess, serve_policy

TURNS = 10


async def lead_conversation(access: PolicyAccess, sample: Sample) -> dict[str, Any]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": sample.input["question"]}]
    headers = {"Authorization": f"Bearer {access.api_key}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        for _ in range(TURNS):
            body = {"model": access.model, "messages": messages}
            async with session.post(f"{access.base_url}/chat/completions", json=body) as response:
                turn = (await response.json())["choices"][0]["message"]
            messages += [turn, {"role": "user", "content": "And then?"}]
    return {"score": 1.0}


async def answer(messages: list[Message]) -> str:
    return "Forty-two."


async def with_heldout(samples: list[Sample], at_once: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        config = EvalConfig(
            endpoint=answer, output_dir=folder, max_concurrent=at_once, progress=False
        )
        started = time.perf_counter()
        report = await evaluate(serve_policy(samples, lead_conversation), config)
        seconds = time.perf_counter() - started
        assert report.summary["mean"] == 1.0
    return seconds


async def with_plain_server(samples: list[Sample], at_once: int) -> float:
    async def complete(request: web.Request) -> web.Response:
        json.loads(await request.read())
        message = {"role": "assistant", "content": "Forty-two."}
        return web.json_response({"choices": [{"message": message}]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    access = PolicyAccess(f"http://127.0.0.1:{runner.addresses[0][1]}/v1", "key", "policy")
    slots = asyncio.Semaphore(at_once)

    async def one(sample: Sample) -> None:
        async with slots:
            await lead_conversation(access, sample)

    started = time.perf_counter()
    await asyncio.gather(*map(one, samples))
    seconds = time.perf_counter() - started
    await runner.cleanup()
    return seconds


def main() -> None:
    chosen = options(__doc__).parse_args()
    count, rounds = (10, 1) if chosen.quick else (100, 5)
    samples = [Sample(f"s{n}", {"question": f"What is {n}?"}) for n in range(count)]
    for at_once in (1, 16):
        times: dict[Any, list[float]] = {with_heldout: [], with_plain_server: []}
        for _ in range(rounds):
            for way, seconds in times.items():
                seconds.append(asyncio.run(way(samples, at_once)))
        own, plain = (1000 * min(seconds) / (count * TURNS) for seconds in times.values())
        emit(f"ms per request to the policy server, {at_once} at once", own, "ms")
        emit(
            f"the same agent and a plain server, {at_once} at once", plain, "ms", ratio=plain / own
        )


if __name__ == "__main__":
    main()
