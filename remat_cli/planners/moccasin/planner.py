"""MOCCASIN: retention intervals in constraint programming, Bartan et al. 2023."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from remat_cli.errors import UsageError
from remat_cli.planners.shared.option_checks import check_least
from remat_cli.problem import Observer, PlanResult, Problem


class Order(StrEnum):
    """When ops may run for the first time."""

    INPUT = "input"  # in the graph's order
    FREE = "free"  # whenever their inputs are there


@dataclass(frozen=True)
class Moccasin:
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
        time_limit: seconds.
        work_limit: instead of seconds, the solver's own count of its work, so that a result can be had again on any
            machine.
        cores: threads of the solver; 0: all.
        seed: of the solver's random choices.
    """

    order: Order = Order.INPUT
    staged: bool = True
    max_retentions: int = 2
    phases: int = 2
    time_limit: float = 60.0
    work_limit: float | None = None
    cores: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        check_least(self, max_retentions=1, phases=1, time_limit=0, work_limit=0, cores=0, seed=0)
        if self.phases > 2:
            raise UsageError(f"phases is {self.phases}", hint="give 2, or 1 to leave out the first")

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        """Plan `problem`."""
        # ortools comes with it; the options are read without it.
        from remat_cli.planners.moccasin.search import MoccasinSearch

        return MoccasinSearch(problem, self, observe).run()
