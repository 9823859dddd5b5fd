"""Requests with tools, and what was answered to them: from files and runs to sets that compare.

`load_requests` makes a sample of every line of a JSONL of chat-completions requests: its input is
the whole request, its id a hash of that. `answers_of` and `read_reference` read what was answered,
here or elsewhere, and `compare_sets` matches the two by what was asked, since that is all that two
servers' results have in common. A request is the same under another `model` name, with `_input`
called `system`, and streamed or not; any other field tells two requests apart. Where one is asked
several times, its first answer is held against the first, and so on.
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
from heldout.store.rundir import RunDir, find_run
from heldout.types import Completion, EvalResult, Message, Role, Sample

_encoder = msgspec.json.Encoder(order="deterministic")

_ROLES: Mapping[str, Role] = {
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
"""As a trajectory has them; what else there is (`developer`, say) instructs, as `system` does."""


# --- Requests -----------------------------------------------------------------------------------


def load_requests(path: str | Path, *, most: int | None = None) -> list[Sample]:
    """A sample for each line, or for the first `most`; a bad line is an error that names it."""
    found: list[dict[str, Any]] = []
    places: list[int] = []
    for where, row in jsonl_rows(path):
        if most is not None and len(found) >= most:
            break
        try:
            _check_request(row)
        except InvalidInput as problem:
            raise InvalidInput(f"{where}: {problem}") from None
        found.append(dict(row))
        places.append(int(where.rpartition(" ")[2]))
    if not found:
        raise InvalidInput(f"{path} holds no requests")
    ids = _numbered(_digest(request) for request in found)
    return [
        Sample(id, request, metadata={"line": line})
        for id, request, line in zip(ids, found, places, strict=True)
    ]


def _check_request(request: Any) -> None:
    _check_messages(request)
    tools = tools_of(request)
    for tool in tools:
        try:
            compiled(tool.parameters)
        except InvalidInput as problem:
            raise InvalidInput(f"the parameters of tool {tool.name!r:.100}: {problem}") from None
    read_calls(Completion(Message("assistant", "")), tools)  # no two tools of one name


def _check_messages(request: Any) -> None:
    messages = request.get("messages") if isinstance(request, Mapping) else None
    if not isinstance(messages, list) or not messages:
        raise InvalidInput("a request is an object with messages, a list that is not empty")
    for place, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InvalidInput(f"messages[{place}] is no object with a role")


def opening_messages(sample: Sample) -> list[Message]:
    """The request's messages as a trajectory has them; what is sent is the request itself."""
    return [_message(given) for given in with_system(sample.input["messages"])]


set_version(opening_messages, 1)


def _message(given: Mapping[str, Any]) -> Message:
    role = _ROLES.get(given["role"], "system")
    content = given.get("content")
    if content is None:
        content = ""
    parts = isinstance(content, list) and all(isinstance(part, dict) for part in content)
    if not isinstance(content, str) and not parts:
        content = _encoder.encode(content).decode()
    plain: dict[str, Any] = {"role": role, "content": content}
    for name in ("tool_call_id", "reasoning_content"):
        if isinstance(given.get(name), str):
            plain[name] = given[name]
    try:
        return message_of({**plain, "tool_calls": given.get("tool_calls")}, "messages")
    except (InvalidInput, TypeError):  # calls of an unknown shape; the request has them
        return message_of(plain, "messages")


def request_key(request: Mapping[str, Any]) -> str:
    """What is asked, whoever is asked and however the answer is to come."""
    asked = {key: value for key, value in request.items() if key not in ("model", *DELIVERY)}
    return _digest({**asked, "messages": with_system(request["messages"])})


def _digest(request: Mapping[str, Any]) -> str:
    return hashlib.blake2b(_encoder.encode(request), digest_size=12).hexdigest()


def _numbered(names: Iterable[str]) -> Iterator[str]:
    """Those that come again with #2, #3 … behind them."""
    seen: Counter[str] = Counter()
    for name in names:
        seen[name] += 1
        yield name if seen[name] == 1 else f"{name}#{seen[name]}"


# --- Answers ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answer:
    request: str | None
    """`request_key` of what was asked; None where that is not recorded."""
    line: int | None
    """Of the file of requests, counted from 1."""
    response: ResponseCalls | None
    """None where there is none: it errored."""


@dataclass(frozen=True, slots=True)
class CallSet:
    """The answers of one model to a file of requests, each once."""

    name: str
    answers: tuple[Answer, ...]
    complete: bool = True

    @property
    def knows_requests(self) -> bool:
        return all(answer.request is not None for answer in self.answers)

    @property
    def responses(self) -> list[ResponseCalls]:
        return [answer.response for answer in self.answers if answer.response is not None]

    @property
    def errored(self) -> int:
        return len(self.answers) - len(self.responses)

    def keyed(self, *, by_line: bool) -> dict[str, ResponseCalls | None]:
        keys = (str(a.line if by_line else a.request) for a in self.answers)
        return dict(zip(_numbered(keys), (a.response for a in self.answers), strict=True))


def answers_of(report: EvalReport) -> list[CallSet]:
    """A set for each repeat of a run whose samples are requests."""
    sets: dict[int, list[Answer]] = {}
    for result in report.results:
        sets.setdefault(result.repeat, []).append(_answer_of(result, report))
    complete = report.summary.get("complete") is not False
    return [CallSet(str(report.path), tuple(sets[n]), complete) for n in sorted(sets)]


