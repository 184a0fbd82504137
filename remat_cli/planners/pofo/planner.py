"""The planner for recomputation and offloading on a chain."""

from __future__ import annotations

from dataclasses import dataclass

from remat_cli.core.problem import Observer, PlanResult, Problem
from remat_cli.planners.pofo.options import PofoOptions


@dataclass(frozen=True)
class Pofo(PofoOptions):
    """Keeps, recomputes or offloads the tensors of a chain of layers.

    Needs the bandwidth of the link to the host. The paper's model moves data in drops; the plan moves whole tensors,
    one at a time, and its time is that of this replay. The model's link is half duplex. Over a full-duplex link the
    same plan runs in the same memory and at least as fast; the model overestimates its time then.

    Source: Beaumont, Eyraud-Dubois, Shilova, Efficient Combination of Rematerialization and Offloading for Training
    DNNs, NeurIPS 2021 (POFO), appendix B of its supplement, errata corrected.
    Takes: training graphs whose forward pass can be cut into at least two layers.
    Searches: persistent schedules of the chain, in which the input of a block of layers may go to the host before the
        loss and come back after it; optimal in the paper's model up to rounding.
    Proves: nothing: a plan that is optimal for the chain, in drops and whole slots, need not be optimal for the graph.
    Complexity: O(L^2 S^3 + L^3 S^2) for L layers and S slots, for each rounding.
    """

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        """Plan `problem`.

        Raises:
            PlannerRefuses: the graph has no forward or no backward part, or cannot be cut; or the link's bandwidth is
                unknown.
            UsageError: the options ask for a table that is too large.
        """
        # These imports need numpy; reading the options must not.
        from remat_cli.planners.pofo.search import PofoSearch

        return PofoSearch(problem, self, observe).run()
