"""MOCCASIN: retention intervals in constraint programming, Bartan et al. 2023."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from remat_cli.planners.moccasin.options import MoccasinOptions
from remat_cli.problem import Observer, PlanResult, Problem


@dataclass(frozen=True)
class Moccasin(MoccasinOptions):
    """Decides by constraint programming when each op runs and until when its outputs stay, a few runs for each op.

    Source: Bartan et al., MOCCASIN: Efficient Tensor Rematerialization for Neural Networks, ICML 2023.
    Takes: any graph of up to a thousand ops or so.
    Searches: schedules in which each op runs a few times at most; by default in stages, stage t running op t for the
        first time after any earlier ones for a further time, in their order.
    Proves: which plan is the best of these, or that none of them fits (scope planner).
    Complexity: a CP-SAT model of O(C N) intervals for N ops and C runs of each, and O(C M) readings for M data
        dependencies.

    Attributes:
        order: input: ops run for the first time in the graph's order; free: in any that the slots allow.
        staged: each op has one slot in each stage (section 2.3); false: any op may run at any event (section 2.1),
            for small graphs.
        max_retentions: how often an op may run, the first time included (C_v).
        phases: 2: first lower the peak until a plan fits, then the time (section 2.4); 1: leave out the former.
        precedence: literals: each run chooses the intervals that it reads from; reservoir: the paper's reservoir
            constraints, which say the same and take far longer.
        time_limit: seconds.
        work_limit: instead of seconds, the solver's own count of its work, so that a result can be had again on any
            machine.
        workers: threads of the solver; 0: as many as there are cores.
        seed: of the solver's random choices.
    """

    starved: ClassVar[Mapping[str, object]] = {"time_limit": 0.0}

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        """Plan `problem`."""
        # ortools comes with it; the options must be readable without it.
        from remat_cli.planners.moccasin.search import MoccasinSearch

        return MoccasinSearch(problem, self, observe).run()
