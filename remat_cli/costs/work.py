"""FLOPs and moved bytes of ops, by their operators in the file.

A multiply-add counts 2 FLOPs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from remat_cli.core.graph import Draft, Op, Tensor, check_work
from remat_cli.core.operators import Operand, Operator, Role
from remat_cli.costs.aten import READS_WHAT_IT_WRITES
from remat_cli.costs.formulas import CONTRACTED_OPERANDS, UnknownWork, flops_of

# These operators read only as much of their first input as they write.
_READS_WHAT_IT_WRITES = frozenset({"Gather", "GatherElements", "GatherND", "Slice", "Expand"}) | READS_WHAT_IT_WRITES
# These operators read only the shape of their input.
_READS_SHAPE_ONLY = frozenset({"Shape", "Size"})


@dataclass(frozen=True, slots=True)
class _Work:
    flops: int | None
    moved_bytes: int
    grad_flops: int | None


def annotate_work(graph: Draft, operators: Mapping[str, Operator]) -> tuple[Draft, tuple[str, ...]]:
    """Return a graph with each op's work, and names of estimated ops.

    The work is `flops`, `moved_bytes` and `grad_flops`.

    Moved bytes are those of distinct inputs, with weights, and of outputs. Gathers, slices and expansions read only as
    much as they write. An op that only returns views does no work. An operator without a formula, or with unknown
    shapes, gets only moved bytes: an estimate.

    The backward of a contraction (convolution, matrix product) costs one forward for each operand that needs a
    gradient, the backward of fused attention 2.5 forwards (it recomputes the attention weights), other backwards 2. An
    op without a backward has 0 `grad_flops`; mark the graph for training first (`training.annotate_saves`): without
    marks every op counts as having a backward.

    Args:
        graph: graph of the file.
        operators: an operator for each op.

    Raises:
        GraphError: an op has more work than cost models can count.
    """
    ops: list[Op] = []
    estimated: list[str] = []
    for op in graph.ops:
        work = _work(graph, op, operators[op.name])
        ops.append(op.edited(flops=work.flops, moved_bytes=work.moved_bytes, grad_flops=work.grad_flops))
        check_work(ops[-1])
        if work.flops is None:
            estimated.append(op.name)
    return graph.edited(ops=tuple(ops)), tuple(estimated)


def only_makes_views(graph: Draft, op: Op) -> bool:
    """Return whether an op only returns views.

    Such an op launches nothing and costs nothing.
    """
    return bool(op.outputs) and all(_shares_storage(graph.tensors[name]) for name in op.outputs)


def _shares_storage(tensor: Tensor) -> bool:
    """Return whether a tensor is a view.

    It is a view of another tensor or, if it has elements but no bytes, of a resident weight.
    """
    has_elements = tensor.shape is not None and prod(tensor.shape) > 0
    return tensor.view_of is not None or (tensor.bytes == 0 and has_elements)


def _work(graph: Draft, op: Op, operator: Operator) -> _Work:
    if only_makes_views(graph, op):
        return _Work(0, 0, 0)
    moved_bytes = _moved_bytes(graph, op, operator)
    try:
        flops = flops_of(operator)
    except UnknownWork:
        return _Work(None, moved_bytes, None)
    return _Work(flops, moved_bytes, _grad_flops(op, operator, flops))


def _moved_bytes(graph: Draft, op: Op, operator: Operator) -> int:
    written = {value.name: value.bytes for value in operator.outputs if value is not None}
    # A result that only the backward reads is an output of the op, though not of the operator.
    written |= {name: graph.tensors[name].bytes for name in op.outputs if name not in written}
    total_written = sum(written.values())
    first, others = operator.inputs[:1], {value.name: value.bytes for value in operator.inputs[1:] if value is not None}
    total_read = sum(others.values())
    if first and first[0] is not None and first[0].name not in others and operator.type not in _READS_SHAPE_ONLY:
        size = first[0].bytes
        total_read += min(size, total_written) if operator.type in _READS_WHAT_IT_WRITES else size
    return total_read + total_written


def _grad_flops(op: Op, operator: Operator, flops: int) -> int:
    if op.saves == () and op.grad_inputs == ():
        return 0
    if operator.type in CONTRACTED_OPERANDS:
        operands = (value for value in operator.inputs[: CONTRACTED_OPERANDS[operator.type]] if value is not None)
        return flops * sum(_needs_gradient(op, operand) for operand in operands)
    if operator.type == "Attention":
        return flops * 5 // 2
    return 2 * flops


def _needs_gradient(op: Op, operand: Operand) -> bool:
    if operand.role is Role.ACTIVATION:
        return op.grad_inputs is None or operand.name in op.grad_inputs
    return operand.role is Role.PARAMETER
