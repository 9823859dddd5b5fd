"""One of several processes that train together: `python -m tests.training.rank_worker …`.

Runs scenarios, one after the other in one process group, and writes down what this rank saw of
each. That they all come to an end shows that ranks stay in step, whatever happens to one of them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from heldout import Sample, Score, Trajectory
from heldout.training import CurvePoint, measuring
from heldout.training.curve.points import request_stop
from tests.training import toys

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
RULES: dict[str, Callable[[Path], Any]] = {}
"""Scenarios by name; each is given a directory that all ranks share."""


def scenario(function: Callable[[Path], Any]) -> Callable[[Path], Any]:
    RULES[function.__name__] = function
    return function


def evaluate(
    home: Path, count: int = 10, model: toys.Model | None = None, **settings: Any
) -> dict[str, Any]:
    """An eval on all ranks; each would write into a directory of its own."""
    model = model or toys.Model(knows=6)
    defaults: dict[str, Any] = {
        "every_steps": 1,
        "model_getter": lambda: model,
        "across": "all",
        "run_dir": home / f"rank{RANK}",
    }
    builder = settings.pop("builder", toys.builder(rows=2))
    evals = toys.make_eval(toys.questions(count), builder, **{**defaults, **settings})
    return told(evals.maybe_run(1), model)


def told(point: CurvePoint | None, model: toys.Model) -> dict[str, Any]:
    answered = [prompt for batch in model.batches for prompt in batch]
    return {
        "point": None if point is None else json.loads(msgspec.json.encode(point)),
        "answered": answered,
    }


def on_rank_1(does: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: does() if RANK == 1 else None


def fail(why: str = "this one cannot") -> None:
    raise RuntimeError(why)


def fails_at(*place: Any, **settings: Any) -> Any:
    fail()


def after(does: Callable[[], object], **settings: Any) -> Any:
    """The builder of the toys, which does something first."""
    inner = toys.builder(rows=2, **settings)

    def build(model: Any) -> Any:
        does()
        return inner(model)

    return build


# --- One that fails -----------------------------------------------------------------------------


@scenario
def getter_raises_on_one(home: Path) -> Any:
    model = toys.Model()

    def getter() -> toys.Model:
        on_rank_1(fail)()
        return model

    return evaluate(home, model=model, model_getter=getter)


def trained_apart(home: Path, settle: Callable[[Any], None] | None = None) -> Any:
    """A real step under DistributedDataParallel, each rank on its own batch, then an eval."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    policy = toys.weighted(knows=6)
    policy.norm = torch.nn.BatchNorm1d(3)
    policy.forward = lambda x: policy.norm(x).sum() * policy.knows
    model = DistributedDataParallel(policy)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    torch.manual_seed(RANK)
    model(torch.randn(4, 3)).backward()
    optimizer.step()
    if settle is not None:
        settle(policy)
    counted = toys.Model(knows=6)
    policy.answer = counted.answer
    found = evaluate(home, model=counted, model_getter=lambda: policy)
    return {**found, "knows": policy.knows.item()}


def equal_buffers(policy: Any) -> None:
    from torch import distributed

    for buffer in policy.buffers():
        distributed.broadcast(buffer, 0)


def another_number_on_rank_1(policy: Any) -> None:
    equal_buffers(policy)
    policy.knows.data += 1.0 if RANK == 1 else 0.0


def without_model_on_rank_1(home: Path) -> Any:
    model = toys.Model()
    return evaluate(home, model=model, model_getter=lambda: None if RANK == 1 else model)


RULES |= {
    "ten_samples": evaluate,
    "seven_samples": lambda home: evaluate(home, 7),
    "one_sample": lambda home: evaluate(home, 1),
    "repeats_and_errors": lambda home: evaluate(
        home, 7, toys.Model(knows=3, fails=["2", "5"]), builder=toys.builder(rows=2, repeats=2)
    ),
    "one_rank_slower": lambda home: evaluate(
        home, builder=after(on_rank_1(lambda: time.sleep(0.5)))
    ),
    "first_only": lambda home: evaluate(home, across="first"),
    "builder_raises_on_one": lambda home: evaluate(home, builder=after(on_rank_1(fail))),
    "no_model_on_one": without_model_on_rank_1,
    "buffers_differ": trained_apart,
    "buffers_made_equal": lambda home: trained_apart(home, equal_buffers),
    "weights_differ": lambda home: trained_apart(home, another_number_on_rank_1),
}


