"""Against the real `verifiers`: its rewards come out bit for bit, and its quiet zeros do not."""

from __future__ import annotations

import asyncio
import json
import math
import signal
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from heldout import (
    Completion,
    EvalConfig,
    EvalReport,
    Message,
    Metric,
    Reply,
    Sample,
    Score,
    ToolCall,
    ToolSpec,
    Trajectory,
    Usage,
    evaluate,
)
from heldout._core import versions
from heldout._core.config import NO_TURN_LIMIT
from heldout.adapters.verifiers import from_verifiers, to_verifiers
from heldout.adapters.verifiers.classic_messages import to_heldout_messages, to_verifiers_messages
from heldout.errors import EnvironmentFailed, InvalidInput, SystemicFailure
from heldout.store.fingerprint import describe_callable
from tests.integration.package_scores import check_same_scores

pytestmark = pytest.mark.integration


vf: Any = import_module("verifiers")


@pytest.fixture(scope="module", autouse=True)
def _signals() -> Iterator[None]:
    """Each environment of the package takes over the signals, so they are put back."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs go to the test's own folder."""
    monkeypatch.chdir(tmp_path)


# --- A policy that both sides can ask -----------------------------------------------------------


@dataclass(frozen=True)
class Turn:
    text: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    reasoning: str | None = None


Script = dict[str, list[Turn]]
"""What the policy says to a question, turn by turn; the last one for ever."""


def turn_of(script: Script, said: Sequence[tuple[str, str]]) -> Turn:
    [(at, turns)] = [
        (i, script[text])
        for i, (role, text) in enumerate(said)
        if role == "user" and text in script
    ]
    made = sum(role == "assistant" for role, _ in said[at:])
    return turns[min(made, len(turns) - 1)]


@dataclass
class Scripted:
    """The policy as a heldout endpoint. It keeps what it was asked."""

    script: Script
    asked: list[tuple[list[Message], tuple[ToolSpec, ...]]] = field(default_factory=list)

    async def complete(
        self, messages: Sequence[Message], sampling: Any, tools: Sequence[ToolSpec]
    ) -> Completion:
        await anyio.lowlevel.checkpoint()
        self.asked.append((list(messages), tuple(tools)))
        turn = turn_of(self.script, [(m.role, m.text) for m in messages])
        calls = tuple(ToolCall(f"call{i}", *call) for i, call in enumerate(turn.calls))
        return Completion(
            Message("assistant", turn.text, tool_calls=calls, reasoning=turn.reasoning), "stop"
        )

    def describe(self) -> dict[str, Any]:
        return {"kind": "scripted"}

    async def close(self) -> None:
        pass


def scripted_client(script: Script) -> Any:
    """The same policy as a verifiers client, answering as its OpenAI client would."""

    async def get_response(self: Any, prompt: Any, model: str, *_: Any, **__: Any) -> Any:
        turn = turn_of(script, [(m.role, m.content) for m in prompt])
        calls = [
            vf.ToolCall(id=f"call{i}", name=name, arguments=arguments)
            for i, (name, arguments) in enumerate(turn.calls)
        ]
        message = vf.ResponseMessage(
            content=turn.text or None if calls else turn.text,
            reasoning_content=turn.reasoning,
            tool_calls=calls or None,
            finish_reason="stop",
            is_truncated=False,
        )
        return vf.Response(id="", created=0, model=model, message=message)

    body = dict.fromkeys(vf.Client.__abstractmethods__, get_response)
    return type("Client", (vf.Client,), {**body, "get_response": get_response})(None)


def theirs(env: Any, script: Script, split: str = "eval") -> list[Any]:
    """What verifiers itself makes of every row."""
    dataset = env.get_eval_dataset() if split == "eval" else env.get_dataset()
    client = scripted_client(script)

    async def run() -> list[Any]:
        return [await env.run_rollout(row, client, "m", {}) for row in dataset.to_list()]

    return asyncio.run(run())


def run_definition(ev: Any, endpoint: Any, name: str = "run", **settings: Any) -> EvalReport:
    defaults = {"endpoint": endpoint, "experiment_name": name, "max_error_rate": 1}
    return asyncio.run(evaluate(ev, EvalConfig(**{**defaults, **settings})))


def ours(env: Any, endpoint: Any, name: str = "run", *, split: Any = "eval", **how: Any) -> Any:
    return run_definition(from_verifiers(env, split=split), endpoint, name, **how)


def metrics_of(result: Any) -> dict[str, float]:
    return {m.name: m.value for m in result.score.metrics if m.name != "reward"}


# --- Environments -------------------------------------------------------------------------------


def rows(*questions: str) -> Any:
    from datasets import Dataset

    return Dataset.from_list([{"question": q, "answer": q[::-1]} for q in questions])


