"""One attempt at a sample: the conversation, and what the grader extracted."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import msgspec
import numpy as np

from heldout._core.format import number
from heldout.store.columns import as_text
from heldout.types import EvalResult, Message, Trajectory
from heldout.viewer.images import find_images
from heldout.viewer.values import (
    LONGEST_CELL,
    Plain,
    UnknownRun,
    question_text,
    reward_values,
    text_or_none,
)
from heldout.viewer.viewed_run import ViewedRun

TOOL_ERROR = "Error:"
"""How the result of a call that failed begins, as `ToolEnvironment` writes it."""


def describe_attempt(name: str, run: ViewedRun, id: str, repeat: int) -> Plain:
    """Describe one attempt at a sample, and name the others."""
    repeats = find_attempts(name, run, id, repeat)
    (result,) = run.read([repeats[repeat]])
    return {
        "name": name,
        **describe_result(result, run.fields.outcome(repeats[repeat])),
        "repeats": [
            {"repeat": which, "outcome": run.fields.outcome(item)}
            for which, item in sorted(repeats.items())
        ],
    }


def attempt_as_json(name: str, run: ViewedRun, id: str, repeat: int) -> Plain:
    """Give one attempt at a sample as JSON."""
    repeats = find_attempts(name, run, id, repeat)
    (result,) = run.read([repeats[repeat]])
    return {"text": msgspec.json.format(msgspec.json.encode(result)).decode()}


def find_attempts(name: str, run: ViewedRun, id: str, repeat: int) -> dict[int, int]:
    """Find the items of a sample by attempt; `repeat` must be one of them."""
    repeats = run.attempts_at(id)
    if not repeats:
        near = difflib.get_close_matches(id, dict.fromkeys(run.fields.ids[:20_000]), n=3)
        hint = f"; near it are {', '.join(near)}" if near else ""
        raise UnknownRun(f"{name} has no sample {id!r:.200}{hint}")
    if repeat not in repeats:
        raise UnknownRun(f"sample {id!r:.200} has no attempt {repeat + 1}")
    return repeats


def describe_result(result: EvalResult, outcome: str) -> Plain:
    """Describe a result for its page: the conversation as turns, and the score."""
    trajectory = result.trajectory
    turns = list(_turns(trajectory))
    _measure_turns(turns, trajectory)
    _mark_extracted(turns, result)
    usage, timing = trajectory.usage, trajectory.timing
    return {
        "id": result.sample_id,
        "repeat": result.repeat,
        "outcome": outcome,
        "error": result.error,
        **reward_values(result),
        "turns": turns,
        "question": question_text(result, LONGEST_CELL),
        "target": as_text(result.sample.ground_truth),
        "answer": trajectory.answer,
        "metrics": [
            {
                "name": metric.name,
                "value": metric.value,
                "text": {"value": number(metric.value)},
                "weight": metric.weight,
                "has_extracted": "extracted" in metric.metadata,
                "extracted": text_or_none(metric.metadata.get("extracted")),
                "note": text_or_none(metric.metadata.get("note")),
                "reply": text_or_none(metric.metadata.get("reply")),
            }
            for metric in result.score.metrics
        ],
        "stop": msgspec.to_builtins(trajectory.stop),
        "outcome_state": text_or_none(trajectory.outcome),
        "tokens": usage and {"prompt": usage.prompt_tokens, "completion": usage.completion_tokens},
        "trace": _describe_trace(trajectory),
        "seconds": timing and timing.seconds,
        "requests": timing and timing.requests,
        "input": _short_values(result.sample.input),
        "metadata": _short_values(result.metadata),
        "tools": [
            {
                "name": tool.name,
                "description": tool.description,
                "parameters": msgspec.json.format(msgspec.json.encode(tool.parameters)).decode(),
            }
            for tool in result.tools
        ],
    }


def content_text(message: Message) -> str:
    """Give a message's content as text; parts that are none are named."""
    if isinstance(message.content, str):
        return message.content
    parts = [
        str(part["text"]) if part.get("type") == "text" and "text" in part
        else f"[{part.get('type') or 'part'}]"
        for part in message.content
    ]  # fmt: skip
    return "\n".join(parts)


