"""The planner that settles small graphs.

Every plan without transfers is a path through the states of a device.
"""

from __future__ import annotations

from dataclasses import dataclass

from remat_cli.core.graph import Graph
from remat_cli.core.problem import Observer, PlanResult, Problem, Scope
from remat_cli.errors import PlannerRefuses
from remat_cli.planners.shared.option_checks import check_least

# Tensors of a state are bits of one word.
_MOST_TENSORS = 64


@dataclass(frozen=True)
class ShortestPath:
    """Finds an optimal plan of a small graph by shortest path.

    A state is the set of tensors in memory and the set of ops that have run; a run leads from one state to the next.
    Tensors are freed when their memory is needed. The time of the ops that must still run bounds the rest of the path
    (A*).

    Source: ours; the game is that of pebbles on a graph (Sethi, Complete Register Allocation Problems, STOC 1973), the
        search that of Hart, Nilsson, Raphael, A Formal Basis for the Heuristic Determination of Minimum Cost Paths,
        1968.
    Takes: any graph of about twenty ops at most.
    Searches: all plans without transfers: any order, and any number of reruns.
    Proves: that its plan is the best of all, or that none fits (scope any-order).
    Complexity: exponential in the ops; 12 take some hundredths of a second, 16 a second, 20 a minute if memory is
      short.

    Attributes:
        max_ops: largest number of ops; a graph with more is refused.
        time_limit: limit in seconds.
        work_limit: largest number of expanded states, which also limits the memory used.
    """

    max_ops: int = 16
    time_limit: float = 60.0
    work_limit: float = 200_000

    def __post_init__(self) -> None:
        check_least(self, max_ops=1, time_limit=0, work_limit=0)

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        """Plan `problem`.

        Raises:
            PlannerRefuses: the graph has too many ops or tensors.
        """
        # These imports need numpy; reading the options must not.
        from remat_cli.planners.shared.incumbent import Incumbent
        from remat_cli.planners.shared.limits import Limits
        from remat_cli.planners.shared.sequence import RematSequence
        from remat_cli.planners.shortest_path.search import ShortestPathSearch

        if not is_small(problem.graph, self.max_ops):
            raise _too_large(problem.graph, self.max_ops)
        incumbent = Incumbent(problem, observe, Scope.ANY_ORDER)
        search = ShortestPathSearch(incumbent, Limits.of(self.time_limit, self.work_limit, observe=observe))
        if not incumbent.fits(incumbent.offer(RematSequence.plain(problem.graph))):
            search.run()
        return incumbent.result(stats={"states": search.states})


def is_small(graph: Graph, max_ops: int) -> bool:
    """Tell whether the graph has at most `max_ops` ops and 64 tensors.

    Its states can then be told apart by one word.
    """
    return len(graph.ops) <= max_ops and len(graph.producer) <= _MOST_TENSORS


def _too_large(graph: Graph, max_ops: int) -> PlannerRefuses:
    hint = "use auto or retention, which take any graph"
    if len(graph.ops) > max_ops:
        what, hint = f"has {len(graph.ops)} ops; shortest_path takes at most {max_ops}", f"{hint}; or raise max_ops"
    else:
        what = f"makes {len(graph.producer)} tensors; shortest_path takes at most {_MOST_TENSORS}"
    return PlannerRefuses(f"{graph.name!r} {what}", hint=hint)
