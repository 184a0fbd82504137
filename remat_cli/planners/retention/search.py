"""How `retention` spends its time: over orders, and over depths of recomputation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf, log2
from time import monotonic

import numpy as np

from remat_cli.planners.min_cut.options import SearchLimits
from remat_cli.planners.min_cut.search import Search as MinCutSearch
from remat_cli.planners.retention.any_order_bound import any_order_bound
from remat_cli.planners.retention.cover_bound import cover_bound
from remat_cli.planners.retention.cut_bound import cut_bound, tightest_cuts
from remat_cli.planners.retention.model import SETTINGS, RetentionModel
from remat_cli.planners.retention.need_times import NeedTimes
from remat_cli.planners.retention.options import OrderChoice, RetentionOptions
from remat_cli.planners.shared.cp_sat import Outcome, SolverLimits, Values, solve_model
from remat_cli.planners.shared.orders.search import Order, OrderLimits, search_orders
from remat_cli.planners.shared.rerun_removal import without_needless_reruns
from remat_cli.planners.shared.stages import Ints, Stages
from remat_cli.planners.shared.useful_runs import useful_runs
from remat_cli.problem import Observer, PlanResult, Problem, Scope, Status
from remat_cli.schedule import Schedule, plain_run, with_frees
from remat_cli.simulate import simulate

_DEPTHS = (1, 2, 3, 6, 12, 24)
_DEPTH_OF_USUAL_PLANS = 3
# Units of the solver's counted work, about a second each: of a model's first turn, which grows with the model and then
# from turn to turn.
_FIRST_TURN = 1.0
_GROWTH = 3.0
_USUAL_SIZE = 10_000
# The solver's count leaves out that a model is built, and most of what makes it smaller: so many needs are one unit.
_BUILT_PER_WORK = 20_000
# How much larger a model of the next depth usually is.
_NEXT_DEPTH = 2.5
# Models with exact reruns, and those in other orders than that of the best plan, wait as if they took so many times as
# much work.
_UNLIKELY = 3.0
# Numbers of cuts for the bound on a fixed order; how much work each bound may take, more in larger graphs, and which
# share of the time left.
_CUTS = (4, 12)
_WORK_OF_BOUND = 1.0
_SHARE_OF_BOUND = 0.05
# The search for orders may take this share of the time, or try this many moves for each unit of the solver's work.
_SHARE_OF_ORDERS = 0.35
_MOVES_PER_WORK = 20_000
# The search ends where so much work brought nothing since the last gain: more in larger graphs, less where little is
# left to gain, as a share of the plain run's time.
_LEAST_PATIENCE = 3.0
_USUAL_OPS = 300
_USUAL_GAP = 0.002
_LEAST_OF_PATIENCE = 0.1
# What the first plan may take of the time.
_SHARE_OF_START = 0.1

_Bound = Callable[[SolverLimits], int | None]


@dataclass(eq=False)
class _Model:
    """A model that may have several turns.

    Attributes:
        stages: the graph in the order to plan in.
        depth: of recomputation.
        size: about how many needs it has.
        exact_reruns: as in `RetentionModel`.
        turns: that it had.
    """

    stages: Stages
    depth: int
    size: float
    exact_reruns: bool = False
    turns: int = 0

    @property
    def work(self) -> float:
        """What its next turn may take."""
        return _FIRST_TURN * max(1.0, self.size / _USUAL_SIZE) * _GROWTH**self.turns


@dataclass(frozen=True)
class Known:
    """What others have found out about the problem.

    Attributes:
        computes: the ops of a plan that fits, in the order in which they run; () for none.
        time_bound: no plan in any order takes less time.
    """

    computes: Sequence[str]
    time_bound: int


class RetentionSearch:
    """One run of `retention`."""

    def __init__(
        self, problem: Problem, options: RetentionOptions, observe: Observer, known: Known | None = None
    ) -> None:
        """Prepare a search, from what is known; where nothing is given, a first plan and a bound are made."""
        self._known = known
        self._problem = problem
        self._options = options
        self._observe = observe
        self._graph = problem.graph
        self._budget = problem.budget.device_bytes
        self._room = self._budget - problem.graph.fixed_bytes
        self._end = monotonic() + options.time_limit
        self._best: tuple[str, ...] | None = None
        self._best_schedule: Schedule | None = None
        self._best_time: int | None = None
        self._time_bound: int | None = None
        self._scope = Scope.PLANNER
        self._turns = 0
        self._work = 0.0
        self._work_at_gain = 0.0
        self._best_model: _Model | None = None

    def run(self) -> PlanResult:
        """Search until the bound is met, everything was tried, or the limits are reached."""
        graph = self._graph
        stages = Stages.of(graph)
        if int(stages.plain_bytes.max()) <= self._room:
            return PlanResult(Status.OPTIMAL, Scope.ANY_ORDER, schedule=plain_run(graph), time_bound=graph.total_time)
        if self._out_of_time():
            return self._result()
        if not self._prove(stages):
            return self._nothing_fits()
        self._take_start()
        if self._options.order is OrderChoice.SEARCH:
            self._search(self._orders())
        elif self._is_done() or self._prove_more(stages):
            self._search([stages])
        else:
            return self._nothing_fits()
        return self._result()

    def _prove(self, stages: Stages) -> bool:
        """Bound what plans cost, in no time; tell whether any can fit."""
        self._observe.phase("proving a bound")
        if self._known is not None:
            self._raise_bound(self._known.time_bound, Scope.ANY_ORDER)
            return True
        if not self._raise_with(partial(any_order_bound, self._graph, self._room), Scope.ANY_ORDER):
            return False
        is_fixed = self._options.order is OrderChoice.INPUT
        return not is_fixed or self._raise_with(partial(cover_bound, stages, self._room), Scope.FIXED_ORDER)

    def _prove_more(self, stages: Stages) -> bool:
        """Bound what plans in the input order cost, more tightly; tell whether any can fit."""
        self._observe.phase("proving a bound")
        for count in _CUTS:
            cuts = tightest_cuts(stages, self._room, count)
            if not self._raise_with(partial(cut_bound, stages, self._room, cuts), Scope.FIXED_ORDER):
                return False
            if len(cuts) < count or self._is_done():
                break
        return True

    def _raise_with(self, bound: _Bound, scope: Scope) -> bool:
        """Work out a bound; tell whether any plan in its scope can fit."""
        work = _WORK_OF_BOUND * max(1.0, len(self._graph.ops) / _USUAL_OPS)
        extra = bound(self._limits(work, _SHARE_OF_BOUND))
        if extra is None:
            self._scope = scope
            return False
        self._raise_bound(self._graph.total_time + extra, scope)
        return True

    def _raise_bound(self, time: int, scope: Scope) -> None:
        if self._time_bound is None or time > self._time_bound:
            self._time_bound, self._scope = time, scope
            self._observe.bound(time, scope)

    def _take_start(self) -> None:
        """Begin with a plan that fits, if there is one."""
        computes = None if self._known is None else self._known.computes
        if self._known is None:
            self._observe.phase("first plans by minimum cuts")
            limits = SearchLimits(self._seconds_left() * _SHARE_OF_START, seed=self._options.seed)
            search = MinCutSearch(self._problem, limits, Observer())
            search.start()
            computes = None if search.best_schedule is None else search.best_schedule.computes
        if computes and self._take(computes):
            self._improve()

    def _orders(self) -> list[Stages]:
        """Return the orders to plan in, the most promising first; the best plan's is one of them."""
        if self._best is not None and self._gap < _USUAL_GAP:
            return [Stages.of(self._graph, self._first_runs(self._best))]  # other orders could gain no more than that
        left = self._work_left()
        limits = OrderLimits(
            seconds=self._seconds_left() * _SHARE_OF_ORDERS,
            work=None if left == inf else int(left * _MOVES_PER_WORK),
            seed=self._options.seed,
        )
        orders = search_orders(self._graph, self._room, limits, self._observe)[: self._options.orders]
        if self._best is not None:
            own = Order.of(self._graph, self._first_runs(self._best), self._room)
            orders = [own, *(order for order in orders if order.excess < own.excess)]
        for order in orders:
            self._take([self._graph.ops[number].name for number in order.order.tolist()])
        return [Stages.of(self._graph, order.order) for order in orders]

    def _search(self, orders: Sequence[Stages]) -> None:
        """Give turns to models, the small ones first and then those like the one that found the best plan."""
        pool = [self._first_model(order) for order in orders]
        seen: set[tuple[int, int, bool]] = set()
        while pool and not self._is_over():
            model = min(pool, key=self._rank)
            needs = NeedTimes.of(model.stages, model.stages.plain_bytes > self._room, model.depth)
            if model.turns == 0:
                key = (id(model.stages), len(needs.rerun_stage), model.exact_reruns)
                if key in seen:  # growing has stopped at a smaller depth
                    pool.remove(model)
                    continue
                seen.add(key)
                model.size = len(needs)
                pool += self._after(model)
            if self._turn(model, needs).status in (Status.OPTIMAL, Status.INFEASIBLE):
                pool.remove(model)

    def _first_model(self, stages: Stages) -> _Model:
        """Return the shallowest model that is worth a turn."""
        size = len(stages.read_tensor)
        deep = _Model(stages, min(_DEPTH_OF_USUAL_PLANS, self._options.depth), size * _NEXT_DEPTH**2)
        # Deeper models hold all plans of the shallow ones, which are for finding a first one, and for large graphs.
        return _Model(stages, 1, size) if self._best is None or deep.size > _USUAL_SIZE else deep

    def _rank(self, model: _Model) -> tuple[int, int, int]:
        """Models whose next turn takes least work come first; those unlike the one that found the best plan wait."""
        best = self._best_model
        price = model.work
        if model.exact_reruns:
            price *= _UNLIKELY
        is_first = model.turns == 0 and model.depth == 1
        if best is not None and model.stages is not best.stages and not is_first:
            price *= _UNLIKELY
        distance = 0 if best is None else abs(_DEPTHS.index(model.depth) - _DEPTHS.index(best.depth))
        return (round(log2(price)), distance, model.depth)

    def _after(self, model: _Model) -> Iterator[_Model]:
        """Yield the models in the same order that come after this one: the deeper one, and that with exact reruns."""
        if model.exact_reruns:
            return
        # What the simpler constraints rule out comes late: it matters only where memory is very tight.
        yield _Model(model.stages, model.depth, model.size, exact_reruns=True)
        deeper = [depth for depth in _DEPTHS if model.depth < depth <= self._options.depth]
        if deeper:
            yield _Model(model.stages, deeper[0], _NEXT_DEPTH * model.size)

    def _turn(self, model: _Model, needs: NeedTimes) -> Outcome:
        """Solve a model for a while."""
        self._observe.phase(f"recomputation of depth {model.depth}")
        retention = RetentionModel(needs, self._room, model.exact_reruns)
        before = self._best_time
        outcome = self._solve(retention, model)
        model.turns += 1
        self._turns += 1
        self._work += outcome.work + model.size / _BUILT_PER_WORK
        if self._best_time != before:
            self._improve()
            self._best_model, self._work_at_gain = model, self._work
        return outcome

    def _solve(self, retention: RetentionModel, model: _Model) -> Outcome:
        built = retention.build()
        if self._best is not None and self._best_time is not None:
            # Only better plans: most models are settled many times sooner for it.
            built.proto.objective.domain.extend((-(2**62), self._best_time - self._graph.total_time - 1))
            # Such a hint is no solution; it helps in some searches and holds up others.
            if model.turns % 2 == 1 and np.array_equal(self._first_runs(self._best), model.stages.order):
                retention.hint(built, self._best)

        def take(values: Values) -> None:
            self._take(retention.computes(values))

        limits = self._limits(min(model.work, self._patience_left()))
        return solve_model(built, limits, settings=SETTINGS, on_solution=take)

    def _improve(self) -> None:
        """Leave out of the best plan what the budget has room to do without."""
        assert self._best is not None
        index, ops = self._graph.arrays.op_index, self._graph.ops
        runs = without_needless_reruns(self._graph, [index[name] for name in self._best], self._budget)
        self._take([ops[number].name for number in runs])

    def _take(self, computes: Sequence[str]) -> bool:
        """Keep a plan if it is the best so far; tell whether it is."""
        graph = self._graph
        if self._options.order is OrderChoice.SEARCH:
            computes = useful_runs(graph, computes)
        elif not np.array_equal(self._first_runs(computes), np.arange(len(graph.ops))):
            return False
        schedule = with_frees(graph, computes)
        trace = simulate(graph, schedule)
        if trace.peak_bytes > self._budget or (self._best_time is not None and trace.time >= self._best_time):
            return False
        self._best, self._best_schedule, self._best_time = tuple(computes), schedule, trace.time
        self._observe.found(schedule)
        return True

    def _first_runs(self, computes: Sequence[str]) -> Ints:
        """[N] the numbers of the ops in the order of their first runs."""
        index = self._graph.arrays.op_index
        return np.fromiter((index[name] for name in dict.fromkeys(computes)), dtype=np.int64, count=len(index))

    def _limits(self, work: float, share_of_time: float = 1.0) -> SolverLimits:
        """Return limits of a solver that may do so much work, within what is left."""
        return SolverLimits(
            time_limit=self._seconds_left() * share_of_time,
            work_limit=min(work, self._work_left()),
            workers=self._options.workers,
            seed=self._options.seed,
        )

    def _seconds_left(self) -> float:
        return max(0.0, self._end - monotonic())

    def _work_left(self) -> float:
        limit = self._options.work_limit
        return inf if limit is None else max(0.0, limit - self._work)

    def _is_over(self) -> bool:
        return self._is_done() or self._out_of_time() or self._patience_left() <= 0

    def _is_done(self) -> bool:
        return self._gap <= 0

    def _out_of_time(self) -> bool:
        return self._seconds_left() <= 0 or self._work_left() <= 0

    @property
    def _gap(self) -> float:
        """Time beyond the bound, as a share of the plain run's; without a plan there is no end to it."""
        if self._best_time is None:
            return inf
        total = self._graph.total_time
        return (self._best_time - (self._time_bound or total)) / max(total, 1)

    def _patience_left(self) -> float:
        """Return the work that may still bring nothing; more of it would most likely bring nothing either."""
        if not self._options.patience:
            return inf
        allowed = max(_LEAST_PATIENCE * max(1.0, len(self._graph.ops) / _USUAL_OPS), self._work_at_gain)
        allowed *= min(1.0, max(self._gap / _USUAL_GAP, _LEAST_OF_PATIENCE))
        return self._options.patience * allowed - (self._work - self._work_at_gain)

    def _nothing_fits(self) -> PlanResult:
        reason = "what must be there together does not fit, whatever is recomputed"
        return PlanResult(Status.INFEASIBLE, self._scope, reason=reason)

    def _result(self) -> PlanResult:
        stats = {"turns": self._turns}
        if self._best_schedule is None:
            reason = "no plan was found within the limits, which proves nothing"
            return PlanResult(Status.UNKNOWN, self._scope, time_bound=self._time_bound, reason=reason, stats=stats)
        is_met = self._best_time == self._time_bound
        return PlanResult(
            Status.OPTIMAL if is_met else Status.FEASIBLE,
            self._scope,
            schedule=self._best_schedule,
            time_bound=self._time_bound,
            stats=stats,
        )
