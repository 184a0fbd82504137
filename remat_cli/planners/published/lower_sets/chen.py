"""Chen's segments between articulation points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from math import isqrt
from typing import TYPE_CHECKING

from remat_cli.core.problem import Observer, PlanResult, Problem
from remat_cli.planners.shared.option_checks import check_least

if TYPE_CHECKING:
    from remat_cli.planners.published.lower_sets.families import LowerSets
    from remat_cli.planners.shared.forward_part import ForwardPart


class BudgetRule(StrEnum):
    """The segment sizes to try."""

    SWEEP = "sweep"  # all sizes that give different segments, up to `candidates` of them
    SQRT_N = "sqrt_n"  # bytes of the forward part over the square root of its number of ops


@dataclass(frozen=True)
class Chen:
    """Recomputes equal segments of the forward pass between articulation points.

    Source: Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016, Algorithm 3; for any graph as in Kusumoto
    et al. 2019, appendix B: cuts at articulation points of the undirected graph, in a depth-first topological order.
    Takes: training graphs.
    Searches: one greedy partition for each segment size b.
    Proves: nothing.
    Complexity: O(C N) for C candidates and N ops.

    Attributes:
        budget_rule: sweep: try every b that gives other segments, and keep the plan of least time that fits; sqrt_n:
            only b = bytes of the forward part / sqrt(number of forward ops).
        liveness: free each tensor right after its last use; false: only at the end of its segment.
        candidates: number of plans to try, chosen evenly if there are more.
    """

    budget_rule: BudgetRule = BudgetRule.SWEEP
    liveness: bool = True
    candidates: int = 200

    def __post_init__(self) -> None:
        check_least(self, candidates=0)

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        """Plan `problem`.

        Raises:
            PlannerRefuses: the graph has no forward or no backward part, or is too large.
        """
        # These imports need numpy; reading the options must not.
        from remat_cli.planners.published.lower_sets.chain_plans import ChainPlans
        from remat_cli.planners.shared.forward_part import ForwardPart

        forward = ForwardPart.of(problem.graph, "chen")
        sets = prefixes_at_cuts(forward)
        ends = [int(size) for size in sets.bytes]
        if self.budget_rule is BudgetRule.SQRT_N:
            chains = [segments(ends, ends[-1] // isqrt(len(forward)))]
        else:
            chains = all_segmentations(ends)
        plans = ChainPlans(problem, sets, self.liveness, observe)
        for chain in _evenly(chains, self.candidates):
            plans.measure(chain)
        reason = "no plan of segments was found that fits; that is no proof that there is none"
        return plans.incumbent.result(reason, {"plans": plans.count})


def prefixes_at_cuts(forward: ForwardPart) -> LowerSets:
    """Return the prefixes of a topological order up to each articulation point.

    The order is depth-first; the family contains {} and V, too.
    """
    import networkx as nx
    import numpy as np

    from remat_cli.planners.published.lower_sets.families import prefix_family

    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(len(forward)))
    graph.add_edges_from(forward.edges[::-1].tolist())
    order = list(nx.dfs_postorder_nodes(graph))[::-1]
    cuts = set(nx.articulation_points(graph.to_undirected()))
    return prefix_family(forward, np.array(order), [place for place, v in enumerate(order, start=1) if v in cuts])


def segments(ends: Sequence[int], size: int) -> list[int]:
    """Cut into segments greedily (Chen's Algorithm 3).

    A segment ends at the first cut where it holds more than `size` bytes.

    Args:
        ends: bytes of {}, of the prefix up to each possible cut, and of V.
        size: b.

    Returns:
        Numbers of the prefixes at which segments end.
    """
    chain, begin = [], 0
    for number in range(1, len(ends) - 1):
        if ends[number] - begin > size:
            chain.append(number)
            begin = ends[number]
    return [*chain, len(ends) - 1]


def all_segmentations(ends: Sequence[int]) -> list[list[int]]:
    """Return the segmentations of all sizes, smallest segments first."""
    chains = [segments(ends, 0)]
    while len(chains[-1]) > 1:
        # The cuts stay the same up to the size of the smallest segment, which is then merged with the next.
        cut = [0, *(ends[number] for number in chains[-1][:-1])]
        chains.append(segments(ends, min(end - begin for begin, end in pairwise(cut))))
    return chains


def _evenly(chains: Sequence[list[int]], count: int) -> Sequence[list[int]]:
    """Choose `count` chains evenly, from the first to the last.

    All if there are no more.
    """
    if len(chains) <= count:
        return chains
    return [chains[number * (len(chains) - 1) // max(count - 1, 1)] for number in range(count)]
