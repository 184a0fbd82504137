"""Scaling of large numbers that solvers would get wrong.

Solvers count within tolerances, or fail on large numbers: CP-SAT 9.15 calls wrong solutions of knapsack rows optimal if
coefficients are 10^9 or more and some of them nearly equal (google/or-tools issue 5293); no case was seen at 10^8. So
no row with a coefficient above `LARGEST` is given to a solver. If a common divisor is enough, rows are divided by that
without loss. Otherwise numbers are rounded: down in models that prove, up in models that find plans.

A row of n entries loses at most n / LARGEST of its largest coefficient: 10^-6 of the memory if 2,600 tensors compete
and none takes more than a tenth of that memory.
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
    """The rounding of rows sum(coefficient * variable) <= limit.

    Variables are >= 0.
    """

    RELAX = "relax"  # every solution stays a solution: proofs about the scaled model hold
    RESTRICT = "restrict"  # every solution of the scaled model is a solution: plans fit


def unit_of(coefficients: Ints, largest: int = LARGEST) -> int:
    """Return a divisor that brings numbers down to `largest`.

    It is their greatest common divisor, if that is enough.

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
    """Return a row's coefficients and limit in numbers that solvers can take.

    The row is `sum(coefficient * variable) <= limit`. Rounding the limit down loses nothing, because it is compared
    with whole numbers.
    """
    unit = unit_of(coefficients)
    if rounding is Rounding.RELAX:
        return coefficients // unit, limit // unit
    return -(-coefficients // unit), limit // unit


def cost_unit(costs: Ints) -> int:
    """Return a divisor that brings the sum of costs below `LARGEST_TOTAL_COST`.

    Costs are rounded down: the scaled cost of a solution, times the unit, is never more than its cost.
    """
    total = float(np.abs(costs.astype(np.float64)).sum())  # the sum may exceed 64 bits
    return max(1, ceil(total / LARGEST_TOTAL_COST))
