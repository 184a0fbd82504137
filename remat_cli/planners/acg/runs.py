"""From a stored set to the ops in the order in which they run.

What is not stored is dropped after the forward pass has read it, and recomputed once, when the backward pass first
needs it (Feng & Huang). What the frees are follows from the order (`schedule.with_frees`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from remat_cli.planners.shared.forward_part import ForwardPart
from remat_cli.planners.shared.sequence import RematSequence


class SegmentRuns:
    """Orders the ops of a training graph for stored sets of its forward part.

    Ops that must run once are never dropped. Vertices are those of the forward part.
    """

    def __init__(self, forward: ForwardPart) -> None:
        self._forward = forward
        self._after: list[list[int]] = [[] for _ in range(len(forward))]
        for u, v in forward.edges.tolist():
            self._after[u].append(v)

    def orders(self, stored: Collection[int]) -> list[RematSequence]:
        """Return the graph's ops in the order in which they run, in one or two different ways.

        First in the input order; then segment by segment, so that branches beside each other are not mixed.

        Args:
            stored: vertices; with each component of the others taken as one vertex, there is no cycle.
        """
        forward, units = self._forward, self._units(stored)
        by_unit = sorted(range(len(units)), key=lambda v: (units[v], v))
        place = forward.places_of_backward(units, len(units))
        runs = [
            self._runs(range(len(units)), forward.backward, stored),
            self._runs(by_unit, sorted(forward.backward, key=lambda op: -place[op]), stored),
        ]
        return runs[:1] if np.array_equal(runs[0].ops, runs[1].ops) else runs

    def _runs(self, vertices: Iterable[int], backward: Sequence[int], stored: Collection[int]) -> RematSequence:
        """Return the forward ops, then the backward ops, each behind what must be recomputed for it."""
        forward = self._forward
        is_there = [False] * len(forward)
        for v in (*stored, *forward.must_stay):
            is_there[v] = True
        op_of: list[int] = forward.ops.tolist()
        runs = [op_of[v] for v in vertices]
        for op in backward:
            again = forward.missing(forward.reads[op], is_there)
            for v in again:
                is_there[v] = True
                runs.append(op_of[v])
            runs.append(op)
        return RematSequence.of(forward.graph, runs).without_useless_runs()

    def _units(self, stored: Collection[int]) -> list[int]:
        """Return the place of each vertex's unit, a stored vertex or a segment, in a depth-first topological order."""
        unit = self._components(set(stored))
        after: dict[int, set[int]] = {number: set() for number in unit}
        for u, successors in enumerate(self._after):
            after[unit[u]].update(unit[v] for v in successors if unit[v] != unit[u])
        waits_for = dict.fromkeys(after, 0)
        for units in after.values():
            for number in units:
                waits_for[number] += 1
        ready = sorted((number for number, count in waits_for.items() if count == 0), reverse=True)
        place: dict[int, int] = {}
        while ready:
            first = ready.pop()
            place[first] = len(place)
            for number in sorted(after[first], reverse=True):
                waits_for[number] -= 1
                if waits_for[number] == 0:
                    ready.append(number)
        return [place[number] for number in unit]

    def _components(self, stored: Collection[int]) -> list[int]:
        """Return, for each vertex, the smallest vertex of its unit."""
        unit = list(range(len(self._forward)))

        def smallest(v: int) -> int:
            while unit[v] != v:
                unit[v] = unit[unit[v]]
                v = unit[v]
            return v

        for u, successors in enumerate(self._after):
            if u not in stored:
                for v in successors:
                    if v not in stored:
                        first, second = sorted((smallest(u), smallest(v)))
                        unit[second] = first
        return [smallest(v) for v in range(len(unit))]
