"""Neighbours of a chain of lower sets: what local search on simulated plans tries next.

Equation 2 ranks chains only roughly by their simulated peak, so the chain that the dynamic program returns can often be
improved by small changes. All neighbours are chains of the same family.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from remat_cli.planners.lower_sets.families import LowerSets

# How many sets are tried in one place, spread evenly over those that fit there.
_SPREAD = 12


def neighbours(sets: LowerSets, chain: Sequence[int]) -> Iterator[list[int]]:
    """Yield chains with one set taken out (two blocks merged), put in (a block split), or exchanged (a cut moved).

    Args:
        sets: the family.
        chain: numbers of the sets L_1 to L_k = V.
    """
    cuts = list(chain[:-1])
    around = [0, *chain]
    for i in range(len(cuts)):
        yield [*chain[:i], *chain[i + 1 :]]
    for i in range(len(chain)):
        for between in _between(sets, around[i], around[i + 1]):
            yield [*chain[:i], between, *chain[i:]]
    for i in range(len(cuts)):
        for between in _between(sets, around[i], around[i + 2]):
            if between != chain[i]:
                yield [*chain[:i], between, *chain[i + 1 :]]


def _between(sets: LowerSets, inner: int, outer: int) -> list[int]:
    """Return some of the sets that strictly contain `inner` and are strictly contained in `outer`."""
    members = sets.members[inner + 1 : outer]
    fitting = (members >= sets.members[inner]).all(axis=1) & (members <= sets.members[outer]).all(axis=1)
    found: NDArray[np.int64] = np.flatnonzero(fitting) + inner + 1
    # Sets are sorted by size, but those of the same size as either end are no strict sub- or supersets of it.
    sizes = members[fitting].sum(axis=1)
    strict = (sizes > sets.members[inner].sum()) & (sizes < sets.members[outer].sum())
    found = found[strict]
    if len(found) > _SPREAD:
        found = found[np.linspace(0, len(found) - 1, _SPREAD).astype(np.int64)]
    return [int(number) for number in found]
