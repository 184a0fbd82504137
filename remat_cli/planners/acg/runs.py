"""From a stored set to the ops in the order in which they run.

What is not stored is dropped after the forward pass has read it, and recomputed once, when the backward pass first
needs it (Feng & Huang). What the frees are follows from the order (`schedule.with_frees`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from remat_cli.graph import Phase
from remat_cli.planners.shared.forward_part import ForwardPart
from remat_cli.planners.shared.sequence import RematSequence


class SegmentRuns:
    """Orders the ops of a training graph for stored sets of its forward part.

    Ops that must run once are never dropped. Vertices are those of the forward part.
    """

    def __init__(self, forward: ForwardPart) -> None:
        self._forward = forward
        graph = forward.graph
        arrays = graph.arrays
        vertex = {int(op): v for v, op in enumerate(forward.ops)}
        self._op: list[int] = forward.ops.tolist()
        self._once = [v for v, op in enumerate(self._op) if not graph.ops[op].recomputable]
        self._backward = [number for number, op in enumerate(graph.ops) if op.phase is Phase.BACKWARD]
        self._sources = {
            number: sorted({int(arrays.producer[tensor]) for tensor in arrays.inputs[number]} - {-1})
            for number in range(len(graph.ops))
        }
        self._reads = {
            number: [vertex[source] for source in sources if source in vertex]
            for number, sources in self._sources.items()
        }
        self._differentiates = {
            number: vertex.get(arrays.op_index[name])
            for number in self._backward
            if (name := graph.ops[number].grad_of) is not None
        }
        self._after: list[list[int]] = [[] for _ in self._op]
        for u, v in forward.edges.tolist():
            self._after[u].append(v)

    def orders(self, stored: Collection[int]) -> list[RematSequence]:
        """Return the graph's ops in the order in which they run, in one or two different ways.

        First in the input order; then segment by segment, so that branches beside each other are not mixed.

        Args:
            stored: vertices; with each component of the others taken as one vertex, there is no cycle.
        """
        kept = {*stored, *self._once}
        units = self._units(stored)
        by_unit = sorted(range(len(units)), key=lambda v: (units[v], v))
        runs = [
            self._runs(range(len(units)), self._backward, kept),
            self._runs(by_unit, self._backward_by(units), kept),
        ]
        return runs[:1] if np.array_equal(runs[0].ops, runs[1].ops) else runs

    def _runs(self, forward: Iterable[int], backward: Sequence[int], kept: Collection[int]) -> RematSequence:
        """Return the forward ops, then the backward ops, each behind what must be recomputed for it."""
        available = [v in kept for v in range(len(self._op))]
        runs = [self._op[v] for v in forward]
        for op in backward:
            again = self._missing(self._reads[op], available)
            for v in again:
                available[v] = True
            runs += (self._op[v] for v in again)
            runs.append(op)
        return RematSequence.of(self._forward.graph, runs).without_useless_runs()

    def _missing(self, wanted: Iterable[int], available: Sequence[bool]) -> list[int]:
        """Return the vertices that must be run again so that those wanted are there, in topological order."""
        missing: set[int] = set()
        stack = list(wanted)
        while stack:
            v = stack.pop()
            if not available[v] and v not in missing:
                missing.add(v)
                stack.extend(self._reads[self._op[v]])
        return sorted(missing)

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
        unit = list(range(len(self._op)))

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

    def _backward_by(self, units: Sequence[int]) -> list[int]:
        """Return the backward ops, those of the last unit first.

        They belong to the unit of what they differentiate; others, such as sums of gradients, to the unit in which
        their inputs are there.
        """
        place: dict[int, int] = {}
        for op in self._backward:
            after = [place[source] for source in self._sources[op] if source in place]
            vertex = self._differentiates.get(op)
            own = [] if vertex is None else [units[vertex]]
            place[op] = min([*after, *own], default=len(self._op))
        return sorted(self._backward, key=lambda op: -place[op])
