"""From a family of lower sets to a plan that fits a budget: what the lower-set planners share.

Equation 2 of Kusumoto et al. 2019 is a model of the peak, not the peak: a plan that obeys it can exceed it on the
real training graph, and liveness usually leaves a lot of room below it. So the DP's budget B is searched, and each
plan is scored by its simulated peak. The smallest feasible B is rarely the best plan.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from time import monotonic

from remat_cli.planners.canonical import CanonicalStrategy
from remat_cli.planners.liveness import peak_of
from remat_cli.planners.lower_set_dp import LowerSetDP
from remat_cli.planners.lower_set_options import Strategy
from remat_cli.planners.lower_sets import LowerSets
from remat_cli.problem import Observer, PlanResult, Problem, Scope, Status
from remat_cli.schedule import Schedule, with_frees
from remat_cli.units import format_bytes

# Values of B tried over the whole range before the search turns to the most promising one.
_COARSE = 6


@dataclass(frozen=True)
class Limits:
    """Where a search stops.

    Attributes:
        candidates: how many values of B are tried.
        deadline: `time.monotonic()` at which no further one is begun.
    """

    candidates: int
    deadline: float

    @classmethod
    def of(cls, candidates: int, time_limit: float) -> Limits:
        """Start the clock: `time_limit` is in seconds from now."""
        return cls(candidates, monotonic() + time_limit)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A plan: numbers of the graph's ops in the order in which they run, its simulated peak and its time."""

    sequence: tuple[int, ...]
    peak: int
    time: int


