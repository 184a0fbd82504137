"""How `retention` spends its time: over orders, and over depths of recomputation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic

import numpy as np

from remat_cli.planners.cp_sat import Outcome, SolverLimits, Values, solve_model
from remat_cli.planners.orders.search import OrderLimits, search_orders
from remat_cli.planners.retention.cover_bound import cover_bound
from remat_cli.planners.retention.cut_bound import cut_bound, tightest_cuts
from remat_cli.planners.retention.model import SETTINGS, RetentionModel
from remat_cli.planners.retention.need_times import NeedTimes
from remat_cli.planners.retention.options import OrderChoice, RetentionOptions
from remat_cli.planners.stages import Ints, Stages
from remat_cli.planners.useful_runs import useful_runs
from remat_cli.problem import Observer, PlanResult, Problem, Scope, Status
from remat_cli.schedule import Schedule, plain_run, with_frees
from remat_cli.simulate import simulate

_DEPTHS = (1, 2, 3, 6, 12, 24)
# Shares of the time that is left.
_SHORT_TURN, _LONG_TURN = 0.06, 0.4
_SHORTEST_TURN = 0.5  # seconds
# Numbers of cuts for the bound on a fixed order, and how long each may take: a share of what is left, and seconds.
_CUTS = (4, 12)
_SHARE_OF_BOUND = 0.05
# The search for orders may take this share of the time, or try this many moves for each unit of the solver's work.
_SHARE_OF_ORDERS = 0.35
_MOVES_PER_WORK = 20_000
_LONGEST_BOUND = 10.0


@dataclass(eq=False)
class _Model:
    """A model that may have several turns.

    Attributes:
        stages: the graph in the order to plan in.
        depth: of recomputation.
        exact_reruns: as in `RetentionModel`.
        is_settled: solved, or proven to have no solution.
        fruitless_turns: that found nothing better.
    """

    stages: Stages
    depth: int
    exact_reruns: bool = False
    is_settled: bool = False
    fruitless_turns: int = 0


class RetentionSearch:
    """One run of `retention`."""

    def __init__(
        self, problem: Problem, options: RetentionOptions, observe: Observer, start: Sequence[str] | None = None
    ) -> None:
        """Prepare a search, in other orders than the input's from a plan, given as the ops that it runs."""
        self._start = start
        self._problem = problem
        self._options = options
        self._observe = observe
        self._graph = problem.graph
        self._room = problem.budget.device_bytes - problem.graph.fixed_bytes
        self._end = monotonic() + options.time_limit
        self._work = options.work_limit
        self._best: tuple[str, ...] | None = None
        self._best_schedule: Schedule | None = None
        self._best_time: int | None = None
        self._time_bound: int | None = None
        self._turns = 0
        self._best_model: _Model | None = None
        self._settled: set[tuple[int, int, bool]] = set()

    def run(self) -> PlanResult:
        """Search until the bound is met, everything was tried, or the limits are reached."""
        graph = self._graph
        stages = Stages.of(graph)
        if int(stages.plain_bytes.max()) <= self._room:
            return PlanResult(Status.OPTIMAL, Scope.ANY_ORDER, schedule=plain_run(graph), time_bound=graph.total_time)
        if self._out_of_time():
            return self._result()
        if self._options.order is OrderChoice.INPUT and not self._prove(stages):
            reason = "what must be there together in the input order does not fit, whatever is recomputed"
            return PlanResult(Status.INFEASIBLE, Scope.FIXED_ORDER, reason=reason)
        if self._options.order is OrderChoice.INPUT:
            self._search([stages])
        else:
            if self._start is not None:
                self._take(self._start)
            self._search(self._orders())
        return self._result()

    def _prove(self, stages: Stages) -> bool:
        """Bound what plans in the input order cost; tell whether any can fit."""
        self._observe.phase("proving a bound")
        bounds: list[Callable[[SolverLimits], int | None]] = [partial(cover_bound, stages, self._room)]
        for count in _CUTS:
            cuts = tightest_cuts(stages, self._room, count)
            bounds.append(partial(cut_bound, stages, self._room, cuts))
            if len(cuts) < count:
                break
        for bound in bounds:
            extra = bound(self._limits(_SHARE_OF_BOUND, _LONGEST_BOUND))
            if extra is None:
                return False
            self._raise_bound(self._graph.total_time + extra)
        return True

    def _raise_bound(self, time: int) -> None:
        if self._time_bound is None or time > self._time_bound:
            self._time_bound = time
            self._observe.bound(time, Scope.FIXED_ORDER)

    def _depths(self) -> list[int]:
        return [depth for depth in _DEPTHS if depth <= self._options.depth]

    def _orders(self) -> list[Stages]:
        """Return the orders to plan in, the most promising first; the start's is one of them."""
        seconds = max(0.0, self._end - monotonic())
        limits = OrderLimits(
            seconds=seconds * _SHARE_OF_ORDERS,
            work=None if self._work is None else int(self._work * _MOVES_PER_WORK),
            seed=self._options.seed,
        )
        found = [one.order for one in search_orders(self._graph, self._room, limits, self._observe)]
        orders = found[: self._options.orders]
        if self._best is not None:
            own = self._first_runs(self._best)
            orders = [own, *(order for order in orders if not np.array_equal(order, own))]
        for order in orders:
            self._take([self._graph.ops[number].name for number in order.tolist()])
        return [Stages.of(self._graph, order) for order in orders]

    def _search(self, orders: Sequence[Stages]) -> None:
        """Try every model for a short while, the shallow ones first; then give time to those that pay."""
        models = [_Model(order, depth) for depth in self._depths() for order in orders]
        for model in models:
            self._turn(model, _SHORT_TURN)
        # What the simpler constraints rule out comes last: it matters only where memory is very tight.
        models += [_Model(orders[0], depth, exact_reruns=True) for depth in self._depths()]
        while open_models := [model for model in models if not model.is_settled]:
            if self._is_done() or self._out_of_time():
                break
            self._turn(min(open_models, key=self._rank), _LONG_TURN)

    def _rank(self, model: _Model) -> tuple[int, bool, int, int]:
        """Models that failed least come first; then those like the one that found the best plan."""
        best = self._best_model
        distance = 0 if best is None else abs(_DEPTHS.index(model.depth) - _DEPTHS.index(best.depth))
        is_other_order = best is not None and model.stages is not best.stages
        return (model.fruitless_turns, model.exact_reruns, int(is_other_order) + distance, -model.depth)

    def _turn(self, model: _Model, share: float) -> None:
        """Solve a model in a share of the time that is left."""
        if model.is_settled or self._is_done() or self._out_of_time():
            return
        needs = NeedTimes.of(model.stages, model.stages.plain_bytes > self._room, model.depth)
        retention = RetentionModel(needs, self._room, model.exact_reruns)
        key = (id(model.stages), len(needs.rerun_stage), model.exact_reruns)
        if key in self._settled:
            model.is_settled = True
            return
        self._observe.phase(f"recomputation of depth {model.depth}")
        before = self._best_time
        outcome = self._solve(retention, share)
        self._turns += 1
        if self._best_time == before:
            model.fruitless_turns += 1
        else:
            self._best_model = model
        if outcome.status in (Status.OPTIMAL, Status.INFEASIBLE):
            model.is_settled = True
            self._settled.add(key)

    def _solve(self, retention: RetentionModel, share: float) -> Outcome:
        model = retention.build()
        if self._best is not None and np.array_equal(self._first_runs(self._best), retention.stages.order):
            retention.hint(model, self._best)

        def take(values: Values) -> None:
            self._take(retention.plan(values))

        outcome = solve_model(model, self._limits(share), settings=SETTINGS, on_solution=take)
        if self._work is not None:
            self._work -= outcome.work
        return outcome

    def _take(self, computes: Sequence[str]) -> None:
        """Keep a plan if it is the best so far."""
        if self._options.order is OrderChoice.SEARCH:
            computes = useful_runs(self._graph, computes)
        schedule = with_frees(self._graph, computes)
        trace = simulate(self._graph, schedule)
        if trace.peak_bytes > self._problem.budget.device_bytes:
            return
        if self._best_time is None or trace.time < self._best_time:
            self._best, self._best_schedule, self._best_time = tuple(computes), schedule, trace.time
            self._observe.found(schedule)

    def _first_runs(self, computes: Sequence[str]) -> Ints:
        """[N] the numbers of the ops in the order of their first runs."""
        index = self._graph.arrays.op_index
        return np.fromiter((index[name] for name in dict.fromkeys(computes)), dtype=np.int64, count=len(index))

    def _limits(self, share: float, most: float = float("inf")) -> SolverLimits:
        """Return limits of a solver that may use a share of what is left."""
        options = self._options
        seconds = max(0.0, self._end - monotonic())
        return SolverLimits(
            time_limit=min(most, max(seconds * share, min(seconds, _SHORTEST_TURN))),
            work_limit=None if self._work is None else max(0.0, self._work) * share,
            workers=options.workers,
            seed=options.seed,
        )

    def _out_of_time(self) -> bool:
        return monotonic() >= self._end or (self._work is not None and self._work <= 0)

    def _is_done(self) -> bool:
        least = self._graph.total_time if self._time_bound is None else self._time_bound
        return self._best_time is not None and self._best_time <= least

    def _result(self) -> PlanResult:
        stats = {"turns": self._turns}
        scope = Scope.PLANNER if self._time_bound is None else Scope.FIXED_ORDER
        if self._best_schedule is None:
            reason = "no plan was found within the limits, which proves nothing"
            return PlanResult(Status.UNKNOWN, scope, time_bound=self._time_bound, reason=reason, stats=stats)
        is_met = self._best_time == self._time_bound
        return PlanResult(
            Status.OPTIMAL if is_met else Status.FEASIBLE,
            scope,
            schedule=self._best_schedule,
            time_bound=self._time_bound,
            stats=stats,
        )
