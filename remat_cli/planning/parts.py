"""The memory of a step with residents in four parts, over its steps.

The parts are parameters, gradients, optimizer state and activations; inputs, workspace and what is always there count
as activations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from remat_cli.core.graph import Graph, Residency
from remat_cli.core.schedule import Schedule, changes, inputs_at_start
from remat_cli.core.simulate import Trace
from remat_cli.planning.summary import Summary

PARAMETERS, GRADIENTS, STATE, ACTIVATIONS = PARTS = ("parameters", "gradients", "optimizer state", "activations")
_PART_OF = {Residency.PARAMETER: PARAMETERS, Residency.STATE: STATE}


def memory_parts(graph: Graph, schedule: Schedule, trace: Trace) -> Mapping[str, Sequence[int]]:
    """Return [steps + 1] bytes of each part while each step runs; nothing for a graph without residents."""
    if not graph.residents:
        return {}
    part_of = dict.fromkeys(graph.gradients, GRADIENTS)
    part_of |= {name: _PART_OF[role] for name in graph.residents if (role := graph.tensors[name].resident)}
    present = {name for name in inputs_at_start(graph, schedule) if name in part_of}
    now = dict.fromkeys(PARTS[:3], 0)
    for name in present:
        now[part_of[name]] += graph.tensors[name].bytes
    parts: dict[str, list[int]] = {part: [size] for part, size in now.items()}
    for step in schedule.steps:
        arriving, leaving = changes(graph, step)
        for name in part_of.keys() & {*arriving, *leaving}:
            sign = (name in arriving and name not in present) - (name in leaving)
            now[part_of[name]] += sign * graph.tensors[name].bytes
            (present.add if name in arriving else present.discard)(name)
        for part, size in now.items():
            parts[part].append(size)
    rest = [memory - sum(sizes) for memory, *sizes in zip(trace.memory_bytes, *parts.values(), strict=True)]
    return {**parts, ACTIVATIONS: rest}


def parts_summary(graph: Graph, schedule: Schedule, trace: Trace) -> Summary:
    """Return the parts at the peak, and at most, as JSON values; nothing for a graph without residents."""
    parts = memory_parts(graph, schedule, trace)
    if not parts:
        return {}
    at = trace.peak_step + 1
    return {
        "parts": {
            part.replace(" ", "_"): {"at_peak_bytes": sizes[at], "most_bytes": max(sizes)}
            for part, sizes in parts.items()
        }
    }
