"""Linear programs over 0-1 variables, in whole numbers.

Solvers work with floating-point numbers, within tolerances. So this module also keeps costs and rows as whole numbers,
and counts the bound of a relaxation again in these: that bound holds whatever the tolerances.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, isfinite, ldexp

import numpy as np
import pulp
from numpy.typing import NDArray

from remat_cli.core.problem import Status
from remat_cli.planners.published.checkmate.mip_solvers import Floats, SolverRun
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
class MipRows:
    """Constraints: sum(coefficient * variable) >= at_least.

    Attributes:
        start: [rows + 1] start of each row in `variable` and `coefficient`.
        variable: [entries] numbers of variables, distinct within a row.
        coefficient: [entries] int64.
        at_least: [rows] int64.
    """

    start: Ints
    variable: Ints
    coefficient: Ints
    at_least: Ints

    @classmethod
    def one(cls, terms: Mapping[int, int], at_least: int) -> MipRows:
        """Return a single row from the coefficient of each variable."""
        variable = np.fromiter(terms.keys(), dtype=np.int64, count=len(terms))
        coefficient = np.fromiter(terms.values(), dtype=np.int64, count=len(terms))
        return cls(np.array([0, len(terms)]), variable, coefficient, np.array([at_least], dtype=np.int64))

    def __len__(self) -> int:
        return len(self.at_least)


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
    """Minimise the cost of variables that are 0 or 1, subject to rows.

    Attributes:
        problem: the program as a PuLP object.
        size: number of variables.
    """

    def __init__(self) -> None:
        self.problem = pulp.LpProblem("plan", pulp.LpMinimize)
        self._variables: list[pulp.LpVariable] = []
        self._costs: list[int] = []
        self._rows: list[MipRows] = []
        self._scales: list[int] = []  # divisors of the rows given to a solver
        self._row_count = 0

    @property
    def size(self) -> int:
        """Number of variables."""
        return len(self._costs)

    def add_variables(self, costs: Ints) -> Ints:
        """Add a variable for each cost, and return their numbers."""
        first = self.size
        # Names sort like their numbers, because PuLP passes variables on in the order of names.
        self._variables += [
            self.problem.add_variable(f"x{number:09}", 0, 1, pulp.LpInteger)
            for number in range(first, first + len(costs))
        ]
        self._costs += costs.tolist()
        return np.arange(first, self.size)

    def add_rows(self, rows: MipRows) -> None:
        """Add constraints.

        Rows whose numbers are too large for a solver are scaled down and rounded so that they are relaxed: if the
        solver calls the program infeasible, it is, and solutions may slightly break such rows.
        """
        scale = unit_of(rows.coefficient, _LARGEST_COEFFICIENT)
        variables = [self._variables[number] for number in rows.variable.tolist()]
        coefficients = (-(-rows.coefficient // scale)).tolist()
        for (start, end), at_least in zip(pairwise(rows.start.tolist()), rows.at_least.tolist(), strict=True):
            terms = pulp.LpAffineExpression(zip(variables[start:end], coefficients[start:end], strict=True))
            row = pulp.LpConstraint(terms, pulp.LpConstraintGE, rhs=-(-at_least // scale), name=f"r{self._row_count}")
            self.problem.addConstraint(row)
            self._row_count += 1
        self._rows.append(rows)
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
        scale = self._set_costs()
        start_values = None if start is None else start.astype(np.float64)
        run = SolverRun(self.problem, solver, limits, gap=gap, start=start_values)
        run.run(lambda values: on_solution(_rounded(values)))
        return MipOutcome(
            run.status,
            values=None if run.values is None else _rounded(run.values),
            bound=self._whole_bound(run.bound, scale) if isfinite(run.bound) else None,
        )

    def relax(self, solver: SolverName, limits: Limits) -> Relaxation:
        """Solve the relaxation, and count its bound in whole numbers.

        Raises:
            KeyboardInterrupt: Ctrl-C; the solver was stopped.
        """
        scale = self._set_costs()
        run = SolverRun(self.problem, solver, limits, relaxed=True)
        run.run()
        if run.values is None or run.row_duals is None:
            return Relaxation(Status.INFEASIBLE if run.status is Status.INFEASIBLE else Status.UNKNOWN)
        multipliers = np.maximum(run.row_duals, 0.0) * scale / np.array(self._scales)
        bound, bound_if_one = self._count_bound(multipliers)
        return Relaxation(run.status, run.values, bound, bound_if_one)

    def _set_costs(self) -> float:
        """Set the objective, divided by a scale; return the scale."""
        costs = np.array(self._costs, dtype=np.float64)
        scale = max(1.0, float(costs.max(initial=0.0)) / _LARGEST_COST)
        self.problem.setObjective(pulp.LpAffineExpression(zip(self._variables, (costs / scale).tolist(), strict=True)))
        return scale

    def _whole_bound(self, bound: float, scale: float) -> int:
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
