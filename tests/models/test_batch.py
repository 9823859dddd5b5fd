from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import anyio
import pytest

from heldout import Message, Sampling
from heldout.errors import EndpointError
from heldout.models.batch import BatchEndpoint, Request

Items = Sequence[Callable[[Any], Any]]


async def caller_thread(function: Callable[[], Any]) -> Any:
    await anyio.lowlevel.checkpoint()
    return function()


def asks(text: str) -> tuple[list[Message], Sampling, list[Any]]:
    return [Message("user", text)], Sampling(), []


def batches_of(
    items: int, rows: int, one: Callable[[int, Any], Any], answer: Callable[..., Any] | None = None
) -> list[list[str]]:
    """What was asked for together when `rows` workers take `items` items."""
    seen: list[list[str]] = []

    def recorded(requests: Sequence[Request]) -> Sequence[Any]:
        seen.append([r.messages[-1].text for r in requests])
        return answer(requests) if answer else [r.messages[-1].text for r in requests]

    async def main() -> None:
        endpoint = BatchEndpoint(recorded, caller_thread, items=items, rows=rows)
        left = iter(range(items))

        async def worker() -> None:
            for index in left:
                context: AbstractContextManager[Any] = endpoint.item(index, 0)
                with context as seat:
                    await one(index, seat)

        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(endpoint.serve)
                async with anyio.create_task_group() as workers:
                    for _ in range(rows):
                        workers.start_soon(worker)
                group.cancel_scope.cancel()
        assert endpoint.done == items

    anyio.run(main)
    return seen


def test_all_who_are_under_way_are_waited_for_and_answered_in_order() -> None:
    async def one(index: int, seat: Any) -> None:
        for _ in range(10 - index):  # the last come first
            await anyio.lowlevel.checkpoint()
        await seat(*asks(f"{index}"))

    assert batches_of(5, 2, one) == [["0", "1"], ["2", "3"], ["4"]]


def test_one_that_ends_without_asking_does_not_hold_up_the_others() -> None:
    async def one(index: int, seat: Any) -> None:
        if index != 1:
            await seat(*asks(f"{index}"))

    assert batches_of(3, 3, one) == [["0", "2"]]


def test_one_that_gives_up_waiting_does_not_hold_up_the_others() -> None:
    async def one(index: int, seat: Any) -> None:
        if index == 0:
            with anyio.move_on_after(0.01):
                await seat(*asks("0"))
            return
        await anyio.sleep(0.05)
        await seat(*asks(f"{index}"))

    assert batches_of(3, 3, one) == [["1", "2"]]


def test_a_bad_row_is_its_own_error_and_a_bad_batch_everyones() -> None:
    problems: dict[int, str] = {}

    async def one(index: int, seat: Any) -> None:
        try:
            await seat(*asks(f"{index}"))
        except (EndpointError, TypeError) as problem:
            problems[index] = str(problem)

    batches_of(2, 2, one, lambda requests: [ValueError("row"), "fine"])
    assert problems == {0: "ValueError: row"}
    problems.clear()

    def broken(requests: Any) -> Any:
        raise RuntimeError("all")

    batches_of(2, 2, one, broken)
    assert problems == {0: "RuntimeError: all", 1: "RuntimeError: all"}
    problems.clear()
    batches_of(2, 2, one, lambda requests: ["one"])
    assert "2 requests got 1 answers" in problems[0]
    problems.clear()
    batches_of(1, 1, one, lambda requests: [7])
    assert "int" in problems[0]


def test_nobody_asks_it_outside_an_item() -> None:
    endpoint = BatchEndpoint(lambda requests: [], caller_thread, items=1, rows=1)
    with pytest.raises(EndpointError, match="attempts of an eval"):
        anyio.run(endpoint.complete, *asks("x"))
