"""Checkpoints as a schedule of the captured step, which `planned` and `remat verify` take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from remat_cli.core.graph import Graph, Op, Phase
from remat_cli.core.schedule import Schedule, with_frees


def captured_schedule(graph: Graph, paths: Sequence[str]) -> Schedule:
    """Return the schedule in which the forward pass of each of these modules runs again before its backward pass.

    What must run once only (random ops) keeps its results, as does all that others read in the forward pass.

    Args:
        graph: a captured training step.
        paths: of modules, none inside another.
    """
    forward = [op for op in graph.ops if op.phase is Phase.FORWARD]
    module_of = {op.name: _inside(op, paths) for op in forward}
    dropped = {
        name: module for op in forward if op.recomputable and (module := module_of[op.name]) for name in op.outputs
    }
    kept_outside = {
        name for op in forward for name in op.inputs if name in dropped and module_of[op.name] != dropped[name]
    }
    for name in kept_outside.union(graph.outputs):
        dropped.pop(name, None)
    return with_frees(graph, _computes(graph, dropped))


def _inside(op: Op, paths: Sequence[str]) -> str | None:
    where = op.module or ""
    return next((path for path in paths if where == path or where.startswith(f"{path}.")), None)


def _computes(graph: Graph, dropped: Mapping[str, str]) -> Iterator[str]:
    wanted: dict[str, set[str]] = {}
    for op in graph.ops:
        if op.phase is Phase.BACKWARD:
            for name in op.inputs:
                if name in dropped:
                    wanted.setdefault(dropped[name], set()).add(name)
    done: set[str] = set()
    for op in graph.ops:
        if op.phase is Phase.BACKWARD:
            for module in dict.fromkeys(dropped[name] for name in op.inputs if name in dropped):
                if module not in done:
                    done.add(module)
                    yield from _again(graph, wanted[module], dropped, module)
        yield op.name


def _again(graph: Graph, wanted: set[str], dropped: Mapping[str, str], module: str) -> list[str]:
    """Return the ops that make these tensors from what the module keeps, in order."""
    needed, ops = set(wanted), []
    for op in reversed(graph.ops):
        if not needed.isdisjoint(op.outputs):
            ops.append(op.name)
            needed.update(name for name in op.inputs if dropped.get(name) == module)
    return ops[::-1]
