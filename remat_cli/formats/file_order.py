"""An order in which the nodes of a file can run, as close to the file's own as possible."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from graphlib import TopologicalSorter


def file_order(sources: Sequence[Collection[int]]) -> list[int]:
    """Return the topological order that always takes next the ready node that stands first in the file.

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
