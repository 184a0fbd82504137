"""The search of `retention`: how it spends its time, over orders and over depths of recomputation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, log2

import numpy as np

from remat_cli.planners.min_cut.search import MinCutSearch
from remat_cli.planners.retention.any_order_bound import any_order_bound
from remat_cli.planners.retention.cover_bound import RerunBound, cover_bound
from remat_cli.planners.retention.cut_bound import CutSearch
from remat_cli.planners.retention.model import SETTINGS, RetentionModel
from remat_cli.planners.retention.need_times import NeedTimes
from remat_cli.planners.retention.planner import OrderChoice, Retention
from remat_cli.planners.shared.cp_sat import Outcome, Values, limit_cost, solve_model
from remat_cli.planners.shared.incumbent import Incumbent
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.orders.search import Order, search_orders
from remat_cli.planners.shared.rerun_removal import without_needless_reruns
from remat_cli.planners.shared.scaling import Rounding
from remat_cli.planners.shared.sequence import RematSequence
from remat_cli.planners.shared.stages import Stages
from remat_cli.problem import Observer, PlanResult, Problem, Scope, Status

# How deep reruns of reruns may go, tried in turn: 1 is enough at loose budgets; on one of Moccasin's training graphs
# (CM2), 50 % of the plain peak needs 3, and 6 is better than 3 at 40 %.
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
# Models with exact reruns, and models in another order than the best plan's, seldom win. Where turns are handed out,
# their work counts this many times.
_UNLIKELY = 3.0
# How much work each quick bound may take, more in larger graphs, and which share of the time left.
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
        start: a plan that fits; None for none.
        time_bound: no plan in any order takes less time.
    """

    start: RematSequence | None
    time_bound: int


