"""The planners as `auto` asks them: each within limits, from the best plan so far, for better plans and bounds.

A planner is imported when it is asked: many graphs are settled by the first ones, before a solver is needed.

The best plan stands in an incumbent that all searches share. Where plans may move tensors to the host, there are two:
one for all plans, and one for those that only recompute, which tells the first of what it takes. What is told outside
is the judge's to verify (`core.solve`), and it keeps the best plan that it has verified.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING

from remat_cli.core.problem import Basis, Bound, Observer, PassingObserver, Plan, Planner, Problem, Scope
from remat_cli.planners.dtr.options import Heuristic
from remat_cli.planners.dtr.planner import DTR
from remat_cli.planners.min_cut.fitting import STARTS, refit
from remat_cli.planners.min_cut.search import MinCutSearch
from remat_cli.planners.shared.incumbent import Incumbent, SequencePlan
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.rerun_removal import without_needless_reruns
from remat_cli.planners.shared.sequence import RematSequence
from remat_cli.planners.shared.stages import Stages

if TYPE_CHECKING:
    from remat_cli.planners.offload.search import OffloadSearch
    from remat_cli.planners.retention.cover_bound import RerunBound
    from remat_cli.planners.retention.cut_bound import CutSearch
    from remat_cli.planners.shortest_path.search import ShortestPathSearch

# The solver's counted work for the bound at single moments.
_WORK_OF_BOUND = 0.5
# A greedy run is given up after so many times the plain run's time: on tangled graphs it goes from bad to worse.
_SLOWEST_EVICTION = 1.5
# Up to how many ops reruns are left out of the plans of other planners: that takes time with the square.
_MOST_FOR_IMPROVEMENT = 5_000


class _Named(PassingObserver):
    """Tells the observer of `auto` of plans and bounds, and of phases with the name of the planner that is asked.

    Attributes:
        planner: its name.
    """

    planner = ""

    def phase(self, text: str) -> None:
        super().phase(f"{self.planner}: {text}")


class Listener(PassingObserver):
    """Hands to an incumbent what a planner with an incumbent of its own tells.

    Attributes:
        latest: the last plan that was told of: the planner's best.
    """

    def __init__(self, incumbent: Incumbent) -> None:
        super().__init__(incumbent.observe)
        self.latest: Plan | None = None
        self._incumbent = incumbent

    def found(self, plan: Plan) -> None:
        """Keep a planner's plan if it is the best so far."""
        self.latest = plan
        self._incumbent.take(plan)

    def bound(self, bound: Bound) -> None:
        """Keep a bound on all plans of a scope; one on the planner's own plans says nothing here."""
        if bound.scope is not Scope.PLANNER:
            self._incumbent.prove(bound.time, bound.scope, bound.basis)


