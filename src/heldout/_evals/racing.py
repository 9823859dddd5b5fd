"""Several models on the same samples, in the same order: the losers stop costing.

All run in lockstep. A look is at a prefix that every model still in the race has done. A model that
another one in the race is better than, is dropped there; the race ends when one is left, when the
set is used up, or at a limit of cost. With the race's confidence no best model is dropped: each of
the k (k - 1) ordered pairs may err with an equal share of the level, over all looks together.

Each model has a run of its own, stopped where it was dropped, and resumed like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import anyio

from heldout._core.checks import check_number, check_text
from heldout._core.config import DEFAULT_LEVEL, EvalConfig
from heldout._core.format import list_some, number
from heldout._evals.engine import Evaluation, opened, prepare_config
from heldout._evals.rollout import EvalDefinition
from heldout._evals.stopping import Prefixes, format_estimate, format_samples, prefix_of, units_of
from heldout.errors import InvalidInput
from heldout.stats.intervals import Interval, Ints
from heldout.stats.stopping import (
    Dropped,
    Lead,
    Plan,
    Prefix,
    Spending,
    Standing,
    stand,
    units_to_race,
)
from heldout.stats.stopping.expecting import name_units
from heldout.store.report import EvalReport
from heldout.store.settled import RACE, RACE_SCOPE, Decision, Settled
from heldout.store.spent import cost_so_far
from heldout.types import Sample

NAMED = 5
"""Models that a sentence names."""


@dataclass(frozen=True, slots=True)
class Placed:
    """How a model came out of a race.

    Attributes:
        name: Its name in the race.
        report: Its run; None where that is not known.
        beaten_by: The model that was shown to be better; None of those that are left.
        n_decided: Items that it was judged on.
        mean: The plain mean over these.
        interval: Of its mean, simultaneous for all models and looks: also that of the winner
            holds, although it was picked.
        difference: The plain mean difference from the model that beat it; None where none did.
        difference_interval: Simultaneous for all pairs and looks.
    """

    name: str
    report: EvalReport | None = field(repr=False, compare=False)
    beaten_by: str | None
    n_decided: int
    mean: float
    interval: Interval | None
    difference: float | None
    difference_interval: Interval | None


@dataclass(frozen=True, slots=True)
class RaceReport:
    """What a race found.

    Attributes:
        decision: "best_known" where one model is left; "cannot_tell_apart" where the set was used
            up, and "cost_used_up" where the limit of cost was, with several left.
        sentence: The same in a sentence.
        placed: The models: those that are left, the highest mean first, then the others, the last
            to be dropped first.
        level: How often a best model is dropped, at most.
        looks_used: Looks that were made.
        looks_planned: Looks that there could have been.
        n_asked: Items of the whole set, for one model.
        n_spent: Items that were run, of all models.
    """

    decision: str
    sentence: str
    placed: tuple[Placed, ...]
    level: float
    looks_used: int
    looks_planned: int
    n_asked: int
    n_spent: int

    @property
    def exit_code(self) -> int:
        """0 where the best is known, 3 where several are left."""
        return 0 if self.decision == "best_known" else 3


class Race:
    """The looks of a race, which its entrants reach together."""

    def __init__(
        self,
        names: Sequence[str],
        config: EvalConfig,
        *,
        level: float,
        keep_power: bool,
        cluster: str | None = None,
        max_cost: float | None = None,
        announce: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Begin before any model has entered.

        Args:
            names: The models.
            config: How they are run.
            level: How often a best model may be dropped.
            keep_power: Whether error is spent late.
            cluster: The metadata key whose clusters are one step.
            max_cost: Cost of all models at which the race ends; None is without limit.
            announce: Takes a line after each look.
        """
        self.names, self.level, self.max_cost = tuple(names), level, max_cost
        self._config, self._announce = config, announce
        self.keep_power, self.cluster = keep_power, cluster
        self._entrants: dict[str, Entrant] = {}
        self.costs: dict[str, Callable[[], float | None]] = {}
        """What each model has cost so far; None where that is not known."""
        self.looks = 0
        self.standing: Standing | None = None
        self.ended_by_cost = False

    @property
    def is_over(self) -> bool:
        """Whether one model is left, or there is nothing more to run."""
        return self.standing is not None and (self.standing.is_over or self.ended_by_cost)

    @property
    def beaten(self) -> dict[str, Dropped]:
        """How each model was dropped that is no longer in the race."""
        dropped = () if self.standing is None else self.standing.dropped
        return {self.names[each.model]: each for each in dropped}

    @property
    def survivors(self) -> tuple[str, ...]:
        """The models that are still in the race, the highest mean first."""
        if self.standing is None:
            return self.names
        return tuple(self.names[model] for model in self.standing.survivors)

    def enter(self, name: str, samples: Sequence[Sample], *, whole: bool) -> Entrant:
        """Enter a model.

        Args:
            name: The model.
            samples: The samples of its run, in their order.
            whole: Whether samples that differ in metadata alone are different tasks.

        Raises:
            InvalidInput: There are too few samples to show which model is the best.
        """
        units = units_of(samples, whole=whole, cluster=self.cluster)
        spending: Spending = "keep_power" if self.keep_power else "linear"
        plan = Plan(n=int(units[-1]) + 1, spending=spending, level=self.level)
        self._check_size(plan, clustered=len(samples) * self._config.repeats > (plan.n or 0))
        entrant = self._entrants[name] = Entrant(self, name, plan, units, self._config)
        return entrant

    def _check_size(self, plan: Plan, *, clustered: bool) -> None:
        """Refuse a set on which no model could be shown to be better than another one."""
        needed = units_to_race(plan, len(self.names), clustered=clustered)
        if needed is not None and needed > (plan.n or 0):
            units = name_units(clustered, self.cluster)
            raise InvalidInput(
                f"{plan.n} {units} cannot show which of {len(self.names)} models is the best, even "
                f"if one is right and the others wrong in all of them: that takes {needed:,} or "
                "more"
            )

    def go_on(self) -> None:
        """Make the looks that all models in the race have reached."""
        while not self.is_over and len(self._entrants) == len(self.names):
            racing = [self._entrants[name] for name in self.survivors]
            if not all(entrant.is_complete for entrant in racing):
                return
            self._look(racing)

    def _look(self, racing: Sequence[Entrant]) -> None:
        plan = racing[0].plan
        later = plan.next_size(racing[0].units_of_look)
        self.looks += 1
        # What a resumed race has done already was paid for: only what is still to run may cost.
        is_free = later is None or all(entrant.has_done(later) for entrant in racing)
        self.ended_by_cost = not is_free and self._is_cost_used_up()
        prefixes = [self._entrants[name].prefix() for name in self.names]
        self.standing = stand(plan, prefixes, final=later is None or self.ended_by_cost)
        for entrant in racing:
            goes_on = not self.is_over and entrant.name in self.survivors
            entrant.move(later if goes_on else None)
        self._announce(self.describe())

    def _is_cost_used_up(self) -> bool:
        if self.max_cost is None:
            return False
        costs = {name: cost() for name, cost in self.costs.items()}
        for name, cost in costs.items():
            _refuse_unknown_cost(name, cost)
        return sum(cost for cost in costs.values() if cost is not None) >= self.max_cost

    def describe(self) -> str:
        """Say who is in the race, with the means so far."""
        planned = {len(entrant.plan.sizes) for entrant in self._entrants.values()}
        of = f" of {planned.pop()}" if planned else ""
        standing = self.standing
        if standing is None:
            return f"{len(self.names)} models, before the first look"
        means = [f"{self.names[i]} {number(standing.means[i])}" for i in standing.survivors]
        out = f"; out: {', '.join(self.beaten)}" if self.beaten else ""
        return f"look {self.looks}{of}: {', '.join(means)}{out}"

    def place(self, name: str, report: EvalReport | None = None) -> Placed:
        """Return how a model came out."""
        assert self.standing is not None
        return place(self.names, name, self.standing, self._entrants[name].items, report)


