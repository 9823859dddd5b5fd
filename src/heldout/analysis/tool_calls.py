"""Requests with tools and the responses to them: read from files and runs, and compared.

`load_requests` makes a sample of every line of a JSONL of chat-completions requests: its input is
the whole request, its id a hash of that. `load_call_sets` and `read_reference` read responses, and
`compare_call_sets` matches two sets by request, since that is all that two servers' results have in
common. A request is the same under another `model` name, with the role `_input` called `system`,
and streamed or not; any other field tells two requests apart. Where one is sent several times, its
first response is compared with the first, and so on.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from heldout._fingerprint import set_version
from heldout.chat.messages import message_of
from heldout.datasets import jsonl_rows
from heldout.errors import HeldoutError, InvalidInput
from heldout.models.http import completion_of
from heldout.models.requests import DELIVERY, with_system
from heldout.scoring.json_schema import compiled
from heldout.scoring.tool_calls import (
    CallReport,
    ResponseCalls,
    compare_calls,
    read_calls,
    response_of,
    tools_of,
)
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


def load_requests(path: str | Path, *, most: int | None = None) -> list[Sample]:
    """Load a file of requests.

    Args:
        path: JSON lines, each a chat-completions request.
        most: Only the first so many lines.

    Returns:
        A sample per line.

    Raises:
        InvalidInput: A line is no request, or there is none.
    """
    requests: list[dict[str, Any]] = []
    lines: list[int] = []
    for where, row in jsonl_rows(path):
        if most is not None and len(requests) >= most:
            break
        try:
            _check_request(row)
        except InvalidInput as problem:
            raise InvalidInput(f"{where}: {problem}") from None
        requests.append(dict(row))
        lines.append(int(where.rpartition(" ")[2]))
    if not requests:
        raise InvalidInput(f"{path} holds no requests")
    ids = _number_repeats(_hash_request(request) for request in requests)
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
    """Return a request's messages for its trajectory; what is sent is the request itself.

    Args:
        sample: A sample of `load_requests`.
    """
    return [_parse_message(message) for message in with_system(sample.input["messages"])]


set_version(opening_messages, 1)


def _parse_message(message: Mapping[str, Any]) -> Message:
    content = message.get("content")
    if content is None:
        content = ""
    parts = isinstance(content, list) and all(isinstance(part, dict) for part in content)
    if not isinstance(content, str) and not parts:
        content = _encoder.encode(content).decode()
    plain: dict[str, Any] = {"role": _ROLES.get(message["role"], "system"), "content": content}
    for name in ("tool_call_id", "reasoning_content"):
        if isinstance(message.get(name), str):
            plain[name] = message[name]
    try:
        return message_of({**plain, "tool_calls": message.get("tool_calls")}, "messages")
    except (InvalidInput, TypeError):  # calls of an unknown shape; the request has them
        return message_of(plain, "messages")


def request_key(request: Mapping[str, Any]) -> str:
    """Return a hash of what is asked, whatever the model and however the response is delivered.

    Args:
        request: A chat-completions request.
    """
    fields = {key: value for key, value in request.items() if key not in ("model", *DELIVERY)}
    return _hash_request({**fields, "messages": with_system(request["messages"])})


def _hash_request(request: Mapping[str, Any]) -> str:
    return hashlib.blake2b(_encoder.encode(request), digest_size=12).hexdigest()


def _number_repeats(names: Iterable[str]) -> Iterator[str]:
    """Yield names, with #2, #3 … after those that come again."""
    seen: Counter[str] = Counter()
    for name in names:
        seen[name] += 1
        yield name if seen[name] == 1 else f"{name}#{seen[name]}"


# --- Responses ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answer:
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
    answers: tuple[Answer, ...]
    complete: bool = True

    @property
    def knows_requests(self) -> bool:
        """Whether every request is recorded."""
        return all(answer.request is not None for answer in self.answers)

    @property
    def responses(self) -> list[ResponseCalls]:
        """The responses of requests that did not error."""
        return [answer.response for answer in self.answers if answer.response is not None]

    @property
    def errored(self) -> int:
        """Number of requests that errored."""
        return len(self.answers) - len(self.responses)

    def index(self, *, by_line: bool) -> dict[str, ResponseCalls | None]:
        """Return responses by request, or by line of the file.

        Args:
            by_line: Whether to use the line.
        """
        keys = (str(answer.line if by_line else answer.request) for answer in self.answers)
        responses = (answer.response for answer in self.answers)
        return dict(zip(_number_repeats(keys), responses, strict=True))


def load_call_sets(report: EvalReport) -> list[CallSet]:
    """Return a set for each repeat of a run whose samples are requests.

    Args:
        report: The report of the run.

    Raises:
        InvalidInput: A sample is no request.
    """
    sets: dict[int, list[Answer]] = {}
    for result in report.results:
        sets.setdefault(result.repeat, []).append(_read_answer(result, report))
    complete = report.summary.get("complete") is not False
    return [CallSet(str(report.path), tuple(sets[n]), complete) for n in sorted(sets)]


def _read_answer(result: EvalResult, report: EvalReport) -> Answer:
    request, line = result.sample.input, result.sample.metadata.get("line")
    try:
        _check_messages(request)
        response = response_of(result.trajectory, tools_of(request)) if result.ok else None
    except InvalidInput as problem:
        raise InvalidInput(
            f"{report.path}: sample {result.sample_id!r} is no request, as `heldout tool-calls` "
            f"stores them: {problem}"
        ) from None
    return Answer(request_key(request), line if isinstance(line, int) else None, response)


