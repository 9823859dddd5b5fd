"""Time tinker-cookbook's RL loop whose evals overlap with it, against evals in between and none.

The loop is the package's own, with the evals that docs/tinker.md puts into it. The service is the
one of the tests, which needs no network, and takes its time: a request of the training, an update,
and a request of an eval are sleeps. What is left is what scheduling costs the training.

    .venv-trackers/bin/python bench/tinker_loop.py

(Not called tinker.py: a script's folder comes first where its imports are looked for.)
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import shutil
import sys
import time
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from common import HERE, child, emit, options, say, scratch

sys.path.insert(0, str(HERE.parent))  # for the service of the tests

REQUEST, UPDATE, EVAL = 0.1, 0.1, 1.0
"""Seconds: a wave of rollouts, an update, and an eval, whose requests are all in flight at once."""
STEPS, EVERY, SAMPLES = 12, 3, 10
CASES = ("no eval", "overlapped", "inline")


def slow_service(request: float, update: float, evaluation: float) -> None:
    """Put the tests' service in place of tinker's, with these times."""
    import tinker
    from tests.integration import tinker_fake

    async def before_update(number: int) -> None:
        await asyncio.sleep(update)

    class Slow(plain_sampling()):  # type: ignore[misc]
        async def sample_async(self, prompt: Any, num_samples: int, sampling_params: Any) -> Any:
            # Evals are greedy, and nothing else is.
            await asyncio.sleep(evaluation if sampling_params.temperature == 0 else request)
            return await super().sample_async(prompt, num_samples, sampling_params)

    tinker_fake.FakeSampling = Slow  # type: ignore[misc]
    tinker.ServiceClient = tinker_fake.FakeService(before_update=before_update)


@cache
def plain_sampling() -> Any:
    """The sampling client of the tests, as it is before it is replaced: times must not add up."""
    from tests.integration.tinker_fake import FakeSampling

    return FakeSampling


async def train(case: str, folder: Path, steps: int, every: int) -> dict[str, Any]:
    """Wall time of the loop itself; what is left to wait for at its end is another number."""
    from tests.integration.tinker_fake import MODEL, ProblemsBuilder, renderer
    from tinker_cookbook.rl import train as rl

    from heldout import Sample
    from heldout.integrations.tinker import HeldoutEvaluator, with_heldout
    from heldout.training import AsyncEvalDispatcher, current_points, read_points

    samples = [Sample(f"s{i}", {"question": f"n={i}"}, str(i)) for i in range(SAMPLES)]
    config = rl.Config(
        learning_rate=1e-4,
        model_name=MODEL,
        recipe_name="bench",
        max_tokens=20,
        log_path=str(folder / "log"),
        eval_every=every,
        save_every=0,
        num_groups_to_log=0,
        dataset_builder=ProblemsBuilder(batches=steps),
    )
    counting = HeldoutEvaluator(
        samples,
        lambda trajectory, sample: trajectory.answer == sample.ground_truth,
        renderer(),
        name="counting",
        max_tokens=20,
        run_dir=str(folder / "run"),
    )
    drained, cpu = 0.0, time.process_time()
    if case == "overlapped":
        config = with_heldout(config, counting, async_eval=True)
        async with AsyncEvalDispatcher(run_dir=folder / "run") as dispatcher:
            begin = time.perf_counter()
            await rl.main(config)
            wall = time.perf_counter() - begin
            drained = (await dispatcher.drain()).seconds
    else:
        if case == "inline":
            config = with_heldout(config, counting)
        begin = time.perf_counter()
        await rl.main(config)
        wall = time.perf_counter() - begin
    curve = folder / "run" / "curve.jsonl"
    points = current_points(read_points(curve)) if curve.exists() else []
    return {
        "wall_s": wall,
        "cpu_s": time.process_time() - cpu,
        "drain_s": drained,
        "evals": [[point.step, point.reward] for point in points],
    }


def measure(cases: tuple[str, ...], steps: int, every: int, evaluation: float) -> dict[str, Any]:
    """One training of each case in this process, after a short one that imports and compiles."""
    from tinker_cookbook.utils import ml_log

    # The table of every step for the terminal is a third of what a training takes here.
    ml_log.PrettyPrintLogger.log_metrics = lambda self, metrics, step: None
    folder = scratch("tinker-loop")
    said = io.StringIO()
    found: dict[str, Any] = {}
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        slow_service(0.0, 0.0, 0.0)
        asyncio.run(train("overlapped", folder / "warm", 2, 1))
        for case in cases:
            slow_service(REQUEST, UPDATE, evaluation)
            found[case] = asyncio.run(train(case, folder / case, steps, every))
    for case, line in found.items():
        due = [] if case == "no eval" else range(0, steps, every)
        rewards = [[step, round(reward, 6)] for step, reward in line["evals"]]
        if rewards != [[step, round(min(1.0, 0.2 * step), 6)] for step in due]:
            sys.exit(f"wrong result: {case}: {line['evals']}")
    shutil.rmtree(folder)
    return found


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--cases", nargs="+", help="measure these once, one after the other")
    parser.add_argument("--rounds", type=int, default=5, help="how often (default: %(default)s)")
    args = parser.parse_args()
    steps, every, evaluation = (4, 2, 0.2) if args.quick else (STEPS, EVERY, EVAL)
    if args.cases:
        print(json.dumps(measure(tuple(args.cases), steps, every, evaluation)), flush=True)
        os._exit(0)  # without what the package does at its exit
    rounds: list[dict[str, Any]] = []
    for turn in range(1 if args.quick else args.rounds):
        # Side by side in one process, in another order each time: what disturbs the machine for a
        # while disturbs all.
        order = CASES[turn % 3 :] + CASES[: turn % 3]
        say(f"tinker's loop, round {turn + 1}: {', '.join(order)}")
        more = ["--quick"] if args.quick else []
        rounds.append(child(sys.executable, __file__, "--cases", *order, *more))

    what = f"{steps} steps of {REQUEST + UPDATE:g} s, an eval of {evaluation:g} s every {every}"
    named = (
        ("no eval", f"training without evals, wall, {what}"),
        ("overlapped", "training with evals beside it, wall"),
        ("inline", "training with evals in between, wall"),
    )
    walls = {case: [line[case]["wall_s"] for line in rounds] for case in CASES}
    for case, name in named:
        is_ours = case == "overlapped"
        for which, pick in (("", median), (", fastest round", min), (", slowest round", max)):
            ratio = None if is_ours else pick(walls[case]) / pick(walls["overlapped"])
            emit(
                f"{name.partition(',')[0]}{which}" if which else name,
                pick(walls[case]),
                "s",
                ratio=ratio,
            )
    for case, name in named:
        cpu = median(line[case]["cpu_s"] for line in rounds)
        emit(f"{name.partition(',')[0]}, CPU of the process", cpu, "s")
    drains = [line["overlapped"]["drain_s"] for line in rounds]
    emit("waiting for the last evals, at the end", median(drains), "s")


if __name__ == "__main__":
    main()
