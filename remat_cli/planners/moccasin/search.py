"""The two phases of Bartan et al. 2023 (section 2.4), over chances to recompute that grow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from time import monotonic

from remat_cli.planners.moccasin.model import IntervalModel, Starts
from remat_cli.planners.moccasin.options import MoccasinOptions, Order
from remat_cli.planners.moccasin.slots import Slots, line_slots, staged_slots
from remat_cli.planners.shared.cp_sat import OnBound, Outcome, SolverLimits, Values, solve_model
from remat_cli.planners.shared.useful_runs import useful_runs
from remat_cli.problem import Observer, PlanResult, Problem, Scope, Status
from remat_cli.schedule import Schedule, plain_run, with_frees
from remat_cli.simulate import simulate

# Depths of recomputation that are tried before all of it, and the solver's work that each may take in each phase.
_WORK_OF_DEPTH: Mapping[int, float] = {1: 1.0, 2: 2.0, 4: 4.0}
# Up to so many places for runs there is nothing to gain from trying some of them first.
_FEW_PLACES = 200
# Linear relaxations cost more here than their bounds are worth.
_SETTINGS = {"linearization_level": 0}


@dataclass(frozen=True, eq=False)
class _Plan:
    """A plan: when each op runs in the model, the schedule, and what that costs."""

    starts: Starts
    schedule: Schedule
    peak: int
    time: int


@dataclass(frozen=True, eq=False)
class _Level:
    """Slots to search.

    Attributes:
        slots: when ops may run.
        work: of the solver, for each phase; None for all that is left.
        is_last: whether these are all the slots there are, so that what is proven holds for the planner.
    """

    slots: Slots
    work: float | None
    is_last: bool


class MoccasinSearch:
    """One run of `moccasin`."""

    def __init__(self, problem: Problem, options: MoccasinOptions, observe: Observer) -> None:
        self._options = options
        self._observe = observe
        self._graph = problem.graph
        self._budget = problem.budget.device_bytes
        self._room = self._budget - problem.graph.fixed_bytes
        self._deadline = monotonic() + options.time_limit
        self._work_left = options.work_limit
        self._plain = plain_run(self._graph)
        self._plain_peak = simulate(self._graph, self._plain).peak_bytes
        self._best: _Plan | None = None  # the fastest that fits
        self._closest: _Plan | None = None  # as long as none fits, that of the smallest peak
        self._bound: int | None = None  # on the time of all plans of this kind
        self._stats = {"models": 0, "variables": 0, "constraints": 0}

    def run(self) -> PlanResult:
        """Plan the problem."""
        if self._plain_peak <= self._budget:
            return PlanResult(Status.OPTIMAL, Scope.ANY_ORDER, schedule=self._plain, time_bound=self._graph.total_time)
        if self._room < 0:
            return PlanResult(Status.INFEASIBLE, Scope.ANY_ORDER, reason="what no plan can free does not fit")
        status = Status.UNKNOWN
        for level in self._levels():
            status = self._search(level)
            if self._is_over:
                break
        return self._result(status)

    def _levels(self) -> Iterator[_Level]:
        options = self._options
        if not options.staged:
            yield _Level(line_slots(self._graph, options.order, options.max_retentions), None, True)
            return
        every = staged_slots(self._graph, self._budget, options.order, options.max_retentions)
        for depth, work in _WORK_OF_DEPTH.items() if every.count > _FEW_PLACES else ():
            slots = staged_slots(self._graph, self._budget, options.order, options.max_retentions, depth)
            if slots.count == every.count:
                break
            yield _Level(slots, work, False)
        yield _Level(every, None, True)

    def _search(self, level: _Level) -> Status:
        """Search some slots; return what the search proves of all plans of this kind."""
        if self._best is None and self._options.phases > 1:
            self._observe.phase("finding a plan that fits")
            nothing_fits = self._lower_peak(level)
            if self._best is None:
                return Status.INFEASIBLE if nothing_fits and level.is_last else Status.UNKNOWN
        if self._is_over:
            return Status.UNKNOWN
        self._observe.phase("looking for a faster plan")
        outcome = self._save_time(level)
        return outcome.status if level.is_last else Status.UNKNOWN

    def _lower_peak(self, level: _Level) -> bool:
        """Phase 1: lower the peak until a plan fits; tell whether it is proven that none does."""
        model = self._model(level)
        unit = model.minimise_peak(self._room, self._plain_peak - self._graph.fixed_bytes)
        outcome = self._solve(model, level, self._closest)
        return (
            outcome.status is Status.OPTIMAL and outcome.objective is not None and outcome.objective * unit > self._room
        )

    def _save_time(self, level: _Level) -> Outcome:
        """Phase 2: find faster plans that fit."""
        model = self._model(level)
        unit = model.minimise_time(self._room)

        def on_bound(bound: int) -> None:
            if level.is_last and bound > 0:
                self._bound = self._graph.total_time + bound * unit
                self._observe.bound(self._bound, Scope.PLANNER)

        outcome = self._solve(model, level, self._best, on_bound)
        if outcome.bound is not None:
            on_bound(outcome.bound)
        return outcome

    def _model(self, level: _Level) -> IntervalModel:
        model = IntervalModel(self._graph, level.slots, self._options.precedence)
        self._stats["models"] += 1
        self._stats["variables"] = len(model.model.proto.variables)
        self._stats["constraints"] = len(model.model.proto.constraints)
        return model

    def _solve(
        self, model: IntervalModel, level: _Level, start: _Plan | None, on_bound: OnBound | None = None
    ) -> Outcome:
        """Run the solver from a plan, or from the plain run, and keep the plan that it ends with."""
        model.hint(level.slots.plain_starts if start is None else start.starts)

        def on_solution(values: Values) -> None:
            plan = self._plan(model.starts(values))
            if plan.peak <= self._budget:
                self._observe.found(plan.schedule)

        outcome = solve_model(
            model.model, self._limits(level), settings=_SETTINGS, on_solution=on_solution, on_bound=on_bound
        )
        if outcome.values is not None:
            self._keep(self._plan(model.starts(outcome.values)))
        if self._work_left is not None:
            self._work_left = max(0.0, self._work_left - outcome.work)
        return outcome

    def _limits(self, level: _Level) -> SolverLimits:
        works = [work for work in (level.work, self._work_left) if work is not None]
        return SolverLimits(
            time_limit=max(0.0, self._deadline - monotonic()),
            work_limit=min(works, default=None),
            workers=self._options.workers,
            seed=self._options.seed,
        )

    def _plan(self, starts: Starts) -> _Plan:
        runs = sorted((event, op) for op, events in enumerate(starts) for event in events)
        computes = tuple(self._graph.ops[op].name for _, op in runs)
        if self._options.order is Order.FREE:
            computes = useful_runs(self._graph, computes)
        schedule = with_frees(self._graph, computes)
        trace = simulate(self._graph, schedule)
        return _Plan(starts, schedule, trace.peak_bytes, trace.time)

    def _keep(self, plan: _Plan) -> None:
        if plan.peak <= self._budget:
            if self._best is None or plan.time <= self._best.time:
                self._best = plan
        elif self._closest is None or plan.peak < self._closest.peak:
            self._closest = plan

    @property
    def _is_over(self) -> bool:
        """Whether there is no better plan to find, or nothing left to search with."""
        is_fastest = self._best is not None and self._best.time == self._graph.total_time
        return is_fastest or monotonic() >= self._deadline or self._work_left == 0

    def _result(self, status: Status) -> PlanResult:
        """Return the best plan, or that there is none.

        Args:
            status: what is proven of all plans of this kind.
        """
        if self._best is not None and self._best.time == self._graph.total_time:
            return PlanResult(
                Status.OPTIMAL,
                Scope.ANY_ORDER,
                schedule=self._best.schedule,
                time_bound=self._best.time,
                stats=self._stats,
            )
        if self._best is not None:
            status = Status.OPTIMAL if status is Status.OPTIMAL else Status.FEASIBLE
            return PlanResult(status, schedule=self._best.schedule, time_bound=self._bound, stats=self._stats)
        closest = self._plain if self._closest is None else self._closest.schedule
        if status is Status.INFEASIBLE:
            reason = f"with at most {self._options.max_retentions} runs of each op, no plan of this kind fits"
            return PlanResult(status, closest=closest, reason=reason, stats=self._stats)
        reason = "no plan was found that fits; that is no proof that there is none"
        return PlanResult(Status.UNKNOWN, closest=closest, reason=reason, stats=self._stats)
