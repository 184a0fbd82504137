"""Arenas: one block of memory with an offset for all that a schedule keeps in it, and the judge's check of them.

The check is written the slow, obvious way, and shares nothing with who chose the offsets.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

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
        offset: of its first byte, from the beginning of the arena.
    """

    step: int
    tensor: str | None
    offset: int


@dataclass(frozen=True)
class Arena:
    """One block of memory in which all tensors and workspaces of a schedule lie; resident bytes lie beside it.

    Attributes:
        bytes: size of the block.
        alignment: every offset is a multiple of it.
        addresses: one for each thing of more than 0 bytes that a step makes. The first output of an in-place step has
            none: it lies where the input lay whose storage it takes over.
    """

    bytes: int
    alignment: int
    addresses: tuple[Address, ...]


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
    block = _Block(arena, _offsets(arena))
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


def _offsets(arena: Arena) -> dict[tuple[int, str | None], int]:
    offsets: dict[tuple[int, str | None], int] = {}
    for address in arena.addresses:
        place = address.step, address.tensor
        if place in offsets:
            raise InvalidSchedule(
                f"arena: {_at(address.step)} has two addresses for {_named(address.tensor)}",
                step=address.step,
                hint="leave one of them out",
            )
        offsets[place] = address.offset
    return offsets


@dataclass
class _Block:
    """What lies in the arena between two steps.

    Attributes:
        arena: the arena.
        offsets: those that nothing lies at yet, by step and tensor.
    """

    arena: Arena
    offsets: dict[tuple[int, str | None], int]
    starts: list[int] = field(default_factory=list)  # of all that lies there, in order of address
    lying: dict[int, tuple[int, str | None]] = field(default_factory=dict)  # by start: its end, and what it is
    start: dict[str, int] = field(default_factory=dict)  # of each tensor that lies there

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
                raise InvalidSchedule(
                    f"arena: {_at(step)}: {_named(tensor)} lies at {offset} to before {offset + size}, "
                    f"{_named(other)} at {neighbour} to before {end}",
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

    def _check_inside(self, step: int, tensor: str | None, offset: int, size: int) -> None:
        fault = None
        if offset < 0 or offset + size > self.arena.bytes:
            fault = f"{offset} to before {offset + size}, outside the arena of {self.arena.bytes} bytes"
        elif offset % self.arena.alignment:
            fault = f"{offset}, no multiple of {self.arena.alignment}, which is the alignment"
        if fault is not None:
            raise InvalidSchedule(
                f"arena: {_at(step)}: {_named(tensor)} lies at {fault}", step=step, hint="give it another address"
            )


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
