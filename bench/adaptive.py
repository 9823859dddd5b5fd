"""Measure what runs that stop spend and settle, beside fixed n and two ways to stop that fool.

A model is simulated: 1,000 paired samples of which 30% differ from the baseline's, with true
effects in units of what the full set detects with 80% power (MDE). All ways to stop see the same
draws. Each draw goes through the test that decides; some of each cell also go through the stopping
rule that the engine asks and through the whole engine, 64 in flight, and must stop where the test
alone stopped. Races of four models likewise.
"""

from __future__ import annotations

import heapq
import math
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist, mean
from typing import Any

import anyio
import numpy as np

from common import emit, options, say, scratch
from heldout import EvalConfig, EvalReport, Message, Sample, Trajectory
from heldout._evals.engine import Evaluation
from heldout._evals.racing import RaceReport, race
from heldout._evals.rollout import EvalDefinition
from heldout._evals.stopping import Stopping, claim_of, order_for_looks, plan_stopping
from heldout.models import open_endpoint
from heldout.stats import paired_difference
from heldout.stats.stopping import Plan, Prefix, Standing, look, mean_above, stand
from heldout.stats.stopping.choosing import gather
from heldout.store.settled import Settled

SIZE, DISCORDANT, MDE = 1000, 0.3, 0.0485
EFFECTS = (0.0, 1.0, 1.5, 2.0, 3.0, 5.0)
IN_FLIGHT = 64
FIRST = 20
"""Samples from which TensorZero's rule looks at the interval."""
MORE_DRAWS = 4
"""Times as many draws at 1 MDE, where the power of two rules is compared."""
MORE_WHOLE = {"better than, 2 MDE, linear": 8, "better than, 3 MDE, linear": 8}
"""Times as many draws through the whole engine: what a run spends is asked there."""
FEWER = 1000
"""Draws that the two ways that fool are given: what they do takes no more to see."""
MODELS = ("best", "second", "third", "fourth")
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


def stop_by_test(outcomes: Any, baseline: Any, config: EvalConfig) -> Stop:
    """Return where the test decides, all looks gone through at once."""
    assert config.settles is not None
    plan = Plan(SIZE, "keep_power" if config.keep_power else "linear")
    prefix = Prefix.of(outcomes, baseline=baseline)
    crossed = gather(plan, claim_of(config.settles), prefix, final=True).crossed
    return Stop(None, SIZE) if crossed is None else Stop(crossed[1], crossed[0])


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


def draws_of(effect: float, args: Any) -> int:
    return int(args.draws) * (MORE_DRAWS if effect == 1 else 1)


def measure(
    cell: str, claim: str, effect: float, settings: dict[str, Any], args: Any
) -> list[bool | None]:
    """Measure a cell: what is settled, after which share of the set, for which share of calls.

    Returns:
        What was decided about each draw.
    """
    rng = np.random.default_rng(round(1000 * effect))
    folder = scratch("adaptive")
    config = EvalConfig(until=claim, max_concurrent=IN_FLIGHT, **settings)
    whole = args.whole * MORE_WHOLE.get(cell, 1)
    stops, spent = [], []
    for number in range(draws_of(effect, args)):
        outcomes, baseline = draw(effect, rng)
        stop = stop_by_test(outcomes, baseline, config)
        stops.append(stop)
        if number < whole:
            by_rule = stop_by_rule(outcomes, baseline, config)
            if by_rule != stop:
                sys.exit(f"{cell}: the rule stopped at {by_rule}, the test at {stop}")
            run_engine(baseline, folder, f"old-{number}")
            until = claim.replace("OLD", str(folder / f"old-{number}"))
            settled = settled_of(
                run_engine(outcomes, folder, f"run-{number}", until=until, **settings)
            )
            decided = {"true": True, "false": False, "inconclusive": None}[settled.decision]
            if (decided, settled.n_decided) != (stop.decision, stop.n):
                sys.exit(f"{cell}: the engine stopped at {settled}, the test at {stop}")
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
    return [stop.decision for stop in stops]


