"""A function as the endpoint: plain or async, in whatever form Python has them."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from heldout import Message, Sample, ToolSpec
from heldout.errors import InvalidInput
from heldout.models import FunctionEndpoint, open_endpoint
from heldout.types import Completion, ToolCall
from tests.conftest import both_loops
from tests.models.asking import completing, evaluating

Run = Callable[..., Any]

QUESTION = [Message("system", "Count."), Message("user", "three")]


def count(messages: list[Message]) -> str:
    return f"{len(messages)} {messages[-1].text}"


async def count_later(messages: list[Message]) -> str:
    await anyio.lowlevel.checkpoint()
    return count(messages)


def hand_back_a_coroutine(messages: list[Message]) -> Awaitable[str]:
    return count_later(messages)


class Callable_:
    def __call__(self, messages: list[Message]) -> str:
        return count(messages)

    def method(self, messages: list[Message]) -> str:
        return count(messages)

    async def later(self, messages: list[Message]) -> str:
        return await count_later(messages)


class AsyncCallable:
    async def __call__(self, messages: list[Message]) -> str:
        return await count_later(messages)


@functools.wraps(count)
async def async_around_plain(messages: list[Message]) -> str:
    await anyio.lowlevel.checkpoint()
    return count(messages)


@functools.wraps(count_later)
def plain_around_async(messages: list[Message]) -> str:
    """As decorators do that let async code be called from elsewhere."""
    return asyncio.run(_count_alone(messages))


async def _count_alone(messages: list[Message]) -> str:
    return count(messages)


FORMS: dict[str, Any] = {
    "function": count,
    "async function": count_later,
    "lambda": lambda messages: count(messages),
    "function that returns a coroutine": hand_back_a_coroutine,
    "callable object": Callable_(),
    "async callable object": AsyncCallable(),
    "method": Callable_().method,
    "async method": Callable_().later,
    "partial": functools.partial(lambda word, messages: count(messages), "word"),
    "partial of async": functools.partial(count_later),
    "async wrapper of a plain function": async_around_plain,
    "plain wrapper of an async function": plain_around_async,
}


def answered(function: Any) -> Callable[[], Any]:
    return completing(FunctionEndpoint(function), QUESTION)


def evaluated(function: Any, number: int, folder: Path, **settings: Any) -> Callable[[], Any]:
    asked = [Sample(f"s{i}", {"prompt": f"{i}"}, f"{i}") for i in range(number)]
    return evaluating(asked, function, folder, **settings)


@both_loops
def test_every_form_of_function_answers(run: Run) -> None:
    for form, function in FORMS.items():
        assert run(answered(function)) == Completion(Message("assistant", "2 three")), form


def test_a_message_and_a_completion_are_taken_as_they_are(run: Run) -> None:
    message = Message("assistant", "", tool_calls=(ToolCall("a", "f"),), reasoning="hm")
    assert run(answered(lambda messages: message)).message is message
    completion = Completion(Message("assistant", "x"), "length")
    assert run(answered(lambda messages: completion)) is completion


def test_anything_else_is_refused_by_its_type(run: Run) -> None:
    odd: list[Any] = [None, 4, b"bytes", ["a"], {"role": "assistant"}]
    for wrong in odd:
        with pytest.raises(TypeError, match=f"str, Message or .* got {type(wrong).__name__}"):
            run(answered(lambda messages, wrong=wrong: wrong))


@pytest.mark.parametrize(
    ("form", "raised"),
    [("plain", ValueError("odd")), ("plain", StopIteration()), ("async", StopAsyncIteration())],
)
def test_what_a_function_raises_is_the_items_error(
    run: Run, tmp_path: Path, form: str, raised: Exception
) -> None:
    def plain(messages: list[Message]) -> str:
        if messages[-1].text == "1":
            raise raised
        return messages[-1].text

    async def later(messages: list[Message]) -> str:
        return plain(messages)

    report = run(evaluated(plain if form == "plain" else later, 3, tmp_path))
    assert str(report.results[1].error).startswith("endpoint: ")
    assert [result.ok for result in report.results] == [True, False, True]


# --- Tools --------------------------------------------------------------------------------------

TOOLS = [ToolSpec("add"), ToolSpec("now")]


def name_tools(messages: list[Message], tools: list[ToolSpec]) -> str:
    return f"{len(messages)} {[tool.name for tool in tools]}"


async def name_tools_later(messages: list[Message], tools: list[ToolSpec]) -> str:
    await anyio.lowlevel.checkpoint()
    return name_tools(messages, tools)


def named_only(messages: list[Message], *, tools: list[ToolSpec]) -> str:
    return name_tools(messages, tools)


def any_second(messages: list[Message], available: list[ToolSpec], /) -> str:
    return name_tools(messages, available)


def optional(messages: list[Message], tools: list[ToolSpec] | None = None) -> str:
    return name_tools(messages, tools or [])


def third(messages: list[Message], i: int = 0, tools: list[ToolSpec] | None = None) -> str:
    assert i == 0
    return name_tools(messages, tools or [])


def worded(word: str, messages: list[Message], tools: list[ToolSpec]) -> str:
    return name_tools(messages, tools)


def word_last(messages: list[Message], word: str, tools: list[ToolSpec]) -> str:
    return name_tools(messages, tools)


@functools.wraps(name_tools)
def handing_on(*args: Any, **kwargs: Any) -> str:
    return name_tools(*args, **kwargs)


class Toolbox:
    def __call__(self, messages: list[Message], tools: list[ToolSpec]) -> str:
        return name_tools(messages, tools)

    async def later(self, messages: list[Message], tools: list[ToolSpec]) -> str:
        return await name_tools_later(messages, tools)


class AsyncToolbox:
    async def __call__(self, messages: list[Message], tools: list[ToolSpec]) -> str:
        return await name_tools_later(messages, tools)


TOLD: dict[str, Any] = {
    "function": name_tools,
    "async function": name_tools_later,
    "lambda": lambda messages, tools: name_tools(messages, tools),
    "keyword only": named_only,
    "any name": any_second,
    "default": optional,
    "not the second": third,
    "partial": functools.partial(worded, "word"),
    "partial by name": functools.partial(word_last, word="word"),
    "partial of async": functools.partial(name_tools_later),
    "wrapper that hands on": handing_on,
    "callable object": Toolbox(),
    "async callable object": AsyncToolbox(),
    "async method": Toolbox().later,
}


def asked_with_tools(function: Any) -> Callable[[], Any]:
    return completing(FunctionEndpoint(function), QUESTION, tools=TOOLS)


def test_a_function_that_takes_tools_is_told_of_them(run: Run) -> None:
    def greedy(messages: list[Message], tools: list[ToolSpec]) -> str:
        messages.clear()
        tools.clear()
        return "mine"

    run(asked_with_tools(greedy))  # and cannot change what it is shown
    for form, function in TOLD.items():
        assert run(asked_with_tools(function)).message.text == "2 ['add', 'now']", form


UNTOLD: dict[str, Any] = {
    **FORMS,
    "parameter of the author's own": lambda messages, i=3: count(messages) if i == 3 else "told",
    "any number": lambda *args: count(*args),
    "first parameter called tools": lambda tools: count(tools),
}


def test_a_function_of_the_messages_alone_answers_where_there_are_tools(run: Run) -> None:
    for form, function in UNTOLD.items():
        assert run(asked_with_tools(function)).message.text == "2 three", form
    assert run(asked_with_tools(str)).message.text == str(QUESTION)  # which has no signature


def test_a_function_that_cannot_be_called_so_is_refused_when_made() -> None:
    odd: list[Any] = [
        lambda: "x",
        lambda messages, tools, sampling: "x",
        lambda messages, temperature, tools=None: "x",
        lambda *, messages: "x",
        functools.partial(count, QUESTION),
    ]
    for function in odd:
        with pytest.raises(InvalidInput, match=r"takes \(messages\) or \(messages, tools\); .*\("):
            FunctionEndpoint(function)


@both_loops
def test_plain_functions_run_as_many_at_once_as_items_do(run: Run, tmp_path: Path) -> None:
    together = threading.Barrier(24)

    def meet(messages: list[Message]) -> str:
        together.wait(20)  # passes only if all of them are here
        return messages[-1].text

    report = run(evaluated(meet, 48, tmp_path, max_concurrent=24))
    assert (report.summary["n_scored"], report.summary["mean"]) == (48, 1.0)


@both_loops
def test_threads_are_used_again_and_end_with_the_run(run: Run, tmp_path: Path) -> None:
    threads: set[threading.Thread] = set()

    def note(messages: list[Message]) -> str:
        threads.add(threading.current_thread())
        return messages[-1].text

    run(evaluated(note, 100, tmp_path, max_concurrent=4))
    assert 1 <= len(threads) <= 4
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


@both_loops
def test_a_plain_function_sees_the_context_it_was_asked_in(run: Run) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")

    async def main() -> Any:
        variable.set("outside")
        return await answered(lambda messages: variable.get())()

    assert run(main).message.content == "outside"


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Blocks a function until the test is over."""
    event = threading.Event()
    yield event
    event.set()


