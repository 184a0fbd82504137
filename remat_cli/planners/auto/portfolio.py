"""The portfolio of `auto`: how it divides its time among planners, and what it keeps of their results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from remat_cli.errors import PlannerRefuses
from remat_cli.graph import Phase
from remat_cli.planners.annealing.search import AnnealingSearch
from remat_cli.planners.auto.planner import Auto
from remat_cli.planners.dtr.planner import DTR, Heuristic
from remat_cli.planners.lower_sets.dp_planners import ApproxDP
from remat_cli.planners.min_cut.fitting import STARTS, refit
from remat_cli.planners.min_cut.search import MinCutSearch
from remat_cli.planners.offload.planner import Offload
from remat_cli.planners.pofo.planner import Pofo
from remat_cli.planners.retention.any_order_bound import any_order_bound
from remat_cli.planners.retention.cover_bound import RerunBound
from remat_cli.planners.retention.cut_bound import SHARE_OF_TURN, WORK_OF_TURN, CutSearch
from remat_cli.planners.retention.planner import Retention
from remat_cli.planners.retention.search import Known, RetentionSearch
from remat_cli.planners.rotor.planner import Rotor
from remat_cli.planners.shared.incumbent import Incumbent
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.rerun_removal import without_needless_reruns
from remat_cli.planners.shared.sequence import RematSequence
from remat_cli.planners.shared.stages import Stages
from remat_cli.planners.shortest_path.planner import is_small
from remat_cli.planners.shortest_path.search import NONE_FITS, ShortestPathSearch
from remat_cli.problem import Basis, Bound, Observer, Plan, Planner, PlanResult, Problem, Scope
from remat_cli.schedule import Schedule

if TYPE_CHECKING:
    from remat_cli.planners.offload.search import OffloadSearch

# Up to how many ops each planner is worth its time.
_MOST_FOR_SHORTEST_PATH = 24
_MOST_FOR_POFO = 1_500
_MOST_FOR_HEURISTICS = 3_000
_MOST_FOR_RETENTION = 5_000
_MOST_FOR_SMALL_GAPS = 1_000
# The solver's counted work for the bound.
_WORK_OF_BOUND = 0.5
# What the bound at several moments may take of the time at the end, and its counted work: one long turn proves more
# than two short ones.
_SHARE_OF_LAST_TURN, _WORK_OF_LAST_TURN = 1.0, 20.0
# Searches by minimum cuts in a row that may bring nothing: before retention, and after it.
_FEW_RESTARTS, _MANY_RESTARTS = 2, 4
# Nearer to the bound than this, rotor and approx_dp have nothing to add, and retention little for its time.
_GAP_FOR_HEURISTICS = 0.002
# States that shortest_path may go on from: before the others, where most small graphs are settled in a fraction of a
# second, and after them.
_FEW_STATES, _MANY_STATES = 1_000, 20_000
# What a quick planner may take of the time that is left when its turn comes. On graphs of usual size none needs it, and
# what they find does not depend on the clock.
_SHARE_OF_QUICK = 0.25
_SHARE_OF_OFFLOADING = 0.4
# Far from the bound retention leaves time to others. Without a backward pass it shares the time with annealing, which
# comes first where there is no plan this near to the bound, except in small graphs, whose models retention soon solves;
# and in middling ones at a smaller gap: it soon finds better orders for them. Else retention comes first; it
# has all the time up to so many ops.
_SHARE_OF_FIRST = 0.7
_GAP_FOR_ANNEALING = 0.1
_LEAST_FOR_ANNEALING_FIRST = 200
_MOST_FOR_RETENTION_ALONE = 600
_MOST_OF_MIDDLING, _GAP_OF_MIDDLING = 1_500, 0.01
# A greedy run is given up after so many times the plain time.
_SLOWEST_EVICTION = 1.5


class Portfolio(Observer):
    """One run of `auto`; as the observer of its planners it is told of their plans and bounds."""

    def __init__(self, problem: Problem, options: Auto, observe: Observer) -> None:
        self._problem = problem
        self._options = options
        self._observe = observe
        self._limits = Limits.of(options.time_limit, cores=options.cores, seed=options.seed, observe=observe)
        # What is proven of plans that move nothing to the host says nothing of the best plan, where some may.
        self._incumbent = Incumbent(problem, observe, Scope.ANY_PLAN if problem.offload else Scope.ANY_ORDER)
        self._planner = ""
        self._cuts: CutSearch | None = None

    @property
    def has_enough(self) -> bool:
        """Whether a planner may end: whoever asked has what he wants."""
        return self._observe.has_enough

    def phase(self, text: str) -> None:
        """Pass it on, with the planner's name."""
        self._observe.phase(f"{self._planner}: {text}")

    def found(self, plan: Plan) -> None:
        """Keep a planner's plan if it is the best so far."""
        plan.found_by = self._planner
        self._incumbent.take(plan)

    def bound(self, bound: Bound) -> None:
        """Keep what holds for all plans of a scope, whoever proved it."""
        if bound.scope is not Scope.PLANNER:
            self._incumbent.prove(bound.time, bound.scope, bound.basis)

    def run(self) -> PlanResult:
        """Ask one planner after the other, until nothing can be better or the time is up."""
        for name, ask in self._members():
            if self._is_over():
                break
            if name != self._planner:
                self._planner = name
                self._observe.asks(name)
            try:
                ask()
            except PlannerRefuses as refusal:
                self.phase(refusal.message)
        self._confirm()
        return self._incumbent.result()

    def _members(self) -> Iterator[tuple[str, Callable[[], None]]]:
        """Yield the planners in turn: an instant plan, the proof, then those that search."""
        is_small = len(self._problem.graph.ops) <= _MOST_FOR_HEURISTICS
        yield "keep_all", lambda: self._offer(RematSequence.plain(self._problem.graph))
        if self._limits.is_over:
            return
        min_cut = MinCutSearch(Incumbent(self._problem, self, Scope.FIXED_ORDER), self._limits, self._options.gap)
        yield ("dtr", self._evict) if is_small else ("min_cut", min_cut.begin)
        yield self._planner, self._prove
        if not self._problem.offload:
            yield from self._recomputing(min_cut)
            return
        # It takes a solver's library along, which plans without transfers do without.
        from remat_cli.planners.offload.search import OffloadSearch

        own = Incumbent(self._problem, self, Scope.ANY_PLAN)
        offload = OffloadSearch(own, self._limits, Offload(gap=self._options.gap, seed=self._options.seed))
        yield "offload", lambda: self._offload(offload, _SHARE_OF_OFFLOADING)
        if self._is_training and len(self._problem.graph.ops) <= _MOST_FOR_POFO:
            yield "pofo", lambda: self._plan(Pofo(time_limit=self._seconds(_SHARE_OF_OFFLOADING)))
        if self._can_recompute_better:
            yield from self._recomputing(min_cut)
        yield "offload", lambda: self._offload(offload, 1.0)

    def _recomputing(self, min_cut: MinCutSearch) -> Iterator[tuple[str, Callable[[], None]]]:
        """Yield the planners that search for plans without transfers."""
        count = len(self._problem.graph.ops)
        path = None
        if is_small(self._problem.graph, _MOST_FOR_SHORTEST_PATH):
            path = ShortestPathSearch(Incumbent(self._problem, self, Scope.ANY_ORDER), self._limits)
            yield "shortest_path", partial(self._settle, path, _FEW_STATES)
        # Without a backward pass much depends on the order, which others change: they should have their time.
        yield "min_cut", lambda: self._search_min_cuts(min_cut, 1.0 if self._is_training else _SHARE_OF_QUICK)
        is_small_training = self._is_training and count <= _MOST_FOR_HEURISTICS
        if is_small_training:
            yield "retention", self._prove_at_cuts
        if is_small_training and self._gap > _GAP_FOR_HEURISTICS:
            yield "min_cut", lambda: self._restart(min_cut, _FEW_RESTARTS, _SHARE_OF_QUICK)
            yield "rotor", lambda: self._plan(Rotor(time_limit=self._seconds(_SHARE_OF_QUICK)))
            yield "approx_dp", lambda: self._plan(ApproxDP(time_limit=self._seconds(_SHARE_OF_QUICK)))
        yield from self._reordering()
        best = self._incumbent.best
        if best is not None and best.found_by != "min_cut":
            yield "min_cut", self._improve_by_min_cuts
        if is_small_training and self._gap > _GAP_FOR_HEURISTICS:
            yield "min_cut", lambda: self._restart(min_cut, _MANY_RESTARTS, _SHARE_OF_QUICK)
            yield "retention", lambda: self._prove_at_cuts(_SHARE_OF_LAST_TURN, _WORK_OF_LAST_TURN)
        if path is not None:
            yield "shortest_path", partial(self._settle, path, _MANY_STATES)

    def _reordering(self) -> Iterator[tuple[str, Callable[[], None]]]:
        """Yield the planners that search for other orders, too."""
        count = len(self._problem.graph.ops)
        is_tangled = not self._is_training and count > _MOST_FOR_SHORTEST_PATH
        is_middling = _MOST_FOR_RETENTION_ALONE < count <= _MOST_OF_MIDDLING
        is_far = self._gap > (_GAP_OF_MIDDLING if is_middling else _GAP_FOR_ANNEALING)
        is_worthwhile = is_far and count >= _LEAST_FOR_ANNEALING_FIRST
        anneals_first = is_tangled and (is_worthwhile or count > _MOST_FOR_RETENTION)
        if anneals_first:
            yield "annealing", lambda: self._anneal(_SHARE_OF_FIRST if count <= _MOST_FOR_RETENTION else 1.0)
        if count <= (_MOST_FOR_RETENTION if self._gap > _GAP_FOR_HEURISTICS else _MOST_FOR_SMALL_GAPS):
            is_before_annealing = is_tangled and not anneals_first and count > _MOST_FOR_RETENTION_ALONE
            shares = is_before_annealing or (self._is_training and self._gap > _GAP_FOR_HEURISTICS)
            yield "retention", lambda: self._retain(_SHARE_OF_FIRST if shares else 1.0)
        if is_tangled and not anneals_first and self._gap > _GAP_FOR_HEURISTICS:
            yield "annealing", lambda: self._anneal(1.0)

    @property
    def _is_training(self) -> bool:
        return any(op.phase is Phase.BACKWARD for op in self._problem.graph.ops)

    @property
    def _can_recompute_better(self) -> bool:
        """Whether a plan that moves nothing to the host can be better than the best one."""
        best = self._incumbent.best
        return best is None or best.time > self._incumbent.bound_on(Scope.ANY_ORDER).time

    def _offload(self, search: OffloadSearch, share: float) -> None:
        search.limits = self._limits.part(share)
        best = self._incumbent.best
        if best is not None and best.found_by not in ("offload", "keep_all"):
            search.start_from(RematSequence.of_names(self._problem.graph, best.schedule.computes))
        search.run()

    def _prove(self) -> None:
        """Bound what plans in any order cost."""
        graph = self._problem.graph
        self._observe.phase("proving a bound")
        room = self._problem.budget.device_bytes - graph.fixed_bytes
        self._note(any_order_bound(graph, room, self._limits.part(_SHARE_OF_QUICK, _WORK_OF_BOUND)))

    def _note(self, bound: RerunBound) -> None:
        if bound.extra is not None:
            self.bound(Bound(self._problem.graph.total_time + bound.extra, Scope.ANY_ORDER, bound.basis))
        else:
            why = "what must be there together in any order does not fit, whatever is recomputed"
            self._incumbent.prove_that_none_fits(Scope.ANY_ORDER, why, bound.basis)

    def _evict(self) -> None:
        """Evict greedily for a plan at once; on tangled graphs that goes from bad to worse, and is soon given up."""
        seconds = self._seconds(_SHARE_OF_QUICK)
        self._plan(DTR(Heuristic.LOCAL, candidates=1, limit=_SLOWEST_EVICTION, time_limit=seconds))

    def _plan(self, planner: Planner) -> None:
        """Ask a planner, and try its plan without needless reruns."""
        result = planner.plan(self._problem, self)
        if result.schedule is not None:
            self._improve(result.schedule)
        elif result.closest is not None:
            self._offer(result.closest)

    def _settle(self, search: ShortestPathSearch, states: int) -> None:
        best = self._incumbent.best
        search.limits = self._limits.part(work=states)
        search.better_than = None if best is None else best.time
        search.run()
        if search.incumbent.nothing_fits:
            self._incumbent.prove_that_none_fits(Scope.ANY_ORDER, NONE_FITS)

    def _search_min_cuts(self, search: MinCutSearch, share: float) -> None:
        search.limits = self._limits.part(share)
        search.run()
        if search.incumbent.closest is not None:
            self.found(search.incumbent.closest)

    def _restart(self, search: MinCutSearch, most_fruitless: int, share: float) -> None:
        """Search by minimum cuts again and again, until that brought nothing for so many times in a row."""
        fruitless, limits = 0, self._limits.part(share)
        while fruitless < most_fruitless and not (self._is_over() or limits.is_over):
            before = self._incumbent.best
            search.limits = limits.part()
            search.restart()
            fruitless = 0 if self._incumbent.best is not before else fruitless + 1

    def _prove_at_cuts(self, share: float = SHARE_OF_TURN, work: float = WORK_OF_TURN) -> None:
        """Bound what plans in any order cost, by what they keep at several moments."""
        graph = self._problem.graph
        self._observe.phase("proving a bound")
        if self._cuts is None:
            room = self._problem.budget.device_bytes - graph.fixed_bytes
            self._cuts = CutSearch.in_any_order(Stages.of(graph), room)
        known = self._incumbent.bound_on(Scope.ANY_ORDER).time - graph.total_time
        plan = self._best_sequence()
        best = None if plan is None else plan.time - graph.total_time
        self._note(self._cuts.turn(self._limits, known, best, self._offer_fitted, share=share, work=work).bound)

    def _confirm(self) -> None:
        """Ask a second solver about what rests on one, with the time that is left."""
        incumbent = self._incumbent
        matters = incumbent.nothing_fits or incumbent.bound_on(Scope.ANY_ORDER).basis is Basis.ONE_SOLVER
        if matters and self._cuts is not None and self._cuts.proof.bound.basis is Basis.ONE_SOLVER:
            self._observe.phase("checking the bound")
            self._note(self._cuts.proof.confirmed(self._limits))

    def _offer_fitted(self, sequence: RematSequence) -> None:
        """Make a plan of what fits at some moments only."""
        budget = self._problem.budget.device_bytes
        fitted = refit(sequence, budget, STARTS[0], self._limits.part())
        if fitted is not None:
            self._offer(fitted)

    def _improve_by_min_cuts(self) -> None:
        sequence = self._best_sequence()
        if sequence is not None:
            own = Incumbent(self._problem, self, Scope.FIXED_ORDER)
            MinCutSearch(own, self._limits.part(), self._options.gap, sequence).run()

    def _anneal(self, share: float) -> None:
        own = Incumbent(self._problem, self, Scope.ANY_ORDER)
        AnnealingSearch(own, self._limits.part(share), self._options.gap, self._best_sequence()).run()
        if own.closest is not None:
            self.found(own.closest)

    def _retain(self, share: float) -> None:
        given = self._options
        planner = Retention(
            time_limit=self._seconds(share), work_limit=given.work_limit, patience=given.patience, seed=given.seed
        )
        known = Known(self._best_sequence(), self._incumbent.bound.time)
        result = RetentionSearch(self._problem, planner, self, known).run()
        if result.schedule is not None:
            self._improve(result.schedule)

    def _best_sequence(self) -> RematSequence | None:
        """Return the best plan; None where there is none, or where it moves tensors: without that it would not fit."""
        best = self._incumbent.best
        if best is None or best.schedule.has_transfers:
            return None
        return RematSequence.of_names(self._problem.graph, best.schedule.computes)

    def _improve(self, schedule: Schedule) -> None:
        """Leave out of a plan what the budget has room to do without."""
        if len(self._problem.graph.ops) <= _MOST_FOR_RETENTION and not schedule.has_transfers:
            sequence = RematSequence.of_names(self._problem.graph, schedule.computes)
            if sequence.peak <= self._problem.budget.device_bytes:
                self._offer(without_needless_reruns(sequence, self._problem.budget.device_bytes, self._limits))

    def _offer(self, plan: RematSequence | Schedule) -> None:
        self._incumbent.offer(plan, found_by=self._planner)

    def _seconds(self, share: float) -> float:
        """Return the seconds that a planner may take of those that are left."""
        return self._limits.seconds * share

    def _is_over(self) -> bool:
        is_done = self._gap <= self._options.gap or self._incumbent.nothing_fits
        return is_done or (self._limits.is_over and self._planner != "")

    @property
    def _gap(self) -> float:
        return self._incumbent.gap
