"""Arenas: blocks of memory with an offset for all that a schedule keeps in them, and the judge's check of them.

The check is written the slow, obvious way, and shares nothing with who chose the offsets.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from fractions import Fraction

from remat_cli.core.graph import Graph, Op
from remat_cli.core.schedule import Compute, Free, Inplace, Prefetch, Schedule
from remat_cli.errors import InvalidSchedule

# Bytes that processors and runtimes ask of an address: a cache line.
USUAL_ALIGNMENT = 64
# The step at which graph inputs are there: before the first.
AT_START = -1


@dataclass(frozen=True, slots=True)
class Address:
    """Where something lies that a step makes.

    Attributes:
        step: index of the step that makes it; `AT_START` of a graph input.
        tensor: its name; None: the workspace of the op that the step runs.
        offset: of its first byte, from the beginning of the arena, or of its bank.
        bank: name of the bank; None where the arena has none.
    """

    step: int
    tensor: str | None
    offset: int
    bank: str | None = None


@dataclass(frozen=True, slots=True)
class Bank:
    """A memory of its own, with addresses from 0 on.

    Attributes:
        name: of its own among the banks.
        bytes: its size.
        speed: bytes a time, beside the first bank's.
    """

    name: str
    bytes: int
    speed: Fraction

    def __str__(self) -> str:
        """The bank as users write it, without its name: SIZE[:SPEED]."""
        if self.speed == 1:
            return str(self.bytes)
        return f"{self.bytes}:{float(self.speed):.9f}".rstrip("0").rstrip(".")


@dataclass(frozen=True)
class Arena:
    """Memory in which all tensors and workspaces of a schedule lie; resident bytes lie beside it.

    Attributes:
        bytes: size of the block; with banks, as much as is used of them together.
        alignment: every offset is a multiple of it.
        addresses: one for each thing of more than 0 bytes that a step makes. The first output of an in-place step has
            none: it lies where the input lay whose storage it takes over.
        banks: in which everything lies, each thing in one; empty: in one block.
    """

    bytes: int
    alignment: int
    addresses: tuple[Address, ...]
    banks: tuple[Bank, ...] = ()

    @property
    def span_bytes(self) -> int:
        """Size of the block, or of all banks together."""
        return sum(bank.bytes for bank in self.banks) or self.bytes

    @property
    def bank_starts(self) -> dict[str | None, int]:
        """Where each bank begins if they stand one after the other, by name; None stands for the block."""
        starts: dict[str | None, int] = {None: 0}
        at = 0
        for bank in self.banks:
            starts[bank.name] = at
            at += bank.bytes
        return starts


def check_arena(graph: Graph, schedule: Schedule, arena: Arena) -> None:
    """Check that everything that is in memory at the same time has bytes of its own, all of them inside the arena.

    Takes time near linear in the steps: the neighbours of what is placed are found by bisection.

    Args:
        graph: what the schedule is for.
        schedule: valid; `simulate` says whether it is.
        arena: with the addresses that are checked.

    Raises:
        InvalidSchedule: something has no address, or a wrong one; the first clash is named. Or an address is of
            nothing that the step makes.
    """
    rooms = _rooms(arena)
    block = _Block(arena, rooms, _offsets(arena, rooms))
    for name in graph.inputs:
        block.place(AT_START, name, graph.tensors[name].bytes)
    for index, step in enumerate(schedule.steps):
        match step:
            case Compute(op=name):
                _compute(block, graph, graph.op[name], index)
            case Inplace(op=name):
                _compute_inplace(block, graph, graph.op[name], index)
            case Prefetch(tensor=name):
                block.place(index, name, graph.tensors[name].bytes)
            case Free(tensor=name):
                block.remove(name)
    if block.offsets:
        first, tensor = min(block.offsets, key=lambda place: (place[0], place[1] or ""))
        what = "a workspace" if tensor is None else f"tensor {tensor!r}"
        raise InvalidSchedule(
            f"arena: {_at(first)} makes nothing that an address is for: {what}",
            step=first,
            hint="each address is that of a tensor of more than 0 bytes that its step makes",
        )
    used = sum(block.tops.values())
    if arena.banks and used > arena.bytes:
        raise InvalidSchedule(
            f"arena: {used} bytes of the banks are used, not {arena.bytes}", hint=f'write "bytes": {used}'
        )


@dataclass(frozen=True)
class _Room:
    """A bank, or the whole arena, as a part of one line of addresses.

    Attributes:
        bank: its name; None of the whole arena.
        begin: where it begins on that line.
        bytes: its size.
    """

    bank: str | None
    begin: int
    bytes: int


def _rooms(arena: Arena) -> list[_Room]:
    """Return the rooms one after the other."""
    if not arena.banks:
        return [_Room(None, 0, arena.bytes)]
    rooms: list[_Room] = []
    for bank in arena.banks:
        if any(bank.name == room.bank for room in rooms):
            raise InvalidSchedule(f"arena: two banks are named {bank.name!r}", hint="give each a name of its own")
        rooms.append(_Room(bank.name, rooms[-1].begin + rooms[-1].bytes if rooms else 0, bank.bytes))
    return rooms


def _offsets(arena: Arena, rooms: list[_Room]) -> dict[tuple[int, str | None], int]:
    """Return the addresses on the line of all rooms."""
    by_name = {room.bank: room for room in rooms}
    offsets: dict[tuple[int, str | None], int] = {}
    for address in arena.addresses:
        place = address.step, address.tensor
        if place in offsets:
            raise InvalidSchedule(
                f"arena: {_at(address.step)} has two addresses for {_named(address.tensor)}",
                step=address.step,
                hint="leave one of them out",
            )
        room = by_name.get(address.bank)
        if room is None:
            known = ", ".join(repr(bank.name) for bank in arena.banks) or "none"
            raise InvalidSchedule(
                f"arena: {_at(address.step)}: {_named(address.tensor)} lies in no bank that there is: {address.bank!r}",
                step=address.step,
                hint=f"the arena's banks: {known}",
            )
        if not 0 <= address.offset < max(1, room.bytes):
            raise _outside(address.step, address.tensor, room, f"{address.offset}, outside")
        offsets[place] = room.begin + address.offset
    return offsets


def _outside(step: int, tensor: str | None, room: _Room, fault: str) -> InvalidSchedule:
    whole = "the arena" if room.bank is None else f"bank {room.bank!r}"
    return InvalidSchedule(
        f"arena: {_at(step)}: {_named(tensor)} lies at {fault} {whole} of {room.bytes} bytes",
        step=step,
        hint="give it another address",
    )


@dataclass
class _Block:
    """What lies in the arena between two steps.

    Attributes:
        arena: the arena.
        rooms: its banks, in a line.
        offsets: addresses on that line at which nothing lies yet, by step and tensor.
        tops: by bank, where what lay highest ended.
    """

    arena: Arena
    rooms: list[_Room]
    offsets: dict[tuple[int, str | None], int]
    starts: list[int] = field(default_factory=list)  # of all that lies there, in order of address
    lying: dict[int, tuple[int, str | None]] = field(default_factory=dict)  # by start: its end, and what it is
    start: dict[str, int] = field(default_factory=dict)  # of each tensor that lies there
    tops: dict[str | None, int] = field(default_factory=dict)

    def place(self, step: int, tensor: str | None, size: int) -> None:
        """Let something lie at the offset that it has; what has 0 bytes has none."""
        if size == 0:
            return
        offset = self.offsets.pop((step, tensor), None)
        if offset is None:
            raise InvalidSchedule(
                f"arena: {_at(step)}: no address for {_named(tensor)}",
                step=step,
                hint="each thing of more than 0 bytes that a step makes has one",
            )
        self.lay(step, tensor, offset, size)

    def lay(self, step: int, tensor: str | None, offset: int, size: int) -> None:
        """Let something lie at an offset."""
        self._check_inside(step, tensor, offset, size)
        index = bisect_left(self.starts, offset)
        for neighbour in self.starts[max(0, index - 1) : index + 1]:
            end, other = self.lying[neighbour]
            if neighbour < offset + size and offset < end:
                begin, bank = self._room(offset).begin, self._room(offset).bank
                raise InvalidSchedule(
                    f"arena: {_at(step)}: {_named(tensor)} lies at {offset - begin} to before {offset + size - begin}, "
                    f"{_named(other)} at {neighbour - begin} to before {end - begin}"
                    f"{'' if bank is None else f', both in bank {bank!r}'}",
                    step=step,
                    hint="both are in memory at this step; give one of them another address",
                )
        self.starts.insert(index, offset)
        self.lying[offset] = offset + size, tensor
        if tensor is not None:
            self.start[tensor] = offset

    def remove(self, tensor: str) -> None:
        """Take a tensor away; one of 0 bytes never lay there."""
        if tensor in self.start:
            self.take(self.start.pop(tensor))

    def take(self, offset: int) -> None:
        """Take away what lies at an offset."""
        del self.starts[bisect_left(self.starts, offset)]
        del self.lying[offset]

    def _room(self, offset: int) -> _Room:
        return self.rooms[max(0, bisect_right(self.rooms, offset, key=lambda room: room.begin) - 1)]

    def _check_inside(self, step: int, tensor: str | None, offset: int, size: int) -> None:
        room = self._room(offset)
        within = offset - room.begin
        if within + size > room.bytes:
            raise _outside(step, tensor, room, f"{within} to before {within + size}, outside")
        if within % self.arena.alignment:
            raise InvalidSchedule(
                f"arena: {_at(step)}: {_named(tensor)} lies at {within}, no multiple of {self.arena.alignment}, "
                "which is the alignment",
                step=step,
                hint="give it another address",
            )
        self.tops[room.bank] = max(self.tops.get(room.bank, 0), within + size)


def _compute(block: _Block, graph: Graph, op: Op, step: int) -> None:
    for name in op.outputs:
        if name not in block.start:
            block.place(step, name, graph.tensors[name].bytes)
    _check_workspace(block, op, step)


def _compute_inplace(block: _Block, graph: Graph, op: Op, step: int) -> None:
    assert op.inplace is not None, "the schedule is valid"
    taken, output = op.inplace, op.outputs[0]
    size = graph.tensors[output].bytes
    offset = block.start.get(taken)
    block.remove(taken)
    if offset is None:  # what has 0 bytes lies nowhere that could be taken over
        block.place(step, output, size)
    else:
        # While the op runs, the larger of the two counts.
        block.lay(step, output, offset, max(size, graph.tensors[taken].bytes))
    for name in op.outputs[1:]:
        if name not in block.start:
            block.place(step, name, graph.tensors[name].bytes)
    _check_workspace(block, op, step)
    if offset is not None:
        block.remove(output)
        if size:
            block.lay(step, output, offset, size)


def _check_workspace(block: _Block, op: Op, step: int) -> None:
    """Check the place of an op's workspace, which is there with all its inputs and outputs, and gone afterwards."""
    if op.workspace_bytes:
        offset = block.offsets.get((step, None), 0)
        block.place(step, None, op.workspace_bytes)
        block.take(offset)


def _named(tensor: str | None) -> str:
    return "the workspace" if tensor is None else f"tensor {tensor!r}"


def _at(step: int) -> str:
    return "the start" if step == AT_START else f"step {step}"
