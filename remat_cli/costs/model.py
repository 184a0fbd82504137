"""Cost models: their protocol, those without parameters, and their use on a graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from remat_cli.core.graph import Draft, Kind, Op
from remat_cli.costs.work import only_makes_views
from remat_cli.errors import UsageError
from remat_cli.units import format_names

_BYTES_PER_OPERATION = 4


class CostModel(Protocol):
    """Gives the time of one run of an op: a frozen dataclass whose fields are its parameters."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    time_unit: ClassVar[str]
    remedy: ClassVar[str]  # what to do where the model cannot tell the time of an op

    def time(self, graph: Draft, op: Op) -> int | None:
        """Return the time of one run of `op`, in `time_unit`; None where too little is known of it."""
        ...

    def grad_time(self, graph: Draft, op: Op) -> int | None:
        """Return the time of the backward of forward op `op`; None means twice its `time`."""
        ...


def apply_costs(graph: Draft, model: CostModel) -> Draft:
    """Return `graph` with the times that `model` gives its ops and, on a forward graph, their backward.

    An op that only makes views launches nothing: it takes no time under any model.

    Raises:
        UsageError: the model cannot tell the time of some ops; it names their types.
    """
    ops: list[Op] = []
    untimed: dict[str, None] = {}
    for op in graph.ops:
        time = 0 if only_makes_views(graph, op) else model.time(graph, op)
        if time is None:
            untimed[op.type] = None
            continue
        ops.append(op.edited(time=time, grad_time=_grad_time(graph, op, model)))
    if untimed:
        raise UsageError(
            f"the cost model has no time for ops of type {format_names(list(untimed), 5)} in graph {graph.name!r}",
            hint=model.remedy,
        )
    return graph.edited(time_unit=model.time_unit, ops=tuple(ops))


def _grad_time(graph: Draft, op: Op, model: CostModel) -> int | None:
    if graph.kind is not Kind.FORWARD:
        return None
    return 0 if only_makes_views(graph, op) else model.grad_time(graph, op)


@dataclass(frozen=True, slots=True)
class Unit:
    """One unit of time for every op, forward and backward: overhead then counts recomputations."""

    time_unit: ClassVar[str] = "unit"
    remedy: ClassVar[str] = ""

    def time(self, graph: Draft, op: Op) -> int:
        """Return 1."""
        return 1

    def grad_time(self, graph: Draft, op: Op) -> int:
        """Return 1."""
        return 1


@dataclass(frozen=True, slots=True)
class Flops:
    """An op takes as long as it has FLOPs: data movement is free, and no device is needed.

    An op of which only the bytes are known counts as one operation for each 4 bytes that it moves.
    """

    time_unit: ClassVar[str] = "flop"
    remedy: ClassVar[str] = "give these ops 'flops' in the file, or keep the times that the file has (cost model given)"

    def time(self, graph: Draft, op: Op) -> int | None:
        """Return the FLOPs of `op`."""
        if op.flops is not None:
            return op.flops
        return None if op.moved_bytes is None else op.moved_bytes // _BYTES_PER_OPERATION

    def grad_time(self, graph: Draft, op: Op) -> int | None:
        """Return the FLOPs of the backward of `op`."""
        return op.grad_flops
