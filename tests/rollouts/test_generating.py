"""Rollouts in tokens: one at a time or together, the same tokens, and nobody hurts anybody."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heldout import (
    Completion,
    EvalDefinition,
    Message,
    Metric,
    Reply,
    Sample,
    Sampling,
    Score,
    Stop,
    Trajectory,
    agenerate_rollouts,
    generate_rollouts,
)
from heldout.environments import ToolEnvironment
from heldout.errors import EndpointError, FatalEndpointError, InvalidInput, SystemicFailure
from heldout.rollouts.generating import (
    Generated,
    Rollout,
    _BatchedEngine,
    rollout_batch,
    rollout_one,
)
from tests.conftest import both_loops
from tests.toy import END, Counter, decode, engine, forgetful, parse, plain, render

TOY: dict[str, Any] = {"decode": plain, "parse": parse}


def roll_out(samples: Any, environment: Any, generate: Any, max_turns: int = 4, **how: Any) -> Any:
    """Rollouts of these samples; or, where it is one sample, of that one alone."""
    given = {"per_turn_max_tokens": 30, **TOY, **how}
    run = rollout_one if isinstance(samples, Sample) else rollout_batch
    return run(samples, environment, render, generate, max_turns, **given)


def say(prompt: str, turn: int) -> str:
    """Adds its turn's number three times, then talks."""
    return f'!add {{"by": {turn}}}' if turn <= 3 else f"so {turn}"


def by_total(trajectory: Trajectory, sample: Sample) -> Score:
    turns = sum(m.role == "assistant" for m in trajectory.messages)
    return Score((Metric("total", trajectory.outcome["total"], 1.0), Metric("turns", turns)))


def sample(name: str = "a", **input: Any) -> Sample:
    return Sample(name, {"prompt": f"count {name}", **input})


def test_one_rollout_gives_aligned_tokens_a_reward_and_every_metric() -> None:
    rollout = roll_out(sample(), Counter(), engine(say), 3, score_fn=by_total)
    assert (rollout.reward, rollout.metrics) == (6.0, {"total": 6.0, "turns": 3.0})
    assert len(rollout.completion_ids) == len(rollout.env_mask) == len(rollout.logprobs or ())
    assert decode(rollout.prompt_ids) == "<user>count a<end><assistant>"
    assert decode(rollout.completion_ids) == (
        '!add {"by": 1}<end><tool>total 1<end><assistant>'
        '!add {"by": 2}<end><tool>total 3<end><assistant>'
        '!add {"by": 3}<end>'
    )
    model = [i for i, own in zip(rollout.completion_ids, rollout.env_mask, strict=True) if own]
    assert decode(model) == '!add {"by": 1}<end>!add {"by": 2}<end>!add {"by": 3}<end>'
    assert rollout.trajectory.messages[-1].text == "total 6", "the last call had no effect"
    assert rollout.trajectory.stop == Stop("limit", "max_turns", finish_reason="stop")


def test_a_rollout_has_its_conversation_and_its_answer() -> None:
    rollout = roll_out(sample(), None, engine(lambda p, t: "<think>2</think>hm"))
    assert rollout.messages == rollout.trajectory.messages
    assert [message.role for message in rollout.messages] == ["user", "assistant"]
    assert rollout.answer == "hm"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (Sample("a", {"question": Sample("b", {"question": "?"})}), "is a Sample, which a report"),
        (Sample("a", {"question": "?", "n": (1, 2)}), r"input\['n'\] is a tuple"),
        (Sample("a", {"question": "?", "n": float("nan")}), "JSON cannot hold"),
        (Sample("a", {"solution": "4"}), "has no question"),
        (Sample("a", {"question": "?", "context": "Ada"}), "'context' beside 'question'"),
        ("a question", "a rollout starts from a Sample, got 'a question'"),
    ],
)
def test_what_an_eval_would_refuse_starts_no_rollout(wrong: Any, said: str) -> None:
    called: list[Any] = []
    with pytest.raises(InvalidInput, match=said):
        generate_rollouts([sample(), wrong], called.append)
    with pytest.raises(InvalidInput, match=said):
        rollout_batch([sample(), wrong], None, render, lambda p, t: called.append(p), 1, 9, **TOY)
    with pytest.raises(InvalidInput, match=said):
        rollout_one(wrong, None, render, lambda p, t: called.append(p), 1, 9, **TOY)
    assert called == []


