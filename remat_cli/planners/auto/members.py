"""The planners of `auto`, each continuing from the best plan.

Each runs within limits, and looks for better plans and bounds. A planner is imported when it is asked: the first
planners settle many graphs before a solver is needed.

The best plan stands in an incumbent that all searches share. If plans may move tensors to the host, there are two
incumbents: one for all plans, and one for plans that only recompute, which passes its plans on to the first. The judge
(`core.solve`) verifies every reported plan, and keeps the best.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING

from remat_cli.core.problem import Basis, Bound, Observer, PassingObserver, Plan, Planner, Problem, Scope
from remat_cli.machine.cores import usable_cores
from remat_cli.planners.dtr.options import Heuristic
from remat_cli.planners.dtr.planner import DTR
from remat_cli.planners.min_cut.fitting import RUNS_A_UNIT, STARTS, refit
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
# The time at which a greedy run is given up, as a multiple of the plain run's: on tangled graphs such runs go from bad
# to worse.
_SLOWEST_EVICTION = 1.5
# The largest number of ops for dropping needless reruns from other planners' plans: its time grows with the square.
_MOST_FOR_IMPROVEMENT = 5_000


class _Named(PassingObserver):
    """Adds the planner's name to the phases that it forwards.

    Attributes:
        planner: name of the current planner.
    """

    planner = ""

    def phase(self, text: str) -> None:
        super().phase(f"{self.planner}: {text}")


class Listener(PassingObserver):
    """Forwards the plans and bounds of a planner to an incumbent.

    The planner has an incumbent of its own.

    Attributes:
        latest: the last plan forwarded, which is the planner's best.
    """

    def __init__(self, incumbent: Incumbent) -> None:
        super().__init__(incumbent.observe)
        self.latest: Plan | None = None
        self._incumbent = incumbent

    def found(self, plan: Plan) -> None:
        """Keep a plan if it is the best so far."""
        self.latest = plan
        self._incumbent.take(plan)

    def bound(self, bound: Bound) -> None:
        """Keep a bound, unless its scope is the planner's own plans."""
        if bound.scope is not Scope.PLANNER:
            self._incumbent.prove(bound.time, bound.scope, bound.basis)


