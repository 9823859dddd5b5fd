"""The turn loop: what ends it, what reaches the environment, and that it always closes."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from heldout import Completion, Message, Reply, Sample, Stop, ToolCall, Trajectory, Usage
from heldout._evals import rollout
from heldout._evals.rollout import Attempt, EvalDefinition, TurnFile, unscored
from heldout.environment import make_snapshot, read_snapshot
from heldout.errors import (
    ContextFull,
    EnvironmentFailed,
    InvalidInput,
    ResumeMismatch,
    SnapshotMismatch,
)
from tests.conftest import both_loops
from tests.toy import Counter

QUESTION = [Message("user", "count")]


@pytest.fixture
def run(backend: str) -> Callable[..., Any]:
    return partial(anyio.run, backend=backend)


def add(by: int) -> Message:
    return Message("assistant", "", tool_calls=(ToolCall("call00000", "add", f'{{"by": {by}}}'),))


def policy_of(
    *turns: Message | str | Completion | Exception,
) -> Callable[[Sequence[Message], Any], Any]:
    left = list(turns)

    async def policy(messages: Sequence[Message], tools: Any) -> Completion:
        turn = left.pop(0)
        if isinstance(turn, Exception):
            raise turn
        return Completion.of(turn)

    return policy


def attempt_of(policy: Any, **settings: Any) -> Attempt:
    return Attempt(Sample("a", {}), policy, **settings)


def roll(
    run: Callable[..., Any], policy: Any, environment: Any = None, **settings: Any
) -> Trajectory:
    return roll_out(run, attempt_of(policy, **settings), environment)


def roll_out(run: Callable[..., Any], attempt: Attempt, environment: Any) -> Trajectory:
    trajectory = run(attempt.roll_out, QUESTION, environment)
    assert isinstance(trajectory, Trajectory)
    return trajectory


def test_the_environment_ends_it_or_has_no_reply(run: Callable[..., Any]) -> None:
    class Silent(Counter):
        async def reply(self, messages: Sequence[Message]) -> Reply:
            return Reply()

        def outcome(self) -> dict[str, Any]:
            return {"log": list(self.log)}  # asked for before it is closed

    trajectory = roll(run, policy_of("a", "b"), Counter(turns=2), max_turns=5)
    assert trajectory.stop == Stop("environment")
    assert [m.text for m in trajectory.messages] == ["count", "a", "go on 1", "b"]
    trajectory = roll(run, policy_of("a"), Silent(), max_turns=5)
    assert (trajectory.stop, trajectory.outcome) == (Stop("no_reply"), {"log": ["opening"]})
    trajectory = roll(run, policy_of("one"))
    assert (trajectory.stop, trajectory.outcome) == (Stop("no_reply"), None)


def test_max_turns_ends_it_and_the_last_turns_tool_call_has_its_effect(
    run: Callable[..., Any],
) -> None:
    trajectory = roll(run, policy_of(add(2), add(5)), Counter(), max_turns=2)
    assert trajectory.stop == Stop("limit", "max_turns")
    assert trajectory.messages[-1].text == "total 7"
    assert trajectory.outcome == {"total": 7}


def test_a_cut_off_turn_is_a_signal_beside_whoever_ended_it(run: Callable[..., Any]) -> None:
    cut = Completion(Message("assistant", "I thi"), "length")
    for turns, by in ((1, Stop("environment", truncated=True)), (9, Stop("limit", "max_turns"))):
        policy = policy_of(cut, cut)
        stop = roll(run, policy, Counter(turns=turns), max_turns=2).stop
        assert stop == Stop(by.ended_by, by.limit, truncated=True, finish_reason="length")
    # Only the last turn counts: one that was cut off and gone on from is not a cut-off answer.
    stop = roll(run, policy_of(cut, "whole"), Counter(turns=2), max_turns=3).stop
    assert stop == Stop("environment")


def test_no_turn_starts_once_the_token_budget_is_spent(run: Callable[..., Any]) -> None:
    def turn(prompt: int, completion: int) -> Completion:
        return Completion(Message("assistant", "a"), "stop", Usage(prompt, completion))

    turns = [turn(10, 5), turn(20, 9), turn(40, 9)]
    trajectory = roll(run, policy_of(*turns), Counter(), max_turns=9, token_budget=29)
    assert trajectory.stop == Stop("limit", "token_budget", finish_reason="stop")
    assert trajectory.usage == Usage(30, 14)
    trajectory = roll(run, policy_of(*turns), Counter(), max_turns=3, token_budget=50)
    assert trajectory.stop == Stop("limit", "max_turns", finish_reason="stop")


def test_a_token_budget_that_nobody_counts_is_an_error_not_ignored(run: Callable[..., Any]) -> None:
    with pytest.raises(InvalidInput, match="does not say how many tokens"):
        roll(run, policy_of("a"), Counter(), max_turns=3, token_budget=100)


def test_a_full_context_ends_it_after_the_first_turn_and_is_an_error_before(
    run: Callable[..., Any],
) -> None:
    full = ContextFull("too long")
    trajectory = roll(run, policy_of("a", full), Counter(), max_turns=3)
    assert trajectory.stop == Stop("limit", "context")
    assert [m.text for m in trajectory.messages] == ["count", "a", "go on 1"]
    log: list[str] = []
    with pytest.raises(ContextFull):
        roll(run, policy_of(full), Counter(log=log), max_turns=3)
    assert log == ["opening", "closed"]


def test_an_environment_may_see_how_each_turn_ended(run: Callable[..., Any]) -> None:
    class Watching(Counter):
        async def see_completion(self, completion: Completion) -> None:
            self.log.append(f"{completion.finish_reason} before {self.turn + 1}")

    log: list[str] = []
    cut = Completion(Message("assistant", "I thi"), "length")
    whole = Completion(Message("assistant", "done"), "stop")
    roll(run, policy_of(cut, whole), Watching(turns=2, log=log), max_turns=2)
    assert log == ["opening", "length before 1", "stop before 2", "closed"]


def test_a_reply_that_is_none_is_an_error_that_names_what_was_given(
    run: Callable[..., Any],
) -> None:
    class Wrong(Counter):
        async def reply(self, messages: Sequence[Message]) -> Any:
            return [Message("user", "x")]

    with pytest.raises(TypeError, match="reply must be a Reply, got \\[Message"):
        roll(run, policy_of("a"), Wrong(), max_turns=3)


class Saved(Counter):
    """A counter that can be put away between two turns."""

    env_kind = "counter"
    version = "1.0"

    def snapshot(self) -> Any:
        return make_snapshot(self, {"total": self.total, "turn": self.turn})

    def restore(self, snapshot: dict[str, Any]) -> None:
        state = read_snapshot(self, snapshot)
        self.total, self.turn = state["total"], state["turn"]


def turn_file(tmp_path: Path, run: str = "r", question: str = "count") -> TurnFile:
    return TurnFile(tmp_path / "0-0.json", run, Sample("a", {"question": question}))


def stop_after(
    run: Callable[..., Any], file: TurnFile, *turns: Message, environment: Any = None
) -> None:
    """As if the process had been killed in the turn after these."""
    policy = policy_of(*turns, KeyError("killed"))
    with pytest.raises(KeyError):
        roll(run, policy, environment or Saved(), max_turns=4, turn_file=file)


def test_a_stopped_rollout_goes_on_after_its_last_saved_turn(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    turns = [add(1), add(2), add(3), add(4)]
    whole = roll(run, policy_of(*turns), Saved(), max_turns=4)
    stop_after(run, turn_file(tmp_path), *turns[:2])
    log: list[str] = []
    attempt = attempt_of(policy_of(*turns[2:]), max_turns=4, turn_file=turn_file(tmp_path))
    assert roll_out(run, attempt, Saved(log=log)) == whole
    assert log == ["closed"], "it was opened again"
    assert attempt.state.restored_turns == 2
    assert attempt.state.seconds_before > 0


class Serialized(Counter):
    """Makes a new counter of what a stopped one saved; it checks nothing itself."""

    ENV_KIND = "counter"
    VERSION = "1.0.0"

    async def serialize(self) -> dict[str, Any]:
        state = {"total": self.total, "turn": self.turn}
        return {"env_kind": self.ENV_KIND, "version": self.VERSION, **state}

    @staticmethod
    async def deserialize(data: dict[str, Any]) -> Serialized:
        made = Serialized(log=RESTORED)
        made.total, made.turn = data["total"], data["turn"]
        return made


RESTORED: list[str] = []
"""What happens to counters that were deserialized."""


def test_an_environment_that_is_deserialized_goes_on_and_both_are_closed_once(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    turns = [add(1), add(2), add(3), add(4)]
    whole = roll(run, policy_of(*turns), Serialized(), max_turns=4)
    stop_after(run, turn_file(tmp_path), *turns[:2], environment=Serialized())
    saved = json.loads(turn_file(tmp_path).path.read_bytes())["environment"]
    assert saved == {"env_kind": "counter", "version": "1.0.0", "total": 3, "turn": 2}
    log: list[str] = []
    RESTORED.clear()
    attempt = attempt_of(policy_of(*turns[2:]), max_turns=4, turn_file=turn_file(tmp_path))
    assert roll_out(run, attempt, Serialized(log=log)) == whole
    assert attempt.state.restored_turns == 2
    assert (log, RESTORED) == (["closed"], ["closed"])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"ENV_KIND": "other"}, "a snapshot of 'counter', which 'other' cannot restore"),
        ({"ENV_KIND": "counter", "VERSION": "2.0.0"}, "is of version '1.0.0', and the env"),
    ],
)
def test_another_kind_or_major_version_is_refused_where_deserialize_does_not_look(
    run: Callable[..., Any], tmp_path: Path, changes: dict[str, str], said: str
) -> None:
    stop_after(run, turn_file(tmp_path), add(1), environment=Serialized())
    log: list[str] = []
    attempt = attempt_of(policy_of(add(2)), max_turns=4, turn_file=turn_file(tmp_path))
    with pytest.raises(ResumeMismatch, match=said):
        roll_out(run, attempt, type("Changed", (Serialized,), changes)(log=log))
    assert log == ["closed"]


@pytest.mark.parametrize(
    ("version", "other", "fits"),
    [
        ("1.0.0", "1.2", True),
        ("1", "1.0.0-rc1", True),
        ("01.0", "1.0", True),
        ("0.1", "0.2", True),
        ("1.0.0", "11.0.0", False),
        ("1.0.0", "2.0.0", False),
        ("1.0", "v1.0", False),
        ("1.0", 1, False),
    ],
)
def test_versions_are_compatible_where_they_begin_with_the_same_number(
    version: str, other: Any, fits: bool
) -> None:
    counter = Saved()
    counter.version = version
    snapshot = {"env_kind": "counter", "version": other, "state": {"total": 1}}
    with nullcontext() if fits else pytest.raises(SnapshotMismatch, match="only minor versions"):
        assert read_snapshot(counter, snapshot) == {"total": 1}
    # Flat data are read alike.
    with nullcontext() if fits else pytest.raises(SnapshotMismatch):
        flat = {"env_kind": "counter", "version": other, "total": 1}
        assert read_snapshot(counter, flat) == {"total": 1}


@pytest.mark.parametrize("is_old", [False, True])
def test_every_turn_and_every_reply_has_its_seconds_with_those_of_saved_turns(
    run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_old: bool
) -> None:
    clock = itertools.count(step=0.5)  # at every look at it half a second later
    monkeypatch.setattr(rollout, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    file = turn_file(tmp_path)
    stop_after(run, file, add(1), add(2))
    if is_old:  # an earlier version saved none
        saved = json.loads(file.path.read_bytes())
        del saved["turn_seconds"], saved["reply_seconds"]
        file.path.write_text(json.dumps(saved))
    attempt = attempt_of(policy_of(add(3), "done"), max_turns=4, turn_file=file)
    attempt.definition = EvalDefinition(
        (), unscored, lambda sample: QUESTION, lambda sample: Saved()
    )
    timing = run(attempt.run).timing
    before = [None, None] if is_old else [0.5, 0.5]
    assert timing.turn_seconds == timing.reply_seconds == (*before, 0.5, 0.5)


@pytest.mark.parametrize("other", ["run", "sample", "damaged", "none"])
def test_turns_that_are_not_its_own_are_not_gone_on_from(
    run: Callable[..., Any], tmp_path: Path, other: str
) -> None:
    stop_after(run, turn_file(tmp_path), add(1), add(2))
    file = turn_file(tmp_path)
    if other == "run":
        file = turn_file(tmp_path, run="s")
    elif other == "sample":
        file = turn_file(tmp_path, question="count down")
    elif other == "damaged":
        file.path.write_bytes(file.path.read_bytes()[:-9])
    else:
        file.remove()
    attempt = attempt_of(policy_of(add(7)), turn_file=file)
    assert roll_out(run, attempt, Saved()).outcome == {"total": 7}
    assert attempt.state.restored_turns == 0


def test_an_environment_that_cannot_be_saved_is_refused_before_its_first_turn(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    log: list[str] = []
    with pytest.raises(InvalidInput, match="this Counter has no env_kind"):
        roll(run, policy_of("a"), Counter(log=log), turn_file=turn_file(tmp_path))
    assert log == ["closed"]


@pytest.mark.parametrize("state", [{"a": (1,)}, {1: 2}, {"a": float("nan")}, [1], {"a": 1}])
def test_a_snapshot_that_would_not_come_back_is_an_error(
    run: Callable[..., Any], tmp_path: Path, state: Any
) -> None:
    class Odd(Saved):
        env_kind = "odd"

        def snapshot(self) -> Any:
            return state

    with pytest.raises(EnvironmentFailed, match=r"snapshot\(\) of Odd"):
        roll(run, policy_of("a", "b"), Odd(), max_turns=2, turn_file=turn_file(tmp_path))


@pytest.mark.parametrize("stage", ["opening", "policy", "reply", "outcome"])
def test_it_closes_once_whatever_fails(run: Callable[..., Any], stage: str) -> None:
    log: list[str] = []

    class Failing(Counter):
        pass

    def fail(*_: Any) -> Any:
        raise RuntimeError("broken")

    environment = Failing(turns=1, log=log)
    policy = policy_of(RuntimeError("broken")) if stage == "policy" else policy_of("a")
    if stage != "policy":
        setattr(environment, stage, fail)
    with pytest.raises(RuntimeError, match="broken"):
        roll(run, policy, environment, max_turns=2)
    assert log.count("closed") == 1


def test_what_failed_first_is_what_is_raised_even_if_closing_fails_too(
    run: Callable[..., Any],
) -> None:
    class Broken(Counter):
        async def close(self) -> None:
            raise OSError("cannot close")

    with pytest.raises(RuntimeError, match="the counter is broken") as raised:
        roll(run, policy_of("a"), Broken(fails_at=1), max_turns=2)
    assert raised.value.__notes__ == ["close() failed, too: OSError: cannot close"]
    with pytest.raises(OSError, match="cannot close"):
        roll(run, policy_of("a"), Broken(turns=1), max_turns=2)


@both_loops
def test_a_close_that_hangs_is_said(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heldout._evals.rollout.CLOSE_GRACE_SECONDS", 0.05)

    class Hangs(Counter):
        async def close(self) -> None:
            await anyio.sleep_forever()

    with pytest.raises(EnvironmentFailed, match="close.. was not done after 0.05 s"):
        roll(run, policy_of("a"), Hangs(turns=1), max_turns=2)


@pytest.mark.parametrize("outcome", [[1], {"a": float("nan")}, {"a": {1, 2}}])
def test_an_outcome_that_would_be_stored_as_something_else_is_refused(
    run: Callable[..., Any], outcome: Any
) -> None:
    class Odd(Counter):
        def outcome(self) -> Any:
            return outcome

    with pytest.raises(EnvironmentFailed, match="outcome.. of Odd"):
        roll(run, policy_of("a"), Odd(turns=1), max_turns=2)


def test_an_outcome_is_scored_as_it_will_be_read_back(run: Callable[..., Any]) -> None:
    class Tuples(Counter):
        def outcome(self) -> Any:
            return {"a": (1, 2), "b": {3: "x"}}

    trajectory = roll(run, policy_of("a"), Tuples(turns=1), max_turns=2)
    assert trajectory.outcome == {"a": [1, 2], "b": {"3": "x"}}


@pytest.mark.parametrize("opened", ["hello", ["hello"], None])
def test_an_opening_that_is_no_list_of_messages_is_refused(
    run: Callable[..., Any], opened: Any
) -> None:
    environment = Counter(turns=1)
    environment.opening = lambda: opened
    with pytest.raises(InvalidInput, match="opening.. gives Messages, got"):
        roll(run, policy_of("a"), environment, max_turns=2)


def test_a_turn_of_somebody_else_is_refused(run: Callable[..., Any]) -> None:
    with pytest.raises(InvalidInput, match="a policy's turn must be an assistant's Message"):
        roll(run, policy_of(Message("user", "me?")), Counter(), max_turns=2)


@both_loops
def test_it_closes_when_cancelled_in_the_middle_of_a_turn(run: Callable[..., Any]) -> None:
    log: list[str] = []

    async def main() -> None:
        started = anyio.Event()

        async def forever(messages: Any, tools: Any) -> Completion:
            started.set()
            await anyio.sleep_forever()
            raise AssertionError

        async with anyio.create_task_group() as group:
            group.start_soon(attempt_of(forever).roll_out, QUESTION, Counter(log=log))
            await started.wait()
            group.cancel_scope.cancel()

    run(main)
    assert log == ["opening", "closed"]
