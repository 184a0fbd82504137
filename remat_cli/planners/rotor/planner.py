"""The planner for chains, by the dynamic program of rotor."""

from __future__ import annotations

from dataclasses import dataclass

from remat_cli.core.problem import Observer, PlanResult, Problem
from remat_cli.planners.rotor.options import RotorOptions


@dataclass(frozen=True)
class Rotor(RotorOptions):
    """Plans a chain of layers: each keeps its tensors or only its input.

    Source: Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova, Optimal checkpointing for heterogeneous chains: how to
    train deep neural networks with limited memory, 2019 (rotor).
    Takes: training graphs whose forward pass can be cut into at least two layers.
    Searches: persistent schedules of the chain, where a tensor kept in the forward pass stays until its backward.
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