def seen(prompt: Any, completion: Any, answer: str) -> float:
    """A number that is another one wherever a reward function is shown anything else."""
    said = [
        (m.role, m.content, m.get("reasoning_content"), [c.name for c in m.get("tool_calls") or []])
        for m in [*prompt, *completion]
    ]
    return float(zlib.crc32(json.dumps([said, answer]).encode()))


async def right(completion: Any, answer: str) -> float:
    return float(completion[-1].content == answer) / 3


def length(completion: Any) -> float:
    return 0.1 * len(completion)


def rubric_of(*more: Any) -> Any:
    """Weights whose sum depends on the order it is made in, and one below 0."""
    weights = [0.1, 0.7, -0.2, *[0.3] * len(more)]
    return vf.Rubric(funcs=[right, length, seen, *more], weights=weights)


def single() -> tuple[Any, Script]:
    few_shot = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "x"}]
    env = vf.SingleTurnEnv(
        eval_dataset=rows("abc", "def"),
        system_prompt="Reverse.",
        few_shot=few_shot,
        rubric=rubric_of(),
    )
    return env, {"abc": [Turn("cba", reasoning="hm")], "def": [Turn("")]}


def multi() -> tuple[Any, Script]:
    class Hints(vf.MultiTurnEnv):  # type: ignore[misc]
        async def setup_state(self, state: Any) -> None:
            state["hints"] = 0

        async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
            state["hints"] += 1
            if messages[-1].content == state["answer"]:
                state["final_env_response"] = [vf.UserMessage(content="yes")]
                return state["final_env_response"]
            # A raw dict, as many environments return.
            return [{"role": "user", "content": f"no, hint {state['hints']}"}]

        @vf.stop  # type: ignore[untyped-decorator]
        async def gave_up(self, state: Any) -> bool:
            return any("give up" in s["completion"][-1].content for s in state["trajectory"])

    def hints(state: Any) -> int:
        return int(state["hints"])

    env = Hints(eval_dataset=rows("abc", "def", "ghi"), max_turns=4, rubric=rubric_of(hints))
    script = {
        "abc": [Turn("?"), Turn("??", reasoning="so"), Turn("cba")],
        "def": [Turn("?"), Turn("I give up")],
        "ghi": [Turn("wrong")],  # ends at the environment's max_turns
    }
    return env, script


def tools() -> tuple[Any, Script]:
    def divide(a: int, b: int) -> float:
        """Divide a by b."""
        return a / b

    env = vf.ToolEnv(
        tools=[divide], max_turns=3, eval_dataset=rows("abc", "def"), rubric=rubric_of()
    )
    ok, zero = '{"a": 1, "b": 2}', '{"a": 1, "b": 0}'
    script = {
        "abc": [Turn("", (("divide", ok), ("divide", zero), ("none", "{}"))), Turn("0.5")],
        "def": [Turn("so", (("divide", "not json"),))],  # calls to the last: max_turns
    }
    return env, script


def stateful() -> tuple[Any, Script]:
    class Notes(vf.StatefulToolEnv):  # type: ignore[misc]
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.add_tool(self.note, args_to_skip=["book"])

        async def note(self, text: str, book: Any) -> str:
            """Note a text."""
            book.append(text)
            return f"{len(book)} notes"

        async def setup_state(self, state: Any) -> Any:
            state["book"] = []
            return state

        def update_tool_args(self, tool_name: str, tool_args: Any, *rest: Any, **_: Any) -> Any:
            return {**tool_args, "book": rest[1]["book"]}

    def noted(state: Any) -> float:
        return float(len(state["book"]))

    env = Notes(max_turns=3, eval_dataset=rows("abc", "def"), rubric=rubric_of(noted))
    a = ("note", '{"text": "a"}')
    return env, {"abc": [Turn("", (a, a)), Turn("done")], "def": [Turn("more", (a,))]}


def group() -> tuple[Any, Script]:
    (first, script), (second, _) = single(), tools()
    # Groups of groups; its datasets cannot be put together where only one of them is nested.
    groups = [vf.EnvGroup([env], env_names=["inner"]) for env in (first, second)]
    return vf.EnvGroup(groups, env_names=["words", "tools"]), {
        **script,
        "abc": [Turn("", (("divide", '{"a": 1, "b": 4}'),)), Turn("cba")],
    }


KINDS = {f.__name__: f for f in (single, multi, tools, stateful, group)}


def evaluated(env: Any, script: Script) -> tuple[list[Any], float]:
    """The package's own eval: the outputs in the dataset's order, and its mean."""
    own = asyncio.run(env.evaluate(scripted_client(script), "m", independent_scoring=True))
    outputs = {output["example_id"]: output for output in own["outputs"]}
    rows = env.get_eval_dataset().to_list()
    return [outputs[row["example_id"]] for row in rows], own["metadata"]["avg_reward"]