def test_an_environment_that_can_score_is_asked_where_no_score_function_is_given() -> None:
    class Judge(Counter):
        score = staticmethod(by_total)

    assert roll_out(sample(), Judge(), engine(say), 2).reward == 3.0
    # And with nobody to judge there is no reward: not 0.
    unscored = roll_out(sample(), Counter(), engine(say), 2)
    assert unscored.reward is None
    assert unscored.metrics == {}


def test_without_an_environment_it_is_one_turn() -> None:
    rollout = roll_out(sample(), None, engine(lambda p, t: "hm"))
    assert decode(rollout.completion_ids) == "hm<end>"
    assert rollout.trajectory.stop == Stop("no_reply", finish_reason="stop")


def test_the_budget_counts_the_prompt_the_model_and_the_environment() -> None:
    lengths: list[int] = []
    inner = engine(say)

    def generate(prompts: list[list[int]], limits: list[int]) -> list[Generated]:
        rows = inner(prompts, limits)
        lengths.extend(len(p) + len(r.ids) for p, r in zip(prompts, rows, strict=True))
        return rows

    for longest in range(20, 90):
        lengths.clear()
        rollout = roll_out(sample(), Counter(), generate, engine_max_len=longest)
        assert max(lengths) <= longest, "the engine was given more than it can read"
        if rollout.trajectory.stop.limit == "context":
            stopped = longest
    assert stopped > 60
    full = roll_out(sample(), Counter(), generate, engine_max_len=10)
    assert "the engine takes 10" in (full.error or "")


def test_what_goes_wrong_in_one_rollout_is_its_error_as_in_a_batch() -> None:
    alone = roll_out(sample(), Counter(fails_at=2), engine(say))
    [among] = roll_out([sample()], lambda s: Counter(fails_at=2), engine(say))
    assert alone == among
    assert "the counter is broken" in (alone.error or "")
    assert alone.reward is None

    def thinks(prompt: str, turn: int) -> str:
        return "hm/a"

    mismatched = rollout_one(sample(), Counter(), forgetful, engine(thinks), 4, 30, **TOY)
    assert "position" in (mismatched.error or "")
    kept = rollout_one(
        sample(), Counter(), forgetful, engine(thinks), 2, 30, segments="boundary", **TOY
    )
    assert decode(kept.completion_ids).count("hm/a<end>") == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"max_turns": 0}, "max_turns must be at least 1"),
        ({"per_turn_max_tokens": 0}, "per_turn_max_tokens must be at least 1"),
        ({"samples": ["x"]}, "starts from a Sample, got 'x'"),
        ({"segments": "guess"}, "'suffix' or 'boundary'"),
    ],
)
def test_what_could_not_be_meant_is_refused_before_anything_runs(
    change: dict[str, Any], said: str
) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError("it ran")

    arguments: dict[str, Any] = {
        "samples": [sample()],
        "environment_factory": never,
        "render": render,
        "generate": never,
        "max_turns": 2,
        "per_turn_max_tokens": 8,
    }
    with pytest.raises(InvalidInput, match=said):
        rollout_batch(**{**arguments, **change})


# --- Together -----------------------------------------------------------------------------------


def test_every_call_carries_all_that_wait_whatever_turn_they_are_in() -> None:
    sizes: list[int] = []
    inner = engine(say)

    def generate(prompts: list[list[int]], limits: list[int]) -> list[Generated]:
        sizes.append(len(prompts))
        return inner(prompts, limits)

    samples = [sample(str(i), turns=1 + i % 4) for i in range(12)]
    rollouts = roll_out(samples, lambda s: Counter(s.input["turns"]), generate, 9)
    assert [r.sample for r in rollouts] == samples
    assert sizes == [12, 9, 6, 3]


@pytest.mark.parametrize(("wait", "calls"), [(20.0, [2]), (0.0, [1, 1])])
def test_a_call_waits_a_moment_for_those_who_are_just_coming(wait: float, calls: list[int]) -> None:
    sizes: list[int] = []

    async def call(prompts: list[list[int]], max_tokens: list[int]) -> list[Generated]:
        sizes.append(len(prompts))
        return [Generated([END])] * len(prompts)

    async def main() -> None:
        engine = _BatchedEngine(call, conversations=2)
        engine._wait = wait

        async def ask(later: int) -> None:
            for _ in range(later):
                await anyio.lowlevel.checkpoint()
            await engine.generate([1], 1)
            engine.remove_conversation()

        async with anyio.create_task_group() as group:
            group.start_soon(engine.serve)
            group.start_soon(ask, 0)
            group.start_soon(ask, 50)

    anyio.run(main)
    assert sizes == calls