@scenario
def scoring_is_not_admitted(home: Path) -> Any:
    """What the first rank refuses, and only the first is asked."""
    model, inner = toys.Model(), toys.builder(rows=2)
    scorers = [toys.score, lambda trajectory, sample: toys.score(trajectory, sample)]

    def build(model: Any) -> Any:
        return replace(inner(model), score_fn=scorers[0])

    evals = toys.make_eval(
        toys.questions(10),
        build,
        every_steps=1,
        model_getter=lambda: model,
        across="all",
        run_dir=home / f"rank{RANK}",
    )
    evals.maybe_run(1)
    scorers.pop(0)
    return told(evals.maybe_run(2), model)


@scenario
def what_one_says_cannot_be_sent(home: Path) -> Any:
    inner = toys.builder(rows=2)

    def build(model: Any) -> Any:
        said = {"name": "\ud800"} if RANK == 1 else {}
        return replace(inner(model), describe=lambda: said)

    return evaluate(home, builder=build)


@scenario
def one_cannot_be_put_back(home: Path) -> Any:
    whole = measuring.isolated

    @contextmanager
    def broken(model: Any, **settings: Any) -> Iterator[None]:
        with whole(model, **settings):
            yield
        on_rank_1(lambda: fail("a flag is not what it was"))()

    measuring.isolated = broken
    try:
        return evaluate(home)
    finally:
        measuring.isolated = whole


@scenario
def first_cannot_decide(home: Path) -> Any:
    model = toys.Model()
    evals = toys.make_eval(
        toys.questions(10),
        toys.builder(rows=2),
        every_steps=1,
        model_getter=lambda: model,
        across="all",
        run_dir=home / f"rank{RANK}",
    )
    if RANK == 0:
        evals.curve.known_at = fails_at
    return told(evals.maybe_run(1), model)


# --- Time and budget ----------------------------------------------------------------------------


@scenario
def time_is_up_on_one(home: Path) -> Any:
    """The clock of rank 1 moves with each answer, the others' stand still."""
    clock, inner = toys.Clock(), toys.builder(rows=1)

    def build(model: Any) -> Any:
        runner = inner(model)

        def answer(requests: Any, keep_going: Any) -> Any:
            clock.now += 1.0 if RANK == 1 else 0.0
            return runner.answer(requests, keep_going)

        return replace(runner, answer=answer)

    return evaluate(home, 24, builder=build, clock=clock, max_seconds=2.5)


@scenario
def budget_of_the_first(home: Path) -> Any:
    """To the first rank evals cost 1 s; to the others nothing, so they would take all samples."""
    clock, model = toys.Clock(), toys.Model(knows=6)

    def spend() -> None:
        clock.now += 1.0 if RANK == 0 else 0.0

    evals = toys.make_eval(
        toys.questions(16),
        after(spend),
        every_steps=1,
        model_getter=lambda: model,
        across="all",
        run_dir=home / f"rank{RANK}",
        max_overhead=0.1,
        min_samples=4,
        clock=clock,
    )
    asked = []
    for step, trained in enumerate((1.0, 1.0, 40.0, 100.0), start=1):
        clock.now += trained
        model.batches.clear()
        point = evals.maybe_run(step)
        asked.append([point and point.asked, sum(map(len, model.batches))])
    return asked


# --- A trainer's callback ---


