"""The order in which what a file describes can run, as near to that of the file as can be."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from graphlib import TopologicalSorter


def file_order(sources: Sequence[Collection[int]]) -> list[int]:
    """Return a topological order in which, of the nodes that can come next, the first in the file does.

    Args:
        sources: [nodes] what each node reads from, by place in the file.

    Raises:
        graphlib.CycleError: there is none.
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