def _turns(trajectory: Trajectory) -> Iterator[Plain]:
    """Yield messages, each tool call with the result that answers it."""
    messages = trajectory.messages
    results = _find_results(messages)
    shown = set(results.values())
    for place, message in enumerate(messages):
        if place in shown:
            continue
        calls = [
            {
                "name": call.name,
                "arguments": call.arguments,
                "problem": _json_problem(call.arguments),
                "result": content_text(messages[result]) if result is not None else None,
                "failed": result is not None and messages[result].text.startswith(TOOL_ERROR),
            }
            for number, call in enumerate(message.tool_calls)
            for result in (results.get((place, number)),)
        ]
        yield {
            "place": place,
            "role": message.role,
            "text": content_text(message),
            "images": find_images(message),
            "reasoning": message.reasoning,
            "calls": calls,
        }


def _find_results(messages: Sequence[Message]) -> dict[tuple[int, int], int]:
    """Find the message that answers each call, by the places of the call's message and the call.

    It is the next one of that id: many servers use the same ids in every turn.
    """
    results: dict[tuple[int, int], int] = {}
    later: dict[str | None, list[int]] = {}
    for place, message in reversed([*enumerate(messages)]):
        if message.role == "tool":
            later.setdefault(message.tool_call_id, []).append(place)
        for which, call in enumerate(message.tool_calls):
            if later.get(call.id):
                results[place, which] = later[call.id].pop()
    return results


def _json_problem(arguments: str) -> str | None:
    try:
        json.loads(arguments)
    except (ValueError, RecursionError) as problem:
        return f"not JSON: {problem}"[:200]
    return None


def _measure_turns(turns: Sequence[Plain], trajectory: Trajectory) -> None:
    """Give each turn of the model its tokens and its time, as far as they are stored."""
    own, timing = trajectory.model_turns, trajectory.timing
    said = [t for t in turns if (t["role"] == "assistant" if own is None else t["place"] in own)]
    seconds = (timing and timing.turn_seconds) or ()
    replies = (timing and timing.reply_seconds) or ()
    if len(seconds) == len(said):
        for turn, took, reply in zip_longest(said, seconds, replies[: len(said)]):
            turn |= {"seconds": took, "reply_seconds": reply}
    parts = [n for is_model, n in _describe_trace(trajectory) or () if is_model]
    if len(parts) == len(said):
        for turn, n in zip(said, parts, strict=True):
            turn["tokens"] = n


def _mark_extracted(turns: Sequence[Plain], result: EvalResult) -> None:
    """Mark where the last thing extracted stands in the last turn of the model."""
    last = next((turn for turn in reversed(turns) if turn["role"] == "assistant"), None)
    if last is None:
        return
    for metric in result.score.metrics:
        extracted = metric.metadata.get("extracted")
        if extracted is None or not str(extracted):
            continue
        start = last["text"].rfind(str(extracted))
        if start >= 0:
            # The page counts in units of UTF-16.
            before = len(last["text"][:start].encode("utf-16-le")) // 2
            length = len(str(extracted).encode("utf-16-le")) // 2
            last["mark"] = [before, before + length]
            return


def _describe_trace(trajectory: Trajectory) -> list[tuple[int, int]] | None:
    """The completion as stretches of (1 for the model's tokens, 0 for others, how many)."""
    if trajectory.tokens is None:
        return None
    mask = np.array(trajectory.tokens.env_mask)
    if not len(mask):
        return []
    starts = np.flatnonzero(np.diff(mask, prepend=1 - mask[0]))
    sizes = np.diff(np.append(starts, len(mask)))
    return [(int(mask[at]), int(n)) for at, n in zip(starts, sizes, strict=True)][:2_000]


def _short_values(values: Mapping[str, Any]) -> dict[str, str | None]:
    return {key: text_or_none(value) for key, value in values.items()}
