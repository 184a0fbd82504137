"""Cuts of a training graph's forward pass, between the layers of a chain.

The forward ops are taken in the input order. A cut lies after one of them; it hands on the tensors that are made before
it and read after it, by forward ops or by the loss. Tensors that cannot be recomputed, and the graph's outputs, are
*pinned*: they stay alive from their first run to their last use, and no cut hands them on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from remat_cli.core.graph import Graph
from remat_cli.planners.shared.chain import Cuts
from remat_cli.planners.shared.forward_part import ForwardPart

# At most one part in this many of the bytes that a cut newly hands on may be unread by the backward: a chain keeps such
# bytes, the plain run does not.
_UNREAD_PART = 4


@dataclass(frozen=True, slots=True)
class Cut:
    """A place to cut the forward pass.

    Attributes:
        place: of the last forward op before it.
        bytes: of the tensors that it hands on.
    """

    place: int
    bytes: int


class ForwardValues:
    """The forward ops in their order, and the lifetime of each of their tensors.

    Attributes:
        graph: the training graph.
        ops: numbers of the forward ops.
        backward: numbers of the backward ops.
        made_at: place of the forward op that makes each forward tensor.
        last_read: place of the last forward op that reads it; the loss counts as one, in the place after the last.
            That of its producer for a tensor that neither reads.
        pinned: numbers of the pinned tensors.
    """

    def __init__(self, graph: Graph, planner: str) -> None:
        """Look at `graph`.

        Raises:
            PlannerRefuses: the graph has no forward or no backward part. `planner` is named in the message.
        """
        self.graph = graph
        forward = ForwardPart.of(graph, planner)
        self.ops: list[int] = forward.ops.tolist()
        self.backward = forward.backward
        self._arrays = arrays = graph.arrays
        self._bytes: list[int] = arrays.tensor_bytes.tolist()
        self.made_at = {t: place for place, op in enumerate(self.ops) for t in arrays.outputs[op]}
        self.last_read = dict(self.made_at)
        for place, op in enumerate(self.ops):
            self.last_read.update((t, place) for t in arrays.inputs[op] if t in self.made_at)
        self._read_by_backward = {t for op in self.backward for t in arrays.inputs[op] if t in self.made_at}
        self.pinned = frozenset(t for t in self.made_at if self._must_stay(t))
        read_by_loss = [t for op in self.backward for t in self._loss_reads(op)]
        self.last_read.update((t, len(self.ops)) for t in read_by_loss)

    def is_read(self, tensor: int) -> bool:
        """Tell whether any op, forward or backward, reads a forward tensor."""
        return tensor in self._read_by_backward or self.last_read[tensor] > self.made_at[tensor]

    def cuts(self, allowed: Cuts) -> list[Cut]:
        """Return the cuts that are allowed, in ascending order; the last one, which hands on to the loss, always is."""
        cuts: list[Cut] = []
        live = _Tensors(self._bytes)
        new = _Tensors(self._bytes)  # those of them that the cut before does not hand on
        unread = _Tensors(self._bytes)  # those of these that no backward op reads
        for place, (made, dead) in enumerate(self._births_and_deaths()):
            for tensors in (live, new):
                tensors.add(made)
            unread.add(t for t in made if t not in self._read_by_backward)
            for tensors in (live, new, unread):
                tensors.remove(dead)
            is_narrow = allowed is not Cuts.SINGLE or live.count <= 1
            is_worthwhile = allowed is Cuts.EVERY or _UNREAD_PART * unread.bytes <= new.bytes
            is_new = new.bytes > 0 or live.bytes == 0  # a cut that hands on nothing is free
            if (is_narrow and is_worthwhile and is_new) or place == len(self.ops) - 1:
                cuts.append(Cut(place, live.bytes))
                new, unread = _Tensors(self._bytes), _Tensors(self._bytes)
        return cuts

    def handed_on(self, places: Collection[int]) -> dict[int, frozenset[int]]:
        """Return the tensors that cuts in these places hand on."""
        handed_on = {}
        live: set[int] = set()
        for place, (made, dead) in enumerate(self._births_and_deaths()):
            live.update(made)
            live.difference_update(dead)
            if place in places:
                handed_on[place] = frozenset(live)
        return handed_on

    def thinned(self, cuts: Sequence[Cut], most: int) -> list[int]:
        """Drop cuts between small segments that hand on many bytes, until at most `most` segments are left.

        Returns:
            The places of the cuts that are left.
        """
        shares = list(self._shares(cuts))  # of the segment before each cut
        after, before = list(range(1, len(cuts) + 1)), list(range(-1, len(cuts) - 1))

        def score(i: int) -> tuple[float, int]:
            return (shares[i] + shares[after[i]]) / (1 + cuts[i].bytes), i

        left = [True] * len(cuts)
        queue = [score(i) for i in range(len(cuts) - 1)]
        heapify(queue)
        for _ in range(len(cuts) - most):
            entry = heappop(queue)
            while not left[entry[1]] or entry != score(entry[1]):  # out of date
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
        """Return the final forward values that a backward op reads; nothing if it reads any other value."""
        produced = [t for t in self._arrays.inputs[op] if self._arrays.producer[t] >= 0]
        is_loss = all(t in self.made_at and self.last_read[t] == self.made_at[t] for t in produced)
        return produced if is_loss else []

    def _births_and_deaths(self) -> Iterator[tuple[list[int], list[int]]]:
        """Yield, for each place, the tensors made there that are read later, and those read there for the last time."""
        dead: dict[int, list[int]] = {}
        for tensor, place in self.last_read.items():
            dead.setdefault(place, []).append(tensor)
        for place, op in enumerate(self.ops):
            made = [t for t in self._arrays.outputs[op] if self.last_read[t] > place and t not in self.pinned]
            yield made, dead.get(place, [])

    def _shares(self, cuts: Sequence[Cut]) -> Iterator[float]:
        """Yield the share of the segment before each cut in the bytes made, plus that in the time taken."""
        time = self._arrays.op_time[self.ops].tolist()
        made = [sum(self._bytes[t] for t in self._arrays.outputs[op]) for op in self.ops]
        all_made, all_time = max(sum(made), 1), max(sum(time), 1)
        begin = 0
        for cut in cuts:
            end = cut.place + 1
            yield sum(made[begin:end]) / all_made + sum(time[begin:end]) / all_time
            begin = end


class _Tensors:
    """A set of tensors that knows its size.

    Attributes:
        bytes: of all of them.
        count: how many there are, not counting those of 0 bytes.
    """

    def __init__(self, size: Sequence[int]) -> None:
        self.bytes = 0
        self.count = 0
        self._size = size
        self._members: set[int] = set()

    def add(self, tensors: Iterable[int]) -> None:
        """Add tensors that are not in it."""
        for tensor in tensors:
            self._members.add(tensor)
            self._count(tensor, 1)

    def remove(self, tensors: Iterable[int]) -> None:
        """Remove those that are in it."""
        for tensor in tensors:
            if tensor in self._members:
                self._members.remove(tensor)
                self._count(tensor, -1)

    def _count(self, tensor: int, sign: int) -> None:
        self.bytes += sign * self._size[tensor]
        self.count += sign * (self._size[tensor] > 0)
