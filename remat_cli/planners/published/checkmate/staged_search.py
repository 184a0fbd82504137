"""The base of both searches for staged plans."""

from __future__ import annotations

from typing import Generic, TypeVar

from remat_cli.core.problem import Basis, Observer, PlanResult, Problem, Scope
from remat_cli.errors import PlannerRefuses
from remat_cli.planners.published.checkmate.mip_solvers import installed_solver
from remat_cli.planners.published.checkmate.options import MipOptions
from remat_cli.planners.published.checkmate.staged_choices import StagedChoices
from remat_cli.planners.published.checkmate.staged_model import StagedModel
from remat_cli.planners.published.checkmate.staged_plans import StagedPlans, StagedRepair
from remat_cli.planners.published.checkmate.staged_variables import largest_size
from remat_cli.planners.shared.incumbent import Incumbent
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.numbering import Bools
from remat_cli.planners.shared.stages import Stages
from remat_cli.units import format_bytes

# A program that takes more memory is built only by force.
_MEMORY_LIMIT = 6 * 2**30


Options = TypeVar("Options", bound=MipOptions)


class StagedSearch(Generic[Options]):
    """A search for staged plans.

    Attributes:
        stages: the graph in its input order.
        limits: limits of the search.
        incumbent: keeps the best plan and the bounds.
        plans: recomputations of the plans found so far.
        repair: makes plans fit, and faster.
        excess: the runs, as (stage, op), that exceeded the budget in some plan.
        stats: counts of work.
    """

    def __init__(self, problem: Problem, options: Options, observe: Observer) -> None:
        """Lay out the problem, and start the clock.

        Raises:
            UsageError: the solver in the options is not installed.
        """
        self.solver = installed_solver(options.solver)
        self.options = options
        self.observe = observe
        self.limits = Limits.of(options.time_limit, cores=options.cores, seed=options.seed, observe=observe)
        self.stages = Stages.of(problem.graph)
        self.incumbent = Incumbent(problem, observe)
        self.plans = StagedPlans(self.incumbent, self.stages)
        self.repair = StagedRepair(self.stages, self.plans, self.limits)
        self.excess: set[tuple[int, int]] = set()
        self.stats = {"programs": 0, "largest program": 0}
        self._plain_time = problem.graph.total_time
        self._room = problem.budget.device_bytes - problem.graph.fixed_bytes

    @property
    def is_over(self) -> bool:
        """Whether the time is up, or the result is proven."""
        return self.incumbent.is_settled or self.limits.is_over

    def choices(self, depth: int | None = None, allowance: float = 0.0) -> StagedChoices:
        """Return the choices that can lead to a plan better than the best.

        Args:
            depth: as in `StagedChoices.of`.
            allowance: share of the memory to leave free.
        """
        room = self._room - int(allowance * max(0, self._room))
        return StagedChoices.of(self.stages, room, self._affordable(), depth)

    def check_size(self) -> None:
        """Check that the whole program can be built.

        Raises:
            PlannerRefuses: the program takes too much memory, and the options do not force it.
        """
        size = largest_size(self.stages)
        if size.memory_bytes > _MEMORY_LIMIT and not self.options.force:
            raise PlannerRefuses(
                f"the program for {self.stages.graph.name!r} has up to {size.variables:,} variables and {size.rows:,} "
                f"rows, and takes up to {format_bytes(size.memory_bytes)} of memory to solve",
                hint="use dtr, which takes graphs of any size; or build it all the same with force=true",
            )

    def build(self, choices: StagedChoices, *, in_any_sequence: bool = False, may_exceed: bool = False) -> StagedModel:
        """Build the program of these choices; options as in `StagedModel`."""
        model = StagedModel(choices, in_any_sequence=in_any_sequence, may_exceed=may_exceed)
        self.stats["programs"] += 1
        self.stats["largest program"] = max(self.stats["largest program"], model.size)
        return model

    def prove(self, scope: Scope, extra_time: int, basis: Basis) -> None:
        """Record a bound on the extra time of plans in a scope.

        The bound is at most the extra time of the best plan.
        """
        if self.plans.best is not None:
            extra_time = min(extra_time, self.plans.best.extra_time)
        if extra_time > 0:
            self.incumbent.prove(self._plain_time + extra_time, scope, basis)

    def prove_none_better(self, scope: Scope, basis: Basis) -> None:
        """Record that no plan in scope beats the best.

        Without a best plan, record that none fits.
        """
        if self.plans.best is None:
            self.incumbent.prove_that_none_fits(scope, _IMPOSSIBLE, basis)
        else:
            self.prove(scope, self.plans.best.extra_time, basis)

    def prove_that_none_fits(self) -> None:
        """Prove in whole numbers that the relaxation has no solution.

        The solver has claimed so. The proof makes memory soft: a lower bound above 0 on the cost of exceeding it shows
        that nothing fits.
        """
        model = self.build(self.choices().connected(), in_any_sequence=True, may_exceed=True)
        if model.relax(self.solver, self.limits).bound:
            self.prove_none_better(Scope.FIXED_ORDER, Basis.COUNTED)

    def result(self, reason: str = "no plan that fits was found in the time limit") -> PlanResult:
        """Return plans and bounds; `reason` explains a missing plan."""
        return self.incumbent.result(reason, self.stats)

    def _affordable(self) -> Bools:
        """[N] ops whose recomputation takes less time than the best plan's.

        That is the time of all its recomputations together.
        """
        least_time = self.plans.least_time
        recomputable = self.stages.recomputable
        return recomputable if least_time is None else recomputable & (self.stages.time < least_time)


_IMPOSSIBLE = "no plan that keeps the input order fits: it was searched to the end"
