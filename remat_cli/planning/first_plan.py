"""The first plan, or the first bound, that will do: where only its being there matters."""

from __future__ import annotations

from fractions import Fraction

from remat_cli.core.problem import Bound, Observer, PassingObserver, Plan
from remat_cli.planning.overhead import exact_overhead


class FirstPlan(PassingObserver):
    """Passes on what a planner tells, and has enough as soon as there is a plan of little enough overhead.

    For searches that ask at many budgets, or of many graphs, whether there is a plan at all.
    """

    def __init__(self, plain_time: int, observe: Observer, max_overhead: Fraction | None) -> None:
        """Wait for the first plan.

        Args:
            plain_time: of the plain run, in the graph's time unit.
            observe: is told everything.
            max_overhead: of the plan that is waited for, as a share of the plain run's time; None: any.
        """
        super().__init__(observe)
        self._plain_time = plain_time
        self._max_overhead = max_overhead
        self._has_plan = False

    @property
    def has_enough(self) -> bool:
        """Whether that plan was found."""
        return self._has_plan or super().has_enough

    @property
    def takes_any_plan(self) -> bool:
        """Whether no overhead is too large."""
        return self._max_overhead is None

    def found(self, plan: Plan) -> None:
        """Look at a plan, and pass it on."""
        self._has_plan |= self._is_allowed(plan.time)
        super().found(plan)

    def _is_allowed(self, time: int) -> bool:
        return self._max_overhead is None or exact_overhead(time, self._plain_time) <= self._max_overhead


class FirstBound(FirstPlan):
    """Has enough, too, as soon as the planner proves a time: it does not see at once that no plan fits."""

    def __init__(self, plain_time: int, observe: Observer, max_overhead: Fraction | None) -> None:
        """Wait for the first plan or bound; arguments as of `FirstPlan`."""
        super().__init__(plain_time, observe, max_overhead)
        self._has_bound = False

    @property
    def has_enough(self) -> bool:
        """Whether there is a plan, or a bound that says more than the plain run."""
        return self._has_bound or super().has_enough

    def bound(self, bound: Bound) -> None:
        """Look at a bound, and pass it on."""
        self._has_bound |= bound.time > self._plain_time
        super().bound(bound)
