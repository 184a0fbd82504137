"""Options of `acg`."""

from __future__ import annotations

from dataclasses import dataclass

from remat_cli.planners.shared.option_checks import check_least


@dataclass(frozen=True)
class ACGOptions:
    """Options of `acg`; its docstring describes them."""

    candidates: int = 40
    share_inputs: bool = True
    improve: bool = True
    time_limit: float = 60.0

    def __post_init__(self) -> None:
        check_least(self, candidates=0, time_limit=0)