@pytest.mark.parametrize("kind", KINDS)
def test_rewards_and_metrics_are_those_of_verifiers_bit_for_bit(kind: str) -> None:
    env, script = KINDS[kind]()
    report = ours(env, Scripted(script))
    expected, mean = evaluated(env, script)
    check_same_scores(report, [output["reward"] for output in expected], mean)
    for result, output in zip(report.results, expected, strict=True):
        assert metrics_of(result) == output["metrics"]
        assert result.trajectory.outcome["stop_condition"] == output["stop_condition"]


def test_the_policy_is_shown_what_verifiers_shows() -> None:
    env, script = stateful()
    endpoint = Scripted(script)
    report = ours(env, endpoint, max_concurrent=1)
    first, called = endpoint.asked[0], endpoint.asked[1][0]
    assert [m.text for m in first[0]] == ["abc"]
    assert [(t.name, list(t.parameters["properties"])) for t in first[1]] == [("note", ["text"])]
    assert [(m.role, m.text, m.tool_call_id) for m in called[2:]] == [
        ("tool", "1 notes", "call0"),
        ("tool", "2 notes", "call1"),
    ]
    assert report.results[0].trajectory.stop.ended_by == "environment"


def test_a_result_has_the_whole_prompt_and_the_weights_and_the_rubric_is_left_as_it_was() -> None:
    env, script = single()
    inner = list(env.rubric.rubrics)
    before = [list(r.funcs) for r in inner]
    result = ours(env, Scripted(script)).results[0]
    assert [m.text for m in result.trajectory.messages] == ["Reverse.", "x", "x", "abc", "cba"]
    assert result.trajectory.messages[-1].reasoning == "hm"
    weights = {m.name: (m.weight, m.metadata.get("weight")) for m in result.score.metrics}
    assert weights == {
        "reward": (1.0, None), "right": (0.0, 0.1), "length": (0.0, 0.7), "seen": (0.0, -0.2),
        "num_turns": (0.0, 0.0),
    }  # fmt: skip
    assert [list(r.funcs) for r in env.rubric.rubrics] == before
    assert all(a is b for a, b in zip(env.rubric.rubrics, inner, strict=True))


def test_a_call_in_the_last_turn_heldout_allows_is_carried_out_before_scoring() -> None:
    env, script = stateful()
    report = ours(env, Scripted(script), max_turns=1)
    result = report.results[0]
    assert result.trajectory.stop.limit == "max_turns"
    assert result.score["noted"] == 2.0
    assert result.trajectory.messages[-1].text == "2 notes"
    assert result.trajectory.outcome["stop_condition"] == "heldout_limit"


def test_a_prompt_that_is_a_plain_text_is_the_users() -> None:
    from datasets import Dataset

    data = Dataset.from_list([{"prompt": "abc", "answer": "cba"}])
    env = vf.SingleTurnEnv(eval_dataset=data, rubric=rubric_of())
    result = ours(env, Scripted({"abc": [Turn("cba")]})).results[0]
    assert [(m.role, m.text) for m in result.trajectory.messages] == [
        ("user", "abc"),
        ("assistant", "cba"),
    ]


def test_equal_rows_of_a_dataset_are_one_cluster() -> None:
    env = vf.SingleTurnEnv(eval_dataset=rows(*"aaabbbcccddd"), rubric=rubric_of())
    summary = ours(env, lambda messages: "a").summary
    assert (summary["n"], summary["n_clusters"]) == (12, 4)


def test_samples_keep_the_row_and_have_ids_of_their_own() -> None:
    from datasets import Dataset

    data = Dataset.from_list(
        [{"question": q, "answer": "1", "example_id": 7, "level": q} for q in ("a", "b")]
    )
    env = vf.SingleTurnEnv(dataset=data, rubric=rubric_of())
    samples = from_verifiers(env, split="train", metadata=["level"]).samples
    assert [s.id for s in samples] == ["7", "7#2"]
    row = env.get_dataset().to_list()[0]
    # The number of a row is no part of the question: equal rows are copies of one.
    assert (samples[0].metadata["example_id"], samples[0].input) == (row.pop("example_id"), row)
    assert (samples[1].ground_truth, samples[1].metadata) == (
        "1",
        {"level": "b", "example_id": 7},
    )
    grouped = from_verifiers(group()[0]).samples
    assert [s.metadata["env_id"] for s in grouped] == ["words/inner"] * 2 + ["tools/inner"] * 2


def test_the_largest_turn_limit_of_an_environment_is_known() -> None:
    assert from_verifiers(multi()[0]).max_turns == 4
    assert from_verifiers(group()[0]).max_turns == 3
    env = multi()[0]
    env.max_turns = -1
    assert from_verifiers(env).max_turns == NO_TURN_LIMIT