def read_reference(source: str | Path) -> list[CallSet]:
    """Read reference responses.

    Args:
        source: A run, by path or name, or a JSONL of results.

    Returns:
        A set for each repeat.

    Raises:
        InvalidInput: There are no responses, or a line is not one.
    """
    path = Path(source)
    if path.is_file() and not RunDir(path.parent).run.exists():
        return [CallSet(str(path), tuple(_read_results(path)))]
    sets = load_call_sets(EvalReport.load(find_run(path.parent if path.is_file() else path)))
    if not sets:
        raise InvalidInput(f"{source} has no responses yet")
    return sets


def _read_results(path: Path) -> list[Answer]:
    """Read lines of {"request", "response"}, perhaps with `data_index` and `status`."""
    rows = []
    for where, row in jsonl_rows(path):
        if not isinstance(row, Mapping) or "response" not in row:
            raise InvalidInput(
                f'{where}: a line of results is {{"request": {{…}}, "response": {{a chat '
                "completion}}"
            )
        rows.append((where, row))
    if not rows:
        raise InvalidInput(f"{path} holds no results")
    has_request = [isinstance(row.get("request"), Mapping) for _, row in rows]
    all_numbered = all(type(row.get("data_index")) is int for _, row in rows)
    if not all(has_request) and (any(has_request) or not all_numbered):
        where = rows[has_request.index(False)][0]
        raise InvalidInput(
            f'{where}: every line has a "request", or else every line a "data_index", which is '
            "the line of its request"
        )
    answers: dict[int, Answer] = {}
    for i, (where, row) in enumerate(rows):
        line = row["data_index"] if all_numbered else None
        key = None
        if has_request[i]:
            try:
                _check_messages(row["request"])
            except InvalidInput as problem:
                raise InvalidInput(f"{where}: request: {problem}") from None
            key = request_key(row["request"])
        answer = Answer(key, line, _parse_response(row))
        position = i if line is None else line
        # A request that failed and was sent again has a line for each time.
        if answer.response is not None or position not in answers:
            answers[position] = answer
    return [answers[position] for position in sorted(answers)]


def _parse_response(row: Mapping[str, Any]) -> ResponseCalls | None:
    if row.get("status", "success") != "success":
        return None
    try:
        completion = completion_of(row["response"])
    except HeldoutError:  # a stored error
        return None
    reason = completion.finish_reason
    if reason is None and isinstance(row.get("finish_reason"), str):
        reason = row["finish_reason"]
    # Calls of a reference are not validated: only whether and what it calls is compared.
    return ResponseCalls(reason, completion.message.tool_calls, ())


# --- Comparison ---------------------------------------------------------------------------------


def compare_call_sets(
    candidate: CallSet, reference: CallSet, again: CallSet | None = None
) -> CallReport:
    """Compare a candidate with a reference, and a second run of the reference with it, too.

    Args:
        candidate: The responses to measure.
        reference: The responses of the reference.
        again: Those of a second run of the reference.

    Returns:
        How far they agree.

    Raises:
        InvalidInput: They have no requests in common.
    """
    indexes = [
        {key: response for key, response in index.items() if response is not None}
        for index in _match(candidate, reference, again)
    ]
    second = indexes[2] if again is not None else None
    return compare_calls(indexes[0], indexes[1], reference_again=second)


def check_comparable(
    requests: Sequence[Sample], name: str, reference: CallSet, again: CallSet | None = None
) -> None:
    """Refuse a reference that was asked something else, before any request is sent.

    Args:
        requests: The requests to send.
        name: Where they are from.
        reference: The responses of the reference.
        again: Those of a second run of the reference.

    Raises:
        InvalidInput: They have no requests in common.
    """
    unanswered = tuple(
        Answer(request_key(sample.input), sample.metadata["line"], None) for sample in requests
    )
    _match(CallSet(name, unanswered), reference, again)


def _match(
    candidate: CallSet, reference: CallSet, again: CallSet | None
) -> list[dict[str, ResponseCalls | None]]:
    sets = [candidate, reference] + ([again] if again is not None else [])
    by_line = not all(calls.knows_requests for calls in sets)
    for calls in sets:
        if by_line and any(answer.line is None for answer in calls.answers):
            raise InvalidInput(
                f"{calls.name} does not say which line of the file each of its requests was, and "
                "the other results say nothing else; give results with their requests"
            )
    indexes = [calls.index(by_line=by_line) for calls in sets]
    for calls, index in zip(sets, indexes, strict=True):
        if not index.keys() & indexes[1].keys():
            noun = "lines (data_index)" if by_line else "requests"
            raise InvalidInput(
                f"{calls.name} and {reference.name} have no {noun} in common, "
                f"{len(calls.answers)} and {len(reference.answers)} as they are; was the reference "
                "asked the same file? Every field of a request but model and stream has to be the "
                "same, temperature and max_tokens included"
            )
    return indexes


def count_problems(responses: Sequence[ResponseCalls]) -> list[tuple[str, int]]:
    """Count what is wrong with responses that call tools, the most frequent first.

    Args:
        responses: The responses.
    """
    counts: Counter[str] = Counter()
    for response in responses:
        if response.valid is False:
            counts.update(set(response.problems) or {"finish reason tool_calls, and no calls"})
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
