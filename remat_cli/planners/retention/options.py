"""Options of `retention`, as its search reads them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from remat_cli.planners.shared.option_checks import check_least

# A turn of the cut bound: its share of the time that is left, and its counted work for graphs of the usual size.
SHARE_OF_TURN, WORK_OF_TURN = 0.2, 3.0


class OrderChoice(StrEnum):
    """Which orders of first runs are considered."""

    INPUT = "input"  # the graph's own only
    SEARCH = "search"  # others too, where the data dependencies allow them


@dataclass(frozen=True)
class RetentionOptions:
    """Options of `retention`.

    Attributes:
        order: search: look for orders that need less memory; input: keep the graph's order of first runs.
        orders: in how many orders to plan.
        depth: how deep recomputation may go, at most.
        time_limit: seconds, the search for orders included.
        work_limit: instead of seconds, counted work, so that a result can be had again on any machine.
        patience: the search ends when this multiple of the work until the last gain has brought no further gain; 0: it
            goes on.
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
