"""The forward part of a training graph, one vertex for each op.

It serves planners that recompute the forward pass for the backward pass. Kusumoto et al. 2019 plan on the graph of
intermediate values. A vertex here is a forward op together with all its outputs, so that ops with several outputs, or
none, need no special case.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from remat_cli.core.graph import Graph, Phase
from remat_cli.errors import PlannerRefuses
from remat_cli.settings import Setting


@dataclass(frozen=True, eq=False)
class ForwardPart:
    """The forward ops of a training graph.

    Vertices are numbered in the input order, which is topological.

    Attributes:
        graph: the training graph.
        ops: [V] number of each vertex's op in the graph.
        bytes: [V] int64, M(v): bytes of the op's outputs.
        time: [V] int64, T(v).
        edges: [E, 2] int64, pairs (u, v): v reads an output of u.
    """

    graph: Graph
    ops: NDArray[np.int64]
    bytes: NDArray[np.int64]
    time: NDArray[np.int64]
    edges: NDArray[np.int64]

    @classmethod
    def of(cls, graph: Graph, planner: str) -> ForwardPart:
        """Extract the forward part of `graph`.

        Raises:
            PlannerRefuses: the graph has no forward or no backward ops, or a forward op reads an output of a backward
                op. The message names `planner`.
        """
        arrays = graph.arrays
        ops = [number for number, op in enumerate(graph.ops) if op.phase is Phase.FORWARD]
        vertex = {op: v for v, op in enumerate(ops)}
        reads = [(int(arrays.producer[tensor]), op) for op in ops for tensor in arrays.inputs[op]]
        edges = sorted({(vertex[source], vertex[op]) for source, op in reads if source in vertex})
        for is_lacking, what in (
            (not ops, "forward ops"),
            (len(ops) == len(graph.ops), "backward ops"),
            (any(source >= 0 and source not in vertex for source, _ in reads), "forward part of its own"),
        ):
            if is_lacking:
                raise PlannerRefuses(
                    f"{planner} plans training graphs, but {graph.name!r} has no {what}",
                    hint=(
                        "use ",
                        Setting("mode", "training"),
                        " to derive the training graph, or dtr, which plans any graph",
                    ),
                )
        outputs = (sum(int(arrays.tensor_bytes[tensor]) for tensor in arrays.outputs[op]) for op in ops)
        return cls(
            graph=graph,
            ops=np.array(ops, dtype=np.int64),
            bytes=np.fromiter(outputs, dtype=np.int64, count=len(ops)),
            time=arrays.op_time[ops],
            edges=np.array(edges, dtype=np.int64).reshape(-1, 2),
        )

    def __len__(self) -> int:
        return len(self.ops)

    @cached_property
    def backward(self) -> list[int]:
        """Numbers of the graph's backward ops and updates, in the input order."""
        return [number for number, op in enumerate(self.graph.ops) if op.phase is not Phase.FORWARD]

    @cached_property
    def _vertex(self) -> dict[int, int]:
        return {op: v for v, op in enumerate(self.ops.tolist())}

    @cached_property
    def _sources(self) -> list[list[int]]:
        """For each op of the graph, the producers of its inputs."""
        producer = self.graph.arrays.producer.tolist()
        return [sorted({producer[tensor] for tensor in inputs} - {-1}) for inputs in self.graph.arrays.inputs]

    @cached_property
    def reads(self) -> list[list[int]]:
        """For each op of the graph, the forward vertices that it reads."""
        return [[self._vertex[source] for source in sources if source in self._vertex] for sources in self._sources]

    @cached_property
    def _read_by_vertex(self) -> list[list[int]]:
        return [self.reads[op] for op in self.ops.tolist()]

    @cached_property
    def must_stay(self) -> list[int]:
        """The vertices of ops that must run exactly once.

        Their outputs cannot be dropped.
        """
        return [int(v) for v in np.flatnonzero(~self.graph.arrays.recomputable[self.ops])]

    def missing(self, wanted: Iterable[int], is_there: Sequence[bool]) -> list[int]:
        """Return the vertices to recompute for the wanted ones, in order."""
        missing: set[int] = set()
        stack = list(wanted)
        while stack:
            v = stack.pop()
            if not is_there[v] and v not in missing:
                missing.add(v)
                stack.extend(self._read_by_vertex[v])
        return sorted(missing)

    def places_of_backward(self, place: Sequence[int], last: int) -> dict[int, int]:
        """Return the place of each backward op.

        The backward pass visits the places from the last one down. An op has the place of the forward op that it
        differentiates. An op without `grad_of`, such as a sum of gradients, runs as soon as its inputs are in memory.

        Args:
            place: [V] place of each vertex.
            last: the place at which the backward pass begins.
        """
        index = self.graph.arrays.op_index
        places: dict[int, int] = {}
        for op in self.backward:
            after = [places[source] for source in self._sources[op] if source in places]
            differentiated = self._vertex.get(index.get(self.graph.ops[op].grad_of or "", -1))
            own = [] if differentiated is None else [place[differentiated]]
            places[op] = min([*after, *own], default=last)
        return places
