"""Options of `auto`, apart from the planner so that its portfolio can know them."""

from __future__ import annotations

from dataclasses import dataclass

from remat_cli.planners.shared.option_checks import check_least


@dataclass(frozen=True)
class AutoOptions:
    """The planner's docstring describes them."""

    time_limit: float = 30.0
    work_limit: float | None = None
    gap: float = 0.0001
    patience: float = 1.0
    offload: bool = False
    workers: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        check_least(self, time_limit=0, gap=0, patience=0, workers=0, seed=0)
