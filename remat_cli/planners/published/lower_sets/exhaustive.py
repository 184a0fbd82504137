"""The oracle of the lower-set planners: it tries every chain."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from remat_cli.core.problem import Observer, PlanResult, Problem, Scope, Status
from remat_cli.errors import PlannerRefuses
from remat_cli.planners.published.lower_sets.options import BudgetModel, Strategy
from remat_cli.planners.shared.option_checks import check_least
from remat_cli.units import format_bytes

if TYPE_CHECKING:
    from remat_cli.planners.published.lower_sets.chain_plans import ChainPlans
    from remat_cli.planners.shared.forward_part import ForwardPart


@dataclass(frozen=True)
class Exhaustive:
    """Tries every division of the forward pass into blocks, on tiny graphs.

    Source: Kusumoto et al., A Graph Theoretic Framework of Recomputation Algorithms for Memory-Efficient
    Backpropagation, NeurIPS 2019, section 4.1.
    Takes: training graphs, tiny ones: about ten forward ops.
    Searches: all chains of all lower sets.
    Proves: the best time of their plans, or that none fits (scope planner).
    Complexity: O(2^V) chains for V forward ops in a row, more for any other V.

    Attributes:
        strategy: of the paper model, as for exact_dp; the simulated model takes the plan of least time.
        budget_model: simulated: the plan of every chain is simulated; paper: the budget is B of equation 2.
        liveness: free each tensor right after its last use; false: only at the end of its block.
        max_chains: a graph that has more chains, complete or not, is refused.
    """

    strategy: Strategy = Strategy.BOTH
    budget_model: BudgetModel = BudgetModel.SIMULATED
    liveness: bool = True
    max_chains: int = 10_000

    def __post_init__(self) -> None:
        check_least(self, max_chains=1)

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        """Plan `problem`.

        Raises:
            PlannerRefuses: the graph has no forward or no backward part, or too many chains.
        """
        # These imports need numpy; reading the options must not.
        from remat_cli.planners.published.lower_sets.chain_plans import ChainPlans
        from remat_cli.planners.published.lower_sets.families import all_lower_sets
        from remat_cli.planners.shared.forward_part import ForwardPart

        forward = ForwardPart.of(problem.graph, "exhaustive")
        if 2 ** len(forward) > self.max_chains:
            raise _too_many(forward, f"at least 2^{len(forward)}", self.max_chains)
        plans = ChainPlans(problem, all_lower_sets(forward, self.max_chains), self.liveness, observe)
        if self.budget_model is BudgetModel.PAPER:
            return self._literal(forward, plans)
        return self._simulated(forward, plans)

    def _simulated(self, forward: ForwardPart, plans: ChainPlans) -> PlanResult:
        for chain in Chains(forward, None, self.max_chains).all():
            plans.measure(plans.sets.numbers(chain.sets))
        incumbent = plans.incumbent
        if incumbent.best is None:
            incumbent.prove_that_none_fits(Scope.PLANNER, "the plan of no chain of lower sets fits")
        else:
            incumbent.prove(incumbent.best.time, Scope.PLANNER)
        return incumbent.result(stats={"plans": plans.count})

    def _literal(self, forward: ForwardPart, plans: ChainPlans) -> PlanResult:
        problem = plans.incumbent.problem
        dp_budget = problem.budget.device_bytes - problem.graph.fixed_bytes
        chains = list(Chains(forward, dp_budget, self.max_chains).all())
        if not chains:
            reason = f"equation 2 admits no chain of lower sets under B = {format_bytes(max(dp_budget, 0))}"
            return PlanResult(Status.INFEASIBLE, reason=reason)
        for strategy in self.strategy.ends:
            end = min if strategy is Strategy.TIME else max
            plans.measure(plans.sets.numbers(end(chains, key=lambda chain: chain.overhead).sets))
        reason = "equation 2 admits a plan, but its simulated peak is above the budget"
        return plans.incumbent.result(reason, {"plans": plans.count})


@dataclass(frozen=True, slots=True)
class LowerSetChain:
    """A chain of lower sets.

    Attributes:
        sets: L_1 to L_k; k = 0 for the chain of {} alone.
        cached: U_k, the vertices in some boundary.
        peak: peak by equation 2.
        overhead: overhead by equation 1.
    """

    sets: tuple[frozenset[int], ...] = ()
    cached: frozenset[int] = frozenset()
    peak: int = 0
    overhead: int = 0


class Chains:
    """All chains of all lower sets, by equations 1 and 2.

    This class shares no code with the dynamic program.
    """

    def __init__(self, forward: ForwardPart, budget: int | None, most: int) -> None:
        self._forward = forward
        self._budget = budget
        self._most = most
        self._begun = 0
        self._bytes = forward.bytes.tolist()
        self._time = forward.time.tolist()
        self._reads: list[set[int]] = [set() for _ in range(len(forward))]
        self._readers: list[set[int]] = [set() for _ in range(len(forward))]
        for u, v in forward.edges.tolist():
            self._reads[v].add(u)
            self._readers[u].add(v)
        self._lower_sets = list(self._all_lower_sets())

    def all(self) -> Iterator[LowerSetChain]:
        """Yield every chain from {} to V within the budget.

        Raises:
            PlannerRefuses: there are too many chains.
        """
        return self._continued(LowerSetChain(), 0)

    def _continued(self, chain: LowerSetChain, number: int) -> Iterator[LowerSetChain]:
        """Yield all continuations of a chain to V.

        The chain ends in the lower set of this number.
        """
        self._begun += 1
        if self._begun > self._most:
            raise _too_many(self._forward, f"more than {self._most}", self._most)
        last = self._lower_sets[number]
        if len(last) == len(self._forward):
            yield chain
        for larger_number in range(number + 1, len(self._lower_sets)):
            larger = self._lower_sets[larger_number]
            if last < larger:
                longer = self._step(chain, last, larger)
                if self._budget is None or longer.peak <= self._budget:
                    yield from self._continued(longer, larger_number)

    def _step(self, chain: LowerSetChain, last: frozenset[int], larger: frozenset[int]) -> LowerSetChain:
        block = larger - last
        boundary = frozenset(v for v in larger if self._readers[v] - larger)
        after = {reader for v in larger for reader in self._readers[v]}
        co_parents = {source for v in after for source in self._reads[v]}
        peak = sum(self._bytes[v] for v in chain.cached)
        peak += 2 * sum(self._bytes[v] for v in block)
        peak += sum(self._bytes[v] for v in after - larger)
        peak += sum(self._bytes[v] for v in co_parents - larger)
        return LowerSetChain(
            sets=(*chain.sets, larger),
            cached=chain.cached | boundary,
            peak=max(chain.peak, peak),
            overhead=chain.overhead + sum(self._time[v] for v in block - boundary),
        )

    def _all_lower_sets(self) -> Iterator[frozenset[int]]:
        """Yield the lower sets in ascending size: {} first, V last."""
        layer = {frozenset[int]()}
        while layer:
            yield from sorted(layer, key=sorted)
            layer = {
                members | {v}
                for members in layer
                for v, sources in enumerate(self._reads)
                if v not in members and sources <= members
            }


def _too_many(forward: ForwardPart, count: str, most: int) -> PlannerRefuses:
    return PlannerRefuses(
        f"{forward.graph.name!r} has {len(forward)} forward ops and {count} chains of lower sets; exhaustive tries at "
        f"most {most}",
        hint="use exact_dp, which takes all lower sets too; or raise max_chains",
    )
