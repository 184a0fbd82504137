"""Cuts between the layers of a training graph's forward pass.

The forward ops are taken in the input order. A cut lies after one of these ops. It passes on the tensors that are
  produced before and read after, by forward ops or by the loss. Tensors that cannot be recomputed, and the graph's
  outputs, are
*pinned*: they stay in memory from their first run to their last use, and no cut passes them on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from remat_cli.core.graph import Graph
from remat_cli.planners.shared.chain import Cuts
from remat_cli.planners.shared.forward_part import ForwardPart

# At most one part in this many of a cut's new bytes may be unread by the backward: a chain keeps such bytes, the plain
# run does not.
_UNREAD_PART = 4


@dataclass(frozen=True, slots=True)
class Cut:
    """A place to cut the forward pass.

    Attributes:
        place: place of the last forward op before the cut.
        bytes: bytes of the tensors that it passes on.
    """

    place: int
    bytes: int


class ForwardValues:
    """The forward ops in order, and the lifetimes of their tensors.

    Attributes:
        graph: the training graph.
        ops: numbers of the forward ops.
        backward: numbers of the backward ops.
        produced_at: place of each forward tensor's producer.
        last_read: place of the last forward op that reads each tensor. The loss counts as a forward op after the last
            one. A tensor that neither reads has the place of its producer.
        pinned: numbers of the pinned tensors.
    """

    def __init__(self, graph: Graph, planner: str) -> None:
        """Analyse the forward pass of `graph`.

        Raises:
            PlannerRefuses: the graph has no forward or no backward part. The message names `planner`.
        """
        self.graph = graph
        forward = ForwardPart.of(graph, planner)
        self.ops: list[int] = forward.ops.tolist()
        self.backward = forward.backward
        self._arrays = arrays = graph.arrays
        self._bytes: list[int] = arrays.tensor_bytes.tolist()
        self.produced_at = {t: place for place, op in enumerate(self.ops) for t in arrays.outputs[op]}
        self.last_read = dict(self.produced_at)
        for place, op in enumerate(self.ops):
            self.last_read.update((t, place) for t in arrays.inputs[op] if t in self.produced_at)
        self._read_by_backward = {t for op in self.backward for t in arrays.inputs[op] if t in self.produced_at}
        self.pinned = frozenset(t for t in self.produced_at if self._must_stay(t))
        read_by_loss = [t for op in self.backward for t in self._loss_reads(op)]
        self.last_read.update((t, len(self.ops)) for t in read_by_loss)

    def is_read(self, tensor: int) -> bool:
        """Tell whether any forward or backward op reads a forward tensor."""
        return tensor in self._read_by_backward or self.last_read[tensor] > self.produced_at[tensor]

    def cuts(self, allowed: Cuts) -> list[Cut]:
        """Return the allowed cuts, ascending.

        The last one, before the loss, is always allowed.
        """
        cuts: list[Cut] = []
        live = _Tensors(self._bytes)
        new = _Tensors(self._bytes)  # live tensors that the cut before does not pass on
        unread = _Tensors(self._bytes)  # new tensors that no backward op reads
        for place, (born, dead) in enumerate(self._births_and_deaths()):
            for tensors in (live, new):
                tensors.add(born)
            unread.add(t for t in born if t not in self._read_by_backward)
            for tensors in (live, new, unread):
                tensors.remove(dead)
            is_narrow = allowed is not Cuts.SINGLE or live.count <= 1
            is_worthwhile = allowed is Cuts.EVERY or _UNREAD_PART * unread.bytes <= new.bytes
            is_new = new.bytes > 0 or live.bytes == 0  # a cut that passes on nothing costs nothing
            if (is_narrow and is_worthwhile and is_new) or place == len(self.ops) - 1:
                cuts.append(Cut(place, live.bytes))
                new, unread = _Tensors(self._bytes), _Tensors(self._bytes)
        return cuts

    def handed_on(self, places: Collection[int]) -> dict[int, frozenset[int]]:
        """Return the tensors that cuts at these places pass on."""
        handed_on = {}
        live: set[int] = set()
        for place, (born, dead) in enumerate(self._births_and_deaths()):
            live.update(born)
            live.difference_update(dead)
            if place in places:
                handed_on[place] = frozenset(live)
        return handed_on

    def thinned(self, cuts: Sequence[Cut], most: int) -> list[int]:
        """Drop cuts until at most `most` segments are left.

        Cuts between small segments that pass on many bytes go first.

        Returns:
            The places of the remaining cuts.
        """
        shares = list(self._shares(cuts))  # share of the segment before each cut
        after, before = list(range(1, len(cuts) + 1)), list(range(-1, len(cuts) - 1))

        def score(i: int) -> tuple[float, int]:
            return (shares[i] + shares[after[i]]) / (1 + cuts[i].bytes), i

        left = [True] * len(cuts)
        queue = [score(i) for i in range(len(cuts) - 1)]
        heapify(queue)
        for _ in range(len(cuts) - most):
            entry = heappop(queue)
            while not left[entry[1]] or entry != score(entry[1]):  # outdated
                entry = heappop(queue)
            i = entry[1]
            left[i] = False
            shares[after[i]] += shares[i]
            before[after[i]] = before[i]
            if before[i] >= 0:
                after[before[i]] = after[i]
            for changed in (before[i], after[i]):
                if 0 <= changed < len(cuts) - 1:
                    heappush(queue, score(changed))
        return [cut.place for cut, is_left in zip(cuts, left, strict=True) if is_left]

    def _must_stay(self, tensor: int) -> bool:
        if self._arrays.is_output[tensor]:
            return True
        return self.is_read(tensor) and not self.graph.ops[int(self._arrays.producer[tensor])].recomputable

    def _loss_reads(self, op: int) -> list[int]:
        """Return the final forward values that a backward op reads.

        The list is empty if the op reads any other value.
        """
        produced = [t for t in self._arrays.inputs[op] if self._arrays.producer[t] >= 0]
        is_loss = all(t in self.produced_at and self.last_read[t] == self.produced_at[t] for t in produced)
        return produced if is_loss else []

    def _births_and_deaths(self) -> Iterator[tuple[list[int], list[int]]]:
        """Yield the tensors that begin and end at each place.

        They begin with their production if they are read later, and end with their last read.
        """
        dead: dict[int, list[int]] = {}
        for tensor, place in self.last_read.items():
            dead.setdefault(place, []).append(tensor)
        for place, op in enumerate(self.ops):
            born = [t for t in self._arrays.outputs[op] if self.last_read[t] > place and t not in self.pinned]
            yield born, dead.get(place, [])

    def _shares(self, cuts: Sequence[Cut]) -> Iterator[float]:
        """Yield the share of each segment in bytes plus its share in time."""
        time = self._arrays.op_time[self.ops].tolist()
        output_bytes = [sum(self._bytes[t] for t in self._arrays.outputs[op]) for op in self.ops]
        all_bytes, all_time = max(sum(output_bytes), 1), max(sum(time), 1)
        begin = 0
        for cut in cuts:
            end = cut.place + 1
            yield sum(output_bytes[begin:end]) / all_bytes + sum(time[begin:end]) / all_time
            begin = end


class _Tensors:
    """A set of tensors with its total size.

    Attributes:
        bytes: bytes of all tensors in the set.
        count: number of tensors of more than 0 bytes.
    """

    def __init__(self, size: Sequence[int]) -> None:
        self.bytes = 0
        self.count = 0
        self._size = size
        self._members: set[int] = set()

    def add(self, tensors: Iterable[int]) -> None:
        """Add tensors that are not in the set."""
        for tensor in tensors:
            self._members.add(tensor)
            self._count(tensor, 1)

    def remove(self, tensors: Iterable[int]) -> None:
        """Remove tensors, unless they are missing."""
        for tensor in tensors:
            if tensor in self._members:
                self._members.remove(tensor)
                self._count(tensor, -1)

    def _count(self, tensor: int, sign: int) -> None:
        self.bytes += sign * self._size[tensor]
        self.count += sign * (self._size[tensor] > 0)