def place(
    names: Sequence[str], name: str, standing: Standing, items: int, report: EvalReport | None
) -> Placed:
    """Return how a model came out of a race.

    Args:
        names: The models, in the order of the standing.
        name: The model.
        standing: How the race stands at its end.
        items: Items that the model was judged on.
        report: Its run.
    """
    model = names.index(name)
    lost = next((each for each in standing.dropped if each.model == model), None)
    lead: Lead | None = None
    if lost is not None:
        [lead] = [each for each in standing.leads if {each.model, each.other} == {model, lost.by}]
        if lead.model != model:  # as seen from this model
            around = lead.interval and Interval(-lead.interval.high, -lead.interval.low)
            lead = replace(lead, difference=-lead.difference, interval=around)
    return Placed(
        name,
        report,
        beaten_by=None if lost is None else names[lost.by],
        n_decided=items,
        mean=standing.means[model],
        interval=standing.intervals[model],
        difference=None if lead is None else lead.difference,
        difference_interval=None if lead is None else lead.interval,
    )


class Entrant(Prefixes):
    """A model in a race: it goes on when all others have come as far."""

    def __init__(self, race: Race, name: str, plan: Plan, units: Ints, config: EvalConfig) -> None:
        """Enter; `Race.enter` calls it."""
        super().__init__(plan, units, config)
        self.race, self.name, self.plan, self.samples = race, name, plan, len(units)

    @property
    def units_of_look(self) -> int:
        """Units of the next look."""
        assert self._next is not None
        return self._next

    def prefix(self) -> Prefix:
        """Return the scores up to the next look, or to the look at which it was dropped."""
        low, high = self.bounds()
        return prefix_of(low, high, self._units)

    def go_on(self) -> None:
        """Make the looks that all models in the race have reached."""
        self.race.go_on()

    def describe(self) -> str:
        """Say who is in the race, with the means so far."""
        return self.race.describe()

    def settle(self, *, spent: int) -> Settled:
        """Say how this model came out.

        Args:
            spent: Items that were run.
        """
        race, placed = self.race, self.race.place(self.name)
        around = placed.interval
        decision: Decision = "inconclusive"
        samples = format_samples(self.samples)
        others = [name for name in race.names if name != self.name]
        looks = self.plan.sizes.index(self.units_of_look) + 1
        if placed.beaten_by is not None:
            decision, around = "false", placed.difference_interval
            assert placed.difference is not None
            sentence = (
                f"Worse than {placed.beaten_by}: "
                f"{format_estimate(placed.difference, around, sign=True)}, after "
                f"{self.samples_of_look:,} of {samples}, at look {looks} of "
                f"{len(self.plan.sizes)} of a race of {len(race.names)}."
            )
        elif race.survivors == (self.name,):
            decision = "true"
            sentence = (
                f"The best of a race with {list_some(others, NAMED, ', ')}: "
                f"{format_estimate(placed.mean, around)}, after {self.samples_of_look:,} of "
                f"{samples}."
            )
        else:
            tied = [name for name in race.survivors if name != self.name]
            sentence = (
                f"Not told apart from {list_some(tied, NAMED, ', ')} in a race, after "
                f"{self.samples_of_look:,} of {samples}."
            )
        spending = "keeping power" if self.plan.spending == "keep_power" else "linear"
        return Settled(
            claim=f"{RACE} with {', '.join(others)}",
            decision=decision,
            sentence=sentence,
            rule=f"tests of all pairs of {len(race.names)} models, {spending} spending",
            level=race.level,
            looks_used=looks,
            looks_planned=len(self.plan.sizes),
            n_decided=self.items,
            n_asked=self.samples * self._repeats,
            n_spent=spent,
            estimate=None,
            interval=None if around is None else (around.low, around.high),
            mean=self.mean,
            difference=placed.difference,
            baseline=placed.beaten_by,
            scope=RACE_SCOPE,
        )


