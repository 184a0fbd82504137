"""The optimal persistent schedules of a chain, by the dynamic program of rotor."""

from __future__ import annotations

from dataclasses import dataclass

from remat_cli.planners.shared.chain import Cuts
from remat_cli.planners.shared.option_checks import check_least
from remat_cli.problem import Observer, PlanResult, Problem


@dataclass(frozen=True)
class Rotor:
    """Cuts the graph into a chain of layers and plans that: which to keep whole, which only the input of, and when.

    Source: Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova, Optimal checkpointing for heterogeneous chains: how to
    train deep neural networks with limited memory, 2019 (rotor).
    Takes: training graphs whose forward pass can be cut into at least two layers.
    Searches: persistent schedules of the chain, where what is kept on the way forward stays until its backward.
    Proves: nothing: what is optimal for the chain, in whole slots of memory, need not be for the graph.
    Complexity: O(S L^3) for L layers and S slots, once for all budgets; then O(N) for N ops and each candidate.

    Attributes:
        cuts: single: where one tensor is handed on, as in the paper; several: also where several are, if the backward
            reads most of them anyway; every: after every op that hands on anything new.
        segments: how many layers the forward pass is cut into at most; of more, small neighbours are joined.
        slots: into how many parts the memory of the plain run is divided; sizes are rounded up to whole ones.
        candidates: how many amounts of memory the chain is planned for; each plan is measured on the graph, which often
            takes less memory than the chain predicts.
        improve: leave out what a plan runs again where the budget has room to keep it instead; not in the paper.
        time_limit: seconds; no further candidate is begun after it.
    """

    cuts: Cuts = Cuts.EVERY
    segments: int = 150
    slots: int = 500
    candidates: int = 100
    improve: bool = True
    time_limit: float = 60.0

    def __post_init__(self) -> None:
        check_least(self, segments=2, slots=1, candidates=0, time_limit=0)

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        """Plan `problem`.

        Raises:
            PlannerRefuses: the graph has no forward or no backward part, or cannot be cut.
        """
        # numpy comes with these; the options must be readable without it.
        from remat_cli.planners.rotor.search import RotorSearch

        return RotorSearch(problem, self, observe).run()
