"""The optimal persistent schedules of a chain, by the dynamic program of rotor."""

from __future__ import annotations

from dataclasses import dataclass

from remat_cli.core.problem import Observer, PlanResult, Problem
from remat_cli.planners.rotor.options import RotorOptions


@dataclass(frozen=True)
class Rotor(RotorOptions):
    """Cuts the graph into a chain of layers and plans that: which to keep whole, which only the input of, and when.

    Source: Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova, Optimal checkpointing for heterogeneous chains: how to
    train deep neural networks with limited memory, 2019 (rotor).
    Takes: training graphs whose forward pass can be cut into at least two layers.
    Searches: persistent schedules of the chain, where what is kept on the way forward stays until its backward.
    Proves: nothing: a plan that is optimal for the chain, in whole slots, need not be optimal for the graph.
    Complexity: O(S L^3) for L layers and S slots, once for all budgets; then O(N) for N ops and each candidate.
    """

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        """Plan `problem`.

        Raises:
            PlannerRefuses: the graph has no forward or no backward part, or cannot be cut.
        """
        # These imports need numpy; reading the options must not.
        from remat_cli.planners.rotor.search import RotorSearch

        return RotorSearch(problem, self, observe).run()
