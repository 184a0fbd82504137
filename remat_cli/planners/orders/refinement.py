"""Reordering a plan that recomputes: the same runs in less memory, so that less need be recomputed in their order."""

from __future__ import annotations

from collections.abc import Sequence

from remat_cli.graph import Graph, Kind, Op, Tensor
from remat_cli.planners.orders.annealing import Cooling, anneal
from remat_cli.planners.orders.moves import Dependencies, Layout
from remat_cli.planners.orders.search import OrderLimits
from remat_cli.planners.stages import Stages
from remat_cli.planners.useful_runs import useful_runs

# Attempts differ in how much less room than there is they aim at, and in how far they go from the plan: the first
# temperatures of the annealing. Found by trial on random layered graphs of 500 and 1000 ops.
_MARGINS = (0.01, 0.02, 0.05)
_HEATS = (1.0, 0.3)
# For each run that the dependencies leave any choice.
_MOVES = 50


def reordered(
    graph: Graph, computes: Sequence[str], room: int, limits: OrderLimits, attempt: int = 0
) -> tuple[str, ...]:
    """Return the runs of a plan in an order that leaves memory to spare, if there is one.

    An order that suits the plain run is not the one that suits a plan best. Planning anew in the order of first runs
    that is returned, from what is returned as a start, and reordering the better plan again, lowers the recomputation
    step by step. The peak may end up above the room even where that of the given plan is not, and runs that have become
    useless are left out.

    Args:
        graph: what is planned.
        computes: names of the ops of a plan in the order in which they run.
        room: bytes for what ops make: the budget without the graph's fixed bytes.
        limits: where the search stops; of its seconds and its work, an attempt uses a small part in most graphs.
        attempt: each one searches elsewhere.
    """
    runs = unrolled(graph, computes)
    layout = Layout(Dependencies.of(runs), Stages.of(runs), aimed_at(room, attempt))
    moves = _MOVES * len(layout.loose())
    cooling = Cooling(
        heat=_HEATS[attempt // len(_MARGINS) % len(_HEATS)],
        moves=moves if limits.work is None else min(moves, limits.work),
        seconds=limits.seconds,
        seed=(limits.seed, attempt),
    )
    return useful_runs(graph, [computes[run] for run in anneal(layout, cooling).order.tolist()])


def aimed_at(room: int, attempt: int) -> int:
    """Return the bytes that an attempt to reorder tries to do with."""
    return int(room * (1 - _MARGINS[attempt % len(_MARGINS)]))


def unrolled(graph: Graph, computes: Sequence[str]) -> Graph:
    """Return the graph whose ops are the runs of a plan, and whose tensors are the instances that they make.

    A run reads the newest instance of each input. Whatever order the runs are brought into, the plan that is read off
    it is valid, and needs no more memory: an instance that is made while another is there replaces it.

    Args:
        graph: what is planned; its inputs, which are always there, are left out.
        computes: names of the ops in the order in which they run.
    """
    newest: dict[str, str] = {}
    tensors: dict[str, Tensor] = {}
    ops: list[Op] = []
    for name in computes:
        op = graph.op[name]
        inputs = tuple(newest[each] for each in op.inputs if each in graph.producer)
        inplace = None if op.inplace is None else newest.get(op.inplace)
        for each in op.outputs:
            newest[each] = str(len(tensors))
            tensors[newest[each]] = Tensor(newest[each], graph.tensors[each].bytes)
        ops.append(
            Op(
                name=str(len(ops)),
                type=op.type,
                inputs=inputs,
                outputs=tuple(newest[each] for each in op.outputs),
                time=op.time,
                workspace_bytes=op.workspace_bytes,
                inplace=inplace,
            )
        )
    return Graph(
        name=graph.name,
        kind=Kind.INFERENCE,
        time_unit=graph.time_unit,
        resident_bytes=0,
        tensors=tensors,
        ops=tuple(ops),
        outputs=tuple(newest[name] for name in graph.outputs if name in newest),
    )
