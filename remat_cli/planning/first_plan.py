"""Observers that stop a planner at its first plan or bound.

Searches use them to ask only whether there is a plan.
"""

from __future__ import annotations

from fractions import Fraction

from remat_cli.core.problem import Bound, Observer, PassingObserver, Plan
from remat_cli.planning.overhead import exact_overhead


class AnyPlan(Observer):
    """Takes any plan that fits: times of plans and bounds on them are of no use."""

    takes_any_plan = True


class FirstPlan(PassingObserver):
    """Stops the planner at the first plan of allowed overhead.

    Everything is forwarded to another observer. Searches over many budgets or graphs use this class to ask whether
    there is a plan at all.
    """

    def __init__(self, plain_time: int, observe: Observer, max_overhead: Fraction | None) -> None:
        """Wait for the first plan.

        Args:
            plain_time: time of the plain run, in the graph's time unit.
            observe: receives everything.
            max_overhead: largest overhead of the awaited plan, as a share of the plain run's time; None for any.
        """
        super().__init__(observe)
        self._plain_time = plain_time
        self._max_overhead = max_overhead
        self._has_plan = False

    @property
    def has_enough(self) -> bool:
        """Whether the awaited plan was found."""
        return self._has_plan or super().has_enough

    @property
    def takes_any_plan(self) -> bool:
        """Whether every overhead is allowed."""
        return self._max_overhead is None

    def found(self, plan: Plan) -> None:
        """Check and forward a plan."""
        self._has_plan |= self._is_allowed(plan.time)
        super().found(plan)

    def _is_allowed(self, time: int) -> bool:
        return self._max_overhead is None or exact_overhead(time, self._plain_time) <= self._max_overhead


class FirstBound(FirstPlan):
    """Also stops the planner at the first proven time.

    The bound shows that the planner does not quickly see that no plan fits.
    """

    def __init__(self, plain_time: int, observe: Observer, max_overhead: Fraction | None) -> None:
        """Wait for the first plan or bound; arguments as for `FirstPlan`."""
        super().__init__(plain_time, observe, max_overhead)
        self._has_bound = False

    @property
    def has_enough(self) -> bool:
        """Whether there is a plan, or a bound above the plain run."""
        return self._has_bound or super().has_enough

    def bound(self, bound: Bound) -> None:
        """Check and forward a bound."""
        self._has_bound |= bound.time > self._plain_time
        super().bound(bound)