@dataclass
class LowerSetSearch:
    """Plans one problem with one family of lower sets.

    Attributes:
        problem: what is planned.
        sets: the family.
        strategies: which ends of the DP's front are taken.
        time_slots: resolution of the DP's times, see `lower_set_dp.scaled_times`.
        limits: where the search stops.
        observe: is told of each better plan.
    """

    problem: Problem
    sets: LowerSets
    strategies: tuple[Strategy, ...]
    time_slots: int
    limits: Limits
    observe: Observer
    _best: _Candidate | None = None  # the best that fits; as long as none does, the closest to fitting
    _answers: dict[tuple[Strategy, int], _Candidate | None] = field(default_factory=dict)  # by the DP's budget
    _scores: dict[tuple[int, ...], _Candidate] = field(default_factory=dict)  # by chain

    @cached_property
    def _dp(self) -> LowerSetDP:
        return LowerSetDP(self.sets, self.time_slots)

    @cached_property
    def _canonical(self) -> CanonicalStrategy:
        return CanonicalStrategy(self.sets.forward, self.sets)

    def simulated(self) -> PlanResult:
        """Search B for the plan of least time whose simulated peak fits the budget.

        Coarse first, over the whole range; then between the best that fits and the next larger B that does not.
        """
        if not self._is_over:
            self._score([len(self.sets) - 1])  # one block is the plain run; it may fit
        if not self._has_plan and not self._is_over:
            self.observe.phase("searching the smallest B of equation 2")
            smallest = self._dp.smallest_budget()
            self.observe.phase("searching B for the plan that fits with the least overhead")
            for dp_budget in _geometric(smallest, self._dp.largest_budget(), _COARSE):
                for strategy in self.strategies:
                    self._answer(strategy, dp_budget)
            untried = [strategy for strategy in self.strategies if self._refine(strategy)]
            while untried:
                untried = [strategy for strategy in untried if self._refine(strategy)]
        return self._result("no plan of this family was found that fits; that is no proof that there is none")

    def literal(self) -> PlanResult:
        """Take the budget as B of equation 2, as the paper does, and answer with the DP's plan."""
        graph = self.problem.graph
        dp_budget = self.problem.budget.device_bytes - graph.fixed_bytes
        if self._is_over:
            return self._result("stopped before the DP began")
        answers = [self._answer(strategy, dp_budget) for strategy in self.strategies]
        if not self._is_over and answers == [None] * len(answers):
            smallest = self._dp.smallest_budget()
            return PlanResult(
                Status.INFEASIBLE,
                Scope.PLANNER,
                reason=f"equation 2 admits no plan of this family below B = {format_bytes(smallest)} "
                f"(a budget of {format_bytes(smallest + graph.fixed_bytes)})",
            )
        return self._result("equation 2 admits a plan, but its simulated peak is above the budget")

    @property
    def _is_over(self) -> bool:
        return len(self._answers) >= self.limits.candidates or monotonic() >= self.limits.deadline

    def _answer(self, strategy: Strategy, dp_budget: int) -> _Candidate | None:
        """Score the DP's plan under `dp_budget`; None where it has none, or where a limit is reached."""
        key = (strategy, dp_budget)
        if key not in self._answers and not self._is_over:
            chain = self._dp.chain(dp_budget, strategy)
            self._answers[key] = None if chain is None else self._score(chain)
        return self._answers.get(key)

    def _score(self, chain: list[int]) -> _Candidate:
        """Measure the plan of one chain; keep it if it is the best that fits, or the closest to fitting."""
        key = tuple(chain)
        if key not in self._scores:
            graph = self.problem.graph
            sequence = tuple(self._canonical.computes(chain))
            time = int(graph.arrays.op_time[list(sequence)].sum())
            self._scores[key] = _Candidate(sequence, peak_of(graph, sequence), time)
            self._keep(self._scores[key])
        return self._scores[key]

    def _keep(self, candidate: _Candidate) -> None:
        if self._best is None or self._merit(candidate) < self._merit(self._best):
            self._best = candidate
            if self._fits(candidate):
                self.observe.found(self._schedule(candidate))

    def _fits(self, candidate: _Candidate) -> bool:
        return candidate.peak <= self.problem.budget.device_bytes

    def _refine(self, strategy: Strategy) -> bool:
        """Try the B beside the most promising one of this strategy so far; tell whether there was one to try.

        More B gives plans of less time and more memory, so a plan that fits is improved at a larger B. Between two B
        with the same answer there is nothing to find.
        """
        answers = {dp_budget: answer for (name, dp_budget), answer in self._answers.items() if name is strategy}
        promising = min((answer for answer in answers.values() if answer is not None), key=self._merit, default=None)
        gaps = [
            (low, high)
            for low, high in pairwise(sorted(answers))
            if high - low > 1 and answers[low] != answers[high] and promising in (answers[low], answers[high])
        ]
        if not gaps or self._is_over:
            return False
        low, high = gaps[-1]
        share = self._share_of_gap(answers[low], answers[high])
        self._answer(strategy, min(max(low + round(share * (high - low)), low + 1), high - 1))
        return True

    def _share_of_gap(self, low: _Candidate | None, high: _Candidate | None) -> float:
        """Guess where between two B the budget is just met: the peak of plans grows about in proportion to B."""
        budget = self.problem.budget.device_bytes
        if low is None or high is None or not low.peak < budget < high.peak:
            return 0.5
        return min(max((budget - low.peak) / (high.peak - low.peak), 0.1), 0.9)

    def _merit(self, candidate: _Candidate) -> tuple[int, int, int]:
        """Order candidates: those that fit by time, before those that do not by their peak."""
        if self._fits(candidate):
            return (0, candidate.time, candidate.peak)
        return (1, candidate.peak, candidate.time)

    @property
    def _has_plan(self) -> bool:
        return self._best is not None and self._fits(self._best)

    def _result(self, reason: str) -> PlanResult:
        stats = {"dp_runs": len(self._answers), "plans": len(self._scores)}
        schedule = None if self._best is None else self._schedule(self._best)
        if self._has_plan:
            return PlanResult(Status.FEASIBLE, schedule=schedule, stats=stats)
        return PlanResult(Status.UNKNOWN, closest=schedule, reason=reason, stats=stats)

    def _schedule(self, candidate: _Candidate) -> Schedule:
        graph = self.problem.graph
        return with_frees(graph, (graph.ops[op].name for op in candidate.sequence))


def _geometric(low: int, high: int, count: int) -> list[int]:
    """Return `count` whole numbers from `low` on, up to but not including `high`, each the same factor apart."""
    ratio = (high / max(low, 1)) ** (1 / count)
    return [low + round(max(low, 1) * (ratio**step - 1)) for step in range(count)]
