"""Requests with tools and the responses to them: read from files and runs, and compared.

Two sets of responses are matched by request. A request is the same under another `model` name, with
the role `_input` called `system`, and streamed or not; any other field tells two requests apart.
Where one is sent several times, its first response is compared with the first, and so on.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from heldout._core.chat.messages import message_of
from heldout.datasets import jsonl_rows
from heldout.errors import HeldoutError, InvalidInput
from heldout.models.http import completion_of
from heldout.models.requests import DELIVERY, with_system
from heldout.scoring.json_schema import compiled
from heldout.scoring.tool_calls import (
    ResponseCalls,
    TriggerAgreement,
    compare_calls,
    read_calls,
    response_of,
    tools_of,
)
from heldout.store.fingerprint import set_version
from heldout.store.report import EvalReport
from heldout.store.run_dir import RunDir
from heldout.store.runs import find_run
from heldout.types import Completion, EvalResult, Message, Role, Sample

_encoder = msgspec.json.Encoder(order="deterministic")

_ROLES: Mapping[str, Role] = {
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
"""Roles in a trajectory; any other, such as `developer`, instructs as `system` does."""


# --- Requests -----------------------------------------------------------------------------------


def load_requests(path: str | Path, *, limit: int | None = None) -> list[Sample]:
    """Load the requests of a JSONL file, or the first of them: a sample per line."""
    requests: list[dict[str, Any]] = []
    lines: list[int] = []
    for where, row in islice(jsonl_rows(path), limit):
        try:
            _check_request(row)
        except InvalidInput as problem:
            raise InvalidInput(f"{where}: {problem}") from None
        requests.append(dict(row))
        lines.append(int(where.rpartition(" ")[2]))
    if not requests:
        raise InvalidInput(f"{path} holds no requests")
    ids = _number_repeats(map(_hash_request, requests))
    return [
        Sample(id, request, metadata={"line": line})
        for id, request, line in zip(ids, requests, lines, strict=True)
    ]


def _check_request(request: Any) -> None:
    _check_messages(request)
    tools = tools_of(request)
    for tool in tools:
        try:
            compiled(tool.parameters)
        except InvalidInput as problem:
            raise InvalidInput(f"the parameters of tool {tool.name!r:.100}: {problem}") from None
    read_calls(Completion(Message("assistant", "")), tools)  # refuses two tools of one name


def _check_messages(request: Any) -> None:
    messages = request.get("messages") if isinstance(request, Mapping) else None
    if not isinstance(messages, list) or not messages:
        raise InvalidInput("a request is an object with messages, a list that is not empty")
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InvalidInput(f"messages[{i}] is no object with a role")


def opening_messages(sample: Sample) -> list[Message]:
    """Return a request's messages for its trajectory; what is sent is the request itself."""
    return [_parse_message(message) for message in with_system(sample.input["messages"])]


set_version(opening_messages, 1)


def _parse_message(message: Mapping[str, Any]) -> Message:
    role, content = _ROLES.get(message["role"], "system"), message.get("content") or ""
    parts = isinstance(content, list) and all(isinstance(part, dict) for part in content)
    if not isinstance(content, str) and not parts:
        content = _encoder.encode(content).decode()
    try:
        return message_of({**message, "role": role, "content": content}, "messages")
    except (InvalidInput, TypeError):  # fields of an unknown shape; the request has them
        return Message(role, content)


def request_key(request: Mapping[str, Any]) -> str:
    """Hash what is asked, whatever the model and however the response is delivered."""
    fields = {key: value for key, value in request.items() if key not in ("model", *DELIVERY)}
    return _hash_request({**fields, "messages": with_system(request["messages"])})


def _hash_request(request: Mapping[str, Any]) -> str:
    return hashlib.blake2b(_encoder.encode(request), digest_size=12).hexdigest()


def _number_repeats(names: Iterable[str]) -> Iterator[str]:
    """Yield names, with #2, #3 … appended to repeated ones."""
    counts: Counter[str] = Counter()
    for name in names:
        counts[name] += 1
        yield name if counts[name] == 1 else f"{name}#{counts[name]}"


# --- Responses ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ToolCallResponse:
    """The response to one request.

    Attributes:
        request: `request_key` of the request; None where that is not recorded.
        line: Its line in the file of requests, from 1.
        response: The calls; None if it errored.
    """

    request: str | None
    line: int | None
    response: ResponseCalls | None


@dataclass(frozen=True, slots=True)
class CallSet:
    """The responses of one model to a file of requests.

    Attributes:
        name: Where it is from.
        answers: One per request.
        complete: Whether the run is.
    """

    name: str
    answers: Sequence[ToolCallResponse]
    complete: bool = True

    @property
    def responses(self) -> list[ResponseCalls]:
        """The responses of requests that did not error."""
        return [answer.response for answer in self.answers if answer.response is not None]

    @property
    def errored(self) -> int:
        """Number of requests that errored."""
        return len(self.answers) - len(self.responses)


def unanswered(name: str, requests: Iterable[Sample]) -> CallSet:
    """Make the set of requests that are still to be sent."""
    return CallSet(
        name, [ToolCallResponse(request_key(s.input), s.metadata["line"], None) for s in requests]
    )