class RetentionSearch:
    """One run of `retention`."""

    def __init__(self, problem: Problem, options: Retention, observe: Observer, known: Known | None = None) -> None:
        """Prepare a search, from what is known; where nothing is given, a first plan and a bound are made."""
        self._known = known
        self._options = options
        self._observe = observe
        self._graph = problem.graph
        self._budget = problem.budget.device_bytes
        self._room = self._budget - problem.graph.fixed_bytes
        self._is_fixed = options.order is OrderChoice.INPUT
        self._incumbent = Incumbent(problem, observe, Scope.FIXED_ORDER if self._is_fixed else Scope.ANY_ORDER)
        self._limits = Limits.of(
            options.time_limit, options.work_limit, cores=options.cores, seed=options.seed, observe=observe
        )
        self._best: RematSequence | None = None
        self._turns = 0
        self._work = 0.0
        self._work_at_gain = 0.0
        self._best_model: _Model | None = None

    def run(self) -> PlanResult:
        """Search until the bound is met, everything was tried, or the limits are reached."""
        if not self._take(RematSequence.plain(self._graph)) and not self._limits.is_over:
            self._plan()
        return self._incumbent.result(stats={"turns": self._turns})

    def _plan(self) -> None:
        stages = Stages.of(self._graph)
        self._take_start()
        self._prove(stages)
        if self._is_over():
            return
        if self._is_fixed or self._known is None:
            self._prove_more(stages)
        if self._is_over():
            return
        if self._is_fixed:
            self._search([stages])
        else:
            self._search(self._orders())

    def _prove(self, stages: Stages) -> None:
        """Bound what plans cost, in no time."""
        self._observe.phase("proving a bound")
        if self._known is not None:
            self._incumbent.prove(self._known.time_bound, Scope.ANY_ORDER)
            return
        self._note(any_order_bound(self._graph, self._room, self._limits_of_bound()), Scope.ANY_ORDER)
        if self._is_fixed and not self._is_over():
            self._note(cover_bound(stages, self._room, self._limits_of_bound()), Scope.FIXED_ORDER)

    def _prove_more(self, stages: Stages) -> None:
        """Bound what plans cost at several moments."""
        self._observe.phase("proving a bound")
        known = self._incumbent.bound.time - self._graph.total_time
        if self._is_fixed:
            search, scope = CutSearch.in_fixed_order(stages, self._room), Scope.FIXED_ORDER
        else:
            search, scope = CutSearch.in_any_order(stages, self._room), Scope.ANY_ORDER
        best = None if self._best is None else self._best.time - self._graph.total_time
        self._note(search.turn(self._limits, known, best).confirmed(self._limits), scope)

    def _note(self, bound: RerunBound, scope: Scope) -> None:
        if bound.extra is None:
            why = "what must be there together does not fit, whatever is recomputed"
            self._incumbent.prove_that_none_fits(scope, why, bound.basis)
        else:
            self._incumbent.prove(self._graph.total_time + bound.extra, scope, bound.basis)

    def _limits_of_bound(self) -> Limits:
        work = _WORK_OF_BOUND * max(1.0, len(self._graph.ops) / _USUAL_OPS)
        return self._limits.part(_SHARE_OF_BOUND, work)

    def _take_start(self) -> None:
        """Begin with a plan that fits, if there is one."""
        start = None if self._known is None else self._known.start
        if self._known is None:
            quick = Incumbent(self._incumbent.problem, Observer())
            search = MinCutSearch(quick, replace(self._limits.part(_SHARE_OF_START), work=inf))
            search.start()
            start = search.best
        if start is not None and self._take(start):
            self._improve()

    def _orders(self) -> list[Stages]:
        """Return the orders to plan in, the most promising first; the best plan's is one of them."""
        if self._best is not None and self._incumbent.gap < _USUAL_GAP:
            return [Stages.of(self._graph, self._best.first_runs)]  # other orders could gain no more than that
        limits = self._limits.part(_SHARE_OF_ORDERS)
        limits = replace(limits, work=limits.work * _MOVES_PER_WORK, cores=1)
        orders = search_orders(self._graph, self._room, limits, self._observe)[: self._options.orders]
        if self._best is not None:
            own = Order.of(self._graph, self._best.first_runs, self._room)
            orders = [own, *(order for order in orders if order.excess < own.excess)]
        for order in orders:
            self._take(RematSequence.of(self._graph, order.order))
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
        before = self._best
        outcome = self._solve(retention, model)
        model.turns += 1
        self._turns += 1
        self._work += outcome.work + model.size / _BUILT_PER_WORK
        if self._best is not before:
            self._improve()
            self._best_model, self._work_at_gain = model, self._work
        return outcome

    def _solve(self, retention: RetentionModel, model: _Model) -> Outcome:
        built = retention.build()
        if self._best is not None:
            # Only better plans: most models are settled many times sooner for it.
            limit_cost(built, self._best.time - self._graph.total_time - 1)
            # Such a hint is no solution; it helps in some searches and holds up others.
            if model.turns % 2 == 1 and np.array_equal(self._best.first_runs, model.stages.order):
                retention.hint(built, self._best)

        def take(values: Values) -> None:
            self._take(retention.sequence(values))

        limits = self._limits.part(work=min(model.work, self._patience_left()))
        outcome = solve_model(built, limits, rounding=Rounding.RESTRICT, settings=SETTINGS, on_solution=take)
        self._limits.spend(outcome.work)
        return outcome

    def _improve(self) -> None:
        """Leave out of the best plan what the budget has room to do without."""
        assert self._best is not None
        self._take(without_needless_reruns(self._best, self._budget, self._limits))

    def _take(self, sequence: RematSequence) -> bool:
        """Keep a plan if it is the best so far; tell whether it is."""
        if not self._is_fixed:
            sequence = sequence.without_useless_runs()
        elif not sequence.keeps_input_order:
            return False
        plan = self._incumbent.offer(sequence)
        if plan is not self._incumbent.best:
            return False
        self._best = sequence
        return True

    def _is_over(self) -> bool:
        return self._incumbent.is_settled or self._limits.is_over or self._patience_left() <= 0

    def _patience_left(self) -> float:
        """Return the work that may still bring nothing; more of it would most likely bring nothing either."""
        if not self._options.patience:
            return inf
        allowed = max(_LEAST_PATIENCE * max(1.0, len(self._graph.ops) / _USUAL_OPS), self._work_at_gain)
        allowed *= min(1.0, max(self._incumbent.gap / _USUAL_GAP, _LEAST_OF_PATIENCE))
        return self._options.patience * allowed - (self._work - self._work_at_gain)