def test_a_resumed_run_notices_another_reward_function() -> None:
    def one(completion: Any) -> float:
        return 1.0

    def two(completion: Any) -> float:
        return 2.0

    def described(function: Any, weight: float = 1.0) -> Any:
        rubric = vf.Rubric(funcs=[function], weights=[weight])
        env = vf.SingleTurnEnv(eval_dataset=rows("a"), rubric=rubric)
        return describe_callable(from_verifiers(env).score_fn)

    assert described(one) == described(one)
    assert described(one) != described(two)
    assert described(one) != described(one, 0.5)


# --- Names --------------------------------------------------------------------------------------


def test_names_that_clash_are_numbered() -> None:
    def named(name: str, value: float) -> Any:
        def function(completion: Any) -> float:
            return value

        function.__name__ = name
        return function

    first = vf.Rubric(funcs=[named("reward", 1), named("acc_n", 2), named("acc", 3)])
    second = vf.Rubric(funcs=[named("acc", 4), named("acc_2", 5), named("reward_stderr", 6)])
    env = vf.SingleTurnEnv(eval_dataset=rows("a"), rubric=vf.RubricGroup([first, second]))
    result = ours(env, Scripted({"a": [Turn("b")]})).results[0]
    assert result.score.reward == 1 + 2 + 3 + 4 + 5 + 6
    assert metrics_of(result) == {
        "reward_2": 1, "acc_n_2": 2, "acc": 3, "acc_3": 4, "acc_2": 5, "reward_stderr_2": 6,
        "num_turns": 1,
    }  # fmt: skip


def test_a_function_in_two_rubrics_is_two_metrics_with_what_it_returned() -> None:
    def fine(completion: Any) -> float:
        return 1.0

    rubrics = [vf.Rubric(funcs=[fine], weights=[weight]) for weight in (0.5, 0.25)]
    env = vf.SingleTurnEnv(eval_dataset=rows("a"), rubric=vf.RubricGroup(rubrics))
    result = ours(env, Scripted({"a": [Turn("b")]})).results[0]
    assert result.score.reward == 0.75
    assert metrics_of(result) == {"fine": 1.0, "fine_2": 1.0, "num_turns": 1}


# --- What verifiers would score with 0 ----------------------------------------------------------


def one_error(rubric: Any = None, env: Any = None, name: str = "run") -> str:
    """The error of the item "bad", next to which "good" is scored."""
    if env is None:
        env = vf.SingleTurnEnv(eval_dataset=rows("good", "bad"), rubric=rubric)
    report = ours(env, Scripted({"good": [Turn("good")], "bad": [Turn("bad")]}), name)
    good, bad = report.results
    assert good.ok, good.error
    assert not bad.score.metrics
    assert bad.trajectory.messages[-1].text == "bad", "what the model said is kept"
    assert bad.error is not None
    return str(bad.error)


def fine(completion: Any) -> float:
    return 1.0


def fussy(completion: Any) -> float:
    return 1.0 / (completion[-1].content != "bad")


def test_a_reward_function_that_raises_is_an_error() -> None:
    async def slow(completion: Any, **kwargs: Any) -> float:
        await asyncio.sleep(0)
        raise RuntimeError("judge is down")

    error = one_error(vf.Rubric(funcs=[fussy]), name="1")
    assert "environment: reward function 'fussy' raised ZeroDivisionError" in error
    assert "(test_verifiers.py, line " in error
    inner = vf.RubricGroup([vf.Rubric(funcs=[fine]), vf.Rubric(funcs=[fussy], weights=[0.0])])
    error = one_error(vf.RubricGroup([vf.Rubric(funcs=[fine]), inner]), name="2")
    assert "reward function 'fussy' raised" in error
    env = vf.SingleTurnEnv(eval_dataset=rows("a"), rubric=vf.Rubric(funcs=[fine, slow]))
    with pytest.raises(SystemicFailure, match="'slow' raised RuntimeError: judge is down"):
        ours(env, Scripted({"a": [Turn("b")]}), "3")


def test_a_judge_that_fails_is_an_error() -> None:
    async def create(messages: Any, **kwargs: Any) -> Any:
        if "Response:\n```\nbad" in messages[0]["content"]:
            raise ConnectionError("no judge today")
        return SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(content="yes"))])

    async def judged(judge: Any, prompt: Any, completion: Any, answer: str, state: Any) -> float:
        return float(await judge(prompt, completion, answer, state) == "yes")

    client = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))
    rubric = type("Careful", (vf.JudgeRubric,), {})(judge_client=client)
    rubric.add_reward_func(judged)
    error = one_error(rubric)
    assert "'judged' raised RuntimeError" in error
    assert "ConnectionError: no judge today" in error


