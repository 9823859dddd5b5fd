"""A PeriodicEval while a dispatcher is installed: measured beside the training."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import msgspec
import numpy as np
import pytest
import torch

from heldout._live.isolation import NeedsTrainerThread, is_background_thread
from heldout._live.weights import fingerprint
from heldout.errors import InvalidInput
from heldout.reporting.curves import judge_curve, read_curve
from heldout.training import (
    AsyncEvalDispatcher,
    CurveMonitor,
    CurvePoint,
    EvalWorker,
    PeriodicEval,
    SnapshotPool,
    current_points,
    from_functions,
)
from heldout.training.background.dispatcher import pending_evals
from heldout.training.curve.points import pending_point, read_points
from heldout.training.curve.stored_verdicts import terms_of
from heldout.training.ranks import Alone
from heldout.training.sharding import ShardedModel
from tests.conftest import both_loops
from tests.training.toys import (
    Clock,
    Heartbeats,
    Model,
    Rows,
    periodic,
    points_of,
    questions,
    score,
)

LONG = 60.0


class Counter(torch.nn.Module):
    """Knows the answers below its only weight."""

    def __init__(self, knows: int = 0) -> None:
        super().__init__()
        self.knows = torch.nn.Parameter(torch.tensor(float(knows)))

    def learn(self, knows: int) -> None:
        with torch.no_grad():
            self.knows.fill_(float(knows))


class Gates:
    """A runner whose answers wait until they are let through."""

    def __init__(self) -> None:
        self.begun, self.open = threading.Event(), threading.Event()
        self.threads: list[int] = []
        self.beside: list[bool] = []
        self.open.set()

    def generate(self, model: Any, prompts: list[str], max_new: int) -> list[str]:
        self.threads.append(threading.get_ident())
        self.beside.append(is_background_thread())
        self.begun.set()
        assert self.open.wait(LONG)
        return [p if int(p) < float(model.knows) else "?" for p in prompts]

    def builder(self, **settings: Any) -> Any:
        return from_functions(lambda messages: messages[-1].text, self.generate, score, **settings)


class Needing(Gates):
    """Has to have every batch answered in the thread that trains."""

    def generate(self, model: Any, prompts: list[str], max_new: int) -> list[str]:
        if is_background_thread():
            self.begun.set()
            raise NeedsTrainerThread("a switch")
        return super().generate(model, prompts, max_new)


@pytest.fixture
def gates() -> Iterator[Gates]:
    gates = Gates()
    yield gates
    gates.open.set()


def evals_of(folder: Path, model: Any, gates: Gates, **settings: Any) -> PeriodicEval:
    return periodic(folder, model, runner_builder=gates.builder(), **settings)


# --- The weights that were scheduled -------------------------------------------------------------


def test_the_point_is_of_the_step_and_weights_it_was_due_at(tmp_path: Path, gates: Gates) -> None:
    model = Counter(knows=2)
    inline = evals_of(tmp_path / "inline", model, gates).maybe_run(10)
    evals = evals_of(tmp_path, model, gates)
    gates.open.clear()
    gates.begun.clear()
    with AsyncEvalDispatcher(when_full="wait"):
        assert evals.maybe_run(10) is None
        assert gates.begun.wait(LONG)
        model.learn(8)
        assert evals.maybe_run(13) is None
        assert evals.history == []
        gates.open.set()
    [point] = evals.history
    assert points_of(tmp_path / "run") == [point]
    assert (point.step, point.reward, point.lag_steps) == (10, 0.25, 3)
    assert (point.weights, point.summary, point.outcomes) == (
        inline.weights,
        inline.summary,
        inline.outcomes,
    )
    assert inline.lag_steps is None
    assert gates.beside == [False, True]
    assert (tmp_path / "run" / str(point.run)).is_dir()


def test_a_model_that_cannot_be_copied_is_evaluated_at_once(
    tmp_path: Path, gates: Gates, caplog: pytest.LogCaptureFixture
) -> None:
    evals = periodic(tmp_path / "a", Model(knows=4))
    locked = Counter(4)
    locked.lock = threading.Lock()
    other = evals_of(tmp_path / "b", locked, gates, label="other")
    with AsyncEvalDispatcher(when_full="wait"):
        points = [evals.maybe_run(10), evals.maybe_run(20), other.maybe_run(10)]
        assert other.run_final(12).step == 12
    assert [(p.reward, p.lag_steps) for p in points] == [(0.5, None)] * 3
    first, second = [r.getMessage() for r in caplog.records]  # once for each
    assert first == (
        "rl_eval: training waits for evals: a Model cannot be copied: it is not a torch module"
    )
    assert "the model cannot be copied" in second


def test_a_snapshot_that_fails_is_a_skip(tmp_path: Path, gates: Gates) -> None:
    class Refuses:
        def try_snapshot(self, model: Any, *, step: int) -> Any:
            raise RuntimeError("no room")

    evals = evals_of(tmp_path, Counter(), gates, snapshots=Refuses())
    with AsyncEvalDispatcher(when_full="wait"):
        evals.maybe_run(10)
    assert [p.skipped for p in evals.history] == ["snapshot: RuntimeError: no room"]
    assert [p.skipped for p in points_of(tmp_path / "run")] == ["snapshot: RuntimeError: no room"]


# --- Back-pressure ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "size", "why"),
    [
        ({}, 2, "all 2 snapshots of the weights were in use (snapshots=3 has one more)"),
        ({"snapshots": 1}, 1, "the snapshot of the weights was in use (snapshots=2 has one more)"),
        ({"snapshots": SnapshotPool(size=3)}, 3, "all 3 snapshots of the weights were in use"),
    ],
)
def test_snapshots_are_the_one_limit_of_what_is_under_way(
    tmp_path: Path, gates: Gates, settings: dict[str, Any], size: int, why: str
) -> None:
    evals = evals_of(tmp_path, Counter(), gates, **settings)
    due = [10 * n for n in range(1, size + 3)]
    with AsyncEvalDispatcher(max_pending=1) as dispatcher:  # the limit of other evals
        evals.maybe_run(due[0])
        dispatcher.wait_for(evals._background.scheduled, LONG)  # the first one is waited for
        gates.open.clear()
        for step in due[1:]:
            evals.maybe_run(step)
        gates.open.set()
    points = current_points(points_of(tmp_path / "run"))
    assert [(p.step, p.has_result) for p in points] == [(step, step != due[-1]) for step in due]
    assert why in str(points[-1].skipped)
    assert 'with AsyncEvalDispatcher(when_full="wait") training waits' in str(points[-1].skipped)


def test_there_is_one_snapshot_where_memory_is_tight(
    tmp_path: Path, gates: Gates, monkeypatch: pytest.MonkeyPatch
) -> None:
    evals = evals_of(tmp_path / "default", Counter(), gates)
    asked = evals_of(tmp_path / "asked", Counter(), gates, snapshots=2)
    monkeypatch.setattr("heldout._live.decoding.memory.available_memory", lambda: 7)
    with AsyncEvalDispatcher() as dispatcher:
        for each in (evals, asked):
            each.maybe_run(10)
            dispatcher.wait_for(each._background.scheduled, LONG)
        gates.open.clear()
        for step in (20, 30):
            evals.maybe_run(step)
            asked.maybe_run(step)
        gates.open.set()
    assert [p.has_result for p in points_of(tmp_path / "asked" / "run")] == [True] * 3
    (skip,) = (p.skipped for p in points_of(tmp_path / "default" / "run") if p.skipped)
    assert skip.startswith(
        "the snapshot of the weights was in use, and memory is tight for a second one"
    )
    assert "snapshots=2" in skip
    assert 'when_full="wait"' in skip


def test_the_imports_and_compilation_of_the_first_eval_lose_no_point(
    tmp_path: Path, gates: Gates
) -> None:
    gates.open.clear()
    evals = evals_of(tmp_path, Counter(3), gates)
    with AsyncEvalDispatcher():
        for step in (10, 20):
            evals.maybe_run(step)
        assert gates.begun.wait(LONG)
        opening = threading.Timer(0.1, gates.open.set)
        opening.start()
        evals.maybe_run(30)  # waits: without the first eval's start there would be a snapshot
        opening.join()
        evals.run_final(40)
    assert [(p.step, p.has_result) for p in points_of(tmp_path / "run")] == [
        (step, True) for step in (10, 20, 30, 40)
    ]


def test_training_waits_for_a_first_eval_that_hangs_no_longer_than_its_limit(
    tmp_path: Path, gates: Gates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heldout.training.background.snapshot_evals.FIRST_EVAL_SECONDS", 0.05)
    gates.open.clear()
    evals = evals_of(tmp_path, Counter(3), gates)
    with AsyncEvalDispatcher():
        for step in (10, 20, 30):
            evals.maybe_run(step)
        gates.open.set()
    points = current_points(points_of(tmp_path / "run"))
    assert [p.has_result for p in points] == [True, True, False]
    assert "snapshots=3" in str(points[-1].skipped)


def test_where_it_waits_the_next_eval_waits_for_the_shadow(tmp_path: Path, gates: Gates) -> None:
    gates.open.clear()
    evals = evals_of(tmp_path, Counter(3), gates)
    waits = AsyncEvalDispatcher(when_full="wait")
    with waits:
        evals.maybe_run(10)
        assert gates.begun.wait(LONG)
        opening = threading.Timer(0.1, gates.open.set)
        opening.start()
        evals.maybe_run(20)
        opening.join()
    assert [(p.step, p.has_result) for p in points_of(tmp_path / "run")] == [(10, True), (20, True)]


def test_where_it_waits_a_first_eval_may_take_as_long_as_it_likes(
    tmp_path: Path, gates: Gates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heldout.training.background.snapshot_evals.FIRST_EVAL_SECONDS", 0.0)
    gates.open.clear()
    evals = evals_of(tmp_path, Counter(3), gates, snapshots=1)
    looked: list[int] = []
    dispatcher = AsyncEvalDispatcher(when_full="wait")
    run_calls = dispatcher.trainer.run_calls

    def run_calls_and_open(until: float = math.inf) -> None:
        """Let the first eval go on once training has waited for its snapshot twice."""
        run_calls(until)
        looked.append(1)
        if len(looked) == 2:
            gates.open.set()

    with dispatcher:
        evals.maybe_run(10)
        assert gates.begun.wait(LONG)
        monkeypatch.setattr(dispatcher.trainer, "run_calls", run_calls_and_open)
        evals.maybe_run(20)
        monkeypatch.setattr(dispatcher.trainer, "run_calls", run_calls)
    assert [(p.step, p.skipped) for p in points_of(tmp_path / "run")] == [(10, None), (20, None)]


def test_an_eval_whose_wait_for_a_slot_is_limited_has_its_line_ahead(
    tmp_path: Path, gates: Gates
) -> None:
    gates.open.clear()
    evals = evals_of(tmp_path, Counter(3), gates)
    with AsyncEvalDispatcher(when_full="wait") as dispatcher:
        evals.begin()
        sharded = ShardedModel(Counter(3), Alone(patience=LONG))  # by the others, who wait as well
        evals._background.schedule(dispatcher, 10, sharded, evals.curve)
        assert gates.begun.wait(LONG)
        [ahead] = read_points(tmp_path / "run" / "curve.jsonl")
        gates.open.set()
    assert (ahead.step, ahead.pending) == (10, True)
    assert [(p.step, p.has_result) for p in points_of(tmp_path / "run")] == [(10, True)]


def test_the_newest_takes_the_shadow_of_the_oldest_that_has_not_started(
    tmp_path: Path, gates: Gates
) -> None:
    gates.open.clear()
    pool = SnapshotPool()
    evals = evals_of(tmp_path, Counter(3), gates, snapshots=pool)
    with AsyncEvalDispatcher(when_full="newest"):
        evals.maybe_run(10)
        assert gates.begun.wait(LONG)
        evals.maybe_run(20)
        evals.maybe_run(30)
        gates.open.set()
    found = current_points(points_of(tmp_path / "run"))
    assert [(p.step, p.has_result) for p in found] == [(10, True), (20, False), (30, True)]
    assert "replaced by the eval of step 30" in str(found[1].skipped)
    assert pool.free == 2


def test_of_two_evals_the_newest_of_each_is_kept(tmp_path: Path, gates: Gates) -> None:
    gates.open.clear()
    one, two = (
        evals_of(tmp_path / label, Counter(3), gates, label=label, snapshots=SnapshotPool(size=2))
        for label in ("one", "two")
    )
    with AsyncEvalDispatcher(when_full="newest", max_running=1):
        for step in (10, 20, 30, 40):
            for evals in (one, two):
                evals.maybe_run(step)
            assert gates.begun.wait(LONG)
        gates.open.set()
    for label, ran in (("one", [10, 40]), ("two", [30, 40])):
        points = current_points(points_of(tmp_path / label / "run"))
        assert [p.step for p in points if p.has_result] == ran
        skipped = [p for p in points if not p.has_result]
        newer = 10 if label == "one" else 20
        assert [str(p.skipped)[:32] for p in skipped] == [
            f"replaced by the eval of step {p.step + newer} " for p in skipped
        ]


def test_nothing_gives_way_to_an_eval_that_gets_no_snapshot(tmp_path: Path, gates: Gates) -> None:
    gates.open.clear()
    one = evals_of(tmp_path / "one", Counter(3), gates, label="one", snapshots=1)
    two = evals_of(tmp_path / "two", Counter(3), gates, label="two", snapshots=1)
    with AsyncEvalDispatcher(when_full="newest", max_running=1) as dispatcher:
        gates.open.set()
        one.maybe_run(10)
        dispatcher.wait_for(one._background.scheduled, LONG)  # the first one is waited for
        gates.open.clear()
        gates.begun.clear()
        one.maybe_run(20)
        assert gates.begun.wait(LONG)
        two.maybe_run(20)
        one.maybe_run(30)
        gates.open.set()
    assert [p.has_result for p in points_of(tmp_path / "two" / "run")] == [True]
    assert [str(p.skipped)[:35] for p in points_of(tmp_path / "one" / "run")] == [
        "None",
        "None",
        "the snapshot of the weights was in ",
    ]


def test_a_late_result_has_no_verdict_of_its_own_and_the_next_one_counts_it(
    tmp_path: Path, gates: Gates
) -> None:
    model = Counter()
    generate = gates.generate

    def slow_at_ten(model: Any, prompts: list[str], max_new: int) -> list[str]:
        if float(model.knows) == 1:
            return generate(model, prompts, max_new)
        return [p if int(p) < float(model.knows) else "?" for p in prompts]

    gates.generate = slow_at_ten
    beats = Heartbeats()
    evals = evals_of(tmp_path, model, gates, snapshots=SnapshotPool(size=2), heartbeat_fn=beats)
    gates.open.clear()
    with AsyncEvalDispatcher(when_full="wait") as dispatcher:
        for step, knows in ((10, 1), (20, 2)):
            model.learn(knows)
            evals.maybe_run(step)
        first, second = evals._background.scheduled
        dispatcher.wait_for([second], LONG)
        evals.maybe_run(21)
        assert [p.step for p in evals.history] == [20]
        gates.open.set()
        dispatcher.wait_for([first], LONG)
        for step, knows in ((30, 3), (40, 4)):
            model.learn(knows)
            evals.maybe_run(step)
            dispatcher.wait_for(evals._background.scheduled, LONG)
    assert [p.step for p in evals.history] == [20, 10, 30, 40]
    at = {point.step: point.verdict for point in evals.points}
    assert at[10] is None
    assert at[20] is not None
    # From steps 10 and 20 on, though 10 came after 20: two in eight samples were gained since.
    assert (at[40]["from_first"], at[40]["from_last"], at[40]["gain"]) == (10, 20, 0.25)
    told = ["eval_verdict" in fields for fields in beats.named("rl_eval")]
    assert told == [True, False, True, True]


def test_a_background_point_is_judged_where_an_inline_one_is(tmp_path: Path, gates: Gates) -> None:
    model = Counter()
    stored: list[list[Any]] = []
    for folder, dispatched in (("inline", False), ("background", True)):
        rows = Rows()
        monitor = CurveMonitor(effect=0.2, window=4, stop_on_plateau=1)
        evals = evals_of(tmp_path / folder, model, gates, samples=questions(64), monitor=monitor)
        with AsyncEvalDispatcher(loggers=[rows]) as dispatcher:
            for step in range(10, 90, 10):
                model.learn(step // 2 if step < 40 else 20)
                point = evals.maybe_run(step, wait=not dispatched)
                dispatcher.wait_for(evals._background.scheduled, LONG)
            last = evals.run_final(90)
        points = points_of(tmp_path / folder / "run")
        assert points[-1] == last == evals.points[-1]
        logged = [fields.get("eval_verdict_text") for _, _, fields in rows]
        assert logged == [(p.verdict or {}).get("text") for p in points]
        stored.append([(p.step, p.verdict, p.stop) for p in points])
        assert (point is None) == dispatched
    inline, background = stored
    assert inline == background
    assert background[-1][1]["effect"] == 0.2
    assert str(background[-1][2]).startswith("plateau since step")


def test_a_result_that_was_never_collected_is_judged_by_the_settings_of_its_run(
    tmp_path: Path, gates: Gates
) -> None:
    rows, model = Rows(), Counter()
    monitor = CurveMonitor(effect=0.3, alpha=0.1, window=4, bounds=(-1, 2))
    evals = evals_of(tmp_path, model, gates, monitor=monitor)
    dispatcher = AsyncEvalDispatcher(loggers=[rows])
    with dispatcher:
        for step in (10, 20):
            model.learn(step // 10)
            evals.maybe_run(step)
            dispatcher.wait_for(evals._background.scheduled, LONG)
        # As at the end of a process whose trainer's thread does not come back.
        closing = threading.Thread(target=dispatcher.end_with_process)
        closing.start()
        closing.join(LONG)
        run = read_curve(tmp_path / "run")
    assert [(p.step, p.verdict is None) for p in run.points] == [(10, False), (20, True)]
    unjudged = run.points[1:]
    assert terms_of(unjudged, run.config) == monitor.terms
    [point], _ = judge_curve(unjudged, {}, run.config)
    assert (point.verdict["effect"], point.verdict["alpha"]) == (0.3, 0.1)
    # If it does come back, the verdict is added, and loggers get no second row.
    assert points_of(tmp_path / "run")[1].verdict is not None
    logged = [(step, "eval_verdict" in fields) for _, step, fields in rows]
    assert logged == [(10, True), (20, False)]


# --- The thread that trains ---------------------------------------------------------------------


def test_heartbeats_and_monitor_are_called_in_the_thread_that_trains(
    tmp_path: Path, gates: Gates
) -> None:
    here, seen = threading.get_ident(), []
    beats = Heartbeats()

    def monitor(points: Sequence[CurvePoint]) -> str | None:
        seen.append((threading.get_ident(), [p.step for p in points]))
        random.random(), np.random.rand(), torch.rand(1)
        return "enough"

    evals = evals_of(tmp_path, Counter(3), gates, heartbeat_fn=beats, monitor=monitor)
    with AsyncEvalDispatcher(when_full="wait") as dispatcher:
        evals.maybe_run(10)
        dispatcher.wait_for(evals._background.scheduled, LONG)
        assert not seen
        random.seed(0), np.random.seed(0), torch.manual_seed(0)
        drawn = random.random(), np.random.rand(), float(torch.rand(1))
        random.seed(0), np.random.seed(0), torch.manual_seed(0)
        evals.maybe_run(11)
        assert drawn == (random.random(), np.random.rand(), float(torch.rand(1)))
    assert seen == [(here, [10])]
    assert evals.stop_requested == points_of(tmp_path / "run")[0].stop == "enough"
    assert [fields["eval_reward"] for fields in beats.named("rl_eval")] == [0.375]
    assert [fields["lag_steps"] for fields in beats.named("rl_eval")] == [0]


def test_what_has_to_change_something_global_is_done_in_the_thread_that_trains(
    tmp_path: Path,
) -> None:
    gates = Needing()
    evals = evals_of(tmp_path, Counter(4), gates)
    with AsyncEvalDispatcher(when_full="wait"):
        evals.maybe_run(10)
        assert gates.begun.wait(LONG)
        [handle] = evals._background.scheduled
        waiting = threading.Thread(target=lambda: handle.result(0.3))
        waiting.start()
        waiting.join(LONG)
        assert gates.threads == []  # in no other thread
        state = torch.get_rng_state()
        evals.maybe_run(11)
    assert torch.equal(state, torch.get_rng_state())
    assert gates.threads == [threading.get_ident()]
    assert [(p.step, p.reward) for p in evals.history] == [(10, 0.5)]


def test_no_global_random_state_is_touched_in_the_thread(tmp_path: Path, gates: Gates) -> None:
    """To save and restore it there would take back what training has drawn meanwhile."""
    gates.open.clear()
    evals = evals_of(tmp_path, Counter(4), gates)

    def draw() -> tuple[float, ...]:
        return random.random(), float(np.random.rand()), float(torch.rand(1))

    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = [draw() for _ in range(3)]
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    with AsyncEvalDispatcher(when_full="wait"):
        drawn = [draw()]
        evals.maybe_run(10)
        assert gates.begun.wait(LONG)
        drawn.append(draw())
        gates.open.set()
    drawn.append(draw())
    assert drawn == expected


def test_answers_that_would_draw_what_training_draws_are_given_in_its_thread(
    tmp_path: Path,
) -> None:
    class Draws(Gates):
        def generate(self, model: Any, prompts: list[str], max_new: int) -> list[str]:
            answers = super().generate(model, prompts, max_new)
            torch.multinomial(torch.ones(4), 1, generator=torch.Generator())
            torch.nn.functional.scaled_dot_product_attention(*torch.ones(3, 1, 2, 4, 8))
            return [a if torch.rand(()).item() >= 0 else "?" for a in answers]

    gates = Draws()
    here = evals_of(tmp_path / "here", Counter(4), gates)
    evals = evals_of(tmp_path, Counter(4), gates)
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    with AsyncEvalDispatcher(when_full="wait"):
        evals.maybe_run(10)
    assert torch.equal(torch.rand(4), expected)
    assert gates.beside == [True, False]
    point = here.run_eval(10)
    assert evals.history[0].outcomes == point.outcomes


# --- The end ------------------------------------------------------------------------------------


@pytest.mark.parametrize("when_full", ["wait", "skip"])
def test_the_last_weights_are_waited_for_whatever_the_policy(
    tmp_path: Path, gates: Gates, when_full: Any
) -> None:
    model = Counter(2)
    evals = evals_of(tmp_path, model, gates)
    with AsyncEvalDispatcher(when_full=when_full, max_pending=1):
        evals.maybe_run(10)
        model.learn(8)
        point = evals.run_final(17)
    assert (point.step, point.reward, point.final) == (17, 1.0, True)
    assert [(p.step, p.final) for p in points_of(tmp_path / "run")] == [(10, False), (17, True)]


def test_weights_that_have_their_point_are_not_measured_again(tmp_path: Path, gates: Gates) -> None:
    evals = evals_of(tmp_path, Counter(2), gates)
    with AsyncEvalDispatcher(when_full="wait"):
        evals.maybe_run(10)
        assert evals.run_final(10) is evals.history[-1]
    assert [p.step for p in points_of(tmp_path / "run")] == [10]
    again = evals_of(tmp_path, Counter(2), gates, heartbeat_fn=(beats := Heartbeats()))
    with AsyncEvalDispatcher(when_full="wait"):
        again.maybe_run(10)
    measured, skipped = points_of(tmp_path / "run")
    assert (skipped.step, skipped.skipped) == (10, "the same weights have a point already")
    assert current_points([measured, skipped]) == [measured]
    assert [fields.get("eval_reused") for fields in beats.named("rl_eval")] == [True]


@both_loops
def test_in_the_loop_of_a_coroutine_trainer_the_last_weights_are_evaluated_at_once(
    tmp_path: Path, gates: Gates, backend: str
) -> None:
    model = Counter(2)
    evals = evals_of(tmp_path, model, gates)

    async def train() -> CurvePoint | None:
        async with AsyncEvalDispatcher(when_full="wait"):
            evals.maybe_run(10)
            model.learn(8)
            return evals.run_final(17)

    point = anyio.run(train, backend=backend)
    assert point.reward == 1.0
    assert sorted((p.step, p.reward) for p in points_of(tmp_path / "run")) == [
        (10, 0.25),
        (17, 1.0),
    ]


def test_a_result_that_comes_after_training_went_back_hides_nothing(tmp_path: Path) -> None:
    class Slow(Gates):
        def generate(self, model: Any, prompts: list[str], max_new: int) -> list[str]:
            self.begun.set()
            assert float(model.knows) != 2 or self.open.wait(LONG)
            return [p if int(p) < float(model.knows) else "?" for p in prompts]

    gates, model = Slow(), Counter(2)
    gates.open.clear()
    evals = evals_of(tmp_path, model, gates, snapshots=SnapshotPool(size=2))
    with AsyncEvalDispatcher(when_full="wait") as dispatcher:
        evals.maybe_run(50)
        assert gates.begun.wait(LONG)
        model.learn(4)
        evals.maybe_run(30)  # from a checkpoint, in the same process
        dispatcher.wait_for(evals._background.scheduled[1:], LONG)
        gates.open.set()
        dispatcher.drain(LONG)
        evals.maybe_run(60)
    found = current_points(points_of(tmp_path / "run"))
    assert [(p.step, p.reward) for p in found] == [(30, 0.5), (60, 0.5)]
    assert [p.step for p in evals.points] == [30, 60]


# --- In a process of its own --------------------------------------------------------------------

POLICY = """
import torch
from tests.training.background.test_async_periodic import Counter, Gates

