"""Numbers small enough for solvers to be right about: sizes of gigabytes and long times, scaled with care.

Solvers count within tolerances, or fail on large numbers: CP-SAT 9.15 calls wrong solutions of knapsack rows optimal
where coefficients are 10^9 and more and some of them nearly equal (google/or-tools issue 5293); none was seen at 10^8.
So no row is given to a solver with a coefficient above `LARGEST`. What is divided out is a common divisor where that
is enough, and nothing is lost then. Else numbers are rounded: down in models that prove, up in models that find plans.

A row of n entries loses at most n / LARGEST of its largest coefficient: 10^-6 of the memory it stands for where 2,600
tensors compete and none takes more than a tenth of it.
"""

from __future__ import annotations

from enum import Enum
from math import ceil

import numpy as np

from remat_cli.planners.shared.numbering import Ints

LARGEST = 2**28
# The largest sum of costs, which solvers add up. Rounding takes at most 3 * 10^-9 of the sum of 100,000 costs.
LARGEST_TOTAL_COST = 2**45


class Rounding(Enum):
    """In which direction rows of the kind sum(coefficient * variable) <= limit are rounded, for variables >= 0."""

    RELAX = "relax"  # every solution stays one: what is proven of the scaled model holds
    RESTRICT = "restrict"  # every solution of the scaled model is one: what it finds fits


def unit_of(coefficients: Ints, largest: int = LARGEST) -> int:
    """Return a divisor that brings numbers down to `largest`: their greatest common divisor, if that is enough.

    Args:
        coefficients: [entries] int64.
        largest: the largest absolute value afterwards.
    """
    most = int(np.abs(coefficients).max(initial=0))
    if most <= largest:
        return 1
    common = int(np.gcd.reduce(coefficients))
    return common if most // common <= largest else -(-most // largest)


def scale_row(coefficients: Ints, limit: int, rounding: Rounding) -> tuple[Ints, int]:
    """Return coefficients and limit of the row `sum(coefficient * variable) <= limit` in numbers that solvers can take.

    Rounding the limit down loses nothing: what it is compared with is a whole number.
    """
    unit = unit_of(coefficients)
    if rounding is Rounding.RELAX:
        return coefficients // unit, limit // unit
    return -(-coefficients // unit), limit // unit


def cost_unit(costs: Ints) -> int:
    """Return a divisor that brings the sum of costs below `LARGEST_TOTAL_COST`.

    Costs are rounded down: the scaled cost of a solution, times the unit, is never more than what it costs.
    """
    total = float(np.abs(costs.astype(np.float64)).sum())  # which may be more than 64 bits hold
    return max(1, ceil(total / LARGEST_TOTAL_COST))
