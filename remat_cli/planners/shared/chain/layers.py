"""The layers of a chain: the assignment of ops to layers.

Each segment between two cuts is a layer, and the tensors that it passes on are its activation. The loss is a layer of
its own, N, without forward ops. A backward op belongs to the layer whose forward values it reads; these values are
those of its own segment and the segment's input. If a graph breaks this rule, the segments in between are joined.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from remat_cli.core.graph import Graph
from remat_cli.planners.shared.chain import Cuts
from remat_cli.planners.shared.chain.cuts import ForwardValues


@dataclass(frozen=True, eq=False)
class Layer:
    """A segment of the forward pass and its backward.

    Attributes:
        forward: numbers of the forward ops, in the order of their runs.
        backward: numbers of the backward ops, in the order of their runs.
        activation: a_l: numbers of the tensors that later segments read, without pinned ones.
        pinned: numbers of the layer's pinned outputs that later layers read, forward or backward.
        saved: numbers of the layer's outputs that its backward reads; some may be in `activation`.
    """

    forward: tuple[int, ...] = ()
    backward: tuple[int, ...] = ()
    activation: frozenset[int] = frozenset()
    pinned: frozenset[int] = frozenset()
    saved: frozenset[int] = frozenset()


@dataclass(frozen=True, eq=False)
class Layers:
    """A training graph cut into the layers of a chain.

    Attributes:
        graph: the training graph.
        layers: [N + 1] layers by number. Layer 0 is empty: the graph's inputs never leave memory. Layer N is the loss.
        pinned: numbers of forward tensors that stay from their first run to their last use.
        once: numbers of forward ops that run exactly once: they may not run again, or all their outputs that are read
            are pinned.
    """

    graph: Graph
    layers: tuple[Layer, ...]
    pinned: frozenset[int]
    once: frozenset[int]


def cut_into_layers(graph: Graph, planner: str, cuts: Cuts, most_segments: int) -> Layers:
    """Cut `graph` into at most `most_segments` segments and the loss.

    Args:
        graph: a training graph.
        planner: name of the planner, for the message of a refusal.
        cuts: the allowed cuts.
        most_segments: largest number of segments; beyond it, small neighbours are joined.

    Raises:
        PlannerRefuses: the graph has no forward or no backward part.
    """
    values = ForwardValues(graph, planner)
    ends = values.thinned(values.cuts(cuts), most_segments)
    while True:
        segments = _Segments(values, ends)
        given_up = segments.ends_to_give_up()
        if not given_up:
            return segments.layers()
        ends = [end for end in ends if end not in given_up]


class _Segments:
    """The forward pass cut after some places, and the layer of each op."""

    def __init__(self, values: ForwardValues, ends: Sequence[int]) -> None:
        self._values = values
        self._ends = ends
        self._graph = values.graph
        self._arrays = values.graph.arrays
        self._producing_layer = {t: self._layer_at(place) for t, place in values.produced_at.items()}
        # A layer's input stays in memory for its backward.
        self._last_reader = {t: self._layer_at(place) for t, place in values.last_read.items()}
        self._layer_of = {op: self._layer_at(place) for place, op in enumerate(values.ops)}
        for op in values.backward:
            self._layer_of[op] = self._layer_of_backward(op)

    def _layer_at(self, place: int) -> int:
        return bisect_left(self._ends, place) + 1

    @property
    def _loss(self) -> int:
        return len(self._ends) + 1

    def _reads(self, op: int) -> list[int]:
        """Return the forward values that a backward op reads, unless pinned."""
        return [t for t in self._arrays.inputs[op] if t in self._producing_layer and t not in self._values.pinned]

    def _layer_of_backward(self, op: int) -> int:
        """Return the layer whose backward runs an op: the highest possible.

        The gradients and forward values that it reads must be in memory. An op with `grad_of` waits for the layer of
        that forward op, if the values that it reads are still in memory then.
        """
        reads = self._reads(op)
        sources = (int(self._arrays.producer[t]) for t in self._arrays.inputs[op] if t not in self._producing_layer)
        layers = [self._layer_of[source] for source in sources if source >= 0]
        layers += [self._last_reader[t] for t in reads]
        own = self._layer_of.get(self._arrays.op_index.get(self._graph.ops[op].grad_of or "", -1))
        if own is not None:
            layers.append(max([own, *(self._producing_layer[t] for t in reads)]))
        return min(layers, default=self._loss)

    def ends_to_give_up(self) -> set[int]:
        """Return the cuts that a backward op's reads do not allow.

        They lie between the op's layer and a later layer whose value the op reads.
        """
        given_up: set[int] = set()
        for op in self._values.backward:
            layer = self._layer_of[op]
            highest = max((self._producing_layer[t] for t in self._reads(op)), default=layer)
            given_up.update(self._ends[layer - 1 : highest - 1])
        return given_up

    def layers(self) -> Layers:
        """Return the layers of these segments."""
        values = self._values
        backward: list[list[int]] = [[] for _ in range(self._loss + 1)]
        for op in values.backward:
            backward[self._layer_of[op]].append(op)
        pinned: list[list[int]] = [[] for _ in range(self._loss + 1)]
        for tensor in filter(self._is_read_by_later_layers, values.pinned):
            pinned[self._producing_layer[tensor]].append(tensor)
        handed_on = values.handed_on(set(self._ends))
        layers = [Layer()]
        begin = 0
        for number, end in enumerate((*self._ends, len(values.ops)), start=1):
            saved = (t for op in backward[number] for t in self._reads(op) if self._producing_layer[t] == number)
            layers.append(
                Layer(
                    forward=tuple(values.ops[begin : end + 1]),
                    backward=tuple(backward[number]),
                    activation=handed_on.get(end, frozenset()),
                    pinned=frozenset(pinned[number]),
                    saved=frozenset(saved),
                )
            )
            begin = end + 1
        once = frozenset(op for op in values.ops if self._runs_once(op))
        return Layers(self._graph, tuple(layers), values.pinned, once)

    def _is_read_by_later_layers(self, tensor: int) -> bool:
        readers = self._graph.consumers[self._arrays.tensor_names[tensor]]
        return any(self._layer_of[self._arrays.op_index[op.name]] > self._producing_layer[tensor] for op in readers)

    def _runs_once(self, op: int) -> bool:
        pinned, is_read = self._values.pinned, self._values.is_read
        runs_again = self._graph.ops[op].recomputable
        return not runs_again or all(t in pinned or not is_read(t) for t in self._arrays.outputs[op])