def policy():
    return Counter(), Gates().builder()
"""


@pytest.mark.integration
def test_a_worker_measures_the_weights_of_the_step(tmp_path: Path, gates: Gates) -> None:
    (tmp_path / "evals.py").write_text(POLICY)
    model = Counter(2)
    here = evals_of(tmp_path / "here", model, gates)
    with EvalWorker(f"{tmp_path / 'evals.py'}:policy") as worker:
        there = periodic(tmp_path / "there", model, runner_builder=None, worker=worker)
        with AsyncEvalDispatcher(when_full="wait"):
            there.maybe_run(10)
            at_ten = here.run_eval(10)
            model.learn(8)
            last = there.run_final(17)
        waits = periodic(tmp_path / "inline", model, runner_builder=None, worker=worker)
        inline = waits.maybe_run(20)
    first = there.points[0]
    assert (first.summary, first.weights) == (at_ten.summary, at_ten.weights)
    assert first.outcomes == at_ten.outcomes
    assert (last.step, last.reward, last.final) == (17, 1.0, True)
    assert (inline.reward, inline.lag_steps) == (1.0, None)


def test_a_worker_does_not_share_its_work(tmp_path: Path) -> None:
    (tmp_path / "evals.py").write_text(POLICY)
    worker = EvalWorker(f"{tmp_path / 'evals.py'}:policy")
    with pytest.raises(InvalidInput, match="does not work with an EvalWorker"):
        periodic(tmp_path, Counter(), runner_builder=None, worker=worker, across="all")
    worker.close()


def test_frozen_weights_that_change_under_an_eval_make_it_a_skip(
    tmp_path: Path, gates: Gates
) -> None:
    class Frozen(Counter):
        def __init__(self) -> None:
            super().__init__(2)
            self.base = torch.nn.Parameter(torch.zeros(3), requires_grad=False)

    model = Frozen()
    gates.open.clear()
    evals = evals_of(tmp_path, model, gates)
    with AsyncEvalDispatcher(when_full="wait"):
        evals.maybe_run(10)
        assert gates.begun.wait(LONG)
        model.base.data.add_(1.0)  # as merging adapters does
        gates.open.set()
    assert "frozen weights" in str(points_of(tmp_path / "run")[0].skipped)


def test_ctrl_c_while_an_eval_is_answered_in_the_trainers_thread_makes_no_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two seconds, which a busy machine may not give the eval's thread at all.
    monkeypatch.setattr("heldout.training.background.dispatcher.EXIT_GRACE_SECONDS", LONG)

    class Interrupted(Needing):
        def generate(self, model: Any, prompts: list[str], max_new: int) -> list[str]:
            super().generate(model, prompts, max_new)
            raise KeyboardInterrupt

    gates = Interrupted()
    evals = evals_of(tmp_path, Counter(8), gates)

    def train() -> None:
        with AsyncEvalDispatcher(when_full="wait"):
            evals.maybe_run(10)
            assert gates.begun.wait(LONG)
            while True:
                evals.maybe_run(11)

    with pytest.raises(KeyboardInterrupt):
        train()
    [point] = points_of(tmp_path / "run")
    assert point.summary is None
    assert "interrupted" in str(point.skipped)


def test_an_errand_of_an_eval_that_was_given_up_on_is_not_run(tmp_path: Path) -> None:
    gates = Needing()
    evals = evals_of(tmp_path, Counter(8), gates)
    with AsyncEvalDispatcher(when_full="wait") as dispatcher:
        evals.maybe_run(10)
        assert gates.begun.wait(LONG)
        dispatcher.jobs.abandon(dispatcher.jobs.in_flight, "given up")
        evals.maybe_run(11)
    assert gates.threads == []
    assert [p.skipped for p in points_of(tmp_path / "run")] == ["given up"]


@pytest.mark.parametrize("when_full", ["wait", "skip"])
def test_nobody_waits_for_a_snapshot_that_an_eval_given_up_on_still_reads(
    tmp_path: Path, gates: Gates, when_full: Any
) -> None:
    gates.open.clear()
    evals = evals_of(tmp_path, Counter(8), gates, snapshots=1)
    with AsyncEvalDispatcher(when_full=when_full, max_seconds=0.05) as dispatcher:
        evals.maybe_run(10)
        dispatcher.wait_for(evals._background.scheduled, LONG)
        evals.maybe_run(20)
        evals.run_final(21)
        gates.open.set()
    reasons = [p.skipped for p in sorted(points_of(tmp_path / "run"), key=lambda p: p.step)]
    assert reasons[0] == "not finished after max_seconds=0.05"
    assert reasons[1:] == ["all snapshots were in use, but by no eval in flight here"] * 2


def test_the_last_weights_are_measured_though_an_eval_of_them_was_given_up_on(
    tmp_path: Path, gates: Gates
) -> None:
    gates.open.clear()
    evals = evals_of(tmp_path, Counter(8), gates, snapshots=SnapshotPool(size=2))
    with AsyncEvalDispatcher(when_full="wait") as dispatcher:
        evals.maybe_run(10)
        assert gates.begun.wait(LONG)
        dispatcher.drain(0.01)
        gates.open.set()
        point = evals.run_final(10)
    assert (point.reward, point.final) == (1.0, True)


def test_a_monitor_that_is_interrupted_loses_no_point_of_evals_beside(
    tmp_path: Path, gates: Gates
) -> None:
    def interrupted(points: Any) -> None:
        raise KeyboardInterrupt

    evals = evals_of(tmp_path, Counter(8), gates, monitor=interrupted)
    with AsyncEvalDispatcher(when_full="wait") as dispatcher:
        evals.maybe_run(10)
        dispatcher.wait_for(evals._background.scheduled, LONG)
        with pytest.raises(KeyboardInterrupt):
            evals.maybe_run(11)
    assert [p.step for p in evals.history] == [10]
    assert [p.step for p in points_of(tmp_path / "run")] == [10]


def test_what_was_lost_can_be_finished_on_its_own_weights_once_and_by_its_own_name(
    tmp_path: Path, gates: Gates
) -> None:
    gates.open.clear()
    evals = evals_of(tmp_path, Counter(2), gates)
    with AsyncEvalDispatcher(drain_timeout=0.01):
        evals.maybe_run(10, saved_at=tmp_path / "checkpoint-10")
        assert gates.begun.wait(LONG)
    gates.open.set()
    again = evals_of(tmp_path, Counter(4), gates)
    again.maybe_run(20)
    [pending] = pending_evals(tmp_path / "run")
    assert (pending.step, pending.saved_at) == (10, str(tmp_path / "checkpoint-10"))
    assert pending.weights == fingerprint(Counter(2))
    with pytest.raises(InvalidInput, match="is for the weights"):
        again.finish(pending, Counter(3))
    other = msgspec.structs.replace(pending, label="other")
    with pytest.raises(InvalidInput, match="has the label 'other'"):
        again.finish(other, Counter(2))
    point = again.finish(pending, Counter(2))
    assert (point.step, point.session) == (10, pending.session)
    with pytest.raises(InvalidInput, match="is not pending"):
        again.finish(pending, Counter(2))
    found = current_points(points_of(tmp_path / "run"))
    assert [(p.step, p.reward) for p in found] == [(10, 0.25), (20, 0.5)]


def test_what_the_budget_cannot_afford_is_a_skip_that_says_so(tmp_path: Path, gates: Gates) -> None:
    clock = Clock()
    evals = evals_of(tmp_path, Counter(2), gates, max_overhead=0.1, clock=clock)
    with AsyncEvalDispatcher(when_full="wait"):
        evals.begin()
        evals._spending.add_eval_time(5.0, charge=True)  # so long for a place, say
        clock.now += 15.0
        evals.maybe_run(10)
        clock.now += 100.0
        evals.maybe_run(20)
    first, second = points_of(tmp_path / "run")
    assert (first.step, second.step) == (10, 20)
    assert first.skipped == "max_overhead=0.1: so far evals took 5 s and training 10 s"
    assert second.has_result


@pytest.mark.parametrize(
    ("wrong", "why"),
    [({"snapshots": 0}, "snapshots must be"), ({"model_getter": Counter()}, "`lambda: model`")],
    ids=["snapshots", "model_getter"],
)
def test_what_cannot_be_right_is_refused_before_training_begins(
    tmp_path: Path, gates: Gates, wrong: dict[str, Any], why: str
) -> None:
    with pytest.raises(InvalidInput, match=why):
        evals_of(tmp_path, None, gates, **wrong)


def test_a_pending_eval_whose_weights_have_a_point_is_settled(tmp_path: Path, gates: Gates) -> None:
    evals = evals_of(tmp_path, Counter(2), gates)
    measured = evals.run_eval(10)
    again = evals_of(tmp_path, Counter(2), gates)
    again.curve.file.append(pending_point("rl_eval", 10, again.curve.session))
    [pending] = pending_evals(tmp_path / "run")
    assert again.finish(pending, Counter(2)) == measured
    assert pending_evals(tmp_path / "run") == []
