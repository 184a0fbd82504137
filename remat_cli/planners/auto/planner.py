"""The default: a portfolio of planners under one time limit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from remat_cli.planners.auto.options import AutoOptions
from remat_cli.problem import Observer, PlanResult, Problem


@dataclass(frozen=True)
class Auto(AutoOptions):
    """Tries several planners, the quick ones first, and keeps the best plan.

    Source: ours; the planners are those of this list.
    Takes: any graph.
    Searches: what its planners do: dtr, approx_dp and rotor on training graphs, then retention from the best of their
        plans.
    Proves: that a plan without recomputation is the fastest of all; else nothing beyond what holds for every plan.
    Complexity: that of its planners; it ends when the time is up, or nothing is left to try.

    Attributes:
        time_limit: seconds for all planners together.
        work_limit: of the solver's counted work; the planners that count nothing then take the time that they need, so
            that the result can be had again on any machine.
        workers: threads of the solver; 0: as many as there are cores.
        seed: of random choices.
    """

    starved: ClassVar[Mapping[str, object]] = {"time_limit": 0.0}

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        """Plan `problem`."""
        # numpy and ortools come with it; the options must be readable without them.
        from remat_cli.planners.auto.portfolio import Portfolio

        return Portfolio(problem, self, observe).run()
