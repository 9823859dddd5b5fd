"""Measure what runs that stop spend and settle, beside fixed n and two ways to stop that fool.

A model is simulated: 1,000 paired samples of which 30% differ from the baseline's, with true
effects in units of what the full set detects with 80% power (MDE). Each draw goes through the
stopping rule that the engine asks; some of each cell go through the whole engine, 64 in flight, and
must stop where the rule alone stopped.
"""

from __future__ import annotations

import heapq
import math
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist, mean
from typing import Any

import anyio
import numpy as np

from common import emit, options, say, scratch
from heldout import EvalConfig, EvalReport, Message, Sample, Trajectory
from heldout._evals.engine import Evaluation
from heldout._evals.rollout import EvalDefinition
from heldout._evals.stopping import Stopping, order_for_looks, plan_stopping
from heldout.models import open_endpoint
from heldout.stats import paired_difference
from heldout.stats.stopping import Plan, Prefix, look, mean_above
from heldout.store.settled import Settled

SIZE, DISCORDANT, MDE = 1000, 0.3, 0.0485
EFFECTS = (0.0, 1.0, 1.5, 2.0, 3.0, 5.0)
IN_FLIGHT = 64
FIRST = 20
"""Samples from which TensorZero's rule looks at the interval."""
MCNEMAR = "McNemar's test after every sample from 50 on"
FINISHED = "a fixed interval after every finished sample from 20 on (TensorZero)"

SAMPLES = order_for_looks(
    [Sample(f"q{i}", {"question": str(i)}, "1") for i in range(SIZE)], whole=False
)
PLACES = {sample.input["question"]: place for place, sample in enumerate(SAMPLES)}


def grade(trajectory: Trajectory, sample: Sample) -> float:
    return float(trajectory.answer == sample.ground_truth)


def draw(effect: float, rng: Any) -> tuple[Any, Any]:
    """Draw the outcomes of a model and of its baseline, which is right half the time.

    Both anew for each draw: the claim is about questions like these, and so is the level.
    """
    delta = effect * MDE
    baseline = (rng.random(SIZE) < 0.5).astype(float)
    chance = np.where(baseline == 1, 1 - (DISCORDANT - delta), DISCORDANT + delta)
    return (rng.random(SIZE) < chance).astype(float), baseline


@dataclass(frozen=True)
class Stop:
    decision: bool | None
    n: int


def stop_by_rule(outcomes: Any, baseline: Any, config: EvalConfig) -> Stop:
    """Feed outcomes to the rule that the engine asks, one at a time."""

    class Old:
        def values(self, samples: Sequence[Sample]) -> tuple[Any, Any]:
            return baseline, baseline

    stopping: Stopping = plan_stopping(SAMPLES, config, Old(), whole=False)  # type: ignore[arg-type]
    for index, outcome in enumerate(outcomes):
        stopping.add(index, float(outcome))
        if stopping.is_over:
            break
    return Stop(stopping.look().decision, stopping.samples_of_look)


def run_engine(outcomes: Any, folder: Path, name: str, **settings: Any) -> EvalReport:
    """Run a whole eval on a simulated model whose wrong answers take twice as long."""

    async def answer(messages: list[Message]) -> str:
        right = outcomes[PLACES[messages[-1].text]] == 1
        for _ in range(2 if right else 4):
            await anyio.sleep(0)
        return "1" if right else "0"

    config = EvalConfig(
        endpoint=answer,
        experiment_name=name,
        output_dir=str(folder),
        max_concurrent=IN_FLIGHT,
        max_turns=1,
        pass_threshold=0.5,
        progress=False,
        **settings,
    )

    async def main() -> EvalReport:
        endpoint = open_endpoint(answer, max_concurrent=IN_FLIGHT)
        definition = EvalDefinition(SAMPLES, grade)
        return await Evaluation(definition, config, endpoint, parquet_from=10**9).run()

    return anyio.run(main)


def settled_of(report: EvalReport) -> Settled:
    assert report.settled is not None
    return report.settled


def measure(cell: str, claim: str, effect: float, settings: dict[str, Any], args: Any) -> None:
    """Measure a cell: what is settled, after which share of the set, for which share of calls."""
    rng = np.random.default_rng([round(1000 * effect), *claim.encode()])
    folder = scratch("adaptive")
    config = EvalConfig(until=claim, max_concurrent=IN_FLIGHT, **settings)
    stops, spent = [], []
    for number in range(args.draws):
        outcomes, baseline = draw(effect, rng)
        stop = stop_by_rule(outcomes, baseline, config)
        stops.append(stop)
        if number < args.whole:
            run_engine(baseline, folder, f"old-{number}")
            until = claim.replace("OLD", str(folder / f"old-{number}"))
            settled = settled_of(
                run_engine(outcomes, folder, f"run-{number}", until=until, **settings)
            )
            decided = {"true": True, "false": False, "inconclusive": None}[settled.decision]
            if (decided, settled.n_decided) != (stop.decision, stop.n):
                sys.exit(f"{cell}: the engine stopped at {settled}, the rule at {stop}")
            spent.append(settled.n_spent / SIZE)
    shutil.rmtree(folder)
    wanted = None if effect == 0 and claim.startswith("better") else True
    right = mean(stop.decision == wanted for stop in stops)
    what = "settled" if wanted is None else "shown"
    share = 100 * (1 - right if wanted is None else right)
    emit(f"{cell}: {what}", share, "%")
    share = 100 * mean(stop.n for stop in stops) / SIZE
    emit(f"{cell}: of the set, decided on", share, "%", target=args.goals.get(cell))
    emit(f"{cell}: of the calls, made", 100 * mean(spent), "%")


