"""Options of `retention`, apart from the planner so that its search can know them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from remat_cli.planners.shared.option_checks import check_least


class OrderChoice(StrEnum):
    """Which orders of first runs are considered."""

    INPUT = "input"  # the graph's own only
    SEARCH = "search"  # others too, where data dependencies leave a choice


@dataclass(frozen=True)
class RetentionOptions:
    """The planner's docstring describes them."""

    order: OrderChoice = OrderChoice.SEARCH
    orders: int = 3
    depth: int = 6
    time_limit: float = 60.0
    work_limit: float | None = None
    patience: float = 1.0
    workers: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        check_least(self, orders=1, depth=1, time_limit=0, patience=0, workers=0, seed=0)