async def run_race(
    definition: EvalDefinition,
    configs: Mapping[str, EvalConfig],
    *,
    level: float = DEFAULT_LEVEL,
    keep_power: bool = False,
    cluster: str | None = None,
    max_cost: float | None = None,
    announce: Callable[[str], None] = lambda line: None,
) -> RaceReport:
    """Run several models on the same samples until the best is known.

    Args:
        definition: The eval.
        configs: How each model is run, by its name in the race; they differ in the model and in
            where the run is stored.
        level: How often a best model may be dropped.
        keep_power: Stop later, and tell nearly as much apart as the full set would.
        cluster: The metadata key whose clusters run as one step; None takes equal content.
        max_cost: Cost of all models at which the race ends, looked at where they are compared;
            None is without limit.
        announce: Takes a line after each look.

    Returns:
        Who is left, and how the others were beaten.

    Raises:
        InvalidInput: There are fewer than two models, or samples that may not be read twice.
        EvalFailed: The run of a model failed; all of them can be resumed.
    """
    if len(configs) < 2:
        raise InvalidInput("a race is between two models or more")
    first = next(iter(configs.values()))
    if first.until is not None:
        raise InvalidInput("a race has a claim of its own: leave out until")
    check_text("cluster", cluster, optional=True)
    check_number("level", level, low=1e-6, high=0.5)
    check_number("max_cost", max_cost, low=0, optional=True)
    if not isinstance(definition.samples, Sequence):
        if first.max_samples is None:
            raise InvalidInput(
                "a race needs to know how many samples there are: load_dataset must return a list, "
                "or give a limit"
            )
        samples = list(islice(definition.samples, first.max_samples))
        definition = replace(definition, samples=samples)
    prepared = {
        name: prepare_config(definition, replace(config, progress=False))
        for name, config in configs.items()
    }
    the_race = Race(
        [*configs],
        first,
        level=level,
        keep_power=keep_power,
        cluster=cluster,
        max_cost=max_cost,
        announce=announce,
    )
    reports: dict[str, EvalReport] = {}

    async def run(name: str) -> None:
        async with opened(definition, prepared[name]) as evaluation:
            _enter(the_race, name, evaluation)
            reports[name] = await evaluation.run()

    try:
        async with anyio.create_task_group() as group:
            for name in configs:
                group.start_soon(run, name)
    except BaseExceptionGroup as problems:
        problem: BaseException = problems
        while isinstance(problem, BaseExceptionGroup):  # what one raises, all may
            problem = problem.exceptions[0]
        raise problem from problem.__cause__
    return _report(the_race, reports)


