"""The smallest budget: proven and found, by bisection over `solve`.

No plan fits below the proven budget, and there is a plan at the found one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from math import inf
from time import monotonic

from remat_cli.core.bounds import largest_working_set
from remat_cli.core.problem import Budget, Observer, Planner, Problem, Scope, Status
from remat_cli.core.solve import Solution, baseline_of, solve, with_plan_of
from remat_cli.planning.first_plan import FirstBound, FirstPlan
from remat_cli.planning.given import Given
from remat_cli.planning.overhead import exact_overhead, within_overhead
from remat_cli.units import format_bytes

# The smallest step between budgets for a planner that proves nothing, as a share of the smallest budget found.
_TOLERANCE = 1 / 1000
# The number of refusals in a row, each no closer than the found budget, after which the planner is not asked again.
_PATIENCE = 2


@dataclass(frozen=True)
class SmallestBudget:
    """The result of a search for the smallest budget.

    Attributes:
        proven_bytes: budget below which no plan in `scope` fits.
        scope: the plans that this proof covers.
        solution: the plan at the smallest budget found, or the last refusal if no budget gave a plan.
        max_overhead: largest allowed overhead of plans; None for any.
        cut_short: the planner's limit, "time" or "work", that ended a try below the smallest budget found; "" if none
            did.
    """

    proven_bytes: int
    scope: Scope
    solution: Solution
    max_overhead: Fraction | None = None
    cut_short: str = ""

    @property
    def note(self) -> str:
        """Say that more time or work may find less; empty if no limit cut the search short."""
        if not self.cut_short or self.found_bytes is None or self.found_bytes == self.proven_bytes:
            return ""
        smallest = format_bytes(self.found_bytes)
        return (
            f"the limit of {self.cut_short} cut the search for the smallest budget short at {smallest}: with more, a "
            "smaller one may be found"
        )

    @property
    def leaves_out_transfers(self) -> bool:
        """Whether the proof excludes plans with transfers although a link makes them possible."""
        return self.solution.problem.link is not None and self.scope.leaves_out_transfers

    @property
    def found_bytes(self) -> int | None:
        """The smallest budget with a plan; None if there was none."""
        return None if self.solution.trace is None else self.solution.problem.budget.device_bytes


def smallest_budget(
    plain: Problem, planner: Planner, observe: Observer, max_overhead: Fraction | None = None
) -> SmallestBudget:
    """Search for the smallest budget at which `planner` has a plan.

    The result is exact to the byte if the planner proves its refusals. Planners without proofs are not monotone in the
    budget, so their result is the smallest budget *found*. A refusal without a proof moves the search up, never the
    proof.

    Args:
        plain: the problem at the budget of the plain run.
        planner: the planner to ask at smaller and smaller budgets.
        observe: receives the progress of the search; if it takes any plan, the one at the smallest budget is not
            improved.
        max_overhead: largest allowed overhead of plans, as a share of the plain run's time.

    Raises:
        PlannerRefuses: the planner cannot take this graph.
        KeyboardInterrupt: the search was interrupted before it found a plan.
    """
    search = _BudgetSearch(plain, planner, observe, max_overhead)
    try:
        search.run()
    except KeyboardInterrupt:
        if search.found is None:
            raise
        search.found = replace(search.found, interrupted=True)
    return SmallestBudget(search.proven, search.scope, search.found or search.refusal, max_overhead, search.cut_short)


def at_budget(solution: Solution, budget_bytes: int) -> Solution:
    """Return the result as if for another budget that it fits."""
    return replace(solution, problem=replace(solution.problem, budget=Budget(budget_bytes)))


class _BudgetSearch:
    """The search, with its position (`floor`) and its proof (`proven`)."""

    def __init__(
        self,
        plain: Problem,
        planner: Planner,
        observe: Observer,
        max_overhead: Fraction | None,
    ) -> None:
        self.plain = plain  # the problem at the budget of the plain run
        self.planner = planner
        self.observe = observe
        self.max_overhead = max_overhead
        residents_stay = bool(plain.graph.residents) and not plain.offload
        self.proven = largest_working_set(plain.graph, residents_stay=residents_stay).bytes
        self.scope = Scope.ANY_ORDER if residents_stay else Scope.ANY_PLAN
        self.has_proven = False  # whether the planner itself has proven that none fits some budget
        self.floor = self.proven
        self.found: Solution | None = None
        self.ended_early = False  # whether the planner of `found` could have continued
        self.fruitless = 0  # refusals in a row that came no closer than `found`
        self.is_right_below = False  # whether the last budget was right below `found`
        self.cut_short = ""  # the limit that ended a refusal
        self.asked: set[int] = set()  # budgets at which a plan was asked for
        self.refusal: Solution

    def run(self) -> None:
        self.bisect()
        if self.found is not None and self.cut_short and self.lowers_at_shares():
            self.narrow()
        if self.found is not None and self.has_proven:
            self.raise_proof()
        if self.found is not None and self.ended_early and not self.observe.takes_any_plan:
            self.found = self.best_at(self.found)

    def best_at(self, start: Solution) -> Solution:
        """Let the planner continue at the smallest budget.

        Return its plan, or the known plan if that is better.
        """
        solution = solve(start.problem, self.planner, self.observe)
        is_better = solution.trace is not None and start.trace is not None and solution.trace.time <= start.trace.time
        # Bounds proven on the way hold for the known plan, too.
        return solution if is_better else with_plan_of(solution, start)

    def bisect(self) -> None:
        # A refusal names the planner's closest schedule, a better start than halving from above. At that schedule's
        # peak, the planner often finds a still smaller one.
        closest = self.ask(self.proven)
        if closest is not None:
            self.ask(closest)
        if self.found is None:
            self.ask(self.plain.budget.device_bytes)
        self.narrow()

    def lowers_at_shares(self) -> bool:
        """Repeat plain requests below the found budget; return whether one has a plan.

        A refusal by the clock says nothing of smaller budgets: on a busy machine, a request for one may have a plan.
        All tenths of the plain peak are asked for, the smallest first, up to the found budget.
        """
        floor, found_bytes = self.floor, self.found_bytes
        self.floor, self.fruitless = self.proven, 0
        for tenth in range(1, 10):
            budget = self.plain.budget.device_bytes * tenth // 10
            if self.proven <= budget < self.found_bytes and budget not in self.asked:
                self.ask(budget)
        if self.found_bytes < found_bytes:
            return True
        self.floor = floor
        return False

    def narrow(self) -> None:
        """Ask below the found budget until the planner has no plan."""
        while self.goes_on:
            known, peak = self.found, self.found_peak()
            below = peak if self.floor <= peak < self.found_bytes else self.next_budget()
            self.ask(below)
            if below == peak and self.found_bytes > peak and self.refusal.status is Status.UNKNOWN:
                # The planner does not find its own plan again, but the plan is known.
                assert known is not None
                self.found = at_budget(known, peak)

    def next_budget(self) -> int:
        """Return the next budget: right below the found one, or the middle.

        The two alternate. A refusal takes a planner far longer than a first plan. Right below the found budget, a
        refusal ends the search.
        """
        self.is_right_below = not self.is_right_below
        if self.is_right_below:
            return self.found_bytes - 1 - self.near_enough()
        return (self.floor + self.found_bytes - 1) // 2

    def raise_proof(self) -> None:
        """Raise the proven budget by bisection.

        It lies between the proof so far and the smallest refused budget, and covers only budgets that the planner rules
        out at once.
        """
        high = self.floor - 1
        while self.proven + self.found_bytes * _TOLERANCE < high:
            middle = (self.proven + high) // 2
            self.ask(middle, FirstBound)
            if self.proven <= middle:
                high = middle

    @property
    def counts_work(self) -> bool:
        """Whether a limit of work ends the planner's tries."""
        return getattr(self.planner, "work_limit", None) is not None

    @property
    def goes_on(self) -> bool:
        """Whether the planner may have a plan at a smaller budget."""
        if self.found is None or self.fruitless == _PATIENCE:
            return False
        return self.floor < self.found_bytes - self.near_enough()

    @property
    def found_bytes(self) -> int:
        assert self.found is not None
        return self.found.problem.budget.device_bytes

    def found_peak(self) -> int:
        assert self.found is not None
        assert self.found.trace is not None
        return self.found.trace.peak_bytes

    def near_enough(self) -> int:
        return 0 if self.floor == self.proven else int(self.found_bytes * _TOLERANCE)

    def ask(self, budget: int, first: type[FirstPlan] = FirstPlan) -> int | None:
        """Ask for a plan at `budget`.

        Without a plan, return the smallest peak that the planner reached, if it reports one.

        Args:
            budget: in bytes.
            first: class of the observer that stops the planner.
        """
        self.observe.phase(f"trying {format_bytes(budget)}")
        self.asked.add(budget)
        observe = first(baseline_of(self.plain.graph).time, self.observe, self.max_overhead)
        began = monotonic()
        solution = solve(replace(self.plain, budget=Budget(budget)), self.planner, observe)
        took_all = monotonic() - began >= getattr(self.planner, "time_limit", inf)
        taken = within_overhead(solution, self.max_overhead)
        if taken.trace is not None:
            self.found, self.ended_early = taken, observe.has_enough
        if solution.interrupted:
            # The planner was stopped with a plan; the user meant the whole search.
            raise KeyboardInterrupt
        if taken.trace is not None:
            return taken.trace.peak_bytes
        self.floor = max(self.floor, budget + 1)
        self.refusal = taken
        if taken.status is Status.UNKNOWN and (took_all or self.counts_work):
            self.cut_short = "time" if took_all else "work"
        # The closest schedule of another refusal fits this budget, so the planner's proof covers only its own plans.
        if self.refusal.status is Status.INFEASIBLE and (self.found is None or budget < self.found_bytes):
            self.proven, self.scope, self.has_proven = budget + 1, self.refusal.scope, True
        closest = None if solution.closest is None else solution.closest.peak_bytes
        self.fruitless = self.fruitless + 1 if self.comes_no_closer(closest) else 0
        self.take_closest(solution)
        return closest

    def take_closest(self, refusal: Solution) -> None:
        """Keep a refusal's closest schedule if it lowers the found budget."""
        schedule, trace = refusal.result.closest, refusal.closest
        if schedule is None or trace is None or trace.peak_bytes < self.floor:
            return
        if self.found is not None and self.found_bytes <= trace.peak_bytes:
            return
        if self.max_overhead is None or exact_overhead(trace.time, refusal.baseline.time) <= self.max_overhead:
            self.found = solve(replace(self.plain, budget=Budget(trace.peak_bytes)), Given(schedule))
            self.ended_early = True

    def comes_no_closer(self, closest: int | None) -> bool:
        """Tell whether the last refusal has no proof and no smaller peak.

        Its smallest peak is compared with the found budget.
        """
        if self.found is None or closest is None or self.refusal.status is not Status.UNKNOWN:
            return False
        return closest >= self.found_bytes