def compare_others(effect: float, draws: int) -> list[bool | None]:
    """Measure fixed n, and looking at an ordinary interval after every sample.

    Returns:
        What fixed n decided about each draw.
    """
    rng = np.random.default_rng(round(1000 * effect))
    found: dict[str, list[Stop]] = {"fixed n": [], MCNEMAR: [], FINISHED: []}
    calls: dict[str, list[int]] = {MCNEMAR: [], FINISHED: []}
    z = NormalDist().inv_cdf(0.975)
    for number in range(draws):
        outcomes, baseline = draw(effect, rng)
        whole = paired_difference(baseline, outcomes)
        assert whole.p_value is not None
        found["fixed n"].append(Stop(whole.difference > 0 if whole.p_value < 0.05 else None, SIZE))
        if number >= FEWER:
            continue
        d = outcomes - baseline
        sums, squares = np.cumsum(d), np.cumsum(d * d)
        # McNemar's score test after every sample in the order of the set, from 50 on.
        with np.errstate(divide="ignore", invalid="ignore"):
            crossed = np.abs(sums) / np.sqrt(squares) > z
        found[MCNEMAR].append(_first(crossed, sums, 50))
        started, ended = _times(outcomes)
        calls[MCNEMAR].append(int((started < ended[: found[MCNEMAR][-1].n].max()).sum()))
        # After every sample that has finished, slow ones last, from 20 on; the interval of a mean.
        order = np.argsort(ended, kind="stable")
        sums, squares = np.cumsum(d[order]), np.cumsum(d[order] ** 2)
        n = np.arange(1, SIZE + 1)
        spread = np.sqrt(np.maximum(squares / n - (sums / n) ** 2, 0) / n)
        found[FINISHED].append(_first(np.abs(sums / n) > z * spread, sums, FIRST))
        calls[FINISHED].append(int((started < ended[order[found[FINISHED][-1].n - 1]]).sum()))
    for name, stops in found.items():
        right = [stop.decision is True for stop in stops]
        wrong = [stop.decision is not None for stop in stops]
        what, share = ("settled", wrong) if effect == 0 else ("shown", right)
        cell = f"better than, {effect:g} MDE, {name}"
        emit(f"{cell}: {what}", 100 * mean(share), "%")
        emit(f"{cell}: of the set, decided on", 100 * mean(s.n for s in stops) / SIZE, "%")
        if name in calls:
            emit(f"{cell}: of the calls, made", 100 * mean(calls[name]) / SIZE, "%")
    return [stop.decision for stop in found["fixed n"]]


def compare_power(cell: str, stopped: list[bool | None], fixed: list[bool | None]) -> None:
    """Say how much more often fixed n shows an effect in the same draws, and how sure that is."""
    lost = np.array([once is True for once in fixed]) * 1.0
    lost -= np.array([decision is True for decision in stopped])
    emit(f"{cell}: shown by fixed n, and not", 100 * float(lost.mean()), "points", target=3.5)
    error = float(lost.std()) / math.sqrt(len(lost))
    emit(f"{cell}: standard error of that", 100 * error, "points", target=0.5)


def _first(crossed: Any, sums: Any, first: int) -> Stop:
    at = np.flatnonzero(crossed[first - 1 :])
    if not len(at):
        return Stop(None, SIZE)
    n = first + int(at[0])
    return Stop(bool(sums[n - 1] > 0), n)


def _times(outcomes: Any) -> tuple[Any, Any]:
    """Return when each sample starts and ends, 64 in flight, wrong answers twice as slow."""
    running: list[float] = []
    started, ended = [], []
    for outcome in outcomes:
        start = heapq.heappop(running) if len(running) == IN_FLIGHT else 0.0
        started.append(start)
        ended.append(start + (1.0 if outcome else 2.0))
        heapq.heappush(running, ended[-1])
    return np.array(started), np.array(ended)


# --- Races --------------------------------------------------------------------------------------


def draw_models(effect: float, rng: Any) -> list[Any]:
    """Draw the outcomes of four models, the first of them better, any two differing in 30%.

    A model answers as the sample would have it, half of them right, or with a mind of its own.
    """
    own = 1 - math.sqrt(1 - 2 * DISCORDANT)
    easy = rng.random(SIZE) < 0.5
    found = []
    for place in range(len(MODELS)):
        chance = 0.5 + (effect * MDE / own if place == 0 else 0.0)
        mind = rng.random(SIZE) < chance
        found.append(np.where(rng.random(SIZE) < own, mind, easy).astype(float))
    return found