def _enter(the_race: Race, name: str, evaluation: Evaluation) -> None:
    def enter(samples: Sequence[Sample] | None) -> Prefixes:
        assert samples is not None  # `race` has read a stream up to its limit
        return the_race.enter(name, samples, whole=evaluation.reads_metadata)

    says = {
        "models": [*the_race.names],
        "level": the_race.level,
        "keep_power": the_race.keep_power,
    }
    evaluation.stop_by(enter, cluster=the_race.cluster, race=says)
    before = cost_so_far(evaluation.dir.journal, evaluation.described)

    def cost() -> float | None:
        now = evaluation.progress.cost()
        return None if now is None or before is None else before + now

    the_race.costs[name] = cost
    if the_race.max_cost is not None:
        _refuse_unknown_cost(name, cost())


def _refuse_unknown_cost(name: str, cost: float | None) -> None:
    if cost is None:
        raise InvalidInput(
            f"what {name} costs is not known, so max_cost cannot be held: give its price (--set "
            "price.input=…, price.output=…), and that of judges and users"
        )


def _report(the_race: Race, reports: Mapping[str, EvalReport]) -> RaceReport:
    survivors = the_race.survivors
    dropped = [*reversed(the_race.beaten)]
    placed = tuple(the_race.place(name, reports[name]) for name in (*survivors, *dropped))
    settled = [report.settled for report in reports.values() if report.settled is not None]
    return conclude_race(
        placed,
        by_cost=the_race.ended_by_cost,
        level=the_race.level,
        looks_used=the_race.looks,
        looks_planned=settled[0].looks_planned,
        n_asked=settled[0].n_asked,
        n_spent=sum(each.n_spent for each in settled),
    )


def conclude_race(placed: tuple[Placed, ...], *, by_cost: bool, **counts: Any) -> RaceReport:
    """Say what a race found.

    Args:
        placed: The models, as `RaceReport` has them.
        by_cost: Whether it ended at its limit of cost.
        **counts: Further fields of the report.
    """
    survivors = [each.name for each in placed if each.beaten_by is None]
    dropped = [each.name for each in placed if each.beaten_by is not None]
    of = f"{placed[0].n_decided:,} of {counts['n_asked']:,} items"
    decision = "best_known"
    if len(survivors) == 1:
        which = "the other was beaten" if len(placed) == 2 else "every other was beaten"
        sentence = f"{survivors[0]} is the best of {len(placed)}: {which}, after {of}."
    else:
        decision = "cost_used_up" if by_cost else "cannot_tell_apart"
        why = "max_cost is reached" if by_cost else "the set is used up"
        named = f"{', '.join(survivors[:-1])} and {survivors[-1]}"
        sentence = f"{named} cannot be told apart: {why}, after {of}."
    if dropped and len(survivors) > 1:
        sentence += f" Beaten: {', '.join(dropped)}."
    return RaceReport(decision=decision, sentence=sentence, placed=placed, **counts)
