"""Leaving out what a sequence of computes runs in vain."""

from __future__ import annotations

from collections.abc import Sequence

from remat_cli.graph import Graph


def useful_runs(graph: Graph, computes: Sequence[str]) -> tuple[str, ...]:
    """Return `computes` without the runs none of whose outputs is read before it is made again, or kept to the end.

    An op of which no run is useful keeps its first one, as every op must run. Of a valid sequence a valid one is left,
    with a peak that is no higher: no instance of a tensor lives longer than before. Linear in the length.

    Args:
        graph: what is run.
        computes: names of ops in the order in which they run.
    """
    producer = graph.producer
    first_run: dict[str, int] = {}
    for position, name in enumerate(computes):
        first_run.setdefault(name, position)
    useful: list[str] = []
    has_run: set[str] = set()
    # Walking backwards: a tensor in `needed` is read by a useful run later, before it is made again.
    needed = {name for name in graph.outputs if name in producer}
    for position in range(len(computes) - 1, -1, -1):
        op = graph.op[computes[position]]
        is_only_run = position == first_run[op.name] and op.name not in has_run
        if is_only_run or not needed.isdisjoint(op.outputs):
            useful.append(op.name)
            has_run.add(op.name)
            needed.difference_update(op.outputs)
            needed.update(name for name in op.inputs if name in producer)
    return tuple(reversed(useful))