def test_a_rubric_kept_in_another_rubrics_attribute_is_watched_too() -> None:
    class Outer(vf.Rubric):  # type: ignore[misc]
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner, self.passes = inner, 0

        async def score_rollout(self, state: Any) -> None:
            self.passes += 1
            await self.inner.score_rollout(state)
            state["metrics"] = {**state["metrics"], "outer": 1.0}

    rubric = Outer(vf.Rubric(funcs=[fussy]))
    assert "'fussy' raised" in one_error(rubric)
    assert rubric.passes == 2, "the rubric's own attributes are its own"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "reward function 'odd' returned"),
        ("high", "reward function 'odd' returned"),
        (math.nan, "'reward' is nan"),
        (math.inf, "'reward' is nan"),
    ],
)
def test_a_reward_that_is_no_finite_number_is_an_error(given: Any, said: str) -> None:
    def odd(completion: Any) -> Any:
        return given if completion[-1].content == "bad" else 1.0

    assert said in one_error(vf.Rubric(funcs=[fine, odd], weights=[1.0, 0.0]))


ALL_CLEAN = ["bad", "good", "rubric bad", "rubric good"]


def broken_env(where: str, problem: Exception, cleaned: list[str]) -> Any:
    """Two rows, "good" and "bad"; for the bad one `problem` is raised. Notes what is cleaned up."""

    class Scoring(vf.Rubric):  # type: ignore[misc]
        @vf.cleanup  # type: ignore[untyped-decorator]
        async def clean(self, state: Any) -> None:
            cleaned.append("rubric " + state["input"]["question"])

    class Broken(vf.MultiTurnEnv):  # type: ignore[misc]
        def hit(self, place: str, state: Any) -> None:
            if state["input"]["question"] == "bad" and where == place:
                raise problem

        async def setup_state(self, state: Any) -> Any:
            self.hit("setup_state", state)
            return state

        async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
            self.hit("env_response", state)
            if state["input"]["question"] == "bad" and where == "state":
                state["error"] = problem
            state["final_env_response"] = [vf.UserMessage(content="bad")]
            return []

        @vf.cleanup  # type: ignore[untyped-decorator]
        async def clean(self, state: Any) -> None:
            assert state["completion"] is not None
            cleaned.append(state["input"]["question"])
            self.hit("cleanup", state)

    def scored(state: Any) -> float:
        env.hit("reward", state)
        return 1.0

    env = Broken(eval_dataset=rows("good", "bad"), rubric=Scoring(funcs=[scored]))
    return env


@pytest.mark.parametrize(
    ("where", "theirs_too"),
    [
        ("env_response", True),
        ("env_response", False),
        ("state", True),
        ("cleanup", False),
        ("reward", True),
    ],
)
def test_a_rollout_that_fails_is_an_error_and_cleaned_up_once(where: str, theirs_too: bool) -> None:
    problem = vf.InfraError("disk gone") if theirs_too else OSError("disk gone")
    cleaned: list[str] = []
    error = one_error(env=broken_env(where, problem, cleaned))
    assert error.startswith("environment: ")
    assert f"{type(problem).__name__}: disk gone" in error
    assert sorted(cleaned) == ALL_CLEAN


def test_a_setup_that_fails_is_an_error_and_cleaned_up_once() -> None:
    cleaned: list[str] = []
    env = broken_env("setup_state", vf.SandboxError("no sandbox"), cleaned)
    report = ours(env, Scripted({"good": [Turn("good")], "bad": [Turn("bad")]}))
    assert "Broken: SandboxError: no sandbox" in str(report.results[1].error)
    assert sorted(cleaned) == ALL_CLEAN


def test_a_failed_policy_and_a_timeout_still_clean_up() -> None:
    async def policy(messages: list[Message]) -> str:
        if messages[0].text == "bad":
            await anyio.sleep_forever()
        raise OSError("no policy")

    cleaned: list[str] = []
    env = broken_env("", OSError(), cleaned)
    with pytest.raises(SystemicFailure):
        ours(env, policy, timeout=0.3)
    assert sorted(cleaned) == ALL_CLEAN


def test_a_cleanup_that_fails_does_not_keep_the_other_from_running() -> None:
    cleaned: list[str] = []
    env = broken_env("cleanup", OSError("no cleanup"), cleaned)
    ev = from_verifiers(env)

    async def run() -> None:
        environment: Any = ev.environment_factory(ev.samples[1])
        opening = await environment.opening()
        environment._state["error"] = vf.Error("first")
        with pytest.raises(EnvironmentFailed, match="first"):
            await environment.reply((*opening, Message("assistant", "bad")))
        with pytest.raises(OSError, match="no cleanup"):
            await environment.close()

    asyncio.run(run())
    assert cleaned == ["bad", "rubric bad"]


def test_a_tool_error_that_is_to_stop_the_rollout_names_its_cause() -> None:
    def lookup(key: str) -> str:
        """Look up a key."""
        raise LookupError(f"no {key}")

    env = vf.ToolEnv(
        tools=[lookup], stop_errors=[LookupError], eval_dataset=rows("a"), rubric=rubric_of()
    )
    script = {"a": [Turn("", (("lookup", '{"key": "x"}'),))]}
    with pytest.raises(SystemicFailure, match="ToolEnv: ToolCallError from LookupError: no x"):
        ours(env, Scripted(script))