class Members:
    """The planners of one run of `auto`; searches that may go on later are kept.

    Attributes:
        problem: what is planned.
        observe: is told of better plans and bounds.
        limits: of all planners together.
        incumbent: the best of all plans, and what is proven.
        recomputing: the best of the plans that move nothing to the host; the same where none may.
    """

    def __init__(
        self, problem: Problem, observe: Observer, limits: Limits, gap: float, patience: float, retention_work: float
    ) -> None:
        """Prepare; no planner is asked yet.

        Args:
            problem: what is planned.
            observe: is told of better plans and bounds.
            limits: of all planners together.
            gap: a plan so near to the bound, as a share of the plain run's time, is good enough.
            patience: of retention.
            retention_work: that retention may count.
        """
        self.problem, self.observe, self.limits = problem, observe, limits
        self._gap, self._patience, self._retention_work = gap, patience, retention_work
        self._named = _Named(observe)
        # What is proven of plans that move nothing to the host says nothing of the best plan, where some may.
        self.incumbent = Incumbent(problem, self._named, Scope.ANY_PLAN if problem.offload else Scope.ANY_ORDER)
        self.recomputing = self.incumbent
        if problem.offload:
            self.recomputing = Incumbent(problem, Listener(self.incumbent), Scope.ANY_ORDER)
        self._cuts: CutSearch | None = None

    def announce(self, planner: str) -> None:
        """Let what is found from now on be found by a planner."""
        self._named.planner = self.incumbent.finder = self.recomputing.finder = planner
        self.observe.asks(planner)

    def refuse(self, message: str) -> None:
        """Pass on why a planner does not plan this graph."""
        self._named.phase(message)

    # Plans at once

    def keep_all(self, _limits: Limits) -> None:
        """Offer the plain run."""
        self.recomputing.offer(RematSequence.plain(self.problem.graph))

    def evict(self, limits: Limits) -> None:
        """Evict greedily."""
        dtr = DTR(Heuristic.LOCAL, candidates=1, limit=_SLOWEST_EVICTION, time_limit=limits.seconds)
        self._ask(dtr, self.recomputing)

    def cut_once(self, limits: Limits) -> None:
        """Make the plain run fit by minimum cuts."""
        self._min_cut.limits = limits
        self._min_cut.begin()

    # Bounds

    def prove(self, limits: Limits) -> None:
        """Bound what plans in any order recompute, by what they keep at single moments."""
        from remat_cli.planners.retention.any_order_bound import any_order_bound

        self.observe.phase("proving a bound")
        self._note(any_order_bound(self.problem.graph, self._room, limits.part(work=_WORK_OF_BOUND)))

    def prove_at_cuts(self, limits: Limits) -> None:
        """Bound the same, by what they keep at several moments together; what solutions keep, repaired, is a plan."""
        from remat_cli.planners.retention.cut_bound import CutSearch

        self.observe.phase("proving a bound")
        total_time = self.problem.graph.total_time
        known = self.recomputing.bound_on(Scope.ANY_ORDER).time - total_time
        best = self.recomputing.best
        extra = None if best is None else best.time - total_time
        if self._cuts is None:
            self._cuts = CutSearch.in_any_order(Stages.of(self.problem.graph), self._room)
        clock = replace(limits, work=inf)
        proof = self._cuts.turn(
            clock,
            known,
            extra,
            self._offer_fitted,
            share=1.0,
            work=limits.work,
            takes_any_plan=self.observe.takes_any_plan,
        )
        self._note(proof.bound)

    def confirm(self) -> None:
        """Ask a second solver about what rests on one, with the time that is left."""
        incumbent = self.recomputing
        matters = incumbent.nothing_fits or incumbent.bound_on(Scope.ANY_ORDER).basis is Basis.ONE_SOLVER
        if matters and self._cuts is not None and self._cuts.proof.bound.basis is Basis.ONE_SOLVER:
            self.observe.phase("checking the bound")
            self._note(self._cuts.proof.confirmed(self.limits))

    # Plans that only recompute

    def settle(self, limits: Limits) -> None:
        """Try all plans of a small graph, as far as the limits allow."""
        self.observe.phase("trying all plans")
        search, best = self._shortest_path, self.recomputing.best
        search.limits = limits
        search.better_than = None if best is None else best.time
        search.run()

    def search_min_cuts(self, limits: Limits) -> None:
        """Search neighbourhoods by minimum cuts."""
        self._min_cut.limits = limits
        self._min_cut.run()

    def restart_min_cuts(self, limits: Limits, most_fruitless: int) -> None:
        """Search so again from other first plans, until that brought nothing for so many times in a row."""
        fruitless = 0
        while fruitless < most_fruitless and not (self.is_over or limits.is_over):
            before = self.recomputing.best
            self._min_cut.limits = limits.part()
            self._min_cut.restart()
            fruitless = 0 if self.recomputing.best is not before else fruitless + 1

    def improve_by_min_cuts(self, limits: Limits) -> None:
        """Search neighbourhoods of the best plan, in its order of first runs."""
        MinCutSearch(self.recomputing, limits, self._gap, self.recomputing.best_sequence).run()

    def plan_chain(self, limits: Limits) -> None:
        """Plan the graph as a chain of layers."""
        from remat_cli.planners.rotor.planner import Rotor

        self._ask(Rotor(time_limit=limits.seconds), self.recomputing)

    def retain(self, limits: Limits) -> None:
        """Decide for each tensor, from use to use, whether it is held; in other orders of first runs, too."""
        from remat_cli.planners.retention.options import RetentionOptions
        from remat_cli.planners.retention.search import RetentionSearch

        limits = replace(limits, work=self._retention_work, cores=1)
        options = RetentionOptions(patience=self._patience)
        RetentionSearch(self.recomputing, limits, options, is_prepared=True).run()

    def anneal(self, limits: Limits) -> None:
        """Search order and recomputation together."""
        from remat_cli.planners.annealing.search import AnnealingSearch

        AnnealingSearch(self.recomputing, limits, self._gap).run()

    # Plans with transfers

    def offload(self, limits: Limits) -> None:
        """Search for plans that also move tensors to the host; go on where that ended."""
        best = self.incumbent.best
        self._offload.limits = limits
        if isinstance(best, SequencePlan) and best.found_by not in ("offload", "keep_all"):
            self._offload.start_from(best.sequence)
        self._offload.run()

    def plan_fluid_chain(self, limits: Limits) -> None:
        """Plan the graph as a chain of layers whose inputs may go to the host."""
        from remat_cli.planners.pofo.planner import Pofo

        self._ask(Pofo(time_limit=limits.seconds), self.incumbent)

    # What these have in common

    @property
    def is_over(self) -> bool:
        """Whether the best plan is good enough, none fits, or the time is up."""
        return self.incumbent.gap <= self._gap or self.incumbent.nothing_fits or self.limits.is_over

    @property
    def _budget(self) -> int:
        return self.problem.budget.device_bytes

    @property
    def _room(self) -> int:
        return self._budget - self.problem.graph.fixed_bytes

    @cached_property
    def _min_cut(self) -> MinCutSearch:
        return MinCutSearch(self.recomputing, self.limits, self._gap)

    @cached_property
    def _shortest_path(self) -> ShortestPathSearch:
        from remat_cli.planners.shortest_path.search import ShortestPathSearch

        return ShortestPathSearch(self.recomputing, self.limits)

    @cached_property
    def _offload(self) -> OffloadSearch:
        from remat_cli.planners.offload.search import OffloadSearch

        return OffloadSearch(self.incumbent, self.limits, self._gap)

    def _ask(self, planner: Planner, incumbent: Incumbent) -> None:
        """Ask a planner that keeps an incumbent of its own, and leave needless reruns out of its plan."""
        told = Listener(incumbent)
        result = planner.plan(self.problem, told)
        if result.closest is not None:
            incumbent.offer(result.closest)
        is_small = len(self.problem.graph.ops) <= _MOST_FOR_IMPROVEMENT
        if is_small and incumbent is self.recomputing and isinstance(told.latest, SequencePlan):
            incumbent.offer(without_needless_reruns(told.latest.sequence, self._budget, self.limits))

    def _note(self, bound: RerunBound) -> None:
        """Keep a bound on the time of reruns in any order."""
        if bound.extra is not None:
            self.recomputing.prove(self.problem.graph.total_time + bound.extra, Scope.ANY_ORDER, bound.basis)
        else:
            why = "tensors that must be in memory together in any order do not fit, whatever is recomputed"
            self.recomputing.prove_that_none_fits(Scope.ANY_ORDER, why, bound.basis)

    def _offer_fitted(self, sequence: RematSequence) -> None:
        """Make a plan of what fits at some moments only."""
        fitted = refit(sequence, self._budget, STARTS[0], self.limits.part())
        if fitted is not None:
            self.recomputing.offer(fitted)
