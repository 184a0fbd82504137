"""The search of the lower-set planners for a plan that fits.

Equation 2 of Kusumoto et al. 2019 models the peak only roughly: a plan that obeys the equation can exceed the budget on
the real training graph, and liveness usually leaves a lot of memory free. So the DP's budget B is searched, and each
plan is scored by its simulated peak. The smallest feasible B is rarely the best plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from remat_cli.core.problem import Observer, PlanResult, Problem, Status
from remat_cli.planners.published.lower_sets.chain_plans import ChainPlan, ChainPlans
from remat_cli.planners.published.lower_sets.dp import LowerSetDP
from remat_cli.planners.published.lower_sets.families import LowerSets, pruned_family
from remat_cli.planners.published.lower_sets.options import BudgetModel, DPOptions, Strategy
from remat_cli.planners.shared.limits import Limits
from remat_cli.units import format_bytes

# The number of values of B tried over the whole range before the search turns to the most promising value.
_COARSE = 5
# The factor on the number of moves as long as no plan fits.
_WITHOUT_A_PLAN = 10
# The number of sets tried in one place, spread evenly over those that fit there.
_SPREAD = 12


class LowerSetSearch:
    """Plans one problem with one family of lower sets.

    The family contains the pruned one.

    Attributes:
        plans: measures the plan of each chain, and keeps the best.
        sets: the family.
        options: options of the planner.
        limits: limits of the search; work is counted in tried values of B.
        observe: receives each phase.
    """

    def __init__(self, problem: Problem, sets: LowerSets, options: DPOptions, observe: Observer) -> None:
        """Begin a search; its clock starts now."""
        self.plans = ChainPlans(problem, sets, options.liveness, observe)
        self.sets = sets
        self.options = options
        self.limits = Limits.of(options.time_limit, options.candidates, observe=observe)
        self.observe = observe
        self._answers: dict[tuple[Strategy, int], ChainPlan | None] = {}  # by the DP's budget

    @cached_property
    def _dp(self) -> LowerSetDP:
        return LowerSetDP(self.sets, self.options.time_slots)

    def run(self) -> PlanResult:
        """Plan by the chosen budget model."""
        return self._literal() if self.options.budget_model is BudgetModel.PAPER else self._simulated()

    def _simulated(self) -> PlanResult:
        """Search B for the fastest plan whose simulated peak fits.

        The search is coarse first, over the whole range, then between the best B that fits and the next larger B that
        does not. The best of these plans is the start of a local search.
        """
        strategies = self.options.strategy.ends
        if not self.limits.is_over:
            self.plans.measure([len(self.sets) - 1])  # one block is the plain run, which may fit
        if not self.plans.any_fits and not self.limits.is_over:
            self.observe.phase("searching the smallest B of equation 2")
            smallest = self._smallest_budget()
            self.observe.phase("searching B for the plan that fits with the least overhead")
            for dp_budget in _geometric(smallest, self._dp.largest_budget(), _COARSE):
                for strategy in strategies:
                    self._answer(strategy, dp_budget)
            untried = [strategy for strategy in strategies if self._refine(strategy)]
            while untried:
                untried = [strategy for strategy in untried if self._refine(strategy)]
            self.observe.phase("improving the plan")
            self._improve()
        return self._result("no plan of this family was found that fits; that is no proof that there is none")

    def _literal(self) -> PlanResult:
        """Answer with the DP's plan for the budget as B of equation 2.

        This is the paper's method.
        """
        problem = self.plans.incumbent.problem
        fixed_bytes = problem.graph.fixed_bytes
        dp_budget = problem.budget.device_bytes - fixed_bytes
        if self.limits.is_over:
            return self._result("stopped before the DP began")
        answers = [self._answer(strategy, dp_budget) for strategy in self.options.strategy.ends]
        if not self.limits.is_over and answers == [None] * len(answers):
            smallest = self._smallest_budget()
            return PlanResult(
                Status.INFEASIBLE,
                reason=f"equation 2 admits no plan of this family below B = {format_bytes(smallest)} "
                f"(a budget of {format_bytes(smallest + fixed_bytes)})",
            )
        return self._result("equation 2 admits a plan, but its simulated peak is above the budget")

    def _smallest_budget(self) -> int:
        """Return the smallest feasible B of the family.

        The search starts from the smallest B of the pruned family, which is found quickly.
        """
        pruned = pruned_family(self.sets.forward)
        if len(pruned) == len(self.sets):
            return self._dp.smallest_budget()
        return self._dp.smallest_budget(LowerSetDP(pruned, self.options.time_slots).smallest_budget())

    def _answer(self, strategy: Strategy, dp_budget: int) -> ChainPlan | None:
        """Measure the DP's plan under `dp_budget`.

        None without a plan, or after a limit is reached.
        """
        key = (strategy, dp_budget)
        if key not in self._answers and not self.limits.is_over:
            self.limits.spend(1)
            chain = self._dp.chain(dp_budget, strategy)
            self._answers[key] = None if chain is None else self.plans.measure(chain)
        return self._answers.get(key)

    def _refine(self, strategy: Strategy) -> bool:
        """Try the next B for this strategy; tell whether there was one.

        It lies beside the most promising B so far. A larger B gives plans of less time and more memory, so a plan that
        fits is improved at a larger B. Between two values of B with the same answer there are no others.
        """
        answers = {dp_budget: answer for (name, dp_budget), answer in self._answers.items() if name is strategy}
        promising = min(
            (answer for answer in answers.values() if answer is not None), key=self.plans.merit, default=None
        )
        gaps = [
            (low, high)
            for low, high in pairwise(sorted(answers))
            if high - low > 1 and answers[low] != answers[high] and promising in (answers[low], answers[high])
        ]
        if not gaps or self.limits.is_over:
            return False
        low, high = gaps[-1]
        share = self._share_of_gap(answers[low], answers[high])
        self._answer(strategy, min(max(low + round(share * (high - low)), low + 1), high - 1))
        return True

    def _improve(self) -> None:
        """Move from the best chain to better neighbours until there are none.

        While nothing fits, ten times as many moves are allowed.
        """
        before = self.plans.count
        here, urgency = self.plans.best_chain, None
        while urgency is None or self.plans.urgency(self.plans.measure(here)) < urgency:
            urgency = self.plans.urgency(self.plans.measure(here))
            neighbouring = []
            for chain in neighbours(self.sets, here):
                most = self.options.moves * (1 if self.plans.any_fits else _WITHOUT_A_PLAN)
                if self.plans.count - before >= most or not self.limits.seconds or self.limits.has_enough():
                    return
                neighbouring.append((self.plans.urgency(self.plans.measure(chain)), tuple(chain)))
            here = min(neighbouring, default=(urgency, here))[1]

    def _share_of_gap(self, low: ChainPlan | None, high: ChainPlan | None) -> float:
        """Guess the position of the best B between two values.

        The peak of plans grows about in proportion to B.
        """
        budget = self.plans.incumbent.problem.budget.device_bytes
        if low is None or high is None or not low.plan.peak_bytes < budget < high.plan.peak_bytes:
            return 0.5
        return min(max((budget - low.plan.peak_bytes) / (high.plan.peak_bytes - low.plan.peak_bytes), 0.1), 0.9)

    def _result(self, reason: str) -> PlanResult:
        stats = {"dp_runs": len(self._answers), "plans": self.plans.count}
        return self.plans.incumbent.result(reason, stats)


def _geometric(low: int, high: int, count: int) -> list[int]:
    """Return `count` numbers from `low` to below `high`, in geometric progression."""
    ratio = (high / max(low, 1)) ** (1 / count)
    return [low + round(max(low, 1) * (ratio**step - 1)) for step in range(count)]


def neighbours(sets: LowerSets, chain: Sequence[int]) -> Iterator[list[int]]:
    """Yield chains that differ by one set.

    A set is taken out (two blocks merged), put in (a block split), or exchanged (a cut moved). Equation 2 ranks chains
    only roughly by their simulated peak, so small changes often improve the dynamic program's chain.

    Args:
        sets: the family.
        chain: numbers of the sets L_1 to L_k = V.
    """
    cuts = list(chain[:-1])
    chain_from_start = [0, *chain]
    for i in range(len(cuts)):
        yield [*chain[:i], *chain[i + 1 :]]
    for i in range(len(chain)):
        for between in _between(sets, chain_from_start[i], chain_from_start[i + 1]):
            yield [*chain[:i], between, *chain[i:]]
    for i in range(len(cuts)):
        for between in _between(sets, chain_from_start[i], chain_from_start[i + 2]):
            if between != chain[i]:
                yield [*chain[:i], between, *chain[i + 1 :]]


def _between(sets: LowerSets, inner: int, outer: int) -> list[int]:
    """Return some of the sets strictly between `inner` and `outer`."""
    members = sets.members[inner + 1 : outer]
    fitting = (members >= sets.members[inner]).all(axis=1) & (members <= sets.members[outer]).all(axis=1)
    between: NDArray[np.int64] = np.flatnonzero(fitting) + inner + 1
    # Sets are sorted by size, but a set of the same size as either end is no strict subset or superset.
    sizes = members[fitting].sum(axis=1)
    strict = (sizes > sets.members[inner].sum()) & (sizes < sets.members[outer].sum())
    between = between[strict]
    if len(between) > _SPREAD:
        between = between[np.linspace(0, len(between) - 1, _SPREAD).astype(np.int64)]
    return [int(number) for number in between]
