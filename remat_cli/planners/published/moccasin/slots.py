"""The events of Bartan et al. 2023 at which ops may run.

They have stages (section 2.3) or not (section 2.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from remat_cli.core.graph import Graph
from remat_cli.planners.published.moccasin.options import FirstRuns
from remat_cli.planners.shared.sequence import RematSequence

Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class EventSlots:
    """The places of each op's runs, each of which is an event in time.

    Attributes:
        scale: events between one place and the next; place p of op v is event `scale * p + offset[v]`.
        offset: number added for each op.
        first: for each op, the places of its first run.
        again: for each op, the places of its other runs.
        most_runs: largest number of runs of each op.
        end: the event after all others, when the graph's outputs are read.
        shared: whether several ops have the same events; an event then has at most one run.
        in_input_order: whether first runs must keep the input order although their places allow other orders.
    """

    scale: int
    offset: Sequence[int]
    first: Sequence[Sequence[int]]
    again: Sequence[Sequence[int]]
    most_runs: Sequence[int]
    end: int
    shared: bool = False
    in_input_order: bool = False

    def event(self, op: int, place: int) -> int:
        """Return the event of an op's place."""
        return self.scale * place + self.offset[op]

    def place(self, op: int, event: int) -> int:
        """Return the place of an op's event."""
        return (event - self.offset[op]) // self.scale

    @property
    def count(self) -> int:
        """Number of places over all ops."""
        return sum(map(len, self.first)) + sum(map(len, self.again))

    @property
    def plain_starts(self) -> list[list[int]]:
        """The events at which each op runs in the plain run."""
        return [[self.event(op, op)] for op in range(len(self.first))]


def line_slots(graph: Graph, order: FirstRuns, max_retentions: int) -> EventSlots:
    """Return an event per possible run, each open to every op (equation 9)."""
    count = len(graph.ops)
    may_rerun = _worth_keeping(graph) & graph.arrays.recomputable
    most_runs = [max_retentions if may else 1 for may in may_rerun.tolist()]
    end = sum(most_runs)
    if order is FirstRuns.INPUT:
        before, after = list(range(count)), [count - 1 - v for v in range(count)]
    else:
        before, after = _relatives(graph)
    return EventSlots(
        scale=1,
        offset=[0] * count,
        first=[range(before[v], end - after[v]) for v in range(count)],
        again=[range(before[v] + 1, end) if most_runs[v] > 1 else () for v in range(count)],
        most_runs=most_runs,
        end=end,
        shared=True,
        in_input_order=order is FirstRuns.INPUT,
    )


def staged_slots(
    graph: Graph, budget_bytes: int, order: FirstRuns, max_retentions: int, depth: int | None = None
) -> EventSlots:
    """Return events in stages: stage t runs op t.

    Before op t, any earlier op may run in its own slot of the stage. A rerun is worth a slot only after a stage that is
    over budget in the plain run, and in a stage where a reader of its outputs can run, for the first time or again;
    depth limits how many such reruns may follow each other. In a free order the first run may wait for such a stage,
    over budget or not; without a limit on depth, for any stage up to the last of them.

    Stages are equally long here, not one event longer each (equation 11), so that places are stages. After the last
    op's stage there is one more, for outputs that are recomputed for the end.

    Args:
        graph: the graph to plan.
        budget_bytes: device memory, resident bytes and graph inputs included.
        order: order of first runs.
        max_retentions: C_v.
        depth: depth of recomputation; None for any.
    """
    count = len(graph.ops)
    peaks = RematSequence.plain(graph).memory
    following = np.arange(1, count + 1)
    passed = np.append(_next(peaks > budget_bytes), count)[following]
    if order is FirstRuns.INPUT:
        chances = _chances(graph, passed, depth)
        first: list[Sequence[int]] = [[v] for v in range(count)]
    else:
        chances = _chances(graph, following - 1, depth)
        first = [_first_places(v, chances[v], depth) for v in range(count)]
    may_rerun = graph.arrays.recomputable & (max_retentions > 1)
    chances &= may_rerun[:, None] & (np.arange(count + 1) > passed[:, None])
    again = [np.flatnonzero(row).tolist() for row in chances]
    return EventSlots(
        scale=count,
        offset=range(count),
        first=first,
        again=again,
        most_runs=[min(max_retentions, 1 + len(places)) for places in again],
        end=count * (count + 1),
    )


def _first_places(op: int, chances: Bools, depth: int | None) -> Sequence[int]:
    """Return the stages of an op's first run in a free order."""
    places = np.flatnonzero(chances).tolist()
    return [op, *places] if depth is not None or not places else range(op, places[-1] + 1)


def _chances(graph: Graph, after: NDArray[np.int64], depth: int | None) -> Bools:
    """Return [ops, stages + 1] whether each op may run out of turn in a stage.

    Args:
        graph: the graph to plan.
        after: [ops] the stage that must have passed; the number of ops for never.
        depth: depth of recomputation; None for any.
    """
    count = len(graph.ops)
    readers = _readers(graph)
    allowed = np.arange(count + 1) > after[:, None]
    chances = np.zeros((count, count + 1), dtype=np.bool_)
    for _ in range(1 if depth is None else depth):
        # Readers come later in the input order: walking backwards, the row of each is complete before its use.
        known = chances if depth is None else chances.copy()
        for v in range(count - 1, -1, -1):
            row = chances[v]
            row[readers[v]] = True
            for reader in readers[v]:
                if reader < count:
                    row |= known[reader]
            row &= allowed[v]
    return chances


def _readers(graph: Graph) -> list[list[int]]:
    """Return the readers of each op's outputs; N stands for the end.

    N is the number of ops. Tensors of 0 bytes are left out.
    """
    arrays = graph.arrays
    readers: list[set[int]] = [set() for _ in graph.ops]
    for v, tensors in enumerate(arrays.inputs):
        for t in tensors:
            if arrays.producer[t] >= 0 and arrays.tensor_bytes[t] > 0:
                readers[arrays.producer[t]].add(v)
    for t in np.flatnonzero(arrays.is_output & (arrays.producer >= 0) & (arrays.tensor_bytes > 0)).tolist():
        readers[arrays.producer[t]].add(len(graph.ops))
    return [sorted(some) for some in readers]


def _worth_keeping(graph: Graph) -> Bools:
    """Return [ops] whether an output of the op takes memory and is read."""
    return np.array([bool(readers) for readers in _readers(graph)])


def _next(flags: Bools) -> NDArray[np.int64]:
    """Return the next index with a set flag, from each index on.

    Without one it is the length.
    """
    count = len(flags)
    ahead = np.where(flags, np.arange(count), count)
    return np.minimum.accumulate(ahead[::-1])[::-1]


def _relatives(graph: Graph) -> tuple[list[int], list[int]]:
    """Return the number of each op's ancestors and descendants."""
    arrays = graph.arrays
    count = len(graph.ops)
    ancestors = np.zeros((count, count), dtype=np.bool_)
    for v, tensors in enumerate(arrays.inputs):
        for t in tensors:
            maker = arrays.producer[t]
            if maker >= 0:
                ancestors[v] |= ancestors[maker]
                ancestors[v, maker] = True
    return ancestors.sum(axis=1).tolist(), ancestors.sum(axis=0).tolist()
