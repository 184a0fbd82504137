"""Arenas: an address for everything that a schedule keeps in memory.

The check of an arena is written the slow, obvious way, and shares nothing with the allocators that choose the offsets.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from fractions import Fraction

from remat_cli.core.graph import Graph, Op
from remat_cli.core.schedule import Compute, Free, Inplace, Prefetch, Schedule, inputs_at_start
from remat_cli.errors import InvalidSchedule

# The alignment that processors and runtimes usually ask for: a cache line.
USUAL_ALIGNMENT = 64
# The step of graph inputs: before the first step.
AT_START = -1


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a tensor or workspace that a step creates.

    Attributes:
        step: index of the step that creates it; `AT_START` for a graph input.
        tensor: name of the tensor; None for the workspace of the op that the step runs.
        offset: position of its first byte in the arena, or in its bank.
        bank: name of the bank; None in an arena without banks.
    """

    step: int
    tensor: str | None
    offset: int
    bank: str | None = None


@dataclass(frozen=True, slots=True)
class Bank:
    """A separate memory with its own addresses, from 0 up.

    Attributes:
        name: unique among the banks.
        bytes: its size.
        speed: bytes per unit of time, relative to the first bank.
    """

    name: str
    bytes: int
    speed: Fraction

    def __str__(self) -> str:
        """Write the bank as users do, without its name: SIZE[:SPEED]."""
        if self.speed == 1:
            return str(self.bytes)
        return f"{self.bytes}:{float(self.speed):.9f}".rstrip("0").rstrip(".")


@dataclass(frozen=True)
class Arena:
    """Memory that holds all tensors and workspaces of a schedule.

    Resident bytes are not part of it.

    Attributes:
        bytes: size of the block; with banks, the bytes used in all banks together.
        alignment: every offset is a multiple of it.
        addresses: one for each tensor or workspace of more than 0 bytes that a step creates. The first output of an
            in-place step has none: it keeps the address of the input whose storage it takes over.
        banks: the banks, each tensor wholly in one of them; empty for a single block.
    """

    bytes: int
    alignment: int
    addresses: tuple[Address, ...]
    banks: tuple[Bank, ...] = ()

    @property
    def span_bytes(self) -> int:
        """Total size of the block, or of all banks."""
        return sum(bank.bytes for bank in self.banks) or self.bytes

    @property
    def bank_starts(self) -> dict[str | None, int]:
        """The start of each bank when banks are laid end to end.

        Keys are bank names; None stands for the single block.
        """
        starts: dict[str | None, int] = {None: 0}
        at = 0
        for bank in self.banks:
            starts[bank.name] = at
            at += bank.bytes
        return starts


def check_arena(graph: Graph, schedule: Schedule, arena: Arena) -> None:
    """Check that tensors in memory at the same time never overlap.

    Everything must lie inside the arena, too. The time is near linear in the steps: bisection finds the neighbours of
    each new tensor.

    Args:
        graph: the graph that the schedule executes.
        schedule: a valid schedule; `simulate` checks that.
        arena: the addresses to check.

    Raises:
        InvalidSchedule: an address is missing or wrong, and the first clash is named; or an address belongs to nothing
            that its step creates.
    """
    rooms = _rooms(arena)
    block = _Block(arena, rooms, _offsets(arena, rooms))
    for name in inputs_at_start(graph, schedule):
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
    """A bank, or the whole arena, on one line of addresses.

    Attributes:
        bank: its name; None for the whole arena.
        begin: its first address on that line.
        bytes: its size.
    """

    bank: str | None
    begin: int
    bytes: int


def _rooms(arena: Arena) -> list[_Room]:
    """Lay the banks end to end."""
    if not arena.banks:
        return [_Room(None, 0, arena.bytes)]
    rooms: list[_Room] = []
    for bank in arena.banks:
        if any(bank.name == room.bank for room in rooms):
            raise InvalidSchedule(f"arena: two banks are named {bank.name!r}", hint="give each a name of its own")
        rooms.append(_Room(bank.name, rooms[-1].begin + rooms[-1].bytes if rooms else 0, bank.bytes))
    return rooms


def _offsets(arena: Arena, rooms: list[_Room]) -> dict[tuple[int, str | None], int]:
    """Map each address to its place on the line of all banks."""
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
    """The contents of the arena between two steps.

    Attributes:
        arena: the arena.
        rooms: its banks, in a line.
        offsets: addresses not used yet, on that line, by step and tensor.
        tops: for each bank, the highest end that any tensor had.
    """

    arena: Arena
    rooms: list[_Room]
    offsets: dict[tuple[int, str | None], int]
    starts: list[int] = field(default_factory=list)  # start addresses of the contents, sorted
    lying: dict[int, tuple[int, str | None]] = field(default_factory=dict)  # by start address: the end, and the tensor
    start: dict[str, int] = field(default_factory=dict)  # start address of each tensor in the arena
    tops: dict[str | None, int] = field(default_factory=dict)

    def place(self, step: int, tensor: str | None, size: int) -> None:
        """Put a tensor at its own address; an empty one has none."""
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
        """Put a tensor at an offset, where it must overlap nothing."""
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
        """Remove a tensor; one of 0 bytes was never placed."""
        if tensor in self.start:
            self.take(self.start.pop(tensor))

    def take(self, offset: int) -> None:
        """Remove the tensor or workspace at an offset."""
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
    if offset is None:  # a tensor of 0 bytes has no storage to take over
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
    """Check the address of an op's workspace.

    It is in memory with all inputs and outputs of the op, and gone afterwards.
    """
    if op.workspace_bytes:
        offset = block.offsets.get((step, None), 0)
        block.place(step, None, op.workspace_bytes)
        block.take(offset)


def _named(tensor: str | None) -> str:
    return "the workspace" if tensor is None else f"tensor {tensor!r}"


def _at(step: int) -> str:
    return "the start" if step == AT_START else f"step {step}"
