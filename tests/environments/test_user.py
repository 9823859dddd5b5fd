"""SimulatedUser: what the user sees, when it ends, and who fails."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from examples.calculator import Calculator
from examples.file_system import FileSystem

from heldout import Completion, Message, Reply, Sampling
from heldout.environments import SimulatedUser, ToolEnvironment
from heldout.environments.user import BEGIN
from heldout.errors import EnvironmentFailed, InvalidInput, SnapshotMismatch, TransientError
from heldout.testing import check_environment
from heldout.types import Stop, ToolSpec
from tests.conftest import both_loops
from tests.environments.conftest import Run, calling, reply_of, rollout
from tests.faulty_server import FaultyServer, answer, nothing_from_outside

SUM = calling(("calculate", '{"expression": "1 + 1"}'))


def opening_of(environment: SimulatedUser) -> list[Message]:
    async def main() -> list[Message]:
        opening = await environment.opening()
        await environment.close()
        return list(opening)

    opening: list[Message] = anyio.run(main)
    return opening


def patient(messages: list[Message]) -> str:
    """Asks twice, then thanks."""
    asked = sum(message.role == "assistant" for message in messages)
    return "Thank you. [DONE]" if asked >= 3 else f"question {asked}"


class Recorded:
    """A user that keeps what it was shown, and answers in order."""

    def __init__(self, *answers: str | Message) -> None:
        self.answers = list(answers)
        self.shown: list[list[Message]] = []

    def __call__(self, messages: list[Message]) -> str | Message:
        self.shown.append(messages)
        return self.answers.pop(0)


# --- What it sees -------------------------------------------------------------------------------


def test_the_user_sees_the_conversation_from_its_own_side() -> None:
    user = Recorded("and?")
    environment = SimulatedUser(user, instructions="You want to know the time.", tools=Calculator())
    conversation = [
        Message("system", "You are helpful."),
        Message("user", "What time is it?"),
        Message("assistant", "Let me see.", SUM.tool_calls),
        Message("tool", "2", tool_call_id="c0"),
        SUM,
        Message("tool", "2", tool_call_id="c0"),
        Message("assistant", "<think>two</think>It is 2.", reasoning="secret"),
    ]

    async def main() -> Reply:
        reply = await environment.reply(tuple(conversation))
        await environment.close()
        return reply

    assert anyio.run(main) == Reply((Message("user", "and?"),))
    assert user.shown == [
        [
            Message("system", "You want to know the time."),
            Message("user", BEGIN),
            Message("assistant", "What time is it?"),
            Message("user", "Let me see."),
            Message("user", "It is 2."),
        ]
    ]


def test_it_opens_with_what_its_tools_open_with_and_its_own_first_message() -> None:
    user = Recorded("hello")
    assert opening_of(SimulatedUser(user)) == [Message("user", "hello")]
    assert user.shown == [[Message("user", BEGIN)]]  # without instructions no system message
    rules = Message("system", "Count.")
    tools = ToolEnvironment([], opening=[rules])
    environment = SimulatedUser(user, first_message="Hi.", tools=tools)
    assert opening_of(environment) == [rules, Message("user", "Hi.")]
    assert len(user.shown) == 1


# --- How it answers -----------------------------------------------------------------------------


class Model:
    """An endpoint object."""

    def __init__(self, *answers: Completion | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[Sampling, Sequence[ToolSpec]]] = []
        self.closed = False

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[ToolSpec]
    ) -> Completion:
        self.asked.append((sampling, tools))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def describe(self) -> dict[str, Any]:
        return {}

    async def close(self) -> None:
        self.closed = True


def said(text: str) -> Completion:
    return Completion(Message("assistant", text))


async def later(messages: list[Message]) -> str:
    return "hello"


@pytest.mark.parametrize(
    "user",
    [
        lambda messages: "hello",
        later,
        lambda messages: Message("assistant", "hello"),
        lambda messages: "<think>say hello</think> hello",
    ],
)
def test_a_user_is_any_function_of_the_messages(user: Any) -> None:
    reply = reply_of(SimulatedUser(user), Message("assistant", "hi"))
    assert reply == Reply((Message("user", "hello"),))


def test_an_endpoint_plays_the_user_with_its_own_sampling_and_is_left_open() -> None:
    model, sampling = Model(said("hello")), Sampling(temperature=0.7)
    environment = SimulatedUser(model, sampling=sampling, tools=Calculator())
    assert reply_of(environment, Message("assistant", "hi")).messages[0].text == "hello"
    assert model.asked == [(sampling, ())]
    assert not model.closed


def test_an_endpoint_that_is_busy_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heldout.models.retries._FIRST_WAIT", 0.001)
    model = Model(TransientError("busy"), said("hello"))
    assert reply_of(SimulatedUser(model), Message("assistant", "hi")).messages[0].text == "hello"


def test_content_in_parts_is_kept() -> None:
    parts: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": "data:,"}}]
    user = Recorded(Message("user", parts))
    assert reply_of(SimulatedUser(user), Message("assistant", "hi")) == Reply(
        (Message("user", parts),)
    )


# --- The end ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "stop", "said", "done"),
    [
        ("[DONE]", "[DONE]", "", True),
        ("Thanks! [DONE] and more", "[DONE]", "Thanks!", True),
        ("Good bye.", "bye", "Good", True),
        ("[DONE]", None, "[DONE]", False),
    ],
)
def test_the_stop_text_ends_the_episode_and_what_was_said_before_is_kept(
    text: str, stop: str | None, said: str, done: bool
) -> None:
    reply = reply_of(SimulatedUser(lambda shown: text, stop=stop), Message("assistant", "hi"))
    assert reply == Reply((Message("user", said),) if said else (), done=done)


@both_loops
def test_a_conversation_of_policy_tools_and_user_runs_to_its_end(run: Run) -> None:
    async def policy(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Completion:
        assert [tool.name for tool in tools] == ["calculate"]
        if messages[-1].role == "user":
            return Completion(SUM)
        return Completion(Message("assistant", f"It is {messages[-1].text}."))

    async def main() -> Any:
        user = SimulatedUser(patient, tools=Calculator())
        return await rollout(policy, [], user, max_turns=20)

    trajectory = run(main)
    assert trajectory.stop == Stop("environment")
    assert [m.role for m in trajectory.messages] == [
        "user", *["assistant", "tool", "assistant", "user"] * 3,
    ]  # fmt: skip
    assert trajectory.messages[-1].text == "Thank you."
    assert trajectory.outcome is None


def test_the_outcome_is_that_of_the_tools(run: Run) -> None:
    async def policy(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Completion:
        if messages[-1].role == "user":
            return Completion(calling(("remove_file", '{"path": "a"}')))
        return Completion(Message("assistant", "Done."))

    async def main() -> Any:
        tools = FileSystem({"/a": ""}, {"/a": None})
        return await rollout(policy, [], SimulatedUser(patient, tools=tools), max_turns=2)

    assert run(main).outcome["files"] == {}


def test_calls_are_the_tools_to_answer_and_to_end_the_episode_with() -> None:
    def submit() -> str:
        return "ok"

    environment = SimulatedUser(patient, tools=ToolEnvironment([submit], ends=["submit"]))
    assert reply_of(environment, calling(("submit", "{}"))).done
    reply = reply_of(SimulatedUser(patient), calling(("a", "{}"), ("b", "{}")))
    assert [m.tool_call_id for m in reply.messages] == ["c0", "c1"]
    assert reply.messages[0].text == "Error: there is no tool 'a'. There are no tools"


# --- Failures -----------------------------------------------------------------------------------


def failing(messages: list[Message]) -> str:
    raise ValueError("no idea")


@pytest.mark.parametrize(
    ("user", "why"),
    [
        (failing, "the simulated user failed: ValueError: no idea"),
        (lambda messages: None, "failed: TypeError: .*got NoneType"),
        (lambda messages: "", "said nothing; to end the episode it says '\\[DONE\\]'"),
        (lambda messages: "<think>hm", "said nothing"),
        (Model(ValueError("broken")), "failed: ValueError: broken"),
    ],
)
def test_a_user_that_fails_or_says_nothing_is_an_environment_that_failed(
    user: Any, why: str
) -> None:
    with pytest.raises(EnvironmentFailed, match=why):
        reply_of(SimulatedUser(user), Message("assistant", "hi"))


def test_a_user_cannot_end_what_has_not_begun() -> None:
    with pytest.raises(EnvironmentFailed, match="ended the conversation before it began"):
        opening_of(SimulatedUser(lambda messages: "[DONE]"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"user": "someone"}, "model 'someone' is not one of openai:MODEL"),
        ({"stop": ""}, "'' is in every text"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        SimulatedUser(**{"user": patient, **options})


@both_loops
def test_users_of_one_name_share_connections_that_end_with_the_event_loop(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing_from_outside(monkeypatch)
    with FaultyServer() as server, warnings.catch_warnings():
        warnings.simplefilter("error")
        server.script(answer("hello"))

        async def main() -> list[str]:
            said = []
            for _ in range(2):
                environment = SimulatedUser(f"openai:m@{server.url}")
                said += [message.text for message in await environment.opening()]
                await environment.close()
            return said

        assert run(main) == ["hello", "hello"]
        gc.collect()  # which would warn of what is left open
        assert (server.connections, len(server.requests)) == (1, 2)


def test_what_the_tools_raise_when_closed_is_not_kept_quiet() -> None:
    class Broken(Calculator):
        async def close(self) -> None:
            raise RuntimeError("stuck")

    async def main() -> None:
        await SimulatedUser(patient, tools=Broken()).close()

    with pytest.raises(RuntimeError, match="stuck"):
        anyio.run(main)


# --- Snapshots ----------------------------------------------------------------------------------


def with_tools() -> SimulatedUser:
    return SimulatedUser(
        patient,
        instructions="Ask.",
        tools=FileSystem({"/a": ""}, {"/a": None}),
        sampling=Sampling(temperature=0.5, stop=("x",)),
    )


def test_a_simulated_user_keeps_the_contract_with_tools_and_without() -> None:
    turns: list[str | Message] = [
        "hello",
        calling(("write_file", '{"path": "b", "text": ""}')),
        "done",
        calling(("list_files", "{}"), ("nope", "{}")),
        "bye",
    ]
    for factory in (with_tools, lambda: SimulatedUser(patient, first_message="Hi.")):
        check_environment(factory, turns=turns)


def test_tools_that_are_deserialized_take_the_place_of_the_ones_it_was_made_with() -> None:
    log: list[str] = []

    class Tally(ToolEnvironment):
        ENV_KIND = "tally"
        VERSION = "1.0.0"

        def __init__(self, count: int = 0) -> None:
            self.count = count
            super().__init__([self.up])

        def up(self) -> str:
            """Count."""
            self.count += 1
            return str(self.count)

        async def close(self) -> None:
            log.append(f"closed at {self.count}")

        async def serialize(self) -> dict[str, Any]:
            return {"env_kind": "tally", "version": "1.0.0", "count": self.count}

        @staticmethod
        async def deserialize(data: dict[str, Any]) -> Tally:
            return Tally(data["count"])

    check_environment(lambda: SimulatedUser(patient, tools=Tally()), turns=[calling(("up", "{}"))])
    log.clear()

    async def main() -> None:
        again = SimulatedUser(patient, tools=Tally())
        await again.restore(await SimulatedUser(patient, tools=Tally(3)).snapshot())
        assert log == ["closed at 0"]
        reply = await again.reply([calling(("up", "{}"))])
        assert reply.messages[0].text == "4"
        await again.close()

    anyio.run(main)
    assert log == ["closed at 0", "closed at 4"]


def test_tools_without_snapshots_are_named() -> None:
    class Bare:
        tools: tuple[ToolSpec, ...] = ()

        def opening(self) -> list[Message]:
            return []

        def reply(self, messages: Sequence[Message]) -> Reply:
            return Reply()

        def close(self) -> None:
            pass

    with pytest.raises(NotImplementedError, match="the tools, a Bare, have no env_kind"):
        anyio.run(SimulatedUser(patient, tools=Bare()).snapshot)


def test_a_snapshot_with_other_tools_is_refused() -> None:
    async def restore() -> None:
        snapshot = await SimulatedUser(patient, tools=Calculator()).snapshot()
        await with_tools().restore(snapshot)

    with pytest.raises(SnapshotMismatch, match="'calculator', which 'file_system' cannot restore"):
        anyio.run(restore)