def test_an_environment_that_asks_a_model_by_itself_is_told_how() -> None:
    class Asking(vf.MultiTurnEnv):  # type: ignore[misc]
        async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
            response = await self.get_model_response(state, messages)
            return [vf.UserMessage(content=response.message.content)]

    env = Asking(eval_dataset=rows("a"), max_turns=2, rubric=vf.Rubric(funcs=[fine]))
    script = {"a": [Turn("b")]}
    with pytest.raises(SystemicFailure, match="calls a model by itself; pass from_verifiers"):
        ours(env, Scripted(script), "1")
    ev = from_verifiers(env, client=scripted_client(script), model="m")
    report = run_definition(ev, Scripted(script), "2")
    assert [m.text for m in report.results[0].trajectory.messages] == ["a", "b", "b", "b"]


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ("silent", "gave no message and no end"),
        ("rewrites", "rewrote"),
        ("grows", "Odd changed its tools"),
    ],
)
def test_an_environment_that_rewrites_falls_silent_or_changes_its_tools_is_an_error(
    question: str, said: str
) -> None:
    class Odd(vf.MultiTurnEnv):  # type: ignore[misc]
        async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
            if question == "silent":
                return []
            if question == "grows":
                state["tool_defs"] = [vf.Tool(name="new", description="", parameters={})]
            else:
                messages[0].content = "something else"
            return [vf.UserMessage(content="go on")]

    env = Odd(eval_dataset=rows(question), rubric=vf.Rubric(funcs=[fine]))
    with pytest.raises(SystemicFailure, match=said):
        ours(env, Scripted({question: [Turn("b")]}))


def test_an_environments_own_time_limit_ends_it_as_in_verifiers() -> None:
    class Slow(vf.MultiTurnEnv):  # type: ignore[misc]
        async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(60)

    env = Slow(eval_dataset=rows("a"), timeout_seconds=0.3, rubric=vf.Rubric(funcs=[length]))
    script = {"a": [Turn("b")]}
    [result], [output] = ours(env, Scripted(script)).results, theirs(env, script)
    assert result.score.reward == output["reward"] == 0.1
    assert result.trajectory.outcome["stop_condition"] == output["stop_condition"]


# --- What is known of a turn besides its message ------------------------------------------------


def test_a_turn_that_was_cut_off_and_its_usage_reach_the_state() -> None:
    def cut(state: Any) -> bool:
        return bool(state["is_truncated"])

    def tokens(state: Any) -> float:
        return float(state["usage"]["output_tokens"])

    env = vf.SingleTurnEnv(eval_dataset=rows("a"), rubric=vf.Rubric(funcs=[cut, tokens]))
    ev = from_verifiers(env)

    async def run() -> dict[str, Any]:
        environment: Any = ev.environment_factory(ev.samples[0])
        opening = await environment.opening()
        message = Message("assistant", "b")
        environment.see_completion(Completion(message, "length", Usage(5, 7)))
        assert (await environment.reply((*opening, message))).done
        outcome: dict[str, Any] = await environment.outcome()
        await environment.close()
        return outcome

    outcome = asyncio.run(run())
    assert outcome["is_truncated"] is True
    assert outcome["metrics"] == {"cut": 1.0, "tokens": 7.0, "num_turns": 1.0}


# --- Refusals -----------------------------------------------------------------------------------


def test_group_reward_functions_are_refused() -> None:
    def best_of(completions: Any) -> list[float]:
        return [1.0] * len(completions)

    rubric = vf.RubricGroup([vf.Rubric(funcs=[fine]), vf.Rubric(funcs=[best_of])])
    env = vf.SingleTurnEnv(eval_dataset=rows("a"), rubric=rubric)
    with pytest.raises(InvalidInput, match="best_of score a group of rollouts together.*Leave"):
        from_verifiers(env)


def test_environments_without_a_reward_are_refused() -> None:
    with pytest.raises(InvalidInput, match="Rubric has no reward functions"):
        from_verifiers(vf.SingleTurnEnv(eval_dataset=rows("a")))
    env = single()[0]
    env.set_score_rollouts(False)
    with pytest.raises(InvalidInput, match="set_score_rollouts"):
        from_verifiers(env)


