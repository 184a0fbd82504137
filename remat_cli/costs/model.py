"""The protocol of cost models, simple models, and their use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from remat_cli.core.graph import Draft, Kind, Op
from remat_cli.costs.work import only_makes_views
from remat_cli.errors import UsageError
from remat_cli.units import format_names

_BYTES_PER_OPERATION = 4


class CostModel(Protocol):
    """Gives the time of one run of an op.

    A cost model is a frozen dataclass whose fields are its parameters.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]
    time_unit: ClassVar[str]
    remedy: ClassVar[str]  # what to do if the model has no time for an op

    def time(self, graph: Draft, op: Op) -> int | None:
        """Return the time of one run of `op`, in `time_unit`.

        None means that the op lacks figures.
        """
        ...

    def grad_time(self, graph: Draft, op: Op) -> int | None:
        """Return the time of the backward of forward op `op`.

        None means twice the op's `time`.
        """
        ...


def apply_costs(graph: Draft, model: CostModel) -> Draft:
    """Return a graph with times of its ops by a cost model.

    In a forward graph the ops' backwards get times, too.

    An op that only returns views launches nothing: it takes no time under any model.

    Raises:
        UsageError: the model has no time for some ops; the message names their types.
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
    """The time of every op is one unit.

    Overhead then counts recomputations.
    """

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
    """The time of an op is its FLOPs; data movement is free.

    No device is needed.

    An op with known bytes and unknown FLOPs counts as one operation for each 4 bytes that it moves.
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
