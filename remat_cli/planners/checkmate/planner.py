"""Checkmate, Jain et al. 2020: its integer program, and its linear relaxation with two-phase rounding."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from remat_cli.errors import UsageError
from remat_cli.planners.shared.option_checks import check_least
from remat_cli.problem import Observer, PlanResult, Problem


class SolverName(StrEnum):
    """Who solves."""

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
class Checkmate(MipOptions):
    """Decides by an integer program what each stage recomputes before it runs the next op, and what is held meanwhile.

    Source: Jain et al., Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization, MLSys 2020,
    section 4.
    Takes: any graph.
    Searches: schedules that keep the input order and recompute, before each op's first run, some earlier ops, each at
    most once and in the input order.
    Proves: that its plan is the best of these, or that none of them fits (scope planner); most often the same of all
    schedules in the input order, whatever they recompute and when (scope fixed-order).
    Complexity: an integer program of up to N^2 recomputations of N ops, of which the first plans and bounds leave few;
    hundreds of ops in seconds to minutes.

    Attributes:
        gap: a plan this close to the bound ends the search, as a share of its extra time; 0: the best plan.
    """

    gap: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.gap < 1:
            raise UsageError(f"gap is {self.gap}", hint="give a share from 0 to less than 1")

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        """Plan `problem`.

        Raises:
            PlannerRefuses: the program is too large.
            UsageError: the solver is not installed.
        """
        # numpy and PuLP come with it; the options must be readable without them.
        from remat_cli.planners.checkmate.search import CheckmateSearch

        return CheckmateSearch(problem, self, observe).run()


class Rounding(StrEnum):
    """How retentions by halves become whole ones."""

    DETERMINISTIC = "deterministic"  # held where at least a threshold: 0.1, 0.2, ..., 0.9 in turn
    THRESHOLD = "threshold"  # held where at least half
    RANDOM_THRESHOLD = "random_threshold"  # held where at least a threshold drawn around 0.5
    RANDOMISED = "randomised"  # each held with its own probability


@dataclass(frozen=True)
class CheckmateLP(MipOptions):
    """Solves Checkmate's program with everything allowed by halves, and rounds what is held to plans.

    Source: Jain et al., Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization, MLSys 2020,
    section 5. That plans which do not fit are repaired, and then improved, is not in the paper.
    Takes: any graph.
    Searches: some dozen roundings, as schedules in the input order.
    Proves: how much any schedule in the input order must recompute at least, or that none fits (scope fixed-order).
    Complexity: up to three linear programs of N^2 recomputations of N ops.

    Attributes:
        rounding: deterministic: hold what is held at least to 0.1, 0.2, ..., 0.9; threshold: to 0.5; random_threshold:
            to values drawn around 0.5; randomised: hold each tensor with a probability of as much as it is held.
        samples: how many plans are drawn, by random_threshold and randomised.
        allowance: share of the budget that is left free for what rounding adds; half of it and none are tried, too.
        repairs: how often each plan may be changed for it to fit; 0: the paper's method alone.
        seed: of the random choices.
    """

    rounding: Rounding = Rounding.DETERMINISTIC
    samples: int = 20
    allowance: float = 0.1
    repairs: int = 200

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, samples=1, repairs=0)
        if not 0 <= self.allowance < 1:
            raise UsageError(f"allowance is {self.allowance}", hint="give a share from 0 to less than 1")

    def plan(self, problem: Problem, observe: Observer) -> PlanResult:
        """Plan `problem`.

        Raises:
            PlannerRefuses: the program is too large.
            UsageError: the solver is not installed.
        """
        # numpy and PuLP come with it; the options must be readable without them.
        from remat_cli.planners.checkmate.search import RoundingSearch

        return RoundingSearch(problem, self, observe).run()