@both_loops
def test_calls_that_were_given_up_on_take_no_place_from_later_items(
    run: Run, tmp_path: Path, release: threading.Event
) -> None:
    def stuck_at_first(messages: list[Message]) -> str:
        if int(messages[-1].text) < 4:
            release.wait()
        return messages[-1].text

    report = run(evaluated(stuck_at_first, 12, tmp_path, timeout=0.5, max_concurrent=2))
    assert [result.ok for result in report.results] == [False] * 4 + [True] * 8


def test_a_function_that_never_returns_does_not_keep_the_process_alive(tmp_path: Path) -> None:
    program = f"""
import threading
import anyio, heldout

def stuck(messages):
    if messages[-1].text == "b":
        threading.Event().wait()
    return "x"

async def main():
    samples = [heldout.Sample(i, {{"prompt": i}}) for i in "ab"]
    config = heldout.EvalConfig(
        stuck, timeout=3, output_dir={str(tmp_path)!r}, progress=False, max_error_rate=1
    )
    report = await heldout.evaluate(samples, config, lambda t, s: heldout.Score())
    print(report.summary["n_errors"])

anyio.run(main)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "1\n"


@both_loops
def test_an_answer_that_comes_after_the_event_loop_ended_disturbs_nobody(
    run: Run, tmp_path: Path
) -> None:
    release, returned = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    def late(messages: list[Message]) -> str:
        if messages[-1].text == "1":
            threads.append(threading.current_thread())
            release.wait()
            returned.set()
        return messages[-1].text

    run(evaluated(late, 2, tmp_path, timeout=0.5))
    release.set()
    assert returned.wait(10)
    threads[0].join(10)
    assert not threads[0].is_alive()


def test_an_object_with_complete_is_an_endpoint_itself_and_its_owners_to_close(
    run: Run, tmp_path: Path
) -> None:
    class Endpoint:
        closed = False

        async def complete(self, messages: Any, sampling: Any, tools: Any) -> Completion:
            return Completion(Message("assistant", messages[-1].text))

        def describe(self) -> dict[str, Any]:
            return {"kind": "own"}

        async def close(self) -> None:
            self.closed = True

    endpoint = Endpoint()
    assert open_endpoint(endpoint, max_concurrent=1) is endpoint
    assert run(evaluated(endpoint, 2, tmp_path)).summary["mean"] == 1.0
    assert not endpoint.closed
