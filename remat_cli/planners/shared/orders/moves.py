"""Moves of one op in an order, with the cost of all its places at once.

Running an op earlier or later changes memory only at the stages that it passes, and by an amount that does not depend
on the rest of the way. So prefix sums give the cost of every place at once.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from remat_cli.core.graph import Graph
from remat_cli.planners.shared.numbering import Bools, GraphReads, Ints, Ragged
from remat_cli.planners.shared.stages import Stages

# Bytes minus the room, as floating-point numbers: whole and exact below 2^53.
Bytes = NDArray[np.float64]

# The largest number of places of one move, which bounds its work in long orders.
_REACH = 1000
# Ops that read a tensor with more readers than this stay where they are: the lists below grow with its square.
_MOST_READERS = 256


class Uses(NamedTuple):
    """The dependencies that bound an op's places, and the tensors that can end with it.

    Attributes:
        before: producers of the op's inputs.
        after: readers of the op's outputs.
        users: producer and other readers of each counted input, one input after the other.
        users_start: start of each counted input in `users`.
        input_bytes: bytes of each counted input.
        held_bytes: bytes of the outputs still needed after the op.
        own_bytes: bytes of all outputs and of the workspace.
    """

    before: Ints
    after: Ints
    users: Ints
    users_start: Ints
    input_bytes: Bytes
    held_bytes: float
    own_bytes: float


class Takeover(NamedTuple):
    """An op that can take over the storage of a counted input.

    `input` is the position among the counted inputs, `bytes` the saving.
    """

    op: int
    input: int
    bytes: float


@dataclass(frozen=True, eq=False)
class Dependencies:
    """The dependencies and tensors of each op, in the graph's numbers.

    The *counted* inputs of an op are those whose memory ends at some op: no graph inputs, tensors of 0 bytes or outputs
    of the graph.

    Attributes:
        makers: [E] producer of each dependency.
        readers: [E] reader of each dependency.
        movable: [N] whether each op may be moved.
        users: for each op, producer and other readers of each counted input, one input after the other.
        users_start: for each op, start of each counted input in `users`.
        input_bytes: for each op, bytes of each counted input.
        held_bytes: for each op, bytes of the outputs still needed afterwards.
        own_bytes: for each op, bytes of all outputs and of the workspace.
        takeovers: for each op, the ops that can take over one of its counted inputs.
    """

    makers: Ints
    readers: Ints
    movable: Bools
    users: list[Ints]
    users_start: list[Ints]
    input_bytes: list[Bytes]
    held_bytes: list[float]
    own_bytes: list[float]
    takeovers: dict[int, list[Takeover]]

    @classmethod
    def of(cls, graph: Graph) -> Dependencies:
        """Gather the dependencies of `graph`."""
        arrays = graph.arrays
        count = len(graph.ops)
        readers, read = GraphReads.of(graph).every_read
        is_made = arrays.producer[read] >= 0
        readers, read = readers[is_made], read[is_made]
        pairs = np.unique(readers * count + arrays.producer[read])

        counted = (arrays.tensor_bytes[read] > 0) & ~arrays.is_output[read]
        by_tensor = np.argsort(read, kind="stable")
        readers_of = Ragged.of(read[by_tensor], readers[by_tensor], len(arrays.producer))
        number_of_readers = np.diff(readers_of.start)
        movable = np.ones(count, dtype=np.bool_)
        movable[readers[counted & (number_of_readers[read] > _MOST_READERS)]] = False
        counted &= movable[readers]
        reader, tensor = readers[counted], read[counted]

        sizes = arrays.tensor_bytes
        needed = np.flatnonzero((arrays.producer >= 0) & (arrays.is_output | (number_of_readers > 0)))
        produced = np.flatnonzero(arrays.producer >= 0)
        held = np.bincount(arrays.producer[needed], weights=sizes[needed], minlength=count)
        own = np.bincount(arrays.producer[produced], weights=sizes[produced], minlength=count) + arrays.workspace_bytes
        users, users_start = _users(reader, tensor, arrays.producer[tensor], readers_of, count)
        starts = np.searchsorted(reader, np.arange(1, count))
        return cls(
            makers=pairs % count,
            readers=pairs // count,
            movable=movable,
            users=users,
            users_start=users_start,
            input_bytes=np.split(sizes[tensor].astype(np.float64), starts),
            held_bytes=held.tolist(),
            own_bytes=own.tolist(),
            takeovers=_takeovers(graph, reader, tensor),
        )

    @cached_property
    def before(self) -> list[Ints]:
        """For each op, the producers of its inputs."""
        return np.split(self.makers, np.searchsorted(self.readers, np.arange(1, len(self.movable))))

    @cached_property
    def after(self) -> list[Ints]:
        """For each op, the readers of its outputs."""
        by_maker = np.argsort(self.makers, kind="stable")
        starts = np.searchsorted(self.makers[by_maker], np.arange(1, len(self.movable)))
        return np.split(self.readers[by_maker], starts)

    @cached_property
    def uses(self) -> list[Uses]:
        """For each op, its dependencies and tensors."""
        columns = (self.before, self.after, self.users, self.users_start)
        sizes = (self.input_bytes, self.held_bytes, self.own_bytes)
        return [Uses(*row) for row in zip(*columns, *sizes, strict=True)]


def _users(reader: Ints, tensor: Ints, maker: Ints, readers_of: Ragged, count: int) -> tuple[list[Ints], list[Ints]]:
    """Return `users` and `users_start` from pairs (reader, tensor).

    Pairs are sorted by reader; `maker` has each tensor's producer.
    """
    pairs = np.arange(len(tensor))
    pair, other = readers_of.expand(tensor)
    is_other = other != reader[pair]
    pair, other = np.concatenate([pairs, pair[is_other]]), np.concatenate([maker, other[is_other]])
    by_pair = np.argsort(pair, kind="stable")
    pair, other = pair[by_pair], other[by_pair]
    pair_start = np.searchsorted(pair, pairs)
    first_pair = np.searchsorted(reader, np.arange(count + 1))
    first_user = np.append(pair_start, len(other))[first_pair]
    users = np.split(other, first_user[1:-1])
    users_start = np.split(pair_start - first_user[reader], first_pair[1:-1])
    return users, users_start


def _takeovers(graph: Graph, reader: Ints, tensor: Ints) -> dict[int, list[Takeover]]:
    """Return `takeovers` from pairs (reader, tensor), sorted by reader."""
    arrays = graph.arrays
    takers: dict[int, list[tuple[int, float]]] = {}
    for op in np.flatnonzero(arrays.inplace_bytes).tolist():
        takers.setdefault(arrays.inplace[op], []).append((op, float(arrays.inplace_bytes[op])))
    takeovers: dict[int, list[Takeover]] = {}
    if not takers:
        return takeovers
    first_pair = np.searchsorted(reader, reader)
    for pair, (op, read) in enumerate(zip(reader.tolist(), tensor.tolist(), strict=True)):
        for taker, saved in takers.get(read, ()):
            takeovers.setdefault(op, []).append(Takeover(taker, pair - int(first_pair[pair]), saved))
    return takeovers


class Places(NamedTuple):
    """All places of an op, with the other ops in their order.

    Place 0 is the earliest one.

    Attributes:
        op: number of the op.
        first: stage of place 0.
        now: its current place.
        excess: [3, P] memory minus the room, in three rows: the op now at each place before the moved op; the same op
            after the moved op; and the moved op at that place.
        rise: [P + 1] bytes that the moved op adds after its run before each place, and after the last.
        cost: [P] excess over the stages of all places with the op at each place, up to a constant.
    """

    op: int
    first: int
    now: int
    excess: Bytes
    rise: Bytes
    cost: Bytes


def _levels(produced_at: Ints, last_read: Ints, sizes: Ints, count: int) -> Bytes:
    """[count + 1] Return the memory before each stage, and at the end.

    Args:
        produced_at: [T] stage of each tensor's producer.
        last_read: [T] stage of each tensor's last read; `count` for the end.
        sizes: [T] bytes of each tensor.
        count: number of stages.
    """
    change = np.zeros(count + 2)
    np.add.at(change, produced_at + 1, sizes)
    np.add.at(change, last_read + 1, -sizes)
    return np.cumsum(change)[: count + 1]


class Layout:
    """An order that moves of single ops change, with its memory.

    It computes the memory for all places of an op at once.

    Attributes:
        order: [N] op of each stage.
        position: [N] stage of each op.
        excess: [N] memory during each stage, minus the room.
        between: [N + 1] memory before each stage and at the end, minus the room.
    """

    def __init__(self, dependencies: Dependencies, stages: Stages, room: int) -> None:
        """Lay out a graph in the order of its stages."""
        count = len(stages)
        self._dependencies = dependencies
        self.order = stages.order.copy()
        self.position = np.empty(count, dtype=np.int64)
        self.position[self.order] = np.arange(count)
        self.excess = stages.plain_bytes.astype(np.float64) - room
        self.between = _levels(stages.produced_at, stages.last_read, stages.bytes, count) - room

    def copy(self) -> Layout:
        """Return a copy to be changed independently."""
        new = copy(self)
        for name in ("order", "position", "excess", "between"):
            setattr(new, name, getattr(self, name).copy())
        return new

    @property
    def total_excess(self) -> float:
        """Memory above the room, summed over the stages."""
        return float(np.add.reduce(np.maximum(self.excess, 0.0)))  # `sum` takes longer for a few entries

    def places(self, op: int) -> Places | None:
        """Return the possible places of `op`; None for a single place."""
        uses = self._dependencies.uses[op]
        before, after = uses.before, uses.after
        position = self.position
        stage = int(position[op])
        first = int(np.maximum.reduce(position[before])) + 1 if len(before) else 0
        last = int(np.minimum.reduce(position[after])) - 1 if len(after) else len(self.order) - 1
        if first == last:
            return None
        first, last = max(first, stage - _REACH), min(last, stage + _REACH)
        now, count = stage - first, last - first + 1
        ends = self._ends(uses, first, count)
        rise = _rise(uses, ends, count)
        own = uses.own_bytes
        excess = np.empty((3, count))
        excess[:2] = self.excess[first : last + 1]
        excess[0, now + 1 :] -= rise[now + 1 : -1]
        excess[1, :now] += rise[:now]
        excess[2, : now + 1] = self.between[first : stage + 1] + own
        excess[2, now + 1 :] = self.between[stage + 2 : last + 2] - rise[now + 2 :] + own
        self._share(op, ends, first, now, excess)
        excess[:2, now] = 0.0  # the moved op does not pass itself
        above = np.maximum(excess, 0.0)
        passed = np.cumsum(above[0] - above[1])
        cost = above[2]
        cost[1 : now + 1] += passed[:now]
        cost[now + 1 :] += passed[now + 1 :]
        return Places(op, first, now, excess, rise, cost)

    def move(self, places: Places, place: int) -> None:
        """Move an op to one of its places."""
        op, first, now, excess, rise, _ = places
        if place == now:
            return
        start, end = first + now, first + place
        if place > now:
            self.order[start:end] = self.order[start + 1 : end + 1]
            self.excess[start:end] = excess[0, now + 1 : place + 1]
            self.between[start + 1 : end + 1] = self.between[start + 2 : end + 2] - rise[now + 2 : place + 2]
        else:
            start, end = end, start
            self.order[start + 1 : end + 1] = self.order[start:end]
            self.excess[start + 1 : end + 1] = excess[1, place:now]
            self.between[start + 1 : end + 1] = self.between[start:end] + rise[place:now]
        self.order[first + place] = op
        self.excess[first + place] = excess[2, place]
        self.position[self.order[start : end + 1]] = np.arange(start, end + 1)

    def loose(self) -> Ints:
        """Return the ops that can move."""
        earliest, latest = self._ranges()
        return np.flatnonzero((earliest < latest) & self._dependencies.movable)

    def restless(self) -> Ints:
        """Return the ops that can move across a stage lacking memory."""
        earliest, latest = self._ranges()
        lacking = np.concatenate([[0], np.cumsum(self.excess > 0)])
        can = (earliest < latest) & (lacking[latest + 1] > lacking[earliest])
        return np.flatnonzero(can & self._dependencies.movable)

    def _share(self, op: int, ends: Ints, first: int, now: int, excess: Bytes) -> None:
        """Subtract savings in place that depend on the moved op's place.

        They arise at the moved op, and at ops that become or cease to be an input's last reader.
        """
        for taker, which, saved in self._dependencies.takeovers.get(op, ()):
            end = int(ends[which])
            if taker == op:
                # A place before the current one puts the op before that stage's own op, a later place puts it behind.
                excess[2, end if end <= now else end - 1 :] -= saved
            elif 0 < end <= excess.shape[1] and self.order[first + end - 1] == taker:
                # The last of the other readers: it works in place if and only if the moved op has run.
                if end - 1 > now:
                    excess[0, end - 1] += saved
                else:
                    excess[1, end - 1] -= saved

    def _ranges(self) -> tuple[Ints, Ints]:
        """Return the first and last stage that dependencies allow each op.

        The other ops keep their order.
        """
        makers, readers = self._dependencies.makers, self._dependencies.readers
        count = len(self.order)
        earliest, latest = np.zeros(count, dtype=np.int64), np.full(count, count - 1)
        np.maximum.at(earliest, readers, self.position[makers] + 1)
        np.minimum.at(latest, makers, self.position[readers] - 1)
        return earliest, latest

    def _ends(self, uses: Uses, first: int, count: int) -> Ints:
        """For each counted input, the first place after all its other readers.

        It is at most `count` + 1.
        """
        if not len(uses.users):
            return uses.users
        last_use: Ints = np.maximum.reduceat(self.position[uses.users], uses.users_start)
        return np.minimum(np.maximum(last_use + (1 - first), 0), count + 1)


def _rise(uses: Uses, ends: Ints, count: int) -> Bytes:
    """Bytes that the op adds after its run before each place.

    These are its outputs, minus the inputs that end with it.
    """
    held = uses.held_bytes
    if not len(ends):
        return np.full(count + 1, held)
    ended = np.bincount(ends, weights=uses.input_bytes, minlength=count + 2)
    return held - np.cumsum(ended, dtype=np.float64)[: count + 1]