Plan = tuple[int, int, int | None, int]


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.integers(1, 5),  # turns until the environment ends it
            st.integers(0, 6),  # how slow its tools are
            st.one_of(st.none(), st.integers(1, 5)),  # the turn it fails in
            st.integers(20, 120),  # how much the model likes to write
        ),
        min_size=1,
        max_size=10,
    ),
    st.sampled_from(["suffix", "boundary"]),
    st.sampled_from([None, 60, 90]),
)
def test_together_they_give_the_same_tokens_as_one_by_one(
    plans: list[Plan], segments: Any, longest: int | None
) -> None:
    def talkative(prompt: str, turn: int) -> str:
        name = prompt[len("<user>count ") :].partition("<")[0]
        much = plans[int(name)][3]
        return say(prompt, turn) if turn % 2 else "x" * (much * turn % 41)

    def environment(s: Sample) -> Counter:
        turns, slow, fails_at, _ = plans[int(s.id)]
        return Counter(turns, slow=slow, fails_at=fails_at)

    def run(samples: list[Sample]) -> list[Rollout]:
        how = {"engine_max_len": longest, "score_fn": by_total, "segments": segments}
        return roll_out(samples, environment, engine(talkative), **how)

    samples = [sample(str(i)) for i in range(len(plans))]
    together = run(samples)
    assert together == [run([s])[0] for s in samples]
    for (turns, _, fails_at, _), rollout in zip(plans, together, strict=True):
        failed = fails_at is not None and fails_at <= min(turns, 4)
        if longest is None:
            assert (rollout.error is not None) == failed
        assert (rollout.reward is None) == (rollout.error is not None)
        assert len(rollout.completion_ids) == len(rollout.env_mask)
        assert len(rollout.logprobs or ()) == len(rollout.env_mask)


def test_a_rollout_that_fails_keeps_its_tokens_and_its_neighbours_theirs() -> None:
    samples = [sample("good"), sample("bad")]
    good, bad = roll_out(
        samples,
        lambda s: Counter(3, fails_at=2 if s.id == "bad" else None),
        engine(say),
        score_fn=by_total,
    )
    assert (good.error, good.reward) == (None, 6.0)
    assert bad.reward is None
    assert bad.error.startswith("environment: RuntimeError: the counter is broken (toy.py, line ")
    assert decode(bad.completion_ids).count("<end>") == 3
    assert bad.trajectory.stop == Stop("error")


def test_an_engine_may_fail_one_row_without_failing_the_others() -> None:
    inner = engine(say)

    def generate(prompts: list[list[int]], limits: list[int]) -> list[Any]:
        rows: list[Any] = list(inner(prompts, limits))
        return [ValueError("no") if "bad" in decode(p) else r for p, r in zip(prompts, rows)]  # noqa: B905

    good, bad = roll_out([sample("good"), sample("bad")], None, generate)
    assert good.error is None
    assert bad.error is not None
    assert "endpoint: ValueError: no" in bad.error


def test_an_engine_that_fails_ends_all_and_every_environment_is_closed() -> None:
    log: list[str] = []

    def generate(prompts: list[list[int]], limits: list[int]) -> list[Generated]:
        if decode(prompts[0]).count("<assistant>") == 2:
            raise MemoryError("the GPU is full")
        return engine(say)(prompts, limits)

    with pytest.raises(MemoryError, match="the GPU is full"):
        roll_out([sample(str(i)) for i in range(4)], lambda s: Counter(log=log), generate)
    assert (log.count("opening"), log.count("closed")) == (4, 4)


@pytest.mark.parametrize("rows", [["hi"], [[5, 6]], [None], None, [(1, 2, 3, 4, 5)]])
def test_what_is_no_row_of_an_engine_is_refused_in_words(rows: Any) -> None:
    with pytest.raises(EndpointError, match="generate returns"):
        roll_out([sample("a")], None, lambda p, m: rows)
    with pytest.raises(EndpointError, match="got 2 prompts and returned 1 rows"):
        roll_out([sample("a"), sample("b")], None, lambda p, m: [Generated([END])])


