"""The buffers that a schedule needs, and its arena."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from remat_cli.core.arena import AT_START, Address, Arena, Bank
from remat_cli.core.buffers import Buffer
from remat_cli.core.graph import Graph, Op
from remat_cli.core.schedule import Compute, Free, Inplace, Offload, Prefetch, Schedule, inputs_at_start


@dataclass(frozen=True)
class Needed:
    """The tensors and workspaces that a schedule keeps, as buffers.

    Attributes:
        things: step and tensor of each; None stands for the workspace of the step's op.
        buffers: buffers of the same things. Moment 0 is the start, and step 0 runs in moment 1. In-place steps pass one
            buffer on, which has the size of the largest tensor in it.
        traffic: [things] bytes written to and read from each.
    """

    things: tuple[tuple[int, str | None], ...]
    buffers: tuple[Buffer, ...]
    traffic: tuple[int, ...]

    def arena(self, offsets: Sequence[int], size: int, alignment: int) -> Arena:
        """Return the arena of these things at [things] offsets."""
        addresses = (Address(step, name, at) for (step, name), at in zip(self.things, offsets, strict=True))
        return Arena(size, alignment, tuple(addresses))

    def arena_in(self, banks: Sequence[Bank], chosen: Sequence[int], offsets: Sequence[int], alignment: int) -> Arena:
        """Return the arena of these things in [things] banks, at [things] offsets."""
        tops = [0] * len(banks)
        for bank, offset, buffer in zip(chosen, offsets, self.buffers, strict=True):
            tops[bank] = max(tops[bank], offset + buffer.size)
        addresses = (
            Address(step, name, at, banks[bank].name)
            for (step, name), at, bank in zip(self.things, offsets, chosen, strict=True)
        )
        return Arena(sum(tops), alignment, tuple(addresses), tuple(banks))


def needed_by(graph: Graph, schedule: Schedule) -> Needed:
    """Return the buffers of a valid schedule, without empty buffers."""
    growing = _Growing()
    for name in inputs_at_start(graph, schedule):
        growing.begin(AT_START, name, graph.tensors[name].bytes)
    for index, step in enumerate(schedule.steps):
        match step:
            case Compute(op=name) | Inplace(op=name):
                growing.run(graph, graph.op[name], index, isinstance(step, Inplace))
            case Prefetch(tensor=name):
                growing.begin(index, name, graph.tensors[name].bytes)
            case Offload(tensor=name):
                growing.use(name)
            case Free(tensor=name):
                growing.end(name, index + 1)
    for name in tuple(growing.living):
        growing.end(name, len(schedule.steps) + 1)
    return Needed(tuple(growing.things), tuple(growing.buffers), tuple(growing.traffic))


@dataclass
class _Growing:
    """The buffers of a schedule while its steps are read.

    Attributes:
        living: storage of each tensor in memory.
    """

    things: list[tuple[int, str | None]] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    traffic: list[int] = field(default_factory=list)
    living: dict[str, _Living] = field(default_factory=dict)

    def run(self, graph: Graph, op: Op, step: int, is_inplace: bool) -> None:
        """Count a run of an op."""
        for read in op.inputs:
            self.use(graph.tensors[read].view_of or read)
        if is_inplace and op.inplace is not None:
            self.hand_on(op.inplace, op.outputs[0], graph.tensors[op.outputs[0]].bytes, step)
        for output in op.outputs:
            self.begin(step, output, graph.tensors[output].bytes)
        if op.workspace_bytes:
            self.add((step, None), Buffer(step + 1, step + 2, op.workspace_bytes), 2 * op.workspace_bytes)

    def begin(self, step: int, name: str, size: int) -> None:
        if name not in self.living:
            self.living[name] = _Living(step, name, size, size, size)

    def use(self, name: str) -> None:
        """Count a read of all bytes of a tensor."""
        if name in self.living:
            self.living[name].traffic += self.living[name].size

    def hand_on(self, taken: str, output: str, size: int, step: int) -> None:
        storage = self.living.pop(taken)
        # A tensor of 0 bytes lies nowhere: there is no storage to reuse.
        if not storage.most:
            storage = _Living(step, output, 0, 0, 0)
        storage.most, storage.size, storage.traffic = max(storage.most, size), size, storage.traffic + size
        self.living[output] = storage

    def end(self, name: str, moment: int) -> None:
        storage = self.living.pop(name)
        if storage.most:
            self.add((storage.step, storage.name), Buffer(storage.step + 1, moment, storage.most), storage.traffic)

    def add(self, thing: tuple[int, str | None], buffer: Buffer, traffic: int) -> None:
        self.things.append(thing)
        self.buffers.append(buffer)
        self.traffic.append(traffic)


@dataclass
class _Living:
    """A storage in memory.

    It has the step and tensor that began it, its bytes now and at most, and its traffic.
    """

    step: int
    name: str
    size: int
    most: int
    traffic: int
