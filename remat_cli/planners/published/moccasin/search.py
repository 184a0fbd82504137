"""The two phases of Bartan et al. 2023 (section 2.4).

Each runs over growing sets of chances to recompute.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf

from remat_cli.core.problem import Basis, Observer, Plan, PlanResult, Problem, Scope, Status
from remat_cli.planners.published.moccasin.model import IntervalModel, Starts
from remat_cli.planners.published.moccasin.options import FirstRuns, MoccasinOptions
from remat_cli.planners.published.moccasin.slots import EventSlots, line_slots, staged_slots
from remat_cli.planners.shared.cp_sat import OnBound, SolverOutcome, Values, solve_model
from remat_cli.planners.shared.incumbent import Incumbent
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.scaling import Rounding
from remat_cli.planners.shared.sequence import RematSequence

# Depths of recomputation to try before all depths, and the solver's work for each in each phase.
_WORK_OF_DEPTH: Mapping[int, float] = {1: 1.0, 2: 2.0, 4: 4.0}
# The number of places for runs up to which all are tried at once.
_FEW_PLACES = 200
# The number of refused plans, which exceed the budget by the rounding of sizes, at most 10^-6 of it.
_MOST_REFUSALS = 4
# Linear relaxations cost more time here than their bounds are worth.
_SETTINGS = {"linearization_level": 0}


@dataclass(frozen=True, eq=False)
class _Level:
    """A set of slots to search.

    Attributes:
        slots: slots for the runs of ops.
        work: solver's work for each phase.
        is_last: whether these are all slots, so that proofs hold for the planner.
    """

    slots: EventSlots
    work: float
    is_last: bool


class MoccasinSearch:
    """One run of `moccasin`."""

    def __init__(self, problem: Problem, options: MoccasinOptions, observe: Observer) -> None:
        self._options = options
        self._graph = problem.graph
        self._budget = problem.budget.device_bytes
        self._room = self._budget - problem.graph.fixed_bytes
        self._limits = Limits.of(
            options.time_limit, options.work_limit, cores=options.cores, seed=options.seed, observe=observe
        )
        self._incumbent = Incumbent(problem, observe)
        self._starts: dict[Plan, Starts] = {}  # the events of each op's runs, for plans worth starting from
        self._stats = {"models": 0, "variables": 0, "constraints": 0}

    def run(self) -> PlanResult:
        """Plan the problem."""
        incumbent = self._incumbent
        plain = incumbent.offer(RematSequence.plain(self._graph))
        if self._room < 0:
            incumbent.prove_that_none_fits(Scope.ANY_ORDER, "what no plan can free does not fit")
        for level in self._levels():
            if self._is_over:
                break
            self._search(level, plain)
        return incumbent.result(stats=self._stats)

    def _levels(self) -> Iterator[_Level]:
        options = self._options
        if not options.staged:
            yield _Level(line_slots(self._graph, options.order, options.max_retentions), inf, True)
            return
        every = staged_slots(self._graph, self._budget, options.order, options.max_retentions)
        for depth, work in _WORK_OF_DEPTH.items() if every.count > _FEW_PLACES else ():
            slots = staged_slots(self._graph, self._budget, options.order, options.max_retentions, depth)
            if slots.count == every.count:
                break
            yield _Level(slots, work, False)
        yield _Level(every, inf, True)

    def _search(self, level: _Level, plain: Plan) -> None:
        """Search a set of slots."""
        incumbent = self._incumbent
        if incumbent.best is None and self._options.phases > 1:
            incumbent.observe.phase("finding a plan that fits")
            self._lower_peak(level, plain.peak_bytes)
            if incumbent.best is None:
                return
        if not self._is_over:
            incumbent.observe.phase("looking for a faster plan")
            self._save_time(level)

    def _lower_peak(self, level: _Level, plain_peak: int) -> None:
        """Phase 1: lower the peak until a plan fits."""
        model = self._model(level)
        unit = model.minimise_peak(self._room, plain_peak - self._graph.fixed_bytes)
        outcome = self._solve(model, level, self._incumbent.closest)
        if level.is_last and outcome.bound is not None and outcome.bound > self._room // unit:
            self._note_that_none_fits()

    def _save_time(self, level: _Level) -> None:
        """Phase 2: find faster plans that fit."""
        spare = 0
        for attempt in range(_MOST_REFUSALS):
            model = self._model(level)
            unit = model.minimise_time(self._room - spare)

            def on_bound(bound: int, unit: int = unit) -> None:
                if bound > 0:
                    time = self._graph.total_time + bound * unit
                    self._incumbent.prove(time, Scope.PLANNER, Basis.ONE_SOLVER)

            # A proof for less room, or for some of the slots, says nothing about all plans.
            is_proof = level.is_last and attempt == 0
            outcome = self._solve(model, level, self._incumbent.best, on_bound if is_proof else None)
            if is_proof and outcome.bound is not None:
                on_bound(outcome.bound)
            if is_proof and outcome.status is Status.INFEASIBLE:
                self._note_that_none_fits()
            # If sizes were rounded down, the judge may refuse a plan that is slightly too large: leave that much memory
            # free.
            refused = 0 if outcome.values is None else self._sequence(model.starts(outcome.values)).peak - self._budget
            if refused <= 0 or self._is_over:
                return
            spare += refused

    def _note_that_none_fits(self) -> None:
        why = f"with at most {self._options.max_retentions} runs of each op, no plan of this kind fits"
        self._incumbent.prove_that_none_fits(Scope.PLANNER, why, Basis.ONE_SOLVER)

    def _model(self, level: _Level) -> IntervalModel:
        model = IntervalModel(self._graph, level.slots)
        self._stats["models"] += 1
        self._stats["variables"] = len(model.model.proto.variables)
        self._stats["constraints"] = len(model.model.proto.constraints)
        return model

    def _solve(
        self, model: IntervalModel, level: _Level, start: Plan | None, on_bound: OnBound | None = None
    ) -> SolverOutcome:
        """Run the solver from a known plan, and keep its solutions.

        Without a known plan it starts from the plain run.
        """
        model.hint(level.slots.plain_starts if start is None else self._starts.get(start, level.slots.plain_starts))

        def on_solution(values: Values) -> None:
            starts = model.starts(values)
            self._starts[self._incumbent.offer(self._sequence(starts))] = starts

        limits = self._limits.part(work=level.work)
        outcome = solve_model(
            model.model,
            limits,
            rounding=Rounding.RELAX,
            settings=_SETTINGS,
            on_solution=on_solution,
            on_bound=on_bound,
        )
        self._limits.spend(outcome.work)
        return outcome

    def _sequence(self, starts: Starts) -> RematSequence:
        runs = sorted((event, op) for op, events in enumerate(starts) for event in events)
        sequence = RematSequence.of(self._graph, (op for _, op in runs))
        return sequence.without_useless_runs() if self._options.order is FirstRuns.FREE else sequence

    @property
    def _is_over(self) -> bool:
        """Whether the result is proven, or the limits are reached."""
        return self._incumbent.is_settled or self._limits.is_over