def load_call_sets(report: EvalReport) -> list[CallSet]:
    """Make a set for each repeat of a run whose samples are requests."""
    sets: dict[int, list[ToolCallResponse]] = {}
    for result in report.results:
        sets.setdefault(result.repeat, []).append(_read_answer(result, report))
    complete = report.summary.get("complete") is not False
    return [CallSet(str(report.path), sets[n], complete) for n in sorted(sets)]


def _read_answer(result: EvalResult, report: EvalReport) -> ToolCallResponse:
    request = result.sample.input
    try:
        _check_messages(request)
        response = response_of(result.trajectory, tools_of(request)) if result.ok else None
    except InvalidInput as problem:
        raise InvalidInput(
            f"{report.path}: sample {result.sample_id!r} is no request, as `heldout tool-calls` "
            f"stores them: {problem}"
        ) from None
    return ToolCallResponse(request_key(request), result.sample.metadata.get("line"), response)


def read_reference(source: str | Path) -> list[CallSet]:
    """Read reference responses of a run, a set for each repeat, or of a JSONL of results."""
    path = Path(source)
    if path.is_file() and not RunDir(path.parent).run.exists():
        return [CallSet(str(path), _read_results(path))]
    sets = load_call_sets(EvalReport.load(find_run(path.parent if path.is_file() else path)))
    if not sets:
        raise InvalidInput(f"{source} has no responses yet")
    return sets


class _VerifierLine(msgspec.Struct):
    """A line of results, as the K2 Vendor Verifier writes it."""

    response: Any
    request: dict[str, Any] | None = None
    status: str = "success"
    finish_reason: str | None = None
    data_index: int | None = None


def _read_results(path: Path) -> list[ToolCallResponse]:
    answers: dict[int, ToolCallResponse] = {}
    is_numbered = has_requests = True
    for i, (where, row) in enumerate(jsonl_rows(path)):
        try:
            result = msgspec.convert(row, _VerifierLine)
            if result.request is not None:
                _check_messages(result.request)
        except (msgspec.ValidationError, InvalidInput) as problem:
            raise InvalidInput(
                f'{where}: a line of results is {{"request": {{…}}, "response": {{a chat '
                f"completion}}}}: {problem}"
            ) from None
        is_numbered &= result.data_index is not None
        has_requests &= result.request is not None
        if not is_numbered and not has_requests:
            raise InvalidInput(
                f'{where}: every line has a "request", or else every line a "data_index", which is '
                "the line of its request"
            )
        key = None if result.request is None else request_key(result.request)
        answer = ToolCallResponse(key, result.data_index, _parse_response(result))
        position = i if result.data_index is None else result.data_index
        # A request that failed and was sent again has a line for each time.
        if answer.response is not None or position not in answers:
            answers[position] = answer
    if not answers:
        raise InvalidInput(f"{path} holds no results")
    return [answers[position] for position in sorted(answers)]


def _parse_response(result: _VerifierLine) -> ResponseCalls | None:
    if result.status != "success":
        return None
    try:
        completion = completion_of(result.response)
    except HeldoutError:  # a stored error
        return None
    # Calls of a reference are not validated: only whether and what it calls is compared.
    if completion.finish_reason is None:
        completion = replace(completion, finish_reason=result.finish_reason)
    return ResponseCalls(completion.finish_reason, completion.message.tool_calls, ())


# --- Comparison ---------------------------------------------------------------------------------


def compare_call_sets(ours: CallSet, theirs: CallSet) -> TriggerAgreement:
    """Compare the responses to the same requests; refuse sets that have none in common."""
    by_line = any(answer.request is None for answer in (*ours.answers, *theirs.answers))
    left, right = _index(ours, by_line), _index(theirs, by_line)
    if not left.keys() & right.keys():
        noun = "lines (data_index)" if by_line else "requests"
        raise InvalidInput(
            f"{ours.name} and {theirs.name} have no {noun} in common, {len(left)} and {len(right)} "
            "as they are; was the reference asked the same file? Every field of a request but "
            "model and stream has to be the same, temperature and max_tokens included"
        )
    return compare_calls(
        {key: response for key, response in left.items() if response is not None},
        {key: response for key, response in right.items() if response is not None},
    )


def _index(calls: CallSet, by_line: bool) -> dict[str, ResponseCalls | None]:
    """Return responses by request, or by line of the file."""
    if by_line and any(answer.line is None for answer in calls.answers):
        raise InvalidInput(
            f"{calls.name} does not say which line of the file each of its requests was, and the "
            "other results say nothing else; give results with their requests"
        )
    keys = (str(answer.line if by_line else answer.request) for answer in calls.answers)
    responses = (answer.response for answer in calls.answers)
    return dict(zip(_number_repeats(keys), responses, strict=True))


def count_problems(responses: Iterable[ResponseCalls]) -> list[tuple[str, int]]:
    """Count what is wrong with responses that call tools, the most frequent first."""
    counts: Counter[str] = Counter()
    for response in responses:
        if response.valid is False:
            counts.update(set(response.problems) or {"finish reason tool_calls, and no calls"})
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
