"""Our own planner: the sparse need-time model, over orders that suit the budget."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from remat_cli.planners.shared.option_checks import check_least
from remat_cli.problem import Observer, PlanResult, Problem


class OrderChoice(StrEnum):
    """Which orders of first runs are considered."""

    INPUT = "input"  # the graph's own only
    SEARCH = "search"  # others too, where data dependencies leave a choice


@dataclass(frozen=True)
class Retention:
    """Decides for each tensor, from use to use, whether to hold it or to make it again.

    Source: ours. Retention of tensors as in Bartan et al., MOCCASIN, ICML 2023, but with a decision only where one can
    change something: in gaps between uses over stages that are short of memory.
    Takes: any graph of up to a few thousand ops.
    Searches: orders of first runs; in each of the best few, recomputation of growing depth (of what recomputation
        needs, and so on).
    Proves: how much any plan must recompute, or that none fits (scope any-order); with the input order also how much
        any plan in that order must (scope fixed-order).
    Complexity: a CP-SAT model with a variable for each gap and each chance to recompute.

    Attributes:
        order: search: look for orders that need less memory; input: keep the graph's order of first runs.
        orders: in how many orders to plan.
        depth: how deep recomputation may go, at most.
        time_limit: seconds, the search for orders included.
        work_limit: instead of seconds, counted work, so that a result can be had again on any machine.
        patience: how much work without a gain ends the search, as a multiple of the work until the last gain; 0: none
            does.
        cores: threads of the solver; 0: all.
        seed: of random choices.
    """

    order: OrderChoice = OrderChoice.SEARCH
    orders: int = 3
    depth: int = 6
    time_limit: float = 60.0
    work_limit: float | None = None
    patience: float = 1.0
    cores: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        check_least(self, orders=1, depth=1, time_limit=0, work_limit=0, patience=0, cores=0, seed=0)

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        """Plan `problem`."""
        # ortools comes with this; the options must be readable without it.
        from remat_cli.planners.retention.search import RetentionSearch

        return RetentionSearch(problem, self, observe).run()