def test_what_cannot_be_driven_from_outside_is_refused() -> None:
    class Agent(vf.SingleTurnEnv):  # type: ignore[misc]
        async def get_model_response(self, *args: Any, **kwargs: Any) -> Any: ...

    class Own(vf.Environment):  # type: ignore[misc]
        async def rollout(self, *args: Any, **kwargs: Any) -> Any: ...

    for kind, said in [(Agent, "replaces get_model_response"), (Own, "a way of its own")]:
        with pytest.raises(InvalidInput, match=said):
            from_verifiers(kind(eval_dataset=rows("a"), rubric=rubric_of()))
    with pytest.raises(InvalidInput, match="Could not import 'no-such-env'"):
        from_verifiers("no-such-env")
    with pytest.raises(InvalidInput, match="need verifiers 0.4"):
        from_verifiers(object())
    with pytest.raises(InvalidInput, match="no argument 'harness'"):
        from_verifiers(object(), harness="null")


def test_the_training_rows_are_not_taken_for_held_out_ones() -> None:
    env = vf.SingleTurnEnv(dataset=rows("a"), rubric=rubric_of())
    with pytest.raises(InvalidInput, match="no eval dataset.*split='train'"):
        from_verifiers(env)
    with pytest.raises(InvalidInput, match="no column 'level'"):
        from_verifiers(env, split="train", metadata=["level"])


def test_forgetting_prepare_messages_is_an_error_that_says_so() -> None:
    ev = from_verifiers(single()[0])
    config = EvalConfig(endpoint=lambda messages: "x")
    hooks: Any = {"environment_factory": ev.environment_factory}
    with pytest.raises(InvalidInput, match="'question' and 'prompt'.*pass prepare_messages"):
        asyncio.run(evaluate(ev.samples, config, ev.score_fn, **hooks))
    asked = [replace(s, input={"prompt": s.input["prompt"]}) for s in ev.samples]
    with pytest.raises(SystemicFailure, match="pass prepare_messages=ev.prepare_messages"):
        asyncio.run(evaluate(asked, config, ev.score_fn, **hooks))
    with pytest.raises(SystemicFailure, match="environment_factory=ev.environment_factory"):
        asyncio.run(evaluate(asked, config, ev.score_fn))


def test_trio_is_refused() -> None:
    env, script = single()
    config = EvalConfig(endpoint=Scripted(script))
    with pytest.raises(SystemicFailure, match="verifiers needs asyncio"):
        anyio.run(partial(evaluate, from_verifiers(env), config), backend="trio")


def test_another_version_is_refused_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "version", lambda name: "0.30.1")
    said = r"verifiers 0.30.1 is installed.*>=0\.3,<0\.4\.1"
    with pytest.raises(InvalidInput, match=said):
        from_verifiers(None)
    with pytest.raises(InvalidInput, match=said):
        to_verifiers([], lambda trajectory, sample: Score())


# --- The other way round ------------------------------------------------------------------------


@dataclass
class Countdown:
    """Counts the turns down; `left` is the state that gets scored."""

    left: int
    log: list[str]
    fails_in: str = ""

    tools = (ToolSpec("wait", "Do nothing.", {"type": "object", "properties": {}}),)

    def hit(self, place: str) -> None:
        self.log.append(place)
        if place == self.fails_in:
            raise OSError("gone")

    async def opening(self) -> list[Message]:
        self.hit("opening")
        return [Message("user", f"{self.left} to go")]

    async def reply(self, messages: Sequence[Message]) -> Reply:
        self.hit("reply")
        self.left -= 1
        return Reply((Message("user", f"{self.left} to go"),), done=self.left == 0)

    async def outcome(self) -> dict[str, Any]:
        self.hit("outcome")
        return {"left": self.left}

    async def close(self) -> None:
        self.hit("close")


def state_score(trajectory: Trajectory, sample: Sample) -> Score:
    left = trajectory.outcome["left"] if trajectory.outcome else -1
    said = [[m.role, m.text, m.reasoning] for m in trajectory.messages]
    metrics = [
        Metric("a", left / 3, weight=0.7),
        Metric("b", len(trajectory.answer), weight=0.2),
        Metric("num_turns", 100.0),
        Metric("said", zlib.crc32(json.dumps(said).encode())),
        Metric("stop", zlib.crc32(repr(trajectory.stop).encode())),
    ]
    return Score(tuple(metrics))


def task(*questions: str) -> list[Sample]:
    return [Sample(f"s-{q}", {"question": q, "n": len(q)}, {"any": "thing"}) for q in questions]


TALK: Script = {q: [Turn(f"{q}!", reasoning="so"), Turn(q)] for q in ("aa", "bbbb")}


