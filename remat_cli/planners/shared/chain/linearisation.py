"""A training graph as a chain of layers, and its plans as plans of the graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from remat_cli.core.graph import Graph
from remat_cli.planners.shared.chain import Cuts
from remat_cli.planners.shared.chain.layers import Layer, Layers, cut_into_layers
from remat_cli.planners.shared.chain.measures import Gauge
from remat_cli.planners.shared.chain.model import ChainStep, Operation
from remat_cli.units import format_bytes, format_share


@dataclass(frozen=True, eq=False)
class Linearised:
    """A training graph as a chain of layers.

    Attributes:
        graph: the training graph.
        cut: the ops and tensors of each layer.
        gauge: measures the layers.
    """

    graph: Graph
    cut: Layers
    gauge: Gauge

    def __len__(self) -> int:
        """Return N, the number of layers."""
        return len(self.cut.layers) - 1

    @property
    def base_bytes(self) -> int:
        """Bytes outside the layers: resident bytes, graph inputs, pinned tensors."""
        return self.gauge.base_bytes

    @property
    def base_time(self) -> int:
        """Time of the ops that run once, which no layer's times include."""
        return self.gauge.base_time

    @property
    def largest_segment(self) -> Layer:
        """The layer whose forward pass has the most ops."""
        return max(self.cut.layers, key=lambda layer: len(layer.forward))

    @property
    def largest_described(self) -> str:
        """The size of the largest segment, for people."""
        arrays, segment = self.graph.arrays, self.largest_segment
        ops = sum(len(layer.forward) for layer in self.cut.layers)
        output_bytes = sum(int(arrays.tensor_bytes[t]) for op in segment.forward for t in arrays.outputs[op])
        share = format_share(len(segment.forward) / ops)
        return f"{len(segment.forward)} of {ops} forward ops ({share}), which make {format_bytes(output_bytes)}"

    @property
    def without_plan(self) -> str:
        """The reason why plans of a chain may not fit, for people."""
        return (
            "no plan of the chain was found that fits, which proves nothing; the largest of its "
            f"{len(self)} layers, which is run as a whole, has {self.largest_described}; "
            "dtr and retention need no chain"
        )

    def runs(self, steps: Sequence[ChainStep]) -> list[tuple[int, ...]]:
        """Return the numbers of the ops that each step of a chain's plan runs.

        Needless runs are dropped: reruns of ops that run once, and runs whose outputs are all recomputed before their
        next read, as long as the op has another run.
        """
        done: set[int] = set()
        runs = []
        for step in steps:
            ops = [op for op in self._ops(step) if op not in done]
            done |= self.cut.once.intersection(ops)
            runs.append(ops)
        return self._useful(runs)

    def computes(self, steps: Sequence[ChainStep]) -> list[str]:
        """Return the names of the ops that a chain's plan runs, in order."""
        return [self.graph.ops[op].name for ops in self.runs(steps) for op in ops]

    def _ops(self, step: ChainStep) -> tuple[int, ...]:
        match step.kind:
            case Operation.BACKWARD:
                return self.cut.layers[step.layer].backward
            case Operation.FORWARD_ALL:
                return self.cut.layers[step.layer].forward
            case _:
                return self.gauge.no_grad_runs[step.layer].ops

    def _useful(self, runs: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
        """Drop runs without needed outputs.

        An op without a useful run keeps its first run.
        """
        arrays, pinned = self.graph.arrays, self.cut.pinned
        earlier = Counter(op for ops in runs for op in ops)
        is_kept = [False] * len(self.graph.ops)
        # Walking backwards: a tensor in `needed` is read before it is recomputed. A pinned tensor is produced by the
        # first run, and stays.
        needed = set(np.flatnonzero(arrays.is_output).tolist())
        useful: list[tuple[int, ...]] = []
        for ops in reversed(runs):
            kept = []
            for op in reversed(ops):
                earlier[op] -= 1
                wanted = needed.intersection(arrays.outputs[op])
                if earlier[op]:
                    wanted -= pinned
                if wanted or not (earlier[op] or is_kept[op]):
                    kept.append(op)
                    is_kept[op] = True
                    needed -= wanted
                    needed.update(arrays.inputs[op])
            useful.append(tuple(reversed(kept)))
        return useful[::-1]


@lru_cache(maxsize=8)
def linearise(graph: Graph, planner: str, cuts: Cuts, segments: int) -> Linearised:
    """Cut and measure `graph` as a chain of segments and the loss.

    At most `segments` segments are made.

    Args:
        graph: a training graph.
        planner: name of the planner, for the message of a refusal.
        cuts: the allowed cuts.
        segments: largest number of segments; beyond it, small neighbours are joined.

    Raises:
        PlannerRefuses: the graph has no forward or no backward part.
    """
    cut = cut_into_layers(graph, planner, cuts, segments)
    return Linearised(graph, cut, Gauge(cut))
