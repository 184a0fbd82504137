"""Lower sets of a forward graph: families of them, and what the dynamic program needs to know of each.

A lower set L contains, with each vertex, all that the vertex is computed from. Its boundary dL are the vertices in L
that someone outside reads. Kusumoto et al. 2019, sections 3 and 4.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from remat_cli.errors import PlannerRefuses
from remat_cli.planners.forward_part import ForwardPart

# Seven tables of L x L numbers of 8 bytes: 2 GB.
_LARGEST_FAMILY = 6000


@dataclass(frozen=True, eq=False)
class LowerSets:
    """A family of lower sets in ascending size; the first is empty, the last is V.

    Attributes:
        forward: the graph.
        members: [L, V] bool.
        boundary: [L, V] bool, the boundary of each set.
        bytes: [L] int64, M(L).
        tail_bytes: [L] int64, M(d+(L) \\ L) + M(d-(d+(L)) \\ L): gradients of what reads L, and forward values that
            those readers also read (the last two terms of equation 2).
    """

    forward: ForwardPart
    members: NDArray[np.bool_]
    boundary: NDArray[np.bool_]
    bytes: NDArray[np.int64]
    tail_bytes: NDArray[np.int64]

    @classmethod
    def of(cls, forward: ForwardPart, members: NDArray[np.bool_]) -> LowerSets:
        """Complete a family given by its [L, V] members: sorted by size, without duplicates, with {} and V.

        Duplicates would give empty blocks in the traceback (a family of ancestors holds V twice where the sink is
        unique).
        """
        count = members.shape[1]
        ends = np.vstack([np.zeros(count, dtype=np.bool_), np.ones(count, dtype=np.bool_)])
        members = np.unique(np.vstack([members, ends]), axis=0)
        members = members[np.argsort(members.sum(axis=1), kind="stable")]
        outside = ~members
        # Entry (L, v) of `members @ adjacency` counts those in L that v reads. float32 is exact below 2^24 and fast.
        adjacency = forward.adjacency.astype(np.float32)
        read_outside = outside.astype(np.float32) @ adjacency.T > 0
        readers = (members.astype(np.float32) @ adjacency > 0) & outside
        co_parents = (readers.astype(np.float32) @ adjacency.T > 0) & outside
        return cls(
            forward=forward,
            members=members,
            boundary=read_outside & members,
            bytes=members @ forward.bytes,
            tail_bytes=readers @ forward.bytes + co_parents @ forward.bytes,
        )

    def __len__(self) -> int:
        return len(self.members)


def pruned_family(forward: ForwardPart) -> LowerSets:
    """Return the family of the approximate DP: for each vertex, the vertex and all that it is computed from.

    Source: Kusumoto et al. 2019, section 4.3. At most V + 2 sets.

    Raises:
        PlannerRefuses: the graph is so large that the tables of the dynamic program would not fit in memory.
    """
    if len(forward) > _LARGEST_FAMILY:
        raise PlannerRefuses(
            f"{forward.graph.name!r} has {len(forward)} forward ops; the tables of the lower-set DP grow with the "
            f"square of that and are limited to {_LARGEST_FAMILY}",
            hint="use a planner that scales linearly: keep_all",
        )
    members = np.eye(len(forward), dtype=np.bool_)
    for u, v in forward.edges[np.argsort(forward.edges[:, 1], kind="stable")]:
        members[v] |= members[u]
    return LowerSets.of(forward, members)