def test_an_environment_that_was_never_used_is_closed_where_an_event_loop_is_running_too() -> None:
    log: list[str] = []

    def no_messages(sample: Sample) -> list[Message]:
        raise ValueError("nothing to ask")

    async def notebook(item: Sample, **how: Any) -> Rollout:
        return roll_out(item, Counter(log=log), engine(say), **how)

    failed = asyncio.run(notebook(sample(), prepare_messages=no_messages))
    assert "nothing to ask" in (failed.error or "")
    assert log == ["closed"]
    with pytest.raises(InvalidInput, match="has no question"):
        asyncio.run(notebook(Sample("x", {})))
    assert log == ["closed", "closed"]


def test_sys_exit_in_a_score_function_is_an_error_of_its_rollout() -> None:
    def score(trajectory: Trajectory, s: Sample) -> Score:
        sys.exit(2)

    [rollout] = roll_out([sample()], None, engine(say), score_fn=score)
    assert rollout.error is not None
    assert "SystemExit: 2" in rollout.error


@both_loops
def test_it_can_be_called_under_anyio_and_its_tools_may_use_it(backend: str) -> None:
    def fetch() -> str:
        """Runs an event loop of its own, as a plain function may."""
        return anyio.run(anyio.to_thread.run_sync, lambda: "page")

    async def main() -> Rollout:
        generate = engine(lambda p, t: "!fetch {}" if t == 1 else "done")
        return roll_out(sample(), ToolEnvironment([fetch]), generate)

    rollout = anyio.run(main, backend=backend)
    assert [m.text for m in rollout.trajectory.messages if m.role == "tool"] == ["page"]


def test_a_slow_tool_holds_up_nobody_else() -> None:
    finished: list[str] = []
    others_done = threading.Event()

    class Slow(Counter):
        async def reply(self, messages: Sequence[Message]) -> Reply:
            # Goes on only when the quick ones are through: if it held them up, never.
            with anyio.fail_after(20):
                while not others_done.is_set():
                    await anyio.sleep(0.001)
            return await super().reply(messages)

    def score(trajectory: Trajectory, s: Sample) -> Score:
        finished.append(s.id)
        if len(finished) == 3:
            others_done.set()
        return by_total(trajectory, s)

    samples = [sample("slow"), sample("b"), sample("c"), sample("d")]
    rollouts = roll_out(
        samples, lambda s: (Slow if s.id == "slow" else Counter)(4), engine(say), score_fn=score
    )
    assert all(r.error is None for r in rollouts)
    assert finished[-1] == "slow"


def test_a_rollout_that_takes_too_long_is_its_own_error() -> None:
    class Stuck(Counter):
        async def reply(self, messages: Sequence[Message]) -> Reply:
            await anyio.sleep_forever()
            raise AssertionError

    log: list[str] = []
    stuck, fine = roll_out(
        [sample("stuck"), sample("fine")],
        lambda s: (Stuck if s.id == "stuck" else Counter)(2, log=log),
        engine(say),
        timeout=0.2,
    )
    assert fine.error is None
    assert stuck.error == "timeout: not done after 0.2 s (in environment)"
    assert stuck.trajectory.stop == Stop("limit", "timeout")
    assert log.count("closed") == 2
    alone = roll_out(sample(), Stuck(), engine(say), timeout=0.05)
    assert alone.error == "timeout: not done after 0.05 s (in environment)"


def test_the_engine_is_called_in_the_callers_thread_and_environments_are_not() -> None:
    called_in: set[int] = set()
    opened_in: set[int] = set()

    def generate(prompts: list[list[int]], limits: list[int]) -> list[Generated]:
        called_in.add(threading.get_ident())
        return engine(say)(prompts, limits)

    def factory(s: Sample) -> Counter:
        opened_in.add(threading.get_ident())
        return Counter(2)

    roll_out([sample("a"), sample("b")], factory, generate)
    assert called_in == {threading.get_ident()}
    assert len(opened_in) == 1
    assert called_in.isdisjoint(opened_in)


def test_an_async_engine_is_awaited() -> None:
    async def generate(prompts: list[list[int]], limits: list[int]) -> list[Generated]:
        await anyio.lowlevel.checkpoint()
        return engine(say)(prompts, limits)

    samples = [sample("a")]
    plain_rollouts = roll_out(samples, lambda s: Counter(3), engine(say))
    assert plain_rollouts == roll_out(samples, lambda s: Counter(3), generate)


INTERRUPTED = """
import os, signal, sys, threading
from heldout import Sample
from heldout.rollouts.generating import rollout_batch
from tests.toy import Counter, engine, parse, plain, render

class Loud(Counter):
    async def close(self):
        print("closed", flush=True)

def generate(prompts, limits):
    print("generating", flush=True)
    threading.Event().wait(30)
    return []

try:
    rollout_batch([Sample(str(i), {"prompt": "x"}) for i in range(3)], lambda s: Loud(), render,
                  generate, 4, 30, decode=plain, parse=parse)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(130)
"""