def trainer_callback(home: Path) -> Any:
    """At which steps ranks communicate and stop, by what only the first rank knows."""
    from transformers import TrainerControl, TrainerState

    from heldout.integrations.transformers import HeldoutCallback

    def stop_at_second(points: Any) -> str | None:
        return "that is enough" if len(points) == 2 else None

    def train(name: str, *, stop_file_at: int | None = None, **settings: Any) -> Any:
        clock, model = toys.Clock(), toys.Model(knows=6)

        def spend() -> None:
            clock.now += 1.0

        evals = toys.make_eval(
            toys.questions(10),
            after(spend),
            model_getter=lambda: model,
            run_dir=home / name / f"rank{RANK}",
            clock=clock,
            **settings,
        )
        args = SimpleNamespace(
            output_dir=home, report_to=[], metric_for_best_model=None, eval_strategy="no"
        )
        state, control, talked = TrainerState(), TrainerControl(), []
        callback = HeldoutCallback(evals)
        callback.on_train_begin(args, state, control)
        while state.global_step < 100 and not control.should_training_stop:
            state.global_step += 1
            clock.now += 0.0 if RANK == 0 else 1000.0  # others could afford any eval
            if state.global_step == stop_file_at and RANK == 0:
                request_stop(evals.run_dir, "no better")
            with collectives() as calls:
                callback.on_step_end(args, state, control, model)
            talked += [state.global_step] if calls else []
        return {
            "talked": talked,
            "points": [[point.step, point.skipped is not None] for point in evals.history],
            "rows": [row["step"] for row in state.log_history],
            "ended": state.global_step,
        }

    return {
        "monitor": train("monitor", every_steps=7, monitor=stop_at_second),
        "stop file": train("outside", every_steps=60, stop_file_at=9),
        "budget": train("budget", every_steps=40, max_overhead=0.01),
    }


@contextmanager
def collectives() -> Iterator[list[str]]:
    """The collectives that this process takes part in meanwhile."""
    from torch import distributed

    calls: list[str] = []
    names = ("all_gather", "all_gather_object", "all_reduce", "broadcast", "barrier")
    own = {name: getattr(distributed, name) for name in names}

    def counted(name: str) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            calls.append(name)
            return own[name](*given, **named)

        return call

    for name in names:
        setattr(distributed, name, counted(name))
    try:
        yield calls
    finally:
        for name in names:
            setattr(distributed, name, own[name])


# --- Death and training -------------------------------------------------------------------------


def one_dies(home: Path) -> Any:
    return evaluate(home, builder=after(on_rank_1(lambda: os._exit(3))))


def training(home: Path) -> Any:
    """Weights of a DDP-wrapped model after real steps, without evals and with them."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from heldout._live.weights import fingerprint
    from heldout.training import live_model
    from tests.tiny_model import WORDS, tiny_model

    samples = [Sample(f"s{i}", {"question": WORDS[i]}, WORDS[i]) for i in range(5)]

    def score(trajectory: Trajectory, sample: Sample) -> Score:
        torch.rand(1)
        return toys.score(trajectory, sample)

    def train(across: Any) -> Any:
        torch.manual_seed(RANK)
        bare, tokenizer = tiny_model()
        bare.config.attention_dropout = 0.1
        for layer in bare.model.layers:
            layer.self_attn.attention_dropout = 0.1
        model = DistributedDataParallel(bare.train())
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        evals = None
        if across:
            evals = toys.make_eval(
                samples,
                live_model(tokenizer, score, max_new=6, rows=2),
                every_steps=2,
                model_getter=lambda: model,
                across=across,
                run_dir=home / f"{across}{RANK}",
            )
        for step in range(1, 5):
            ids = torch.randint(8, 60, (2, 12))
            optimizer.zero_grad()
            model(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            if evals:
                evals.maybe_run(step)
        points = [[p.step, p.n, p.weights, p.skipped] for p in evals.history] if evals else []
        return {"weights": fingerprint(model), "draws": torch.rand(1).item(), "points": points}

    return {str(across): train(across) for across in (None, "all", "first")}


def main(names: list[str], home: Path) -> None:
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{home / 'store'}",
        rank=RANK,
        world_size=WORLD,
        timeout=timedelta(seconds=300),  # a rank may import much longer than another
    )
    others: dict[str, Callable[[Path], Any]] = {
        "one_dies": one_dies,
        "trainer_callback": trainer_callback,
        "training": training,
    }
    seen = {name: ({**RULES, **others})[name](home / name) for name in names or RULES}
    (home / f"{RANK}.json").write_text(json.dumps(seen))
    if "one_dies" not in names:
        distributed.barrier()
        distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[2:], Path(sys.argv[1]))
