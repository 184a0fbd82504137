"""Schedules without liveness analysis: tensors die only where a phase ends."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from remat_cli.graph import Graph
from remat_cli.schedule import Compute, Free, Inplace, Schedule, Step, with_frees


def with_late_frees(graph: Graph, phases: Sequence[Sequence[int]]) -> Schedule:
    """Return the schedule of a strategy without liveness analysis: tensors die only where a phase ends.

    Each instance of a tensor is freed at the end of the phase that holds its last use, and no op works in place.
    Source: Kusumoto et al. 2019, Table 2.

    Args:
        graph: what the schedule is for.
        phases: numbers of the ops that each phase runs, in order.
    """
    ends = set(accumulate(len(phase) for phase in phases))
    steps: list[Step] = []
    dead: dict[str, None] = {}  # in memory until the phase ends; a dict for its order
    ops_run = 0
    for step in with_frees(graph, (graph.ops[op].name for phase in phases for op in phase)).steps:
        match step:
            case Free(tensor=name):
                dead[name] = None
            case Compute(op=op) | Inplace(op=op):
                if ops_run in ends:
                    steps += map(Free, dead)
                    dead.clear()
                steps.append(Compute(op))
                ops_run += 1
                for name in graph.op[op].outputs:  # an instance made again is overwritten, not freed
                    dead.pop(name, None)
                if isinstance(step, Inplace):
                    dead[str(graph.op[op].inplace)] = None
    steps += map(Free, dead)
    return Schedule(tuple(steps))
