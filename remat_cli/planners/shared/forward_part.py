"""The forward part of a training graph, as the lower-set planners see it: one vertex an op, sizes and times a vertex.

Kusumoto et al. 2019 plan on the graph of intermediate values. A vertex here is a forward op together with all its
outputs, so that graphs with several outputs an op, or none, need no special case.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from remat_cli.errors import PlannerRefuses
from remat_cli.graph import Graph, Phase
from remat_cli.settings import Setting


@dataclass(frozen=True, eq=False)
class ForwardPart:
    """The forward ops of a training graph; vertices are numbered in the input order, which is topological.

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
            PlannerRefuses: the graph has no forward or no backward ops, or its forward reads what the backward
                makes. `planner` is named in the message.
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