@pytest.mark.parametrize("with_environment", [False, True])
def test_a_heldout_eval_has_the_same_rewards_in_verifiers_and_back(with_environment: bool) -> None:
    samples, logs = task(*TALK), []

    def factory(sample: Sample) -> Countdown:
        logs.append([])
        return Countdown(sample.input["n"], logs[-1])

    hooks: Any = {"environment_factory": factory} if with_environment else {}
    config = EvalConfig(endpoint=Scripted(TALK), max_turns=3)
    direct = asyncio.run(evaluate(samples, config, state_score, **hooks)).results
    env = to_verifiers(samples, state_score, max_turns=3, **hooks)
    assert isinstance(env, vf.MultiTurnEnv if with_environment else vf.SingleTurnEnv)
    there = theirs(env, TALK, split="train")
    back = ours(env, Scripted(TALK), "back", split="train").results
    for one, two, three in zip(direct, there, back, strict=True):
        assert one.ok
        assert two["error"] is None
        assert one.score.reward.hex() == two["reward"].hex() == three.score.reward.hex()
        assert {m.name: m.value for m in one.score.metrics} == two["metrics"] == metrics_of(three)
        assert one.trajectory.messages == three.trajectory.messages
    assert all(log.count("close") == 1 and log[-2:] == ["outcome", "close"] for log in logs)
    assert len(logs) == 6 * with_environment


def test_every_turn_reaches_the_environment_whichever_limit_ends_it() -> None:
    log: list[str] = []
    env = to_verifiers(
        task("aa"), state_score, environment_factory=lambda s: Countdown(9, log), max_turns=2
    )
    [output] = theirs(env, TALK, split="train")
    assert log.count("reply") == 2
    assert output["completion"][-1]["content"] == "7 to go"
    env.max_turns = 1  # as a trainer would set it
    log.clear()
    theirs(env, TALK, split="train")
    assert log.count("reply") == 1


@pytest.mark.parametrize("place", ["opening", "reply", "outcome", "close", "score_fn"])
def test_what_fails_is_marked_as_an_error_and_has_no_metrics(place: str) -> None:
    logs: list[list[str]] = []

    def factory(sample: Sample) -> Countdown:
        logs.append([])
        return Countdown(2, logs[-1], place if sample.id == "s-bbbb" else "")

    def score(trajectory: Trajectory, sample: Sample) -> Score:
        if place == "score_fn" and sample.id == "s-bbbb":
            raise OSError("gone")
        return Score((Metric("one", 1.0, weight=1.0),))

    env = to_verifiers(task(*TALK), score, environment_factory=factory)
    good, bad = theirs(env, TALK, split="train")
    assert (good["error"], good["reward"], good["metrics"]) == (None, 1.0, {"one": 1.0})
    assert (bad["reward"], bad["metrics"]) == (0.0, {})
    assert "OSError: gone" in bad["error"]["message"]
    assert "s-bbbb" in bad["error"]["message"]
    assert all(log.count("close") == 1 for log in logs)
    # Taken back, it is an error again and not a 0.
    results = ours(env, Scripted(TALK), split="train").results
    assert [r.ok for r in results] == [True, False]
    assert "OSError: gone" in str(results[1].error)


def test_a_failed_rollout_does_not_pull_its_groups_advantages() -> None:
    def score(trajectory: Trajectory, sample: Sample) -> Score:
        if trajectory.answer == "x":
            raise OSError("gone")
        return Score((Metric("n", len(trajectory.answer), weight=1.0),))

    env = to_verifiers(task("aa"), score)
    [row] = env.get_dataset().to_list()

    async def run() -> list[Any]:
        states = [
            await env.rollout(row, scripted_client({"aa": [Turn(text)]}), "m", {})
            for text in ("x", "yy", "yyyy")
        ]
        await env.rubric.score_group(states)
        return states

    states = asyncio.run(run())
    assert [s["reward"] for s in states] == [0.0, 2.0, 4.0]
    assert [s["advantage"] for s in states] == [0.0, -1.0, 1.0]
    assert [s["trajectory"][0]["advantage"] for s in states] == [0.0, -1.0, 1.0]


def test_messages_survive_the_journey() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,", "detail": "low"}}
    messages = [
        Message("system", "be"),
        Message("user", [{"type": "text", "text": "look"}, image, {"type": "odd", "x": [1]}]),
        Message("assistant", "", (ToolCall("1", "f", '{"a": 1}'), ToolCall("2", "g")), None, "hm"),
        Message("tool", "ok", tool_call_id="1"),
    ]
    assert to_heldout_messages(to_verifiers_messages(messages)) == tuple(messages)


def test_what_verifiers_cannot_take_is_refused() -> None:
    async def prepare(sample: Sample) -> list[Message]:
        return []

    refused: list[tuple[Any, dict[str, Any], str]] = [
        (task("a"), {"prepare_messages": prepare}, "not an async one"),
        (task("a", "a"), {}, "already used"),
        ([], {}, "no samples"),
        (task("a"), {"max_turns": 0}, "max_turns"),
    ]
    for samples, settings, said in refused:
        with pytest.raises(InvalidInput, match=said):
            to_verifiers(samples, state_score, **settings)
    with ThreadPoolExecutor() as pool:
        elsewhere = pool.submit(to_verifiers, task("a"), state_score)
        with pytest.raises(InvalidInput, match="main thread"):
            elsewhere.result()
