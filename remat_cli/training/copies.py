"""Operands that PyTorch copies before it multiplies them, and then keeps in their place.

A product of stacks of matrices takes each operand as one stack, [stacks, rows, columns]. Heads of attention that a
transpose took out of a longer row are no such stack in memory: `torch.matmul` copies them (`reshape`), keeps the copy
for the backward, and lets go of the row. A product with a single matrix that is trained takes the stack as one matrix,
[rows, columns]: each linear layer that reads the same transposed tensor makes and keeps a copy of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from remat_cli.graph import Graph
from remat_cli.operators import Operand, Operator
from remat_cli.training.statistics import Statistic

_RESHAPES = frozenset({"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze"})
_KEEPS_STRIDES = frozenset({"Slice", "Split", "SplitToSequence", "SequenceAt"})

Strides = tuple[int, ...]


def copied_operands(graph: Graph, operators: Mapping[str, Operator]) -> dict[str, dict[str, Statistic]]:
    """Return the copies that each matrix product makes, by op and by name of the operand.

    Args:
        graph: a forward pass, with views resolved.
        operators: one for each op.
    """
    strides: dict[str, Strides] = {}  # of views, in elements
    copies: dict[str, dict[str, Statistic]] = {}
    for op in graph.ops:
        operator = operators[op.name]
        if operator.type == "MatMul":
            found = {value.name: _copy(value) for value, form in _forms(operator) if not _has(value, form, strides)}
            copies |= {op.name: found} if found else {}
        for value in operator.outputs:
            if value is not None and value.shape is not None and graph.tensors[value.name].view_of is not None:
                strides[value.name] = _strides(operator, value.shape, strides)
    return copies


def _forms(operator: Operator) -> Iterator[tuple[Operand, tuple[int, ...]]]:
    """Yield the operands of a product that it takes in a shape of their own, with that shape."""
    values = [value for value in operator.inputs if value is not None and value.shape is not None]
    shapes = [value.shape or () for value in values]
    ranks = [len(shape) for shape in shapes]
    if len(values) != 2 or ranks[0] < 3:
        return
    if ranks[1] == 2:  # what is multiplied is kept only where the matrix is trained
        yield values[0], (prod(shapes[0][:-1]), shapes[0][-1])
    elif ranks[1] > 2:
        for value, shape in zip(values, shapes, strict=True):
            yield value, (prod(shape[:-2]), *shape[-2:])


def _copy(value: Operand) -> Statistic:
    return Statistic(f"copy of {value.name}", value.shape or (), value.dtype, value.bytes)


def _has(value: Operand, form: tuple[int, ...], strides: Mapping[str, Strides]) -> bool:
    """Whether the memory of a tensor can be seen in another shape."""
    return value.name not in strides or _viewed(value.shape or (), strides[value.name], form) is not None


def _strides(operator: Operator, shape: tuple[int, ...], strides: Mapping[str, Strides]) -> Strides:
    """Return the strides of a view that an operator makes; one that PyTorch would copy is contiguous."""
    source = operator.inputs[0]
    if source is None or source.shape is None:
        return contiguous(shape)
    given = strides.get(source.name, contiguous(source.shape))
    if operator.type == "Transpose":
        axes = operator.attributes.get("perm", tuple(reversed(range(len(shape)))))
        return tuple(given[int(axis)] for axis in axes) if isinstance(axes, tuple) else contiguous(shape)
    if operator.type in _KEEPS_STRIDES and len(shape) == len(given):
        return given
    if operator.type == "Gather":
        axis = operator.integer("axis", 0) % len(given)
        return (*given[:axis], *given[axis + 1 :])
    if operator.type == "Expand" and len(shape) >= len(given):
        added = len(shape) - len(given)
        sizes = (*(1,) * added, *source.shape)
        own = (*(0,) * added, *given)
        return tuple(stride if size == wide else 0 for stride, size, wide in zip(own, sizes, shape, strict=True))
    reshaped = _viewed(source.shape, given, shape) if operator.type in _RESHAPES else None
    return contiguous(shape) if reshaped is None else reshaped


def contiguous(shape: Sequence[int]) -> Strides:
    """Return the strides of a tensor in row-major order, in elements."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _viewed(shape: Sequence[int], strides: Strides, wanted: Sequence[int]) -> Strides | None:
    """Return the strides with which the same storage has another shape, or None where no strides do.

    Axes that lie one within the other in memory are one run; each wanted axis must lie within one run.
    """
    if prod(shape) != prod(wanted) or prod(shape) == 0:
        return None
    runs: list[tuple[int, int]] = []  # length, and stride of the last axis, from the outermost
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if runs and runs[-1][1] == size * stride:
            runs[-1] = (runs[-1][0] * size, stride)
        else:
            runs.append((size, stride))
    found: list[int] = []
    length, step = runs.pop() if runs else (1, 1)
    for size in reversed(wanted):
        if length == 1 and size > 1:
            length, step = runs.pop()
        if length % size:
            return None
        found.append(step)
        length, step = length // size, step * size
    return tuple(reversed(found))