def _answer_of(result: EvalResult, report: EvalReport) -> Answer:
    request, line = result.sample.input, result.sample.metadata.get("line")
    try:
        _check_messages(request)
        response = response_of(result.trajectory, tools_of(request)) if result.ok else None
    except InvalidInput as problem:
        raise InvalidInput(
            f"{report.path}: sample {result.sample_id!r} is no request, as `heldout toolcalls` "
            f"stores them: {problem}"
        ) from None
    return Answer(request_key(request), line if isinstance(line, int) else None, response)


def read_reference(given: str | Path) -> list[CallSet]:
    """The sets of answers of a run (its path or name), or of a JSONL of results."""
    path = Path(given)
    if path.is_file() and not RunDir(path.parent).run.exists():
        return [CallSet(str(path), tuple(_stored_answers(path)))]
    sets = answers_of(EvalReport.load(find_run(path.parent if path.is_file() else path)))
    if not sets:
        raise InvalidInput(f"{given} has no answers yet")
    return sets


def _stored_answers(path: Path) -> Iterator[Answer]:
    """Of `{"request", "response"}` a line, with `data_index` and `status` where they are known."""
    rows = [(where, _checked_row(where, row)) for where, row in jsonl_rows(path)]
    if not rows:
        raise InvalidInput(f"{path} holds no results")
    asked = [isinstance(row.get("request"), Mapping) for _, row in rows]
    placed = [type(row.get("data_index")) is int for _, row in rows]
    if not all(asked) and (any(asked) or not all(placed)):
        where = rows[asked.index(False)][0]
        raise InvalidInput(
            f'{where}: every line has a "request", or else every line a "data_index", which is '
            "the line of its request"
        )
    answers: dict[int, Answer] = {}
    for number, (where, row) in enumerate(rows):
        line = row["data_index"] if all(placed) else None
        answer = Answer(_key_in(row, where), line, _stored_response(row))
        place = number if line is None else line
        # A request that failed and was asked again has a line for each time.
        if answer.response is not None or place not in answers:
            answers[place] = answer
    yield from (answers[place] for place in sorted(answers))


def _checked_row(where: str, row: Any) -> Mapping[str, Any]:
    if not isinstance(row, Mapping) or "response" not in row:
        raise InvalidInput(
            f'{where}: a line of results is {{"request": {{…}}, "response": {{a chat completion}}}}'
        )
    return row


def _key_in(row: Mapping[str, Any], where: str) -> str | None:
    request = row.get("request")
    if not isinstance(request, Mapping):
        return None
    try:
        _check_messages(request)
    except InvalidInput as problem:
        raise InvalidInput(f"{where}: request: {problem}") from None
    return request_key(request)


def _stored_response(row: Mapping[str, Any]) -> ResponseCalls | None:
    if row.get("status", "success") != "success":
        return None
    try:
        completion = completion_of(row["response"])
    except HeldoutError:  # an error that was stored in its place
        return None
    reason = completion.finish_reason
    if reason is None and isinstance(row.get("finish_reason"), str):
        reason = row["finish_reason"]
    # Its calls are not checked: of a reference only whether it calls, and what, is compared.
    return ResponseCalls(reason, completion.message.tool_calls, ())


# --- Both ---------------------------------------------------------------------------------------


def compare_sets(
    candidate: CallSet, reference: CallSet, again: CallSet | None = None
) -> CallReport:
    """The candidate against the reference, and a second run of that against it, too."""
    keyed = _keyed(candidate, reference, again)
    answered = [{k: r for k, r in one.items() if r is not None} for one in keyed]
    second = answered[2] if again is not None else None
    return compare_calls(answered[0], answered[1], reference_again=second)


def check_comparable(
    requests: Sequence[Sample], name: str, reference: CallSet, again: CallSet | None = None
) -> None:
    """Refuse a reference that was asked something else, before anything else is asked."""
    unanswered = tuple(
        Answer(request_key(sample.input), sample.metadata["line"], None) for sample in requests
    )
    _keyed(CallSet(name, unanswered), reference, again)


def _keyed(
    candidate: CallSet, reference: CallSet, again: CallSet | None
) -> list[dict[str, ResponseCalls | None]]:
    sets = [candidate, reference] + ([again] if again is not None else [])
    by_line = not all(one.knows_requests for one in sets)
    for one in sets:
        if by_line and any(answer.line is None for answer in one.answers):
            raise InvalidInput(
                f"{one.name} does not say which line of the file each of its requests was, and "
                "the other results say nothing else; give results with their requests"
            )
    keyed = [one.keyed(by_line=by_line) for one in sets]
    for place in (0, 2)[: len(sets) - 1]:
        if not keyed[place].keys() & keyed[1].keys():
            raise InvalidInput(_nothing_in_common(sets[place], sets[1], by_line))
    return keyed


def _nothing_in_common(one: CallSet, other: CallSet, by_line: bool) -> str:
    how = "lines (data_index)" if by_line else "requests"
    return (
        f"{one.name} and {other.name} have no {how} in common, {len(one.answers)} and "
        f"{len(other.answers)} as they are; was the reference asked the same file? Every field of "
        "a request but model and stream has to be the same, temperature and max_tokens included"
    )


def problems_of(responses: Sequence[ResponseCalls]) -> list[tuple[str, int]]:
    """What is wrong with responses that call, the most frequent first."""
    counts: Counter[str] = Counter()
    for response in responses:
        if response.valid is False:
            counts.update(set(response.problems) or {"finish reason tool_calls, and no calls"})
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
