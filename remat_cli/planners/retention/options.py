"""Options of `retention`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from remat_cli.planners.shared.option_checks import check_least

# One turn of the cut bound: its share of the remaining time, and its counted work for graphs of the usual size.
SHARE_OF_TURN, WORK_OF_TURN = 0.2, 3.0


class OrderChoice(StrEnum):
    """The orders of first runs that the search considers."""

    INPUT = "input"  # only the graph's own order
    SEARCH = "search"  # also other orders that data dependencies allow


@dataclass(frozen=True)
class RetentionOptions:
    """Options of `retention`.

    Attributes:
        order: search: look for orders that need less memory; input: keep the graph's order of first runs.
        orders: number of orders to plan in.
        depth: greatest depth of recomputation.
        time_limit: limit in seconds, including the search for orders.
        work_limit: limit in counted work instead of seconds, so that every machine gives the same result.
        patience: end the search when this multiple of the work until the last gain has brought no further gain; 0:
            never.
        cores: threads of the solver; 0: all.
        seed: seed of the random choices.
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
