"""An executable order of a file's nodes, close to the file's own."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from graphlib import TopologicalSorter


def file_order(sources: Sequence[Collection[int]]) -> list[int]:
    """Return the topological order that prefers nodes early in the file.

    Args:
        sources: [nodes] places in the file of the nodes that each node reads from.

    Raises:
        graphlib.CycleError: there is no such order.
    """
    if all(source < node for node, reads in enumerate(sources) for source in reads):
        return list(range(len(sources)))
    sorter = TopologicalSorter(dict(enumerate(sources)))
    sorter.prepare()
    ready = sorted(sorter.get_ready())
    order = []
    while ready:
        order.append(heapq.heappop(ready))
        sorter.done(order[-1])
        for node in sorter.get_ready():
            heapq.heappush(ready, node)
    return order