def test_ctrl_c_while_the_engine_works_closes_every_environment() -> None:
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join([root, *filter(None, [os.getenv("PYTHONPATH")])])
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED],
        stdout=subprocess.PIPE,
        text=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": path},
    )
    try:
        assert process.stdout.readline() == "generating\n"
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=20)
    finally:
        process.kill()
    assert said == "closed\n" * 3 + "interrupted\n"
    assert process.returncode == 130


def test_a_rollout_is_an_eval_item_too(run_eval: Callable[..., Any]) -> None:
    """The same environment, score and loop: what the policy says decides, not how it is run."""

    async def in_messages(messages: list[Message]) -> Message:
        ids = render(messages, True)
        [row] = engine(say)([ids], [30])
        return parse(str(row.message))

    report = run_eval(
        [sample()], by_total, None, lambda s: Counter(), endpoint=in_messages, max_turns=3
    )
    rollout = roll_out(sample(), Counter(), engine(say), 3, score_fn=by_total)
    evaluated = report.results[0]
    assert evaluated.score == rollout.score
    assert evaluated.trajectory.messages == rollout.trajectory.messages


# --- Over an endpoint ---------------------------------------------------------------------------


def test_an_endpoint_gives_trajectories_with_rewards_in_one_call(tmp_path: Path) -> None:
    def answer(messages: list[Message]) -> str:
        turn = 1 + sum(m.role == "assistant" for m in messages)
        return say("", turn)

    samples = [sample("a"), sample("b")]
    rollouts = generate_rollouts(
        samples, answer, lambda s: Counter(), score_fn=by_metric, repeats=3, max_turns=2
    )
    assert [r.sample.id for r in rollouts] == ["a", "a", "a", "b", "b", "b"]
    for rollout in rollouts:
        assert rollout.metrics == {"turns": 2.0}
        assert rollout.reward == 2.0
        assert rollout.trajectory.stop.limit == "max_turns"
        assert rollout.completion_ids == ()  # an endpoint answers messages, not tokens
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("passed", "turns"), [({}, 3), ({"max_turns": 2}, 2)])
def test_rollouts_of_a_definition_have_its_turn_limit_unless_one_is_passed(
    passed: dict[str, int], turns: int
) -> None:
    definition = EvalDefinition([sample()], by_metric, None, lambda s: Counter(99), max_turns=3)
    arguments = definition, lambda messages: "so"
    awaited = anyio.run(partial(agenerate_rollouts, *arguments, **passed))
    for rollout in (*generate_rollouts(*arguments, **passed), *awaited):
        assert rollout.reward == turns


def by_metric(trajectory: Trajectory, sample: Sample) -> Score:
    return Score((Metric("turns", sum(m.role == "assistant" for m in trajectory.messages), 1.0),))


def test_a_rollout_over_an_endpoint_that_fails_has_an_error_and_no_reward() -> None:
    def answer(messages: list[Message]) -> str:
        if "b" in messages[-1].text:
            raise OSError("down")
        return "so"

    good, bad = generate_rollouts([sample("x"), sample("b")], answer, score_fn=lambda t, s: 1.0)
    assert (good.reward, good.error) == (1.0, None)
    assert bad.reward is None
    assert "OSError: down" in str(bad.error)


@pytest.mark.parametrize("awaited", [False, True])
def test_rollouts_that_all_fail_are_no_result_and_some_that_do_are_said(
    caplog: pytest.LogCaptureFixture, awaited: bool
) -> None:
    def roll_out(*ids: str) -> list[Rollout]:
        def answer(messages: list[Message]) -> str:
            if "b" in messages[-1].text:
                raise OSError("down")
            return "so"

        given = [sample(i) for i in ids], answer
        if awaited:
            return anyio.run(partial(agenerate_rollouts, *given, score_fn=lambda t, s: 1.0))
        return generate_rollouts(*given, score_fn=lambda t, s: 1.0)

    with pytest.raises(SystemicFailure, match="all 2 rollouts failed: 2 × endpoint: OSError"):
        roll_out("b", "bb")
    assert [r.reward for r in roll_out("a", "b", "c")] == [1.0, None, 1.0]
    assert "1 of 3 rollouts failed, and have no reward: 1 × endpoint: OSError" in caplog.text


