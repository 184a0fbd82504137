"""The buffers that a schedule needs, and the arena that offsets for them make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from remat_cli.core.arena import AT_START, Address, Arena
from remat_cli.core.buffers import Buffer
from remat_cli.core.graph import Graph
from remat_cli.core.schedule import Compute, Free, Inplace, Prefetch, Schedule


@dataclass(frozen=True)
class Needed:
    """What a schedule needs, thing by thing.

    Attributes:
        things: the step that makes each, and its tensor; None stands for the workspace of that step's op.
        buffers: of the same things. Moment 0 is the start, and step 0 runs in moment 1. What in-place steps hand on
            is one buffer, as large as the largest that lies there.
    """

    things: tuple[tuple[int, str | None], ...]
    buffers: tuple[Buffer, ...]

    def arena(self, offsets: Sequence[int], size: int, alignment: int) -> Arena:
        """Return the arena in which these things lie at [things] offsets."""
        addresses = (Address(step, name, at) for (step, name), at in zip(self.things, offsets, strict=True))
        return Arena(size, alignment, tuple(addresses))


def needed_by(graph: Graph, schedule: Schedule) -> Needed:
    """Return what a valid schedule needs; what has 0 bytes takes no memory."""
    growing = _Growing()
    for name in graph.inputs:
        growing.begin(AT_START, name, graph.tensors[name].bytes)
    for index, step in enumerate(schedule.steps):
        match step:
            case Compute(op=name) | Inplace(op=name):
                op = graph.op[name]
                if isinstance(step, Inplace) and op.inplace is not None:
                    growing.hand_on(op.inplace, op.outputs[0], graph.tensors[op.outputs[0]].bytes, index)
                for output in op.outputs:
                    growing.begin(index, output, graph.tensors[output].bytes)
                if op.workspace_bytes:
                    growing.add((index, None), Buffer(index + 1, index + 2, op.workspace_bytes))
            case Prefetch(tensor=name):
                growing.begin(index, name, graph.tensors[name].bytes)
            case Free(tensor=name):
                growing.end(name, index + 1)
    for name in tuple(growing.living):
        growing.end(name, len(schedule.steps) + 1)
    return Needed(tuple(growing.things), tuple(growing.buffers))


@dataclass
class _Growing:
    """What is needed, as far as the steps have been looked at.

    Attributes:
        living: by tensor in memory: the step that made what it lies in, under which name, and the most bytes of it.
    """

    things: list[tuple[int, str | None]] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    living: dict[str, tuple[int, str, int]] = field(default_factory=dict)

    def begin(self, step: int, name: str, size: int) -> None:
        if name not in self.living:
            self.living[name] = step, name, size

    def hand_on(self, taken: str, output: str, size: int, step: int) -> None:
        made, name, most = self.living.pop(taken)
        # What has 0 bytes lies nowhere: there is nothing to take over.
        self.living[output] = (made, name, max(most, size)) if most else (step, output, size)

    def end(self, name: str, moment: int) -> None:
        step, made_as, size = self.living.pop(name)
        if size:
            self.add((step, made_as), Buffer(step + 1, moment, size))

    def add(self, thing: tuple[int, str | None], buffer: Buffer) -> None:
        self.things.append(thing)
        self.buffers.append(buffer)
