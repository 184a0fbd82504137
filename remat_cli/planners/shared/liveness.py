"""When tensors are freed: the peak of a sequence of computes with liveness analysis, and schedules without it.

The peak is the planners' own quick count of what the judge measures: the schedule of `schedule.with_frees`, without
building its steps. A property test holds the two equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from remat_cli.graph import Graph
from remat_cli.schedule import Compute, Free, Inplace, Schedule, Step, with_frees


def phase_peaks(graph: Graph, phases: Sequence[Sequence[int]]) -> list[int]:
    """Return the peak in bytes while each phase runs, each tensor freed at its last use; the largest is the plan's.

    Every op must find its inputs; that is not checked here.

    Args:
        graph: what is run.
        phases: numbers of the ops that each phase runs, in order.
    """
    arrays = graph.arrays
    inputs, outputs, inplace = arrays.inputs, arrays.outputs, arrays.inplace
    size = arrays.tensor_bytes.tolist()
    workspace = arrays.workspace_bytes.tolist()
    produced = (arrays.producer >= 0).tolist()
    # Walking backwards: `needed` tells whether a tensor is read again before it is made again, and `live_after` is
    # the bytes of the tensors for which it does.
    needed = arrays.is_output.tolist()
    live_after = sum(size[t] for t, kept in enumerate(needed) if kept and produced[t])
    peaks = []
    for phase in reversed(phases):
        peak = 0
        for op in reversed(phase):
            made_in_vain = 0
            for t in outputs[op]:
                if needed[t]:
                    needed[t] = False
                else:
                    made_in_vain += size[t]
            running = live_after + made_in_vain + workspace[op]
            live_after = running - workspace[op] - sum(size[t] for t in outputs[op])
            taken = inplace[op]
            for t in inputs[op]:
                if produced[t] and not needed[t]:
                    needed[t] = True
                    live_after += size[t]
                    running += size[t]
                    if t == taken:
                        running -= min(size[t], size[outputs[op][0]])
            peak = max(peak, running)
        peaks.append(graph.fixed_bytes + peak)
    return peaks[::-1]


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
