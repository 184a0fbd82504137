"""Copies of operands that PyTorch makes for products and keeps.

A product of stacks of matrices takes each operand as one stack, [stacks, rows, columns]. Attention heads that a
transpose takes out of a longer row are no such stack in memory. `torch.matmul` copies them (`reshape`), keeps the copy
for the backward, and frees the row. A product with a single trained matrix takes the stack as one matrix, [rows,
columns]: each linear layer that reads the same transposed tensor keeps a copy of its own. `torch.einsum` brings the
dimensions of both operands, a weight's too, into the order of such stacks.

Strides are followed from op to op: through views, through elementwise ops, which keep the order of their input, through
products of `torch.einsum`, and through fused attention, whose result has the order of its queries. Results of other ops
are in row-major order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from remat_cli.core.graph import Draft
from remat_cli.core.operators import Operand, Operator
from remat_cli.training.einsum_product import product_of
from remat_cli.training.statistics import Statistic

_RESHAPES = frozenset({"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze"})
_KEEPS_STRIDES = frozenset({"Slice", "Split", "SplitToSequence", "SequenceAt"})
_ATTENTION = "Attention"
# fmt: off
_KEEPS_ORDER = frozenset((
    _ATTENTION, "Abs", "Add", "Cast", "CastLike", "Clip", "Cos", "Div", "Dropout", "Elu", "Erf", "Exp", "Gelu",
    "HardSigmoid", "HardSwish", "LeakyRelu", "Log", "Mul", "Neg", "Pow", "Reciprocal", "Relu", "RotaryEmbedding",
    "Sigmoid", "Sin", "Softplus", "Sqrt", "Sub", "Swish", "Tanh", "Where",
))
# fmt: on

Strides = tuple[int, ...]


def copied_operands(graph: Draft, operators: Mapping[str, Operator]) -> dict[str, dict[str, Statistic]]:
    """Return the copies of each matrix product, by op and operand.

    Args:
        graph: a forward pass, with views resolved.
        operators: an operator for each op.
    """
    memory = _Memory(graph)
    copies: dict[str, dict[str, Statistic]] = {}
    for op in graph.ops:
        operator = operators[op.name]
        copied = {value.name: _copy(value, shape) for value, shape in memory.copied(operator)}
        copies |= {op.name: copied} if copied else {}
        memory.follow(operator)
    return copies


def _copy(value: Operand, shape: Sequence[int]) -> Statistic:
    size = value.bytes * prod(shape) // max(1, value.elements)
    return Statistic(f"copy of {value.name}", tuple(shape), value.dtype, size)


@dataclass
class _Memory:
    """The strides of a forward pass's tensors.

    Attributes:
        graph: the forward pass.
        strides: strides in elements, of tensors that may not be in row-major order.
        reshaped: results of fused attention that PyTorch copies to reshape them. Both are kept: the result for
            attention's own backward, the copy for the backward of the first product that reads it.
    """

    graph: Draft
    strides: dict[str, Strides] = field(default_factory=dict)
    reshaped: set[str] = field(default_factory=set)

    def copied(self, operator: Operator) -> Iterator[tuple[Operand, Sequence[int]]]:
        """Yield the copied operands of a product, with their copies' shapes."""
        if operator.type == "Einsum" and (product := product_of(operator)) is not None:
            for factor in product.factors:
                given, shape = self._strides_of(factor.value), factor.value.shape or ()
                sizes, strides = ([own[axis] for axis in factor.axes] for own in (shape, given))
                if factor.summed_first or _viewed(sizes, strides, factor.form) is None:
                    yield factor.value, factor.form
        elif operator.type == "MatMul":
            for value, form in _forms(operator):
                shape = value.shape or ()
                if value.name in self.reshaped or _viewed(shape, self._strides_of(value), form) is None:
                    self.reshaped.discard(value.name)
                    yield value, shape

    def follow(self, operator: Operator) -> None:
        """Note the strides of an operator's results."""
        product = product_of(operator) if operator.type == "Einsum" else None
        for value in operator.outputs:
            if value is None or value.shape is None:
                continue
            base = self.graph.tensors[value.name].view_of
            if base is not None:
                self.strides[value.name] = self._strides_of_view(operator, value, base)
            elif product is not None:
                strides = contiguous(product.shape)
                self.strides[value.name] = tuple(strides[axis] for axis in product.axes)
            elif operator.type in _KEEPS_ORDER:
                same = (one for one in operator.inputs if one is not None and one.shape == value.shape)
                if (like := next(same, None)) is not None and like.name in self.strides:
                    self.strides[value.name] = _in_order_of(self.strides[like.name], value.shape)

    def _strides_of(self, value: Operand) -> Strides:
        return self.strides.get(value.name, contiguous(value.shape or ()))

    def _strides_of_view(self, operator: Operator, view: Operand, base: str) -> Strides:
        """Return the strides of an operator's view.

        A view that PyTorch would copy is contiguous.
        """
        source, shape = operator.inputs[0], view.shape or ()
        if source is None or source.shape is None:
            return contiguous(shape)
        given = self._strides_of(source)
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
        if reshaped is None and operator.type in _RESHAPES and self._is_attention(base):
            self.reshaped.add(view.name)
        return contiguous(shape) if reshaped is None else reshaped

    def _is_attention(self, name: str) -> bool:
        maker = self.graph.producer.get(name)
        return maker is not None and maker.type == _ATTENTION


def _forms(operator: Operator) -> Iterator[tuple[Operand, tuple[int, ...]]]:
    """Yield the reshaped operands of a product, with their shapes."""
    values = [value for value in operator.inputs if value is not None and value.shape is not None]
    shapes = [value.shape or () for value in values]
    ranks = [len(shape) for shape in shapes]
    if len(values) != 2 or ranks[0] < 3:
        return
    if ranks[1] == 2:  # the stack is kept only if the matrix is trained
        yield values[0], (prod(shapes[0][:-1]), shapes[0][-1])
    elif ranks[1] > 2:
        for value, shape in zip(values, shapes, strict=True):
            yield value, (prod(shape[:-2]), *shape[-2:])


def contiguous(shape: Sequence[int]) -> Strides:
    """Return the strides of a tensor in row-major order, in elements."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _in_order_of(strides: Strides, shape: Sequence[int]) -> Strides:
    """Return the strides of a new tensor with another's axis order."""
    order = sorted(range(len(shape)), key=lambda axis: -strides[axis])
    dense = contiguous([shape[axis] for axis in order])
    return tuple(dense[order.index(axis)] for axis in range(len(shape)))


def _viewed(shape: Sequence[int], strides: Sequence[int], wanted: Sequence[int]) -> Strides | None:
    """Return the strides of the same storage in another shape.

    None if no strides have this shape.

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
    viewed: list[int] = []
    length, step = runs.pop() if runs else (1, 1)
    for size in reversed(wanted):
        if length == 1 and size > 1:
            length, step = runs.pop()
        if length % size:
            return None
        viewed.append(step)
        length, step = length // size, step * size
    return tuple(reversed(viewed))
