"""Transfers of whole tensors: from a sequence of computes, and tensors that may go to the host, to a schedule.

The memory of a tensor is free when all of it has left, and is taken when its way back begins. An offload starts when
the tensor is made; it is waited for, and the tensor freed, only where the next op would not fit otherwise, the oldest
tensor first. Tensors come back in the order in which they are read, each as early as there is memory for it from then
on. What need not leave stays.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from remat_cli.graph import Graph, Phase
from remat_cli.planners.shared.sequence import RematSequence
from remat_cli.schedule import Compute, Free, Inplace, Offload, Prefetch, Schedule, Step, Wait, with_frees


@dataclass(frozen=True, slots=True)
class Absence:
    """While a tensor is away, or could be. Times are positions in a sequence of computes.

    Attributes:
        name: of the tensor.
        bytes: its size.
        made_at: when it is made, and its way to the host begins.
        left_after: its last use in the forward phase.
        wanted_at: its first use in the backward phase.
        freed_before: the op for which its memory is needed.
        back_before: the op before which its way back begins, and its memory is taken again.
    """

    name: str
    bytes: int
    made_at: int
    left_after: int
    wanted_at: int
    freed_before: int = -1
    back_before: int = -1


@dataclass(frozen=True, eq=False)
class Movements:
    """A sequence of computes and the tensors that may be away in the middle of it.

    Attributes:
        graph: what is run.
        computes: names of its ops in the order in which they run, the backward after the forward.
        absences: when tensors may be away, in the order in which the link would take them.
        memory: [computes] bytes while each op runs, with all of them on the device.
    """

    graph: Graph
    computes: Sequence[str]
    absences: Sequence[Absence]
    memory: NDArray[np.int64]

    @classmethod
    def of(cls, graph: Graph, computes: Sequence[str], movable: Container[str]) -> Movements:
        """Find out when tensors may be away: those that the forward makes and the backward reads as they are.

        Args:
            graph: what is run.
            computes: see the class.
            movable: names of tensors that may go to the host.
        """
        memory = RematSequence.of_names(graph, computes).memory
        turn = next(place for place, name in enumerate(computes) if graph.op[name].phase is Phase.BACKWARD)
        made_at: dict[str, int] = {}
        left_after: dict[str, int] = {}
        for place, op in enumerate(graph.op[name] for name in computes[:turn]):
            left_after.update((tensor, place) for tensor in (*op.inputs, *op.outputs))
            made_at.update((tensor, place) for tensor in op.outputs)
        wanted_at: dict[str, int] = {}
        made_again: set[str] = set()
        for place, op in enumerate((graph.op[name] for name in computes[turn:]), start=turn):
            for tensor in op.inputs:
                if tensor not in made_again:
                    wanted_at.setdefault(tensor, place)
            made_again.update(op.outputs)
        absences = [
            Absence(name, graph.tensors[name].bytes, made, left_after[name], wanted_at[name])
            for name, made in made_at.items()
            if name in movable and wanted_at.get(name, 0) > left_after[name] + 1 and graph.tensors[name].bytes > 0
        ]
        return cls(graph, computes, sorted(absences, key=lambda absence: absence.made_at), memory)

    @cached_property
    def least_bytes(self) -> int:
        """The least budget: what is needed when all that may be away is."""
        memory = self.memory.copy()
        for absence in self.absences:
            memory[absence.left_after + 1 : absence.wanted_at] -= absence.bytes
        return int(memory.max())

    def schedule(self, budget_bytes: int) -> Schedule:
        """Return a schedule within a budget, of device memory in all, that is at least `least_bytes`."""
        memory = self.memory.copy()
        absent = _come_back(_leave(self.absences, memory, budget_bytes), memory, budget_bytes)
        return _woven(with_frees(self.graph, self.computes), absent)


def _leave(possible: Sequence[Absence], memory: NDArray[np.int64], budget_bytes: int) -> list[Absence]:
    """Return which tensors leave, and for which op.

    Args:
        possible: in the order in which the link takes them.
        memory: bytes while each op runs; what leaves is taken off, as if it came back just when it is wanted.
        budget_bytes: enough for what is there when all of them are away.
    """
    by_last_use = sorted(range(len(possible)), key=lambda number: possible[number].left_after, reverse=True)
    out_of_use: list[int] = []  # a heap: the oldest first
    absent: list[Absence] = []
    for position in range(len(memory)):
        while by_last_use and possible[by_last_use[-1]].left_after < position:
            heappush(out_of_use, by_last_use.pop())
        while memory[position] > budget_bytes:
            absence = possible[heappop(out_of_use)]
            if absence.wanted_at > position:
                memory[position : absence.wanted_at] -= absence.bytes
                absent.append(replace(absence, freed_before=position))
    return _without_needless(absent, memory, budget_bytes)


def _without_needless(absent: Sequence[Absence], memory: NDArray[np.int64], budget_bytes: int) -> list[Absence]:
    """Leave out tensors that could stay as well, since larger ones left after them; add them to `memory`."""
    needed = []
    for absence in reversed(absent):
        away = memory[absence.freed_before : absence.wanted_at]
        if away.max() + absence.bytes <= budget_bytes:
            away += absence.bytes
        else:
            needed.append(absence)
    return needed


def _come_back(absent: Sequence[Absence], memory: NDArray[np.int64], budget_bytes: int) -> list[Absence]:
    """Return the same, with the op before which each comes back, in that order; arguments as in `_leave`."""
    # A tensor on its way back must not keep another from leaving.
    earliest = max((absence.made_at for absence in absent), default=0) + 1
    returning = []
    for absence in sorted(absent, key=lambda absence: (absence.wanted_at, -absence.made_at)):
        begin = max(earliest, absence.freed_before)
        too_full = np.flatnonzero(memory[begin : absence.wanted_at] > budget_bytes - absence.bytes)
        earliest = begin + int(too_full[-1]) + 1 if too_full.size else begin
        memory[earliest : absence.wanted_at] += absence.bytes
        returning.append(replace(absence, back_before=earliest))
    return returning


def _woven(plain: Schedule, absent: Sequence[Absence]) -> Schedule:
    """Return a schedule without transfers with those of `absent`, which are in the order in which they come back."""
    before: dict[int, list[Step]] = defaultdict(list)
    after: dict[int, list[Step]] = defaultdict(list)
    for absence in absent:
        after[absence.made_at].append(Offload(absence.name))
        before[absence.freed_before] += (Wait(absence.name), Free(absence.name))
    for absence in absent:
        before[absence.back_before].append(Prefetch(absence.name))
    for absence in absent:
        before[absence.wanted_at].append(Wait(absence.name))
    steps: list[Step] = []
    position = -1
    for step in plain.steps:
        if isinstance(step, Compute | Inplace):
            position += 1
            steps += (*before[position], step, *after[position])
        else:
            steps.append(step)
    return Schedule(tuple(steps))
