"""A second judge: replays schedules by the rules of the format, written anew, so that the judge is judged, too.

It takes from remat the graph, the steps and the numbers of the link; how views are resolved it says itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from remat_cli.core.graph import Graph, Op, Tensor, build_graph
from remat_cli.core.link import Duplex, Link
from remat_cli.core.schedule import Compute, Free, Inplace, Offload, Prefetch, Schedule, Step, Wait


@dataclass
class _Machine:
    """A device, its link, and the host.

    Attributes:
        sizes: bytes by the tensors in device memory.
        clock: of the compute stream.
        peak: the most bytes so far.
        arrives: when the copy of a tensor that has not been waited for ends: on its way out, and on its way back.
        ends: when the last copy of each tensor ends.
        hosted: tensors with a copy on the host.
        free_at: when each way of the link is free; both are one where it is half duplex.
        runs: how often each op has run.
        written: residents that their update has written.
    """

    sizes: dict[str, int]
    clock: int = 0
    peak: int = 0
    arrives: tuple[set[str], set[str]] = field(default_factory=lambda: (set(), set()))
    ends: dict[str, int] = field(default_factory=dict)
    hosted: set[str] = field(default_factory=set)
    free_at: list[int] = field(default_factory=lambda: [0, 0])
    runs: Counter[str] = field(default_factory=Counter)
    written: set[str] = field(default_factory=set)


def replayed(graph: Graph, schedule: Schedule, link: Link | None) -> tuple[int, int]:
    """Return peak (bytes, resident ones included) and time of a schedule.

    Raises:
        AssertionError: it breaks a rule.
    """
    made = {name: op for op in graph.ops for name in op.outputs}
    away = set(schedule.on_host)
    residents = {name for name, tensor in graph.tensors.items() if tensor.resident}
    assert away <= residents, "what is on the host at the start is no resident"
    there = {name: tensor.bytes for name, tensor in graph.tensors.items() if name not in {*made, *away}}
    machine = _Machine(there, hosted=set(away))
    machine.peak = graph.resident_bytes + sum(machine.sizes.values())
    for step in schedule.steps:
        extra = _carried_out(graph, machine, step, link, made)
        machine.peak = max(machine.peak, graph.resident_bytes + sum(machine.sizes.values()) + extra)
    assert set(machine.runs) == {op.name for op in graph.ops}, "an op is never run"
    assert set(graph.outputs) <= machine.sizes.keys() - machine.arrives[1], "an output is missing"
    assert residents - away <= machine.sizes.keys() - machine.arrives[1], "a resident does not end on the device"
    assert not away & machine.sizes.keys(), "a resident does not end on the host"
    assert away <= machine.hosted, "a resident is lost"
    return machine.peak, machine.clock


def _carried_out(graph: Graph, machine: _Machine, step: Step, link: Link | None, made: dict[str, Op]) -> int:
    """Carry out a step; return the bytes that are needed meanwhile, beside those that are there afterwards."""
    out, back = machine.arrives
    if isinstance(step, Compute | Inplace):
        return _run(graph, machine, next(op for op in graph.ops if op.name == step.op), isinstance(step, Inplace), made)
    name = step.tensor
    if isinstance(step, Free):
        assert name in made or (graph.tensors[name].resident and name in machine.hosted), "an input is freed, or lost"
        assert name not in out | back, "a tensor is freed as it is copied"
        del machine.sizes[name]
        return 0
    if isinstance(step, Wait):
        machine.clock = max(machine.clock, machine.ends[name])
        out.discard(name)
        back.discard(name)
        return 0
    assert link is not None, "there is no link"
    way = 1 if isinstance(step, Prefetch) and link.duplex is Duplex.FULL else 0
    begins = max(machine.clock, machine.free_at[way])
    pace, size = Fraction(link.bytes_per_time), graph.tensors[name].bytes
    took = size * pace.denominator
    machine.free_at[way] = machine.ends[name] = begins - (-took // pace.numerator)
    if isinstance(step, Offload):
        assert name in machine.sizes.keys() - back - out, "what leaves is not there, or on its way"
        machine.hosted.add(name)
        out.add(name)
    else:
        assert name in machine.hosted and name not in machine.sizes, "what comes back is there, or not on the host"  # noqa: PT018
        machine.sizes[name] = size
        back.add(name)
    return 0


def _run(graph: Graph, machine: _Machine, op: Op, is_inplace: bool, made: dict[str, Op]) -> int:
    out, back = machine.arrives
    assert set(op.inputs) <= machine.sizes.keys() - back, f"{op.name} reads what is not there"
    assert not (out | back) & set(op.outputs), f"{op.name} makes what is being copied"
    assert op.recomputable or not machine.runs[op.name], f"{op.name} must not run again"
    assert not machine.written & set(op.inputs), f"{op.name} reads a parameter after its update"
    assert not out & set(op.writes), f"{op.name} writes what is being copied"
    machine.written.update(op.writes)
    machine.hosted.difference_update(op.writes)
    machine.runs[op.name] += 1
    machine.clock += op.time
    extra = op.workspace_bytes
    if is_inplace:
        taken, first = op.inplace, op.outputs[0]
        assert taken in made, "nothing takes the place of a graph input"
        assert taken not in out, "what is taken over is being copied"
        assert first not in machine.sizes, "what is written in place is there already"
        # Both share one storage, as large as the larger of them.
        extra += max(0, machine.sizes.pop(taken) - graph.tensors[first].bytes)
    machine.sizes.update((name, graph.tensors[name].bytes) for name in op.outputs)
    return extra


def built(**parts: Any) -> Graph:
    """Return the graph that `build_graph` makes of these parts, once its views are checked."""
    parts["tensors"], parts["ops"] = list(parts["tensors"]), list(parts["ops"])
    graph = build_graph(**parts)
    check_views(parts["tensors"], parts["ops"], parts.get("outputs"), graph)
    return graph


def check_views(tensors: Iterable[Tensor], ops: Iterable[Op], outputs: Sequence[str] | None, graph: Graph) -> None:
    """Check that a graph resolves the views of the parts that it was built of: where one is needed, its base is.

    Raises:
        AssertionError: a base is not that of the parts, or is missing where a view is read, made or a result.
    """
    views = {tensor.name: tensor.view_of for tensor in tensors}

    def base(name: str) -> str:
        while (below := views[name]) is not None:
            name = below
        return name

    assert all(graph.tensors[name].view_of == (base(name) if views[name] else None) for name in views)
    for op in ops:
        needed = {*op.inputs, *map(base, op.inputs), *({base(name) for name in op.outputs} - set(op.outputs))}
        assert set(graph.op[op.name].inputs) == needed, f"{op.name} reads {graph.op[op.name].inputs}, not {needed}"
    if outputs is not None:
        assert set(graph.outputs) == {*outputs, *map(base, outputs)}
