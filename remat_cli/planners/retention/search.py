"""The search of `retention` over orders and depths of recomputation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, log2

import numpy as np

from remat_cli.core.problem import Observer, Scope, Status
from remat_cli.planners.min_cut.search import MinCutSearch
from remat_cli.planners.retention.any_order_bound import any_order_bound
from remat_cli.planners.retention.cover_bound import RerunBound, cover_bound
from remat_cli.planners.retention.cut_bound import CutSearch
from remat_cli.planners.retention.model import SETTINGS, RetentionModel
from remat_cli.planners.retention.need_times import NeedTimes
from remat_cli.planners.retention.options import OrderChoice, RetentionOptions
from remat_cli.planners.shared.cp_sat import SolverOutcome, Values, limit_cost, solve_model
from remat_cli.planners.shared.incumbent import Incumbent
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.orders.search import Order, search_orders
from remat_cli.planners.shared.rerun_removal import without_needless_reruns
from remat_cli.planners.shared.scaling import Rounding
from remat_cli.planners.shared.sequence import RematSequence
from remat_cli.planners.shared.stages import Stages

# Depths of recomputation, tried in turn. Depth 1 is enough for loose budgets. On one of Moccasin's training graphs
# (CM2), 50 % of the plain peak needs depth 3, and at 40 % depth 6 is better than 3.
_DEPTHS = (1, 2, 3, 6, 12, 24)
_DEPTH_OF_USUAL_PLANS = 3
# Units of the solver's counted work, about a second each: for a model's first turn, growing with the model and from
# turn to turn.
_FIRST_TURN = 1.0
_GROWTH = 3.0
_USUAL_SIZE = 10_000
# The solver's count leaves out the building of a model and most of its presolve: this many needs count as one unit.
_BUILT_PER_WORK = 20_000
# The usual growth of a model from one depth to the next.
_NEXT_DEPTH = 2.5
# Models with exact reruns, and models in another order than the best plan's, seldom win. When turns are handed out,
# their work counts this many times.
_UNLIKELY = 3.0
# The work of each quick bound, larger in larger graphs, and its share of the remaining time.
_WORK_OF_BOUND = 1.0
_SHARE_OF_BOUND = 0.05
# The search for orders may take this share of the time, or this many moves for each unit of the solver's work.
_SHARE_OF_ORDERS = 0.35
_MOVES_PER_WORK = 20_000
# The search ends after this much work without a gain: more in larger graphs, less if little is left to gain, as a share
# of the plain run's time.
_LEAST_PATIENCE = 3.0
_USUAL_OPS = 300
_USUAL_GAP = 0.002
_LEAST_OF_PATIENCE = 0.1
# The share of the time for the first plan.
_SHARE_OF_START = 0.1


@dataclass(eq=False)
class _ModelTurns:
    """A model with the turns that it has had.

    Attributes:
        stages: the graph in the order to plan in.
        depth: depth of recomputation.
        size: approximate number of needs.
        exact_reruns: as in `RetentionModel`.
        turns: number of turns so far.
    """

    stages: Stages
    depth: int
    size: float
    exact_reruns: bool = False
    turns: int = 0

    @property
    def work(self) -> float:
        """Work that the next turn may take."""
        return _FIRST_TURN * max(1.0, self.size / _USUAL_SIZE) * _GROWTH**self.turns


class RetentionSearch:
    """The search of `retention` for one problem.

    Attributes:
        turns: number of turns of all models.
    """

    def __init__(
        self, incumbent: Incumbent, limits: Limits, options: RetentionOptions, *, is_prepared: bool = False
    ) -> None:
        """Prepare a search.

        Args:
            incumbent: keeps plans and bounds; the search continues from its best plan.
            limits: limits of the search, instead of those in the options.
            options: choice of orders and models.
            is_prepared: whether the caller has looked for a first plan and a bound; otherwise the search begins with
                both.
        """
        problem = incumbent.problem
        self.turns = 0
        self._incumbent, self._limits, self._options = incumbent, limits, options
        self._is_prepared = is_prepared
        self._graph = problem.graph
        self._budget = problem.budget.device_bytes
        self._room = self._budget - problem.graph.fixed_bytes
        self._is_fixed = options.order is OrderChoice.INPUT
        self._work = 0.0
        self._work_at_gain = 0.0
        self._best_model: _ModelTurns | None = None

    def run(self) -> None:
        """Search until the bound is met, all is tried, or time is up."""
        if (self._is_prepared or not self._take(RematSequence.plain(self._graph))) and not self._limits.is_over:
            self._plan()

    @property
    def _best(self) -> RematSequence | None:
        return self._incumbent.best_sequence

    def _plan(self) -> None:
        stages = Stages.of(self._graph)
        if not self._is_prepared:
            self._start()
        if self._best is not None:
            self._improve()
        if not self._is_prepared:
            self._prove(stages)
            if self._is_over():
                return
            self._prove_more(stages)
        if self._is_over():
            return
        if self._is_fixed:
            self._search([stages])
        else:
            self._search(self._orders())

    def _prove(self, stages: Stages) -> None:
        """Prove quick bounds on the time of plans."""
        self._incumbent.observe.phase("proving a bound")
        self._note(any_order_bound(self._graph, self._room, self._limits_of_bound()), Scope.ANY_ORDER)
        if self._is_fixed and not self._is_over():
            self._note(cover_bound(stages, self._room, self._limits_of_bound()), Scope.FIXED_ORDER)

    def _prove_more(self, stages: Stages) -> None:
        """Prove a bound from the memory at several moments."""
        self._incumbent.observe.phase("proving a bound")
        known = self._incumbent.bound.time - self._graph.total_time
        if self._is_fixed:
            search, scope = CutSearch.in_fixed_order(stages, self._room), Scope.FIXED_ORDER
        else:
            search, scope = CutSearch.in_any_order(stages, self._room), Scope.ANY_ORDER
        best = None if self._best is None else self._best.time - self._graph.total_time
        self._note(search.turn(self._limits, known, best).confirmed(self._limits), scope)

    def _note(self, bound: RerunBound, scope: Scope) -> None:
        if bound.extra is None:
            why = "tensors that must be in memory together do not fit, whatever is recomputed"
            self._incumbent.prove_that_none_fits(scope, why, bound.basis)
        else:
            self._incumbent.prove(self._graph.total_time + bound.extra, scope, bound.basis)

    def _limits_of_bound(self) -> Limits:
        work = _WORK_OF_BOUND * max(1.0, len(self._graph.ops) / _USUAL_OPS)
        return self._limits.part(_SHARE_OF_BOUND, work)

    def _start(self) -> None:
        """Start from minimum cuts, if they give a plan that fits."""
        quick = Incumbent(self._incumbent.problem, Observer())
        search = MinCutSearch(quick, replace(self._limits.part(_SHARE_OF_START), work=inf))
        search.start()
        if search.current is not None:
            self._take(search.current)

    def _orders(self) -> list[Stages]:
        """Return the orders to plan in, most promising first.

        The order of the best plan is among them.
        """
        if self._best is not None and self._incumbent.gap < _USUAL_GAP:
            return [Stages.of(self._graph, self._best.first_runs)]  # other orders could gain no more than this gap
        limits = self._limits.part(_SHARE_OF_ORDERS)
        limits = replace(limits, work=limits.work * _MOVES_PER_WORK, cores=1)
        orders = search_orders(self._graph, self._room, limits, self._incumbent.observe)[: self._options.orders]
        if self._best is not None:
            own = Order.of(self._graph, self._best.first_runs, self._room)
            orders = [own, *(order for order in orders if order.excess < own.excess)]
        for order in orders:
            self._take(RematSequence.of(self._graph, order.order))
        return [Stages.of(self._graph, order.order) for order in orders]

    def _search(self, orders: Sequence[Stages]) -> None:
        """Give turns to models: small models first, then models like the best.

        The best model is the one that found the best plan.
        """
        pool = [self._first_model(order) for order in orders]
        seen: set[tuple[int, int, bool]] = set()
        while pool and not self._is_over():
            model = min(pool, key=self._rank)
            needs = NeedTimes.of(model.stages, model.stages.plain_bytes > self._room, model.depth)
            if model.turns == 0:
                key = (id(model.stages), len(needs.rerun_stage), model.exact_reruns)
                if key in seen:  # deeper recomputation adds nothing
                    pool.remove(model)
                    continue
                seen.add(key)
                model.size = len(needs)
                pool += self._after(model)
            if self._turn(model, needs).status in (Status.OPTIMAL, Status.INFEASIBLE):
                pool.remove(model)

    def _first_model(self, stages: Stages) -> _ModelTurns:
        """Return the shallowest model that is worth a turn."""
        size = len(stages.read_tensor)
        deep = _ModelTurns(stages, min(_DEPTH_OF_USUAL_PLANS, self._options.depth), size * _NEXT_DEPTH**2)
        # Deeper models contain all plans of shallow ones. Shallow models find a first plan, and suit large graphs.
        return _ModelTurns(stages, 1, size) if self._best is None or deep.size > _USUAL_SIZE else deep

    def _rank(self, model: _ModelTurns) -> tuple[int, int, int]:
        """Rank models by the work of their next turn.

        Models unlike the best plan's model count as dearer.
        """
        best = self._best_model
        price = model.work
        if model.exact_reruns:
            price *= _UNLIKELY
        is_first = model.turns == 0 and model.depth == 1
        if best is not None and model.stages is not best.stages and not is_first:
            price *= _UNLIKELY
        distance = 0 if best is None else abs(_DEPTHS.index(model.depth) - _DEPTHS.index(best.depth))
        return (round(log2(price)), distance, model.depth)

    def _after(self, model: _ModelTurns) -> Iterator[_ModelTurns]:
        """Yield the next models in the same order.

        These are the one with exact reruns and the one of the next depth.
        """
        if model.exact_reruns:
            return
        # Exact reruns come late: they matter only where memory is very tight.
        yield _ModelTurns(model.stages, model.depth, model.size, exact_reruns=True)
        deeper = [depth for depth in _DEPTHS if model.depth < depth <= self._options.depth]
        if deeper:
            yield _ModelTurns(model.stages, deeper[0], _NEXT_DEPTH * model.size)

    def _turn(self, model: _ModelTurns, needs: NeedTimes) -> SolverOutcome:
        """Solve a model for one turn."""
        self._incumbent.observe.phase(f"recomputation of depth {model.depth}")
        retention = RetentionModel(needs, self._room, model.exact_reruns)
        before = self._incumbent.best
        outcome = self._solve(retention, model)
        model.turns += 1
        self.turns += 1
        self._work += outcome.work + model.size / _BUILT_PER_WORK
        if self._incumbent.best is not before:
            self._improve()
            self._best_model, self._work_at_gain = model, self._work
        return outcome

    def _solve(self, retention: RetentionModel, model: _ModelTurns) -> SolverOutcome:
        built = retention.build()
        if self._best is not None:
            # Ask for better plans only: this settles most models many times sooner.
            limit_cost(built, self._best.time - self._graph.total_time - 1)
            # The best plan is no solution of this model. As a hint it helps some searches and delays others.
            if model.turns % 2 == 1 and np.array_equal(self._best.first_runs, model.stages.order):
                retention.hint(built, self._best)

        def take(values: Values) -> None:
            self._take(retention.sequence(values))

        limits = self._limits.part(work=min(model.work, self._patience_left()))
        outcome = solve_model(built, limits, rounding=Rounding.RESTRICT, settings=SETTINGS, on_solution=take)
        self._limits.spend(outcome.work)
        return outcome

    def _improve(self) -> None:
        """Remove needless reruns from the best plan."""
        assert self._best is not None
        self._take(without_needless_reruns(self._best, self._budget, self._limits))

    def _take(self, sequence: RematSequence) -> bool:
        """Offer a plan; tell whether it is the best so far."""
        if not self._is_fixed:
            sequence = sequence.without_useless_runs()
        elif not sequence.keeps_input_order:
            return False
        return self._incumbent.offer(sequence) is self._incumbent.best

    def _is_over(self) -> bool:
        return self._incumbent.is_settled or self._limits.is_over or self._patience_left() <= 0

    def _patience_left(self) -> float:
        """Return the work that may be spent before the next gain.

        More work would most likely bring none.
        """
        if not self._options.patience:
            return inf
        allowed = max(_LEAST_PATIENCE * max(1.0, len(self._graph.ops) / _USUAL_OPS), self._work_at_gain)
        allowed *= min(1.0, max(self._incumbent.gap / _USUAL_GAP, _LEAST_OF_PATIENCE))
        return self._options.patience * allowed - (self._work - self._work_at_gain)
