"""Options of `checkmate` and `checkmate_lp`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from remat_cli.errors import UsageError
from remat_cli.planners.shared.option_checks import check_least


class SolverName(StrEnum):
    """The solver of integer programs."""

    AUTO = "auto"  # HiGHS if installed, otherwise CBC
    HIGHS = "highs"
    CBC = "cbc"


@dataclass(frozen=True)
class MipOptions:
    """The options that both planners share.

    Attributes:
        solver: highs, cbc, or auto: HiGHS if installed (highspy), otherwise CBC, which comes with PuLP.
        time_limit: limit in seconds.
        cores: threads of the solver; 0: all.
        seed: seed of the solver's random choices.
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
        gap: distance to the bound at which the search ends, as a share of the plan's extra time; 0: the best plan.
    """

    gap: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.gap < 1:
            raise UsageError(f"gap is {self.gap}", hint="give a share from 0 to less than 1")


class RoundingRule(StrEnum):
    """The rule that rounds fractional retentions."""

    DETERMINISTIC = "deterministic"  # held from a threshold on: 0.1, 0.2, ..., 0.9 in turn
    THRESHOLD = "threshold"  # held from a half on
    RANDOM_THRESHOLD = "random_threshold"  # held from a threshold on, drawn around 0.5
    RANDOMISED = "randomised"  # each held with its own probability


@dataclass(frozen=True)
class RoundingOptions(MipOptions):
    """Options of `checkmate_lp`.

    Attributes:
        rounding: deterministic: hold tensors whose fraction is at least 0.1, 0.2, ..., 0.9 in turn; threshold: at least
            0.5; random_threshold: at least values drawn around 0.5; randomised: the fraction is the probability.
        samples: number of plans that random_threshold and randomised draw.
        allowance: share of the budget left free for the memory that rounding adds; half of it and none are tried, too.
        repairs: number of changes that may make a plan fit; 0: the paper's method alone.
        seed: seed of the random choices.
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
