"""The buffers that a schedule needs, and the arena that offsets for them make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from remat_cli.core.arena import AT_START, Address, Arena, Bank
from remat_cli.core.buffers import Buffer
from remat_cli.core.graph import Graph, Op
from remat_cli.core.schedule import Compute, Free, Inplace, Offload, Prefetch, Schedule


@dataclass(frozen=True)
class Needed:
    """What a schedule needs, thing by thing.

    Attributes:
        things: the step that makes each, and its tensor; None stands for the workspace of that step's op.
        buffers: of the same things. Moment 0 is the start, and step 0 runs in moment 1. What in-place steps hand on
            is one buffer, as large as the largest that lies there.
        traffic: [things] bytes that are written to each and read from it.
    """

    things: tuple[tuple[int, str | None], ...]
    buffers: tuple[Buffer, ...]
    traffic: tuple[int, ...]

    def arena(self, offsets: Sequence[int], size: int, alignment: int) -> Arena:
        """Return the arena in which these things lie at [things] offsets."""
        addresses = (Address(step, name, at) for (step, name), at in zip(self.things, offsets, strict=True))
        return Arena(size, alignment, tuple(addresses))

    def arena_in(self, banks: Sequence[Bank], chosen: Sequence[int], offsets: Sequence[int], alignment: int) -> Arena:
        """Return the arena in which these things lie in [things] banks, at [things] offsets."""
        tops = [0] * len(banks)
        for bank, offset, buffer in zip(chosen, offsets, self.buffers, strict=True):
            tops[bank] = max(tops[bank], offset + buffer.size)
        addresses = (
            Address(step, name, at, banks[bank].name)
            for (step, name), at, bank in zip(self.things, offsets, chosen, strict=True)
        )
        return Arena(sum(tops), alignment, tuple(addresses), tuple(banks))


def needed_by(graph: Graph, schedule: Schedule) -> Needed:
    """Return what a valid schedule needs; what has 0 bytes takes no memory."""
    growing = _Growing()
    for name in graph.inputs:
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
    """What is needed, as far as the steps have been looked at.

    Attributes:
        living: by tensor in memory, what it lies in.
    """

    things: list[tuple[int, str | None]] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    traffic: list[int] = field(default_factory=list)
    living: dict[str, _Living] = field(default_factory=dict)

    def run(self, graph: Graph, op: Op, step: int, is_inplace: bool) -> None:
        """Look at a run of an op."""
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
        # What has 0 bytes lies nowhere: there is nothing to take over.
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
    """A storage in memory: who made it, under which name, its bytes now and at most, and what was moved of them."""

    step: int
    name: str
    size: int
    most: int
    traffic: int