class AutoPlanners:
    """The planners of one run of `auto`.

    Searches that may continue later are kept.

    Attributes:
        problem: the problem to plan.
        observe: receives better plans and bounds.
        limits: limits of all planners together.
        incumbent: keeps the best of all plans, and the bounds.
        recomputing: keeps the best plan without transfers; the same object if no plan may have transfers.
        note: why annealing was left out, or slow; otherwise empty.
    """

    def __init__(
        self, problem: Problem, observe: Observer, limits: Limits, gap: float, patience: float, work: float
    ) -> None:
        """Prepare the planners without asking any.

        Args:
            problem: the problem to plan.
            observe: receives better plans and bounds.
            limits: limits of all planners together.
            gap: distance to the bound at which the search ends, as a share of the plain run's time.
            patience: patience of retention.
            work: limit on the counted work of each turn of min_cut and of retention.
        """
        self.problem, self.observe, self.limits = problem, observe, limits
        self._gap, self._patience, self._work = gap, patience, work
        self._named = _Named(observe)
        # A proof about plans without transfers says nothing of the best plan if that may have transfers.
        self.incumbent = Incumbent(problem, self._named, Scope.ANY_PLAN if problem.offload else Scope.ANY_ORDER)
        self.recomputing = self.incumbent
        if problem.offload:
            self.recomputing = Incumbent(problem, Listener(self.incumbent), Scope.ANY_ORDER)
        self.note = ""
        self._cuts: CutSearch | None = None

    def announce(self, planner: str) -> None:
        """Attribute the following plans to a planner."""
        self._named.planner = self.incumbent.finder = self.recomputing.finder = planner
        self.observe.asks(planner)

    def refuse(self, message: str) -> None:
        """Report why a planner does not plan this graph."""
        self._named.phase(message)

    # Quick plans

    def keep_all(self, _limits: Limits) -> None:
        """Offer the plain run."""
        self.recomputing.offer(RematSequence.plain(self.problem.graph))

    def evict(self, limits: Limits) -> None:
        """Evict greedily."""
        dtr = DTR(Heuristic.LOCAL, candidates=1, limit=_SLOWEST_EVICTION, time_limit=limits.seconds)
        self._ask(dtr, self.recomputing)

    def cut_once(self, limits: Limits) -> None:
        """Fit the plain run by minimum cuts."""
        self._min_cut.limits = self._counted(limits)
        self._min_cut.begin()

    # Bounds

    def prove(self, limits: Limits) -> None:
        """Prove a bound from single moments of the step.

        The bound is the least recomputation of any plan in any order.
        """
        from remat_cli.planners.retention.any_order_bound import any_order_bound

        self.observe.phase("proving a bound")
        self._note(any_order_bound(self.problem.graph, self._room, limits.part(work=_WORK_OF_BOUND)))

    def prove_at_cuts(self, limits: Limits) -> None:
        """Prove a bound from several moments of the step at once.

        The bound is the least recomputation of any plan in any order. The tensors that its solution keeps, repaired
        until they fit, also give a plan.
        """
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
            work=min(limits.work, self._work),
            takes_any_plan=self.observe.takes_any_plan,
        )
        self._note(proof.bound)

    def confirm(self) -> None:
        """Ask a second solver to confirm a bound, in the remaining time.

        Only a bound that matters and rests on one solver is asked about.
        """
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
        self._min_cut.limits = self._counted(limits)
        self._min_cut.run()

    def restart_min_cuts(self, limits: Limits, most_fruitless: int) -> None:
        """Search neighbourhoods of minimum cuts from other first plans.

        The search ends after so many restarts in a row without a gain.
        """
        fruitless, counted = 0, self._counted(limits)
        while fruitless < most_fruitless and not (self.is_over or counted.is_over):
            before = self.recomputing.best
            self._min_cut.limits = counted
            self._min_cut.restart()
            fruitless = 0 if self.recomputing.best is not before else fruitless + 1

    def improve_by_min_cuts(self, limits: Limits) -> None:
        """Search neighbourhoods of the best plan, in its order of first runs."""
        MinCutSearch(self.recomputing, self._counted(limits), self._gap, self.recomputing.best_sequence).run()

    def plan_chain(self, limits: Limits) -> None:
        """Plan the graph as a chain of layers."""
        from remat_cli.planners.rotor.planner import Rotor

        self._ask(Rotor(time_limit=limits.seconds), self.recomputing)

    def retain(self, limits: Limits) -> None:
        """Hold or recompute tensors from use to use, in several orders."""
        from remat_cli.planners.retention.options import RetentionOptions
        from remat_cli.planners.retention.search import RetentionSearch

        limits = replace(limits, work=self._work, cores=1)
        options = RetentionOptions(patience=self._patience)
        RetentionSearch(self.recomputing, limits, options, is_prepared=True).run()

    def anneal(self, limits: Limits) -> None:
        """Search order and recomputation together."""
        from remat_cli.planners.annealing.search import AnnealingSearch

        search = AnnealingSearch(self.recomputing, limits, self._gap)
        search.run()
        self.note = search.note

    def compile_annealing(self, _limits: Limits) -> None:
        """Start to compile annealing's moves beside other planners, if there is a core for that."""
        from remat_cli.planners.annealing.sweeps import MOVES

        if usable_cores() > 1:
            MOVES.start()

    # Plans with transfers

    def offload(self, limits: Limits) -> None:
        """Search for plans with transfers, or continue that search."""
        best = self.incumbent.best
        self._offload.limits = limits
        if isinstance(best, SequencePlan) and best.found_by not in ("offload", "keep_all"):
            self._offload.start_from(best.sequence)
        self._offload.run()

    def plan_fluid_chain(self, limits: Limits) -> None:
        """Plan a chain of layers whose inputs may go to the host."""
        from remat_cli.planners.pofo.planner import Pofo

        self._ask(Pofo(time_limit=limits.seconds), self.incumbent)

    # What these have in common

    @property
    def is_over(self) -> bool:
        """Whether to end: by the gap, a proof that none fits, or limits."""
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

    def _counted(self, limits: Limits) -> Limits:
        """Return the limits of a turn of min_cut, which counts runs laid out."""
        return replace(limits, work=min(limits.work, self._work * RUNS_A_UNIT))

    def _ask(self, planner: Planner, incumbent: Incumbent) -> None:
        """Ask a planner with its own incumbent, and improve its plan.

        Needless reruns are dropped from the plan.
        """
        listener = Listener(incumbent)
        result = planner.plan(self.problem, listener)
        if result.closest is not None:
            incumbent.offer(result.closest)
        is_small = len(self.problem.graph.ops) <= _MOST_FOR_IMPROVEMENT
        if is_small and incumbent is self.recomputing and isinstance(listener.latest, SequencePlan):
            incumbent.offer(without_needless_reruns(listener.latest.sequence, self._budget, self.limits))

    def _note(self, bound: RerunBound) -> None:
        """Keep a bound on the time of reruns in any order."""
        if bound.extra is not None:
            self.recomputing.prove(self.problem.graph.total_time + bound.extra, Scope.ANY_ORDER, bound.basis)
        else:
            why = "tensors that must be in memory together in any order do not fit, whatever is recomputed"
            self.recomputing.prove_that_none_fits(Scope.ANY_ORDER, why, bound.basis)

    def _offer_fitted(self, sequence: RematSequence) -> None:
        """Make a plan from a sequence that fits at some moments only."""
        fitted = refit(sequence, self._budget, STARTS[0], self.limits.part())
        if fitted is not None:
            self.recomputing.offer(fitted)
