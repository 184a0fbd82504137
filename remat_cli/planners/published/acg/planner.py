"""Stored sets over the division tree of an arbitrary computation graph."""

from __future__ import annotations

from dataclasses import dataclass

from remat_cli.core.problem import Observer, PlanResult, Problem
from remat_cli.planners.shared.option_checks import check_least


@dataclass(frozen=True)
class ACG:
    """Stores tensors between independent segments of the forward pass, recomputes the rest. The segments are nested.

    Source: Feng & Huang, Optimal Gradient Checkpoint Search for Arbitrary Computation Graphs, CVPR 2021.
    Takes: training graphs.
    Searches: stored sets that leave independent segments, each entered and left through one stored tensor: the one with
        the least stored bytes + bytes of the largest segment, and others that store more or less.
    Proves: nothing.
    Complexity: O(V + E) for the division of most graphs; O(V) for each limit on the segments, of which branch and bound
        tries tens; then O(N) for N ops and each candidate.

    Attributes:
        candidates: number of stored sets to try: the one of least cost, which the paper returns, and others, as the
            paper has no budget.
        share_inputs: also divide as if tensors computed from graph inputs alone, such as an attention mask that all
            layers read, were graph inputs, and store them; not in the paper.
        improve: drop reruns if the budget has room to keep the tensors instead; not in the paper, whose cost is
            reported for the stored set before that.
        time_limit: seconds; after it, no further candidate is begun.
    """

    candidates: int = 40
    share_inputs: bool = True
    improve: bool = True
    time_limit: float = 60.0

    def __post_init__(self) -> None:
        check_least(self, candidates=0, time_limit=0)

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        """Plan `problem`.

        Raises:
            PlannerRefuses: the graph has no forward or no backward part.
        """
        # This import needs numpy; reading the options must not.
        from remat_cli.planners.published.acg.search import ACGSearch
        from remat_cli.planners.shared.incumbent import Incumbent
        from remat_cli.planners.shared.limits import Limits

        incumbent, limits = Incumbent(problem, observe), Limits.of(self.time_limit, observe=observe)
        search = ACGSearch(incumbent, limits, share_inputs=self.share_inputs, improve=self.improve)
        return search.run(self.candidates)
