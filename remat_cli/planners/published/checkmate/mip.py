"""Linear programs over 0-1 variables, in whole numbers.

Solvers work with floating-point numbers, within tolerances. So this module also keeps costs and rows as whole numbers,
and counts the bound of a relaxation again in these: that bound holds whatever the tolerances.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, isfinite, ldexp

import numpy as np
from numpy.typing import NDArray

from remat_cli.core.problem import Status
from remat_cli.planners.published.checkmate.mip_solvers import Floats, MipRows, SolverRun, SolverTask
from remat_cli.planners.published.checkmate.options import SolverName
from remat_cli.planners.shared.limits import Limits
from remat_cli.planners.shared.numbering import Ints
from remat_cli.planners.shared.scaling import unit_of

# The largest number given to a solver. Numbers are limited because its tolerances are absolute, and whole because small
# fractions are dropped. If 170 tensors compete, none of which takes more than a tenth of the memory, rounding costs a
# row 10^-6 of that memory.
_LARGEST_COEFFICIENT = 2**24
_LARGEST_COST = 1e6
# The error of a solver's bound is at most the sum of its tolerance on costs, its tolerance on rows times the largest
# cost, and a share of the bound.
_COST_TOLERANCE = 1e-6
_ROW_TOLERANCE = 1e-7
_SHARE_TOLERANCE = 1e-9
# The number of binary digits after the point of the rows' multipliers.
_DIGITS = 80


@dataclass(frozen=True, eq=False)
class MipOutcome:
    """The result of solving a program.

    Attributes:
        status: optimal (within the gap asked for), feasible, infeasible, or unknown if time ran out first.
        values: [variables] 0 or 1, the best solution, which may slightly break rows of large numbers; None without one.
        bound: lower bound on the cost of all solutions; None without a proof.
    """

    status: Status
    values: Ints | None = None
    bound: int | None = None


@dataclass(frozen=True, eq=False)
class Relaxation:
    """The result of solving a program's relaxation.

    Its variables may take any value from 0 to 1.

    Attributes:
        status: optimal, infeasible, or unknown if time ran out.
        values: [variables] values of an optimal solution; None without one.
        bound: lower bound on the cost; None without an optimal solution.
        bound_if_one: [variables] lower bound on the cost of solutions in which the variable is 1, at least `bound`;
            object array of int; None without an optimal solution.
    """

    status: Status
    values: Floats | None = None
    bound: int | None = None
    bound_if_one: NDArray[np.object_] | None = None


class ZeroOneProgram:
    """Minimise the cost of variables that are 0 or 1, subject to rows."""

    def __init__(self) -> None:
        self._costs: list[int] = []
        self._rows: list[MipRows] = []
        # The rows as a solver is given them, and their divisors.
        self._scaled: list[MipRows] = []
        self._scales: list[int] = []

    @property
    def size(self) -> int:
        """Number of variables."""
        return len(self._costs)

    def add_variables(self, costs: Ints) -> Ints:
        """Add a variable for each cost, and return their numbers."""
        first = self.size
        self._costs += costs.tolist()
        return np.arange(first, self.size)

    def add_rows(self, rows: MipRows) -> None:
        """Add constraints.

        Rows whose numbers are too large for a solver are scaled down and rounded so that they are relaxed: if the
        solver calls the program infeasible, it is, and solutions may slightly break such rows.
        """
        scale = unit_of(rows.coefficient, _LARGEST_COEFFICIENT)
        coefficient, at_least = (-(-numbers // scale) for numbers in (rows.coefficient, rows.at_least))
        self._rows.append(rows)
        self._scaled.append(replace(rows, coefficient=coefficient, at_least=at_least))
        self._scales += [scale] * len(rows)

    def solve(
        self,
        solver: SolverName,
        limits: Limits,
        *,
        gap: float = 0.0,
        start: Ints | None = None,
        on_solution: Callable[[Ints], None] = lambda values: None,
    ) -> MipOutcome:
        """Search for a solution of least cost.

        Args:
            solver: an installed solver.
            limits: limits of the search.
            gap: share of the bound within which a solution ends the search.
            start: [variables] 0 or 1, a solution to start from.
            on_solution: receives each better solution, rounded as in `MipOutcome`.

        Raises:
            KeyboardInterrupt: Ctrl-C; the search was stopped after passing on every solution found until then.
        """
        if limits.is_over:
            return MipOutcome(Status.UNKNOWN)
        task = replace(self.task(limits), gap=gap, start=None if start is None else start.astype(np.float64))
        ending = SolverRun(solver, task).run(lambda values: on_solution(_rounded(values)))
        return MipOutcome(
            ending.status,
            values=None if ending.values is None else _rounded(ending.values),
            bound=self._whole_bound(ending.bound) if isfinite(ending.bound) else None,
        )

    def relax(self, solver: SolverName, limits: Limits) -> Relaxation:
        """Solve the relaxation, and count its bound in whole numbers.

        Raises:
            KeyboardInterrupt: Ctrl-C; the solver was stopped.
        """
        if limits.is_over:
            return Relaxation(Status.UNKNOWN)
        ending = SolverRun(solver, replace(self.task(limits), relaxed=True)).run()
        if ending.values is None or ending.row_duals is None:
            return Relaxation(Status.INFEASIBLE if ending.status is Status.INFEASIBLE else Status.UNKNOWN)
        multipliers = np.maximum(ending.row_duals, 0.0) * self._cost_scale / np.array(self._scales)
        bound, bound_if_one = self._count_bound(multipliers)
        return Relaxation(ending.status, ending.values, bound, bound_if_one)

    def task(self, limits: Limits) -> SolverTask:
        """Return the program as a solver is given it."""
        costs = np.array(self._costs, dtype=np.float64) / self._cost_scale
        return SolverTask(costs, MipRows.joined(self._scaled), limits)

    @property
    def _cost_scale(self) -> float:
        """The divisor of the costs that a solver is given."""
        return max(1.0, float(max(self._costs, default=0)) / _LARGEST_COST)

    def _whole_bound(self, bound: float) -> int:
        scale = self._cost_scale
        largest = max(self._costs, default=0) / scale
        tolerance = _COST_TOLERANCE + _ROW_TOLERANCE * largest + _SHARE_TOLERANCE * abs(bound)
        return max(0, ceil((bound - tolerance) * scale))

    def _count_bound(self, multipliers: Floats) -> tuple[int, NDArray[np.object_]]:
        """Return the exact bound that the rows' multipliers prove.

        Also return the bound with each variable at 1. The multipliers may be any numbers >= 0.

        With weights y on the rows, cost . x >= y . at_least + (cost - y . coefficients) . x for every x that satisfies
        the rows, and the second term is least if each x is 0 or 1 by its coefficient's sign.
        """
        weights = np.array([int(ldexp(weight, _DIGITS)) for weight in multipliers.tolist()], dtype=object)
        total = 0
        reduced = np.array(self._costs, dtype=object) * 2**_DIGITS
        first = 0
        for rows in self._rows:
            weight = weights[first : first + len(rows)]
            first += len(rows)
            total += int((weight * rows.at_least.astype(object)).sum())
            each = np.repeat(weight, np.diff(rows.start))
            used = np.flatnonzero(each)
            np.subtract.at(reduced, rows.variable[used], each[used] * rows.coefficient[used].astype(object))
        bound = total + int(np.minimum(reduced, 0).sum())
        bound_if_one = bound + np.maximum(reduced, 0)
        return _ceil(bound), np.array([_ceil(each) for each in bound_if_one], dtype=object)


def _rounded(values: Floats) -> Ints:
    return (values > 0.5).astype(np.int64)


def _ceil(number: int) -> int:
    """Round up a fixed-point number with _DIGITS binary digits after the point."""
    return -(-number >> _DIGITS)