def spent_by(standing: Standing) -> list[int]:
    """Return the samples that each model of a race ran, which ended when one was left."""
    dropped = {each.model: each.n for each in standing.dropped}
    ended = max(dropped.values()) if standing.winner is not None else SIZE
    return [dropped.get(model, ended) for model in range(len(MODELS))]


def run_race(models: list[Any], folder: Path, name: str) -> RaceReport:
    """Run a whole race of simulated models, whose wrong answers take twice as long."""

    def answers(outcomes: Any) -> Callable[[list[Message]], Any]:
        async def answer(messages: list[Message]) -> str:
            right = outcomes[PLACES[messages[-1].text]] == 1
            for _ in range(2 if right else 4):
                await anyio.sleep(0)
            return "1" if right else "0"

        return answer

    configs = {
        model: EvalConfig(
            endpoint=answers(outcomes),
            experiment_name=f"{name}-{model}",
            output_dir=str(folder),
            max_concurrent=IN_FLIGHT,
            max_turns=1,
            pass_threshold=0.5,
            progress=False,
        )
        for model, outcomes in zip(MODELS, models, strict=True)
    }

    async def main() -> RaceReport:
        return await race(EvalDefinition(SAMPLES, grade), configs)

    return anyio.run(main)


def measure_races(effect: float, args: Any) -> None:
    """Measure races of four models, one of which is better by so many MDE."""
    rng = np.random.default_rng([round(1000 * effect), len(MODELS)])
    folder = scratch("adaptive-races")
    right, wrong, shares, spent = 0, 0, [], []
    for number in range(args.races):
        models = draw_models(effect, rng)
        standing = stand(Plan(SIZE), [Prefix.of(outcomes) for outcomes in models], final=True)
        right += standing.winner == 0
        best = range(len(MODELS)) if effect == 0 else [0]
        wrong += any(each.model in best for each in standing.dropped)
        ran = spent_by(standing)
        shares.append(sum(ran) / (SIZE * len(MODELS)))
        if number < args.whole_races:
            report = run_race(models, folder, f"race-{number}")
            found = {placed.name: placed.n_decided for placed in report.placed}
            if [found[name] for name in MODELS] != ran:
                sys.exit(f"race {number}: the engine decided at {found}, the statistics at {ran}")
            spent.append(report.n_spent / (SIZE * len(MODELS)))
    shutil.rmtree(folder)
    cell = "race of 4 equal models" if effect == 0 else f"race of 4, one best by {effect:g} MDE"
    if effect:
        emit(f"{cell}: found", 100 * right / args.races, "%")
    what = "any of them dropped" if effect == 0 else "the best dropped"
    emit(f"{cell}: {what}", 100 * wrong / args.races, "%", target=5)
    emit(f"{cell}: of the set, decided on", 100 * mean(shares), "%")
    emit(f"{cell}: of the calls, made", 100 * mean(spent), "%")


# --- The picture, and all of it -----------------------------------------------------------------


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
    parser.add_argument("--draws", type=int, default=2000, help="draws of each cell")
    parser.add_argument("--whole", type=int, default=8, help="of these through the whole engine")
    parser.add_argument("--races", type=int, default=1000, help="races of each cell")
    parser.add_argument("--whole-races", type=int, default=8, help="of these with the engine")
    parser.add_argument("--picture", type=Path, help="draw the page's picture, and nothing else")
    args = parser.parse_args()
    if args.picture:
        draw_picture(args.picture)
        return
    if args.quick:
        args.draws, args.whole, args.races, args.whole_races = 10, 2, 10, 2
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
        fixed = compare_others(effect, draws_of(effect, args))
        for rule, settings in rules.items():
            cell = f"better than, {effect:g} MDE, {rule}"
            stopped = measure(cell, "better than OLD", effect, settings, args)
            if effect == 1 and rule == "keep power":
                compare_power(cell, stopped, fixed)
    for size, margin in margins.items():
        say(f"not worse by {size} MDE")
        for rule, settings in rules.items():
            cell = f"not worse by {size} MDE, no change, {rule}"
            measure(cell, f"not worse than OLD by {margin}", 0.0, settings, args)
    for effect in (0.0, 1.0, 2.0, 3.0):
        say(f"races, {effect:g} MDE")
        measure_races(effect, args)
    emit("standard error of a share", 100 * math.sqrt(0.25 / args.draws), "%")


if __name__ == "__main__":
    main()