def test_rollouts_end_where_the_model_refuses_everything() -> None:
    asked = []

    def answer(messages: list[Message]) -> str:
        asked.append(messages)
        raise FatalEndpointError("401: no such key")

    with pytest.raises(SystemicFailure, match="cannot answer any request.*401: no such key"):
        generate_rollouts([sample(f"s{i}") for i in range(50)], answer, max_concurrent=2)
    assert len(asked) <= 3


def test_rollouts_that_are_done_can_be_awaited() -> None:
    """They were paid for, so an `await` too many must not lose them."""

    async def main() -> list[Rollout]:
        return await generate_rollouts([sample("a")], lambda messages: "so")

    assert [r.trajectory.answer for r in anyio.run(main)] == ["so"]


@both_loops
def test_rollouts_that_are_awaited_do_not_block_the_event_loop(backend: str) -> None:
    async def main() -> list[Rollout]:
        told = anyio.Event()

        async def answer(messages: list[Message]) -> str:
            await told.wait()  # what a blocked loop would never come to
            return "so"

        async def tell() -> None:
            told.set()

        async with anyio.create_task_group() as group:
            group.start_soon(tell)
            return await agenerate_rollouts(
                [sample("a"), sample("b")], answer, score_fn=lambda t, s: 1.0, repeats=2
            )

    rollouts = anyio.run(main, backend=backend)
    assert [(r.sample.id, r.reward) for r in rollouts] == [(i, 1.0) for i in ("a", "a", "b", "b")]


def test_rollouts_that_are_cancelled_close_their_environments() -> None:
    closed: list[str] = []

    class Logged(Counter):
        async def close(self) -> None:
            closed.append("closed")

    async def main() -> None:
        async def answer(messages: list[Message]) -> str:
            group.cancel_scope.cancel()
            await anyio.sleep_forever()
            return ""

        async with anyio.create_task_group() as group:
            await agenerate_rollouts([sample("a")], answer, lambda s: Logged())

    anyio.run(main)
    assert closed == ["closed"]


def test_each_repeat_over_an_endpoint_draws_from_a_seed_of_its_own() -> None:
    seeds: list[int | None] = []

    class Recorder:
        async def complete(self, messages: Any, sampling: Sampling, tools: Any) -> Completion:
            seeds.append(sampling.seed)
            return Completion(Message("assistant", "so"))

        def describe(self) -> dict[str, Any]:
            return {}

        async def close(self) -> None:
            raise AssertionError("an endpoint object is its owner's to close")

    generate_rollouts([sample("a")], Recorder(), repeats=4, sampling=Sampling(seed=1))
    assert len(set(seeds)) == 4


@pytest.mark.parametrize(
    ("own", "given", "temperature", "max_tokens"),
    [
        (None, None, 1.0, None),
        (Sampling(temperature=0.7, max_tokens=9), None, 0.7, 9),
        (Sampling(temperature=0.0), None, 0.0, None),
        (Sampling(max_tokens=9), None, 1.0, 9),
        (Sampling(temperature=0.7, max_tokens=9), Sampling(max_tokens=5), 0.7, 5),
        (Sampling(temperature=0.7), Sampling(temperature=0.0), 0.0, None),
    ],
)
def test_rollouts_of_a_definition_are_drawn_as_it_says_where_nothing_is_given(
    own: Sampling | None, given: Sampling | None, temperature: float, max_tokens: int | None
) -> None:
    asked: list[Sampling] = []

    class Recorder:
        async def complete(self, messages: Any, sampling: Sampling, tools: Any) -> Completion:
            asked.append(sampling)
            return Completion(Message("assistant", "so"))

        def describe(self) -> dict[str, Any]:
            return {}

        async def close(self) -> None:
            raise AssertionError("an endpoint object is its owner's to close")

    definition = EvalDefinition([sample("a")], by_metric, sampling=own)
    generate_rollouts(definition, Recorder(), sampling=given)
    assert [(s.temperature, s.max_tokens) for s in asked] == [(temperature, max_tokens)]


def test_what_is_no_sample_or_no_model_is_refused_before_anything_runs() -> None:
    with pytest.raises(InvalidInput, match="starts from a Sample"):
        generate_rollouts(["a"], lambda messages: "so")
    with pytest.raises(InvalidInput, match="write openai:gpt-4o"):
        generate_rollouts([sample("a")], "gpt-4o")
    assert generate_rollouts([], lambda messages: "so") == []