def compare_others(effect: float, draws: int) -> None:
    """Measure fixed n, and looking at an ordinary interval after every sample."""
    rng = np.random.default_rng(round(1000 * effect))
    found: dict[str, list[Stop]] = {"fixed n": [], MCNEMAR: [], FINISHED: []}
    z = NormalDist().inv_cdf(0.975)
    for _ in range(draws):
        outcomes, baseline = draw(effect, rng)
        whole = paired_difference(baseline, outcomes)
        assert whole.p_value is not None
        found["fixed n"].append(Stop(whole.difference > 0 if whole.p_value < 0.05 else None, SIZE))
        d = outcomes - baseline
        sums, squares = np.cumsum(d), np.cumsum(d * d)
        # McNemar's score test after every sample in the order of the set, from 50 on.
        with np.errstate(divide="ignore", invalid="ignore"):
            crossed = np.abs(sums) / np.sqrt(squares) > z
        found[MCNEMAR].append(_first(crossed, sums, 50))
        # After every sample that has finished, slow ones last, from 20 on; the interval of a mean.
        order = _finished(outcomes)
        sums, squares = np.cumsum(d[order]), np.cumsum(d[order] ** 2)
        n = np.arange(1, SIZE + 1)
        spread = np.sqrt(np.maximum(squares / n - (sums / n) ** 2, 0) / n)
        found[FINISHED].append(_first(np.abs(sums / n) > z * spread, sums, FIRST))
    for name, stops in found.items():
        right = [stop.decision is True for stop in stops]
        wrong = [stop.decision is not None for stop in stops]
        what, share = ("settled", wrong) if effect == 0 else ("shown", right)
        cell = f"better than, {effect:g} MDE, {name}"
        emit(f"{cell}: {what}", 100 * mean(share), "%")
        emit(f"{cell}: of the set, decided on", 100 * mean(s.n for s in stops) / SIZE, "%")


def _first(crossed: Any, sums: Any, first: int) -> Stop:
    at = np.flatnonzero(crossed[first - 1 :])
    if not len(at):
        return Stop(None, SIZE)
    n = first + int(at[0])
    return Stop(bool(sums[n - 1] > 0), n)


def _finished(outcomes: Any) -> Any:
    """Return the order in which samples end, 64 in flight, wrong answers twice as slow."""
    running, order, clock = [], [], 0.0
    for place, outcome in enumerate(outcomes):
        if len(running) == IN_FLIGHT:
            clock, done = heapq.heappop(running)
            order.append(done)
        heapq.heappush(running, (clock + (1.0 if outcome else 2.0), place))
    return np.array([*order, *(place for _, place in sorted(running))])


def draw_picture(path: Path) -> None:
    """Draw the repeated interval of one run, as it closes over its looks."""
    from matplotlib.figure import Figure

    rng = np.random.default_rng(8)
    outcomes = (rng.random(SIZE) < 0.85).astype(float)
    plan, claim = Plan(SIZE), mean_above(0.8)
    sizes, looks = [], []
    for size in plan.sizes:
        found = look(plan, claim, Prefix.of(outcomes[:size]))
        sizes.append(size)
        looks.append(found)
        if found.decision is not None:
            break
    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axes = figure.subplots()
    bands = [each.interval for each in looks]
    low = [band.low for band in bands if band is not None]
    high = [band.high for band in bands if band is not None]
    axes.fill_between(sizes, low, high, alpha=0.25, label="interval over all looks so far")
    axes.plot(sizes, [each.mean for each in looks], "o-", markersize=3, label="mean")
    axes.axhline(0.8, color="black", linestyle="--", linewidth=1, label="the bound of mean>0.8")
    axes.axvline(sizes[-1], color="tab:green", linewidth=1)
    axes.annotate(f"stops at {sizes[-1]}", (sizes[-1], 0.62), (6, 0), textcoords="offset points")
    axes.set(xlim=(0, SIZE), ylim=(0.55, 1.0), xlabel="samples", ylabel="reward")
    axes.legend(loc="lower right", frameon=False)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--draws", type=int, default=400, help="draws of each cell")
    parser.add_argument("--whole", type=int, default=20, help="of these through the whole engine")
    parser.add_argument("--picture", type=Path, help="draw the page's picture, and nothing else")
    args = parser.parse_args()
    if args.picture:
        draw_picture(args.picture)
        return
    if args.quick:
        args.draws, args.whole = 10, 2
    rules: dict[str, dict[str, Any]] = {"linear": {}, "keep power": {"keep_power": True}}
    # A margin in minimum detectable effects, as a number that the claim's grammar takes.
    margins = {m: f"{m * MDE:.4f}" for m in (1, 2, 3)}
    args.goals = {
        "better than, 2 MDE, linear": 30,
        "better than, 3 MDE, linear": 16,
        "not worse by 2 MDE, no change, linear": 31,
        "not worse by 2 MDE, no change, keep power": 42,
    }
    for effect in EFFECTS:
        say(f"better than, {effect:g} MDE")
        compare_others(effect, args.draws)
        for rule, settings in rules.items():
            cell = f"better than, {effect:g} MDE, {rule}"
            measure(cell, "better than OLD", effect, settings, args)
    for size, margin in margins.items():
        say(f"not worse by {size} MDE")
        for rule, settings in rules.items():
            cell = f"not worse by {size} MDE, no change, {rule}"
            measure(cell, f"not worse than OLD by {margin}", 0.0, settings, args)
    emit("standard error of a share", 100 * math.sqrt(0.25 / args.draws), "%")


if __name__ == "__main__":
    main()
