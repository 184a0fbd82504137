"""Options of `checkmate` and `checkmate_lp`, as their searches read them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from remat_cli.errors import UsageError
from remat_cli.planners.shared.option_checks import check_least


class SolverName(StrEnum):
    """The solver of integer programs."""

    AUTO = "auto"  # HiGHS where it is installed, else CBC
    HIGHS = "highs"
    CBC = "cbc"


@dataclass(frozen=True)
class MipOptions:
    """Options that these planners share.

    Attributes:
        solver: highs, cbc, or auto: HiGHS where it is installed (highspy), else CBC, which comes with PuLP.
        time_limit: seconds.
        cores: threads of the solver; 0: all.
        seed: of the solver's random choices.
        force: build the program even if it is estimated to take more than 6 GiB.
    """

    solver: SolverName = SolverName.AUTO
    time_limit: float = 60.0
    cores: int = 1
    seed: int = 0
    force: bool = False

    def __post_init__(self) -> None:
        check_least(self, time_limit=0, cores=0, seed=0)


@dataclass(frozen=True)
class CheckmateOptions(MipOptions):
    """Options of `checkmate`.

    Attributes:
        gap: a plan this close to the bound ends the search, as a share of its extra time; 0: the best plan.
    """

    gap: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.gap < 1:
            raise UsageError(f"gap is {self.gap}", hint="give a share from 0 to less than 1")


class RoundingRule(StrEnum):
    """How fractional retentions are rounded."""

    DETERMINISTIC = "deterministic"  # held where at least a threshold: 0.1, 0.2, ..., 0.9 in turn
    THRESHOLD = "threshold"  # held where at least half
    RANDOM_THRESHOLD = "random_threshold"  # held where at least a threshold drawn around 0.5
    RANDOMISED = "randomised"  # each held with its own probability


@dataclass(frozen=True)
class RoundingOptions(MipOptions):
    """Options of `checkmate_lp`.

    Attributes:
        rounding: deterministic: hold tensors whose fraction is at least 0.1, 0.2, ..., 0.9 in turn; threshold: at least
            0.5; random_threshold: at least values drawn around 0.5; randomised: the fraction is the probability.
        samples: how many plans random_threshold and randomised draw.
        allowance: share of the budget that is left free for the memory that rounding adds; half of it and none are
            tried, too.
        repairs: how many changes may make a plan fit; 0: the paper's method alone.
        seed: of the random choices.
    """

    rounding: RoundingRule = RoundingRule.DETERMINISTIC
    samples: int = 20
    allowance: float = 0.1
    repairs: int = 200

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, samples=1, repairs=0)
        if not 0 <= self.allowance < 1:
            raise UsageError(f"allowance is {self.allowance}", hint="give a share from 0 to less than 1")
